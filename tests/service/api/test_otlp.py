"""Metrics of OpenTelemetry: what becomes of points, of bodies that are none, and the answers."""

import gzip
import json
import random
import time

import pytest
from google.protobuf import json_format
from msgspec.structs import replace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from service import wire
from service.api.parsing import samples
from service.api.parsing.bodies import JSON
from service.api.parsing.samples import MOST_PARTS, PROTOBUF, parse_metrics
from service.problems import BodyTooLarge, RedisUnavailable
from service.wire import tags
from tests.service.api.conftest import slug
from tests.service.api.test_prometheus import each_by, outcome

MS = 1_767_225_600_000
NS = MS * 1_000_000
MEDIA = (PROTOBUF, JSON)


def attribute(owner, key, **value):
    added = owner.attributes.add(key=key).value
    for name, member in value.items():
        setattr(added, name, member)


def gauge(name="queue.length", value=7.0, ns=NS, resource=(), **attributes):
    """A request of one gauge."""
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add()
    for key, text in dict(resource).items():
        attribute(metrics.resource, key, string_value=text)
    metric = metrics.scope_metrics.add().metrics.add(name=name)
    point = metric.gauge.data_points.add(time_unix_nano=ns, as_double=value)
    for key, text in attributes.items():
        attribute(point, key, string_value=text)
    return request


def body_of(request, media):
    if media == PROTOBUF:
        return request.SerializeToString()
    return json_format.MessageToJson(request).encode()


def series(request, most=1000):
    """What is parsed, which is the same of both forms."""
    parsed, other = (parse_metrics(body_of(request, media), media, most) for media in MEDIA)
    assert parsed == other
    return parsed


@pytest.fixture
def post(api, monkeypatch):
    """Post a request, or a body, of whose commands `submit` says what comes."""

    async def post(request, media=PROTOBUF, submit=lambda _: outcome(applied=1), **headers):
        monkeypatch.setattr(api.app.state.context.gateway, "submit_rows", each_by(submit))
        content = request if isinstance(request, bytes) else body_of(request, media)
        headers = {"Content-Type": media, **headers}
        return await api.post("/v1/metrics", content=content, headers=headers)

    return post


def test_attributes_of_resource_and_point_are_labels_and_the_points_own_count_first():
    resource = {"service.name": "shop", "service.instance.id": "a-1", "host.name": "one"}
    starts = {"process.pid": "4711", "telemetry.sdk.version": "1.2"}
    request = gauge(resource=resource | starts, queue="mail", **{"host.name": "two"})
    (metrics,) = request.resource_metrics
    (point,) = metrics.scope_metrics[0].metrics[0].gauge.data_points
    attribute(point, "busy", bool_value=True)
    attribute(point, "shard", int_value=-3)
    attribute(point, "share", double_value=0.5)
    attribute(point, "__name__", string_value="another")  # the metric's name is its own
    point.attributes.add(key="list").value.array_value.values.add(string_value="x")
    parsed = series(request)
    ((labels, samples),) = parsed.series
    assert dict(zip(labels[::2], labels[1::2], strict=True)) == {
        "__name__": "queue.length",
        "busy": "true",
        "host.name": "two",
        "instance": "a-1",
        "job": "shop",
        "queue": "mail",
        "shard": "-3",
        "share": "0.5",
    }
    assert (samples, parsed.samples, parsed.refusals) == ([(7.0, MS)], 1, [])


def test_gauges_and_sums_are_taken_and_of_others_is_said_why_not():
    request = gauge(value=float("nan"))
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    total = metrics.add(name="total")
    total.sum.aggregation_temporality = 2
    total.sum.data_points.add(time_unix_nano=NS + 1_999_999, as_int=-(2**60))
    metrics.add(name="none").gauge.data_points.add(time_unix_nano=NS, as_int=1, flags=1)
    metrics.add(name="empty").gauge.data_points.add(time_unix_nano=NS)
    metrics.add(name="never").gauge.data_points.add(as_int=1)
    metrics.add().gauge.data_points.add(time_unix_nano=NS, as_int=1)
    for _ in range(2):
        metrics.add(name="h").histogram.data_points.add(count=2, bucket_counts=[1, 1])
    metrics.add(name="e").exponential_histogram.data_points.add(count=2)
    metrics.add(name="s").summary.data_points.add(count=2)
    parsed = series(request)
    taken = {labels[1]: samples for labels, samples in parsed.series}
    assert taken == {
        "queue.length": [(None, MS)],
        "total": [(-float(2**60), MS + 1)],
        "none": [(None, MS)],
    }
    reasons = [reason for _, reason in parsed.refusals]
    assert parsed.samples == 3 + len(reasons) == 10
    for reason, hint in zip(
        reasons,
        ("a value", "the time", "a name", *["histogram or summary becomes no stream"] * 4),
        strict=True,
    ):
        assert hint in reason


def test_more_than_a_request_may_have_is_refused(monkeypatch):
    def filled(count, attributes=0):
        request = gauge()
        metric = request.resource_metrics[0].scope_metrics[0].metrics[0]
        for i in range(count - 1):
            metric.gauge.data_points.add(time_unix_nano=NS + i, as_int=1)
        for i in range(attributes):
            attribute(metric.gauge.data_points[0], f"a{i}", string_value="x")
        return request

    assert series(filled(3, tags.MAX_TAGS - 1), 3).samples == 3
    assert series(filled(1, tags.MAX_TAGS), 3).refusals[0][0] == 1
    for media in MEDIA:
        with pytest.raises(BodyTooLarge, match="at most 3 data points .* send_batch_max_size"):
            parse_metrics(body_of(filled(4), media), media, 3)
    for number, part in ((1, "resources"), (2, "scopes"), (2, "metrics")):
        whole = bytes([number << 3 | 2, 0]) * 4
        for outer in range(("resources", "scopes", "metrics").index(part), 0, -1):
            whole = bytes([outer << 3 | 2, len(whole)]) + whole
        with pytest.raises(BodyTooLarge, match=f"at most 3 {part}"):
            parse_metrics(whole, PROTOBUF, 3)
    monkeypatch.setattr(samples, "_decode_json", None)
    monkeypatch.setattr(samples._otlp, "classes", {})
    with pytest.raises(BodyTooLarge, match="parts in a request"):
        parse_metrics(b"\x0a\x00" * (3 * MOST_PARTS + 1), PROTOBUF, 3)
    with pytest.raises(BodyTooLarge, match="objects"):
        parse_metrics(b"{" * (2 * 3 * tags.MAX_TAGS + 1), JSON, 3)


def test_attributes_of_a_resource_are_read_once_however_many_points_share_them(monkeypatch):
    request = gauge()
    (metrics,) = request.resource_metrics
    for i in range(59):
        metrics.scope_metrics[0].metrics[0].gauge.data_points.add(time_unix_nano=NS + i, as_int=1)
    for i in range(1000):
        attribute(metrics.resource, "host.name", string_value=str(i))
    read = []
    text_of = samples._attribute_text
    monkeypatch.setattr(
        samples, "_attribute_text", lambda value: read.append(value) or text_of(value)
    )
    parsed = parse_metrics(request.SerializeToString(), PROTOBUF, 60)
    assert {labels for labels, _ in parsed.series} == {
        ("__name__", "queue.length", "host.name", "999")
    }
    assert (parsed.samples, len(read)) == (60, 1000)
    for i in range(tags.MAX_TAGS):
        attribute(metrics.resource, f"a{i}", string_value="x")
    parsed = series(request, 60)
    assert [(count, "at most 32 labels" in why) for count, why in parsed.refusals] == [
        (1, True)
    ] * 60


async def test_a_point_becomes_an_observation_of_a_stream_with_its_tags(post):
    sent = []

    def submit(command):
        sent.append(command)
        return outcome(applied=1)

    request = gauge(resource={"service.name": "shop", "service.instance.id": "a-1"}, queue="mail")
    for media in MEDIA:
        packed = gzip.compress(body_of(request, media))
        answer = await post(packed, media, submit, **{"Content-Encoding": "gzip"})
        assert (answer.status_code, answer.headers["content-type"]) == (200, media)
        assert answer.content == (b"" if media == PROTOBUF else b"{}")
    first, second = sent
    assert second == replace(first, settings=wire.AS_IT_IS)  # of a stream that is there now
    assert first.stream.startswith("queue.length@a-1~")
    (seen,) = first.observations
    assert (seen.y, seen.time) == (7.0, "2026-01-01T00:00:00.000+00:00")
    named = {"__name__": "queue.length", "instance": "a-1", "job": "shop", "queue": "mail"}
    assert wire.settings_of(first)["tags"] == named


async def test_what_can_never_be_taken_is_a_partial_success(post):
    request = gauge()
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    metrics.add(name="x" * 600).gauge.data_points.add(time_unix_nano=NS, as_int=1)
    ahead_ns = time.time_ns() + 3600 * 10**9
    metrics.add(name="ahead").gauge.data_points.add(time_unix_nano=ahead_ns, as_int=1)
    metrics.add(name="h").histogram.data_points.add(count=2)
    answer = await post(request)
    partial = ExportMetricsServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, partial.rejected_data_points) == (200, 3)
    assert "3 of 4 samples cannot be taken" in partial.error_message
    partial = (await post(request, JSON)).json()["partialSuccess"]
    assert (partial["rejectedDataPoints"], "3 of 4" in partial["errorMessage"]) == ("3", True)


async def test_what_is_not_taken_now_is_to_be_sent_again(post):
    def submit(command):
        raise RedisUnavailable("gone")

    answer = await post(gauge(), submit=submit)
    assert (answer.status_code, slug(answer)) == (503, "samples-deferred")
    assert answer.headers["retry-after"] == "1"


async def test_bodies_that_are_no_request_are_answered_400_and_none_500(post, api):
    chance = random.Random(5)
    full = gauge(resource={"service.name": "shop"}, queue="mail")
    full.resource_metrics[0].scope_metrics[0].metrics.add(name="h").histogram.data_points.add()
    refused = dict.fromkeys(MEDIA, 0)
    for media in MEDIA:
        good = body_of(full, media)
        for _ in range(400):
            body = bytearray(good)
            for _ in range(chance.randrange(1, 6)):
                at = chance.randrange(len(body))
                if chance.random() < 0.5:
                    body[at] = chance.randrange(256)
                else:
                    del body[at : at + chance.randrange(1, 9)]
                    body += b"x"
            answer = await post(bytes(body), media)
            assert answer.status_code in (200, 400), (body, answer.text)
            refused[media] += answer.status_code == 400
        metric = b'{"metrics":[{"summary":{"dataPoints":[0,0]}}]}'  # points that are no objects
        points = b'{"resourceMetrics":[{"scopeMetrics":[' + metric + b"]}]}"
        for body in (
            b"\xff" * 9,
            good[:-1],
            b"[" * 100_000,
            b"x",
            b'{"resourceMetrics": 3}',
            points,
        ):
            answer = await post(body, media)
            assert (answer.status_code, slug(answer)) == (400, "malformed-body"), body[:50]
        assert (await post(b"" if media == PROTOBUF else b"{}", media)).status_code == 200
    assert min(refused.values()) > 50


@pytest.mark.parametrize(
    "point",
    [
        {"timeUnixNano": "soon", "asInt": "1"},
        {"timeUnixNano": "9" * 5000, "asInt": "1"},
        {"timeUnixNano": "9" * 40, "asInt": "1"},
        {"timeUnixNano": NS, "asInt": "one"},
        {"timeUnixNano": NS, "asInt": 10**400},
        {"timeUnixNano": NS, "asDouble": "much"},
        {"timeUnixNano": -5, "asDouble": 1},
        {"timeUnixNano": NS, "asDouble": 1, "attributes": [{"key": "\0", "value": {}}] * 40},
        {"timeUnixNano": NS, "asDouble": 1e300},
    ],
)
async def test_numbers_in_text_that_are_none_are_rejected_one_by_one(post, point):
    good = {"timeUnixNano": str(NS), "asDouble": "2.5"}
    metric = {"name": "m", "sum": {"dataPoints": [point, good]}, "unknown": [{"a": None}]}
    body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}
    answer = await post(json.dumps(body).encode(), JSON)
    expected = "0" if "attributes" in point else "1"
    assert answer.status_code == 200, answer.text
    assert answer.json().get("partialSuccess", {}).get("rejectedDataPoints", "0") == expected
