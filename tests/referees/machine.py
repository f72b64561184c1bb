"""A state machine on real processes, held against a sequential model of each stream.

`python -m tests.referees.machine --topology server --runs 300` draws runs of requests and faults
(Hypothesis): posts of all forms, some of which are left under way, retries, late labels, deletions,
snapshots, feedback, exclusions, moves and reads; kills, pauses, thefts of leases, lost and cut
replies, full disks, fail-overs. Every answer has to be what `tests.referees.sequential` says. At
the end of a run all that can be read is compared, too, and so is a copy of the log.

Processes live through all runs; each run has streams of its own. A run that fails is made smaller,
as far as it fails again: processes take their own time, so that not each failure does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillUnderWay
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import httpx
import hypothesis
import pyarrow as pa
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.errors import StopTest
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from service.store import keys
from service.store.connection import connect
from tests.answers import close
from tests.e2e.deployment import wait_ready
from tests.referees.appended import LogCopy
from tests.referees.deployments import (
    NOTHING,
    PARTITIONS,
    TOPOLOGIES,
    Deployment,
    Fault,
    Faults,
    stores,
)
from tests.referees.sequential import Life, Seen
from tests.remote_write import V1, V2, version_1, version_2
from tests.waiting import PATIENCE_S

AGAIN = {429, 503, 504}  # no definite answer, or refused for the time being
LEASE_MS = 1000
DEADLINE_S = 10.0
RETRY_S = 0.02
SLOTS = 4  # streams of a run at a time
ACTIONS = 60
BEGUN = 2  # faults at a time
WRITTEN = {"model": "gaussian", "location": 0.0, "scale": 1.0, "hazard": 0.02}
KINDS: list[dict[str, Any]] = [
    WRITTEN,
    {"model": "averaged"},  # with a warm-up
    {**WRITTEN, "hazard": 0.05, "confirm_after": 5},
    {**WRITTEN, "max_hypotheses": 12, "outlier_rate": 0.02},
]
MODELS = ("gaussian", "averaged")
INTERVAL_S = 60.0
FIRST_S = 1_767_225_600.0  # time of the first sample of a series
RULES = f"""
[[rule]]
stream = "{{__name__}}"
model = "gaussian"
location = 0.0
scale = 1.0
hazard = 0.02
interval = {INTERVAL_S}
"""
EVERY_STATE = "wait=false&state=suspected&state=confirmed&state=withdrawn"
BINARY = {"Content-Type": "application/octet-stream"}
ARROW = "application/vnd.apache.arrow.stream"
NDJSON = {"Content-Type": "application/x-ndjson"}


class Result(NamedTuple):
    """A definite answer, and how many times it was asked for."""

    answer: httpx.Response
    tries: int


class Service:
    """A deployment that lives through all runs, and what asks it."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.rng = random.Random()  # of faults: seeded by each of them
        self.faults = Faults(deployment, self.rng)
        self.log = LogCopy(deployment.store.nodes, PARTITIONS)
        self.runs = itertools.count()
        self.counts: Counter[str] = Counter()
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.Client(timeout=2 * DEADLINE_S, limits=limits)
        self._threads = ThreadPoolExecutor(16)

    def close(self) -> None:
        """End the processes; the store goes on."""
        self._threads.shutdown(cancel_futures=True)
        self._http.close()
        self.deployment.close()

    def begin(self, first: int, method: str, path: str, wanted: set[int], **more: Any):
        """Ask until an answer is definite, in a thread; first: the API that is asked first."""
        return self._threads.submit(self.ask, first, method, path, wanted, **more)

    def apart(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function in a thread."""
        return self._threads.submit(call, *arguments)

    def ask(self, first: int, method: str, path: str, wanted: set[int], **more: Any) -> Result:
        """Ask until an answer is definite, one API after the other."""
        end = time.monotonic() + PATIENCE_S
        for at in itertools.count():
            url = self.deployment.urls[(first + at) % len(self.deployment.urls)]
            try:
                answer = self._http.request(method, url + path, **more)
            except httpx.TransportError as error:
                self.counts["no answer"] += 1
                last: Any = error
            else:
                self.counts[str(answer.status_code)] += 1
                if answer.status_code in wanted:
                    return Result(answer, at + 1)
                last = f"{answer.status_code} {answer.text}"
                assert answer.status_code in AGAIN, f"{method} {path}: {last}"
            assert time.monotonic() < end, f"{method} {path}: {last}, for {PATIENCE_S:g} s"
            time.sleep(RETRY_S)
        raise AssertionError("counting ended")

    def check(self) -> None:
        """Nothing was given up, and nobody ended by itself."""
        for url in self.deployment.urls:
            wait_ready(url)
        for name, process in self.deployment.processes.running.items():
            assert process.is_alive(), f"{name} has ended: {process.exitcode}"
        with connect(self.deployment.store_url) as client:
            aside = [client.hkeys(keys.quarantine(p)) for p in range(PARTITIONS)]
        assert not any(aside), f"set aside: {aside}"


class Begun(NamedTuple):
    """A fault that has not ended yet. patience_s: of requests, until it is ended for them."""

    fault: Fault
    on_store: bool
    patience_s: float


class Posted(NamedTuple):
    """A post that was applied. answers: the first ones."""

    path: str
    request: dict[str, Any]  # its body and headers
    answers: list[dict[str, Any]]


class Flying(NamedTuple):
    """A post that may be under way."""

    result: Future[Result]
    path: str
    request: dict[str, Any]
    seen: list[Seen]


@dataclass
class Stream:
    """A stream of a run: its present life, None where it has none, and what was posted to it."""

    name: str
    life: Life | None = None
    posted: list[Posted] = field(default_factory=list)
    flying: list[Flying] = field(default_factory=list)
    accepted: list[float | None] = field(default_factory=list)  # labels that the log has to have
    unsure: bool = False  # what had no answer may be applied later: a deletion is not the end


def pairs_of(least: int, most: int) -> st.SearchStrategy[tuple[int, int]]:
    """Two whole numbers."""
    return st.tuples(st.integers(least, most), st.integers(least, most))


class ServiceMachine(RuleBasedStateMachine):
    """Requests and faults of one run."""

    service: ClassVar[Service]

    def __init__(self) -> None:
        super().__init__()
        self._run = next(self.service.runs)
        self._names = itertools.count()
        self._keys = itertools.count()
        self._rng = random.Random(0)  # of labels
        self._streams = [self._named() for _ in range(SLOTS)]
        self._series = [self._named() for _ in range(2)]
        self._all = [*self._streams, *self._series]
        self._begun: list[Begun] = []

    def _named(self) -> Stream:
        return Stream(f"run{self._run}_{next(self._names)}")

    # --- requests ---------------------------------------------------------------------------------

    slots = st.integers(0, SLOTS - 1)
    apis = st.integers(0, 1)
    places = st.integers(0, 99)
    verdicts = st.sampled_from([True, False, None])
    patience = st.sampled_from([0.2, 0.2, 1.5])
    seeds = st.integers(0, 2**16)

    @rule(
        slot=slots, api=apis, count=st.integers(1, 40), level=st.integers(0, 2), wait=st.booleans()
    )
    def post(self, slot: int, api: int, count: int, level: int, wait: bool) -> None:
        """Post one observation or a list, and perhaps leave it under way."""
        stream = self._alive(slot, api)
        self._post(stream, api, self._labels(count if count > 8 else 1, level))
        if wait:
            self._settle(stream)

    @rule(slot=slots, api=apis, count=st.integers(1, 70), level=st.integers(0, 2))
    def post_table(self, slot: int, api: int, count: int, level: int) -> None:
        """Post an Arrow table, and leave it under way."""
        stream = self._alive(slot, api)
        self._post(stream, api, self._labels(count, level), arrow=True)

    @rule(slot=slots, api=apis, more=st.sampled_from(["elapsed", "changepoint", "missing"]))
    def post_more(self, slot: int, api: int, more: str) -> None:
        """Post an observation that is more, or less, than a label."""
        stream = self._alive(slot, api)
        (seen,) = self._labels(1, 0)
        if more == "elapsed":
            seen = seen._replace(elapsed=2.5)
        elif more == "changepoint":
            seen = seen._replace(changepoint=0.75)
        else:
            seen = seen._replace(y=None)
        self._post(stream, api, [seen])

    @rule(slot=slots, api=apis, counts=st.sampled_from([(1, 1), (1, 5), (40, 1), (40, 40)]))
    def race(self, slot: int, api: int, counts: tuple[int, int]) -> None:
        """Post twice to one stream, by both APIs at once."""
        stream = self._alive(slot, api)
        for i, count in enumerate(counts):
            self._post(stream, api + i, self._labels(count, i))
        self._settle(stream)

    @rule(api=apis, counts=st.tuples(*[st.integers(0, 3)] * SLOTS), lines=st.booleans())
    def bulk(self, api: int, counts: tuple[int, ...], lines: bool) -> None:
        """Post observations of several streams in one body."""
        items: list[dict[str, Any]] = []
        posted: list[tuple[Stream, Seen]] = []
        for slot, count in enumerate(counts):
            stream = self._alive(slot, api)
            for seen in self._labels(count, slot):
                items.append({"stream": stream.name, "key": self._key(), "y": seen.y})
                posted.append((stream, seen))
        if items:
            answers = self._wait(self.service.apart(self._until_applied, api, items, lines))
            for (stream, seen), answer in zip(posted, answers, strict=True):
                self._apply(stream, seen, answer)

    def _until_applied(self, api: int, items: list[Any], lines: bool) -> list[dict[str, Any]]:
        """Post items, and those that failed for the time being again; returns all answers."""
        path = "/v1/observations?detail=full"
        answers: dict[str, dict[str, Any]] = {}
        end = time.monotonic() + PATIENCE_S
        left = items
        while left:
            if lines:
                content = "\n".join(map(json.dumps, left))
                text = self.service.ask(api, "POST", path, {200}, content=content, headers=NDJSON)
                results = [json.loads(line) for line in text.answer.text.splitlines()]
            else:
                results = self.service.ask(api, "POST", path, {200}, json=left).answer.json()
            again = []
            for item, answer in zip(left, results, strict=True):
                if answer["status"] == 200:
                    answers[item["key"]] = answer
                else:
                    waits = answer["status"] in AGAIN or "earlier-item" in answer["type"]
                    assert waits, f"{item}: {answer}"
                    again.append(item)
            left = again
            assert time.monotonic() < end, f"no answers to {left}"
        return [answers[item["key"]] for item in items]

    @rule(api=apis, counts=pairs_of(0, 5), gap=st.integers(1, 3), old=st.booleans())
    def write(self, api: int, counts: tuple[int, int], gap: int, old: bool) -> None:
        """Send a remote write, in which samples of before may be repeated."""
        series = []
        for stream, count in zip(self._series, counts, strict=True):
            if count:
                samples = self._sampled(stream, count, gap, old)
                series.append(({"__name__": stream.name, "job": "machine"}, samples))
        if not series:
            return
        body, headers = (version_1(*series), V1) if gap > 1 else (version_2(*series), V2)
        path = "/v1/prometheus/write"
        self._ask(api, "POST", path, {204}, content=body, headers=headers)
        for stream, count in zip(self._series, counts, strict=True):
            if count:
                self._check_belief(stream, api)

    def _sampled(self, stream: Stream, count: int, gap: int, old: bool) -> list[tuple[float, int]]:
        """Samples (value, ms) for a stream of a series, which it has to take."""
        stream.life = stream.life or Life(WRITTEN, INTERVAL_S)
        last_s = stream.life.last_s
        samples = [(0.5, int(1000 * last_s))] if old and last_s else []
        for i in range(count):
            time_s = (last_s or FIRST_S) + INTERVAL_S * (i * gap + 1)
            y = self._label(i % 2)
            samples.append((y, int(1000 * time_s)))
            stream.accepted.append(y)
            stream.life.sample(y, time_s)
        return samples

    @rule(slot=slots, api=apis, pick=st.integers(0, 9), same=st.booleans())
    def again(self, slot: int, api: int, pick: int, same: bool) -> None:
        """Repeat a post of before under its key, or post another body under that key."""
        stream = self._alive(slot, api)
        if not stream.posted:
            return
        posted = stream.posted[-1 - pick % len(stream.posted)]
        if same:
            result = self._ask(api, "POST", posted.path, {200}, **posted.request)
            for answer, first in zip(_listed(result.answer.json()), posted.answers, strict=True):
                assert answer["duplicate"], answer
                assert _without(answer) == _without(first)
        else:
            key = {"Idempotency-Key": posted.request["headers"]["Idempotency-Key"]}
            result = self._ask(api, "POST", posted.path, {422}, json={"y": 0.25}, headers=key)
            assert result.answer.json()["type"].endswith("/key-reused"), result.answer.text

    @rule(slot=slots, api=apis, seq=st.booleans())
    def refused(self, slot: int, api: int, seq: bool) -> None:
        """Post what no stream takes: nothing is changed."""
        stream = self._alive(slot, api)
        assert stream.life is not None
        body = {"y": 0.5, "seq": stream.life.seq + 3} if seq else {"y": [0.5, 0.5]}
        if not (seq or stream.life.labelled):
            return  # the first label says how many numbers there are
        path = f"/v1/streams/{stream.name}/observations"
        headers = {"Idempotency-Key": self._key()}
        answer = self._ask(api, "POST", path, {409, 422}, json=body, headers=headers).answer
        assert answer.status_code == (409 if seq else 422), answer.text
        stream.accepted.append(body["y"])

    @rule(slot=slots, api=apis, count=st.integers(1, 3))
    def post_inputs(self, slot: int, api: int, count: int) -> None:
        """Post observations whose labels are to come."""
        stream = self._alive(slot, api)
        self._post(stream, api, [Seen(None, pending=True) for _ in range(count)])
        self._settle(stream)

    @rule(slot=slots, api=apis, pick=st.integers(0, 3))
    def post_late(self, slot: int, api: int, pick: int) -> None:
        """Post a label that was to come."""
        stream = self._alive(slot, api)
        life = stream.life
        assert life is not None
        awaited = [i for i, seen in enumerate(life.waiting, len(life.applied)) if seen.pending]
        if not awaited:
            return
        seq = awaited[pick % len(awaited)]
        y = self._label(0)
        path = f"/v1/streams/{stream.name}/observations?detail=full"
        request = self._request({"y": y, "seq": seq})
        answer = self._ask(api, "POST", path, {200}, **request).answer.json()
        life.check(life.label(seq, y), answer)
        stream.accepted.append(y)
        stream.posted.append(Posted(path, request, [answer]))

    @rule(slot=slots, api=apis)
    def delete(self, slot: int, api: int) -> None:
        """Delete a stream; the next life of its name begins at 0."""
        stream = self._alive(slot, api)
        result = self._ask(api, "DELETE", f"/v1/streams/{stream.name}", {204, 404})
        assert result.tries > 1 or result.answer.status_code == 204
        if result.tries > 1 or stream.unsure:
            self._retire(stream)
            return
        self._ask(api, "GET", f"/v1/streams/{stream.name}", {404})
        stream.life = None

    @rule(source=slots, goal=slots, api=apis)
    def snapshot(self, source: int, goal: int, api: int) -> None:
        """Export a stream, and import it under another name, or its own."""
        first = self._alive(source, api)
        second = self._alive(goal, api)
        path = f"/v1/streams/{first.name}/snapshot"
        content = self._ask(api, "GET", path, {200}).answer.content
        assert first.life is not None
        path = f"/v1/streams/{second.name}/snapshot"
        self._ask(api, "PUT", path, {409}, content=content, headers=BINARY)
        path = f"{path}?replace=true"
        result = self._ask(api, "PUT", path, {200, 201}, content=content, headers=BINARY)
        second.life = first.life.copy()
        second.posted = []
        self._sure(second, result)

    @rule(slot=slots, api=apis, pick=places, change=verdicts)
    def judge(self, slot: int, api: int, pick: int, change: bool | None) -> None:
        """Confirm or reject an event, or report a change that has none: the stream is rerun."""
        stream = self._rerunnable(slot, api)
        life = stream.life
        if life is None:
            return
        events = [] if life.rerun else [event for event in life.events if event["start"] > 0]
        if change is None or not events:
            start = 1 + pick % (life.seq - 1)
            self._rerun(stream, api, "POST", "changepoints", {"start": start})
            life.judge(start, True)
        else:
            event = events[pick % len(events)]
            self._rerun(stream, api, "PUT", f"changepoints/{event['id']}", {"change": change})
            life.judge(event["start"], change)

    @rule(slot=slots, api=apis, pick=st.integers(0, 99), count=st.integers(1, 9), out=st.booleans())
    def exclude(self, slot: int, api: int, pick: int, count: int, out: bool) -> None:
        """Exclude observations from learning, or have them count again: the stream is rerun."""
        stream = self._rerunnable(slot, api)
        life = stream.life
        if life is None:
            return
        start = 1 + pick % (life.seq - 1)
        end = min(start + count, life.seq)
        body = {"start": start, "end": end, "excluded": out}
        self._rerun(stream, api, "POST", "exclusions", body)
        life.exclude(start, end, out)

    @rule(slot=slots, api=apis, model=st.sampled_from(MODELS))
    def move(self, slot: int, api: int, model: str) -> None:
        """Move a stream to another model: it is rerun."""
        stream = self._rerunnable(slot, api)
        if (life := stream.life) is not None:
            self._rerun(stream, api, "POST", "model", {"model": model})
            life.move(model)

    @rule(slot=slots, api=apis, probability=st.sampled_from([0.0, 0.5, 1.0]))
    def supervise(self, slot: int, api: int, probability: float) -> None:
        """Say how probable a change is before the next observation."""
        stream = self._rerunnable(slot, api)
        if (life := stream.life) is not None:
            self._rerun(stream, api, "PUT", "run-length", {"changepoint": probability})
            life.supervised = probability

    @rule(slot=slots, api=apis, part=st.sampled_from(["belief", "prediction", "what-if", "head"]))
    def read(self, slot: int, api: int, part: str) -> None:
        """Read something: it is as of the last answer."""
        stream = self._alive(slot, api)
        life = stream.life
        assert life is not None
        path = f"/v1/streams/{stream.name}"
        if part == "belief":
            self._check_belief(stream, api)
        elif part == "prediction" and life.answers and not life.waiting and life.known_scale:
            answer = self._ask(api, "POST", f"{path}/predictions", {200}, json={}).answer.json()
            close(answer["predictions"][0]["predictive"], life.prediction(), 1e-9)
        elif part == "what-if" and life.known_scale and life.labelled and not life.waiting:
            body = {"settings": {"hazard": 0.2}}
            answer = self._ask(api, "POST", f"{path}/what-if", {200}, json=body).answer.json()
            close(answer["mean_log_score"], life.mean_log_score(0.2), 1e-9)
        else:
            answer = self._ask(api, "GET", path, {200}).answer.json()
            assert answer["seq"] == life.seq, answer

    # --- faults -----------------------------------------------------------------------------------

    @rule(kind=places, seed=seeds, patience_s=patience)
    def hurt_process(self, kind: int, seed: int, patience_s: float) -> None:
        """Begin a fault of a process."""
        self._begin(self.service.faults.of_processes, kind, seed, patience_s)

    @rule(kind=places, seed=seeds, patience_s=patience)
    def hurt_path(self, kind: int, seed: int, patience_s: float) -> None:
        """Begin a fault between a process and the store."""
        self._begin(self.service.faults.of_paths, kind, seed, patience_s)

    @rule(kind=places, seed=seeds, patience_s=patience)
    def hurt_store(self, kind: int, seed: int, patience_s: float) -> None:
        """Begin a fault of the store, unless there is one."""
        if not any(each.on_store for each in self._begun):
            self.service.log.read()
            self._begin(self.service.faults.on_store, kind, seed, patience_s)

    def _begin(
        self, kinds: Sequence[Callable[[], Fault]], kind: int, seed: int, patience_s: float
    ) -> None:
        """Begin a fault. patience_s: for so long a request is left without an answer."""
        if len(self._begun) == BEGUN:
            return
        chosen = kinds[kind % len(kinds)]
        self.service.rng.seed(seed)
        fault = chosen()
        if fault is not NOTHING:
            self.service.counts[f"fault: {chosen.__name__}"] += 1
            on_store = chosen in self.service.faults.on_store
            self._begun.append(Begun(fault, on_store, patience_s))

    @rule()
    def heal(self) -> None:
        """End every fault."""
        begun, self._begun = self._begun, []
        for each in begun:
            each.fault.heal()

    # --- the end ----------------------------------------------------------------------------------

    def teardown(self) -> None:
        """End the faults, and compare all that can be read, and the log.

        Not after a rule that failed: its failure is the one to report and to make smaller.
        """
        self.heal()
        if not isinstance(sys.exception(), StopTest | None):
            return
        for stream in self._all:
            self._settle(stream)
        self.service.check()
        accepted = self.service.log.accepted([stream.name for stream in self._all])
        for stream in self._all:
            found = accepted[stream.name]
            expected = stream.accepted
            assert found == expected, f"{stream.name}: {found} in the log, expected {expected}"
            if stream.life is not None:
                self._check_all(stream)
        self.service.counts["runs"] += 1

    def _check_all(self, stream: Stream) -> None:
        life = stream.life
        assert life is not None
        path = f"/v1/streams/{stream.name}"
        self._check_belief(stream, 0)
        kept = self._ask(1, "GET", f"{path}/history?limit=1000&detail=full", {200}).answer.json()
        life.check_history(kept["observations"])
        listed = self._ask(0, "GET", f"{path}/changepoints?{EVERY_STATE}", {200}).answer.json()
        life.check_events(listed["events"])
        self.service.counts["answers compared"] += len(life.answers)

    def _check_belief(self, stream: Stream, api: int) -> None:
        path = f"/v1/streams/{stream.name}/run-length"
        assert stream.life is not None
        stream.life.check_belief(self._ask(api, "GET", path, {200}).answer.json())

    # --- helpers ----------------------------------------------------------------------------------

    def _alive(self, slot: int, api: int) -> Stream:
        """A stream that exists, with no post under way."""
        stream = self._streams[slot]
        self._settle(stream)
        if stream.life is None:
            settings = KINDS[slot % len(KINDS)]
            path = f"/v1/streams/{stream.name}"
            result = self._ask(api, "PUT", path, {200, 201}, json=settings)
            assert result.tries > 1 or result.answer.status_code == 201, result.answer.text
            stream.life = Life(settings)
            stream.unsure |= result.tries > 1
        return stream

    def _rerunnable(self, slot: int, api: int) -> Stream:
        """A stream of a known scale, with observations and no label to come; else without life."""
        stream = self._alive(slot, api)
        life = stream.life
        assert life is not None
        fit = life.known_scale and not life.waiting and len(life.applied) > 1
        return stream if fit else Stream("")

    def _retire(self, stream: Stream) -> None:
        """Use another name: what had no answer may be applied later."""
        self._streams[self._streams.index(stream)] = new = self._named()
        self._all.append(new)
        stream.life = None
        self.service.counts["retired"] += 1

    def _rerun(self, stream: Stream, api: int, method: str, part: str, body: Any) -> None:
        """Send a command that has no key."""
        path = f"/v1/streams/{stream.name}/{part}"
        self._sure(stream, self._ask(api, method, path, {200}, json=body))

    def _sure(self, stream: Stream, result: Result) -> None:
        """Retire a stream after a command without a key that was sent more than once."""
        if result.tries > 1:
            self._retire(stream)

    def _key(self) -> str:
        return f"k{next(self._keys)}"

    def _label(self, level: int) -> float:
        return 4.0 * level + self._rng.gauss(0.0, 1.0)

    def _labels(self, count: int, level: int) -> list[Seen]:
        return [Seen(self._label(level)) for _ in range(count)]

    def _apply(self, stream: Stream, seen: Seen, answer: dict[str, Any]) -> None:
        """Take an observation that was answered."""
        assert stream.life is not None
        stream.life.check(stream.life.observe(seen), answer)
        stream.accepted.append(seen.y)

    def _request(self, body: Any) -> dict[str, Any]:
        """Body and headers of a request with a key of its own."""
        return {"json": body, "headers": {"Idempotency-Key": self._key()}}

    def _post(self, stream: Stream, api: int, seen: list[Seen], arrow: bool = False) -> None:
        """Begin a post with a key."""
        path = f"/v1/streams/{stream.name}/observations?detail=full"
        body = [_form(each) for each in seen]
        request = self._request(body if len(seen) > 1 else body[0])
        if arrow:
            headers = {**request["headers"], "Content-Type": ARROW}
            request = {"content": _table([each.y for each in seen]), "headers": headers}
        result = self.service.begin(api, "POST", path, {200}, **request)
        stream.flying.append(Flying(result, path, request, seen))

    def _settle(self, stream: Stream) -> None:
        """Wait for posts under way; their answers say in which order they were applied."""
        flying, stream.flying = stream.flying, []
        applied: list[tuple[dict[str, Any], Seen]] = []
        for post in flying:
            answers = _listed(self._wait(post.result).answer.json())
            applied += zip(answers, post.seen, strict=True)
            stream.posted.append(Posted(post.path, post.request, answers))
        for answer, seen in sorted(applied, key=lambda pair: pair[0]["seq"]):
            self._apply(stream, seen, answer)

    def _ask(self, api: int, method: str, path: str, wanted: set[int], **more: Any) -> Result:
        return self._wait(self.service.begin(api, method, path, wanted, **more))

    def _wait(self, result: Future[Any]) -> Any:
        """Wait for a result; where it does not come, faults are ended."""
        if self._begun:
            try:
                return result.result(max(each.patience_s for each in self._begun))
            except StillUnderWay:
                self.heal()
        return result.result(2 * PATIENCE_S)


def _form(seen: Seen) -> dict[str, Any]:
    """An observation as it is posted."""
    form: dict[str, Any] = {"y": seen.y}
    if seen.elapsed is not None:
        form["elapsed"] = seen.elapsed
    if seen.changepoint is not None:
        form["supervision"] = {"changepoint": seen.changepoint}
    if seen.pending:
        form["pending"] = True
    return form


def _table(labels: list[float | None]) -> bytes:
    """An Arrow stream of observations."""
    table = pa.table({"y": pa.array(labels, pa.float64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _without(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what says that it is a repeat."""
    return {name: value for name, value in answer.items() if name != "duplicate"}


@contextmanager
def serving(topology: str, folder: Path) -> Iterator[Service]:
    """Run a deployment for machines."""
    rules = folder / "rules.toml"
    rules.write_text(RULES)
    with stores(topology) as store:
        deployment = Deployment(
            folder,
            store,
            lease_ttl_ms=LEASE_MS,
            request_deadline_s=DEADLINE_S,
            checkpoint_every=8,
            prometheus_rules=rules,
        )
        service = Service(deployment)
        try:
            yield service
        finally:
            service.close()


def hold(service: Service, runs: int, actions: int, seed: int, shrink: bool = True) -> None:
    """Draw runs and hold them against the model; raises what contradicts it.

    shrink: a run that does is made smaller first, for five minutes at most.
    """
    machine = type("Machine", (ServiceMachine,), {"service": service})
    drawn = hypothesis.seed(seed)(machine)
    settings = hypothesis.settings(
        max_examples=runs,
        stateful_step_count=actions,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
    )
    run_state_machine_as_test(drawn, settings=settings)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.referees.machine", description=__doc__)
    parser.add_argument("--topology", choices=TOPOLOGIES, default="server")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--actions", type=int, default=ACTIONS, help="of a run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--as-drawn", action="store_true", help="do not make a failure smaller")
    parser.add_argument("--keep", type=Path, help="folder of the processes' logs, kept afterwards")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="machine-"))
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with serving(given.topology, folder) as service:
        try:
            hold(service, given.runs, given.actions, given.seed, not given.as_drawn)
        finally:
            print(dict(sorted(service.counts.items())))
            print(f"seed {given.seed}, {time.monotonic() - began:.0f} s, logs in {folder}")


if __name__ == "__main__":
    main()
