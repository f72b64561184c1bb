"""What happens to streams: changes that were, events and observations as they come."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

import msgspec
from fastapi import Query
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import Response

from moca_client import responses
from moca_client.tables import change_lines
from service import problems, wire
from service.api import openapi
from service.api.context import Context
from service.api.http import LastEventId, StreamPath, context_of, json_response, submit_reruns
from service.api.parsing.bodies import CSV
from service.api.routes.calls import STORED, STREAM, Calls
from service.api.routes.streams import head_of
from service.api.sse import EventStream, Follower, Subscription, differs
from service.schema import queries
from service.schema.commands import IncidentExclusionForm
from service.store.keys import partition_of
from service.wire import Id, event_entries
from service.wire.event_entries import BadCursor, Positions

EVERYTHING = "0"
ALL_OBSERVATIONS = "-1"
_exclusion = msgspec.json.Decoder(responses.Exclusion).decode
_cursor = re.compile(r"(-1|[0-9]{1,16})(?:@([0-9]{1,10}))?").fullmatch
calls = Calls("events")


@calls.declare(
    "GET",
    "/v1/changes",
    responses.ChangesPage,
    (problems.InvalidField,),
    described=openapi.answer_or_table(responses.ChangesPage),
)
async def list_changes(
    request: Request, query: Annotated[queries.ChangesQuery, Query()]
) -> Response:
    """List changes of all streams: which, when, how big, how sure; page by page.

    They are those whose last states the event feed retains (`feed_events`), of streams deleted
    since, too. The time of a change, for `since`, `until` and `sort`, is when it was confirmed, or
    else suspected. Filters of different names must all match; of one that is given several times,
    any. `before`, `after` and `explanation` are computed of the history when they are read.
    """
    page = await context_of(request).changes.page(query, time.time())
    if query.format == "json":
        return json_response(page)
    headers = {}
    if page.cursor is not None:
        following = URL(scope=request.scope).include_query_params(cursor=page.cursor)
        headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
    return Response(change_lines(page.changes), headers=headers, media_type=CSV)


@calls.declare(
    "GET",
    "/v1/incidents",
    responses.IncidentsPage,
    (problems.InvalidField,),
)
async def list_incidents(
    request: Request, query: Annotated[queries.IncidentsQuery, Query()]
) -> Response:
    """List incidents: confirmed changes of several streams that began together, page by page.

    Changes are one incident if the intervals of their starts share a moment, and independent
    streams would show the like less often than once a day (`by_chance`). They are those that
    the event feed retains (`feed_events`). An incident is listed where one of its changes fits the
    filters, with all its changes. Its `id` stays while streams join it.
    """
    return json_response(await context_of(request).incidents.page(query, time.time()))


@calls.declare(
    "GET",
    "/v1/incidents/{incident}",
    responses.IncidentDetail,
    (problems.InvalidField, problems.NotFound),
)
async def get_incident(
    request: Request, incident: str, query: Annotated[queries.IncidentQuery, Query()]
) -> Response:
    """Return an incident with its changes: by its id, or that of any incident it has absorbed."""
    return json_response(await context_of(request).incidents.one(incident, query))


@calls.declare(
    "POST",
    "/v1/incidents/{incident}/exclusions",
    responses.IncidentExclusion,
    (problems.InvalidField, problems.NotFound),
)
async def exclude_incident(
    request: Request,
    incident: str,
    form: IncidentExclusionForm,
    query: Annotated[queries.IncidentKindsQuery, Query()],
) -> Response:
    """Exclude the changes of an incident from learning: each of its streams is rerun without.

    As `POST /v1/streams/{stream}/exclusions` with each of the changes. A stream that fails is
    named with the reason; the others are done.
    """
    context = context_of(request)
    found = await context.incidents.found(incident, queries.kinds_of(query.kind))
    commands = [
        wire.Exclude(change.stream, form.excluded, event=change.event.id)
        for change in found.changes
    ]
    reruns = await submit_reruns(context, commands)
    done = [_exclusion(rerun) for rerun in reruns if isinstance(rerun, bytes)]
    failed: list[Any] = [rerun for rerun in reruns if not isinstance(rerun, bytes)]
    return json_response(responses.IncidentExclusion(found.id, form.excluded, done, failed))


@calls.declare(
    "GET",
    "/v1/events",
    None,
    (problems.InvalidField, problems.TooManyEventStreams),
    described=openapi.EVENT_MESSAGES,
)
async def events(
    request: Request,
    query: Annotated[queries.EventsQuery, Query()],
    last_event_id: LastEventId = "",
) -> Response:
    """Subscribe to events: changepoints, and anomalies if `kind` names them (server-sent events).

    A message of type `changepoint` is one state change of an event; its `data` has `stream`,
    `model`, `event`, `time` (of the observation, if it had one) and `at`. Its `id` is a cursor:
    send it as `Last-Event-ID` to resume right after that message. A message of type `gap` says that
    events after the cursor are no longer retained. Filters of different names must all match;
    of one that is given several times, any. A message of type `anomaly` is an anomaly event.
    With `incidents`, one of type `incident` comes before confirmed changes that are part of one, as
    `GET /v1/incidents` has it then; it has no `id`.
    """
    context = context_of(request)
    filter_ = query.filter(
        queries.kinds_of(query.kind), frozenset(query.state), frozenset(query.stream)
    )
    resumed, whole = _resume(last_event_id, query.after, context)
    hub = context.event_hub
    total = context.settings.partitions
    await hub.ready()
    partitions = {partition_of(name, total) for name in query.stream} or range(total)
    positions = Positions(partitions, total, hub.positions if resumed is None else resumed)
    incidents = context.incidents if query.incidents else None
    return EventStream(Subscription(hub, filter_, positions, whole, incidents))


def _place(last_event_id: str, after: str | None) -> tuple[str, str]:
    """Return the cursor to resume after, and where it was given.

    The header, sent by a reconnecting client, takes precedence.
    """
    if text := last_event_id.strip():
        return text, "header.last-event-id"
    return after or "", "query.after"


def _resume(
    last_event_id: str, after: str | None, context: Context
) -> tuple[dict[int, Id] | None, bool]:
    """Return the positions to resume after and whether to send all retained events.

    None: new events only.
    """
    text, loc = _place(last_event_id, after)
    if not text:
        return None, False
    if text == EVERYTHING:
        return {}, True
    try:
        return event_entries.parse_cursor(text, context.settings.partitions), False
    except BadCursor as error:
        raise problems.InvalidField.at(loc, str(error)) from None


@calls.declare(
    "GET",
    f"{STREAM}/observations/live",
    None,
    (*STORED, problems.TooManyEventStreams, problems.StreamReplaced),
    described=openapi.EVENT_MESSAGES,
)
async def follow_observations(
    request: Request,
    stream: StreamPath,
    query: Annotated[queries.LiveQuery, Query()],
    last_event_id: LastEventId = "",
) -> Response:
    """Subscribe to a stream's observations as they are applied (server-sent events).

    A message of type `observation` is one record of the history; send its `id` as `Last-Event-ID`
    to resume right after it. One of type `gap` names observations that are not retained: from
    `start` to before `end`. One of type `end` is the last: the stream was `deleted`, or `replaced`
    by another of its name. With `state` the stream's summary is sent as a message of type `state`,
    at first and whenever it changed.
    """
    context = context_of(request)
    place = _resume_observations(last_event_id, query.after)
    head = await head_of(context, stream)
    at = _first(stream, head, place)
    full = query.detail == "full"
    follower = Follower(context.observation_hub, stream, head, at, query.state, full)
    await follower.ready()
    return EventStream(follower)


def _resume_observations(last_event_id: str, after: str | None) -> tuple[str, str | None] | None:
    """Return the position and generation to resume after; None: new observations only."""
    text, loc = _place(last_event_id, after)
    if not text:
        return None
    match = _cursor(text)
    if match is None:
        detail = "expected the id of a message, SEQ@GENERATION, or a seq; -1: everything retained"
        raise problems.InvalidField.at(loc, detail)
    return match[1], match[2]


def _first(stream: str, head: wire.Head, place: tuple[str, str | None] | None) -> int:
    """Return the `seq` of the first observation to send; raise StreamReplaced if there is none."""
    if place is None:
        return head.seq
    seq, generation = place
    if generation is None and seq == ALL_OBSERVATIONS:
        return head.retained_from
    at = int(seq) + 1
    if differs(head, head.generation if generation is None else int(generation), at):
        raise problems.StreamReplaced(
            f"the stream {stream!r} has no observation {seq} of that generation: it was "
            f"recreated, or restored to an earlier state. It is at seq {head.seq}; "
            "subscribe again",
            seq=head.seq,
        )
    return at
