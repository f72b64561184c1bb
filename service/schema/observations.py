"""Request schemas of observations and stream settings (shape only).

Whether a label fits its stream (dimension, range, position) is checked by the worker, at the
request's place in the log. Limits that are settings are checked in `service.api.parsing`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
)

from service.models.catalogue import REFERENCE
from service.wire import tags as stream_tags
from service.wire import timestamps

STREAM_ID = r"^[A-Za-z0-9._:@~-]{1,200}$"
STREAM_ID_RULE = "1 to 200 of the characters A-Z a-z 0-9 . _ : @ ~ - (and not '.' or '..')"
KEY = r"^[!-~]{1,200}$"  # printable ASCII without spaces
# Limit of one command. Earlier versions had another: what was begun with a key in parts of one size
# cannot go on in those of the other.
COMMAND_OBSERVATIONS, EARLIER_OBSERVATIONS = 512, 32
MAX_WARMUP = 200
MAX_TABLE = 64  # entries of a hazard's table
MAX_DURATION = 10_000.0
MIN_SHAPE, MAX_SHAPE = 1e-3, 1000.0
MAX_CLASSES = 1000
MAX_ORDER = 32
MAX_SEASON = 10_000
MAX_WINDOW = 1000
MIN_INTERVAL = 1e-3  # seconds; times are to the millisecond
MAX_TTL = 1e9  # seconds, some 30 years


def _check_time(text: str) -> str:
    timestamps.parse(text)
    return text


def _check_stream(stream: str) -> str:
    if stream in {".", ".."}:
        raise ValueError("'.' and '..' cannot be addressed in a URL")
    return stream


def _check_table(table: list[float]) -> list[float]:
    if not any(table):
        raise ValueError("a hazard of 0 at every run length never allows a change")
    return table


def _check_tags(tags: dict[str, str]) -> dict[str, str]:
    stream_tags.check(tags)
    return tags


def _as_list(value: float | list[float]) -> list[float]:
    return value if isinstance(value, list) else [value]


def _whole(value: Any) -> Any:
    """In JSON 84.0 is an integer, too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
# Of a list only the first wrong element is named: there may be a million.
FIRST = Field(fail_fast=True)
Numbers = Annotated[list[Number], Field(min_length=1), FIRST]
Outputs = Annotated[list[Number | None], Field(min_length=1), FIRST]
Positive = Annotated[Number, Field(gt=0)]
Probability = Annotated[Number, Field(ge=0, le=1)]
Elapsed = Annotated[Number, Field(gt=0)]
Time = Annotated[StrictStr, Field(max_length=40), AfterValidator(_check_time)]
StreamId = Annotated[StrictStr, Field(pattern=STREAM_ID), AfterValidator(_check_stream)]
Key = Annotated[StrictStr, Field(pattern=KEY)]
WHOLE = BeforeValidator(_whole)
Tags = Annotated[dict[StrictStr, StrictStr], AfterValidator(_check_tags)]
Seq = Annotated[StrictInt, Field(ge=0, le=2**53), WHOLE]


class Form(BaseModel):
    """Base of all request bodies and queries; unknown fields are rejected by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    repeatable: ClassVar[frozenset[str]] = frozenset()  # query parameters that may be repeated


class Supervision(Form):
    """Supervision: what the client knows about a regime change just before an observation."""

    changepoint: Probability = Field(
        description="probability that the regime changed just before this observation; 1: known "
        "change, 0: known not to have changed"
    )


class Observation(Form):
    """One observation. Numbers are finite; a missing label is `null` or omitted.

    In a list of numbers `null` is a missing output, for models that take such labels.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"y": 10.4},
                {"x": [0.3, 1.2], "y": [2.0], "time": "2024-05-01T12:00:00Z"},
                {"y": [0.71, None, 12.9]},
            ]
        }
    )

    y: Number | Outputs | None = Field(
        None,
        description="label: a number, a list of numbers, or null if missing; in a list null is a "
        "missing output, and a list of nulls a missing label",
    )
    x: Numbers | None = Field(None, description="input, for models that take one")
    time: Time | None = Field(None, description="RFC 3339; returned in the answer and in events")
    elapsed: Elapsed | None = Field(
        None,
        description="time since the previous observation, in steps of the hazard; default: "
        "computed from `time` if the stream has an `interval`, else 1",
    )
    supervision: Supervision | None = None
    pending: StrictBool = Field(
        False,
        description="whether the label is pending: it is posted later under this "
        "observation's `seq`",
    )
    seq: Seq | None = Field(
        None,
        description="expected position; 409 if the stream is at another one. With the `seq` of a "
        "pending label: this is that label",
    )


class Item(Observation):
    """One observation of a multi-stream request."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"stream": "pump-7", "key": "a81f-0", "y": 10.4}]}
    )

    stream: StreamId
    key: Key | None = Field(None, description="idempotency key of this item")


class Durations(Form):
    """Negative-binomial regime durations, in observations."""

    mean: Annotated[Number, Field(ge=1, le=MAX_DURATION)] = Field(
        description="mean duration of a regime"
    )
    shape: Annotated[Number, Field(ge=MIN_SHAPE, le=MAX_SHAPE)] = Field(
        description="1: constant hazard; larger: durations vary less, and changes are more regular"
    )


class SensitivityForm(Form):
    """Target false-alarm rate of a stream."""

    false_alarms_per_1000: Annotated[Number, Field(gt=0, le=1000)] = Field(
        description="false-alarm rate: changes confirmed per 1,000 observations without a "
        "change, on average"
    )


class StreamForm(Form):
    """Settings of a stream. Only named settings change; `null` restores the default."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "gaussian", "hazard": 0.01}, {}]}
    )

    model: Annotated[StrictStr, Field(pattern=REFERENCE)] = Field(
        "", description="NAME or NAME@VERSION; default version: the highest"
    )
    hazard: (
        Annotated[Number, Field(gt=0, lt=1)]
        | Durations
        | Annotated[
            list[Probability],
            Field(min_length=1, max_length=MAX_TABLE),
            FIRST,
            AfterValidator(_check_table),
        ]
        | None
    ) = Field(
        None,
        description="hazard, the probability that a regime ends at a step: a number, a table "
        "by run length (its last entry applies beyond), or the distribution of "
        "regime durations; default: the model's",
    )
    max_hypotheses: Annotated[StrictInt, Field(ge=2), WHOLE] = Field(
        50,
        description="maximum number of run-length hypotheses; beyond it the least probable "
        "are pruned",
    )
    outlier_rate: Annotated[Number, Field(ge=0, lt=1)] | None = Field(
        None,
        description="share of labels that belong to no regime (outliers); default: the model's",
    )
    confirm_probability: Annotated[Number, Field(ge=0.5, lt=1)] | None = Field(
        0.99,
        description="confirm a change as soon as `changed_probability` reaches this. `null` with "
        "a `confirm_after`, and not allowed together with one",
    )
    confirm_after: Annotated[StrictInt, Field(ge=1, le=100_000), WHOLE] | None = Field(
        None,
        description="confirm a change after so many observations under suspicion, instead of at "
        "a probability; `null`: at `confirm_probability`",
    )
    warmup: Annotated[StrictInt, Field(ge=0, le=MAX_WARMUP), WHOLE] = Field(
        20, description="observations used to calibrate location and scale"
    )
    location: Annotated[Number | Numbers, AfterValidator(_as_list)] | None = Field(
        None, description="typical label, per dimension; default: from the warm-up"
    )
    scale: (
        Annotated[
            Positive | Annotated[list[Positive], Field(min_length=1), FIRST],
            AfterValidator(_as_list),
        ]
        | None
    ) = Field(None, description="typical spread, per dimension; default: from the warm-up")
    history: Annotated[StrictInt, Field(ge=0), WHOLE] = Field(
        2000, description="observations retained with their answers"
    )
    classes: Annotated[StrictInt, Field(ge=2, le=MAX_CLASSES), WHOLE] | None = Field(
        None, description="number of classes; required for a `categorical` stream"
    )
    order: Annotated[StrictInt, Field(ge=0, le=MAX_ORDER), WHOLE] = Field(
        1, description="number of previous labels that an `autoregressive` stream regresses on"
    )
    interval: Annotated[Number, Field(ge=MIN_INTERVAL)] | None = Field(
        None,
        description="seconds per step of the hazard, at least 0.001; the elapsed time between "
        "observations is then computed from their `time`",
    )
    ttl: Annotated[Number, Field(ge=1, le=MAX_TTL)] | None = Field(
        None, description="seconds without an observation or a change until the stream is deleted"
    )
    label_window: Annotated[StrictInt, Field(ge=0, le=MAX_WINDOW), WHOLE] = Field(
        100,
        description="maximum number of observations queued behind a pending label; beyond it the "
        "oldest pending label counts as missing",
    )
    trend: StrictBool = Field(False, description="whether an `autoregressive` stream has a trend")
    season: Annotated[StrictInt, Field(ge=2, le=MAX_SEASON), WHOLE] | None = Field(
        None, description="period of an `autoregressive` stream's season, in observations"
    )
    seasonal: StrictBool | None = Field(
        None,
        description="whether to find seasons in the labels: changes are then those of labels less "
        "their season, and forecasts follow it; for models of one real label. `null`: from 1,000 "
        "observations on, unless the model has inputs, a `season` or an artifact; `true`: from the "
        "first label on",
    )
    sensitivity: SensitivityForm | None = Field(
        None,
        description="target false-alarm rate: confirm a change at the probability calibrated "
        "for it, instead of by `confirm_probability` or `confirm_after`",
    )
    anomaly_alarm: Annotated[Number, Field(gt=0.5, lt=1)] | None = Field(
        0.999,
        description="raise an anomaly event at an observation whose `anomaly` reaches this, if the "
        "last one is 100 observations or more ago; `null`: none",
    )
    tags: Tags = Field(
        {},
        description=f"metadata by name, replaced as a whole; `match` selects streams by it. At "
        f"most {stream_tags.MAX_TAGS} tags, {stream_tags.MAX_VALUE} characters in a value and "
        f"{stream_tags.MAX_ALL} in all; names as of Prometheus labels, but not `stream`",
        json_schema_extra={"examples": [{"site": "north", "job": "pump"}]},
    )
