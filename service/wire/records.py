"""What a stream keeps. See `service.wire`; how it is stored says `service.wire.stored_records`."""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import NODEFAULT, Struct, convert
from msgspec.structs import replace

from model_core.stream.events import Track, Watch
from model_core.stream.state import KnownRegime, SeasonPeriods
from model_core.stream_settings import CONFIRMATION, DEFAULTS, TABLE, Hazard, StreamSettings
from service.wire.commands import Answers, Label, Observation

if TYPE_CHECKING:
    from model_core.readout import Readout


def updated(settings: StreamSettings, changes: dict[str, Any]) -> StreamSettings:
    """Return settings of which some are replaced; either rule of confirmation ends the other.

    Without one of them it is the default.
    Raises msgspec.ValidationError for values of wrong types.
    """
    values = settings._asdict()
    if any(rule in changes for rule in CONFIRMATION):
        values |= dict.fromkeys(CONFIRMATION)
    for name, value in changes.items():
        setting = TABLE[name]
        values[name] = setting.default if value is None and not setting.optional else value
    if all(values[rule] is None for rule in CONFIRMATION):
        values["false_alarm_every"] = DEFAULTS.false_alarm_every
    return convert(list(values.values()), StreamSettings)


@lru_cache(maxsize=1024)
def _settings(encoded: bytes) -> StreamSettings:
    return msgspec.msgpack.decode(encoded, type=StreamSettings)


def shared(settings: StreamSettings) -> StreamSettings:
    """Return the same settings: one object for many streams, which nearly all have few others."""
    return _settings(msgspec.msgpack.encode(settings))


class SettingsChange(Struct, array_like=True, gc=False):
    """Settings that were changed before the observation at `seq`."""

    seq: int
    time_ms: int
    settings: dict[str, Any]
    number: int  # counts the stream's changes from 1


class PendingSettings(Struct, array_like=True, gc=False):
    """Effective settings of pending observations before `until`."""

    until: int
    hazard: Hazard | None
    outlier_rate: float
    interval: float | None


class Pace(NamedTuple):
    """Observations of a stream a day, by those after `since`, in seconds since 1970.

    timed: by their own times, not by when they arrived. per_day: as last counted, or as the
    `interval` has it; None: the first are being counted.
    """

    since: float
    timed: bool
    seen: int = 0
    per_day: float | None = None


class Position(Struct, array_like=True, gc=False, kw_only=True):
    """The part of a `Head` that observations and checkpoints move."""

    seq: int = 0  # observations applied
    updated_ms: int = 0
    checkpoint: int = 0  # seq of the checkpoint to load; 0: none
    checkpoint_ms: int = 0  # when it was made, or the stream where there is none
    oldest: int = 0  # position of the oldest record that is in the store
    changed_probability: float | None = None
    evidence: float | None = None
    map_run_length: int | None = None
    best_start: int = 0  # last start of the best (max-product) path
    log_score_sum: float = 0.0
    scored: int = 0  # observations in log_score_sum
    pruned_mass: float = 0.0  # of the last step
    pruned_mass_sum: float = 0.0
    # last number of each output, None where it had none
    last_label: list[float | None] | None = None
    last_time: float | None = None  # of the last observation that had one; seconds since 1970
    regime: KnownRegime | None = (
        None  # after the last observation; None: the model has no typical ones
    )
    pace: Pace | None = None  # None: the rule is its own, or the service has no rate of alarms


class Head(Position, array_like=True, gc=False):
    """What a stream is; stored in two parts, its `Position` and all else, the settled part.

    The settled part is `SettledHead`: the fields that are named here.
    It begins with what is read without the rest: see `TaggedHead`.
    """

    generation: int
    settings: StreamSettings
    y_dim: int | None = None  # known from settings or the first label
    deleted: bool = False
    created_ms: int = 0
    warm: bool = False  # location and scale are known; the filter runs
    location: list[float] | None = None
    scale: list[float] | None = None
    resolution: list[float] | None = None  # of coarse or held labels; None: they are neither
    track: Track = Track()  # of the events
    changes: int = 0  # of settings, so far
    x_dim: int | None = None  # known from settings or the first input
    # P(changepoint) stated for the next observation, by an override of the belief
    pending_supervision: float | None = None
    # pairs of run length and probability, set since the last observation
    belief_override: list[tuple[int, float]] | None = None
    pending: list[Observation] = []  # from `seq` on: the first waits for its label, if any does
    # of those pending that came before the settings changed
    pending_settings: list[PendingSettings] = []
    digest: str | None = None  # of the model's artifact; None: built in
    last_anomaly: int | None = None  # seq of the last anomaly event
    season: SeasonPeriods | None = None  # None: no season was found so far
    unnamed: bool = False  # the model is a default, which the first label may yet replace
    own_rule: bool = False  # its rule of confirmation was stated, and is not the service's
    regime_names: dict[int, str] = {}  # given to remembered regimes, by id

    @property
    def watch(self) -> Watch:
        """What the next step is to be read for."""
        return self.track.watch(self.settings.threshold)

    @property
    def next_seq(self) -> int:
        """Position of the next observation, after those that wait for labels."""
        return self.seq + len(self.pending)

    @property
    def retained_from(self) -> int:
        """Position of the first observation that its `history` has room for, and the store has."""
        return max(self.oldest, self.seq - self.settings.history)

    def named(self, regime: KnownRegime | None) -> KnownRegime | None:
        """Return a regime with the name that it was given, if it is a remembered one."""
        if regime is None or regime.id is None:
            return regime
        return regime._replace(name=self.regime_names.get(regime.id))

    def read(self, line: Readout) -> None:
        """Enter what a step reads off the belief."""
        self.best_start = line.best_start
        self.map_run_length = line.map_run_length
        self.changed_probability = line.changed_probability
        self.evidence = line.evidence
        self.regime = line.regime
        self.pruned_mass = line.pruned_mass
        self.pruned_mass_sum += line.pruned_mass


def _field(info: msgspec.structs.FieldInfo) -> tuple[str, Any] | tuple[str, Any, Any]:
    if info.default_factory is not NODEFAULT:
        return info.name, info.type, msgspec.field(default_factory=info.default_factory)
    if info.default is not NODEFAULT:
        return info.name, info.type, info.default
    return info.name, info.type


SettledHead = msgspec.defstruct(
    "SettledHead",
    [_field(f) for f in msgspec.structs.fields(Head) if f.name not in Position.__struct_fields__],
    array_like=True,
    gc=False,
)
settled_values = attrgetter(*SettledHead.__struct_fields__)  # of a head, in the stored order


def joined(settled: Struct, position: Position) -> Head:
    """Return the head of which these are the parts."""
    return Head(*msgspec.structs.astuple(settled), **msgspec.structs.asdict(position))


class StreamTags(Struct, array_like=True, gc=False):
    """What `StreamSettings` begin with: read without the rest where there are many."""

    model: str = ""
    tags: dict[str, str] = {}


class TaggedHead(Struct, array_like=True, gc=False):
    """The part of a `Head` that selectors need: read without the rest where there are many."""

    generation: int
    settings: StreamTags


class Excluded(Struct, array_like=True, frozen=True, gc=False):
    """What an observation that is excluded from learning was posted with.

    window: of the calendar that it was in; None: excluded by a request.
    """

    y: Label
    changepoint: float | None = None
    window: str | None = None


class Record(Struct, array_like=True, gc=False):
    """One applied observation: raw inputs, the settings it met, and its compact answer.

    Of one that is excluded from learning the label is missing, and certainly no change: all that
    reads records leaves the belief as it was. What was posted is in `excluded`.
    """

    seq: int
    y: Label
    x: list[float] | None
    time: str | None
    elapsed: float
    changepoint: float | None
    hazard: Hazard | None  # None: the model's own
    outlier_rate: float
    log_score: float | None = None
    changed_probability: float | None = None
    evidence: float | None = None  # of a change
    changepoint_probability: float | None = None
    recent_change_probability: float | None = None
    map_run_length: int | None = None
    mean: list[float] | None = None
    quantiles: dict[str, list[float]] | None = None
    probabilities: list[float] | None = None
    previous_start: int = -1  # where the best path before a regime starting here starts; -1: none
    variance: list[list[float]] | None = None
    belief_override: list[tuple[int, float]] | None = None  # made just before this one
    anomaly: float | None = None
    offset: list[float] = []  # season that the filter's label is less of; empty: there is none
    regime: KnownRegime | None = None
    accepted_ms: int | None = None  # when it was accepted, where it has no time
    excluded: Excluded | None = None
    new_probability: float | None = None  # of a change to a regime that is not remembered
    return_evidence: float | None = None  # of a change to one that is
    uncorrected: list[float] | None = None  # medians by the model, before they were corrected

    @property
    def posted(self) -> Label:
        """The label as it was posted, though it may be excluded from learning."""
        return self.y if self.excluded is None else self.excluded.y

    def exclude(self, window: str | None = None) -> Record:
        """Return it excluded from learning; as it is, where it is already."""
        if self.excluded is not None:
            return self
        kept = Excluded(self.y, self.changepoint, window)
        return replace(self, y=None, changepoint=0.0, excluded=kept)

    def include(self) -> Record:
        """Return it as it was posted."""
        if self.excluded is None:
            return self
        kept = self.excluded
        return replace(self, y=kept.y, changepoint=kept.changepoint, excluded=None)


class StoredHindsight(Struct, array_like=True, gc=False):
    """Best segmentation of the observations in [first, seq), with location and scale of them all.

    starts: of its regimes, the first included.
    """

    generation: int
    first: int
    seq: int
    starts: list[int]
    at_ms: int  # when it was computed

    def usable(self, head: Head) -> bool:
        """Whether it is of this generation, and reaches into what is retained."""
        oldest = head.seq - head.settings.history
        return self.generation == head.generation and oldest < self.seq <= head.seq

    def current(self, head: Head) -> bool:
        """Whether the stream has moved on since by no more than a tenth of what was segmented."""
        return self.usable(head) and 10 * (head.seq - self.seq) <= self.seq - self.first


class IdempotencyRecord(Struct, array_like=True, gc=False):
    """What one part of a keyed request did."""

    digest: str
    time_ms: int
    status: int
    body: list[bytes]
    answers: Answers | None
