"""The scrape configuration and the rules, by Prometheus's own checks."""

import re
import shutil
import subprocess
import sys

import pytest
import yaml

from tests.deploy.dashboards import DASHBOARDS, PROMETHEUS, ROOT, load, names, queries, rules

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)
TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))
PARTS = ("_bucket", "_sum", "_count")

# What the service itself registers; with the gauges of pinned streams.
REGISTERED = """
from service import metrics, metrics_feed, metrics_quality
from service.api.pinned import GAUGES
for family in metrics.REGISTRY.collect():
    print(family.name + ("_total" if family.type == "counter" else ""))
for name in GAUGES:
    print(f"moca_stream_{name}")
"""


def promtool(*arguments):
    found = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


@needs_promtool
def test_the_configuration_and_the_rules_are_valid():
    promtool("check", "config", PROMETHEUS / "prometheus.yml")
    promtool("check", "rules", "--lint=all", *sorted((PROMETHEUS / "rules").glob("*.yml")))


@needs_promtool
def test_the_configuration_for_kubernetes_is_valid(tmp_path):
    command = ["promtool", "check", "config", str(PROMETHEUS / "kubernetes.yml")]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    if "field kubernetes_sd_configs not found" not in said:
        return promtool(*command[1:])
    # Debian builds Prometheus without it: everything else is checked.
    config = yaml.safe_load((PROMETHEUS / "kubernetes.yml").read_text())
    for job in config["scrape_configs"]:
        del job["kubernetes_sd_configs"]
    (tmp_path / "else.yml").write_text(yaml.safe_dump(config))
    return promtool("check", "config", tmp_path / "else.yml")


def test_pods_are_found_by_what_the_manifests_call_them():
    """And get the labels that the rules and the scaler of workers ask for."""
    config = yaml.safe_load((PROMETHEUS / "kubernetes.yml").read_text())
    (keep, *rest) = config["scrape_configs"][0]["relabel_configs"]
    wanted = set(keep["regex"].split("|"))
    found = set()
    for file in ("api.yaml", "worker.yaml"):
        documents = yaml.safe_load_all((ROOT / "deploy/kubernetes/base" / file).read_text())
        pod = next(each for each in documents if each["kind"] == "Deployment")["spec"]["template"]
        name = pod["metadata"]["labels"]["app.kubernetes.io/name"]
        (container,) = pod["spec"]["containers"]
        found |= {f"{name};{port['name']}" for port in container["ports"]}
    assert wanted == found
    assert {"job", "namespace"} <= {each.get("target_label") for each in rest}


@needs_promtool
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_alerts_fire_and_stay_silent_as_their_tests_say(path):
    promtool("test", "rules", path)


def test_every_alert_has_a_test_that_fires_and_one_that_does_not():
    fires, silent = set(), set()
    for path in TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for case in test["alert_rule_test"]:
                (fires if case["exp_alerts"] else silent).add(case["alertname"])
    alerts = {rule["alert"] for rule in rules("alert")}
    assert alerts == fires == silent


def test_every_alert_has_its_section_and_says_how_bad_it_is():
    text = (ROOT / "docs" / "alerts.md").read_text()
    for rule in rules("alert"):
        section = re.search(rf"^### {rule['alert']}\n(.*?)(?=^##|\Z)", text, re.M | re.S)
        assert section, f"{rule['alert']} is not in docs/alerts.md"
        for said in ("Means", "Users see", "Do"):
            assert f"**{said}**" in section[1], f"{rule['alert']}: {said}"
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_only_what_is_measured_is_asked_for():
    code = [sys.executable, "-c", REGISTERED]
    found = subprocess.run(code, capture_output=True, text=True, check=True, cwd=ROOT)
    known = set(found.stdout.split()) | {rule["record"] for rule in rules("record")}
    known |= {"up", "ALERTS", "process_cpu_seconds_total"}
    asked = {rule["expr"] for rule in rules("record") + rules("alert")}
    asked |= {query.expr for path in DASHBOARDS for query in queries(load(path))}
    for name in set().union(*map(names, asked)):
        stem = next((name.removesuffix(part) for part in PARTS if name.endswith(part)), name)
        assert name in known or stem in known, name
