"""Metrics of what steps give and how well models predict, as a worker enters them."""

import numpy as np
import pytest
from scipy import stats

from service.observability.metrics import PIT, REGISTRY
from service.wire import Configure, Observation, Observe
from service.worker.streams import answers
from service.worker.streams.answers import gathered

EDGES = tuple(i / 20 for i in range(1, 21))


def value(name, model, **labels):
    gathered.enter()
    return REGISTRY.get_sample_value(name, {"model": model, **labels}) or 0.0


def pits(model):
    """Cumulative counts by bucket."""
    edges = [str(edge) for edge in EDGES]
    return np.array([value("moca_pit_bucket", model, le=edge) for edge in edges])


def observe(bench, stream, model, labels, **settings):
    """Post labels to a new stream; returns how many fell in each bucket of the PIT."""
    bench.ask(Configure(stream, {"model": model, **settings}), 201)
    before = pits(model)
    bench.observe(stream, labels)
    return np.diff(pits(model) - before, prepend=0.0)


CALIBRATED = {
    "poisson": (lambda rng: rng.poisson(3.0, 320).astype(float), {"location": [3.0]}),
    "bernoulli": (lambda rng: rng.integers(0, 2, 320).astype(float), {}),
}


@pytest.mark.parametrize("model", CALIBRATED)
def test_the_transform_is_uniform_where_the_model_is_right(bench, monkeypatch, model):
    monkeypatch.setattr(answers, "_random", np.random.default_rng(1))  # others have drawn from it
    draw, settings = CALIBRATED[model]
    labels = draw(np.random.default_rng(5)).tolist()
    found = observe(bench, "right", model, labels, hazard=1e-4, **settings)
    assert found.sum() == 320
    expected = 320 * np.diff(EDGES, prepend=0.0)
    assert stats.chisquare(found, expected).pvalue > 1e-3


def test_the_transform_is_not_uniform_where_the_model_is_wrong(bench):
    """A tenth of the scale that the prior is certain of: each output lies in the middle."""
    labels = np.random.default_rng(5).normal(0.0, 0.3, (32, 2)).tolist()
    given = {"hazard": 0.9, "location": [0.0, 0.0], "scale": [3.0, 3.0]}
    found = observe(bench, "wrong", "gaussian", labels, **given)
    assert found[[0, 1, -2, -1]].sum() == 0
    assert found.sum() == 64
    assert PIT.labels("gaussian")._upper_bounds[:-1] == list(EDGES)


def test_only_what_was_filtered_counts(bench):
    """Labels of the warm-up have no transform, nor have classes."""
    labels = [*map(float, range(20)), *[Observation(y=None)] * 5, 1.0, 2.0]
    every_step = ("moca_run_length_observations_count", "moca_evidence_observations_count")
    before = [value(name, "gaussian") for name in every_step]
    assert observe(bench, "few", "gaussian", labels, warmup=20).sum() == 2
    # Belief and evidence are there after every step of the filter, labelled or not.
    after = [value(name, "gaussian") for name in every_step]
    assert [new - old for new, old in zip(after, before, strict=True)] == [7, 7]
    before = value("moca_log_score_nats_count", "categorical")
    labels = [float(i % 3) for i in range(32)]
    assert observe(bench, "classes", "categorical", labels, classes=3).sum() == 0
    assert value("moca_log_score_nats_count", "categorical") - before == 32


def test_the_mean_log_score_comes_from_sums_that_only_rise(bench):
    """Tight labels have densities above 1, and one far away has one below."""
    sides = ("moca_log_score_positive_nats_total", "moca_log_score_negative_nats_total")
    before = [value(each, "gaussian") for each in sides]
    bench.ask(Configure("sums", {"location": [0.0], "scale": [0.01]}), 201)
    scores = [each["log_score"] for each in bench.observe("sums", [0.0, 0.001, -0.001, 5.0])]
    above, below = (value(each, "gaussian") - b for each, b in zip(sides, before, strict=True))
    assert above == pytest.approx(sum(each for each in scores if each > 0))
    assert below == pytest.approx(-sum(each for each in scores if each < 0))
    assert above > 0
    assert below > 0


def test_what_was_gathered_is_entered_when_nothing_waits_and_before_it_is_much(bench, monkeypatch):
    name = "moca_evidence_observations_count"

    def entered():
        return REGISTRY.get_sample_value(name, {"model": "gaussian"}) or 0.0

    bench.observe("a", [float(i % 3) for i in range(60)])
    before = value(name, "gaussian")
    bench.observe("a", [0.0, 1.0, 2.0])
    bench.turn(maintain=False)
    assert entered() - before == 3
    bench.append(Observe("a", [Observation(y=1.0)]))
    bench.turn(maintain=False)
    bench.append(Observe("a", [Observation(y=1.0)]))
    bench.turn(maintain=False)  # which ends a commit, as every turn of a busy worker does
    assert entered() - before == 3
    bench.turn(maintain=False)
    assert entered() - before == 5
    monkeypatch.setattr(answers, "MOST_STEPS", 5)
    rows = np.ones((3, len(answers.GATHERED)))
    gathered.add_steps("gaussian", rows)
    assert entered() - before == 5
    gathered.add_steps("gaussian", rows)
    assert entered() - before == 11


def test_the_last_commits_are_entered_before_a_worker_ends(bench):
    name = "moca_stage_duration_seconds_count"

    def commits():
        return REGISTRY.get_sample_value(name, {"stage": "commit"}) or 0.0

    bench.observe("a", [0.0] * 3)
    gathered.enter()
    before = commits()
    bench.append(Observe("a", [Observation(y=1.0)]))
    bench.turn(maintain=False)
    assert bench.worker._committer.partitions
    assert commits() == before
    bench.stop()
    assert commits() > before
    after = commits()
    gathered.enter()
    assert commits() == after
