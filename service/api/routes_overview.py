"""Many streams at a glance, for pages that list them."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from service import views
from service.api.forms import query
from service.api.http import context_of, json_response
from service.api.store import from_store, without
from service.questions import OverviewQuery

_encode = msgspec.json.Encoder().encode


async def overview(request: Request) -> Response:
    """Return streams at a glance, page by page: regime, last change and last labels of each.

    A page is not of one moment, and a stream that is deleted meanwhile is missing from it.
    """
    context = context_of(request)
    form = query(OverviewQuery, request.query_params.multi_items())
    store = context.store
    names, cursor = await from_store(store.names(form.prefix, form.cursor, form.limit))
    pairs = [(context.gateway.partition(name), name) for name in names]
    rows, unreadable = await from_store(store.overview(pairs, form.labels))
    total = await from_store(store.count(form.prefix))
    streams = [views.glance(row.stream, row.head, row.labels) for row in rows]
    answer = {"streams": streams, "total": total, "cursor": cursor}
    return json_response(_encode(answer | without(unreadable, "overview")))
