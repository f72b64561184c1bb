"""A Prometheus remote write on its way to streams: each series one command, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from service import wire
from service.api.http import Context
from service.api.parsing.remote_write import Series, Write
from service.api.parsing.series_rules import SeriesRules, Target
from service.errors.base import Overloaded, ServiceError
from service.observability import metrics
from service.schema import rendering
from service.schema.responses import Ingested

AGAIN = frozenset((429, 503, 504))  # statuses after which the same command may yet be taken
AT_ONCE = 100  # commands begun before the event loop does something else
RESULTS = ("applied", "skipped", "unmatched", "rejected", "deferred")
_decode = msgspec.json.Decoder(Ingested).decode


class RemoteWrite:
    """The samples of one request by stream, and what becomes of them."""

    def __init__(self, write: Write, rules: SeriesRules) -> None:
        """Find the streams of all series; those that have none are counted."""
        self.total = write.samples
        self.counts = dict.fromkeys(RESULTS, 0)
        self.reason = ""  # why the first sample that was rejected or deferred was
        self._targets: dict[str, tuple[tuple[str, ...], Target]] = {}
        self._observations: dict[str, list[wire.Observation]] = {}
        for refusal in write.refusals:
            self._fail("rejected", refusal.samples, refusal.reason)
        for series in write.series:
            if series.samples:
                self._add(series, rules)

    def _add(self, series: Series, rules: SeriesRules) -> None:
        count = len(series.samples)
        try:
            target = rules.target(series.labels)
            if target is None:
                self.counts["unmatched"] += count
                return
            labels, _ = self._targets.setdefault(target.stream, (series.labels, target))
            if labels != series.labels:
                detail = "the rules give another series of the request the same stream"
                raise ValueError(f"{detail}, {target.stream!r}: name more labels in `stream`")
            observations = [
                wire.Observation(value, None, rendering.instant(ms)) for value, ms in series.samples
            ]
        except (ValueError, OverflowError, OSError) as error:
            self._fail("rejected", count, f"{_name(series.labels)}: {error}")
            return
        self._observations.setdefault(target.stream, []).extend(observations)

    async def run(self, context: Context) -> None:
        """Apply all samples, and count what became of them."""
        streams = [stream for stream, seen in self._observations.items() if seen]
        if streams:
            try:
                context.gateway.admit(wire.Ingest(streams[0], []))
            except Overloaded as error:  # by default Prometheus drops what is answered 429
                self._fail("deferred", self.total, str(error))
                streams = []
        running = []
        for i, stream in enumerate(streams, start=1):
            running.append(asyncio.ensure_future(self._run_stream(context, stream)))
            if i % AT_ONCE == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*running)
        for result, count in self.counts.items():
            metrics.REMOTE_WRITE_SAMPLES.labels(result).inc(count)

    async def _run_stream(self, context: Context, stream: str) -> None:
        observations, patience = self._observations[stream], context.gateway.patience()
        size = context.observation_parser.parts(observations)
        parts = [observations[i : i + size] for i in range(0, len(observations), size)]
        while parts:
            part = parts.pop(0)
            command = wire.Ingest(stream, part, settings=self._targets[stream][1].settings)
            try:
                outcome = await context.gateway.submit(command, True, patience)
                status, body = outcome.status, outcome.body[-1]
            except ServiceError as error:
                status, body = error.status, error.render()
            if status < 400:
                done = _decode(body)
                self.counts["applied"] += done.applied
                self.counts["skipped"] += done.skipped
            elif status in AGAIN:
                self._fail("deferred", len(part) + sum(map(len, parts)), _detail(body))
                return
            elif len(part) > 1:  # which one it is; what was applied of it is skipped now
                parts = [[each] for each in part] + parts
            else:
                self._fail("rejected", 1, f"stream {stream!r}: {_detail(body)}")

    def _fail(self, result: str, count: int, why: str) -> None:
        self.counts[result] += count
        self.reason = self.reason or why

    @property
    def written(self) -> int:
        """Samples that need not be sent again, and were not refused."""
        return self.total - self.counts["rejected"] - self.counts["deferred"]


def _detail(problem: bytes) -> str:
    return str(msgspec.json.decode(problem)["detail"])


def _name(labels: Sequence[str]) -> str:
    pairs = zip(labels[::2], labels[1::2], strict=True)
    return ("{" + ",".join(f"{name}={value!r}" for name, value in pairs) + "}")[:300]
