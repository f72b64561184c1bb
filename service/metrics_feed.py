"""Metrics of those who follow: connections to events and observations, and webhooks."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from service.metrics import REGISTRY

EVENT_STREAMS = Gauge(
    "moca_event_streams",
    "Open connections to /v1/events.",
    multiprocess_mode="livesum",
    registry=REGISTRY,
)
EVENTS_SENT = Counter(
    "moca_events_sent_total",
    "Changepoint events sent on connections to /v1/events.",
    registry=REGISTRY,
)
EVENT_STREAMS_DROPPED = Counter(
    "moca_event_streams_dropped_total",
    "Connections to /v1/events closed because their consumer took nothing for too long.",
    registry=REGISTRY,
)
EVENT_GAPS = Counter(
    "moca_event_gaps_total",
    "Gaps told to consumers of /v1/events: what they had not read was trimmed away.",
    registry=REGISTRY,
)
LIVE_STREAMS = Gauge(
    "moca_live_streams",
    "Open connections that follow the observations of a stream.",
    multiprocess_mode="livesum",
    registry=REGISTRY,
)
LIVE_OBSERVATIONS = Counter(
    "moca_live_observations_sent_total",
    "Observations sent on connections that follow them.",
    registry=REGISTRY,
)
LIVE_DROPPED = Counter(
    "moca_live_streams_dropped_total",
    "Connections that follow observations closed because their consumer took nothing for too long.",
    registry=REGISTRY,
)
LIVE_GAPS = Counter(
    "moca_live_gaps_total",
    "Gaps told to those who follow observations: what they had not read is not retained.",
    registry=REGISTRY,
)
WEBHOOK_DELIVERED = Counter(
    "moca_webhook_delivered_total",
    "Events that a webhook's receiver has accepted.",
    ["hook"],
    registry=REGISTRY,
)
WEBHOOK_FAILED = Counter(
    "moca_webhook_failed_attempts_total",
    "Attempts at a delivery that failed.",
    ["hook"],
    registry=REGISTRY,
)
WEBHOOK_DEAD = Counter(
    "moca_webhook_dead_total",
    "Deliveries given up after their last attempt.",
    ["hook"],
    registry=REGISTRY,
)
WEBHOOK_GAPS = Counter(
    "moca_webhook_gaps_total",
    "Gaps met by a webhook: events were trimmed away before they were delivered.",
    ["hook"],
    registry=REGISTRY,
)
WEBHOOK_LAG = Gauge(
    "moca_webhook_lag_seconds",
    "Age of the oldest event that a webhook has taken up and not delivered; 0: none.",
    ["hook"],
    multiprocess_mode="livemax",
    registry=REGISTRY,
)


def know_hook(hook: str) -> None:
    """Show a hook's metrics from the start: a counter that appears with its first count at 1
    has no increase for Prometheus, and an alert would miss it.
    """
    for counter in (WEBHOOK_DELIVERED, WEBHOOK_FAILED, WEBHOOK_DEAD, WEBHOOK_GAPS):
        counter.labels(hook)
    WEBHOOK_LAG.labels(hook).set(0)
