"""An observation that ends or hangs its worker each time: it is set aside, all else is applied."""

import os
import time

import httpx
import pytest

from service.runtime.embedded import running_url
from service.store.connection import connect

DEADLY = """
import os
from model_core.upm.conjugate import Gaussian

update = Gaussian.update

def deadly(self, stats, phi, y, weight):
    if (y == 13.0).any():
        {what}
    return update(self, stats, phi, y, weight)

Gaussian.update = deadly
"""
ENDS = ("exited with", "was killed by")


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    ["os._exit(9)", "os.kill(os.getpid(), 11)", "os.kill(os.getpid(), 9)", "while True: pass"],
)
def test_it_is_set_aside_and_everything_else_is_applied(serve, processes, tmp_path, capsys, what):
    (tmp_path / "deadly.py").write_text(DEADLY.format(what=what))
    known = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(tmp_path), *([known] if known else [])])
    processes.environment |= {"PYTHONPATH": path, "MOCA_PLUGINS": "deadly"}
    # Its worker begins again six times; for a minute, where SIGKILL may be anyone's.
    processes.environment["MOCA_REQUEST_DEADLINE_S"] = "150"
    processes.environment["MOCA_WORKER_HANG_S"] = "3"
    processes.environment["MOCA_LEASE_TTL_MS"] = "1000"
    url = serve()
    names = [f"s{i}" for i in range(8)]
    with httpx.Client(base_url=url, timeout=170) as client:
        for name in names:
            body = {"model": "gaussian", "location": 0.0, "scale": 1.0}
            client.put(f"/v1/streams/{name}", json=body).raise_for_status()
        items = [{"stream": name, "y": 13.0 if name == "s3" else 1.0} for name in names]
        began = time.monotonic()
        answers = client.post("/v1/observations", json=items).json()
        took = time.monotonic() - began
        (bad,) = (each for each in answers if "seq" not in each)
        assert (bad["stream"], bad["status"]) == ("s3", 500)
        assert bad["type"].endswith("/quarantined")
        assert [each["seq"] for each in answers if "seq" in each] == [0] * 7
        after = client.post("/v1/observations", json=[{"stream": n, "y": 0.5} for n in names])
        expected = [0 if name == "s3" else 1 for name in names]
        assert [each["seq"] for each in after.json()] == expected
        with connect(str(running_url(tmp_path / "data"))) as store:
            (kept,) = store.scan_iter("moca:*:quarantine")
            assert store.hlen(kept) == 1
        assert "moca_quarantined_commands_total 1.0" in client.get("/metrics").text
    said = processes.log_of("serve")
    deaths = sum(f"worker 1 {end}" in line for line in said.splitlines() for end in ENDS)
    if "9)" in what and "kill" in what:
        assert took > 60  # not its own doing, for all that is known
    else:
        assert deaths == 6  # one was there before, two with all that waits, three alone
    if "while" in what:  # its place is in the log
        assert "in deadly\n" in said
    with capsys.disabled():
        print(
            f"\nan observation with {what}: set aside after {took:.1f} s, {deaths} ends", flush=True
        )
