"""`POST /mcp`: who may call it, and without the SDK."""

import sys

from tests.service.api.conftest import make_key, slug

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ACCEPT = {"Accept": "application/json, text/event-stream"}


async def ping(api, **headers):
    return await api.post("/mcp", json=PING, headers=ACCEPT | headers)


async def test_a_message_needs_a_key_that_may_read(settings, worker, start):
    reader, writer = (make_key(settings.redis_url, scope, scope) for scope in ("read", "write"))
    async with start(settings) as api:
        assert (await ping(api)).status_code == 401
        assert slug(await ping(api, Authorization=f"Bearer {writer}")) == "missing-scope"
        answer = await ping(api, Authorization=f"Bearer {reader}")
        assert answer.json() == {"jsonrpc": "2.0", "id": 1, "result": {}}


async def test_web_pages_of_other_names_are_refused_and_bodies_are_bounded(api, settings):
    assert (await ping(api, Host="rebound.example")).status_code == 401
    assert (await api.get("/mcp", headers=ACCEPT)).status_code == 405
    large = b" " * (settings.max_body_bytes + 1)
    assert slug(await api.post("/mcp", content=large, headers=ACCEPT)) == "body-too-large"
    for body in (b"", b"{", b"[]", b"\xff\xfe", b'{"jsonrpc": "2.0"}', b"[" * 5000):
        headers = ACCEPT | {"Content-Type": "application/json"}
        answer = await api.post("/mcp", content=body, headers=headers)
        assert (answer.status_code, "error" in answer.json()) == (400, True), body


async def test_without_the_sdk_the_answer_says_what_to_install(api, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "service.assistant", raising=False)
    answer = await ping(api)
    assert (answer.status_code, slug(answer)) == (501, "not-installed")
    assert "moca-service[mcp]" in answer.json()["detail"]
