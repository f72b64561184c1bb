"""A storm of composed faults, held against a sequential model: `python -m tests.referees.history`.

It hits a deployment of `tests.referees.deployments`. Clients post with idempotency keys, one by
one, in lists, in bulk and several to one stream, delete and read, and repeat whatever had no
definite answer. Afterwards every stream must be what its observations, posted once and in order to
a calm stream, make of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from service.store import keys
from service.store.connection import connect
from tests.e2e.deployment import twin_of
from tests.referees.deployments import (
    NOTHING,
    PARTITIONS,
    TOPOLOGIES,
    Deployment,
    Fault,
    Faults,
    Pause,
    stores,
)
from tests.referees.judging import Row, shown
from tests.waiting import go_first

SETTINGS = {"model": "gaussian", "location": 0.0, "scale": 1.0, "hazard": 0.02}
AGAIN = {0, 408, 429, 503, 504}  # no definite answer, or refused for the time being
CORRUPT = 500  # allowed of streams whose stored bytes were flipped, until these are put back
# Of requests; a part after the first may take a second more, and bulk posts here have three.
DEADLINE_S = 7.9
LEASE_MS = 3900  # of workers; less than half of it
LONGEST_WAIT_S, HEALED_WITHIN_S = 10.0, 3.0
PATIENCE_S = 120.0  # of the comparison, after the storm
CALM_S = 6.0  # posts go on for so long after the last fault
# Of an event, by labels of the history; of one that could not be read it stays as it was before.
EXPLAINED = {"before", "after", "explanation", "sentence", "start_time", "start_arrived"}
TOLERANCE = 1e-9
# Searches for quantiles end that close; torch serves until kernels are ready, which go other ways.
QUANTILE_TOLERANCE = 1e-7
KEPT_TOLERANCE = 1e-6  # of the history: where numbers nearly agree, those of float32 may not
KEPT = "/history"  # the part of what is read that has them


class Contradiction(AssertionError):
    """An answer that no sequential service gives."""


class Call(NamedTuple):
    """One request and its end."""

    what: str
    url: str
    stream: str
    began: float
    ended: float
    status: int  # 0: none

    @property
    def seconds(self) -> float:
        return self.ended - self.began


# --- clients -------------------------------------------------------------------------------------


class Clients:
    """Everything that is posted and read, in a thread of its own."""

    def __init__(self, urls: list[str], seed: int) -> None:
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._urls, self._rng = urls, random.Random(seed)
        self.calls: list[Call] = []
        self.answers: dict[str, dict[int, dict[str, Any]]] = {}  # by stream, by seq
        self.labels: dict[str, dict[int, float]] = {}
        self.posted: Counter[tuple[str, float]] = Counter()
        self._unsure: set[str] = set()  # streams of which a PUT or DELETE may be applied later
        self.victims = [f"victim-{i}" for i in range(4)]
        self.reads = 0
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(120)
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

    async def _all(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=120, limits=limits) as self._http:
            singles = [f"single-{i}" for i in range(16)]
            shared, lists = [f"shared-{i}" for i in range(3)], [f"list-{i}" for i in range(3)]
            bulk, deleted = [f"bulk-{i}" for i in range(5)], ["deleted-0", "deleted-1"]
            for name in (*singles, *shared, *lists, *bulk, *self.victims):
                await self._make(name)
            async with asyncio.TaskGroup() as group:
                for name in (*singles, *self.victims):
                    group.create_task(self._singly(name, "k"))
                for name, writer in itertools.product(shared, ("a", "b")):
                    group.create_task(self._singly(name, writer))
                for name in lists:
                    group.create_task(self._in_lists(name))
                group.create_task(self._in_bulk(bulk))
                for name in deleted:
                    group.create_task(self._again_and_again(name))
                group.create_task(self._reading([*singles, *lists, *bulk]))

    async def _make(self, name: str) -> None:
        await self._until(name, "PUT", f"/v1/streams/{name}", {200, 201}, json=SETTINGS)
        self.answers[name], self.labels[name] = {}, {}

    async def _singly(self, name: str, writer: str) -> None:
        """Post one observation after the other, each until it is answered."""
        for at in itertools.count():
            if self._stopping.is_set():
                return
            y = self._label(name)
            headers = {"Idempotency-Key": f"{writer}{at}"}
            path = f"/v1/streams/{name}/observations"
            found = await self._until(name, "POST", path, {200}, json={"y": y}, headers=headers)
            self._note(name, found.json(), y)
            await asyncio.sleep(0.1)

    async def _in_lists(self, name: str) -> None:
        for at in itertools.count():
            if self._stopping.is_set():
                return
            ys = [self._label(name) for _ in range(40)]  # two commands
            headers = {"Idempotency-Key": f"k{at}"}
            path, body = f"/v1/streams/{name}/observations", [{"y": y} for y in ys]
            found = await self._until(name, "POST", path, {200}, json=body, headers=headers)
            for answer, y in zip(found.json(), ys, strict=True):
                self._note(name, answer, y)
            await asyncio.sleep(0.5)

    async def _in_bulk(self, names: list[str]) -> None:
        """Post items of several streams; those that failed for the time being again."""
        for at in itertools.count():
            if self._stopping.is_set():
                return
            left = [
                {"stream": name, "key": f"k{at}-{i}", "y": self._label(name)}
                for name in names
                for i in range(3)
            ]
            while left:
                path = "/v1/observations"
                found = await self._until("bulk", "POST", path, {200}, json=left)
                again = []
                for item, answer in zip(left, found.json(), strict=True):
                    if answer["status"] == 200:
                        self._note(item["stream"], answer, item["y"])
                    elif answer["status"] in AGAIN or "earlier-item" in answer["type"]:
                        again.append(item)
                    else:
                        raise Contradiction(f"{item}: {answer}")
                left = again
                await asyncio.sleep(0.3)

    async def _again_and_again(self, prefix: str) -> None:
        """Make a stream, post to it, delete it; the next life begins at 0.

        What had no definite answer may still come to be applied, in a later life too: its name is
        not used again.
        """
        name = f"{prefix}-0"
        for life in itertools.count():
            if self._stopping.is_set():
                return
            path = f"/v1/streams/{name}"
            await self._until(name, "PUT", path, {200, 201}, json=SETTINGS)
            for at in range(5):
                headers, body = {"Idempotency-Key": f"{life}-{at}"}, {"y": self._label(name)}
                found = await self._until(
                    name, "POST", f"{path}/observations", {200}, json=body, headers=headers
                )
                if found.json()["seq"] != at:
                    raise Contradiction(f"{name}, life {life}: {found.json()} is not at {at}")
            await self._until(name, "DELETE", path, {204, 404})
            if name in self._unsure:
                name = f"{prefix}-{life + 1}"
            else:
                await self._until(name, "GET", path, {404})

    async def _reading(self, names: list[str]) -> None:
        """A read that begins after an acknowledgement knows of it."""
        while not self._stopping.is_set():
            name = self._rng.choice(names)
            known = len(self.answers[name])
            part = self._rng.choice(["", "/run-length", "/predictions", "/changepoints"])
            method = "POST" if part == "/predictions" else "GET"
            more = {"json": {}} if method == "POST" else {}
            found = await self._call(name, method, f"/v1/streams/{name}{part}", **more)
            if found is not None and found.status_code == 200:
                self.reads += 1
                seq = found.json()["seq"]
                behind = 1 if part == "/run-length" else 0
                if (seq if seq is not None else -1) + behind < known:
                    raise Contradiction(f"{name}{part}: {seq} after {known} were acknowledged")
            elif found is not None and found.status_code not in AGAIN:
                raise Contradiction(f"{method} {name}{part}: {found.text}")
            await asyncio.sleep(0.05)

    def _label(self, name: str) -> float:
        """A number that no other observation has, at one of two levels."""
        y = self._rng.gauss(4.0 * (int(time.monotonic()) // 7 % 2), 1.0)
        self.posted[name, y] += 1
        return y

    def _note(self, name: str, answer: dict[str, Any], y: float) -> None:
        seq = answer["seq"]
        if seq in self.labels[name]:
            raise Contradiction(f"{name}: {self.labels[name][seq]} and {y} are both at {seq}")
        self.labels[name][seq], self.answers[name][seq] = y, answer

    async def _until(self, name: str, method: str, path: str, wanted: set[int], **more):
        """Repeat a call until its answer is definite."""
        allowed = AGAIN | ({CORRUPT} if name in self.victims else set())
        while True:
            found = await self._call(name, method, path, **more)
            if found is not None and found.status_code in wanted:
                return found
            if found is not None and found.status_code not in allowed:
                raise Contradiction(f"{method} {path}: {found.status_code} {found.text}")
            if method in ("PUT", "DELETE"):  # without a key that would say what a repeat is
                self._unsure.add(name)
            await asyncio.sleep(self._rng.uniform(0.05, 0.3))

    async def _call(self, name: str, method: str, path: str, **more) -> httpx.Response | None:
        url, began, found = self._rng.choice(self._urls), time.monotonic(), None
        with contextlib.suppress(httpx.TransportError):
            found = await self._http.request(method, f"{url}{path}", **more)
        status = 0 if found is None else found.status_code
        self.calls.append(Call(f"{method} {path}", url, name, began, time.monotonic(), status))
        return found


# --- the storm ----------------------------------------------------------------------------------


class Begun(NamedTuple):
    """A fault that has not ended yet. until: on the monotonic clock."""

    fault: Fault
    until: float
    on_store: bool


def rage(faults: Faults, clients: Clients, seconds: float, rng: random.Random, say) -> Counter[str]:
    """Begin faults at random, two at a time at most, until the time is over; all are ended."""
    count: Counter[str] = Counter()
    end = time.monotonic() + seconds
    begun: list[Begun] = []
    while time.monotonic() < end:
        clients.raise_failure()
        kind = rng.choice([*faults.of_processes, *faults.of_paths, *faults.on_store])
        on_store = kind in faults.on_store
        if len(begun) < 2 and not (on_store and any(each.on_store for each in begun)):
            fault = kind()
            count[kind.__name__] += fault != NOTHING
            lasts = rng.choice([0.3, 1, 2, 4, 6, 8])
            begun.append(Begun(fault, time.monotonic() + lasts, on_store))
            say(f"{fault.what}, for {lasts:g} s")
        next_s = time.monotonic() + rng.uniform(0.5, 3)
        while time.monotonic() < next_s:
            time.sleep(0.05)
            for due in [each for each in begun if each.until < time.monotonic()]:
                begun.remove(due)
                due.fault.heal()
    for each in begun:
        each.fault.heal()
    return count


# --- the sequential model ------------------------------------------------------------------------


def compare(clients: Clients, url: str) -> tuple[int, float]:
    """Hold every stream against a calm one; returns answers compared and the worst difference."""
    for (name, y), times in clients.posted.items():
        if times != 1 and not name.startswith("deleted"):
            raise Contradiction(f"the harness posted {y} twice to {name}")
    with httpx.Client(base_url=url, timeout=120) as http, ThreadPoolExecutor(8) as threads:
        each = list(threads.map(lambda name: _compare_stream(clients, http, name), clients.labels))
    return sum(compared for compared, _ in each), max(worst for _, worst in each)


def _compare_stream(clients: Clients, http: httpx.Client, name: str) -> tuple[int, float]:
    labels = clients.labels[name]
    calm = twin_of(name, len(labels))
    if sorted(labels) != list(range(len(labels))):
        raise Contradiction(f"{name}: positions {sorted(labels)[:50]}... of {len(labels)}")
    ordered = [labels[seq] for seq in range(len(labels))]
    _calmly(lambda: http.put(f"/v1/streams/{calm}", json=SETTINGS))
    answers: list[dict[str, Any]] = []
    for i in range(0, len(ordered), 200):
        body = [{"y": y} for y in ordered[i : i + 200]]
        key = {"Idempotency-Key": f"k{i}"}
        path = f"/v1/streams/{calm}/observations"
        answers += _calmly(functools.partial(http.post, path, json=body, headers=key))
    worst = _compare_state(http, name, calm)
    for seq, answer in enumerate(answers):
        worst = max(worst, difference(clients.answers[name][seq], answer, name))
    return len(answers), worst


def _calmly(ask: Callable[[], httpx.Response]) -> Any:
    """Return the answer to a request, made again while a busy machine has none in time."""
    end = time.monotonic() + PATIENCE_S
    while (answer := ask()).status_code in AGAIN and time.monotonic() < end:
        time.sleep(0.2)
    answer.raise_for_status()
    return answer.json()


def _compare_state(http: httpx.Client, name: str, calm: str) -> float:
    """What can be read of both streams; what only the one has seen, such as times, aside."""
    worst = 0.0
    for part in ("/run-length", "/changepoints", "/history?limit=1000&detail=full"):
        mine, other = (
            _calmly(functools.partial(http.get, f"/v1/streams/{each}{part}"))
            for each in (name, calm)
        )
        for each in (mine, other):  # computed at other times, of fewer observations
            each.pop("hindsight", None)
            each.pop("segmentation", None)
        found = difference(mine, other, name + part)
        if KEPT not in part:
            worst = max(worst, found)
    return worst


def _ignored(mine: dict[str, Any], other: dict[str, Any], where: str) -> set[str]:
    """Members that are not compared."""
    ignored = {"stream", "duplicate", "at", "status"}
    if mine.get("start_arrived") is True and other.get("start_arrived") is True:
        ignored.add("start_time")  # when each of them arrived
    if where.startswith("victim"):
        ignored |= EXPLAINED
    return ignored


def difference(mine: Any, other: Any, where: str) -> float:
    """Largest difference of numbers, relative above 1; anything else that differs is raised."""
    if isinstance(mine, dict) and isinstance(other, dict):
        ignored = _ignored(mine, other, where)
        if mine.keys() - ignored != other.keys() - ignored:
            raise Contradiction(f"{where}: {mine} and {other}")
        each = [difference(mine[k], other[k], f"{where}.{k}") for k in mine.keys() - ignored]
        return max(each, default=0.0)
    if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        pairs = enumerate(zip(mine, other, strict=True))
        return max((difference(a, b, f"{where}[{i}]") for i, (a, b) in pairs), default=0.0)
    if isinstance(mine, float) and isinstance(other, float | int):
        found = abs(mine - other) / max(1.0, abs(other))
        tolerance = QUANTILE_TOLERANCE if ".quantiles." in where else TOLERANCE
        if found > (KEPT_TOLERANCE if KEPT in where else tolerance):
            raise Contradiction(f"{where}: {mine} and {other}")
        return found
    if mine != other:
        raise Contradiction(f"{where}: {mine} and {other}")
    return 0.0


class Result(NamedTuple):
    """What a storm came to."""

    faults: Counter[str]
    calls: int
    again: Counter[int]  # calls that were repeated, by status
    reads: int
    answers: int
    worst: float  # difference from the sequential model
    longest_wait_s: float  # but for the time in which the API itself was stopped
    healed_s: float  # from the end of the last fault, and of its lease, until all is served
    start_s: float  # in which this machine, as busy as it is, starts all processes

    @property
    def served_in_time(self) -> bool:
        """Whether nobody waited too long: what the last fault killed has to start as well."""
        return (
            self.longest_wait_s < LONGEST_WAIT_S + self.start_s
            and self.healed_s < HEALED_WITHIN_S + self.start_s
        )


def waited(call: Call, pauses: list[Pause]) -> float:
    """Seconds of a call, without those in which its API was stopped."""
    stopped = (
        min(call.ended, each.ended) - max(call.began, each.began)
        for each in pauses
        if each.url == call.url
    )
    return call.seconds - sum(each for each in stopped if each > 0)


def healed(clients: Clients, moment: float) -> float:
    """Seconds from a moment until no call is refused any more."""
    refused = [c.ended for c in clients.calls if c.status in AGAIN | {CORRUPT} and c.ended > moment]
    waiting = [c.ended for c in clients.calls if c.began <= moment < c.ended]
    return max((at - moment for at in refused + waiting), default=0.0)


def storm(topology: str, seed: int, seconds: float, folder: Path, say=print) -> Result:
    """Run one on a store of this topology; raises Contradiction."""
    with stores(topology) as store:
        bounds = {"request_deadline_s": DEADLINE_S, "lease_ttl_ms": LEASE_MS}
        deployment = Deployment(folder, store, **bounds)
        return _storm(deployment, random.Random(seed), seed, seconds, say)


def _storm(
    deployment: Deployment,
    rng: random.Random,
    seed: int,
    seconds: float,
    say: Callable[[str], None],
) -> Result:
    try:
        clients = Clients(deployment.urls, seed)
        for thread in threading.enumerate():  # of the clients, and of proxies
            if thread is not threading.main_thread() and thread.native_id is not None:
                go_first(thread.native_id)
        time.sleep(2)
        faults = Faults(deployment, rng, clients.victims)
        count = rage(faults, clients, seconds, rng, say)
        moment = max(time.monotonic(), faults.leases_end)
        time.sleep(moment - time.monotonic() + CALM_S)
        clients.stop()
        say("comparing")
        compared, worst = compare(clients, deployment.urls[0])
        with connect(deployment.store_url) as client:
            aside = {p: client.hkeys(keys.quarantine(p)) for p in range(PARTITIONS)}
        say(f"set aside: { {p: found for p, found in aside.items() if found} }")
    finally:
        deployment.close()
    again = Counter(c.status for c in clients.calls if c.status in AGAIN | {CORRUPT})
    waits = {call: waited(call, faults.pauses) for call in clients.calls}
    longest = sorted(waits, key=lambda call: -waits[call])
    for call in longest[:5]:
        ago = moment - call.began
        say(f"{call.what}: {call.status} after {call.seconds:.1f} s, {ago:.0f} s before the end")
    return Result(
        count, len(clients.calls), again, clients.reads, compared, worst,
        waits[longest[0]], healed(clients, moment), deployment.start_s,
    )  # fmt: skip


def measure(topology: str, folder: Path) -> dict[str, Any]:
    """A minute and a half of faults; fails where an answer contradicts the sequential model."""
    result = storm(topology, 1, 90, folder, say=lambda text: None)
    return {
        "faults": sum(result.faults.values()),
        "answers compared": result.answers,
        "worst difference": result.worst,
        "longest wait, s": result.longest_wait_s,
        "healed after, s": result.healed_s,
    }


def judge(now: dict[str, Any], frozen: dict[str, Any]) -> list[Row]:
    """Contradictions have failed before; the rest is shown, as the machine has a part in it."""
    ok = now["answers compared"] > 1000 and now["worst difference"] <= QUANTILE_TOLERANCE
    contradictions = Row("contradictions", "0", "0", ok)
    return [contradictions, *shown(now, frozen)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", choices=TOPOLOGIES, default="server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--keep", type=Path, help="folder for data and logs, kept afterwards")
    given = parser.parse_args()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    folder = given.keep or Path(tempfile.mkdtemp(prefix="storm-"))
    folder.mkdir(parents=True, exist_ok=True)
    result = storm(given.topology, given.seed, given.seconds, folder, say)
    for name, value in result._asdict().items():
        print(f"{name:16} {value}")
    raise SystemExit(0 if result.served_in_time else 1)


if __name__ == "__main__":
    main()
