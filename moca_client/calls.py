"""Calls of the REST interface: a request, the reader of its answer, and whether a retry is safe.

In bodies NaN of a label is null, a missing one.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from functools import cache
from numbers import Real
from typing import Any, Literal, Required, TypedDict, TypeVar, Unpack, cast
from urllib.parse import quote

import httpx
import msgspec

from moca_client.errors import (
    EarlierItemFailed,
    InvalidRequest,
    OutcomeUnknown,
    Problem,
    Temporary,
    Unavailable,
    UnexpectedAnswer,
    outcome_unknown,
    problem_of,
)
from moca_client.responses import Answer, ChangesPage, IncidentsPage
from moca_client.retry import KEY_MEMORY_S, Backoff, Call, Calls, Pause, Repeat, Request
from moca_client.times import rfc3339

JSON = {"Content-Type": "application/json"}
Detail = Literal["summary", "full"]  # of answers to observations
Match = str | Sequence[str]  # selectors of streams by tags: of any of them
When = str | datetime  # an RFC 3339 time, an age such as "24h", or a datetime with a time zone
Result = Answer | Problem
# A whole observation, or its label alone; None or NaN: the label is missing.
Observed = Mapping[str, Any] | float | None
_encode = msgspec.json.Encoder(enc_hook=lambda value: _plain(value)).encode
T = TypeVar("T")


# --- options of calls; without one the service's default holds --------------------------------


class AnswerOptions(TypedDict, total=False):
    """Optional parts of the answers to observations, and levels of quantiles."""

    detail: Detail
    belief: bool
    components: bool
    quantiles: Sequence[float] | None


class PredictionOptions(TypedDict, total=False):
    """What to predict: parts of the distribution, draws of it, and how far ahead."""

    quantiles: Sequence[float] | None
    samples: int
    components: bool
    elapsed: float | None
    seed: int | None
    horizon: int | None


class ActionOptions(TypedDict, total=False):
    """How to choose among inputs."""

    strategy: Literal["thompson", "optimistic", "greedy"]
    samples: int | None
    elapsed: float | None
    seed: int | None


class OverviewQuery(TypedDict, total=False):
    """Which streams to show at a glance, in which order."""

    contains: str
    sort: str
    limit: int
    labels: int
    cursor: str | None


class Selection(TypedDict, total=False):
    """Which streams, and which kinds of their events."""

    kinds: Sequence[str]
    model: str | None
    prefix: str | None
    match: Match


class FoundQuery(Selection, total=False):
    """What changes and incidents are chosen by alike."""

    since: When | None
    until: When | None
    contains: str | None
    min_size: float | None
    sort: str
    limit: int


class ChangesQuery(FoundQuery, total=False):
    """Which changes of all streams to list, in which order."""

    states: Sequence[str]
    min_evidence: float | None
    around: int


class IncidentsQuery(FoundQuery, total=False):
    """Which incidents to list, in which order."""

    min_streams: int


class EventsQuery(Selection, total=False):
    """Which events to send."""

    stream: str | None
    states: Sequence[str]
    incidents: bool


class WindowFields(TypedDict, total=False):
    """A window of the calendar."""

    start: Required[str]
    end: Required[str]
    time_zone: str
    repeat: str
    match: Sequence[str]
    note: str


# --- bodies ----------------------------------------------------------------------------------


def new_key() -> str:
    """Return a new idempotency key."""
    return secrets.token_hex(16)


def encode(body: Any) -> bytes:
    """Return JSON, with null for NaN; InvalidRequest for values that it cannot represent."""
    try:
        check_finite(body, "body")
        return _encode(body)
    except InvalidRequest:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"cannot be encoded as JSON: {error}") from error


def observation(value: Observed) -> dict[str, Any]:
    """Return an observation as an object; a plain number, or None, is its label."""
    if isinstance(value, Mapping):
        return dict(value)
    return {"y": value}


def observations(values: Iterable[Observed]) -> list[dict[str, Any]]:
    """Return a list of observations as objects."""
    if isinstance(values, str | bytes):
        raise InvalidRequest(f"expected numbers or objects of observations, got {values[:40]!r}")
    if hasattr(values, "columns"):
        raise InvalidRequest("expected observations, got a frame: use `observe_frame`")
    rows = values.tolist() if hasattr(values, "tolist") else values
    index = getattr(values, "index", None)
    if not is_time_index(index):
        return [observation(row) for row in rows]
    pairs = zip(rows, times_of(index), strict=True)
    return [{**observation(row), **({} if time is None else {"time": time})} for row, time in pairs]


def is_time_index(index: Any) -> bool:
    """Whether an index of a frame or a column has times: pandas' own, which is not imported."""
    return type(index).__name__ == "DatetimeIndex"


def times_of(index: Any) -> list[str | None]:
    """Return the times of such an index as the service takes them; None: missing."""
    missing = index.isna().tolist()
    return [None if no else rfc3339(time) for time, no in zip(index, missing, strict=True)]


def items(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return items of many streams, each with a key; one without a stream is refused."""
    keyed = []
    if isinstance(rows, Mapping):
        raise InvalidRequest("expected a list of items, got one object")
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidRequest(f"items[{i}]: expected an object with a `stream`, got {row!r:.40}")
        if not isinstance(row.get("stream"), str):
            raise InvalidRequest(f"items[{i}]: expected a `stream`, got {row.get('stream')!r}")
        keyed.append({**row, "key": row.get("key") or new_key()})
    return keyed


def check_finite(value: Any, where: str, field: str = "") -> None:
    """Refuse infinities, and missing values but in labels, where JSON's null is a missing one.

    field: name of the innermost object's member that the value is in. NaN and pandas' NA and NaT
    are missing everywhere; None, also of a masked array, is no input and elsewhere a value.
    """
    if isinstance(value, float) or value is None or _is_missing(value):
        _check_number(value, where, field)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            if part is not None:  # x: None is an observation without inputs
                check_finite(part, f"{where}.{name}", name)
    elif isinstance(value, Sequence | Set) and not isinstance(value, str | bytes):
        for i, part in enumerate(value):
            check_finite(part, f"{where}[{i}]", field)
    elif hasattr(value, "tolist"):
        check_finite(_plain(value), where, field)


def _check_number(value: Any, where: str, field: str) -> None:
    if isinstance(value, float) and not math.isnan(value):
        allowed = math.isfinite(value)
    else:
        allowed = field == "y" or (value is None and field != "x")
    if not allowed:
        hint = "NaN or None is a missing label" if field == "y" else "only labels may be missing"
        raise InvalidRequest(f"{where}: expected a finite number, got {value}; {hint}")


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy and its like, as Python has them; None for pandas' NA."""
    if _is_missing(value):
        return None
    if isinstance(value, datetime):  # pandas' Timestamp
        return value.isoformat()
    if hasattr(value, "tolist"):
        plain = value.tolist()
        if type(plain) is not type(value):
            return plain
        if isinstance(value, Real):  # numpy's longdouble
            return float(value)
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


def _is_missing(value: Any) -> bool:
    """Whether a value is pandas' NA or NaT, which are not imported for that."""
    return type(value).__name__ in ("NAType", "NaTType")


# --- requests ---------------------------------------------------------------------------------


def path_of(stream: str, suffix: str = "") -> str:
    """Return the path of a stream, or of a resource below it."""
    return f"{named_path('streams', stream, 'a stream id')}{suffix}"


def named_path(kind: str, name: str, expected: str) -> str:
    """Return the path of a named resource; raises InvalidRequest for a name that no path can have.

    In a path `.` and `..` would stand for other resources.
    """
    if not isinstance(name, str) or name in ("", ".", ".."):
        raise InvalidRequest(f"expected {expected}, got {name!r}")
    return f"/v1/{kind}/{quote(name, safe='')}"


def query_params(query: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return query parameters; those that are None are left out, lists repeated.

    Raises InvalidRequest for a time without a zone, and for a text in place of a list.
    """
    params: list[tuple[str, str]] = []
    for name, value in query.items():
        if name in ("kinds", "states"):
            if isinstance(value, str):
                raise InvalidRequest(f"expected a list of {name}, got a string")
            name = name.removesuffix("s")  # as the service names what may be repeated
        items = value if isinstance(value, list | tuple) else [value]
        params += [(name, _text(name, item)) for item in items if item is not None]
    return params


def _text(name: str, value: Any) -> str:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidRequest(f"{name}: expected a datetime with a time zone, got {value}")
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)


def get(path: str, kind: type[T], query: Mapping[str, Any] | None = None) -> Call[T]:
    """Return a call that reads."""
    return Call(Request("GET", path, query_params(query or {})), reader(kind))


def ask(path: str, kind: type[T], body: Mapping[str, Any]) -> Call[T]:
    """Return a POST that changes nothing."""
    return Call(Request("POST", path, [], JSON, encode(body)), reader(kind))


def change(
    method: str,
    path: str,
    kind: type[T],
    body: Any,
    repeat: Repeat = Repeat.HARMLESS,
    key: str | None = None,
    query: Mapping[str, Any] | None = None,
) -> Call[T]:
    """Return a call that changes something."""
    headers = {"Idempotency-Key": key or new_key(), **JSON}
    request = Request(method, path, query_params(query or {}), headers, encode(body))
    return Call(request, reader(kind), repeat, changes=True)


def delete(path: str) -> Call[None]:
    """Return a call that removes something; a repeat that finds nothing has done it."""
    request = Request("DELETE", path, [], {"Idempotency-Key": new_key()})
    return Call(request, lambda _: None, changes=True, gone_is_done=True)


def stated(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


# --- answers ----------------------------------------------------------------------------------


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def reader(kind: type[T]) -> Callable[[httpx.Response], T]:
    """Return a reader of JSON answers."""
    decode: Callable[[bytes], T] = _decoder(cast(Any, kind)).decode  # a type is hashable

    def read(response: httpx.Response) -> T:
        try:
            return decode(response.content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _unexpected(response, str(error)) from error

    return read


def _unexpected(response: httpx.Response, why: str) -> UnexpectedAnswer:
    request = response.request
    return UnexpectedAnswer(f"{request.method} {request.url.path}: unexpected answer: {why}")


def following(call: Call[T], page: Any) -> Call[T] | None:
    """Return the call of the page after one, by its `cursor` or `next`; None after the last."""
    name = "start" if hasattr(page, "next") else "cursor"
    place = page.next if name == "start" else page.cursor
    if place is None:
        return None
    others = [param for param in call.request.params if param[0] != name]
    request = call.request._replace(params=[*others, (name, str(place))])
    return call._replace(request=request)


# --- calls that several modules make ------------------------------------------------------------


def observe(
    stream: str,
    body: Any,
    kind: type[T],
    options: Mapping[str, Any],
    key: str | None = None,
) -> Call[T]:
    """Post one observation, or a list of them in order."""
    path = path_of(stream, "/observations")
    return change("POST", path, kind, body, Repeat.KEYED, key, options)


def observed(stream: str, value: Any, options: Mapping[str, Any], key: str | None) -> Call[Any]:
    """Post one observation, or several: a sequence, an array or a column of a frame."""
    listed = isinstance(value, Sequence) or getattr(value, "ndim", 0) > 0
    if listed or hasattr(value, "to_list") or hasattr(value, "columns"):
        return observe(stream, observations(value), list[Answer], options, key)
    return observe(stream, observation(value), Answer, options, key)


def observe_many(keyed: Sequence[Mapping[str, Any]], options: AnswerOptions) -> Call[list[Result]]:
    """Post observations of many streams; each has a key already."""
    read_items = reader(list[dict[str, Any]])

    def read(response: httpx.Response) -> list[Result]:
        items = read_items(response)
        if len(items) != len(keyed):
            raise _unexpected(response, f"got {len(items)} answers to {len(keyed)} items")
        try:
            return [_item(item) for item in items]
        except msgspec.ValidationError as error:
            raise _unexpected(response, str(error)) from error

    # Without an Idempotency-Key, which this call refuses: the items have keys.
    params = query_params(options)
    request = Request("POST", "/v1/observations", params, JSON, encode(list(keyed)))
    return Call(request, read, Repeat.KEYED, changes=True)


def _item(item: dict[str, Any]) -> Result:
    status = item.get("status")
    if status == 200:
        return msgspec.convert(item, Answer)
    if not isinstance(status, int):
        raise msgspec.ValidationError("an item without a status")
    return problem_of(status, item)


def observe_all(
    items: Sequence[Mapping[str, Any]], options: AnswerOptions, retry_for_s: float
) -> Calls[list[Result]]:
    """Post items, and retry those with temporary errors.

    A stream's items stay in order: those after a failed one were not attempted.
    """
    by_index: dict[int, Result] = {}
    unsent = list(range(len(items)))
    backoff = Backoff()
    end = time.monotonic() + min(retry_for_s, KEY_MEMORY_S)
    while True:
        try:
            results = yield observe_many([items[i] for i in unsent], options)
        except Unavailable as error:
            if not by_index:
                raise
            # Return the known results rather than raise.
            if isinstance(error, OutcomeUnknown):
                doubtful = [i for i in unsent if not isinstance(by_index[i], Answer)]
                by_index |= dict.fromkeys(doubtful, outcome_unknown(str(error)))
            return [*by_index.values()]
        by_index |= dict(zip(unsent, results, strict=True))
        unsent = list(_unfinished(items, by_index))
        if not unsent:
            break
        pause_s = backoff.next_s()
        if time.monotonic() + pause_s > end:
            break
        yield Pause(pause_s)
    return [by_index[i] for i in range(len(items))]


def _unfinished(
    items: Sequence[Mapping[str, Any]], by_index: Mapping[int, Result]
) -> Iterator[int]:
    """Indices of items to retry: those with temporary errors, and those after them."""
    again: set[str] = set()
    for i, item in enumerate(items):
        result = by_index[i]
        behind = isinstance(result, EarlierItemFailed) and item["stream"] in again
        if isinstance(result, Temporary) or behind:
            again.add(item["stream"])
            yield i


def changes(movers: bool = False, **query: Unpack[ChangesQuery]) -> Call[ChangesPage]:
    """One page of changes of all streams; `movers`: with what the changed streams share."""
    return get("/v1/changes", ChangesPage, {**query, "movers": movers})


def incidents(**query: Unpack[IncidentsQuery]) -> Call[IncidentsPage]:
    """One page of incidents."""
    return get("/v1/incidents", IncidentsPage, query)
