"""Deliveries to real HTTP servers that misbehave: at least once, in order, signed, bounded."""

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
import redis

from model_core.sentences import Explanation, Moments
from service import wire
from service.observability import metrics
from service.settings import Settings
from service.store import keys
from service.store.feed import IncidentFeed
from service.webhooks import runner
from service.webhooks.allowlist import Allowed
from service.webhooks.config import Delivery
from service.webhooks.dead_letters import Letter, dead_letters, redeliver
from service.webhooks.sender import Failure, Hook, HttpSender, sender_of
from service.wire import Id
from service.wire.event_entries import Filter
from tests.e2e.deployment import Processes
from tests.ports import free_port
from tests.service.webhooks.conftest import (
    COLLECT_S,
    PARTITIONS,
    Receiver,
    notice,
    raised,
    verify,
)
from tests.stored import put_head
from tests.waiting import PATIENCE_S, until, until_async

LOOPBACK = Allowed.parse("http://127.0.0.1")
EMPTY = b"Content-Length: 0\r\n\r\n"
ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


# --- one attempt ------------------------------------------------------------------------------


async def attempt(answer, timeout_s=PATIENCE_S):
    """Outcome of one attempt at a receiver that answers with these bytes; None: never."""

    async def receive(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        try:
            if answer is None:
                await reader.read()
                return
            writer.write(answer)
            while answer == ENDLESS:
                writer.write(b"10000\r\n" + b"a" * 65536 + b"\r\n")
                await writer.drain()
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(receive, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        return await attempt_at(port, timeout_s)
    finally:
        server.close()


async def attempt_at(port, timeout_s=PATIENCE_S):
    hook = Hook("a", f"http://127.0.0.1:{port}/", b"x" * 32, Filter())
    sender = HttpSender(hook, LOOPBACK, timeout_s)
    try:
        return await sender.attempt(notice())
    finally:
        await sender.close()


def answered(status, *headers):
    lines = "".join(f"{each}\r\n" for each in headers)
    return f"HTTP/1.1 {status} X\r\n{lines}".encode() + EMPTY


async def test_each_class_of_status_is_accepted_refused_for_good_or_to_be_tried_again():
    for status in (200, 202, 204, 299):
        assert await attempt(answered(status)) is None, status
    for status in (300, 302, 408, 425, 429, 500, 503, 599):
        failure = await attempt(answered(status, "Retry-After: 7"))
        waits_s = 7.0 if status in (429, 503) else None
        assert failure == Failure(f"response status {status}", False, waits_s)
    for status in (400, 401, 403, 404, 410, 422, 499):
        assert (await attempt(answered(status))).final, status


async def test_no_connection_and_no_answer_are_tried_again():
    assert (await attempt_at(free_port())).final is False
    assert await attempt(None, timeout_s=0.1) == Failure("no answer within 0.1 s")


async def test_what_is_no_answer_is_a_failed_attempt_and_an_endless_one_is_cut_off():
    for place in (b"javascript:alert(1)", b"http://[::1", b"//", b"http://169.254.169.254/"):
        answer = b"HTTP/1.1 302 Found\r\nLocation: " + place + b"\r\n" + EMPTY
        assert await attempt(answer) is not None, place  # not followed, wherever it leads
    long = b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000 + b"\r\n" + EMPTY
    for answer in (b"", b"nonsense\r\n\r\n", long):
        assert (await attempt(answer)).reason.startswith("the call failed")
    assert await attempt(ENDLESS) is None


async def test_apprise_notifies_and_connects_only_where_it_may(receiver):
    """By Apprise's own URL of a JSON receiver; its other services connect alike."""
    host = receiver.url.removeprefix("http://")
    hook = Hook("a", f"json://{host}/a", b"", Filter(), format="apprise")
    for hosts, reason in (("", "not public"), ("http://127.0.0.1", None)):
        sender = sender_of(hook, Allowed.parse(hosts), PATIENCE_S)
        failure = await sender.attempt(notice(event=raised(evidence=2e4), link="https://c/1"))
        await sender.close()
        assert (failure is None) == (reason is None)
        assert reason is None or reason in failure.reason
    ((path, _, body, _),) = receiver.calls
    message = json.loads(body)
    assert (path, message["title"]) == ("/a", "pump-7: changed")
    details = "since observation 39; by chance 1 in 20,000 observations"
    assert (message["message"], message["type"]) == (f"{details}\nhttps://c/1", "warning")
    receiver.fate = lambda path, data: 302  # not followed
    sender = sender_of(hook, LOOPBACK, PATIENCE_S)
    assert not (await sender.attempt(notice())).final
    await sender.close()
    assert {path for path, *_ in receiver.calls} == {"/a"}


# --- attempts at a delivery, without a receiver or a clock ------------------------------------


@pytest.fixture
def attempts(monkeypatch):
    """Deliver a letter whose attempts come out as `outcomes` says; returns what came of it."""

    async def attempts(outcomes, **delivery):
        pause, uniform = AsyncMock(), Mock(return_value=1.0)
        sleepless = SimpleNamespace(**{**vars(asyncio), "sleep": pause})
        monkeypatch.setattr(runner, "asyncio", sleepless)
        monkeypatch.setattr(runner, "random", SimpleNamespace(uniform=uniform))
        hook = Hook("a", "http://127.0.0.1/", b"x" * 32, Filter())
        made = runner.Runner(hook, None, Settings(), Delivery(**delivery), AsyncMock())
        await made._sender.close()
        made._sender = AsyncMock()
        made._sender.attempt.side_effect = outcomes
        made._letters = AsyncMock()
        made._letters.bury.return_value = []
        letter = Letter("feed", "1", "evt_1", b"", raised(), Id(0, 0))
        await made._deliver(runner.Parcel([letter], asyncio.Queue(), made._notice(letter)))
        return SimpleNamespace(
            pauses=[call.args[0] for call in pause.await_args_list],
            jitter={call.args for call in uniform.call_args_list},
            attempts=made._sender.attempt.await_count,
            numbers={call.args[0].number for call in made._sender.attempt.await_args_list},
            finished=made._letters.done.await_count,
            buried=[call.args[2:] for call in made._letters.bury.await_args_list],
        )

    return attempts


async def test_pauses_double_up_to_their_limit_until_it_is_given_up(attempts):
    bounds = {"backoff_s": 1.0, "backoff_max_s": 5.0, "dead_letters": 7}
    given_up = await attempts([Failure("500")] * 6, attempts=6, **bounds)
    assert given_up.pauses == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert given_up.jitter == {(0.5, 1.0)}
    ((tries, kept),) = given_up.buried
    assert (given_up.attempts, tries, kept) == (6, 6, 7)
    delivered = await attempts([Failure("a"), Failure("b"), None], attempts=3)
    assert (delivered.finished, delivered.buried, delivered.numbers) == (1, [], {"evt_1"})


async def test_a_receiver_that_says_when_is_asked_then_and_one_that_refuses_no_more(attempts):
    waits = [Failure("503", retry_after_s=s) for s in (0.0, 7.5, 1e9)]
    waited = await attempts([*waits, None], attempts=9, backoff_s=1.0, backoff_max_s=20.0)
    assert (waited.pauses, waited.jitter) == ([0.0, 7.5, 20.0], set())
    refused = await attempts([Failure("410", final=True)], attempts=9)
    assert (refused.pauses, refused.buried[0][0]) == ([], 1)


# --- deliveries -------------------------------------------------------------------------------


async def test_wanted_events_are_posted_signed_and_in_order(delivering, receiver, writer):
    writer.raise_("a1", 99)  # before the hook was there
    both = ["suspected", "confirmed"]
    delivering.hook("all", f"{receiver.url}/all?x=1", states=both, bearer_token="t0ken")
    delivering.hook("some", f"{receiver.url}/some", prefix=["a"], model=["gaussian"])
    delivering.hook("points", f"{receiver.url}/points", kinds=["change", "anomaly"], prefix=["b"])
    async with delivering.running():
        for i in range(1, 6):
            for stream in ("a1", "a2", "b1"):
                writer.raise_(stream, i, "suspected")
                writer.raise_(stream, i)
                writer.raise_(stream, i, "withdrawn")
        writer.raise_("a1", 7, model="poisson")
        writer.raise_("b1", 100, kind="anomaly")
        await until_async(lambda: len(receiver.calls) >= 31 + 10 + 6)
        await until_async(lambda: not any(map(delivering.pending, ("all", "some", "points"))))
        assert delivering.counted("some") == [0, 10, 0, 0]
    assert len(receiver.calls) == 31 + 10 + 6
    for stream in ("a1", "a2", "b1"):
        ids = [i for at, i in receiver.got("/all?x=1") if at == stream]
        assert ids == sorted(ids)
    some = {(stream, i): 1 for stream in ("a1", "a2") for i in range(1, 6)}
    assert Counter(receiver.got("/some")) == Counter(some)
    assert receiver.got("/points") == [("b1", i) for i in (1, 2, 3, 4, 5, 100)]
    numbers = [verify(headers, body) for _, headers, body, _ in receiver.calls]
    assert max(Counter(numbers).values()) == 2  # once for each hook that wants it
    for path, headers, body, _ in receiver.calls:
        message = json.loads(body)
        event = message["data"]["event"]
        name = {"change": "changepoint", "anomaly": "anomaly"}[event["kind"]]
        assert message["type"] == f"{name}.{event['state']}"
        credentials = "Bearer t0ken" if path.startswith("/all") else None
        assert headers.get("Authorization") == credentials


async def test_a_delivery_says_what_its_event_is(delivering, receiver, writer):
    states = ["suspected", "confirmed", "withdrawn"]
    delivering.hook("h", f"{receiver.url}/h", kinds=["change", "anomaly"], states=states)
    told = {"explanation": Explanation("mean fell", "mean"), "before": Moments(30, 10.1, 0.1)}
    async with delivering.running():
        for state in states:
            writer.raise_("a", 3, state, **told)
        writer.raise_("a", 4, kind="anomaly", direction="up", pad=4.0)
        writer.raise_("b", 3, direction="down", pad=[1.0, None, -9.6])
        await until_async(lambda: len(receiver.calls) == 5)
    data = [json.loads(body)["data"] for *_, body, _ in receiver.calls]
    assert sorted(each["summary"] for each in data) == [
        "a: above the forecast by 4.0 sd",
        "a: mean fell",
        "a: suspected: mean fell",
        "a: withdrawn: mean fell",
        "b: output 3: down by 9.6 sd so far",
    ]
    assert {each["event"]["before"] and each["event"]["before"]["mean"] for each in data} == {
        10.1,
        None,
    }


async def test_a_receiver_that_fails_hangs_or_is_down_gets_each_event_in_order(delivering, writer):
    port = free_port()
    delivering.hook("h", f"http://127.0.0.1:{port}/h")
    async with delivering.running(in_flight=1, attempts=100):
        for i in range(1, 4):
            writer.raise_("a", i)
        await until_async(lambda: delivering.counted("h")[0] >= 1)  # nobody is there
        receiver = Receiver(port)
        fates = iter([500, 2.0, 429, 302])

        def fate(path, data):
            fate = next(fates, 200)
            # The next attempt gets little time if it will hang; others get all they need.
            delivering.runners[0]._sender._timeout_s = 0.5 if fate == 500 else PATIENCE_S
            return fate

        receiver.fate = fate
        try:
            await until_async(lambda: len(receiver.got("/h")) == 3)
        finally:
            receiver.stop()
    assert receiver.got("/h") == [("a", 1), ("a", 2), ("a", 3)]
    assert [fate for *_, fate in receiver.calls[:5]] == [500, 2.0, 429, 302, 200]
    ids = [verify(headers, body) for _, headers, body, _ in receiver.calls[:5]]
    assert len(set(ids)) == 1  # every attempt at an event has the same id
    assert not any(path == "/elsewhere" for path, *_ in receiver.calls)


async def test_one_dead_receiver_does_not_hold_up_the_others(delivering, receiver, writer):
    receiver.fate = lambda path, data: 200 if path == "/good" else 2.0
    delivering.hook("hangs", f"{receiver.url}/hangs")
    delivering.hook("good", f"{receiver.url}/good")
    async with delivering.running():
        for i in range(1, 31):
            writer.raise_(f"s{i % 7}", i)
        await until_async(lambda: len(receiver.got("/good")) == 30)
        assert delivering.counted("hangs")[1] == 0


async def test_what_fails_for_good_is_dead_and_can_be_sent_again(delivering, receiver, writer):
    receiver.fate = lambda path, data: 500 if data["event"]["id"] in (2, 3, 4) else 200
    delivering.hook("h", f"{receiver.url}/h")
    async with delivering.running(attempts=2, dead_letters=2, backoff_s=0.01):
        for i in range(1, 6):
            writer.raise_("a", i)
        await until_async(lambda: ("a", 5) in receiver.got("/h"))
        assert receiver.got("/h") == [("a", 1), ("a", 5)]
        assert delivering.counted("h")[2:] == [3, 1]
        dead = dead_letters(delivering.client)
        assert [(each.raised.event.id, each.attempts) for each in dead] == [(3, 2), (4, 2)]
        assert "500" in dead[0].error
        receiver.fate = lambda path, data: 200
        assert redeliver(delivering.client, "x") == 0
        assert redeliver(delivering.client) == 2
        await until_async(lambda: set(receiver.got("/h")) == {("a", i) for i in (1, 3, 4, 5)})
        await until_async(lambda: delivering.client.xlen(keys.webhook_again("h")) == 0)
    ids = {verify(h, body) for _, h, body, _ in receiver.calls if b'"id":3,' in body}
    assert len(ids) == 1
    assert dead_letters(delivering.client) == []


async def test_a_second_process_waits_and_takes_over_in_order(delivering, receiver, writer):
    delivering.hook("h", f"{receiver.url}/h")
    async with delivering.running():
        second = delivering.running()
        for i in range(1, 25):
            writer.raise_("a", i)
        await second.__aenter__()
    for i in range(25, 50):
        writer.raise_("a", i)
    await until_async(lambda: len(receiver.got("/h")) >= 49)
    await second.__aexit__(None, None, None)
    assert receiver.got("/h") == [("a", i) for i in range(1, 50)]


async def test_events_that_were_trimmed_before_they_were_delivered_are_counted(
    delivering, receiver, writer
):
    counter = metrics.WEBHOOK_GAPS.labels("h")
    before = counter._value.get()
    feed = keys.feed(keys.partition_of("a", PARTITIONS))
    delivering.hook("h", f"{receiver.url}/h")

    async def delivered(*ids):
        wanted = [("a", i) for i in ids]
        await until_async(lambda: receiver.got("/h")[-len(ids) :] == wanted)
        return counter._value.get() - before

    async with delivering.running():
        for i in (1, 2, 3):
            writer.raise_("a", i)
        assert await delivered(1, 2, 3) == 0
    for i in (4, 5, 6):
        writer.raise_("a", i)
    delivering.client.xtrim(feed, maxlen=1, approximate=False)
    receiver.fate = lambda path, data: 500
    async with delivering.running():
        writer.raise_("a", 6, "withdrawn")  # unwanted: acknowledged before the one that fails
        await until_async(lambda: delivering.counted("h")[0] and delivering.pending("h") == 1)
        assert counter._value.get() - before == 1
    receiver.fate = lambda path, data: 200
    async with delivering.running():
        writer.raise_("a", 7)
        assert await delivered(6, 7) == 1
    receiver.fate = lambda path, data: 500
    async with delivering.running():
        writer.raise_("a", 8)
        await until_async(lambda: delivering.counted("h")[0])
    delivering.client.xtrim(feed, maxlen=0, approximate=False)
    receiver.fate = lambda path, data: 200
    async with delivering.running():
        writer.raise_("a", 9)
        assert await delivered(9) == 2


async def test_an_attempt_under_way_ends_before_another_process_takes_over(
    delivering, receiver, writer
):
    arrived, gate = threading.Event(), threading.Event()

    def held(path, data):
        arrived.set()
        gate.wait(PATIENCE_S)
        return 200

    receiver.fate = held
    delivering.hook("h", f"{receiver.url}/h")
    async with contextlib.AsyncExitStack() as first:
        await first.enter_async_context(delivering.running())
        writer.raise_("a", 1)
        await until_async(arrived.is_set)
        async with delivering.running():
            ending = asyncio.create_task(first.aclose())
            ended, _ = await asyncio.wait([ending], timeout=0.3)
            assert not ended
            gate.set()
            await ending
            writer.raise_("a", 2)
            await until_async(lambda: ("a", 2) in receiver.got("/h"))
    assert receiver.got("/h") == [("a", 1), ("a", 2)]


@pytest.fixture
def processes(valkey_url, tmp_path):
    environment = {"MOCA_REDIS_URL": valkey_url, "MOCA_PARTITIONS": str(PARTITIONS)}
    with Processes(tmp_path, {**environment, "MOCA_LEASE_TTL_MS": "1000"}) as processes:
        yield processes


def test_a_kill_between_delivery_and_acknowledgement_delivers_again(
    processes, delivering, receiver, writer
):
    """The receiver has the event and has not answered yet when the process dies."""

    def start(name, **delivery):
        options = ["--webhooks-file", str(delivering.written(name, **delivery))]
        options += ["--webhook-hosts", "http://127.0.0.1", "--metrics-port", "0"]
        processes.start(name, "webhooks", *options)
        until(lambda: delivering.ready, lambda: processes.log_of(name))

    arrived = threading.Event()

    def slow(path, data):
        arrived.set()
        return PATIENCE_S

    receiver.fate = slow
    delivering.hook("h", f"{receiver.url}/h")
    start("first")
    for i in range(1, 4):
        writer.raise_("a", i)
    assert arrived.wait(PATIENCE_S)
    processes.kill("first")
    assert delivering.pending("h") >= 1
    receiver.fate = lambda path, data: 200
    start("second")
    until(lambda: receiver.got("/h") == [("a", 1), ("a", 2), ("a", 3)])
    until(lambda: delivering.pending("h") == 0)
    assert receiver.got("/h", PATIENCE_S) == [("a", 1)]  # the first, once more
    place = keys.feed(keys.partition_of("a", PARTITIONS))
    assert len(delivering.client.xinfo_consumers(place, "webhook:h")) == 1


# --- incidents --------------------------------------------------------------------------------


def messages(receiver):
    """Type, streams of the changes, and headline of what was posted."""
    posted = [json.loads(body) for *_, body, fate in receiver.calls if fate == 200]
    return [
        (
            message["type"],
            sorted(
                change["stream"] for change in message["data"].get("changes", [message["data"]])
            ),
            message["data"].get("headline"),
        )
        for message in posted
    ]


async def test_changes_of_an_incident_are_one_delivery_and_those_that_join_it_another(
    delivering, receiver, writer
):
    delivering.hook("h", f"{receiver.url}/h")
    for i in range(6):
        head = wire.Head(1, wire.StreamSettings("gaussian", {"site": "ab"[i > 2]}), seq=60)
        name = f"s{i}"
        put_head(delivering.client, keys.partition_of(name, PARTITIONS), name, head)
    alone = "2024-05-03T12:00:00Z"
    async with delivering.running(collect_s=COLLECT_S):
        for i in range(3):
            writer.raise_(f"s{i}", 1, confirmed_at=13)
        writer.raise_("s5", 1, confirmed_at=13, time=alone)
        await delivering.collects(4)
        delivering.pass_time()
        await until_async(lambda: len(receiver.calls) == 2)
        writer.raise_("s3", 1, confirmed_at=13)
        await delivering.collects(1)
        delivering.pass_time()
        await delivering.collects(1, joining=1)
        delivering.pass_time(runner.JOINING - 2)
        writer.raise_("s4", 1, confirmed_at=13)  # it waits no longer than the first that joined
        await delivering.collects(2, joining=1)
        assert len(receiver.calls) == 2
        delivering.pass_time()
        await until_async(lambda: len(receiver.calls) == 3)
        await until_async(lambda: not delivering.pending("h"))
        await until_async(lambda: delivering.counted("h") == [0, 6, 0, 0])
    # The first two are due together.
    other, began = sorted(messages(receiver)[:2])
    grew = messages(receiver)[2]
    when = "2024-05-01 12:00 UTC"
    assert began == ("incident.began", ["s0", "s1", "s2"], f"3 of 6 streams changed at {when}")
    assert other == ("changepoint.confirmed", ["s5"], None)
    assert grew == ("incident.grew", ["s3", "s4"], f"5 of 6 streams changed at {when}")
    posted = [json.loads(body) for *_, body, _ in receiver.calls]
    first, last = (own["data"] for own in posted if own["type"].startswith("incident"))
    assert first["id"] == last["id"]
    assert (first["streams"], last["streams"]) == (3, 5)
    assert last["names"] == [f"s{i}" for i in range(5)]
    ids = [verify(headers, body) for _, headers, body, _ in receiver.calls]
    assert len(set(ids)) == 3


async def test_incidents_are_of_the_kinds_that_a_webhook_chooses(delivering, receiver, writer):
    delivering.hook("new", f"{receiver.url}/new")
    delivering.hook("all", f"{receiver.url}/all", kinds=["change", "returned"])
    night = wire.KnownRegime("night shift", 0.9, 3, 2, 30)
    async with delivering.running(collect_s=COLLECT_S):
        for i in range(4):
            writer.raise_(f"s{i}", 1, confirmed_at=13, **({"returned": night} if i > 1 else {}))
        await delivering.collects(2 + 4)
        delivering.pass_time()
        await until_async(lambda: len(receiver.calls) == 2)
        await until_async(lambda: not delivering.pending("new") and not delivering.pending("all"))
    assert sorted(row[:2] for row in messages(receiver)) == [
        ("incident.began", ["s0", "s1"]),
        ("incident.began", ["s0", "s1", "s2", "s3"]),
    ]


@pytest.mark.parametrize("error", [TimeoutError(), redis.ResponseError("WRONGTYPE")])
async def test_changes_are_delivered_one_by_one_while_incidents_cannot_be_read(
    delivering, receiver, writer, monkeypatch, error
):
    delivering.hook("h", f"{receiver.url}/h")
    monkeypatch.setattr(IncidentFeed, "found", AsyncMock(side_effect=error))
    async with delivering.running(collect_s=COLLECT_S):
        for i in range(3):
            writer.raise_(f"s{i}", 1, confirmed_at=13)
        await delivering.collects(3)
        delivering.pass_time()
        await until_async(lambda: len(receiver.calls) == 3)
        await until_async(lambda: not delivering.pending("h"))
    assert sorted(row[:2] for row in messages(receiver)) == [
        ("changepoint.confirmed", [f"s{i}"]) for i in range(3)
    ]


async def test_later_events_of_a_stream_end_its_wait_and_stay_behind(delivering, receiver, writer):
    delivering.hook("h", f"{receiver.url}/h", states=["confirmed", "withdrawn"])
    async with delivering.running(collect_s=COLLECT_S, in_flight=2):
        for i in range(8):
            writer.raise_(f"s{i}", 1, confirmed_at=13)
        await delivering.collects(8)
        assert receiver.calls == []
        writer.raise_("s3", 1, "withdrawn", confirmed_at=13)
        await until_async(lambda: len(receiver.calls) == 2)
        assert len(delivering.waiting) == 7  # the others wait for more
    assert [row[:2] for row in messages(receiver)] == [
        ("changepoint.confirmed", ["s3"]),  # it was no part of the incident any more
        ("changepoint.withdrawn", ["s3"]),
    ]


async def test_what_is_confirmed_meanwhile_ends_no_wait_and_is_delivered_once(
    delivering, receiver, writer
):
    """As of a file that is replayed: a change is relocated, and another one follows."""
    delivering.hook("h", f"{receiver.url}/h")
    later = "2024-05-03T12:00:00Z"
    async with delivering.running(collect_s=COLLECT_S):
        for i in range(4):
            writer.raise_(f"s{i}", 1, confirmed_at=13)
        writer.raise_("s1", 1, confirmed_at=13, evidence=5e5)
        writer.raise_("s2", 2, confirmed_at=30, time=later)
        await delivering.collects(6)
        delivering.pass_time()
        await until_async(lambda: len(receiver.calls) == 2)
        await until_async(lambda: not delivering.pending("h"))
    assert [row[:2] for row in messages(receiver)] == [
        ("incident.began", [f"s{i}" for i in range(4)]),
        ("changepoint.confirmed", ["s2"]),
    ]
    began = json.loads(receiver.calls[0][2])["data"]["changes"]
    assert {change["stream"]: change["event"]["evidence"] for change in began}["s1"] == 5e5


async def test_later_events_of_all_streams_of_an_incident_wait_until_it_is_delivered(
    delivering, receiver, writer
):
    """In whichever lane they are."""
    arrived, gate = threading.Event(), threading.Event()

    def held(path, data):
        if "changes" in data:
            arrived.set()
            gate.wait(PATIENCE_S)
        return 200

    receiver.fate = held
    delivering.hook("h", f"{receiver.url}/h", states=["confirmed", "withdrawn"])
    async with delivering.running(collect_s=COLLECT_S, in_flight=2):
        for i in range(8):
            writer.raise_(f"s{i}", 1, confirmed_at=13)
        await delivering.collects(8)
        delivering.pass_time()
        await until_async(arrived.is_set)
        for i in range(8):
            writer.raise_(f"s{i}", 1, "withdrawn", confirmed_at=13)
        await asyncio.sleep(0.2)
        gate.set()
        await until_async(lambda: len(receiver.calls) == 1 + 8)
    assert messages(receiver)[0][0] == "incident.began"


async def test_a_hook_that_was_new_while_the_clock_was_ahead_misses_nothing(
    delivering, receiver, writer
):
    writer.clock = lambda: 0  # its ids are years before the store's clock
    delivering.hook("h", f"{receiver.url}/h")
    async with delivering.running():
        writer.raise_("s", 1)
        await until_async(lambda: receiver.got("/h") == [("s", 1)])


async def test_a_clock_that_is_set_makes_no_change_wait_longer(delivering, receiver, writer):
    delivering.hook("h", f"{receiver.url}/h")
    async with delivering.running(collect_s=COLLECT_S):
        for i, step_s in enumerate([-30 * 3600, 30 * 3600]):
            writer.raise_("s", i, confirmed_at=13)
            await delivering.collects(1)
            delivering.clock.time = lambda step_s=step_s: time.time() + step_s
            delivering.pass_time()
            await until_async(lambda i=i: receiver.got("/h") == [("s", k) for k in range(i + 1)])


async def test_changes_that_wait_when_a_process_ends_are_delivered_by_the_next(
    delivering, receiver, writer
):
    delivering.hook("h", f"{receiver.url}/h")
    async with delivering.running(collect_s=COLLECT_S):
        for i in range(5):
            writer.raise_(f"s{i}", 1, confirmed_at=13)
        await delivering.collects(5)
    assert receiver.calls == []
    async with delivering.running(collect_s=COLLECT_S):
        await delivering.collects(5)
        delivering.pass_time()
        await until_async(lambda: len(receiver.calls) == 1)
        await until_async(lambda: not delivering.pending("h"))
    assert messages(receiver)[0][:2] == ("incident.began", [f"s{i}" for i in range(5)])


async def test_the_changes_of_an_incident_that_is_refused_are_given_up_one_by_one(
    delivering, receiver, writer
):
    delivering.hook("h", f"{receiver.url}/h")
    receiver.fate = lambda path, data: 410
    async with delivering.running(collect_s=COLLECT_S):
        for i in range(3):
            writer.raise_(f"s{i}", 1, confirmed_at=13)
        await delivering.collects(3)
        delivering.pass_time()
        await until_async(lambda: len(dead_letters(delivering.client, "h")) == 3)
        receiver.fate = lambda path, data: 200
        assert redeliver(delivering.client, "h") == 3
        await until_async(lambda: len(receiver.got("/h")) == 3)
    assert sorted(receiver.got("/h")) == [("s0", 1), ("s1", 1), ("s2", 1)]


async def test_other_receivers_get_an_incident_at_once(delivering, receiver, writer):
    host = receiver.url.removeprefix("http://")
    delivering.hook("alerts", f"{receiver.url}/alerts", format="alertmanager", secret="")
    delivering.hook("chat", f"json://{host}/chat", format="apprise", secret="")
    async with delivering.running(collect_s=COLLECT_S):
        for i in range(25):
            writer.raise_(f"s{i:02}", 1, confirmed_at=13, direction="up", pad=2.0)
        await delivering.collects(2 * 25)
        delivering.pass_time()
        await until_async(lambda: len(receiver.calls) == 2)
    bodies = {path: json.loads(body) for path, _, body, _ in receiver.calls}
    assert {alert["labels"]["stream"] for alert in bodies["/alerts"]} == {
        f"s{i:02}" for i in range(25)
    }
    (headline,) = {alert["annotations"]["incident"] for alert in bodies["/alerts"]}
    assert bodies["/chat"]["title"] == f"Incident: {headline}"
    lines = bodies["/chat"]["message"].splitlines()
    assert (len(lines), lines[-1]) == (21, "and 5 more")
