"""Every call of the REST interface with a good request of it, and what its documentation allows."""

from __future__ import annotations

import functools
import json
import re
from typing import NamedTuple
from urllib.parse import urlencode

import jsonschema
import msgspec
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from service import wire
from service.api.app import create_app
from service.api.openapi import all_examples, of_call
from service.api.parsing.bodies import ARROW, BYTES, JSON
from service.api.parsing.samples import PROTOBUF
from service.api.routes import CALLS
from service.api.routes.calls import ApiCall
from service.problems import PROBLEM_JSON, TYPE_PREFIX
from service.settings import Settings
from service.wire import Id, snapshot
from service.wire.event_entries import Positions
from tests.remote_write import V2, version_2

BY_NAME = {call.endpoint.__name__: call for call in CALLS}


class Asked(NamedTuple):
    """A call, and a request of it that its form accepts."""

    call: ApiCall
    name: str
    url: str
    headers: dict[str, str]
    content: bytes | None

    @property
    def media(self):
        return self.headers.get("Content-Type", "").partition(";")[0]

    async def send(self, api, url=None, query="", content=msgspec.UNSET, **headers):
        """Send it, with another address, query, body or headers."""
        url = f"{self.url.partition('?')[0]}?{query}" if query else url or self.url
        body = self.content if content is msgspec.UNSET else content
        headers = {**self.headers, **headers}
        return await api.request(self.call.method, url, content=body, headers=headers)


def packed(table, **options):
    """An Arrow IPC stream of a table, or of columns."""
    pa = pytest.importorskip("pyarrow")
    table = pa.table(table) if isinstance(table, dict) else table
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def request_of(example, snapshot, samples):
    """The request of an example, with bytes that it does not have: snapshots, messages."""
    call = BY_NAME[example.call]
    url = call.path.format(**example.path) + (f"?{example.query}" if example.query else "")
    headers = {"Content-Type": example.media} if call.has_body else {}
    content = None
    if isinstance(example.body, str):
        content = example.body.encode()
    elif example.body is not msgspec.UNSET:
        content = json.dumps(example.body).encode()
    if example.media == PROTOBUF:
        if example.call == "write_metrics":
            (form,) = (other.body for other in of_call("write_metrics") if other.media == JSON)
            message = json_format.ParseDict(form, ExportMetricsServiceRequest())
            content = message.SerializeToString()
        else:
            headers, content = V2, version_2(samples)
    if example.media == BYTES and call.has_body:
        content = snapshot
    if example.media == ARROW:
        streams = {"stream": ["flow", "flow"]} if "stream" not in example.path else {}
        content = packed(streams | {"y": [1.5, 1.7]})
    return Asked(call, example.call, url, headers, content)


@functools.cache
def requests():
    """One request of each call, as its first example has it."""
    head = wire.Head(1, wire.StreamSettings())
    blob = snapshot.dump(snapshot.StreamSnapshot("s", None, head, None, [], [], {}))
    by_call = {}
    for example in all_examples():
        asked = request_of(example, blob, ({"__name__": "x"}, [(1.0, 1_767_225_600_000)]))
        by_call.setdefault(example.call, asked)
    return list(by_call.values())


# Values that are wrong, by the place that is named: of settings, and of the calls.
SETTINGS = {
    "body.hazard": [0, 1, "0.1", [], [0, 0.0], [0.5] * 65],
    "body.hazard.mean": [{"mean": 0.99, "shape": 1}, {"mean": 10_001, "shape": 1}],
    "body.hazard.shape": [{"mean": 5}, {"mean": 5, "shape": 0.0009}],
    "body.hazard.sd": [{"mean": 5, "shape": 1, "sd": 1}],
    "body.hazard[0]": [[True]],
    "body.hazard[1]": [[0.5, 1.5]],
    "body.classes": [1, 1001, 2.5],
    "body.order": [-1, 33],
    "body.trend": [1],
    "body.seasonal": [1],
    "body.season": [1, 10_001],
    "body.max_hypotheses": [1, 2001, None],
    "body.outlier_rate": [1],
    "body.confirm_after": [0],
    "body.min_shift": [-1, 1e101],
    "body.anomaly_alarm": [0.5, 1],
    "body.false_alarm_every": [0.49, 1],
    "body.warmup": [201],
    "body.history": [100_001],
    "body.interval": [0.0009],
    "body.ttl": [0.9],
    "body.label_window": [1001],
    "body.location": [[], True, [0.0] * 257],
    "body.scale": [0],
    "body.scale[1]": [[1, -1]],
    "body.model": ["", "../x"],
    "body.lifetime": [3],
}  # fmt: skip
PLACES = ["x", "-2", "1@", "@1", "1@x", "1.5", "9" * 17, "é", "1@1@1", "٣"]
CURSOR = Positions([0], 8, {0: Id(5, 5)}).text()  # of another number of partitions
WRONG = {
    "put_stream": SETTINGS,
    "what_if": {f"body.settings.{place[5:]}": values[:1] for place, values in SETTINGS.items()},
    "predict": {
        "body.x": [[], [[1]] * 1001],
        "body.x[0]": [[[]], [1], [[1.0] * 257]],
        "body.quantiles": [[0.5] * 100],
        "body.quantiles[0]": [[0], [9e-7], [0.9999991]],
        "body.samples": [1001, -1],
        "body.horizon": [0, 101],
        "body.components": [1],
        "body.seed": [2**63],
        "body.elapsed": [0],
    },
    "observe": {
        "query.belief": ["perhaps"],
        "header.idempotency-key": ["", "a b", "é", "k" * 201, "a\tb"],
    },
    "exclude": {
        "body.event": [0, 1.5],
        "body.start": [-1],
        "body.end": ["1"],
        "body.excluded": [1],
    },
    "show_calendar": {
        "query.since": ["yesterday"],
        "query.until": ["2020"],
        "query.stream": ["a b"],
    },
    "exclude_incident": {"body.excluded": [0], "query.kind[0]": ["anomaly"]},
    "changepoints": {"query.kind[0]": ["point"], "query.wait": ["perhaps"]},
    "list_changes": {
        "query.match[0]": ['{a=~"(("}'],
        "query.since": ["yesterday"],
        "query.until": ["2024-05"],
        "query.state[0]": ["gone"],
        "query.model[0]": ["a@b@c"],
        "query.min_size": [-1, "nan"],
        "query.min_probability": [1.01],
        "query.sort": ["stream"],
        "query.limit": [501],
        "query.around": [101, -1],
        "query.format": ["xml"],
        "query.cursor": ["x"],
    },
    "list_incidents": {
        "query.match[0]": ['{a=~"(("}'],
        "query.since": ["yesterday"],
        "query.until": ["2024-05"],
        "query.kind[0]": ["anomaly"],
        "query.model[0]": ["a@b@c"],
        "query.min_streams": [1],
        "query.min_size": [-1],
        "query.format": ["xml"],
        "query.sort": ["size"],
        "query.limit": [501],
        "query.cursor": ["x"],
    },
    "get_incident": {"query.explain": ["perhaps"], "query.around": [101]},
    "overview": {"query.limit": [101], "query.labels": [65], "query.sort": ["size"]},
    "list_streams": {"query.limit": [0, 1001, "x"], "query.match[0]": ["{a=b}"]},
    "events": {
        "query.after": ["x", "é", "A" * 9999, CURSOR],
        "header.last-event-id": ["x", "é", "A" * 9999, CURSOR],
        "query.state[0]": ["new"],
        "query.stream[0]": ["a b"],
        "query.model[0]": ["a/b"],
        "query.kind[0]": ["else"],
        "query.incidents": ["perhaps"],
        "query.match[0]": ["{site=north}"],
    },
    "follow_observations": {
        "query.after": PLACES,
        "header.last-event-id": PLACES,
        "query.state": ["perhaps"],
    },
    "readyz": {"query.partitions": ["none"]},
}


def wrong_request(place, value):
    """What a request has, beside what is good, to be wrong there: `send` of `Asked` takes it."""
    kind, _, field = place.partition(".")
    name = re.match(r"[\w-]+", field)[0]
    if kind == "query":
        return {"query": urlencode({name: value})}
    if kind == "header":
        return {name: value.encode()}
    body = {name: value}
    if name == "settings":
        body = {name: {re.match(r"\w+", field.partition(".")[2])[0]: value}}
    return {"content": json.dumps(body).encode()}


@functools.cache
def openapi():
    """The OpenAPI document."""
    return create_app(Settings(redis_url="redis://localhost")).openapi()


def operation(name, document=None):
    """What the document says of a call."""
    call = BY_NAME[name]
    return (document or openapi())["paths"][call.path][call.method.lower()]


def check(schema, value, document=None):
    """Check that a value fits a schema of the document."""
    whole = {**schema, "components": (document or openapi())["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


def check_problem(name, response, status, slug):
    """Check a problem document: its form, and that the call's documentation has it."""
    assert response.status_code == status, (name, response.text)
    assert response.headers["content-type"] == PROBLEM_JSON, name
    document = response.json()
    assert document["type"] == TYPE_PREFIX + slug, (name, document)
    assert document["status"] == status, name
    assert document["title"], name
    assert document["detail"], name
    assert all(error["loc"] and error["detail"] for error in document.get("errors", []))
    described = operation(name)["responses"][str(status)]
    content = described["content"][PROBLEM_JSON]
    assert slug in content["examples"], (name, slug)
    check(content["schema"], document)
    if status in (429, 503, 504):
        assert int(response.headers["retry-after"]) > 0, name
        assert "Retry-After" in described["headers"], name
    return document
