"""JSON bodies: bounded before they are parsed; and what is wrong with them, field by field.

A body of 8 MiB, or the 16 KB it is packed into, can hold millions of values, and refusing each by
name would take a minute. So any work that costs more than one pass over the bytes is bounded
before it starts, by counting bytes that every value needs. The work on a body that is not light is
done in a thread, one body at a time; as calls into C keep the interpreter to themselves, a list is
cut into its parts first, which are read one by one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from pydantic_core import from_json

from model_core import wording
from model_core.stream_settings import one_rule
from service import wire
from service.problems import (
    MAX_ERRORS,
    FieldError,
    InvalidField,
    MalformedBody,
    UnsupportedMediaType,
)
from service.schema import commands as forms
from service.schema.observations import STREAM_ID_RULE, UNKNOWN, StreamForm
from service.settings import Settings
from service.store import log as logs

JSON = "application/json"
BYTES = "application/octet-stream"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
CSV = "text/csv"
MAX_BRACES = 20  # for each of the most parts of a list, which has 2
MAX_QUOTES = 40  # likewise; it has 26
FEW_VALUES = 250_000  # cut into parts in some 15 ms, whatever they are
# Of a command that fits an entry: JSON is longer than its encoding; a value has 5 bytes or more.
SENT_BYTES = 8
VALUE_BYTES = 4
MAX_POINTS = 1000  # inputs or candidates in one call: as many as a page of the history has
MAX_SAMPLES = 1000  # draws at an input: a probability has a standard error of 0.016 at most
MAX_DRAWS = 100_000  # samples times inputs in one call
MORE = 500  # fields and lists without a limit of their own, and those within strings
# Types of errors of the branches of a union that do not apply.
OTHER_BRANCH = ("list_type", "model_type", "model_attributes_type")
JSON_TYPES = {"float": "number", "int": "integer", "str": "string", "bool": "boolean"}
_strings = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|NaN|Infinity', re.DOTALL)
_msgspec_text = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL).fullmatch
_field = re.compile(r"Object (?:contains (unknown)|missing required) field `(.*)`", re.DOTALL).match
_label = re.compile(r".*\.y(\[\d+\])?", re.DOTALL).fullmatch
_quoted = re.compile(r"`([^`]*)`")
_branch = re.compile(
    r"float|constrained-.*|list\[.*|function-.*|nullable.*|DurationsForm"
).fullmatch


class _Object(msgspec.Struct, gc=False):
    """Any object."""


_skip = msgspec.json.Decoder(msgspec.Raw).decode
_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_objects = msgspec.json.Decoder(list[_Object]).decode


class JsonLimits(NamedTuple):
    """Limits on the JSON of one command; each is counted by a byte that it needs."""

    size: int
    values: int
    fields: int
    lists: int


def command_limits(hypotheses: int = 0) -> JsonLimits:
    """Return the limits of a command that fits an entry; a belief has two fields a hypothesis."""
    return JsonLimits(
        SENT_BYTES * logs.MAX_ENTRY_BYTES,
        logs.MAX_ENTRY_BYTES // VALUE_BYTES,
        MORE + 2 * hypotheses,
        MAX_POINTS + MORE,
    )


def check_command(body: bytes, limits: JsonLimits, loc: str) -> None:
    """Raise MalformedBody or InvalidField for JSON too large for a command."""
    counts = JsonLimits(len(body), body.count(b","), body.count(b":"), body.count(b"["))
    for name, count, limit in zip(JsonLimits._fields, counts, limits, strict=True):
        if count <= limit:  # including those in strings, which the limits allow for
            continue
        check_json(body, loc)
        unit = "bytes" if name == "size" else name
        raise InvalidField.at(loc, f"expected at most {limit} {unit}, got {count}")


def split(body: bytes, limit: int) -> list[msgspec.Raw]:
    """Cut a JSON list of at most `limit` objects into its unparsed parts."""
    braces = body.count(b"{")
    if braces > MAX_BRACES * limit:
        detail = f"expected at most {limit} observations per request, got about {braces}"
        raise misfit(detail)
    try:
        return _cut(body)
    except msgspec.ValidationError as error:
        check_json(body, "body")
        raise InvalidField([field_error(error, "body")]) from None
    except (msgspec.DecodeError, RecursionError) as error:
        finite = finite_json(body, limit)
        if finite == body:
            raise malformed(f"Invalid JSON: {error}", "body") from None
    return split(finite, limit)


def misfit(detail: str) -> InvalidField:
    """Return the error of a body that is not what is expected of it as a whole."""
    return InvalidField.at("body", detail)


def malformed(detail: str, loc: str) -> MalformedBody:
    """Return the error of a body, or a part of one, that is not JSON."""
    return MalformedBody(f"{loc}: {detail}", errors=[{"loc": loc, "detail": detail}])


def wrong_media(expected: str, got: str, advice: str = "") -> UnsupportedMediaType:
    """Return the error of a body of another type."""
    return UnsupportedMediaType(f"Content-Type: expected {expected}, got {got[:200]!r}{advice}")


def check_json(body: bytes, loc: str) -> None:
    """Raise MalformedBody if the body is not JSON, whatever other errors it has."""
    try:
        body.decode()
        _skip(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"Invalid JSON: {error}", loc) from None


def _cut(body: bytes) -> list[msgspec.Raw]:
    if body.count(b",") > FEW_VALUES:  # of numbers in objects, of which there are not too many?
        _objects(body)
    return _parts(body)


def finite_json(body: bytes, limit: int = 1) -> bytes:
    """Replace NaN, which is not JSON, by a number that is refused by name, as not finite."""
    quotes = body.count(b'"') + body.count(b"\\")
    if quotes > MAX_QUOTES * limit or not (b"NaN" in body or b"Infinity" in body):
        return body
    return _strings.sub(lambda match: match[0] if match[0][:1] == b'"' else b"1e999", body)


def too_long(numbers: Sequence[float | None] | None, limit: int, loc: str) -> list[FieldError]:
    """Return the error of an input or label that is too long, if any."""
    if numbers is None or len(numbers) <= limit:
        return []
    return [FieldError(loc, f"expected at most {limit} numbers, got {len(numbers)}")]


def field_errors(errors: Sequence[Any], root: str = "") -> list[FieldError]:
    """Return the field errors, without those of union branches that do not apply.

    root: place of the whole; empty where it comes first in the place of each error, as in those of
    FastAPI. At most one more than a problem document lists, so that it can mention further ones.
    """
    named: list[FieldError] = []
    for item in errors:
        if len(named) > MAX_ERRORS:
            break
        loc = item["loc"]
        kind = item["type"]
        nested = isinstance(item.get("input"), list | dict)
        in_union = bool(loc) and isinstance(loc[-1], str) and _branch(loc[-1]) is not None
        if in_union and (kind in OTHER_BRANCH or (kind == "float_type" and nested)):
            continue
        if kind == "string_pattern_mismatch" and loc[-1] == "stream":
            detail = f"expected {STREAM_ID_RULE}"
        else:
            detail = wording.described(item)
        named.append(FieldError(_loc(root, loc), detail))
    if not named:  # no branch applies, such as an object for a number or a list
        named = [FieldError(_loc(root, errors[0]["loc"]), "wrong type")]
    return named


def _loc(root: str, loc: Iterable[int | str]) -> str:
    text = root
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not _branch(part):
            text += f".{part[:100]}"
    return text.removeprefix(".")


def field_error(error: msgspec.ValidationError, root: str) -> FieldError:
    """Return the field error of msgspec, which stops at the first one."""
    match = _msgspec_text(str(error))
    assert match is not None
    text = match[1]
    loc = root + (match[2] or "")
    field = _field(text)
    if field is not None:
        detail = UNKNOWN if field[1] else "required"
        return FieldError(f"{loc}.{field[2][:100]}", detail)
    if text == "Number out of range":
        missing = ", or null where the label is missing" if _label(loc) else ""
        return FieldError(loc, f"expected a finite number{missing}")
    plain = _quoted.sub(
        lambda types: " or ".join(JSON_TYPES.get(name, name) for name in types[1].split(" | ")),
        text,
    )
    return FieldError(loc, plain[:1].lower() + plain[1:])


# --- commands other than observations -------------------------------------------------------------


class CommandParser:
    """Checks the forms of stream commands by the limits of one process's settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits = command_limits(settings.max_hypotheses)

    def json(self, body: bytes) -> Any:
        """Return the value of the JSON of one command. Raises MalformedBody and InvalidField."""
        check_command(body, self._limits, "body")
        try:
            return from_json(body)
        except ValueError as error:
            raise malformed(f"Invalid JSON: {error}", "body") from None

    def settings(self, form: StreamForm, loc: str) -> dict[str, Any]:
        """Return the settings that a form sets; raise InvalidField for those over their limits."""
        errors = []
        for name, limit in (
            ("max_hypotheses", self._settings.max_hypotheses),
            ("history", self._settings.max_history),
        ):
            value = getattr(form, name)
            if value > limit:
                errors.append(FieldError(f"{loc}.{name}", f"expected at most {limit}, got {value}"))
        for name in ("location", "scale"):
            errors += too_long(getattr(form, name), self._settings.max_dimension, f"{loc}.{name}")
        if "false_alarm_every" in form.model_fields_set and None not in (
            form.false_alarm_every,
            form.confirm_after,
        ):
            detail = "not allowed together with confirm_after; give one of them, or null for one"
            errors.append(FieldError(f"{loc}.false_alarm_every", detail))
        if errors:
            raise InvalidField(errors)
        return one_rule(form.model_dump(exclude_unset=True))

    def prediction(self, stream: str, form: forms.PredictionForm) -> wire.Predict:
        """Return a prediction request."""
        points = form.x or []
        errors = self._inputs(points, "x", MAX_POINTS)
        if form.horizon is not None:
            others = [name for name in ("x", "components") if getattr(form, name)]
            wrong = [f"not allowed together with {name}" for name in others]
            errors += [FieldError("body.horizon", detail) for detail in wrong]
        errors += self._draws(form.samples, max(len(points), form.horizon or 1))
        _raise(errors)
        given = form.model_dump() | {"seed": _seed(form.seed), "horizon": form.horizon or 0}
        return wire.Predict(stream, **given)

    def action(self, stream: str, form: forms.ActionForm) -> wire.Act:
        """Return an action request."""
        errors = self._inputs(form.candidates, "candidates", MAX_POINTS)
        count = {"thompson": 1, "optimistic": form.samples, "greedy": 0}[form.strategy]
        errors += self._draws(count, len(form.candidates))
        _raise(errors)
        seed = _seed(form.seed)
        return wire.Act(stream, form.candidates, form.strategy, max(count, 1), seed, form.elapsed)

    def belief(self, stream: str, form: forms.BeliefForm) -> wire.SetBelief:
        """Return an override of the run-length belief."""
        if form.belief is None and form.changepoint is None:
            _raise([FieldError("body", "expected `belief`, `changepoint` or both")])
        most = self._settings.max_hypotheses
        if form.belief is not None and len(form.belief) > most:
            detail = f"expected at most {most} run lengths, got {len(form.belief)}"
            _raise([FieldError("body.belief", detail)])
        pairs = None
        if form.belief is not None:
            pairs = [(hypothesis.run_length, hypothesis.probability) for hypothesis in form.belief]
        return wire.SetBelief(stream, pairs, form.changepoint, form.seq)

    def exclusion(self, stream: str, form: forms.ExclusionForm) -> wire.Exclude:
        """Return a request to exclude observations from learning."""
        if (form.event is None) == (form.start is None):
            _raise([FieldError("body", "expected `event` or `start`, one of them")])
        return wire.Exclude(stream, **form.model_dump())

    def what_if(self, stream: str, form: forms.WhatIfForm) -> wire.WhatIf:
        """Return a what-if request."""
        settings = self.settings(form.settings, "body.settings")
        return wire.WhatIf(stream, settings, form.series, form.beliefs)

    def _inputs(self, inputs: list[list[float]], field: str, limit: int) -> list[FieldError]:
        errors = []
        if len(inputs) > limit:
            errors.append(FieldError(f"body.{field}", f"expected at most {limit} inputs"))
        for i, x in enumerate(inputs[:limit]):
            errors += too_long(x, self._settings.max_dimension, f"body.{field}[{i}]")
        return errors

    def _draws(self, samples: int, points: int) -> list[FieldError]:
        limit = min(MAX_SAMPLES, MAX_DRAWS // max(1, points))
        if samples <= limit:
            return []
        detail = f"expected at most {limit} with this many inputs, got {samples}"
        return [FieldError("body.samples", detail)]


def _seed(seed: int | None) -> int:
    return secrets.randbits(62) if seed is None else seed


def _raise(errors: list[FieldError]) -> None:
    if errors:
        raise InvalidField(errors)
