"""Write the two Grafana dashboards as JSON: `python deploy/grafana/dashboards.py FOLDER`.

*What changed* and *is the service well*. Each begins with the answer; the rows below say why. A
panel is a dict of Grafana; PromQL here has no selector of the deployment, which `query` adds.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

Panel = dict[str, Any]

WIDTH = 24  # columns of Grafana's grid
PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
INFINITY = "yesoreyeram-infinity-datasource"
SERVICE = {"type": INFINITY, "uid": "${service}"}
ALERTS = 'ALERTS{alertstate="firing",alertname=~"Moca.*"}'
MODEL = 'model=~"$model"'
OBSERVE = 'route="/v1/streams/{stream}/observations",method="POST"'
OURS = 'job=~"moca-api|moca-worker"'
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


def panel(kind: str, title: str, about: str, unit: str, limits: list[Any], size: Any) -> Panel:
    """Return what all panels have; `unit`: one of Grafana's, or `suffix: text`."""
    width, height = size
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


def number(title: str, about: str, unit: str, limits: list[Any], expr: str) -> Panel:
    """One number, with its course behind it."""
    made = panel("stat", title, about, unit, limits, (4, 4))
    made["options"] = {"graphMode": "area", "colorMode": "value"}
    made["options"]["reduceOptions"] = {"calcs": ["lastNotNull"]}
    made["targets"] = [query(0, expr)]
    return made


def lines(
    title: str, about: str, unit: str, limits: list[Any], *queries: Any, width: int = 8
) -> Panel:
    """Curves over time of `(expression, legend)`; their thresholds are dashed lines."""
    made = panel("timeseries", title, about, unit, limits, (width, 8))
    made["fieldConfig"]["defaults"]["custom"] = {
        "lineWidth": 1.5,
        "fillOpacity": 8,
        "showPoints": "never",
        "thresholdsStyle": {"mode": "dashed"},
    }
    made["options"] = {"tooltip": {"mode": "multi"}, "legend": {"placement": "bottom"}}
    made["targets"] = [query(i, expr, legend) for i, (expr, legend) in enumerate(queries)]
    return made


def histogram(title: str, about: str, unit: str, limits: list[Any], expr: str) -> Panel:
    """Histograms over time; `expr` has a series per `le`."""
    made = panel("heatmap", title, about, unit, limits, (8, 8))
    color = {"mode": "scheme", "scheme": "Blues", "steps": 64}
    made["options"] = {"calculate": False, "color": color, "yAxis": {"unit": unit}}
    made["targets"] = [query(0, expr, "{{le}}", format="heatmap")]
    return made


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
    made = panel(
        "table", title, f"{about} Needs the Infinity data source.", "short", limits, (WIDTH, height)
    )
    made["datasource"] = SERVICE
    made["targets"] = [rows]
    opens = {"title": "Open in the console", "url": "${console}/#/" + to, "targetBlank": True}
    made["fieldConfig"]["overrides"] = [
        {
            "matcher": {"id": "byName", "options": link},
            "properties": [{"id": "links", "value": [opens]}],
        },
    ]
    return made


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
    made = table(
        "Which streams changed, since when, and what changed",
        "Changes of all streams in the time range, at most 500, in the chosen state and order. "
        "Evidence: how rarely chance does the same, in observations of the stream.",
        below(0.5, 0.1),
        12,
        changes({"state": "$state", "sort": "$sort", "limit": "500"}, columns),
        "Stream",
        "streams/${__data.fields.Stream:percentencode}?at=${__data.fields.Start:raw}",
    )
    made["fieldConfig"]["defaults"]["custom"] = {"filterable": True}
    return made


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


def what_changed() -> dict[str, list[Panel]]:
    """Changes of all streams; how often; and whether the predictions behind them are good."""

    def entered(state: str) -> str:
        return f'sum(increase(moca_changepoints_total{{state="{state}",{MODEL}}}[1h]))'

    def furthest(record: str, ideal: float) -> str:
        series = f"{record}{{{MODEL}}}"
        return f"max({series} and on (model) topk(1, abs({series} - {ideal})))"

    def counts(metric: str) -> str:
        return f"sum by (le) (increase({metric}[$__rate_interval]))"

    withdrawn = f"{entered('withdrawn')} / ({entered('suspected')} > 0) or vector(0)"
    counted = f'moca_changepoints_total{{{MODEL},state="confirmed"}}[$__rate_interval]'
    anomalies = f"moca_anomalies_total{{{MODEL}}}[$__rate_interval]"
    confirmed = lines(
        "Confirmed per minute, by model",
        "Dots are single changepoints (exemplars), each with its stream.",
        "cpm",
        above(100, 1000),
        (f"60 * sum by (model) (rate({counted}))", "{{model}}"),
    )
    confirmed["targets"][0]["exemplar"] = True
    return {
        "Which streams changed": [
            number(
                "Confirmed, last hour",
                "Changepoints; relocated ones count again.",
                "short",
                above(1000, 10000),
                f"{entered('confirmed')} or vector(0)",
            ),
            number(
                "Suspected, last hour",
                "Each is confirmed or withdrawn a little later.",
                "short",
                above(5e3, 5e4),
                f"{entered('suspected')} or vector(0)",
            ),
            number(
                "Withdrawn, last hour",
                "Share of the suspected ones. High: outliers, or changes too small for the "
                "stream's false_alarm_every.",
                "percentunit",
                above(0.8, 0.95),
                withdrawn,
            ),
            number(
                "Confirmed per 1,000",
                "Per 1,000 observations in 10 minutes; the model with the most.",
                "short",
                above(20, 50),
                f"max(moca:confirmed:per1000_10m{{{MODEL}}}) or vector(0)",
            ),
            number(
                "In the 90 % interval",
                "Share of values between the 5 % and 95 % quantiles; the model furthest from 0.9.",
                "percentunit",
                within(0.85, 0.95, 0.03),
                furthest("moca:pit:coverage90_1h", 0.9),
            ),
            number(
                "Numerical faults",
                "Steps discarded in the last hour; each is a defect.",
                "short",
                above(1, 2),
                "sum(increase(moca_numerical_faults_total[1h]))",
            ),
            table_of_incidents(),
            table_of_changes(),
        ],
        "How often": [
            confirmed,
            lines(
                "Per minute, by state",
                "Suspected, confirmed, withdrawn.",
                "cpm",
                above(500, 5000),
                (f"60 * sum by (state) (moca:changepoints:rate5m{{{MODEL}}})", "{{state}}"),
            ),
            lines(
                "Confirmed per 1,000 observations",
                "In 10 minutes and over the last day: alerts MocaChangepointStorm and Silence.",
                "short",
                above(20, 50),
                (f"moca:confirmed:per1000_10m{{{MODEL}}}", "{{model}}"),
                (f"moca:confirmed:per1000_1d{{{MODEL}}}", "{{model}} (day)"),
            ),
            lines(
                "Anomalies per minute, by model",
                "Single observations that are unusual for their streams; about one in 1,000 is "
                "expected.",
                "cpm",
                above(100, 1000),
                (
                    f"60 * sum by (model) (rate({anomalies}))",
                    "{{model}}",
                ),
            ),
            histogram(
                "Probability of a change at each observation",
                "Observations by their probability of starting a regime.",
                "percentunit",
                above(0.5, 0.9),
                counts("moca_changepoint_probability_bucket"),
            ),
            histogram(
                "Evidence of a change",
                "Observations by their evidence, a return period: while nothing changes it reaches "
                "10,000 once in 10,000 observations. A stream confirms at its false_alarm_every.",
                "short",
                above(1e3, 1e4),
                counts(f"moca_evidence_observations_bucket{{{MODEL}}}"),
            ),
            histogram(
                "Run lengths",
                "Observations by most probable run length.",
                "short",
                below(10, 2),
                counts(f"moca_run_length_observations_bucket{{{MODEL}}}"),
            ),
        ],
        "Are the predictions good": [
            lines(
                "Mean log score, by model",
                "In 30 minutes. Compare a model only with itself: it depends on the values' unit.",
                "suffix: nats",
                below(-5, -10),
                (f"moca:log_score_nats:mean30m{{{MODEL}}}", "{{model}}"),
            ),
            lines(
                "In the 90 % interval, by model",
                "In one hour; 0.9 if calibrated, less if overconfident: MocaCalibrationDrift.",
                "percentunit",
                within(0.85, 0.95, 0.03),
                (f"moca:pit:coverage90_1h{{{MODEL}}}", "{{model}}"),
            ),
            lines(
                "Mean PIT, by model",
                "In one hour; 0.5 if calibrated. Higher: values are above the predictions.",
                "none",
                within(0.45, 0.55, 0.03),
                (f"moca:pit:mean1h{{{MODEL}}}", "{{model}}"),
            ),
            histogram(
                "Log scores",
                "Values by log score.",
                "suffix: nats",
                below(-10, -20),
                counts(f"moca_log_score_nats_bucket{{{MODEL}}}"),
            ),
            histogram(
                "PIT",
                "Values by the twentieth of their predictive distribution: even if calibrated, "
                "a hill if underconfident, a valley if overconfident.",
                "none",
                within(0.05, 0.95, 0.04),
                counts(f"moca_pit_bucket{{{MODEL}}}"),
            ),
            lines(
                "Pruned mass",
                "Mean probability mass pruned a step. High: raise max_hypotheses.",
                "none",
                above(2e-3, 0.02),
                (f"moca:pruned_mass:mean30m{{{MODEL}}}", "{{model}}"),
            ),
        ],
    }


def is_it_well() -> dict[str, list[Panel]]:
    """The service as its users see it, then its workers and its store."""

    def rate(metric: str, by: str = "") -> str:
        return f"sum{by and f' by ({by})'}(rate({metric}[$__rate_interval]))"

    duration = "moca_http_request_duration_seconds_bucket"
    latency = rate(f"{duration}{{{OBSERVE}}}", "le")
    listed = 'route=~"/v1/streams/{stream}/observations .list.|/v1/observations",method="POST"'
    wrong = 'sum by (status) (moca:requests:rate1m{status=~"[45].."}) or on () '
    none = 'label_replace(vector(0), "status", "none", "", "")'
    busy = 'moca_stage_duration_seconds_sum{stage=~"compute|commit"}'
    unowned = 'max(moca_unowned_partitions{job="moca-api"})'
    batch = "moca_batch_size_observations"
    cpu = f"process_cpu_seconds_total{{{OURS}}}[$__rate_interval]"
    share = (("0.5", "50 %"), ("0.9", "90 %"), ("0.99", "99 %"))
    trouble = {
        "quarantined": "quarantined_commands",
        "unreadable": "corrupt_states",
        "repaired": "log_rollbacks",
        "non-finite": "numerical_faults",
    }
    return {
        "Is the service well": [
            number(
                "Firing alerts",
                "0: it is well. Each has a section in docs/monitoring.md.",
                "short",
                above(1, 2),
                f"count({ALERTS}) or vector(0)",
            ),
            number(
                "Observations",
                "Applied per second.",
                "suffix: /s",
                PLAIN,
                'sum(moca:observations:rate1m{outcome="applied"}) or vector(0)',
            ),
            number(
                "Server errors",
                "Share of requests in 5 minutes; alert MocaServerErrors.",
                "percentunit",
                above(0.001, 0.01),
                "moca:server_errors:ratio5m",
            ),
            number(
                "Load shed",
                "Share of commands in 5 minutes; alert MocaLoadShed.",
                "percentunit",
                above(0.001, 0.01),
                "moca:load_shed:ratio5m",
            ),
            number(
                "Oldest pending",
                "Age of the oldest command not applied; MocaOldestPending.",
                "s",
                above(0.5, 2),
                "max(moca_oldest_pending_seconds)",
            ),
            number(
                "Store",
                "1 while every API reaches it.",
                "short",
                below(1, 1),
                'min(moca_redis_up{job="moca-api"})',
            ),
        ],
        "What users see": [
            lines(
                "Latency of posting one observation",
                "First request byte to last response byte.",
                "s",
                above(0.25, 1),
                *((f"histogram_quantile({q}, {latency})", name) for q, name in share),
            ),
            lines(
                "99 % latency of lists",
                "It grows with their length.",
                "s",
                PLAIN,
                (
                    f"histogram_quantile(0.99, {rate(f'{duration}{{{listed}}}', 'route, le')})",
                    "{{route}}",
                ),
            ),
            lines(
                "99 % latency by route",
                "In 5 minutes.",
                "s",
                above(1, 5),
                ("moca:request_duration_seconds:p99_5m", "{{route}}"),
            ),
            lines(
                "Requests by route",
                "Requests per second.",
                "reqps",
                PLAIN,
                ("sum by (method, route) (moca:requests:rate1m)", "{{method}} {{route}}"),
            ),
            lines(
                "Observations by outcome",
                "applied, duplicate, refused, fault or quarantined.",
                "suffix: /s",
                PLAIN,
                ("moca:observations:rate1m", "{{outcome}}"),
            ),
            lines(
                "Errors by status",
                "409 conflict with the stream's state, 422 bad input, 429 load shed, 503 not "
                "accepted, 504 accepted but not answered yet.",
                "reqps",
                above(1, 10),
                (wrong + none, "{{status}}"),
            ),
        ],
        "Where the time goes": [
            lines(
                "99 % latency by stage",
                "ingest: accepted to append acknowledged; queue: to read by the worker; compute; "
                "commit; reply: append acknowledged to outcome received.",
                "s",
                above(0.25, 1),
                ("moca:stage_duration_seconds:p99_5m", "{{stage}}"),
            ),
            lines(
                "Pending observations",
                "Accepted and not yet applied, in all partitions and in the fullest one.",
                "short",
                above(5000, 10000),
                ("moca:pending_observations", "all"),
                ("max(moca_partition_lag_observations)", "fullest partition"),
            ),
            lines(
                "Commands shed",
                "By reason; the runbook of MocaLoadShed explains each.",
                "suffix: /s",
                above(0.1, 10),
                (rate("moca_load_shed_total", "reason"), "{{reason}}"),
            ),
            lines(
                "Time in compute and commit",
                "Busy seconds per second; close to the number of workers: saturated.",
                "suffix: s/s",
                above(1, 8),
                (rate(busy, "stage"), "{{stage}}"),
            ),
            lines(
                "Observations per step",
                "Mean; grows with load.",
                "short",
                above(512, 2048),
                (f"{rate(f'{batch}_sum')} / ({rate(f'{batch}_count')} > 0) or vector(0)", "mean"),
            ),
            lines(
                "CPU time of processes",
                "APIs and workers that run alone; `moca serve` does not report it (0).",
                "suffix: cores",
                above(0.8, 0.95),
                (
                    f"rate({cpu}) or on () vector(0)",
                    "{{job}} {{instance}}",
                ),
            ),
        ],
        "Workers": [
            lines(
                "Targets",
                "1 while a process responds to Prometheus.",
                "short",
                below(1, 1),
                (f"up{{{OURS}}}", "{{job}} {{instance}}"),
                width=6,
            ),
            lines(
                "Partitions",
                "Owned, by worker; and those without one.",
                "short",
                PLAIN,
                ("sum by (job, instance) (moca_owned_partitions) > 0", "{{job}} {{instance}}"),
                (unowned, "unowned"),
                width=6,
            ),
            lines(
                "Fenced commits, 10 minutes",
                "Rejected because the worker no longer owned the partition.",
                "short",
                above(1, 10),
                ("moca:fenced_commits:increase10m", "fenced"),
                width=6,
            ),
            lines(
                "Quarantined or discarded, one hour",
                "Alert MocaSetAside.",
                "short",
                above(1, 2),
                *(
                    (f"sum(increase(moca_{name}_total[1h]))", title)
                    for title, name in trouble.items()
                ),
                width=6,
            ),
        ],
        "Store, checkpoints and events": [
            lines(
                "Store memory",
                "Share of maxmemory, 0 without a limit; load is shed at 85 %.",
                "percentunit",
                above(0.75, 0.85),
                ("max(moca_redis_memory_ratio)", "used"),
                width=6,
            ),
            lines(
                "Append-only file",
                "Enabled; failing: the store soon refuses writes.",
                "short",
                above(1.1, 1.2),
                ('min(moca_redis_append_only{job="moca-api"})', "enabled"),
                ('max(moca_redis_append_only_failing{job="moca-api"})', "failing"),
                width=6,
            ),
            lines(
                "Observations since a checkpoint",
                "Most of any resident stream; due every 64.",
                "short",
                above(128, 256),
                ("max(moca_checkpoint_lag_observations)", "furthest"),
                width=6,
            ),
            lines(
                "Streaming and webhooks",
                "Open connections, and failed deliveries of webhooks a minute (0 without any).",
                "short",
                PLAIN,
                ("sum by (kind) (moca_subscribers)", "{{kind}}"),
                (
                    f"60 * {rate('moca_webhook_failed_attempts_total')} or vector(0)",
                    "failed a minute",
                ),
                width=6,
            ),
        ],
    }


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
    return [
        dashboard("moca-changes", "MOCA: what changed", "Changes of all streams.", what_changed()),
        dashboard(
            "moca-service", "MOCA: is the service well", "Users, workers, store.", is_it_well()
        ),
    ]


def main() -> None:
    """Write both into the folder that the command line names."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for made in dashboards():
        Path(folder, f"{made['uid']}.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
