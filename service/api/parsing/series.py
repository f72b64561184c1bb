"""Series of samples in a request of any protocol, and the streams that they are for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from service import wire
from service.api.parsing.series_rules import SeriesRules, Target
from service.schema import rendering
from service.wire import tags

MAX_AHEAD_MS = 10 * 60_000  # of a sample's time before now: a later one would block its stream
RESULTS = ("applied", "skipped", "unmatched", "rejected", "untried", "deferred")
MAX_LABEL = 1e100  # in size; larger ones no model takes: `model_core.labels.LARGEST`


class RemoteSeries(NamedTuple):
    """Labels as sent, and samples as (value, ms since 1970); None: a missing value.

    texts: name, value, name, value ... of the labels. Those of a series that is known are not read.
    """

    labels: tuple[Any, ...]
    samples: list[tuple[float | None, int]]
    texts: Callable[[tuple[Any, ...]], tuple[str, ...]] = tuple


class RefusedSeries(NamedTuple):
    """A series that is not read, for its labels."""

    samples: int
    reason: str


class RemoteWrite(NamedTuple):
    """Content of a request, and counts of what is not read."""

    series: list[RemoteSeries]
    refusals: list[RefusedSeries]
    samples: int
    histograms: int
    exemplars: int


def check_label_count(count: float) -> None:
    """Raise ValueError for a series of more labels than a stream has tags."""
    if count > tags.MAX_TAGS:
        raise ValueError(f"expected at most {tags.MAX_TAGS} labels, got {count:g}")


def finite(value: float) -> float | None:
    """Return a sample's value; those that are no numbers, such as staleness markers, are missing.

    So is infinity, of which no model can learn anything.
    """
    return value if math.isfinite(value) else None


class SampleTally:
    """Counts of a request's samples by result, and the reason of the first failure."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.counts = dict.fromkeys(RESULTS, 0)
        self.reason = ""

    def add(self, result: str, count: int) -> None:
        """Count samples that did not fail."""
        self.counts[result] += count

    def fail(self, result: str, count: int, reason: str) -> None:
        """Count samples that were rejected, untried or deferred."""
        self.counts[result] += count
        self.reason = self.reason or reason


class StreamSamples(NamedTuple):
    """Samples of one series, for its stream."""

    target: Target
    observations: list[wire.Observation]


class StreamAssignment:
    """Samples of one request by stream; those that go to none are counted."""

    def __init__(self, write: RemoteWrite, rules: SeriesRules, now_ms: int) -> None:
        self.streams: dict[str, StreamSamples] = {}
        self.tally = SampleTally(write.samples)
        self._instants: dict[int, str] = {}  # by ms: many series have samples of the same time
        for refusal in write.refusals:
            self.tally.fail("rejected", refusal.samples, refusal.reason)
        for series in write.series:
            if series.samples:
                self._add(series, rules, now_ms)

    def _add(self, series: RemoteSeries, rules: SeriesRules, now_ms: int) -> None:
        try:
            target = rules.target(series.labels, series.texts)
            if target is None:
                self.tally.add("unmatched", len(series.samples))
                return
            stream = self.streams.setdefault(target.stream, StreamSamples(target, []))
            if stream.target.fingerprint != target.fingerprint:
                detail = "the rules give another series of the request the same stream"
                raise ValueError(f"{detail}, {target.stream!r}: name more labels in `stream`")
        except ValueError as error:
            reason = f"{_label_text(series)}: {error}"
            self.tally.fail("rejected", len(series.samples), reason)
            return
        stream.observations.extend(self._observations(series, now_ms))

    def _observations(self, series: RemoteSeries, now_ms: int) -> Iterator[wire.Observation]:
        for value, ms in series.samples:
            try:
                instant = self._instants.get(ms)
                if instant is None:
                    if ms > now_ms + MAX_AHEAD_MS:
                        ahead_s = (ms - now_ms) // 1000
                        raise ValueError(
                            f"expected at most 600 s after now, got {ahead_s} s: set the clocks"
                        )
                    instant = self._instants[ms] = rendering.instant(ms)
                if value is not None and abs(value) > MAX_LABEL:
                    raise ValueError(
                        f"expected a value of at most {MAX_LABEL:g} in size, got {value:g}"
                    )
                yield wire.Observation(value, None, instant)
            except (ValueError, OverflowError, OSError) as error:
                labels = _label_text(series)
                self.tally.fail("rejected", 1, f"{labels}: sample with timestamp {ms}: {error}")


def _label_text(series: RemoteSeries) -> str:
    labels = series.texts(series.labels)
    pairs = zip(labels[::2], labels[1::2], strict=True)
    return ("{" + ",".join(f"{name}={value!r}" for name, value in pairs) + "}")[:300]
