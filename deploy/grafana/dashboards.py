"""Write the two Grafana dashboards as JSON: `python deploy/grafana/dashboards.py FOLDER`.

*What changed* and *is the service well*. Each begins with the answer; the rows below say why. Their
panels are in `panels.toml`; PromQL there has no selector of the deployment, which `query` adds.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

Panel = dict[str, Any]

WIDTH = 24  # columns of Grafana's grid
PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
INFINITY = "yesoreyeram-infinity-datasource"
SERVICE = {"type": INFINITY, "uid": "${service}"}
ALERTS = 'ALERTS{alertstate="firing",alertname=~"Moca.*"}'
_METRIC = re.compile(r"\b(moca[_:][a-z0-9_:]+|process_[a-z_]+|up|ALERTS)\b(\{)?")


def of_deployment(expr: str) -> str:
    """Return an expression with every selector limited to the deployment chosen on the page."""
    chosen = 'namespace=~"$namespace"'
    return _METRIC.sub(lambda m: m[1] + "{" + chosen + ("," if m[2] else "}"), expr)


def above(look: float, bad: float) -> list[dict[str, Any]]:
    """Thresholds: larger is worse."""
    return _steps((None, "green"), (look, "yellow"), (bad, "red"))


def below(look: float, bad: float) -> list[dict[str, Any]]:
    """Thresholds: smaller is worse; good from `look` on, bad under `bad`."""
    between = [(bad, "yellow")] if bad < look else []
    return _steps((None, "red"), *between, (look, "green"))


def within(low: float, high: float, margin: float) -> list[dict[str, Any]]:
    """Thresholds: good between two values, bad further outside than `margin`."""
    inner = ((low - margin, "yellow"), (low, "green"), (high, "yellow"))
    return _steps((None, "red"), *inner, (high + margin, "red"))


PLAIN = [{"value": None, "color": "blue"}]


def _steps(*steps: tuple[float | None, str]) -> list[dict[str, Any]]:
    return [{"value": value, "color": color} for value, color in steps]


def made(described: dict[str, Any]) -> Panel:
    """A panel of `panels.toml`."""
    if "table" in described:
        return TABLES[described["table"]]()
    kind = next(kind for kind in KINDS if kind in described)
    limits = next((LIMITS[name](*described[name]) for name in LIMITS if name in described), PLAIN)
    unit = described.get("unit", "short")
    width, height = (4, 4) if kind == "number" else (described.get("width", 8), 8)
    panel = frame(KINDS[kind], described[kind], described["about"], unit, limits, width, height)
    if kind == "number":
        panel["options"] = {"graphMode": "area", "colorMode": "value"}
        panel["options"]["reduceOptions"] = {"calcs": ["lastNotNull"]}
        panel["targets"] = [query(0, described["query"])]
    elif kind == "histogram":
        color = {"mode": "scheme", "scheme": "Blues", "steps": 64}
        panel["options"] = {"calculate": False, "color": color, "yAxis": {"unit": unit}}
        panel["targets"] = [query(0, described["query"], "{{le}}", format="heatmap")]
    else:
        panel["fieldConfig"]["defaults"]["custom"] = {
            "lineWidth": 1.5,
            "fillOpacity": 8,
            "showPoints": "never",
            "thresholdsStyle": {"mode": "dashed"},
        }
        panel["options"] = {"tooltip": {"mode": "multi"}, "legend": {"placement": "bottom"}}
        more = {"exemplar": True} if "exemplars" in described else {}
        panel["targets"] = [
            query(i, expr, legend, **more) for i, (expr, legend) in enumerate(described["queries"])
        ]
    return panel


def frame(
    kind: str, title: str, about: str, unit: str, limits: list[Any], width: int, height: int
) -> Panel:
    """Return what all panels have; `unit`: one of Grafana's, or `suffix: text`."""
    defaults = {"unit": unit, "thresholds": {"mode": "absolute", "steps": limits}}
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": PROMETHEUS,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {},
        "targets": [],
    }


def query(number: int, expr: str, legend: str = "", **more: Any) -> dict[str, Any]:
    """Return one PromQL query of a panel."""
    name = "ABCDEFGHIJ"[number]
    return {"refId": name, "expr": of_deployment(expr), "legendFormat": legend, **more}


def changes(path_parameters: dict[str, str], columns: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """Return a query of GET /v1/changes in the page's time range; columns: title, type by path."""
    return answers("changes", {"min_size": "$min_size", **path_parameters}, columns)


def answers(
    listed: str, parameters: dict[str, str], columns: dict[str, tuple[str, str]]
) -> dict[str, Any]:
    """Return a query of a list of the service in the page's time range; columns as of `changes`."""
    page = {"since": "${__from:date:iso}", "until": "${__to:date:iso}", **parameters}
    return {
        "refId": "A",
        "datasource": SERVICE,
        "type": "json",
        "source": "url",
        "parser": "backend",
        "format": "table",
        "url": f"/v1/{listed}",
        "url_options": {
            "method": "GET",
            "data": "",
            "params": [{"key": name, "value": value} for name, value in page.items()],
        },
        "root_selector": listed,
        "columns": [
            {"selector": path, "text": title, "type": kind}
            for path, (title, kind) in columns.items()
        ],
        "filters": [],
    }


def table(
    title: str, about: str, limits: list[Any], height: int, rows: dict[str, Any], link: str, to: str
) -> Panel:
    """A table of answers of the service. link: the column that leads to the console, at `to`."""
    about = f"{about} Needs the Infinity data source."
    panel = frame("table", title, about, "short", limits, WIDTH, height)
    panel["datasource"] = SERVICE
    panel["targets"] = [rows]
    opens = {"title": "Open in the console", "url": "${console}/#/" + to, "targetBlank": True}
    panel["fieldConfig"]["overrides"] = [
        {
            "matcher": {"id": "byName", "options": link},
            "properties": [{"id": "links", "value": [opens]}],
        },
    ]
    return panel


def table_of_changes() -> Panel:
    """Changes of all streams, one a row; a stream's name opens it in the console."""
    columns = {
        "stream": ("Stream", "string"),
        "sentence": ("What changed", "string"),
        "start_time": ("Since", "timestamp"),
        "confirmed_time": ("Confirmed", "timestamp"),
        "suspected_time": ("Suspected", "timestamp"),
        "evidence": ("Evidence: 1 in", "number"),
        "model": ("Model", "string"),
        "start": ("Start", "string"),
    }
    panel = table(
        "Which streams changed, since when, and what changed",
        "Changes of all streams in the time range, at most 500, in the chosen state and order. "
        "Evidence: how rarely chance does the same, in observations of the stream.",
        below(0.5, 0.1),
        12,
        changes({"state": "$state", "sort": "$sort", "limit": "500"}, columns),
        "Stream",
        "streams/${__data.fields.Stream:percentencode}?at=${__data.fields.Start:raw}",
    )
    panel["fieldConfig"]["defaults"]["custom"] = {"filterable": True}
    return panel


def table_of_incidents() -> Panel:
    """Changes that began together, an incident a row; its headline opens it in the console."""
    columns = {
        "headline": ("Incident", "string"),
        "start_time": ("Began", "timestamp"),
        "updated_time": ("Last joined", "timestamp"),
        "streams": ("Streams", "number"),
        "by_chance.per_day": ("By chance a day", "number"),
        "id": ("Id", "string"),
    }
    return table(
        "What changed together",
        "Incidents that began in the time range: streams that changed together, and what they "
        "share. By chance: so many of this size a day.",
        above(20, 100),
        6,
        answers("incidents", {"limit": "100"}, columns),
        "Incident",
        "incidents/${__data.fields.Id:percentencode}",
    )


LIMITS: dict[str, Callable[..., list[Any]]] = {"above": above, "below": below, "within": within}
KINDS = {"number": "stat", "lines": "timeseries", "histogram": "heatmap"}  # with Grafana's names
TABLES = {"changes": table_of_changes, "incidents": table_of_incidents}


def variables(of_changes: bool) -> list[dict[str, Any]]:
    """Return the fields on top of a page."""
    every = {"text": "All", "value": "$__all", "selected": True}

    def listed(name: str, label: str, values: str, multi: bool) -> dict[str, Any]:
        return {
            "type": "query",
            "name": name,
            "label": label,
            "datasource": PROMETHEUS,
            "query": {"qryType": 1, "query": values, "refId": name},
            "refresh": 2,
            "sort": 1,
            "includeAll": True,
            "allValue": ".*",
            "multi": multi,
            "current": every,
        }

    def choice(name: str, label: str, *values: str) -> dict[str, Any]:
        options = [{"text": v, "value": v, "selected": v == values[0]} for v in values]
        return {
            "type": "custom",
            "name": name,
            "label": label,
            "query": ",".join(values),
            "options": options,
            "current": options[0],
        }

    address = "http://localhost:8000"
    found: list[dict[str, Any]] = [
        {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"},
        {
            "type": "textbox",
            "name": "console",
            "label": "Console",
            "query": address,
            "current": {"text": address, "value": address},
        },
        # A Prometheus with one deployment has no such label, and everything is shown.
        listed("namespace", "Namespace", 'label_values(up{job=~"moca-.*"}, namespace)', False),
    ]
    if of_changes:
        steps = of_deployment("moca_run_length_observations_count")
        found += [
            {"type": "datasource", "name": "service", "label": "Service", "query": INFINITY},
            listed("model", "Model", f"label_values({steps}, model)", True),
            choice("state", "State", "confirmed", "suspected", "withdrawn"),
            choice("sort", "Order", "time", "size", "evidence"),
            choice("min_size", "Smallest size", "0", "0.5", "1", "2", "3", "5"),
        ]
    return found


def dashboard(uid: str, title: str, about: str, rows: dict[str, list[Panel]]) -> dict[str, Any]:
    """Return a dashboard with its panels in their places."""
    of_changes = uid == "moca-changes"
    placed: list[Panel] = []
    top = 0
    for name, panels in rows.items():
        at = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        placed.append(
            {"type": "row", "title": name, "collapsed": False, "panels": [], "gridPos": at}
        )
        top += 1
        left = 0
        height = 0
        for each in panels:
            place = each["gridPos"]
            if left + place["w"] > WIDTH:
                top += height
                left = 0
                height = 0
            place.update(x=left, y=top)
            left += place["w"]
            height = max(height, place["h"])
            placed.append(each)
        top += height
    for identity, each in enumerate(placed, 1):
        each["id"] = identity
    marks: list[dict[str, Any]] = [
        {
            "name": "Alerts",
            "datasource": PROMETHEUS,
            "enable": True,
            "iconColor": "red",
            "expr": of_deployment(ALERTS),
            "titleFormat": "{{alertname}} {{instance}}{{model}}",
        },
    ]
    if of_changes:
        columns = {
            "confirmed_time": ("time", "timestamp"),
            "stream": ("title", "string"),
            "sentence": ("text", "string"),
        }
        target = changes({"state": "confirmed", "sort": "time", "limit": "100"}, columns)
        marks.append(
            {
                "name": "Confirmed changes",
                "datasource": SERVICE,
                "enable": True,
                "iconColor": "orange",
                "target": target,
            }
        )
    return {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["moca"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "title": "Dashboards",
                "tags": ["moca"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            },
            {"type": "link", "title": "Console", "url": "${console}/", "targetBlank": True},
        ],
        "annotations": {"list": marks},
        "templating": {"list": variables(of_changes)},
        "panels": placed,
    }


def dashboards() -> list[dict[str, Any]]:
    """Return both dashboards."""
    pages = tomllib.loads(Path(__file__).with_name("panels.toml").read_text())
    changed, well = (
        {row: [made(described) for described in panels] for row, panels in rows.items()}
        for rows in pages.values()
    )
    return [
        dashboard("moca-changes", "MOCA: what changed", "Changes of all streams.", changed),
        dashboard("moca-service", "MOCA: is the service well", "Users, workers, store.", well),
    ]


def main() -> None:
    """Write both into the folder that the command line names."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for page in dashboards():
        Path(folder, f"{page['uid']}.json").write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main()
