"""POST observations: one, a list for one stream, or items for many streams."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from service import wire
from service.api.http import (
    Context,
    Listed,
    checked_stream,
    context_of,
    key_of,
    outcome_response,
    parse_body,
    raw,
    read_json,
)
from service.api.parsing.bodies import NDJSON
from service.api.parsing.observations import Observations, digest, list_digest, observe_query
from service.api.routes.bulk import Bulk
from service.problems import PROBLEM_JSON, FieldError, InvalidField, ServiceError

_encode = msgspec.json.Encoder().encode


@raw
async def observe(request: Request) -> Response:
    """Post one observation, or an ordered list of them."""
    context = context_of(request)
    stream = checked_stream(request.scope["path_params"]["stream"])
    options = _template(request) if request.scope["query_string"] else wire.Observe("", [])
    key = key_of(request)
    body, _ = await read_json(request)
    form = await parse_body(context, context.observation_parser.observations, body)
    template = replace(options, stream=stream, key=key, seq=form.seq)
    if form.many:
        request.scope["state"]["list"] = True
        size, count = context.observation_parser.parts(form.observations), len(form.observations)
        read = partial(list_digest, count=count, size=size)
        template.digest = None if key is None else await parse_body(context, read, body)
        return await _observe_list(context, template, form, size)
    template.digest = None if key is None else await parse_body(context, digest, body)
    template.observations = form.observations
    return outcome_response(await context.gateway.submit(template))


@raw
async def observe_many(request: Request) -> Response:
    """Post observations of many streams; each item gets its own status."""
    context = context_of(request)
    if key_of(request) is not None:
        # Ignored, it would promise a safe retry that is none.
        detail = "not allowed for many streams: give each item its own `key`"
        raise InvalidField([FieldError("header.idempotency-key", detail)])
    template = _template(request)
    body, lines = await read_json(request, lines=True)
    items = await parse_body(context, partial(context.observation_parser.items, lines=lines), body)
    rendered = await Bulk(context, items, template).run()
    if lines:
        return Listed(rendered, (b"", b"\n", b"\n" if rendered else b""), media_type=NDJSON)
    return Listed(rendered)


def _template(request: Request) -> wire.Observe:
    """Return a command without observations, with the answer options of the query."""
    form = observe_query(request.query_params.multi_items())
    return wire.Observe(
        "", [], belief=form.belief, components=form.components, quantiles=form.quantiles
    )


async def _observe_list(
    context: Context, template: wire.Observe, form: Observations, size: int
) -> Response:
    """Apply a list in parts of `size`, in order; not atomic."""
    answers: list[bytes] = []
    patience = context.gateway.patience()
    for first in range(0, len(form.observations), size):
        part = form.observations[first : first + size]
        command = replace(
            template,
            observations=part,
            first=first,
            seq=None if template.seq is None else template.seq + first,
        )
        try:
            # The queue shields the append: a client that disconnects does not undo its request.
            outcome = await context.gateway.submit(command, first > 0, patience)
        except ServiceError as error:
            return _stopped(error.status, error.document(), answers, error.headers())
        if outcome.status >= 400:
            answers += outcome.body[:-1]
            return _stopped(outcome.status, msgspec.json.decode(outcome.body[-1]), answers, {})
        answers += outcome.body
        await asyncio.sleep(0)
    return Listed(answers)


def _stopped(
    status: int, document: dict[str, Any], answers: list[bytes], headers: Mapping[str, str]
) -> Response:
    """Return the response for a list applied in part: the answers so far, and the error."""
    document["applied"] = len(answers)
    before = _encode(document)[:-1] + b',"answers":['
    return Listed(answers, (before, b",", b"]}"), status, headers, PROBLEM_JSON)
