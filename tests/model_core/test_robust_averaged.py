"""The robust averaged model: its forecasts stay near the labels, and heavy tails are no changes."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from model_core import filter as moca
from model_core.upm.averaged import Averaged
from model_core.upm.robust_averaged import REACH, TAILS, RobustAveraged
from training.data.base import Batch
from training.evaluation.online import Settings, follow, observed, prior_of, warm

DATA = os.environ.get("MOCA_TEST_DATA")


class Alone(RobustAveraged):
    """The model without the walk, whose forecasts are then those of the regimes."""

    def beside(self, context):
        return None


def stepped(model, labels, outlier_rate=None):
    """Means before each label, and contexts after it, of one series as a stream has them."""
    rows = [[value] for value in labels]
    location, scale, _ = warm(model, rows, 20)
    prior = prior_of(model, [(location, scale)])
    state = moca.init(prior, 50)
    means, contexts = [], []
    for t in range(len(rows)):
        inputs = observed(model, Batch(None, torch.tensor([rows], dtype=torch.float64)), t)
        if outlier_rate is not None:
            rate = torch.full_like(inputs.outlier_rate, outlier_rate)
            inputs = inputs._replace(outlier_rate=rate)
        state, info = moca.step(model, state, prior, inputs)
        means.append(info.predictive.mean().item())
        contexts.append(state.context[0].clone())
    return np.array(means), torch.stack(contexts).numpy(), location[0], scale[0]


def grown(rng, factor):
    """A warm-up of a small share of the later scale."""
    small = factor * rng.normal(size=25)
    return np.r_[small, rng.normal(size=120), 3 + rng.normal(size=55)]


@pytest.mark.parametrize(
    "labels",
    [
        np.random.default_rng(1).normal(size=200).cumsum(),
        np.exp(0.2 * np.random.default_rng(2).normal(size=200).cumsum()),
        grown(np.random.default_rng(3), 0.1),
        grown(np.random.default_rng(4), 0.001),
        np.r_[np.zeros(20), 1e-3, 0.3, 1e2, 1e4, 1e6, np.ones(30)],
    ],
    ids=["walk", "growth", "a tenth", "a thousandth", "jumps"],
)
def test_no_forecast_runs_away(labels):
    means, contexts, location, scale = stepped(RobustAveraged(), labels)
    before = np.r_[location, labels[:-1]]
    least, most = np.minimum.accumulate(before), np.maximum.accumulate(before)
    assert (means >= np.minimum(least, location) - (REACH + 1e-9) * scale).all()
    assert (means <= np.maximum(most, location) + (REACH + 1e-9) * scale).all()


def test_without_bounds_the_same_jumps_lead_astray():
    labels = np.r_[np.zeros(20), 1e-3, 0.3, 1e2, 1e4, 1e6, np.ones(30)]
    means, *_ = stepped(Averaged(), labels)
    assert np.abs(means).max() > 3e6


def test_the_lag_of_an_outlier_is_what_was_expected():
    rng = np.random.default_rng(5)
    labels = rng.normal(size=80)
    labels[60] = 40.0
    means, contexts, location, scale = stepped(Alone(), labels)
    lags = location + scale * contexts[:, 5]
    assert abs(lags[60] - means[60]) < 0.5
    assert np.abs(lags[30:60] - labels[30:60]).max() < 1.0


def test_a_label_far_off_moves_no_part_much():
    """Of normal noise it is an outlier if heavy tails explain it; these weigh it as Student's."""
    model = RobustAveraged()
    prior = prior_of(model, [([0.0], [1.0])])
    stats, phi, one = prior.stats, model.encode(None, prior.context), torch.ones(1, 1).double()
    for y in (0.1, 1e4):
        found = model.update(stats, phi, torch.tensor([[y]], dtype=torch.float64), one)
        normal, heavy = found.mean[0, 0, 0, [0, 3], 0].tolist()
        z = y / (model.beta / model.alpha * (1 + 1 / model.kappa)) ** 0.5
        w = min(1.0, (TAILS + 1) / (TAILS + z * z))
        assert heavy == pytest.approx(w * y / (w + model.kappa), rel=1e-3)
        assert normal == pytest.approx(y / (1 + model.kappa), rel=1e-3 if y < 1 else 1)


def false_alarms(model, draws):
    streams = draws[:, :, None].tolist()
    return sum(len(each.confirmed()) for each in follow(model, streams, Settings()))


def test_heavy_tails_raise_fewer_events():
    rng = np.random.default_rng(7)
    draws = rng.standard_t(3, (6, 1000))
    assert false_alarms(Averaged(), draws) >= 8
    assert false_alarms(RobustAveraged(), draws) <= 5


@pytest.mark.skipif(DATA is None, reason="MOCA_TEST_DATA is not set")
def test_no_forecast_of_real_series_runs_away():
    content = json.loads((Path(DATA) / "tcpd.json").read_text())
    for name, series in content.items():
        values = np.array(series["values"][0], dtype=float)[:400]
        labels = values[np.isfinite(values)]
        means, _, location, scale = stepped(RobustAveraged(), labels)
        assert (means >= labels.min() - REACH * scale).all(), name
        assert (means <= labels.max() + REACH * scale).all(), name
