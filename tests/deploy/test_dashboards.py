"""The dashboards: made by their code, and complete."""

import re
import subprocess
import sys

import pytest
import yaml

from tests.deploy.dashboards import (
    DASHBOARDS,
    DEPLOY,
    INFINITY,
    SHOWN,
    load,
    names,
    panels,
    queries,
)

pytest.importorskip("grafana_foundation_sdk")
GRAFANA = DEPLOY / "grafana"
each = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
OWN = {"__all", "__rate_interval", "__range", "__interval", "__value", "__url_time_range"}
OWN |= {"__from", "__to", "__data"}


def test_the_files_are_those_that_the_code_makes():
    command = [sys.executable, str(GRAFANA / "generate.py"), "--check"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    titles = {load(path)["title"].removeprefix("MOCA: ") for path in DASHBOARDS}
    assert titles == {"changepoints", "service", "model quality", "workers and Redis"}


@each
def test_every_panel_has_a_description_a_unit_and_thresholds(path):
    for panel in panels(load(path)):
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith("."), panel["title"]
        if panel["type"] not in SHOWN:
            defaults = panel["fieldConfig"]["defaults"]
            assert defaults["unit"], panel["title"]
            steps = defaults["thresholds"]["steps"]
            assert steps[0]["value"] is None, panel["title"]
            values = [step["value"] for step in steps[1:]]
            assert values == sorted(set(values)), panel["title"]
            assert panel["targets"], panel["title"]


@each
def test_panels_lie_side_by_side(path):
    taken = set()
    for panel in panels(load(path)):
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


@each
def test_variables_are_defined_and_used(path):
    dashboard, text = load(path), path.read_text()
    defined = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", text)) - OWN
    assert used == defined


@each
def test_every_query_is_of_the_chosen_deployment(path):
    for query in queries(load(path)):
        for name in names(query.expr):
            selected = query.expr.count(f'{name}{{namespace=~"$namespace"')
            assert selected == len(re.findall(rf"\b{name}\b", query.expr)), query.where


@each
def test_dashboards_lead_to_each_other_and_to_the_console(path):
    dashboard = load(path)
    links = {link["type"]: link for link in dashboard["links"]}
    assert links["dashboards"]["tags"] == dashboard["tags"] == ["moca"]
    assert links["link"]["url"] == "${console}/"
    assert dashboard["uid"] == path.stem
    alerts = [a for a in dashboard["annotations"]["list"] if "ALERTS" in a.get("expr", "")]
    assert alerts[0]["enable"]


def test_a_stream_is_opened_in_the_console():
    text = (GRAFANA / "dashboards" / "moca-changepoints.json").read_text()
    assert "${console}/#/streams/${stream:percentencode}" in text
    assert "${console}/#/streams/${__value.text:percentencode}" in text
    assert "${console}/#/streams/${__data.fields.Stream:percentencode}?at=${__data.f" in text


def test_queries_are_told_apart():
    for path in DASHBOARDS:
        found = list(queries(load(path)))
        assert len({query.where for query in found}) == len(found) > 10
        assert all(query.expr.strip() == query.expr for query in found)


def test_grafana_is_provisioned_with_them():
    read = [yaml.safe_load(f.read_text()) for f in sorted(GRAFANA.glob("provisioning/*/*.yml"))]
    (provider,) = read[0]["providers"]
    (service,) = read[1]["datasources"]
    assert (service["type"], service["url"]) == (INFINITY, "http://api:8000")
    assert service["jsonData"]["allowedHosts"] == [service["url"]]
    grafana = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())["services"][
        "grafana"
    ]
    assert grafana["environment"]["GF_PLUGINS_PREINSTALL"] == INFINITY
    (source,) = read[2]["datasources"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert source["isDefault"]
