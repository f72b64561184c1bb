"""What Prometheus sees of a running service."""

import shutil
import subprocess

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.dashboards import DASHBOARDS, load, names, queries, rules

PROMTOOL = shutil.which("promtool")


@pytest.fixture(scope="module")
def exposition(fresh):
    _, url = fresh
    with httpx.Client(base_url=url, timeout=60) as client:
        step = [{"y": y + 0.1 * (i % 3)} for y in (0.0, 9.0) for i in range(40)]
        client.post("/v1/streams/a-stream/observations", json=step).raise_for_status()
        client.post("/v1/streams/a-stream/observations", json={"y": "no"})
        return client.get("/metrics").text


def test_metrics_tell_what_happened(exposition):
    families = {family.name: family for family in text_string_to_metric_families(exposition)}
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert samples["moca_observations_total", "applied"] == 80
    assert samples["moca_changepoints_total", "averaged@2", "confirmed"] == 1
    assert samples["moca_owned_partitions",] == 16
    assert samples["moca_redis_up",] == samples["moca_redis_append_only",] == 1
    assert samples["moca_pit_count", "averaged@2"] == 60
    for stage in ("ingest", "queue", "compute", "commit", "reply"):
        assert samples["moca_stage_duration_seconds_count", stage] > 0
    assert samples["moca_log_score_nats_count", "averaged@2"] == 60  # not while warming up
    assert "a-stream" not in exposition


def test_dashboards_and_rules_find_what_they_ask_for(fresh):
    """All processes of `moca serve` on one page; those alone are asked in tests/deploy."""
    with httpx.Client(base_url=fresh[1], timeout=60) as client:
        told = {"pinned": True, "anomaly_alarm": 0.9}
        client.put("/v1/streams/pinned", json=told).raise_for_status()
        labels = [{"y": float(i % 7)} for i in range(60)] + [{"y": 1000.0}]
        client.post("/v1/streams/pinned/observations", json=labels).raise_for_status()
        text = client.get("/metrics").text
    found = {
        sample.name for family in text_string_to_metric_families(text) for sample in family.samples
    }
    asked = {rule["expr"] for rule in rules("record") + rules("alert")}
    asked |= {query.expr for path in DASHBOARDS for query in queries(load(path))}
    needed = {name for name in set().union(*map(names, asked)) if name.startswith("moca_")}
    assert {name for name in needed - found if "webhook" not in name} == set()


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on this machine")
def test_promtool_has_nothing_to_complain_about(exposition):
    command = [PROMTOOL, "check", "metrics"]
    checked = subprocess.run(command, input=exposition, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
