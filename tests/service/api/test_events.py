"""GET /v1/events over real HTTP: cursors, gaps, filters, bounds, and the end of the process."""

import contextlib
import socket
import threading

import httpx
import pytest

from service.api import sse
from service.store.connection import connect
from service.store.keys import partition_of
from service.wire import Id, KnownRegime
from service.wire.event_entries import Positions
from tests.feeding import Consumer, Writer, by_stream
from tests.service.api.conftest import PARTITIONS, located, slug
from tests.waiting import PATIENCE_S, until

STREAMS = [f"s{i}" for i in range(8)]  # of every partition


@pytest.fixture
def worker():
    """None: the writer of these tests owns the partitions."""


@pytest.fixture
def writer(valkey_url):
    with contextlib.closing(Writer(valkey_url, PARTITIONS)) as writer:
        yield writer


@pytest.fixture
def start(served, monkeypatch):
    """Serve the application, with heartbeats that do not let one wait."""
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.05)
    return served


def fill(writer, count, first=1):
    for i in range(first, first + count):
        for stream in STREAMS:
            writer.raise_(stream, i)


def taken(consumer):
    """Messages with events until nothing more comes."""
    messages_taken = []
    with consumer.connected() as messages:
        beats = 0
        while beats < 3:
            message = next(messages)
            beats = beats + 1 if message.comment else 0
            messages_taken += [message] if message.event else []
    return messages_taken


def test_a_message_has_the_event_and_where_to_go_on(start, writer):
    url = start().url
    writer.raise_("old", 1)
    Consumer(url, after="0").read(1)  # by now the process has read it, too
    consumer = Consumer(url)
    with consumer.connected() as messages:
        first = next(messages)
        assert first.id
        writer.raise_("new", 7, "suspected")
        message = next(m for m in messages if m.event)
    assert message.id != first.id
    assert message.event == "changepoint"
    event = message.data.pop("event")
    assert message.data == {
        "stream": "new",
        "model": "gaussian",
        "time": "2024-05-01T12:00:00Z",
        "at": "2023-11-14T22:13:20.002+00:00",
    }
    assert (event["id"], event["state"], event["kind"]) == (7, "suspected", "change")
    assert (event["start"], event["suspected_at"], event["confirmed_at"]) == (70, 73, None)


def test_every_id_resumes_right_after_its_message(start, writer):
    api = start()
    url = api.url
    fill(writer, 3)
    whole = Consumer(url, after="0")
    ids = [message.id for message in taken(whole)]
    assert sorted(whole.seen) == sorted(writer.written)
    for at in (0, 1, 11, 22):
        # A browser connects again to the same address, with the header: that is the later one.
        by_header, by_query = Consumer(url, after="0"), Consumer(url, after=ids[at])
        by_header.last = ids[at]
        for consumer in (by_header, by_query):
            consumer.read(23 - at)
            assert by_stream(consumer.seen) == by_stream(whole.seen[at + 1 :])
            assert consumer.gaps == []


def test_filters(start, writer):
    api = start()
    writer.raise_("s1", 1, tags={"site": "north"})
    writer.raise_("t1", 1)
    writer.raise_("s2", 1, "withdrawn", tags={"site": "south"})
    writer.raise_("t2", 1, model="walk@2", tags={"site": "north", "env": "dev"})
    writer.raise_("t2", 7, model="walk@2", kind="anomaly")
    writer.raise_("u1", 3, returned=KnownRegime(None, 0.9, 3, 2, 30))
    for query, wanted in (
        ({"kind": "returned"}, ["u1 3"]),
        ({"kind": ["change", "returned"], "prefix": ["s1", "u"]}, ["s1 1", "u1 3"]),
        ({"prefix": "u"}, []),
        ({"stream": ["s1", "t2"]}, ["s1 1", "t2 1"]),
        ({"prefix": "t"}, ["t1 1", "t2 1"]),
        ({"prefix": "t", "stream": "s1"}, []),
        ({"model": "walk"}, ["t2 1"]),
        ({"model": ["gaussian", "walk@2"]}, ["s1 1", "s2 1", "t1 1", "t2 1"]),
        ({"model": "walk@1"}, []),
        ({"state": ["suspected", "withdrawn"]}, ["s2 1"]),
        ({"prefix": "t", "model": "gaussian"}, ["t1 1"]),
        ({"match": ['{site=~"n.*",env!="dev"}', '{stream="t1"}']}, ["s1 1", "t1 1"]),
        ({"match": '{site="north"}', "prefix": "t"}, ["t2 1"]),
        ({"kind": "anomaly"}, ["t2 7"]),
        ({"kind": ["change", "anomaly"], "stream": "t2"}, ["t2 1", "t2 7"]),
        ({"kind": "all", "state": "confirmed", "stream": "t2"}, ["t2 1", "t2 7"]),
    ):
        messages = taken(Consumer(api.url, after="0", **query))
        each = sorted(f"{m.data['stream']} {m.data['event']['id']}" for m in messages)
        assert each == wanted, query
        for message in messages:
            kind = {"changepoint": "change"}.get(message.event, message.event)
            assert message.data["event"]["kind"] == kind


def test_a_changed_cursor_is_refused(start):
    good = Positions([0], PARTITIONS, {0: Id(5, 5)}).text()
    with start().client() as client:
        response = client.get("/v1/events", params={"after": good.swapcase()})
    assert located(response) == ["query.after"]


def test_what_was_trimmed_away_is_told_first_and_once(start, valkey_url):
    url, writer = start().url, Writer(valkey_url, PARTITIONS, most=50)
    consumer = Consumer(url, after="0", stream="s1")
    writer.raise_("s1", 1)
    consumer.read(1)
    for i in range(2, 400):
        writer.raise_("s1", i)
    with connect(valkey_url) as client:
        retained = sum(client.xlen(f"moca:{{{p}}}:feed") for p in range(PARTITIONS))
    assert retained < 300
    with consumer.connected() as messages:
        first = next(m for m in messages if m.event)
        assert first.event == "gap"
        (lost,) = first.data["partitions"]
        assert lost["after"] == "2023-11-14T22:13:20.001+00:00"
        assert lost["until"] < f"{lost['after'][:17]}21"
        after_gap = consumer.last
        while len(consumer.seen) < 1 + retained:
            next(messages)
    assert [i for _, i, _ in consumer.seen[1:]] == list(range(400 - retained, 400))
    assert len(consumer.gaps) == 1
    again = Consumer(url, stream="s1")
    again.last = after_gap
    again.read(retained)
    everything = Consumer(url, stream="s1", after="0")
    everything.read(retained)
    assert everything.gaps == again.gaps == []
    assert everything.seen == again.seen
    writer.close()


def test_catching_up_meets_following_without_a_loss_or_a_doubling(start, writer, monkeypatch):
    """Eight entries are read at a time: consumers stay behind for long."""
    monkeypatch.setattr(sse, "PAGE", 8)
    url = start().url
    fill(writer, 10)
    writing = threading.Thread(target=fill, args=(writer, 30, 11))
    consumers = [Consumer(url, after="0") for _ in range(3)]
    reading = [threading.Thread(target=c.read, args=(40 * 8,)) for c in consumers]
    for thread in (writing, *reading):
        thread.start()
    for thread in (writing, *reading):
        thread.join()
    for consumer in consumers:
        assert by_stream(consumer.seen) == by_stream(writer.written)
        assert consumer.gaps == []


def test_partitions_in_which_much_happened_keep_no_others_back(start, writer, monkeypatch):
    monkeypatch.setattr(sse, "PARTITIONS_AT_ONCE", 1)
    monkeypatch.setattr(sse, "PAGE", 8)
    url = start().url
    fill(writer, 40)
    consumer = Consumer(url, after="0")
    consumer.read(8 * PARTITIONS)
    assert len({partition_of(stream, PARTITIONS) for stream, *_ in consumer.seen}) == PARTITIONS


def test_a_lost_connection_to_the_store_loses_no_event(start, writer, valkey_url):
    consumer = Consumer(start().url)
    with consumer.connected() as messages, connect(valkey_url) as client:
        next(messages)
        for i in range(1, 4):
            client.client_kill_filter(_type="normal", skipme=True)
            writer._client.connection_pool.disconnect()
            fill(writer, 1, i)
        while len(consumer.seen) < 24:
            next(messages)
    assert by_stream(consumer.seen) == by_stream(writer.written)


def test_heartbeats_move_the_cursor_past_what_is_not_wanted(start, writer):
    consumer = Consumer(start().url, prefix="t")
    with consumer.connected() as messages:
        first = next(messages).id
        fill(writer, 2)
        beat = next(m for m in messages if m.id)
        assert (beat.comment, beat.event) == (True, "")
        assert beat.id != first
        while any(message.id for message in [next(messages) for _ in range(3)]):
            pass  # the writes may have come in several parts


# --- bounds and ends, of events and of observations alike ---------------------------------------


def connected(consumer):
    """The consumer's messages, until the test ends."""
    stack = contextlib.ExitStack()
    messages = stack.enter_context(consumer.connected())
    next(messages)
    return stack, messages


def test_connections_are_bounded(start, writer):
    api = start(max_event_streams=2)
    opened = [connected(Consumer(api.url)) for _ in range(2)]
    response = httpx.get(f"{api.url}/v1/events")
    assert (response.status_code, slug(response)) == (429, "too-many-event-streams")
    assert int(response.headers["retry-after"]) > 0
    opened[0][0].close()
    until(lambda: api.metric('moca_subscribers{kind="events"}') == 1)
    opened.append(connected(Consumer(api.url)))
    for stack, _ in opened:
        stack.close()


@contextlib.contextmanager
def stalled(api, path):
    """Connect, read a little, and take nothing more."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        taken.settimeout(PATIENCE_S)
        taken.connect(("127.0.0.1", api.port))
        taken.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        yield taken


def test_a_consumer_that_takes_nothing_is_disconnected_and_resumes(
    start, writer, monkeypatch, caplog
):
    monkeypatch.setattr(sse, "SEND_TIMEOUT_S", 0.2)
    api = start()
    for i in range(1, 126):
        writer.raise_("s1", i, pad=[0.5] * 8000)
    with stalled(api, "/v1/events?after=0") as taken:
        until(lambda: "closing event stream: send timeout" in caplog.text)
        text = b""
        while chunk := taken.recv(65536):
            text += chunk
    whole = text.rpartition(b"\n\n")[0].split(b"\n\n")  # the last one may be cut
    ids = [each.partition(b"id: ")[2].split(b"\n")[0] for each in whole if b"event: " in each]
    assert len(ids) < 125
    resumed = Consumer(api.url)
    resumed.last = ids[-1].decode()
    resumed.read(125 - len(ids))
    assert [i for _, i, _ in resumed.seen] == list(range(len(ids) + 1, 126))


def test_a_stop_ends_connections_cleanly(start, writer):
    """One that reads, and one that takes nothing; requests would be waited for."""
    api = start()
    for i in range(1, 76):
        writer.raise_("s1", i, pad=[0.5] * 8000)
    with stalled(api, "/v1/events?after=0"):
        reading, messages = connected(Consumer(api.url, after="0"))
        api.stop()
        list(messages)  # to a clean end: one that is cut raises
        reading.close()
