"""The dashboards as their generator makes them, and the rules, as tests read them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
_spec = importlib.util.spec_from_file_location(
    "moca_dashboards", ROOT / "deploy" / "grafana" / "dashboards.py"
)
_generator = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_generator)
DASHBOARDS: list[dict[str, Any]] = _generator.dashboards()


class PanelQuery(NamedTuple):
    """One query of a dashboard."""

    where: str
    expr: str


def queries(dashboard: dict[str, Any]) -> Iterator[PanelQuery]:
    """Every query of Prometheus, of panels and annotations."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            if "expr" in target:
                where = f"{dashboard['title']} / {panel['title']} / {target['refId']}"
                yield PanelQuery(where, target["expr"])
    for mark in dashboard["annotations"]["list"]:
        if "expr" in mark:
            yield PanelQuery(f"{dashboard['title']} / annotation {mark['name']}", mark["expr"])


def json_queries(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Every query of the service's own JSON, of panels and annotations."""
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    targets += [mark["target"] for mark in dashboard["annotations"]["list"] if "target" in mark]
    return [target for target in targets if "url" in target]


def check_columns(client: httpx.Client, listed: str, given: dict[str, str], prefix: str) -> None:
    """Check that a list of the service has the columns that dashboards ask it for."""
    every = [query for dashboard in DASHBOARDS for query in json_queries(dashboard)]
    asked = [query for query in every if query["root_selector"] == listed]
    assert asked
    for query in asked:
        params = {
            e["key"]: given.get(e["value"], e["value"]) for e in query["url_options"]["params"]
        }
        answer = client.get(query["url"], params=params | {"prefix": prefix}).raise_for_status()
        rows = answer.json()[listed]
        assert rows
        for column in query["columns"]:
            for row in rows:
                value = row
                for name in column["selector"].split("."):
                    value = value[name]
                assert value is not None, column


def rules(kind: str) -> list[dict[str, Any]]:
    """Rules of all files: `record` or `alert`."""
    files = [yaml.safe_load(path.read_text()) for path in (PROMETHEUS / "rules").glob("*.yml")]
    every = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    return [rule for rule in every if kind in rule]


def names(expr: str) -> set[str]:
    """Names of metrics in an expression, as they stand."""
    bare = re.sub(r'"[^"]*"', '""', expr)
    return set(re.findall(r"\b(?:moca[_:][a-z0-9_:]+|up|process_[a-z_]+|ALERTS)\b", bare))
