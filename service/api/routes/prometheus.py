"""Prometheus and OpenTelemetry: samples in by remote write and OTLP, results out to be scraped."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from itertools import chain
from typing import Annotated, Any

import msgspec
import numpy as np
from fastapi import Query
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import Response

from moca_client.responses import Ingested
from service import problems, wire
from service.api import openapi
from service.api.context import Context
from service.api.gateway.gateway import Gateway, Group, Result, RowsResult, Waves, submit_waves
from service.api.gateway.pages import SelectedStream, select
from service.api.http import (
    Rendered,
    context_of,
    document_of,
    header_text,
    problem,
    read_body,
)
from service.api.parsing.samples import (
    Version,
    media_of,
    metrics_answer,
    parse_known,
    parse_metrics,
    parse_write,
    version_of,
)
from service.api.parsing.series import RemoteWrite, SampleTally, StreamAssignment, Target
from service.api.routes.calls import Calls
from service.api.routes.observations import pick
from service.observability import metrics
from service.schema.queries import RESULT_SERIES, ResultsQuery
from service.store.reads import AsyncStore, Recent, from_store, without
from service.tasks import apart
from service.wire import tags

AGAIN = frozenset((429, 503, 504))  # statuses after which the same command may yet be taken
# Errors of one observation: others of its command may be taken. All others are of the stream.
# Labels that the model cannot produce are none of these: the worker leaves them out.
OF_ONE = frozenset(
    problems.TYPE_PREFIX + error.slug
    for error in (problems.LabelOutOfRange, problems.NumericalFault, problems.Quarantined)
)
NO_STREAM = problems.TYPE_PREFIX + problems.UnknownStream.slug
MAX_REFUSED = 20  # samples of a stream that are looked for in a request: each takes some commands
# A stream is left out so long after its last observation, by whichever of them is longer.
QUIET_S = 300.0
QUIET_INTERVALS = 3
READ_AT_ONCE = 500  # streams
OUTPUT = "output"  # label of the number in a label of several
ResultSample = tuple[str, dict[str, str], float]
# Most streams of a request come to the same, and share the text that says so.
_ingested = lru_cache(256)(msgspec.json.Decoder(Ingested).decode)
# To find a metric costs more than to count.
_counter = cache(metrics.REMOTE_WRITE_SAMPLES.labels)
calls = Calls("prometheus")


@calls.declare(
    "POST",
    "/v1/prometheus/write",
    None,
    (problems.SamplesDeferred, problems.SamplesRejected),
    body=openapi.WRITE_BODY,
    status=204,
    described=openapi.WRITTEN,
)
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
        header_text(request.scope, name) for name in (b"content-type", b"content-encoding")
    )
    version = version_of(kind, encoding)
    limit = context.settings.max_body_bytes
    body = await read_body(request.scope, request.receive, limit, as_sent=True)
    return await apply_write(context, version, body)


async def apply_write(context: Context, version: Version, body: bytes) -> Response:
    """Apply the body of a remote write."""
    rules = context.series_rules
    settings = context.settings
    limits = {"max_bytes": settings.max_body_bytes, "max_samples": settings.max_observations}
    known = parse_known(body, version, rules.known, **limits)
    assignment = None if known is None else StreamAssignment.of_known(known, _now_ms())
    if assignment is None:
        write = partial(parse_write, body, version, rules.known, **limits)
        assignment = await assigned(context, write)
    tally = await apply_samples(context, assignment)
    headers = {}
    if version is Version.V2:
        lost = sum(tally.counts[result] for result in ("rejected", "untried", "deferred"))
        written = tally.total - lost
        counts = {"Samples": written, "Histograms": 0, "Exemplars": 0}
        headers = {f"X-Prometheus-Remote-Write-{n}-Written": str(c) for n, c in counts.items()}
    error = refusal(tally)
    return Response(status_code=204, headers=headers) if error is None else problem(error, headers)


async def assigned(context: Context, parse_body: Callable[[], RemoteWrite]) -> StreamAssignment:
    """Return the samples of any request by stream, read in the thread."""

    def assignment_of_body() -> StreamAssignment:
        write = parse_body()
        for ignored, count in (("histogram", write.histograms), ("exemplar", write.exemplars)):
            metrics.REMOTE_WRITE_IGNORED.labels(ignored).inc(count)
        return StreamAssignment.of(write, context.series_rules, _now_ms())

    return await apart(context.thread, assignment_of_body)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def apply_samples(context: Context, assignment: StreamAssignment) -> SampleTally:
    """Apply the samples of a request; returns what became of them all."""
    tally = assignment.tally
    size = context.observation_parser.parts([])  # of numbers alone
    await SampleWrite(assignment, size).submit(context.gateway)
    for result, count in tally.counts.items():
        _counter(result).inc(count)
    return tally


def refusal(tally: SampleTally) -> problems.ServiceError | None:
    """Return the error of samples that were not taken; None: there are none."""
    deferred = tally.counts["deferred"]
    rejected = tally.counts["rejected"]
    if deferred:
        detail = f"{deferred} of {tally.total} samples were not taken: {tally.reason}"
        return problems.SamplesDeferred(f"{detail}; send the request again", deferred=deferred)
    if rejected:
        untried = tally.counts["untried"]
        detail = f"{rejected} of {tally.total} samples cannot be taken: {tally.reason}"
        if untried:
            detail += (
                f"; {untried} more were not tried, after {MAX_REFUSED} of their stream were refused"
            )
        return problems.SamplesRejected(detail, rejected=rejected, untried=untried)
    return None


@calls.declare(
    "POST",
    "/v1/metrics",
    None,
    (problems.SamplesDeferred,),
    body=openapi.METRICS_BODY,
    described=openapi.METRICS_TAKEN,
)
async def write_metrics(request: Request) -> Response:
    """Receive metrics of OpenTelemetry (OTLP/HTTP, protobuf or JSON): gauges and sums.

    Points are samples as those of a remote write: the same rules make them streams, and a repeat
    has no effect. Histograms and summaries are rejected. The answer says how many points can never
    be taken (`partial_success`); all others were. 503: send the whole request again.
    """
    context = context_of(request)
    settings = context.settings
    media = media_of(header_text(request.scope, b"content-type"))
    body = await read_body(request.scope, request.receive, settings.max_body_bytes)
    assignment = await assigned(
        context, partial(parse_metrics, body, media, settings.max_observations)
    )
    tally = await apply_samples(context, assignment)
    error = refusal(tally)
    if isinstance(error, problems.SamplesDeferred):
        raise error
    rejected = tally.counts["rejected"] + tally.counts["untried"]
    return Rendered(
        metrics_answer(rejected, "" if error is None else error.detail, media), 200, media
    )


class SampleWrite:
    """The commands of a request's samples: those of a stream one after another.

    size: observations in a command, at most.
    """

    def __init__(self, samples: StreamAssignment, size: int) -> None:
        self._samples = samples
        self._tally = samples.tally
        self._size = size
        # Whether a command may make its stream.
        self._makes = False in [target.made for target in samples.targets]
        self._left: dict[str, list[Group]] = {}  # places of samples that are not sent, by stream
        # Of each stream: samples that are applied and counted, and still sent once more; and those
        # that were refused one by one.
        self._repeats: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    async def submit(self, gateway: Gateway) -> None:
        """Submit all samples."""
        streams = tuple([target.stream for target in self._samples.targets])
        waves = gateway.waves(streams)
        if waves is None:
            waves = self._grouped(streams, gateway.partitions(streams))
        await submit_waves(gateway, waves, self._command, self._following)

    def _grouped(self, streams: Sequence[str], partitions: Sequence[int]) -> Waves:
        """Return the first samples of each stream by partition."""
        size = self._size
        waves: dict[int, list[Group]] = {}
        places: dict[str, list[int]] = {}
        for place, stream in enumerate(streams):
            places.setdefault(stream, []).append(place)
        for stream, own in places.items():
            if len(own) > size:
                self._left[stream] = [own[at : at + size] for at in range(size, len(own), size)]
            waves.setdefault(partitions[own[0]], []).append(own[:size])
        return waves

    def _command(self, wave: Sequence[Group]) -> wire.ObserveMany:
        """Return the command of groups, a row each."""
        places = list(chain.from_iterable(wave))
        several = len(places) > len(wave)
        own = pick(places)
        y = own(self._samples.y)
        times = own(self._samples.times)
        firsts = pick([group[0] for group in wave]) if several else own
        targets = firsts(self._samples.targets)
        missing = [time for number, time in zip(y, times, strict=True) if number != number]
        return wire.ObserveMany(
            [target.stream for target in targets],
            np.array(y, "<f8").tobytes(),
            list(map(len, wave)) if several else None,
            list(times),
            others=[wire.Observation(None, None, time) for time in missing] or None,
            settings=[wire.AS_IT_IS if target.made else target.settings for target in targets],
        )

    def _following(self, wave: Sequence[Group], results: RowsResult) -> list[Group]:
        """Count what some groups came to; return the next ones of their streams."""
        places = results.places
        groups = wave if len(places) == len(wave) else [wave[place] for place in places]
        result = results.result
        if isinstance(result, wire.Outcome) and result.status < 400:
            self._count(groups, _ingested(result.body[-1]))
        else:
            for group in groups:
                self._fail(group, result)
        later: list[Group] = []
        for group in groups if self._left else ():
            left = self._left.get(self._target(group).stream)
            if left:
                later.append(left.pop(0))
        return later

    def _target(self, group: Group) -> Target:
        return self._samples.targets[group[0]]

    def _count(self, groups: Sequence[Group], done: Ingested) -> None:
        """Count what each of some groups came to."""
        self._tally.add("applied", done.applied * len(groups))
        self._tally.add("skipped", done.skipped * len(groups))
        by_stream = done.rejected or (done.skipped and self._repeats)
        for group in groups if by_stream or self._makes else ():
            target = self._target(group)
            target.made = True
            if done.rejected:
                self._tally.add("rejected", done.rejected, _reason(target.stream, done.reason))
            if done.skipped and self._repeats:
                repeated = min(self._repeats.get(target.stream, 0), done.skipped)
                self._repeats[target.stream] -= repeated
                self._tally.add("skipped", -repeated)

    def _fail(self, group: Group, result: Result) -> None:
        """Count what a group came to that was refused, or have a part of it tried again."""
        target = self._target(group)
        stream = target.stream
        if isinstance(result, problems.ServiceError):
            document = result.document()
        else:
            document = document_of(result)
        if result.status in AGAIN:  # by default Prometheus drops what is answered 429
            self._fail_all_left("deferred", stream, group, document["detail"])
        elif document["type"] == NO_STREAM:  # any more: this makes it again
            target.made = False
            self._makes = True
            self._left[stream] = [group, *self._left.get(stream, [])]
        else:
            self._refuse(stream, group, document)

    def _refuse(self, stream: str, group: Group, problem: dict[str, Any]) -> None:
        """Go on with the halves of a group; each half that is not refused is applied."""
        applied = problem.get("applied", 0)
        self._tally.add("applied", applied)
        self._repeats[stream] += applied
        reason = _reason(stream, problem["detail"])
        if problem["type"] not in OF_ONE:
            self._fail_all_left("rejected", stream, group, reason)
        elif self._refused[stream] == MAX_REFUSED:
            self._fail_all_left("untried", stream, group, reason)
        elif len(group) > 1:
            half = len(group) // 2
            self._left[stream] = [group[:half], group[half:], *self._left.get(stream, [])]
        else:
            self._refused[stream] += 1
            self._tally.add("rejected", 1, reason)

    def _fail_all_left(self, result: str, stream: str, group: Group, reason: str) -> None:
        left = len(group) + sum(map(len, self._left.pop(stream, [])))
        self._tally.add(result, left - self._repeats[stream], reason)


def _reason(stream: str, detail: str) -> str:
    return f"stream {stream!r}: {detail}"


# --- results --------------------------------------------------------------------------------------


@calls.declare(
    "GET", "/v1/prometheus/results", None, (problems.InvalidField,), described=openapi.METRICS
)
async def show_results(request: Request, query: Annotated[ResultsQuery, Query()]) -> Response:
    """Return forecasts, anomaly and probability of a change of streams, to be scraped.

    In Prometheus's text format, labelled with the streams' tags and ids. The forecast is that of
    the last label, made before it came. At most `max_result_streams` streams; those without an
    observation for five minutes, or three intervals, are left out.
    """
    context = context_of(request)
    limit = context.settings.max_result_streams
    samples = await results(context.store, query.match, limit)
    content = await asyncio.to_thread(exposition, samples)
    return Response(content, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


async def results(store: AsyncStore, match: Sequence[str], limit: int) -> list[ResultSample]:
    """Return the results of the streams selected; raises InvalidField for more than `limit`."""
    selected: list[SelectedStream] = []
    cursor: str | None = None
    while True:
        page = await select(store, "", match, cursor, limit + 1)
        selected += page.rows
        without(page.unreadable, "results")
        if len(selected) > limit:
            detail = f"expected at most {limit} streams (max_result_streams), got more"
            raise problems.InvalidField.at("query.match", f"{detail}: select fewer")
        if page.cursor is None:
            break
        cursor = page.cursor
    result: list[ResultSample] = []
    for first in range(0, len(selected), READ_AT_ONCE):
        heads = {row.stream: row.head for row in selected[first : first + READ_AT_ONCE]}
        rows, unreadable = await from_store(store.recent([*heads], heads, 1))
        without(unreadable, "results")
        for row in rows:
            result += samples(row, time.time())
    return result


def samples(row: Recent, now_s: float) -> Iterator[ResultSample]:
    """Yield the results of a stream; none of one that is quiet, or has no forecasts yet."""
    head = row.head
    quiet_s = max(QUIET_S, QUIET_INTERVALS * (head.settings.interval or 0.0))
    if not row.records or now_s - head.updated_ms / 1000 > quiet_s:
        return
    record = row.records[-1]
    labels = _labels(row.stream, head.settings)
    quantiles = record.quantiles or {}
    forecast = {
        "moca_forecast": quantiles.get("0.5"),
        "moca_forecast_lower": quantiles.get("0.05"),
        "moca_forecast_upper": quantiles.get("0.95"),
    }
    for name, values in forecast.items():
        for i, value in enumerate(values or []):
            output = {OUTPUT: str(i)} if len(values or []) > 1 else {}
            yield name, labels | output, value
    for name, number in (
        ("moca_anomaly", record.anomaly),
        ("moca_changed_probability", record.changed_probability),
        ("moca_evidence", record.evidence),
    ):
        if number is not None:
            yield name, labels, number


def _labels(stream: str, settings: wire.StreamSettings) -> dict[str, str]:
    """Return a stream's id and tags; the name of its metric, which is another here, as `metric`.

    Prometheus keeps names that begin with __ to itself; `output` stands for one of several numbers.
    """
    labels = {name: value for name, value in settings.tags.items() if not name.startswith("__")}
    if OUTPUT in labels:
        labels[tags.exported(OUTPUT, labels)] = labels.pop(OUTPUT)
    if tags.METRIC in settings.tags:
        labels.setdefault("metric", settings.tags[tags.METRIC])
    return labels | {tags.STREAM: stream}


def exposition(results: Iterable[ResultSample]) -> bytes:
    """Return samples in Prometheus's text format."""
    families = {name: Metric(name, about, "gauge") for name, about in RESULT_SERIES.items()}
    for name, labels, value in results:
        families[name].add_sample(name, labels, value)
    return generate_latest(metrics.FixedMetrics(families.values()))
