"""A belief restated by run lengths, some of which have no hypothesis."""

import pytest
import torch

from model_core import belief as beliefs
from model_core.belief import Belief

NEG_INF = float("-inf")


@pytest.fixture
def belief():
    """Hypotheses of run lengths 9, 2 and 5; the slot of run length 7 is empty."""
    probability = torch.tensor([[0.5, 0.2, 0.0, 0.3]], dtype=torch.float64)
    run_length = torch.tensor([[9, 2, 7, 5]])
    score = torch.tensor([[-1.0, -2.0, NEG_INF, -3.0]], dtype=torch.float64)
    return Belief(probability.log(), run_length, score, run_length - 10)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ([(2, 0.25), (9, 0.75)], {9: 0.75, 2: 0.25}),
        ([(5, 3.0), (2, 1.0)], {5: 0.75, 2: 0.25}),
        ([(7, 1.0)], {9: 1.0}),
        ([(3, 0.25), (5, 0.25), (6, 0.5)], {5: 0.5, 9: 0.5}),
        ([(0, 0.5), (400, 0.5)], {2: 0.5, 9: 0.5}),
    ],
)
def test_what_has_no_hypothesis_counts_as_the_next_longer_one(belief, stated, expected):
    found = beliefs.restate(belief, stated)
    kept = {
        int(r): float(p)
        for r, p in zip(found.run_length[0], found.log_prob[0].exp(), strict=True)
        if p > 0
    }
    assert kept == pytest.approx(expected, abs=1e-15)
    assert torch.equal(torch.isneginf(found.score), torch.isneginf(found.log_prob))
    again = beliefs.restate(found, stated)
    torch.testing.assert_close(again, found, atol=1e-15, rtol=0)


def test_what_is_believed_already_changes_nothing(belief):
    stated = [(9, 0.5), (2, 0.2), (5, 0.3)]
    torch.testing.assert_close(beliefs.restate(belief, stated), belief, atol=1e-15, rtol=0)


def test_before_any_observation_there_is_nothing_to_restate():
    empty = beliefs.empty(1, 4)
    assert beliefs.restate(empty, [(0, 1.0)]) is empty
