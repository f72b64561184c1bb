"""Open-loop HTTP load: requests are due at fixed times, whatever has become of earlier ones.

Latency counts from the time at which a request was due, so a server that falls behind cannot hide
it by slowing the generator down. A request without a free connection opens one, up to a bound, and
then waits for one; that wait counts. `main` reads a JSON job on standard input and prints a report.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterator
from itertools import cycle

import msgspec
from msgspec import Struct

from service.bench.load import Job, content_length, request_bytes, run_fast

STEP_S = 0.001  # between looks at what is due
IDLE_S = 3.0  # longest time that a connection is kept without a request
DRAIN_S = 30.0  # longest wait for answers after the last request
LOST = 0  # status of a request whose connection was cut, or that got no answer at all


class OpenJob(Struct):
    """Phases of load on one or several servers, which get requests in turn."""

    jobs: list[Job]  # one for each server: where, targets, bodies, and the most connections
    phases: list[tuple[float, float]]  # requests per second, seconds


class Requests(Struct):
    """What became of each request, in the order of the answers."""

    due_s: list[float]  # since the beginning
    latency_s: list[float]
    status: list[int]
    late_s: float  # the most that the generator itself was behind its schedule
    cpu_s: float


class Tally:
    """What became of the requests so far."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.due = array("d")
        self.latency = array("d")
        self.status = array("i")
        self.open = 0
        self.none_open = asyncio.Event()

    def note(self, due: float, status: int) -> None:
        """Count an answer."""
        self.due.append(due - self.began)
        self.latency.append(time.perf_counter() - due)
        self.status.append(status)
        self.open -= 1
        if not self.open:
            self.none_open.set()


class Pool:
    """Connections to one server."""

    def __init__(self, job: Job, tally: Tally) -> None:
        self.job, self.tally = job, tally
        bodies = cycle(job.bodies)
        self.requests = cycle([request_bytes(job, each, next(bodies)) for each in job.targets])
        self.idle: list[Connection] = []
        self.queue: deque[float] = deque()
        self.count = 0
        self.opening: set[asyncio.Task[None]] = set()

    def send(self, due: float) -> None:
        """Send the next request, over a connection that is free."""
        self.tally.open += 1
        while self.idle:
            connection = self.idle.pop()
            if time.perf_counter() - connection.idle_since < IDLE_S:
                connection.send(due)
                return
            connection.transport.close()  # the server might be about to
        self.queue.append(due)
        if self.count < self.job.connections:
            self.count += 1
            task = asyncio.ensure_future(self._connect())
            self.opening.add(task)
            task.add_done_callback(self.opening.discard)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: Connection(self), self.job.host, self.job.port)
        except OSError:
            self.lost(self.queue.popleft() if self.queue else 0.0)

    def free(self, connection: Connection) -> None:
        """Use a connection again."""
        if self.queue:
            connection.send(self.queue.popleft())
        else:
            connection.idle_since = time.perf_counter()
            self.idle.append(connection)

    def lost(self, due: float) -> None:
        """Count a connection that is gone, with the request that it had."""
        self.count -= 1
        if due:
            self.tally.note(due, LOST)


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.due = 0.0  # of the request under way; 0: none
        self.buffer = b""
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the first request."""
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.pool.free(self)

    def send(self, due: float) -> None:
        """Send a request."""
        self.due = due
        self.transport.write(next(self.pool.requests))

    def data_received(self, data: bytes) -> None:
        """Collect an answer; requests are not pipelined, so nothing follows it."""
        self.buffer += data
        head = self.buffer.find(b"\r\n\r\n")
        if head < 0 or len(self.buffer) < head + 4 + content_length(self.buffer, head):
            return
        status = int(self.buffer[9:12])
        self.buffer = b""
        self.pool.tally.note(self.due, status)
        self.due = 0.0
        self.pool.free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the pool."""
        if self in self.pool.idle:
            self.pool.idle.remove(self)
        self.pool.lost(self.due)


def schedule(began: float, phases: list[tuple[float, float]]) -> Iterator[float]:
    """Yield when each request is due."""
    for rate, seconds in phases:
        for number in range(round(rate * seconds)):
            yield began + number / rate
        began += seconds


async def run(job: OpenJob) -> Requests:
    """Run the job."""
    cpu_s = time.process_time()
    tally = Tally()
    pools = cycle([Pool(each, tally) for each in job.jobs])
    late_s = 0.0
    due = deque(schedule(tally.began, job.phases))
    while due:
        now = time.perf_counter()
        late_s = max(late_s, now - due[0])
        while due and due[0] <= now:
            next(pools).send(due.popleft())
        await asyncio.sleep(STEP_S)
    await _drain(tally)
    return Requests(
        tally.due.tolist(),
        tally.latency.tolist(),
        tally.status.tolist(),
        late_s,
        time.process_time() - cpu_s,
    )


async def _drain(tally: Tally) -> None:
    """Wait for the answers that are still to come; count those that do not."""
    last_due = time.perf_counter()
    tally.none_open.clear()
    if tally.open:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await tally.none_open.wait()
    for _ in range(tally.open):
        tally.note(last_due, LOST)


def main() -> None:
    """Read a job, run it, print what became of the requests."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=OpenJob)
    sys.stdout.buffer.write(msgspec.json.encode(run_fast(run(job))))


if __name__ == "__main__":
    main()
