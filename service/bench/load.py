"""Closed-loop HTTP load from one cheap process: raw asyncio protocols and ready-made requests.

On a machine of two cores the generator competes with what it measures, so it builds every request
beforehand, parses of each answer only the status and the length, and reports its own CPU time.
`main` reads a JSON job on standard input; it prints a JSON report.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import msgspec
import uvloop
from msgspec import Struct


class LoadJob(Struct):
    """What to send, how, and for how long."""

    host: str
    port: int
    targets: list[str]  # paths; each connection walks through its own share of them
    bodies: list[str]  # JSON texts, drawn at random: in turn they would be a season
    connections: int = 32
    seconds: float = 5.0
    headers: dict[str, str] = {}


class LoadReport(Struct):
    """What came back."""

    requests: int
    errors: dict[str, int]  # answers other than 2xx by status; "connection": cut connections
    seconds: float
    cpu_s: float  # of this process under load
    latency_ms: dict[str, float]  # p50, p90, p99 and max

    @property
    def rate(self) -> float:
        """Requests answered with success per second."""
        return (self.requests - sum(self.errors.values())) / self.seconds


@dataclass
class LoadTally:
    """Shared by all connections: latencies, errors, and when to stop."""

    stop_at: float
    latency_s: array[float] = field(default_factory=lambda: array("d"))
    errors: dict[str, int] = field(default_factory=dict)

    def fail(self, kind: str) -> None:
        """Count a failure."""
        self.errors[kind] = self.errors.get(kind, 0) + 1


class Connection(asyncio.Protocol):
    """One closed-loop connection: the next request goes out when the answer is complete."""

    __slots__ = ("buffer", "finished", "requests", "sent_at", "tally", "transport", "wanted")

    def __init__(self, requests: Any, tally: LoadTally, finished: asyncio.Future[None]):
        self.requests = requests
        self.tally = tally
        self.finished = finished
        self.buffer = b""
        self.wanted = 0  # length of the whole answer once its head is read
        self.sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self.transport = transport
        self.send()

    def send(self) -> None:
        """Send the next request, or finish when time is up."""
        now = time.perf_counter()
        if now >= self.tally.stop_at:
            self.finish()
            return
        self.sent_at = now
        self.transport.write(next(self.requests))  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Collect one answer; requests are not pipelined, so nothing follows it."""
        if self.buffer:
            data = self.buffer + data
        if not self.wanted:
            head = data.find(b"\r\n\r\n")
            if head < 0:
                self.buffer = data
                return
            self.wanted = head + 4 + content_length(data, head)
        if len(data) < self.wanted:
            self.buffer = data
            return
        self.buffer = b""
        self.wanted = 0
        self.tally.latency_s.append(time.perf_counter() - self.sent_at)
        if data[9:10] != b"2":
            self.tally.fail(data[9:12].decode("ascii", "replace"))
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a connection that was cut before the end."""
        if not self.finished.done():
            self.tally.latency_s.append(time.perf_counter() - self.sent_at)
            self.tally.fail("connection")
            self.finished.set_result(None)

    def finish(self) -> None:
        """Say that this connection is through."""
        if not self.finished.done():
            self.finished.set_result(None)
        self.transport.close()


def content_length(data: bytes, head: int) -> int:
    """Content length of an answer whose head ends at `head`; 0 when it has none."""
    at = data.find(b"content-length: ", 0, head)
    if at < 0:
        at = data[:head].lower().find(b"content-length: ")
        if at < 0:
            return 0
    end = data.find(b"\r\n", at)
    return int(data[at + 16 : end])


def request_bytes(job: LoadJob, target: str, body: str) -> bytes:
    """Return one whole request."""
    head = {
        "Host": f"{job.host}:{job.port}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body.encode())),
        **job.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"POST {target} HTTP/1.1\r\n{lines}\r\n{body}".encode()


def schedule(requests: list[list[bytes]]) -> Iterator[bytes]:
    """Yield one of the requests to each target in turn, for ever."""
    draw = random.Random(1).choice
    for to_target in cycle(requests):
        yield draw(to_target)


async def run(job: LoadJob) -> LoadReport:
    """Run the job."""
    loop = asyncio.get_running_loop()
    connections = min(job.connections, len(job.targets))
    job.connections = connections
    # Each connection has its targets in turn.
    shares = [job.targets[connection::connections] for connection in range(connections)]
    schedules = [
        schedule([[request_bytes(job, target, body) for body in job.bodies] for target in targets])
        for targets in shares
    ]
    # Preparing requests is no load: both clocks start after it.
    started = time.perf_counter()
    cpu = time.process_time()
    tally = LoadTally(started + job.seconds)
    finished = [loop.create_future() for _ in range(connections)]
    pairs = zip(schedules, finished, strict=True)
    opened = [partial(Connection, schedule, tally, end) for schedule, end in pairs]
    await asyncio.gather(
        *(loop.create_connection(protocol, job.host, job.port) for protocol in opened)
    )
    await asyncio.gather(*finished)
    seconds = time.perf_counter() - started
    cpu_s = time.process_time() - cpu
    latency_ms = quantiles(tally.latency_s)
    return LoadReport(len(tally.latency_s), tally.errors, seconds, cpu_s, latency_ms)


def quantiles(latency_s: Sequence[float]) -> dict[str, float]:
    """Nearest-rank quantiles in milliseconds."""
    ranked = sorted(latency_s)
    if not ranked:
        return {}
    places = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    last = len(ranked) - 1
    return {name: 1e3 * ranked[round(place * last)] for name, place in places.items()}


def main() -> None:
    """Read a job, run it, print the report."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=LoadJob)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(run(job))))


if __name__ == "__main__":
    main()
