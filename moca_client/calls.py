"""Calls of the REST interface: a request, the reader of its answer, and whether a retry is safe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Literal, Required, TypedDict, TypeVar, Unpack, cast
from urllib.parse import quote

import httpx
import msgspec

from moca_client import bodies
from moca_client.bodies import encode
from moca_client.errors import InvalidRequest, Problem, UnexpectedAnswer, problem_of
from moca_client.responses import Answer, ChangesPage, IncidentsPage
from moca_client.retry import Call, Repeat, Request

JSON = {"Content-Type": "application/json"}
Detail = Literal["summary", "full"]  # of answers to observations
Match = str | Sequence[str]  # selectors of streams by tags: of any of them
When = str | datetime  # an RFC 3339 time, an age such as "24h", or a datetime with a time zone
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


# --- requests ---------------------------------------------------------------------------------


def path_of(stream: str, suffix: str = "") -> str:
    """Return the path of a stream, or of a resource below it."""
    return f"{named_path('streams', stream, 'a stream id')}{suffix}"


def named_path(kind: str, name: str, expected: str) -> str:
    """Return the path of a named resource; raises InvalidRequest for a name that no path can have.

    In a path `.` and `..` would stand for other resources.
    """
    if name in ("", ".", ".."):
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
    headers = {"Idempotency-Key": key or bodies.new_key(), **JSON}
    request = Request(method, path, query_params(query or {}), headers, encode(body))
    return Call(request, reader(kind), repeat, changes=True)


def delete(path: str) -> Call[None]:
    """Return a call that removes something; a repeat that finds nothing has done it."""
    request = Request("DELETE", path, [], {"Idempotency-Key": bodies.new_key()})
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
    """Post one observation, or a list of them in order, as `bodies` returns them."""
    path = path_of(stream, "/observations")
    return change("POST", path, kind, body, Repeat.KEYED, key, options)


def observe_many(
    keyed: Sequence[Mapping[str, Any]], options: AnswerOptions
) -> Call[list[Answer | Problem]]:
    """Post observations of many streams; each has a key already."""
    read_items = reader(list[dict[str, Any]])

    def read(response: httpx.Response) -> list[Answer | Problem]:
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


def _item(item: dict[str, Any]) -> Answer | Problem:
    status = item.get("status")
    if status == 200:
        return msgspec.convert(item, Answer)
    if not isinstance(status, int):
        raise msgspec.ValidationError("an item without a status")
    return problem_of(status, item)


def changes(movers: bool = False, **query: Unpack[ChangesQuery]) -> Call[ChangesPage]:
    """One page of changes of all streams; `movers`: with what the changed streams share."""
    return get("/v1/changes", ChangesPage, {**query, "movers": movers})


def incidents(**query: Unpack[IncidentsQuery]) -> Call[IncidentsPage]:
    """One page of incidents."""
    return get("/v1/incidents", IncidentsPage, query)
