"""Processes that die or hang under load: no request fails, and nothing is lost or done twice."""

import asyncio
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from service.store.connection import connect
from tests.e2e.deployment import (
    PATIENCE_S,
    Load,
    check_as_uninterrupted,
    create_streams,
    series,
    wait_ready,
)

STREAMS, LENGTH, PER_SECOND = 20, 20, 100


async def _meanwhile(load: Load, *steps: tuple[float, object]) -> None:
    """Run a load, and each step at its second."""

    async def later(seconds, step):
        await asyncio.sleep(seconds)
        await asyncio.to_thread(step)

    await asyncio.gather(load.run(), *(later(*each) for each in steps))


def test_a_worker_is_killed_under_load(separate, processes, capsys):
    processes.wait_for("owns 8 partitions", "worker-a", "worker-b")
    create_streams(separate, "load", STREAMS)
    load = Load(separate, series(STREAMS, LENGTH), PER_SECOND)
    asyncio.run(_meanwhile(load, (1.5, lambda: processes.kill("worker-a"))))
    with capsys.disabled():
        print(f"\ntakeover after SIGKILL of a worker: {max(load.seconds):.1f} s", flush=True)
    assert max(load.seconds) > 0.5, "the worker that was killed owned nothing"
    check_as_uninterrupted(separate, load)


def test_the_log_says_who_owns_how_much(separate, processes):
    """Of 16 partitions; at the start one worker may have had all of them."""
    processes.wait_for("owns 8 partitions", "worker-a", "worker-b")
    assert "worker-a computes on cpu" in processes.log_of("worker-a")
    assert "listening on 127.0.0.1 port" in processes.log_of("api")
    processes.signal("worker-a", signal.SIGTERM)
    assert processes.running.pop("worker-a").wait(20) == 0
    assert processes.log_of("worker-a").splitlines()[-1].endswith("owns 0 partitions")
    processes.wait_for("owns 16 partitions", "worker-b")


@pytest.mark.slow
def test_a_stopped_worker_comes_back_too_late(separate, processes):
    processes.wait_for("owns 8 partitions", "worker-a", "worker-b")
    create_streams(separate, "load", STREAMS)
    load = Load(separate, series(STREAMS, LENGTH), PER_SECOND)
    stop = (1.5, lambda: processes.signal("worker-a", signal.SIGSTOP))
    resume = (9.0, lambda: processes.signal("worker-a", signal.SIGCONT))
    asyncio.run(_meanwhile(load, stop, resume))
    check_as_uninterrupted(separate, load)
    deadline, log = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < deadline and not noticed(log):
        time.sleep(0.1)
        log = processes.log_of("worker-a")
    assert noticed(log)


def noticed(log: str) -> bool:
    """Whether a worker says that its partitions are gone."""
    return "taken over" in log or "lost ownership" in log


def test_the_whole_service_is_killed_and_started_again(serve, processes):
    url = serve()
    create_streams(url, "load", STREAMS)
    load = Load(url, series(STREAMS, LENGTH), PER_SECOND, retry=True)

    def again() -> None:
        _kill_with_children(processes, "serve")
        serve()

    asyncio.run(_meanwhile(load, (1.5, again)))
    assert max(load.seconds) > 0.3, "nobody noticed"
    check_as_uninterrupted(url, load)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["api", "worker"])
def test_a_child_of_serve_is_killed(serve, processes, victim):
    url = serve()
    create_streams(url, "load", STREAMS)
    load = Load(url, series(STREAMS, LENGTH), PER_SECOND, retry=victim == "api")

    def kill() -> None:
        (pid,) = _children(processes, "serve", "-f", f"service.commands.main {victim}")
        subprocess.run(["kill", "-KILL", pid], check=True)

    asyncio.run(_meanwhile(load, (1.5, kill)))
    wait_ready(url)
    check_as_uninterrupted(url, load)


@pytest.mark.slow
def test_redis_is_away_for_a_while(separate, processes):
    """A server that hangs is not an error of anybody's: nothing is set aside, nothing is lost."""
    create_streams(separate, "load", 10)
    load = Load(separate, series(10, LENGTH), 60, retry=True)
    with connect(processes.redis_url) as client:
        pid = client.info("server")["process_id"]
        stop = (1.0, lambda: subprocess.run(["kill", "-STOP", str(pid)], check=True))
        resume = (8.0, lambda: subprocess.run(["kill", "-CONT", str(pid)], check=True))
        asyncio.run(_meanwhile(load, stop, resume))
        wait_ready(separate)
        check_as_uninterrupted(separate, load)
        assert list(client.scan_iter("moca:*:quarantine")) == []


def _children(processes, name: str, *options: str) -> list[str]:
    command = ["pgrep", "-P", str(processes.running[name].pid), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def _kill_with_children(processes, name: str) -> None:
    """The supervisor first, then whatever it started: nobody gets to tidy up."""
    children = _children(processes, name)
    processes.kill(name)
    subprocess.run(["kill", "-KILL", *children], check=False, stderr=subprocess.DEVNULL)


def test_the_store_survives_a_kill_of_everything_but_itself(serve, processes):
    """An orphaned store is found and used again, never a second one beside it."""
    url = serve()
    with httpx.Client(base_url=url) as client:
        client.post("/v1/streams/s/observations", json={"y": 1.0}).raise_for_status()
    (api,) = _children(processes, "serve", "-f", "service.commands.main api")
    processes.kill("serve")
    while Path(f"/proc/{api}").exists():  # it notices its parent's death, and leaves
        time.sleep(0.05)
    serve()
    answer = httpx.post(f"{url}/v1/streams/s/observations", json={"y": 2.0}).json()
    assert answer["seq"] == 1
