"""Kernels beside the eager filter, on the same rows and inputs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from model_core import compiled, quantiles, readout
from model_core import filter as moca
from model_core.filter import FilterState, Prior
from model_core.upm.base import UnderlyingModel

LEVELS = (0.05, 0.5, 0.95)
NORMAL = quantiles.with_normal(LEVELS)
WINDOW = 5
OK = list(readout.NUMBERS).index("ok")
INTEGERS = {name for name, kind in readout.NUMBERS.items() if kind is not float}
ULP = 2.0**-52
# Steps are apart by so many times what the eager ones are when their labels are an ulp larger: that
# many numbers are rounded on the way.
ROUNDINGS = 100
LOST = 1e-6  # apart by so much, nothing is left to compare
PATHS = {"born_previous_start", "event_previous_start", "best_start"}


class Seen(NamedTuple):
    """One observation of each stream: all (B, ...)."""

    y: np.ndarray
    labelled: np.ndarray
    hazard: np.ndarray
    elapsed: np.ndarray
    changepoint: np.ndarray
    outlier_rate: np.ndarray
    confirmed: np.ndarray
    thresholds: np.ndarray
    x: np.ndarray | None = None

    def packed(self) -> np.ndarray:
        told = (
            self.labelled.astype(float), self.elapsed, self.changepoint, self.outlier_rate,
            self.confirmed.astype(float), self.thresholds,
        )  # fmt: skip
        parts = [np.column_stack(told), self.y]
        return np.column_stack(parts if self.x is None else [*parts, self.x])

    def inputs(self) -> moca.Inputs:
        x = None if self.x is None else torch.tensor(self.x)
        rest = (self.y, self.labelled, self.hazard, self.elapsed, self.changepoint)
        return moca.Inputs(x, *map(torch.tensor, rest), torch.tensor(self.outlier_rate))


def observed(
    model: UnderlyingModel, rng: np.random.Generator, batch: int, at: int, far: float = 1e6, **told
) -> Seen:
    """An observation such as a stream may well bring, and now and then an odd one, so far off."""
    usual = {
        "y": labels(model, rng, batch, at, far),
        "labelled": rng.random(batch) > 0.1,
        "hazard": np.full((batch, 1), 0.02),
        "elapsed": np.where(rng.random(batch) < 0.1, rng.choice([0.0, 0.3, 7.0], batch), 1.0),
        "changepoint": np.where(rng.random(batch) < 0.1, rng.choice([0.0, 0.3, 1.0]), np.nan),
        "outlier_rate": rng.choice([0.0, 0.01, 0.3], batch),
        "confirmed": rng.integers(0, at + 1, batch),
        "thresholds": rng.choice([0.0, 0.05, 0.9], batch),
        "x": rng.normal(size=(batch, model.x_dim)) if model.x_dim else None,
    }
    return Seen(**{**usual, **told})


def labels(
    model: UnderlyingModel, rng: np.random.Generator, batch: int, at: int, far: float
) -> np.ndarray:
    level = 1 + at // 12 % 3
    match model.label:
        case "count":
            return rng.poisson(4.0 * level**4, (batch, 1)).astype(float)
        case "positive":
            return rng.exponential(2.0 * level, (batch, 1))
        case "binary":
            return (rng.random((batch, 1)) < 0.25 * level).astype(float)
        case "class":
            return rng.integers(0, model.classes, (batch, 1)).astype(float)
    noise, astray = rng.normal(size=(batch, model.y_dim)), rng.random((batch, 1)) < 0.03
    if is_normal(model):
        # What is far off is so to all hypotheses, which are then as likely as before it: ties.
        return (0.5 * level + 0.7 * noise + 4.0 * astray) * model.y_scale.numpy()
    # All outputs far off together leave a covariance that is singular but for rounding.
    far = 1e2 if model.kind in ("multivariate", "joint") else rng.choice([1e2, far])
    return 3.0 * level + noise + astray * far


def is_normal(model: UnderlyingModel) -> bool:
    """Whether predictives are normal, as noise is known."""
    return getattr(model, "noise_variance", None) is not None and model.label == "real"


class Pair:
    """The same streams twice: stepped eagerly, and in place by the kernel."""

    def kernel_of(self, model: UnderlyingModel, max_hypotheses: int):
        """The kernel, compiled, and what makes its views."""
        from model_core.compiled.kernel import Views

        kernel = compiled.kernel_of(model)
        kernel.compile()
        return kernel, Views

    def __init__(self, model: UnderlyingModel, batch: int, max_hypotheses: int) -> None:
        self.model = model
        self.kernel, self.views = self.kernel_of(model, max_hypotheses)
        one = torch.ones(batch, model.scaled, dtype=torch.float64)
        prior = moca.make_prior(model, 2.0 * one, 1.5 * one)
        self.prior: Prior = rebuilt(prior)
        self.eager: FilterState = moca.init(prior, max_hypotheses)
        self.own = copied(self.eager)
        self.rows = np.arange(batch)

    def step(self, seen: Seen):
        """Both steps; returns the info of the eager one, both tables and the kernel's summary."""
        self.eager, info, expected = self.eagerly(self.eager, seen)
        table, summary = self.advance(seen)
        return info, expected, table, summary

    def eagerly(self, state: FilterState, seen: Seen):
        """One step of the eager filter; returns the state after it, its info and table."""
        state, info = moca.step(self.model, state, self.prior, seen.inputs())
        told = torch.tensor(seen.confirmed), torch.tensor(seen.thresholds)
        return state, info, readout.table(state, info, *told, WINDOW).numpy()

    def advance(self, seen: Seen, rows: np.ndarray | None = None, **wanted):
        leaves = [*moca.leaves(self.own), *self.prior.stats, *self.prior[1:]]
        rows = self.rows if rows is None else rows
        return self.kernel.advance(
            self.views(leaves), rows, seen.packed(), seen.hazard, WINDOW, NORMAL, **wanted
        )

    def broke_a_tie(self) -> bool:
        """Whether another of equals is kept, or is the best: rounding decides on those."""
        own, eager = self.own.belief, self.eager.belief
        for values in ("log_prob", "score"):
            likely = [getattr(each, values) for each in (own, eager)]
            best = [
                each.run_length.gather(1, value.argmax(1, keepdim=True))
                for each, value in zip((own, eager), likely, strict=True)
            ]
            kept = [
                each.run_length.masked_fill(torch.isneginf(value), -1).sort().values
                for each, value in zip((own, eager), likely, strict=True)
            ]
            equal = torch.allclose(*(value.sort().values for value in likely), rtol=0, atol=1e-12)
            if equal and not (torch.equal(*best) and torch.equal(*kept)):
                return True
        return False

    def check_states(self, tolerance: float, paths: bool = True) -> None:
        for name, own, eager in self._beside(self.own):
            if paths or name != "previous_start":
                close(own, eager, tolerance, name)

    def apart(self, state: FilterState) -> float:
        """Largest difference of a state from the eager one's, as `apart` has it."""
        return max(apart(own, eager) for _, own, eager in self._beside(state))

    def _beside(self, state: FilterState):
        """Name of each leaf with its numbers in a state and in the eager one's."""
        alive = ~torch.isneginf(self.eager.belief.log_prob)
        names = [*self.eager.belief._fields, "seq", "totals", "totals_at_start", "context"]
        names += self.eager.stats._fields
        leaves = zip(names, moca.leaves(state), moca.leaves(self.eager), strict=True)
        for name, own, eager in leaves:
            if eager.dim() > 1 and eager.shape[:2] == alive.shape and name != "context":
                own, eager = own[alive], eager[alive]  # what an empty slot holds does not matter
            if self.model.kind == "joint" and name in ("log_weight", "log_choice"):
                # What is all but excluded keeps what is left of one after an inlier's
                # responsibility, which has few digits, in either.
                own, eager = own.exp(), eager.exp()
            yield name, own.double().numpy(), eager.double().numpy()


def close(own, expected, tolerance: float, name: str = "") -> None:
    """Equal to a tolerance relative to the scale of what they are compared with, at least 1."""
    own, expected = np.asarray(own, dtype=float), np.asarray(expected, dtype=float)
    np.testing.assert_array_equal(np.isnan(own), np.isnan(expected), err_msg=name)
    error = apart(own, expected)
    assert error <= tolerance, f"{name}: off by {error:.1e}"


def apart(own, expected) -> float:
    """Largest difference, relative to the scale of what is compared with, at least 1."""
    same = (own == expected) | np.isnan(own) & np.isnan(expected)
    with np.errstate(invalid="ignore"):  # two of the same infinity
        error = np.abs(own - expected) / np.maximum(1.0, np.abs(expected))
    return float(np.where(same, 0.0, error).max(initial=0.0))


def check_table(own, expected, tolerance: float, paths: bool = True) -> None:
    """paths: whether those of the best paths are compared, of which some may be as good."""
    for i, name in enumerate(readout.NUMBERS):
        if name in PATHS and not paths:
            continue
        close(own[:, i], expected[:, i], 0.0 if name in INTEGERS else tolerance, name)
    close(own[:, len(readout.NUMBERS) :], expected[:, len(readout.NUMBERS) :], tolerance, "totals")


def copied(state: FilterState) -> FilterState:
    return moca.rebuild(state, [each.clone().contiguous() for each in moca.leaves(state)])


def rebuilt(prior: Prior) -> Prior:
    stats = type(prior.stats)(*(each.clone().contiguous() for each in prior.stats))
    return Prior(stats, prior.location.clone(), prior.context.clone())


def run_beside(model, seed, hypotheses, hazard, steps, pairs=Pair, batch=3, **settings):
    """A series in which the eager filter refuses a label is not compared any further.

    settings: of every observation, in place of those that are drawn. pairs: with which kernel.
    """
    # Several numbers' odds of an inlier are so large that what is left of one loses a digit.
    tolerance = 1e-10 if model.kind == "joint" else 1e-11
    rng = np.random.default_rng(seed)
    pair = pairs(model, batch, hypotheses)
    nudged = pair.eager
    # What is an outlier to all hypotheses tells as much before a change as after it.
    # The same counts in another order are as probable: best paths are often equals.
    discrete = model.label in ("count", "binary", "class")
    complete = not (model.kind == "pcoc" or is_normal(model) or discrete)
    told = {"labelled": np.ones(batch, bool), **settings} if seed % 2 else settings
    for at in range(steps):
        seen = observed(model, rng, batch, at, hazard=np.tile(hazard, (batch, 1)), **told)
        info, expected, table, summary = pair.step(seen)
        if not (expected[:, OK] > 0).all():
            return
        # A change just before a missing label is as probable as one just after it.
        complete = complete and bool(seen.labelled.all())
        if pair.broke_a_tie():
            return
        if model.label == "real":
            nudged, _, near = pair.eagerly(nudged, seen._replace(y=seen.y * (1 + ULP)))
            tolerance = max(tolerance, ROUNDINGS * apart(near, expected))
            if tolerance > LOST:
                return
        check_table(table, expected, tolerance, complete)
        # Moments of outliers lose a digit in either.
        check_summary(model, info.predictive, seen, summary, 10 * tolerance)
    if model.label == "real":
        tolerance = max(tolerance, ROUNDINGS * pair.apart(nudged))
    pair.check_states(tolerance, complete)


def check_summary(model, mixture, seen, summary, tolerance):
    close(summary.mean, mixture.mean(), tolerance, "mean")
    if model.label == "class":
        return
    close(summary.covariance, mixture.covariance(), tolerance, "covariance")
    known = torch.tensor(np.where(seen.labelled[:, None], seen.y, np.nan))
    for own, values in ((summary.cdf, known), (summary.cdf_below, known - 1.0)):
        if own is summary.cdf or model.label in ("count", "binary"):
            reached = mixture.cdf(torch.nan_to_num(values))
            expected = torch.where(torch.isnan(known), torch.nan, reached)
            close(own, expected, max(tolerance, 2e-10), "cdf")
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    discrete, near = model.label in ("count", "binary"), 10 * tolerance
    for row in range(len(known)):
        # A quantile is as exact as its probability: between two regimes nothing holds its place.
        value = torch.tensor(summary.quantiles[row]).T
        for output, each in enumerate(value):
            for level, q in zip(levels, each, strict=True):
                at = known[row].clone()
                at[output] = q
                one = _row(mixture, row)
                reached = one.cdf(torch.nan_to_num(at)[None])[0, output]
                if discrete:
                    below = one.cdf(torch.nan_to_num(at)[None] - 1.0)[0, output]
                    assert below < level + near
                    assert reached > level - near
                else:
                    assert abs(reached - level) < near


def _row(mixture, row):
    parts = [each[row : row + 1] for each in mixture.components.parameters()]
    return mixture._replace(
        log_weight=mixture.log_weight[row : row + 1], components=mixture.components.rebuilt(*parts)
    )
