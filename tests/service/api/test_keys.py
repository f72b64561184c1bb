"""Keys: who is let in, what each is told, rates, and names that lead here."""

import math
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from service.api import auth
from service.commands.main import app
from service.runtime.access_policy import ANY, names_of
from service.settings import Settings
from service.store.api_keys import USED, Keyring
from service.store.connection import connect
from service.store.shards import script
from tests.service.api.conftest import make_key, slug
from tests.waiting import Clock, until_async

STREAM = "/v1/streams/s"
POST = f"{STREAM}/observations"


def problem(response, status, expected):
    assert (response.status_code, slug(response)) == (status, expected), response.text
    return response


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def now(monkeypatch):
    """The clock of the cache and of expiry; the table is only read again when it has moved."""
    clock = Clock(time.time())
    monkeypatch.setattr(auth, "time", SimpleNamespace(monotonic=clock, time=clock))
    return clock


async def test_without_keys_this_machine_calls_freely_until_the_first_key(
    settings, worker, start, now
):
    async with start(settings) as api:
        assert (await api.post(POST, json={"y": 1.0})).status_code == 200
        token = make_key(settings.redis_url, "first", "read", "write")
        await renewed(api, now)
        refused = problem(await api.post(POST, json={"y": 1.0}), 401, "unauthorized")
        assert refused.headers["www-authenticate"] == 'Bearer realm="moca"'
        assert (await api.get(STREAM, headers=bearer(token))).status_code == 200
        # Revoking the last key must not open it again.
        with connect(settings.redis_url) as store:
            Keyring(store).revoke("first")
        await renewed(api, now)
        problem(await api.get("/v1/streams"), 401, "unauthorized")
        revoked = problem(await api.get(STREAM, headers=bearer(token)), 401, "unauthorized")
        assert "is revoked" in revoked.json()["detail"]


async def renewed(api, now):
    """Have the table read again, as a service does on its own at half of the cache's time."""
    now.advance(601)
    await api.app.state.context.authenticator._renew()


async def test_the_table_is_read_again_in_the_background(settings, worker, start):
    async with start(settings, key_cache_s=0.1) as api:
        assert (await api.get("/v1/streams")).status_code == 200
        make_key(settings.redis_url, "first", "read")
        await until_async(lambda: api.app.state.context.authenticator._required)
        problem(await api.get("/v1/streams"), 401, "unauthorized")


async def test_a_revoked_key_counts_until_the_end_of_the_cache_and_no_longer(
    settings, worker, start, now
):
    token = make_key(settings.redis_url, "a", "read")
    async with start(settings) as api:
        assert (await api.get("/v1/streams", headers=bearer(token))).status_code == 200
        with connect(settings.redis_url) as store:
            Keyring(store).revoke("a")
        now.advance(599)
        assert (await api.get("/v1/streams", headers=bearer(token))).status_code == 200
        now.advance(2)
        assert (await api.get("/v1/streams", headers=bearer(token))).status_code == 401


async def test_wrong_keys(settings, worker, start, now):
    token = make_key(settings.redis_url, "a", "read")
    other = make_key(settings.redis_url, "b", "read")
    mixed = token[:18] + other[18:]
    wrong = [f"Bearer {mixed}", f"Bearer {token[:-1]}", f"Bearer {token}x", "Bearer", "Bearer é"]
    wrong += [f"Bearer {token.upper()}", f"Basic {token}", token, ""]
    async with start(settings) as api:
        for sent in wrong:
            headers = {"Authorization": sent.encode("latin-1")}
            refused = problem(await api.get("/v1/streams", headers=headers), 401, "unauthorized")
            assert "error=" in refused.headers["www-authenticate"], sent
            assert token[18:] not in refused.text
        good = {"Authorization": f"bearer  {token}"}
        assert (await api.get("/v1/streams", headers=good)).status_code == 200


async def test_a_key_ends_when_it_expires(settings, worker, start, now):
    token = make_key(settings.redis_url, "a", "read", expires_ms=int(now() * 1000) + 3000)
    async with start(settings) as api:
        now.advance(2.9)
        assert (await api.get("/v1/streams", headers=bearer(token))).status_code == 200
        now.advance(0.2)
        refused = problem(await api.get("/v1/streams", headers=bearer(token)), 401, "unauthorized")
        assert "is expired" in refused.json()["detail"]


async def test_a_key_over_its_rate(settings, worker, start):
    slow = make_key(settings.redis_url, "slow", "read", rate="5/hour")
    usual = make_key(settings.redis_url, "usual", "read")
    free = make_key(settings.redis_url, "free", "read", rate="none")
    async with start(settings, key_rate="1000/hour") as one, start(settings) as two:
        statuses = []
        for _ in range(4):  # all processes count together
            for api in (one, two):
                response = await api.get("/v1/models", headers=bearer(slow))
                statuses.append(response.status_code)
        assert statuses == [200] * 5 + [429] * 3
        refused = problem(await one.get("/v1/models", headers=bearer(slow)), 429, "rate-exceeded")
        assert refused.headers["ratelimit-policy"] == '"key";q=5;w=3600'
        assert 1 <= int(refused.headers["retry-after"]) <= 3600
        assert refused.headers["ratelimit"] == f'"key";r=0;t={refused.headers["retry-after"]}'
        for token in (usual, free):
            for _ in range(8):
                assert (await one.get("/v1/models", headers=bearer(token))).status_code == 200
    with connect(settings.redis_url) as store:
        names = str(store.everywhere("KEYS", "moca:rate:*"))
    assert usual.split("_")[1] in names
    assert free.split("_")[1] not in names  # no rate, no round trip


def test_a_window_slides_over_the_one_before(settings):
    """The window before counts by its share that is still within reach."""
    window_s = 1_000_000_000
    number, passed_s = divmod(time.time(), window_s)
    left = 1 - passed_s / window_s
    before = 100
    amount = math.ceil(before * left) + 2
    with connect(settings.redis_url) as store:
        command = script("rate", ["moca:rate:a"], [amount, window_s])
        for age, free in ((1, 2), (2, amount)):
            stored = {"number": int(number) - age, "count": before, "before": 7}
            store.hset("moca:rate:a", mapping=stored)
            waits_s = [store.execute_command(*command) for _ in range(amount + 1)]
            assert waits_s[:free] == [0] * free
            assert min(waits_s[free:]) >= 1


async def test_a_full_store_takes_no_counters_and_answers_reads(lonely_store, settings, start):
    token = make_key(lonely_store.url, "a", "read", rate="1/hour")
    async with start(settings, redis_url=lonely_store.url) as api:
        with connect(lonely_store.url) as store:
            store.config_set("maxmemory", 1)
        for _ in range(2):
            assert (await api.get("/v1/models", headers=bearer(token))).status_code == 200


async def test_when_a_key_was_used_is_known_to_the_minute(settings, worker, start):
    token = make_key(settings.redis_url, "a", "read")
    make_key(settings.redis_url, "idle", "read")
    async with start(settings, key_cache_s=0.1) as api:
        assert (await api.get("/v1/models", headers=bearer(token))).status_code == 200
        with connect(settings.redis_url) as store:
            await until_async(lambda: store.hgetall(USED))
            assert [int(each) % 60 for each in store.hvals(USED)] == [0]
    listed = CliRunner().invoke(app, ["keys", "list", "--redis-url", settings.redis_url]).stdout
    assert token[18:] not in listed
    used, idle = (next(ln for ln in listed.splitlines() if f" {n} " in ln) for n in ("a", "idle"))
    assert idle.rstrip().endswith("never")
    assert not used.rstrip().endswith("never")


async def test_an_open_service_still_checks_a_key_that_is_sent(settings, worker, start):
    token = make_key(settings.redis_url, "reader", "read")
    async with start(settings, open_access=True) as api:
        assert (await api.post(POST, json={"y": 1.0})).status_code == 200
        refused = await api.post(POST, json={"y": 1.0}, headers=bearer(token))
        problem(refused, 403, "missing-scope")
        problem(await api.get(STREAM, headers=bearer(token[:-1])), 401, "unauthorized")
        assert (await api.get(STREAM, headers={"Host": "moca.example"})).status_code == 200


async def test_metrics_need_no_key_unless_they_are_closed(settings, worker, start):
    token = make_key(settings.redis_url, "prometheus", "read")
    async with start(settings) as api:
        for path in ("/metrics", "/openapi.json", "/livez", "/readyz"):
            assert (await api.get(path)).status_code == 200, path
    async with start(settings, metrics_key_required=True) as api:
        assert (await api.get("/metrics")).status_code == 401
        assert "moca_redis_up" in (await api.get("/metrics", headers=bearer(token))).text


async def test_without_the_store_keys_are_known_for_their_time_and_then_503(
    lonely_store, settings, start, now
):
    token = make_key(lonely_store.url, "a", "read", "write")
    async with start(settings, redis_url=lonely_store.url) as api:
        assert (await api.get("/v1/models", headers=bearer(token))).status_code == 200
        lonely_store.stop()
        now.advance(599)
        assert (await api.get("/v1/models", headers=bearer(token))).status_code == 200
        now.advance(2)
        refused = await api.get("/v1/models", headers=bearer(token))
        assert problem(refused, 503, "redis-unavailable").headers["retry-after"] == "1"
        lonely_store.start()
        assert (await api.get("/v1/models", headers=bearer(token))).status_code == 200


async def test_a_store_that_loses_its_keys_does_not_open_the_service(settings, start, now):
    make_key(settings.redis_url, "a", "read")
    async with start(settings) as api:
        with connect(settings.redis_url) as store:
            store.delete("moca:{keys}:all", "moca:{keys}:version")
        await renewed(api, now)
        assert (await api.get("/v1/models")).status_code == 401


async def test_a_key_that_cannot_be_read_is_refused_alone(settings, start):
    broken = make_key(settings.redis_url, "broken", "read")
    good = make_key(settings.redis_url, "good", "read")
    with connect(settings.redis_url) as store:
        store.hset("moca:{keys}:all", broken.split("_")[1], b"\xc1")
    async with start(settings) as api:
        for token, status in ((broken, 401), (good, 200)):
            assert (await api.get("/v1/models", headers=bearer(token))).status_code == status
        assert (await api.get("/v1/models")).status_code == 401
        assert (await api.get("/livez")).status_code == 200


async def test_a_page_that_has_its_name_lead_here_needs_a_key(settings, worker, start, now):
    """DNS rebinding: to a browser the service is then a part of that page's site."""
    page = {"Host": "evil.example:8000"}
    async with start(settings) as api:
        problem(await api.get("/v1/streams", headers=page), 401, "unauthorized")
        problem(await api.post(POST, json={"y": 1.0}, headers=page), 401, "unauthorized")
        assert worker.commands == []
        assert (await api.get("/livez", headers=page)).status_code == 200
        for own in ("localhost", "127.0.0.1:8000", "[::1]:8000", "api"):
            assert (await api.get("/v1/streams", headers={"Host": own})).status_code == 200, own
        token = make_key(settings.redis_url, "behind-a-proxy", "read")
        await renewed(api, now)
        answer = await api.get("/v1/streams", headers={**page, **bearer(token)})
        assert answer.status_code == 200


async def test_names_that_are_said_are_answered_to_and_no_others(settings, worker, start):
    """Also by an open service, whose own machine's browsers may reach it."""
    names = "moca.example, Host.Docker.internal."
    hosts = {"moca.example:80": 200, "HOST.docker.internal:8000": 200, "localhost": 200}
    hosts |= {"internal.": 200, "a.moca.example": 401, "moca.example.evil": 401}
    async with start(settings, open_access=True, host_names=names) as api:
        for name, status in hosts.items():
            answer = await api.get("/v1/streams", headers={"Host": name})
            assert answer.status_code == status, name
    assert names_of(Settings(host_names=names)) == {"moca.example", "host.docker.internal"}
    assert names_of(Settings(open_access=True)) == names_of(Settings(host_names="*")) == {ANY}
    assert names_of(Settings()) == set()
