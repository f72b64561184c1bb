"""The metrics: names and units, one process or several."""

import os
import platform
import subprocess
import sys

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
CODE = """
import sys
from service.observability import metrics
from model_core.stream.events import Event
from model_core.stream.state import KnownRegime
metrics.OBSERVATIONS.labels("applied").inc(2)
for name in ("pump-7", "x" * 200):
    event = Event(4, "confirmed", 28, 31, 34, probability=0.8)
    metrics.count_change("gaussian", event, name)
back = event._replace(returned=KnownRegime(None, 0.9, 3, 2, 30))
metrics.count_change("gaussian", back, "pump-7")
metrics.OWNED_PARTITIONS.set(3)
for stage in ("ingest", "queue", "compute", "commit", "reply"):
    metrics.STAGE_DURATION.labels(stage).observe(0.01)
for accept in sys.argv[1:]:
    text, media_type = metrics.exposition(accept)
    sys.stdout.buffer.write(text + b"=====")
    sys.stderr.write(media_type + "=====")
"""


def expositions(**environ):
    """What a fresh process answers in both formats."""
    result = subprocess.run(
        [sys.executable, "-c", CODE, "", OPENMETRICS],
        env={**os.environ, **environ},
        capture_output=True,
        check=True,
        text=True,
    )
    kinds = result.stderr.split("=====")
    assert "text/plain; version=0.0.4" in kinds[0]
    assert "openmetrics-text" in kinds[1]
    plain, openmetrics, _ = result.stdout.split("=====")
    return plain, openmetrics


@pytest.fixture(scope="module")
def one():
    """Of one process."""
    return expositions()


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Of the second of two processes."""
    folder = str(tmp_path_factory.mktemp("metrics"))
    expositions(PROMETHEUS_MULTIPROC_DIR=folder)
    return expositions(PROMETHEUS_MULTIPROC_DIR=folder)


def families(text):
    return dict(line.split(" ")[2:4] for line in text.splitlines() if line.startswith("# TYPE"))


def test_names_and_units_are_those_of_prometheus(one, several):
    for text in (one[0], several[0]):
        for name, kind in families(text).items():
            assert name.startswith(("moca_", "process_")), name
            assert name.endswith("_total") == (kind == "counter"), name
            assert not name.endswith(("_ms", "_milliseconds", "_kb", "_percent")), name
        assert "stream=" not in text
        assert f'moca_build_info{{python="{platform.python_version()}",version="' in text
        assert 'moca_changepoints_total{model="gaussian",state="confirmed"}' in text


def test_several_processes_are_added_up(one, several):
    assert 'moca_observations_total{outcome="applied"} 2.0' in one[0]
    assert 'moca_observations_total{outcome="applied"} 4.0' in several[0]


def test_openmetrics_has_the_stream_of_the_last_change(one, several):
    """As an exemplar, never as a label; of a process that writes metrics for itself."""
    families_by_name = {family.name: family for family in text_string_to_metric_families(one[1])}
    (counted,) = families_by_name["moca_changepoints"].samples
    assert counted.labels == {"model": "gaussian", "state": "confirmed"}
    assert counted.value == 2  # the other's id is longer than an exemplar may be
    assert counted.exemplar.labels == {"stream": "pump-7", "event": "4"}
    (returns,) = families_by_name["moca_returns"].samples
    assert (returns.labels, returns.value) == ({"model": "gaussian", "state": "confirmed"}, 1)
    assert families_by_name["moca_build_info"].samples[0].value == 1
    assert "process_cpu_seconds" in families_by_name
    names = {family.name for family in text_string_to_metric_families(several[1])}
    assert {"moca_changepoints", "moca_build_info", "moca_observations"} <= names
