"""The contract of every command: unknown streams, deadlines, what a crash leaves of it."""

import json
import random
from types import SimpleNamespace
from typing import get_args

import msgspec
import pytest

from service.problems import ReadTimeout, UnknownStream
from service.wire import (
    READ_ONLY,
    Act,
    Command,
    Configure,
    Delete,
    Envelope,
    EventFeedback,
    Exclude,
    Expire,
    Import,
    Ingest,
    Move,
    NameRegime,
    Observation,
    Observe,
    Predict,
    Regimes,
    RunLength,
    SegmentHistory,
    SetBelief,
    WhatIf,
)
from service.worker.commands import dispatch
from service.worker.streams.stream import Stream
from service.worker.streams.task import CommandTask
from tests.service.worker.conftest import STAGED, Trouble

KNOWN = {"location": [0.0], "scale": [1.0], "hazard": 0.02, "ttl": 1.0}
CREATES = (Observe, Ingest, Configure, Import)
SEEN = [Observation(y=0.5), Observation(y=None), Observation(y=4.0)]
EXAMPLES = {
    "observe": lambda s: Observe(s, SEEN, key="k", digest="d"),
    "ingest": lambda s: Ingest(s, [Observation(y=1.0, time="2024-01-01T00:10:00Z")]),
    "configure": lambda s: Configure(s, {"hazard": 0.3, "max_hypotheses": 12}),
    "delete": lambda s: Delete(s),
    "expire": lambda s: Expire(s),
    "predict": lambda s: Predict(s, samples=3, seed=1, horizon=4),
    "act": lambda s: Act("inputs", [[1.0], [-1.0]], "thompson", seed=3),
    "run_length": lambda s: RunLength(s),
    "set_belief": lambda s: SetBelief(s, [(2, 0.25), (9, 0.75)], 0.4),
    "verdict": lambda s: EventFeedback(s, True, start=12),
    "exclude": lambda s: Exclude(s, start=12, end=20),
    "regimes": lambda s: Regimes(s),
    "name_regime": lambda s: NameRegime(s, 1, "night shift"),
    "what_if": lambda s: WhatIf(s, {"hazard": 0.2}, series=True, beliefs=3),
    "segment_history": lambda s: SegmentHistory(s),
    "move": lambda s: Move(s, "averaged"),
    "import": lambda s: Import(s, STAGED, replace=True),
}


def test_there_is_an_example_of_every_command():
    tags = {each.__struct_config__.tag for each in get_args(Command)}
    assert tags == EXAMPLES.keys()


def fill(bench, *tags, now_ms=None):
    """Stream `a`, with a change, and what these commands need: `b`, to become `a`, or `inputs`."""
    bench.now_ms = now_ms or bench.now_ms
    rng = random.Random(4)
    named = {"regimes", "name_regime"} & set(tags)
    settings = {**KNOWN, "regimes": 2} if named else KNOWN
    for stream in "ab" if "import" in tags else "a":
        bench.ask(Configure(stream, settings), status=201)
        bench.observe(stream, [rng.gauss(5.0 * (i >= 12), 1.0) for i in range(26)])
    if "import" in tags:
        bench.put("a", bench.export("b"), status=409)  # leaves it staged where `a` is
    if "act" in tags:
        bench.ask(Configure("inputs", {"model": "linear", "warmup": 5}), status=201)
        x = [rng.gauss(0, 1) for _ in range(9)]
        bench.observe("inputs", [Observation(x=[v], y=2 * v + rng.gauss(0, 0.1)) for v in x])
    bench.now_ms += 60_000  # beyond the time to live
    return bench


def after(bench):
    """What the stream is and does from here on, in values that may be compared."""
    head = bench.head("a")
    records = [] if head.deleted else bench.records("a")
    parts = [head, records, bench.events("a"), bench.stored("a")["named"]]
    return msgspec.json.decode(msgspec.json.encode([*parts, bench.observe("a", [0.3, 4.0, 4.4])]))


@pytest.mark.parametrize("tag", EXAMPLES)
def test_a_command_has_one_outcome_and_one_effect_whatever_is_lost(make_bench, close, tag):
    """A worker that dies before, or after, its commit is written is as one that never did."""
    plain = fill(make_bench(), tag)
    command = EXAMPLES[tag]("a")
    before = plain.stored("a")
    (expected,) = plain.send(command)
    assert expected.status in (200, 201, 204), expected
    body = [json.loads(each) for each in expected.body]
    if isinstance(command, READ_ONLY):
        assert plain.stored("a") == before
    expected_after = after(plain)
    for db, kind in ((1, "cut_before"), (2, "cut_after")):
        bench = fill(make_bench(db=db), tag, now_ms=plain.now_ms - 60_000)
        numbers = bench.append(command)
        Trouble(bench, kind).crash()
        (outcome,) = bench.outcomes(numbers)
        assert outcome.status == expected.status
        close([json.loads(each) for each in outcome.body], body)
        close(after(bench), expected_after)


def test_what_is_known_of_the_observation_to_come_outlives_the_worker_without_a_belief(bench):
    fill(bench)
    bench.ask(SetBelief("a", changepoint=0.4))
    bench.crash()
    bench.observe("a", [4.0])
    assert bench.records("a")[-1].changepoint == 0.4


def test_streams_that_are_not_there_are_refused_by_all_but_those_that_make_them(bench):
    bench.observe("gone", [1.0])
    bench.send(Delete("gone"))
    before = bench.stored("gone")
    for stream in ("none", "gone"):
        for tag, example in EXAMPLES.items():
            command = example(stream)
            command.stream = stream
            if isinstance(command, CREATES):
                continue
            answer = bench.ask(command, status=404)
            assert answer["type"].endswith("/unknown-stream"), tag
    assert bench.stored("gone") == before
    assert bench.stored("none")["head"] is None


def test_reads_past_their_deadline_are_skipped_and_all_else_is_done(make_bench):
    bench = fill(make_bench(), "import", "act")
    # The belief is that of the stream as it was filled; a stream that is gone is at the end.
    order = {"set_belief": 0, "delete": 2, "expire": 2}
    for tag, example in sorted(EXAMPLES.items(), key=lambda named: order.get(named[0], 1)):
        command = example("b" if tag not in ("import", "act") else "a")
        (outcome,) = bench.send(command, deadline_ms=bench.now_ms - 120_000)
        if isinstance(command, READ_ONLY):
            assert outcome.status == 504, tag
            assert json.loads(outcome.body[0])["type"].endswith("/read-timeout")
            (outcome,) = bench.send(command, deadline_ms=bench.now_ms + 600_000)
        assert outcome.status in (200, 201, 204, 404), (tag, outcome)


@pytest.mark.parametrize(("now_ms", "ahead_ms", "late"), [
    (7000, 0.0, False), (7001, 0.0, True), (6900, 100.0, False), (6900, 101.0, True),
])  # fmt: skip
def test_a_deadline_counts_from_the_log_by_the_clock_of_the_store(monkeypatch, now_ms, ahead_ms,
                                                                  late):  # fmt: skip
    """Accepted at 5000 by the store, and allowed 2000 ms by its API, whose clock is another."""
    clock = SimpleNamespace(monotonic=lambda: now_ms / 1000)
    monkeypatch.setattr(dispatch, "time", clock)
    envelope = Envelope(1, 90_000, 92_000, "gaussian", RunLength("a"))
    stream = Stream(0, "a")
    task = CommandTask(0, "api0", envelope, "5000-3", 0, envelope.command)
    with pytest.raises(ReadTimeout if late else UnknownStream):
        list(dispatch.control(SimpleNamespace(ahead_ms=ahead_ms), stream, task))
