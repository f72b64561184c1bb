"""Secrets that are planted are in no log, metric, trace or answer of the service."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tests.e2e.deployment import Processes
from tests.ports import free_port
from tests.waiting import PATIENCE_S, until

SECRET = "planted-5f1c9a7e"
JSON = {"Content-Type": "application/json"}


class Collector(BaseHTTPRequestHandler):
    """Keeps the bodies of the traces that it is sent."""

    bodies: list[bytes] = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        packed = self.headers.get("Content-Encoding") == "gzip"
        self.bodies.append(gzip.decompress(body) if packed else body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    Collector.bodies = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.redis
@pytest.mark.slow
def test_planted_secrets_are_nowhere(tmp_path, collector):
    """A key, a wrong one, a password of the store, headers, a query and a body that is refused."""
    access, metrics_port = tmp_path / "access.log", free_port()
    environment = {
        "MOCA_TRACE": "1",
        "MOCA_TRACE_SHARE": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "MOCA_ACCESS_LOG": str(access),
        "MOCA_LOG_LEVEL": "debug",
        "MOCA_DEFAULT_MODEL": "gaussian",
        "MOCA_METRICS_PORT": str(metrics_port),
    }
    answers = []
    with Processes(tmp_path, environment) as processes:
        url = processes.serve("--require-keys")
        data = ("--data-dir", tmp_path / "data")
        scopes = ("--scope", "read", "--scope", "write")
        printed = processes.run("keys", "create", "shop", *scopes, *data)
        key = next(word for word in printed.split() if word.startswith("moca_"))
        secret = key.rpartition("_")[2]
        headers = {"Authorization": f"Bearer {key}", "X-Api-Token": SECRET, "Cookie": SECRET}
        wrong = {"Authorization": f"Bearer moca_000000000000_{SECRET}"}
        path = "/v1/streams/pump-7/observations"
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            until(lambda: client.post(path, json={"y": 1.5}, headers=headers).is_success)
            answers += [
                client.post(path, json={"y": 1.5}, headers=wrong),
                client.post(path, params={"token": SECRET}, json={"y": 2.5}, headers=headers),
                client.post(path, json={"y": SECRET}, headers=headers),
                client.post(path, content=f'{{"y":{SECRET}', headers={**headers, **JSON}),
                client.get("/v1/streams/pump-7", headers=headers),
                client.get("/metrics"),
            ]
        assert [answer.status_code for answer in answers[:4]] == [401, 422, 422, 400]
        until(lambda: Collector.bodies)
        processes.stop("serve")
        logs = {"serve.log": processes.log_of("serve"), "access.log": access.read_text()}
    texts = {
        **logs,
        "answers": "\n".join(answer.text for answer in answers),
        "traces": b"\n".join(Collector.bodies).decode("latin-1"),
    }
    assert "pump-7" in texts["access.log"]
    assert "observations" in texts["traces"]
    assert "moca_" in texts["answers"]
    for where, text in texts.items():
        assert SECRET not in text, f"{where}: {text[max(0, text.find(SECRET) - 200) :][:400]}"
        assert secret not in text, f"{where} has the secret of a key"
