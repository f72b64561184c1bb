"""Metrics of OpenTelemetry's SDK into real processes, by its own exporter."""

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from tests.e2e.calling import ask, history


class Recorder(OTLPMetricExporter):
    """The exporter, and what it made of each answer."""

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.results = []

    def export(self, *args, **named):
        self.results.append(super().export(*args, **named))
        return self.results[-1]


@pytest.mark.parametrize("compression", Compression)
def test_instruments_of_the_sdk_become_streams(http, prefix, compression):
    exporter = Recorder(f"{http.base_url}/v1/metrics", compression=compression)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    resource = Resource.create({"service.name": "ten", "plant": "north"})
    provider = MeterProvider([reader], resource, shutdown_on_exit=False)
    meter = provider.get_meter("plant")
    run = {"run": prefix}
    meter.create_gauge("flow").set(10.25, run | {"instance": "gauge"})
    meter.create_counter("served").add(3, run | {"instance": "counter"})
    meter.create_up_down_counter("waiting").add(-2, run | {"instance": "both-ways"})
    meter.create_histogram("latency").record(0.5, run | {"instance": "histogram"})
    provider.force_flush()
    provider.shutdown()
    assert exporter.results == [MetricExportResult.SUCCESS] * len(exporter.results)
    assert exporter.results
    streams = http.get("/v1/streams", params={"prefix": prefix}).json()["streams"]
    assert [row["stream"].removeprefix(prefix) for row in streams] == [
        "both-ways",
        "counter",
        "gauge",
    ]
    seen = {row["stream"]: history(http, row["stream"])[0]["y"] for row in streams}
    assert list(seen.values()) == [-2.0, 3.0, 10.25]
    tags = ask(http, "GET", f"{prefix}gauge")["settings"]["tags"]
    named = {"__name__": "flow", "instance": "gauge", "job": "ten", "plant": "north"}
    assert tags == named | run | {"source": "prometheus"}
