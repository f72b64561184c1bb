"""A series as it was replayed: its answers, its changes, and how people read them."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from moca_client.responses import Answer, BeliefColumns, Event, Hindsight, Segment
from moca_client.series import Series
from moca_client.stream_settings import StreamSettings


@dataclass
class Beliefs:
    """Run-length beliefs after observations, one after the other: far smaller than lists.

    counts: run lengths of each observation; 0: it has no belief.
    """

    counts: array[int] = field(default_factory=lambda: array("i"))
    run_length: array[int] = field(default_factory=lambda: array("i"))
    probability: array[float] = field(default_factory=lambda: array("f"))

    def add(self, belief: BeliefColumns | None) -> None:
        """Keep the belief after the next observation."""
        self.counts.append(0 if belief is None else len(belief.run_length))
        if belief is not None:
            self.run_length.fromlist(belief.run_length)
            self.probability.fromlist(belief.probability)


@dataclass
class Replayed:
    """A series and everything the service said about it."""

    stream: str
    series: Series
    answers: list[Answer] = field(default_factory=list)
    beliefs: Beliefs = field(default_factory=Beliefs)
    events: list[Event] = field(default_factory=list)
    segmentation: list[Segment] = field(default_factory=list)
    hindsight: Hindsight | None = None  # how far the segmentation is one in hindsight
    settings: StreamSettings = field(default_factory=StreamSettings)

    def add(self, answers: Sequence[Answer]) -> None:
        """Keep the next answers; their beliefs go into arrays."""
        self.answers += answers
        for answer in answers:
            summary = answer.run_length
            self.beliefs.add(None if summary is None else summary.belief)
            if summary is not None:
                summary.belief = None

    @property
    def model(self) -> str:
        """Return the model that gave the last answer."""
        return self.answers[-1].model if self.answers else ""

    @property
    def first_seq(self) -> int:
        """`seq` of the first row of the file; not 0 when the stream had observations before."""
        return self.answers[0].seq if self.answers else 0

    def row(self, seq: int) -> int | None:
        """Row of the file that became observation `seq`, if any did."""
        row = seq - self.first_seq
        return row if 0 <= row < len(self.answers) else None

    def sentence(self, event: Event) -> str:
        """What an event is, in a few words; of several labels with the name of the one."""
        names = self.series.y_names

        def named(output: re.Match[str]) -> str:
            i = int(output[1]) - 1
            return f"{names[i]}: " if i < len(names) else output[0]

        return re.sub(r"\boutput (\d+): ", named, event.sentence, count=1)

    @property
    def confirmed(self) -> list[Event]:
        """Return the confirmed changes."""
        return [event for event in self.events if event.state == "confirmed"]

    @property
    def headline(self) -> str:
        """What the last confirmed change was, and how many there were before it."""
        confirmed = self.confirmed
        if not confirmed:
            return f"{self.stream}: no change"
        last = max(confirmed, key=lambda event: event.start)
        text = f"{self.stream}: {self.sentence(last)}, since {self.when(last.start)}"
        earlier = len(confirmed) - 1
        return f"{text}; {earlier} earlier change{'' if earlier == 1 else 's'}" if earlier else text

    def place(self, seq: int) -> float:
        """Where observation `seq` is: on the axis of its file, else its position."""
        row = self.row(seq)
        axis = self.series.axis
        return float(seq) if row is None or axis is None else axis.value[row]

    def when(self, seq: int) -> str:
        """How people read the time of observation `seq`."""
        row = self.row(seq)
        axis = self.series.axis
        return str(seq) if row is None or axis is None else axis.label(row)
