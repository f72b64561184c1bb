"""A score that is not a number is a failure: it must not pass for a label that is missing."""

import math

import pytest
import torch

from training.data.base import Batch, Splits
from training.experiments.catalogue import config
from training.experiments.jobs import learner
from training.meta_training.loop import Objective
from training.meta_training.objective import accuracy
from training.meta_training.validation import Validation, measured

WIDE = 30.0  # scale of prior factors at which float32 has no digits left


class Fixed:
    """The same windows at every draw; a third of the labels missing."""

    def draw(self, generator, count, length):
        chance = torch.Generator().manual_seed(3)
        x = torch.randn(count, length, 1, generator=chance, dtype=torch.float64)
        y = 2 * x.sin() + 0.2 * torch.randn(x.shape, generator=chance, dtype=torch.float64)
        y[:, ::3] = math.nan
        return Batch(x, y)


SPLITS = Splits(Fixed(), Fixed(), Fixed(), x_dim=1, y_dim=1)


def made(scale):
    settings = {
        "experiment": "sinusoid",
        "model": {"widths": [16], "features": 24, "prior_scale": scale},
        "optimiser": {"length": 100},
        "validation": {"windows": 6},
    }
    wanted = config(settings)
    return wanted, learner(wanted, SPLITS)


@pytest.fixture
def broken():
    """Settings, learner and batch of which some, not all, scores fail."""
    wanted, found = made(WIDE)
    batch = Fixed().draw(None, 6, 100).to("cpu", torch.float32)
    score = measured(found, batch, wanted.objective)["nll"]
    failed = torch.isnan(score) & ~torch.isnan(batch.y).any(-1)
    assert 0 < failed.sum() < (~torch.isnan(batch.y)).sum()
    return wanted, found, batch


def test_missing_labels_do_not_count():
    wanted, found = made(0.2)
    validation = Validation(wanted, SPLITS, "cpu")
    score = measured(found, validation.batch.to("cpu", torch.float32), wanted.objective)["nll"]
    known = ~torch.isnan(validation.batch.y).any(-1)
    assert torch.equal(torch.isfinite(score), known)
    assert validation.measure(found)["nll"] == pytest.approx(score[known].mean().item(), rel=1e-6)


def test_a_validation_of_which_scores_failed_is_no_number(broken):
    wanted, found, _ = broken
    assert math.isnan(Validation(wanted, SPLITS, "cpu").measure(found)["nll"])


def test_a_loss_of_which_scores_failed_is_no_number(broken):
    wanted, found, batch = broken
    total, count = Objective(found, wanted)(batch, None)
    assert math.isnan(total.item())
    assert count == (~torch.isnan(batch.y)).sum()


def test_a_class_of_which_nothing_is_known_is_not_right():
    told = torch.tensor([[[0.9, 0.1], [math.nan, math.nan], [0.9, 0.1]]]).log()
    found = accuracy(told, torch.tensor([[[0.0], [0.0], [math.nan]]]))
    assert found[0, 0] == 1
    assert torch.isnan(found[0, 1:]).all()
