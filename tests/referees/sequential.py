"""A small sequential model of a stream: what a `Detector` makes of its commands, one by one.

There is no time, store or process in it, and no code of the service.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from model_core import Detector
from tests.answers import close

TOLERANCE = 1e-9
KEPT_TOLERANCE = 2.0**-23  # of the history: it has digits of float32, of distances from the label
# Of an answer: what a detector has, too.
MEMBERS = (
    "seq", "model", "predictive", "log_score", "changed_probability", "evidence",
    "changepoint_probability", "recent_change_probability", "anomaly", "run_length", "warming_up",
)  # fmt: skip
# Of an answer and of the history.
RECORDED = ("predictive", "changed_probability", "evidence", "anomaly", "log_score")


class Posted(NamedTuple):
    """What an observation that is excluded from learning was posted with."""

    y: float | None
    changepoint: float | None


class Seen(NamedTuple):
    """One observation. pending: its label is to come. posted: of one that is excluded."""

    y: float | None
    elapsed: float | None = None
    changepoint: float | None = None
    pending: bool = False
    posted: Posted | None = None

    def excluded(self) -> Seen:
        """Without a label, and certainly no change."""
        if self.posted is not None:
            return self
        return self._replace(y=None, changepoint=0.0, posted=Posted(self.y, self.changepoint))

    def included(self) -> Seen:
        """As it was posted."""
        return self if self.posted is None else self._replace(**self.posted._asdict(), posted=None)


class Reply(NamedTuple):
    """What the service has to answer to an observation; None: known by its position alone."""

    seq: int
    answer: dict[str, Any] | None


class Life:
    """A stream from its first command to its deletion."""

    def __init__(self, settings: dict[str, Any], interval: float | None = None) -> None:
        """settings: those of the stream, of one number. interval: seconds, of remote writes."""
        self.settings = settings
        self.interval = interval
        self.applied: list[Seen] = []
        self.waiting: list[Seen] = []  # from the first whose label is to come on
        self.answers: list[dict[str, Any]] = []  # to what was applied, as if it had come in order
        self.supervised: float | None = None  # of the next observation
        self.rerun = False  # events have ids and places of before
        self.last_s: float | None = None  # time of the last sample
        self._detector = Detector(**settings)

    def copy(self) -> Life:
        """The same stream under another name."""
        other = Life(self.settings, self.interval)
        other.applied, other.waiting = list(self.applied), list(self.waiting)
        other.supervised, other.last_s = self.supervised, self.last_s
        other._begin_again()
        other.rerun = self.rerun
        return other

    @property
    def seq(self) -> int:
        """Position of the next observation."""
        return len(self.applied) + len(self.waiting)

    @property
    def labelled(self) -> bool:
        """Whether any observation has a label."""
        return any(seen.y is not None for seen in [*self.applied, *self.waiting])

    @property
    def known_scale(self) -> bool:
        """Whether it needs no warm-up."""
        return "scale" in self.settings

    @property
    def events(self) -> list[dict[str, Any]]:
        """Changes, each in its latest state."""
        return [event.to_dict() for event in self._detector._all.events(0, withdrawn=True)]

    # --- commands ---------------------------------------------------------------------------------

    def observe(self, seen: Seen) -> Reply:
        """Take the next observation."""
        seq = self.seq
        if seen.changepoint is None and self.supervised is not None:
            seen = seen._replace(changepoint=self.supervised)
        self.supervised = None
        self.waiting.append(seen)
        if len(self.waiting) > self._detector.settings.label_window:
            self.waiting[0] = self.waiting[0]._replace(pending=False)  # its label is missing
        answers = self._settle()
        return Reply(seq, None if self.waiting else answers[-1])

    def label(self, seq: int, y: float) -> Reply:
        """Take a label that was to come, and what waited for it."""
        at = seq - len(self.applied)
        self.waiting[at] = self.waiting[at]._replace(y=y, pending=False)
        answers = self._settle()
        return Reply(seq, None if at else answers[0])

    def sample(self, value: float, time_s: float) -> None:
        """Take a sample of a remote write: the first of its series in an interval counts."""
        assert self.interval is not None
        elapsed = 1.0
        if self.last_s is not None:
            elapsed = math.floor(time_s / self.interval) - math.floor(self.last_s / self.interval)
            if time_s <= self.last_s or elapsed < 1:
                return
        self.last_s = time_s
        self.observe(Seen(value, float(elapsed)))

    def move(self, model: str) -> None:
        """Go on under another model, as if it had been there from the beginning."""
        if model != self.settings["model"]:
            self.settings = self.settings | {"model": model}
            self._begin_again()

    def judge(self, start: int, change: bool) -> None:
        """Rerun with a person's word on a start; of one that was none, on all that is between."""
        span = [start]
        if not change:
            starts = [event["start"] for event in self.events if event["state"] != "withdrawn"]
            before = max((other for other in starts if other < start), default=0)
            after = min((other for other in starts if other > start), default=self.seq)
            span = list(range(before + 1, after))
        for seq in span:
            self.applied[seq] = self.applied[seq]._replace(changepoint=float(change))
        self._begin_again()

    def exclude(self, start: int, end: int, excluded: bool) -> None:
        """Rerun without the labels of some observations, or with them again."""
        for seq in range(start, end):
            seen = self.applied[seq]
            self.applied[seq] = seen.excluded() if excluded else seen.included()
        self._begin_again()

    # --- what is read -----------------------------------------------------------------------------

    def mean_log_score(self, hazard: float) -> float:
        """Of all that was applied, under another hazard."""
        other = Detector(**{**self.settings, "hazard": hazard})
        scores = [_taken(other, seen)["log_score"] for seen in self.applied]
        return fmean(score for score in scores if score is not None)

    def prediction(self) -> dict[str, Any]:
        """Of the next label."""
        predictive = self._detector.predict(changepoint=self.supervised)
        assert predictive is not None
        return predictive.to_dict()

    # --- comparisons ------------------------------------------------------------------------------

    def check(self, reply: Reply, answer: dict[str, Any]) -> None:
        """Hold an answer against what it has to be; raises AssertionError."""
        assert answer["seq"] == reply.seq, f"at {answer['seq']}, expected {reply.seq}"
        expected = reply.answer
        if expected is None:
            return
        for name in MEMBERS:
            # No label has decided on the model yet, or the warm-up goes on.
            if name != "model" or expected["model"]:
                close(answer.get(name), expected[name], TOLERANCE, f"seq {reply.seq}, {name}")
        if not self.rerun:
            event, own = answer["event"], expected["event"]
            assert _known(event) == _known(own), f"seq {reply.seq}: {event}, expected {own}"

    def check_history(self, observations: Sequence[dict[str, Any]]) -> None:
        """Hold the retained observations against what was applied."""
        assert [each["seq"] for each in observations] == list(range(len(self.applied)))
        for seen, answer, kept in zip(self.applied, self.answers, observations, strict=True):
            at = f"history, seq {kept['seq']}"
            assert kept["y"] == (seen.y if seen.posted is None else seen.posted.y), at
            assert kept["elapsed"] == (1.0 if seen.elapsed is None else seen.elapsed), at
            assert (kept.get("excluded") is None) == (seen.posted is None), at
            if not self.rerun:
                tolerance = KEPT_TOLERANCE * max(1.0, abs(kept["y"] or 0.0))
                for name in RECORDED:
                    close(kept.get(name), answer[name], tolerance, f"{at}, {name}")

    def check_events(self, events: Sequence[dict[str, Any]]) -> None:
        """Hold the listed changes against those of the detector."""
        if not self.rerun:
            found = [_known(event) for event in events]
            expected = [_known(event) for event in self.events]
            assert found == expected, f"events {found}, expected {expected}"

    def check_belief(self, belief: dict[str, Any]) -> None:
        """Hold the answer of GET run-length against the last answer."""
        assert belief["seq"] == (len(self.applied) - 1 if self.applied else None)
        if not self.answers:
            return
        last = self.answers[-1]
        run_length = belief["run_length"]
        assert (run_length is None) == self._detector.warming_up
        if last["run_length"] is None:  # the last of a warm-up is answered before its belief is
            return
        close({name: run_length[name] for name in last["run_length"]}, last["run_length"])
        for name in ("changed_probability", "evidence", "recent_change_probability"):
            close(belief.get(name), last[name], TOLERANCE, f"run-length, {name}")

    # ----------------------------------------------------------------------------------------------

    def _settle(self) -> list[dict[str, Any]]:
        """Apply, in order, what waits for no label; returns the answers."""
        answers = []
        while self.waiting and not self.waiting[0].pending:
            self.applied.append(self.waiting.pop(0))
            answers.append(_taken(self._detector, self.applied[-1]))
        self.answers += answers
        return answers

    def _begin_again(self) -> None:
        self._detector = Detector(**self.settings)
        self.answers = [_taken(self._detector, seen) for seen in self.applied]
        self.rerun = True


def _taken(detector: Detector, seen: Seen) -> dict[str, Any]:
    return detector.update(seen.y, None, seen.elapsed, seen.changepoint).to_dict()


def _known(event: dict[str, Any] | None) -> tuple[Any, ...] | None:
    """Of an event what a detector has, too: it has no clock."""
    names = ("id", "state", "start", "suspected_at", "confirmed_at", "direction")
    return None if event is None else tuple(event.get(name) for name in names)
