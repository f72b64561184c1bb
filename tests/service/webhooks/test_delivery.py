"""Deliveries to real HTTP servers that misbehave: at least once, in order, signed, bounded."""

import asyncio
import json
import threading
from collections import Counter
from types import SimpleNamespace

import pytest

from service.settings import Settings
from service.store import keys
from service.webhooks import runner
from service.webhooks.allowlist import Allowed
from service.webhooks.config import Delivery, Hook
from service.webhooks.dead_letters import Letter, dead_letters, redeliver
from service.webhooks.groups import MAX_GROUP, Grouping, Groups
from service.webhooks.sender import Failure, Sender
from service.wire import Event
from service.wire.event_entries import Filter, Id, Raised
from tests.ports import free_port
from tests.service.webhooks.conftest import PARTITIONS, Receiver, verify
from tests.waiting import until, until_async

LOOPBACK = Allowed.parse("http://127.0.0.1")
EMPTY = b"Content-Length: 0\r\n\r\n"
ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


# --- one attempt ------------------------------------------------------------------------------


async def attempt(answer, timeout_s=10.0):
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
        return await _attempt(port, timeout_s)
    finally:
        server.close()


async def _attempt(port, timeout_s=10.0):
    hook = Hook("a", f"http://127.0.0.1:{port}/", b"x" * 32, Filter())
    sender = Sender(hook, LOOPBACK, timeout_s)
    try:
        return await sender.attempt("1", b"{}")
    finally:
        await sender.close()


def answered(status, *headers):
    lines = "".join(f"{each}\r\n" for each in headers)
    return f"HTTP/1.1 {status} X\r\n{lines}".encode() + EMPTY


async def test_each_class_of_status_is_accepted_refused_for_good_or_to_be_tried_again():
    accepted = [200, 202, 204, 299]
    again = [300, 302, 401, 403, 408, 429, 500, 503, 599]
    refused = [400, 404, 409, 410, 413, 422, 499]
    for status in accepted:
        assert await attempt(answered(status)) is None, status
    for status in again:
        failure = await attempt(answered(status, "Retry-After: 1"))
        assert (status, failure.refused) == (status, False)
        assert str(status) in failure.reason
    for status in refused:
        failure = await attempt(answered(status))
        assert (status, failure.refused) == (status, True)


async def test_no_connection_and_no_answer_are_tried_again():
    assert (await _attempt(free_port())).refused is False
    failure = await attempt(None, timeout_s=0.1)
    assert failure == Failure("no answer within 0.1 s")


async def test_what_is_no_answer_is_a_failed_attempt_and_an_endless_one_is_cut_off():
    for place in (b"javascript:alert(1)", b"http://[::1", b"//", b"http://169.254.169.254/"):
        answer = b"HTTP/1.1 302 Found\r\nLocation: " + place + b"\r\n" + EMPTY
        assert await attempt(answer) is not None, place  # not followed, wherever it leads
    long = b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000 + b"\r\n" + EMPTY
    for answer in (b"", b"nonsense\r\n\r\n", long):
        assert (await attempt(answer)).reason.startswith("the call failed")
    assert await attempt(ENDLESS) is None


# --- attempts at a delivery, without a receiver or a clock ------------------------------------


class Settled:
    """Letters in place of those of the store: what was done and what was buried."""

    again = "again"

    def __init__(self):
        self.finished, self.buried = [], []

    async def done(self, letters):
        self.finished += [letter.id for letter in letters]

    async def bury(self, letters, number, error, attempts, bounds):
        self.buried.append(([letter.id for letter in letters], attempts, bounds))
        return []


def letters_of(*ids):
    event = Event(1, "confirmed", 39, 41)
    raised = Raised("a", "gaussian@1", 1, event, None, 0, {})
    return [Letter("feed", id_, f"evt_{id_}", b"", raised, Id(0, 0)) for id_ in ids]


@pytest.fixture
def attempts(monkeypatch):
    """Deliver letters whose attempts come out as `outcome` says; returns what came of it."""

    async def attempts(ids, outcome, **delivery):
        found = Settled()
        found.sent, found.pauses, found.jitter = [], [], []

        async def pause(seconds):
            found.pauses.append(seconds)

        def uniform(low, high):
            found.jitter.append((low, high))
            return 1.0

        async def tried(letters):
            sent = [letter.id for letter in letters]
            found.sent.append(sent)
            failure = outcome(sent)
            if failure is None:
                await found.done(letters)
            return failure

        sleepless = SimpleNamespace(**{**vars(asyncio), "sleep": pause})
        monkeypatch.setattr(runner, "asyncio", sleepless)
        monkeypatch.setattr(runner, "random", SimpleNamespace(uniform=uniform))
        hook = Hook("a", "http://127.0.0.1/", b"x" * 32, Filter())
        made = runner.Runner(hook, None, Settings(), Delivery(**delivery))
        made._letters, made._attempt = found, tried
        await made._deliver(letters_of(*ids))
        await made._sender.close()
        return found

    return attempts


async def test_pauses_double_up_to_their_limit_until_it_is_given_up(attempts):
    bounds = {"backoff_s": 1.0, "backoff_max_s": 5.0, "dead_letters": 7, "dead_letter_bytes": 9}
    found = await attempts(["1"], lambda _: Failure("500"), attempts=6, **bounds)
    assert found.pauses == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert set(found.jitter) == {(0.5, 1.0)}
    assert (len(found.sent), found.buried) == (6, [(["1"], 6, (7, 9))])
    fates = iter([Failure("a"), Failure("b"), None])
    found = await attempts(["1"], lambda _: next(fates), attempts=3)
    assert (found.finished, found.buried) == (["1"], [])
    found = await attempts(["1"], lambda _: Failure("410", True), attempts=2)
    assert (found.sent, found.buried[0][:2]) == ([["1"]] * 2, (["1"], 2))


async def test_one_refused_event_does_not_take_its_group_with_it(attempts):
    def fate(sent):
        return Failure("400", refused=True) if {"2", "4"} & set(sent) else None

    ids = ["1", "2", "3", "4", "5"]
    found = await attempts(ids, fate, attempts=2)
    assert found.sent == [ids, ids, *([each] for each in ids)]
    assert found.finished == ["1", "3", "5"]
    assert [buried[0] for buried in found.buried] == [["2", "4"]]

    def down(sent):  # the receiver fails otherwise meanwhile
        return Failure("400", refused=True) if {"2"} & set(sent) else Failure("503")

    found = await attempts(["2", "3", "4"], down, attempts=1)
    assert found.sent == [["2", "3", "4"], ["2"], ["3"]]
    assert [buried[0] for buried in found.buried] == [["2", "3", "4"]]
    found = await attempts(["3", "4"], down, attempts=1)
    assert (found.sent, found.buried[0][0]) == ([["3", "4"]], ["3", "4"])  # none is to blame


class Waiting:
    """A letter, as far as groups look at it."""

    def __init__(self, stream, **tags):
        event = Event(1, "confirmed", 39, 41)
        self.raised = Raised(stream, "gaussian@1", 1, event, None, 0, tags)


def test_groups_close_after_their_time_or_when_full_and_keep_the_order_of_a_stream():
    groups = Groups(Grouping(5.0, ("site",)))
    first = [Waiting("a", site="n"), Waiting("b", site="s"), Waiting("c", site="n"), Waiting("d")]
    for i, letter in enumerate(first):
        groups.add(letter, float(i))
    assert groups.due(4.9) == []
    assert groups.due(5.0) == [(("n",), [first[0], first[2]])]
    moved = Waiting("a", site="s")  # its tags changed while the first is on its way
    groups.add(moved, 5.5)
    assert groups.due(8.0) == [(("s",), [first[1]]), (("",), [first[3]])]
    groups.settle([first[0]])
    assert groups.due(10.5) == [(("n",), [moved])]
    groups.settle([moved])
    groups.add(last := Waiting("a", site="s"), 12.0)
    assert groups.due(17.0) == [(("s",), [last])]
    many = [Waiting("e") for _ in range(MAX_GROUP + 1)]
    for letter in many:
        groups.add(letter, 20.0)
    assert groups.due(20.0) == [(("",), many[:-1])]
    assert groups.due(25.0) == [(("",), many[-1:])]


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
        writer.raise_("a1", 7, model="poisson@2")
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
        said = json.loads(body)
        event = said["data"]["event"]
        name = {"change": "changepoint", "anomaly": "anomaly"}[event["kind"]]
        assert said["type"] == f"{name}.{event['state']}"
        assert set(said["data"]) == {"stream", "model", "event", "time", "at"}
        given = "Bearer t0ken" if path.startswith("/all") else None
        assert headers.get("Authorization") == given


async def test_a_receiver_that_fails_hangs_or_is_down_gets_each_event_in_order(delivering, writer):
    port = free_port()
    delivering.hook("h", f"http://127.0.0.1:{port}/h")
    async with delivering.running(in_flight=1, attempts=100, timeout_s=0.5):
        for i in range(1, 4):
            writer.raise_("a", i)
        await until_async(lambda: delivering.counted("h")[0] >= 1)  # nobody is there
        receiver = Receiver(port)
        fates = iter([500, 2.0, 429, 302])
        receiver.fate = lambda path, data: next(fates, 200)
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
    async with delivering.running(timeout_s=1.5):
        for i in range(1, 101):
            writer.raise_(f"s{i % 7}", i)
        await until_async(lambda: len(receiver.got("/good")) == 100)
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


async def test_dead_letters_are_bounded_in_bytes_but_for_the_newest(delivering, receiver, writer):
    receiver.fate = lambda path, data: 500
    delivering.hook("h", f"{receiver.url}/h")
    async with delivering.running(attempts=1, dead_letter_bytes=10_000):
        for i in range(1, 61):
            writer.raise_("a", i)
        await until_async(lambda: delivering.counted("h")[2] == 60)
    left = delivering.client.xlen(keys.DEAD_LETTERS)
    assert delivering.client.memory_usage(keys.DEAD_LETTERS, 0) <= 10_000
    assert 10 < left < 50
    assert delivering.counted("h")[3] == 60 - left
    async with delivering.running(attempts=1, dead_letter_bytes=1):
        writer.raise_("a", 61)
        await until_async(lambda: delivering.counted("h")[2] == 1)
    (dead,) = dead_letters(delivering.client)
    assert dead.raised.event.id == 61


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


async def test_groups_by_tags_are_one_delivery_each_and_one_dead_letter(
    delivering, receiver, writer
):
    """Own groups go away: that they work at all."""
    receiver.fate = lambda path, data: 500 if path == "/dead" else 200
    each = '{"count": "${count}", "events": "${events}"}'
    fields = {"format": "template", "template": each, "group_seconds": 0.3}
    delivering.hook("sites", f"{receiver.url}/sites", **fields, group_by=["site"])
    delivering.hook("dead", f"{receiver.url}/dead", **fields, match=['{site="north"}'])
    async with delivering.running(attempts=1):
        for i in range(1, 4):
            writer.raise_("n", i, tags={"site": "north"})
            writer.raise_("s", i, tags={"site": "south"})
        await until_async(lambda: delivering.counted("sites")[1] == 6)
        await until_async(lambda: delivering.counted("dead")[2] == 3)
        assert delivering.pending("sites") == delivering.pending("dead") == 0
        receiver.fate = lambda path, data: 200
        assert redeliver(delivering.client) == 3
        await until_async(lambda: delivering.client.xlen(keys.webhook_again("dead")) == 0)
    groups = [json.loads(body) for path, _, body, _ in receiver.calls if path == "/sites"]
    for stream in "ns":
        ids = [e["id"] for group in groups for e in group["events"] if e["stream"] == stream]
        assert ids == [1, 2, 3]
    assert all(len({e["stream"] for e in group["events"]}) == 1 for group in groups)
    numbers = [verify(head, body) for path, head, body, _ in receiver.calls]
    assert any(number.startswith("grp_") for number in numbers)


async def test_a_confirmation_is_not_redelivered_after_its_withdrawal(delivering, receiver, writer):
    """Nothing would end the alarm that it opens."""
    receiver.fate = lambda path, data: 500
    key = "r0utingkey" * 3
    delivering.hook("p", f"{receiver.url}/p", secret=key, format="pagerduty")
    async with delivering.running(attempts=1):
        for i in (1, 2):
            writer.raise_("a", i, confirmed_at=23)
        await until_async(lambda: delivering.counted("p")[2] == 2)
        receiver.fate = lambda path, data: 202
        writer.raise_("a", 1, "withdrawn", confirmed_at=23)
        await until_async(lambda: delivering.counted("p")[1] == 1)
        assert redeliver(delivering.client) == 2
        await until_async(lambda: delivering.client.xlen(keys.webhook_again("p")) == 0)
    accepted = [json.loads(body) for _, _, body, answered in receiver.calls if answered == 202]
    actions = [(each["dedup_key"], each["event_action"]) for each in accepted]
    assert actions == [("a/1/change/1", "resolve"), ("a/1/change/2", "trigger")]
    assert not any("webhook-signature" in head for _, head, _, _ in receiver.calls)


@pytest.mark.usefixtures("valkey_url")
def test_a_kill_between_delivery_and_acknowledgement_delivers_again(webhooks, receiver, writer):
    """The receiver has the event and has not answered yet when the process dies."""
    arrived = threading.Event()

    def slow(path, data):
        arrived.set()
        return 3.0

    receiver.fate = slow
    webhooks.hook("h", f"{receiver.url}/h")
    webhooks.start(timeout_s=20)
    for i in range(1, 4):
        writer.raise_("a", i)
    assert arrived.wait(100)
    webhooks.processes.kill("webhooks")
    assert webhooks.pending("h") >= 1
    receiver.fate = lambda path, data: 200
    webhooks.start("second")
    until(lambda: receiver.got("/h") == [("a", 1), ("a", 2), ("a", 3)])
    until(lambda: webhooks.pending("h") == 0)
    assert receiver.got("/h", 3.0) == [("a", 1)]  # the first, once more
    place = keys.feed(keys.partition_of("a", PARTITIONS))
    assert len(webhooks.client.xinfo_consumers(place, "webhook:h")) == 1
