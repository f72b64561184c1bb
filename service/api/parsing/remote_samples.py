"""From the series of a remote write to observations of streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from service import wire
from service.api.parsing.remote_write import Series, Write
from service.api.parsing.series_rules import SeriesRules, Target
from service.schema import rendering

MAX_AHEAD_MS = 10 * 60_000  # of a sample's time before now: a later one would block its stream
MAX_LABEL = 1e100  # in size; larger ones no model takes: `model_core.labels.LARGEST`


class StreamSamples(NamedTuple):
    """Samples of one series, for its stream."""

    target: Target
    observations: list[wire.Observation]


class Assignment:
    """Samples of one request by stream, and counts of those that go to none."""

    def __init__(self, write: Write, rules: SeriesRules, now_ms: int) -> None:
        self.streams: dict[str, StreamSamples] = {}
        self.total = write.samples
        self.unmatched = 0
        self.rejected = 0
        self.reason = ""  # why the first sample that was rejected was
        for refusal in write.refusals:
            self._reject(refusal.samples, refusal.reason)
        for series in write.series:
            if series.samples:
                self._add(series, rules, now_ms)

    def _add(self, series: Series, rules: SeriesRules, now_ms: int) -> None:
        try:
            target = rules.target(series.labels)
            if target is None:
                self.unmatched += len(series.samples)
                return
            stream = self.streams.setdefault(target.stream, StreamSamples(target, []))
            if stream.target.fingerprint != target.fingerprint:
                detail = "the rules give another series of the request the same stream"
                raise ValueError(f"{detail}, {target.stream!r}: name more labels in `stream`")
        except ValueError as error:
            self._reject(len(series.samples), f"{_name(series.labels)}: {error}")
            return
        stream.observations.extend(self._observations(series, now_ms))

    def _observations(self, series: Series, now_ms: int) -> Iterator[wire.Observation]:
        for value, ms in series.samples:
            try:
                yield _observation(value, ms, now_ms)
            except (ValueError, OverflowError, OSError) as error:
                self._reject(1, f"{_name(series.labels)}: sample with timestamp {ms}: {error}")

    def _reject(self, count: int, reason: str) -> None:
        self.rejected += count
        self.reason = self.reason or reason


def _observation(value: float | None, ms: int, now_ms: int) -> wire.Observation:
    if ms > now_ms + MAX_AHEAD_MS:
        ahead_s = (ms - now_ms) // 1000
        raise ValueError(f"expected at most 600 s after now, got {ahead_s} s: set the clocks")
    if value is not None and abs(value) > MAX_LABEL:
        raise ValueError(f"expected a value of at most {MAX_LABEL:g} in size, got {value:g}")
    return wire.Observation(value, None, rendering.instant(ms))


def _name(labels: Sequence[str]) -> str:
    pairs = zip(labels[::2], labels[1::2], strict=True)
    return ("{" + ",".join(f"{name}={value!r}" for name, value in pairs) + "}")[:300]
