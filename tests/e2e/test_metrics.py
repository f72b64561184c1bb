"""What Prometheus and a collector of traces see of a running service."""

import gzip
import secrets
import shutil
import subprocess
from collections import Counter

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.dashboards import DASHBOARDS, names, queries, rules
from tests.e2e.calling import ask, post
from tests.serving import Quiet, ThreadServer
from tests.waiting import PATIENCE_S, until


def samples_of(text):
    families = text_string_to_metric_families(text)
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_count_what_happened_and_dashboards_find_what_they_ask_for(http, prefix):
    before = samples_of(http.get("/metrics").text)
    dial = f"{prefix}dial"
    ask(http, "PUT", dial, 201, json={"anomaly_alarm": 0.9})
    post(http, dial, [y + 0.1 * (i % 3) for y in (0.0, 9.0) for i in range(30)] + [1000.0])
    assert http.post(f"/v1/streams/{prefix}a/observations", json={"y": "no"}).status_code == 422
    model = ask(http, "GET", dial)["model"]
    scores = "moca_log_score_nats_count", model  # which a worker enters within a second
    least = before.get(scores, 0.0) + 41  # none while warming up
    until(lambda: samples_of(http.get("/metrics").text).get(scores, 0.0) >= least)
    text = http.get("/metrics").text
    after = samples_of(text)
    gained = {key: value - before.get(key, 0.0) for key, value in after.items()}
    assert gained["moca_observations_total", "applied"] >= 61
    assert gained["moca_changepoints_total", model, "confirmed"] >= 1
    assert after["moca_owned_partitions",] == 16
    assert after["moca_redis_up",] == after["moca_redis_append_only",] == 1
    for stage in ("ingest", "queue", "compute", "commit", "reply"):
        assert gained["moca_stage_duration_seconds_count", stage] > 0
    assert f"{prefix}a" not in text
    asked = {rule["expr"] for rule in rules("record") + rules("alert")}
    asked |= {query.expr for dashboard in DASHBOARDS for query in queries(dashboard)}
    needed = {name for name in set().union(*map(names, asked)) if name.startswith("moca_")}
    missing = needed - {key[0] for key in after}
    assert {name for name in missing if "webhook" not in name} == set()
    if promtool := shutil.which("promtool"):
        command = [promtool, "check", "metrics"]
        checked = subprocess.run(command, input=text, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr


class Spans(Quiet):
    def do_POST(self):
        body = self.body()
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = {a.key: a.value for a in resource.resource.attributes}
            service = attributes["service.name"].string_value
            for scope in resource.scope_spans:
                self.server.spans += [(service, span) for span in scope.spans]
        self.answer(200)


@pytest.mark.slow
def test_an_observation_is_one_trace_over_both_processes(serve, processes):
    """If its caller samples it; nothing else is sent."""
    request = "POST /v1/streams/{stream}/observations"
    below = {"queue", "compute", "commit", "reply"}
    with ThreadServer(Spans) as collector:
        collector.spans = []
        processes.environment |= {
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "MOCA_TRACE": "true",
        }
        path = f"{serve()}/v1/streams/a/observations"
        trace, parent = secrets.token_hex(16), secrets.token_hex(8)
        for sampled in ("00", "01"):
            headers = {"traceparent": f"00-{trace}-{parent}-{sampled}"}
            httpx.post(
                path, json={"y": 1.0}, headers=headers, timeout=PATIENCE_S
            ).raise_for_status()
        until(lambda: len(collector.spans) >= 2 + len(below), lambda: collector.spans)
        processes.stop_all()
        spans = {span.name: span for _, span in collector.spans}
        assert Counter(span.name for _, span in collector.spans) == Counter(
            {request, "ingest", *below}
        )
    assert {span.trace_id.hex() for span in spans.values()} == {trace}
    assert spans[request].parent_span_id.hex() == parent
    assert spans["ingest"].parent_span_id == spans[request].span_id
    assert {spans[name].parent_span_id for name in below} == {spans["ingest"].span_id}
    services = {span.name: service for service, span in collector.spans}
    assert {services[name] for name in below - {"reply"}} == {"moca-worker"}
    assert {services[name] for name in (request, "ingest", "reply")} == {"moca-api"}
