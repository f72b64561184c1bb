"""The calendar: planned windows, in which streams learn nothing and confirm nothing."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import Response

from moca_client import responses
from service.api.http import context_of, json_response
from service.api.routes.calls import STORED, Calls
from service.api.routes.streams import head_of
from service.calendar import DAY_S, Calendar, check
from service.problems import InvalidField, NotFound
from service.schema import rendering
from service.schema.commands import WindowForm
from service.schema.queries import CalendarQuery, seconds_of
from service.store.reads import from_store
from service.wire import tags

MOST = 100  # occurrences of a window in an answer
LONGEST_S = 400 * DAY_S  # that occurrences are asked for
WindowPath = Annotated[
    str,
    Path(
        description="name of the window",
        pattern="^[A-Za-z0-9._-]{1,100}$",
        openapi_examples={"": {"value": "backups"}},
    ),
]
WINDOW = "/v1/calendar/{window}"

calls = Calls("events")


@calls.declare("GET", "/v1/calendar", responses.Calendar, STORED)
async def show_calendar(request: Request, query: Annotated[CalendarQuery, Query()]) -> Response:
    """List the windows of the calendar, and when they are from `since` to `until`.

    With `stream`: those for that stream, by its tags as they are now.
    """
    context = context_of(request)
    now_s = time.time()
    since_s = seconds_of(query.since, now_s)
    since_s = now_s if since_s is None else since_s
    until_s = seconds_of(query.until, now_s)
    until_s = since_s + 7 * DAY_S if until_s is None else until_s
    if not since_s <= until_s <= since_s + LONGEST_S:
        days = LONGEST_S // DAY_S
        raise InvalidField.at("query.until", f"expected at most {days} days after since")
    calendar: Calendar = await from_store(context.monitor.read_windows())
    windows = [*calendar.windows.values()]
    if query.stream is not None:
        head = await head_of(context, query.stream)
        own = head.settings.tags
        windows = [one for one in windows if tags.selected(one.match, query.stream, own)]
    names = {one.name for one in windows}
    times = [
        responses.WindowTime(
            span.window, rendering.instant(span.start_ms), rendering.instant(span.end_ms)
        )
        for span in calendar.occurrences(since_s, until_s, MOST)
        if span.window in names
    ]
    return json_response(responses.Calendar(windows, times))


@calls.declare("GET", WINDOW, responses.Window, (InvalidField, NotFound))
async def get_window(request: Request, window: WindowPath) -> Response:
    """Return a window of the calendar."""
    context = context_of(request)
    calendar: Calendar = await from_store(context.monitor.read_windows())
    found = calendar.windows.get(window)
    if found is None:
        raise NotFound(f"the calendar has no window {window!r}")
    return json_response(found)


@calls.declare("PUT", WINDOW, responses.Window)
async def put_window(request: Request, window: WindowPath, form: WindowForm) -> Response:
    """Set a window of the calendar; it is in force in every API process within seconds.

    Observations in it are kept, and excluded from learning: the regime before it goes on, and no
    change is confirmed. An observation is in it by its time, or else by when it was accepted. What
    was posted before stays as it was.
    """
    context = context_of(request)
    made = responses.Window(name=window, **form.model_dump())
    try:
        check(made)
    except ValueError as error:
        field, _, detail = str(error).partition(": ")
        raise InvalidField.at(f"body.{field}", detail) from None
    calendar: Calendar = await from_store(context.monitor.read_windows())
    known = calendar.windows
    most = context.settings.max_windows
    if window not in known and len(known) >= most:
        detail = f"the calendar has {len(known)} windows, at most {most}: delete one first"
        raise InvalidField.at("path.window", detail)
    await from_store(context.store.put_window(made))
    await from_store(context.monitor.read_windows())
    return json_response(made)


@calls.declare("DELETE", WINDOW, None, (InvalidField, NotFound), status=204)
async def delete_window(request: Request, window: WindowPath) -> Response:
    """Remove a window of the calendar; what it excluded stays excluded."""
    context = context_of(request)
    if not await from_store(context.store.delete_window(window)):
        raise NotFound(f"the calendar has no window {window!r}")
    await from_store(context.monitor.read_windows())
    return Response(status_code=204)
