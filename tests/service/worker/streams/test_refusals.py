"""What is refused changes nothing; a step that is not finite is not taken."""

import json
import math

import pytest
import torch

from model_core.upm.builtin import Options
from model_core.upm.conjugate import Gaussian
from service.wire import Configure, Delete, Observation, Observe, Predict, RunLength


def slug(answer):
    return answer["type"].rpartition("/")[2]


# --- refusals ---------------------------------------------------------------------------------

BAD = [
    (Observe("a", [Observation(y=[1.0, 2.0])]), 422, "dimension-mismatch"),
    (Observe("a", [Observation(y=1.0, x=[1.0])]), 422, "dimension-mismatch"),
    (Observe("a", [Observation(y=1.0), Observation(y=[1.0, 2.0])]), 422, "dimension-mismatch"),
    (Observe("a", [Observation(y=2e100)]), 422, "label-out-of-range"),
    (Observe("a", [Observation(y=math.nan)]), 422, "label-out-of-range"),
    (Observe("a", [Observation(y=-math.inf)]), 422, "label-out-of-range"),
    (Observe("a", [Observation(y=1.0)], seq=3), 409, "seq-conflict"),
    (Observe("a", [Observation(y=1.0)], seq=99), 409, "seq-conflict"),
    (Configure("a", {"model": "poisson"}), 409, "settings-conflict"),
    (Configure("a", {"model": "nothing"}), 422, "unknown-model"),
    (Configure("a", {"hazard": 0.5, "location": [0.5]}), 409, "settings-conflict"),
    (Configure("a", {"max_hypotheses": 5, "warmup": 3}), 409, "settings-conflict"),
    (Predict("a", x=[[1.0]]), 422, "dimension-mismatch"),
    (Observe("b", [Observation(y=0.5)]), 422, "label-out-of-range"),
    (Observe("b", [Observation(y=-1.0)]), 422, "label-out-of-range"),
    (Observe("b", [Observation(y=1e16)]), 422, "label-out-of-range"),
    (Observe("c", [Observation(y=2.0)]), 422, "label-out-of-range"),
]


@pytest.mark.parametrize("kept", [True, False])
def test_a_refusal_leaves_the_stream_bitwise_unchanged(bench, kept):
    bench.observe("a", [float(i) for i in range(30)])
    bench.ask(Configure("b", {"model": "poisson", "location": [3.0]}), status=201)
    bench.ask(Configure("c", {"model": "bernoulli"}), status=201)
    bench.observe("b", [1.0, 2.0])
    bench.observe("c", [1.0, 0.0])
    before = {stream: bench.stored(stream) for stream in "abc"}
    for command, status, name in BAD:
        if not kept:
            bench.crash()
        answer = bench.ask(command, status=status)
        assert slug(answer) == name
        assert answer["status"] == status
        if isinstance(command, Observe):
            assert answer["applied"] == 0
        assert {stream: bench.stored(stream) for stream in "abc"} == before, command
    bench.now_ms += 5
    bench.observe("a", [31.0])
    head = bench.head("a")
    assert head.settings.hazard is None
    assert head.settings.max_hypotheses == 50


@pytest.mark.parametrize(
    "command",
    [
        Observe("new", [Observation(y=1.0, x=[1.0])]),
        Observe("new", [Observation(y=1.0)], seq=1),
        Observe("new", [Observation(y=1.0), Observation(y=[1.0, 2.0])]),
        Configure("new", {"model": "nothing"}),
        Configure("new", {"model": "poisson", "location": [1.0, 2.0]}),
        Configure("new", {"model": "poisson", "location": [0.0]}),
        Configure("new", {"location": [1.0, 2.0], "scale": [1.0]}),
        Configure("new", {"location": [1e200]}),
        Configure("new", {"location": [0.0], "scale": [1e-200]}),
        Predict("new"),
        RunLength("new"),
        Delete("new"),
    ],
)
def test_a_refusal_makes_no_stream(bench, command):
    (outcome,) = bench.send(command)
    assert 404 <= outcome.status <= 422
    stored = bench.stored("new")
    assert stored["head"] is None
    assert not stored["named"]
    assert not any(stored[part] for part in ("tail", "events", "idempotency", "checkpoint"))


def test_an_empty_list_is_no_poison(bench):
    (outcome,) = bench.send(Observe("a", []))
    assert (outcome.status, outcome.body) == (200, [])


def test_others_of_the_batch_are_served(bench):
    outcomes = bench.send(
        Observe("a", [Observation(y=1.0)]),
        Observe("a", [Observation(y=[1.0, 2.0])]),
        Observe("a", [Observation(y=2.0)]),
        Observe("a", [Observation(y=3.0)], seq=2),
    )
    assert [outcome.status for outcome in outcomes] == [200, 422, 200, 200]
    assert [json.loads(o.body[0]).get("seq") for o in outcomes] == [0, None, 1, 2]


# --- numerical faults -------------------------------------------------------------------------


class Fragile(Gaussian):
    """A Gaussian whose update breaks on one label."""

    def update(self, stats, phi, y, weight):
        new = super().update(stats, phi, y, weight)
        broken = (y == 666.0).unsqueeze(1)
        return new._replace(mean=torch.where(broken, torch.nan, new.mean))


@pytest.fixture
def fragile(bench):
    catalogue = bench.worker.engine.catalogue
    catalogue._built["gaussian@1", Options()] = Fragile()
    bench.ask(Configure("a", {"location": [0.0], "scale": [1.0]}), status=201)
    bench.ask(Configure("b", {"location": [0.0], "scale": [1.0]}), status=201)
    return bench


def test_a_step_that_is_not_finite_is_not_taken(fragile):
    fragile.observe("a", [1.0, 2.0])
    before, belief = fragile.stored("a"), fragile.ask(RunLength("a"))
    answer = fragile.ask(Observe("a", [Observation(y=666.0)]), status=500)
    assert slug(answer) == "numerical-fault"
    assert (answer["seq"], answer["applied"]) == (2, 0)
    assert fragile.stored("a") == before
    assert fragile.ask(RunLength("a")) == belief
    (more,) = fragile.observe("a", [1.5])
    assert more["seq"] == 2


def test_the_list_stops_there_and_batch_mates_go_on(fragile):
    first, second, other = fragile.send(
        Observe("a", [Observation(y=v) for v in (1.0, 666.0, 2.0)], key="k", digest="d"),
        Observe("a", [Observation(y=3.0)]),
        Observe(
            "b" if fragile.partition("b") == fragile.partition("a") else "a", [Observation(y=4.0)]
        ),
    )
    assert first.status == 500
    answers = [json.loads(each) for each in first.body]
    assert [each.get("seq") for each in answers] == [0, 1]
    assert answers[1]["applied"] == 1
    assert json.loads(second.body[0])["seq"] == 1
    assert other.status == 200
    # It was applied in part: a repeat must not apply that part again.
    (again,) = fragile.send(Observe("a", [Observation(y=1.0)], key="k", digest="d"))
    assert again.status == 500
    assert json.loads(again.body[0])["duplicate"]


def test_a_fault_alone_may_be_tried_again_under_its_key(fragile):
    keyed = Observe("a", [Observation(y=666.0)], key="k", digest="d")
    assert fragile.send(keyed)[0].status == 500
    fragile.worker.engine.catalogue._built["gaussian@1", Options()] = Gaussian()
    fragile.crash()
    assert fragile.send(keyed)[0].status == 200


def test_faults_in_the_warm_up_do_not_shift_what_follows(bench, close):
    bench.worker.engine.catalogue._built["gaussian@1", Options()] = Fragile()
    answers = bench.observe("a", [663.0 + 7 * i % 11 for i in range(20)] + [665.5, 664.0, 667.0])
    assert [answer["seq"] for answer in answers] == list(range(23))
    found = bench.ask(RunLength("a"))
    assert found["belief"][-1]["start"] == 0
    assert answers[-1]["run_length"]["map"] == 22
    bench.crash()
    bench.worker.engine.catalogue._built["gaussian@1", Options()] = Fragile()
    close(bench.ask(RunLength("a")), found)
