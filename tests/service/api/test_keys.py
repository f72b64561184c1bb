"""Keys over real HTTP: who is let in, who is not, and what each is told."""

import asyncio
import os
import time

import httpx
import pytest

from service.api.routes.table import CALLS
from service.api_keys import OPEN, SCOPES
from service.runtime.access_policy import ANY, names_of
from service.settings import Settings
from service.store.api_keys import USED, Keyring
from service.store.connection import connect
from tests.service.api.real import make_key, moca

STREAM = "/v1/streams/s"
POST = f"{STREAM}/observations"


def problem(response, status, slug):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"].endswith(f"/{slug}"), response.text
    return response


def test_without_keys_this_machine_calls_freely_until_the_first_key(real_api):
    api = real_api(key_cache_s=0.4)
    with api.client() as client:
        assert client.post(POST, json={"y": 1.0}).status_code == 200
        token = make_key(api.redis_url, "first", "read", "write")
        time.sleep(0.6)
        refused = problem(client.post(POST, json={"y": 1.0}), 401, "unauthorized")
        assert refused.headers["www-authenticate"] == 'Bearer realm="moca"'
        # Revoking the last key must not open it again.
        with connect(api.redis_url) as redis:
            Keyring(redis).revoke("first")
        time.sleep(0.6)
        problem(client.get("/v1/streams"), 401, "unauthorized")
    with api.client(token) as client:
        assert "is revoked" in problem(client.get(STREAM), 401, "unauthorized").json()["detail"]


def test_scopes(real_api):
    api = real_api(require_keys=1)
    with api.client() as client:
        for path in ("/livez", "/readyz", "/metrics", "/openapi.json"):
            assert client.get(path).status_code == 200, path
        for path in ("/v1/models", "/v1/streams"):
            problem(client.get(path), 401, "unauthorized")
    reader = make_key(api.redis_url, "reader", "read")
    writer = make_key(api.redis_url, "writer", "write")
    time.sleep(5.1)  # the default, as users have it
    with api.client(writer) as client:
        assert client.post(POST, json={"y": 1.0}).status_code == 200
        refused = problem(client.get(STREAM), 403, "missing-scope")
        assert refused.json()["scope"] == "read"
        assert 'scope="read"' in refused.headers["www-authenticate"]
    with api.client(reader) as client:
        assert client.get(STREAM).json()["seq"] == 1
        assert client.post(f"{STREAM}/predictions", json={}).status_code == 200
        for response in (client.post(POST, json={"y": 1.0}), client.delete(STREAM)):
            assert problem(response, 403, "missing-scope").json()["scope"] == "write"
        assert client.get(STREAM).json()["seq"] == 1


def test_wrong_keys(real_api):
    api = real_api(require_keys=1, key_cache_s=0.2)
    token = make_key(api.redis_url, "a", "read")
    other = make_key(api.redis_url, "b", "read")
    time.sleep(0.4)
    mixed = token[:18] + other[18:]
    wrong = [f"Bearer {mixed}", f"Bearer {token[:-1]}", f"Bearer {token}x", "Bearer", "Bearer é"]
    wrong += [f"Bearer {token.upper()}", f"Basic {token}", token, ""]
    with api.client() as client:
        for sent in wrong:
            headers = {"Authorization": sent.encode("latin-1")}
            refused = problem(client.get("/v1/streams", headers=headers), 401, "unauthorized")
            assert "error=" in refused.headers["www-authenticate"], sent
            assert token[18:] not in refused.text
        good = {"Authorization": f"bearer  {token}"}
        assert client.get("/v1/streams", headers=good).status_code == 200
    expires_ms = time.time_ns() // 1_000_000 + 3000
    brief = make_key(api.redis_url, "brief", "read", expires_ms=expires_ms)
    time.sleep(0.3)
    with api.client(brief) as client:
        assert client.get("/v1/streams").status_code == 200
        time.sleep(max(0.0, expires_ms / 1000 + 0.1 - time.time()))
        assert "is expired" in problem(client.get("/v1/streams"), 401, "unauthorized").text


def test_revoking_takes_effect_within_the_time_of_the_cache(real_api):
    api = real_api(require_keys=1, key_cache_s=1.0)
    token = make_key(api.redis_url, "a", "read")
    with api.client(token) as client:
        time.sleep(1.1)
        assert client.get("/v1/streams").status_code == 200
        with connect(api.redis_url) as redis:
            Keyring(redis).revoke("a")
        revoked, statuses = time.monotonic(), []
        while time.monotonic() < revoked + 1.0:
            statuses.append(client.get("/v1/streams").status_code)
            time.sleep(0.02)
        assert client.get("/v1/streams").status_code == 401
        assert statuses == sorted(statuses)  # once refused, refused


def test_a_key_over_its_rate(real_api):
    api = real_api(require_keys=1, key_cache_s=0.2, key_rate="1000/hour")
    slow = make_key(api.redis_url, "slow", "read", rate="5/minute")
    usual = make_key(api.redis_url, "usual", "read")
    free = make_key(api.redis_url, "free", "read", rate="none")
    time.sleep(0.4)
    with api.client(slow) as client:
        statuses = [client.get("/v1/models").status_code for _ in range(8)]
        assert statuses == [200] * 5 + [429] * 3
        refused = problem(client.get("/v1/models"), 429, "rate-exceeded")
        assert refused.headers["ratelimit-policy"] == '"key";q=5;w=60'
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.headers["ratelimit"] == f'"key";r=0;t={refused.headers["retry-after"]}'
    for token in (usual, free):
        with api.client(token) as client:
            assert {client.get("/v1/models").status_code for _ in range(8)} == {200}
    with connect(api.redis_url) as redis:
        names = " ".join(name.decode() for name in redis.scan_iter("moca:rate:*"))
    usual_id, free_id = usual.split("_")[1], free.split("_")[1]
    assert usual_id in names
    assert free_id not in names  # no rate, no round trip


def test_a_rate_is_shared_by_all_api_processes(settings, worker, tmp_path):
    from tests.e2e.deployment import Processes
    from tests.service.api.real import RealApi

    token = make_key(settings.redis_url, "a", "read", rate="6/minute")
    groups = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        groups.append(Processes(tmp_path / name, {}))
    try:
        apis = [RealApi(group, settings) for group in groups]
        statuses = []
        for _ in range(5):
            for api in apis:
                with api.client(token) as client:
                    statuses.append(client.get("/v1/models").status_code)
        assert statuses == [200] * 6 + [429] * 4
    finally:
        for group in groups:
            group.stop_all()


def test_when_a_key_was_used_is_known_coarsely(real_api):
    api = real_api(key_cache_s=0.2)
    token = make_key(api.redis_url, "a", "read")
    make_key(api.redis_url, "idle", "read")
    time.sleep(0.4)
    with api.client(token) as client:
        assert client.get("/v1/models").status_code == 200
    time.sleep(0.4)
    listed = moca("keys", "list", "--redis-url", api.redis_url, **os.environ).stdout
    assert token[18:] not in listed
    used, idle = (next(ln for ln in listed.splitlines() if f" {n} " in ln) for n in ("a", "idle"))
    assert idle.rstrip().endswith("never")
    assert not used.rstrip().endswith("never")
    with connect(api.redis_url) as redis:
        assert [int(each) % 60 for each in redis.hvals(USED)] == [0]


def test_an_open_service_still_checks_a_key_that_is_sent(real_api):
    api = real_api(open_access=1, key_cache_s=0.2)
    token = make_key(api.redis_url, "reader", "read")
    time.sleep(0.4)
    with api.client() as client:
        assert client.post(POST, json={"y": 1.0}).status_code == 200
    with api.client(token) as client:
        problem(client.post(POST, json={"y": 1.0}), 403, "missing-scope")
    with api.client(token[:-1]) as client:
        problem(client.get(STREAM), 401, "unauthorized")


def test_metrics_can_be_closed(real_api):
    api = real_api(require_keys=1, metrics_key_required=1, key_cache_s=0.2)
    token = make_key(api.redis_url, "prometheus", "read")
    time.sleep(0.4)
    assert httpx.get(f"{api.url}/metrics").status_code == 401
    with api.client(token) as client:
        assert "moca_redis_up" in client.get("/metrics").text


async def test_without_the_store_keys_are_known_for_their_time_and_then_503(
    lonely_store, settings, start
):
    token = make_key(lonely_store.url, "a", "read", "write")
    away = settings.model_copy(update={"redis_url": lonely_store.url, "key_cache_s": 0.5})
    headers = {"Authorization": f"Bearer {token}"}
    with lonely_store.worker():
        async with start(away) as client:
            assert (await client.get("/v1/models", headers=headers)).status_code == 200
            lonely_store.stop()
            await asyncio.sleep(0.8)
            refused = await client.get("/v1/models", headers=headers)
            problem(refused, 503, "redis-unavailable")
            assert refused.headers["retry-after"] == "1"
            lonely_store.start()
            assert (await client.get("/v1/models", headers=headers)).status_code == 200


async def test_a_store_that_loses_its_keys_does_not_open_the_service(settings, start):
    make_key(settings.redis_url, "a", "read")
    async with start(settings.model_copy(update={"key_cache_s": 0.1})) as client:
        with connect(settings.redis_url) as redis:
            redis.delete("moca:{keys}:all", "moca:{keys}:version")
        await asyncio.sleep(0.3)
        assert (await client.get("/v1/models")).status_code == 401


async def test_a_key_that_cannot_be_read_is_refused_alone(settings, start):
    broken = make_key(settings.redis_url, "broken", "read")
    good = make_key(settings.redis_url, "good", "read")
    with connect(settings.redis_url) as redis:
        redis.hset("moca:{keys}:all", broken.split("_")[1], b"\xc1")
    async with start(settings) as client:
        for token, status in ((broken, 401), (good, 200), (None, 401)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            assert (await client.get("/v1/models", headers=headers)).status_code == status
        assert (await client.get("/livez")).status_code == 200


def test_every_call_says_what_it_needs():
    needs = {(call.method, call.path): call.needs for call in CALLS}
    assert set(needs.values()) <= {OPEN, *SCOPES}
    assert [path for (_, path), need in needs.items() if need == OPEN] == ["/livez", "/readyz"]
    for (method, path), need in needs.items():
        assert method != "GET" or need in {"read", OPEN}, path
        assert method not in {"PUT", "DELETE"} or need in {"write", "admin"}, path
    changes_nothing = [
        path for (method, path), n in needs.items() if method == "POST" and n == "read"
    ]
    assert {path.rpartition("/")[2] for path in changes_nothing} == {
        "actions",
        "predictions",
        "what-if",
    }


async def test_openapi_says_which_scope_a_call_needs(settings, start, worker):
    async with start(settings.model_copy(update={"require_keys": True})) as client:
        document = (await client.get("/openapi.json")).json()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for call in CALLS:
        operation = document["paths"][call.path][call.method.lower()]
        if call.needs == OPEN:
            assert "security" not in operation
        else:
            assert operation["security"][0] == {"key": [call.needs]}
            assert {"401", "403"} <= set(operation["responses"])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("key_rate", ["fast", "0/second", "10", "1/second;5/minute"])
def test_a_rate_that_is_none_is_refused(key_rate):
    said = moca("serve", MOCA_KEY_RATE=key_rate, PATH=os.environ["PATH"])
    assert said.returncode == 2
    assert "--key-rate (MOCA_KEY_RATE)" in said.stderr


def test_a_page_that_has_its_name_lead_here_needs_a_key(real_api):
    """DNS rebinding: to a browser the service is then a part of that page's site."""
    page = {"Host": "evil.example:8000"}
    api = real_api(key_cache_s=0.2)
    with api.client() as client:
        refused = problem(client.get("/v1/streams", headers=page), 401, "unauthorized")
        assert "a dotless name" in refused.json()["detail"]
        problem(client.post(POST, json={"y": 1.0}, headers=page), 401, "unauthorized")
        assert client.get("/v1/streams").json()["streams"] == []
        assert client.get("/livez", headers=page).status_code == 200
        token = make_key(api.redis_url, "behind-a-proxy", "read")
        time.sleep(0.6)
        named = {**page, "Authorization": f"Bearer {token}"}
        assert client.get("/v1/streams", headers=named).status_code == 200


def test_an_open_service_answers_to_every_name(real_api):
    with real_api(open_access=1).client() as client:
        assert client.get("/v1/streams", headers={"Host": "moca.example"}).status_code == 200


def test_names_that_are_said_are_answered_to_and_no_others(real_api):
    """Also by an open service, whose own machine's browsers may reach it."""
    names = "moca.example, Host.Docker.internal."
    with real_api(open_access=1, host_names=names).client() as client:
        for name in ("moca.example:80", "HOST.docker.internal:8000", "localhost", "api:8000"):
            assert client.get("/v1/streams", headers={"Host": name}).status_code == 200, name
        for name in ("evil.example", "a.moca.example", "internal.", "moca.example.evil"):
            said = client.get("/v1/streams", headers={"Host": name})
            assert said.status_code == (200 if "." not in name.rstrip(".") else 401), name
    assert names_of(Settings(host_names=names)) == {"moca.example", "host.docker.internal"}
    assert names_of(Settings(open_access=True)) == names_of(Settings(host_names="*")) == {ANY}
    assert names_of(Settings()) == set()
