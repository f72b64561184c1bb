"""Overload: three times what the service can do, and one key at ten times its rate.

`python -m tests.referees.overload` measures both on a service of its own and prints what it found.
Requests go out when they are due, whatever became of those before, and count from then on: a
generator that waits for answers would only ever ask for what it gets. It shares the cores with the
service, so its own waits for them count as well. A prober that goes before all others sees what
clients of another machine would see.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import re
import selectors
import socket
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import httpx
import uvloop

from service.bench.load import LoadJob, content_length, request_bytes, run
from tests.e2e.calling import KNOWN
from tests.e2e.deployment import Processes
from tests.waiting import PATIENCE_S, go_first, until

STREAMS = 200
TICK_S = 0.002  # between looks at what is due
OPENED = 64  # connections that are there before the first request
CONNECTIONS = 4000  # the most
ACCEPTED_P99_S = 1.0  # asked of a quiet machine
REFUSED_P99_S = 0.05
RECOVERY_S = 5.0
LOUD = 50  # requests a second that one key may send
CALM = 50  # and that another one sends
PROBE_S = 0.02  # between requests of the prober
PROBE_CONNECTIONS = 64
LONGEST = 65_536  # bytes of an answer
PROMPT_S = 0.2  # an answer that comes within is one of a service that has recovered,
PROMPT_IN_A_ROW = 5  # if so many are
KEY_RATIO = 2.0  # of another key's p99, with and without the loud one


class Answer(NamedTuple):
    """Answer to one request: status (0: its connection was cut), and seconds since it was due."""

    status: int
    took_s: float


class Connection(asyncio.Protocol):
    """One connection of a pool: takes the next request that is due whenever it is idle."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._buffer = b""
        self._due_s: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a request."""
        self._transport = transport
        self._pool.connections.add(self)
        self.next()

    def next(self) -> None:
        """Send the request that waits longest, or become idle."""
        if not self._pool.waiting:
            self._pool.idle.append(self)
            return
        self._due_s, request = self._pool.waiting.popleft()
        self._transport.write(request)  # type: ignore[attr-defined]

    def close(self) -> None:
        """End the connection."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Collect an answer."""
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0 or len(self._buffer) < head + 4 + content_length(self._buffer, head):
            return
        status = int(self._buffer[9:12])
        self._buffer = b""
        self._answered(status)
        self.next()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the request that is lost with it, if any."""
        self._pool.opened -= 1
        self._pool.connections.discard(self)
        if self in self._pool.idle:
            self._pool.idle.remove(self)
        self._answered(0)

    def _answered(self, status: int) -> None:
        if self._due_s is not None:
            self._pool.answers.append(Answer(status, time.perf_counter() - self._due_s))
            self._due_s = None


class Pool:
    """Connections to one address, and the requests that wait for one of them."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        assert address.port is not None
        self.host = address.hostname or ""
        self.port = address.port
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.idle: deque[Connection] = deque()
        self.answers: list[Answer] = []
        self.opened = 0  # or being opened
        self.connections: set[Connection] = set()
        self._opening: set[asyncio.Task[object]] = set()

    async def send(self, requests: Iterator[bytes], per_second: float, seconds: float) -> float:
        """Send requests at a steady pace; returns when the last one was due."""
        for _ in range(OPENED):
            self._open()
        await asyncio.gather(*self._opening)
        began = time.perf_counter()
        count = round(per_second * seconds)
        for number, request in enumerate(islice(requests, count)):
            due = began + number / per_second
            while (left := due - time.perf_counter()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(max(left, TICK_S))
            self._due(due, request)
            if not number % 64:
                await asyncio.sleep(0)  # others have their turn where this one is late
        ended = time.perf_counter()
        async with asyncio.timeout(PATIENCE_S):
            while len(self.answers) < count:  # noqa: ASYNC110
                await asyncio.sleep(TICK_S)
        await self._close()
        return ended

    def _due(self, due: float, request: bytes) -> None:
        """Send a request by a connection that is idle, or the next one to become so."""
        self.waiting.append((due, request))
        if self.idle:
            self.idle.pop().next()
        elif self.opened < CONNECTIONS:
            self._open()

    async def _close(self) -> None:
        await asyncio.gather(*self._opening)
        for connection in [*self.connections]:
            connection.close()
        await asyncio.sleep(0)  # in which the loop closes them

    def _open(self) -> None:
        self.opened += 1
        loop = asyncio.get_running_loop()
        task = loop.create_task(
            loop.create_connection(lambda: Connection(self), self.host, self.port)
        )
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)


# --- the prober -----------------------------------------------------------------------------------


@contextmanager
def probing(url: str, prefix: str) -> Iterator[list[Answer]]:
    """Have the prober at work for as long; afterwards the list has the answers that it got."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=probe, args=(url, prefix, its))
    process.start()
    answers: list[Answer] = []
    mine.recv()
    try:
        yield answers
    finally:
        mine.send(None)
        answers += mine.recv()
        process.join()


def probe(url: str, prefix: str, owner: Any) -> None:
    """Post every PROBE_S until told to stop, each time by the connection that is idle longest.

    It goes before all others: a client of another machine waits for none of the cores that the
    service and the generator share.
    """
    go_first()
    address = urlsplit(url)
    made = requests(url, prefix)
    selector = selectors.DefaultSelector()
    idle: deque[socket.socket] = deque()
    for _ in range(PROBE_CONNECTIONS):
        connection = socket.create_connection((address.hostname, address.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection, selectors.EVENT_READ)
        idle.append(connection)
    sent: dict[Any, float] = {}
    answers: list[Answer] = []
    owner.send(None)
    due = time.perf_counter()
    stopping = False
    while not stopping or sent:
        ready = selector.select(max(0.0, due - time.perf_counter()))
        now = time.perf_counter()
        for key, _ in ready:
            answer = cast(socket.socket, key.fileobj).recv(LONGEST)
            answers.append(Answer(int(answer[9:12] or 0), now - sent.pop(key.fileobj, now)))
            if answer:
                idle.append(cast(socket.socket, key.fileobj))
            else:
                selector.unregister(key.fileobj)
        stopping = stopping or owner.poll()
        if now >= due:
            due += PROBE_S
            if idle and not stopping:
                connection = idle.popleft()
                sent[connection] = time.perf_counter()
                connection.send(next(made))
    owner.send(answers)


# --- the service ----------------------------------------------------------------------------------


def jobs(url: str, prefix: str, key: str = "") -> LoadJob:
    """Posts of single observations to the streams of a prefix."""
    address = urlsplit(url)
    targets = [f"/v1/streams/{prefix}-{i}/observations" for i in range(STREAMS)]
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    bodies = ['{"y": 0.5}', '{"y": -0.5}']
    return LoadJob(
        address.hostname or "", address.port or 0, targets, bodies, seconds=0, headers=headers
    )


def requests(url: str, prefix: str, key: str = "") -> Iterator[bytes]:
    """The same without an end."""
    job = jobs(url, prefix, key)
    made = [request_bytes(job, target, body) for body in job.bodies for target in job.targets]
    return cycle(made)


def p99(answers: Sequence[Answer]) -> float:
    """99th percentile of the seconds of answers; 0: there are none."""
    ranked = sorted(answer.took_s for answer in answers)
    return ranked[round(0.99 * (len(ranked) - 1))] if ranked else 0.0


def with_status(answers: Sequence[Answer], status: int) -> list[Answer]:
    """Those of the answers that have this status."""
    return [answer for answer in answers if answer.status == status]


@contextmanager
def serving(rates: Sequence[str] = ()) -> Iterator[tuple[str, list[str]]]:
    """A service that sheds load, and its keys, one of each of these rates."""
    with tempfile.TemporaryDirectory(prefix="moca-overload-") as folder:
        shedding = {"MOCA_MAX_WAIT_S": "1", "MOCA_PARTITIONS": "16"}
        with Processes(Path(folder), shedding) as processes:
            url = processes.serve()
            secrets = []
            scopes = ("--scope", "read", "--scope", "write")
            for number, rate in enumerate(rates):
                place = ("--data-dir", processes.folder / "data")
                more = ("--rate", rate, *scopes, *place)
                printed = processes.run("keys", "create", f"key-{number}", *more)
                secrets.append(re.search(r"moca_\S+", printed)[0])  # type: ignore[index]
            for secret in secrets:
                until(lambda secret=secret: _admitted(url, secret))  # keys are read anew at times
            yield url, secrets


def _admitted(url: str, key: str) -> bool:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{url}/v1/streams", headers=headers, timeout=PATIENCE_S).is_success


def create(url: str, prefix: str, key: str = "") -> None:
    """Create the streams of a prefix, which know their scale: each post moves a filter."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, timeout=PATIENCE_S, headers=headers) as client:
        for i in range(STREAMS):
            client.put(f"/v1/streams/{prefix}-{i}", json=KNOWN).raise_for_status()


def applied(url: str, prefix: str) -> int:
    """Observations that the streams of a prefix have taken."""
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        paths = (f"/v1/streams/{prefix}-{i}" for i in range(STREAMS))
        return sum(client.get(path).raise_for_status().json()["seq"] for path in paths)


def recovered(url: str) -> float:
    """Wait for prompt answers, one after the other; returns when the first of them came."""
    since = 0.0
    in_a_row = 0
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        while in_a_row < PROMPT_IN_A_ROW:
            began = time.perf_counter()
            answer = client.post("/v1/streams/probe/observations", json={"y": 1.0})
            now = time.perf_counter()
            prompt = answer.is_success and now - began < PROMPT_S
            in_a_row = in_a_row + 1 if prompt else 0
            since = now if in_a_row == 1 else since
            time.sleep(0.02)
    return since


def capacity(url: str, prefix: str, seconds: float, key: str = "") -> float:
    """Posts a second that are answered, by 32 connections that wait for each other's answers."""
    job = jobs(url, prefix, key)
    job.seconds = seconds
    return uvloop.run(run(job)).rate


class Overload(NamedTuple):
    """What was measured. per_second: what the service can do. lost: how many more were
    accepted than applied."""

    per_second: float
    accepted: int
    accepted_p99_s: float
    refused: int
    refused_p99_s: float
    probed_p99_s: float  # of what is accepted, as the prober saw it
    probed_refused_p99_s: float
    others: dict[int, int]  # answers of other statuses
    recovery_s: float
    lost: int

    def failures(self) -> list[str]:
        """What is not as asked of a quiet machine."""
        bounds = (
            ("p99 of accepted", self.accepted_p99_s, ACCEPTED_P99_S),
            ("p99 of refused", self.probed_refused_p99_s, REFUSED_P99_S),
            ("recovery", self.recovery_s, RECOVERY_S),
        )
        late = [f"{what}: {s:.3f} s, asked {most} s" for what, s, most in bounds if s > most]
        return late + self.wrong()

    def wrong(self) -> list[str]:
        """What must not be on any machine."""
        found = [f"{count} answers {status}" for status, count in self.others.items()]
        return found + ([f"{self.lost} more accepted than applied"] if self.lost else [])


def overload(seconds: float, times: float) -> Overload:
    """Post at `times` what the service can do; then see how soon it is as before."""
    with serving() as (url, _):
        create(url, "load")
        create(url, "probe")
        measured = capacity(url, "load", min(seconds, 5.0))
        before = applied(url, "load")
        pool = Pool(url)
        with probing(url, "probe") as probed:
            sending = pool.send(requests(url, "load"), times * measured, seconds)
            ended = uvloop.run(sending)
        recovery_s = recovered(url) - ended
        after = applied(url, "load")
    others = Counter(each.status for each in [*pool.answers, *probed])
    accepted = with_status(pool.answers, 200)
    refused = with_status(pool.answers, 429)
    return Overload(
        per_second=measured,
        accepted=len(accepted),
        accepted_p99_s=p99(accepted),
        refused=len(refused),
        refused_p99_s=p99(refused),
        probed_p99_s=p99(with_status(probed, 200)),
        probed_refused_p99_s=p99(with_status(probed, 429)),
        others={status: count for status, count in others.items() if status not in (200, 429)},
        recovery_s=recovery_s,
        lost=len(accepted) + before - after,
    )


class LoudKey(NamedTuple):
    """What was measured: p99 of a calm key by itself, and beside one at many times its rate."""

    alone_p99_s: float
    beside_p99_s: float
    accepted: int  # of the loud key
    refused: int
    calm: Counter[int]  # answers to the calm key by status

    def failures(self) -> list[str]:
        """What is not as asked of a quiet machine."""
        ratio = self.beside_p99_s / self.alone_p99_s
        late = [f"p99 of the calm key: {ratio:.1f} times, asked {KEY_RATIO}"]
        refused = [f"{self.calm[429]} refusals of the calm key"]
        found = late if ratio > KEY_RATIO else []
        return found + (refused if self.calm[429] else []) + self.wrong()

    def wrong(self) -> list[str]:
        """What must not be on any machine: a busy one sheds load of any key."""
        others = self.calm.keys() - {200, 429}
        return [f"{self.calm[status]} answers {status} to the calm key" for status in others]


def loud_key(seconds: float, times: float) -> LoudKey:
    """Post with one key at `times` its rate, and see what another one meets."""
    with serving(["none", f"{LOUD}/second"]) as (url, (calm_key, loud)):
        create(url, "calm", calm_key)
        create(url, "loud", calm_key)

        async def alone() -> Pool:
            pool = Pool(url)
            await pool.send(requests(url, "calm", calm_key), CALM, seconds)
            return pool

        async def beside() -> tuple[Pool, Pool]:
            pool = Pool(url)
            sending = pool.send(requests(url, "loud", loud), times * LOUD, seconds)
            calm, _ = await asyncio.gather(alone(), sending)
            return calm, pool

        quiet = uvloop.run(alone())
        calm, many = uvloop.run(beside())
    by = Counter(answer.status for answer in many.answers)
    statuses = Counter(answer.status for answer in [*quiet.answers, *calm.answers])
    return LoudKey(p99(quiet.answers), p99(calm.answers), by[200], by[429], statuses)


def main() -> int:
    """Measure, print, and say what is not as asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.referees.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load (60)")
    parser.add_argument("--times", type=float, default=3.0, help="what the service can do (3)")
    parser.add_argument("--key-times", type=float, default=10.0, help="a key's own rate (10)")
    options = parser.parse_args()
    failed = []
    for measure, times in ((overload, options.times), (loud_key, options.key_times)):
        measured = measure(options.seconds, times)
        print(measured, flush=True)
        failed += measured.failures()
    print("\n".join(failed) or "as asked")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
