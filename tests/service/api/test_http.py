"""Over real connections: what only a server shows."""

import asyncio
import contextlib
import gc
import json
import threading

import pytest_asyncio
import uvicorn

from service.api.app import create_app
from service.api.server import Server

HEAD = b"POST /v1/streams/s/observations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest_asyncio.fixture
async def address(settings, worker, until):
    """Run the application behind uvicorn in this event loop."""
    config = uvicorn.Config(
        create_app(settings.model_copy(update={"max_body_bytes": 10_000})),
        port=0,
        log_config=None,
        access_log=False,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()
    server.should_exit = True
    await task


async def test_what_is_loaded_at_the_start_is_not_garbage_to_look_for(settings, worker, until):
    """A full collection of it takes 0.1 s, in which no request is answered."""
    app = create_app(settings)
    server = Server(uvicorn.Config(app, port=0, log_config=None, access_log=False), app)
    gc.unfreeze()  # what servers of earlier tests froze
    before = gc.get_freeze_count()
    thread = threading.Thread(target=server.run)  # its stop ends every task of its event loop
    thread.start()
    try:
        await until(lambda: server.started)
        assert gc.get_freeze_count() > before + 10_000
    finally:
        server.should_exit = True
        await asyncio.to_thread(thread.join)
        gc.unfreeze()


@contextlib.asynccontextmanager
async def connection(address):
    reader, writer = await asyncio.open_connection(*address[:2])
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def answer(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length:")[2].partition("\r\n")[0])
    return int(head.split()[1]), head, json.loads(await reader.readexactly(length))


async def test_several_requests_on_one_connection(address):
    async with connection(address) as (reader, writer):
        for i in range(3):
            writer.write(HEAD + b'Content-Length: 8\r\n\r\n{"y": 1}')
            status, _, body = await answer(reader)
            assert (status, body["seq"]) == (200, i)


async def test_a_body_in_pieces(address):
    async with connection(address) as (reader, writer):
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for piece in (b'{"y"', b": 2", b"}"):
            await asyncio.sleep(0.01)
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")
        status, _, body = await answer(reader)
        assert (status, body["y"]) == (200, 2.0)


async def test_a_body_without_end_is_refused_before_it_is_read(address):
    async with connection(address) as (reader, writer):
        writer.write(HEAD + b"Content-Length: 1000000000000\r\n\r\n[")
        status, head, _ = await answer(reader)
        assert (status, "connection: close" in head) == (413, True)
        assert await reader.read() == b""
    async with connection(address) as (reader, writer):
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(11):
            writer.write(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        status, _, _ = await answer(reader)
        assert status == 413
        assert await reader.read() == b""


async def test_a_client_that_leaves_in_the_middle_of_its_body(address, worker, caplog):
    for _ in range(5):
        async with connection(address) as (_, writer):
            writer.write(HEAD + b'Content-Length: 100\r\n\r\n{"y": ')
            await writer.drain()
    async with connection(address) as (reader, writer):
        writer.write(HEAD + b'Content-Length: 8\r\n\r\n{"y": 1}')
        status, _, body = await answer(reader)
    assert (status, body["seq"]) == (200, 0)
    assert len(worker.commands) == 1
    assert caplog.text == ""


async def test_what_was_sent_is_applied_though_its_client_left(address, worker):
    worker.running.clear()
    for _ in range(5):
        async with connection(address) as (_, writer):
            writer.write(HEAD + b'Content-Length: 8\r\n\r\n{"y": 1}')
            await writer.drain()
            await asyncio.sleep(0.02)
    worker.running.set()
    async with connection(address) as (reader, writer):
        writer.write(HEAD + b'Content-Length: 8\r\n\r\n{"y": 1}')
        _, _, body = await answer(reader)
    assert body["seq"] == 5
