"""A collector of traces: takes OTLP over HTTP, and keeps the spans."""

import gzip
import time
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.serving import ThreadServer


class Span(NamedTuple):
    name: str
    service: str
    pid: int
    trace: str
    id: str
    parent: str
    kind: int
    begin: int
    end: int
    attributes: dict
    failed: bool


class Collector(ThreadServer):
    def __init__(self):
        self.spans, self.requests = [], 0
        super().__init__(Handler)

    def wait(self, count, seconds=20):
        """Wait until so many spans are there, and a little for more."""
        end = time.monotonic() + seconds
        while len(self.spans) < count and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.5)
        return list(self.spans)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests += 1
        assert self.path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            said = {a.key: a.value for a in resource.resource.attributes}
            service, pid = said["service.name"].string_value, said["process.pid"].int_value
            for scope in resource.scope_spans:
                self.server.spans += [_span(span, service, pid) for span in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _span(span, service, pid):
    attributes = {a.key: a.value.string_value or a.value.int_value for a in span.attributes}
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    times = (span.start_time_unix_nano, span.end_time_unix_nano)
    return Span(span.name, service, pid, *ids, span.kind, *times, attributes, span.status.code == 2)
