"""The robust averaged model: its forecasts stay near the labels, and heavy tails are no changes."""

import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats as distributions

from model_core import filter as moca
from model_core.upm import untrained
from model_core.upm.averaged import Averaged
from model_core.upm.robust_averaged import MOST_ODDS, REACH, TAILS, RobustAveraged
from tests.model_core.cases import BELIEVING, by_start, run, series
from training.data.base import Batch
from training.evaluation.online import Settings, follow, observed, prior_of, warm

DATA = os.environ.get("MOCA_TEST_DATA")


class Alone(RobustAveraged):
    """The model without the walk, whose forecasts are then those of the regimes."""

    def beside(self, context):
        return None


class Part(NamedTuple):
    """What it regresses on (0: nothing, 1: time, 2: lag), noise, and prior weight."""

    second: int
    heavy: bool
    skew: float
    weight: float


PARTS = [
    Part(0, False, 1.0, 1.0),
    Part(1, False, 1.0, 1.0),
    Part(2, False, 1.0, 1.0),
    Part(0, True, 1.0, 1.0),
    Part(2, True, 1.0, 1.0),
    Part(0, True, 1.75, 0.1),
    Part(0, True, 1 / 1.75, 0.1),
]
MANY = len(PARTS)


def density(y, loc, scale, df, skew):
    """Fernandez and Steel's, of a Student-t."""
    side = np.where(y >= loc, skew, 1 / skew)
    return 2 / (skew + 1 / skew) * side * distributions.t.pdf(y, df, loc, scale * side)


def mean(loc, scale, skew):
    """Of a skewed Student-t of TAILS degrees of freedom."""
    upper, lower = SIZE * skew, SIZE / skew
    return loc + scale * (upper * skew**2 - lower) / (1 + skew**2)


SIZE = 2 * np.sqrt(3) / np.pi  # mean size of a Student-t of 3 degrees


class Belief:
    """The model's filter again, by loops over regimes, outputs and parts; nothing is pruned.

    Regressions keep their normal equations, and solve them anew for each forecast.
    """

    def __init__(self, model, location, scale):
        self.model, self.location, self.scale = model, location, scale
        self.log_prob, self.regimes = [], []
        self.time, self.lag = 0, np.zeros_like(location)
        self.least, self.most = np.zeros_like(location), np.zeros_like(location)
        self.walk, self.weight, self.count = [(0, 0, 2, 1, 0)] * len(location), 0.5, 2.0

    def fresh(self):
        m = self.model
        parts = []
        for o, (at, scale) in enumerate(zip(self.location, self.scale, strict=True)):
            for part in PARTS:
                moments = np.diag([m.kappa, (1.0, m.slope, m.autoregression)[part.second]])
                weight = np.log(part.weight / sum(each.weight for each in PARTS))
                parts.append([moments, moments @ [at, 0.0], m.beta * scale**2, weight, o])
        return {"origin": None, "alpha": m.alpha, "parts": parts}

    def forecast(self, regime, index):
        """Features, location and scale of a part, and f' Lambda^-1 f."""
        moments, right, beta, _, o = regime["parts"][index]
        kind = PARTS[index % MANY].second
        age = 0 if regime["origin"] is None else (self.time - regime["origin"]) / 10
        f = np.array([1.0, (0.0, age, self.lag[o])[kind]])
        variance = f @ np.linalg.solve(moments, f)
        loc = np.linalg.solve(moments, right) @ f
        bounds = self.location[o] + self.scale[o] * np.array(
            [self.least[o] - REACH, self.most[o] + REACH]
        )
        loc = np.clip(loc, *bounds)
        return f, loc, np.sqrt(beta / regime["alpha"] * (1 + variance)), variance

    def step(self, y, labelled, hazard, elapsed, hint, rate):
        """Log score of a label, and the probabilities of all starts after it."""
        change = 1 - (1 - hazard) ** elapsed if np.isnan(hint) else hint
        chances = np.exp(self.log_prob)
        grown = [*(chances * (1 - change)), change * chances.sum() if len(chances) else 1.0]
        self.regimes.append(self.fresh())
        score = np.nan
        if labelled:
            score = self.learn(y, np.array(grown), rate)
        else:
            self.log_prob = np.log(grown)
            self.walk = [(last, 0, *rest) for last, _, *rest in self.walk]
        self.time += 1
        return score, np.exp(self.log_prob)

    def learn(self, y, grown, rate):
        outside = self.outside(y)
        likelihood, shares, expected = [], [], np.zeros_like(y)
        for chance, regime in zip(grown, self.regimes, strict=True):
            found, each, densities, means = self.alone(regime, y)
            inside = densities.prod()
            inlier = (1 - rate) * inside / ((1 - rate) * inside + rate * outside)
            likelihood.append((1 - rate) * inside + rate * outside)
            shares.append(self.absorb(regime, y, found, each, inlier))
            expected = expected + chance / grown.sum() * means
        evidence = (grown * likelihood).sum()
        posterior = grown * likelihood / evidence
        self.believe(y, posterior, shares, expected)
        return self.walked(y, evidence)

    def outside(self, y):
        """Density of an outlier."""
        outside = 1.0
        for o, (at, scale) in enumerate(zip(self.location, self.scale, strict=True)):
            m = self.model
            wide = np.sqrt(10 * m.beta / m.alpha * (1 + 1 / m.kappa)) * scale
            outside *= sum(
                each.weight
                * density(y[o], at, wide, TAILS if each.heavy else 2 * m.alpha, each.skew)
                for each in PARTS
            ) / sum(each.weight for each in PARTS)
        return outside

    def alone(self, regime, y):
        """Forecasts and densities of the parts of all outputs, then of each output alone."""
        kinds = PARTS * len(y)
        found = [self.forecast(regime, k) for k in range(len(kinds))]
        loc, scale = (np.array([forecast[i] for forecast in found]) for i in (1, 2))
        df = np.where([kind.heavy for kind in kinds], TAILS, 2 * regime["alpha"])
        each = density(y.repeat(MANY), loc, scale, df, np.array([kind.skew for kind in kinds]))
        weights = np.exp([part[3] for part in regime["parts"]])
        means = [
            mean(loc, scale, kind.skew)
            for kind, (_, loc, scale, _) in zip(kinds, found, strict=True)
        ]
        sums = [(weights * values).reshape(-1, MANY).sum(1) for values in (each, means)]
        return found, each, *sums

    def absorb(self, regime, y, found, each, inlier):
        """Have the parts learn; returns how far the label is believed, by output."""
        weights = np.exp([part[3] for part in regime["parts"]])
        sums = (weights * each).reshape(-1, MANY).sum(1)
        told = weights * each / sums.repeat(MANY)
        odds = min(inlier / (1 - inlier) if inlier < 1 else np.inf, MOST_ODDS)
        odds = odds * each / sums.repeat(MANY)
        share = odds / (1 + odds)
        for k, (f, loc, scale, variance) in enumerate(found):
            part, kind = regime["parts"][k], PARTS[k % MANY]
            error = y[part[4]] - loc
            if kind.heavy:
                side = kind.skew if error >= 0 else 1 / kind.skew
                z = error / (scale * side)
                share[k] *= min(1, (TAILS + 1) / (TAILS + z**2)) / side**2
            # The error of a bounded forecast moves the mean as if it was the regression's.
            target = np.linalg.solve(part[0], part[1]) @ f + error
            part[0], part[1] = (
                part[0] + share[k] * np.outer(f, f),
                part[1] + share[k] * f * target,
            )
            part[2] += share[k] * error**2 / (2 * (1 + share[k] * variance))
            part[3] = np.log(inlier * told[k] + (1 - inlier) * weights[k])
        regime["alpha"] += inlier / 2
        if regime["origin"] is None:
            regime["origin"] = self.time
        return (told * np.minimum(share, 1)).reshape(-1, MANY).sum(1)

    def believe(self, y, posterior, shares, expected):
        """Take the posterior, and the label as it is believed for a lag."""
        v = (posterior[:, None] * shares).sum(0)
        self.lag = (v * y + (1 - v) * expected - self.location) / self.scale
        self.least, self.most = np.minimum(self.least, self.lag), np.maximum(self.most, self.lag)
        self.log_prob = np.log(posterior)

    def walked(self, y, evidence):
        """Log score of the answer; the walk learns."""
        density, kept = 1.0, []
        for o, (last, change, square, own, cross) in enumerate(self.walk):
            value = (y[o] - self.location[o]) / self.scale[o]
            loc, scale = last + np.clip(cross / own, -1, 1) * change, np.sqrt(square / self.count)
            density *= distributions.t.pdf(value, 3, loc, scale) / self.scale[o]
            g = 4 / (3 + ((value - loc) / scale) ** 2)
            pull = g / scale**2 * change
            kept.append((
                value, min(g, 1) * (value - last), 0.98 * square + g * (value - loc) ** 2 + 1e-8,
                0.99 * own + 0.01 + pull * change, 0.99 * cross + pull * (value - last),
            ))  # fmt: skip
        whole = self.weight * density + (1 - self.weight) * evidence
        self.walk, self.count = kept, 0.98 * self.count + 1
        self.weight = 0.99 * self.weight * density / whole + 0.005
        return np.log(whole)


def compare(case, loops, rate):
    """Step a case's filter and that by loops: scores, and probabilities of all starts."""
    labelled = [t % 7 != 4 for t in range(40)]
    hint = [0.7 if t == 25 else np.nan for t in range(40)]
    told = {"labelled": labelled, "elapsed": [1.0, 2.5], "changepoint": hint}
    one = series(case, 11, 40, outlier_rate=rate, **told)
    one.y[12] += 40.0
    truth = loops(case.model, case.location, case.scale)
    for t, step in enumerate(run(case, [one], 60)):
        asked = one.y[t], labelled[t], one.hazard[t], one.elapsed[t], hint[t], rate
        score, starts = truth.step(*asked)
        found = by_start(step.state, step.state.belief.log_prob.exp())
        assert step.info.log_score.item() == pytest.approx(score, abs=1e-9, nan_ok=True)
        assert [found[s] for s in sorted(found)] == pytest.approx(starts.tolist(), abs=1e-9)


@pytest.mark.parametrize("case", BELIEVING[:2], ids=lambda case: case.name)
@pytest.mark.parametrize("rate", [0.0, 0.02])
def test_the_whole_filter_beside_loops(case, rate):
    compare(case, Belief, rate)


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


def test_outliers_of_a_fleet_are_those_without_its_learned_part():
    one = torch.ones(2, 2, dtype=torch.float64)
    densities = []
    for model in (RobustAveraged(y_dim=2), untrained.fleet(3, outputs=2, chance=0.9)):
        prior = moca.make_prior(model, 2 * one, 1.5 * one)
        phi = model.encode(torch.zeros(2, 4, dtype=torch.float64), prior.context)
        densities.append(model.outlier(prior.stats, phi).joint_log_density(5 * one.unsqueeze(1)))
    torch.testing.assert_close(*densities)


def false_alarms(model, draws):
    streams = draws[:, :, None].tolist()
    return sum(len(each.confirmed()) for each in follow(model, streams, Settings()))


def test_heavy_tails_raise_fewer_events():
    rng = np.random.default_rng(7)
    draws = rng.standard_t(3, (10, 1000))
    assert false_alarms(Averaged(), draws) >= 7
    assert false_alarms(RobustAveraged(), draws) <= 4


@pytest.mark.skipif(DATA is None, reason="MOCA_TEST_DATA is not set")
def test_no_forecast_of_real_series_runs_away():
    """All of them at once; the labels of those that have ended are missing."""
    content = json.loads((Path(DATA) / "tcpd.json").read_text())
    values = [np.array(each["values"][0], dtype=float)[:400] for each in content.values()]
    series = [each[np.isfinite(each)] for each in values]
    y = np.full((len(series), max(map(len, series)), 1), np.nan)
    for row, labels in enumerate(series):
        y[row, : len(labels), 0] = labels
    model, batch = RobustAveraged(), Batch(None, torch.tensor(y))
    warmed = [warm(model, labels[:, None].tolist(), 20) for labels in series]
    prior = prior_of(model, [(location, scale) for location, scale, _ in warmed])
    state, means = moca.init(prior, 50), []
    for t in range(y.shape[1]):
        state, info = moca.step(model, state, prior, observed(model, batch, t))
        means.append(info.predictive.mean()[:, 0].numpy())
    rows = zip(content, series, np.array(means).T, warmed, strict=True)
    for name, labels, mean, (_, (scale,), _) in rows:
        known = mean[: len(labels)]
        assert (known >= labels.min() - REACH * scale).all(), name
        assert (known <= labels.max() + REACH * scale).all(), name
