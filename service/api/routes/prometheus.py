"""Prometheus: samples in by remote write, results out to be scraped."""

from __future__ import annotations

import asyncio

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response

from service.api.gateway import results
from service.api.http import context_of, problem, read_as_sent, read_query
from service.api.parsing import remote_write
from service.api.parsing.bodies import apart, header
from service.api.parsing.remote_write import Version
from service.api.routes.remote_write import RemoteWrite
from service.errors.base import SamplesDeferred, SamplesRejected, ServiceError
from service.observability import metrics
from service.schema.queries import ResultsQuery


async def write_samples(request: Request) -> Response:
    """Receive samples of Prometheus remote write, 1.0 or 2.0.

    Rules (`prometheus_rules`) decide which series become streams; their labels become tags. A
    sample counts if it is the first of its series in an interval of time, and is skipped otherwise,
    so that repeats have no effect. Staleness markers and other values that are no numbers are
    missing labels. Histograms and exemplars are ignored. 400: some samples can never be taken, and
    all others were; 503: send the whole request again.
    """
    context = context_of(request)
    kind, encoding = (
        (header(request.scope, name) or b"").decode("latin-1")
        for name in (b"content-type", b"content-encoding")
    )
    version = remote_write.version_of(kind, encoding or "snappy")
    body = await read_as_sent(request)
    limits = context.settings.max_body_bytes, context.settings.max_observations

    def prepared() -> RemoteWrite:
        write = remote_write.parse(body, version, *limits)
        for ignored, count in (("histogram", write.histograms), ("exemplar", write.exemplars)):
            metrics.REMOTE_WRITE_IGNORED.labels(ignored).inc(count)
        return RemoteWrite(write, context.series_rules)

    write = await apart(context.thread, prepared)
    await write.run(context)
    headers = {}
    if version is Version.V2:
        counts = {"Samples": write.written, "Histograms": 0, "Exemplars": 0}
        headers = {f"X-Prometheus-Remote-Write-{n}-Written": str(c) for n, c in counts.items()}
    error = _error(write)
    return Response(status_code=204, headers=headers) if error is None else problem(error, headers)


async def show_results(request: Request) -> Response:
    """Return forecasts, anomaly and probability of a change of streams, to be scraped.

    In Prometheus's text format, labelled with the streams' tags and ids. The forecast is that of
    the last label, made before it came. At most `max_result_streams` streams; those without an
    observation for five minutes, or three intervals, are left out.
    """
    context, query = context_of(request), read_query(request, ResultsQuery)
    limit = context.settings.max_result_streams
    found = await results.results(context.store, context.gateway, query.match, limit)
    content = await asyncio.to_thread(results.exposition, found)
    return Response(content, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def _error(write: RemoteWrite) -> ServiceError | None:
    deferred, rejected = write.counts["deferred"], write.counts["rejected"]
    if deferred:
        detail = f"{deferred} of {write.total} samples were not taken: {write.reason}"
        return SamplesDeferred(f"{detail}; send the request again", deferred=deferred)
    if rejected:
        detail = f"{rejected} of {write.total} samples cannot be taken: {write.reason}"
        return SamplesRejected(detail, rejected=rejected)
    return None
