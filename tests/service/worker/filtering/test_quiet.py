"""Quiet observations, entered as columns, beside the same entered one by one."""

import json
import math
import random

import pytest
from msgspec.structs import replace

from model_core.stream.slab import AT_ONCE, Slab
from service.schema import rendering
from service.wire import (
    Configure,
    Delete,
    EventFeedback,
    NumberList,
    Observation,
    Observe,
    Outcome,
    RunLength,
    SegmentHistory,
    SetBelief,
    WhatIf,
    checked,
    decode_idempotency,
    rows,
)
from service.worker.filtering import quiet
from tests.service.worker.conftest import BAD, DETAILS
from tests.service.worker.filtering.test_series import Refusing
from tests.service.worker.kinds import INPUTS, LABELS, NEEDED

STREAMS = [f"s{i}" for i in range(7)]
SEASONAL = 5  # the place of one with seasons of 24
HELD = 3  # of one each of whose values is read three times
LENGTH = 260


def series(seed, model="gaussian"):
    """Two levels and spikes: events move, alarms are raised, and most of it is quiet."""
    rng = random.Random(seed)
    held = 0.0
    for at in range(LENGTH):
        season = 4.0 * math.sin(math.pi * at / 12) if seed == SEASONAL else 0.0
        y = rng.gauss(8.0 if 90 < at <= 170 else 0.0, 1.0) + (30.0 if rng.random() < 0.01 else 0.0)
        y += season
        stated = 0.5 if seed % 3 == 2 and rng.random() < 0.02 else None
        held = y if seed != HELD or at % 3 == 0 else held
        missing = seed % 3 == 2 and rng.random() < 0.02
        time = f"2026-01-01T{at // 60:02}:{at % 60:02}:00Z" if seed % 2 else None
        y = None if missing else LABELS[model](held)
        x = INPUTS[model](held) if model in INPUTS else None
        yield Observation(y, x, time=time, changepoint=stated)


def commands(seed, length, model):
    """Observations of all streams, in lists of some length, some with keys, some repeated."""
    rng = random.Random(seed)
    all_ = {name: [*series(i, model)] for i, name in enumerate(STREAMS)}
    for at in range(0, LENGTH, length):
        entry = []
        for i, (name, seen) in enumerate(all_.items()):
            key = f"k{at}" if i % 3 == 0 else None
            command = Observe(
                name,
                seen[at : at + length],
                key=key,
                digest="d" if key else None,
                seq=at if i in (2, 4) else None,
                belief=length > 1 and i % 2 == 1 and rng.random() < 0.7,
            )
            entry.append(command)
            if key and rng.random() < 0.1:
                entry.append(command)
        yield entry


def stored(bench, names=STREAMS):
    """All that is stored of the streams; keyed answers as they are rendered."""
    everything = bench.everything(names)
    for name, own in everything["stored"].items():
        own["idempotency"] = remembered(own["idempotency"], name)
    return everything


def remembered(stored, name):
    """Idempotency records with their answers as they are rendered: they have two forms."""
    records = {}
    for field, blob in stored.items():
        record = decode_idempotency(checked(blob, "idempotency", name, field.decode()))
        command = Observe(name, [Observation()] * LENGTH)
        outcome = Outcome(0, record.status, record.body, record.answers)
        answers = [*rendering.answers(command, outcome)]
        for answer in answers:
            answer.time = None  # of a quiet one it is the command's
        records[field] = (record.digest, record.time_ms, record.status, record.body, answers)
    return records


def as_columns(command):
    """With its observations as columns, where all are numbers."""
    seen = getattr(command, "observations", None)
    if seen and all(type(own.y) is float and rows.is_plain(own) and not own.x for own in seen):
        numbers = NumberList.of([own.y for own in seen], [own.time for own in seen])
        return replace(command, observations=numbers)
    return command


def apply(bench, model, length, crash_at=None, given_as=as_columns):
    """Outcomes of all commands, and what is stored in the end."""
    bench.now_ms = 1_700_000_000_000
    given = {"model": model, "anomaly_alarm": 0.99, "hazard": 0.01, **NEEDED.get(model, {})}
    for place, name in enumerate(STREAMS[:-1]):
        seasonal = place == SEASONAL and model in ("gaussian", "multivariate", "joint")
        bench.ask(Configure(name, given | ({"seasonal": True} if seasonal else {})), status=201)
    bench.ask(Configure(STREAMS[-1], {"model": "averaged"}), status=201)
    outcomes = []
    for at, entry in enumerate(commands(1, length, model)):
        sent = bench.send(*map(given_as, entry))
        outcomes += [(outcome.status, outcome.body) for outcome in sent]
        if at == crash_at:
            bench.crash()
    return outcomes, stored(bench)


@pytest.mark.parametrize(
    ("model", "length", "crash_at"),
    [
        ("gaussian", 1, None),
        ("gaussian", 7, 20),
        ("gaussian", 100, 1),
        *((model, 7, 20) for model in LABELS if model not in ("gaussian", "averaged")),
    ],
)
def test_quiet_observations_are_as_any_other(make_bench, monkeypatch, model, length, crash_at):
    """To the last bit: answers, and all that is stored; answers and records also after a crash."""
    entered = []
    seasonal = []
    believed = []
    advance = quiet.advance

    def counting(wave, look):
        done = advance(wave, look)
        entered.append(done.counts.sum())
        for run, season in done.seasons.items():
            if season is not None and season.periods:
                seasonal.append(done.counts[run])
        believed.extend(done.room)
        return done

    def bench(db):
        return make_bench(db=db, partitions=1, checkpoint_every=48)

    monkeypatch.setattr(quiet, "advance", counting)
    by_columns = apply(bench(0), model, length)
    assert sum(entered) > LENGTH * len(STREAMS) / 10
    assert sum(seasonal) > 10 or model != "gaussian"
    assert (len(believed) > LENGTH) == (length > 1)
    after_crash = crash_at and apply(bench(1), model, length, crash_at)
    monkeypatch.setattr(quiet, "rest_of", lambda *_: None)
    one_by_one = apply(bench(2), model, length, given_as=lambda command: command)
    assert one_by_one == by_columns
    assert any(len(events) > 2 for events in one_by_one[1]["feed"])
    assert any(one_by_one[1]["anomalies"])
    if crash_at:
        assert after_crash[0] == one_by_one[0]
        for part in ("records", "anomalies", "feed"):
            assert after_crash[1][part] == one_by_one[1][part]


def test_long_lists_of_several_streams_are_as_their_observations(make_bench, monkeypatch):
    """Stepped together, some to a change."""
    entered = []
    advance = quiet.advance
    monkeypatch.setattr(quiet, "advance", lambda *of: entered.append(advance(*of)) or entered[-1])

    def outcomes(db):
        bench = make_bench(db=db, partitions=1)
        bench.now_ms = 1_700_000_000_000
        names = STREAMS[:4]
        levels = {
            name: [math.sin(i + place) for i in range(390)] for place, name in enumerate(names)
        }
        levels[names[1]][310:] = [9.0 + y for y in levels[names[1]][310:]]
        for name, labels in levels.items():
            bench.ask(Configure(name, {"model": "gaussian", "seasonal": False}), status=201)
            bench.observe(name, labels[:210])
        lists = [
            Observe(name, [Observation(y) for y in labels[210 : 390 - 40 * place]])
            for place, (name, labels) in enumerate(levels.items())
        ]
        return [outcome.body for outcome in bench.send(*lists)], stored(bench, names)

    by_columns = outcomes(0)
    assert max(sum(done.counts > AT_ONCE) for done in entered) > 1
    monkeypatch.setattr(quiet, "rest_of", lambda *_: None)
    assert outcomes(1) == by_columns


@pytest.mark.parametrize(("seed", "count"), [(5, 225), (4, 400)])
def test_a_long_list_of_one_stream_learns_its_season_on_the_way(
    make_bench, monkeypatch, seed, count
):
    """Its period changes, and spikes are not quiet.

    In the second series a filter begins anew behind the start of a change that is suspected.
    """
    pieces = []
    advance = quiet.advance
    stepped_on = Slab.stepped_on

    def counting(*of):
        calls = []
        done = stepped_on(*of[:-1], lambda *own: calls.append(own) or of[-1](*own))
        pieces.append(len(calls) - 1)
        return done

    monkeypatch.setattr(Slab, "stepped_on", counting)
    rng = random.Random(seed)
    labels = []
    for at in range(4 * count):
        period = 24 if at < 2.25 * count else 31
        y = 4.0 * math.sin(2 * math.pi * at / period) + rng.gauss(0.0, 1.0)
        labels.append(y + (30.0 if rng.random() < 0.005 else 0.0))

    def outcomes(db):
        entered = []
        monkeypatch.setattr(
            quiet, "advance", lambda *of: entered.append(advance(*of)) or entered[-1]
        )
        bench = make_bench(db=db, partitions=1)
        bench.now_ms = 1_700_000_000_000
        settings = {"model": "gaussian", "seasonal": True, "anomaly_alarm": 0.99}
        bench.ask(Configure("s0", settings), status=201)
        *parts, last = ([*map(Observation, labels[at * count :][:count])] for at in range(4))
        lists = [Observe("s0", part) for part in parts]
        lists.append(Observe("s0", last, belief=True, full=True))
        bodies = [bench.send(command)[0].body for command in lists]
        return bodies, stored(bench, ["s0"]), entered

    *by_columns, entered = outcomes(0)
    assert sum(done.counts.sum() for done in entered) > 500
    assert sum(count > 1 for count in pieces) > 5
    assert max(pieces) > 2
    assert len({season for done in entered for season in map(str, done.renewed.values())}) > 2
    monkeypatch.setattr(quiet, "rest_of", lambda *_: None)
    assert [*outcomes(1)[:2]] == by_columns


@pytest.mark.parametrize("quiet_ones", [True, False])
def test_a_summary_is_the_full_answer_without_its_details(make_bench, monkeypatch, quiet_ones):
    if not quiet_ones:
        monkeypatch.setattr(quiet, "rest_of", lambda *_: None)
    full = make_bench(partitions=1)
    small = make_bench(db=1, partitions=1)
    small.full = False
    seen = [*series(0)]
    answers = full.observe("a", seen, part=20)
    for answer in answers:
        for name in DETAILS:
            del answer[name]
        if answer["predictive"] is not None:
            del answer["predictive"]["variance"]
    assert any(answer["event"] for answer in answers)
    assert small.observe("a", seen, part=20) == answers


def test_a_repeat_is_rendered_as_the_first(bench):
    for name, first in (("a", True), ("b", False)):
        keyed = Observe(name, [*series(0)][:40], key="k", digest="d")
        bodies = []
        for full in (first, not first):
            bench.full = full
            (outcome,) = bench.send(keyed)
            bodies.append([json.loads(body) for body in outcome.body])
        once, again = bodies
        assert again == [{**answer, "duplicate": True} for answer in once]
        assert ("log_score" in again[-1]) == first


OTHERS = [
    lambda name, rng: Configure(name, {"anomaly_alarm": rng.choice([None, 0.9, 0.99])}),
    lambda name, rng: Configure(name, {"min_size": rng.choice([0.0, 3.0]), "min_duration": 4}),
    lambda name, rng: Configure(name, {"confirm_after": rng.choice([1, 5])}),
    lambda name, rng: Configure(name, {"false_alarm_every": rng.choice([20.0, 1e6])}),
    lambda name, rng: Configure(name, {"history": 64, "max_hypotheses": rng.choice([2, 25])}),
    lambda name, rng: Configure(name, {"label_window": rng.choice([0, 3])}),
    lambda name, rng: Delete(name),
    lambda name, rng: EventFeedback(name, rng.random() < 0.5, event=rng.randint(1, 3)),
    lambda name, rng: Observe(name, [Observation(pending=True)]),
    lambda name, rng: Observe(name, [Observation(1.0)], seq=rng.randrange(200)),
    lambda name, rng: RunLength(name),
    lambda name, rng: SegmentHistory(name),
    lambda name, rng: SetBelief(name, [(0, 0.5), (3, 0.5)], changepoint=0.5),
    lambda name, rng: WhatIf(name, {"anomaly_alarm": 0.9}),
]


def mixed(seed):
    """Entries of commands of all kinds, most of them observations."""
    rng = random.Random(seed)
    levels = dict.fromkeys(STREAMS, 0.0)
    for _ in range(25):
        entry = []
        for _ in range(16):
            name = rng.choice(STREAMS)
            if rng.random() < 0.1:
                entry.append(rng.choice(OTHERS)(name, rng))
                continue
            if rng.random() < 0.2:
                levels[name] = rng.gauss(0.0, 6.0)
            count = rng.choice([1, 1, 1, 2, 9, 70])
            seen = [Observation(rng.gauss(levels[name], 1.0)) for _ in range(count)]
            key = rng.choice([None, None, "a", "b"])
            entry.append(Observe(name, seen, key=key, digest=key and rng.choice("de")))
        yield entry


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_so_are_they_among_commands_of_all_kinds(make_bench, monkeypatch, seed):
    """Also where the alarm period follows the pace, and after crashes."""

    def outcomes(db):
        bench = make_bench(db=db, partitions=1, checkpoint_every=48)
        bench.now_ms = 1_700_000_000_000
        bench.quiet_days = 0.05
        answers = []
        for at, entry in enumerate(mixed(seed)):
            bench.now_ms += 900_000
            answers += [(outcome.status, outcome.body) for outcome in bench.send(*entry)]
            if at % 8 == 7:
                bench.crash()
        return answers, stored(bench)

    by_columns = outcomes(0)
    monkeypatch.setattr(quiet, "rest_of", lambda *_: None)
    assert outcomes(1) == by_columns
    assert {200, 204, 409, 422} <= {status for status, _ in by_columns[0]}


@pytest.mark.parametrize("at", [0, 5])
def test_what_the_filter_refuses_is_refused(make_bench, monkeypatch, at):
    """All before it is applied, nothing of it, and the stream goes on."""
    bench = make_bench(partitions=1)
    bench.ask(Configure("a", {"model": "gaussian", "location": [0.0], "scale": [1.0]}), status=201)
    bench.observe("a", [float(i % 3) for i in range(60)])
    (slab,) = bench.worker.engine._slabs.values()
    monkeypatch.setattr(slab, "_kernel", Refusing(slab._kernel))
    labels = [float(i % 3) for i in range(10)]
    labels[at] = BAD
    for part in (labels[at : at + 1], labels):
        (outcome,) = bench.send(Observe("a", [Observation(y) for y in part]))
        assert outcome.status == 500
        assert len(outcome.body) == part.index(BAD) + 1
    assert bench.head("a").seq == 60 + at
    (answer,) = bench.observe("a", [1.0])
    assert answer["seq"] == 60 + at


def test_as_many_are_stepped_at_once_as_other_observations(make_bench, monkeypatch):
    bench = make_bench(partitions=1)
    for name in STREAMS:
        bench.ask(Configure(name, {"model": "gaussian"}), status=201)
        bench.observe(name, [float(i % 3) for i in range(60)])
    (slab,) = bench.worker.engine._slabs.values()
    monkeypatch.setattr(slab, "step_rows", 4)
    sizes = []
    advance = quiet.advance
    monkeypatch.setattr(
        quiet, "advance", lambda *of: (sizes.append(len(of[0].places)), advance(*of))[1]
    )
    outcomes = bench.send(*(Observe(name, [Observation(1.0)]) for name in STREAMS))
    assert [outcome.status for outcome in outcomes] == [200] * len(STREAMS)
    assert sizes == [4, len(STREAMS) - 4]


@pytest.mark.parametrize("shift", [0.0, 9.0])
def test_what_many_streams_need_of_their_history_is_read_at_once(make_bench, monkeypatch, shift):
    """Where their scales are looked at, or where what changed in all of them is explained."""
    bench = make_bench(partitions=1)
    rng = random.Random(3)
    store = bench.worker.engine.store
    asked = []
    tails = store.tails
    monkeypatch.setattr(store, "tails", lambda own: asked.append(len(own)) or tails(own))

    def send(*levels):
        for level in levels:
            labels = [[Observation(level + rng.gauss(0.0, 1.0))] for _ in STREAMS]
            bench.send_rows(*map(Observe, STREAMS, labels))

    bench.send_rows(
        *[Observe(name, [Observation(rng.gauss(0.0, 1.0)) for _ in range(150)]) for name in STREAMS]
    )
    send(*[0.0] * 40)
    asked.clear()
    table = bench.worker.engine.table
    table._hold(table.rows, table.beside)  # without recent labels
    send(*[shift] * 10)
    assert max(asked) == len(STREAMS)
    assert sum(asked) <= 3 * len(STREAMS)


@pytest.mark.parametrize(
    ("model", "unfit"),
    [("poisson", [5.5, -1.0]), ("bernoulli", [0.5, 2.0]), ("gamma", [-0.5]), ("gaussian", [1e101])],
)
def test_a_label_that_no_model_takes_is_refused_among_quiet_ones(make_bench, model, unfit):
    """In a row of its own, and in a list: as a command of its own is."""
    bench = make_bench(partitions=1)
    rng = random.Random(5)
    for name in STREAMS[:3]:
        bench.ask(Configure(name, {"model": model}), status=201)
        bench.observe(name, [float(rng.random() < 0.5) + (model == "gamma") for _ in range(70)])
    for label in unfit:
        for labels in ([label], [1.0, label, 1.0]):
            lists = [labels if name == "s1" else [1.0] for name in STREAMS[:3]]
            rows = [[Observation(y) for y in own] for own in lists]
            outcomes = bench.send_rows(*map(Observe, STREAMS[:3], rows))
            expected = [422 if name == "s1" else 200 for name in STREAMS[:3]]
            assert [outcome.status for outcome in outcomes] == expected
    assert bench.head("s1").seq == 70
