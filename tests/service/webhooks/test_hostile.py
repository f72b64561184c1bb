"""Receivers that answer as no receiver should: each attempt fails, and nothing else does."""

import asyncio
import ipaddress
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.webhooks.allowlist import Allowed, NotAllowed
from service.webhooks.config import Hook
from service.webhooks.sender import Sender
from service.wire.event_entries import Filter

LOOPBACK = Allowed.parse("http://127.0.0.1")
EMPTY = b"Content-Length: 0\r\n\r\n"
ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def attempt(answer, timeout_s=2.0):
    """Outcome of one attempt at a receiver that answers with these bytes."""

    async def receive(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        try:
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
    hook = Hook("a", f"http://127.0.0.1:{port}/", b"x" * 32, Filter())
    sender = Sender(hook, LOOPBACK, timeout_s)
    try:
        failure = await sender.attempt("1", b"{}")
        return "" if failure is None else failure.reason
    finally:
        await sender.close()
        server.close()


@pytest.mark.parametrize(
    "place", [b"javascript:alert(1)", b"http://[::1", b"//", b"http://169.254.169.254/", b"\xff:"]
)
async def test_a_redirect_wherever_it_leads_is_a_failed_attempt(place):
    """Its address is not followed, nor may it be the end of the process that reads it."""
    found = await attempt(b"HTTP/1.1 302 Found\r\nLocation: " + place + b"\r\n" + EMPTY)
    assert found in {"response status 302", "the call failed: RemoteProtocolError"} or (
        found == "the call failed: InvalidURL"
    )


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000 + b"\r\n" + EMPTY],
)
async def test_what_is_no_answer_is_a_failed_attempt(answer):
    assert (await attempt(answer)).startswith("the call failed")


async def test_an_endless_answer_is_read_for_a_while_only():
    assert await attempt(ENDLESS) == ""


@pytest.mark.parametrize("url", ["https://a..example.org/", f"https://{'a' * 64}.example.org/"])
async def test_a_name_that_cannot_be_looked_up_is_not_called(url):
    with ThreadPoolExecutor(1) as resolvers, pytest.raises(NotAllowed):
        await Allowed.parse("*.example.org").resolve(url, resolvers)


@pytest.mark.parametrize(
    "address",
    [
        "64:ff9b::7f00:1",
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",
        "::7f00:1",
        "::ffff:0:7f00:1",
        "fec0::1",
        "::1",
    ],
)
def test_private_addresses_in_other_words_have_to_be_listed(address):
    found = ipaddress.ip_address(address)
    assert not Allowed.parse("*.example.org").lets(found, "http", 80)
    assert Allowed.parse(f"http://[{address}]").lets(found, "http", 80)


def test_public_addresses_in_other_words_may_be_called():
    allowed = Allowed.parse("*.example.org")
    for address in ("64:ff9b::808:808", "2002:808:808::", "2606:4700::1111", "::ffff:8.8.8.8"):
        assert allowed.lets(ipaddress.ip_address(address), "https", 443), address
