"""Results of streams as series of Prometheus: forecast, anomaly, probability of a change."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from service import wire
from service.api.gateway.gateway import Gateway
from service.api.gateway.reads import from_store, without
from service.api.gateway.stream_pages import SelectedStream, select
from service.problems import FieldError, InvalidField
from service.schema.queries import RESULT_SERIES
from service.store.reads import AsyncStore, Last
from service.wire import tags

QUIET_S, QUIET_INTERVALS = 300.0, 3  # since its last observation: then a stream is left out
READ_AT_ONCE = 500  # streams
OUTPUT = "output"  # label of the number in a label of several
Sample = tuple[str, dict[str, str], float]


async def results(
    store: AsyncStore, gateway: Gateway, match: Sequence[str], limit: int
) -> list[Sample]:
    """Return the results of the streams selected; raises InvalidField for more than `limit`."""
    selected: list[SelectedStream] = []
    cursor: str | None = None
    while True:
        page = await select(store, gateway, "", match, cursor, limit + 1)
        selected += page.rows
        without(page.unreadable, "results")
        if len(selected) > limit:
            detail = f"expected at most {limit} streams (max_result_streams), got more"
            raise InvalidField([FieldError("query.match", f"{detail}: select fewer")])
        if page.cursor is None:
            break
        cursor = page.cursor
    result: list[Sample] = []
    for first in range(0, len(selected), READ_AT_ONCE):
        group = selected[first : first + READ_AT_ONCE]
        heads = {row.stream: row.head for row in group}
        streams = [(gateway.partition(row.stream), row.stream) for row in group]
        rows, unreadable = await from_store(store.last(streams, heads))
        without(unreadable, "results")
        for row in rows:
            result += samples(row, time.time())
    return result


def samples(row: Last, now_s: float) -> Iterator[Sample]:
    """Yield the results of a stream; none of one that is quiet, or has no forecasts yet."""
    head, record = row.head, row.record
    quiet_s = max(QUIET_S, QUIET_INTERVALS * (head.settings.interval or 0.0))
    if record is None or now_s - head.updated_ms / 1000 > quiet_s:
        return
    labels = _labels(row.stream, head.settings)
    quantiles = record.quantiles or {}
    forecast = {
        "moca_forecast_mean": record.mean,
        "moca_forecast_lower": quantiles.get("0.05"),
        "moca_forecast_upper": quantiles.get("0.95"),
    }
    for name, values in forecast.items():
        for i, value in enumerate(values or []):
            output = {OUTPUT: str(i)} if len(values or []) > 1 else {}
            yield name, labels | output, value
    for name, number in (
        ("moca_anomaly", record.anomaly),
        ("moca_changed_probability", record.changed_probability),
    ):
        if number is not None:
            yield name, labels, number


def _labels(stream: str, settings: wire.StreamSettings) -> dict[str, str]:
    """Return a stream's id and tags; the name of its metric, which is another here, as `metric`.

    Prometheus keeps names that begin with __ to itself; `output` stands for one of several numbers.
    """
    labels = {name: value for name, value in settings.tags.items() if not name.startswith("__")}
    if OUTPUT in labels:
        labels[tags.exported(OUTPUT, labels)] = labels.pop(OUTPUT)
    if tags.METRIC in settings.tags:
        labels.setdefault("metric", settings.tags[tags.METRIC])
    return labels | {tags.STREAM: stream}


def exposition(results: Iterable[Sample]) -> bytes:
    """Return samples in Prometheus's text format."""
    families = {name: Metric(name, about, "gauge") for name, about in RESULT_SERIES.items()}
    for name, labels, value in results:
        families[name].add_sample(name, labels, value)
    registry = CollectorRegistry()
    registry.register(FixedMetrics(families.values()))
    return generate_latest(registry)


class FixedMetrics(Collector):
    """Metrics as they are."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self._families
