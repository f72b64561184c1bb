"""Validation: the same windows for every run, measured as the service would predict."""

import pytest
import torch

from tests.training.learners.test_learners import drawn, made
from tests.training.tiny import splits, tiny
from training import config
from training.config import merged
from training.data.base import Splits
from training.errors import BadConfig
from training.experiments.jobs import learner
from training.meta_training.objective import log_scores
from training.meta_training.validation import Validation


def measured(settings, learned=None):
    found = splits(settings)
    return Validation(settings, found, "cpu"), learned or learner(settings, found).double()


def test_its_windows_are_the_same_whatever_the_run():
    one, _ = measured(tiny())
    other, _ = measured(tiny(seed=5, model={"kind": "lstm"}, optimiser={"batch": 2}))
    assert torch.equal(one.batch.y, other.batch.y)
    assert one.batch.y.shape == (4, 12, 1)
    longer, _ = measured(tiny(validation={"length": 30, "windows": 2}))
    assert longer.batch.y.shape == (2, 30, 1)


@pytest.mark.parametrize("mode", ["moca", "oracle", "sw3"])
@torch.no_grad()
def test_it_is_the_mean_of_what_is_minimised(mode):
    settings = tiny(objective={"mode": mode})
    validation, learned = measured(settings)
    found = validation.measure(learned)
    batch = validation.batch.to("cpu", torch.float64)
    expected = -log_scores(learned, batch, settings.objective, None).mean()
    assert found == {"nll": pytest.approx(expected.item(), abs=1e-12)}
    assert learned.training


@torch.no_grad()
def test_supervision_is_told_there_too():
    settings = tiny(objective={"supervision": 1.0})
    validation, learned = measured(settings)
    assert torch.equal(validation.supervision == 1, validation.batch.switch)
    plain, _ = measured(tiny())
    assert validation.measure(learned)["nll"] < plain.measure(learned)["nll"]


class Drawn:
    """The same windows at each draw."""

    def draw(self, generator, count, length):
        return drawn("pcoc-conv", count, length)


def test_norms_use_their_running_moments_and_do_not_move():
    """What a window is predicted as must not depend on its batch-mates."""
    source = Splits(Drawn(), Drawn(), Drawn(), x_dim=128, y_dim=1, classes=3)
    learned = made("pcoc-conv")
    learned.encoder(drawn("pcoc-conv").x)  # moments that are not the first
    before = {name: each.clone() for name, each in learned.state_dict().items()}
    one, four = (
        Validation(tiny(validation={"windows": count}), source, "cpu").measure(learned)
        for count in (1, 4)
    )
    assert all(torch.equal(each, before[name]) for name, each in learned.state_dict().items())
    assert one.keys() == four.keys() == {"nll", "accuracy"}
    learned.eval()
    alone = drawn("pcoc-conv", 1, 12)
    with torch.no_grad():
        expected = -log_scores(learned, alone, config.Objective(), None).nanmean().item()
    assert one["nll"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("pair", [({"a": 3}, {"a": {"b": 1}}), ({"a": {"b": 1}}, {"a": 3})])
def test_a_section_is_not_replaced_by_a_value(pair):
    with pytest.raises(BadConfig, match="a: expected a value or a section of settings, got both"):
        merged(*pair)


def test_settings_are_merged_by_name():
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    found = merged(base, {"a": {"c": {"f": 4}}}, {"a": {"b": 5}, "e": 6, "g": {"h": 7}})
    assert found == {"a": {"b": 5, "c": {"d": 2, "f": 4}}, "e": 6, "g": {"h": 7}}
    assert base == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
