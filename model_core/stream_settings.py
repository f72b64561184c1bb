"""Every setting of a stream, once: its name, type, default, meaning and bounds.

Detectors check settings against this table, the service's request form is made from it, stored
streams hold it, and the client's type is written from it by `make client`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypedDict, get_args, get_type_hints

# Observations after an alarm on `anomaly` in which no other is raised. What lasts is strange for a
# while, and is one alarm: the figures on alarms were measured with this silence.
ALARM_SILENCE = 100
# Observations from which on a stream looks for seasons by default. Fewer have three periods of what
# does not last.
SEASONS_FROM = 200
# Models of streams that name none: with one output, and with two to `VECTOR_OUTPUTS`, since the
# state of a vector model grows with their square.
DEFAULT_MODEL = "averaged"
DEFAULT_VECTOR_MODEL = "joint"
VECTOR_OUTPUTS = 32
CONFIRMATION = ("confirm_after", "false_alarm_every")  # rules, of which a stream has one


class Durations(TypedDict):
    """Hazard of regimes whose durations are negative binomial, in observations."""

    mean: float
    shape: float


Hazard = float | Durations | tuple[float, ...]  # the last: a table by run length


class Meaning(NamedTuple):
    """What a setting means, and the numbers that it may be, or its elements.

    ge, gt, le, lt: as of pydantic's fields. detector: whether detectors have it, too.
    """

    text: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    detector: bool = True

    def words(self) -> str:
        """The bounds in words."""
        words = {"of at least": self.ge, "above": self.gt, "of at most": self.le, "below": self.lt}
        return " and ".join(f"{word} {x:g}" for word, x in words.items() if x is not None)

    def allows(self, number: float) -> bool:
        """Whether a number is within the bounds."""
        return (
            (self.ge is None or number >= self.ge)
            and (self.gt is None or number > self.gt)
            and (self.le is None or number <= self.le)
            and (self.lt is None or number < self.lt)
        )


DURATIONS = {
    "mean": Meaning("mean duration of a regime", ge=1, le=10_000),
    "shape": Meaning(
        "1: constant hazard; larger: durations vary less, and changes are more regular",
        ge=1e-3,  # tables of less take minutes to compute
        le=1000,
    ),
}


class StreamSettings(NamedTuple):
    """Settings of one stream; None means the model's or the service's default.

    `model` and `tags` stand first: lists of many streams read no more of it.
    """

    model: Annotated[
        str, Meaning("NAME or NAME@VERSION; default version: the highest", detector=False)
    ] = ""
    tags: Annotated[
        dict[str, str],
        Meaning(
            "metadata by name, replaced as a whole; `match` selects streams by it", detector=False
        ),
    ] = {}  # never changed in place
    hazard: Annotated[
        Hazard | None,
        Meaning(
            "hazard, the probability that a regime ends at a step: a number, a table by run length "
            "(its last entry applies beyond), or the distribution of regime durations; default: "
            "the stream learns it, unless an artifact states one"
        ),
    ] = None
    max_hypotheses: Annotated[
        int,
        Meaning(
            "maximum number of run-length hypotheses; beyond it the least probable are pruned",
            ge=2,
            le=10_000,
        ),
    ] = 21  # with what a table has beside, whole vectors of 8: see docs/mathematics.md, section 6
    regimes: Annotated[
        int,
        Meaning(
            "number of past regimes that the stream remembers, so that it recognises their return; "
            "0: none. Of all built-in models, and of artifacts of `alpaca`",
            ge=0,
            le=32,
        ),
    ] = 0
    outlier_rate: Annotated[
        float | None,
        Meaning(
            "share of labels that belong to no regime (outliers); default: the model's", ge=0, lt=1
        ),
    ] = None
    false_alarm_every: Annotated[
        float | None,
        Meaning(
            "observations between two false alarms, or more: a change is confirmed as soon as its "
            "`evidence` reaches this. `null` with a `confirm_after`, and not allowed together with "
            "one",
            ge=10,
            le=1e12,
        ),
    ] = 10_000.0
    confirm_after: Annotated[
        int | None,
        Meaning(
            "confirm a change after so many observations under suspicion, instead of at a "
            "measure of evidence; `null`: at `false_alarm_every`",
            ge=1,
            le=100_000,
        ),
    ] = None
    min_size: Annotated[
        float,
        Meaning(
            "confirm no change of a mean by less, in standard deviations within the regimes; of "
            "several outputs the largest counts. A change of the spread alone has about none",
            ge=0,
            le=1000,
        ),
    ] = 0.0
    min_shift: Annotated[
        float,
        Meaning(
            "confirm no change of a mean by less, in units of the label; an output that reaches "
            "`min_size` has to reach this as well",
            ge=0,
            le=1e100,
        ),
    ] = 0.0
    min_duration: Annotated[
        int,
        Meaning(
            "confirm no change before its regime has lasted for so many observations",
            ge=0,
            le=100_000,
        ),
    ] = 0
    anomaly_alarm: Annotated[
        float | None,
        Meaning(
            "raise an anomaly event at an observation whose `anomaly` reaches this, if the last "
            f"one is {ALARM_SILENCE} observations or more ago; `null`: none",
            gt=0.5,
            lt=1,
        ),
    ] = 0.999
    warmup: Annotated[
        int, Meaning("observations used to calibrate location and scale", ge=0, le=200)
    ] = 20
    location: Annotated[
        list[float] | None,
        Meaning("typical label, per dimension; default: from the warm-up", ge=-1e100, le=1e100),
    ] = None
    scale: Annotated[
        list[float] | None,
        Meaning("typical spread, per dimension; default: from the warm-up", ge=1e-100, le=1e100),
    ] = None
    history: Annotated[
        int, Meaning("observations retained with their answers", ge=0, le=10_000_000)
    ] = 2000
    classes: Annotated[
        int | None,
        Meaning("number of classes; required for a `categorical` stream", ge=2, le=1000),
    ] = None
    order: Annotated[
        int,
        Meaning(
            "number of previous labels that an `autoregressive` stream regresses on", ge=0, le=32
        ),
    ] = 1
    trend: Annotated[bool, Meaning("whether an `autoregressive` stream has a trend")] = False
    season: Annotated[
        int | None,
        Meaning("period of an `autoregressive` stream's season, in observations", ge=2, le=10_000),
    ] = None
    seasonal: Annotated[
        bool | None,
        Meaning(
            "whether to find seasons in the labels: changes are then those of labels less their "
            "season, and forecasts follow it; for models of real labels. `null`: from 200 "
            "observations on, unless the model has inputs, several outputs, a `season` or an "
            "artifact; `true`: from the first label on"
        ),
    ] = None
    interval: Annotated[
        float | None,
        Meaning(
            "seconds per step of the hazard, at least 0.001; the elapsed time between observations "
            "is then computed from their `time`",
            ge=1e-3,  # times are to the millisecond
            detector=False,
        ),
    ] = None
    ttl: Annotated[
        float | None,
        Meaning(
            "seconds without an observation or a change until the stream is deleted",
            ge=1,
            le=1e9,  # some 30 years
            detector=False,
        ),
    ] = None
    label_window: Annotated[
        int,
        Meaning(
            "maximum number of observations queued behind a pending label; beyond it the oldest "
            "pending label counts as missing",
            ge=0,
            le=1000,
            detector=False,
        ),
    ] = 100

    @property
    def threshold(self) -> float:
        """Of the evidence, at which a change is confirmed; 0: after `confirm_after`."""
        return self.false_alarm_every or 0.0


DEFAULTS = StreamSettings()


def default_model(
    location: list[float] | None, outputs: int | None, usual: str = DEFAULT_MODEL
) -> str:
    """Model of a series that names none; outputs: numbers in its first label, if it is known.

    usual: default of the service. Vectors have one of their own unless that was changed.
    """
    outputs = len(location) if location else outputs
    vector = outputs is not None and 1 < outputs <= VECTOR_OUTPUTS
    return DEFAULT_VECTOR_MODEL if vector and usual == DEFAULT_MODEL else usual


class Setting(NamedTuple):
    """One row of the table. type: without None, which is a value of its own where optional."""

    name: str
    type: Any
    optional: bool
    default: Any
    meaning: Meaning


def _row(name: str, annotation: Any) -> Setting:
    kind, meaning = get_args(annotation)
    optional = type(None) in get_args(kind)
    if optional:
        others = [option for option in get_args(kind) if option is not type(None)]
        kind = others[0]
        for option in others[1:]:
            kind = kind | option
    return Setting(name, kind, optional, getattr(DEFAULTS, name), meaning)


TABLE = {
    name: _row(name, annotation)
    for name, annotation in get_type_hints(StreamSettings, include_extras=True).items()
}


def one_rule(given: Mapping[str, Any]) -> dict[str, Any]:
    """Leave one rule of confirmation of those given; None for all of them: none is stated."""
    named = given.keys() & set(CONFIRMATION)
    settings = {name: value for name, value in given.items() if name not in named}
    rules = {rule: given[rule] for rule in named if given[rule] is not None}
    if named and not rules:
        rules = {"false_alarm_every": None}
    return settings | rules
