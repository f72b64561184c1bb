"""Actions through the worker, against the same choice made directly."""

import json
import random

import pytest
import torch

from model_core import actions
from model_core import filter as moca
from model_core.actions import Strategy
from service.wire import Act, Configure, Observation

CANDIDATES = [[-1.0, 0.5], [0.2, 0.1], [2.0, -1.0]]


@pytest.fixture
def stream(bench):
    rng = random.Random(2)
    settings = {"model": "linear", "location": None, "warmup": 5, "hazard": 0.02}
    bench.ask(Configure("a", settings), status=201)
    made = []
    for _ in range(30):
        x = [rng.gauss(0, 1), rng.gauss(0, 1)]
        made.append(Observation(x=x, y=2 * x[0] - x[1] + rng.gauss(0, 0.1)))
    bench.observe("a", made)
    return "a"


def directly(bench, stream, strategy, seed):
    held = bench.worker.engine.streams[bench.partition(stream), stream]
    slab = held.slab
    record = bench.records(stream)[-1]
    state, prior = slab.state(held.row), slab.row_prior(held.row)
    grown, _ = moca.grow(state, prior, slab.inputs([record]))
    asked = torch.tensor([CANDIDATES], dtype=torch.float64)
    found = actions.hypotheses(grown)
    return actions.choose(slab.model, found, asked, strategy, actions.seeded([seed]))


@pytest.mark.parametrize("strategy", [Strategy("thompson"), Strategy("optimistic", 4)])
def test_a_seed_draws_what_it_draws(bench, stream, strategy):
    command = Act(stream, CANDIDATES, strategy.name, strategy.samples, 11)
    before = bench.stored(stream)
    answer = bench.ask(command)
    expected = directly(bench, stream, strategy, 11)
    assert answer["values"] == expected.values[0].tolist()
    assert answer["chosen"] == int(expected.chosen[0])
    assert answer["candidate"] == CANDIDATES[answer["chosen"]]
    assert answer["seed"] == 11
    assert bench.ask(command) == answer
    assert bench.stored(stream) == before
    other = bench.ask(Act(stream, CANDIDATES, strategy.name, strategy.samples, 12))
    assert other["values"] != answer["values"]


def test_greedy_takes_the_best_mean(bench, stream):
    answer = bench.ask(Act(stream, CANDIDATES, "greedy"))
    assert answer["chosen"] == 2
    assert answer["values"] == pytest.approx([-2.5, 0.3, 5.0], abs=0.3)
    assert answer["seed"] is None


@pytest.mark.parametrize(
    ("settings", "candidates", "status", "says"),
    [
        ({"model": "gaussian"}, [[1.0]], 422, "actions require a model with inputs"),
        ({"model": "linear"}, [[1.0, 2.0]], 409, "still warming up"),
        ({"model": "linear"}, [[1.0, 2.0], [1.0]], 422, "candidates[1]"),
        ({"model": "linear"}, [[1.0, 1e300]], 422, "candidates[0]"),
    ],
)
def test_what_cannot_be_chosen_from(bench, settings, candidates, status, says):
    bench.ask(Configure("b", settings), status=201)
    if settings["model"] == "linear":
        bench.observe("b", [Observation(x=[0.0, 1.0], y=1.0)])
    (outcome,) = bench.send(Act("b", candidates, "thompson"))
    assert outcome.status == status
    assert says in json.loads(outcome.body[0])["detail"]


def test_a_label_of_several_numbers_has_no_best(bench):
    settings = {"model": "linear", "warmup": 3}
    bench.ask(Configure("b", settings), status=201)
    seen = [Observation(x=[float(i)], y=[float(i), -float(i)]) for i in range(6)]
    bench.observe("b", seen)
    answer = bench.ask(Act("b", [[1.0]], "greedy"), status=422)
    assert answer["type"].endswith("/unfit-model")


def test_before_any_input_the_stream_waits_for_observations(bench):
    bench.ask(Configure("d", {"model": "linear"}), status=201)
    (outcome,) = bench.send(Act("d", [[1.0, 2.0]], "thompson"))
    assert outcome.status == 409
    assert json.loads(outcome.body[0])["detail"].endswith("post more observations")
