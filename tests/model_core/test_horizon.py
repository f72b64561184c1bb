"""Labels to come: exact marginals and paths, of models with a kernel and of those without."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from model_core import Detector
from model_core import filter as moca
from model_core.stream import columns, forecasts
from model_core.stream.slab import Slab
from model_core.upm.builtin import BUILTIN, Options
from tests.model_core import untrained

PATHS = 2000
LEVELS = [0.05, 0.5, 0.95]
UNIFORM = stats.kstwobign.ppf(0.999)  # Kolmogorov's bound, times the root of the draws
RNG = np.random.default_rng(7)


def of_labels(y, hazard: float = 0.1, outlier_rate: float = 0.0) -> columns.Columns:
    """Observations with these labels (T, d)."""
    y = np.array(y, dtype=float).reshape(len(y), -1)
    ones = np.ones(len(y))
    none = np.empty((len(y), 0))
    rates = outlier_rate * ones
    return columns.Columns(
        y, none, ones, np.nan * ones, rates, hazard * ones[:, None], np.zeros(y.shape)
    )


def coming(outputs: int = 1, **rates) -> columns.Columns:
    return of_labels([[math.nan] * outputs], **rates)


def own(model):
    """The same model as one of somebody else's: without a kernel."""
    kind = type(model)
    mine = type(kind.__name__, (kind,), {"__module__": __name__})
    changed = object.__new__(mine)
    vars(changed).update(vars(model))
    return changed


def filtered(model, labels, **rates):
    """A slab with a row after the labels, which was answered nothing."""
    slab = Slab(model, 10, ())
    (row,) = slab.begin([[0.5] * model.scaled], [[1.0] * model.scaled])
    for step in slab.through(row, of_labels(labels, **rates), lambda: forecasts.NOTHING_WATCHED):
        assert step.readout.ok
    return slab, row


def built(name: str, **options):
    return BUILTIN[name].build(Options(**options))


def paths_of(slab, row, steps: int, count: int = PATHS, seed: int = 0, **rates):
    """Paths (N, T, d)."""
    offsets = np.zeros((steps, slab.model.y_dim))
    now = coming(slab.model.y_dim, **rates)
    return forecasts.drawn(slab, row, now, offsets, LEVELS, count, seed)[1]


def mixtures(slab, row, now, steps: int):
    """Exact marginals by the eager filter, of exchangeable labels."""
    state, prior = slab.batch([row])
    for step in range(steps):
        seen = forecasts._following(now, steps).part([step])
        inputs = columns.inputs_of(slab.model, columns.packed(slab.model, seen))
        state, info = moca.step(slab.model, state, prior, inputs)
        yield info.predictive


EXCHANGEABLE = {
    "gaussian": [0.1, -0.4, 0.3, 3.0, 3.2],
    "poisson": [3.0, 4.0, 2.0, 9.0],
    "exponential": [0.5, 0.2, 3.0],
    "gamma": [0.5, 0.2, 3.0],
    "bernoulli": [0.0, 1.0, 1.0],
    "categorical": [0.0, 2.0, 2.0],
    "multivariate": [[0.1, 0.2], [-0.4, 0.1], [0.3, 0.4], [3.0, -2.0]],
}


def exchangeable(name: str):
    options = {"multivariate": {"y_dim": 2}, "categorical": {"classes": 3}}
    return built(name, **options.get(name, {}))


@pytest.mark.parametrize("change", [own, lambda model: model], ids=["torch", "kernel"])
@pytest.mark.parametrize("name", EXCHANGEABLE)
def test_marginals_are_those_of_the_filter_without_labels(name, change):
    slab, row = filtered(change(exchangeable(name)), EXCHANGEABLE[name])
    outputs = slab.model.y_dim
    # What is stated of the first of them, supervision and time, is not stated of the others.
    now = coming(outputs)._replace(elapsed=np.array([9.0]), changepoint=np.array([0.3]))
    before = slab.row(row)
    found = forecasts.ahead(slab, row, now, np.zeros((4, outputs)), LEVELS)
    for part, same in zip(slab.row(row), before, strict=True):
        assert np.array_equal(part, same)
    for step, mixture in enumerate(mixtures(slab, row, now, 4)):
        np.testing.assert_allclose(found.mean[step], mixture.mean()[0], rtol=1e-9)
        if found.support in ("class", "binary"):
            continue
        np.testing.assert_allclose(found.covariance[step], mixture.covariance()[0], rtol=1e-9)
        for level, value in zip(LEVELS, found.quantiles[step], strict=True):
            cdf = mixture.cdf(torch.from_numpy(value)[None])[0].numpy()
            if found.support == "count":
                assert (cdf >= level - 1e-9).all()
                assert (mixture.cdf(torch.from_numpy(value - 1)[None]).numpy() < level).all()
            else:  # a kernel merges components for quantiles
                np.testing.assert_allclose(cdf, level, atol=1e-4)


@pytest.mark.parametrize("change", [own, lambda model: model], ids=["torch", "kernel"])
@pytest.mark.parametrize("name", EXCHANGEABLE)
def test_paths_have_the_exact_marginals(name, change):
    slab, row = filtered(change(exchangeable(name)), EXCHANGEABLE[name], outlier_rate=0.02)
    outputs = slab.model.y_dim
    found = paths_of(slab, row, 4, outlier_rate=0.02)
    now = coming(outputs, outlier_rate=0.02)
    for step, mixture in enumerate(mixtures(slab, row, now, 4)):
        if slab.model.label == "class":
            shares = np.bincount(found[:, step, 0].astype(int), minlength=3) / PATHS
            assert np.abs(shares - mixture.mean()[0].numpy()).max() < UNIFORM / PATHS**0.5
            continue
        for output in range(outputs):
            grid = np.unique(np.quantile(found[:, step, output], np.linspace(0.02, 0.98, 25)))
            points = torch.from_numpy(grid.repeat(outputs).reshape(-1, outputs))
            alike = mixture.rows([0] * len(grid))
            expected = alike.cdf(points)[:, output].numpy()
            share = [(found[:, step, output] <= value).mean() for value in grid]
            assert np.abs(np.subtract(share, expected)).max() < UNIFORM / PATHS**0.5


def test_labels_of_a_regime_share_what_is_not_known_of_it():
    """Mean and variance unknown, without changes: the joint predictive is a Student-t."""
    slab, row = filtered(built("gaussian"), [0.3, 0.1, 0.8, -0.2, 1.4, 0.9], hazard=0.0)
    both = paths_of(slab, row, 2, 20_000, hazard=0.0)[..., 0]
    state, _ = slab.batch([row])
    kappa = float(state.stats.kappa[0][state.belief.log_prob[0].isfinite()])
    mixture = next(mixtures(slab, row, coming(hazard=0.0), 1))
    df, loc, scale = (float(p[0, 0].flatten()[0]) for p in mixture.components.parameters())
    # Of unit scale: covariance 1 / (kappa + 1) of two labels.
    correlation = 1.0 / (kappa + 1.0)
    z = (both - loc) / scale
    joint = stats.multivariate_t(np.zeros(2), [[1.0, correlation], [correlation, 1.0]], df, seed=3)
    for a, b in ((-0.5, 0.5), (0.0, 0.0), (1.0, 1.0), (-1.5, -1.0)):
        share = ((z[:, 0] < a) & (z[:, 1] < b)).mean()
        assert abs(share - joint.cdf([a, b])) < 4 * 0.5 / len(z) ** 0.5
    spread = z[:, 0] - correlation * z[:, 1]  # its square's rank goes with the other's
    assert stats.spearmanr(np.abs(spread), np.abs(z[:, 1]))[0] > 0.05


DRAWN = {
    "gaussian": {"y_dim": 2}, "averaged": {"y_dim": 2}, "autoregressive": {"y_dim": 2, "order": 2},
    "multivariate": {"y_dim": 3}, "joint": {"y_dim": 3},
}  # fmt: skip
TRAINED = {
    "fleet": lambda: untrained.fleet(4, 0, (8,), 2),
    "alpaca": lambda: untrained.alpaca(4, 0, (8,), 2),
    "known": lambda: replace(
        untrained.alpaca(4, 0, (8,), 2), noise_prior=None, noise_variance=torch.ones(1).double()
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*DRAWN, *TRAINED])
def test_a_kernel_draws_labels_as_the_mixture_has_them(name):
    """Each number, and sums and differences of two, beside draws by torch."""
    model = built(name, **DRAWN[name]) if name in DRAWN else TRAINED[name]()
    d = model.y_dim
    cause = RNG.normal(size=(30, 1))
    labels = 0.5 + cause + 0.5 * RNG.normal(size=(30, d)) + np.repeat([0.0, 3.0], 15)[:, None]
    slab, row = filtered(model, labels, outlier_rate=0.05)
    assert slab.in_series
    now = coming(d, outlier_rate=0.05)
    inputs = columns.inputs_of(model, columns.packed(model, now))
    state, prior = slab.batch([row])
    mixture = moca.predict(model, moca.grow(state, prior, inputs)[0], prior, inputs).mixture
    expected = mixture.sample(20_000, torch.Generator().manual_seed(1))[0].numpy()
    found = paths_of(slab, row, 1, 4000, outlier_rate=0.05)[:, 0]
    for a in range(d):
        for b in range(a + 1):
            for sign in (1.0, -1.0) if b < a else (0.0,):
                pair = (own[:, a] + sign * own[:, b] for own in (found, expected))
                assert stats.ks_2samp(*pair).pvalue > 1e-3


@pytest.mark.parametrize("name", [*EXCHANGEABLE, "averaged", "joint", "autoregressive"])
def test_a_path_learns_its_labels_as_any(name):
    model = exchangeable(name) if name in EXCHANGEABLE else built(name, y_dim=1 + (name == "joint"))
    labels = EXCHANGEABLE.get(name, RNG.normal(size=(12, model.y_dim)))
    slab, row = filtered(model, labels)
    twins = [[slab.add(slab.row(row)) for _ in range(5)] for _ in range(2)]
    packed = columns.packed(model, coming(model.y_dim).part([0] * 5))
    drawn, predicted = slab.drawn(twins[0], packed, np.random.default_rng(3))
    assert predicted is None
    seen = of_labels(drawn)
    slab.step(twins[1], seen, [forecasts.NOTHING_WATCHED] * 5)
    slots = slab.layout.slots
    for one, other in zip(*twins, strict=True):
        np.testing.assert_array_equal(*(slab.row(row).lines[:, :slots] for row in (one, other)))
        np.testing.assert_array_equal(*(slab.row(row).head for row in (one, other)))


@pytest.mark.parametrize("change", [own, lambda model: model], ids=["torch", "kernel"])
@pytest.mark.parametrize("name", ["autoregressive", "averaged"])
def test_the_second_label_is_the_integral_over_the_first(name, change):
    """E[p(y2 | y1)], by 400 quantiles of the first label; of paths and of their average."""
    rng = np.random.default_rng(0)
    labels = [0.0]
    for _ in range(25):
        labels.append(0.8 * labels[-1] + 0.3 * rng.standard_normal())
    slab, row = filtered(change(built(name)), labels[1:])
    model = slab.model
    now = coming()
    inputs = columns.inputs_of(model, columns.packed(model, now))
    state, prior = slab.batch([row])
    first = moca.step(model, state, prior, inputs)[1].predictive
    count = 400
    levels = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    rows = moca.repeated(state, prior, count)
    labelled = columns.packed(model, of_labels(first.quantile(levels)[0].numpy()))
    after, _ = moca.step(model, *rows, columns.inputs_of(model, labelled))
    packed = columns.packed(model, now.part([0] * count))
    second = moca.step(model, after, rows[1], columns.inputs_of(model, packed))[1].predictive
    summaries, paths = forecasts.drawn(slab, row, now, np.zeros((2, 1)), LEVELS, PATHS, 0)

    def reached(value: float) -> float:
        at = torch.full((count, 1), float(value), dtype=torch.float64)
        return float(second.cdf(at).mean())

    for level, quantile in zip(LEVELS, summaries.quantiles[1, :, 0], strict=True):
        noise = 4 * (level * (1 - level) / PATHS) ** 0.5 + 1 / count
        assert abs(reached(np.quantile(paths[:, 1, 0], level)) - level) < noise
        assert abs(reached(quantile) - level) < 0.5 * noise  # far less noisy than labels
    for level, quantile in zip(LEVELS, summaries.quantiles[0], strict=True):  # it is no draw
        assert abs(float(first.cdf(torch.from_numpy(quantile)[None])) - level) < 1e-4


@pytest.mark.parametrize("change", [own, lambda model: model], ids=["torch", "kernel"])
def test_a_seed_means_the_same_paths_and_what_feeds_back_has_no_exact_marginals(change):
    case = filtered(change(built("averaged")), [0.1, 0.5, 0.2, 0.9])
    one, again, other = (paths_of(*case, 3, 20, seed) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    with pytest.raises(ValueError, match="not exchangeable"):
        forecasts.ahead(*case, coming(), np.zeros((2, 1)), LEVELS)


@pytest.mark.parametrize(
    ("name", "outputs", "regimes"),
    [("averaged", 1, 0), ("averaged", 1, 4), ("joint", 2, 0), ("joint", 2, 4), ("gaussian", 1, 0)],
)
def test_a_seed_means_the_same_paths_whatever_slots_hypotheses_are_in(name, outputs, regimes):
    detector = Detector(name, regimes=regimes)
    levels = np.repeat([0.0, 6.0, 0.0], 40)[:, None]
    detector.update_many((levels + RNG.normal(size=(120, outputs))).squeeze().tolist())
    expected = detector.paths(6, 16, 1)
    pipeline = detector._all.pipeline
    slab, row = pipeline.slab, pipeline.series[0].row
    own_row = slab.row(row)
    slots = RNG.permutation(slab.layout.slots)
    own_row.lines[:, : len(slots)] = own_row.lines[:, slots]
    slab.put(row, own_row)
    assert np.array_equal(detector.paths(6, 16, 1), expected)


@pytest.mark.parametrize("df", [2.0, 5.0, 1000.0])
def test_an_average_of_distributions_has_the_quantiles_of_the_mixture(df):
    """Of Student-t that are known at a few levels."""
    levels = [0.01, 0.05, 0.5, 0.9]
    nodes = sorted({*levels, *forecasts.NODES})
    for spread in (0.0, 0.5, 3.0):
        loc = spread * RNG.normal(size=(2, 100, 1))
        scale = np.exp(0.3 * spread * RNG.normal(size=(2, 100, 1)))
        points = loc + scale * stats.t.ppf(nodes, df)
        found = forecasts.average(points, np.array(nodes), [nodes.index(p) for p in levels])
        reached = stats.t.cdf((found[:, None] - loc) / scale, df).mean(1)
        assert np.abs(reached - levels).max() < (0.005 if spread else 1e-9)
