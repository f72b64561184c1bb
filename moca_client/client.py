"""Both clients: each method is described once, as a call, and carried out by either.

`Client` returns what a call comes to, `AsyncClient` has it awaited. What to do next, such as to try
again, is decided by plans (see `retry`); a client sends, waits and reads.
"""

from __future__ import annotations

import time
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, closing
from functools import wraps
from inspect import Signature, signature
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    Never,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    overload,
)

import httpx
from httpx_sse import EventSource

from moca_client import DEFAULT_URL, calls, retry
from moca_client.calls import Observed, Result, path_of
from moca_client.errors import ClientError, InvalidRequest
from moca_client.responses import (
    Action,
    Answer,
    Calendar,
    Changepoints,
    Exclusion,
    Gap,
    HistoryPage,
    Incident,
    IncidentDetail,
    IncidentExclusion,
    ModelDetail,
    Models,
    ModelSummary,
    Overview,
    Predictions,
    Regimes,
    RememberedRegime,
    RunLength,
    Snapshot,
    StreamChange,
    StreamEvent,
    StreamPage,
    StreamSummary,
    Verdict,
    WhatIf,
    Window,
)
from moca_client.retry import Call, Calls, Pause, Repeat, Request
from moca_client.subscriptions import (
    ENDS,
    EVENTS,
    OBSERVATIONS,
    AsyncMessages,
    Ended,
    Feed,
    Followed,
    Messages,
    Missed,
)

if TYPE_CHECKING:
    from moca_client.frames import Source

READY = Call(Request("GET", "/readyz"), lambda _: None)
T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S")


class Pages(NamedTuple, Generic[T]):
    """Items of the pages of a call, one page after the other."""

    first: Call[Any]
    items: Callable[[Any], Sequence[T]]


class Answered(Generic[P, T]):
    """A method by its call, or a plan of calls: a client returns what that comes to."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Call[T] | Calls[T]]) -> None:
        self.describe = describe

    @overload
    def __get__(self, client: None, owner: object) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, client: Client, owner: object) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, client: AsyncClient, owner: object
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: object) -> Any:
        return self  # each client has a function in its place


class Iterated(Generic[P, T]):
    """A method by the pages, or the subscription, whose items a client iterates over."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Pages[T] | Feed[T]]) -> None:
        self.describe = describe

    @overload
    def __get__(self, client: None, owner: object) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, client: Client, owner: object) -> Callable[P, Messages[T]]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: object) -> Callable[P, AsyncMessages[T]]: ...
    def __get__(self, client: Any, owner: object) -> Any:
        return self


class Methods:
    """The methods of both clients, but for `observe`: its result is by what is posted."""

    _retry_for_s: float
    _answered: Callable[..., Callable[..., Any]]  # makes a method of its description
    _pages: Callable[..., Any]
    _messages: Callable[..., Any]

    def __init_subclass__(cls) -> None:
        """Make the methods of a client; classes derived from one have them, or their own."""
        if Methods not in cls.__bases__:
            return

        def iterated(describe: Callable[..., Any]) -> Callable[..., Any]:
            def method(self: Methods, *arguments: Any, **options: Any) -> Any:
                source = describe(self, *arguments, **options)
                return self._pages(source) if isinstance(source, Pages) else self._messages(source)

            return method

        for name, method in vars(Methods).items():
            if isinstance(method, Answered | Iterated):
                make = cls._answered if isinstance(method, Answered) else iterated
                made: Any = wraps(method.describe)(make(method.describe))
                made.__signature__ = signature(made).replace(return_annotation=Signature.empty)
                made.__qualname__ = f"{cls.__qualname__}.{name}"
                taken = made.__annotations__.items()
                made.__annotations__ = {key: kind for key, kind in taken if key != "return"}
                setattr(cls, name, made)

    # --- streams -----------------------------------------------------------------------------

    @Answered
    def put_stream(
        self, stream: str, settings: Mapping[str, Any] | None = None
    ) -> Call[StreamSummary]:
        """Create the stream, or change the named settings of an existing one."""
        body = {} if settings is None else settings
        if not isinstance(body, Mapping):
            raise InvalidRequest(f'expected settings such as {{"model": "gaussian"}}, got {body!r}')
        return calls.change("PUT", path_of(stream), StreamSummary, dict(body))

    @Answered
    def stream(self, stream: str) -> Call[StreamSummary]:
        """Return the stream's summary; raises `UnknownStream` without one."""
        return calls.get(path_of(stream), StreamSummary)

    @Iterated
    def streams(self, prefix: str = "", limit: int = 100, *, match: calls.Match = ()) -> Pages[str]:
        """Iterate over the ids of all streams that start with `prefix`, `limit` in a request.

        match: selector of streams by tags, such as `{job="node"}`, or several: of any of them.
        """
        query = {"prefix": prefix, "limit": limit, "match": match}
        first = calls.get("/v1/streams", StreamPage, query)
        return Pages(first, lambda page: [row.stream for row in page.streams])

    @Answered
    def overview(self, prefix: str = "", **query: Unpack[calls.OverviewQuery]) -> Call[Overview]:
        """Return one page of streams at a glance; its `cursor` leads to the next.

        contains: text anywhere in the id. sort: `id`, `changed_probability` (largest first) or
        `change` (newest first). limit: streams of a page, 50. labels: last labels of each, 40.
        """
        return calls.get("/v1/overview", Overview, {"prefix": prefix, **query})

    @Answered
    def delete_stream(self, stream: str) -> Call[None]:
        """Delete the stream."""
        return calls.delete(path_of(stream))

    # --- observations ------------------------------------------------------------------------

    @Answered
    def observe_many(
        self, items: Iterable[Mapping[str, Any]], **options: Unpack[calls.AnswerOptions]
    ) -> Calls[list[Result]]:
        """Post observations of many streams, each item with its `stream`, and a `key` if wanted.

        The result has an answer or a Problem at each item's place; it does not raise for items.
        options: as of `observe`.
        """
        return calls.observe_all(calls.items(items), options, self._retry_for_s)

    @Answered
    def observe_frame(
        self,
        frame: Any,
        *unnamed: Never,
        detail: calls.Detail = "summary",
        **source: Unpack[Source],
    ) -> Calls[Any]:
        """Post the rows of a pandas or polars frame in order, `batch` in a request.

        Returns the answers as a frame of the same library, without beliefs. stream: of all rows; or
        by: the column that names the stream of each row; the frame of the answers has the column
        as well. Columns y, x and time that are not named are found as `moca replay` finds them:
        `y`, or `y1, y2, ...`; `x`; `time`.
        """
        from moca_client.frames import observe_frame

        return observe_frame(frame, unnamed, source, detail)

    # --- reads -------------------------------------------------------------------------------

    @Answered
    def predict(
        self,
        stream: str,
        x: Sequence[Sequence[float]] | None = None,
        **options: Unpack[calls.PredictionOptions],
    ) -> Call[Predictions]:
        """Predict the next label, at each input if the model has any; changes nothing.

        quantiles: their levels. samples: draws at each input, by `seed`. components: whether the
        mixture itself is returned. elapsed: time since the last observation. horizon: steps ahead.
        """
        body = calls.stated({"x": x, **options})
        return calls.ask(path_of(stream, "/predictions"), Predictions, body)

    @Answered
    def act(
        self,
        stream: str,
        candidates: Sequence[Sequence[float]],
        **options: Unpack[calls.ActionOptions],
    ) -> Call[Action]:
        """Choose one of the candidate inputs; changes nothing.

        strategy: `thompson`, `optimistic` or `greedy`. samples: functions that `optimistic` draws.
        elapsed: time since the last observation. seed: of the draws; default: drawn anew.
        """
        body = calls.stated({"candidates": candidates, **options})
        body.setdefault("seed", int(calls.new_key()[:12], 16))  # a retry repeats it
        return calls.ask(path_of(stream, "/actions"), Action, body)

    @Answered
    def run_length(self, stream: str) -> Call[RunLength]:
        """Return the stream's whole run-length belief."""
        return calls.get(path_of(stream, "/run-length"), RunLength)

    @Answered
    def put_run_length(
        self,
        stream: str,
        belief: Mapping[int, float] | None = None,
        *,
        changepoint: float | None = None,
        seq: int | None = None,
    ) -> Call[RunLength]:
        """Override the belief: probabilities by run length, or that of a change coming next.

        With the position `seq` it is meant for it is safe to retry, and is retried.
        """
        body = calls.stated({"changepoint": changepoint, "seq": seq})
        if belief is not None:
            # Zeros are left out: a retry would be refused, as their hypotheses are gone by then.
            pairs = [(run_length, p) for run_length, p in belief.items() if p > 0]
            body["belief"] = [{"run_length": r, "probability": p} for r, p in pairs]
        path = path_of(stream, "/run-length")
        repeat = Repeat.UNSAFE if seq is None else Repeat.HARMLESS
        return calls.change("PUT", path, RunLength, body, repeat)

    @Answered
    def regimes(self, stream: str) -> Call[list[RememberedRegime]]:
        """Return the regimes that the stream remembers, by id: see its setting `regimes`."""
        read = calls.reader(Regimes)
        request = Request("GET", path_of(stream, "/regimes"))
        return Call(request, lambda response: read(response).regimes)

    @Answered
    def name_regime(self, stream: str, regime: int, name: str | None) -> Call[RememberedRegime]:
        """Give a remembered regime a name, by its id; None takes the name away."""
        path = path_of(stream, f"/regimes/{regime}")
        return calls.change("PUT", path, RememberedRegime, {"name": name})

    @Answered
    def what_if(self, stream: str, body: Mapping[str, Any]) -> Call[WhatIf]:
        """Rerun the retained history with other settings or another model; changes nothing."""
        return calls.ask(path_of(stream, "/what-if"), WhatIf, body)

    @Answered
    def changepoints(
        self, stream: str, *, kinds: Sequence[str] = (), states: Sequence[str] = ()
    ) -> Call[Changepoints]:
        """Return the stream's events and segmentation.

        kinds: `change`, `returned`, `anomaly` or `all`; default: all changes. states: default:
        without withdrawn events.

        `hindsight` says how far a rerun of what is retained has added to it. While its status is
        `pending`, a worker computes it: ask again.
        """
        query = {"kinds": kinds, "states": states}
        return calls.get(path_of(stream, "/changepoints"), Changepoints, query)

    @Iterated
    def changes(self, **query: Unpack[calls.ChangesQuery]) -> Pages[StreamChange]:
        """Iterate over the changes of all streams, `limit` (100) in a request.

        since, until: an RFC 3339 time, an age such as "24h", or a datetime with a time zone. sort:
        `time` (newest first), `size` or `evidence`. prefix, contains: of the id, or anywhere in it.
        kinds: `change`, to a new regime, `returned`, to a remembered one, or `all`; default:
        `change`. states: default: without withdrawn changes. model: NAME or NAME@VERSION. min_size,
        min_evidence: the least. around: values on both sides of a start, at most 100. match:
        selector of streams by tags, such as `{job="node"}`, or several: of any of them.
        """
        return Pages(calls.changes(**query), lambda page: page.changes)

    @Iterated
    def incidents(self, **query: Unpack[calls.IncidentsQuery]) -> Pages[Incident]:
        """Iterate over incidents: changes of several streams that began together.

        since, until: as of `changes`, of when an incident began. kinds: of the changes that are
        grouped, as of `changes`. model, prefix, contains, match: of
        one of its streams at least, min_size of one of its changes. min_streams: the least, 2.
        sort: `time` (newest first) or `streams`. limit: incidents of a request, 100.
        """
        return Pages(calls.incidents(**query), lambda page: page.incidents)

    @Answered
    def incident(
        self, id: str, *, around: int = 0, kinds: Sequence[str] = ()
    ) -> Call[IncidentDetail]:
        """Return an incident with its changes, the largest first.

        around: so many values on both sides of each start are returned, too. kinds: as of
        `incidents`.
        """
        path = calls.named_path("incidents", id, "the id of an incident")
        query = {"around": around, "kinds": kinds}
        return calls.get(path, IncidentDetail, query)

    @Answered
    def judge(self, stream: str, event: int, change: bool) -> Call[Verdict]:
        """Give feedback on an event: whether it was a change. The stream is rerun with it."""
        path = path_of(stream, f"/changepoints/{event}")
        return calls.change("PUT", path, Verdict, {"change": change})

    @Answered
    def report_change(self, stream: str, start: int) -> Call[Verdict]:
        """Report a missed changepoint; `start` is the first observation of the new regime."""
        path = path_of(stream, "/changepoints")
        return calls.change("POST", path, Verdict, {"start": start})

    @Answered
    def exclude(
        self,
        stream: str,
        *,
        event: int | None = None,
        start: int | None = None,
        end: int | None = None,
        excluded: bool = True,
    ) -> Call[Exclusion]:
        """Exclude observations from learning: the regime before them goes on after them.

        They begin with a change, by its `event`, or at `start`, and end before `end`: by default
        where the next confirmed change begins, or with the last one so far. excluded: False: they
        count again.
        """
        body = calls.stated({"event": event, "start": start, "end": end, "excluded": excluded})
        path = path_of(stream, "/exclusions")
        return calls.change("POST", path, Exclusion, body)

    @Answered
    def exclude_incident(
        self, id: str, *, excluded: bool = True, kinds: Sequence[str] = ()
    ) -> Call[IncidentExclusion]:
        """Exclude the changes of an incident from learning, as `exclude` does each of them.

        kinds: as of `incidents`.
        """
        path = calls.named_path("incidents", id, "the id of an incident") + "/exclusions"
        body = {"excluded": excluded}
        query = {"kinds": kinds}
        return calls.change("POST", path, IncidentExclusion, body, query=query)

    @Answered
    def calendar(
        self,
        *,
        since: calls.When | None = None,
        until: calls.When | None = None,
        stream: str | None = None,
    ) -> Call[Calendar]:
        """Return the windows of the calendar, and when they are from `since` to `until`.

        By default from now on for 7 days. stream: only those for this one.
        """
        query = {"since": since, "until": until, "stream": stream}
        return calls.get("/v1/calendar", Calendar, query)

    @Answered
    def put_window(self, name: str, **window: Unpack[calls.WindowFields]) -> Call[Window]:
        """Set a window of the calendar: streams learn nothing in it, and confirm nothing.

        start, end: local times without a zone, or dates. time_zone: such as Europe/Berlin; UTC.
        repeat: a rule of RFC 5545 such as FREQ=WEEKLY;BYDAY=SA. match: selectors of streams; none:
        all streams. note: for people.
        """
        return calls.change("PUT", _window_path(name), Window, window)

    @Answered
    def window(self, name: str) -> Call[Window]:
        """Return a window of the calendar."""
        return calls.get(_window_path(name), Window)

    @Answered
    def delete_window(self, name: str) -> Call[None]:
        """Remove a window of the calendar; what it excluded stays excluded."""
        return calls.delete(_window_path(name))

    @Iterated
    def history(
        self,
        stream: str,
        *,
        start: int | None = 0,
        limit: int = 500,
        detail: calls.Detail = "summary",
    ) -> Pages[HistoryPage]:
        """Iterate over the pages of the history, oldest first; `start` None: the latest page.

        `detail="full"`: observations have details, as answers have.
        """
        query = {"start": start, "limit": limit, "detail": detail}
        first = calls.get(path_of(stream, "/history"), HistoryPage, query)
        return Pages(first, lambda page: [page] if page.observations else [])

    # --- snapshots, models, events -----------------------------------------------------------

    @Answered
    def snapshot(self, stream: str) -> Call[Snapshot]:
        """Return the stream's whole state, for `put_snapshot`."""

        def read(response: httpx.Response) -> Snapshot:
            kind = response.headers.get("content-type", "application/octet-stream")
            return Snapshot(response.content, kind)

        return Call(Request("GET", path_of(stream, "/snapshot")), read)

    @Answered
    def put_snapshot(
        self, stream: str, snapshot: Snapshot, *, replace: bool = False
    ) -> Call[StreamSummary]:
        """Create the stream from a snapshot; `replace`: also if it exists.

        Not retried: that could undo later changes.
        """
        if not isinstance(snapshot, Snapshot):
            got = type(snapshot).__name__
            raise InvalidRequest(
                "expected a snapshot as `snapshot` returns it, or `responses.Snapshot(content)` "
                f"of bytes, got {got}"
            )
        query = {"replace": replace}
        path = path_of(stream, "/snapshot")
        call = calls.change("PUT", path, StreamSummary, None, Repeat.UNSAFE, query=query)
        headers = {**call.request.headers, "Content-Type": snapshot.content_type}
        request = call.request._replace(headers=headers, content=snapshot.content)
        return call._replace(request=request)

    @Answered
    def models(self) -> Call[list[ModelSummary]]:
        """Return all models."""
        read = calls.reader(Models)
        return Call(Request("GET", "/v1/models"), lambda response: read(response).models)

    @Answered
    def model(self, name: str) -> Call[ModelDetail]:
        """Return one model with all its versions."""
        path = calls.named_path("models", name, "a model name")
        return calls.get(path, ModelDetail)

    @Answered
    def move_model(self, stream: str, model: str) -> Call[StreamSummary]:
        """Move the stream to another model, or version, by replay."""
        path = path_of(stream, "/model")
        body = {"model": model}
        return calls.change("POST", path, StreamSummary, body, Repeat.UNSAFE)

    @Iterated
    def events(
        self,
        *,
        after: str | None = None,
        silence_s: float = 60.0,
        retry_for_s: float | None = 60.0,
        **query: Unpack[calls.EventsQuery],
    ) -> Feed[StreamEvent | Incident | Gap]:
        """Iterate over events as they are raised, forever, across disconnects.

        stream, prefix, model, states: of the events. kinds: `change`, `returned`, `anomaly` or
        `all`; default: `change`. match: selector of streams by tags, such as `{job="node"}`, or
        several: of any of them. incidents: whether an `Incident` comes before the confirmed changes
        that are part of one. after: the `cursor` of an event to resume after; "0": everything
        retained; None: only new ones. silence_s: a connection without any message or heartbeat for
        this long is closed. retry_for_s: raise `Unavailable` after failing to connect for this
        long; None: never.
        """
        return Feed("/v1/events", query, after, EVENTS, silence_s, retry_for_s)

    @Iterated
    def follow(
        self,
        stream: str,
        *,
        after: int | str | None = None,
        detail: calls.Detail = "summary",
        silence_s: float = 60.0,
        retry_for_s: float | None = 60.0,
    ) -> Feed[Followed | Missed | Ended]:
        """Iterate over the stream's observations as they are applied, across disconnects.

        after: the `seq` or `cursor` to resume after; -1: everything retained; None: only new ones.
        detail: as of `history`.
        Ends with an `Ended` when the stream is deleted or replaced. silence_s, retry_for_s: as of
        `events`.
        """
        path = path_of(stream, "/observations/live")
        place = None if after is None else str(after)
        query = {"detail": detail}
        return Feed(path, query, place, OBSERVATIONS, silence_s, retry_for_s)


async def _sleep(seconds: float) -> None:
    import asyncio  # takes longer than a request; where it is awaited, it is there

    await asyncio.sleep(seconds)


def _window_path(name: str) -> str:
    return calls.named_path("calendar", name, "the name of a window")


class Client(Methods):
    """Synchronous client of one service; use it as a context manager.

    url: address of the service. api_key: sent as `Authorization: Bearer`; default: the variable
    MOCA_API_KEY. timeout_s: longest wait for an answer. retry_for_s: no try begins so many seconds
    after the first; 0: no retry.

    What fails raises ClientError; `moca_client.errors` has the tree.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = 65.0,
        retry_for_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ):
        """Connect lazily."""
        self.url = url.rstrip("/")
        self._retry_for_s = retry_for_s
        options = retry.http_options(self.url, api_key, timeout_s)
        self._http = httpx.Client(transport=transport, **options)

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def wait_ready(self, wait_s: float) -> None:
        """Wait until the service is ready; raises `Unavailable` if it is not in time."""
        self.call(READY, wait_s)

    @overload
    def observe(
        self,
        stream: str,
        observations: Observed,
        *,
        key: str | None = ...,
        **options: Unpack[calls.AnswerOptions],
    ) -> Answer: ...
    @overload
    def observe(
        self,
        stream: str,
        observations: Sequence[Observed],
        *,
        key: str | None = ...,
        **options: Unpack[calls.AnswerOptions],
    ) -> list[Answer]: ...
    def observe(
        self,
        stream: str,
        observations: Observed | Sequence[Observed],
        *,
        key: str | None = None,
        **options: Unpack[calls.AnswerOptions],
    ) -> Answer | list[Answer]:
        """Post one observation, or a list of them in order; a plain number is a label.

        An array or a column of a frame is a list, too: of labels, or of rows of several outputs.

        The same `key` and body sent again have no second effect; by default a new key is made,
        so only this call's own retries are recognised. `detail="full"`: answers also have log
        score, variance and run length. `belief`, `components`: they carry the whole belief, the
        mixture itself. `quantiles`: levels to answer.
        """
        call = calls.observed(stream, observations, options, key)
        answer: Answer | list[Answer] = self.call(call)
        return answer

    def call(self, call: Call[T], retry_for_s: float | None = None) -> T:
        """Carry out one described call, with retries."""
        limit_s = self._retry_for_s if retry_for_s is None else retry_for_s
        plan = retry.plan(call, self.url, limit_s)
        return self._carry_out(plan, self._request, httpx.TransportError)

    def run(self, plan: Calls[T]) -> T:
        """Carry out several calls that depend on each other."""
        return self._carry_out(plan, self.call, ClientError)

    @staticmethod
    def _answered(describe: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Client, *arguments: Any, **options: Any) -> Any:
            described = describe(self, *arguments, **options)
            return self.call(described) if isinstance(described, Call) else self.run(described)

        return method

    def _request(self, request: Request) -> httpx.Response:
        return self._http.request(**request.arguments)

    def _carry_out(
        self,
        plan: Generator[S | Pause, Any, T],
        send: Callable[[S], Any],
        failures: type[Exception],
    ) -> T:
        """Send the steps of a plan, and the plan their results, to its end."""
        try:
            step = next(plan)
            while True:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    step = next(plan)
                    continue
                try:
                    result = send(step)
                except failures as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(result)
        except StopIteration as done:
            outcome: T = done.value
            return outcome

    def _pages(self, pages: Pages[T]) -> Messages[T]:
        call: Call[Any] | None = pages.first
        while call is not None:
            page = self.call(call)
            call = calls.following(call, page)
            yield from pages.items(page)

    def _messages(self, feed: Feed[T]) -> Messages[T]:
        while not feed.over:
            ended: Exception | None = None
            try:
                with closing(self._connection(feed)) as messages:
                    yield from messages
            except ENDS as error:
                ended = error
            if not feed.over:
                time.sleep(feed.ended(ended))

    def _connection(self, feed: Feed[T]) -> Messages[T]:
        with self._http.stream(**feed.request(self._http.timeout)) as response:
            if not response.is_success:
                response.read()
            item = feed.opened(response)
            if item is not None:
                yield item
                return
            with closing(EventSource(response).iter_sse()) as messages:  # type: ignore[type-var]
                for message in messages:
                    item = feed.message(message)
                    if item is not None:
                        yield item


class AsyncClient(Methods):
    """Asynchronous client of one service; use it as an asynchronous context manager.

    Arguments and errors are those of `Client`.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = 65.0,
        retry_for_s: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ):
        """Connect lazily."""
        self.url = url.rstrip("/")
        self._retry_for_s = retry_for_s
        options = retry.http_options(self.url, api_key, timeout_s)
        self._http = httpx.AsyncClient(transport=transport, **options)

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def wait_ready(self, wait_s: float) -> None:
        """Wait until the service is ready; raises `Unavailable` if it is not in time."""
        await self.call(READY, wait_s)

    @overload
    async def observe(
        self,
        stream: str,
        observations: Observed,
        *,
        key: str | None = ...,
        **options: Unpack[calls.AnswerOptions],
    ) -> Answer: ...
    @overload
    async def observe(
        self,
        stream: str,
        observations: Sequence[Observed],
        *,
        key: str | None = ...,
        **options: Unpack[calls.AnswerOptions],
    ) -> list[Answer]: ...
    async def observe(
        self,
        stream: str,
        observations: Observed | Sequence[Observed],
        *,
        key: str | None = None,
        **options: Unpack[calls.AnswerOptions],
    ) -> Answer | list[Answer]:
        """Post one observation, or a list of them in order: see `Client.observe`."""
        call = calls.observed(stream, observations, options, key)
        answer: Answer | list[Answer] = await self.call(call)
        return answer

    async def call(self, call: Call[T], retry_for_s: float | None = None) -> T:
        """Carry out one described call, with retries."""
        limit_s = self._retry_for_s if retry_for_s is None else retry_for_s
        plan = retry.plan(call, self.url, limit_s)
        return await self._carry_out(plan, self._request, httpx.TransportError)

    async def run(self, plan: Calls[T]) -> T:
        """Carry out several calls that depend on each other."""
        return await self._carry_out(plan, self.call, ClientError)

    @staticmethod
    def _answered(describe: Callable[..., Any]) -> Callable[..., Any]:
        async def method(self: AsyncClient, *arguments: Any, **options: Any) -> Any:
            described = describe(self, *arguments, **options)
            one = isinstance(described, Call)
            return await (self.call(described) if one else self.run(described))

        return method

    async def _request(self, request: Request) -> httpx.Response:
        return await self._http.request(**request.arguments)

    async def _carry_out(
        self,
        plan: Generator[S | Pause, Any, T],
        send: Callable[[S], Awaitable[Any]],
        failures: type[Exception],
    ) -> T:
        """Send the steps of a plan, and the plan their results, to its end."""
        try:
            step = next(plan)
            while True:
                if isinstance(step, Pause):
                    await _sleep(step.seconds)
                    step = next(plan)
                    continue
                try:
                    result = await send(step)
                except failures as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(result)
        except StopIteration as done:
            outcome: T = done.value
            return outcome

    async def _pages(self, pages: Pages[T]) -> AsyncMessages[T]:
        call: Call[Any] | None = pages.first
        while call is not None:
            page = await self.call(call)
            call = calls.following(call, page)
            for item in pages.items(page):
                yield item

    async def _messages(self, feed: Feed[T]) -> AsyncMessages[T]:
        while not feed.over:
            ended: Exception | None = None
            try:
                async with aclosing(self._connection(feed)) as messages:
                    async for message in messages:
                        yield message
            except ENDS as error:
                ended = error
            if not feed.over:
                await _sleep(feed.ended(ended))

    async def _connection(self, feed: Feed[T]) -> AsyncMessages[T]:
        async with self._http.stream(**feed.request(self._http.timeout)) as response:
            if not response.is_success:
                await response.aread()
            item = feed.opened(response)
            if item is not None:
                yield item
                return
            async with aclosing(EventSource(response).aiter_sse()) as messages:
                async for message in messages:
                    item = feed.message(message)
                    if item is not None:
                        yield item
