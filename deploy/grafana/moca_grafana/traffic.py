"""The service as its users see it: rates, latency by stage, errors, backpressure."""

from __future__ import annotations

from moca_grafana.limits import above, none
from moca_grafana.page import Page
from moca_grafana.panels import Panel, Query, What, buckets_over_time, lines, number

LISTS = 'route=~"/v1/streams/{stream}/observations .list.|/v1/observations",method="POST"'
OBSERVE = 'route="/v1/streams/{stream}/observations",method="POST"'
SHED = 'moca_load_shed_total{reason!="event_streams"}'


def page() -> Page:
    """Return the dashboard."""
    return Page(
        "moca-service",
        "MOCA: service",
        "Rates, latency by stage, errors and backpressure of the API.",
        {
            "Now": _now(),
            "Rates": _rates(),
            "Latency": _latency(),
            "Errors and backpressure": _errors() + _pressure(),
            "Events": _events(),
        },
    )


def _now() -> list[Panel]:
    rate = What("Observations", "Applied observations per second.", "suffix: /s", none())
    requests = What("Requests", "Requests per second.", "reqps", none())
    errors = What(
        "Server errors",
        "Share of requests with a 5xx status in 5 minutes; alert MocaServerErrors.",
        "percentunit",
        above(0.001, 0.01),
    )
    shed = What(
        "Load shed",
        "Share of commands shed; alert MocaLoadShed.",
        "percentunit",
        above(0.001, 0.01),
    )
    oldest = What(
        "Oldest pending",
        "Age of the oldest accepted command not yet applied; alert MocaOldestPending.",
        "s",
        above(0.5, 2),
    )
    unowned = What(
        "Unowned partitions",
        "Partitions without an owning worker; alert MocaPartitionUnowned.",
        "short",
        above(1, 2),
    )
    applied = 'sum(moca:observations:rate1m{outcome="applied"}) or vector(0)'
    return [
        number(rate, applied),
        number(requests, "sum(moca:requests:rate1m) or vector(0)"),
        number(errors, "moca:server_errors:ratio5m", 2),
        number(shed, "moca:load_shed:ratio5m", 2),
        number(oldest, "max(moca_oldest_pending_seconds)", 2),
        number(unowned, 'max(moca_unowned_partitions{job="moca-api"})', 0),
    ]


def _rates() -> list[Panel]:
    outcomes = What(
        "Observations by outcome",
        "applied, duplicate, refused, fault or quarantined.",
        "suffix: /s",
        none(),
    )
    routes = What("Requests by route", "Requests per second.", "reqps", none())
    by_route = "sum by (method, route) (moca:requests:rate1m)"
    return [
        lines(outcomes, Query("moca:observations:rate1m", "{{outcome}}")),
        lines(routes, Query(by_route, "{{method}} {{route}}"), stacked=True),
    ]


def _latency() -> list[Panel]:
    observe = What(
        "Latency of posting one observation",
        "First request byte to last response byte. Lists are in a panel of their own.",
        "s",
        above(0.25, 1),
    )
    spread = What(
        "Latency of posting one observation, distribution",
        "Requests by duration.",
        "s",
        above(0.25, 1),
    )
    listed = What(
        "Latency of lists",
        "Of one stream, or of many. It grows with the length: good is what the client waits for.",
        "s",
        none(),
    )
    routes = What("99 % latency by route", "In 5 minutes.", "s", above(1, 5))
    stage = What(
        "99 % latency by stage",
        "ingest: accepted to append acknowledged; queue: to read by the worker; compute; "
        "commit; reply: append acknowledged to outcome received. Of commands and batches: long "
        "lists raise all of them.",
        "s",
        above(0.25, 1),
    )
    half = stage._replace(title="Median latency by stage", limits=above(0.05, 0.25))
    name = "moca_http_request_duration_seconds_bucket"
    by_le = f"sum by (le) (rate({name}{{{OBSERVE}}}[$__rate_interval]))"
    shares = (("0.5", "50 %"), ("0.9", "90 %"), ("0.99", "99 %"))
    curves = [Query(f"histogram_quantile({q}, {by_le})", name) for q, name in shares]
    lists = f"sum by (route, le) (rate({name}{{{LISTS}}}[$__rate_interval]))"
    curves_of_lists = [
        Query(f"histogram_quantile({q}, {lists})", f"{name} {{{{route}}}}") for q, name in shares
    ]
    count = f"sum by (le) (increase({name}{{{OBSERVE}}}[$__rate_interval]))"
    return [
        lines(observe, *curves),
        buckets_over_time(spread, count),
        lines(listed, *curves_of_lists),
        lines(routes, Query("moca:request_duration_seconds:p99_5m", "{{route}}")),
        lines(stage, Query("moca:stage_duration_seconds:p99_5m", "{{stage}}")),
        lines(half, Query("moca:stage_duration_seconds:p50_5m", "{{stage}}")),
    ]


def _errors() -> list[Panel]:
    status = What(
        "Errors by status",
        "4xx and 5xx responses: 409 conflict with the stream's state, 422 bad input, 429 "
        "load shed, 503 not accepted, 504 accepted but not answered yet.",
        "reqps",
        above(1, 10),
    )
    shed = What("Commands shed", "By reason.", "suffix: /s", above(0.1, 10))
    repeated = What(
        "Recovered outcomes",
        "Appends retried because their outcome was unknown, and outcomes read from the "
        "store because their message was missed.",
        "suffix: /s",
        above(1, 10),
    )
    wrong = 'sum by (status) (moca:requests:rate1m{status=~"[45].."}) or on () '
    reason = "sum by (reason) (rate(moca_load_shed_total[$__rate_interval]))"
    again = "sum(rate(moca_repeated_appends_total[$__rate_interval]))"
    missed = "sum(rate(moca_recovered_replies_total[$__rate_interval]))"
    none = 'label_replace(vector(0), "status", "none", "", "")'
    return [
        lines(status, Query(wrong + none, "{{status}}"), span=8),
        lines(shed, Query(reason, "{{reason}}"), span=8),
        lines(repeated, Query(again, "append retried"), Query(missed, "outcome read"), span=8),
    ]


def _pressure() -> list[Panel]:
    pending = What(
        "Pending observations",
        "Accepted and not yet applied: in all partitions, and in the fullest one, which "
        "rejects more at MOCA_MAX_PENDING (10,000).",
        "short",
        above(5000, 10000),
    )
    oldest = What(
        "Oldest pending command", "Age of the oldest pending command; 0: none.", "s", above(0.5, 2)
    )
    waiting = What(
        "Waiting requests per API process",
        "Commands without an outcome; more are rejected at MOCA_MAX_WAITING (20,000).",
        "short",
        above(10000, 20000),
    )
    together = What(
        "Commands per append",
        "Grows with load: each partition has one append in flight.",
        "short",
        above(64, 256),
    )
    fullest = Query("max(moca_partition_lag_observations)", "fullest partition")
    mean = (
        "sum(rate(moca_append_commands_sum[$__rate_interval]))"
        " / (sum(rate(moca_append_commands_count[$__rate_interval])) > 0) or vector(0)"
    )
    by_api = Query('moca_requests_waiting{job="moca-api"}', "{{instance}}")
    return [
        lines(pending, Query("moca:pending_observations", "all"), fullest, span=6),
        lines(oldest, Query("max(moca_oldest_pending_seconds)", "oldest"), span=6),
        lines(waiting, by_api, span=6),
        lines(together, Query(mean, "mean"), span=6),
    ]


def _events() -> list[Panel]:
    readers = What(
        "Streaming connections",
        "Open connections to /v1/events and to live observations, by API process.",
        "short",
        above(80, 100),
    )
    sent = What(
        "Streaming: sent and lost",
        "Events and observations sent; gap messages; connections closed by the send timeout.",
        "suffix: /s",
        above(1000, 10000),
    )
    hooks = What(
        "Webhooks: failed deliveries",
        "Failed attempts, and dead letters after the last one. 0 without webhooks.",
        "suffix: /s",
        above(0.1, 1),
    )
    lag = What(
        "Webhooks: oldest undelivered event", "By webhook; 0 without webhooks.", "s", above(60, 600)
    )
    rates = {
        "events": "events_sent",
        "events, gaps": "event_gaps",
        "events, closed": "event_streams_dropped",
        "observations": "live_observations_sent",
        "observations, gaps": "live_gaps",
        "observations, closed": "live_streams_dropped",
    }
    of_events = Query('moca_event_streams{job="moca-api"}', "events, {{instance}}")
    of_streams = Query('moca_live_streams{job="moca-api"}', "observations, {{instance}}")
    failed = "sum(rate(moca_webhook_failed_attempts_total[$__rate_interval])) or vector(0)"
    dead = "sum(rate(moca_webhook_dead_total[$__rate_interval])) or vector(0)"
    lines_of = [
        Query(f"sum(rate(moca_{name}_total[$__rate_interval]))", title)
        for title, name in rates.items()
    ]
    late = "max by (hook) (moca_webhook_lag_seconds) or on () vector(0)"
    return [
        lines(readers, of_events, of_streams, span=6),
        lines(sent, *lines_of, span=6),
        lines(hooks, Query(failed, "failed attempts"), Query(dead, "dead letters"), span=6),
        lines(lag, Query(late, "{{hook}}"), span=6),
    ]
