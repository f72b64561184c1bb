"""Kernels beside the eager filter, on the same rows and inputs: they differ by rounding alone."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import gc
import math
import pickle
import shutil
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numba
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba.core import caching
from scipy import special

from model_core import anomaly, compiled, quantiles, readout
from model_core import filter as moca
from model_core import hazard as hazards
from model_core.compiled import LABEL, SETTLED, arithmetic, jit, mixture
from model_core.compiled import __main__ as installation
from model_core.compiled import step as steps_of
from model_core.compiled.kernel import Kernel
from model_core.compiled.models import regression
from model_core.encoder import Identity
from model_core.filter import FilterState, label_likelihood
from model_core.stream import columns
from model_core.table import Layout, Rows, statistics_line
from model_core.upm import conjugate, linear
from model_core.upm.base import UnderlyingModel, tree_map
from model_core.upm.builtin import BUILTIN
from tests.model_core import untrained
from tests.model_core.cases import leaves
from tests.model_core.registry import NAMES, case

# Of the default model, of regressions with an encoder, and of labels of two kinds.
QUICK = ("gaussian-3", "poisson", "alpaca-1", "alpaca-unknown-2", "averaged-2")
# Of every other class one: all its models share what is compiled.
CLASSES = (
    "bernoulli", "categorical", "exponential", "gamma", "autoregressive-all", "joint-2",
    "multivariate-2", "fleet-2", "pcoc-3",
)  # fmt: skip
WITHOUT = ("alpaca-mixture-1", "alpaca-mixture-unknown-2", "lstm-2")
every_class = pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in CLASSES)]
)
every_name = pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT])

LEVELS, WINDOW = (0.05, 0.5, 0.95), 5
MERGED = mixture.EXACT * min(LEVELS)  # error of distribution functions of real labels
NORMAL = quantiles.with_normal(LEVELS)
OK, SCORE = (list(readout.NUMBERS).index(name) for name in ("ok", "log_score"))
OK = list(readout.NUMBERS).index("ok")
INTEGERS = {name for name, kind in readout.NUMBERS.items() if kind is not float}
PATHS = {"born_previous_start", "event_previous_start", "best_start"}
# Steps are apart by so many times what the eager ones are when their labels and the inliers'
# responsibilities are an ulp off: that many numbers are rounded on the way. Close to one, a
# responsibility leaves few digits of its rest. Apart by `LOST`, nothing is left to compare.
ULP, ROUNDINGS, LOST = 2.0**-52, 100, 1e-6
STREAMS = 3  # of a batch that is stepped both ways


def model_of(name: str) -> UnderlyingModel:
    return case(name).model


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


class Seen(NamedTuple):
    """One observation of each stream: all (B, ...)."""

    y: np.ndarray
    labelled: np.ndarray
    hazard: np.ndarray
    elapsed: np.ndarray
    changepoint: np.ndarray
    outlier_rate: np.ndarray
    settled: np.ndarray
    since: np.ndarray
    thresholds: np.ndarray
    x: np.ndarray

    def packed(self) -> np.ndarray:
        told = np.column_stack([self.labelled, *self[3:9]]).astype(float)
        return np.column_stack([told, self.y, self.x])

    def inputs(self) -> moca.Inputs:
        x = torch.tensor(self.x) if self.x.shape[1] else None
        return moca.Inputs(x, *map(torch.tensor, self[:6]))

    def row(self, at: int) -> Seen:
        return Seen(*(each[at : at + 1] for each in self))


def observed(model: UnderlyingModel, rng, batch: int, at: int, far: float = 1e6, **told) -> Seen:
    """An observation such as a stream may well bring, and now and then an odd one, so far off."""
    usual = {
        "y": labels(model, rng, batch, at, far),
        "labelled": rng.random(batch) > 0.1,
        "hazard": np.full((batch, 1), 0.02),
        "elapsed": np.where(rng.random(batch) < 0.1, rng.choice([0.0, 0.3, 7.0], batch), 1.0),
        "changepoint": np.where(rng.random(batch) < 0.1, rng.choice([0.0, 0.3, 1.0]), np.nan),
        "outlier_rate": rng.choice([0.0, 0.01, 0.3], batch),
        "settled": rng.integers(0, at + 1, batch),
        "since": rng.integers(0, at + 1, batch),
        "thresholds": rng.choice([0.0, 1.0, 1e4], batch),
        "x": rng.normal(size=(batch, model.x_dim)),
    }
    return Seen(**{**usual, **told})


def labels(model: UnderlyingModel, rng, batch: int, at: int, far: float) -> np.ndarray:
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
    y = 3.0 * level + noise + astray * far
    if model.partial and model.y_dim > 1:
        gone = rng.random(y.shape) < 0.15
        y[gone & ~gone.all(1, keepdims=True)] = np.nan
    return y


def is_normal(model: UnderlyingModel) -> bool:
    """Whether predictives are normal, as noise is known."""
    return getattr(model, "noise_variance", None) is not None and model.label == "real"


class Pair:
    """The same streams twice: stepped eagerly, and in place by the kernel."""

    def __init__(self, model: UnderlyingModel, batch: int, max_hypotheses: int) -> None:
        self.model, self.kernel = model, compiled.kernel_of(model)
        one = torch.ones(batch, model.scaled, dtype=torch.float64)
        prior = moca.make_prior(model, 2.0 * one, 1.5 * one)
        self.prior, self.eager = prior, moca.init(prior, max_hypotheses)
        self.layout = Layout(model, max_hypotheses)
        self.tensors = self.layout.packed(self.eager, prior)
        self.held = Rows(self.layout.slots, *(tensor.numpy() for tensor in self.tensors))
        self.rows = np.arange(batch)

    @property
    def own(self) -> FilterState:
        """State of the kernel's rows, in place but for whole numbers."""
        return self.layout.state(*self.tensors)

    def eagerly(self, state: FilterState, seen: Seen):
        """One step of the eager filter; returns the state after it, its info and table."""
        state, info = moca.step(self.model, state, self.prior, seen.inputs())
        held = self.layout.packed(state, self.prior)
        numbers = readout.columns(self.layout, *held, info).numpy()
        table, _ = readout.table(self.layout, numbers, seen.packed(), seen.hazard, WINDOW)
        return state, info, table

    def advance(self, seen: Seen, rows: np.ndarray | None = None, **wanted):
        """Table and summary of the kernel's step."""
        rows, packed = self.rows if rows is None else rows, seen.packed()
        wanted = {"levels": NORMAL, **wanted}
        return self.kernel.advance(self.held, rows, packed, seen.hazard, WINDOW, **wanted)

    def among(self, rows: slice) -> FilterState:
        """Eager state of some of the streams."""
        return tree_map(lambda leaf: leaf[rows], self.eager)

    def broke_a_tie(self) -> bool:
        """Whether another of equals is kept: rounding decides on those."""
        both = self.own.belief, self.eager.belief
        alive = [each.log_prob.isneginf() for each in both]
        kept = [
            each.run_length.masked_fill(gone, -1).sort().values
            for each, gone in zip(both, alive, strict=True)
        ]
        likely = (each.log_prob.sort().values for each in both)
        return torch.allclose(*likely, rtol=0, atol=1e-12) and not torch.equal(*kept)

    def beside(self, state: FilterState):
        """Name of each leaf with its numbers in a state and in the eager one's."""
        alive = ~torch.isneginf(self.eager.belief.log_prob)
        names = [*self.eager.belief._fields, "seq", "steps"]
        names += ["totals", "totals_at_start", "context"]
        names += self.eager.stats._fields
        pairs = zip(names, leaves(state), leaves(self.eager), strict=True)
        for name, own, eager in pairs:
            if eager.dim() > 1 and eager.shape[:2] == alive.shape and name != "context":
                own, eager = own[alive], eager[alive]  # what an empty slot holds does not matter
            if self.model.kind == "joint" and name in ("log_weight", "log_choice"):
                # What is all but excluded keeps what is left of one after an inlier's
                # responsibility, which has few digits, in either.
                own, eager = own.exp(), eager.exp()
            yield name, own.double().numpy(), eager.double().numpy()


def apart(own, expected) -> float:
    """Largest difference, relative to the scale of what is compared with, at least 1."""
    same = (own == expected) | np.isnan(own) & np.isnan(expected)
    with np.errstate(invalid="ignore"):  # two of the same infinity
        error = np.abs(own - expected) / np.maximum(1.0, np.abs(expected))
    return float(np.where(same, 0.0, error).max(initial=0.0))


def close(own, expected, tolerance: float, name: str = "") -> None:
    own, expected = np.asarray(own, dtype=float), np.asarray(expected, dtype=float)
    np.testing.assert_array_equal(np.isnan(own), np.isnan(expected), err_msg=name)
    assert apart(own, expected) <= tolerance, f"{name}: off by {apart(own, expected):.1e}"


def same_states(one: Pair, other: Pair) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.tensors, other.tensors, strict=True))


def alive(pair: Pair, row: int) -> list[torch.Tensor]:
    """Numbers of a row, those of hypotheses alone."""
    lines, heads = (each[row] for each in pair.tensors)
    return [lines[:, ~lines[0].isneginf()].clone(), heads.clone()]


def run_beside(model, seed, hypotheses, hazard, steps, **told) -> int:
    """Steps that were compared; a series in which the eager filter refuses a label ends there.

    told: in place of what is drawn.
    """
    # What only one hypothesis is left to explain, however far off, moves features' weights as far.
    tolerance = 1e-10 if model.kind == "fleet" else 1e-11
    rng, pair = np.random.default_rng(seed), Pair(model, STREAMS, hypotheses)
    # Nudged streams are stepped in one batch with those that they stand beside, which come first.
    first, *nudged = (slice(i * STREAMS, (i + 1) * STREAMS) for i in range(ways_of(model)))
    together = Pair(model, ways_of(model) * STREAMS, hypotheses)
    # What is an outlier to all hypotheses tells as much before a change as after it.
    paths = not (model.kind == "pcoc" or is_normal(model))
    for at in range(steps):
        seen = observed(model, rng, STREAMS, at, hazard=np.tile(hazard, (STREAMS, 1)), **told)
        with patch.object(moca, "label_likelihood", _less_responsible):
            among = both_ways(seen, at, ways_of(model))
            together.eager, info, numbers = together.eagerly(together.eager, among)
        pair.eager, expected = together.among(first), numbers[first]
        table, summary = pair.advance(seen)
        if not (expected[:, OK] > 0).all() or pair.broke_a_tie():
            return at
        tolerance = max(tolerance, rounded(numbers, nudged))
        if tolerance > LOST:
            return at
        check_table(table, expected, tolerance, paths)
        if at % 2 or at == 0:
            # Moments of outliers lose a digit in either.
            check_summary(model, info.predictive, nudged, seen, summary, 10 * tolerance)
    for rows in nudged:
        off = max(apart(own, eager) for _, own, eager in pair.beside(together.among(rows)))
        tolerance = max(tolerance, ROUNDINGS * off)
    for leaf, own, eager in pair.beside(pair.own):
        if paths or leaf != "previous_start":
            close(own, eager, tolerance, leaf)
    return steps


def ways_of(model: UnderlyingModel) -> int:
    """Steps of a stream: as it is, and of real labels with those nudged either way."""
    return 3 if model.label == "real" else 1


def both_ways(seen: Seen, at: int, ways: int) -> Seen:
    """Labels as they are, then twice such as differ in the last bit, up and down in turn.

    In turn: what all labels have in common cancels out. A label that rounding leaves as it is one
    way, and on which all depends, moves the other way.
    """
    up = ULP if at % 2 == 0 else -ULP
    y = np.concatenate([seen.y * way for way in (1.0, 1 + up, 1 - up)[:ways]])
    return Seen(*(np.concatenate([each] * ways) for each in seen))._replace(y=y)


def _less_responsible(*arguments):
    """Responsibilities of inliers that are half an ulp less, but for the first streams."""
    likelihood, inlier, beside = label_likelihood(*arguments)
    inlier[STREAMS:] *= 1 - ULP / 2
    return likelihood, inlier, beside


def check_table(own, expected, tolerance: float, paths: bool = True) -> None:
    """paths: whether those of the best paths are compared, of which some may be as good."""
    for i, name in enumerate(readout.NUMBERS):
        if paths or name not in PATHS:
            close(own[:, i], expected[:, i], 0.0 if name in INTEGERS else tolerance, name)
    close(own[:, len(readout.NUMBERS) :], expected[:, len(readout.NUMBERS) :], tolerance, "totals")


def rounded(numbers, nudged: list[slice]) -> float:
    """What rounding may make of the numbers of streams, by those of the nudged ones."""
    return max((ROUNDINGS * apart(numbers[rows], numbers[:STREAMS]) for rows in nudged), default=0)


def check_summary(model, predictive, nudged, seen, summary, tolerance) -> None:
    """nudged: to moments all but excluded parts may add most, and round."""
    mixture = predictive.rows(slice(STREAMS))
    wide = 10 * rounded(predictive.mean().numpy(), nudged)
    close(summary.mean, mixture.mean(), max(wide, tolerance), "mean")
    if model.label == "class":
        return
    wide = 10 * rounded(predictive.covariance().numpy(), nudged)
    close(summary.covariance, mixture.covariance(), max(wide, tolerance), "covariance")
    known = torch.tensor(np.where(seen.labelled[:, None], seen.y, np.nan))
    discrete, near = model.label in ("count", "binary"), 10 * tolerance
    exact = MERGED if model.label == "real" else 2e-10
    near = max(near, MERGED) if model.label == "real" else near
    for own, values in ((summary.cdf, known), (summary.cdf_below, known - 1.0))[: 1 + discrete]:
        reached = mixture.cdf(torch.nan_to_num(values))
        expected = torch.where(torch.isnan(known), torch.nan, reached)
        close(own, expected, max(tolerance, exact), "cdf")
    # A quantile is as exact as its probability: between two regimes nothing holds its place.
    for i, level in enumerate(LEVELS):
        q = torch.tensor(summary.quantiles[:, i])
        reached = mixture.cdf(q)
        if discrete:
            assert (mixture.cdf(q - 1.0) < level + near).all()
            assert (reached > level - near).all()
        else:
            assert ((reached - level).abs() < near).all()


@pytest.mark.parametrize("name", ["averaged-2", pytest.param("joint-2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("hypotheses", [50, 3])
def test_quantiles_of_any_level_are_as_exact_as_their_tails(name, hypotheses):
    """What may be merged depends on the outermost level."""
    levels = [1e-9, 1e-6, 9e-4, 2e-3, 0.3, 0.9, 1 - 1e-5]
    model, rng = model_of(name), np.random.default_rng(4)
    pair = Pair(model, 2, hypotheses)
    for at in range(60):
        seen = observed(model, rng, 2, at, labelled=np.ones(2, bool))
        _, info, _ = pair.eagerly(pair.own, seen)
        _, summary = pair.advance(seen, levels=quantiles.with_normal(levels))
        if at < 20:
            continue
        for i, level in enumerate(levels):
            reached = info.predictive.cdf(torch.tensor(summary.quantiles[:, i]))
            exact = mixture.EXACT * min(level, 1 - level)
            assert ((reached - level).abs() < exact).all(), (at, level)


@pytest.mark.parametrize("hypotheses", [50, 1])
def test_quantiles_do_not_depend_on_what_else_is_asked(hypotheses):
    """Levels are searched for together, as many as there is room for, and stay apart."""
    many = [0.05, *np.linspace(0.06, 0.94, 97), 0.95]
    model, rng = model_of("averaged-2"), np.random.default_rng(5)
    pair, beside = Pair(model, 2, hypotheses), Pair(model, 2, hypotheses)
    for at in range(40):
        seen = observed(model, rng, 2, at, labelled=np.array([True, at % 2 == 0]))
        _, every = pair.advance(seen, levels=quantiles.with_normal(many))
        _, few = beside.advance(seen, levels=quantiles.with_normal([0.05, many[50], 0.95]))
        np.testing.assert_array_equal(few.quantiles, every.quantiles[:, [0, 50, -1]])
        np.testing.assert_array_equal(few.cdf, every.cdf)
        assert (np.diff(every.quantiles, axis=1) > 0).all()


def cdf_by_scipy(mixture, values: np.ndarray) -> np.ndarray:
    """Cumulative probabilities (B, d) of a mixture of averages of skewed Student-t."""
    log_weight = mixture.log_weight[:, :, None, None] + mixture.components.log_weight
    df, loc, scale, skew = (
        tensor.expand_as(log_weight).numpy() for tensor in mixture.components.parts.parameters()
    )
    z = (values[:, None, :, None] - loc) / scale
    below = 2 / (1 + skew**2)
    tail = special.stdtr(df, -np.abs(np.where(z < 0, z * skew, z / skew)))
    cdf = np.where(z < 0, below * tail, 1 - (2 - below) * tail)
    return (log_weight.exp().numpy() * cdf).sum((1, 3))


def test_answers_have_the_probabilities_that_are_promised_by_scipy():
    model, rng = model_of("averaged-2"), np.random.default_rng(6)
    pair = Pair(model, 3, 30)
    for at in range(60):
        seen = observed(model, rng, 3, at, labelled=np.ones(3, bool))
        _, info, _ = pair.eagerly(pair.own, seen)
        _, summary = pair.advance(seen)
        if at % 4:
            continue
        off = np.abs(summary.cdf - cdf_by_scipy(info.predictive, seen.y))
        assert np.nanmax(off) < MERGED  # outputs that are missing have none
        for i, level in enumerate(LEVELS):
            reached = cdf_by_scipy(info.predictive, summary.quantiles[:, i])
            assert np.abs(reached - level).max() < MERGED, (at, level)


@numba.njit(error_model="numpy")
def product(lines):
    arithmetic.multiply(lines[0], lines[1], lines[2])


def test_loops_along_lines_do_not_look_whether_these_overlap():
    product.compile((numba.float64[:, ::1],))
    (code,) = product.inspect_llvm().values()
    assert "x double>" in code
    assert "memcheck" not in code


@numba.njit(error_model="numpy")
def merged(levels, chance, weight, loc, squares, shares, half, skew, components):
    count = mixture.order(chance, half, components)
    allowed = mixture.allowed(levels, count)
    return mixture.merge(
        allowed, count, chance, weight, loc, squares, shares, half, skew, 0, components
    )


def skewed_t_cdf(x, weight, loc, square, half, skew):
    """Cumulative probabilities of a mixture, all of whose components are summed up."""
    z = (x[:, None] - loc) / np.sqrt(square)
    tail = special.stdtr(2 * half, -np.abs(np.where(z < 0, z * skew, z / skew)))
    below = 2 / (1 + skew**2)
    return (weight * np.where(z < 0, below * tail, 1 - (2 - below) * tail)).sum(1)


def student_t_cdf(z, shift, square, freedom):
    """By z, of location `shift`, squared scale `square` and 2 / `freedom` degrees of freedom."""
    return special.stdtr(2 / freedom, (z - shift) / np.sqrt(square))


def test_second_derivatives_are_as_large_as_merging_takes_them_to_be():
    """By location, squared scale and 1 / HALF in the measure of docs/mathematics.md, section 12."""
    z = -np.concatenate([np.linspace(0, 6, 601), np.geomspace(6, 300, 100)])
    measure = np.array([1.0, 2.0, 2.0])  # of the differences that are merged
    worst = 0.0
    for freedom in (1e-2, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0):
        at, by = np.array([0.0, 1.0, freedom]), np.diag([1e-3, 1e-3, min(1e-3, freedom / 2)])
        hessian = np.empty((len(z), 3, 3))
        for a in range(3):
            for b in range(3):
                there = [
                    student_t_cdf(z, *(at + one * by[a] + other * by[b]))
                    for one, other in ((1, 1), (1, -1), (-1, 1), (-1, -1))
                ]
                across = there[0] - there[1] - there[2] + there[3]
                hessian[:, a, b] = across / (4 * by[a, a] * by[b, b]) * measure[a] * measure[b]
        # The variance of the locations in the squared scale counts in the first order, twice.
        wider = (student_t_cdf(z, 0, 1.001, freedom) - student_t_cdf(z, 0, 0.999, freedom)) / 0.002
        curved = np.abs(np.linalg.eigvalsh(hessian)).max() + 2 * np.abs(wider).max()
        worst = max(worst, curved)
    assert 0.8 < worst < 0.85
    assert 0.85 / mixture.CURVED + 2 * mixture.NEGLIGIBLE / mixture.CURVED < 1


@given(
    seed=st.integers(0, 2**32 - 1),
    slots=st.integers(1, 54),
    kinds=st.sampled_from([1, 3]),
    skew=st.sampled_from([1.0, 1.6]),
    tail=st.sampled_from([0.05, 0.01, 1e-4]),
    concentrated=st.floats(0.0, 3.0),
    apart=st.sampled_from([0.0, 1e-3, 0.1, 0.3, 1.0, 10.0]),
    uncertain=st.sampled_from([0.0, 1.0, 3.0]),
)
@example(70, 2, 3, 1.6, 0.01, 0.75, 1.0, 0.0)
@settings(max_examples=50)
def test_a_merged_mixture_has_the_distribution_function_of_all_its_components(
    seed, slots, kinds, skew, tail, concentrated, apart, uncertain
):
    """Of hypotheses in any order, of run lengths from none to thousands."""
    rng = np.random.default_rng(seed)
    width = 56
    chance = np.zeros(width)
    own = np.exp(-concentrated * rng.exponential(5, slots))
    chance[:slots] = own / own.sum()
    half = np.full(width, 2.0)
    half[:slots] = 0.5 + 0.5 * rng.permutation(np.floor(rng.exponential(10, slots) ** 2))
    spread = np.ones(width)
    spread[:slots] = np.exp(apart * rng.normal(size=slots) / np.sqrt(half[:slots]))
    loc = np.zeros(width)
    loc[:slots] = 3 * apart * rng.normal(size=slots) / np.sqrt(half[:slots])
    scales = np.array([1.0, 9.0, 100.0])[:kinds, None]
    # What is unknown of a location is not in the same proportion in each kind.
    squares = spread * (scales + np.exp(uncertain * rng.normal(size=width)) / half)
    shares = np.array([0.9, 0.08, 0.02]) if kinds == 3 else np.ones(1)
    components = np.full((mixture.FIELDS, kinds * width + 8), np.nan)
    levels = quantiles.with_normal([tail, 0.5])
    n = merged(
        levels, chance, np.ones(width), loc, squares, shares, half, skew, components
    )  # fmt: skip
    x = np.concatenate([np.linspace(-8, 8, 161), np.linspace(-60, 60, 61), loc[:slots]])
    each = (shares[:, None] * chance).ravel(), np.tile(loc, kinds), squares.ravel()
    full = skewed_t_cdf(x, *each, np.tile(half, kinds), skew)
    assert n <= kinds * slots
    weight, at, square, freedom = components[
        [mixture.WEIGHT, mixture.LOC, mixture.SQUARE, mixture.FREEDOM], :n
    ]
    assert (components[mixture.SKEW, :n] == skew).all()
    assert np.abs(skewed_t_cdf(x, weight, at, square, 1 / freedom, skew) - full).max() < (
        mixture.EXACT * tail
    )
    if apart == uncertain == 0.0 and half[:slots].min() > 100:
        assert n == kinds  # what hardly differs is one


# Not 0.5: what a missing label leaves as likely as before is then a tie, which rounding breaks.
HAZARDS = st.one_of(
    st.lists(st.sampled_from([0.0, 1e-6, 0.01, 0.4, 1.0]), min_size=1, max_size=7).filter(any),
    st.just([0.01]),
    st.sampled_from([hazards.BY_STREAM, hazards.learned(2.0, 5.0)]).map(list),
)


@every_class
def test_a_kernel_takes_the_steps_of_the_filter(name):
    compared = 0
    options = (
        (1, 50, [0.01]),
        (2, 7, [1e-6, 0.4, 0.02]),
        (3, 2, [0.3]),
        (5, 20, [*hazards.learned(1, 9)]),
    )
    for seed, hypotheses, hazard in options:
        told = {"labelled": np.ones(3, bool)} if seed % 2 else {}
        compared += run_beside(model_of(name), seed, hypotheses, hazard, 30, **told)
    assert compared > 40


def test_a_kernel_takes_labels_that_lack_outputs():
    """Of outputs together: more of what `labels` brings to every model."""
    told = {"labelled": np.ones(STREAMS, bool)}
    assert run_beside(model_of("joint-2"), 1, 7, [0.02], 12, **told) == 12


@pytest.mark.slow
@every_name
@settings(max_examples=15)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3, 10, 50, 500]), HAZARDS)
@example(9416, 1, [0.01, 1.0, 0.0, 0.01, 0.0, 0.0, 0.01])
def test_a_kernel_takes_many_steps_of_the_filter(name, seed, hypotheses, hazard):
    told = {"labelled": np.ones(3, bool)} if seed % 2 else {}
    run_beside(model_of(name), seed, hypotheses, hazard, 80, **told)


SIZES = {
    "features": st.integers(1, 64),
    "inputs": st.integers(1, 3),
    "widths": st.sampled_from([(), (5,)]),
    "lags": st.sampled_from([0, 0, 2]),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alpaca", "pcoc", "fleet"])
@settings(max_examples=20)
@given(st.data(), st.integers(0, 2**32), st.sampled_from([1, 2, 50, 500]), HAZARDS)
def test_models_of_any_size_are_stepped_as_by_the_filter(kind, data, seed, hypotheses, hazard):
    sizes = {"classes": st.integers(2, 6)} if kind == "pcoc" else SIZES
    model = data.draw(st.builds(getattr(untrained, kind), **sizes))
    # Of many features an input is an outlier to all hypotheses or to none: ties, if it may be.
    certain = kind == "pcoc" and model.prior_mean.shape[1] > 6
    run_beside(
        model, seed, hypotheses, hazard, 40, **({"outlier_rate": np.zeros(3)} if certain else {})
    )


def with_own_features(model: UnderlyingModel) -> UnderlyingModel:
    """Products by torch round as the size of the batch has it: features are inputs here."""
    if not hasattr(model, "encoder"):
        return model
    size = model.prior_mean.shape[-1 if model.label == "class" else 0]
    offset = torch.zeros(size, dtype=torch.float64)
    changes = {"encoder": Identity(), "x_offset": offset, "x_scale": offset + 1.0}
    return dataclasses.replace(model, **changes, **({"lags": 0} if hasattr(model, "lags") else {}))


@every_class
def test_a_row_does_not_depend_on_its_batch_mates_to_the_last_bit(name):
    model, rng = with_own_features(model_of(name)), np.random.default_rng(3)
    together, alone = Pair(model, 5, 7), Pair(model, 5, 7)
    for at in range(15):
        seen = observed(model, rng, 5, at)
        table, summary = together.advance(seen)
        for row in range(5):
            own, known = alone.advance(seen.row(row), np.array([row]))
            np.testing.assert_array_equal(own[0], table[row])
            np.testing.assert_array_equal(known.numbers[0], summary.numbers[row])
    assert same_states(together, alone)


@every_class
def test_a_row_does_not_depend_on_the_hazards_of_its_batch_mates_to_the_last_bit(name):
    """A table that is repeated to the length of longer ones is the same table."""
    model, rng = with_own_features(model_of(name)), np.random.default_rng(8)
    tables = [
        np.array([each]) for each in ([0.02], hazards.learned(1, 9), [0.3], [0.0, 0.3, 0.1, 0.02])
    ]
    together, alone = Pair(model, len(tables), 7), Pair(model, len(tables), 7)
    longest = max(table.shape[1] for table in tables)
    padded = np.concatenate([columns.longer(table, longest) for table in tables])
    for at in range(25):
        seen = observed(model, rng, len(tables), at, hazard=padded)
        table, summary = together.advance(seen)
        for row, own_hazard in enumerate(tables):
            own_seen = seen.row(row)._replace(hazard=own_hazard)
            own, known = alone.advance(own_seen, np.array([row]))
            np.testing.assert_array_equal(own[0], table[row])
            np.testing.assert_array_equal(known.numbers[0], summary.numbers[row])
    assert same_states(together, alone)


WRONG = {"real": 1e200, "count": 1e200, "positive": -1.0, "binary": np.nan, "class": 7.0}


@every_class
def test_a_row_that_is_not_finite_stays_as_it_was(name):
    model, rng = model_of(name), np.random.default_rng(5)
    for wrong in ("label", "nan", "input", "state"):
        pair = Pair(model, 3, 4)
        for at in range(8):
            pair.advance(observed(model, rng, 3, at))
        seen = observed(model, rng, 3, 8, labelled=np.ones(3, bool))
        if wrong == "nan" and model.partial:
            continue  # an output that is missing
        if wrong == "state":
            leaves(pair.own)[-1][1] = torch.inf
            pair.own.stats[0][1] = torch.inf
        elif wrong == "input":
            if not model.x_dim or model.kind in ("linear", "fleet"):
                continue
            seen.x[1] = np.nan
        else:
            seen.y[1] = np.nan if wrong == "nan" else WRONG[model.label]
        before = alive(pair, 1)
        table, _ = pair.advance(seen)
        assert table[:, OK].tolist() == [1.0, 0.0, 1.0], wrong
        after = alive(pair, 1)
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), wrong


@pytest.mark.parametrize(
    "name", ["averaged-2", "alpaca-lags-1", pytest.param("fleet-0", marks=pytest.mark.slow)]
)
def test_a_row_that_is_named_again_is_stepped_again(name):
    """Two streams, turn by turn, in one call and in many."""
    model, rng = model_of(name), np.random.default_rng(2)
    together, alone = Pair(model, 2, 6), Pair(model, 2, 6)
    seen, rows = observed(model, rng, 30, 5), np.arange(30) % 2
    beliefs = np.empty((30, 2, together.own.belief.log_prob.shape[1]))
    table, summary = together.advance(seen, rows, beliefs=beliefs)
    for at, row in enumerate(rows):
        own, known = alone.advance(seen.row(at), np.array([row]))
        close(table[at], own[0], 1e-12)
        close(summary.numbers[at], known.numbers[0], 1e-12)
        close(beliefs[at], [each[row].numpy() for each in alone.own.belief[:2]], 1e-12)
    for one, other in zip(leaves(together.own), leaves(alone.own), strict=True):
        close(one, other, 1e-12)


@pytest.mark.parametrize(
    "build", [untrained.alpaca, pytest.param(untrained.fleet, marks=pytest.mark.slow)]
)
def test_a_covariance_that_overflows_is_not_written(build):
    model, rng = build(4), np.random.default_rng(5)
    for peak in (1e150, 1e300):
        pair = Pair(model, 2, 4)
        for at in range(5):
            pair.advance(observed(model, rng, 2, at))
        pair.own.stats.cov[1] *= peak
        before = alive(pair, 1)
        table, _ = pair.advance(observed(model, rng, 2, 5, labelled=np.ones(2, bool)))
        assert table[0, OK] == 1.0
        after = alive(pair, 1)
        same = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert same == (table[1, OK] == 0)
        assert torch.isfinite(pair.own.stats.cov).all()


@pytest.mark.parametrize("between", [-1e-11, -1e-13, -4e-16, 4e-16, 1e-13, 1e-11])
def test_rounding_does_not_choose_between_two_starts(between):
    """Of two starts that are as likely, but for so much, the earlier one: in both filters."""
    pair = Pair(model_of("gaussian-3"), 1, 4)
    values = [-3.0, -1.0 + between, -math.inf, -1.0, -math.inf]
    log_prob = torch.tensor([values], dtype=torch.float64)
    run_length = torch.tensor([[6, 2, 7, 4, 8]])
    belief = pair.eager.belief._replace(
        log_prob=log_prob, score=log_prob.clone(), run_length=run_length
    )
    pair.eager = pair.eager._replace(belief=belief, seq=pair.eager.seq + 10)
    for own, new in zip(pair.tensors, pair.layout.packed(pair.eager, pair.prior), strict=True):
        own.copy_(new)
    seen = observed(
        pair.model, np.random.default_rng(1), 1, 10,
        labelled=np.zeros(1, bool), elapsed=np.ones(1), changepoint=np.full(1, np.nan),
        settled=np.full(1, 4), since=np.full(1, 4), thresholds=np.full(1, 0.5),
    )  # fmt: skip
    start = 7 if between > 1e-12 else 5
    _, _, expected = pair.eagerly(pair.eager, seen)
    for table in (expected, pair.advance(seen)[0]):
        (found,) = readout.rows(table)
        assert found.born_previous_start == found.best_start == start
        assert 10 - found.map_run_length == 10 - found.event_run_length == start


def test_models_of_one_class_share_what_is_compiled_and_are_not_kept():
    build = untrained.alpaca
    compiled.kernel_of(build(3))
    before = len(steps_of.advance.signatures), len(regression.predict.signatures)
    compiled.kernel_of(build(9, lags=1))
    compiled.kernel_of(model_of("alpaca-unknown-2"))
    assert (len(steps_of.advance.signatures), len(regression.predict.signatures)) == before
    model = build(3)
    assert compiled.kernel_of(model) is not compiled.kernel_of(model)


def test_models_without_a_kernel_have_none():
    class Own(conjugate.Gaussian):
        """It may compute anything."""

    assert compiled.kernel_of(Own()) is None
    assert compiled.kernel_of(linear.Linear(x_dim=200)) is None
    assert not any(compiled.kernel_of(model_of(name)) for name in WITHOUT)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("rows", np.arange(2, dtype=np.int32)),
        ("rows", np.arange(4)[::2]),
        ("rows", np.zeros((2, 1), dtype=np.int64)),
        ("inputs", np.asfortranarray(np.ones((2, 8)))),
        ("inputs", np.ones((2, 7))),
        ("inputs", np.ones((1, 8))),
        ("inputs", np.ones((2, 8, 2))),
        ("hazards", np.full((2, 2), 0.1)[:, :1]),
        ("hazards", np.full(2, 0.1)),
        ("hazards", np.empty((2, 0))),
        ("hazards", np.full((1, 1), 0.1)),
        ("levels", np.zeros((2, 1), dtype=np.float32)),
        ("levels", np.zeros((1, 3))),
        ("levels", np.zeros(3)),
        ("beliefs", np.empty((2, 1, 5))),
        ("beliefs", np.empty((2, 2, 6))),
        ("beliefs", np.empty((1, 2, 5))),
        ("beliefs", np.empty((2, 2))),
        ("held", Layout(conjugate.Gaussian(y_dim=2), 4)),
    ],
)
def test_numbers_that_compiled_code_would_misread_are_refused(name, wrong):
    pair, other = Pair(conjugate.Gaussian(), 2, 4), Pair(conjugate.Gaussian(), 2, 4)
    told = {"rows": np.arange(2), "inputs": np.ones((2, 8)), "hazards": np.full((2, 1), 0.1)}
    if isinstance(wrong, Layout):
        wrong = Rows(wrong.slots, *wrong.begin(np.zeros((1, 2)), np.ones((1, 2))))
    with pytest.raises(ValueError, match="contiguous"):
        pair.kernel.advance(**{"held": pair.held, **told, "window": 5, name: wrong})
    assert same_states(pair, other)


def runs_of(pair: Pair, y: np.ndarray, rest: list[float]) -> compiled.Runs:
    """Of observations of the first stream, whose ranks are those of no label yet."""
    ranks = np.array([anomaly.begin(pair.model, [2.0], [1.5])])
    places = np.zeros(len(y), dtype=np.int64)
    return compiled.Runs.begin(np.tile(rest, (len(y), 1)), ranks, places, y)


@pytest.mark.parametrize("ended", ["event", "alarm", "refusal", "suspicion", "look"])
def test_a_run_ends_with_the_first_observation_that_is_not_quiet(ended):
    """What it steps is as without an end, and nothing after it moves the row or its ranks."""
    count, at = 140, 100
    y = np.random.default_rng(3).normal(2.0, 1.5, count)
    if ended not in ("suspicion", "look"):
        y[at:] += 60.0
    if ended == "refusal":
        y[at] = 1e200
    inputs = np.tile([1.0, 1.0, np.nan, 0.0, count, 0.0, 100.0, 0.0], (count, 1))
    inputs[:, LABEL] = y
    if ended == "event":
        inputs[:, SETTLED] = 10.0
    suspected = 7.0 if ended == "suspicion" else -1.0  # the most probable start is the first
    until = at if ended == "look" else np.inf
    alarm = 0.998 if ended == "alarm" else np.inf
    plain, whole = (Pair(conjugate.Gaussian(), 1, 8) for _ in range(2))
    runs = runs_of(plain, y[:, None], [suspected, until, alarm])
    rows, hazards = np.zeros(count, dtype=np.int64), np.full((count, 1), 0.01)

    def advance(pair: Pair, stop: int, **wanted):
        part = slice(0, stop)
        return pair.kernel.advance(
            pair.held, rows[part], inputs[part], hazards[part], WINDOW, NORMAL, **wanted
        )

    table, predicted = advance(whole, count, runs=runs)
    taken = table[:, OK] > 0
    stop = int(taken.argmin())
    assert not taken[stop:].any()
    expected_stop = {"refusal": at, "suspicion": 1, "look": at + 1}
    assert stop == expected_stop.get(ended, stop)
    quiet = stop if ended == "refusal" else stop - 1
    assert runs.quiet.tolist() == [True] * quiet + [False] * (count - quiet)
    if ended in ("event", "alarm"):
        assert at < stop < count
    expected, summary = advance(plain, stop)
    assert np.array_equal(table[:stop], expected)
    assert np.array_equal(predicted.numbers[:stop], summary.numbers)
    assert same_states(whole, plain)
    state = anomaly.begin(plain.model, [2.0], [1.5])
    scores = expected[:, SCORE]
    room = np.empty(anomaly.ROOM)
    ranked = [
        anomaly.observe(state, -score, label, room)
        for score, label in zip(scores.tolist(), y[:, None], strict=False)
    ]
    assert np.array_equal(runs.anomalies, [*ranked, *[np.nan] * (count - stop)], equal_nan=True)
    assert np.array_equal(runs.ranks[0], state)
    assert [value < alarm for value in ranked] == [True] * (stop - 1) + [ended != "alarm"]


@pytest.mark.parametrize("name", ["gaussian-3", pytest.param("fleet-2", marks=pytest.mark.slow)])
def test_of_several_rows_each_ends_its_run_by_itself(name):
    """The first where it has to be looked at, the second not at all."""
    model, rng = model_of(name), np.random.default_rng(4)
    together, alone = Pair(model, 2, 6), Pair(model, 2, 6)
    assert together.kernel._in_turns == (name == "fleet-2")
    rows = np.repeat([0, 1], [12, 9])
    count = len(rows)
    whole = {"labelled": np.ones(count, dtype=bool), "settled": np.full(count, 100)}
    seen = observed(model, rng, count, 5, **whole)
    rest = np.tile([-1.0, np.inf, np.inf], (count, 1))
    rest[rows == 0, compiled.UNTIL] = 4.0
    ranks = np.array([anomaly.begin(model, [2.0] * model.scaled, [1.5] * model.scaled)] * 2)
    runs = compiled.Runs.begin(rest, ranks, rows, seen.y[:, : anomaly.outputs(model)].copy())
    table, _ = together.advance(seen, rows, runs=runs)
    assert runs.quiet.tolist() == [True] * 4 + [False] * 8 + [True] * 9
    taken = [*range(5), *range(12, count)]
    assert np.flatnonzero(table[:, OK]).tolist() == taken
    for at in taken:
        own, _ = alone.advance(seen.row(at), rows[at : at + 1])
        close(table[at], own[0], 1e-12)
    for one, other in zip(leaves(together.own), leaves(alone.own), strict=True):
        close(one, other, 1e-12)


def test_features_of_another_number_are_refused():
    model = untrained.alpaca(4, inputs=3)
    wider = dataclasses.replace(model, encoder=Identity())
    seen = observed(wider, np.random.default_rng(1), 2, 0)
    assert seen.x.shape[1] != 4
    with pytest.raises(ValueError, match="features"):
        Pair(wider, 2, 4).advance(seen)


def test_a_model_whose_sizes_do_not_fit_its_statistics_is_refused():
    model = untrained.pcoc(3)
    sizes, functions = compiled.parts_of(model)
    with pytest.raises(ValueError, match="in_place"):
        Kernel(model, sizes._replace(kept=sizes.kept + 1), functions)


@pytest.mark.parametrize("row", [-1, 2, 2**40])
@pytest.mark.parametrize("name", ["gaussian-3", "alpaca-lags-1"])
def test_a_row_that_is_not_held_is_not_stepped(name, row):
    pair, other = Pair(model_of(name), 2, 4), Pair(model_of(name), 2, 4)
    seen = observed(pair.model, np.random.default_rng(1), 1, 0)
    table, _ = pair.advance(seen, np.array([row]))
    assert table[0, OK] == 0.0
    assert same_states(pair, other)


def test_a_label_counts_where_it_is_said_to_be_one_alone():
    """What is neither 0 nor 1 there is none: its class would be one of other memory."""
    pair, other = Pair(model_of("pcoc-3"), 1, 4), Pair(model_of("pcoc-3"), 1, 4)
    seen = observed(pair.model, np.random.default_rng(1), 1, 0)._replace(
        elapsed=np.ones(1), changepoint=np.full(1, np.nan)
    )
    for labelled, own in ((-1.0, pair), (0.0, other)):
        own.advance(seen._replace(labelled=np.full(1, labelled), y=np.full((1, 1), 1.0)))
    assert same_states(pair, other)


def test_rows_that_were_stepped_are_not_kept():
    pair = Pair(conjugate.Gaussian(), 2, 4)
    pair.advance(observed(pair.model, np.random.default_rng(1), 2, 0))
    lines = weakref.ref(pair.held.lines)
    pair.held = pair.tensors = None
    gc.collect()
    assert lines() is None


@every_class
def test_what_no_hypothesis_has_is_neither_changed_nor_read(name):
    """The prior, the columns before it, and statistics in empty slots."""
    model, rng = model_of(name), np.random.default_rng(7)
    pair, other = Pair(model, 3, 6), Pair(model, 3, 6)
    lines, slots = other.tensors[0], other.layout.slots
    beyond = lines[..., slots:].clone()
    for at in range(20):
        seen = observed(model, rng, 3, at)
        if at % 7 == 3:
            seen.y[1] = WRONG[model.label]
        (table, summary), (own, known) = pair.advance(seen), other.advance(seen)
        fine = table[:, OK] > 0
        np.testing.assert_array_equal(own[fine], table[fine])
        np.testing.assert_array_equal(known.numbers[fine], summary.numbers[fine])
        assert torch.equal(lines[..., slots:], beyond)
        empty = lines[:, :1, :slots].isneginf()
        first = statistics_line(model.y_dim)
        statistics = lines[:, first:, :slots]
        statistics[:] = torch.where(empty, 2.0 * lines[:, first:, -1:], statistics)


def test_what_a_function_at_an_address_raises_is_raised(tmp_path, monkeypatch):
    """By a part of it as well, which has no address of its own; so does what the cache has."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    @jit.compiled
    def part(x):
        if x < 0:
            raise ValueError("below 0")
        return math.sqrt(x)

    def root(x):
        return 2.0 * part(x)

    @numba.njit
    def called(at, x):
        return jit.call(at, x)

    for hits in (0, 1):
        entry = jit.entry(root)
        at = jit.address(entry, (numba.float64,))
        assert sum(entry.stats.cache_hits.values()) == hits
        assert called(at, 4.0) == 4.0
        with pytest.raises(ValueError, match="below 0"):
            called(at, -4.0)
    with pytest.raises(TypeError, match="part: expected an `entry` function"):
        jit.address(part, (numba.float64,))


# --- elementary functions -------------------------------------------------------------------------


def over(function):
    @numba.njit(error_model="numpy")
    def loop(values, out):
        for i in range(len(values)):
            out[i] = function(values[i])

    def applied(values):
        values = np.asarray(values)
        out = np.empty_like(values)
        loop(values, out)
        return out

    return applied


def one_of(function, place):
    """One of the results of a compiled function of several."""
    return numba.njit(error_model="numpy")(lambda x: function(x)[place])


def test_elementary_functions_are_within_rounding_of_scipys():
    wide, near = np.geomspace(1e-300, 1e300, 999), np.geomspace(1e-17, 100, 999)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan]
    exponents = np.r_[-wide[wide < 700], np.linspace(0, 709, 99), edges]
    positive = np.r_[wide, 5e-324, 1e-310, np.linspace(0.5, 2, 99), edges]
    with np.errstate(all="ignore"):
        for function, reference, values, rtol, atol in (
            (arithmetic.exp, np.exp, exponents, 1e-15, 0),
            (arithmetic.expm1, np.expm1, np.r_[exponents, near, -near], 1e-15, 0),
            (arithmetic.log, np.log, positive, 1e-15, 0),
            (arithmetic.log1p, np.log1p, np.r_[wide, near, -near[near < 1]], 1e-15, 0),
            (one_of(arithmetic.log1p_and_inverse, 0), np.log1p, np.r_[wide, near], 1e-15, 0),
            (
                one_of(arithmetic.log1p_and_inverse, 1),
                lambda x: 1 / (1 + x),
                np.r_[wide, near],
                1e-15,
                0,
            ),
            # scipy's own error in the far tail
            (
                arithmetic.half_erfc,
                lambda z: special.erfc(z) / 2,
                np.linspace(0, 26, 999),
                2e-13,
                0,
            ),
            (arithmetic.ndtri, special.ndtri, np.geomspace(1e-300, 0.9999, 999), 1e-15, 5e-16),
        ):
            np.testing.assert_allclose(over(function)(values), reference(values), rtol, atol)


def test_every_kernel_is_compiled_at_installation():
    alpaca = untrained.alpaca(3)
    variance = torch.ones(alpaca.y_dim, dtype=torch.float64)
    learned = {
        "alpaca": dataclasses.replace(alpaca, noise_prior=None, noise_variance=variance),
        "pcoc": untrained.pcoc(),
        "fleet": untrained.fleet(3),
    }
    for name, (module, functions) in installation.LEARNED.items():
        compiled_there = import_module(f"model_core.compiled.models.{module}")
        assert compiled.parts_of(learned[name])[1] == getattr(compiled_there, functions), name
    built_in = {name: entry.build(entry.example) for name, entry in BUILTIN.items()}
    models = {**learned, **built_in}
    assert {*installation.NAMES} == {*models, installation.STEP, *installation.ALONE}
    assert all(compiled.parts_of(model) for model in models.values())
    others = [m for m in models.values() if not isinstance(m, conjugate.Conjugate)]
    modules = {type(model).__module__.removeprefix("model_core.upm.") for model in others}
    assert modules == {*compiled.KERNELS}


def test_without_torch_those_of_built_in_models_are_compiled():
    """The cache has the one that is asked for."""
    program = (
        "import sys; sys.modules['torch'] = None; sys.argv[1:] = ['gaussian']\n"
        "from model_core.compiled import __main__ as installation\n"
        "print(*installation.NAMES)\n"
        "installation.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names, first, *_ = done.stdout.splitlines()
    assert names.split() == [
        name for name in installation.NAMES if name not in installation.LEARNED
    ]
    assert first.startswith("[1/1] kernel of gaussian")


def test_what_is_compiled_is_said_once_and_not_where_the_cache_has_it(
    tmp_path, monkeypatch, caplog, capsys
):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    caplog.set_level("INFO", "model_core")

    def function():
        return 1

    function.__module__ = jit.__name__  # else it is another package's

    def use(name):
        first, second = jit.called(function), numba.njit(function)
        jit.locked(name, lambda: (first(), second()))

    use("a")
    assert "compiling the kernel of a, once" in caplog.messages[0]
    assert len(caplog.messages) == 1
    jit.locked("b", jit.called(function))
    assert len(caplog.messages) == 1
    monkeypatch.setattr(jit.logger, "hasHandlers", lambda: False)
    use("c")
    assert len(caplog.messages) == 1
    assert "compiling the kernel of c, once" in capsys.readouterr().err


def test_all_that_kernels_hold_is_of_the_sources_that_empty_their_cache():
    root = Path(jit.__file__).parents[2]
    sources = {root / "model_core" / name for name in jit.SOURCES}
    sources |= {root / "model_core" / name for names in jit.ALONE.values() for name in names}
    imported = set()
    for path in (root / "model_core" / "compiled").rglob("*.py"):
        if path.stem in jit.CALLERS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("model_core"):
                package = root / node.module.replace(".", "/")
                names = {package / each.name for each in node.names} if package.is_dir() else set()
                imported |= names or {package}
    files = {path.with_suffix(".py") for path in imported if path.with_suffix(".py").exists()}
    assert len(files) > 10
    assert [path for path in files if not {path, *path.parents} & sources] == []


def test_a_cache_that_names_what_is_there_no_more_is_compiled_anew(tmp_path, monkeypatch):
    """As after an upgrade in place that renamed a module."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def successor(x):
        return x + 1

    first = jit.called(successor)
    shutil.rmtree(tmp_path)  # as somebody does who wants disk space
    assert first(1.0) == 2
    (index,) = tmp_path.rglob("*.nbi")
    loaded = jit.called(successor)
    loaded(1.0)
    assert sum(loaded.stats.cache_hits.values()) == 1
    index.write_bytes(pickle.dumps(numba.__version__) + b"cno_such_module\nname\n.")
    assert jit.called(successor)(1.0) == 2


def test_two_that_compile_at_once_give_their_kernels_names_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def same(x):
        return x

    made = numba.njit(same)
    made(1), made(1.0)
    caches = [jit.called(same)._cache for _ in made.overloads]
    load, both = caching.IndexDataCacheFile._load_index, threading.Barrier(2)

    def loaded_by_both(file):
        index = load(file)
        with contextlib.suppress(threading.BrokenBarrierError):  # the other waits for this one
            both.wait(0.2)
        return index

    monkeypatch.setattr(caching.IndexDataCacheFile, "_load_index", loaded_by_both)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda c, own: c.save_overload(*own), caches, made.overloads.items()))
    monkeypatch.undo()
    names = load(caches[0]._cache_file).values()
    assert len(set(names)) == 2
