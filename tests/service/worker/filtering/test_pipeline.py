"""What the pipeline of streams has to do where a model fails, or its answers are large."""

import json

import pytest

from model_core import compiled
from model_core.stream.slab import OK_COLUMN, Slab
from model_core.upm.builtin import Options
from service.wire import Configure, Observation, Observe
from service.worker.streams.answers import PendingAnswer
from service.worker.streams.task import CommandTask
from tests.service.worker.conftest import BAD, Fragile, slug

ODD = 2.5  # elapsed of observations whose steps are refused


@pytest.fixture
def eager(make_bench):
    """A bench whose Gaussian has no kernel, and breaks on BAD."""
    bench = make_bench(partitions=1)
    bench.worker.engine.catalogue._built["gaussian", Options()] = Fragile()
    return bench


@pytest.fixture
def refusing(monkeypatch):
    """Have eager steps of ODD observations refused, with a label or without, until undone."""
    stepped = Slab._eagerly

    def refused(self, rows, packed, *rest):
        table, predicted = stepped(self, rows, packed, *rest)
        table[packed.inputs[:, compiled.ELAPSED] == ODD, OK_COLUMN] = 0.0
        return table, predicted

    monkeypatch.setattr(Slab, "_eagerly", refused)
    return monkeypatch


def test_a_warm_up_whose_filter_takes_nothing(eager, refusing):
    """The observation that ends it is refused and not applied; others of its batch are."""
    for name in "ab":
        eager.ask(Configure(name, {"warmup": 5}), status=201)
        eager.observe(name, [1.0, 2.0, 3.0])
    eager.observe("a", [Observation(4.0, elapsed=ODD)])
    eager.observe("b", [4.0])
    before = eager.head("a"), eager.records("a"), eager.events("a")
    for _ in range(2):  # it stays so
        wrong, right = eager.send(*(Observe(name, [Observation(7.0)]) for name in "ab"))
        (problem,) = map(json.loads, wrong.body)
        assert (wrong.status, slug(problem), problem["applied"]) == (500, "numerical-fault", 0)
        assert right.status == 200
        now = eager.head("a")
        assert (now.seq, now.warm, now.last_label) == (4, False, before[0].last_label)
        assert (eager.records("a"), eager.events("a")) == before[1:]
    assert eager.head("b").warm
    refusing.undo()
    (answer,) = eager.observe("a", [7.0])
    assert answer["seq"] == 4
    assert eager.head("a").warm
    assert [record.y for record in eager.records("a")] == [1.0, 2.0, 3.0, 4.0, 7.0]


def test_a_tail_that_no_filter_takes_breaks_its_stream_alone(eager, request):
    for name, elapsed in (("a", ODD), ("b", 1.0)):
        eager.ask(Configure(name, {"warmup": 5}), status=201)
        eager.observe(name, [Observation(float(i % 7), elapsed=elapsed) for i in range(15)])
    eager.crash()
    eager.worker.engine.catalogue._built["gaussian", Options()] = Fragile()
    request.getfixturevalue("refusing")
    wrong, right = eager.send(*(Observe(name, [Observation(7.0)]) for name in "ab"))
    (problem,) = map(json.loads, wrong.body)
    assert slug(problem) == "corrupt-state"
    assert "cannot be replayed" in problem["detail"]
    assert right.status == 200


def test_signs_of_life_while_a_warm_up_ends(eager):
    """One for each observation that is replayed: they may be many."""
    eager.ask(Configure("a", {"warmup": 25}), status=201)
    eager.observe("a", [float(i % 7) for i in range(24)])
    ticks = []
    eager.worker.engine.tick = lambda: ticks.append(None)
    eager.observe("a", [1.0])
    assert eager.head("a").warm
    assert len(ticks) >= 25


def test_what_a_refused_label_was_expected_to_be(eager):
    """Also behind a label to come, where it counts as missing."""
    eager.ask(Configure("a", {"warmup": 5}), status=201)
    # No coarse ones: the filter sees labels as they are.
    eager.observe("a", [(i % 7) ** 0.5 for i in range(15)])
    command = Observe(
        "a", [Observation(pending=True), Observation(BAD)], quantiles=[0.1], components=True
    )
    (outcome,) = eager.send(command)
    _, answer = map(json.loads, outcome.body)
    assert answer["provisional"]
    assert list(answer["predictive"]["quantiles"]) == ["0.1"]
    assert answer["components"]
    assert answer["log_score"] is None
    assert 0 <= answer["changed_probability"] <= 1


def test_mixtures_are_let_go_at_once(eager, monkeypatch):
    """Those of a list would take gigabytes."""
    eager.ask(Configure("a", {"warmup": 5}), status=201)
    eager.observe("a", [float(i % 7) for i in range(15)])
    enter = PendingAnswer.enter
    finish = CommandTask.finish
    mixtures = []
    left = []

    def entered(answer, taken):
        enter(answer, taken)
        mixtures.append(answer.taken.step.detail)

    def finished(task):
        left.extend((part.taken.step, part.place) for part in task.parts)
        finish(task)

    monkeypatch.setattr(PendingAnswer, "enter", entered)
    monkeypatch.setattr(CommandTask, "finish", finished)
    command = Observe("a", [Observation(float(i)) for i in range(5)], quantiles=[0.1])
    (outcome,) = eager.send(command)
    answers = [json.loads(body) for body in outcome.body]
    assert [list(each["predictive"]["quantiles"]) for each in answers] == [["0.1"]] * 5
    assert mixtures == [None] * 5
    assert left == [(None, None)] * 5
