"""Contracts that hold for every call of the interface: what is refused, how, and that it is said.

Every refusal is a problem document that the OpenAPI document has for its call.
"""

import asyncio
import json
import re
from unittest.mock import AsyncMock

import pytest

from service import problems
from service.api.gateway.load_shedding import shed
from service.api.parsing.bodies import JSON
from service.api.parsing.samples import PROTOBUF
from service.api.routes import CALLS
from service.api_keys import OPEN, SCOPES
from service.problems import WaitTooLong
from service.store import keys
from tests.e2e.asking import publish
from tests.service.api.calls import (
    BY_NAME,
    WRONG,
    check_problem,
    openapi,
    operation,
    requests,
    wrong_request,
)
from tests.service.api.conftest import make_key, slug
from tests.waiting import until_async

ENDLESS = ("events", "follow_observations")


def with_body():
    return [each for each in requests() if each.call.has_body]


def with_json():
    return [each for each in with_body() if each.media == JSON]


def of_a_stream():
    return [each for each in requests() if "{stream}" in each.call.path]


def raising(error):
    return [each for each in requests() if error in each.call.raises]


def test_every_call_has_a_request_to_test_it_by():
    assert sorted(each.name for each in requests()) == sorted(BY_NAME)


async def test_without_a_key_every_call_but_the_probes_is_refused(settings, worker, start):
    async with start(settings, require_keys=True) as api:
        for each in requests():
            response = await each.send(api)
            if each.call.needs == OPEN:
                assert each.name in ("livez", "readyz")
                assert response.status_code == 200
                assert "security" not in operation(each.name)
                continue
            check_problem(each.name, response, 401, "unauthorized")
            assert response.headers["www-authenticate"].startswith("Bearer ")
            assert operation(each.name)["security"][0] == {"key": [each.call.needs]}
    assert worker.commands == []


async def test_a_key_with_all_scopes_but_the_one_needed_is_refused(settings, worker, start):
    tokens = {
        scope: make_key(settings.redis_url, scope, *(set(SCOPES) - {scope})) for scope in SCOPES
    }
    async with start(settings) as api:
        for each in requests():
            if each.call.needs == OPEN:
                continue
            token = tokens[each.call.needs]
            response = await each.send(api, Authorization=f"Bearer {token}")
            document = check_problem(each.name, response, 403, "missing-scope")
            assert document["scope"] == each.call.needs
            assert f'scope="{each.call.needs}"' in response.headers["www-authenticate"]
    assert worker.commands == []


def test_reads_need_read_and_changes_need_more():
    for call in CALLS:
        if call.method == "GET":
            assert call.needs in ("read", OPEN), call.path
        elif call.needs == "read":
            assert call.path.endswith(("/actions", "/predictions", "/what-if"))
    admin = {call.endpoint.__name__ for call in CALLS if call.needs == "admin"}
    assert admin == {"put_snapshot", "put_canary", "delete_canary", "move_streams"}


async def test_a_bad_stream_id_is_named(api, worker):
    for each in of_a_stream():
        path = each.call.path.replace("{event}", "1")
        for stream in ("a b", "%C3%A9", "a" * 201, "%2E"):
            url = path.replace("{stream}", stream)
            document = check_problem(each.name, await each.send(api, url=url), 422, "invalid-field")
            assert document["errors"][0]["loc"] == "path.stream"
    for stream in ("a%00", "a%2Fb", "..%2Fb", "a%0A"):
        response = await api.post(f"/v1/streams/{stream}/observations", json={"y": 1})
        assert response.json()["errors"][0]["loc"] == "path.stream"
    assert worker.commands == []
    longest = "AZaz09._:@~-" + "x" * 188
    answer = await api.post(f"/v1/streams/{longest}/observations", json={})
    assert answer.json()["stream"] == longest


async def test_an_unknown_stream_is_said_to_be_one(api, worker):
    for each in raising(problems.UnknownStream):
        place = re.search(r"/streams/([^/?]+)", each.url)
        url = each.url.replace(place[1], "nobody") if place else f"{each.url}&stream=nobody"
        check_problem(each.name, await each.send(api, url=url), 404, "unknown-stream")
    assert worker._heads == {}


async def test_an_unknown_model_is_said_to_be_one(api):
    for each in raising(problems.NotFound):
        url = re.sub(r"/models/[^/]+", "/models/nothing", each.url)
        check_problem(each.name, await each.send(api, url=url), 404, "not-found")


async def test_what_is_wrong_is_named_by_its_place(api, worker):
    await api.post("/v1/streams/pump-7/observations", json={"y": 1})  # to be followed
    worker.commands.clear()
    for each in requests():
        for place, values in WRONG.get(each.name, {}).items():
            for value in values:
                response = await each.send(api, **wrong_request(place, value))
                document = check_problem(each.name, response, 422, "invalid-field")
                assert [error["loc"] for error in document["errors"]] == [place], (place, value)
    assert worker.commands == []


async def test_an_unknown_query_parameter_is_named(api, worker):
    for each in requests():
        if any(place["in"] == "query" for place in operation(each.name).get("parameters", [])):
            url = each.url + ("&" if "?" in each.url else "?") + "nonsense=1"
            document = check_problem(each.name, await each.send(api, url=url), 422, "invalid-field")
            assert "query.nonsense" in [error["loc"] for error in document["errors"]]
    assert worker.commands == []


async def test_a_body_of_another_kind_is_refused(api, worker):
    for each in with_body():
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            headers = {"Content-Type": kind} if kind else {"Content-Type": "; charset=utf-8"}
            response = await each.send(api, **headers)
            check_problem(each.name, response, 415, "unsupported-media-type")
        if each.media != PROTOBUF:
            response = await each.send(api, **{"Content-Encoding": "br"})
            check_problem(each.name, response, 415, "unsupported-encoding")
            assert response.headers["accept-encoding"] == "gzip, deflate"
    assert worker.commands == []


async def test_a_body_over_the_limit_is_refused_whether_its_size_is_told_or_not(
    settings, worker, start
):
    taken = []

    async def pieces():
        for _ in range(100):
            taken.append(100)
            yield b" " * 100

    async with start(settings, max_body_bytes=2000, max_snapshot_bytes=2000) as api:
        for each in with_body():
            taken.clear()
            for content in (b" " * 2001, pieces()):
                response = await each.send(api, content=content)
                check_problem(each.name, response, 413, "body-too-large")
                assert response.headers["connection"] == "close"
            assert sum(taken) < 2500  # no more of it is read
            response = await each.send(api, content=b" " * 2000)
            assert response.status_code != 413, each.name
    assert worker.commands == []


async def test_a_body_that_is_not_json_is_refused(api, worker):
    bodies = (b"{", b'{"y": 1}}', b'{"y": 0x1}', b"\xff", b'{"y": "\xff"}', b"[" * 5000)
    for each in with_json():
        for content in bodies:
            listed = b"[" + content if each.name == "observe_many" else content
            response = await each.send(api, content=listed)
            document = check_problem(each.name, response, 400, "malformed-body")
            assert document["errors"][0]["loc"] == "body"
    assert worker.commands == []


async def test_an_unknown_field_and_one_that_is_no_object_are_named(api, worker):
    for each in with_json():
        # Each item for itself: see test_observations.py; and a protocol that passes over them.
        if each.name in ("observe_many", "write_metrics"):
            continue
        response = await each.send(api, content=b'{"nonsense": 1}')
        document = check_problem(each.name, response, 422, "invalid-field")
        assert "body.nonsense" in [error["loc"] for error in document["errors"]]
        response = await each.send(api, content=b"3")
        document = check_problem(each.name, response, 422, "invalid-field")
        assert [error["loc"] for error in document["errors"]] == ["body"]
    assert worker.commands == []


async def test_a_number_that_is_not_finite_is_named(api, worker):
    numbers = {
        "observe": '{"y": [1, %s]}',
        "put_stream": '{"location": [1, %s]}',
        "predict": '{"elapsed": %s}',
        "act": '{"candidates": [[1]], "elapsed": %s}',
        "put_run_length": '{"changepoint": %s}',
        "what_if": '{"settings": {"scale": %s}}',
        "put_canary": '{"version": "1", "share": %s}',
    }
    for each in with_json():
        for number in ("NaN", "-Infinity", "1e999", "1" + "0" * 400):
            if each.name in numbers:
                body = (numbers[each.name] % number).encode()
                response = await each.send(api, content=body)
                document = check_problem(each.name, response, 422, "invalid-field")
                assert len(document["errors"]) == 1, (each.name, number)
    assert worker.commands == []


def is_logged(each):
    """Whether it goes through the log, and is answered by a worker."""
    return problems.PartitionFull in each.call.raises


async def test_what_is_shed_was_not_accepted(api, worker, monkeypatch):
    def refuse(partition, now_s):
        shed(WaitTooLong("the estimated wait is too long", 3))

    monkeypatch.setattr(api.app.state.overload, "admit", refuse)
    for each in requests():
        if is_logged(each):
            response = await each.send(api)
            check_problem(each.name, response, 429, "wait-too-long")
            assert response.headers["retry-after"] == "3"
    assert worker.commands == []


async def test_without_a_worker_a_command_is_answered_at_its_deadline(settings, start, clock):
    async with start(settings) as api:
        logged = [each for each in requests() if is_logged(each)]
        sent = [asyncio.create_task(each.send(api)) for each in logged]
        pending = api.app.state.context.replies.pending
        await until_async(
            lambda: len(pending) == len(sent) and all(p.acknowledged for p in pending.values())
        )
        clock.advance(settings.request_deadline_s - 0.1)
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in sent)
        clock.advance(0.2)
        for each, task in zip(logged, sent, strict=True):
            changes = problems.NoAnswer in each.call.raises
            check_problem(each.name, await task, 504, "no-answer" if changes else "read-timeout")


async def test_without_a_store_every_call_that_needs_it_is_answered_503(
    lonely_store, settings, start, clock
):
    needless = {"livez", "list_models", "get_model", "read_file"}
    publish(settings.models_dir)
    async with start(settings, redis_url=lonely_store.url) as api:
        lonely_store.stop()
        await until_async(lambda: api.app.state.context.monitor.down_since)
        clock.advance(10)
        for each in requests():
            if each.name == "events":  # which goes on, and waits for the store
                continue
            response = await each.send(api)
            if each.name in needless:
                assert response.status_code == 200, each.name
                continue
            if each.name == "observe_many":  # each item for itself
                assert {item["status"] for item in response.json()} == {503}
                continue
            deferred = dict.fromkeys(("write_samples", "write_metrics"), "samples-deferred")
            named = {"readyz": "not-ready", **deferred}
            check_problem(each.name, response, 503, named.get(each.name, "redis-unavailable"))


async def test_stored_bytes_that_cannot_be_read_are_told_apart_from_none(api, store):
    store.hset(keys.heads(keys.partition_of("s", 4)), keys.settled_field("s"), b"\x00nonsense")
    for each in of_a_stream():
        if problems.CorruptState in each.call.raises and not is_logged(each):
            url = each.call.path.replace("{stream}", "s")
            check_problem(each.name, await each.send(api, url=url), 500, "corrupt-state")


async def test_what_the_router_refuses(api):
    missing = await api.get("/v2/streams")
    assert (missing.status_code, slug(missing)) == (404, "not-found")
    for each in requests():
        wrong = await api.patch(each.url)
        assert (wrong.status_code, slug(wrong)) == (405, "method-not-allowed")
        assert each.call.method in wrong.headers["allow"].split(", ")
        assert wrong.json()["detail"].endswith(f"; allowed: {wrong.headers['allow']}")


async def test_an_unexpected_error_is_a_problem_that_tells_nothing(api, monkeypatch, caplog):
    broken = AsyncMock(side_effect=RuntimeError("a bug"))
    monkeypatch.setattr(api.app.state.context.gateway, "submit", broken)
    for name, response in (
        ("run_length", await api.get("/v1/streams/s/run-length")),
        ("observe", await api.post("/v1/streams/s/observations", json={"y": 1})),
    ):
        document = check_problem(name, response, 500, "internal-error")
        assert document["request_id"] == response.headers["x-request-id"]
        assert "a bug" not in response.text
        assert f"request {document['request_id']} failed" in caplog.text
    assert "a bug" in caplog.text


async def test_request_ids_are_kept_if_they_are_harmless(api):
    kept = await api.get("/livez", headers={"X-Request-Id": "abc-1"})
    assert kept.headers["x-request-id"] == "abc-1"
    assert (await api.get("/livez", headers={"X-Request-Id": "x" * 64})).headers[
        "x-request-id"
    ] == "x" * 64
    for harmful in ("a b", "x" * 65, ""):
        made = (await api.get("/livez", headers={"X-Request-Id": harmful})).headers["x-request-id"]
        assert made != harmful
        assert len(made) == 16


def test_openapi_describes_every_call():
    document = openapi()
    assert len([op for path in document["paths"].values() for op in path]) == len(CALLS)
    for call in CALLS:
        described = operation(call.endpoint.__name__)
        assert described["summary"], call.path
        assert described["description"], call.path
        places = {each["name"]: each["in"] for each in described.get("parameters", [])}
        assert set(re.findall(r"{(\w+)}", call.path)) == {
            name for name, place in places.items() if place == "path"
        }
        assert ("requestBody" in described) == call.has_body
    for name in ENDLESS:
        assert list(operation(name)["responses"]["200"]["content"]) == ["text/event-stream"]
        named = {each["name"] for each in operation(name)["parameters"]}
        assert "Last-Event-ID" in named
    used = {part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
    assert used <= set(document["components"]["schemas"])
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
async def test_the_pages_of_the_interface_need_no_other_server(api, page):
    text = (await api.get(page)).text
    loaded = re.findall(r"(?:src|href|url)[=:] *[\"']([^\"']+)", text)
    assert len(loaded) >= 2
    for each in loaded:
        assert each.startswith("/"), each
        assert (await api.get(each)).status_code == 200
