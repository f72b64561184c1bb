"""`POST /v1/metrics`: metrics of OpenTelemetry, on the path of a remote write."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from service.api.http import Rendered, apart, context_of, header, raw, read_body
from service.api.parsing.otlp import answer, media_of, parse
from service.api.parsing.series import StreamAssignment
from service.api.routes.prometheus import apply_samples, refusal
from service.problems import SamplesDeferred


@raw
async def write_metrics(request: Request) -> Response:
    """Receive metrics of OpenTelemetry (OTLP/HTTP, protobuf or JSON): gauges and sums.

    Points are samples as those of a remote write: the same rules make them streams, and a repeat
    has no effect. Histograms and summaries are rejected. The answer says how many points can never
    be taken (`partial_success`); all others were. 503: send the whole request again.
    """
    context = context_of(request)
    settings = context.settings
    media = media_of((header(request.scope, b"content-type") or b"").decode("latin-1"))
    body = await read_body(request.scope, request.receive, settings.max_body_bytes)

    def assignment_of_body() -> StreamAssignment:
        write = parse(body, media, settings.max_observations)
        return StreamAssignment(write, context.series_rules, time.time_ns() // 1_000_000)

    assignment = await apart(context.thread, assignment_of_body)
    tally = await apply_samples(context, assignment)
    error = refusal(assignment.total, tally)
    if isinstance(error, SamplesDeferred):
        raise error
    rejected = tally.counts["rejected"] + tally.counts["untried"]
    return Rendered(answer(rejected, "" if error is None else error.detail, media), 200, media)
