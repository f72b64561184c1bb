"""Snapshots with right checksums and wrong contents: refused in words, or harmless streams."""

import math

import pytest

from service.wire import (
    Change,
    Configure,
    Durations,
    Event,
    Move,
    Observation,
    Observe,
    PendingSettings,
    Predict,
    RunLength,
    Season,
    TypicalRegime,
    WhatIf,
)
from tests.service.worker.commands.test_snapshot import altered, export, put

MEANT = {"location": [0.0], "scale": [1.0]}
HUGE = 2**62
NAN, INF = math.nan, math.inf

SETTINGS = {
    "max_hypotheses": [10**9, 0, -5],
    "hazard": [5.0, -1.0, NAN, (), (INF,), Durations(1e9, 1e-9), Durations(-1.0, 0.0)],
    "outlier_rate": [7.0, NAN],
    "confirm_after": [-1],
    "location": [[1.0, 2.0], [NAN]],
    "scale": [[0.0], [-1.0]],
    "history": [-5, HUGE],
    "ttl": [NAN, INF, 1e308, -1.0],
    "interval": [0.0, NAN],
    "label_window": [-1, HUGE],
    "model": ["../../etc@1", "categorical@1", "linear@1"],
    "order": [10**9],
}
HEAD = {
    "y_dim": [7, -1, 10**9],
    "x_dim": [3, 10**9, -1],
    "location": [[NAN], [1.0, 2.0], None],
    "scale": [[0.0], None, []],
    "confirmed_start": [HUGE, -HUGE],
    "best_start": [HUGE],
    "pending_supervision": [7.0, NAN],
    "belief_override": [[], [(HUGE, 1.0)], [(-1, 1.0)], [(3, NAN)], [(3, 0.0)], [(1, 0.9)] * 9],
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
    "season": [Season([0], 3), Season([HUGE], 3), Season([24], 81), Season([24], -1)],
    "regime": [TypicalRegime("a", 1.5), TypicalRegime("a", -0.1), TypicalRegime("a", NAN)],
    "event": [Event(1, "odd", 3, 3), Event(HUGE, "suspected", 3, 3)],
}
RECORD = {
    "y": [[1.0, 2.0], NAN, INF],
    "x": [[1.0]],
    "time": ["yesterday", "\0"],
    "elapsed": [-1.0, NAN],
    "changepoint": [7.0, NAN],
    "hazard": [9.0, (), (NAN,), Durations(0.0, 0.0)],
    "outlier_rate": [5.0, NAN],
    "regime": [TypicalRegime("a", 1.5), TypicalRegime("a", NAN)],
    "offset": [NAN, INF, 1e300],
    "belief_override": [[], [(HUGE, 1.0)], [(-1, 1.0)], [(3, NAN)], [(3, 0.0)], [(1, 0.9)] * 9],
}


def cases():
    places = {"settings": SETTINGS, "head": HEAD, "record": RECORD}
    for place, fields in places.items():
        for field, values in fields.items():
            for i, value in enumerate(values):
                yield pytest.param(place, field, value, id=f"{place}-{field}-{i}")


def doctored(blob, place, field, value):
    def change(found):
        at = {"settings": found.head.settings, "head": found.head, "record": found.records[-1]}
        setattr(at[place], field, value)

    return altered(blob, change)


@pytest.fixture
def blob(bench):
    """Of a stream at seq 80."""
    bench.ask(Configure("a", MEANT), status=201)
    bench.observe("a", [float(i % 3) for i in range(80)])
    return export(bench, "a")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("place", "field", "value"), list(cases()))
def test_what_no_stream_can_be_is_refused(bench, blob, place, field, value):
    answer = put(bench, "b", doctored(blob, place, field, value), status=422)
    assert answer["detail"]
    assert bench.quarantine("b") == {}
    assert bench.client.hget(f"moca:{{{bench.partition('b')}}}:heads", "b") is None


def test_changes_and_events_of_another_age_are_refused(bench, blob):
    for change in (
        lambda s: setattr(s, "changes", [Change(5, HUGE, {})]),
        lambda s: setattr(s, "changes", [Change(5, 1, {}, 1)]),
        lambda s: setattr(s, "events", [Event(1, "\0", 3, 3)]),
        lambda s: setattr(s, "events", [Event(1, "confirmed", -HUGE, 3)]),
    ):
        put(bench, "b", altered(blob, change), status=422)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda s: setattr(s.head, "generation", HUGE), 201),
        (lambda s: setattr(s.head, "next_event", 2**53), 201),
        (lambda s: setattr(s.head, "confirmed_totals", [1.0]), 201),
        (lambda s: setattr(s.head, "warm", False), 201),
        (lambda s: setattr(s.head, "belief_override", [(80, 1.0)]), 201),
        (lambda s: setattr(s.records[0], "belief_override", [(0, 1.0)]), 201),
        (lambda s: setattr(s.records[-1], "belief_override", [(5, 0.5), (5, 0.5)]), 201),
    ],
)
def test_what_is_taken_never_fails_its_worker(bench, blob, change, status):
    put(bench, "b", altered(blob, change), status=status)
    asked = [
        Observe("b", [Observation(y=1.0)]),
        RunLength("b"),
        Predict("b"),
        WhatIf("b", {"hazard": 0.1}),
        Move("b", "averaged"),
        Observe("b", [Observation(y=9.0)] * 20),
    ]
    for command in asked:
        (found,) = bench.send(command)
        assert found.status < 500, found
    assert bench.quarantine("b") == {}
