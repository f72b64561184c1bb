"""What changed: of all streams, by model and state, anomalies."""

from __future__ import annotations

from moca_grafana.infinity import Column, JsonQuery
from moca_grafana.limits import above, below
from moca_grafana.page import Page
from moca_grafana.panels import (
    Panel,
    Query,
    What,
    buckets_over_time,
    json_rows,
    lines,
    number,
)

MODEL = 'model=~"$model"'
AT_START = (
    "${console}/#/streams/${__data.fields.Stream:percentencode}?at=${__data.fields.Start:raw}"
)
LATEST = 500  # the most of one page of GET /v1/changes
MARKS = 100


def page() -> Page:
    """Return the dashboard."""
    return Page(
        "moca-changepoints",
        "MOCA: changepoints",
        "Changes of all streams, changepoints by model and state, anomalies.",
        {
            "Now": _now(),
            "Changes of all streams": _changes(),
            "Over time": _course(),
        },
        by_model=True,
        choices={
            "state": ("State", ("confirmed", "suspected", "withdrawn")),
            "sort": ("Order", ("time", "size", "probability")),
            "min_size": ("Smallest size", ("0", "0.5", "1", "2", "3", "5")),
        },
        marks=("Confirmed changes of all streams", _marks()),
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
    share = f"{_entered('withdrawn', '1h')} / ({_entered('suspected', '1h')} > 0) or vector(0)"
    return [
        number(confirmed, f"{_entered('confirmed', '1h')} or vector(0)", 0),
        number(suspected, f"{_entered('suspected', '1h')} or vector(0)", 0),
        number(withdrawn, share, 0),
        number(often, f"max(moca:confirmed:per1000_10m{{{MODEL}}}) or vector(0)", 1),
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
