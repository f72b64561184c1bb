"""Bodies of observations, parsed once; errors name the field.

Limits that are settings are checked here, after the form itself. The cost of a body is bounded
before, in `service.api.parsing.bodies`. Of an invalid observation the first wrong field is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from math import nan
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from pydantic import ValidationError

from model_core.wording import did_you_mean
from service import wire
from service.api.parsing import bodies
from service.problems import MAX_ERRORS, FieldError, InvalidField
from service.schema.observations import (
    COMMAND_OBSERVATIONS,
    UNKNOWN,
    ItemForm,
    NumberForm,
    NumberItem,
    ObservationForm,
    Position,
    are_streams,
    read_value,
)
from service.schema.queries import ObserveQuery
from service.settings import Settings
from service.store import log as logs
from service.wire import rows

OBSERVATION_OVERHEAD = 80  # bytes of an encoded observation beside its numbers
NUMBER_BYTES = 9
ANSWER_BYTES = 1 << 20  # of a command's answers
COVARIANCE_BYTES = 20  # of each covariance in them
MAX_PARAMETERS = 500  # of a query; the most that a call accepts is about 300
LONGEST = 16_384  # bytes of an observation that is decoded without its values being counted
# Fields of an observation by the names that others give them.
MEANT = dict.fromkeys(("label", "reading", "v", "val", "value", "values"), "y")
MEANT |= dict.fromkeys(("at", "date", "datetime", "t", "timestamp", "ts"), "time")
MEANT |= dict.fromkeys(("features", "input", "inputs"), "x")
AT_ONCE = 64  # observations in one call of msgspec
LISTS = 8  # of streams, whose names are known to be right: most requests are for the same ones
SHORT_BYTES = 65_536  # of a list of valid items that is read in a few milliseconds, whatever it has
V = TypeVar("V")
F = TypeVar("F", bound=ObservationForm)
Decode = Callable[[bytes | msgspec.Raw], F]
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_observation = msgspec.json.Decoder(ObservationForm, dec_hook=read_value).decode
_observations = msgspec.json.Decoder(list[ObservationForm], dec_hook=read_value).decode
_numbers_alone = msgspec.json.Decoder(list[NumberForm], dec_hook=read_value).decode
_item = msgspec.json.Decoder(ItemForm, dec_hook=read_value).decode
_items = msgspec.json.Decoder(list[ItemForm], dec_hook=read_value).decode
_are_streams = lru_cache(LISTS)(are_streams)
_number_items = msgspec.json.Decoder(list[NumberItem], dec_hook=read_value).decode


class _StreamOf(msgspec.Struct):
    """The stream of an invalid item."""

    stream: Any = None


_stream_of = msgspec.json.Decoder(_StreamOf).decode


class Observations(NamedTuple):
    """The body of a post to one stream."""

    observations: wire.ObservationList
    seq: int | None  # expected position of the first
    many: bool  # a list was posted, a list is answered


class BadItem(NamedTuple):
    """An invalid item of a many-stream request."""

    stream: str | None  # whose later items are not applied; None: unknown
    error: InvalidField


class GoodItem(msgspec.Struct, frozen=True, gc=False):
    """A valid item of a many-stream request."""

    stream: str
    key: str | None
    seq: int | None
    observation: wire.Observation

    @property
    def digest(self) -> str | None:
        """What the item's key, if it has one, stands for."""
        return None if self.key is None else digest(wire.encode(self.observation))


@dataclass
class Items:
    """Items of a many-stream request, by columns.

    streams: of each; None: unknown. y: NaN: it is in `others`, as all that are more than numbers
    and their time, or invalid. x, times: of each.
    """

    streams: list[str | None] = field(default_factory=list)
    y: list[float | list[float]] = field(default_factory=list)
    x: list[list[float] | None] = field(default_factory=list)
    times: list[str | None] = field(default_factory=list)
    others: dict[int, GoodItem | BadItem] = field(default_factory=dict)

    def take_numbers(self, body: bytes, most: int) -> bool:
        """Take the items of a list, where all are numbers; False: one is not, and none is taken.

        most: numbers of a label, or an input.
        """
        forms = _valid(_number_items, body)
        if forms is None:
            return False
        streams = tuple([form.stream for form in forms])
        y = [form.y for form in forms]
        x = [form.x for form in forms]
        if not _are_streams(streams):
            return False
        if list in {*map(type, y), *map(type, x)}:
            longest = max(len(own) for own in chain(y, x) if isinstance(own, list))
            if longest > min(most, rows.WIDEST):
                return False
        self.streams += streams
        self.y += y
        self.x += x
        self.times += [None if form.time is None else str(form.time) for form in forms]
        return True

    def take(self, item: GoodItem | BadItem) -> None:
        """Take any item."""
        self.streams.append(item.stream)
        if isinstance(item, BadItem):
            self.others[len(self.y)] = item
            self.y.append(nan)
            self.x.append(None)
            self.times.append(None)
            return
        seen = item.observation
        self.times.append(seen.time)
        if item.key is None and item.seq is None and rows.is_plain(seen):
            self.y.append(cast(float | list[float], seen.y))
            self.x.append(seen.x)
        else:
            self.others[len(self.y)] = item
            self.y.append(nan)
            self.x.append(None)

    def observation(self, place: int) -> wire.Observation:
        """Observation of a valid item."""
        other = self.others.get(place)
        if other is None:
            y = cast(float | list[float | None], self.y[place])
            return wire.Observation(y, self.x[place], self.times[place])
        assert isinstance(other, GoodItem)
        return other.observation


class ObservationParser:
    """Reads bodies under one process's settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits = bodies.command_limits()

    def observations(self, body: bytes) -> Observations:
        """Read one observation or a list of them."""
        if body.lstrip()[:1] == b"[":
            return self._list(body)
        form = _valid(_observation, body) if len(body) <= LONGEST else None
        form = form or self._decoded(_observation, body, "body")
        seq = None if form.seq is None else int(form.seq)
        return Observations([self._checked(form, "body")], seq, False)

    def valid_list(self, body: bytes) -> Observations | None:
        """Read a short list of observations that are all valid; None of any other body.

        In the thread that answers with them: from another they come at twice the cost.
        """
        if len(body) > SHORT_BYTES or body[:1] != b"[":
            return None
        try:
            numbers = _valid(_numbers_alone, body)
            if numbers is not None:
                self._check_count(len(numbers))
                return Observations(_number_list(numbers), None, True)
            forms = _valid(_observations, body)
            return None if forms is None else self._listed(forms)
        except InvalidField:
            return None

    def _list(self, body: bytes) -> Observations:
        parts = self._split(body)
        batches = ((at, parts[at : at + AT_ONCE]) for at in range(0, len(parts), AT_ONCE))
        return self._listed(
            chain.from_iterable(
                self._decoded_batch(_observation, _observations, batch, "body[{}]", first)
                for first, batch in batches
            )
        )

    def _listed(self, forms: Iterable[ObservationForm | InvalidField]) -> Observations:
        observations: list[wire.Observation] = []
        positions: list[Position | None] = []
        errors: list[FieldError] = []
        for i, form in enumerate(forms):
            try:
                if isinstance(form, InvalidField):
                    raise form
                observations.append(self._checked(form, "body[{}]", i))
                positions.append(form.seq)
            except InvalidField as error:
                errors += error.errors
                if len(errors) > MAX_ERRORS:
                    break
        if errors:
            raise InvalidField(errors)
        self._check_count(len(observations))
        return Observations(observations, _expected(positions), True)

    def valid_items(self, body: bytes) -> Items | None:
        """Read a short JSON list of items that are all valid; None of any other body.

        In the thread that answers with them: from another they come at twice the cost.
        """
        if len(body) > SHORT_BYTES:
            return None
        items = Items()
        if not items.take_numbers(body, self._settings.max_dimension):
            try:
                for i, form in enumerate(_valid(_items, body) or ()):
                    items.take(self._good(form, "body[{}]", i))
            except InvalidField:
                return None
        return items if 0 < len(items.y) <= self._settings.max_observations else None

    def items(self, body: bytes, lines: bool) -> Items:
        """Read a JSON list or, with `lines`, one item per line.

        An invalid item is refused by itself; a body that is not JSON is refused as a whole.
        """
        items = Items()
        if lines:
            found = self._lines(body)
            forms = self._one_by_one(_item, found, "line {}", 1)
            self._take_forms(items, found, forms, "line {}", 1)
            return items
        parts = self._split(body)
        for first in range(0, len(parts), AT_ONCE):
            batch = parts[first : first + AT_ONCE]
            body_of = b"[" + b",".join(batch) + b"]"
            if not items.take_numbers(body_of, self._settings.max_dimension):
                batch_forms = self._decoded_batch(_item, _items, batch, "body[{}]", first)
                self._take_forms(items, batch, batch_forms, "body[{}]", first)
        return items

    def _take_forms(
        self,
        items: Items,
        parts: Sequence[bytes | msgspec.Raw],
        forms: Iterable[ItemForm | InvalidField],
        name: str,
        first: int,
    ) -> None:
        """Add items to others; `name` and the number of the `first` name one that is invalid."""
        for i, (part, form) in enumerate(zip(parts, forms, strict=True), first):
            try:
                if isinstance(form, InvalidField):
                    raise form
                items.take(self._good(form, name, i))
            except InvalidField as error:
                try:
                    stream = _stream_of(bodies.finite_json(bytes(part))).stream
                except msgspec.ValidationError:  # no object
                    stream = None
                items.take(BadItem(stream if isinstance(stream, str) else None, error))

    def _good(self, form: ItemForm, name: str, i: int) -> GoodItem:
        """Return an item that keeps all rules; raises InvalidField."""
        observation = self._checked(form, name, i)
        seq = None if form.seq is None else int(form.seq)
        key = None if form.key is None else str(form.key)
        return GoodItem(str(form.stream), key, seq, observation)

    def parts(self, observations: wire.ObservationList) -> int:
        """Return how many observations of this list go in one command.

        The same list always gives the same parts: a repeat is recognised part by part.
        """
        numbers = isinstance(observations, wire.NumberList)
        each = () if numbers else observations
        vectors = [seen for seen in each if seen.x is not None or type(seen.y) is list]
        longest = max(map(_numbers, vectors), default=1)
        observation_bytes = OBSERVATION_OVERHEAD + NUMBER_BYTES * longest
        fit = (logs.MAX_ENTRY_BYTES // 2) // observation_bytes
        widest = max((len(seen.y) for seen in vectors if isinstance(seen.y, list)), default=1)
        answers_fit = ANSWER_BYTES // (COVARIANCE_BYTES * widest**2)
        return max(1, min(COMMAND_OBSERVATIONS, self._settings.max_pending, fit, answers_fit))

    def _split(self, body: bytes) -> list[msgspec.Raw]:
        parts = bodies.split(body, self._settings.max_observations)
        self._check_count(len(parts))
        return parts

    def _lines(self, body: bytes) -> list[bytes]:
        # At most half may be empty, so that no body is cut into millions.
        if body.count(b"\n") > 2 * self._settings.max_observations:
            self._check_count(body.count(b"\n"))
        lines = [line for line in body.split(b"\n") if line.strip()]
        self._check_count(len(lines))
        return lines

    def _decoded_batch(
        self,
        one: Decode[F],
        several: Callable[[bytes], list[F]],
        batch: Sequence[Any],
        name: str,
        first: int,
    ) -> Iterable[F | InvalidField]:
        """Decode objects at once, as it takes half the time, where all of them are valid."""
        forms: Iterable[F | InvalidField] | None = None
        if max(map(len, batch)) <= LONGEST:
            forms = _valid(several, b"[" + b",".join(batch) + b"]")
        return self._one_by_one(one, batch, name, first) if forms is None else forms

    def _one_by_one(
        self, decode: Decode[F], parts: Sequence[Any], name: str, first: int
    ) -> Iterator[F | InvalidField]:
        for i, part in enumerate(parts, first):
            form = _valid(decode, part) if len(part) <= LONGEST else None
            try:
                yield form or self._decoded(decode, bytes(part), name.format(i))
            except InvalidField as error:
                yield error

    def _decoded(self, decode: Decode[F], body: bytes, loc: str) -> F:
        """Decode one object, or say what is wrong. Raises MalformedBody and InvalidField."""
        if len(body) > LONGEST:
            bodies.check_command(body, self._limits, loc)
        try:
            return decode(body)
        except msgspec.ValidationError as error:
            bodies.check_json(bodies.finite_json(body), loc)
            form = ItemForm if decode is _item else ObservationForm
            names = form.__struct_fields__
            raise InvalidField([_meant(bodies.field_error(error, loc), loc, names)]) from None
        except NOT_JSON as error:
            finite = bodies.finite_json(body)
            if finite == body:
                raise bodies.malformed(f"Invalid JSON: {error}", loc) from None
        return self._decoded(decode, finite, loc)

    def _checked(self, form: ObservationForm, name: str, i: int = 0) -> wire.Observation:
        """Return an observation that keeps all rules; `name` and `i` name it where it does not."""
        limit = self._settings.max_dimension
        label = form.y
        x = form.x
        supervision = form.supervision
        wide = x is not None and len(x) > limit
        if isinstance(label, list):
            wide = wide or len(label) > limit
            if label.count(None) == len(label):
                label = None  # one without any number is missing
        if wide or (form.pending and label is not None):
            raise self._misfit(form, name.format(i))
        return wire.Observation(
            label,
            x,
            None if form.time is None else str(form.time),
            form.elapsed,
            None if supervision is None else supervision.changepoint,
            form.pending,
        )

    def _misfit(self, form: ObservationForm, loc: str) -> InvalidField:
        y = form.y if isinstance(form.y, list) else None
        limit = self._settings.max_dimension
        errors = [
            *bodies.too_long(form.x, limit, f"{loc}.x"),
            *bodies.too_long(y, limit, f"{loc}.y"),
        ]
        if form.pending and not (form.y is None or (y is not None and y.count(None) == len(y))):
            errors.append(FieldError(f"{loc}.pending", "expected no `y` with a pending label"))
        return InvalidField(errors)

    def _check_count(self, count: int) -> None:
        limit = self._settings.max_observations
        if count > limit:
            detail = f"expected at most {limit} observations per request, got {count}"
            raise bodies.misfit(detail)


def list_digest(body: bytes, size: int) -> str:
    """Return the digest of a list that is applied in parts of `size`.

    Another size gives another digest, or a repeat could find its parts at other places.
    """
    return digest(b"%d:%b" % (size, body))


def digest(body: bytes) -> str:
    """Digest of the body, compared when an idempotency key is reused."""
    return blake2b(body, digest_size=16).hexdigest()


def observe_query(parameters: Sequence[tuple[str, str]]) -> ObserveQuery:
    """Read the query of a post of observations."""
    check_parameters(parameters)
    values: dict[str, Any] = dict(parameters)
    levels = [value for name, value in parameters if name == "quantiles"]
    if levels:
        values["quantiles"] = levels
    try:
        return ObserveQuery.model_validate(values)
    except ValidationError as error:
        raise InvalidField(bodies.field_errors(error.errors(include_url=False), "query")) from None


def check_parameters(parameters: Sequence[tuple[str, str]]) -> None:
    """Raise InvalidField for a query with more parameters than any call accepts."""
    if len(parameters) > MAX_PARAMETERS:
        detail = f"expected at most {MAX_PARAMETERS} parameters, got {len(parameters)}"
        raise InvalidField.at("query", detail)


def _expected(positions: Sequence[int | None]) -> int | None:
    """Return the expected position of a list's first observation; all that are given must agree."""
    first: int | None = None
    for i, seq in enumerate(positions):
        if seq is None:
            continue
        if first is None:
            first = seq - i
        if seq - i != first or first < 0:
            detail = "the positions of a list must be consecutive"
            raise InvalidField.at(f"body[{i}].seq", detail)
    return None if first is None else int(first)


def _valid(decode: Callable[[Any], V], body: bytes | msgspec.Raw) -> V | None:
    """Decode a body; None where `_decoded` has to say what is wrong."""
    try:
        return decode(body)
    except NOT_JSON:
        return None


def _meant(error: FieldError, loc: str, names: Sequence[str]) -> FieldError:
    """Return the error of a field; of an unknown one with the name that was probably meant.

    Of what is no object, such as a bare number, with an example of one.
    """
    if error.loc == loc and error.detail.startswith("expected object"):
        example = '{"stream": "pump-7", "y": 1.5}' if "stream" in names else '{"y": 1.5}'
        return FieldError(loc, f"{error.detail}; post objects such as {example}")
    name = error.loc.removeprefix(f"{loc}.").lower()
    if error.detail != UNKNOWN or "." in name:
        return error
    name = MEANT.get(name, name)
    return FieldError(error.loc, f"{UNKNOWN}{did_you_mean(name, names)}")


def _number_list(forms: Sequence[NumberForm]) -> wire.NumberList:
    times = [None if form.time is None else str(form.time) for form in forms]
    return wire.NumberList.of([form.y for form in forms], times)


def _numbers(observation: wire.Observation) -> int:
    y = len(observation.y) if isinstance(observation.y, list) else 1
    return y + (len(observation.x) if observation.x is not None else 0)
