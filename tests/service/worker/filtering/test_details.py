"""The mixture for a posted observation, as the prediction just before it had it."""

import pytest
import torch

from model_core.components import Lomax, NegativeBinomial, Normal, SkewedT, StudentT
from service.wire import Observation, Observe, Predict
from tests.service.worker.conftest import close_to
from tests.service.worker.kinds import KINDS, configure, publish, series

LEVELS = [0.9, 0.25]
DETAILS = {"components": True, "quantiles": LEVELS}


@pytest.fixture
def bench(make_bench, tmp_path):
    publish(tmp_path / "models")
    return make_bench()


def predicted(bench, stream, x=None):
    command = Predict(stream, None if x is None else [x], quantiles=LEVELS, components=True)
    (found,) = bench.ask(command)["predictions"]
    return found


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_answers_what_was_predicted(bench, name):
    kind = KINDS[name]
    seen = series(kind, 60, plain=True)
    configure(bench, "a", kind)
    bench.observe("a", seen[:50])
    for observation in seen[50:53]:
        expected = predicted(bench, "a", observation.x)
        (answer,) = bench.observe("a", [observation], **DETAILS)
        close_to(answer["components"], expected["components"])
        close_to(answer["predictive"], expected["predictive"])
    together = bench.observe("a", seen[53:], **DETAILS)
    bench.stop()
    assert len(together) == 7
    for answer in together:
        assert sum(each["weight"] for each in answer["components"]) == pytest.approx(1)


def test_parameters_rebuild_each_component(bench):
    families = {each.__name__: each for each in (Lomax, NegativeBinomial, Normal, StudentT)}
    seen = set()
    for name in ("gaussian", "poisson-1", "exponential", "alpaca"):
        kind = KINDS[name]
        configure(bench, name, kind)
        bench.observe(name, series(kind, 40, plain=True))
        (observation,) = series(kind, 1, seed=2, plain=True)
        (answer,) = bench.observe(name, [observation], **DETAILS)
        for part in answer["components"]:
            family = families[part["family"]]
            seen.add(family)
            named = {k: torch.tensor(v).reshape(1, 1, -1) for k, v in part["parameters"].items()}
            rebuilt = family(**named)
            assert rebuilt.mean().flatten().tolist() == pytest.approx(part["mean"], rel=1e-5)
            if None not in part["variance"]:
                expected = pytest.approx(part["variance"], rel=1e-4)
                assert rebuilt.variance().flatten().tolist() == expected
    assert seen == set(families.values())


def test_weights_within_a_component_of_an_average(bench):
    configure(bench, "a", KINDS["averaged"])
    bench.observe("a", series(KINDS["averaged"], 40, plain=True))
    (answer,) = bench.observe("a", [1.0], **DETAILS)
    for part in answer["components"]:
        assert part["family"] == "Blend of SkewedT"
        (weights,) = part["parameters"].pop("weight")
        assert sum(weights) == pytest.approx(1)
        each = SkewedT(**{k: torch.tensor(v) for k, v in part["parameters"].items()})
        mean = torch.tensor(weights) @ each.mean().flatten()
        assert [mean.item()] == pytest.approx(part["mean"], rel=1e-5)


def test_in_the_warm_up_there_is_one_regime(bench):
    bench.observe("a", [1.0, 2.0, 1.5])
    expected = predicted(bench, "a")
    (answer,) = bench.observe("a", [1.0], **DETAILS)
    close_to(answer["components"], expected["components"])
    assert [part["run_length"] for part in answer["components"]] == [3]


def test_of_observations_behind_a_label_to_come(bench):
    """The mixture is that of the state which ran ahead without the label."""
    kind = KINDS["linear"]
    seen = series(kind, 44, plain=True)
    configure(bench, "a", kind)
    bench.observe("a", seen[:40])
    bench.observe("a", [Observation(x=seen[40].x, pending=True)])
    expected = predicted(bench, "a", seen[41].x)
    (answer,) = bench.observe("a", [seen[41]], **DETAILS)
    assert answer["provisional"]
    close_to(answer["components"], expected["components"])
    configure(bench, "b", kind)
    bench.observe("b", seen[:40])
    expected = predicted(bench, "b", seen[40].x)
    (late,) = bench.observe("a", [Observation(y=seen[40].y)], seq=40, **DETAILS)
    close_to(late["components"], expected["components"])


def test_history_keeps_the_usual_quantiles(bench):
    configure(bench, "a", KINDS["gaussian"])
    bench.observe("a", series(KINDS["gaussian"], 30, plain=True), **DETAILS)
    assert all(set(each.quantiles) == {"0.05", "0.5", "0.95"} for each in bench.records("a")[2:])


def test_a_repeat_answers_the_same_mixture(bench):
    configure(bench, "a", KINDS["gaussian"])
    bench.observe("a", series(KINDS["gaussian"], 30, plain=True))
    more = {"key": "k", "digest": "d", **DETAILS}
    first, again = (bench.observe("a", [1.0], **more)[0] for _ in range(2))
    assert again == {**first, "duplicate": True}
    assert first["components"]


def test_what_would_take_too_long_is_refused_whole(bench):
    configure(bench, "a", KINDS["gaussian"], max_hypotheses=2000)
    bench.observe("a", [0.0, 1.0])
    (outcome,) = bench.send(Observe("a", [Observation(y=1.0)] * 32, components=True))
    assert outcome.status == 422
    assert b"split the request" in outcome.body[-1]
    assert bench.head("a").seq == 2
