"""Filters of the models that remember what they believe, again, by loops; nothing is pruned.

No window has a likelihood of its own there. Regressions keep their normal equations, and solve them
anew for each forecast.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats as distributions

# As `averaged` has them, which may not change: stored streams go on by them.
MOST_ODDS, REACH, TAILS = 1e4, 3.0, 3.0


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
    """The filter of `averaged`, by loops over regimes, outputs and parts."""

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


class JointBelief(Belief):
    """That of `joint`."""

    def __init__(self, model, location, scale):
        super().__init__(model, location, scale)
        d = len(location)
        self.variance, self.squares, self.products = np.ones(d), 20 * np.ones(d), np.zeros(d)
        self.before = np.zeros(d)

    def fresh(self):
        m, d = self.model, len(self.location)
        moments = np.diag([m.kappa] + [m.autoregression] * d)
        matrix = np.vstack([self.location, np.diag(self.scale)])
        psi, nu = np.diag(2 * m.beta * self.scale**2), 2 * m.alpha + d - 1
        vectors = [[moments, moments @ matrix, psi, nu] for _ in range(2)]
        return {**super().fresh(), "vectors": vectors, "choice": np.full(3, 1 / 3)}

    def step(self, y, labelled, *told):
        if not labelled:
            self.before = np.zeros_like(self.before)
        return super().step(y, labelled, *told)

    def together(self, regime, j, y):
        """Features, location, f' Lambda^-1 f, density and squared distance of an autoregression."""
        moments, right, psi, nu = regime["vectors"][j]
        f, d = np.r_[1.0, self.lag], len(y)
        variance = f @ np.linalg.solve(moments, f)
        bounds = [self.location + self.scale * (b + s * REACH)
                  for b, s in ((self.least, -1), (self.most, 1))]  # fmt: skip
        loc = np.clip(f @ np.linalg.solve(moments, right), *bounds)
        df = nu - d + 1
        shape = psi * (1 + variance) / df
        density = distributions.multivariate_t(loc, shape, min(df, (1e9, TAILS)[j])).pdf(y)
        return f, loc, variance, density, (y - loc) @ np.linalg.solve(shape, y - loc)

    def learn(self, y, grown, rate):
        outside, d = self.outside(y), len(y)
        r = max(0, (self.products / self.squares).max())
        likelihood, shares, expected = [], [], np.zeros_like(y)
        for chance, regime in zip(grown, self.regimes, strict=True):
            found, each, densities, means = self.alone(regime, y)
            vectors = [self.together(regime, j, y) for j in range(2)]
            density = np.array([densities.prod(), *(v[3] for v in vectors)])
            choice = regime["choice"]
            inside = choice @ density
            inlier = (1 - rate) * inside / ((1 - rate) * inside + rate * outside)
            likelihood.append((1 - rate) * inside + rate * outside)
            odds = min(inlier / (1 - inlier) if inlier < 1 else np.inf, MOST_ODDS)
            odds = odds * density / inside
            mean = choice @ [means, *(v[1] for v in vectors)]
            expected = expected + chance / grown.sum() * mean
            told = choice * density / inside
            share = odds / (1 + odds)
            believed = told[0] * self.absorb(regime, y, found, each, share[0])
            for j, (f, loc, variance, _, distance) in enumerate(vectors):
                moments, right, psi, nu = regime["vectors"][j]
                g = share[1 + j] * (min(1, (TAILS + d) / (TAILS + distance)) if j else 1)
                target = f @ np.linalg.solve(moments, right) + y - loc
                grows = g * np.outer(y - loc, y - loc) / (1 + g * variance)
                regime["vectors"][j] = [
                    moments + g * np.outer(f, f), right + g * np.outer(f, target),
                    psi + grows, nu + g,
                ]  # fmt: skip
                believed = believed + told[1 + j] * g
            regime["choice"] = inlier * told + (1 - inlier) * choice
            shares.append(believed)
        counted = grown * np.array(likelihood) ** ((1 - r) / (1 + r))
        posterior = counted / counted.sum()
        error = (y - expected) / self.scale
        z = np.clip(error / np.sqrt(self.variance), -3, 3)
        capped = np.minimum(error**2, 9 * self.variance)
        self.variance = self.variance + (capped - self.variance) / (20 + self.time)
        self.squares, self.products = self.squares + z**2, self.products + z * self.before
        self.before = z
        self.believe(y, posterior, shares, expected)
        return self.walked(y, (grown * likelihood).sum())
