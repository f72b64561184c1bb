"""What an outbox does for its owner, in a thread and in a task, against the running service."""

import asyncio
import random
import sqlite3
import subprocess
import sys
import uuid

import httpx
import numpy
import pytest

from service.client import (
    AsyncClient,
    AsyncOutbox,
    Bounds,
    Client,
    InvalidRequest,
    Outbox,
    OutboxError,
    OutboxFull,
    errors,
)

NOBODY = "http://127.0.0.1:1"


class Threaded:
    """The outbox with a thread, with the face of the one with a task."""

    def __init__(self, url, *arguments, transport=None, **options):
        self.client = Client(url, transport=transport)
        self.outbox = Outbox(self.client, *arguments, **options)

    def __getattr__(self, name):
        found = getattr(self.outbox, name)
        if name in ("flush", "close"):
            return lambda *arguments: asyncio.to_thread(found, *arguments)
        return found

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        try:
            await asyncio.to_thread(self.outbox.__exit__, *error)
        finally:
            self.client.close()


class Tasked(AsyncOutbox):
    def __init__(self, url, *arguments, **options):
        super().__init__(AsyncClient(url), *arguments, **options)

    async def __aexit__(self, *error):
        try:
            await super().__aexit__(*error)
        finally:
            await self._client.close()


@pytest.fixture(params=[Threaded, Tasked])
def outbox(request):
    return request.param


@pytest.fixture
def stream():
    return f"o-{uuid.uuid4().hex[:8]}"


def labels(url, stream):
    with Client(url) as client:
        return [each.y for page in client.history(stream) for each in page.observations]


async def test_answers_come_back_by_callback_and_by_asking(outbox, service_url, stream):
    told = []
    async with outbox(
        service_url, on_answer=told.append, bounds=Bounds(batch=3, keep_answers=4)
    ) as box:
        tickets = [box.add(stream, float(y)) for y in range(10)]
        assert await box.flush()
        assert [each.ticket for each in told] == tickets
        assert [each.answer.seq for each in told] == list(range(10))
        assert [each.answer.seq for each in box.answers()] == [6, 7, 8, 9]
        assert box.answers() == []
        assert (box.pending, box.error) == (0, None)
    assert labels(service_url, stream) == [float(y) for y in range(10)]


async def test_what_is_refused_is_kept_aside(outbox, service_url, stream, tmp_path):
    told = []
    async with outbox(service_url, tmp_path / "box", on_failed=told.append) as box:
        for y in (1.0, [1.0, 2.0], 2.0, [3.0, 4.0], 3.0):
            box.add(stream, {"y": y})
        box.add("not an id", 1.0)
        assert await box.flush()
        assert [each.ticket for each in box.failed()] == [2, 4, 6]
        assert sorted(each.ticket for each in told) == [2, 4, 6]
    async with outbox(service_url, tmp_path / "box") as box:
        first, second, third = box.failed()
        assert isinstance(first.problem, errors.DimensionMismatch)
        assert isinstance(third.problem, errors.InvalidField)
        assert first.observation == {"y": [1.0, 2.0]}
        assert box.discard_failed([second.ticket, third.ticket, 99]) == 2
        assert box.retry_failed([first.ticket]) == [7]
        box.add(stream, 4.0)
        assert await box.flush()
        assert [each.ticket for each in box.failed()] == [7]
    assert labels(service_url, stream) == [1.0, 2.0, 3.0, 4.0]


async def test_a_callback_that_fails_holds_up_nothing(outbox, service_url, stream, caplog):
    def fail(told):
        raise RuntimeError("no")

    async with outbox(service_url, on_answer=fail) as box:
        box.add(stream, 1.0)
        assert await box.flush()
    assert "a callback of the outbox failed" in caplog.text


async def test_a_coroutine_may_be_the_callback(service_url, stream):
    told = []

    async def tell(each):
        await asyncio.sleep(0)
        told.append(each.answer.seq)

    async with Tasked(service_url, on_answer=tell) as box:
        box.add(stream, 1.0)
        assert await box.flush()
    assert told == [0]


async def test_a_stream_that_is_there_already(outbox, service_url, stream):
    with Client(service_url) as client:
        client.observe(stream, [1.0, 2.0])
        async with outbox(service_url) as box:
            box.add(stream, 3.0)
            assert await box.flush()
            client.observe(stream, 9.0)  # somebody else writes, too
            box.add(stream, 4.0)
            assert await box.flush()
    assert labels(service_url, stream) == [1.0, 2.0, 3.0, 9.0, 4.0]


async def test_what_is_wrong_is_told_at_once(outbox):
    async with outbox(NOBODY, bounds=Bounds(max_items=2)) as box:
        for given in (float("inf"), {"y": 1.0, "seq": 3}, {"y": object()}):
            with pytest.raises(InvalidRequest):
                box.add("s", given)
        with pytest.raises(InvalidRequest):
            box.add("", 1.0)
        box.add("s", 1.0)
        box.add("s", 2.0)
        with pytest.raises(OutboxFull, match="2 observations wait.*max_items is 2"):
            box.add("s", 3.0)
        assert not await box.flush(0.5)
        assert "ConnectError" in box.error
        await box.close(0.1)
        with pytest.raises(OutboxError, match="closed"):
            box.add("s", 1.0)
        box._store.waiting_count = 0  # else leaving says what is lost


async def test_what_is_lost_in_memory_is_said(outbox):
    async def leave():
        async with outbox(NOBODY) as box:
            box.add("s", 1.0)
            await box.close(0.1)

    with pytest.raises(OutboxError, match="1 unsent observations are lost"):
        await leave()


@pytest.mark.parametrize("bounds", [Bounds(max_items=0), Bounds(batch=0), Bounds(keep_answers=-1)])
def test_bounds(bounds):
    with Client(NOBODY) as client, pytest.raises(InvalidRequest, match="expected max_items"):
        Outbox(client, bounds=bounds)


def test_files_that_are_none(tmp_path):
    (tmp_path / "text").write_text("not a database, but long enough to look at" * 20)
    with sqlite3.connect(tmp_path / "later") as db:
        db.execute("CREATE TABLE box (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        db.execute("INSERT INTO box VALUES ('format', '2')")
    db.close()
    with Client(NOBODY) as client:
        for name, said in (("text", "not a database"), ("later", "format 2"), ("a/b", "open")):
            with pytest.raises(OutboxError, match=said):
                Outbox(client, tmp_path / name)


async def test_a_client_that_is_closed_is_noticed(outbox, service_url, stream, caplog):
    async with outbox(service_url) as box:
        box.add(stream, 1.0)
        assert await box.flush()
        closed = box._client.close()
        if closed is not None:
            await closed
        box.add(stream, 2.0)
        with pytest.raises(OutboxError, match="the outbox stopped sending"):
            await box.flush(10)
        box._store.waiting_count = 0
    assert "the outbox stopped" in caplog.text


class Cutting(httpx.BaseTransport):
    """The service hears every request, but its answer is lost now and then."""

    def __init__(self, rng):
        self._inner, self._rng, self.lost = httpx.HTTPTransport(), rng, 0

    def handle_request(self, request):
        response = self._inner.handle_request(request)
        response.read()
        if request.method == "POST" and self._rng.random() < 0.3:
            self.lost += 1
            raise httpx.ReadError("cut", request=request)
        return response

    def close(self):
        self._inner.close()


@pytest.mark.slow
@pytest.mark.parametrize("history", [2000, 0])
def test_positions_decide_where_the_service_forgets_keys_at_once(serve, processes, history):
    processes.environment["MOCA_IDEMPOTENCY_KEEP_S"] = "0"
    processes.environment["MOCA_IDEMPOTENCY_KEEP_REQUESTS"] = "0"
    url, transport = serve(), Cutting(random.Random(4))
    told = []
    with Client(url, transport=transport) as client:
        for i in range(3):
            client.put_stream(f"s{i}", {"history": history})
        with Outbox(client, on_answer=told.append, bounds=Bounds(batch=20)) as box:
            for at in range(300):
                box.add(f"s{at % 3}", 1.0 * (at // 3 % 2))
            assert box.flush(60)
            assert box.failed() == []
        assert transport.lost > 3
        assert [client.stream(f"s{i}").seq for i in range(3)] == [100] * 3
    assert len(told) == 300
    assert any(each.answer.duplicate for each in told)
    if history:
        assert labels(url, "s1") == [1.0 * (at % 2) for at in range(100)]


def test_importing_the_client_is_light():
    code = "import sys, service.client; print([n for n in ('torch', 'fastapi', 'numpy', 'pandas')"
    command = [sys.executable, "-c", code + " if n in sys.modules])"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_what_a_source_sends_again_is_taken_once(tmp_path):
    """Also after a restart, by source; what was not taken is no offset."""
    path, taken = tmp_path / "box", []
    for first, room in ((0, 6), (3, 20)):
        with Client(NOBODY) as client:
            outbox = Outbox(client, path, bounds=Bounds(max_items=room))
            for offset in range(first, first + 5):
                for source in ("readings/0", "readings/1"):
                    observation = {"y": float(offset)}
                    try:
                        if outbox.add_once("s", observation, source=source, offset=offset):
                            taken.append((source, offset))
                    except OutboxFull:
                        assert len(taken) == room
            with pytest.raises(InvalidRequest):
                outbox.add_once("s", {"y": 1.0, "seq": 3}, source="readings/0", offset=99)
            outbox.close(timeout_s=0)
    assert taken == [(f"readings/{i}", offset) for offset in range(8) for i in (0, 1)]
    with sqlite3.connect(path) as stored:
        rows = stored.execute("SELECT body FROM items ORDER BY id").fetchall()
    assert [float(body[5:-1]) for (body,) in rows] == [float(offset) for _, offset in taken]


def test_what_can_be_no_stream_source_or_offset_is_refused(tmp_path):
    """Nothing of it is stored: the offsets that can be kept go on as if it had not been there."""
    texts = ["", None, 1, b"s", "\ud800"]
    offsets = [1.0, None, float("nan"), "1", 2**63, -(2**63) - 1, 10**5000]
    with Client(NOBODY) as client:
        outbox = Outbox(client, tmp_path / "box")
        for text in texts:
            with pytest.raises(InvalidRequest, match="stream: expected a str"):
                outbox.add(text, 1.0)
            with pytest.raises(InvalidRequest, match="stream: expected a str"):
                outbox.add_once(text, 1.0, source="readings/0", offset=0)
            with pytest.raises(InvalidRequest, match="source: expected a str"):
                outbox.add_once("s", 1.0, source=text, offset=0)
        for offset in offsets:
            with pytest.raises(InvalidRequest, match="offset: expected an int"):
                outbox.add_once("s", 1.0, source="readings/0", offset=offset)
        assert outbox.pending == 0
        assert outbox.add_once("s", 1.0, source="readings/0", offset=-(2**63))
        assert outbox.add_once("s", 2.0, source="readings/0", offset=numpy.int64(2**63 - 1))
        assert not outbox.add_once("s", 2.0, source="readings/0", offset=2**63 - 1)
        outbox.close(timeout_s=0)
