"""Prometheus: samples in by remote write, results out to be scraped."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import Query
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response

from service.api.gateway import remote_write, results
from service.api.gateway.remote_write import MAX_REFUSED, StreamWrite, Tally
from service.api.http import Context, apart, context_of, header, problem, raw, read_as_sent
from service.api.parsing.remote_write import Assignment, Version, parse, version_of
from service.observability import metrics
from service.problems import SamplesDeferred, SamplesRejected, ServiceError
from service.schema.queries import ResultsQuery


@raw
async def write_samples(request: Request) -> Response:
    """Receive samples of Prometheus remote write, 1.0 or 2.0.

    Rules (`prometheus_rules`) decide which series become streams; their labels become tags. A
    sample counts if it is the first of its series in an interval of time, and is skipped otherwise,
    so that repeats have no effect. Staleness markers and other values that are no numbers are
    skipped, or missing labels of a stream without an interval. Histograms and exemplars are
    ignored. 400: some samples can never be taken, and all others were; 503: send the whole request
    again.
    """
    context = context_of(request)
    kind, encoding = (
        (header(request.scope, name) or b"").decode("latin-1")
        for name in (b"content-type", b"content-encoding")
    )
    version = version_of(kind, encoding or "snappy")
    body = await read_as_sent(request)
    limits = context.settings.max_body_bytes, context.settings.max_observations

    def assignment_of_body() -> Assignment:
        write = parse(body, version, *limits)
        for ignored, count in (("histogram", write.histograms), ("exemplar", write.exemplars)):
            metrics.REMOTE_WRITE_IGNORED.labels(ignored).inc(count)
        return Assignment(write, context.series_rules, time.time_ns() // 1_000_000)

    assignment = await apart(context.thread, assignment_of_body)
    tally = await _applied(context, assignment)
    headers = {}
    if version is Version.V2:
        lost = sum(tally.counts[result] for result in ("rejected", "untried", "deferred"))
        written = assignment.total - lost
        counts = {"Samples": written, "Histograms": 0, "Exemplars": 0}
        headers = {f"X-Prometheus-Remote-Write-{n}-Written": str(c) for n, c in counts.items()}
    error = _error(assignment.total, tally)
    return Response(status_code=204, headers=headers) if error is None else problem(error, headers)


async def show_results(request: Request, query: Annotated[ResultsQuery, Query()]) -> Response:
    """Return forecasts, anomaly and probability of a change of streams, to be scraped.

    In Prometheus's text format, labelled with the streams' tags and ids. The forecast is that of
    the last label, made before it came. At most `max_result_streams` streams; those without an
    observation for five minutes, or three intervals, are left out.
    """
    context = context_of(request)
    limit = context.settings.max_result_streams
    samples = await results.results(context.store, context.gateway, query.match, limit)
    content = await asyncio.to_thread(results.exposition, samples)
    return Response(content, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


async def _applied(context: Context, assignment: Assignment) -> Tally:
    """Return what became of all samples."""
    writes = [
        StreamWrite(
            stream,
            samples.target.settings,
            samples.observations,
            context.observation_parser.parts(samples.observations),
        )
        for stream, samples in assignment.streams.items()
        if samples.observations
    ]
    tally = Tally()
    tally.add("unmatched", assignment.unmatched)
    tally.fail("rejected", assignment.rejected, assignment.reason)
    await remote_write.run(context.gateway, writes, tally)
    for result, count in tally.counts.items():
        metrics.REMOTE_WRITE_SAMPLES.labels(result).inc(count)
    return tally


def _error(total: int, tally: Tally) -> ServiceError | None:
    deferred = tally.counts["deferred"]
    rejected = tally.counts["rejected"]
    if deferred:
        detail = f"{deferred} of {total} samples were not taken: {tally.reason}"
        return SamplesDeferred(f"{detail}; send the request again", deferred=deferred)
    if rejected:
        untried = tally.counts["untried"]
        detail = f"{rejected} of {total} samples cannot be taken: {tally.reason}"
        if untried:
            detail += (
                f"; {untried} more were not tried, after {MAX_REFUSED} of their stream were refused"
            )
        return SamplesRejected(detail, rejected=rejected, untried=untried)
    return None
