"""What an outbox does for its owner, against the running service."""

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from moca_client import (
    Client,
    InvalidRequest,
    Outbox,
    OutboxError,
    OutboxFull,
)
from tests.e2e.calling import KNOWN
from tests.e2e.client.conftest import labels, records
from tests.e2e.client.writer import STREAMS, observation
from tests.waiting import until

NOBODY = "http://127.0.0.1:1"


@contextlib.contextmanager
def outbox(url, *arguments, **options):
    with Client(url) as client, Outbox(client, *arguments, **options) as box:
        yield box


@pytest.fixture
def stream(client, prefix):
    client.put_stream(f"{prefix}s", KNOWN)
    return f"{prefix}s"


def test_answers_come_back_by_callback(url, client, stream):
    """A callback that fails holds up nothing."""
    delivered = []

    def note(answered):
        delivered.append(answered)
        raise RuntimeError("no")

    with outbox(url, on_answer=note, batch=3) as box:
        tickets = [box.add(stream, float(y)) for y in range(10)]
        assert box.flush()
        assert [notice.ticket for notice in delivered] == tickets
        assert [notice.answer.seq for notice in delivered] == list(range(10))
        assert (box.pending, box.error) == (0, None)
        client.observe(stream, 99.0)  # somebody else writes, too
        box.add(stream, 10.0)
        assert box.flush()
    assert labels(client, stream) == [*map(float, range(10)), 99.0, 10.0]


def test_what_is_refused_is_kept_aside_in_the_file(url, client, stream, tmp_path):
    refused = []
    with outbox(url, tmp_path / "box", on_failed=refused.append) as box:
        for y in (1.0, [1.0, 2.0], 2.0, [3.0, 4.0], 3.0):
            box.add(stream, {"y": y})
        box.add("not an id", 1.0)
        assert box.flush()
        assert [notice.ticket for notice in box.failed()] == [2, 4, 6]
        assert sorted(notice.ticket for notice in refused) == [2, 4, 6]
        with pytest.raises(OutboxError, match="in use"):
            outbox(NOBODY, tmp_path / "box").__enter__()
    with outbox(url, tmp_path / "box") as box:
        first, second, third = box.failed()
        assert first.problem.type == "dimension-mismatch"
        assert third.problem.type == "invalid-field"
        assert first.observation == {"y": [1.0, 2.0]}
        assert box.discard_failed([second.ticket, third.ticket, 99]) == 2
        assert box.retry_failed([first.ticket]) == [7]
        box.add(stream, 4.0)
        assert box.flush()
        assert [notice.ticket for notice in box.failed()] == [7]
    assert labels(client, stream) == [1.0, 2.0, 3.0, 4.0]


def test_what_waits_in_the_file_when_it_is_closed_is_sent_later(url, client, stream, tmp_path):
    with outbox(NOBODY, tmp_path / "box") as box:
        for y in range(5):
            box.add(stream, y)
        assert not box.flush(0.1)
        assert box.error
        assert box.close(0.1) == 5
    with outbox(url, tmp_path / "box") as box:
        assert box.pending == 5
        assert box.flush()
    assert labels(client, stream) == list(range(5))


def test_what_is_wrong_is_told_at_once_and_what_is_lost_at_the_end():
    def leave():
        with outbox(NOBODY, max_items=2) as box:
            for given in (float("inf"), {"y": 1.0, "seq": 3}, {"y": object()}):
                with pytest.raises(InvalidRequest):
                    box.add("s", given)
            with pytest.raises(InvalidRequest):
                box.add("", 1.0)
            box.add("s", 1.0)
            box.add("s", 2.0)
            with pytest.raises(OutboxFull):
                box.add("s", 3.0)
            box.close(0.1)
            with pytest.raises(OutboxError, match="closed"):
                box.add("s", 1.0)

    with pytest.raises(OutboxError, match="2 unsent"):
        leave()


def test_bounds_and_files_that_cannot_be_used_are_refused(tmp_path):
    (tmp_path / "text").write_text("not a database, but long enough to look at" * 20)
    with sqlite3.connect(tmp_path / "later") as db:
        db.execute("CREATE TABLE box (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        db.execute("INSERT INTO box VALUES ('format', '99')")
    db.close()
    with Client(NOBODY) as client:
        for bounds in ({"max_items": 0}, {"batch": 0}):
            with pytest.raises(InvalidRequest):
                Outbox(client, **bounds)
        for name in ("text", "later", "a/b"):
            with pytest.raises(OutboxError):
                Outbox(client, tmp_path / name)


def check(url, length):
    """Each stream has its observations, each once, in order."""
    with Client(url) as client:
        for i in range(STREAMS):
            posted = [observation(at) for at in range(i, length, STREAMS)]
            kept = records(client, f"box-{i}")
            assert [{"y": record.y, "time": record.time} for record in kept] == posted
            assert client.stream(f"box-{i}").seq == len(posted)


@pytest.mark.slow
def test_the_service_is_killed_and_an_outbox_loses_nothing(serve, processes, tmp_path):
    """Three times, with all its processes."""
    url, length, answered = serve(), 1200, {}

    def note(delivered):
        answered[delivered.ticket] = delivered.answer.seq

    def kill():
        for part in (1, 2, 3):
            until(lambda part=part: len(answered) >= part * 200)
            processes.kill_with_children("serve")
            serve()

    killer = threading.Thread(target=kill)
    killer.start()
    with outbox(url, tmp_path / "box", on_answer=note, batch=50) as box:
        for at in range(length):
            box.add(f"box-{at % STREAMS}", observation(at))
            time.sleep(0.003)
        killer.join()
        assert box.flush(120), box.error
        assert box.failed() == []
    assert [answered[at + 1] for at in range(length)] == [at // STREAMS for at in range(length)]
    check(url, length)


@pytest.mark.slow
@pytest.mark.parametrize("keep_s", ["0", "3600"])
def test_the_owner_of_an_outbox_is_killed_and_goes_on_from_its_file(
    serve, processes, tmp_path, keep_s
):
    """Between adding and saying so: each start asks the file. Keys may be forgotten at once."""
    processes.environment["MOCA_IDEMPOTENCY_KEEP_S"] = keep_s
    url, length, added, line, starts = serve(), 400, 0, "", 0
    rng = random.Random(5)
    while line != "done":
        starts += 1
        command = [sys.executable, "-m", "tests.e2e.client.writer", url, tmp_path / "box"]
        with subprocess.Popen(
            [*command, str(length), str(added)], stdout=subprocess.PIPE, text=True
        ) as writer:
            die_at = rng.uniform(0.1, 0.3) * length * starts
            for line in writer.stdout:
                line = line.strip()
                if line != "done" and int(line) >= die_at and starts < 5:
                    os.kill(writer.pid, signal.SIGKILL)
        with sqlite3.connect(tmp_path / "box") as db:
            row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'items'").fetchone()
        db.close()
        added = row[0] if row else added
    assert starts > 2
    check(url, length)
