"""Hostile requests against a real API process: the right refusal each, and bounded memory."""

import contextlib
import gzip
import json
import socket
import sys
import time
import zlib
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

POST = "/v1/streams/s/observations"
JSON = {"Content-Type": "application/json"}
MIB = 1 << 20
DEEP = b"[" * 10_000 + b"]" * 10_000
GROWTH = 64 * MIB  # what a request may cost; its body is at most 8 MiB, held a few times


def zeros(mebibytes, head=b'{"y": 1, "x": ['):
    """A gzip body that unpacks to so many MiB of spaces; the same packed block over and over."""
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    first = pack.compress(head) + pack.flush(zlib.Z_FULL_FLUSH)
    block = pack.compress(b" " * MIB) + pack.flush(zlib.Z_FULL_FLUSH)
    return first + block * mebibytes + pack.flush()


def kind(response):
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()["type"].rsplit("/", 1)[-1]


@pytest.fixture
def api(shared_api):
    return shared_api


@pytest.fixture
def client(api):
    with api.client() as found:
        assert found.post(POST, json={"y": 1.0}).status_code == 200
        yield found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_huge_bodies_and_bombs_cost_no_memory(real_api):
    api = real_api()
    with api.client() as client:
        assert client.post(POST, json={"y": 1.0}).status_code == 200
        check_memory(api, client)


def check_memory(api, client):
    before = api.peak_bytes()
    piece = b" " * MIB
    bomb = zeros(2000)
    assert len(bomb) < 8 * MIB
    packed = {**JSON, "Content-Encoding": "gzip"}
    wrong = []
    for path in (POST, "/v1/observations", "/v1/streams/s", "/v1/streams/s/predictions"):
        method = "PUT" if path.endswith("/s") else "POST"
        told = {**JSON, "Content-Length": str(100 * MIB)}
        for headers, content in (
            (told, (piece for _ in range(100))),
            (JSON, (piece for _ in range(100))),  # in chunks: nobody knows how many come
            (packed, bomb),
        ):
            response = client.request(method, path, headers=headers, content=content)
            if kind(response) != (413, "body-too-large"):
                wrong.append((path, headers, response.text))
    assert wrong == []
    grown = api.peak_bytes() - before
    print(f"peak memory: {before / MIB:.0f} MiB before, {grown / MIB:.0f} MiB more after")
    assert grown < GROWTH
    assert client.get("/v1/streams/s").json()["seq"] == 1


@pytest.mark.parametrize(
    "body", [DEEP, b'{"a":' * 10_000 + b"1" + b"}" * 10_000, b'{"y":' + DEEP + b"}"]
)
def test_deep_json(client, body):
    calls = [("POST", POST), ("POST", "/v1/observations"), ("PUT", "/v1/streams/s")]
    for method, path in [*calls, ("POST", "/v1/streams/s/predictions")]:
        assert kind(client.request(method, path, content=body, headers=JSON)) == (
            400,
            "malformed-body",
        )
    lines = {"Content-Type": "application/x-ndjson"}
    response = client.post("/v1/observations", content=body, headers=lines)
    assert kind(response) == (400, "malformed-body")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "x-gzip", "GZIP", "identity"])
def test_packed_bodies_are_read(client, encoding):
    body = json.dumps([{"y": float(i)} for i in range(100)]).encode()
    name = encoding.lower().removeprefix("x-")
    packed = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}[name](body)
    headers = {**JSON, "Content-Encoding": encoding, "Idempotency-Key": encoding}
    answers = client.post(POST, content=packed, headers=headers).json()
    assert [answer["y"] for answer in answers] == list(range(100))
    # The same body as it is: a repeat.
    again = client.post(POST, content=body, headers={**JSON, "Idempotency-Key": encoding}).json()
    assert all(answer["duplicate"] for answer in again)


def test_bodies_that_cannot_be_unpacked(client):
    body = gzip.compress(b'{"y": 1}')
    members = {
        "two": gzip.compress(b'{"y": ') + gzip.compress(b"1}"),
        "cut": body[:-9],
        "wrong": b"\x00" * 50,
        "rest": body + b"rest",
        "checksum": body[:-8] + b"\x00" * 8,
        "many": gzip.compress(b"") * 100_000,
        "empty": b"",
    }
    headers = {**JSON, "Content-Encoding": "gzip"}
    began = time.monotonic()
    found = {n: client.post(POST, content=each, headers=headers) for n, each in members.items()}
    assert time.monotonic() - began < 5
    assert found.pop("two").status_code == 200
    assert {kind(each) for each in found.values()} == {(400, "malformed-body")}
    for encoding in ("br", "gzip, gzip", "zstd", "x" * 1000):
        response = client.post(POST, content=body, headers={**JSON, "Content-Encoding": encoding})
        assert kind(response) == (415, "unsupported-encoding")
        assert response.headers["accept-encoding"] == "gzip, deflate"


def test_ids_urls_and_headers(api, client):
    for size, expected in ((10_000, (422, "invalid-field")), (20_000, (414, "url-too-long"))):
        path = f"/v1/streams/{'a' * size}/observations"
        assert kind(client.post(path, json={"y": 1})) == expected
    assert kind(client.post(f"/{'a' * 60_000}", json={"y": 1})) == (414, "url-too-long")
    for headers in ({f"X-{i}": "1" for i in range(200)}, {"X-Long": "a" * 40_000}):
        assert kind(client.get("/v1/streams", headers=headers)) == (431, "head-too-large")
    assert client.get("/v1/streams", headers={"X-Long": "a" * 20_000}).status_code == 200


def answer_to(port, *pieces, pause_s=0.0):
    """Send pieces and read until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
        found = b""
        try:
            for piece in pieces:
                raw.sendall(piece)
                time.sleep(pause_s)
        except OSError:
            pass  # refused already
        while True:
            try:
                data = raw.recv(65_536)
            except ConnectionResetError:
                return found
            if not data:
                return found
            found += data


def test_a_head_without_end(api):
    pieces = (b"GET /livez HTTP/1.1\r\nX: ", *(b"a" * 10_000 for _ in range(50)))
    assert answer_to(api.port, *pieces, pause_s=0.005).startswith(b"HTTP/1.1 431 ")
    many = (b"X-%d: 1\r\n" % i * 100 for i in range(500))
    assert answer_to(api.port, b"GET / HTTP/1.1\r\n", *many).startswith(b"HTTP/1.1 431 ")
    url = (b"GET /", *(b"a" * 10_000 for _ in range(50)))
    assert answer_to(api.port, *url, pause_s=0.005).startswith(b"HTTP/1.1 414 ")
    said = answer_to(api.port, b"HELLO\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in said


HEAD = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n" % POST.encode()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("target", "hosts", "status"),
    [
        (b"/livez", [b"a"], 200),
        (b"/livez", [b"a", b"b"], 400),
        (b"/livez", [b"a", b"a"], 400),
        (b"/livez", [], 400),
        (b"http://localhost:80/livez", [b"LocalHost:80"], 200),
        (b"http://evil.example/livez", [b"localhost"], 400),
        (b"http://localhost@evil.example/livez", [b"localhost"], 400),
    ],
)
def test_one_host_is_named(api, target, hosts, status):
    head = b"".join(b"Host: %s\r\n" % host for host in hosts)
    request = b"GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (target, head)
    answer = answer_to(api.port, request)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert (b"application/problem+json" in answer) == (status == 400)


def test_a_host_of_http_1_0_may_be_missing(api):
    assert answer_to(api.port, b"GET /livez HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "chunk", [b"zz\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"3\r\nabcd\r\n"]
)
def test_bad_chunks_are_answered(api, client, chunk):
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    for pieces in ([head + chunk], [head, chunk], [head + b"1\r\n{\r\n", chunk]):
        answer = answer_to(api.port, *pieces, pause_s=0.05)
        assert answer.startswith(b"HTTP/1.1 400 "), pieces
        assert answer.count(b"HTTP/1.1") == 1
        assert b"application/problem+json" in answer
    assert client.get("/livez").status_code == 200


def test_bad_chunks_behind_a_request_that_waits_end_the_connection(api):
    """An answer to the second request would be taken for that to the first."""
    first = HEAD + b"Content-Length: 8\r\n\r\n" + b'{"y": 1}'
    second = HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
    assert b"HTTP/1.1 400" not in answer_to(api.port, first + second)


def test_slow_clients(real_api):
    constants = {"service.api.server.HEAD_TIMEOUT_S": 0.5, "service.api.http.BODY_TIMEOUT_S": 0.5}
    api = real_api(constants)
    began = time.monotonic()
    assert answer_to(api.port) == b""  # connected, and nothing more
    assert answer_to(api.port, b"GET /livez HTTP/1.1\r\nHost: a\r\nX").startswith(b"HTTP/1.1 408 ")
    said = answer_to(api.port, HEAD + b"Content-Length: 8\r\n\r\n", *(b"{" for _ in range(4)))
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b"/slow-body" in said
    assert 1.5 <= time.monotonic() - began < 10
    with api.client() as client:  # one that waits between requests is left alone
        for _ in range(3):
            assert client.get("/livez").status_code == 200
            time.sleep(0.7)


@pytest.fixture
def connected():
    """Connect to an API and return the connection once its first request has been answered."""
    with contextlib.ExitStack() as connections:

        def connect(api):
            connection = HTTPConnection("127.0.0.1", api.port, timeout=20)
            connections.callback(connection.close)
            get_livez(connection)
            return connection

        yield connect


def get_livez(connection):
    connection.request("GET", "/livez")
    with connection.getresponse() as response:
        assert response.status == 200
        response.read()


def test_a_connection_is_reused_after_idle_seconds(api, connected):
    connection = connected(api)
    time.sleep(6)  # uvicorn's own bound is 5 s
    get_livez(connection)


def test_an_idle_connection_is_closed_after_the_keep_alive(real_api, connected):
    connection = connected(real_api(keep_alive_s=2))
    began = time.monotonic()
    assert connection.sock.recv(1) == b""
    assert 1.5 <= time.monotonic() - began < 15


def test_an_idle_connection_does_not_delay_the_stop(real_api, connected):
    api = real_api()
    connection = connected(api)
    began = time.monotonic()
    api.process.terminate()
    assert connection.sock.recv(1) == b""
    api.process.wait(20)
    assert time.monotonic() - began < 15  # far below keep_alive_s


def test_cors_is_off_by_default(client):
    ask = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    assert client.options(POST, headers=ask).status_code == 405
    said = client.post(POST, json={"y": 1.0}, headers={"Origin": "https://a.example"})
    assert "access-control-allow-origin" not in said.headers


def test_cors(real_api):
    api = real_api(cors_origins="https://a.example, https://b.example", require_keys=1)
    ask = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, idempotency-key",
    }
    with api.client() as client:
        allowed = client.options(POST, headers={**ask, "Origin": "https://b.example"})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://b.example"
        assert client.options(POST, headers={**ask, "Origin": "https://c.example"}).is_error
        # A page is also to see why it was refused.
        said = client.post(POST, json={"y": 1.0}, headers={"Origin": "https://a.example"})
        assert kind(said) == (401, "unauthorized")
        assert said.headers["access-control-allow-origin"] == "https://a.example"
        assert "X-Request-Id" in said.headers["access-control-expose-headers"]
        other = client.get("/livez", headers={"Origin": "https://c.example"})
        assert "access-control-allow-origin" not in other.headers


def test_access_log(real_api, tmp_path):
    from tests.service.api.real import make_key

    path = tmp_path / "access.log"
    api = real_api(access_log=path, key_cache_s=0.2)
    token = make_key(api.redis_url, "a", "read", "write")
    time.sleep(0.4)
    packed = gzip.compress(json.dumps([{"y": 1.0}] * 50).encode())
    with api.client(token) as client:
        headers = {**JSON, "Content-Encoding": "gzip", "X-Request-Id": "r1"}
        posted = client.post(POST + "?belief=true", content=packed, headers=headers)
        for _ in range(100):  # a line is written once its answer is sent
            if '"r1"' in path.read_text():
                break
            time.sleep(0.02)
        moved = path.rename(tmp_path / "old.log")
        client.get("/v1/streams/t")
    assert httpx.get(f"{api.url}/v1/streams").status_code == 401
    assert httpx.get(f"{api.url}/nothing").status_code == 404
    time.sleep(0.3)
    old = [json.loads(line) for line in moved.read_text().splitlines()]
    new = [json.loads(line) for line in path.read_text().splitlines()]
    line = old[-1]
    assert set(line) == {
        *("time", "request_id", "method", "route", "path", "status", "duration_ms"),
        *("bytes_in", "bytes_out", "key", "client"),
    }
    assert (line["request_id"], line["method"], line["status"]) == ("r1", "POST", 200)
    assert (line["route"], line["path"]) == ("/v1/streams/{stream}/observations", POST)
    assert (line["bytes_in"], line["bytes_out"]) == (len(packed), len(posted.content))
    assert (line["key"], line["client"]) == (token.split("_")[1], "127.0.0.1")
    assert 0 < line["duration_ms"] < 10_000
    assert [(each["path"], each["status"], each["key"]) for each in new] == [
        ("/v1/streams/t", 404, token.split("_")[1]),
        ("/v1/streams", 401, None),
        ("/nothing", 404, None),
    ]
    everything = moved.read_text() + path.read_text() + api.log()
    assert token[18:] not in everything
    assert "belief" not in everything


def test_an_access_log_that_cannot_be_written(valkey_url, tmp_path):
    from tests.service.api.real import moca

    said = moca("api", MOCA_REDIS_URL=valkey_url, MOCA_ACCESS_LOG=str(tmp_path / "no" / "log"))
    assert said.returncode == 78
    assert "--access-log: cannot write" in said.stderr


def test_an_access_log_on_a_full_disk_is_said_once(real_api):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    api = real_api(access_log="/dev/full")
    for _ in range(5):
        assert httpx.get(f"{api.url}/livez").status_code == 200
    assert api.log().count("lines are lost") == 1
    api.process.terminate()
    api.process.wait(20)
    assert "Traceback" not in api.log()
