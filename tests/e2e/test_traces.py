"""Traces of real processes, as a collector gets them."""

import asyncio
import secrets
import statistics
import time
from collections import Counter

import httpx
import pytest

from tests.e2e.collector import Collector
from tests.ports import free_port

BELOW = {"queue", "compute", "commit", "reply"}  # `ingest`
NAMES = {"POST /v1/streams/{stream}/observations", "ingest", *BELOW}
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "100"}


@pytest.fixture
def collector():
    found = Collector()
    yield found
    found.stop()


def start(serve, processes, endpoint, **settings):
    processes.environment |= QUICK | settings | {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    return serve()


def traceparent(sampled=True):
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return trace, span, {"traceparent": f"00-{trace}-{span}-{int(sampled):02x}"}


def post(url, stream="a", headers=None):
    path = f"{url}/v1/streams/{stream}/observations"
    response = httpx.post(path, json={"y": 1.0}, headers=headers, timeout=30)
    assert response.status_code == 200, response.text


def check_whole(spans):
    """One trace of one observation: right spans, right parents, rising times."""
    assert Counter(span.name for span in spans) == Counter(NAMES)
    by_name = {span.name: span for span in spans}
    assert len({span.trace for span in spans}) == 1
    (request,) = (span for span in spans if span.name.startswith("POST "))
    ingest = by_name["ingest"]
    assert ingest.parent == request.id
    assert {by_name[name].parent for name in BELOW} == {ingest.id}
    worker = {by_name[name].pid for name in BELOW - {"reply"}}
    assert len(worker) == 1
    assert {request.pid, ingest.pid, by_name["reply"].pid}.isdisjoint(worker)
    assert {by_name[name].service for name in ("queue", "compute", "commit")} == {"moca-worker"}
    assert {request.service, ingest.service, by_name["reply"].service} == {"moca-api"}
    assert all(span.begin <= span.end for span in spans)
    order = [by_name[name] for name in ("queue", "compute", "commit")]
    assert [span.end for span in order] == sorted(span.end for span in order)
    assert order[0].end == order[1].begin
    assert request.begin <= ingest.begin <= ingest.end <= by_name["reply"].end <= request.end
    assert not any(span.failed for span in spans)
    assert request.attributes["http.response.status_code"] == 200
    assert by_name["compute"].attributes["moca.status"] == 200
    assert by_name["commit"].attributes["moca.result"] == "OK"
    return request, ingest


def test_an_observation_is_one_trace_over_both_processes(serve, processes, collector):
    url = start(serve, processes, collector.url, MOCA_TRACE="true")
    post(url)
    trace, span, headers = traceparent()
    post(url, headers=headers)
    post(url, headers=traceparent(sampled=False)[2])
    post(url, headers={"traceparent": "00-" + "0" * 32 + "-zz-01"})
    spans = collector.wait(len(NAMES))
    request, ingest = check_whole(spans)
    assert (request.trace, request.parent) == (trace, span)
    assert ingest.attributes["moca.stream"] == "a"
    assert ingest.attributes["moca.command"] == "Observe"


def test_each_of_a_batch_keeps_its_own_trace(serve, processes, collector):
    """Twenty requests at once, every other one sampled, that the worker takes together."""
    url = start(serve, processes, collector.url, MOCA_TRACE="true", MOCA_PARTITIONS="1")
    post(url)
    traced = [traceparent() for _ in range(10)]
    every = [each[2] if i % 2 else {} for each in traced for i in range(2)]

    async def run():
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            sent = (
                client.post(f"/v1/streams/s-{i}/observations", json={"y": 1.0}, headers=headers)
                for i, headers in enumerate(every)
            )
            return await asyncio.gather(*sent)

    assert {response.status_code for response in asyncio.run(run())} == {200}
    spans = collector.wait(10 * len(NAMES))
    assert {span.trace for span in spans} == {trace for trace, _, _ in traced}
    for i, (trace, span, _) in enumerate(traced):
        request, ingest = check_whole([each for each in spans if each.trace == trace])
        assert request.parent == span
        assert ingest.attributes["moca.stream"] == f"s-{2 * i + 1}"
    commits = {(span.begin, span.end) for span in spans if span.name == "commit"}
    assert len(commits) < 10, "no two were committed together"


def test_items_of_one_request_are_below_it(serve, processes, collector):
    url = start(serve, processes, collector.url, MOCA_TRACE_SHARE="1")
    collector.wait(0)
    before = {span.trace for span in collector.spans}  # of the look at /readyz
    items = [{"stream": f"s-{i}", "y": 1.0} for i in range(3)]
    assert httpx.post(f"{url}/v1/observations", json=items, timeout=30).status_code == 200
    spans = [s for s in collector.wait(len(collector.spans) + 16) if s.trace not in before]
    spans = [span for span in spans if span.name not in {"GET /readyz", "GET /metrics"}]
    (request,) = (span for span in spans if span.name == "POST /v1/observations")
    assert request.parent == ""
    ingests = [span for span in spans if span.name == "ingest"]
    assert {span.parent for span in ingests} == {request.id}
    assert {span.attributes["moca.stream"] for span in ingests} == {"s-0", "s-1", "s-2"}
    for each in ingests:
        assert {span.name for span in spans if span.parent == each.id} == BELOW


def test_nothing_is_sent_unless_asked_for(serve, processes, collector):
    url = start(serve, processes, collector.url)
    for _ in range(5):
        post(url, headers=traceparent()[2])
    processes.stop_all()
    assert collector.requests == 0


@pytest.mark.slow
def test_a_collector_that_is_down_costs_no_request(serve, processes):
    down = f"http://127.0.0.1:{free_port()}"
    url = start(
        serve, processes, down, MOCA_TRACE_SHARE="1", OTEL_BSP_MAX_QUEUE_SIZE="64",
        OTEL_BSP_MAX_EXPORT_BATCH_SIZE="32",
    )  # fmt: skip
    seconds = []
    with httpx.Client(base_url=url, timeout=30) as client:
        for _ in range(300):
            began = time.monotonic()
            assert client.post("/v1/streams/a/observations", json={"y": 1.0}).status_code == 200
            seconds.append(time.monotonic() - began)
    assert statistics.median(seconds) < 0.1
    began = time.monotonic()
    processes.stop_all()
    assert time.monotonic() - began < 15
    lines = [line for line in processes.log_of("serve").splitlines() if " traces: " in line]
    assert 1 <= len(lines) <= 2, lines  # one of each process
    text = processes.log_of("serve")
    assert "Traceback" not in text
    assert "opentelemetry" not in text
