"""The feed of changepoint events for consumers: server-sent events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from service import cursor
from service import metrics_feed as metrics
from service.api.event_stream import EventStream, Subscription
from service.api.field_errors import field_errors
from service.api.forms import check_parameters
from service.api.headers import header
from service.api.http import Context, context_of
from service.cursor import BadCursor, Positions
from service.errors import FieldError, InvalidField
from service.feed import Filter, Id
from service.queries import EventsQuery
from service.redis.keys import partition_of

EVERYTHING = "0"
REPEATED = frozenset(("stream", "prefix", "model", "state"))


async def events(request: Request) -> Response:
    """Follow changepoint events as they are raised.

    A message of type `changepoint` is one state that an event entered; its `data` has `stream`,
    `model`, `event`, `time` (of the observation, if it had one) and `at`. Its `id` is a cursor:
    sent back as `Last-Event-ID` it resumes right after that message. A message of type `gap` says
    that events since the cursor are kept no more. Filters of different names must all fit; of
    one that is given several times, any.
    """
    context = context_of(request)
    form = events_query(request.query_params.multi_items())
    wanted = Filter(
        frozenset(form.stream), tuple(form.prefix), frozenset(form.model), frozenset(form.state)
    )
    known, whole = _resume(request, form.after, context)
    hub, settings, total = context.hub, context.settings, context.settings.partitions
    await hub.ready()
    hub.connections.enter()
    partitions = {partition_of(each, total) for each in form.stream} or range(total)
    positions = Positions(partitions, total, hub.positions if known is None else known)
    subscription = Subscription(hub, wanted, positions, whole)
    beat_s, send_s = settings.events_heartbeat_s, settings.events_send_timeout_s
    chunks = subscription.chunks(beat_s)
    return EventStream(chunks, hub.connections.leave, send_s, metrics.EVENT_STREAMS_DROPPED)


def events_query(given: Iterable[tuple[str, str]]) -> EventsQuery:
    """Read the query, in which filters may be given several times."""
    given = list(given)
    check_parameters(given)
    read: dict[str, Any] = {}
    for name, value in given:
        if name in REPEATED:
            read.setdefault(name, []).append(value)
        else:
            read[name] = value
    try:
        return EventsQuery.model_validate(read)
    except ValidationError as error:
        raise InvalidField(field_errors(error, "query")) from None


def _resume(
    request: Request, after: str | None, context: Context
) -> tuple[dict[int, Id] | None, bool]:
    """Return where to go on, None for what comes, and whether everything retained is wanted.

    The header is a reconnection's, and wins.
    """
    given, loc = header(request.scope, b"last-event-id"), "header.last-event-id"
    text = given.decode("latin-1").strip() if given is not None else ""
    if not text:
        text, loc = after or "", "query.after"
    if not text:
        return None, False
    if text == EVERYTHING:
        return {}, True
    try:
        return cursor.parse(text, context.settings.partitions), False
    except BadCursor as error:
        raise InvalidField([FieldError(loc, str(error))]) from None
