"""Faults of the path between processes and their store, and posts that measure the recovery.

A `Proxy` stands between one process and the store; faults of several compose. What a proxy cannot
show, the retransmissions of a kernel whose packets are dropped, a `Network` can.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from urllib.parse import urlsplit

import httpx

from service.store.keys import partition_of

REQUESTS, REPLIES = "requests", "replies"  # directions: to the store, from the store
BOTH = (REQUESTS, REPLIES)
CHUNK = 4096
QUEUED = 4  # chunks on their way: beyond, the sender feels that the link is slow
STEP_S = 0.02


class _Connection:
    """Both directions of one connection through a proxy."""

    def __init__(self, proxy: Proxy, *writers: asyncio.StreamWriter) -> None:
        self.proxy, self.writers = proxy, writers
        self.deaf: set[str] = set()  # directions in which bytes were lost: the rest is, too

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    async def run(self, direction: str, reader, writer) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read(direction, reader, queue))
            group.create_task(self._write(direction, queue, writer))

    async def _read(self, direction: str, reader, queue) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if direction in self.proxy.lost:
                    self.deaf.add(direction)
                if direction not in self.deaf:
                    await queue.put((self.proxy.due(direction, len(data)), data))
        await queue.put((0.0, b""))

    async def _write(self, direction: str, queue, writer) -> None:
        while True:
            due, data = await queue.get()
            while self.proxy.withholds(direction, due):  # noqa: ASYNC110  # set by another thread
                await asyncio.sleep(STEP_S)
            if not data:
                return self.abort()
            if self.proxy.cutting and direction == REPLIES:
                writer.write(data[: len(data) // 2])
                await asyncio.sleep(0)  # what is written goes out before the end
                return self.abort()
            writer.write(data)
            with contextlib.suppress(OSError):
                await writer.drain()


class Proxy:
    """Passes bytes between a free port of loopback and a store, until it is given a fault.

    The fields may be set at any time; `heal` clears them. Directions in `held` pass nothing until
    then. Of those in `lost` every byte is lost, and all that follows on the same connection.
    """

    def __init__(self, store_url: str) -> None:
        self._target = urlsplit(store_url)
        self.heal()
        self._free_at = dict.fromkeys(BOTH, 0.0)
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK)  # or the kernel hides much
        listener.bind(("127.0.0.1", 0))
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, sock=listener, limit=CHUNK)
        )
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def heal(self) -> None:
        self.held: frozenset[str] = frozenset()
        self.lost: frozenset[str] = frozenset()
        self.cutting = False  # each reply ends in its middle, and with it the connection
        self.refusing = False  # new connections are closed at once
        self.latency_s = 0.0
        self.bytes_per_s = float("inf")

    def hold(self, *directions: str) -> None:
        self.held = frozenset(directions)

    def lose(self, *directions: str) -> None:
        self.lost = frozenset(directions)

    def slow(self, latency_s: float, bytes_per_s: float) -> None:
        self.latency_s, self.bytes_per_s = latency_s, bytes_per_s

    def cut(self) -> None:
        self.cutting = True

    def refuse(self) -> None:
        """Close every connection, and each new one."""
        self.refusing = True
        self._loop.call_soon_threadsafe(self._abort_all)

    def close(self) -> None:
        async def close() -> None:
            self._server.close()
            self._abort_all()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def limited(self) -> bool:
        return self.latency_s > 0 or self.bytes_per_s < float("inf")

    def withholds(self, direction: str, due: float) -> bool:
        """Whether bytes of a direction, due at a time, are not passed on now."""
        return direction in self.held or (self.limited and time.monotonic() < due)

    def due(self, direction: str, size: int) -> float:
        """When so many bytes that come now are to be passed on."""
        begin = max(time.monotonic(), self._free_at[direction] if self.limited else 0.0)
        self._free_at[direction] = begin + size / self.bytes_per_s
        return self._free_at[direction] + self.latency_s

    def _abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    async def _open(self):
        at = self._target
        if at.scheme == "unix":
            return await asyncio.open_unix_connection(at.path)
        return await asyncio.open_connection(at.hostname, at.port)

    async def _serve(self, reader, writer) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await self._open()
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self, writer, up_writer)
        self._connections.add(connection)
        try:
            await asyncio.gather(
                connection.run(REQUESTS, reader, up_writer),
                connection.run(REPLIES, up_reader, writer),
            )
        finally:
            connection.abort()
            self._connections.discard(connection)


class Stopped:
    """A server process that can be stopped for a while: SIGSTOP, and SIGCONT to heal."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def stop(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def heal(self) -> None:
        os.kill(self._pid, signal.SIGCONT)


class Network:
    """A network namespace with addresses of its own, whose packets can be dropped by direction.

    Needs root, iproute2 and iptables; `unusable` says what is missing.
    """

    def __init__(self, addresses: int) -> None:
        self.name = f"moca-{os.getpid()}"
        self._link = f"moca{os.getpid()}"
        block = f"10.213.{os.getpid() % 250}"
        self.addresses = [f"{block}.{10 + i}" for i in range(addresses)]
        try:
            _run("ip", "netns", "add", self.name)
            peer = ["peer", "name", "moca", "netns", self.name]
            _run("ip", "link", "add", self._link, "type", "veth", *peer)
            _run("ip", "addr", "add", f"{block}.1/24", "dev", self._link)
            _run("ip", "link", "set", self._link, "up")
            for address in self.addresses:
                self.run("ip", "addr", "add", f"{address}/24", "dev", "moca")
            self.run("ip", "link", "set", "moca", "up")
            self.heal()  # says whether iptables works here
        except BaseException:
            self.close()
            raise

    def run(self, *command: str) -> None:
        _run(*self.inside(*command))

    def inside(self, *command: str) -> list[str]:
        """Return a command that runs in the namespace."""
        return ["ip", "netns", "exec", self.name, *command]

    def drop(self, direction: str, *addresses: str) -> None:
        """Drop all packets to (REQUESTS) or from (REPLIES) these addresses."""
        chain, which = ("INPUT", "-d") if direction == REQUESTS else ("OUTPUT", "-s")
        for address in addresses:
            self.run("iptables", "-A", chain, which, address, "-j", "DROP")

    def heal(self) -> None:
        self.run("iptables", "-F")

    def close(self) -> None:
        for command in (["link", "del", self._link], ["netns", "del", self.name]):
            subprocess.run(["ip", *command], check=False, capture_output=True)

    @staticmethod
    def unusable() -> str:
        """Return why there can be no network here; empty: there can."""
        try:
            Network(1).close()
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", b"") or b""
            return f"no network namespaces: {error} {said.decode().strip()}"
        return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=10)


def one_in_each(partitions: int, prefix: str) -> list[str]:
    """Names of streams, one in each partition."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < partitions:
        name = f"{prefix}-{number}"
        found.setdefault(partition_of(name, partitions), name)
        number += 1
    return [found[p] for p in range(partitions)]


class Post:
    """One attempt to post an observation."""

    def __init__(self, stream: str, began: float, ended: float, status: int) -> None:
        self.stream, self.began, self.ended = stream, began, ended
        self.status = status  # 0: no answer at all

    @property
    def ok(self) -> bool:
        return self.status == 200


class Background(ABC):
    """An asyncio job in a thread, from `start` to `stop`, which raises its failure."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    async def _all(self) -> None:
        """Run until `_stopping` is set and what is on its way has ended."""

    def start(self) -> None:
        self._thread.start()

    def stop(self, within_s: float = 90) -> None:
        self._stopping.set()
        self._thread.join(within_s)
        assert not self._thread.is_alive(), "calls are still on their way"
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what went wrong so far."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._all())
        except BaseException as error:  # noqa: BLE001  # raised again by `raise_failure`
            self._failure = error


class Writers(Background):
    """Posts to streams of several APIs, one writer each, in order, each observation with a key.

    An observation is posted again until it is answered by 200; then comes the next. Runs in a
    thread from `start` to `stop`, which waits until what is on its way has been answered.
    """

    def __init__(
        self, streams: dict[str, str], tokens: dict[str, str], pause_s: float = 0.2
    ) -> None:
        super().__init__()
        self.streams, self._pause_s = streams, pause_s  # URL of the API by stream
        self._headers = {url: {"Authorization": f"Bearer {key}"} for url, key in tokens.items()}
        self.answers: dict[str, list[dict]] = {stream: [] for stream in streams}
        self.posts: list[Post] = []

    @staticmethod
    def label(stream: str, at: int) -> float:
        """Return the label of an observation: two levels, so that beliefs move."""
        return 4.0 * (at // 15 % 2) + (hash((len(stream), at)) % 1000) / 1000

    def start(self) -> None:
        for stream, url in self.streams.items():
            body = {"model": "gaussian", "location": 0.0, "scale": 1.0, "hazard": 0.02}
            path = f"{url}/v1/streams/{stream}"
            headers = self._headers.get(url)
            httpx.put(path, json=body, headers=headers, timeout=60).raise_for_status()
        super().start()

    async def _all(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(timeout=60, limits=limits) as client,
            asyncio.TaskGroup() as group,
        ):
            for stream, url in self.streams.items():
                group.create_task(self._write(client, stream, url))

    async def _write(self, client: httpx.AsyncClient, stream: str, url: str) -> None:
        answers = self.answers[stream]
        while not self._stopping.is_set():
            at = len(answers)
            body = {"y": self.label(stream, at)}
            headers = {"Idempotency-Key": f"k{at}", **self._headers.get(url, {})}
            while len(answers) == at:
                began, status = time.monotonic(), 0
                with contextlib.suppress(httpx.TransportError):
                    path = f"{url}/v1/streams/{stream}/observations"
                    response = await client.post(path, json=body, headers=headers)
                    status = response.status_code
                self.posts.append(Post(stream, began, time.monotonic(), status))
                assert status in (0, 200, 503, 504), response.text
                if status == 200:
                    answers.append(response.json())
                await asyncio.sleep(self._pause_s)

    def recovered(self, healed: float) -> dict[str, float]:
        """Seconds from `healed` to the first of an unbroken run of successes, by stream."""
        runs = {
            stream: [(post.ended, post.ok) for post in self.posts if post.stream == stream]
            for stream in self.streams
        }
        return {name: _recovered(run, healed) for name, run in runs.items()}

    def slowest(self, since: float = 0.0, until: float = float("inf")) -> float:
        """Seconds of the slowest post that began after one moment and ended before another."""
        lasted = [p.ended - p.began for p in self.posts if since < p.began and p.ended < until]
        return max(lasted)

    def wait_recovered(self, healed: float, successes: int = 3, within_s: float = 60) -> None:
        """Wait until each stream has this many successes in a row that ended after `healed`."""
        deadline = time.monotonic() + within_s
        while not all(self._successes(stream, healed) >= successes for stream in self.streams):
            self.raise_failure()
            assert time.monotonic() < deadline, "posts still fail"
            time.sleep(0.05)

    def _successes(self, stream: str, since: float) -> int:
        ended = [post for post in list(self.posts) if post.stream == stream and post.ended > since]
        return sum(1 for _ in itertools.takewhile(lambda post: post.ok, reversed(ended)))

    def failures(self) -> int:
        return sum(not post.ok for post in self.posts)

    def check(self, url: str) -> None:
        """Each observation was applied once, in order, and as in a stream never interrupted."""
        headers = self._headers.get(url)
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            for stream, answers in self.answers.items():
                labels = [self.label(stream, at) for at in range(len(answers))]
                assert [answer["seq"] for answer in answers] == list(range(len(labels)))
                assert _history(client, stream) == labels
                body = {"model": "gaussian", "location": 0.0, "scale": 1.0, "hazard": 0.02}
                client.put(f"/v1/streams/calm-{stream}", json=body).raise_for_status()
                path = f"/v1/streams/calm-{stream}/observations"
                calm = client.post(path, json=[{"y": y} for y in labels]).json()
                for mine, other in zip(answers, calm, strict=True):
                    assert abs(mine["log_score"] - other["log_score"]) <= 1e-9, (mine, other)


def _recovered(run: list[tuple[float, bool]], healed: float) -> float:
    after = [(at, ok) for at, ok in run if at > healed]
    last_failure = max((i for i, (_, ok) in enumerate(after) if not ok), default=-1)
    assert len(after) > last_failure + 1, "never recovered"
    return after[last_failure + 1][0] - healed


def _history(client: httpx.Client, stream: str) -> list[float]:
    found = client.get(f"/v1/streams/{stream}/history", params={"limit": 1000}).json()
    return [each["y"] for each in found["observations"]]
