"""Hundreds of starts and stops at random moments, while the store hangs or dies; each has a bound.

test_stopping.py has each of these faults by itself.
"""

import asyncio
import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import time

import httpx
import pytest

from service.api.app import create_app
from service.tasks import described, end
from tests.e2e.deployment import Processes
from tests.ports import free_port
from tests.service.api.conftest import PARTITIONS

STOP_S = 10.0  # of an application; what waits for a store that hangs is given up before
SERVE_S = 90.0  # API, workers and store, one after the other, and each killed
PROCESS_S = 20.0  # of a process: a look at the store at the start, and the interpreter's own end
UP_S = {"api": 8.0, "worker": 16.0, "webhooks": 8.0}  # about twice a start
FATES = ["stays", "stays", "hangs", "is killed"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Fate:
    """What becomes of the store during one round."""

    def __init__(self, store, kind):
        self._store, self._kind = store, kind

    def strike(self):
        if self._kind == "hangs":
            os.kill(self._store._process.pid, signal.SIGSTOP)
        elif self._kind == "is killed":
            self._store.stop()

    def heal(self):
        if self._kind == "hangs":
            os.kill(self._store._process.pid, signal.SIGCONT)
        elif self._kind == "is killed":
            self._store.start()


async def _run(app, stop):
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            posts = [
                asyncio.create_task(client.post(f"/v1/streams/{i}/observations", json={"y": 1.0}))
                for i in range(4)
            ]
            await stop.wait()
            return posts


async def _round(settings, fate, rng):
    """Start, have the store's fate come and stop, in any order; how far the start had come."""
    app, stop = create_app(settings), asyncio.Event()
    running = asyncio.create_task(_run(app, stop))
    moments = [rng.uniform(0, 0.5), rng.uniform(0, 0.8)]
    began, struck = time.monotonic(), False
    if moments[0] < moments[1]:
        await asyncio.sleep(moments[0])
        fate.strike()
        struck = True
    await asyncio.sleep(max(0.0, began + moments[1] - time.monotonic()))
    reached = "during the start" if not hasattr(app.state, "context") else "running"
    if app.state.starting is not None:
        app.state.starting.cancel()
    stop.set()
    if not struck:
        fate.strike()
    stopping = time.monotonic()
    done, _ = await asyncio.wait([running], timeout=STOP_S)
    assert done, f"{reached}: no end in {STOP_S} s\n{_all()}"
    seconds = time.monotonic() - stopping
    if not running.cancelled() and running.exception() is None:
        await end(*running.result())
    fate.heal()
    return reached, seconds


def _all():
    return "\n".join(map(described, asyncio.all_tasks()))


@pytest.mark.parametrize("seed", [1, 2])
async def test_an_application_ends_whenever_it_is_stopped(settings, lonely_store, seed, capsys):
    chosen = settings.model_copy(update={"redis_url": lonely_store.url})
    rng, seen, longest = random.Random(seed), collections.Counter(), 0.0
    for _ in range(150):
        kind = rng.choice(FATES)
        reached, seconds = await _round(chosen, Fate(lonely_store, kind), rng)
        seen[kind, reached] += 1
        longest = max(longest, seconds)
    with capsys.disabled():
        print(f"\n{dict(seen)}; longest stop {longest:.2f} s", flush=True)
    assert all(seen[kind, "running"] for kind in FATES)


@pytest.mark.parametrize("command", ["api", "worker", "webhooks"])
def test_a_process_ends_whenever_it_is_stopped(settings, lonely_store, tmp_path, command, capsys):
    hooks = tmp_path / "hooks.toml"
    hooks.write_text(
        '[[hook]]\nname = "a"\nurl = "http://127.0.0.1:9/"\n'
        'secret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="\n'
    )
    options = {
        "api": ("--port", str(free_port())),
        "worker": (),
        "webhooks": ("--webhooks-file", str(hooks), "--webhook-hosts", "http://127.0.0.1"),
    }
    environment = {"MOCA_REDIS_URL": lonely_store.url, "MOCA_PARTITIONS": str(PARTITIONS)}
    environment |= {"MOCA_REQUEST_DEADLINE_S": "5", "MOCA_LEASE_TTL_MS": "1000"}
    rng, seen, longest = random.Random(command), collections.Counter(), 0.0
    processes = Processes(tmp_path, environment)
    for turn in range(12):
        kind = FATES[turn % len(FATES)]
        fate, name = Fate(lonely_store, kind), f"{command}-{turn}"
        processes.start(name, command, *options[command])
        process = processes.running.pop(name)
        try:
            moments = sorted([rng.uniform(0, UP_S[command]), rng.uniform(0, UP_S[command])])
            time.sleep(moments[0])
            fate.strike()
            time.sleep(moments[1] - moments[0])
            process.terminate()
            began = time.monotonic()
            process.wait(PROCESS_S + 5)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{kind}: no end\n{processes.log_of(name)}") from None
        finally:
            process.kill()
            process.wait()
            fate.heal()
        seen[kind, process.returncode] += 1
        longest = max(longest, time.monotonic() - began)
    with capsys.disabled():
        print(f"\n{command}: {dict(seen)}; longest stop {longest:.2f} s", flush=True)


def test_the_whole_service_ends_whenever_it_is_stopped(tmp_path, capsys):
    """In the last rounds its own store hangs, and is killed in the end."""
    rng, longest = random.Random(1), 0.0
    processes = Processes(tmp_path, {"MOCA_PARTITIONS": str(PARTITIONS)})
    processes.environment["MOCA_REQUEST_DEADLINE_S"] = "25"
    for turn in range(6):
        name = f"serve-{turn}"
        data = str(tmp_path / "data")
        processes.start(name, "serve", "--data-dir", data, "--port", str(free_port()))
        process = processes.running.pop(name)
        time.sleep(rng.uniform(0.0, 12.0))
        if turn >= 4:
            processes.wait_for("ready: ", name)
            server = json.loads((tmp_path / "data" / "server.json").read_bytes())
            os.kill(server["pid"], signal.SIGSTOP)
            time.sleep(1.0)
        process.terminate()
        began = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SERVE_S)
        ended = process.poll() is not None
        process.kill()
        process.wait()
        assert ended, processes.log_of(name)
        assert "did not exit: killed" not in processes.log_of(name)
        longest = max(longest, time.monotonic() - began)
    with capsys.disabled():
        print(f"\nserve: longest stop {longest:.2f} s", flush=True)
