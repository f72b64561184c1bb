"""Answers of one batch are summarised together, each by its own family of distributions."""

import json

import pytest

from service.wire import Configure, Observation, Observe

MODELS = ["averaged", "poisson@1", "poisson@2", "gaussian", "exponential"]


def commands(model):
    given = {"model": model, "location": [4.0]}
    if model not in ("poisson@1", "poisson@2", "exponential"):
        given["scale"] = [2.0]
    seen = [Observation(y=float(y)) for y in (3, 5, 4, 400, 390)]
    return Configure(model, given), Observe(model, seen)


def test_models_of_one_batch_do_not_meet(make_bench, caplog):
    together = make_bench(partitions=1)
    outcomes = together.send(*(each for model in MODELS for each in commands(model)))
    assert "retrying" not in caplog.text  # the worker would have taken them one by one
    for i, model in enumerate(MODELS):
        alone = make_bench(db=1 + i, partitions=1).send(*commands(model))
        assert [each.status for each in alone] == [201, 200]
        for first, second in zip(alone[1].body, outcomes[2 * i + 1].body, strict=True):
            assert json.loads(first)["predictive"] == json.loads(second)["predictive"]


@pytest.mark.parametrize(("model", "found"), [("poisson@1", False), ("poisson", True)])
def test_a_stream_keeps_its_version(bench, model, found):
    bench.ask(Configure("a", {"model": model, "location": [1.0]}), status=201)
    bench.observe("a", [0, 2, 1, 1, 0, 1, 2, 0, 1, 1] + [100] * 12)
    bench.crash()
    bench.observe("a", [100.0])
    assert bench.head("a").settings.model == f"poisson@{1 + found}"
    states = [(event.state, event.start) for event in bench.events("a")]
    assert (("confirmed", 10) in states) is found
