"""The OpenAPI document is true: its examples fit their schemas and are what the service does."""

import copy
import functools
import json
import re

import httpx
import msgspec
import pytest
from fastapi.openapi.utils import get_openapi

from service import problems
from service.api.app import create_app
from service.api.openapi import all_examples, answers
from service.api.parsing.bodies import ARROW, BYTES
from service.api.routes import CALLS
from service.problems import PROBLEM_JSON, problem_types
from service.settings import Settings
from tests.e2e.asking import answer_of, play
from tests.service.api.calls import BY_NAME, check, check_problem, openapi, operation
from tests.waiting import PATIENCE_S

OPEN_SCHEMAS = {"Problem"}  # may have further members


@functools.cache
def closed():
    """The document, with answers that have no more than what is described."""
    document = copy.deepcopy(openapi())
    for name, schema in document["components"]["schemas"].items():
        if schema.get("type") == "object" and name not in OPEN_SCHEMAS:
            schema.setdefault("additionalProperties", False)
    return document


def contents():
    """Every media type of every request and answer, with where it is."""
    for name in BY_NAME:
        each = operation(name)
        for media, content in each.get("requestBody", {}).get("content", {}).items():
            yield f"{name} body {media}", content
        for status, response in each["responses"].items():
            for media, content in response.get("content", {}).items():
                yield f"{name} {status} {media}", content


def test_every_body_and_answer_and_schema_has_examples_that_fit_it():
    for where, content in contents():
        examples = content.get("examples", {})
        assert examples, where
        for example in examples.values():
            lines = where.endswith("body application/x-ndjson")
            values = map(json.loads, example["value"].splitlines()) if lines else [example["value"]]
            for value in values:
                check(content["schema"], value)
    for schema in openapi()["components"]["schemas"].values():
        for example in schema.get("examples", []):
            check(schema, example)
    assert {each.call for each in all_examples()} == set(BY_NAME)
    names = [(each.call, each.name) for each in all_examples()]
    assert len(set(names)) == len(names)


def test_calls_document_the_errors_that_they_declare():
    for call in CALLS:
        documented = {
            (int(status), slug)
            for status, response in operation(call.endpoint.__name__)["responses"].items()
            for slug in response.get("content", {}).get(PROBLEM_JSON, {}).get("examples", {})
        }
        assert documented == {(error.status, error.slug) for error in call.raises}, call.path
    declared = {error for call in CALLS for error in call.raises}
    assert set(problem_types()) - declared == {  # come before any call, or are of an item
        problems.EarlierItemFailed,
        problems.MethodNotAllowed,
        problems.TooManyConnections,
    }


def test_no_form_has_the_name_of_an_answer():
    """One would stand in the place of the other."""
    shown = answers(call.answer for call in CALLS if call.answer is not None)
    routes = create_app(Settings(redis_url="redis://localhost")).routes
    forms = get_openapi(title="forms", version="1", routes=routes)["components"]["schemas"]
    assert "StreamForm" in forms
    assert not set(shown) & set(forms)


@pytest.fixture(scope="module")
def played(service_url):
    with httpx.Client(base_url=service_url, timeout=PATIENCE_S) as client:
        yield client, list(play(client))


def shape(value):
    """What kind of thing a value is: names and types, of lists the first."""
    if isinstance(value, dict):
        keys = value if not all(re.fullmatch(r"[\d.]+", key) for key in value) else {}
        return {key: shape(value[key]) for key in keys}
    if isinstance(value, list):
        return [shape(each) for each in value[:1]]
    return "number" if type(value) in (int, float) else type(value).__name__


def test_every_example_is_answered_as_described(played):
    for each, response in played[1]:
        assert response.status_code == each.status, response.text
        answer = answer_of(response)
        if answer is msgspec.UNSET:
            assert each.answer is msgspec.UNSET
            continue
        media = response.headers["content-type"].partition(";")[0]
        documents = (openapi(), closed())
        if each.call == "observe_many":  # an item is one of two kinds, told apart by its status
            documents = (openapi(),)
        for document in documents:
            described = operation(each.call, document)["responses"][str(each.status)]
            check(described["content"][media]["schema"], answer, document)
        if media not in (BYTES, ARROW):
            # As text: in the same order, too.
            assert json.dumps(shape(answer)) == json.dumps(shape(each.answer)), (
                f"{each.call}: {each.summary}: record anew: python -m tests.e2e.asking URL"
            )


# What a call without a worker answers is in tests/service/api/test_contracts.py.
PROVOKED = [
    ("unknown-event", "judge", {"stream": "pump-7", "event": 99}, {"json": {"change": True}}),
    ("unknown-regime", "name_regime", {"stream": "mill", "regime": 99}, {"json": {"name": "idle"}}),
    ("seq-conflict", "observe", {"stream": "pump-7"}, {"json": {"y": 1, "seq": 999}}),
    ("seq-conflict", "put_run_length", {"stream": "pump-7"},
     {"json": {"changepoint": 0.5, "seq": 999}}),
    ("not-awaited", "observe", {"stream": "strict"}, {"json": {"pending": True}}),
    ("dimension-mismatch", "observe", {"stream": "pump-7"}, {"json": {"y": [1, 2]}}),
    ("dimension-mismatch", "act", {"stream": "ad"}, {"json": {"candidates": [[1]]}}),
    ("dimension-mismatch", "predict", {"stream": "ad"}, {"json": {"x": [[1]]}}),
    ("label-out-of-range", "observe", {"stream": "coin"}, {"json": {"y": 7}}),
    ("label-out-of-range", "move_stream", {"stream": "pump-7"}, {"json": {"model": "poisson"}}),
    ("unknown-model", "put_stream", {"stream": "new"}, {"json": {"model": "pump"}}),
    ("unknown-model", "what_if", {"stream": "pump-7"}, {"json": {"settings": {"model": "pump"}}}),
    ("unknown-model", "move_stream", {"stream": "pump-7"}, {"json": {"model": "pump"}}),
    ("unfit-settings", "put_stream", {"stream": "new"}, {"json": {"model": "categorical"}}),
    ("settings-conflict", "put_stream", {"stream": "pump-7"}, {"json": {"model": "poisson"}}),
    ("unfit-model", "act", {"stream": "pump-7"}, {"json": {"candidates": [[1.0]]}}),
    ("unfit-model", "predict", {"stream": "ad"}, {"json": {"horizon": 2}}),
    ("warming-up", "act", {"stream": "cold"}, {"json": {"candidates": [[1.0]]}}),
    ("warming-up", "judge", {"stream": "cold", "event": 1}, {"json": {"change": True}}),
    ("warming-up", "predict", {"stream": "cool"}, {"json": {"horizon": 2}}),
    ("warming-up", "put_run_length", {"stream": "cold"},
     {"json": {"belief": [{"run_length": 0, "probability": 1.0}]}}),
    ("unfit-belief", "put_run_length", {"stream": "pump-7"},
     {"json": {"belief": [{"run_length": 999, "probability": 1.0}]}}),
    ("not-retained", "report_change", {"stream": "pump-7"}, {"json": {"start": 999}}),
    ("unfit-snapshot", "put_snapshot", {"stream": "new"},
     {"content": b"no", "kind": "octet-stream"}),
    ("stream-exists", "put_snapshot", {"stream": "pump-7"}, {"kind": "octet-stream"}),
    ("time-backwards", "observe", {"stream": "timed"},
     {"json": [{"y": 1, "time": f"2024-05-01T{hour}:00:00Z"} for hour in (12, 11)]}),
]  # fmt: skip


def test_a_provoked_problem_is_one_that_the_call_is_said_to_have(played):
    client, answered = played
    for stream, settings in (
        ("cold", {"model": "linear"}),
        ("cool", {"model": "gaussian"}),
        ("timed", {"model": "gaussian", "interval": 60}),
        ("strict", {"label_window": 0}),
    ):
        client.put(f"/v1/streams/{stream}", json=settings)
    client.post("/v1/streams/cold/observations", json={"x": [1.0], "y": 1.0})
    client.post("/v1/streams/cool/observations", json={"y": 1.0})
    (blob,) = [response.content for each, response in answered if each.call == "get_snapshot"]
    for slug, call, path, request in PROVOKED:
        sent = dict(request)
        if "kind" in sent:
            kind = {"Content-Type": f"application/{sent.pop('kind')}"}
            sent = {"content": blob, **sent, "headers": kind}
        response = client.request(BY_NAME[call].method, BY_NAME[call].path.format(**path), **sent)
        check_problem(call, response, response.status_code, slug)
