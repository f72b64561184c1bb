"""The filter against all 2^6 segmentations of seven observations, for every model."""

import numpy as np
import pytest
import torch

from model_core import hazard as hazards
from tests.model_core.cases import CASES, by_start, run, series, tensor
from tests.model_core.enumeration import enumerate_segmentations

STEPS, STREAMS = 7, 3
NAN = np.nan

SCENARIOS = {
    "constant hazard": {},
    "elapsed time": {"elapsed": [1, 0.25, 3, 0, 1, 12.5, 0.01]},
    "soft supervision": {"changepoint": [0.5, NAN, 0.7, 0.02, NAN, 1 - 1e-9, NAN]},
    "known switches": {"changepoint": [1, NAN, 0, 1, NAN, 0, 0]},
    "missing labels": {"labelled": [False, True, True, False, False, True, False]},
    "outliers": {"outlier_rate": [0.05, 0.05, 0, 0.3, 0.05, 0.01, 0.05]},
    "all together": {
        "elapsed": [1, 2, 0.5, 1, 4, 1, 1],
        "changepoint": [NAN, NAN, 0.4, NAN, 0, NAN, 0.9],
        "labelled": [True, True, False, True, True, True, True],
        "outlier_rate": 0.1,
    },
}
SCENARIOS["hazard by run length"] = {}
SCENARIOS["all together, hazard by run length"] = SCENARIOS["all together"]
CONSTANT = (0.03, 0.2, 0.6)
# Regular regimes, regimes of exactly one or four observations, and ever surer ones.
TABLES = (hazards.negative_binomial(3, 8)[:4], (0.3, 0.0, 0.0, 1.0), (0.9, 0.5, 0.2, 1e-6))


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture(scope="module", params=SCENARIOS)
def both(request, case):
    """The filter's steps over a batch, and for each stream what enumeration says."""
    told = SCENARIOS[request.param]
    hazard = TABLES if "run length" in request.param else CONSTANT
    batch = [series(case, i, STEPS, hazard[i], **told) for i in range(STREAMS)]
    truth = [enumerate_segmentations(case.reference, each) for each in batch]
    return batch, run(case, batch, max_hypotheses=10), truth


def test_log_score(both):
    batch, steps, truth = both
    scores = torch.stack([step.info.log_score for step in steps])
    labelled = torch.tensor(np.stack([each.labelled for each in batch], 1))
    assert torch.equal(torch.isnan(scores), ~labelled)
    expected = tensor([[each[t].log_score for each in truth] for t in range(STEPS)])
    torch.testing.assert_close(scores[labelled], expected[labelled], atol=1e-10, rtol=0)


def test_belief_after_every_step(both):
    _, steps, truth = both
    for t, step in enumerate(steps):
        for row in range(STREAMS):
            belief = by_start(step.state, step.state.belief.log_prob.exp(), row)
            expected = truth[row][t].belief
            assert set(belief) <= set(expected)
            for start, probability in expected.items():
                assert belief.get(start, 0.0) == pytest.approx(probability, abs=1e-10, rel=1e-8)


def test_changepoint_probability_is_the_belief_in_a_start_now(both):
    _, steps, truth = both
    for t, step in enumerate(steps):
        expected = [each[t].belief[t] for each in truth]
        assert step.info.changepoint_probability.tolist() == pytest.approx(expected, abs=1e-10)
        assert step.info.pruned_mass.tolist() == [0.0] * STREAMS


def test_the_best_path_is_the_best_segmentation(both):
    _, steps, truth = both
    for t, step in enumerate(steps):
        for row in range(STREAMS):
            state, expected = step.state, truth[row][t]
            score = by_start(state, state.belief.score, row)
            top = max(expected.score.values())
            for start, value in score.items():
                assert value == pytest.approx(expected.score[start] - top, abs=1e-9)
            for start, previous in by_start(state, state.belief.previous_start, row).items():
                assert previous in expected.previous[start]
            born = int(step.info.born_previous_start[row])
            possible = expected.belief[t] > 0
            assert not possible or born in expected.previous[t]


def test_the_predictive_scores_what_the_step_scored(both):
    _, steps, _ = both
    for step in steps:
        scored = step.inputs.labelled
        score = step.info.predictive.log_prob(torch.nan_to_num(step.inputs.y))
        torch.testing.assert_close(score[scored], step.info.log_score[scored], atol=1e-12, rtol=0)
        weight = step.info.predictive.log_weight.logsumexp(-1)
        torch.testing.assert_close(weight, torch.zeros_like(weight), atol=1e-12, rtol=0)
