"""The server's edge, over real connections: hosts, slow clients, refusals, origins, logs."""

import asyncio
import contextlib
import errno
import gzip
import json
import random
import re
import socket
import threading
import time
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
import uvloop

from service.api import http, server
from service.api.app import create_app
from service.api.gateway import gateway
from service.api.parsing.bodies import JSON
from service.api.server import open_connections
from service.observability import metrics
from service.problems import StartupError, WaitTooLong
from service.store.api_keys import Keyring
from service.store.connection import connect
from tests.remote_write import V1, V2, version_1, version_2
from tests.service.api.conftest import make_key, slug
from tests.waiting import PATIENCE_S, until

PATH = "/v1/streams/s/observations"
PLAIN = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: {JSON}\r\n".encode()
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\nContent-Type: {JSON}\r\n".encode()
MOST = 16


@pytest.fixture
def api(served, tmp_path):
    return served(access_log=str(tmp_path / "log"), max_connections=MOST, max_body_bytes=10_000)


@pytest.fixture(params=["at once", "with a line in the log"])
def shedding(request, served, tmp_path):
    log = "" if request.param == "at once" else str(tmp_path / "log")
    return served(access_log=log, max_connections=MOST)


class Connection:
    """A connection on which bytes are written and answers are read."""

    def __init__(self, api):
        self.socket = socket.create_connection(("127.0.0.1", api.port), timeout=PATIENCE_S)
        self._file = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()
        self.socket.close()

    def write(self, *pieces):
        with contextlib.suppress(OSError):  # refused already
            for piece in pieces:
                self.socket.sendall(piece)

    def post(self, body=b'{"y": 1}', *more):
        self.write(HEAD + b"".join(more) + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def answer(self):
        """Read one answer: status, headers, document."""
        status = int(self._file.readline().split()[1])
        headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().lower().partition(": ")
            headers[name] = value
        body = self._file.read(int(headers.get("content-length", 0)))
        return status, headers, json.loads(body or b"null")

    def rest(self):
        """Read until the server closes."""
        with contextlib.suppress(ConnectionResetError):
            return self._file.read()
        return b""


def refuse(api, yes=True):
    """Have every early decision be a refusal, or as usual."""
    refusal = WaitTooLong("too long", 3) if yes else None
    api.app.state.overload.early = lambda in_flight, now: refusal


# --- requests -----------------------------------------------------------------------------------


def test_the_head_and_the_body_of_an_answer_to_a_plain_post_come_together(served):
    with Connection(served()) as connection:
        for seq in range(20):
            connection.post()
            head, _, body = connection.socket.recv(65_536).partition(b"\r\n\r\n")
            assert f"content-length: {len(body)}".encode() in head
            assert json.loads(body)["seq"] == seq


def test_a_body_without_end_is_refused_before_it_is_read(api):
    with Connection(api) as connection:
        connection.write(HEAD + b"Content-Length: 1000000000000\r\n\r\n[")
        status, headers, _ = connection.answer()
        assert (status, headers["connection"]) == (413, "close")
        assert connection.rest() == b""


def test_what_a_client_that_left_had_sent_whole_is_applied_and_nothing_else(api, worker, caplog):
    worker.pause()
    for head in (b"Content-Length: 8\r\n\r\n", b"Content-Length: 9\r\n\r\n"):
        for at in range(5):
            with Connection(api) as connection:
                connection.write(HEAD + head + b'{"y": 1}')
                if b"8" in head:
                    until(lambda at=at: len(api.app.state.context.replies.pending) > at)
    worker.running.set()
    with Connection(api) as connection:
        connection.post()
        assert connection.answer()[2]["seq"] == 5
    assert caplog.text == ""


def test_without_a_key_every_host_header_names_this_machine(api):
    for hosts, status in (([b"a"], 200), ([b"a", b"evil.example"], 401), ([b"evil.example"], 401)):
        head = b"".join(b"Host: %s\r\n" % host for host in hosts)
        with Connection(api) as connection:
            connection.write(b"GET /v1/streams HTTP/1.1\r\n%s\r\n" % head)
            assert connection.answer()[0] == status, hosts


def test_a_body_may_come_in_pieces(api):
    with Connection(api) as connection:
        for first in (b"", b"["):
            body = first + b'{"y": 1}' + first.replace(b"[", b"]")
            connection.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body))
            for at in range(0, len(body), 4):
                time.sleep(0.02)
                connection.write(body[at : at + 4])
            assert connection.answer()[0] == 200


def test_slow_bodies_are_ended_and_clients_that_wait_between_requests_are_not(api, monkeypatch):
    monkeypatch.setattr(http, "BODY_TIMEOUT_S", 0.1)
    with Connection(api) as connection:
        connection.write(HEAD + b"Content-Length: 8\r\n\r\n{")
        status, headers, document = connection.answer()
        assert (status, headers["connection"]) == (408, "close")
        assert document["type"].endswith("/slow-body")
    with Connection(api) as connection:
        for _ in range(2):
            connection.post()
            assert connection.answer()[0] == 200
            time.sleep(0.3)


def test_an_idle_connection_is_kept_for_the_keep_alive_and_does_not_delay_the_stop(served):
    """Uvicorn's own bound would be 5 s."""
    for keep_alive_s, ended_by in ((1, "time"), (600, "stop")):
        api = served(keep_alive_s=keep_alive_s)
        connection = HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE_S)
        began = time.monotonic()
        connection.request("GET", "/livez")
        connection.getresponse().read()
        if ended_by == "stop":
            api.stop()
        assert connection.sock.recv(1) == b""
        assert ended_by == "stop" or time.monotonic() - began > 0.5
        connection.close()


def test_a_request_that_would_outlast_the_stop_is_answered_at_the_deadline(
    served, worker, monkeypatch
):
    """Uvicorn cancels such a one, and answers 500."""
    monkeypatch.setattr(gateway.RequestPatience, "left_s", 2 * PATIENCE_S)
    api = served(request_deadline_s=2.1)
    worker.pause()
    with Connection(api) as connection:
        connection.post(b'[{"y":1}]')
        until(lambda: [p for p in api.app.state.context.replies.pending.values() if p.acknowledged])
        api.stop()
        assert connection.answer()[0] == 504


# --- plain posts: none of them is parsed ----------------------------------------------------------


@pytest.fixture
def parsed(monkeypatch):
    """Gets an element for each request that is parsed."""
    requests = []
    begin = server.HttpProtocol.on_message_begin
    monkeypatch.setattr(
        server.HttpProtocol, "on_message_begin", lambda self: (requests.append(1), begin(self))
    )
    return requests


MANY = b"/v1/observations"
WRITE = b"/v1/prometheus/write"


def sent(stream, body, *headers, query=b"", path=b"", kind=b"application/json"):
    """Bytes of a plain post."""
    lines = (b"Host: localhost", b"Content-Type: " + kind, *headers)
    head = b"".join(line + b"\r\n" for line in lines)
    line = b"POST %s%s HTTP/1.1\r\n" % (path or b"/v1/streams/%s/observations" % stream, query)
    return line + head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_a_plain_post_has_the_answer_that_it_has_when_it_is_parsed(served, settings, parsed):
    api = served()
    key = b"Idempotency-Key: a"
    one = b'{"y": 1}'
    item = b'{"stream": "plain:many", "y": 1}'
    other = b'{"stream": "plain:more", "y": [1], "seq": 7}'
    samples = version_1(({"a": "plain"}, [(1e200, 1000)]))
    samples_2 = version_2(({"a": "plain"}, [(1e200, 1000)]))
    write = {"path": WRITE, "kind": V1["Content-Type"].encode()}
    cases = [  # and whether they are plain
        (True, [one, one]),
        (True, [b'{"y": 1, "time": "2024-05-01T15:00:00Z", "seq": 0}', b'{"y": 2, "seq": 7}']),
        (True, [one], {"query": b"?detail=full&belief=true"}),
        (True, [one], {"query": b"?quantiles=0.1&quantiles=0.9"}),
        (True, [one], {"query": b"?quantiles=7"}),
        (True, [one, one, b'{"y": 2}'], {"headers": [key]}),
        (True, [one], {"headers": [b"idempotency-key: a b"]}),
        (True, [one], {"headers": [b"Connection: Keep-Alive", b"Accept: */*", b"X-A:  b "]}),
        (True, [one], {"headers": [b"X-Request-Id: mine"]}),
        (True, [one], {"headers": [b"X-Request-Id: not, mine"]}),
        (True, [one], {"headers": [b"Host2: evil.example", b"Authorization: Bearer moca_no"]}),
        (True, [b'{"y": 666}', b'{"y": 777}', b'{"y": null}', b'{"y": [1, null], "x": [2]}']),
        (True, [b'{"y": NaN}', b'{"value": 1}', b'{"y": "no"}', b"{", b"{}", b'{"y": 1}}']),
        (True, [b'{"x": [%s]}' % b",".join([b"1"] * 500)]),
        (True, [b"[%s]" % one, b" " + one, b'{"x": [%s]}' % b",".join([b"1"] * 700), b""]),
        (True, [b"[%s]" % b",".join([one] * 700), b'[{"y": 1}, {"y": "no"}]', b"[", b"[]"]),
        (True, [b'[{"y": 1}, {"y": 2, "seq": 7}]', b'[{"y": 1}, {"y": 666}]'], {"headers": [key]}),
        (True, [one, b"[%s]" % one], {"query": b"?format=columns"}),
        (True, [b"[%s, %s]" % (item, item), b"[%s, 7, %s]" % (item, other)], {"path": MANY}),
        (True, [b"[%s]" % b",".join([item] * 1200), b"[", b"[]", b"{}"], {"path": MANY}),
        (True, [b"[%s]" % item], {"path": MANY, "query": b"?detail=full&quantiles=.1"}),
        (True, [b"[%s]" % item], {"path": MANY, "query": b"?format=columns"}),
        (True, [b"[%s]" % item], {"path": MANY, "query": b"?quantiles=7"}),
        (True, [b"[%s]" % item], {"path": MANY, "headers": [key]}),
        (False, [item], {"path": MANY, "kind": b"application/x-ndjson"}),
        (False, [item], {"path": MANY, "kind": b"text/plain"}),
        (True, [samples, b"no", version_1()], write),
        (True, [samples], write | {"headers": [b"Content-Encoding: snappy"]}),
        (True, [samples], write | {"headers": [b"Content-Encoding: gzip"]}),
        (True, [samples], write | {"kind": JSON.encode()}),
        (True, [samples_2], write | {"kind": V2["Content-Type"].encode()}),
        (False, [samples], write | {"query": b"?a=b"}),
        (False, [one], {"query": b"?quantiles=0%2E1"}),
        (False, [gzip.compress(one)], {"headers": [b"Content-Encoding: gzip"]}),
        (False, [one], {"headers": [b"Content-Encoding: br"]}),
        (False, [one], {"headers": [b"Host: evil.example"]}),
        (False, [one], {"headers": [b"X-A:b"]}),
        (False, [one], {"headers": [b"Connection: close"]}),
        (False, [one], {"headers": [b"Proxy-Connection: close"]}),
    ]

    def answers(post, stream, *more):
        bodies, options = post[1], post[2] if len(post) > 2 else {}
        own = {name: value for name, value in options.items() if name != "headers"}
        found = []
        for body in bodies:
            headers = [*options.get("headers", ()), *more]
            named = body.replace(b"plain", b"other") if more else body
            with Connection(api) as connection:
                connection.write(sent(stream, named, *headers, **own))
                status, headers, document = connection.answer()
            mine = b"X-Request-Id: mine" in options.get("headers", ())
            assert (headers.pop("x-request-id") == "mine") == mine
            assert headers.pop("date")
            text = json.dumps(document).replace("other", "plain")
            found.append((status, headers, text))
        return found

    statuses = set()
    for number, post in enumerate([*cases, (False, [one])]):
        parsed.clear()
        stream = b"plain:%02d" % number if number < len(cases) else b".."
        plain = answers(post, stream)
        assert not parsed if post[0] else len(parsed) == len(post[1]), post
        statuses |= {status for status, _, _ in plain}
        stream = stream.replace(b"plain", b"other")
        parsed.clear()
        assert plain == answers(post, stream, b"X-Parsed:yes"), post
        assert len(parsed) == len(post[1])
    assert statuses == {200, 204, 400, 401, 409, 415, 422}


@pytest.mark.parametrize("body", [b'{"y": 1}', b'[{"y": 1}]'])
def test_a_plain_post_comes_in_pieces(served, parsed, body):
    post = sent(b"s", body)
    with Connection(served()) as connection:
        for seq in range(3):
            for piece in (post[:-8], post[-8:-4], post[-4:]):
                connection.write(piece)
                time.sleep(0.02)
            status, _, document = connection.answer()
            (answer,) = document if body[:1] == b"[" else [document]
            assert (status, answer["seq"]) == (200, seq)
    assert not parsed


def test_a_plain_post_in_pieces_is_parsed_if_it_takes_long_or_another_request_follows(
    served, parsed, monkeypatch
):
    monkeypatch.setattr(server, "PIECES_S", 0.1)
    post = sent(b"s", b'{"y": 1}')
    with Connection(served()) as connection:
        connection.write(post[:-4])
        until(lambda: parsed)
        connection.write(post[-4:])
        assert connection.answer()[2]["seq"] == 0
        connection.write(post[:-4])
        time.sleep(0.02)
        connection.write(post[-4:] + post)
        assert [connection.answer()[2]["seq"] for _ in range(2)] == [1, 2]
        assert len(parsed) == 3
        connection.write(post)
        assert connection.answer()[2]["seq"] == 3
        assert len(parsed) == 3


def test_the_keep_alive_does_not_end_a_plain_post_in_pieces(served, parsed):
    post = sent(b"s", b'{"y": 1}')
    with Connection(served(keep_alive_s=1)) as connection:
        connection.write(post)
        assert connection.answer()[0] == 200
        time.sleep(0.6)
        connection.write(post[:-4])
        time.sleep(0.6)  # beyond the time of an idle connection
        connection.write(post[-4:])
        assert connection.answer()[2]["seq"] == 1
    assert not parsed


def test_the_stop_waits_for_a_plain_post_of_which_a_piece_has_come(served, parsed):
    api = served()
    post = sent(b"s", b'{"y": 1}')
    with Connection(api) as connection:
        connection.write(post[:-4])
        until(lambda: [one for one in api.server.server_state.connections if one._post])
        stopping = threading.Thread(target=api.stop)
        stopping.start()
        until(lambda: parsed)
        connection.write(post[-4:])
        assert connection.answer()[2]["seq"] == 0
        assert connection.rest() == b""
        stopping.join()


def test_the_parts_of_a_long_answer_wait_for_their_client(served, parsed):
    api = served()
    body = b"[%s]" % b",".join([b'{"stream": "s%d", "y": 1}' % i for i in range(3000)])
    with Connection(api) as connection:
        connection.write(sent(b"", body[:-1], path=MANY))
        assert connection.answer()[0] == 400
        (protocol,) = api.server.server_state.connections
        written = []
        write = protocol._write_head

        def first(response, part):
            """Send the first part, after which too much is unsent."""
            write(response, part)
            protocol.pause_writing()
            written.append(part)

        protocol._write_head = first
        connection.write(sent(b"", body, path=MANY))
        until(lambda: written)
        time.sleep(0.05)
        assert protocol._answering
        protocol.loop.call_soon_threadsafe(protocol.resume_writing)
        _, _, document = connection.answer()
        assert [answer["stream"] for answer in document] == [f"s{i}" for i in range(3000)]
    assert not parsed


def test_a_list_has_its_own_duration_and_posts_of_many_streams_have_theirs(served, parsed):
    api = served()
    posts = [sent(b"s", b'[{"y": 1}]'), sent(b"", b'[{"stream": "s", "y": 1}]', path=MANY)]
    posts.append(sent(b"", version_1(), path=WRITE, kind=V1["Content-Type"].encode()))
    routes = ["/v1/streams/{stream}/observations (list)", MANY.decode(), WRITE.decode()]
    for post, route, status in zip(posts, routes, (200, 200, 204), strict=True):
        labels = f'method="POST",route="{route}",status="{status}"'
        counted = f"moca_http_request_duration_seconds_count{{{labels}}}"
        before = api.metric(counted)
        with Connection(api) as connection:
            connection.write(post)
            assert connection.answer()[0] == status
        until(lambda counted=counted, before=before: api.metric(counted) == before + 1)


def test_a_plain_post_needs_a_key_as_any_other_and_one_with_a_rate_is_parsed(
    served, settings, parsed
):
    reads, writes, slow = (
        b"Authorization: Bearer " + make_key(settings.redis_url, name, *scopes, **rate).encode()
        for name, scopes, rate in (
            ("reads", ["read"], {}),
            ("writes", ["write"], {}),
            ("slow", ["write"], {"rate": "1/hour"}),
        )
    )
    api = served()
    authenticator = api.app.state.context.authenticator
    with Connection(api) as connection:
        for header, status in ((b"X-A: b", 401), (reads, 403), (writes, 200), (writes, 200)):
            connection.write(sent(b"s", b'{"y": 1}', header))
            assert connection.answer()[0] == status
        assert not parsed
        for status in (200, 429):
            connection.write(sent(b"s", b'{"y": 1}', slow))
            assert connection.answer()[0] == status
        assert len(parsed) == 2
        with connect(settings.redis_url) as store:
            Keyring(store).revoke("writes")
        authenticator._fresh_until = 0.0  # the table is read again, for which a request waits
        connection.write(sent(b"s", b'{"y": 1}', writes))
        assert connection.answer()[0] == 401
        assert len(parsed) == 3


def test_a_plain_post_has_no_longer_body_than_any_other(served, parsed):
    with Connection(served(max_body_bytes=1024)) as connection:
        for size, status in ((1024, 200), (1025, 413)):
            connection.write(sent(b"s", b'{"y": 1}'.ljust(size)))
            assert connection.answer()[0] == status
    assert len(parsed) == 1


def test_requests_wait_for_the_answer_to_a_plain_post_before_them(served, worker, parsed):
    api = served()
    worker.pause()
    with Connection(api) as connection:
        connection.write(sent(b"s", b'{"y": 1}'))
        until(lambda: api.app.state.admission.plain_posts == 1)
        late = [sent(b"s", b'{"y": "no"}'), b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"]
        for piece in (*late, b"".join(late), sent(b"s", b'{"y": 2}')):
            connection.write(piece)
            time.sleep(0.02)
        assert not parsed
        worker.running.set()
        statuses = [connection.answer()[0] for _ in range(6)]
        assert statuses == [200, 422, 200, 422, 200, 200]
    assert api.app.state.admission.plain_posts == 0


def test_a_plain_post_is_answered_before_the_service_stops_and_its_connection_ends(served, worker):
    api = served()
    worker.pause()
    with Connection(api) as connection, Connection(api) as idle:
        connection.write(sent(b"s", b'{"y": 1}'))
        until(lambda: api.app.state.admission.plain_posts == 1)
        stopping = threading.Thread(target=api.stop)
        stopping.start()
        assert idle.rest() == b""
        worker.running.set()
        status, headers, _ = connection.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert connection.rest() == b""
        stopping.join()


def test_what_follows_a_plain_post_is_not_applied_once_its_answer_was_the_last(served, worker):
    api = served()
    worker.pause()
    with Connection(api) as connection:
        connection.write(sent(b"s", b'{"y": 1}'))
        until(lambda: api.app.state.admission.plain_posts == 1)
        connection.write(sent(b"s", b'{"y": 2}'))
        (protocol,) = api.server.server_state.connections
        until(lambda: protocol._held)
        stopping = threading.Thread(target=api.stop)
        stopping.start()
        until(lambda: protocol._ending)
        worker.running.set()
        assert connection.answer()[1]["connection"] == "close"
        assert connection.rest() == b""
        stopping.join()
    assert len(worker.commands) == 1


def test_clients_that_do_not_read_answers_wait_with_their_requests(served, parsed):
    api = served()
    others = HEAD + b'Content-Length: 8\r\n\r\n{"y": 1}'
    for post, status in ((sent(b"s", b'{"y": 1}'), 200), (others, 429)):
        refuse(api, status == 429)
        with Connection(api) as connection:
            until(lambda: api.server.server_state.connections)
            (protocol,) = api.server.server_state.connections
            # As its transport does when too much is unsent.
            protocol.loop.call_soon_threadsafe(protocol.pause_writing)
            until(lambda: api.server.server_state.connections.copy().pop().flow.write_paused)
            parsed.clear()
            for count in (1, 2):
                connection.write(post)
                until(lambda count=count: len(parsed) == count)
            connection.socket.settimeout(0.1)
            with pytest.raises(TimeoutError):
                connection.socket.recv(1, socket.MSG_PEEK)
            connection.socket.settimeout(PATIENCE_S)
            protocol.loop.call_soon_threadsafe(protocol.resume_writing)
            assert [connection.answer()[0] for _ in range(2)] == [status, status]
        until(lambda: not api.server.server_state.connections)


def test_a_plain_post_of_a_client_that_left_is_applied(served, worker, caplog):
    api = served()
    worker.pause()
    for at in range(5):
        with Connection(api) as connection:
            connection.write(sent(b"s", b'{"y": 1}'))
            until(lambda at=at: len(api.app.state.context.replies.pending) > at)
    worker.running.set()
    with Connection(api) as connection:
        connection.write(sent(b"s", b'{"y": 1}'))
        assert connection.answer()[2]["seq"] == 5
    until(lambda: api.app.state.admission.plain_posts == 0)
    assert caplog.text == ""


def test_a_defect_is_an_answer_to_a_plain_post(served, monkeypatch, caplog):
    api = served()
    with Connection(api) as connection:
        for name in ("checked_key", "answer_response"):
            with monkeypatch.context() as patch:
                patch.setattr(server, name, Mock(side_effect=ZeroDivisionError("why")))
                connection.write(sent(b"s", b'{"y": 1}'))
                status, headers, document = connection.answer()
            assert (status, document["request_id"]) == (500, headers["x-request-id"])
            assert f"request {document['request_id']} failed" in caplog.text
        assert caplog.text.count("ZeroDivisionError: why") == 2
        connection.write(sent(b"s", b'{"y": 1}'))
        assert connection.answer()[2]["seq"] == 1
    assert api.app.state.admission.plain_posts == 0


def test_a_connection_waits_for_its_next_plain_post_for_the_keep_alive(served):
    api = served(keep_alive_s=1)
    with Connection(api) as connection:
        for body in (b'{"y": 1}', b'{"y": "no"}'):
            time.sleep(0.6)
            connection.write(sent(b"s", body))
            assert connection.answer()[0] in {200, 422}
        began = time.monotonic()
        assert connection.rest() == b""
        assert time.monotonic() - began > 0.7


# --- overload -----------------------------------------------------------------------------------


def test_a_refusal_before_the_body_is_read(shedding, tmp_path):
    route = "/v1/streams/{stream}/observations"
    labels = f'method="POST",route="{route}",status="429"'
    answered = f"moca_http_request_duration_seconds_count{{{labels}}}"
    before = metrics.LOAD_SHED.labels("wait")._value.get()
    counted = shedding.metric(answered)
    refuse(shedding)
    with Connection(shedding) as connection:
        connection.write(HEAD + b"Content-Length: 8\r\n\r\n")  # no body yet
        status, headers, document = connection.answer()
        assert (status, headers["retry-after"], headers["x-request-id"]) == (429, "3", "mine")
        assert headers["content-type"] == "application/problem+json"
        assert document["type"].endswith("/wait-too-long")
        # The body is passed over, and the connection serves on.
        connection.write(b'{"y": 1}')
        connection.post()
        assert connection.answer()[0] == 429
        refuse(shedding, False)
        connection.post()
        status, _, document = connection.answer()
        assert (status, document["seq"]) == (200, 0)
    assert metrics.LOAD_SHED.labels("wait")._value.get() == before + 2
    until(lambda: shedding.metric(answered) == counted + 2)
    if (tmp_path / "log").exists():
        lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        lines = [line for line in lines if line["route"] == route]
        assert [(line["status"], line["request_id"]) for line in lines[:2]] == [(429, "mine")] * 2


def test_requests_that_wait_behind_one_another_are_refused_in_their_order(shedding):
    with Connection(shedding) as connection:
        head = HEAD.replace(b"mine", b"id-%d")
        many = [head % i + b'Content-Length: 8\r\n\r\n{"y": 1}' for i in range(2000)]
        connection.write(many[0])
        assert connection.answer()[0] == 200
        refuse(shedding)
        writer = threading.Thread(target=connection.write, args=many)
        writer.start()
        for i in range(2000):
            status, headers, _ = connection.answer()
            assert (status, headers["x-request-id"]) == (429, f"id-{i}")
        writer.join()
        refuse(shedding, False)
        connection.post()
        assert connection.answer()[0] == 200


@pytest.mark.parametrize("seed", range(4))
def test_each_request_has_its_answer_whatever_is_refused_and_however_it_comes(shedding, seed):
    rng = random.Random(seed)
    refusal = WaitTooLong("too long", 3)
    shedding.app.state.overload.early = lambda in_flight, now: rng.choice((None, refusal))
    plain = PLAIN + b'Content-Length: 8\r\n\r\n{"y": 1}'
    sent = []
    for i in range(200):
        body = rng.choice(
            (b'{"y": 1}', b'{"y": "no"}', b"[1, 2, 3]", b'{"y": %s}' % (b" " * 5000), plain)
        )
        head = rng.choice((HEAD.replace(b"mine", b"id-%d" % i), PLAIN))
        if rng.random() < 0.5:
            sent.append((head, b"Content-Length: %d\r\n\r\n" % len(body), body))
        else:
            chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
            sent.append((head, b"Transfer-Encoding: chunked\r\n\r\n", chunks))
    pieces = []
    for parts in sent:  # whole, in its parts, or cut anywhere
        request = b"".join(parts)
        cuts = sorted({0, len(request), *(rng.randrange(len(request)) for _ in range(3))})
        pieces += rng.choice(
            ([request], parts, [request[start:end] for start, end in pairwise(cuts)])
        )
    with Connection(shedding) as connection:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def write():
            for piece in pieces:
                connection.write(piece)
                time.sleep(rng.choice((0, 0.001)))

        writer = threading.Thread(target=write)
        writer.start()
        statuses = set()
        for i, (head, _, _) in enumerate(sent):
            status, headers, _ = connection.answer()
            expected = re.compile("[0-9a-f]{16}" if head == PLAIN else f"id-{i}")
            assert expected.fullmatch(headers["x-request-id"])
            statuses.add(status)
        writer.join()
    assert statuses == {200, 422, 429, 400}


def test_a_plain_post_is_refused_without_being_parsed_and_any_other_as_well(shedding, parsed):
    refuse(shedding)
    length = b"Content-Length: 8\r\n"
    body = b'\r\n{"y": 1}'
    many = PLAIN.replace(b"/streams/s", b"")
    plain = (
        PLAIN + length,
        PLAIN.replace(b" HTTP", b"?answer=full HTTP") + length.lower(),
        PLAIN + b"connection: Keep-Alive\r\n" + length + b"X-Forwarded-For: b\r\n",
        many + length,
        HEAD + length,
    )
    others = (
        PLAIN + b"Connection: keep-alive, te\r\n" + length,
        PLAIN + b"Origin: https://a.example\r\n" + length,
        PLAIN + b"X-A: \xe9\r\n" + length,
        PLAIN.replace(b"/s/", b"/%73/") + length,
        PLAIN + length + b"X-A: %s\r\n" % (b"b" * server.LONGEST_HEAD),
    )
    logged = shedding.app.state.access_log is not None
    answers = []
    for head in (*plain, *others):
        with Connection(shedding) as connection:
            parsed.clear()
            connection.write(head + body)
            status, headers, document = connection.answer()
            assert len(headers.pop("x-request-id")) in {4, 16}
            answers.append((status, headers, document))
            assert bool(parsed) == (logged or head not in plain), head
            refuse(shedding, False)
            connection.post()
            assert connection.answer()[0] == 200
            refuse(shedding)
            connection.write(HEAD + length + body)
            assert connection.answer()[0] == 429
    assert answers == [answers[0]] * len(answers)
    assert answers[0][0] == 429


def test_a_head_without_an_end_is_no_request(shedding):
    refuse(shedding)
    with Connection(shedding) as connection:
        head = PLAIN + b"Content-Length: 200\r\nX-A: "
        connection.write(head.ljust(203, b"b"))  # as long as a request would be that began with -1
        time.sleep(0.1)
        connection.write(b"\r\n\r\n" + b" " * 200)
        assert connection.answer()[0] == 429
        refuse(shedding, False)
        connection.post()
        assert connection.answer()[0] == 200


def test_an_answer_that_is_under_way_comes_before_a_refusal(shedding, worker):
    worker.pause()
    plain = PLAIN + b'Content-Length: 8\r\n\r\n{"y": 1}'
    with Connection(shedding) as connection, Connection(shedding) as other:
        connection.write(plain)
        until(lambda: shedding.app.state.context.replies.pending)
        refuse(shedding)
        other.write(plain)
        assert other.answer()[0] == 429
        connection.write(plain)
        other.write(plain)
        assert other.answer()[0] == 429
        worker.running.set()
        assert [connection.answer()[0] for _ in range(2)] == [200, 429]


def test_a_refusal_ends_a_connection_that_is_to_end(shedding):
    refuse(shedding)
    with Connection(shedding) as connection:
        connection.post(b'{"y": 1}', b"Connection: close\r\n")
        assert connection.answer()[0] == 429
        assert connection.rest() == b""


def test_only_observations_are_refused_early(shedding):
    refuse(shedding)
    with shedding.client() as client:
        for method, path in (("GET", "/livez"), ("GET", "/v1/streams"), ("PUT", "/v1/streams/s")):
            assert client.request(method, path).is_success
        assert client.post("/v1/observations", json=[]).status_code == 429
    with Connection(shedding) as connection:  # who waits for 100 Continue never sends the body
        connection.write(HEAD + b"Expect: 100-continue\r\nContent-Length: 8\r\n\r\n")
        status, headers, _ = connection.answer()
        assert (status, headers["connection"]) == (429, "close")
        assert connection.rest() == b""


def test_event_streams_are_no_requests_that_wait(shedding):
    waiting = []
    shedding.app.state.overload.early = lambda in_flight, now: waiting.append(in_flight)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(shedding.client())
            stack.enter_context(client.stream("GET", "/v1/events"))
        with Connection(shedding) as connection:
            connection.post()
            assert connection.answer()[0] == 200
    until(lambda: shedding.app.state.admission.event_streams == 0)
    parsed = shedding.app.state.access_log is not None  # its own task is there by then
    assert waiting == [int(parsed)]


def test_connections_over_the_limit_end_with_their_answer_and_far_over_it_are_refused(
    shedding, monkeypatch
):
    monkeypatch.setattr(http, "SPARE_CONNECTIONS", 2)
    before = metrics.LOAD_SHED.labels("connections")._value.get()
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(Connection(shedding)) for _ in range(MOST + 3)]
        until(lambda: len(shedding.server.server_state.connections) == MOST + 3)
        answers = []
        for connection in opened[:5]:
            connection.post()
            status, headers, document = connection.answer()
            answers.append((status, headers.get("connection")))
            if status == 503:
                assert headers["retry-after"] == "1"
                assert document["type"].endswith("/too-many-connections")
            if headers.get("connection"):
                assert connection.rest() == b""
        assert answers == [(503, "close"), (200, "close"), (200, "close"), (200, None), (200, None)]
        until(lambda: metrics.CONNECTIONS._value.get() == MOST)
    assert metrics.LOAD_SHED.labels("connections")._value.get() == before + 1


def test_one_turn_of_the_event_loop_accepts_all_connections_that_wait():
    made = []

    async def accept():
        with socket.socket() as listener, contextlib.ExitStack() as stack:
            listener.bind(("127.0.0.1", 0))
            listening = server.Listener(listener, lambda: Mock(connection_made=made.append))
            for _ in range(50):
                stack.enter_context(socket.create_connection(listener.getsockname()))
            for _ in range(5):  # it is accepted, a task is made of it, which begins, and has it
                await asyncio.sleep(0)
            listening.close()
            await listening.wait_closed()
            assert len(made) == 50
            for transport in made:
                transport.abort()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the service has it
        runner.run(accept())


async def test_without_files_to_open_connections_wait(monkeypatch, caplog):
    class FullOnce(socket.socket):
        tries = 0

        def accept(self):
            self.tries += 1
            if self.tries == 1:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    monkeypatch.setattr(server, "ACCEPT_PAUSE_S", 0.01)
    made = asyncio.Event()
    protocol = Mock(connection_made=lambda transport: (transport.abort(), made.set()))
    with FullOnce() as listener:
        listener.bind(("127.0.0.1", 0))
        listening = server.Listener(listener, lambda: protocol)
        with socket.create_connection(listener.getsockname()):
            await asyncio.wait_for(made.wait(), PATIENCE_S)
        listening.close()
        await listening.wait_closed()
    assert "cannot accept connections for 0.01 s: [Errno 24] Too many open files" in caplog.text


def test_the_limit_on_open_files_bounds_connections(monkeypatch, caplog):
    limits = [1024, 4096]
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(server.resource, "setrlimit", lambda _, new: limits.__setitem__(0, new[0]))
    assert (open_connections(500), limits[0]) == (500, 1024)
    assert (open_connections(2000), limits[0]) == (2000, 2256)
    assert not caplog.records
    assert open_connections(10_000) == 3840
    assert "max_connections lowered to 3840" in caplog.text


# --- other origins, logs ------------------------------------------------------------------------


def test_a_plain_post_has_the_headers_of_other_origins_as_well(served, parsed):
    api = served(cors_origins="https://a.example")
    headers = []
    for more in ((), (b"Content-Encoding: identity",)):
        with Connection(api) as connection:
            connection.write(sent(b"s", b'{"y": "no"}', *more))
            _, own, _ = connection.answer()
        headers.append(own | {"x-request-id": "", "date": ""})
    assert len(parsed) == 1
    assert headers[0] == headers[1]
    assert headers[0]["vary"] == "origin"


def test_pages_of_named_origins_see_answers_and_refusals_and_no_others_do(served):
    with served().client() as client:
        answer = client.get("/livez", headers={"Origin": "https://a.example"})
        assert "access-control-allow-origin" not in answer.headers
    api = served(cors_origins="https://a.example, https://b.example", require_keys=True)
    refuse(api)  # of pages decided later, where headers are added
    wanted = "authorization, content-type, idempotency-key"
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted}
    allow = "access-control-allow-origin"
    with api.client() as client:
        allowed = client.options(PATH, headers={**ask, "Origin": "https://b.example"})
        assert (allowed.status_code, allowed.headers[allow]) == (200, "https://b.example")
        assert client.options(PATH, headers={**ask, "Origin": "https://c.example"}).is_error
        answer = client.post(PATH, json={"y": 1.0}, headers={"Origin": "https://a.example"})
        assert (answer.status_code, slug(answer)) == (401, "unauthorized")
        assert client.post(PATH, json={"y": 1.0}).status_code == 429
        assert answer.headers[allow] == "https://a.example"
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
        other = client.get("/livez", headers={"Origin": "https://c.example"})
        assert allow not in other.headers


def test_the_access_log_has_a_line_for_each_request_and_no_secret(served, settings, tmp_path):
    path, token = tmp_path / "access.log", make_key(settings.redis_url, "a", "read", "write")
    api = served(access_log=str(path))
    packed = gzip.compress(json.dumps([{"y": 1.0}] * 50).encode())
    with api.client(token) as client:
        headers = {"Content-Type": JSON, "Content-Encoding": "gzip", "X-Request-Id": "r1"}
        posted = client.post(PATH + "?belief=true", content=packed, headers=headers)
        until(lambda: '"r1"' in path.read_text())  # it is written once its answer is sent
        moved = path.rename(tmp_path / "old.log")
        client.get("/v1/streams/t")
    assert httpx.get(f"{api.url}/v1/streams").status_code == 401
    assert httpx.get(f"{api.url}/nothing").status_code == 404
    until(lambda: path.exists() and path.read_text().count("\n") == 3)
    line = json.loads(moved.read_text().splitlines()[-1])
    assert line.pop("time")
    assert line.pop("duration_ms") > 0
    assert line == {
        "request_id": "r1",
        "method": "POST",
        "route": "/v1/streams/{stream}/observations",
        "path": PATH,
        "status": 200,
        "bytes_in": len(packed),
        "bytes_out": len(posted.content),
        "key": token.split("_")[1],
        "client": "127.0.0.1",
    }
    new = [json.loads(text) for text in path.read_text().splitlines()]
    assert [(each["path"], each["status"], each["key"]) for each in new] == [
        ("/v1/streams/t", 404, token.split("_")[1]),
        ("/v1/streams", 401, None),
        ("/nothing", 404, None),
    ]
    everything = moved.read_text() + path.read_text()
    assert token[18:] not in everything
    assert "belief" not in everything


def test_an_access_log_that_cannot_be_written_is_reported_at_the_start_or_once(
    served, settings, tmp_path, caplog
):
    with pytest.raises(StartupError, match="--access-log"):
        create_app(settings.model_copy(update={"access_log": str(tmp_path / "no" / "log")}))
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    api = served(access_log="/dev/full")
    for _ in range(5):
        assert httpx.get(f"{api.url}/livez").status_code == 200
    assert caplog.text.count("lines are lost") == 1
