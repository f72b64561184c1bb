"""What happens to a stream while labels are to come: nothing that was accepted is lost."""

import json

import pytest

from service.wire import Configure, Move, Observation, RunLength
from tests.service.worker.filtering.test_delayed_labels import KNOWN, late, pend, same, values


def test_settings_before_the_first_label_lose_nothing_that_waits(bench, close):
    """A client that makes its stream at every start does so while labels are to come."""
    for stream in ("a", "b"):
        bench.ask(Configure(stream, KNOWN), status=201)
    pend(bench, "a")
    bench.observe("a", [2.0])
    again = bench.ask(Configure("a", KNOWN))
    assert (again["seq"], again["awaited"]) == (2, [0])
    late(bench, "a", 0, 1.0)
    bench.observe("b", [1.0, 2.0])
    same(bench, close, "a", "b")


def test_a_model_cannot_change_beneath_what_waits(bench):
    bench.ask(Configure("a", {"model": "linear"}), status=201)
    pend(bench, "a", x=[1.0, 2.0])
    bench.ask(Configure("a", {"model": "gaussian"}), status=409)
    assert bench.head("a").pending[0].x == [1.0, 2.0]


CHANGED = [
    {"hazard": 0.4},
    {"hazard": [0.0, 0.0, 0.2]},
    {"outlier_rate": 0.2},
    {"interval": 60.0},
    {"interval": None},
]


@pytest.mark.parametrize("first", CHANGED)
@pytest.mark.parametrize("then", [{"hazard": 0.2}, {"interval": 30.0}])
def test_what_waits_counts_under_the_settings_it_came_under(bench, close, first, then):
    labels = values(12)
    seen = [Observation(y=y, time=f"2026-01-01T00:{i:02d}:00Z") for i, y in enumerate(labels)]
    for stream in ("a", "b"):
        bench.ask(Configure(stream, {**KNOWN, "interval": 20.0}), status=201)
        bench.observe(stream, seen[:3])
    pend(bench, "a", time=seen[3].time)
    bench.observe("b", seen[3:4])
    for stream in ("a", "b"):
        bench.observe(stream, seen[4:6])
        bench.ask(Configure(stream, first))
        bench.observe(stream, seen[6:8])
        bench.ask(Configure(stream, then))
        bench.observe(stream, seen[8:])
    bench.crash()
    late(bench, "a", 3, labels[3])
    assert bench.head("a").pending_settings == []
    same(bench, close, "a", "b")


def test_a_change_is_on_record_where_it_takes_effect(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", [1.0])
    pend(bench, "a")
    bench.observe("a", [1.0, 2.0])
    bench.ask(Configure("a", {"hazard": 0.2}))
    (field,) = bench.client.hkeys(f"moca:{{{bench.partition('a')}}}:changes:a")
    assert field.startswith(b"4:")


@pytest.mark.parametrize(
    ("made", "seen", "to", "slug"),
    [
        ({"model": "linear"}, {"x": [1.0, 2.0]}, "gaussian", "dimension-mismatch"),
        ({"model": "gaussian", "warmup": 5}, {}, "linear", "dimension-mismatch"),
        ({"model": "gaussian", "location": [1.0], "scale": [1.0]}, {}, "poisson", "out-of-range"),
    ],
)
def test_a_model_that_cannot_take_what_waits_refuses_the_move(bench, made, seen, to, slug):
    bench.ask(Configure("a", made), status=201)
    pend(bench, "a", **seen)
    bench.observe("a", [Observation(y=-3.5, **seen)])
    before = bench.stored("a")
    (refused,) = bench.send(Move("a", to))
    assert refused.status == 422
    assert slug in json.loads(refused.body[0])["type"]
    assert bench.stored("a") == before
    late(bench, "a", 0, 1.0)
    assert bench.head("a").seq == 2


def test_what_waits_moves_to_the_hazard_of_the_new_model(bench, close):
    labels = values(10)
    for stream in ("a", "b"):
        bench.ask(Configure(stream, {**KNOWN, "hazard": 0.1}), status=201)
        bench.observe(stream, labels[:4])
    pend(bench, "a")
    bench.observe("b", labels[4:5])
    for stream in ("a", "b"):
        bench.observe(stream, labels[5:8])
        bench.ask(Configure(stream, {"hazard": 0.3}))
        bench.ask(Move(stream, "averaged"))
    late(bench, "a", 4, labels[4])
    for stream in ("a", "b"):
        bench.observe(stream, labels[8:])
    close(bench.ask(RunLength("a"))["belief"], bench.ask(RunLength("b"))["belief"])
