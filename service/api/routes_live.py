"""The observations of one stream as they come: server-sent events."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response

from service import metrics_feed as metrics
from service import wire
from service.api.event_stream import EventStream
from service.api.forms import query
from service.api.headers import header
from service.api.http import context_of, stream_of
from service.api.live_stream import Follower, differs
from service.api.routes_streams import head_of
from service.errors import FieldError, InvalidField
from service.queries import LiveQuery
from service.unfit import StreamReplaced

EVERYTHING = "-1"
_cursor = re.compile(r"(-1|[0-9]{1,16})(?:@([0-9]{1,10}))?").fullmatch


async def follow_observations(request: Request) -> Response:
    """Follow a stream's observations as they are applied.

    A message of type `observation` is what the history says of one observation; its `id`, sent
    back as `Last-Event-ID`, resumes right after it. One of type `gap` names observations that are
    not retained: from `start` to before `end`. One of type `end` says that the stream was
    `deleted`, or `replaced` by another of its name, and is the last. With `state` the stream's
    summary comes as a message of type `state`, at first and whenever it changed.
    """
    context, stream = context_of(request), stream_of(request)
    form = query(LiveQuery, request.query_params.multi_items())
    place = _resume(request, form.after)
    head = await head_of(context, stream)
    at = _start(stream, head, place)
    live, settings = context.live, context.settings
    follower = Follower(live, live.enter(stream, head), head.generation, at, form.state)
    await follower.ready()
    return EventStream(
        follower.chunks(settings.events_heartbeat_s),
        follower.leave,
        settings.events_send_timeout_s,
        metrics.LIVE_DROPPED,
    )


def _resume(request: Request, after: str | None) -> tuple[str, str | None] | None:
    """Return position and life to go on after; None for what comes. The header wins."""
    given, loc = header(request.scope, b"last-event-id"), "header.last-event-id"
    text = given.decode("latin-1").strip() if given is not None else ""
    if not text:
        text, loc = after or "", "query.after"
    if not text:
        return None
    found = _cursor(text)
    if found is None:
        detail = "expected the id of a message, SEQ@LIFE, or a seq; -1: everything retained"
        raise InvalidField([FieldError(loc, detail)])
    return found[1], found[2]


def _start(stream: str, head: wire.Head, place: tuple[str, str | None] | None) -> int:
    """Return the `seq` of the first observation to send; StreamReplaced where it cannot be."""
    if place is None:
        return head.seq
    seq, life = place
    if life is None and seq == EVERYTHING:
        return max(0, head.seq - head.settings.history)
    at = int(seq) + 1
    if differs(head, head.generation if life is None else int(life), at):
        raise StreamReplaced(
            f"the stream {stream!r} has no observation {seq} of that life: it was made anew, or"
            f" put back to an earlier state. It is at seq {head.seq}; follow it anew",
            seq=head.seq,
        )
    return at
