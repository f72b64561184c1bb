"""One server: start-up checks, lost connections, full memory, damaged bookkeeping."""

import asyncio
import contextlib
import itertools
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
import redis
import uvloop
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import OutOfMemoryError, ResponseError

from service.api.gateway import store_monitor
from service.api.gateway.store_monitor import StoreMonitor
from service.problems import StartupError
from service.settings import Settings
from service.store import keys
from service.store import log as logs
from service.store.connection import (
    READ_TIMEOUT_S,
    connect,
    connect_async,
    kind_of,
    parse,
    shown,
    with_password,
)
from service.store.health import (
    check_formats,
    check_server,
    fix_partitions,
    stored_partitions,
)
from service.store.log import DONE, START, Appended, Appender, Lines, Log, Offset, Read
from service.store.reads import Health
from service.store.shards import send_async
from service.wire import FORMAT
from tests.faults import REPLIES, REQUESTS, Proxy

pytestmark = pytest.mark.redis
P = 3


@pytest.fixture
def redis_url(valkey_url):
    return valkey_url


# --- start-up ---------------------------------------------------------------------------------


def test_an_evicting_server_is_refused(redis_client):
    check_server(redis_client)
    redis_client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(StartupError, match="allkeys-lru"):
        check_server(redis_client)


def test_servers_before_redis_7_are_refused():
    def check(**info):
        check_server(SimpleNamespace(infos=lambda: [{**info, "maxmemory_policy": "noeviction"}]))

    for fit in ({"redis_version": "7.0.0"}, {"redis_version": "8.2.1"}):
        check(**fit)
    check(redis_version="6.2.4", valkey_version="8.0.0")  # Valkey says so for old clients
    with pytest.raises(StartupError, match=r"6\.2\.14"):
        check(redis_version="6.2.14")


@pytest.mark.parametrize("sent", range(1, 6))
def test_a_process_that_ends_while_it_fixes_the_number_leaves_a_store_for_others(
    redis_client, redis_url, monkeypatch, sent
):
    """At whatever call it ends; a reader meanwhile sees no number, or both fields."""
    left = itertools.count(-sent + 1)
    kind = redis.connection.AbstractConnection
    send = kind.send_packed_command

    def end_after(*arguments, **options):
        send(*arguments, **options)
        if next(left) == 0:
            raise SystemExit

    monkeypatch.setattr(kind, "send_packed_command", end_after)
    with contextlib.suppress(SystemExit), connect(redis_url) as ends:
        fix_partitions(ends, 64)
    monkeypatch.undo()
    assert stored_partitions(redis_client) in (None, 64)
    fix_partitions(redis_client, 64)


def test_the_number_of_partitions_is_fixed_and_kept_twice(redis_client):
    assert stored_partitions(redis_client) is None
    fix_partitions(redis_client, 64)
    redis_client.config_set("maxmemory", 1)
    fix_partitions(redis_client, 64)  # a worker that is restarted has to work a full store off
    redis_client.config_set("maxmemory", 0)
    with pytest.raises(StartupError, match="64 partitions, got 32"):
        fix_partitions(redis_client, 32)
    redis_client.hset(keys.CONFIG, "partitions", "65")
    with pytest.raises(StartupError, match="damaged"):
        stored_partitions(redis_client)


def test_a_store_of_another_format_is_refused(redis_client, log):
    log.release(log.acquire(P))
    check_formats(redis_client, 4)
    for other in (FORMAT - 1, FORMAT + 1):
        redis_client.hset(keys.meta(P), "format", other)
        with pytest.raises(StartupError, match=f"format {other}, expected {FORMAT}"):
            check_formats(redis_client, 4)
    assert log.acquire(P) is None
    assert log.declined == {P}


def test_addresses_of_one_server_a_cluster_and_sentinels():
    urls = ("redis://a", "rediss://a", "unix:///s", "redis+cluster://a", "rediss+sentinel://a/m")
    assert [kind_of(url) for url in urls] == ["", "", "", "cluster", "sentinel"]
    cluster = parse("redis+cluster://me:p%40ss@a,b:7001,[::1]:7002")
    assert cluster.places == [("a", 6379), ("b", 7001), ("::1", 7002)]
    assert cluster.options == {"username": "me", "password": "p@ss"}
    parsed = parse("rediss+cluster://a:7000?ssl_ca_certs=/ca.pem")
    assert parsed.options == {"ssl": True, "ssl_ca_certs": "/ca.pem"}
    parsed = parse("redis+sentinel://:store@a,b:1/main/2?sentinel_password=theirs")
    assert parsed.places == [("a", 26379), ("b", 1)]
    assert (parsed.name, parsed.options) == ("main", {"password": "store", "db": 2})
    assert parsed.sentinel_options == {"password": "theirs"}
    for wrong in ("//", "//a,,b", "//a:port", "//a/1"):
        with pytest.raises(ValueError, match=r"HOST|no database"):
            parse(f"redis+cluster:{wrong}")
    with pytest.raises(ValueError, match="master"):
        parse("redis+sentinel://a:1")


def test_a_password_is_put_in_and_never_shown():
    assert with_password("redis://h:1/0", "a:b@c/d") == "redis://:a%3Ab%40c%2Fd@h:1/0"
    assert with_password("redis+cluster://me@a,b", "x") == "redis+cluster://me:x@a,b"
    assert with_password("unix:///run/s", "x") == "unix://:x@/run/s"
    assert shown("redis+cluster://me:x@a:1,b:2?z=1") == "a:1,b:2"
    assert shown("unix:///run/s") == "/run/s"
    with pytest.raises(ValueError, match="password"):
        with_password("redis://:old@h", "new")


def test_no_blocking_read_outlasts_the_read_timeout():
    assert logs.WAIT_MS / 1000 + logs.LATE_S <= READ_TIMEOUT_S
    for url in ("redis://h", "redis+sentinel://h/main", "unix:///s"):
        for make in (connect, connect_async):
            options = make(f"{url}?socket_timeout=5").connection_pool.connection_kwargs
            assert options["socket_timeout"] == 5.0
            assert make(url).connection_pool.connection_kwargs["socket_timeout"] == READ_TIMEOUT_S


# --- lost connections -------------------------------------------------------------------------


@pytest.fixture
def proxy(valkey_url):
    with contextlib.closing(Proxy(valkey_url)) as proxy:
        yield proxy


@pytest.fixture
def impatient(proxy):
    """URL through the proxy, with a short wait for a reply."""
    return f"{proxy.url}?socket_timeout=1.0"


async def test_a_cut_answer_is_never_repeated(proxy, redis_client):
    with connect(proxy.url) as client:
        calls = (
            lambda: client.xadd("a", {"b": "c"}),
            lambda: client.all([("XADD", "a", "*", "b", "c")]),
        )
        for count, call in enumerate(calls, 1):
            client.ping()
            proxy.cut()
            with pytest.raises(Lost):
                call()
            proxy.heal()
            assert redis_client.xlen("a") == count
    async with connect_async(proxy.url) as client:
        await client.ping()
        proxy.cut()
        with pytest.raises(Lost):
            await client.xadd("a", {"b": "c"})
    assert redis_client.xlen("a") == 3


@pytest.mark.parametrize("direction", [REQUESTS, REPLIES])
async def test_one_call_finds_out_for_all_connections(proxy, impatient, direction):
    """Of each kind: what lies idle went the same way, and is not used again."""
    with connect(impatient) as client:
        pool = client.connection_pool
        idle = [pool.get_connection() for _ in range(4)]
        for connection in idle:
            pool.release(connection)
        proxy.lose(direction)
        for connection in idle:  # bytes that are lost silence a connection for ever
            connection.send_command("PING")
            assert not connection.can_read(0.05)
        with pytest.raises(redis.TimeoutError):
            client.set("a", "1")
        proxy.heal()
        for connection in [pool.get_connection() for _ in range(4)]:
            connection.send_command("PING")
            assert connection.read_response() == b"PONG"
            pool.release(connection)
    async with connect_async(impatient) as client:
        pool = client.connection_pool
        idle = [await pool.get_connection() for _ in range(4)]
        for connection in idle:
            await pool.release(connection)
        proxy.lose(direction)
        for connection in idle:
            await connection.send_command("PING")
        with pytest.raises(redis.TimeoutError):
            await client.set("a", "3")
        proxy.heal()
        for connection in [await pool.get_connection() for _ in range(4)]:
            await connection.send_command("PING")
            assert await connection.read_response() == b"PONG"
            await pool.release(connection)


def test_what_the_kernel_closed_is_made_anew(valkey_url):
    """Writing to it raises a RuntimeError in uvloop: the task that appends ended by that."""

    async def main():
        async with connect_async(valkey_url) as client:
            appender = Appender(client, "i1", max_pending=10)
            await appender.append(P, 0, 1, b"a")
            await client.get("a")
            (idle,) = client.connection_pool._available_connections
            idle._writer.transport.abort()
            await client.get("a")
            (kept,) = appender._client._kept.values()
            kept._writer.transport.abort()
            await appender.append(P, 1, 1, b"b")
            connection = await client.connection_pool.get_connection()
            connection._writer.transport.abort()
            await asyncio.sleep(0.05)
            with pytest.raises(redis.ConnectionError):
                await send_async(connection, [("PING",)])
            await client.connection_pool.release(connection)
        async with connect_async("redis://127.0.0.1:1/1") as client:
            made = client.connection_pool.make_connection()  # closed while it is greeted
            made._reader, made._writer = asyncio.StreamReader(), Closed()
            with pytest.raises(redis.ConnectionError, match="closed"):
                await made.on_connect()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


class Closed:
    """A writer of uvloop that the kernel has closed."""

    transport = SimpleNamespace(get_write_buffer_size=int)

    def writelines(self, data):
        raise RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")

    def close(self):
        pass


async def test_a_store_that_does_not_answer_is_soon_looked_at_again(monkeypatch):
    """It waited ten times as long as the look that was not answered: 20 s of 503."""
    store, down = AsyncMock(), []
    store.health.side_effect = [redis.ConnectionError(), TimeoutError(), Health([], [0], 0, 0, 0)]
    store.canaries.return_value = {}, []
    store.windows.return_value = {}, []
    store.condition.side_effect = redis.ConnectionError
    monitor = StoreMonitor(store, Settings(partitions=1))

    async def pause(seconds):
        down.append((seconds, bool(monitor.down_since)))
        if len(down) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(store_monitor, "asyncio", SimpleNamespace(sleep=pause))
    with pytest.raises(asyncio.CancelledError):
        await monitor.watch()
    again = (store_monitor.AGAIN_S, True)
    assert down[:2] == [again, again]
    pause_s, is_down = down[2]
    assert not is_down
    assert pause_s >= store_monitor.PERIOD_S  # longer, where this process has to wait for a core


async def test_a_cancelled_append_is_settled_by_its_number(appender, redis_client):
    await appender.append(P, 0, 1, b"a")
    redis_client.client_pause(600_000, all=False)  # holds writes back: the answer is still due
    task = asyncio.ensure_future(appender.append(P, 1, 1, b"b"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    redis_client.client_unpause()
    again = await appender.append(P, 1, 1, b"b")
    entries = redis_client.xrange(keys.log(P))
    assert [entry.decode() for entry, _ in entries][1:] == [again.entry]
    assert redis_client.hget(keys.meta(P), "in") == b"2"  # no call got another one's answer


# --- transactions -----------------------------------------------------------------------------


def test_a_transaction_raises_what_it_did_not_do_and_returns_errors_where_they_are_results(
    redis_client,
):
    commands = [("SET", "a", "x"), ("HGETALL", "a"), ("HGETALL", "b")]
    done, wrong, none = redis_client.atomic(commands, errors=True)
    assert (done, none) == (True, {})
    assert isinstance(wrong, redis.ResponseError)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        redis_client.atomic(commands)
    redis_client.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):  # refused when it is queued: nothing is run
        redis_client.atomic([("DEL", "a"), ("SET", "b", "x")], errors=True)
    assert redis_client.get("a") == b"x"


# --- the connection that a worker keeps for its reads and commits -----------------------------


def test_commands_go_out_with_a_read_and_errors_are_replies(redis_client):
    kept = Lines(redis_client)
    first = [kept.put(0, words) for words in (("INCR", "a"), ("SET", "b", "x"), ("INCR", "b"))]
    second = kept.put(0, ("INCR", "a"))
    assert redis_client.get("a") is None
    read = Read({"log": "0-0"}, 1, 1000)
    kept.begin({0: read})
    assert kept.received(0) == []
    assert [reply.value for reply in (*first[:2], second)] == [1, b"OK", 2]
    assert isinstance(first[2].value, redis.ResponseError)
    late = kept.put(0, ("GET", "a"))
    kept.begin({0: read})  # it is under way, and nothing else goes over its connection
    assert late.value is None
    kept.flush()
    assert late.value == b"2"
    redis_client.xadd("log", {"b": "x"}, id="1-0")
    assert kept.received(1000) == [[[b"log", [[b"1-0", [b"b", b"x"]]]]]]
    kept.close()


def test_a_read_that_another_takes_the_place_of_is_answered_no_more(redis_client):
    kept = Lines(redis_client)
    kept.begin({0: Read({"log": "0-0"}, 1, 1000)})
    kept.begin({0: Read({"log": "1-0"}, 1, 1000)})
    redis_client.xadd("log", {"b": "x"}, id="1-0")
    assert kept.received(50) == []
    redis_client.xadd("log", {"b": "x"}, id="2-0")
    (answer,) = kept.received(1000)
    assert answer[0][1][0][0] == b"2-0"
    kept.begin({})
    assert kept.received(0) == []
    kept.close()


@pytest.mark.parametrize("direction", [REQUESTS, REPLIES])
def test_a_commit_whose_connection_is_lost_raises_and_the_next_call_gets_its_own_reply(
    proxy, impatient, make, direction
):
    """What the lost connection owed is nobody's: not even the reply of a later call."""
    with connect(impatient) as client:
        log = Log(client, "w1", 60_000, 4)
        lease = log.acquire(P)
        assert log.commit([make(lease, START)]) == ["OK"]  # the server knows the script now
        results = log.begin_commit([make(lease, Offset("1-0", DONE))])
        proxy.lose(direction)
        with pytest.raises(redis.TimeoutError):
            log.read({P: START}, 1, 0)
        proxy.heal()
        client.xadd(keys.log(P), {"b": b"x"}, id="5-0")
        assert [entry.id for entry in log.read({P: Offset("1-0", DONE)}, 5, 0)[P]] == ["5-0"]
        with pytest.raises(redis.ConnectionError, match="lost before"):
            results()
        again = log.commit([make(lease, Offset("1-0", DONE))])
        assert again == (["OK"] if direction == REQUESTS else ["ALREADY"])
        log.close()


def test_a_connection_that_the_server_closed_meanwhile_is_made_anew(
    redis_client, log, make, monkeypatch
):
    monkeypatch.setattr(logs, "LENT_S", 0.0)
    lease = log.acquire(P)
    assert log.commit([make(lease, Offset("1-0", DONE))]) == ["OK"]
    redis_client.client_kill_filter(_type="normal", skipme=True)
    late = make(lease, Offset("2-0", DONE), expected=Offset("1-0", DONE))
    assert log.commit([late]) == ["OK"]
    log.close()


def test_a_read_finds_what_the_commit_before_it_left(redis_client, log, add, make):
    first, second, third = (Offset(entry, DONE) for entry in add(3))
    lease = log.acquire(P)
    assert log.commit([make(lease, first)]) == ["OK"]  # the server knows the script now
    results = log.begin_commit([make(lease, second, expected=first)])
    assert [entry.id for entry in log.read({P: START}, 5, 0)[P]] == [third.entry]
    assert results() == ["OK"]
    redis_client.script_flush()
    results = log.begin_commit([make(lease, third, expected=second)])
    assert len(log.read({P: START}, 5, 0)[P]) == 1  # forgotten while a read waits
    assert results() == ["OK"]
    assert log.read({P: START}, 5, 0) == {}


# --- full memory ------------------------------------------------------------------------------


async def test_a_full_server_refuses_new_work_and_lets_a_worker_finish(
    appender, redis_client, log, make
):
    first = await appender.append(P, 0, 1, b"a")
    redis_client.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        await appender.append(P, 1, 1, b"b")
    lease = log.acquire(P)
    assert log.renew([lease]) == [True]
    assert log.begin_trial(lease, first.entry, 0)
    effect = ("HSET", keys.heads(P), "a", "1")
    assert log.commit([make(lease, Offset(first.entry, DONE), effect, done=1)]) == ["OK"]
    assert log.release(lease)
    assert redis_client.hmget(keys.meta(P), ["in", "done"]) == [b"1", b"1"]


# --- damage -----------------------------------------------------------------------------------


def flips(text):
    for i, bit in itertools.product(range(len(text)), range(8)):
        yield text[:i] + bytes([text[i] ^ 1 << bit]) + text[i + 1 :]


async def test_a_key_of_the_wrong_type_leaves_nothing_behind(redis_client, appender):
    for which in (keys.log(P), keys.meta(P), keys.append(P, "i1")):
        redis_client.flushall()
        redis_client.zadd(which, {"a": 0})
        with pytest.raises(ResponseError):
            await appender.append(P, 0, 1, b"a")
        assert redis_client.keys("*") == [which.encode()]


async def test_an_error_of_one_partition_is_none_of_those_that_are_appended_with_it(
    redis_client, appender
):
    redis_client.set(keys.log(1), "no log")
    trials = [appender.append(partition, 0, 1, b"a") for partition in range(3)]
    first, second, third = await asyncio.gather(*trials, return_exceptions=True)
    assert first.waiting == third.waiting == 1
    assert isinstance(second, ResponseError)
    assert str(second).startswith("WRONGTYPE")
    assert not redis_client.exists(keys.meta(1))
    trials = [appender.append(0, 0, 1, b"a"), appender.append(2, 1, 10, b"b")]
    trials.append(appender.append(3, 0, 10, b"c"))
    again, full, other = await asyncio.gather(*trials)
    assert (again, full, other.waiting) == (first, Appended(None, 1), 10)
    assert redis_client.xlen(keys.log(2)) == 1


async def test_every_flipped_bit_of_a_counter_appends_once_or_not_at_all(redis_client, appender):
    """An error after the entry is written would have it written again, with each repeat."""
    await appender.append(P, 0, 3, b"one")
    redis_client.hset(keys.meta(P), "done", "2")
    stored = redis_client.hgetall(keys.meta(P))
    cases = [(field, bad) for field in (b"in", b"done") for bad in flips(stored[field])]
    for number, (field, bad) in enumerate(cases, 1):
        redis_client.hset(keys.meta(P), mapping={**stored, field: bad})
        before = redis_client.xlen(keys.log(P))
        appended = await appender.append(P, number, 1, b"two")
        assert redis_client.xlen(keys.log(P)) - before == (appended.entry is not None)
        assert redis_client.hget(keys.meta(P), "in").isdigit() or appended.entry is None
    for number, field in enumerate((b"in", b"done"), 900):
        redis_client.hset(keys.meta(P), mapping={**stored, field: b"\xff"})
        assert (await appender.append(P, number, 1, b"three")).entry is not None


async def test_every_flipped_bit_of_the_record_of_appends(redis_client, appender):
    """A new batch is appended; of a repeated one nobody can tell, and it is not appended again."""
    first = await appender.append(P, 5, 1, b"one")
    name = keys.append(P, "i1")
    stored = redis_client.get(name)
    for number, bad in enumerate(flips(stored), 6):
        redis_client.set(name, bad)
        count = redis_client.xlen(keys.log(P))
        again = await appender.append(P, 5, 1, b"one", repeated=True)
        # Hexadecimal digits of either case are one number.
        assert again in ((None, -1), (first.entry, again.waiting))
        assert redis_client.xlen(keys.log(P)) == count
        redis_client.set(name, bad)
        redis_client.hset(keys.meta(P), "done", redis_client.hget(keys.meta(P), "in"))
        assert (await appender.append(P, number, 1, b"new")).entry is not None


def test_every_flipped_bit_of_the_bookkeeping(redis_client, log, add, make):
    """The offset is repaired; a number that is none stops nobody."""
    first, _ = add(2)
    lease = log.acquire(P)
    new = Offset(first, DONE)
    assert log.commit([make(lease, new, done=1)]) == ["OK"]
    stored = redis_client.hgetall(keys.meta(P))
    log.release(lease)
    fields = ["offset", "offset_copy", "attempts", "attempt_offset", "in", "done", "epoch"]
    for field in fields:
        for bad in flips(stored[field.encode()]):
            redis_client.hset(keys.meta(P), mapping={**stored, field: bad})
            lease = log.acquire(P)
            assert lease.offset == new, (field, bad)
            assert log.commit([make(lease, new)]) == ["OK"], (field, bad)
            log.release(lease)


def test_damage_while_a_worker_owns_it_is_fenced_and_beyond_repair_left_alone(
    redis_client, log, add, make
):
    (first,) = add()
    lease = log.acquire(P)
    new = Offset(first, DONE)
    redis_client.hset(keys.meta(P), mapping={"done": "1\xb2", "in": "7"})
    assert log.commit([make(lease, new, done=1)]) == ["OK"]
    assert redis_client.hget(keys.meta(P), "done") == b"7"  # as if nothing waited
    redis_client.hset(keys.meta(P), "offset", "9" + str(new)[1:])
    assert log.commit([make(lease, new, expected=new)]) == ["FENCED"]
    log.release(lease)
    lease = log.acquire(P)
    assert lease.offset == new
    log.release(lease)
    redis_client.hdel(keys.meta(P), "offset_copy")
    redis_client.hset(keys.meta(P), "offset", "nonsense")
    assert log.acquire(P) is None
    assert log.declined == {P}
