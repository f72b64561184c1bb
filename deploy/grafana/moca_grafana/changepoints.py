"""What changed: of all streams, by model and state, anomalies, pinned streams one by one."""

from __future__ import annotations

from moca_grafana.infinity import Column, JsonQuery
from moca_grafana.limits import above, below, none
from moca_grafana.page import Page
from moca_grafana.panels import (
    CONSOLE_STREAM,
    Panel,
    Query,
    What,
    band,
    buckets_over_time,
    json_rows,
    lines,
    link,
    note,
    number,
    rows,
)

MODEL = 'model=~"$model"'
STREAM = 'stream=~"$stream"'
AT_START = (
    "${console}/#/streams/${__data.fields.Stream:percentencode}?at=${__data.fields.Start:raw}"
)
LATEST = 500  # the most of one page of GET /v1/changes
MARKS = 100
INTRO = (
    "These panels have a series for each pinned stream. Changes of all streams are in the table "
    "above, and every event of a stream is in [the console](${console}/#/)."
)


def page() -> Page:
    """Return the dashboard."""
    return Page(
        "moca-changepoints",
        "MOCA: changepoints",
        "Changes of all streams, changepoints by model and state, anomalies, pinned streams.",
        {
            "Now": _now(),
            "Changes of all streams": _changes(),
            "Over time": _course(),
            "Pinned streams": _pinned(),
            "$stream": _stream(),
        },
        by_model=True,
        choices={
            "state": ("State", ("confirmed", "suspected", "withdrawn")),
            "sort": ("Order", ("time", "size", "probability")),
            "min_size": ("Smallest size", ("0", "0.5", "1", "2", "3", "5")),
        },
        marks=("Confirmed changes of all streams", _marks()),
        by_stream=True,
    )


def _entered(state: str, window: str) -> str:
    return f'sum(increase(moca_changepoints_total{{state="{state}",{MODEL}}}[{window}]))'


def _now() -> list[Panel]:
    confirmed = What(
        "Confirmed, last hour",
        "Changepoints confirmed in the last hour; relocated ones count again.",
        "short",
        above(1000, 10000),
    )
    suspected = What(
        "Suspected, last hour", "Changepoints suspected in the last hour.", "short", above(5e3, 5e4)
    )
    withdrawn = What(
        "Withdrawn, last hour",
        "Share of suspected changepoints that were withdrawn. High: outliers, or changes too small "
        "for confirm_probability.",
        "percentunit",
        above(0.8, 0.95),
    )
    often = What(
        "Confirmed per 1,000",
        "Confirmed changepoints per 1,000 observations in 10 minutes; the model with the most.",
        "short",
        above(20, 50),
    )
    watched = What("Pinned streams", "Streams with their own metrics.", "short", above(90, 100))
    changed = What(
        "Pinned and changed",
        "Pinned streams with changed_probability above 0.9.",
        "short",
        above(1, 10),
    )
    unit = "max by (stream) (moca_stream_changed_probability) > 0.9"
    share = f"{_entered('withdrawn', '1h')} / ({_entered('suspected', '1h')} > 0) or vector(0)"
    return [
        number(confirmed, f"{_entered('confirmed', '1h')} or vector(0)", 0),
        number(suspected, f"{_entered('suspected', '1h')} or vector(0)", 0),
        number(withdrawn, share, 0),
        number(often, f"max(moca:confirmed:per1000_10m{{{MODEL}}}) or vector(0)", 1),
        number(watched, "count(max by (stream) (moca_stream_observations)) or vector(0)", 0),
        number(changed, f"count({unit}) or vector(0)", 0),
    ]


def _chosen(limit: int, state: str, sort: str) -> dict[str, str]:
    """Return the query of changes in the page's time range."""
    return {
        "since": "${__from:date:iso}",
        "until": "${__to:date:iso}",
        "state": state,
        "min_size": "$min_size",
        "sort": sort,
        "limit": str(limit),
    }


def _changes() -> list[Panel]:
    table = What(
        "Which streams changed, when, how big, how sure",
        f"Changes of all streams in the time range, at most {LATEST}, in the chosen state and "
        "order. Size in standard deviations (streams of one output); P(start): that the regime "
        "began exactly at Start. A stream's name opens its page there. Needs the Infinity data "
        "source.",
        "short",
        below(0.5, 0.1),
    )
    columns = [
        Column("stream", "Stream"),
        Column("confirmed_time", "Confirmed", "timestamp"),
        Column("suspected_time", "Suspected", "timestamp"),
        Column("size", "Size", "number"),
        Column("probability", "P(start)", "number"),
        Column("explanation.text", "What changed"),
        Column("model", "Model"),
        Column("start", "Start"),
    ]
    chosen = _chosen(LATEST, "$state", "$sort")
    query = JsonQuery("/v1/changes", chosen, "changes", columns)
    return [json_rows(table, query, {"Stream": AT_START})]


def _marks() -> JsonQuery:
    columns = [
        Column("confirmed_time", "time", "timestamp"),
        Column("stream", "title"),
        Column("explanation.text", "text"),
    ]
    return JsonQuery("/v1/changes", _chosen(MARKS, "confirmed", "time"), "changes", columns)


def _course() -> list[Panel]:
    by_model = What(
        "Confirmed per minute, by model",
        "Rate of confirmed changepoints. Dots are single ones (exemplars), each with its stream.",
        "cpm",
        above(100, 1000),
    )
    by_state = What(
        "Per minute, by state",
        "Suspected changepoints are confirmed or withdrawn a little later.",
        "cpm",
        above(500, 5000),
    )
    per_1000 = What(
        "Confirmed per 1,000 observations",
        "In 10 minutes, and over the last day: alerts MocaChangepointStorm and Silence.",
        "short",
        above(20, 50),
    )
    strange = What(
        "Anomalies per minute, by model",
        "Anomaly events: single observations unusual for their streams. About one in 1,000 quiet "
        "observations is expected; a lasting change is one anomaly and one changepoint.",
        "cpm",
        above(100, 1000),
    )
    belief = What(
        "Probability of a change at each observation",
        "Observations by their probability of starting a regime; most are near the hazard.",
        "percentunit",
        above(0.5, 0.9),
    )
    day = Query(f"moca:confirmed:per1000_1d{{{MODEL}}}", "{{model}} (day)")
    sum_of = f"60 * sum by (state) (moca:changepoints:rate5m{{{MODEL}}})"
    # Of the counter itself: a recorded rate has no exemplars.
    counted = f'moca_changepoints_total{{{MODEL},state="confirmed"}}[$__rate_interval]'
    confirmed = f"60 * sum by (model) (rate({counted}))"
    anomalies = f"60 * sum by (model) (rate(moca_anomalies_total{{{MODEL}}}[$__rate_interval]))"
    each = "sum by (le) (increase(moca_changepoint_probability_bucket[$__rate_interval]))"
    return [
        lines(by_model, Query(confirmed, "{{model}}", exemplars=True)),
        lines(by_state, Query(sum_of, "{{state}}")),
        lines(per_1000, Query(f"moca:confirmed:per1000_10m{{{MODEL}}}", "{{model}}"), day, span=8),
        lines(strange, Query(anomalies, "{{model}}"), span=8),
        buckets_over_time(belief, each).span(8),
    ]


def _pinned() -> list[Panel]:
    table = What(
        "Last changes of pinned streams",
        "Pinned streams with a confirmed change, latest first. A stream's name opens it.",
        "short",
        above(0.5, 0.9),
    )
    by = "max by (stream, model)"
    columns = {
        "Observations since": f"{by} (moca_stream_observations - moca_stream_confirmed_start)",
        "Began at": f"{by} (moca_stream_confirmed_start)",
        "P(changed since)": f"{by} (moca_stream_changed_probability)",
        "Run length": f"{by} (moca_stream_run_length)",
        "Last label": f"{by} (moca_stream_last)",
    }
    confirmed = f"and ({by} (moca_stream_confirmed_start) > 0)"
    queries = {title: Query(f"{expr} {confirmed}") for title, expr in columns.items()}
    return [note("Recent events", INTRO), rows(table, queries)]


def _one(name: str) -> str:
    return f"max by (stream) (moca_stream_{name}{{{STREAM}}})"


def _stream() -> list[Panel]:
    predicted = What(
        "Labels and forecasts",
        "Last label, and mean and 5 % to 95 % band of its predictive distribution.",
        "short",
        none(),
    )
    changed = What(
        "Probability that the regime changed",
        "Since the last confirmed change: use this probability for alarms.",
        "percentunit",
        above(0.5, 0.9),
    )
    length = What(
        "Run length",
        "Most probable run length, and observations since the last confirmed change.",
        "short",
        below(5, 1),
    )
    score = What(
        "Log score of the last label",
        "Log predictive density: low for surprising labels.",
        "suffix: nats",
        below(-5, -10),
    )
    since = f"{_one('observations')} - {_one('confirmed_start')}"
    series = [Query(_one("last"), "label"), Query(_one("mean"), "mean")]
    ends = [Query(_one("lower"), "5 %"), Query(_one("upper"), "95 %")]
    open_it = link("Open in the console", CONSOLE_STREAM + "${stream:percentencode}")
    labels = band(lines(predicted, *series, *ends, span=24), "5 %", "95 %")
    found: list[Panel] = [
        labels.links([open_it]),
        lines(changed, Query(_one("changed_probability"), "changed"), span=8).min(0).max(1),
        lines(length, Query(_one("run_length"), "run length"), Query(since, "since"), span=8),
        lines(score, Query(_one("log_score"), "log score"), span=8),
    ]
    return found
