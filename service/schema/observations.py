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
    create_model,
)

from model_core.stream_settings import TABLE, Meaning, Setting
from service.models.catalogue import REFERENCE
from service.wire import tags as stream_tags
from service.wire import timestamps

STREAM_ID = r"^[A-Za-z0-9._:@~-]{1,200}$"
STREAM_ID_RULE = "1 to 200 of the characters A-Z a-z 0-9 . _ : @ ~ - (and not '.' or '..')"
KEY = r"^[!-~]{1,200}$"  # printable ASCII without spaces
# Limit of one command. Earlier versions had another: what was begun with a key in parts of one size
# cannot go on in those of the other.
COMMAND_OBSERVATIONS = 512
EARLIER_OBSERVATIONS = 32
MAX_TABLE = 64  # entries of a hazard's table
MAX_DURATION = 10_000.0
MIN_SHAPE = 1e-3
MAX_SHAPE = 1000.0


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


def _within(meaning: Meaning) -> Any:
    return Field(ge=meaning.ge, gt=meaning.gt, le=meaning.le, lt=meaning.lt)


def _whole(value: Any) -> Any:
    """In JSON 84.0 is an integer, too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
# Of a list only the first wrong element is named: there may be a million.
FIRST = Field(fail_fast=True)
Numbers = Annotated[list[Number], Field(min_length=1), FIRST]
Outputs = Annotated[list[Number | None], Field(min_length=1), FIRST]
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


class DurationsForm(Form):
    """Negative-binomial regime durations, in observations."""

    mean: Annotated[Number, Field(ge=1, le=MAX_DURATION)] = Field(
        description="mean duration of a regime"
    )
    shape: Annotated[Number, Field(ge=MIN_SHAPE, le=MAX_SHAPE)] = Field(
        description="1: constant hazard; larger: durations vary less, and changes are more regular"
    )


class SensitivityForm(Form):
    """Target false-alarm rate of a stream."""

    false_alarms_per_1000: Annotated[Number, _within(TABLE["sensitivity"].meaning)] = Field(
        description="false-alarm rate: changes confirmed per 1,000 observations without a "
        "change, on average"
    )


HazardForm = (
    Annotated[Number, Field(gt=0, lt=1)]
    | DurationsForm
    | Annotated[
        list[Probability],
        Field(min_length=1, max_length=MAX_TABLE),
        FIRST,
        AfterValidator(_check_table),
    ]
)
# Forms of settings that are more than a number, a flag or numbers.
OTHERS: dict[str, Any] = {
    "model": Annotated[StrictStr, Field(pattern=REFERENCE)],
    "tags": Tags,
    "hazard": HazardForm,
    "sensitivity": SensitivityForm,
}
TAG_LIMITS = (
    f". At most {stream_tags.MAX_TAGS} tags, {stream_tags.MAX_VALUE} characters in a value and "
    f"{stream_tags.MAX_ALL} in all; names as of Prometheus labels, but not `stream`"
)


def _form_of(setting: Setting) -> Any:
    """Type of a setting in a request."""
    bounds = _within(setting.meaning)
    kind: Any = OTHERS.get(setting.name)
    if kind is None and setting.type is bool:
        kind = StrictBool
    elif kind is None and setting.type is int:
        kind = Annotated[StrictInt, bounds, WHOLE]
    elif kind is None and setting.type is float:
        kind = Annotated[Number, bounds]
    elif kind is None:
        number = Annotated[Number, bounds]
        several = Annotated[list[number], Field(min_length=1), FIRST]
        kind = Annotated[number | several, AfterValidator(_as_list)]
    return kind | None if setting.optional else kind


def _field_of(setting: Setting) -> Any:
    tags = setting.name == "tags"
    return Field(
        setting.default,
        description=setting.meaning.text + (TAG_LIMITS if tags else ""),
        json_schema_extra={"examples": [{"site": "north", "job": "pump"}]} if tags else None,
    )


_FIELDS: dict[str, Any] = {
    setting.name: (_form_of(setting), _field_of(setting)) for setting in TABLE.values()
}
_Settings: Any = create_model("_Settings", __base__=Form, **_FIELDS)


class StreamForm(_Settings):  # type: ignore[misc]
    """Settings of a stream. Only named settings change; `null` restores the default."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "gaussian", "hazard": 0.01}, {}]}
    )
