"""GET /v1/events over real HTTP: cursors, gaps, filters, bounds, and the end of the process."""

import signal
import socket
import threading
import time

import httpx
import pytest

from service.store.connection import connect
from service.wire.event_cursor import Positions
from service.wire.event_entries import Id
from tests.e2e.deployment import Processes
from tests.feeding import Consumer, Writer, by_stream
from tests.ports import free_port

PARTITIONS = 4
slow = pytest.mark.slow
STREAMS = [f"s{i}" for i in range(8)]  # of every partition


@pytest.fixture
def processes(valkey_url, tmp_path):
    found = Processes(tmp_path, {"MOCA_REDIS_URL": valkey_url, "MOCA_PARTITIONS": str(PARTITIONS)})
    found.constants["service.api.routes.subscriptions.HEARTBEAT_S"] = 0.2
    yield found
    found.stop_all()


@pytest.fixture
def start(processes):
    """Start an API process, with options and module constants; returns its address."""
    port = free_port()

    def start(*options, **constants):
        processes.constants |= constants
        processes.start("api", "api", "--port", str(port), *options)
        give_up = time.monotonic() + 30
        while time.monotonic() < give_up:
            try:
                httpx.get(f"http://127.0.0.1:{port}/livez")
            except httpx.TransportError:
                time.sleep(0.05)
            else:
                return f"http://127.0.0.1:{port}"
        raise AssertionError(processes.log_of("api"))

    return start


@pytest.fixture
def writer(valkey_url):
    found = Writer(valkey_url, PARTITIONS)
    yield found
    found.close()


def fill(writer, count, first=1):
    for i in range(first, first + count):
        for stream in STREAMS:
            writer.raise_(stream, i)


def metric(url, name):
    text = httpx.get(f"{url}/metrics").text
    return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])


def test_a_message_has_the_event_and_where_to_go_on(start, writer):
    url = start()
    writer.raise_("old", 1)
    Consumer(url, after="0").read(1)  # by now the process has read it, too
    consumer = Consumer(url)
    with consumer.connected() as messages:
        assert next(messages).id
        writer.raise_("new", 7, "suspected")
        message = next(m for m in messages if m.event)
    assert message.event == "changepoint"
    assert message.data == {
        "stream": "new",
        "model": "gaussian@1",
        "event": {
            "id": 7,
            "state": "suspected",
            "start": 70,
            "suspected_at": 73,
            "confirmed_at": None,
            "delay": 0,
            "probability": 0.0,
            "direction": None,
            "size": None,
            "time": None,
            "verdict": None,
            "kind": "change",
        },
        "time": "2024-05-01T12:00:00Z",
        "at": "2023-11-14T22:13:20.002+00:00",
    }


def test_every_id_resumes_right_after_its_message(start, writer):
    url = start()
    fill(writer, 3)
    whole = Consumer(url, after="0")
    ids = []
    with whole.connected() as messages:
        while len(ids) < 24:
            message = next(messages)
            ids += [message.id] if message.event else []
    assert sorted(whole.seen) == sorted(writer.written)
    for at in (0, 1, 11, 22):
        by_header, by_query = Consumer(url), Consumer(url, after=ids[at])
        by_header.last = ids[at]
        for consumer in (by_header, by_query):
            consumer.read(23 - at)
            assert by_stream(consumer.seen) == by_stream(whole.seen[at + 1 :])
            assert consumer.gaps == []
    # A browser connects again to the same address, with the header: that is the later one.
    both = Consumer(url, after="0")
    both.last = ids[22]
    both.read(1)
    assert both.seen == whole.seen[23:]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"stream": ["s1", "t2"]}, {"s1", "t2"}),
        ({"prefix": "t"}, {"t1", "t2"}),
        ({"model": "poisson"}, {"t2"}),
        ({"model": ["gaussian@1", "poisson@2"]}, {"s1", "s2", "t1", "t2"}),
        ({"model": "poisson@1", "after": "0"}, set()),
        ({"state": ["suspected", "withdrawn"]}, {"s2"}),
        ({"prefix": "t", "model": "gaussian"}, {"t1"}),
        ({"match": '{site="north"}'}, {"s1", "t2"}),
        ({"match": ['{site=~"n.*",env!="dev"}', '{stream="t1"}']}, {"s1", "t1"}),
        ({"match": '{site="north"}', "prefix": "t"}, {"t2"}),
    ],
)
def test_filters(start, writer, query, wanted):
    url = start()
    consumer = Consumer(url, **{"after": "0", **query})
    writer.raise_("s1", 1, tags={"site": "north"})
    writer.raise_("t1", 1)
    writer.raise_("s2", 1, "withdrawn", tags={"site": "south"})
    writer.raise_("t2", 1, model="poisson@2", tags={"site": "north", "env": "dev"})
    with consumer.connected() as messages:
        beats = 0
        while beats < 3:
            beats += next(messages).comment
    assert {stream for stream, _, _ in consumer.seen} == wanted
    assert len(consumer.seen) == len(wanted)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, ["changepoint 1", "changepoint 1"]),
        pytest.param({"kind": "change"}, ["changepoint 1", "changepoint 1"], marks=slow),
        ({"kind": "anomaly"}, ["anomaly 7"]),
        pytest.param({"kind": "all"}, ["changepoint 1", "anomaly 7", "changepoint 1"], marks=slow),
        ({"kind": ["change", "anomaly"]}, ["changepoint 1", "anomaly 7", "changepoint 1"]),
        ({"kind": "all", "state": "confirmed"}, ["anomaly 7", "changepoint 1"]),
    ],
)
def test_anomalies_come_to_those_who_ask_for_them(start, writer, query, wanted):
    url = start()
    writer.raise_("s1", 1, "suspected")
    writer.raise_("s1", 7, kind="anomaly")
    writer.raise_("s1", 1)
    consumer, found = Consumer(url, **{"after": "0", **query}), []
    with consumer.connected() as messages:
        beats = 0
        while beats < 3:
            message = next(messages)
            beats += message.comment
            found += [message] if message.event else []
    assert [f"{each.event} {each.data['event']['id']}" for each in found] == wanted
    for each in found:
        kind = {"changepoint": "change"}.get(each.event, each.event)
        assert each.data["event"]["kind"] == kind
        assert each.data["event"]["state"] == "confirmed" or kind == "change"
    assert httpx.get(f"{url}/v1/events?kind=else").status_code == 422
    refused = httpx.get(f"{url}/v1/events", params={"match": "{site=north}"})
    assert (refused.status_code, refused.json()["errors"][0]["loc"]) == (422, "query.match[0]")


def other_cursor(total):
    return Positions([0], total, {0: Id(5, 5)}).text()


GOOD = other_cursor(PARTITIONS)
BAD = ["x", "-1", "AAAA", GOOD[:-1], GOOD + "A", GOOD.swapcase(), "é", other_cursor(8), "A" * 9999]


@pytest.mark.parametrize("where", ["header", "query"])
def test_bad_cursors_and_filters_are_refused_by_name(start, where):
    url = start()
    for cursor in BAD:
        raw = cursor.encode()
        given = {"headers": {b"Last-Event-ID": raw}} if where == "header" else {}
        params = {"after": cursor} if where == "query" else {}
        response = httpx.get(f"{url}/v1/events", params=params, **given)
        assert response.status_code == 422, cursor
        (error,) = response.json()["errors"]
        assert error["loc"] == ("header.last-event-id" if where == "header" else "query.after")
    for name, value in (("state", "new"), ("stream", "a b"), ("model", "a/b"), ("streams", "a")):
        response = httpx.get(f"{url}/v1/events", params={name: value})
        assert response.status_code == 422
        assert response.json()["errors"][0]["loc"].startswith(f"query.{name}")


def test_what_was_trimmed_away_is_told_first(start, valkey_url):
    url, writer = start(), Writer(valkey_url, PARTITIONS, most=50)
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
    # The id of the gap stands for having been told: no second time.
    again = Consumer(url, stream="s1")
    again.last = after_gap
    again.read(retained)
    assert again.gaps == []
    everything = Consumer(url, stream="s1", after="0")
    everything.read(retained)
    assert (everything.gaps, everything.seen) == ([], again.seen)
    writer.close()


def test_catching_up_meets_following_without_a_loss_or_a_doubling(start, writer):
    """The newest 8 entries are kept in the process: consumers fall back to the store often."""
    url = start(**{"service.api.sse.event_hub.BUFFER_ENTRIES": 8})
    fill(writer, 40)
    writing = threading.Thread(target=fill, args=(writer, 150, 41))
    consumers = [Consumer(url, after="0") for _ in range(3)]
    reading = [threading.Thread(target=c.read, args=(190 * 8, 30.0)) for c in consumers]
    writing.start()
    for thread in reading:
        thread.start()
        time.sleep(0.15)
    for thread in (writing, *reading):
        thread.join()
    for consumer in consumers:
        assert by_stream(consumer.seen) == by_stream(writer.written)
        assert consumer.gaps == []


def test_a_lost_connection_to_the_store_loses_no_event(start, writer, valkey_url):
    url = start()
    consumer = Consumer(url)
    with consumer.connected() as messages, connect(valkey_url) as client:
        next(messages)
        for i in range(1, 4):
            client.client_kill_filter(_type="normal", skipme=True)
            time.sleep(0.02)
            writer._client.connection_pool.disconnect()
            fill(writer, 1, i)
        while len(consumer.seen) < 24:
            next(messages)
    assert by_stream(consumer.seen) == by_stream(writer.written)


def test_heartbeats_move_the_cursor_past_what_is_not_wanted(start, writer):
    url = start()
    consumer = Consumer(url, prefix="t")
    with consumer.connected() as messages:
        first = next(messages).id
        fill(writer, 2)
        beat = next(m for m in messages if m.id)
        assert (beat.comment, beat.event) == (True, "")
        assert beat.id != first
        quiet = [next(messages) for _ in range(3)]
        assert all(m.comment and m.id is None for m in quiet)


def test_connections_are_bounded(start, writer):
    url = start("--max-event-streams", "2")
    first, second = Consumer(url), Consumer(url)
    with first.connected() as one:
        next(one)
        with second.connected() as two:
            next(two)
            response = httpx.get(f"{url}/v1/events")
            assert response.status_code == 429
            assert response.json()["type"].endswith("/too-many-event-streams")
            assert int(response.headers["retry-after"]) > 0
        give_up = time.monotonic() + 30
        while metric(url, "moca_event_streams") > 1:
            assert time.monotonic() < give_up
            time.sleep(0.02)
        with second.connected() as two:
            next(two)


def open_and_stall(url, path):
    """Connect, read a little, and take nothing more."""
    place = httpx.URL(url)
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    taken.connect((place.host, place.port))
    taken.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return taken


def test_a_consumer_that_takes_nothing_is_disconnected_and_resumes(start, writer):
    url = start(**{"service.api.routes.subscriptions.SEND_TIMEOUT_S": 0.5})
    big = [0.5] * 2000
    for i in range(1, 501):
        writer.raise_("s1", i, pad=big)
    with open_and_stall(url, "/v1/events?after=0") as stalled:
        healthy = Consumer(url, after="0")
        healthy.read(500, 30.0)
        give_up = time.monotonic() + 30
        while not metric(url, "moca_event_streams_dropped_total"):
            assert time.monotonic() < give_up
            time.sleep(0.05)
        stalled.settimeout(5)
        taken = b""
        while chunk := stalled.recv(65536):
            taken += chunk
    whole = taken.rpartition(b"\n\n")[0].split(b"\n\n")  # the last one may be cut
    ids = [each.partition(b"id: ")[2].split(b"\n")[0] for each in whole if b"event: " in each]
    seen = len(ids)
    assert seen < 500
    resumed = Consumer(url)
    resumed.last = ids[-1].decode()
    resumed.read(500 - seen, 30.0)
    assert resumed.seen == healthy.seen[seen:]


def test_a_stop_ends_connections_at_once(start, writer, processes):
    url = start()
    for i in range(1, 301):
        writer.raise_("s1", i, pad=[0.5] * 2000)
    consumer = Consumer(url)
    with open_and_stall(url, "/v1/events?after=0"), consumer.connected() as messages:
        next(messages)
        time.sleep(0.3)
        began = time.monotonic()
        processes.signal("api", signal.SIGTERM)
        list(messages)  # to a clean end: one that is cut raises
        assert processes.running["api"].wait(30) == -signal.SIGTERM
    assert time.monotonic() - began < 15  # requests would be waited for twice as long


def test_openapi_describes_the_call(start):
    document = httpx.get(f"{start()}/openapi.json").json()
    call = document["paths"]["/v1/events"]["get"]
    assert list(call["responses"]["200"]["content"]) == ["text/event-stream"]
    named = {each["name"]: each for each in call["parameters"]}
    filters = {"stream", "prefix", "match", "model", "state", "kind"}
    assert set(named) == {"Last-Event-ID", "after", *filters}
    assert named["state"]["schema"]["type"] == "array"
