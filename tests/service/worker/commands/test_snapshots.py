"""A stream moves to another deployment, under the same name or another, and goes on exactly.

Wrong contents under right checksums are refused, or make a stream that harms nobody.
"""

import json
import math
import random

import msgspec
import pytest

from model_core import codec
from service.wire import (
    Configure,
    Delete,
    Event,
    Import,
    KnownRegime,
    Move,
    Observation,
    Observe,
    PendingSettings,
    Predict,
    RunLength,
    SeasonPeriods,
    SettingsChange,
    WhatIf,
    snapshot,
)
from tests.service.worker.conftest import STAGED, slug
from tests.service.worker.kinds import KINDS, amend, configure, publish, series

KNOWN = {"location": [0.0], "scale": [1.0]}


def empty(bench, stream):
    """Whether nothing is stored of a stream."""
    return not any(bench.stored(stream).values())


def altered(blob, change):
    content = snapshot.load(blob)
    change(content)
    return snapshot.dump(content)


# --- what goes on -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "at"), [("averaged", 7), ("averaged-held", 61), ("gaussian-3", 150), ("alpaca", 61)]
)
def test_it_goes_on_as_the_uninterrupted_one(make_bench, tmp_path, name, at, close):
    publish(tmp_path / "models")
    bench, other = make_bench(), make_bench(db=1)
    kind = KINDS[name]
    observations = series(kind, 200)
    configure(bench, "a", kind, history=100)
    bench.observe("a", observations[: at - 1])
    last = {"observations": observations[at - 1 : at], "key": "k", "digest": "d"}
    (first,) = bench.send(Observe("a", **last))
    blob = bench.export("a")
    expected = bench.observe("a", observations[at:])
    other.put("b", blob)
    other.crash()  # it is stored at once
    (again,) = other.send(Observe("b", **last))  # keys travel too
    assert json.loads(again.body[0]) == {
        **json.loads(first.body[0]),
        "stream": "b",
        "duplicate": True,
    }
    assert other.head("b").seq == at
    answers = other.observe("b", observations[at:])
    close([{**each, "stream": "a"} for each in answers], expected)
    for read in ("events", "records"):
        own = getattr(other, read)("b")
        close(msgspec.to_builtins(own), msgspec.to_builtins(getattr(bench, read)("a")))
    assert other.head("b").settings == bench.head("a").settings


def test_in_place_of_a_stream_only_when_asked(bench, close):
    observations = series(KINDS["gaussian"], 130)
    bench.observe("a", observations[:100])
    blob, then = bench.export("a"), bench.ask(Predict("a"))
    bench.observe("a", observations[100:])
    before, generation = bench.stored("a"), bench.head("a").generation
    assert slug(bench.put("a", blob, status=409)) == "stream-exists"
    assert bench.stored("a") == before
    bench.ask(Import("a", STAGED, replace=True))
    assert bench.head("a").generation == generation + 1
    close(bench.ask(Predict("a")), then)
    assert [record.seq for record in bench.records("a")] == list(range(100))
    bench.send(Delete("a"))
    bench.put("a", blob, status=201)
    bench.crash()
    close(bench.ask(Predict("a")), then)


# --- what is refused ----------------------------------------------------------------------------


def test_damaged_ones_are_refused_and_change_nothing(bench):
    bench.observe("a", series(KINDS["gaussian"], 80))
    blob, rng = bench.export("a"), random.Random(3)
    broken = [b"", b"MOCASNAP", blob[:-1]]
    for _ in range(20):
        at = rng.randrange(len(blob))
        broken.append(blob[:at] + bytes([blob[at] ^ (1 << rng.randrange(8))]) + blob[at + 1 :])
    for each in broken:
        assert slug(bench.put("b", each, status=422)) == "unfit-snapshot"
        assert empty(bench, "b")
    assert slug(bench.ask(Import("b", "not kept"), status=422)) == "unfit-snapshot"


def test_a_model_that_is_not_there_or_another(make_bench, tmp_path):
    publish(tmp_path / "models")
    folder, bench = tmp_path / "models" / "pump" / "1", make_bench()
    configure(bench, "a", KINDS["alpaca"])
    bench.observe("a", series(KINDS["alpaca"], 40))
    blob = bench.export("a")
    amend(folder, hazard=0.2)
    assert slug(bench.put("b", blob, status=422)) == "unfit-snapshot"
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert slug(bench.put("b", blob, status=422)) == "unknown-model"


HUGE = 2**62
NAN, INF = math.nan, math.inf
OVERRIDES = [[], [(HUGE, 1.0)], [(-1, 1.0)], [(3, NAN)], [(3, 0.0)], [(1, 0.9)] * 9]
IMPOSSIBLE = {
    "head.settings": {
        "max_hypotheses": [10**9, 0, -5, 3],
        "hazard": [
            5.0,
            -1.0,
            NAN,
            (),
            (INF,),
            {"mean": 1e9, "shape": 1e-9},
            {"mean": -1.0, "shape": 0.0},
        ],
        "outlier_rate": [7.0, NAN],
        "confirm_after": [-1, 5],
        "location": [[1.0, 2.0], [NAN]],
        "scale": [[0.0], [-1.0]],
        "history": [-5, HUGE],
        "ttl": [NAN, INF, 1e308, -1.0],
        "interval": [0.0, NAN],
        "label_window": [-1, HUGE],
        "model": ["../../etc@1", "categorical", "linear", "poisson", "regimes"],
        "order": [10**9],
    },
    "head": {
        "y_dim": [7, -1, 10**9],
        "x_dim": [3, 10**9, -1],
        "location": [[NAN], [1.0, 2.0], None],
        "scale": [[0.0], None, []],
        "resolution": [[1.0], [0.0, -1.0], [NAN, 3.0]],
        "seq": [79, 81],
        "best_start": [HUGE, 81],
        "map_run_length": [81],
        "changed_probability": [1.1],
        "evidence": [-1.0, 1e291, INF, NAN],
        "pending_supervision": [7.0, NAN],
        "belief_override": OVERRIDES,
        "last_time": [NAN],
        "last_label": [[1.0, 2.0], [], [NAN]],
        "log_score_sum": [INF],
        "created_ms": [HUGE],
        "updated_ms": [HUGE, -1],
        "pending": [
            [Observation(y=[1.0, 2.0, 3.0], pending=True)],
            [Observation(pending=True)] * 1001,
            [Observation(y=NAN, pending=True)],
            [Observation(x=[1.0], pending=True)],
            [Observation(elapsed=-1.0, pending=True)],
            [Observation(time="yesterday", pending=True)],
            [Observation(changepoint=3.0, pending=True)],
        ],
        "pending_settings": [
            [PendingSettings(90, 5.0, 0.1, None)],
            [PendingSettings(90, None, 0.1, 0.0)],
        ],
        "season": [
            SeasonPeriods([0], 3),
            SeasonPeriods([HUGE], 3),
            SeasonPeriods([24], 81),
            SeasonPeriods([24], -1),
        ],
        "regime": [KnownRegime("a", 1.5), KnownRegime("a", -0.1), KnownRegime("a", NAN)],
    },
    "head.track": {
        "confirmed_start": [HUGE, -HUGE, 81],
        "before_start": [81, -1],
        "settled": [81, -1],
        "since": [81, -1],
        "confirmed_totals": [[INF], [NAN]],
        "next_event": [HUGE, -1],
        "event": [Event(1, "odd", 3, 3), Event(HUGE, "suspected", 3, 3)],
    },
    "records.-1": {
        "y": [[1.0, 2.0], NAN, INF],
        "x": [[1.0]],
        "time": ["yesterday", "\0"],
        "elapsed": [-1.0, NAN],
        "previous_start": [79, HUGE, -2],
        "changepoint": [7.0, NAN],
        "hazard": [9.0, (), (NAN,), {"mean": 0.0, "shape": 0.0}],
        "outlier_rate": [5.0, NAN],
        "regime": [KnownRegime("a", 1.5), KnownRegime("a", NAN)],
        "offset": [[NAN], [INF], [1e300], [0.5, 0.5]],
        "belief_override": OVERRIDES,
    },
    "": {
        "checkpoint": [None, b"", b"damaged"],
        "model_digest": ["0" * 32],
        "records": [[]],
        "changes": [[SettingsChange(5, HUGE, {}, 1)], [SettingsChange(5, 1, {}, 1)]],
        "events": [
            [Event(1, "\0", 3, 3)],
            [Event(1, "confirmed", -HUGE, 3)],
            [Event(1, "confirmed", 3, 3, earliest=-1)],
            [Event(1, "confirmed", 3, 3, latest=HUGE)],
            [Event(1, "confirmed", 3, 3, coverage=1.1)],
            [Event(1, "confirmed", 3, 3, refined_at=-1)],
        ],
    },
}


def place_of(found, path):
    """The part of a snapshot that a path names."""
    for name in filter(None, path.split(".")):
        found = found[int(name)] if name.lstrip("-").isdigit() else getattr(found, name)
    return found


def put(found, path, field, value):
    """Put a value in place of a field of that part."""
    place = place_of(found, path)
    if isinstance(place, tuple):  # settings, and the track of events
        setattr(found.head, path.removeprefix("head."), place._replace(**{field: value}))
    else:
        setattr(place, field, value)


@pytest.fixture
def blob(bench):
    """Of a stream at seq 80."""
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", [float(i % 3) for i in range(80)])
    return bench.export("a")


@pytest.mark.parametrize("path", IMPOSSIBLE)
def test_what_no_stream_can_be_is_refused(bench, blob, path):
    for field, values in IMPOSSIBLE[path].items():
        for value in values:

            def change(found, field=field, value=value):
                put(found, path, field, value)

            answer = bench.put("b", altered(blob, change), status=422)
            assert answer["detail"], (field, value)
            assert empty(bench, "b"), (field, value)
    assert bench.quarantine("b") == {}


def test_contents_that_do_not_connect_are_refused(bench, blob):
    held = bench.worker.engine.streams[bench.partition("a"), "a"]
    own = held.slab.row(held.row)
    own.ranks[0] = 1e9  # a sketch of so many values would be read far beyond its row
    impossible = codec.encode(held.slab.layout, own)
    for change in (
        lambda s: s.records.pop(40),
        lambda s: setattr(s, "checkpoint", s.checkpoint[:-9] + bytes(9)),
        lambda s: setattr(s, "checkpoint", impossible),
    ):
        assert slug(bench.put("b", altered(blob, change), status=422)) == "unfit-snapshot"
        assert empty(bench, "b")


def test_what_is_taken_never_fails_its_worker(bench, blob):
    odd = [
        ("head", "generation", HUGE),
        ("head.track", "next_event", 2**53),
        ("head.track", "confirmed_totals", [1.0]),
        ("head", "warm", False),
        ("head", "belief_override", [(80, 1.0)]),
        ("records.0", "belief_override", [(0, 1.0)]),
        ("records.-1", "belief_override", [(5, 0.5), (5, 0.5)]),
    ]
    for i, (path, field, value) in enumerate(odd):
        name = f"b{i}"
        taken = altered(blob, lambda s: put(s, path, field, value))  # noqa: B023
        bench.put(name, taken)
        for command in (
            Observe(name, [Observation(y=1.0)]),
            RunLength(name),
            Predict(name),
            WhatIf(name, {"hazard": 0.1}),
            Move(name, "averaged"),
            Observe(name, [Observation(y=9.0)] * 20),
        ):
            (found,) = bench.send(command)
            assert found.status < 500, (field, command, found)
    assert bench.quarantine("b0") == {}
