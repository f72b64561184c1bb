"""Every Prometheus metric of API and worker, in one place. No stream id is ever a label.

With PROMETHEUS_MULTIPROC_DIR set before this module is imported, each process writes its values
to that folder, and `exposition` shows the sum over all of them; without it, those of this
process. The folder has to be empty when the service starts.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections import defaultdict
from collections.abc import Iterable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    multiprocess,
    start_http_server,
    values,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from model_core.stream.events import Event
from service import installed_version
from service.problems import StartupError

MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"

disable_created_metrics()  # type: ignore[no-untyped-call]
if MULTIPROCESS_DIR in os.environ:
    # The library asks for the process's id at every write, a system call; nothing forks here.
    _process = os.getpid()
    values.ValueClass = values.MultiProcessValue(lambda: _process)  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry()
_counter = partial(Counter, registry=REGISTRY)
# Of the values of living processes: the newest, the sum, the largest.
_newest = partial(Gauge, registry=REGISTRY, multiprocess_mode="livemostrecent")
_sum = partial(Gauge, registry=REGISTRY, multiprocess_mode="livesum")
_largest = partial(Gauge, registry=REGISTRY, multiprocess_mode="livemax")
_histogram = partial(Histogram, registry=REGISTRY)
ENTER_EVERY_S = 0.1  # longest time until a gathered value is in its histogram
EXEMPLAR_LENGTH = 128  # characters of names and values, by OpenMetrics


_SECONDS = (5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_NATS = (-100.0, -50.0, -20.0, -10.0, -7.5, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 5.0, 10.0)
_EVIDENCE = (1, 10, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 1e9, 1e12)
_PROBABILITIES = (1e-4, 1e-3, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0)


# --- API ------------------------------------------------------------------------------------

REQUEST_DURATION = _histogram(
    "moca_http_request_duration_seconds",
    "Request duration by route, in seconds: first request byte to last response byte "
    "(first response byte for streaming responses).",
    ["route", "method", "status"],
    buckets=_SECONDS,
)
APPEND_COMMANDS = _histogram(
    "moca_append_commands", "Commands per append to the log.", buckets=_COUNTS
)
REPEATED_APPENDS = _counter(
    "moca_repeated_appends_total",
    "Appends retried with the same number because their outcome was unknown.",
)
RECOVERED_REPLIES = _counter(
    "moca_recovered_replies_total", "Outcomes read from the store because their message was missed."
)
REMOTE_WRITE_SAMPLES = _counter(
    "moca_remote_write_samples_total",
    "Samples of Prometheus remote writes, and points of OTLP: `applied`; `skipped`, as repeats and "
    "those after the first in an interval are; `unmatched` by the rules; `rejected`; `untried`, as "
    "many of their stream were refused before; `deferred`, to be sent again.",
    ["result"],
)
REMOTE_WRITE_IGNORED = _counter(
    "moca_remote_write_ignored_total",
    "Histograms and exemplars of Prometheus remote writes, which are ignored.",
    ["kind"],
)
# Workers, which know nothing of it, have a 0 there.
REDIS_UP = _newest("moca_redis_up", "1 while the API can reach Redis, else 0.")
REDIS_MEMORY_RATIO = _newest(
    "moca_redis_memory_ratio", "Redis memory in use, as a share of maxmemory; 0 without a limit."
)
CONNECTIONS = _sum(
    "moca_http_connections", "Open connections to API processes, including idle ones."
)
LOAD_SHED = _counter(
    "moca_load_shed_total", "Requests shed (rejected under overload), by reason.", ["reason"]
)
PARTITION_LAG = _newest(
    "moca_partition_lag_observations",
    "Observations accepted and not yet applied, by partition.",
    ["partition"],
)
OLDEST_PENDING = _newest(
    "moca_oldest_pending_seconds",
    "Age of the oldest accepted command that is not applied yet, in seconds; 0: none.",
)
REDIS_USED_MEMORY = _newest("moca_redis_used_memory_bytes", "Redis memory in use, in bytes.")
REDIS_APPEND_ONLY = _newest(
    "moca_redis_append_only", "1 while the Redis append-only file is enabled, else 0."
)
REDIS_APPEND_ONLY_FAILING = _newest(
    "moca_redis_append_only_failing",
    "1 while the last write or rewrite of the Redis append-only file failed, else 0.",
)
UNOWNED_PARTITIONS = _newest("moca_unowned_partitions", "Partitions without an owning worker.")

# --- both -----------------------------------------------------------------------------------

BUILD_INFO = _largest(
    "moca_build_info",
    "1, with the versions of the service and of Python as labels.",
    ["version", "python"],
)

STAGE_DURATION = _histogram(
    "moca_stage_duration_seconds",
    "Seconds per stage: ingest (API: accepted to append acknowledged), queue (accepted to "
    "read by the worker), compute, commit (worker), reply (API: append acknowledged to "
    "outcome received).",
    ["stage"],
    buckets=_SECONDS,
)

# --- worker ---------------------------------------------------------------------------------

EXCLUDED = _counter(
    "moca_excluded_observations_total",
    "Observations excluded from learning: `planned`, in a window of the calendar, or by `request`.",
    ["reason"],
)
OBSERVATIONS = _counter(
    "moca_observations_total",
    "Observations by outcome: applied, duplicate, refused, fault, quarantined.",
    ["outcome"],
)
BATCH_SIZE = _histogram(
    "moca_batch_size_observations", "Observations per device step (batch size).", buckets=_COUNTS
)
OWNED_PARTITIONS = _sum("moca_owned_partitions", "Partitions owned by living workers.")
RESIDENT_BYTES = _sum(
    "moca_resident_bytes",
    "Memory held for streams and models, on device and host, including one step, in bytes.",
)
FENCED_COMMITS = _counter(
    "moca_fenced_commits_total",
    "Commits rejected because the worker no longer owned the partition.",
)
QUARANTINED_COMMANDS = _counter(
    "moca_quarantined_commands_total",
    "Commands quarantined: they repeatedly stopped their worker, or were damaged in the log.",
)
LOG_ROLLBACKS = _counter(
    "moca_log_rollbacks_total", "Logs that ended before their committed offset and were repaired."
)
CHECKPOINT_AGE = _largest(
    "moca_checkpoint_age_seconds",
    "Age of the oldest checkpoint among resident streams that have advanced since, in seconds.",
)
CHECKPOINT_LAG = _largest(
    "moca_checkpoint_lag_observations",
    "Largest number of observations applied to a resident stream since its checkpoint.",
)
CHANGEPOINTS = _counter(
    "moca_changepoints_total",
    "Changepoint event state changes, by model and new state.",
    ["model", "state"],
)
RETURNS = _counter(
    "moca_returns_total",
    "Event state changes of returns to remembered regimes, by model and new state; "
    "`moca_changepoints_total` has those of all other changes.",
    ["model", "state"],
)
ANOMALIES = _counter("moca_anomalies_total", "Anomaly events, by model.", ["model"])
LOG_SCORE = _histogram(
    "moca_log_score_nats",
    "Log predictive density of each label, in nats.",
    ["model"],
    buckets=_NATS,
)
CHANGEPOINT_PROBABILITY = _histogram(
    "moca_changepoint_probability",
    "Probability that an observation starts a regime.",
    buckets=_PROBABILITIES,
)
CORRUPT_STATES = _counter(
    "moca_corrupt_states_total", "Damaged or missing stored parts, counted each time one is read."
)
CHANGED_MODELS = _largest("moca_changed_models", "Loaded artifacts whose files changed on disk.")
NUMERICAL_FAULTS = _counter(
    "moca_numerical_faults_total", "Steps discarded because they gave a non-finite number."
)


# --- how well models predict -----------------------------------------------------------------

STATES = ("suspected", "confirmed", "withdrawn")

_SHARES = tuple(i / 20 for i in range(1, 21))
_MASSES = (1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0)
_LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)

PIT = _histogram(
    "moca_pit",
    "Probability integral transform (PIT) of each label; uniform if calibrated.",
    ["model"],
    buckets=_SHARES,
)
# The sum of log scores falls and rises, so a rate of it would be wrong: two sums that only rise.
SCORE_ABOVE = _counter(
    "moca_log_score_positive_nats_total",
    "Sum of the positive log predictive densities, in nats.",
    ["model"],
)
SCORE_BELOW = _counter(
    "moca_log_score_negative_nats_total",
    "Sum of the negative log predictive densities, without their sign, in nats.",
    ["model"],
)
PRUNED_MASS = _histogram(
    "moca_pruned_mass",
    "Probability mass of the hypotheses pruned at each observation.",
    ["model"],
    buckets=_MASSES,
)
RUN_LENGTH = _histogram(
    "moca_run_length_observations",
    "Most probable run length after each observation, in observations.",
    ["model"],
    buckets=_LENGTHS,
)
EVIDENCE = _histogram(
    "moca_evidence_observations",
    "Evidence of a change after each observation: a return period, in observations.",
    ["model"],
    buckets=_EVIDENCE,
)

# --- subscribers: connections to events and observations, webhooks ---------------------------

SUBSCRIBERS = _sum(
    "moca_subscribers",
    "Open connections that follow the `events` of all streams, or the `observations` of one.",
    ["kind"],
)
WEBHOOK_DELIVERED = _counter(
    "moca_webhook_delivered_total", "Events accepted by a webhook's receiver.", ["hook"]
)
WEBHOOK_FAILED = _counter(
    "moca_webhook_failed_attempts_total", "Failed delivery attempts.", ["hook"]
)
WEBHOOK_DEAD = _counter(
    "moca_webhook_dead_total",
    "Events moved to the dead-letter queue after their last attempt.",
    ["hook"],
)
WEBHOOK_EVICTED = _counter(
    "moca_webhook_dead_evicted_total",
    "Events lost from the dead-letter queue: newer deliveries took their place.",
    ["hook"],
)
WEBHOOK_GAPS = _counter(
    "moca_webhook_gaps_total", "Webhook gaps: events trimmed before they were delivered.", ["hook"]
)
WEBHOOK_LAG = _largest(
    "moca_webhook_lag_seconds",
    "Age of the oldest undelivered event of a webhook, in seconds; 0: none.",
    ["hook"],
)


# Families to watch first, in the order of the documentation.
FIRST = (
    "moca_observations_total",
    "moca_http_request_duration_seconds",
    "moca_changepoints_total",
    "moca_pit",
    "moca_oldest_pending_seconds",
    "moca_load_shed_total",
    "moca_redis_up",
    "moca_redis_memory_ratio",
    "moca_unowned_partitions",
    "moca_quarantined_commands_total",
)
BUILD_INFO.labels(installed_version(), platform.python_version()).set(1)
# Counters that are there from the start: a rate does not miss the first increment.
_REASONS = ("partition_full", "too_many_waiting", "wait", "api_busy", "connections")
for _reason in (*_REASONS, "memory_short", "event_streams"):
    LOAD_SHED.labels(_reason)
for _outcome in ("applied", "duplicate", "refused", "fault", "quarantined"):
    OBSERVATIONS.labels(_outcome)
for _reason in ("planned", "request"):
    EXCLUDED.labels(_reason)


def observe_all(histogram: Histogram, values: ArrayLike) -> None:
    """Observe several values at once: each number that changes is written once.

    A write is a lock and a store into the shared file; one at a time they cost more than the
    arithmetic of what they count.
    """
    numbers = np.asarray(values, dtype=np.float64)
    counts = np.bincount(np.array(histogram._upper_bounds).searchsorted(numbers))
    for bucket in counts.nonzero()[0].tolist():
        histogram._buckets[bucket].inc(int(counts[bucket]))
    if len(numbers):
        histogram._sum.inc(float(numbers.sum()))


class GatheredValues:
    """Values that are in no histogram yet.

    Entered one at a time they cost several times what it takes to keep them for a while.
    """

    def __init__(self) -> None:
        self._values: defaultdict[Histogram, list[float]] = defaultdict(list)

    def add(self, histogram: Histogram, *values: float) -> None:
        """Gather values of a histogram."""
        self._values[histogram] += values

    def enter(self) -> None:
        """Enter what was gathered."""
        for histogram, gathered in self._values.items():
            observe_all(histogram, gathered)
            gathered.clear()


class Gathered(GatheredValues):
    """Those of one event loop: entered a few times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, histogram: Histogram, *values: float) -> None:
        """Gather values of a histogram."""
        self._values[histogram] += values
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ENTER_EVERY_S, self.enter)

    def enter(self) -> None:
        """Enter what was gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().enter()


def count_change(model: str, event: Event, stream: str) -> None:
    """Count an event in its new state, with the stream as exemplar where its id is short enough."""
    exemplar = {"stream": stream, "event": str(event.id)}
    length = sum(len(name) + len(value) for name, value in exemplar.items())
    counts = CHANGEPOINTS if event.returned is None else RETURNS
    counter = counts.labels(model, event.state)
    counter.inc(exemplar=exemplar if length <= EXEMPLAR_LENGTH else None)


def know_model(model: str) -> None:
    """Have a model's changepoints counted from 0: a rate does not miss the first one."""
    for state in STATES:
        CHANGEPOINTS.labels(model, state)
        RETURNS.labels(model, state)


def know_hook(hook: str) -> None:
    """Show a hook's metrics from the start: a counter that appears with its first count at 1
    has no increase for Prometheus, and an alert would miss it.
    """
    for counter in (WEBHOOK_DELIVERED, WEBHOOK_FAILED, WEBHOOK_DEAD, WEBHOOK_EVICTED, WEBHOOK_GAPS):
        counter.labels(hook)
    WEBHOOK_LAG.labels(hook).set(0)


class FixedMetrics(Collector):
    """Metrics as they are."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self._families


def exposition(accept: str = "") -> tuple[bytes, str]:
    """Return all metrics, of all processes in multiprocess mode, and their media type.

    accept: header of the request; OpenMetrics, which has exemplars, is for those that ask for it.
    """
    registry = CollectorRegistry()
    if MULTIPROCESS_DIR in os.environ:
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    else:
        registry.register(REGISTRY)
        ProcessCollector(registry=registry)
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


def serve(port: int) -> None:
    """Expose this process's metrics on a port of their own, for a worker that stands alone.

    Raises StartupError when the port cannot be had.
    """
    ProcessCollector(registry=REGISTRY)
    try:
        start_http_server(port, registry=REGISTRY)
    except OSError as error:
        raise StartupError(f"cannot listen on --metrics-port {port}: {error.strerror}") from error
