"""Workers where torch is not installed: what needs it is refused as such, all else is served."""

import random

import pytest

from model_core import lazy
from model_core.errors import MissingTorch
from service.wire import (
    Act,
    Configure,
    NameRegime,
    Observation,
    Observe,
    Predict,
    Regimes,
    RunLength,
    SegmentHistory,
)
from tests.service.worker.conftest import slug
from tests.service.worker.kinds import KINDS, configure, publish, series

KNOWN = {"location": [0.0, 0.0], "scale": [1.0, 1.0]}
PAIRS = [[0.1, 0.2], [0.3, -0.4], [-0.5, 0.6]]
HOLE = Observation(y=[None, 1.0])


@pytest.fixture
def uninstall(monkeypatch):
    """Have every use of torch fail as where it is not installed, until `undo`."""

    def missing():
        raise MissingTorch("this needs torch, which is not installed")

    def change():
        monkeypatch.setattr(lazy, "load", missing)
        monkeypatch.setattr(lazy, "loaded", lambda: False)

    change.undo = monkeypatch.undo
    return change


def refused(bench, command):
    answer = bench.ask(command, status=501)
    assert slug(answer) == "not-installed"
    assert "torch" in answer["detail"]


def test_calls_that_torch_computes_are_refused_and_change_nothing(bench, uninstall):
    bench.ask(Configure("a", {"model": "joint", **KNOWN}), status=201)
    bench.ask(Configure("b", {"model": "linear"}), status=201)
    bench.observe("a", PAIRS)
    bench.observe("b", series(KINDS["linear"], 25))
    uninstall()
    before = bench.stored("a"), bench.stored("b")
    for command in (
        Predict("a", components=True),
        Predict("a", samples=3),
        Act("b", [[0.5], [1.0]], "greedy"),
        Observe("a", [Observation(y=PAIRS[0])], components=True),
    ):
        refused(bench, command)
    assert (bench.stored("a"), bench.stored("b")) == before
    assert bench.ask(Predict("a"))["predictions"][0]["predictive"]["quantiles"]
    assert bench.ask(RunLength("a"))["seq"] == 2
    assert [answer["seq"] for answer in bench.observe("a", PAIRS)] == [3, 4, 5]
    assert not bench.quarantine("a")


@pytest.mark.parametrize("name", ["averaged", "joint", "poisson", "gamma", "categorical"])
def test_forecasts_paths_and_other_quantiles_are_those_with_torch(bench, uninstall, name):
    kind = KINDS[name]
    for stream in ("a", "b"):
        configure(bench, stream, kind)
        bench.observe(stream, series(kind, 40))
    coming = series(kind, 41)[40:]
    commands = (
        Predict("a", horizon=4, quantiles=[0.25, 0.75]),
        Predict("a", horizon=4, samples=3, seed=5),
        Predict("a", quantiles=[0.1]),
    )
    expected = [bench.ask(command) for command in commands]
    (observed,) = bench.observe("b", coming, quantiles=[0.1])
    uninstall()
    bench.crash()
    for command, answer in zip(commands, expected, strict=True):
        assert bench.ask(command) == answer
    (again,) = bench.observe("a", coming, quantiles=[0.1])
    assert again["predictive"] == observed["predictive"]


def test_remembered_regimes_are_listed_and_named_without_their_forecasts(bench, uninstall):
    rng = random.Random(3)
    bench.ask(Configure("a", {"regimes": 4}), status=201)
    bench.observe("a", [rng.gauss(7.0 * (t // 30 % 2), 1.0) for t in range(150)])
    stored = bench.stored("a")
    before = bench.ask(Regimes("a"))["regimes"]
    assert len(before) == 2
    uninstall()
    listed = bench.ask(Regimes("a"))["regimes"]
    assert listed == [{**own, "predictive": None} for own in before]
    assert bench.stored("a") == stored
    assert bench.ask(NameRegime("a", before[1]["id"], "busy")) == {**listed[1], "name": "busy"}
    uninstall.undo()
    assert bench.ask(Regimes("a"))["regimes"] == [before[0], {**before[1], "name": "busy"}]


def test_labels_that_lack_outputs_are_served(bench, uninstall):
    """In the warm-up and after it, from the history and in hindsight."""
    uninstall()
    bench.ask(Configure("a", {"model": "joint", "warmup": 4}), status=201)
    bench.observe("a", [HOLE, *PAIRS, HOLE, [0.7, 0.8]])
    assert bench.head("a").warm
    bench.observe("a", [*PAIRS, HOLE])
    bench.crash()
    assert [answer["seq"] for answer in bench.observe("a", [HOLE, *PAIRS])] == [10, 11, 12, 13]
    bench.ask(SegmentHistory("a"), status=204)


def test_a_trained_model_is_refused(bench, uninstall, tmp_path):
    publish(tmp_path / "models")
    uninstall()
    refused(bench, Configure("a", {"model": KINDS["alpaca"].model}))
    configure(bench, "a", KINDS["gaussian"])
