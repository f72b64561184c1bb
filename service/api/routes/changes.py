"""Changes of all streams."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from fastapi import Query
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import Response

from moca_client.tables.changes import lines
from service.api.http import context_of, json_response
from service.api.parsing.bodies import CSV
from service.schema.queries import ChangesQuery

_encode = msgspec.json.Encoder().encode


async def list_changes(request: Request, query: Annotated[ChangesQuery, Query()]) -> Response:
    """List changes of all streams: which, when, how big, how sure; page by page.

    They are those whose last states the event feed retains (`feed_events`), of streams deleted
    since, too. The time of a change, for `since`, `until` and `sort`, is when it was confirmed, or
    else suspected. Filters of different names must all match; of one that is given several times,
    any. `before`, `after` and `explanation` are computed of the history when they are read.
    """
    page = await context_of(request).changes.page(query, time.time())
    if query.format == "json":
        return json_response(_encode(page))
    headers = {}
    if page.cursor is not None:
        following = URL(scope=request.scope).include_query_params(cursor=page.cursor)
        headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
    return Response(lines(page.changes), headers=headers, media_type=CSV)
