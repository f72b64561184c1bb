"""Request schemas of observations and stream settings (shape only).

Observations are read by msgspec, as there can be thousands in a second; all other forms are those
of FastAPI.

Whether a label fits its stream (dimension, range, position) is checked by the worker, at the
request's place in the log. Limits that are settings are checked in `service.api.parsing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Self

from msgspec import Meta, Struct
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from model_core import wording
from model_core.stream_settings import DURATIONS, TABLE, Meaning, Setting
from model_core.wording import did_you_mean
from service.models.catalogue import REFERENCE
from service.wire import tags as stream_tags
from service.wire import timestamps

STREAM_CHARACTERS = "A-Za-z0-9._:@~-"  # within the brackets of an expression
LONGEST_ID = 200  # characters
STREAM_ID = f"^[{STREAM_CHARACTERS}]{{1,{LONGEST_ID}}}$"
STREAM_ID_RULE = "1 to 200 of the characters A-Z a-z 0-9 . _ : @ ~ - (and not '.' or '..')"
UNKNOWN = "unknown field"
KEY = r"^[!-~]{1,200}$"
KEY_RULE = "1 to 200 printable ASCII characters without spaces"
COMMAND_OBSERVATIONS = 512  # at most, of one command
MAX_TIME = 40  # characters
MAX_TABLE = 64  # entries of a hazard's table

_stream_id = re.compile(STREAM_ID.strip("^$")).fullmatch
is_key = re.compile(KEY.strip("^$")).fullmatch
_id_bytes = bytes(byte for byte in range(128) if _stream_id(chr(byte)))


def check_stream(stream: str) -> str:
    """Return a stream id; ValueError for one that cannot be addressed."""
    if stream in {".", ".."}:
        raise ValueError("'.' and '..' cannot be addressed in a URL")
    return stream


def _check_table(table: list[float]) -> list[float]:
    if not any(table):
        raise ValueError("a hazard of 0 at every run length never allows a change")
    return table


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
Probability = Annotated[Number, Field(ge=0, le=1)]
Elapsed = Annotated[Number, Field(gt=0)]
StreamId = Annotated[StrictStr, Field(pattern=STREAM_ID), AfterValidator(check_stream)]
WHOLE = BeforeValidator(_whole)
Tags = Annotated[dict[StrictStr, StrictStr], AfterValidator(stream_tags.check)]
Seq = Annotated[StrictInt, Field(ge=0, le=2**53), WHOLE]


class Form(BaseModel):
    """Base of all request bodies and queries; unknown fields are rejected by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def _suggest(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Name the field that was probably meant by an unknown one."""
        try:
            return handler(value)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            if not any(_is_unknown(item) for item in errors):
                raise
            raise ValidationError.from_exception_data(
                error.title, [_with_suggestion(item, cls.model_fields) for item in errors]
            ) from None


def _is_unknown(error: ErrorDetails) -> bool:
    """Whether an error is of an unknown field of a form itself, not of one within it."""
    return error["type"] == "extra_forbidden" and len(error["loc"]) == 1


def _with_suggestion(error: ErrorDetails, names: Iterable[str]) -> InitErrorDetails:
    kind = error["type"]
    text = wording.described(error)
    if _is_unknown(error):
        kind = "unknown_field"
        text = f"{UNKNOWN}{did_you_mean(str(error['loc'][0])[:100], names)}"
    custom = PydanticCustomError(kind, "{text}", {"text": text})
    return InitErrorDetails(type=custom, loc=error["loc"], input=error["input"])


class SupervisionForm(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """Supervision: what the client knows about a regime change just before an observation."""

    changepoint: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="probability that the regime changed just before this observation; 1: "
            "known change, 0: known not to have changed",
        ),
    ]


# Types that msgspec does not know: each has its JSON schema, and `read`, whose ValueError says what
# was expected.


class Position(int):
    """Position of an observation in its stream. In JSON 84.0 is an integer, too."""

    SCHEMA: ClassVar = {"type": "integer", "minimum": 0, "maximum": 2**53}

    @classmethod
    def read(cls, value: Any) -> Position:
        """Return a position."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("expected an integer")
        if value != int(value) or not 0 <= value <= 2**53:
            raise ValueError("expected an integer from 0 to 2**53")
        return cls(value)


class Timestamp(str):
    """RFC 3339 time; a date is the time that it begins at, a number counts from 1970."""

    __slots__ = ()
    SCHEMA: ClassVar = {"anyOf": [{"type": "string", "maxLength": MAX_TIME}, {"type": "number"}]}

    @classmethod
    def read(cls, value: Any) -> Timestamp:
        """Return a time."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return cls(timestamps.from_number(value))
        if not isinstance(value, str) or len(value) > MAX_TIME:
            raise ValueError(f"expected a string of at most {MAX_TIME} characters, or a number")
        value = timestamps.from_date(value)
        timestamps.parse(value)
        return cls(value)


class ItemStream(str):
    """Id of a stream."""

    __slots__ = ()
    SCHEMA: ClassVar = {"type": "string", "pattern": STREAM_ID}

    @classmethod
    def read(cls, value: Any) -> ItemStream:
        """Return an id."""
        if not isinstance(value, str) or not is_stream(value):
            raise ValueError(f"expected {STREAM_ID_RULE}")
        return cls(value)


class IdempotencyKey(str):
    """Idempotency key."""

    __slots__ = ()
    SCHEMA: ClassVar = {"type": "string", "pattern": KEY}

    @classmethod
    def read(cls, value: Any) -> IdempotencyKey:
        """Return a key."""
        if not isinstance(value, str) or not is_key(value):
            raise ValueError(f"expected {KEY_RULE}")
        return cls(value)


def is_stream(name: str) -> bool:
    """Whether a name may be the id of a stream."""
    return _stream_id(name) is not None and name not in {".", ".."}


def are_streams(names: Sequence[str]) -> bool:
    """Whether all names may be ids of streams: a tenth of the time of each by itself."""
    text = "".join(names)
    if not names or not text.isascii() or text.encode().translate(None, _id_bytes):
        return False
    lengths = list(map(len, names))
    return min(lengths) > 0 and max(lengths) <= LONGEST_ID and {".", ".."}.isdisjoint(names)


def read_value(kind: Any, value: Any) -> Any:
    """Return a value of one of these types; ValueError says what was expected."""
    return kind.read(value)


FiniteNumbers = Annotated[list[float], Meta(min_length=1)]
Labels = Annotated[list[float | None], Meta(min_length=1)]


class ObservationForm(Struct, forbid_unknown_fields=True, frozen=True, gc=False, kw_only=True):
    """One observation. Numbers are finite; a missing label is `null` or omitted.

    In a list of numbers `null` is a missing output, for models that take such labels.
    """

    y: Annotated[
        float | Labels | None,
        Meta(
            description="label: a number, a list of numbers, or null if missing; in a list null is "
            "a missing output, and a list of nulls a missing label"
        ),
    ] = None
    x: Annotated[FiniteNumbers | None, Meta(description="input, for models that take one")] = None
    time: Annotated[
        Timestamp | None,
        Meta(
            description="RFC 3339, a date (its beginning in UTC), or seconds since 1970 or their "
            "thousandths, millionths or billionths; returned in the answer and in events, as "
            "RFC 3339"
        ),
    ] = None
    elapsed: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="time since the previous observation, in steps of the hazard; default: "
            "computed from `time` if the stream has an `interval`, else 1"
        ),
    ] = None
    supervision: SupervisionForm | None = None
    pending: Annotated[
        bool,
        Meta(
            description="whether the label is pending: it is posted later under this "
            "observation's `seq`"
        ),
    ] = False
    seq: Annotated[
        Position | None,
        Meta(
            description="expected position; 409 if the stream is at another one. With the `seq` of "
            "a pending label: this is that label"
        ),
    ] = None


class ItemForm(ObservationForm, forbid_unknown_fields=True, frozen=True, gc=False, kw_only=True):
    """One observation of a multi-stream request."""

    stream: ItemStream
    key: Annotated[IdempotencyKey | None, Meta(description="idempotency key of this item")] = None


class NumberItem(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """An `ItemForm` that is numbers, with their time at most: nearly all are.

    Its stream is checked with those of others: see `are_streams`. A label of one is no list.
    """

    stream: str
    y: float | Annotated[list[float], Meta(min_length=2)]
    x: FiniteNumbers | None = None
    time: Timestamp | None = None


class NumberForm(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """An `ObservationForm` that is a number, with its time at most: in lists nearly all are."""

    y: float
    time: Timestamp | None = None


class DurationsForm(Form):
    """Negative-binomial regime durations, in observations."""

    mean: Annotated[Number, _within(DURATIONS["mean"])] = Field(description=DURATIONS["mean"].text)
    shape: Annotated[Number, _within(DURATIONS["shape"])] = Field(
        description=DURATIONS["shape"].text
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
