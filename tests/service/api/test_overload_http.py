"""Overload at the server's edge: early refusals, bounded connections, and a real process."""

import asyncio
import contextlib
import json
import time

import pytest
import pytest_asyncio
import uvicorn

from service.api import server as server_module
from service.api.app import create_app
from service.api.server import Server, open_connections, protocol
from service.bench import overload as bench
from service.bench.processes import Server as Address
from service.errors.base import WaitTooLong
from service.observability import metrics
from service.runtime.process import listen

POST = b"POST /v1/streams/s/observations HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine\r\n"
JSON = b"Content-Type: application/json\r\n"
MOST = 16


@contextlib.asynccontextmanager
async def served(settings, until):
    """A server in this event loop; yields its application and its port."""
    app = create_app(settings)
    config = uvicorn.Config(app, http=protocol(settings, app), log_config=None, ws="none")
    server = Server(config, app)
    with listen("127.0.0.1", 0) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        yield app, listener.getsockname()[1]
        server.should_exit = True
        await running


@pytest.fixture
def logged(settings, tmp_path):
    change = {"access_log": str(tmp_path / "log"), "max_connections": MOST}
    return settings.model_copy(update=change)


@pytest_asyncio.fixture
async def server(logged, worker, until):
    async with served(logged, until) as found:
        yield found


def refuse(app, yes=True):
    """Have every early decision be a refusal, or as usual."""
    refusal = WaitTooLong("too long", 3) if yes else None
    app.state.overload.early = lambda in_flight, now: refusal


async def answer(reader):
    """Read one answer: status, headers, document."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:-2])
    body = await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split()[1]), headers, json.loads(body)


def post(body=b'{"y": 1}', *more):
    return POST + JSON + b"".join(more) + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def test_a_refusal_from_the_head_alone(server, tmp_path):
    app, port = server
    before = metrics.LOAD_SHED.labels("wait")._value.get()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    refuse(app)
    writer.write(post()[:-8])  # no body yet
    status, headers, document = await answer(reader)
    assert (status, headers["retry-after"], headers["x-request-id"]) == (429, "3", "mine")
    assert headers["content-type"] == "application/problem+json"
    assert document["type"].endswith("/wait-too-long")
    # The body is passed over, and the connection serves on.
    writer.write(b'{"y": 1}' + post())
    assert (await answer(reader))[0] == 429
    refuse(app, False)
    writer.write(post())
    status, _, document = await answer(reader)
    assert (status, document["seq"]) == (200, 0)
    assert metrics.LOAD_SHED.labels("wait")._value.get() == before + 2
    writer.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["status"], line["request_id"]) for line in lines[:2]] == [(429, "mine")] * 2
    assert lines[0]["route"] == "/v1/streams/{stream}/observations"


@pytest.mark.parametrize(
    "head", [b"GET /livez", b"GET /v1/streams", b"PUT /v1/streams/s", b"GET /metrics"]
)
async def test_only_observations_are_refused_early(server, head):
    app, port = server
    refuse(app)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 10)).split()[1] in {b"200", b"201"}
    writer.close()


async def test_who_waits_for_100_continue_is_refused_and_closed(server):
    app, port = server
    refuse(app)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(b"", b"Expect: 100-continue\r\n"))
    status, headers, _ = await answer(reader)
    assert (status, headers["connection"]) == (429, "close")
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_answers_to_pipelined_requests_stay_in_order(server, worker):
    app, port = server
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    worker.running.clear()
    writer.write(post())
    await asyncio.sleep(0.2)
    refuse(app)
    writer.write(post())
    await asyncio.sleep(0.2)
    worker.running.set()
    assert [(await answer(reader))[0] for _ in range(2)] == [200, 200]
    writer.close()


async def test_a_body_that_does_not_come_after_a_refusal(logged, worker, until, monkeypatch):
    monkeypatch.setattr(server_module, "HEAD_TIMEOUT_S", 0.3)
    async with served(logged, until) as (app, port):
        refuse(app)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post()[:-8])
        assert (await answer(reader))[0] == 429
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_pages_of_other_origins_can_read_refusals(logged, worker, until):
    changed = logged.model_copy(update={"cors_origins": "*"})
    async with served(changed, until) as (app, port):
        refuse(app)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(b'{"y": 1}', b"Origin: http://x\r\n"))
        assert (await answer(reader))[0] == 200  # decided later, where headers are added
        writer.close()


async def test_idle_connections_make_room(server, caplog):
    _, port = server
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST)]
    for reader, writer in opened:
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await answer(reader))[0] == 200
    assert metrics.CONNECTIONS._value.get() == MOST
    for _ in range(3):
        opened.append(await asyncio.open_connection("127.0.0.1", port))
        opened[-1][1].write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await answer(opened[-1][0]))[0] == 200
    for reader, _ in opened[:3]:  # the longest idle
        assert await asyncio.wait_for(reader.read(), 10) == b""
    assert not opened[3][0].at_eof()
    assert [r.message for r in caplog.records].count(f"connections: limit of {MOST} reached") == 1
    for _, writer in opened:
        writer.close()


async def test_connections_over_the_bound_are_refused(server, worker):
    _, port = server
    before = metrics.LOAD_SHED.labels("connections")._value.get()
    worker.running.clear()
    busy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST)]
    for _, writer in busy:
        writer.write(post())
    await asyncio.sleep(0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post())
    status, headers, document = await answer(reader)
    assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
    assert document["type"].endswith("/too-many-connections")
    silent, quiet = await asyncio.open_connection("127.0.0.1", port)
    assert await asyncio.wait_for(silent.read(), 10) == b""
    worker.running.set()
    assert {(await answer(reader))[0] for reader, _ in busy} == {200}
    assert metrics.LOAD_SHED.labels("connections")._value.get() == before + 2
    for _, each in [*busy, (reader, writer), (silent, quiet)]:
        each.close()


def test_the_limit_on_open_files_bounds_connections(monkeypatch, caplog):
    import resource

    limits = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(0, new[0]))
    assert open_connections(500) == 500
    assert limits[0] == 1024
    assert open_connections(2000) == 2000
    assert limits[0] == 2256
    assert not caplog.records
    assert open_connections(10_000) == 3840
    assert "max_connections lowered to 3840" in caplog.text


# --- a real process -------------------------------------------------------------------------


def slow(worker, cost_s):
    """Have a fake worker take its time for each command."""
    apply = worker._apply

    def slowly(partition, envelope):
        time.sleep(cost_s)
        return apply(partition, envelope)

    worker._apply = slowly


def overload(api, monkeypatch, seconds, calm_s, capacity=100):
    """Three times the capacity, then half of it."""
    monkeypatch.setattr(bench, "CALM_S", calm_s)
    phases = [(3.0 * capacity, seconds), (capacity / 2, calm_s)]
    streams = [f"s{number}" for number in range(20)]
    requests = bench._generate([Address(api.url, None)], streams, phases)
    return requests, bench.evaluate(requests, capacity, 3.0, seconds)


@pytest.mark.slow  # needs a quiet machine; test_overload.py has the same on a simulated clock
def test_overload_is_shed_and_passes(real_api, worker, monkeypatch):
    """On a machine that others use, too: three times the bounds that hold on a quiet one."""
    slow(worker, 0.01)
    requests, found = overload(real_api(), monkeypatch, seconds=8.0, calm_s=8.0)
    assert not found.overload.failed
    assert not found.calm.failed
    assert found.overload.latency_ms()["p99"] < 3000
    assert found.overload.latency_ms(shed=True)["p50"] < 150
    assert 1.0 < len(found.overload.shed_s) / 8 / 100 < 2.8
    assert found.goodput > 0.4
    end = bench._phase(requests, 13.0, 16.0)  # five seconds after the overload
    assert not end.shed_s
    assert end.latency_ms()["p50"] < 300


@pytest.mark.slow
def test_without_the_bound_everything_waits(real_api, worker, monkeypatch):
    """What the test above would see if nothing were shed."""
    slow(worker, 0.01)
    _, found = overload(real_api(max_wait_s=0), monkeypatch, seconds=5.0, calm_s=5.0)
    assert not found.overload.shed_s
    assert found.overload.latency_ms()["p99"] > 5000
    assert found.recovery_s > 5
