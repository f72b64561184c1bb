"""The committed dashboards and rules, as tests read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
INFINITY = "yesoreyeram-infinity-datasource"
SHOWN = ("row", "text")  # kinds of panels without a query


class Asked(NamedTuple):
    """One query of a dashboard."""

    where: str
    expr: str
    instant: bool


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Every panel, those inside rows too."""
    inside = [inner for each in dashboard["panels"] for inner in each.get("panels") or []]
    return [*dashboard["panels"], *inside]


def queries(dashboard: dict[str, Any]) -> Iterator[Asked]:
    """Every query of panels and annotations."""
    title = dashboard["title"]
    for panel in panels(dashboard):
        for target in panel.get("targets", []):
            if of_the_service(target):
                continue
            where = f"{title} / {panel['title']} / {target['refId']}"
            yield Asked(where, target["expr"], bool(target.get("instant")))
    for each in dashboard["annotations"]["list"]:
        if "expr" not in each:
            continue
        yield Asked(f"{title} / annotation {each['name']}", each["expr"], False)


def of_the_service(target: dict[str, Any]) -> bool:
    """Whether a query is of the service's JSON instead of Prometheus."""
    return target["datasource"]["type"] == INFINITY if "datasource" in target else False


def json_queries(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Every query of the service's own JSON, of panels and annotations."""
    found = [target for panel in panels(dashboard) for target in panel.get("targets", [])]
    found += [each["target"] for each in dashboard["annotations"]["list"] if "target" in each]
    return [target for target in found if of_the_service(target)]


def rules(kind: str) -> list[dict[str, Any]]:
    """Rules of all files: `record` or `alert`."""
    files = [yaml.safe_load(path.read_text()) for path in (PROMETHEUS / "rules").glob("*.yml")]
    every = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    return [rule for rule in every if kind in rule]


def names(expr: str) -> set[str]:
    """Names of metrics in an expression, as they stand."""
    bare = re.sub(r'"[^"]*"', '""', expr)
    return set(re.findall(r"\b(?:moca[_:][a-z0-9_:]+|up|process_[a-z_]+|ALERTS)\b", bare))
