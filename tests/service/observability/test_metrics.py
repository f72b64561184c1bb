"""The metrics: names and units, one process or several."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

CODE = """
import sys
from service.observability import metrics, model_metrics, subscriber_metrics
from service.wire.records import Event
metrics.OBSERVATIONS.labels("applied").inc(2)
for name in ("pump-7", "x" * 200):
    event = Event(4, "confirmed", 28, 31, 34, probability=0.8)
    metrics.count_change("gaussian@1", event, name)
metrics.OWNED_PARTITIONS.set(3)
for stage in metrics.STAGES:
    metrics.STAGE_DURATION.labels(stage).observe(0.01)
text, media_type = metrics.exposition(sys.argv[1] if sys.argv[1:] else "")
sys.stdout.buffer.write(text)
sys.stderr.write(media_type)
"""


def exposition(accept="", **environ):
    found = subprocess.run(
        [sys.executable, "-c", CODE, accept],
        env={**os.environ, **environ},
        capture_output=True,
        check=True,
        text=True,
    )
    kind = "openmetrics-text" if "openmetrics" in accept else "text/plain; version=0.0.4"
    assert kind in found.stderr
    return found.stdout


def families(text):
    return dict(line.split(" ")[2:4] for line in text.splitlines() if line.startswith("# TYPE"))


@pytest.fixture(params=["one process", "several"])
def text(request, tmp_path):
    if request.param == "one process":
        return exposition()
    environ = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    exposition(**environ)
    return exposition(**environ)


def test_names_and_units(text):
    for name, kind in families(text).items():
        assert name.startswith(("moca_", "process_")), name
        assert name.endswith("_total") == (kind == "counter"), name
        assert not name.endswith(("_ms", "_milliseconds", "_kb", "_percent")), name
    assert "stream=" not in text
    assert f'moca_build_info{{python="{platform.python_version()}",version="' in text
    assert 'moca_changepoints_total{model="gaussian@1",state="confirmed"}' in text


def test_several_processes_are_added_up(tmp_path):
    environ = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    exposition(**environ)
    assert 'moca_observations_total{outcome="applied"} 4.0' in exposition(**environ)


def test_openmetrics_has_the_stream_of_the_last_change(tmp_path):
    """As an exemplar, never as a label; of a process that writes metrics for itself."""
    text = exposition("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    found = {family.name: family for family in text_string_to_metric_families(text)}
    (counted,) = found["moca_changepoints"].samples
    assert counted.labels == {"model": "gaussian@1", "state": "confirmed"}
    assert counted.value == 2  # the other's id is longer than an exemplar may be
    assert counted.exemplar.labels == {"stream": "pump-7", "event": "4"}
    assert found["moca_build_info"].samples[0].value == 1
    assert "process_cpu_seconds" in found
    accept, folder = "application/openmetrics-text", {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    several = {f.name for f in text_string_to_metric_families(exposition(accept, **folder))}
    assert {"moca_changepoints", "moca_build_info", "moca_observations"} <= several


def test_what_the_issue_lists_is_there(text):
    listed = """http_request_duration_seconds observations_total stage_duration_seconds
        batch_size_observations partition_lag_observations owned_partitions fenced_commits_total
        checkpoint_age_seconds checkpoint_bytes replayed_observations_total changepoints_total
        log_score_nats changepoint_probability numerical_faults_total load_shed_total"""
    source = text if "moca_partition_lag" in text else exposition()
    assert {f"moca_{name}" for name in listed.split()} <= set(families(source))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_has_no_complaint(text):
    found = subprocess.run(
        ["promtool", "check", "metrics"], input=text.encode(), capture_output=True, check=False
    )
    assert (found.returncode, found.stdout + found.stderr) == (0, b"")


def test_every_metric_is_documented():
    documented = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
    for name in families(exposition()):
        assert name.startswith("process_") or f"| `{name}` |" in documented, name
