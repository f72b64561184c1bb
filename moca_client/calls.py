"""Every call of the REST interface: its request, its answer, and whether a retry is safe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from moca_client import bodies, responses
from moca_client.bodies import Observed, encode
from moca_client.errors import InvalidRequest, Problem, UnexpectedAnswer, problem_of
from moca_client.retry import Call, Repeat, Request

JSON = {"Content-Type": "application/json"}
Detail = Literal["summary", "full"]  # of answers to observations
Match = str | Sequence[str]  # selectors of streams by tags: of any of them
T = TypeVar("T")


def as_type(kind: type[T]) -> Callable[[httpx.Response], T]:
    """Return a reader of JSON answers."""
    decoder = msgspec.json.Decoder(kind)

    def read(response: httpx.Response) -> T:
        try:
            return decoder.decode(response.content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _unexpected(response, str(error)) from error

    return read


def _unexpected(response: httpx.Response, why: str) -> UnexpectedAnswer:
    request = response.request
    return UnexpectedAnswer(f"{request.method} {request.url.path}: unexpected answer: {why}")


_state = as_type(responses.StreamSummary)
_page = as_type(responses.StreamPage)
_overview = as_type(responses.Overview)
_answer = as_type(responses.Answer)
_answers = as_type(list[responses.Answer])
_columns = as_type(dict[str, list[Any]])
_items = as_type(list[dict[str, Any]])
_predictions = as_type(responses.Predictions)
_action = as_type(responses.Action)
_run_length = as_type(responses.RunLength)
_regimes = as_type(responses.Regimes)
_regime = as_type(responses.RememberedRegime)
_what_if = as_type(responses.WhatIf)
_changepoints = as_type(responses.Changepoints)
_changes = as_type(responses.ChangesPage)
_incidents = as_type(responses.IncidentsPage)
_incident = as_type(responses.IncidentDetail)
_feedback = as_type(responses.Verdict)
_calendar = as_type(responses.Calendar)
_window = as_type(responses.Window)
_exclusion = as_type(responses.Exclusion)
_incident_exclusion = as_type(responses.IncidentExclusion)
_history = as_type(responses.HistoryPage)
_models = as_type(responses.Models)
_model = as_type(responses.ModelDetail)


def path_of(stream: str, suffix: str = "") -> str:
    """Return the path of a stream, or of a resource below it."""
    if not stream:
        raise InvalidRequest("expected a stream id, got ''")
    return f"/v1/streams/{quote(stream, safe='')}{suffix}"


def _get(path: str, read: Callable[[httpx.Response], T], **params: Any) -> Call[T]:
    return Call(Request("GET", path, query_params(params)), read)


def _read_only(path: str, body: Any, read: Callable[[httpx.Response], T]) -> Call[T]:
    """Return a POST that changes nothing."""
    return Call(Request("POST", path, [], JSON, encode(body)), read)


def _change(
    method: str,
    path: str,
    body: Any,
    read: Callable[[httpx.Response], T],
    repeat: Repeat,
    key: str | None = None,
    params: Sequence[tuple[str, str]] = (),
) -> Call[T]:
    headers = {"Idempotency-Key": key or bodies.new_key()}
    content = None if body is None else encode(body)
    headers |= {} if content is None else JSON
    return Call(Request(method, path, list(params), headers, content), read, repeat, changes=True)


def query_params(named: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return query parameters; those that are None are left out, lists repeated."""
    params: list[tuple[str, str]] = []
    for name, value in named.items():
        items = value if isinstance(value, list | tuple) else [value]
        params += [(name, _text(item)) for item in items if item is not None]
    return params


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- streams ---------------------------------------------------------------------------------


def ready() -> Call[None]:
    """Whether every stream is served."""
    return _get("/readyz", lambda _: None)


def put_stream(stream: str, settings: Mapping[str, Any]) -> Call[responses.StreamSummary]:
    """Create a stream, or change the named settings."""
    return _change("PUT", path_of(stream), dict(settings), _state, Repeat.HARMLESS)


def stream(stream: str) -> Call[responses.StreamSummary]:
    """Summary of a stream."""
    return _get(path_of(stream), _state)


def streams(
    prefix: str, limit: int, match: Match = (), cursor: str | None = None
) -> Call[responses.StreamPage]:
    """One page of the list of streams."""
    return _get("/v1/streams", _page, prefix=prefix, limit=limit, match=match, cursor=cursor)


class OverviewPage(NamedTuple):
    """Query of GET overview: one page of streams, with last labels."""

    prefix: str
    limit: int
    labels: int
    cursor: str | None
    contains: str | None = None
    sort: str = "id"


def overview(page: OverviewPage) -> Call[responses.Overview]:
    """One page of streams at a glance."""
    return _get("/v1/overview", _overview, **page._asdict())


def delete_stream(stream: str) -> Call[None]:
    """Delete a stream; a repeat that finds none has done it."""
    call = _change("DELETE", path_of(stream), None, lambda _: None, Repeat.HARMLESS)
    return call._replace(gone_is_done=True)


# --- observations ----------------------------------------------------------------------------


class AnswerOptions(NamedTuple):
    """Optional parts of the answers to observations."""

    detail: Detail = "summary"
    belief: bool = False
    components: bool = False
    quantiles: Sequence[float] | None = None

    def params(self) -> list[tuple[str, str]]:
        """Query parameters."""
        levels = None if self.quantiles is None else ",".join(map(str, self.quantiles))
        named = {
            "detail": None if self.detail == "summary" else self.detail,
            "belief": self.belief or None,
            "components": self.components or None,
            "quantiles": levels,
        }
        return query_params(named)


def observe_one(
    stream: str, observation: Observed, options: AnswerOptions, key: str | None
) -> Call[responses.Answer]:
    """Post one observation."""
    body = bodies.observation(observation)
    path = path_of(stream, "/observations")
    return _change("POST", path, body, _answer, Repeat.KEYED, key, options.params())


def observe_list(
    stream: str, observations: Iterable[Observed], options: AnswerOptions, key: str | None
) -> Call[list[responses.Answer]]:
    """Post a list of observations in order."""
    body = bodies.observations(observations)
    path = path_of(stream, "/observations")
    return _change("POST", path, body, _answers, Repeat.KEYED, key, options.params())


def observe_columns(
    stream: str, observations: Iterable[Observed], options: AnswerOptions, key: str | None
) -> Call[dict[str, list[Any]]]:
    """Post a list of observations in order; the answers by columns."""
    body = bodies.observations(observations)
    path = path_of(stream, "/observations")
    params = [("format", "columns"), *options.params()]
    return _change("POST", path, body, _columns, Repeat.KEYED, key, params)


def observe_many(
    keyed: Sequence[Mapping[str, Any]], options: AnswerOptions
) -> Call[list[responses.Answer | Problem]]:
    """Post observations of many streams; each has a key already."""

    def read(response: httpx.Response) -> list[responses.Answer | Problem]:
        items = _items(response)
        if len(items) != len(keyed):
            raise _unexpected(response, f"got {len(items)} answers to {len(keyed)} items")
        try:
            return [_item(item) for item in items]
        except msgspec.ValidationError as error:
            raise _unexpected(response, str(error)) from error

    # Without an Idempotency-Key, which this call refuses: the items have keys.
    request = Request("POST", "/v1/observations", options.params(), JSON)
    content = encode(list(keyed))
    return Call(request._replace(content=content), read, Repeat.KEYED, changes=True)


def _item(item: dict[str, Any]) -> responses.Answer | Problem:
    status = item.get("status")
    if status == 200:
        return msgspec.convert(item, responses.Answer)
    if not isinstance(status, int):
        raise msgspec.ValidationError("an item without a status")
    return problem_of(status, item)


# --- reads -----------------------------------------------------------------------------------


class PredictionRequest(NamedTuple):
    """Body of POST predictions."""

    x: Sequence[Sequence[float]] | None = None
    quantiles: Sequence[float] | None = None
    samples: int = 0
    components: bool = False
    elapsed: float | None = None
    seed: int | None = None
    horizon: int | None = None


def predict(stream: str, request: PredictionRequest) -> Call[responses.Predictions]:
    """Predict the next label at each input."""
    fields = request._asdict().items()
    body = {name: value for name, value in fields if value is not None and value is not False}
    return _read_only(path_of(stream, "/predictions"), body, _predictions)


def act(
    stream: str,
    candidates: Sequence[Sequence[float]],
    strategy: str,
    samples: int | None,
    elapsed: float | None,
    seed: int | None,
) -> Call[responses.Action]:
    """Choose among candidate inputs. Without a seed, one is drawn here: a retry repeats it."""
    seed = int(bodies.new_key()[:12], 16) if seed is None else seed
    body: dict[str, Any] = {"candidates": candidates, "strategy": strategy, "seed": seed}
    body |= {n: v for n, v in (("samples", samples), ("elapsed", elapsed)) if v is not None}
    return _read_only(path_of(stream, "/actions"), body, _action)


def run_length(stream: str) -> Call[responses.RunLength]:
    """The whole run-length belief."""
    return _get(path_of(stream, "/run-length"), _run_length)


def put_run_length(
    stream: str, belief: Mapping[int, float] | None, changepoint: float | None, seq: int | None
) -> Call[responses.RunLength]:
    """Override the belief; retried only with the `seq` that it applies to."""
    body: dict[str, Any] = {}
    if belief is not None:
        # Zeros are left out: a retry would be refused, as their hypotheses are gone by then.
        body["belief"] = [{"run_length": r, "probability": p} for r, p in belief.items() if p > 0]
    body |= {n: v for n, v in (("changepoint", changepoint), ("seq", seq)) if v is not None}
    repeat = Repeat.UNSAFE if seq is None else Repeat.HARMLESS
    return _change("PUT", path_of(stream, "/run-length"), body, _run_length, repeat)


def regimes(stream: str) -> Call[responses.Regimes]:
    """The regimes that a stream remembers."""
    return _get(path_of(stream, "/regimes"), _regimes)


def name_regime(stream: str, regime: int, name: str | None) -> Call[responses.RememberedRegime]:
    """Give a remembered regime a name; idempotent."""
    path = path_of(stream, f"/regimes/{regime}")
    body = {"name": name}
    return _change("PUT", path, body, _regime, Repeat.HARMLESS)


def what_if(stream: str, body: Mapping[str, Any]) -> Call[responses.WhatIf]:
    """Rerun the retained history with other settings or another model; changes nothing."""
    return _read_only(path_of(stream, "/what-if"), dict(body), _what_if)


def changepoints(
    stream: str, kinds: Sequence[str] = (), states: Sequence[str] = ()
) -> Call[responses.Changepoints]:
    """Events so far, and the segmentation."""
    for name, chosen in (("kinds", kinds), ("states", states)):
        if isinstance(chosen, str):
            raise InvalidRequest(f"expected a list of {name}, got a string")
    path = path_of(stream, "/changepoints")
    return _get(path, _changepoints, kind=list(kinds), state=list(states))


class ChangesRequest(NamedTuple):
    """Query of GET changes: one page of changes of all streams."""

    since: str | datetime | None = None
    until: str | datetime | None = None
    kind: Sequence[str] = ()
    state: Sequence[str] = ()
    model: str | None = None
    prefix: str | None = None
    contains: str | None = None
    min_size: float | None = None
    min_evidence: float | None = None
    sort: str = "time"
    limit: int = 100
    around: int = 0
    match: Match = ()
    movers: bool = False
    cursor: str | None = None


def changes(request: ChangesRequest) -> Call[responses.ChangesPage]:
    """One page of changes of all streams."""
    for name, chosen in (("kinds", request.kind), ("states", request.state)):
        if isinstance(chosen, str):
            raise InvalidRequest(f"expected a list of {name}, got a string")
    return _get("/v1/changes", _changes, **_with_times(request._asdict()))


class IncidentsRequest(NamedTuple):
    """Query of GET incidents: one page of incidents."""

    since: str | datetime | None = None
    until: str | datetime | None = None
    model: str | None = None
    prefix: str | None = None
    contains: str | None = None
    min_streams: int = 2
    min_size: float | None = None
    sort: str = "time"
    limit: int = 100
    match: Match = ()
    cursor: str | None = None


def incidents(request: IncidentsRequest) -> Call[responses.IncidentsPage]:
    """One page of incidents."""
    return _get("/v1/incidents", _incidents, **_with_times(request._asdict()))


def incident(id_: str, around: int) -> Call[responses.IncidentDetail]:
    """One incident with its changes."""
    path = f"/v1/incidents/{quote(id_, safe='')}"
    return _get(path, _incident, around=around)


def _with_times(query: dict[str, Any]) -> dict[str, Any]:
    """Return a query with its times as text."""
    for name in ("since", "until"):
        if isinstance(when := query[name], datetime):
            if when.tzinfo is None:
                raise InvalidRequest(f"{name}: expected a datetime with a time zone, got {when}")
            query[name] = when.isoformat()
    return query


def judge(stream: str, event: int, change: bool) -> Call[responses.Verdict]:
    """Give feedback on an event: whether it was a change; idempotent."""
    path = path_of(stream, f"/changepoints/{event}")
    body = {"change": change}
    return _change("PUT", path, body, _feedback, Repeat.HARMLESS)


def report_change(stream: str, start: int) -> Call[responses.Verdict]:
    """Report a missed changepoint; a repeated report is the same event."""
    path = path_of(stream, "/changepoints")
    body = {"start": start}
    return _change("POST", path, body, _feedback, Repeat.HARMLESS)


def exclude(
    stream: str, event: int | None, start: int | None, end: int | None, excluded: bool
) -> Call[responses.Exclusion]:
    """Exclude observations from learning, or have them count again; idempotent."""
    given = {"event": event, "start": start, "end": end, "excluded": excluded}
    body = {name: value for name, value in given.items() if value is not None}
    return _change("POST", path_of(stream, "/exclusions"), body, _exclusion, Repeat.HARMLESS)


def exclude_incident(id_: str, excluded: bool) -> Call[responses.IncidentExclusion]:
    """Exclude the changes of an incident from learning, or have them count again; idempotent."""
    path = f"/v1/incidents/{quote(id_, safe='')}/exclusions"
    body = {"excluded": excluded}
    return _change("POST", path, body, _incident_exclusion, Repeat.HARMLESS)


def calendar(
    since: str | datetime | None, until: str | datetime | None, stream: str | None
) -> Call[responses.Calendar]:
    """Windows of the calendar, and when they are."""
    query = {"since": since, "until": until, "stream": stream}
    return _get("/v1/calendar", _calendar, **_with_times(query))


def window(name: str) -> Call[responses.Window]:
    """One window of the calendar."""
    return _get(_window_path(name), _window)


def put_window(name: str, body: dict[str, Any]) -> Call[responses.Window]:
    """Set a window of the calendar; idempotent."""
    return _change("PUT", _window_path(name), body, _window, Repeat.HARMLESS)


def delete_window(name: str) -> Call[None]:
    """Remove a window of the calendar; a repeat that finds none has done it."""
    call = _change("DELETE", _window_path(name), None, lambda _: None, Repeat.HARMLESS)
    return call._replace(gone_is_done=True)


def _window_path(name: str) -> str:
    if not name:
        raise InvalidRequest("expected the name of a window, got ''")
    return f"/v1/calendar/{quote(name, safe='')}"


def history(stream: str, start: int | None, limit: int) -> Call[responses.HistoryPage]:
    """One page of the history."""
    return _get(path_of(stream, "/history"), _history, start=start, limit=limit)


# --- snapshots, models -----------------------------------------------------------------------


def snapshot(stream: str) -> Call[responses.Snapshot]:
    """The whole state, in the media type of the answer."""

    def read(response: httpx.Response) -> responses.Snapshot:
        kind = response.headers.get("content-type", "application/octet-stream")
        return responses.Snapshot(response.content, kind)

    return _get(path_of(stream, "/snapshot"), read)


def put_snapshot(
    stream: str, snapshot: responses.Snapshot, replace: bool
) -> Call[responses.StreamSummary]:
    """Create the stream from a snapshot. Not retried: that could undo later changes."""
    params = query_params({"replace": replace or None})
    call = _change("PUT", path_of(stream, "/snapshot"), None, _state, Repeat.UNSAFE, None, params)
    headers = {**call.request.headers, "Content-Type": snapshot.content_type}
    request = call.request._replace(headers=headers, content=snapshot.content)
    return call._replace(request=request)


def models() -> Call[responses.Models]:
    """All models."""
    return _get("/v1/models", _models)


def model(name: str) -> Call[responses.ModelDetail]:
    """One model with its versions."""
    if not name:
        raise InvalidRequest("expected a model name, got ''")
    return _get(f"/v1/models/{quote(name, safe='')}", _model)


def move_model(stream: str, model: str) -> Call[responses.StreamSummary]:
    """Move a stream to another model by replay."""
    return _change("POST", path_of(stream, "/model"), {"model": model}, _state, Repeat.UNSAFE)
