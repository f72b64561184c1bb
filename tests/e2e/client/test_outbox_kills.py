"""Everything dies again and again; an outbox loses nothing, and nothing is applied twice."""

import asyncio
import random
import subprocess
import sys
import threading
import time

import httpx
import pytest

from service.client import AsyncClient, AsyncOutbox, Bounds, Client, Outbox
from tests.e2e.client.writer import stamp
from tests.e2e.test_kill import _kill_with_children

STREAMS, LENGTH, KILLS, PER_SECOND = 8, 2000, 5, 130


@pytest.fixture
def killed(serve, processes):
    """A service that is killed, with all its processes, and started again `KILLS` times."""
    url = serve()
    rng = random.Random(3)
    over = threading.Event()

    def kill() -> None:
        for _ in range(KILLS):
            time.sleep(rng.uniform(1.0, 1.6))
            _kill_with_children(processes, "serve")
            serve()
        over.set()

    killer = threading.Thread(target=kill)
    killer.start()
    yield url, over
    killer.join()


def check(url: str, seen: list[int] | None = None) -> None:
    """Each stream has its observations, each once, in order."""
    with Client(url) as client:
        for i in range(STREAMS):
            posted = list(range(i, LENGTH, STREAMS))
            found = [each for page in client.history(f"box-{i}") for each in page.observations]
            assert [each.time for each in found] == [stamp(at) for at in posted]
            assert [each.y for each in found] == [at * 0.25 for at in posted]
            assert client.stream(f"box-{i}").seq == len(posted)


def observation(at: int) -> dict:
    return {"y": at * 0.25, "time": stamp(at)}


@pytest.mark.slow
@pytest.mark.parametrize("where", [pytest.param("memory", marks=pytest.mark.slow), "file"])
def test_the_service_is_killed_five_times(killed, where, tmp_path, capsys):
    url, over = killed
    path = tmp_path / "box" if where == "file" else None
    answered: dict[int, int] = {}
    began = time.monotonic()
    with (
        Client(url) as client,
        Outbox(
            client, path, on_answer=lambda told: answered.__setitem__(told.ticket, told.answer.seq)
        ) as outbox,
    ):
        for at in range(LENGTH):
            outbox.add(f"box-{at % STREAMS}", observation(at))
            time.sleep(max(0.0, began + at / PER_SECOND - time.monotonic()))
        assert over.wait(60)
        assert outbox.flush(60), outbox.error
        assert outbox.failed() == []
    assert [answered[at + 1] for at in range(LENGTH)] == [at // STREAMS for at in range(LENGTH)]
    check(url)
    with capsys.disabled():
        print(f"\n{KILLS} kills, {LENGTH} observations, {time.monotonic() - began:.0f} s")


@pytest.mark.slow
def test_the_service_is_killed_five_times_async(killed, tmp_path):
    url, over = killed

    async def write() -> None:
        async with (
            AsyncClient(url) as client,
            AsyncOutbox(client, tmp_path / "box", bounds=Bounds(batch=50)) as outbox,
        ):
            for at in range(LENGTH):
                outbox.add(f"box-{at % STREAMS}", observation(at))
                await asyncio.sleep(1 / PER_SECOND)
            assert await asyncio.to_thread(over.wait, 60)
            assert await outbox.flush(60), outbox.error
            assert outbox.failed() == []

    asyncio.run(write())
    check(url)


@pytest.mark.slow
def test_its_own_process_is_killed_and_so_is_the_service(killed, tmp_path):
    """A process may die between adding and saying so: each start asks the file how far it came."""
    url, over = killed
    rng, added, starts, said = random.Random(5), 0, 0, ""
    while said != "done":
        starts += 1
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.client.writer", url, str(tmp_path / "box")]
            + [str(STREAMS), str(LENGTH), str(PER_SECOND)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(f"{added}\n")
        writer.stdin.flush()
        victim = threading.Timer(rng.uniform(2.0, 3.0) if starts <= 5 else 120, writer.kill)
        victim.start()
        for line in writer.stdout:
            said = line.strip()
            added = int(said) if said != "done" else added
        victim.cancel()
        writer.wait()
        writer.stdin.close()
        writer.stdout.close()
        added = max(added, _in_file(tmp_path / "box", added))
    assert starts == 6
    assert over.wait(60)
    check(url)


def _in_file(path, known: int) -> int:
    """How many were ever added: the process may have died before it could print the last."""
    import sqlite3

    with sqlite3.connect(path) as db:
        row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'items'").fetchone()
    db.close()
    return row[0] if row else known


def test_a_second_outbox_on_the_same_file_is_refused(service_url, tmp_path):
    with Client(service_url) as client, Outbox(client, tmp_path / "box"):
        open_it = f"Outbox(Client({service_url!r}), {str(tmp_path / 'box')!r})"
        code = f"from service.client import *; {open_it}"
        command = [sys.executable, "-c", code]
        other = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "in use by another outbox" in other.stderr


def test_close_gives_up_in_time(tmp_path):
    with Client("http://127.0.0.1:1") as client:
        outbox = Outbox(client, tmp_path / "box")
        outbox.add("s", 1.0)
        began = time.monotonic()
        assert outbox.close(0.5) == 1
        assert time.monotonic() - began < 5
        again = Outbox(client, tmp_path / "box")
        assert again.pending == 1
        again.close(0)


def test_what_waited_in_the_file_is_sent_later(service_url, tmp_path):
    with Client("http://127.0.0.1:1") as client:
        outbox = Outbox(client, tmp_path / "box")
        for y in range(5):
            outbox.add("waited", y)
        outbox.close(0.2)
    with Client(service_url) as client, Outbox(client, tmp_path / "box") as outbox:
        assert outbox.flush()
        assert client.stream("waited").seq == 5
    assert httpx.get(f"{service_url}/v1/streams/waited").json()["last"] == [4.0]
