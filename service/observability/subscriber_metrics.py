"""Metrics of those who follow: connections to events and observations, and webhooks."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from service.observability.metrics import REGISTRY

EVENT_STREAMS = Gauge(
    "moca_event_streams",
    "Open connections to /v1/events.",
    multiprocess_mode="livesum",
    registry=REGISTRY,
)
EVENTS_SENT = Counter(
    "moca_events_sent_total",
    "Changepoint events sent to /v1/events connections.",
    registry=REGISTRY,
)
EVENT_STREAMS_DROPPED = Counter(
    "moca_event_streams_dropped_total",
    "/v1/events connections closed by the send timeout.",
    registry=REGISTRY,
)
EVENT_GAPS = Counter(
    "moca_event_gaps_total",
    "Gap messages sent to /v1/events connections: unread events were trimmed.",
    registry=REGISTRY,
)
LIVE_STREAMS = Gauge(
    "moca_live_streams",
    "Open live-observation connections.",
    multiprocess_mode="livesum",
    registry=REGISTRY,
)
LIVE_OBSERVATIONS = Counter(
    "moca_live_observations_sent_total",
    "Observations sent to live-observation connections.",
    registry=REGISTRY,
)
LIVE_DROPPED = Counter(
    "moca_live_streams_dropped_total",
    "Live-observation connections closed by the send timeout.",
    registry=REGISTRY,
)
LIVE_GAPS = Counter(
    "moca_live_gaps_total",
    "Gap messages sent to live-observation connections: unread observations were not retained.",
    registry=REGISTRY,
)
WEBHOOK_DELIVERED = Counter(
    "moca_webhook_delivered_total",
    "Events accepted by a webhook's receiver.",
    ["hook"],
    registry=REGISTRY,
)
WEBHOOK_FAILED = Counter(
    "moca_webhook_failed_attempts_total",
    "Failed delivery attempts.",
    ["hook"],
    registry=REGISTRY,
)
WEBHOOK_DEAD = Counter(
    "moca_webhook_dead_total",
    "Events moved to the dead-letter queue after their last attempt.",
    ["hook"],
    registry=REGISTRY,
)
WEBHOOK_EVICTED = Counter(
    "moca_webhook_dead_evicted_total",
    "Events lost from the dead-letter queue: newer deliveries took their place.",
    ["hook"],
    registry=REGISTRY,
)
WEBHOOK_GAPS = Counter(
    "moca_webhook_gaps_total",
    "Webhook gaps: events trimmed before they were delivered.",
    ["hook"],
    registry=REGISTRY,
)
WEBHOOK_LAG = Gauge(
    "moca_webhook_lag_seconds",
    "Age of the oldest undelivered event of a webhook, in seconds; 0: none.",
    ["hook"],
    multiprocess_mode="livemax",
    registry=REGISTRY,
)


def know_hook(hook: str) -> None:
    """Show a hook's metrics from the start: a counter that appears with its first count at 1
    has no increase for Prometheus, and an alert would miss it.
    """
    for counter in (
        WEBHOOK_DELIVERED,
        WEBHOOK_FAILED,
        WEBHOOK_DEAD,
        WEBHOOK_EVICTED,
        WEBHOOK_GAPS,
    ):
        counter.labels(hook)
    WEBHOOK_LAG.labels(hook).set(0)
