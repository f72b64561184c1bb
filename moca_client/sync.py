"""The synchronous client, made from `asynchronous.py`: `make client`; edit that file."""

from __future__ import annotations

import time
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import closing
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import httpx
from httpx_sse import EventSource

from moca_client import bodies, calls, plans, retry
from moca_client.bodies import Observed
from moca_client.errors import ClientError
from moca_client.plans import DEFAULT_URL, Messages, Result
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
    ModelSummary,
    Overview,
    Predictions,
    RememberedRegime,
    RunLength,
    Snapshot,
    StreamChange,
    StreamEvent,
    StreamSummary,
    Verdict,
    WhatIf,
    Window,
)
from moca_client.retry import Call, Pause, Policy
from moca_client.subscriptions import ENDS, Ended, Events, Feed, Follow, Followed, Missed, Patience

if TYPE_CHECKING:
    from moca_client.frames import Answers

T = TypeVar("T")
P = TypeVar("P")
S = TypeVar("S")


class Client:
    """Synchronous client of one service; use it as a context manager.

    url: address of the service. api_key: sent as `Authorization: Bearer`; default: the variable
    MOCA_API_KEY. timeout_s: longest wait for an answer. retries, retry_for_s: at most so many
    tries after the first, and none that begins so many seconds after it; 0 for either: no retry.

    What fails raises ClientError; `moca_client.errors` has the tree.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = 65.0,
        retries: int = 20,
        retry_for_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ):
        """Connect lazily."""
        self._core = plans.Core(url, api_key, timeout_s, retries, retry_for_s)
        self._http = httpx.Client(transport=transport, **self._core.options())
        self.url = self._core.url

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
        self.call(calls.ready(), Policy(1_000_000, wait_s))

    # --- streams -----------------------------------------------------------------------------

    def put_stream(self, stream: str, settings: Mapping[str, Any] | None = None) -> StreamSummary:
        """Create the stream, or change the named settings of an existing one."""
        return self.call(calls.put_stream(stream, settings or {}))

    def stream(self, stream: str) -> StreamSummary:
        """Return the stream's summary; raises `UnknownStream` without one."""
        return self.call(calls.stream(stream))

    def streams(
        self, prefix: str = "", limit: int = 100, *, match: calls.Match = ()
    ) -> Iterator[str]:
        """Iterate over the ids of all streams that start with `prefix`, `limit` in a request.

        match: selector of streams by tags, such as `{job="node"}`, or several: of any of them.
        """
        return self._pages(plans.stream_pages(prefix, limit, match))

    def overview(
        self,
        prefix: str = "",
        *,
        contains: str = "",
        sort: str = "id",
        limit: int = 50,
        labels: int = 40,
        cursor: str | None = None,
    ) -> Overview:
        """Return one page of streams at a glance; its `cursor` leads to the next.

        contains: text anywhere in the id. sort: `id`, `changed_probability` (largest first) or
        `change` (newest first).
        """
        page = calls.OverviewPage(prefix, limit, labels, cursor, contains, sort)
        return self.call(calls.overview(page))

    def delete_stream(self, stream: str) -> None:
        """Delete the stream."""
        self.call(calls.delete_stream(stream))

    # --- observations ------------------------------------------------------------------------

    @overload
    def observe(
        self,
        stream: str,
        observations: Observed,
        *,
        detail: calls.Detail = ...,
        belief: bool = ...,
        components: bool = ...,
        quantiles: Sequence[float] | None = ...,
        key: str | None = ...,
    ) -> Answer: ...

    @overload
    def observe(
        self,
        stream: str,
        observations: Sequence[Observed],
        *,
        detail: calls.Detail = ...,
        belief: bool = ...,
        components: bool = ...,
        quantiles: Sequence[float] | None = ...,
        key: str | None = ...,
    ) -> list[Answer]: ...

    def observe(
        self,
        stream: str,
        observations: Observed | Sequence[Observed],
        *,
        detail: calls.Detail = "summary",
        belief: bool = False,
        components: bool = False,
        quantiles: Sequence[float] | None = None,
        key: str | None = None,
    ) -> Answer | list[Answer]:
        """Post one observation, or a list of them in order; a plain number is a label.

        An array or a column of a frame is a list, too: of labels, or of rows of several outputs.

        The same `key` and body sent again have no second effect; by default a new key is made,
        so only this call's own retries are recognised. `detail="full"`: answers also have log
        score, variance and run length. `belief`, `components`: they carry the whole belief, the
        mixture itself. `quantiles`: levels to answer.
        """
        options = calls.AnswerOptions(detail, belief, components, quantiles)
        if bodies.is_list(observations):
            return self.call(calls.observe_list(stream, observations, options, key))
        return self.call(calls.observe_one(stream, observations, options, key))

    def observe_many(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        detail: calls.Detail = "summary",
        belief: bool = False,
        components: bool = False,
        quantiles: Sequence[float] | None = None,
    ) -> list[Result]:
        """Post observations of many streams, each item with its `stream`, and a `key` if wanted.

        The result has an answer or a Problem at each item's place; it does not raise for items.
        """
        options = calls.AnswerOptions(detail, belief, components, quantiles)
        return self.run(plans.observe_many(bodies.items(items), options, self._core.policy))

    def observe_frame(
        self,
        frame: Any,
        *,
        stream: str | None = None,
        by: str | None = None,
        y: str | Sequence[str] | None = None,
        x: str | Sequence[str] | None = None,
        time: str | None = None,
        detail: calls.Detail = "summary",
        belief: bool = False,
        batch: int = 1000,
    ) -> Answers:
        """Post the rows of a pandas or polars frame in order, `batch` in a request.

        by: its column that names the stream of each row, in place of `stream`; the frame of
        the answers has the column as well. Columns not named are found as
        `moca replay` finds them: `y`, or `y1, y2, ...`; `x`; `time`.
        """
        from moca_client.frames import Source, observe_frame

        source = Source(frame, stream, by, y, x, time, batch)
        options = calls.AnswerOptions(detail, belief)
        return self.run(observe_frame(source, options))

    def observe_table(
        self,
        frame: Any,
        *,
        stream: str | None = None,
        by: str | None = None,
        y: str | Sequence[str] | None = None,
        x: str | Sequence[str] | None = None,
        time: str | None = None,
        detail: calls.Detail = "summary",
        batch: int = 1000,
    ) -> Any:
        """Post the rows of a frame as `observe_frame`; return the answers as a frame alone.

        They come by columns, in half the bytes, without beliefs.
        """
        from moca_client.frames import Source, observe_table

        source = Source(frame, stream, by, y, x, time, batch)
        options = calls.AnswerOptions(detail)
        return self.run(observe_table(source, options))

    # --- reads -------------------------------------------------------------------------------

    def predict(
        self,
        stream: str,
        x: Sequence[Sequence[float]] | None = None,
        *,
        quantiles: Sequence[float] | None = None,
        samples: int = 0,
        components: bool = False,
        elapsed: float | None = None,
        seed: int | None = None,
        horizon: int | None = None,
    ) -> Predictions:
        """Predict the next label, at each input if the model has any; changes nothing."""
        request = calls.PredictionRequest(x, quantiles, samples, components, elapsed, seed, horizon)
        return self.call(calls.predict(stream, request))

    def act(
        self,
        stream: str,
        candidates: Sequence[Sequence[float]],
        *,
        strategy: str = "thompson",
        samples: int | None = None,
        elapsed: float | None = None,
        seed: int | None = None,
    ) -> Action:
        """Choose one of the candidate inputs; changes nothing. `seed` None: drawn anew."""
        return self.call(calls.act(stream, candidates, strategy, samples, elapsed, seed))

    def run_length(self, stream: str) -> RunLength:
        """Return the stream's whole run-length belief."""
        return self.call(calls.run_length(stream))

    def put_run_length(
        self,
        stream: str,
        belief: Mapping[int, float] | None = None,
        *,
        changepoint: float | None = None,
        seq: int | None = None,
    ) -> RunLength:
        """Override the belief: probabilities by run length, or that of a change coming next.

        With the position `seq` it is meant for it is safe to retry, and is retried.
        """
        return self.call(calls.put_run_length(stream, belief, changepoint, seq))

    def regimes(self, stream: str) -> list[RememberedRegime]:
        """Return the regimes that the stream remembers, by id: see its setting `regimes`."""
        return (self.call(calls.regimes(stream))).regimes

    def name_regime(self, stream: str, regime: int, name: str | None) -> RememberedRegime:
        """Give a remembered regime a name, by its id; None takes the name away."""
        return self.call(calls.name_regime(stream, regime, name))

    def what_if(self, stream: str, body: Mapping[str, Any]) -> WhatIf:
        """Rerun the retained history with other settings or another model; changes nothing."""
        return self.call(calls.what_if(stream, body))

    def changepoints(
        self, stream: str, *, kinds: Sequence[str] = (), states: Sequence[str] = ()
    ) -> Changepoints:
        """Return the stream's events and segmentation.

        kinds: `change`, `returned`, `anomaly` or `all`; default: all changes. states: default:
        without withdrawn events.

        `hindsight` says how far that is one in hindsight. While its status is `pending`, a worker
        computes it: ask again.
        """
        return self.call(calls.changepoints(stream, kinds, states))

    def changes(
        self,
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        kinds: Sequence[str] = (),
        states: Sequence[str] = (),
        model: str | None = None,
        prefix: str | None = None,
        contains: str | None = None,
        min_size: float | None = None,
        min_evidence: float | None = None,
        sort: str = "time",
        limit: int = 100,
        around: int = 0,
        match: calls.Match = (),
    ) -> Iterator[StreamChange]:
        """Iterate over the changes of all streams, `limit` in a request.

        since, until: an RFC 3339 time, an age such as "24h", or a datetime with a time zone. sort:
        `time` (newest first), `size` or `evidence`. contains: text anywhere in the id. kinds:
        `change`, to a new regime, `returned`, to a remembered one, or `all`; default: `change`.
        states: default: without withdrawn changes. around: values on both sides of a start, at most
        100. match: selector of streams by tags, such as `{job="node"}`, or several: of any of them.
        """
        request = calls.ChangesRequest(
            since=since,
            until=until,
            kind=kinds,
            state=states,
            model=model,
            prefix=prefix,
            contains=contains,
            min_size=min_size,
            min_evidence=min_evidence,
            sort=sort,
            limit=limit,
            around=around,
            match=match,
        )
        return self._pages(plans.change_pages(request))

    def incidents(
        self,
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        model: str | None = None,
        prefix: str | None = None,
        contains: str | None = None,
        min_streams: int = 2,
        min_size: float | None = None,
        sort: str = "time",
        limit: int = 100,
        match: calls.Match = (),
    ) -> Iterator[Incident]:
        """Iterate over incidents: changes of several streams that began together.

        since, until: as of `changes`, of when an incident began. model, prefix, contains, match: of
        one of its streams at least, min_size of one of its changes. sort: `time` (newest first)
        or `streams`.
        """
        request = calls.IncidentsRequest(
            since=since,
            until=until,
            model=model,
            prefix=prefix,
            contains=contains,
            min_streams=min_streams,
            min_size=min_size,
            sort=sort,
            limit=limit,
            match=match,
        )
        return self._pages(plans.incident_pages(request))

    def incident(self, id: str, *, around: int = 0) -> IncidentDetail:
        """Return an incident with its changes, the largest first.

        around: so many values on both sides of each start are returned, too.
        """
        return self.call(calls.incident(id, around))

    def judge(self, stream: str, event: int, change: bool) -> Verdict:
        """Give feedback on an event: whether it was a change. The stream is rerun with it."""
        return self.call(calls.judge(stream, event, change))

    def report_change(self, stream: str, start: int) -> Verdict:
        """Report a missed changepoint; `start` is the first observation of the new regime."""
        return self.call(calls.report_change(stream, start))

    def exclude(
        self,
        stream: str,
        *,
        event: int | None = None,
        start: int | None = None,
        end: int | None = None,
        excluded: bool = True,
    ) -> Exclusion:
        """Exclude observations from learning: the regime before them goes on after them.

        They begin with a change, by its `event`, or at `start`, and end before `end`: by default
        where the next confirmed change begins, or with the last one so far. excluded: False: they
        count again.
        """
        return self.call(calls.exclude(stream, event, start, end, excluded))

    def exclude_incident(self, id: str, *, excluded: bool = True) -> IncidentExclusion:
        """Exclude the changes of an incident from learning, as `exclude` does each of them."""
        return self.call(calls.exclude_incident(id, excluded))

    def calendar(
        self,
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        stream: str | None = None,
    ) -> Calendar:
        """Return the windows of the calendar, and when they are from `since` to `until`.

        By default from now on for 7 days. stream: only those for this one.
        """
        return self.call(calls.calendar(since, until, stream))

    def put_window(
        self,
        name: str,
        *,
        start: str,
        end: str,
        time_zone: str = "UTC",
        repeat: str = "",
        match: Sequence[str] = (),
        note: str = "",
    ) -> Window:
        """Set a window of the calendar: streams learn nothing in it, and confirm nothing.

        start, end: local times without a zone, or dates. repeat: a rule of RFC 5545 such as
        FREQ=WEEKLY;BYDAY=SA. match: selectors of streams; none: all streams.
        """
        body = {
            "start": start,
            "end": end,
            "time_zone": time_zone,
            "repeat": repeat,
            "match": list(match),
            "note": note,
        }
        return self.call(calls.put_window(name, body))

    def window(self, name: str) -> Window:
        """Return a window of the calendar."""
        return self.call(calls.window(name))

    def delete_window(self, name: str) -> None:
        """Remove a window of the calendar; what it excluded stays excluded."""
        self.call(calls.delete_window(name))

    def history(
        self, stream: str, *, start: int | None = 0, limit: int = 500
    ) -> Iterator[HistoryPage]:
        """Iterate over the pages of the history, oldest first; `start` None: the latest page."""
        return self._pages(plans.history_pages(stream, start, limit))

    # --- snapshots, models, events -----------------------------------------------------------

    def snapshot(self, stream: str) -> Snapshot:
        """Return the stream's whole state, for `put_snapshot`."""
        return self.call(calls.snapshot(stream))

    def put_snapshot(
        self, stream: str, snapshot: Snapshot, *, replace: bool = False
    ) -> StreamSummary:
        """Create the stream from a snapshot; `replace`: also if it exists."""
        return self.call(calls.put_snapshot(stream, snapshot, replace))

    def models(self) -> list[ModelSummary]:
        """Return all models."""
        answer = self.call(calls.models())
        return answer.models

    def model(self, name: str) -> ModelDetail:
        """Return one model with all its versions."""
        return self.call(calls.model(name))

    def move_model(self, stream: str, model: str) -> StreamSummary:
        """Move the stream to another model, or version, by replay."""
        return self.call(calls.move_model(stream, model))

    def events(
        self,
        *,
        stream: str | None = None,
        prefix: str | None = None,
        model: str | None = None,
        states: Sequence[str] = (),
        kinds: Sequence[str] = (),
        match: calls.Match = (),
        incidents: bool = False,
        after: str | None = None,
        silence_s: float = 60.0,
        retry_for_s: float | None = 60.0,
    ) -> Messages[StreamEvent | Incident | Gap]:
        """Iterate over events as they are raised, forever, across disconnects.

        kinds: `change`, `returned`, `anomaly` or `all`; default: `change`. match: selector of
        streams by tags, such as `{job="node"}`, or several: of any of them. incidents: whether an
        `Incident` comes before the confirmed changes that are part of one. after: the `cursor` of
        an event to resume after; "0": everything retained; None: only new ones. silence_s: a
        connection without any message or heartbeat for this long is closed. retry_for_s: raise
        `Unavailable` after failing to connect for this long; None: never.
        """
        patience = Patience(silence_s, retry_for_s, self._core.timeout_s)
        feed = Events(
            stream=stream,
            prefix=prefix,
            model=model,
            states=states,
            kinds=kinds,
            match=match,
            incidents=incidents,
            after=after,
            patience=patience,
        )
        return self._messages(feed)

    def follow(
        self,
        stream: str,
        *,
        after: int | str | None = None,
        silence_s: float = 60.0,
        retry_for_s: float | None = 60.0,
    ) -> Messages[Followed | Missed | Ended]:
        """Iterate over the stream's observations as they are applied, across disconnects.

        after: the `seq` or `cursor` to resume after; -1: everything retained; None: only new ones.
        Ends with an `Ended` when the stream is deleted or replaced. silence_s, retry_for_s: as of
        `events`.
        """
        patience = Patience(silence_s, retry_for_s, self._core.timeout_s)
        return self._messages(Follow(stream, after, patience))

    # --- how calls are carried out: what to do next is decided by plans ----------------------

    def call(self, call: Call[T], policy: Policy | None = None) -> T:
        """Carry out one described call, with retries."""
        plan = retry.plan(call, policy or self._core.policy)
        return self._carry_out(plan, self._request, httpx.TransportError)

    def run(self, plan: plans.Calls[T]) -> T:
        """Carry out several calls that depend on each other."""
        return self._carry_out(plan, self.call, ClientError)

    def _request(self, request: retry.Request) -> httpx.Response:
        return self._http.request(
            request.method,
            request.path,
            params=tuple(request.params) or None,
            headers=request.headers,
            content=request.content,
        )

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

    def _pages(self, pages: plans.Pages[P, T]) -> Iterator[T]:
        call: Call[P] | None = pages.first
        while call is not None:
            page = self.call(call)
            call = pages.following(page)
            for item in pages.items(page):
                yield item

    def _messages(self, feed: Feed[T]) -> Messages[T]:
        while not feed.over:
            ended: Exception | None = None
            try:
                with closing(self._connection(feed)) as messages:
                    for message in messages:
                        yield message
            except ENDS as error:
                ended = error
            if not feed.over:
                time.sleep(feed.ended(ended))

    def _connection(self, feed: Feed[T]) -> Messages[T]:
        with self._http.stream(**feed.request()) as response:
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
