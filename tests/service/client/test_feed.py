"""The feed of events over real HTTP: each event once, however often the connection is cut."""

import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler
from itertools import islice
from urllib.parse import parse_qs, urlsplit

import pytest

from service.client import AsyncClient, Client, InvalidRequest, Unavailable, UnexpectedAnswer
from service.client.errors import NotFound, Unauthorized
from service.schema.responses import Gap, StreamEvent
from tests.service.client.conftest import running

LOST = {"partitions": [{"partition": 1, "after": None, "until": "t"}]}


class Feed(BaseHTTPRequestHandler):
    """Server-sent events by cursor: after `cut` of them the connection ends, in a message."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.server
        server.seen.append((parse_qs(urlsplit(self.path).query), self.headers))
        if server.refusals:
            self._refuse(*server.refusals.pop(0))
            return
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", server.kind)
        self.send_header("Connection", "close")
        self.end_headers()
        after = self.headers.get("Last-Event-ID")
        first = server.total if after is None else int(after) + 1
        self._write("retry: 50\n: hello\n\n")
        if server.beats:
            self._write(f":\nid: {server.beats.pop(0)}\n\n")
            return
        if server.gap and after == "0":
            self._write(f"id: 0\nevent: gap\ndata: {json.dumps(LOST)}\n\n")
        try:
            for i in range(first, min(first + server.cut, server.total)):
                event = {"id": i, "state": "confirmed", "start": i, "suspected_at": i + 5}
                data = {"stream": "s", "model": "m@1", "event": event, "time": None, "at": "t"}
                self._write(f"id: {i}\nevent: {server.message}\ndata: {json.dumps(data)}\n\n")
                self._write(": heartbeat\n\n")
            self._write("id: 99\nevent: changepoint\ndata: {")  # cut off in the middle
            if first + server.cut >= server.total:
                time.sleep(server.hang_s)
        except OSError:
            pass  # the client left

    def _write(self, text):
        self.wfile.write(text.encode())
        self.wfile.flush()

    def _refuse(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def feed():
    with running(Feed) as server:
        server.seen, server.refusals, server.gap, server.beats = [], [], False, []
        server.total, server.cut, server.kind, server.hang_s = 30, 3, "text/event-stream", 0
        server.message = "changepoint"
        yield server


@pytest.fixture(params=["sync", "async"])
def take(request, feed):
    """Take so many messages from the feed."""

    def sync(count, **asked):
        with Client(feed.url) as client:
            messages = client.events(**asked)
            try:
                return list(islice(messages, count))
            finally:
                messages.close()

    async def other(count, **asked):
        async with AsyncClient(feed.url) as client:
            messages = client.events(**asked)
            found = []
            try:
                async for message in messages:
                    found.append(message)
                    if len(found) == count:
                        break
            finally:
                await messages.aclose()
            return found

    if request.param == "sync":
        return sync
    return lambda count, **asked: asyncio.run(other(count, **asked))


def test_each_event_comes_once_across_ten_connections(feed, take):
    found = take(29, after="0")
    assert [message.event.id for message in found] == list(range(1, 30))
    assert all(isinstance(message, StreamEvent) for message in found)
    assert found[-1].cursor == "29"
    assert len(feed.seen) == 10
    assert [headers["Last-Event-ID"] for _, headers in feed.seen[:3]] == ["0", "3", "6"]


def test_filters_are_asked_for_each_time(feed, take):
    asked = {"prefix": "pump-", "model": "m", "states": ["confirmed", "withdrawn"]}
    asked["kinds"] = ["change", "anomaly"]
    asked["match"] = '{site="north"}'
    take(4, after="0", **asked)
    for query, headers in feed.seen:
        assert query["prefix"] == ["pump-"]
        assert query["state"] == ["confirmed", "withdrawn"]
        assert query["kind"] == ["change", "anomaly"]
        assert query["match"] == ['{site="north"}']
        assert headers["Accept"] == "text/event-stream"


def test_kinds_are_asked_for_by_those_who_name_them(feed, take):
    """A service of an earlier version would refuse the query."""
    feed.message = "anomaly"
    found = take(2, after="0")
    assert [message.event.id for message in found] == [1, 2]
    assert not any(query.keys() & {"kind", "match"} for query, _ in feed.seen)
    with pytest.raises(InvalidRequest, match="list of kinds"):
        take(1, kinds="all")


def test_it_goes_on_after_a_heartbeat_too(feed, take):
    """Without it, what is raised while a connection that had no message is cut would be missed."""
    feed.beats = [7, 12]
    assert [message.event.id for message in take(2)] == [13, 14]
    assert [headers["Last-Event-ID"] for _, headers in feed.seen] == [None, "7", "12"]


def test_a_gap_is_told(feed, take):
    feed.gap = True
    gap, event = take(2, after="0")
    assert (gap, event.event.id) == (Gap(LOST, "0"), 1)


def test_a_silent_connection_is_given_up(feed, take):
    feed.total, feed.hang_s = 4, 1.0
    threading.Timer(0.6, setattr, (feed, "total", 7)).start()
    began = time.monotonic()
    assert len(take(6, after="0", silence_s=0.3)) == 6
    assert time.monotonic() - began < 3
    assert len(feed.seen) > 2


def test_a_busy_service_is_tried_again(feed, take):
    feed.refusals = [(503, {}), (429, {"Retry-After": "0"})]
    assert len(take(1, after="0")) == 1
    assert len(feed.seen) == 3


def test_refusals(feed, take):
    for status, kind in ((401, Unauthorized), (404, NotFound)):
        feed.refusals = [(status, {})]
        with pytest.raises(kind):
            take(1)
    feed.refusals = [(503, {})] * 100
    with pytest.raises(Unavailable, match="503"):
        take(1, retry_for_s=0.5)
    feed.refusals, feed.kind = [], "text/html"
    with pytest.raises(UnexpectedAnswer, match="text/html"):
        take(1)
    with pytest.raises(InvalidRequest, match="list of states"):
        take(1, states="confirmed")
