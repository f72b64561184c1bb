"""Parse request bodies into commands, once; errors name the field.

Limits that are settings are checked here, after the form itself. The cost of a body is bounded
before, in `service.api.parsing.bodies`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from model_core.stream_settings import one_rule
from service import wire
from service.api.parsing.bodies import LIGHT_BYTES, JsonLimits, check_command, malformed, split
from service.api.parsing.field_errors import field_errors
from service.api.parsing.msgspec_forms import MsgspecForm
from service.problems import MAX_ERRORS, FieldError, InvalidField
from service.schema.observations import (
    COMMAND_OBSERVATIONS,
    EARLIER_OBSERVATIONS,
    Form,
    Item,
    Observation,
    StreamForm,
)
from service.settings import Settings
from service.store import append

OBSERVATION_OVERHEAD = 80  # bytes of an encoded observation beside its numbers
NUMBER_BYTES = 9
ANSWER_BYTES, COVARIANCE_BYTES = 1 << 20, 20  # of a command's answers; of each covariance in them
# Of a command that fits an entry: JSON is longer than its encoding; a value has 5 bytes or more.
SENT_BYTES, VALUE_BYTES = 8, 4
MAX_POINTS = 1000  # inputs or candidates in one call: as many as a page of the history has
MORE = 500  # fields and lists without a limit of their own, and those within strings
MANY_ERRORS = 1000  # listed in one answer; then only one for each bad item
MAX_PARAMETERS = 500  # of a query; the most that a call accepts is about 300
T = TypeVar("T")
Observed = Any  # an Observation, or the msgspec struct of the same form
_fast, _fast_item = MsgspecForm(Observation), MsgspecForm(Item)
_one = TypeAdapter(Observation).validate_json
_stream = TypeAdapter(StreamForm).validate_json


class Observations(NamedTuple):
    """The body of a post to one stream."""

    observations: list[wire.Observation]
    seq: int | None  # expected position of the first
    many: bool  # a list was posted, a list is answered


class BadItem(NamedTuple):
    """An invalid item of a many-stream request."""

    stream: str | None  # None: unknown
    error: InvalidField


class GoodItem(NamedTuple):
    """A valid item of a many-stream request."""

    stream: str
    key: str | None
    seq: int | None
    observation: wire.Observation


class ObservationParser:
    """Reads bodies under one process's settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits = JsonLimits(
            SENT_BYTES * append.MAX_ENTRY_BYTES,
            append.MAX_ENTRY_BYTES // VALUE_BYTES,
            MORE,
            MAX_POINTS + MORE,
        )

    def observations(self, body: bytes) -> Observations:
        """Read one observation or a list of them."""
        if not _is_list(body):
            form: Observed = _fast.one(body) or self.parsed(_one, body)
            if self._is_bad(form):
                raise self._bad(form, "body")
            return Observations([_observation(form)], form.seq, False)
        forms = _fast.many(body) if len(body) <= LIGHT_BYTES else None
        if forms is None:
            forms = self._parse_list(self._split(body))
        self._check_count(len(forms))
        for i, form in enumerate(forms):
            if self._is_bad(form):
                raise self._bad(form, f"body[{i}]")
        return Observations([_observation(form) for form in forms], _expected(forms), True)

    def items(self, body: bytes, lines: bool) -> list[GoodItem | BadItem]:
        """Read a JSON list or, with `lines`, one item per line.

        An invalid item is refused by itself; a body that is not JSON is refused as a whole.
        """
        parts: Sequence[bytes | msgspec.Raw]
        forms: Iterable[Observed]
        if lines:
            parts = lines_of_body = self._lines(body)
            forms, name = map(_fast_item.one, lines_of_body), "line {}"
        else:
            parts = raw_items = self._split(body)
            forms, name = _fast_item.each(raw_items), "body[{}]"
        parsed: list[GoodItem | BadItem] = []
        room = MANY_ERRORS
        for i, (part, form) in enumerate(zip(parts, forms, strict=True), start=int(lines)):
            if form is not None and not self._is_bad(form):
                parsed.append(_good_item(form))
                continue
            item = self._item(bytes(part), name.format(i), room)
            if isinstance(item, BadItem):
                room = max(1, room - len(item.error.errors))
            parsed.append(item)
        return parsed

    def settings(self, body: bytes) -> dict[str, Any]:
        """Read the named settings of a stream."""
        return self.named(self.parsed(_stream, body or b"{}"), "body")

    def parsed(
        self, parse: Callable[[bytes], T], body: bytes, loc: str = "body", fields: int = 0
    ) -> T:
        """Parse the JSON of one command; `fields`: additional ones that a setting allows.

        Raises MalformedBody and InvalidField.
        """
        check_command(body, self._limits._replace(fields=MORE + fields), loc)
        try:
            return parse(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0] if error.error_count() == 1 else None
            if first is not None and first["type"] == "json_invalid":
                raise malformed(first["msg"], loc) from None
            raise InvalidField(field_errors(error, loc)) from None

    def named(self, form: StreamForm, loc: str) -> dict[str, Any]:
        """Return the settings that a form sets; raise InvalidField for those over their limits."""
        limits, errors = self._settings, []
        for name, limit in (
            ("max_hypotheses", limits.max_hypotheses),
            ("history", limits.max_history),
        ):
            if getattr(form, name) > limit:
                errors.append(FieldError(f"{loc}.{name}", f"expected at most {limit}"))
        for name in ("location", "scale"):
            errors += self.too_long(getattr(form, name), f"{loc}.{name}")
        given = form.model_fields_set
        if "confirm_probability" in given and None not in (
            form.confirm_probability,
            form.confirm_after,
        ):
            detail = "not allowed together with confirm_after; give one of them, or null for one"
            errors.append(FieldError(f"{loc}.confirm_probability", detail))
        if errors:
            raise InvalidField(errors)
        return one_rule(form.model_dump(exclude_unset=True))

    def parts(self, observations: Sequence[wire.Observation]) -> int:
        """Return how many observations of this list go in one command.

        The same list always gives the same parts: a repeat is recognised part by part.
        """
        longest = max((_numbers(observation) for observation in observations), default=1)
        observation_bytes = OBSERVATION_OVERHEAD + NUMBER_BYTES * longest
        fit = (append.MAX_ENTRY_BYTES // 2) // observation_bytes
        widest = max(
            (len(observation.y) for observation in observations if isinstance(observation.y, list)),
            default=1,
        )
        answers_fit = ANSWER_BYTES // (COVARIANCE_BYTES * widest**2)
        return max(1, min(COMMAND_OBSERVATIONS, self._settings.max_pending, fit, answers_fit))

    def _split(self, body: bytes) -> list[msgspec.Raw]:
        parts = split(body, self._settings.max_observations)
        self._check_count(len(parts))
        return parts

    def _lines(self, body: bytes) -> list[bytes]:
        # At most half may be empty, so that no body is cut into millions.
        if body.count(b"\n") > 2 * self._settings.max_observations:
            self._check_count(body.count(b"\n"))
        lines = [line for line in body.split(b"\n") if line.strip()]
        self._check_count(len(lines))
        return lines

    def _parse_list(self, parts: Sequence[msgspec.Raw]) -> list[Observed]:
        """Parse the observations of a list, until there are more errors than an answer lists."""
        forms: list[Observed] = []
        errors: list[FieldError] = []
        for i, form in enumerate(_fast.each(parts)):
            try:
                forms.append(form or self.parsed(_one, bytes(parts[i]), f"body[{i}]"))
            except InvalidField as error:
                errors += error.errors
            if len(errors) > MAX_ERRORS:
                break
        if errors:
            raise InvalidField(errors)
        return forms

    def _item(self, part: bytes, loc: str, room: int) -> GoodItem | BadItem:
        """Parse one item that may be invalid, listing at most `room` errors."""
        check_command(part, self._limits, loc)
        form = value = _json(part, loc)
        try:
            form = Item.model_validate(_bounded(value, min(room, MAX_ERRORS) + 1))
            if self._is_bad(form):
                raise self._bad(form, loc)
        except ValidationError as error:
            return BadItem(_stream_of(value), InvalidField(field_errors(error, loc), room))
        except InvalidField as error:
            return BadItem(form.stream, error)
        return _good_item(form)

    def _is_bad(self, form: Observed) -> bool:
        limit, x, y = self._settings.max_dimension, form.x, form.y
        wide = (x is not None and len(x) > limit) or (isinstance(y, list) and len(y) > limit)
        return wide or (form.pending and _label(y) is not None)

    def _bad(self, form: Observed, loc: str) -> InvalidField:
        y = form.y if isinstance(form.y, list) else None
        errors = [*self.too_long(form.x, f"{loc}.x"), *self.too_long(y, f"{loc}.y")]
        if form.pending and _label(form.y) is not None:
            errors.append(FieldError(f"{loc}.pending", "expected no `y` with a pending label"))
        return InvalidField(errors)

    def _check_count(self, count: int) -> None:
        limit = self._settings.max_observations
        if count > limit:
            detail = f"expected at most {limit} observations per request, got {count}"
            raise InvalidField([FieldError("body", detail)])

    def too_long(self, numbers: Sequence[float | None] | None, loc: str) -> list[FieldError]:
        """Return the error of an input or label that is too long, if any."""
        limit = self._settings.max_dimension
        if numbers is None or len(numbers) <= limit:
            return []
        return [FieldError(loc, f"expected at most {limit} numbers, got {len(numbers)}")]


def list_digest(body: bytes, count: int, size: int) -> str:
    """Return the digest of a body of `count` observations, which is applied in parts of `size`.

    Another size gives another digest, or a repeat could find its parts at other places.
    """
    return digest(body if count <= EARLIER_OBSERVATIONS else b"%d:%b" % (size, body))


def digest(body: bytes) -> str:
    """Digest of the body, compared when an idempotency key is reused."""
    return blake2b(body, digest_size=16).hexdigest()


def query(form: type[T], parameters: Iterable[tuple[str, str]]) -> T:
    """Read query parameters into a form."""
    assert issubclass(form, Form)
    parameters = list(parameters)
    check_parameters(parameters)
    values: dict[str, Any] = {}
    for name, value in parameters:
        if name in form.repeatable:
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
    try:
        return form.model_validate(values)
    except ValidationError as error:
        raise InvalidField(field_errors(error, "query")) from None


def check_parameters(parameters: Sequence[tuple[str, str]]) -> None:
    """Raise InvalidField for a query with more parameters than any call accepts."""
    if len(parameters) > MAX_PARAMETERS:
        detail = f"expected at most {MAX_PARAMETERS} parameters, got {len(parameters)}"
        raise InvalidField([FieldError("query", detail)])


def _is_list(body: bytes) -> bool:
    return (body[:1] if body[:1].strip() else body.lstrip()[:1]) == b"["


def _json(text: bytes, loc: str) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        raise malformed(f"Invalid JSON: {error}", loc) from None


def _bounded(form: Any, limit: int) -> Any:
    """Return a JSON item with at most `limit` of its unknown fields."""
    if not isinstance(form, dict):
        return form
    known = [name for name in Item.model_fields if name in form]
    unknown = islice((name for name in form if name not in Item.model_fields), limit)
    return {name: _first(form[name], limit) for name in (*known, *unknown)}


def _first(value: Any, limit: int) -> Any:
    return dict(islice(value.items(), limit)) if isinstance(value, dict) else value


def _stream_of(form: Any) -> str | None:
    """Return the stream of an invalid item, whose later items are then not applied."""
    stream = form.get("stream") if isinstance(form, Mapping) else None
    return stream if isinstance(stream, str) else None


def _good_item(form: Observed) -> GoodItem:
    return GoodItem(form.stream, form.key, form.seq, _observation(form))


def _label(y: wire.Label) -> wire.Label:
    """Label of a form: one without any number is missing."""
    return None if isinstance(y, list) and y.count(None) == len(y) else y


def _observation(form: Observed) -> wire.Observation:
    return wire.Observation(
        _label(form.y),
        form.x,
        form.time,
        form.elapsed,
        None if form.supervision is None else form.supervision.changepoint,
        form.pending,
    )


def _expected(forms: Sequence[Observed]) -> int | None:
    """Return the expected position of a list's first observation; all `seq` must agree."""
    first: int | None = None
    for i, form in enumerate(forms):
        if form.seq is None:
            continue
        if first is None:
            first = form.seq - i
        if form.seq - i != first or first < 0:
            detail = "the positions of a list must be consecutive"
            raise InvalidField([FieldError(f"body[{i}].seq", detail)])
    return first


def _numbers(observation: wire.Observation) -> int:
    y = len(observation.y) if isinstance(observation.y, list) else 1
    return y + (len(observation.x) if observation.x is not None else 0)
