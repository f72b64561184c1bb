"""Appending once, whatever happens to the answer."""

import asyncio
import contextlib

import pytest
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import OutOfMemoryError, ResponseError

from service.store import keys
from service.store.append import Appended, Appender
from service.store.connection import connect_async
from service.store.log import DONE, Commit, Log, Offset

pytestmark = pytest.mark.redis
P = 5


@pytest.fixture
async def client(redis_url):
    async with connect_async(redis_url) as client:
        yield client


@pytest.fixture
def appender(client):
    return Appender(client, "i1", max_pending=10)


@contextlib.asynccontextmanager
async def cutting_proxy(redis_url, cut):
    """Yield the URL of a proxy that drops each connection's answer while `cut` is set."""
    target = redis_url.removeprefix("unix://")
    path = f"{target}-proxy"
    tasks = set()

    async def pump(reader, writer, dropping):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if dropping and cut.is_set():
                    break
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader, writer):
        tasks.add(asyncio.current_task())
        up_reader, up_writer = await asyncio.open_unix_connection(target)
        await asyncio.gather(pump(reader, up_writer, False), pump(up_reader, writer, True))

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield f"unix://{path}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_append_writes_an_entry_and_counts(client, appender):
    first = await appender.append(P, 0, 3, b"\x00payload\xff")
    second = await appender.append(P, 1, 4, b"two")
    assert (first.waiting, second.waiting) == (3, 7)
    assert await client.xrange(keys.log(P)) == [
        (first.entry.encode(), {b"b": b"\x00payload\xff"}),
        (second.entry.encode(), {b"b": b"two"}),
    ]
    assert await client.hget(keys.meta(P), "in") == b"7"
    assert 3_590_000 < await client.pttl(keys.append(P, "i1")) <= 3_600_000


async def test_the_same_number_answers_the_first_entry(client, appender):
    first = await appender.append(P, 4, 3, b"a")
    assert await appender.append(P, 4, 3, b"a") == first
    assert await client.xlen(keys.log(P)) == 1
    assert (await appender.append(P, 5, 3, b"b")).entry != first.entry
    with pytest.raises(ResponseError, match="came after"):
        await appender.append(P, 4, 3, b"a")
    assert await client.xlen(keys.log(P)) == 2


async def test_a_repeat_after_the_entry_was_applied_and_trimmed(client, appender, redis_client):
    first = await appender.append(P, 0, 3, b"a")
    log = Log(redis_client, "w", 5000, 8)
    lease = log.acquire(P)
    new = Offset(first.entry, DONE)
    assert log.commit([Commit(P, lease.token, lease.offset, new, 3, [], [])]) == ["OK"]
    assert await client.xlen(keys.log(P)) == 0
    assert await appender.append(P, 0, 3, b"a") == Appended(first.entry, 0)
    assert await client.xlen(keys.log(P)) == 0


async def test_numbers_belong_to_one_process_and_partition(client, appender):
    other = Appender(client, "i2", max_pending=10)
    entries = [
        await appender.append(P, 0, 1, b"a"),
        await other.append(P, 0, 1, b"b"),
        await appender.append(P + 1, 0, 1, b"c"),
    ]
    assert await client.xlen(keys.log(P)) == 2
    assert entries[2].waiting == 1


async def test_a_full_partition_refuses_until_work_is_done(client, appender, redis_client):
    first = await appender.append(P, 0, 8, b"a")
    assert await appender.append(P, 1, 3, b"b") == Appended(None, 8)
    assert (await appender.append(P, 1, 2, b"b")).waiting == 10  # a refusal uses up no number
    assert await appender.append(P, 2, 1, b"c") == Appended(None, 10)
    assert (await appender.append(P, 2, 0, b"reads only")).waiting == 10
    assert (await appender.append(P + 1, 0, 10, b"d")).waiting == 10
    log = Log(redis_client, "w", 5000, 8)
    lease = log.acquire(P)
    log.commit([Commit(P, lease.token, lease.offset, Offset(first.entry, DONE), 8, [], [])])
    assert (await appender.append(P, 3, 8, b"e")).waiting == 10
    assert await client.xlen(keys.log(P)) == 3


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cut_answer_then_the_same_number_leaves_one_entry(redis_url, client, times):
    cut = asyncio.Event()
    async with cutting_proxy(redis_url, cut) as url, connect_async(url) as through:
        appender = Appender(through, "i1", max_pending=100)
        await appender.append(P, 0, 1, b"first")
        cut.set()
        for _ in range(times):
            with pytest.raises(Lost):
                await appender.append(P, 1, 2, b"second")
        assert await client.xlen(keys.log(P)) == 2  # it did arrive, and the client did not repeat
        cut.clear()
        again = await appender.append(P, 1, 2, b"second")
        assert again.waiting == 3
        third = await appender.append(P, 2, 4, b"third")
        found = await client.xrange(keys.log(P))
        assert [fields[b"b"] for _, fields in found] == [b"first", b"second", b"third"]
        assert [found[1][0].decode(), found[2][0].decode()] == [again.entry, third.entry]


async def test_a_cancelled_append_is_settled_by_its_number(client, appender, redis_client):
    await appender.append(P, 0, 1, b"a")
    redis_client.client_pause(200, all=False)  # holds writes back, so the answer is still due
    task = asyncio.create_task(appender.append(P, 1, 1, b"b"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    again = await appender.append(P, 1, 1, b"b")
    found = await client.xrange(keys.log(P))
    assert [entry.decode() for entry, _ in found][1:] == [again.entry]
    assert await client.hget(keys.meta(P), "in") == b"2"  # no call got another one's answer


async def test_the_script_is_loaded_again_after_a_flush(client, appender):
    await appender.append(P, 0, 1, b"a")
    await client.script_flush()
    await appender.append(P, 1, 1, b"b")
    assert await client.xlen(keys.log(P)) == 2


async def test_a_full_server_refuses_new_work_before_accepting_it(client, appender):
    await appender.append(P, 0, 1, b"a")
    await client.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemoryError):
            await appender.append(P, 1, 1, b"b")
    finally:
        await client.config_set("maxmemory", 0)
    assert await client.hget(keys.meta(P), "in") == b"1"


@pytest.mark.parametrize("which", [keys.log(P), keys.meta(P), keys.append(P, "i1")])
async def test_a_key_of_the_wrong_type_leaves_nothing_behind(client, appender, which):
    await client.zadd(which, {"a": 0})
    with pytest.raises(ResponseError):
        await appender.append(P, 0, 1, b"a")
    assert await client.keys("*") == [which.encode()]


# --- damage ---------------------------------------------------------------------------------------


def flips(text):
    for i in range(len(text)):
        for bit in range(8):
            yield text[:i] + bytes([text[i] ^ 1 << bit]) + text[i + 1 :]


@pytest.mark.parametrize("field", ["in", "done"])
async def test_every_flipped_bit_of_a_counter_appends_once_or_not_at_all(client, appender, field):
    """An error after the entry is written would have it written again, with each repeat."""
    await appender.append(P, 0, 3, b"one")
    await client.hset(keys.meta(P), "done", "2")
    stored = await client.hgetall(keys.meta(P))
    for number, bad in enumerate(flips(stored[field.encode()]), 1):
        await client.hset(keys.meta(P), mapping={**stored, field: bad})
        before = await client.xlen(keys.log(P))
        appended = await appender.append(P, number, 1, b"two")
        after = await client.xlen(keys.log(P))
        assert after - before == (appended.entry is not None)
        assert (await client.hget(keys.meta(P), "in")).isdigit() or appended.entry is None
    await client.hset(keys.meta(P), mapping={**stored, field: b"\xff"})
    assert (await appender.append(P, 999, 1, b"three")).entry is not None


async def test_every_flipped_bit_of_the_record_of_appends(client, appender):
    """A new batch is appended; of a repeated one nobody can tell, and it is not appended again."""
    first = await appender.append(P, 5, 1, b"one")
    name = keys.append(P, "i1")
    stored = await client.get(name)
    for number, bad in enumerate(flips(stored), 6):
        await client.set(name, bad)
        count = await client.xlen(keys.log(P))
        again = await appender.append(P, 5, 1, b"one", repeated=True)
        # Hexadecimal digits of either case are one number.
        assert again in ((None, -1), (first.entry, again.waiting))
        assert await client.xlen(keys.log(P)) == count
        await client.set(name, bad)
        await client.hset(keys.meta(P), "done", await client.hget(keys.meta(P), "in"))
        assert (await appender.append(P, number, 1, b"new")).entry is not None
