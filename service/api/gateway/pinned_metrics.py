"""Metrics of pinned streams, read from committed state."""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily

from service import wire
from service.api.gateway.results import FixedMetrics
from service.errors.base import TooManyPinned
from service.store.api_reads import AsyncStore
from service.store.keys import partition_of
from service.store.worker_reads import CorruptState

log = logging.getLogger(__name__)

GAUGES = {
    "observations": "Observations applied.",
    "last": "Last label.",
    "mean": "Mean of the predictive distribution before the last label.",
    "lower": "5 % quantile of that predictive distribution.",
    "upper": "95 % quantile of that predictive distribution.",
    "log_score": "Log predictive density of the last label, in nats.",
    "changed_probability": "Probability of a regime change since the last confirmed change.",
    "run_length": "Most probable run length.",
    "confirmed_start": "Position (seq) at which the last confirmed regime began.",
}


class Pinned:
    """Pinned streams and their metrics, read from the store, as API processes own no stream."""

    def __init__(self, store: AsyncStore, partitions: int, limit: int) -> None:
        self._store, self._partitions, self._limit = store, partitions, limit

    async def admit(self, stream: str) -> None:
        """Raise TooManyPinned if the stream would exceed the limit."""
        pinned = await self._store.pinned()
        if stream not in pinned and len(pinned) >= self._limit:
            raise TooManyPinned(f"pinned: limit of {len(pinned)} streams reached")

    async def metrics(self) -> CollectorRegistry:
        """Return the metrics of all pinned streams.

        Not as gauges: in multiprocess mode their values would be written to the shared folder,
        and shown again from there, also of streams that are pinned no more.
        """
        families = {
            name: GaugeMetricFamily(f"moca_stream_{name}", about, labels=["stream", "model"])
            for name, about in GAUGES.items()
        }
        for stream in (await self._store.pinned())[: self._limit]:
            try:
                head, record = await self._last(stream)
            except CorruptState as error:
                log.warning("could not read the metrics of a pinned stream: %s", error)
                continue
            if head is None:
                continue
            for name, value in _numbers(head, record).items():
                if value is not None:
                    families[name].add_metric([stream, head.settings.model], value)
        registry = CollectorRegistry()
        registry.register(FixedMetrics(families.values()))
        return registry

    async def _last(self, stream: str) -> tuple[wire.Head | None, wire.Record | None]:
        """Return a stream's head and last record, if they exist."""
        partition = partition_of(stream, self._partitions)
        head = await self._store.head(partition, stream)
        if head is None:
            return None, None
        last = head.seq - 1
        records, _ = await self._store.records(partition, stream, head, last, head.seq)
        return head, records[-1] if records else None


def _numbers(head: wire.Head, record: wire.Record | None) -> dict[str, float | None]:
    """Values of the gauges; of labels of several numbers, the first."""
    values: dict[str, float | None] = {
        "observations": head.seq,
        "last": head.last_label[0] if head.last_label else None,
        "changed_probability": head.changed_probability,
        "run_length": head.map_run_length,
        "confirmed_start": head.confirmed_start,
    }
    if record is not None:
        quantiles = record.quantiles or {}
        values |= {
            "log_score": record.log_score,
            "mean": record.mean[0] if record.mean else None,
            "lower": quantiles.get("0.05", [None])[0],
            "upper": quantiles.get("0.95", [None])[0],
        }
    return values
