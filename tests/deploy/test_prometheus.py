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
from service.observability import metrics, model_metrics, subscriber_metrics
from service.api.gateway.pinned_metrics import GAUGES
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
    for name in ("prometheus.yml", "remote-write.yml"):
        promtool("check", "config", PROMETHEUS / name)
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
    for file in ("base/api.yaml", "base/worker.yaml", "components/webhooks/webhooks.yaml"):
        documents = yaml.safe_load_all((ROOT / "deploy/kubernetes" / file).read_text())
        pod = next(each for each in documents if each["kind"] == "Deployment")["spec"]["template"]
        name = pod["metadata"]["labels"]["app.kubernetes.io/name"]
        (container,) = pod["spec"]["containers"]
        found |= {f"{name};{port['name']}" for port in container["ports"]}
    assert wanted == found
    assert {"job", "namespace"} <= {each.get("target_label") for each in rest}
    (job,) = (each for each in rest if each.get("target_label") == "job")
    assert job["replacement"] == "moca-$1"


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
    text = (ROOT / "docs" / "monitoring.md").read_text()
    for rule in rules("alert"):
        section = re.search(rf"^### {rule['alert']}\n(.*?)(?=^##|\Z)", text, re.M | re.S)
        assert section, f"{rule['alert']} is not in docs/monitoring.md"
        for said in ("Means", "Users see", "Do"):
            assert f"**{said}**" in section[1], f"{rule['alert']}: {said}"
        address = f"{{{{ $externalURL }}}}/consoles/moca-alerts.html#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == address
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_every_alert_is_told_apart_by_deployment():
    """In deployments.yml each fires for the broken deployment alone."""
    path = PROMETHEUS / "tests" / "deployments.yml"
    fired = {}
    for test in yaml.safe_load(path.read_text())["tests"]:
        series = (each["series"] for each in test["input_series"])
        spaces = {re.search('namespace="(.*?)"', each)[1] for each in series}
        assert spaces == {"broken", "well"}
        for case in test["alert_rule_test"]:
            (alert,) = case["exp_alerts"]
            fired[case["alertname"]] = alert["exp_labels"]["namespace"]
    assert fired == dict.fromkeys((rule["alert"] for rule in rules("alert")), "broken")


def test_generated_files_are_up_to_date():
    pytest.importorskip("markdown")
    command = [sys.executable, str(PROMETHEUS / "generate.py"), "--check"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_every_runbook_address_is_a_place_on_the_page_that_prometheus_shows():
    page = (PROMETHEUS / "consoles" / "moca-alerts.html").read_text()
    assert "{{" not in page, "Prometheus would evaluate it"
    for rule in rules("alert"):
        assert f'id="{rule["alert"].lower()}"' in page
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["prometheus"]
    assert "--web.console.templates=/etc/prometheus/consoles" in compose["command"]
    assert any(":/etc/prometheus/consoles:" in each for each in compose["volumes"])
    assert any(each.startswith("--web.external-url=") for each in compose["command"])


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
