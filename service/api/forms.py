"""From request bodies to commands: parsed once, with errors that name the field.

Bounds that are settings are checked here, after the form itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from service import wire
from service.api.fast import Fast
from service.api.field_errors import field_errors
from service.errors import FieldError, InvalidField, MalformedBody
from service.schemas import (
    COMMAND_OBSERVATIONS,
    Form,
    Item,
    Observation,
    StreamForm,
)
from service.settings import Settings

OBSERVATION_OVERHEAD = 80  # bytes of an encoded observation beside its numbers
NUMBER_BYTES = 9
ANSWER_BYTES, COVARIANCE_BYTES = 1 << 20, 20  # of a command's answers; of each covariance in them
T = TypeVar("T")
Observed = Any  # an Observation, or what msgspec made under the same rules
_is_list = re.compile(rb"\s*\[").match
_fast, _fast_item = Fast(Observation), Fast(Item)
_one = TypeAdapter(Observation).validate_json
_many = TypeAdapter(list[Observation]).validate_json
_item = TypeAdapter(Item).validate_json
_items = TypeAdapter(list[Item]).validate_json
_stream = TypeAdapter(StreamForm).validate_json


class Observations(NamedTuple):
    """The body of a post to one stream."""

    observations: list[wire.Observation]
    seq: int | None  # expected position of the first
    many: bool  # a list was posted, a list is answered


class BadItem(NamedTuple):
    """An item of a many-stream request that is refused for its form."""

    stream: str | None  # as far as it can be told
    error: InvalidField


class GoodItem(NamedTuple):
    """An item of a many-stream request."""

    stream: str
    key: str | None
    seq: int | None
    observation: wire.Observation


class Forms:
    """Reads bodies under one process's settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def observations(self, body: bytes) -> Observations:
        """Read one observation or a list of them."""
        if not _is_list(body):
            form: Observed = _fast.one(body) or parsed(_one, body)
            if self._is_bad(form):
                raise self._bad(form, "body")
            return Observations([_observation(form)], form.seq, False)
        forms: Sequence[Observed] | None = _fast.many(body)
        if forms is None:
            forms = parsed(_many, body)
        self._check_count(len(forms))
        for i, form in enumerate(forms):
            if self._is_bad(form):
                raise self._bad(form, f"body[{i}]")
        return Observations([_observation(form) for form in forms], _expected(forms), True)

    def items(self, body: bytes, lines: bool) -> list[GoodItem | BadItem]:
        """Read a JSON list or, with `lines`, one item per line.

        An item with a wrong form is refused alone; a body that is not JSON altogether.
        """
        if lines:
            return self._lines(body)
        forms: Sequence[Any] | None = _fast_item.many(body)
        if forms is None:
            try:
                forms = _items(body)
            except ValidationError:
                forms = _json_list(body)
        self._check_count(len(forms))
        return [self._item(form, f"body[{i}]") for i, form in enumerate(forms)]

    def settings(self, body: bytes) -> dict[str, Any]:
        """Read the named settings of a stream."""
        return self.named(parsed(_stream, body or b"{}"), "body")

    def named(self, form: StreamForm, loc: str) -> dict[str, Any]:
        """Return the settings that a form names, each within its bounds."""
        limits, errors = self._settings, []
        for name, limit in (
            ("max_hypotheses", limits.max_hypotheses),
            ("history", limits.max_history),
        ):
            if getattr(form, name) > limit:
                errors.append(FieldError(f"{loc}.{name}", f"at most {limit}"))
        for name in ("location", "scale"):
            errors += self.too_long(getattr(form, name), f"{loc}.{name}")
        if errors:
            raise InvalidField(errors)
        return form.model_dump(exclude_unset=True)

    def parts(self, observations: Sequence[wire.Observation]) -> int:
        """Return how many observations of this list go in one command.

        The same list always gives the same parts: a repeat is recognised part by part.
        """
        longest = max((_numbers(each) for each in observations), default=1)
        each_bytes = OBSERVATION_OVERHEAD + NUMBER_BYTES * longest
        fit = (self._settings.max_entry_bytes // 2) // each_bytes
        widest = max((len(each.y) for each in observations if isinstance(each.y, list)), default=1)
        told = ANSWER_BYTES // (COVARIANCE_BYTES * widest**2)
        return max(1, min(COMMAND_OBSERVATIONS, self._settings.max_pending, fit, told))

    def _lines(self, body: bytes) -> list[GoodItem | BadItem]:
        found: list[GoodItem | BadItem] = []
        lines = [line for line in body.split(b"\n") if line.strip()]
        self._check_count(len(lines))
        for i, line in enumerate(lines):
            form = _fast_item.one(line)
            if form is None:
                try:
                    form = _item(line)
                except ValidationError:
                    form = _json(line, f"line {i + 1}")
            found.append(self._item(form, f"line {i + 1}"))
        return found

    def _item(self, form: Any, loc: str) -> GoodItem | BadItem:
        """Check one item; one that is not an Item yet is what JSON gave."""
        try:
            if not isinstance(form, Item | _fast_item.struct):
                form = Item.model_validate(form)
            if self._is_bad(form):
                raise self._bad(form, loc)
        except ValidationError as error:
            return BadItem(_stream_of(form), InvalidField(field_errors(error, loc)))
        except InvalidField as error:
            return BadItem(form.stream, error)
        return GoodItem(form.stream, form.key, form.seq, _observation(form))

    def _is_bad(self, form: Observed) -> bool:
        limit, x, y = self._settings.max_dimension, form.x, form.y
        wide = (x is not None and len(x) > limit) or (isinstance(y, list) and len(y) > limit)
        return wide or (form.pending and y is not None)

    def _bad(self, form: Observed, loc: str) -> InvalidField:
        y = form.y if isinstance(form.y, list) else None
        errors = [*self.too_long(form.x, f"{loc}.x"), *self.too_long(y, f"{loc}.y")]
        if form.pending and form.y is not None:
            errors.append(
                FieldError(f"{loc}.pending", "expected no `y` where the label is pending")
            )
        return InvalidField(errors)

    def _check_count(self, count: int) -> None:
        limit = self._settings.max_observations
        if count > limit:
            detail = f"at most {limit} observations in one request, got {count}"
            raise InvalidField([FieldError("body", detail)])

    def too_long(self, numbers: list[float] | None, loc: str) -> list[FieldError]:
        """Return what is wrong with the length of an input or a label."""
        limit = self._settings.max_dimension
        if numbers is None or len(numbers) <= limit:
            return []
        return [FieldError(loc, f"at most {limit} numbers, got {len(numbers)}")]


def digest(body: bytes) -> str:
    """Return what tells a body from another under the same idempotency key."""
    return blake2b(body, digest_size=16).hexdigest()


def query(form: type[T], given: Iterable[tuple[str, str]]) -> T:
    """Read query parameters into a form."""
    assert issubclass(form, Form)
    read: dict[str, Any] = {}
    for name, value in given:
        if name in form.several:
            read.setdefault(name, []).append(value)
        else:
            read[name] = value
    try:
        return form.model_validate(read)
    except ValidationError as error:
        raise InvalidField(field_errors(error, "query")) from None


def parsed(parse: Callable[[bytes], T], body: bytes) -> T:
    """Read a body; raises MalformedBody or InvalidField."""
    try:
        return parse(body)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] == "json_invalid":
            raise _malformed(error.errors()[0]["msg"], "body") from None
        raise InvalidField(field_errors(error, "body")) from None


def _json(text: bytes, loc: str) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        raise _malformed(f"Invalid JSON: {error}", loc) from None


def _json_list(body: bytes) -> list[Any]:
    found = _json(body, "body")
    if not isinstance(found, list):
        raise InvalidField([FieldError("body", "expected a list of observations")])
    return found


def _malformed(detail: str, loc: str) -> MalformedBody:
    return MalformedBody(f"{loc}: {detail}", errors=[{"loc": loc, "detail": detail}])


def _stream_of(form: Any) -> str | None:
    """Return the stream a refused item was for, so that later items of it are not applied."""
    stream = form.get("stream") if isinstance(form, Mapping) else None
    return stream if isinstance(stream, str) else None


def _observation(form: Observed) -> wire.Observation:
    return wire.Observation(
        form.y,
        form.x,
        form.time,
        form.elapsed,
        None if form.supervision is None else form.supervision.changepoint,
        form.pending,
    )


def _expected(forms: Sequence[Observed]) -> int | None:
    """Return the expected position of the first of a list; all that are given must agree."""
    first: int | None = None
    for i, form in enumerate(forms):
        if form.seq is None:
            continue
        if first is None:
            first = form.seq - i
        if form.seq - i != first or first < 0:
            detail = "the positions of a list are consecutive"
            raise InvalidField([FieldError(f"body[{i}].seq", detail)])
    return first


def _numbers(observation: wire.Observation) -> int:
    y = len(observation.y) if isinstance(observation.y, list) else 1
    return y + (len(observation.x) if observation.x is not None else 0)
