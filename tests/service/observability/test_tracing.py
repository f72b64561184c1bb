"""What decides on a trace, how it travels, and what is refused."""

import sys
import threading

import pytest

from service import wire
from service.observability import tracing
from service.observability.tracing import open_tracer, place_of, span_at
from service.problems import StartupError
from service.settings import Settings
from service.wire import Envelope, LogEntry, RunLength
from tests.waiting import PATIENCE_S

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def opened(monkeypatch):
    """A tracer whose collector is not there."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    tracers = []

    def open_(**settings):
        tracers.append(open_tracer(Settings(**settings), "api"))
        return tracers[-1]

    yield open_
    for each in filter(None, tracers):
        each.close()
    for thread in threading.enumerate():
        if thread.name.startswith("Otel"):
            thread.join(PATIENCE_S)  # or it would warn of that collector in the log of a later test


def test_none_unless_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)  # nor imported
    assert open_tracer(Settings(), "api") is None
    assert tracing.current.get() is None


def test_what_is_missing_or_wrong_is_refused(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
        with pytest.raises(StartupError, match="otel"):
            open_tracer(Settings(trace=True), "api")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")  # less than a batch
    with pytest.raises(StartupError, match="OTEL_"):
        open_tracer(Settings(trace=True), "api")


def test_a_sampled_traceparent_gives_a_trace(opened):
    tracer = opened(trace=True)
    for text, traced in (
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"01-{TRACE}-{SPAN}-01-more", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{SPAN}-01", False),
        (f"00-{TRACE}-{SPAN}", False),
        ("\xff", False),
        ("", False),
    ):
        request = tracer.request("POST", text.encode("latin-1"))
        assert (request is not None) == traced, text
        if request is None:
            continue
        sent = tracing.Sent(tracing.current.get(), RunLength("a"), 3)
        assert sent.place.startswith(f"00-{TRACE}-")
        assert place_of(span_at(sent.place)) == sent.place
        request.end("/", 200)
        assert tracing.current.get() is None


def test_its_place_travels_with_the_command(opened):
    request = opened(trace=True).request("POST", f"00-{TRACE}-{SPAN}-01".encode())
    place = place_of(request.span)
    request.end("/", 200)
    made = LogEntry("i", [Envelope(1, 2, 0, "m", RunLength("a"), trace=t) for t in (place, None)])
    read = wire.decode_batch(wire.encode(made))
    assert [each.trace for each in read.envelopes] == [place, None]
    for text in ("", "x", f"{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}0-01", f"00-{TRACE}{SPAN}-01"):
        assert span_at(text) is None
