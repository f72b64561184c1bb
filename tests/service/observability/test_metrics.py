"""The metrics: names and units, one process or several."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from service.observability import metrics, model_metrics, subscriber_metrics
metrics.OBSERVATIONS.labels("applied").inc(2)
metrics.CHANGEPOINTS.labels("gaussian@1", "confirmed").inc()
metrics.OWNED_PARTITIONS.set(3)
for stage in metrics.STAGES:
    metrics.STAGE_DURATION.labels(stage).observe(0.01)
sys.stdout.buffer.write(metrics.exposition())
"""


def exposition(**environ):
    found = subprocess.run(
        [sys.executable, "-c", CODE], env={**os.environ, **environ}, capture_output=True, check=True
    )
    return found.stdout.decode()


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
    assert 'moca_changepoints_total{model="gaussian@1",state="confirmed"}' in text


def test_several_processes_are_added_up(tmp_path):
    environ = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    exposition(**environ)
    assert 'moca_observations_total{outcome="applied"} 4.0' in exposition(**environ)


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
