"""Traces: what became of single commands, from the request to the reply, over all processes.

Spans: the request; `ingest` below it, one for each command, from its admission until its append
to the log is acknowledged; below that, from the worker, `queue`, `compute` and `commit`, and from
the API `reply`. The place of `ingest` in its trace travels in the command's envelope.

OpenTelemetry is imported only where traces are asked for; elsewhere `open_tracer` returns None, and
a command costs the look at a context variable.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from service.problems import StartupError
from service.settings import Settings
from service.wire import Command, ObserveMany

if TYPE_CHECKING:
    from opentelemetry.trace import Span


log = logging.getLogger(__name__)

NS = 1_000_000_000
TOLD_EVERY_S = 60.0  # about traces that cannot be sent
CLOSE_WAIT_S = 2.0
LIBRARY = "opentelemetry"
PLACE = "traceparent"  # of W3C: header of a request, and the place of a span in an envelope
current: ContextVar[RequestTrace | None] = ContextVar("request", default=None)


class Tracer:
    """Makes spans of one process and sends them, in a thread of the library's own."""

    def __init__(self, settings: Settings, process: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        self._share = settings.trace_share
        self._handler = _Seldom()
        library = logging.getLogger(LIBRARY)
        library.handlers = [self._handler]
        library.propagate = False
        names: dict[str, str | int] = {
            "service.name": f"moca-{process}",
            "service.namespace": "moca",
            "process.pid": os.getpid(),
        }
        resource = Resource.create().merge(Resource(names)).merge(OTELResourceDetector().detect())
        # What has a trace is decided here, once, and not by OTEL_TRACES_SAMPLER.
        self._provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("moca")

    def request(self, method: str, traceparent: bytes | None) -> RequestTrace | None:
        """Begin the trace of a request, if it is to have one; to be ended."""
        parent = span_at(traceparent.decode("latin-1")) if traceparent else None
        if parent is None:
            return RequestTrace(self, method, None) if random.random() < self._share else None
        if not parent.get_span_context().trace_flags.sampled:
            return None  # the caller's trace is not sampled
        return RequestTrace(self, method, parent)

    def span(
        self,
        name: str,
        kind: str,
        parent: Span | None,
        start_ns: int,
        attributes: Mapping[str, str | int] | None = None,
    ) -> Span:
        """Start a span below another."""
        from opentelemetry import trace

        context = trace.set_span_in_context(parent or trace.INVALID_SPAN)
        return self._tracer.start_span(
            name, context, trace.SpanKind[kind], attributes, start_time=start_ns
        )

    def close(self) -> None:
        """Send what is still here, for a moment; a collector that does not answer keeps nobody."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSE_WAIT_S)
        logging.getLogger(LIBRARY).removeHandler(self._handler)


class RequestTrace:
    """The span of a request. While it is current, commands sent are traced below it."""

    def __init__(self, tracer: Tracer, method: str, parent: Span | None) -> None:
        self.tracer = tracer
        self._method = method
        self.span = tracer.span(method, "SERVER", parent, time.time_ns())
        self._token: Token[RequestTrace | None] = current.set(self)

    def end(self, route: str, status: int) -> None:
        """End it."""
        current.reset(self._token)
        self.span.update_name(f"{self._method} {route}")
        self.span.set_attribute("http.request.method", self._method)
        self.span.set_attribute("http.route", route)
        self.span.set_attribute("http.response.status_code", status)
        if status >= 500:
            _fail(self.span, str(status))
        self.span.end()


class Sent:
    """A command on its way: the spans `ingest` and `reply`. `place` is for its envelope."""

    def __init__(
        self, request: RequestTrace, command: Command | ObserveMany, partition: int
    ) -> None:
        self._tracer = request.tracer
        attributes: dict[str, str | int] = {
            "moca.command": type(command).__name__,
            "moca.partition": partition,
        }
        if isinstance(command, ObserveMany):
            attributes["moca.streams"] = len(command.streams)
        else:
            attributes["moca.stream"] = command.stream
        start_ns = time.time_ns()
        self._ingest = self._tracer.span("ingest", "PRODUCER", request.span, start_ns, attributes)
        self.place = place_of(self._ingest)

    def end(self, acknowledged_s: float) -> None:
        """End both spans; `acknowledged_s` is on the monotonic clock, 0 if it never was."""
        now_ns = time.time_ns()
        if not acknowledged_s:
            _fail(self._ingest, "not acknowledged")
            self._ingest.end(now_ns)
            return
        at_ns = now_ns - int((time.monotonic() - acknowledged_s) * NS)
        self._ingest.end(at_ns)
        self._tracer.span("reply", "CLIENT", self._ingest, at_ns).end(now_ns)


def open_tracer(settings: Settings, process: str) -> Tracer | None:
    """Return what makes and sends spans; None unless traces are asked for.

    Raises StartupError where what it takes is not installed.
    """
    if not (settings.trace or settings.trace_share):
        return None
    try:
        return Tracer(settings, process)
    except ImportError as error:
        raise StartupError(
            f"traces need OpenTelemetry: pip install 'moca-service[otel]' ({error})"
        ) from error
    except ValueError as error:
        raise StartupError(
            f"cannot export traces with the given OTEL_* variables: {error}"
        ) from error


def place_of(span: Span) -> str:
    """Return where a span is in its trace, as it travels in an envelope."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(span))
    return carrier[PLACE]


def span_at(place: str) -> Span | None:
    """Return the span, of any process, at a place as of `place_of`; None: it is no place."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    span = trace.get_current_span(TraceContextTextMapPropagator().extract({PLACE: place}))
    return span if span.get_span_context().is_valid else None


def _fail(span: Any, why: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR, why)


class _Seldom(logging.Handler):
    """Passes one record a while on: a collector that is down is worth one line, not a flood."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, unless something was said just now."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + TOLD_EVERY_S
            line = record.getMessage().splitlines()[0][:300]
            log.warning("traces: %s", line)
