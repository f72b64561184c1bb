"""POST observations to one stream."""

import json

import pytest

from service.api.parsing.msgspec_forms import LONGEST
from service.api.parsing.observations import digest, list_digest
from service.store import append

POST = "/v1/streams/s/observations"
JSON = {"Content-Type": "application/json"}


async def problem(response, status, slug):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["type"].endswith("/" + slug)
    assert document["status"] == status
    return document


async def test_one_observation_is_answered_as_one(api):
    response = await api.post(POST, json={"y": 1.5})
    assert response.status_code == 200
    assert response.json() == {
        "stream": "s",
        "seq": 0,
        "model": "gaussian@1",
        "y": 1.5,
        "duplicate": False,
    }
    assert (await api.post(POST, json={"y": None})).json()["seq"] == 1
    assert (await api.post(POST, json={})).json()["seq"] == 2


async def test_everything_of_an_observation_reaches_the_worker(api, worker):
    sent = {
        "y": [1, 2.5],
        "x": [0.5],
        "time": "2024-02-29T12:00:00.123456789+05:30",
        "elapsed": 2,
        "supervision": {"changepoint": 0.25},
        "seq": 0,
    }
    response = await api.post(POST, params={"belief": "true"}, json=sent)
    assert response.json()["belief"] is True
    command = worker.commands[-1]
    assert (command.stream, command.seq, command.belief, command.key) == ("s", 0, True, None)
    found = command.observations[0]
    assert found.y == [1.0, 2.5]
    assert found.x == [0.5]
    assert (found.time, found.elapsed, found.changepoint) == (sent["time"], 2.0, 0.25)


async def test_a_null_in_a_label_is_a_missing_output(api, worker):
    """One of nulls alone is a missing label, however it comes."""
    await api.post(POST, json={"y": [1, None, 2.5]})
    assert worker.commands[-1].observations[0].y == [1.0, None, 2.5]
    await api.post(POST, json=[{"y": [None, 3]}, {"y": [None, None]}, {"y": [None]}])
    assert [each.y for each in worker.commands[-1].observations] == [[None, 3.0], None, None]
    items = json.dumps([{"stream": "s", "y": [1, None]}, {"stream": "t", "y": [None, None]}])
    # What is too long for msgspec is read by pydantic.
    for body in (items, items.replace('"y"', " " * LONGEST + '"y"')):
        response = await api.post("/v1/observations", content=body, headers=JSON)
        assert response.status_code == 200, response.text
        posted = {each.stream: each.observations[0].y for each in worker.commands[-2:]}
        assert posted == {"s": [1.0, None], "t": None}
    await api.post(POST, json={"y": [None, None], "pending": True})
    seen = worker.commands[-1].observations[0]
    assert (seen.y, seen.pending) == (None, True)
    document = await problem(
        await api.post(POST, json={"y": [None, 1], "pending": True}), 422, "invalid-field"
    )
    assert document["errors"][0]["loc"] == "body.pending"


async def test_a_list_goes_in_parts_and_is_answered_as_a_list(api, worker):
    response = await api.post(POST, json=[{"y": 1}] * 1100, headers={"Idempotency-Key": "k"})
    assert [answer["seq"] for answer in response.json()] == list(range(1100))
    commands = worker.commands
    assert [len(command.observations) for command in commands] == [512, 512, 76]
    assert [command.first for command in commands] == [0, 512, 1024]
    assert len({(command.key, command.digest) for command in commands}) == 1
    assert (await api.post(POST, json=[])).json() == []


def test_a_list_of_several_parts_is_not_taken_for_one_in_other_parts():
    body = b"[...]"
    assert list_digest(body, 32, 512) == list_digest(body, 32, 32) == digest(body)
    assert len({digest(body), list_digest(body, 33, 512), list_digest(body, 33, 20)}) == 3


async def test_a_list_again_with_its_key_is_answered_from_memory(api, worker):
    body, key = [{"y": i} for i in range(40)], {"Idempotency-Key": "again"}
    first = (await api.post(POST, json=body, headers=key)).json()
    second = (await api.post(POST, json=body, headers=key)).json()
    assert second == [{**answer, "duplicate": True} for answer in first]
    await problem(await api.post(POST, json=body[:-1], headers=key), 422, "key-reused")


async def test_expected_positions(api, worker):
    body = [{"y": i, "seq": i} for i in range(600)]
    assert (await api.post(POST, json=body)).status_code == 200
    assert [command.seq for command in worker.commands] == [0, 512]
    document = await problem(await api.post(POST, json={"y": 1, "seq": 7}), 409, "seq-conflict")
    assert document["seq"] == 600
    apart = await api.post(POST, json=[{"y": 1, "seq": 600}, {"y": 1, "seq": 602}])
    gap = await problem(apart, 422, "invalid-field")
    assert gap["errors"][0]["loc"] == "body[1].seq"
    assert (await api.post(POST, json=[{"y": 1}, {"y": 1, "seq": 601}])).status_code == 200


async def test_a_list_refused_part_way_says_what_was_applied(api):
    body = [{"y": i} for i in range(40)]
    body[35]["y"] = 666
    document = await problem(await api.post(POST, json=body), 422, "label-out-of-range")
    assert document["applied"] == 35
    assert [answer["seq"] for answer in document["answers"]] == list(range(35))
    assert (await api.post(POST, json={"y": 0})).json()["seq"] == 35


@pytest.mark.parametrize(
    ("body", "loc", "detail"),
    [
        ('{"y": NaN}', "body.y", "finite"),
        ('{"y": Infinity}', "body.y", "finite"),
        ('{"y": 1e999}', "body.y", "finite"),
        ('{"y": 1' + "0" * 400 + "}", "body.y", "finite"),
        ('{"y": [1, -1e999]}', "body.y[1]", "finite"),
        ('{"y": [1, NaN]}', "body.y[1]", "finite"),
        ('{"y": [null, "1"]}', "body.y[1]", "number"),
        ('{"y": [null, {"a": 1}]}', "body.y[1]", "number"),
        ('{"y": "1"}', "body.y", "number"),
        ('{"y": true}', "body.y", "number"),
        ('{"y": []}', "body.y", "at least 1"),
        ('{"y": [[1]]}', "body.y[0]", "number"),
        ('{"x": 1}', "body.x", "array"),
        ('{"x": [1, null]}', "body.x[1]", "number"),
        ('{"x": ' + str([0] * 257) + "}", "body.x", "at most 256"),
        ('{"y": ' + str([0] * 257) + "}", "body.y", "at most 256"),
        ('[{"y": 1}, {"y": ' + str([0] * 257) + "}]", "body[1].y", "at most 256"),
        ('{"y": 1, "elapsed": 0}', "body.elapsed", "greater than 0"),
        ('{"y": 1, "elapsed": 1e999}', "body.elapsed", "finite"),
        ('{"y": 1, "supervision": {"changepoint": 1.5}}', "body.supervision.changepoint", "1"),
        ('{"y": 1, "supervision": {}}', "body.supervision.changepoint", "required"),
        ('{"y": 1, "supervision": {"p": 1}}', "body.supervision.p", "unknown field"),
        ('{"y": 1, "time": "yesterday"}', "body.time", "RFC 3339"),
        ('{"y": 1, "time": "2024-02-30T00:00:00Z"}', "body.time", "invalid time"),
        ('{"y": 1, "time": "2024-02-03 00:00:00"}', "body.time", "RFC 3339"),
        ('{"y": 1, "seq": -1}', "body.seq", "greater than or equal to 0"),
        ('{"y": 1, "z": 2}', "body.z", "unknown field"),
        ('[{"y": 1}, {"Y": 2}]', "body[1].Y", "unknown field"),
        ("3", "body", "object"),
    ],
)
async def test_a_wrong_form_is_refused_by_name(api, worker, body, loc, detail):
    response = await api.post(POST, content=body, headers={"Content-Type": "application/json"})
    document = await problem(response, 422, "invalid-field")
    assert [error["loc"] for error in document["errors"]][-1] == loc
    assert detail in document["errors"][-1]["detail"]
    assert len({error["loc"] for error in document["errors"]}) == len(document["errors"])
    assert worker.commands == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"y": 1}}', b'{"y": 0x1}', b"\xff", b'{"y": "\xff"}', b"[" * 5000]
)
async def test_a_body_that_is_not_json(api, body):
    response = await api.post(POST, content=body, headers={"Content-Type": "application/json"})
    document = await problem(response, 400, "malformed-body")
    assert document["errors"][0]["loc"] == "body"


async def test_duplicate_names_are_json(api):
    headers = {"Content-Type": "application/json; charset=utf-8"}
    response = await api.post(POST, content=b'{"y": 1, "y": 2}', headers=headers)
    assert response.json()["y"] == 2


async def test_content_types(api):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/x-ndjson"):
        response = await api.post(POST, content=b'{"y": 1}', headers={"Content-Type": kind})
        assert kind in (await problem(response, 415, "unsupported-media-type"))["detail"]
    await problem(await api.post(POST, content=b'{"y": 1}'), 415, "unsupported-media-type")


async def test_bodies_and_lists_are_bounded(settings, worker, start):
    small = settings.model_copy(update={"max_body_bytes": 2000, "max_observations": 3})
    async with start(small) as api:

        async def chunks():
            for _ in range(30):
                yield b" " * 100

        headers = {"Content-Type": "application/json"}
        known = await api.post(POST, content=b" " * 2001, headers=headers)
        await problem(known, 413, "body-too-large")
        assert known.headers["connection"] == "close"
        await problem(
            await api.post(POST, content=chunks(), headers=headers), 413, "body-too-large"
        )
        document = await problem(await api.post(POST, json=[{}] * 4), 422, "invalid-field")
        assert document["errors"] == [
            {"loc": "body", "detail": "expected at most 3 observations per request, got 4"}
        ]
        assert (await api.post(POST, json=[{}] * 3)).status_code == 200


async def test_wide_observations_go_in_smaller_parts(settings, worker, start, monkeypatch):
    monkeypatch.setattr(append, "MAX_ENTRY_BYTES", 16384)
    async with start(settings) as api:
        body = [{"x": [0.1] * 200} for _ in range(20)]
        assert len((await api.post(POST, json=body)).json()) == 20
        assert {len(command.observations) for command in worker.commands} == {4}
        await problem(
            await api.post("/v1/streams/s/predictions", json={"x": [[0.1] * 200] * 20}),
            413,
            "body-too-large",
        )


@pytest.mark.parametrize(("outputs", "part"), [(1, 512), (30, 58), (64, 12), (256, 1)])
async def test_wide_labels_go_in_parts_whose_answers_are_small(api, worker, outputs, part):
    """Each is answered with a covariance: 32 of 256 outputs would be 40 MB in one outcome."""
    count = part + 4
    assert len((await api.post(POST, json=[{"y": [0.5] * outputs}] * count)).json()) == count
    assert max(len(command.observations) for command in worker.commands) == part


@pytest.mark.parametrize(
    "stream", ["a b", "a%00", "%C3%A9", "a" * 201, "a%2Fb", "..%2Fb", "a%0A", "%2E"]
)
async def test_forbidden_stream_ids(api, worker, stream):
    response = await api.post(f"/v1/streams/{stream}/observations", json={"y": 1})
    document = await problem(response, 422, "invalid-field")
    assert document["errors"][0]["loc"] == "path.stream"
    assert worker.commands == []


async def test_allowed_stream_ids(api):
    stream = "AZaz09._:@~-" + "x" * 188
    assert (await api.post(f"/v1/streams/{stream}/observations", json={})).json()[
        "stream"
    ] == stream


@pytest.mark.parametrize("key", ["", "a b", "é", "k" * 201, "a\tb"])
async def test_forbidden_keys(api, key):
    response = await api.post(POST, json={}, headers={"Idempotency-Key": key.encode()})
    document = await problem(response, 422, "invalid-field")
    assert document["errors"][0]["loc"] == "header.idempotency-key"


async def test_unknown_query_parameters(api):
    response = await api.post(POST, json={}, params={"believe": "true"})
    document = await problem(response, 422, "invalid-field")
    assert document["errors"] == [{"loc": "query.believe", "detail": "unknown field"}]
    response = await api.post(POST, json={}, params={"belief": "perhaps"})
    assert (await problem(response, 422, "invalid-field"))["errors"][0]["loc"] == "query.belief"


async def test_many_wrong_fields_are_named_up_to_a_bound(api):
    document = await problem(await api.post(POST, json=[{"z": 1}] * 100), 422, "invalid-field")
    assert len(document["errors"]) == 20
    assert "and 19 more" in document["detail"]
    assert json.dumps(document)
