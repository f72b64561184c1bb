"""Filters of the models that remember what they believe, again, by loops; nothing is pruned.

No window has a likelihood of its own there. Regressions keep their normal equations, and solve them
anew for each forecast.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import integrate
from scipy import stats as distributions

REACH, SKEW = 3.0, 2.2
NOISE = np.array([1.0, 9.0, 100.0])  # scales of its variance
SHARES, LABELS = np.array([0.94, 0.05, 0.01]), 20.0


class Expert(NamedTuple):
    """What it regresses on, skew of its noise, and prior weight.

    second: 0: nothing, 1: lag, 2: time, 3: trend.
    """

    second: int
    skew: float
    weight: float


EXPERTS = [
    Expert(0, 1.0, 1.0),
    Expert(0, SKEW, 0.1),
    Expert(0, 1 / SKEW, 0.1),
    Expert(1, 1.0, 1.0),
    Expert(2, 1.0, 0.1),
    Expert(3, 1.0, 0.003),
]
MANY = len(EXPERTS)


def density(y, loc, scale, df, skew):
    """Fernandez and Steel's, of a Student-t."""
    side = np.where(y >= loc, skew, 1 / skew)
    return 2 / (skew + 1 / skew) / scale * distributions.t.pdf((y - loc) / (scale * side), df)


@cache
def size(df):
    """Mean size of a Student-t."""
    return 2 * integrate.quad(lambda z: z * distributions.t.pdf(z, df), 0, np.inf)[0]


def mean(loc, scale, df, skew):
    """Of the skewed Student-t."""
    upper, lower = size(df) * skew, size(df) / skew
    return loc + scale * (upper * skew**2 - lower) / (1 + skew**2)


class Forecast(NamedTuple):
    """Of an expert: features, location, f' Lambda^-1 f; by scale of noise, then: scale, density."""

    f: np.ndarray
    loc: float
    variance: float
    scales: np.ndarray
    densities: np.ndarray


class Belief:
    """The filter of `averaged`, by loops over regimes, outputs and experts."""

    def __init__(self, model, location, scale):
        self.model, self.location, self.scale = model, location, scale
        self.log_prob, self.regimes = [], []
        self.time, self.lag = 0, np.zeros_like(location)
        self.least, self.most = np.zeros_like(location), np.zeros_like(location)
        self.trend = np.zeros((2, len(location)))  # level and slope
        self.counts = np.tile(LABELS * SHARES, (len(location), 1))
        self.walk, self.weight, self.count = [(0, 0, 2, 1, 0)] * len(location), 0.5, 2.0

    @property
    def shares(self):
        return self.counts / self.counts.sum(1, keepdims=True)

    def fresh(self):
        m = self.model
        weights = np.array([expert.weight for expert in EXPERTS])
        experts = []
        for at, scale in zip(self.location, self.scale, strict=True):
            for expert, weight in zip(EXPERTS, weights / weights.sum(), strict=True):
                second = (1.0, m.autoregression, m.slope, m.smoothness)[expert.second]
                moments, slope = np.diag([m.kappa, second]), scale if expert.second == 3 else 0.0
                experts.append([moments, moments @ [at, slope], m.beta * scale**2, weight])
        return {"origin": None, "alpha": m.alpha, "experts": experts}

    def forecast(self, regime, index, y):
        moments, right, beta, _ = regime["experts"][index]
        o, expert = index // MANY, EXPERTS[index % MANY]
        age = 0 if regime["origin"] is None else (self.time - regime["origin"]) / 10
        trend = np.clip(self.trend[:, o].sum(), self.least[o] - REACH, self.most[o] + REACH)
        f = np.array([1.0, (0.0, self.lag[o], age, trend)[expert.second]])
        variance = f @ np.linalg.solve(moments, f)
        loc = np.linalg.solve(moments, right) @ f
        bounds = self.location[o] + self.scale[o] * np.array(
            [self.least[o] - REACH, self.most[o] + REACH]
        )
        loc = np.clip(loc, *bounds)
        scales = np.sqrt(beta / regime["alpha"] * (NOISE + variance))
        densities = density(y[o], loc, scales, 2 * regime["alpha"], expert.skew)
        return Forecast(f, loc, variance, scales, densities)

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
            self.stand()
        self.time += 1
        return score, np.exp(self.log_prob)

    def learn(self, y, grown, rate):
        outside = self.outside(y)
        likelihood, counts, expected = [], [], np.zeros_like(y)
        for chance, regime in zip(grown, self.regimes, strict=True):
            inside, means, learn = self.inside(regime, y)
            both = (1 - rate) * inside + rate * outside
            likelihood.append(both)
            counts.append(learn((1 - rate) * inside / both))
            expected = expected + chance / grown.sum() * means
        evidence = (grown * likelihood).sum()
        counted = grown * np.array(likelihood) ** self.evidence_share()
        posterior = counted / counted.sum()
        learned = np.einsum("s,soc->oc", posterior, counts)
        outlying = learned.sum(1).max() < 0.5
        v = 0.0 if outlying else learned[:, :2].sum(1)
        self.lag = (v * y + (1 - v) * expected - self.location) / self.scale
        self.least, self.most = np.minimum(self.least, self.lag), np.maximum(self.most, self.lag)
        level, slope = self.trend
        error, gain = self.lag - level - slope, max(1 / (self.time + 1), 0.1)
        self.trend = np.array([level + slope + gain * error, slope + 0.007 * error])
        self.counts = self.counts + learned
        self.log_prob = np.log(posterior)
        self.watch(y, (y - expected) / self.scale, posterior)
        return self.walked(y, evidence, outlying)

    def stand(self, at=None):
        """The walk without a label, or at one that it does not learn from."""
        places = [last for last, *_ in self.walk] if at is None else at
        self.walk = [(place, 0, *own[2:]) for place, own in zip(places, self.walk, strict=True)]

    def walked(self, y, evidence, outlying):
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
        if outlying:
            self.stand((y - self.location) / self.scale)
            return np.log(whole)
        self.walk, self.count = kept, 0.98 * self.count + 1
        self.weight = 0.99 * self.weight * density / whole + 0.005
        return np.log(whole)

    def evidence_share(self):
        """Power of a likelihood that counts for run lengths."""
        return 1.0

    def watch(self, y, error, posterior):
        """See a label, an error of its forecast, and what is believed of regimes given it."""

    def outside(self, y):
        """Density of an outlier."""
        m, outside = self.model, 1.0
        for o, (at, scale) in enumerate(zip(self.location, self.scale, strict=True)):
            wide = np.sqrt(10 * m.beta / m.alpha * (NOISE + 1 / m.kappa)) * scale
            weights = np.array([expert.weight for expert in EXPERTS])
            of_experts = [
                self.shares[o] @ density(y[o], at, wide, 2 * m.alpha, expert.skew)
                for expert in EXPERTS
            ]
            outside *= weights @ of_experts / weights.sum()
        return outside

    def inside(self, regime, y):
        """Density of a label, means, and what learns it with a responsibility of the regime.

        That returns the responsibilities (d, 3) of the scales of the noise.
        """
        d = len(y)
        forecasts = [self.forecast(regime, k, y) for k in range(d * MANY)]
        by_scale = [self.shares[k // MANY] * f.densities for k, f in enumerate(forecasts)]
        weights = np.array([expert[3] for expert in regime["experts"]]).reshape(d, MANY)
        densities = np.sum(by_scale, 1).reshape(d, MANY)
        of_output = (weights * densities).sum(1)
        centres = np.array([
            self.shares[k // MANY]
            @ [mean(f.loc, s, 2 * regime["alpha"], EXPERTS[k % MANY].skew) for s in f.scales]
            for k, f in enumerate(forecasts)
        ]).reshape(d, MANY)  # fmt: skip
        chances = weights * densities / of_output[:, None]

        def learn(inlier):
            counts = np.zeros((d, 3))
            for k, (forecast, own) in enumerate(zip(forecasts, by_scale, strict=True)):
                o, j = divmod(k, MANY)
                r = own / own.sum()
                counts[o] += inlier * chances[o, j] * r
                self.absorb(regime["experts"][k], forecast, EXPERTS[j].skew, y[o], inlier, r)
                regime["experts"][k][3] = inlier * chances[o, j] + (1 - inlier) * weights[o, j]
            regime["alpha"] += inlier / 2
            if regime["origin"] is None:
                regime["origin"] = self.time
            return counts

        return of_output.prod(), (weights * centres).sum(1), learn

    @staticmethod
    def absorb(expert, forecast, skew, y, inlier, r):
        error, f = y - forecast.loc, forecast.f
        w = inlier * (r / NOISE).sum() / (skew if error >= 0 else 1 / skew) ** 2
        # The error of a bounded forecast moves the mean as if it was the regression's.
        target = np.linalg.solve(expert[0], expert[1]) @ f + error
        expert[0] = expert[0] + w * np.outer(f, f)
        expert[1] = expert[1] + w * f * target
        expert[2] += w * error**2 / (2 * (1 + w * forecast.variance))


class JointBelief(Belief):
    """That of `joint`."""

    def __init__(self, model, location, scale):
        super().__init__(model, location, scale)
        d = len(location)
        self.variance, self.squares, self.products = np.ones(d), 20 * np.ones(d), np.zeros(d)
        self.before, self.crossed = np.zeros(d), 5 * np.eye(d)
        self.swings = np.diag([0.0, 5.0, 20.0])

    def step(self, y, labelled, *told):
        if not labelled:
            self.before = np.zeros_like(self.before)
        return super().step(y, labelled, *told)

    def evidence_share(self):
        r = max(0, (self.products / self.squares).max())
        return (1 - r) / (1 + r)

    def watch(self, y, error, posterior):
        z = np.clip(error / np.sqrt(self.variance), -3, 3)
        capped = np.minimum(error**2, 9 * self.variance)
        self.variance = self.variance + (capped - self.variance) / (20 + self.time)
        self.squares, self.products = self.squares + z**2, self.products + z * self.before
        self.before, self.crossed = z, self.crossed + np.outer(z, z)
        level = posterior @ [regime["before"] for regime in self.regimes]
        ends = np.array([y, *self.ends]) - level
        swings = np.clip(ends / self.scale / np.sqrt(self.variance), -3, 3)
        self.swings = self.swings + swings @ swings.T / len(y)

    def kept(self):
        """Shares of the lag and of the trend."""
        crossed, (by_lag, _) = self.swings[1:, 1:], self.swings[0, 1:]
        shares = np.linalg.solve(crossed, self.swings[0, 1:])
        trend = shares[1] - 3 * np.sqrt(np.linalg.inv(crossed)[1, 1])
        trend = np.clip(trend, 0, 0.98)
        lag = (by_lag - trend * crossed[0, 1]) / crossed[0, 0]
        return np.array([np.clip(lag, 0, 0.98 - trend), trend])

    def fresh(self):
        m, d = self.model, len(self.location)
        psi, nu = np.diag(2 * m.beta * self.scale**2), 2 * m.alpha + d - 1
        vector = [m.kappa, self.location, psi, nu]
        return {**super().fresh(), "vector": vector, "choice": np.full(2, 1 / 2)}

    def inside(self, regime, y):
        d, (kappa, centre, psi, nu) = len(y), regime["vector"]
        choice, shares = regime["choice"], self.shares.mean(0)
        alone, means, learn_alone = super().inside(regime, y)
        bounds = [self.location + self.scale * (b + s * REACH)
                  for b, s in ((self.least, -1), (self.most, 1))]  # fmt: skip
        regime["before"] = centre
        kept = self.kept()
        f = 1 - kept.sum()
        trend = np.clip(self.trend.sum(0), self.least - REACH, self.most + REACH)
        self.ends = self.location + self.scale * np.array([self.lag, trend])
        loc = np.clip(f * centre + kept @ self.ends, *bounds)
        sd = np.sqrt(self.crossed.diagonal())
        alike = (1 - 1e-6) * self.crossed / np.outer(sd, sd)
        np.fill_diagonal(alike, 0)
        own = psi + 2 * self.model.beta * np.outer(self.scale, self.scale) * alike
        df = nu - d + 1
        by_scale = shares * [
            distributions.multivariate_t(loc, own * (c + f**2 / kappa) / df, df).pdf(y)
            for c in NOISE
        ]
        densities = np.array([alone, by_scale.sum()])

        def learn(inlier):
            told = choice * densities / (choice @ densities)
            r = by_scale / by_scale.sum()
            w = inlier * (r / NOISE).sum()
            error = y - loc
            regime["vector"] = [
                kappa + w * f**2, centre + w * f * error / (kappa + w * f**2),
                psi + w * np.outer(error, error) / (1 + w * f**2 / kappa), nu + inlier,
            ]  # fmt: skip
            regime["choice"] = inlier * told + (1 - inlier) * choice
            return told[0] * learn_alone(inlier) + told[1] * inlier * r

        return choice @ densities, choice[0] * means + choice[1] * loc, learn
