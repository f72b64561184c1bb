"""Streams that sleep: their rows say what their heads would, and nothing else comes of it."""

import json
import math
import random
from collections import Counter
from copy import copy

import numpy as np
import pytest

from model_core.compiled import plain
from service.store import keys
from service.store.streams import BLOCK, head_of
from service.wire import (
    Configure,
    Delete,
    Envelope,
    EventFeedback,
    Move,
    Observation,
    Observe,
    RunLength,
    SetBelief,
)
from service.wire.stored_records import (
    BEFORE_ROWS,
    POSITION,
    begin_of,
    numbers_of,
    split_position,
)
from service.worker.filtering import quiet
from service.worker.streams import alarm_period
from service.worker.streams import stream as stream_module
from service.worker.streams.stream import FEWEST_ROWS, ROW, Stream, Table, columns_of
from tests.service.wire.test_records import ordinary
from tests.service.worker.conftest import Trouble, noise
from tests.service.worker.kinds import LABELS

STREAMS = [f"s{i}" for i in range(24)]
SETTINGS = [
    {"model": "gaussian", "anomaly_alarm": 0.99},
    {"model": "gaussian", "hazard": 0.01, "ttl": 3600.0},
    {"model": "gaussian", "hazard": [0.1, 0.02], "history": 100},
    {"model": "averaged"},
    {"model": "gaussian", "max_hypotheses": 20, "false_alarm_every": 500.0},
    {"model": "gaussian", "seasonal": True},
    {"model": "multivariate"},
    {"model": "bernoulli"},
]
SEASONAL = 5  # place of that with seasons
OTHERS = [
    lambda name, rng: Configure(name, {"anomaly_alarm": rng.choice([None, 0.9, 0.99])}),
    lambda name, rng: Configure(name, {"false_alarm_every": rng.choice([20.0, 1e6])}),
    lambda name, rng: Configure(name, {"history": rng.choice([64, 200]), "ttl": 1000.0}),
    lambda name, rng: Configure(name, {"tags": {"n": str(rng.random())}}),
    lambda name, rng: Delete(name),
    lambda name, rng: EventFeedback(name, rng.random() < 0.5, event=rng.randint(1, 3)),
    lambda name, rng: Observe(name, [Observation(rng.gauss(0.0, 1.0)) for _ in range(9)]),
    lambda name, rng: RunLength(name),
    lambda name, rng: SetBelief(name, [(0, 0.5), (3, 0.5)], changepoint=0.5),
]


def observed(i, y):
    """An observation of stream i, by a number."""
    return Observation(LABELS[SETTINGS[i % len(SETTINGS)]["model"]](y))


class Turns:
    """What comes at a time: rows of nearly all streams, and commands before and after them."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.levels = dict.fromkeys(STREAMS, 0.0)
        self.at = 0

    def others(self):
        rng = self.rng
        return [rng.choice(OTHERS)(rng.choice(STREAMS), rng) for _ in range(rng.choice([0, 0, 2]))]

    def rows(self):
        rng = self.rng
        self.at += 1
        time = f"2026-01-01T{self.at // 60:02}:{self.at % 60:02}:00Z"
        for i, name in enumerate(STREAMS):
            if rng.random() < 0.02:
                self.levels[name] = rng.gauss(0.0, 6.0)
            if rng.random() < 0.1:
                continue
            count = rng.choice([1, 1, 1, 4]) if self.at % 3 == 0 else 1
            level = self.levels[name]
            if i % len(SETTINGS) == SEASONAL:
                level += 5.0 * (self.at % 8 < 4)
            seen = [observed(i, rng.gauss(level, 1.0)) for _ in range(count)]
            if i % 3 == 1 and rng.random() < 0.95:
                for own in seen:
                    own.time = time
            key = f"k{self.at}" if i % 7 == 0 else None
            yield Observe(name, seen, key=key, digest=key)


def evict(bench, rng):
    """Forget some of the streams that are stored as they are.

    The draw is by name: the order in which streams were loaded follows that of the partitions,
    which workers take in an order that is random.
    """
    bench.worker._settle()
    engine = bench.worker.engine
    for name in STREAMS:
        drawn = rng.random() < 0.3
        stream = engine.streams.get((bench.partition(name), name))
        if drawn and stream is not None and stream.idle:
            engine.evict(stream)
    engine.drop_empty_slabs()


def appended(bench, turns):
    """Places of what comes next, on its way to the worker."""
    parts = {}
    for command in turns.rows():
        parts.setdefault(bench.partition(command.stream), []).append(command)
    places = []
    for command in turns.others():
        places += bench.append(command)
    for commands in parts.values():
        places += bench.append_rows(*commands)
    for command in turns.others():
        places += bench.append(command)
    return places


def applied(bench, seed, trouble):
    """Outcomes of all turns, and what is stored in the end."""
    turns = Turns(seed)
    bench.now_ms = 1_700_000_000_000
    bench.quiet_days = 0.05 if seed % 2 else None
    for i, name in enumerate(STREAMS):
        bench.ask(Configure(name, SETTINGS[i % len(SETTINGS)]), status=201)
        bench.observe(name, [observed(i, y) for y in noise(40, seed=i)])
    rng = random.Random(seed)
    outcomes = []
    for _ in range(30):
        bench.now_ms += 600_000
        places = appended(bench, turns)
        kind = rng.choice(["crash", "stop", "evict", "refused", "cut_before", "cut_after", "", ""])
        if trouble and kind in ("refused", "cut_before", "cut_after"):
            Trouble(bench, kind)
        outcomes += [(own.status, own.body) for own in bench.outcomes(places)]
        if kind == "evict":
            evict(bench, rng)
        elif kind in ("crash", "stop"):
            getattr(bench, kind)()
    bench.stop()
    everything = bench.everything(STREAMS)
    for own in everything["stored"].values():
        del own["idempotency"]  # answers have two forms
    return {"outcomes": outcomes, **everything}


def differences(one, other, parts):
    return [part for part in parts if one[part] != other[part]]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_asleep_or_awake_all_is_the_same(make_bench, monkeypatch, seed):
    """Bit for bit; of what fails and is done again all but where checkpoints are."""

    def bench(db):
        return make_bench(db=db, partitions=3, checkpoint_every=32)

    shrunk = []
    trim = Table.trim

    def trimming(table):
        before = len(table.rows)
        shrunk.append(trim(table))
        assert shrunk[-1] == (before > len(table.rows))
        return shrunk[-1]

    monkeypatch.setattr(stream_module, "FEWEST_ROWS", 1)
    monkeypatch.setattr(Table, "trim", trimming)
    asleep = applied(bench(0), seed, trouble=False)
    troubled = applied(bench(1), seed, trouble=True)
    assert max(shrunk)
    monkeypatch.setattr(quiet, "rest_of", lambda *_: None)
    awake = applied(bench(2), seed, trouble=False)
    assert differences(asleep, awake, asleep) == []
    assert differences(troubled, awake, ["outcomes", "records", "feed", "due"]) == []


def stored(bench, name):
    """Head of a stream, which may sleep on."""
    return head_of(name, bench._stored_head(name))


def test_a_stream_sleeps_until_something_else_touches_its_head(bench):
    bench.observe("a", noise(200))
    (stream,) = bench.worker.engine.streams.values()
    table = bench.worker.engine.table
    while not stream.asleep:  # a checkpoint has woken it
        bench.observe("a", [0.0])
    before = copy(stream._head)
    seq = stream.seq
    assert table.behind == stream.behind == seq - stored(bench, "a").checkpoint
    assert (stream.asleep, stream.alive, stream.idle) == (True, True, True)
    bench.observe("a", [0.1])
    assert (stream.seq, stream._head.seq) == (seq + 1, before.seq)
    row = stream.at
    assert table.rows["position"]["seq"][row] == seq + 1
    assert stream.head.seq == seq + 1
    assert (stream.asleep, stream.seq) == (False, seq + 1)
    assert table.rows[row] == np.zeros((), ROW)
    assert stream.head.last_label == [0.1]
    bench.observe("a", [0.2])
    assert (stream.asleep, stream.at) == (True, row)
    bench.worker.engine.evict(stream)
    assert stream.at == -1
    assert row in table._free
    assert table.rows[row] == np.zeros((), ROW)


@pytest.mark.parametrize("end", ["crash", "stop", None])
def test_rows_lie_beside_their_position_until_they_are_three(bench, end):
    bench.observe("a", noise(200))
    (stream,) = bench.worker.engine.streams.values()
    while stream.at < 0:  # a checkpoint has woken it
        bench.observe("a", [0.0])
    lying = []
    labels = [y / 10 for y in range(7)]
    for y in labels:
        bench.observe("a", [y])
        _, block = split_position(bench._stored_head("a").position)
        lying.append(block[BEFORE_ROWS - 1] if block else 0)
        assert begin_of(bench.tail("a")[-1]) < stream.seq - lying[-1]
        assert (stream.at >= 0, stream.idle) == (True, True)
    assert lying == [1, 2, 0, 1, 2, 0, 1]
    assert bench.tail("a")[-1][BEFORE_ROWS - 1] == 3
    seq = stream.seq
    if end:
        getattr(bench, end)()
    bench.observe("a", [0.7, 0.8])
    assert [record.y for record in bench.records("a")[-9:]] == [*labels, 0.7, 0.8]
    assert bench.head("a").seq == seq + 2


def test_recent_labels_of_streams_that_sleep_are_known(bench, monkeypatch):
    """Until they wake, of as many rows as have room for them."""
    monkeypatch.setattr(stream_module, "RECENT", 16)
    monkeypatch.setattr(stream_module, "RINGS", FEWEST_ROWS - 2)
    table = bench.worker.engine.table
    table._hold(table.rows, table.beside)
    rng = random.Random(3)
    labels = {name: [] for name in [*STREAMS][:6]}
    known = Counter()
    for _ in range(200):
        name = rng.choice([*labels])
        y = [rng.gauss(0.0, 1.0) for _ in range(rng.choice((1, 3, 40)))]
        if rng.random() < 0.1:
            y[0] = 50.0  # no quiet one
        bench.observe(name, y)
        labels[name] += y
        if rng.random() < 0.05:
            table._hold(table.rows.copy(), table.beside)
        for stream in bench.worker.engine.streams.values():
            own = labels[stream.name]
            assert stream.recent(len(own) - 17) is None
            for first in range(max(len(own) - 16, 0), len(own) + 1):
                found = stream.recent(first)
                known[stream.asleep, found is not None] += 1
                assert found is None or found[:, 0].tolist() == own[first:]
    assert not known[False, True]
    assert min(known[True, True], known[True, False]) > 1000


@pytest.mark.parametrize("count", [30, 49, 50, 51, 99, 100])
def test_a_stream_that_is_loaded_sleeps_at_once(bench, count):
    """It looks at season and scale when it would have without a restart."""
    bench.observe("a", noise(count))
    (stream,) = bench.worker.engine.streams.values()
    look = stream.next_look
    bench.stop()
    bench.observe("a", [0.0])
    (stream,) = bench.worker.engine.streams.values()
    table = bench.worker.engine.table
    assert stream.next_look == look or count + 1 == look < stream.next_look
    assert table.rows["look"][stream.at] == stream.next_look
    assert stream.asleep


def test_what_sleeping_streams_hold_is_counted_as_it_grows(bench):
    names = [name for name in STREAMS if bench.partition(name) == 0][:5]
    rng = random.Random(8)
    for i, name in enumerate(names):
        bench.observe(name, noise(60 + i, seed=i))
    engine = bench.worker.engine
    table = engine.table
    grown = 0
    for at in range(70):
        text = f"2026-01-01T00:00:{at % 60:02}Z"
        times = [text if at % 2 and i % 2 else None for i in range(len(names))]
        rows = [
            Observe(n, [Observation(rng.random(), time=t)], key=f"k{at}" if n == names[0] else None)
            for n, t in zip(names, times, strict=True)
        ]
        bench.send_rows(*rows)
        host = engine.held().host
        streams = [engine.streams[0, name] for name in names]
        for stream in streams:
            stream.count()
        assert host == sum(stream.host_bytes for stream in streams)
        asleep = [stream for stream in streams if stream.asleep]
        behind = [stream.behind for stream in asleep]
        heads = [stored(bench, stream.name) for stream in asleep]
        assert behind == [head.seq - head.checkpoint for head in heads]
        made = [head.checkpoint_ms for head in heads if head.seq > head.checkpoint]
        assert (table.behind, table.oldest_ms) == (max(behind, default=0), min(made, default=None))
        grown += table.slept_bytes > 0
    assert grown > 20
    for stream in streams:
        engine.evict(stream)
    assert (table.slept_bytes, table.behind, table.oldest_ms) == (0, 0, None)


def test_keyed_rows_are_committed_with_all_others(bench, monkeypatch):
    names = [name for name in STREAMS if bench.partition(name) == 0][:4]
    for i, name in enumerate(names):
        bench.observe(name, noise(60, seed=i))
    alone = []
    of_new_rows = 0
    effects = Stream.effects
    monkeypatch.setattr(Stream, "effects", lambda own: (alone.append(own.name), effects(own))[1])
    for at in range(4):
        rows = [Observe(n, [Observation(0.1)], key=f"k{at}", digest="d") for n in names]
        alone.clear()
        first = bench.send_rows(*rows)
        of_new_rows += len(alone)
        again = bench.send_rows(*rows)
        for once, repeat in zip(first, again, strict=True):
            assert [{**json.loads(b), "duplicate": True} for b in once.body] == [
                json.loads(b) for b in repeat.body
            ]
    assert of_new_rows <= len(names)  # some whose checkpoints were due
    for name in names:
        fields = bench.stored(name)["idempotency"]
        assert [*fields] == [f"k{at}\0".encode() + b"0" for at in range(4)]
    bench.crash()
    assert all(repeat.stored.duplicate for repeat in bench.send_rows(*rows))


def test_a_table_grows_and_uses_rows_again():
    table = Table(64)
    values = tuple(np.zeros(1, ROW)[0].item())
    streams = [Stream(0, f"s{i}") for i in range(3 * FEWEST_ROWS)]
    for i, stream in enumerate(streams):
        table.add(stream)
        table.enter(stream.at, values, (0.1, 0.2) if i % 2 else None, [0.5] if i % 2 else [])
    places = [stream.at for stream in streams]
    assert len({*places}) == len(places)
    assert len(table.rows) == len(table.used_s) == 4 * FEWEST_ROWS
    assert table.streams_of(np.array(places)) == streams
    assert [table.names[at] for at in places] == [stream.name for stream in streams]
    assert len(table.hazards) == len(table.further) == len(places) // 2
    for stream in streams:
        table.clear(stream.at)
        table.remove(stream)
    assert not any(table.streams)
    assert not table.hazards
    assert not table.further
    table.add(streams[0])
    assert streams[0].at in places
    table.enter(streams[0].at, values, 0.5, [])
    assert not table.hazards
    assert not table.further


def test_a_list_is_known_by_its_names_as_long_as_its_streams_stay(make_bench):
    bench = make_bench(partitions=1)
    engine = bench.worker.engine
    expected = Counter()

    def observe(names, labels):
        for y in labels:
            bench.send_rows(*[Observe(name, [Observation(y)]) for name in names])
            expected.update(names)
        bench.worker._settle()
        assert {name: stored(bench, name).seq for name in expected} == expected

    observe("abcd", noise(40))
    for last in "cdcc":
        observe("ab" + last, [0.0])
    engine.evict(engine.streams[0, "b"])
    observe("e", noise(40))
    observe("abc", [0.0])


def test_a_table_gives_memory_back_and_streams_sleep_on():
    table = Table(64)
    streams = [Stream(0, f"s{i}") for i in range(300)]
    for i, stream in enumerate(streams):
        values = np.zeros(1, ROW)
        values["alarm"] = i
        hazard = (0.1, i) if i % 3 == 0 else None
        table.add(stream)
        table.enter(stream.at, tuple(values[0].item()), hazard, [float(i)] * (i % 5))
        table.used_s[stream.at] = i
    left = random.Random(6).sample(range(300), 300)
    for used, held in ((129, 512), (128, 256), (65, 256), (64, 128), (3, 64), (0, 64)):
        for i in left[used:]:
            table.clear(streams[i].at)
            table.remove(streams[i])
        del left[used:]
        table.trim()
        assert len(table.rows) == len(table.used_s) == held
        own = [streams[i].at for i in left]
        assert table.rows["alarm"][own].tolist() == table.used_s[own].tolist() == left
        assert [table.names[at] for at in own] == [f"s{i}" for i in left]
        assert table.streams_of(np.array(own, int)) == [streams[i] for i in left]
        assert table.hazards == {streams[i].at: (0.1, i) for i in left if i % 3 == 0}
        assert table.further == {streams[i].at: [float(i)] * (i % 5) for i in left if i % 5}
        assert sorted([*own, *table._free]) == [*range(held)]


def test_what_follows_the_alarm_periods_of_many_follows_each():
    rng = random.Random(5)
    heads = []
    for _ in range(400):
        head = ordinary(rng)
        head.own_rule = rng.random() < 0.3
        if rng.random() < 0.3:
            head.settings = head.settings._replace(false_alarm_every=5000.0)
        heads.append(head)
    day_s = 86_400
    days = [rng.choice([None, 0.0, 0.5]) for _ in heads]
    times_s = [1.7e9 + rng.choice([-5.0, 5.0, 0.1 * day_s, 2.0 * day_s]) for _ in heads]
    timed = [rng.random() < 0.5 for _ in heads]
    rows = np.zeros(len(heads), ROW)
    rows["position"] = position = np.array([numbers_of(head) for head in heads], POSITION)
    rows["own_rule"] = [head.own_rule for head in heads]
    rows["stale"] = [alarm_period.is_stale(head) for head in heads]
    left = np.zeros(len(heads), bool)
    plain.enter(
        columns_of(rows, np.zeros((0, 1))),
        np.arange(len(heads)),
        np.ones(len(heads), int),
        np.zeros((len(heads), 6)),
        np.arange(6),
        np.zeros((len(heads), 1)),
        np.array([round(1000 * own) for own in times_s]),
        np.array([own if given else math.nan for own, given in zip(times_s, timed, strict=True)]),
        np.array([math.nan if own is None else own for own in days]),
        alarm_period.FIRST_S,
        alarm_period.DAY_S,
        left,
    )
    position = rows["position"]
    for i, head in enumerate(heads):
        settings = head.settings
        text = np.datetime64(round(1000 * times_s[i]), "ms").item().isoformat() + "Z"
        seen = [Observation(0.0, time=text if timed[i] else None)]
        envelope = Envelope(
            0, round(1000 * times_s[i]), 0, "gaussian", Delete("a"), quiet_days=days[i]
        )
        was = head.pace
        alarm_period.follow(head, envelope, seen)
        if left[i]:
            assert head.settings is not settings or head.pace is None
            head.pace = was
        assert numbers_of(head)[16:] == pytest.approx(position[i].item()[16:], abs=0, nan_ok=True)
    assert 0 < left.sum() < len(heads)


def test_what_is_due_comes_with_the_commit_of_its_observation(bench):
    """A checkpoint, and the end of what is past the history."""
    bench.ask(Configure("a", {"model": "gaussian", "history": 100}), status=201)
    bench.observe("a", noise(160))
    (stream,) = bench.worker.engine.streams.values()
    phase = stream.place % 64
    slept = 0
    for y in noise(140, seed=5):
        bench.observe("a", [y])
        slept += stream.asleep
        head = stored(bench, "a")
        assert (head.checkpoint + phase) // 64 == (head.seq + phase) // 64
        assert head.seq - 100 - 64 - BLOCK < head.oldest <= head.seq - 100
    assert slept > 100
    assert head.seq == 300


def test_a_move_to_the_model_of_now_is_no_change_of_a_stream_that_sleeps_on(bench):
    bench.observe("a", noise(60))
    bench.ask(Configure("a", {"min_duration": 4}))
    bench.ask(Move("a", "gaussian"))
    bench.observe("a", noise(3, seed=1), part=1)
    bench.crash()
    bench.ask(Configure("a", {"min_duration": 5}))
    assert bench.head("a").changes == 2
    changes = bench.client.hkeys(keys.changes(bench.partition("a"), "a"))
    assert sorted(field.decode().rpartition(":")[2] for field in changes) == ["1", "2"]
