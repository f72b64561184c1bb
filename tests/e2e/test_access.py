"""Keys of a service that runs with its embedded store."""

import os
import time

import httpx

from tests.service.api.real import moca


def test_the_first_key_of_a_running_service(serve, processes, tmp_path):
    processes.environment["MOCA_KEY_CACHE_S"] = "0.5"
    url, data = serve(), ("--data-dir", str(tmp_path / "data"))
    body, path = {"y": 1.0}, f"{url}/v1/streams/s/observations"
    assert httpx.post(path, json=body, timeout=30).status_code == 200
    assert "no API keys exist yet" in processes.log_of("serve")
    made = moca("keys", "create", "first", "--scope", "write", *data, **os.environ)
    assert made.returncode == 0, made.stderr
    assert "first key" in made.stderr
    headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
    for _ in range(100):
        if httpx.post(path, json=body).status_code == 401:
            break
        time.sleep(0.05)
    assert httpx.post(path, json=body).status_code == 401
    assert httpx.post(path, json=body, headers=headers).json()["seq"] >= 1
    processes.stop_all()
    serve()
    assert httpx.post(path, json=body).status_code == 401
    assert httpx.post(path, json=body, headers=headers).status_code == 200
    assert "API keys are required" in processes.log_of("serve")
    assert made.stdout.strip() not in processes.log_of("serve")
