"""Remote writes under overload: Prometheus drops what is answered 429, and repeats after 503."""

import time

import msgspec
import pytest

from model_core import labels as model_labels
from service import wire
from service.api.gateway import remote_write
from service.api.gateway.remote_write import StreamWrite, Tally
from service.api.parsing import remote_samples
from service.errors.base import (
    LabelOutOfRange,
    NumericalFault,
    OutcomeUnknown,
    PartitionFull,
    RedisUnavailable,
    ServiceError,
    UnknownModel,
    WaitTooLong,
)
from service.models.canary import Canary
from tests.remote_write import V2, version_2
from tests.service.api.real import make_key

SERIES = [({"__name__": "x", "instance": each}, [(1.0, 1000), (2.0, 100_000)]) for each in "abc"]
WRITTEN = "x-prometheus-remote-write-samples-written"


async def write(api):
    return await api.post("/v1/prometheus/write", content=version_2(*SERIES), headers=V2)


@pytest.mark.parametrize("error", [WaitTooLong("too long"), PartitionFull("full")])
async def test_what_is_not_admitted_is_to_be_sent_again(api, monkeypatch, error):
    def refuse(command):
        raise error

    monkeypatch.setattr(api.app.state.context.gateway, "admit", refuse)
    answer = await write(api)
    assert (answer.status_code, answer.headers[WRITTEN]) == (503, "0")
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["deferred"] == 6
    assert answer.json()["type"].endswith("/samples-deferred")


@pytest.mark.parametrize(
    "error", [PartitionFull("full"), OutcomeUnknown("?"), RedisUnavailable("")]
)
async def test_what_is_refused_in_part_is_to_be_sent_again(api, monkeypatch, error):
    async def submit(command, begun, patience):
        if command.stream.startswith("x@b"):
            raise error
        body = b'{"applied":2,"skipped":0}'
        return type("Outcome", (), {"status": 200, "body": [body]})

    monkeypatch.setattr(api.app.state.context.gateway, "submit", submit)
    answer = await write(api)
    assert (answer.status_code, answer.headers[WRITTEN]) == (503, "4")
    assert answer.json()["deferred"] == 2


def test_a_key_needs_the_scopes_of_other_posts_and_reads(real_api):
    api = real_api(require_keys=1, key_cache_s=0.4)
    reader = make_key(api.redis_url, "reader", "read")
    writer = make_key(api.redis_url, "writer", "write")
    time.sleep(0.6)
    body, results = version_2(), "/v1/prometheus/results"
    for token, wrote, read in ((None, 401, 401), (reader, 403, 200), (writer, 204, 403)):
        with api.client(token) if token else api.client() as client:
            sent = client.post("/v1/prometheus/write", content=body, headers=V2)
            assert (sent.status_code, client.get(results).status_code) == (wrote, read)


async def test_only_streams_of_full_partitions_are_deferred(api, monkeypatch):
    gateway = api.app.state.context.gateway
    streams = []
    monkeypatch.setattr(gateway, "partition", lambda stream: int(stream.startswith("x@b")))

    def admit(command):
        if gateway.partition(command.stream):
            raise PartitionFull("full")

    async def submit(command, begun, patience):
        streams.append(command.stream)
        return type("Outcome", (), {"status": 200, "body": [b'{"applied":2,"skipped":0}']})

    monkeypatch.setattr(gateway, "admit", admit)
    monkeypatch.setattr(gateway, "submit", submit)
    answer = await write(api)
    assert (answer.status_code, answer.json()["deferred"], answer.headers[WRITTEN]) == (503, 2, "4")
    assert sorted(stream[:3] for stream in streams) == ["x@a", "x@c"]


class Worker:
    """A gateway whose stream takes labels that are not negative, one after another."""

    def __init__(self, refusal=None):
        self.last, self.commands, self._refusal = "", 0, refusal

    def partition(self, stream):
        return 0

    def patience(self):
        return None

    def admit(self, command):
        pass

    async def submit(self, command, begun, patience):
        self.commands += 1
        if self._refusal is not None:
            raise self._refusal
        applied = skipped = 0
        for seen in command.observations:
            if seen.time <= self.last:
                skipped += 1
            elif seen.y < 0:
                raise LabelOutOfRange("negative", applied=applied)
            else:
                self.last = seen.time
                applied += 1
        body = msgspec.json.encode({"applied": applied, "skipped": skipped})
        return type("Outcome", (), {"status": 200, "body": [body]})


async def counts_of(worker, values, size=1000):
    seen = [wire.Observation(y, None, f"{i:05}") for i, y in enumerate(values)]
    tally = Tally()
    await remote_write.run(worker, [StreamWrite("s", {}, seen, size)], tally)
    assert sum(tally.counts.values()) == len(values)
    return tally.counts


async def test_a_refused_part_is_halved_and_what_it_had_applied_is_not_skipped():
    worker, values = Worker(), [1.0] * 1000
    values[700] = -1.0
    counts = await counts_of(worker, values)
    assert (counts["applied"], counts["skipped"], counts["rejected"]) == (999, 0, 1)
    assert worker.commands < 25
    assert (await counts_of(worker, values))["skipped"] == 1000  # sent again


async def test_refusals_of_a_stream_are_not_looked_for_sample_by_sample():
    refusal: ServiceError = UnknownModel("no such model")
    worker = Worker(refusal)
    assert (await counts_of(worker, [1.0] * 1000, size=100))["rejected"] == 1000
    assert worker.commands == 1
    worker = Worker()
    counts = await counts_of(worker, [-1.0] * 1000)
    assert (counts["rejected"], counts["untried"]) == (20, 980)
    assert worker.commands < 100


async def test_labels_that_a_worker_left_out_are_rejected(api, monkeypatch):
    async def submit(command, begun, patience):
        body = b'{"applied":1,"skipped":0,"rejected":1,"reason":"y: expected 0 or 1, got 2"}'
        return type("Outcome", (), {"status": 200, "body": [body]})

    monkeypatch.setattr(api.app.state.context.gateway, "submit", submit)
    answer = await write(api)
    assert (answer.status_code, answer.headers[WRITTEN]) == (400, "3")
    assert (answer.json()["rejected"], answer.json()["untried"]) == (3, 0)
    assert "y: expected 0 or 1, got 2" in answer.json()["detail"]


async def test_samples_that_were_not_tried_are_counted_as_such(api, monkeypatch):
    async def submit(command, begun, patience):
        raise NumericalFault("not finite")

    monkeypatch.setattr(api.app.state.context.gateway, "submit", submit)
    monkeypatch.setattr(remote_write, "MAX_REFUSED", 1)
    answer = await write(api)
    assert (answer.status_code, answer.headers[WRITTEN]) == (400, "0")
    assert (answer.json()["rejected"], answer.json()["untried"]) == (3, 3)
    assert "3 more were not tried" in answer.json()["detail"]


async def test_bad_samples_are_rejected_one_by_one(api, monkeypatch):
    sent = []

    async def submit(command, begun, patience):
        sent.extend(seen.y for seen in command.observations)
        return type("Outcome", (), {"status": 200, "body": [b'{"applied":2,"skipped":0}']})

    monkeypatch.setattr(api.app.state.context.gateway, "submit", submit)
    now = int(time.time() * 1000)
    late, future = 10**17, now + 660_000
    samples = [(1.0, now), (2.0, late), (3.0, -(10**17)), (4.0, future), (1e101, now), (5.0, now)]
    samples.append((6.0, now + 540_000))
    body = version_2(({"__name__": "x"}, samples))
    answer = await api.post("/v1/prometheus/write", content=body, headers=V2)
    assert (answer.status_code, answer.json()["rejected"]) == (400, 4)
    assert f"sample with timestamp {late}" in answer.json()["detail"]
    assert sent == [1.0, 5.0, 6.0]


def test_the_bound_of_values_is_that_of_models():
    assert model_labels.LARGEST == remote_samples.MAX_LABEL


async def test_a_canary_is_chosen_for_the_model_of_a_rule(api, worker, monkeypatch):
    context = api.app.state.context
    monkeypatch.setattr(context.gateway._monitor, "canaries", {"pump": Canary("2", 1.0)})
    monkeypatch.setattr(context.gateway._catalogue, "usable", lambda name: ["1", "2"])
    for settings in ({"model": "pump"}, {"model": "pump@1"}, {}):
        seen = wire.Observation(1.0, None, "2026-01-01T00:00:00Z")
        await context.gateway.submit(wire.Ingest("s", [seen], settings=settings))
    assert [envelope.chosen for envelope in worker.envelopes] == ["pump@2", None, None]
