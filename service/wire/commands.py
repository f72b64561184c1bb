"""Commands, as they stand in the log, answers, and outcomes. See `service.wire`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from math import nan
from typing import Any, NamedTuple, TypeVar, cast, overload

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from moca_client.responses import Component
from model_core.stream.events import Event
from model_core.stream.state import KnownRegime, SeasonPeriods

Label = float | list[float | None] | None  # of several outputs each may be missing, but not all

T = TypeVar("T")


def numbers(y: Label) -> list[float]:
    """Return a label as a list, nan where an output is missing; empty for a missing label."""
    outputs = outputs_of(y)
    if None in outputs:
        return [nan if number is None else number for number in outputs]
    return cast(list[float], outputs)


def outputs_of(y: Label) -> list[float | None]:
    """Return a label as a list, None where an output is missing; empty for a missing label."""
    if y is None:
        return []
    return y if isinstance(y, list) else [y]


def latest(last: list[float | None] | None, y: Label) -> list[float | None] | None:
    """Last number of each output, after a label; last: before it."""
    if not isinstance(y, list):
        return last if y is None else [y]
    if last is None or None not in y:
        return y
    return [old if new is None else new for old, new in zip(last, y, strict=True)]


class Observation(Struct, omit_defaults=True, gc=False):
    """One observation as accepted: form checked, not yet checked against its stream."""

    y: Label = None
    x: list[float] | None = None
    time: str | None = None
    elapsed: float | None = None
    changepoint: float | None = None  # supervision: P(regime changed just before this one)
    pending: bool = False  # its label is to come
    planned: str | None = None  # window of the calendar that it is in, entered by the worker


class NumberList(Struct, omit_defaults=True, gc=False):
    """A list of observations that are numbers, with their times at most: as columns."""

    y: bytes  # float64 of each label
    times: list[str | None] | None = None  # of each; None: none has one

    @classmethod
    def of(cls, y: Sequence[float], times: Sequence[str | None]) -> NumberList:
        """Labels, and as many times."""
        return cls(np.array(y, "<f8").tobytes(), [*times] if any(times) else None)

    def __post_init__(self) -> None:
        """Raise ValueError where columns are not of the same observations."""
        if len(self.y) % 8 or (self.times is not None and len(self.times) != len(self)):
            raise ValueError(f"expected columns of {len(self)} observations")

    def __len__(self) -> int:
        return len(self.y) // 8

    def __iter__(self) -> Iterator[Observation]:
        return iter(self[:])

    @overload
    def __getitem__(self, at: int) -> Observation: ...
    @overload
    def __getitem__(self, at: slice) -> list[Observation]: ...
    def __getitem__(self, at: int | slice) -> Observation | list[Observation]:
        labels = np.frombuffer(self.y, "<f8")
        if isinstance(at, int):
            return Observation(labels.item(at), time=None if self.times is None else self.times[at])
        y = labels[at].tolist()
        if self.times is None:
            return [*map(Observation, y)]
        return [Observation(*pair) for pair in zip(y, repeat(None), self.times[at])]


ObservationList = list[Observation] | NumberList


def sublist(observations: ObservationList, first: int, end: int) -> ObservationList:
    """Return some of the observations of a list."""
    if isinstance(observations, NumberList):
        times = None if observations.times is None else observations.times[first:end]
        return NumberList(observations.y[8 * first : 8 * end], times)
    return observations[first:end]


def times_of(observations: ObservationList) -> list[str | None]:
    """Return the time of each observation."""
    if isinstance(observations, NumberList):
        return observations.times or [None] * len(observations)
    return [seen.time for seen in observations]


NO_SETTINGS = msgspec.Raw(msgspec.msgpack.encode({}))
AS_IT_IS = msgspec.Raw(msgspec.msgpack.encode(None))  # of a stream that has to be there
_decode_settings = msgspec.msgpack.Decoder(dict[str, Any] | None).decode


class Observe(Struct, tag="observe", omit_defaults=True, gc=False):
    """Apply observations in order; at most 512 in one command."""

    stream: str
    observations: ObservationList
    key: str | None = None  # idempotency key of the whole request
    digest: str | None = None  # of the whole request's body
    first: int = 0  # position of this part within the request's list
    seq: int | None = None  # expected position of the first observation
    full: bool = False  # answers carry details
    belief: bool = False  # answers carry the whole run-length belief
    components: bool = False  # answers carry the mixture itself
    quantiles: list[float] | None = None  # levels to answer; None: the usual ones


class Ingest(Observe, tag="ingest", omit_defaults=True, gc=False):
    """Apply the observations that are new to the stream, at most one in each of its intervals.

    All have times. Those not after the stream's last time are skipped, and so are those in the same
    interval of time: a repeat changes nothing.
    """

    settings: msgspec.Raw = NO_SETTINGS  # of the stream, if this makes it; or AS_IT_IS


class ObserveMany(Struct, tag="observe_many", omit_defaults=True, gc=False):
    """Apply observations of many streams of one partition: a row for each stream, as columns.

    A row is what an `Observe` of its stream says, or an `Ingest` where there are settings. Each is
    applied, refused and answered by itself. `service.wire.rows` makes and reads them.
    """

    streams: list[str]  # of each row; none twice
    y: bytes  # float64 of each label, row by row; NaN: the observation is the next of `others`
    counts: list[int] | None = None  # observations of each row; None: one
    times: list[str | None] | None = None  # of each observation
    outputs: list[int] | None = None  # numbers in each label; None: one
    x: bytes = b""  # float64 of each input, row by row
    inputs: list[int] | None = None  # numbers in each input; None: none
    others: list[Observation] | None = None  # those that are more than numbers and their time
    seqs: list[int | None] | None = None  # expected positions, of each row
    keys: list[str | None] | None = None  # idempotency keys, of each row
    digests: list[str | None] | None = None  # of what has these keys
    settings: list[msgspec.Raw] | None = None  # of each row's stream, if this makes it
    full: bool = False
    belief: bool = False
    components: bool = False
    quantiles: list[float] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where columns are not of the same rows."""
        rows = len(self.streams)
        observations = self.units
        numbers = observations if self.outputs is None else sum(self.outputs)
        fit = rows > 0 and len(self.y) == 8 * numbers and len(self.x) == 8 * sum(self.inputs or ())
        for column in (self.counts, self.seqs, self.keys, self.digests, self.settings):
            fit = fit and (column is None or len(column) == rows)
        for each in (self.times, self.outputs, self.inputs):
            fit = fit and (each is None or len(each) == observations)
        fit = fit and min(self.outputs or (1,)) > 0 and min(self.inputs or (0,)) >= 0
        if not fit:
            raise ValueError(f"expected columns of {rows} rows")

    @property
    def units(self) -> int:
        """Observations of all rows."""
        return len(self.streams) if self.counts is None else sum(self.counts)


class Configure(Struct, tag="configure", omit_defaults=True):
    """Create a stream or change its settings; only the named settings change."""

    stream: str
    settings: dict[str, Any]


def settings_of(command: Observe | Configure) -> dict[str, Any]:
    """Return the settings that a command states; those of an `Ingest` are encoded until then."""
    if isinstance(command, Ingest):
        return _decode_settings(command.settings) or {}
    return command.settings if isinstance(command, Configure) else {}


class Delete(Struct, tag="delete"):
    """Delete a stream; its tombstone keeps the idempotency records."""

    stream: str


class Expire(Struct, tag="expire"):
    """Delete a stream if nothing has happened to it within its `ttl`."""

    stream: str


class Predict(Struct, tag="predict", omit_defaults=True):
    """Predictive distribution of the next label at each input; changes nothing."""

    stream: str
    x: list[list[float]] | None = None
    quantiles: list[float] = msgspec.field(default_factory=lambda: [0.05, 0.5, 0.95])
    samples: int = 0
    seed: int = 0
    components: bool = False
    elapsed: float = 1.0
    horizon: int = 0  # labels to come, one after the other; 0: `x` says


class Act(Struct, tag="act", omit_defaults=True):
    """Choose among candidate inputs; changes nothing."""

    stream: str
    candidates: list[list[float]]
    strategy: str
    samples: int = 1
    seed: int = 0
    elapsed: float = 1.0


class RunLength(Struct, tag="run_length"):
    """The whole run-length belief; changes nothing."""

    stream: str


class SetBelief(Struct, tag="set_belief", omit_defaults=True):
    """Override the run-length belief, by pairs of run length and probability."""

    stream: str
    belief: list[tuple[int, float]] | None = None
    changepoint: float | None = None  # of the observation to come
    seq: int | None = None  # expected position of that observation


class EventFeedback(Struct, tag="verdict", omit_defaults=True):
    """Say of an event, or of a start that none was raised for, whether it was a change."""

    stream: str
    change: bool
    event: int | None = None
    start: int | None = None


class Exclude(Struct, tag="exclude", omit_defaults=True):
    """Exclude observations from learning, or have those of a span count again.

    They begin with an event's start, or at `start`. Without `end` they go on to the next confirmed
    change, or else to the last observation.
    """

    stream: str
    excluded: bool = True
    event: int | None = None
    start: int | None = None
    end: int | None = None  # the first that is none of them


class WhatIf(Struct, tag="what_if", omit_defaults=True):
    """Rerun what is retained under other settings; changes nothing."""

    stream: str
    settings: dict[str, Any]
    series: bool = False  # whether to answer the scores of each observation
    beliefs: int = 0  # observations, the last ones, after which to answer the belief


class SegmentHistory(Struct, tag="segment_history"):
    """Segment what is retained in hindsight; the result is kept beside the stream."""

    stream: str


class Regimes(Struct, tag="regimes"):
    """The regimes that the stream remembers; changes nothing."""

    stream: str


class NameRegime(Struct, tag="name_regime", omit_defaults=True):
    """Give a remembered regime a name, or take it away: None."""

    stream: str
    regime: int
    name: str | None = None


class Move(Struct, tag="move", omit_defaults=True):
    """Go on under another model, or version, after a rerun of what is retained."""

    stream: str
    model: str


class Import(Struct, tag="import", omit_defaults=True):
    """Make a stream what a snapshot says that was left under `token` in its partition."""

    stream: str
    token: str
    replace: bool = False


Command = (  # of one stream
    Observe
    | Ingest
    | Configure
    | Delete
    | Expire
    | Predict
    | Act
    | RunLength
    | SetBelief
    | EventFeedback
    | Exclude
    | WhatIf
    | SegmentHistory
    | Regimes
    | NameRegime
    | Move
    | Import
)
# These go through all that is retained.
BACKGROUND = (EventFeedback, Exclude, WhatIf, SegmentHistory, Move)
READ_ONLY = (
    Predict,
    Act,
    RunLength,
    Regimes,
    WhatIf,
    SegmentHistory,
)  # change nothing of the stream, and need no answer past their deadline


def units(command: Command | ObserveMany) -> int:
    """What a command counts for in backpressure: its observations, or one."""
    if isinstance(command, Observe):
        return len(command.observations)
    return command.units if isinstance(command, ObserveMany) else 1


def grouped(items: Iterable[T], size: Callable[[T], int], most: int) -> list[list[T]]:
    """Cut items, in order, into groups of at most `most` together; a larger item is alone."""
    groups: list[list[T]] = []
    room = 0
    for item in items:
        own = size(item)
        if not groups or own > room:
            groups.append([])
            room = most
        groups[-1].append(item)
        room -= own
    return groups


# --- answers to observations ----------------------------------------------------------------------

# As workers store them: numbers, of which the API makes JSON. What the API has by the command that
# it waits for is not in them: the stream, and the time of a quiet observation.

LEVELS = (0.05, 0.5, 0.95)  # of the usual quantiles
LOWER, MEDIAN, UPPER = map(str, LEVELS)


SUMMARY = ("changed_probability", "evidence", "anomaly")
DETAILS = (
    "log_score", "changepoint_probability", "recent_change_probability", "map_run_length",
    "mean_run_length", "hypotheses", "pruned_mass",
)  # fmt: skip


class Layout(NamedTuple):
    """Order of the numbers of a quiet observation, as they are stored; nan: it has none.

    First the predictive of its label: mean, then quantiles at LEVELS, each of all outputs; of
    classes their probabilities. Then SUMMARY. With details the covariance, inf where it does not
    exist, which classes have not, and DETAILS.
    """

    outputs: int = 1  # numbers in a label
    classes: int = 0  # 0: labels are quantities

    @property
    def predictive(self) -> int:
        """Numbers of the predictive."""
        return self.classes or (1 + len(LEVELS)) * self.outputs

    @property
    def summary(self) -> int:
        """Numbers without details."""
        return self.predictive + len(SUMMARY)

    @property
    def covariance(self) -> int:
        """Numbers of the covariance."""
        return 0 if self.classes else self.outputs**2

    @property
    def full(self) -> int:
        """Numbers with details."""
        return self.summary + self.covariance + len(DETAILS)

    def row_bytes(self, full: bool) -> int:
        """Bytes of a row; full: with details."""
        return 8 * (self.full if full else self.summary)

    def encoded(self, numbers: NDArray[np.float64], full: bool) -> bytes:
        """Encode rows (n, `full`); full: with details."""
        return numbers[:, : None if full else self.summary].astype("<f8", copy=False).tobytes()

    def decoded(self, rows: bytes, full: bool) -> NDArray[np.float64]:
        """Return what was `encoded`."""
        return np.frombuffer(rows, "<f8").reshape(-1, self.full if full else self.summary)


ONE_NUMBER = Layout()


class QuietAnswers(Struct, array_like=True, tag=0, gc=False):
    """Answers to observations, one after the other, that did no more than move the belief.

    beliefs: of each, run lengths and their probabilities, where they were asked for: with details.
    """

    first: int  # seq
    rows: bytes  # numbers of each
    layout: Layout = ONE_NUMBER
    season: SeasonPeriods | None = None  # of all of them
    beliefs: Sequence[tuple[list[int], list[float]]] | None = None


class QuietRows(Struct, array_like=True, gc=False):
    """Answers to one such observation of each of several streams, of one model.

    full: as of `Answers`.
    """

    model: str
    full: bool
    layout: Layout
    firsts: list[int]  # seq of each
    rows: bytes  # numbers of each
    seasons: list[SeasonPeriods | None] | None = None  # of each, if any has one


class BeliefSummary(NamedTuple):
    """Summary of the run-length belief."""

    map: int
    mean: float
    hypotheses: int
    pruned_mass: float


class StoredAnswer(Struct, array_like=True, tag=1, gc=False):
    """Answer to any other observation.

    belief: run lengths and their probabilities, where they were asked for. provisional: computed
    before earlier pending labels arrived.
    """

    seq: int
    time: str | None = None
    warming_up: bool = False
    mean: list[float] | None = None
    variance: list[list[float]] | None = None
    quantiles: dict[str, list[float]] | None = None
    probabilities: list[float] | None = None  # of classes, in place of the three before
    log_score: float | None = None
    changed_probability: float | None = None
    evidence: float | None = None
    changepoint_probability: float | None = None
    recent_change_probability: float | None = None
    anomaly: float | None = None
    run_length: BeliefSummary | None = None
    belief: tuple[list[int], list[float]] | None = None
    event: Event | None = None
    components: list[Component] | None = None
    provisional: bool = False
    season: SeasonPeriods | None = None
    regime: KnownRegime | None = None
    new_probability: float | None = None
    return_evidence: float | None = None


class Answers(Struct, array_like=True, gc=False):
    """Answers to the observations of one command that were applied, in order.

    full: with the details that were asked for when they were made.
    """

    model: str
    full: bool
    parts: list[QuietAnswers | StoredAnswer]


# --- log and outcomes -----------------------------------------------------------------------------


class Id(NamedTuple):
    """Id of an entry of one of the store's streams: milliseconds, and a number within them."""

    ms: int
    number: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.number}"

    @classmethod
    def parse(cls, text: str | bytes) -> Id:
        """Read the text form."""
        ms, _, number = (text if isinstance(text, str) else text.decode()).partition("-")
        return cls(int(ms), int(number))


class PlannedSpan(Struct, array_like=True, frozen=True, gc=False):
    """One occurrence of a window of the calendar, from `start_ms` to before `end_ms`."""

    window: str
    match: tuple[str, ...]  # selectors of streams, one of which has to fit; none: all streams
    start_ms: int
    end_ms: int


class Envelope(Struct, array_like=True, gc=False):
    """A command with what the API stamps on it."""

    number: int  # counts up in one API process; its outcome is found under it
    time_ms: int  # API's clock when accepted
    deadline_ms: int  # reads are skipped when replayed past it; 0: none
    default_model: str
    command: Command | ObserveMany
    chosen: str | None = None  # NAME@VERSION for the stream if it is made by this, of a canary
    trace: str | None = None  # where it stands in a trace: ids of trace and span; None: in none
    # Days between two false alarms of a stream that states no rule of confirmation; 0: not known
    # by now; None: such a stream has the default.
    quiet_days: float | None = None
    # Of the calendar, where an observation of the command is in any.
    planned: list[PlannedSpan] | None = None


class LogEntry(Struct, array_like=True, gc=False):
    """One log entry: the commands that one API process appended together."""

    incarnation: str
    envelopes: list[Envelope]


class CommandSum(Struct, array_like=True, gc=False):
    """Place and checksum of one command in its entry, and who waits for how much of it."""

    number: int
    units: int
    rows: int  # places that it takes in the order of the entry
    length: int
    crc: int


class Sums(Struct, array_like=True, gc=False):
    """Checksums of a log entry's commands, which lie one after the other from `start` on.

    With these a damaged command is known by its number, and the others of the entry are not hurt.
    """

    incarnation: str
    start: int
    commands: list[CommandSum]


class Outcome(Struct, array_like=True, gc=False):
    """Result of one command.

    `body` holds JSON texts. Observe: when `status` is an error, a problem document. Everything
    else: exactly one.

    Of an ObserveMany there is one for `row`, or for `rows` of them that follow on each other and
    came to the same. Where `quiet` is there, it has what each of them came to.
    """

    number: int
    status: int
    body: list[bytes]
    answers: Answers | None = None  # to the observations that were applied; None: to none
    duplicate: bool = False  # it was applied before, and came to this
    row: int = 0
    rows: int = 1
    quiet: QuietRows | None = None
