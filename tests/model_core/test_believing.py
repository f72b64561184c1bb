"""Models that remember what they believe: `averaged`, `joint` and fleets."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats as distributions

from model_core import filter as moca
from model_core.components.real import MultivariateStudentT
from model_core.maths.regression import REACH
from model_core.stream import warmup
from model_core.tensor_ops import maths
from model_core.upm.alpaca import Alpaca, NoisePrior
from model_core.upm.averaged import EXPERTS, LAG, LEVEL, LINE, SHARES_COUNT, Averaged
from model_core.upm.base import Reading
from model_core.upm.fleet import Fleet
from model_core.upm.joint import Joint
from tests.model_core import untrained
from tests.model_core.cases import belief_of, of_labels, run, series, walk
from tests.model_core.loops import Belief, JointBelief
from tests.model_core.references import Series
from tests.model_core.registry import Case, case, tensor

TOLD = {"outlier_rate": 0.02, "labelled": [True] * 6 + [False]}
FLEETS = pytest.mark.parametrize("name", ["fleet-2", "fleet-0"])
SEVERAL = pytest.mark.parametrize("name", ["averaged-2", "joint-2", "fleet-2", "fleet-0"])


@pytest.mark.parametrize(
    ("name", "loops", "rate"),
    [
        ("averaged-1", Belief, 0.0),
        pytest.param("averaged-1", Belief, 0.02, marks=pytest.mark.slow),
        pytest.param("averaged-2", Belief, 0.0, marks=pytest.mark.slow),
        ("averaged-2", Belief, 0.02),
        pytest.param("joint-2", JointBelief, 0.0, marks=pytest.mark.slow),
        ("joint-2", JointBelief, 0.02),
    ],
)
def test_the_whole_filter_is_that_by_loops(name, loops, rate):
    one, steps = case(name), 13
    labelled = [t % 7 != 4 for t in range(steps)]
    hint = [0.7 if t == 10 else np.nan for t in range(steps)]
    told = {"labelled": labelled, "elapsed": [1.0, 2.5], "changepoint": hint}
    stream = series(one, 11, steps, outlier_rate=rate, **told)
    stream.y[8] += 40.0
    truth = loops(one.model, one.location, one.scale)
    for t, step in enumerate(run(one, [stream], steps)):
        asked = stream.y[t], labelled[t], stream.hazard[t], stream.elapsed[t], hint[t], rate
        score, starts = truth.step(*asked)
        again = step.info.predictive.log_prob(tensor(stream.y[t : t + 1]))
        assert not labelled[t] or again.item() == pytest.approx(score, abs=1e-9)
        found = belief_of(step.state)
        assert step.info.log_score.item() == pytest.approx(score, abs=1e-9, nan_ok=True)
        assert [found[s] for s in sorted(found)] == pytest.approx(starts.tolist(), abs=1e-9)


def test_with_one_scale_of_noise_experts_are_bayesian_regressions():
    """Evidence of all labels together is a multivariate Student-t."""
    one, model = case("averaged-1"), case("averaged-1").model
    usual = tensor([[1.0, 0.0, 0.0]])
    prior = one.prior()
    stats, context = prior.stats, prior.context.clone()
    context[:, 6:9] = SHARES_COUNT * usual
    (at,), (scale,) = one.location, one.scale
    z = np.random.default_rng(4).normal(size=12)
    evidence = 0.0
    for label in tensor(at + scale * z):
        phi, y = model.encode(None, context), label.reshape(1, 1)
        evidence = evidence + model.predictive(stats, phi).parts.log_density(label)[0, 0, 0, ::3]
        stats = model.update(stats, phi, y, tensor([[1.0]]))
        reading = Reading(usual, y, torch.zeros(1), torch.tensor([False]))
        context = model.remember(context, y, torch.tensor([True]), reading)
    ones, second = np.ones(12), {LEVEL: 0.0 * z, LAG: np.r_[0.0, z[:-1]], LINE: np.arange(12) / 10}
    precisions = {LEVEL: 1.0, LAG: model.autoregression, LINE: model.slope}
    features = [expert.feature for expert in EXPERTS]
    for feature in (LEVEL, LAG, LINE):
        f = np.stack((ones, second[feature]))
        shape = np.eye(12) + f.T @ np.diag([1 / model.kappa, 1 / precisions[feature]]) @ f
        shape *= scale**2 * model.beta / model.alpha
        truth = distributions.multivariate_t(at * ones, shape, 2 * model.alpha).logpdf(
            at + scale * z
        )
        assert evidence[features.index(feature)].item() == pytest.approx(truth, abs=1e-10)
    posterior = torch.log_softmax(prior.stats.log_weight[0, 0, 0] + evidence, 0)
    torch.testing.assert_close(stats.log_weight[0, 0, 0], posterior, atol=1e-10, rtol=0)


def streams(model, labels: np.ndarray) -> list[Series]:
    """Streams of labels (B, T, d) at the model's own settings."""
    settings = {"hazard": model.hazard, "outlier_rate": model.outlier_rate}
    return [of_labels(y, **settings) for y in labels]


def excess(model, labels: np.ndarray) -> np.ndarray:
    """How far forecasts (B, T, d) lie outside the labels before, at most (B,); in scales."""
    moments = [warmup.first(model, series.tolist(), 20)[0] for series in labels]
    location, scale = (tensor(parts) for parts in zip(*moments, strict=True))
    forecasts = []
    for step in walk(model, moca.make_prior(model, location, scale), streams(model, labels), 8):
        assert step.info.ok.all()
        forecasts.append(step.info.predictive.mean())
    means = torch.stack(forecasts, 1).numpy()
    location, scale = (part.numpy()[:, None] for part in (location, scale))
    before = np.concatenate([location, labels[:, :-1]], 1)
    least, most = np.minimum.accumulate(before, 1), np.maximum.accumulate(before, 1)
    # Of a regime that may have begun with an outlier the noise is as large, and longer on one side.
    width = np.maximum(scale, 1e-6 * (most - least))
    return (np.maximum(least - means, means - most) / width).max((1, 2))


def extremes(d: int) -> dict[str, np.ndarray]:
    rng, steps = np.random.default_rng(8), 70
    z, late = rng.normal(size=(steps, d)), np.arange(steps)[:, None] >= 20
    jump, far = z.copy(), z.copy()
    jump[60:] += 1e6
    jump[60] = 1e8
    far[50], far[52] = 1e100, [-1e100, 1e100][:d]
    return {
        "growth": np.exp(0.2 * z.cumsum(0)),
        "a thousandth": np.where(late, 1.0, 1e-3) * z,
        "jump": jump,
        "far": far,
        "collinear": z[:, :1].cumsum(0) @ np.linspace(1, -2, d)[None],
    }


def taught_wrongly(kind: type[Fleet]) -> Fleet:
    """A learned part that forecasts 30 times what was last."""
    model = untrained.fleet(5, inputs=0, widths=(6,), lags=3, chance=0.9)
    fields = {each.name: getattr(model, each.name) for each in dataclasses.fields(model)}
    fields["prior_mean"] = torch.cat((model.prior_mean, tensor([[30.0]])))
    fields["prior_cov"] = torch.block_diag(model.prior_cov, tensor([[1.0]]))
    last = tensor([[1.0, 0, 0]]), tensor([0.0])
    return kind(**{**fields, "encoder": replace(model.encoder, linear=last)})


@pytest.mark.parametrize(
    "build",
    [Averaged, lambda: Joint(y_dim=2), lambda: taught_wrongly(Fleet)],
    ids=["averaged", "joint", "fleet"],
)
def test_no_forecast_runs_away(build):
    model = build()
    series_of = extremes(model.y_dim)
    found = excess(model, np.stack(list(series_of.values())))
    assert (found <= REACH + 1e-9).all(), dict(zip(series_of, found, strict=True))


def test_regimes_choose_what_fits_and_errors_that_follow_their_neighbours_count_less():
    rng, model = np.random.default_rng(3), Joint(y_dim=3)
    independent = rng.normal(size=(150, 3))
    # An autoregression of order one has no model of what has two roots of one angle.
    smooth = np.zeros_like(independent)
    for t in range(2, len(smooth)):
        smooth[t] = 1.8 * smooth[t - 1] - 0.9 * smooth[t - 2] + independent[t]
    mixed = independent @ np.linalg.cholesky(0.1 * np.eye(3) + 0.9).T
    y = np.stack((independent, mixed, smooth))
    zeros = torch.zeros(3, 3, dtype=torch.float64)
    *_, (_, state, _) = walk(model, moca.make_prior(model, zeros, zeros + 1), streams(model, y), 10)
    shares, best = model.evidence_share(state.context), state.belief.log_prob.argmax(1)
    chances = state.stats.log_choice[torch.arange(3), best, 0].exp()
    assert chances[0] > 0.99
    assert chances[1] < 0.01
    assert shares[0] > 0.75
    assert shares[2] < 0.5


@pytest.mark.parametrize(("keeps", "least"), [((0.3, 0.5), 0.1), ((-1, 0), 0), ((0, 2), 0.98)])
def test_labels_keep_of_lag_and_trend_what_least_squares_say(keeps, least):
    lag, trend, noise = np.random.default_rng(3).normal(size=(3, 400))
    both = np.stack((lag, trend))
    crossed, told = both @ both.T + 20 * np.eye(2), both @ (np.array(keeps) @ both + 0.2 * noise)
    share = np.linalg.solve(crossed, told)[1] - 3 * np.sqrt(np.linalg.inv(crossed)[1, 1])
    of_trend = np.clip(share, 0, 0.98)
    of_lag = np.clip((told[0] - of_trend * crossed[0, 1]) / crossed[0, 0], 0, 0.98 - of_trend)
    sums = crossed[0, 0], crossed[0, 1], crossed[1, 1], *told
    found = maths("context").memory(*map(torch.as_tensor, sums))
    assert [each.item() for each in found] == pytest.approx([of_lag, of_trend], abs=1e-12)
    assert sum(found) >= least


def test_correlations_are_those_of_the_outputs_that_are_there():
    rng, model = np.random.default_rng(8), Joint(y_dim=3)
    y = rng.normal(size=(200, 1)) + 0.3 * rng.normal(size=(200, 3))
    y[:, 2] = -y[:, 0]  # the two tell of each other for certain
    y[rng.random(y.shape) < 0.2] = np.nan
    y[50] = np.nan
    crossed, pairs = 5 * np.eye(3), np.tril_indices(3, -1)
    zeros = torch.zeros(1, 3, dtype=torch.float64)
    stream = of_labels(y, hazard=model.hazard)._replace(labelled=np.isfinite(y).any(1))
    for step in walk(model, moca.make_prior(model, zeros, zeros + 1), [stream], 6):
        z = step.state.context[0, -11:-8].numpy()
        crossed += np.outer(z, z)
    sd = np.sqrt(np.diag(crossed))
    alike = (1 - 1e-6) * crossed / np.outer(sd, sd)
    np.fill_diagonal(alike, 1.0)
    psi = model.encode(None, step.state.context)[0, -9:].reshape(3, 3).numpy() / (2 * model.beta)
    np.testing.assert_allclose(psi[pairs], alike[pairs], rtol=1e-12)
    np.testing.assert_array_equal(psi, psi.T)
    assert alike[0, 1] > 0.6
    assert alike[0, 2] < -0.7
    assert np.linalg.eigvalsh(psi + np.eye(3)).min() > 0


# --- fleets ---------------------------------------------------------------------------------------


@FLEETS
def test_what_was_learned_leaves_averaged_if_it_has_no_chance(name):
    one, own = case(name), case(name).model
    plain = Averaged(
        own.y_dim, own.kappa, own.slope, own.autoregression, own.smoothness, own.alpha, own.beta
    )
    stream = series(one, 3, 20, **TOLD)
    stream.y[12] += 30.0
    models = replace(own, chance=1e-300), plain, own
    first, second, third = (run(one._replace(model=each), [stream], 8) for each in models)
    for a, b in zip(first, second, strict=True):
        for x, y in zip(a.info[1:3], b.info[1:3], strict=True):
            torch.testing.assert_close(x, y, atol=1e-9, rtol=0, equal_nan=True)
        means = a.info.predictive.mean(), b.info.predictive.mean()
        torch.testing.assert_close(*means, atol=1e-9, rtol=0)
    off = [a.info.log_score - b.info.log_score for a, b in zip(second, third, strict=True)]
    assert torch.cat(off).abs().nanmean() > 0.01, "it has a part in it"
    outliers = []
    for model in (plain, replace(own, chance=0.9)):
        prior = moca.make_prior(model, tensor(one.location[None]), tensor(one.scale[None]))
        phi = model.encode(tensor(stream.x[:1]), prior.context)
        outliers.append(model.outlier(prior.stats, phi).joint_log_density(tensor(stream.y[:1])))
    torch.testing.assert_close(*outliers)


@FLEETS
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_the_learned_part_alone_learns_as_alpaca(name, weight):
    one, model = case(name), case(name).model
    d, n = model.y_dim, len(model.prior_mean)
    zero, unit, nothing = torch.zeros(d).double(), torch.ones(d).double(), torch.zeros(n).double()
    alpaca = Alpaca(
        encoder=model.encoder,
        x_offset=nothing,
        x_scale=nothing + 1,
        y_offset=zero,
        y_scale=unit,
        prior_mean=model.prior_mean,
        prior_cov=model.prior_cov,
        noise_prior=NoisePrior(model.noise_alpha, model.noise_beta),
    )
    location, scale = tensor(one.location)[None], tensor(one.scale)[None]
    stats, context = model.prior(location, scale), model.context(location, scale)
    certain = torch.full_like(stats.log_weight, -700.0)  # all but the learned part is ruled out
    certain[..., -1] = 0.0
    stats, other = stats._replace(log_weight=certain), alpaca.prior(zero[None], unit[None])
    usual = tensor([[1.0, 0.0, 0.0] * d])  # noise has one scale
    context[:, 1 + 5 * d : 1 + 8 * d] = SHARES_COUNT * usual
    stream, learned = series(one, 5, 40), 0
    close = {"atol": 1e-10, "rtol": 1e-10}
    for x, y in zip(tensor(stream.x), tensor(stream.y), strict=True):
        phi, features = model.encode(x[None], context), model.features(x[None], context)
        ours, theirs = model.predictive(stats, phi), alpaca.predictive(other, features)
        expected = location + scale * theirs.mean()[:, 0]
        least, most = (each[..., 0] for each in phi[:, None, 1 + d : 1 + 3 * d, None].chunk(2, 2))
        bounded = torch.maximum(least, torch.minimum(most, expected[:, None]))
        torch.testing.assert_close(ours.parts.loc[..., -3], bounded, **close)
        torch.testing.assert_close(ours.parts.scale[..., -3] / scale, theirs.scale, **close)
        if (bounded == expected[:, None]).all():  # beyond, it learns from less of an error
            stats = model.update(stats, phi, y[None], tensor([[weight]]))
            z = (y[None] - location) / scale
            other = alpaca.update(other, features, z, tensor([[weight]]))
            pairs = zip(stats[-4:], other, strict=True)
            assert all(torch.allclose(a, b, **close) for a, b in pairs)
            learned += 1
        reading = Reading(usual, expected, torch.zeros(1), torch.tensor([False]))
        context = model.remember(context, y[None], torch.tensor([True]), reading)
    assert learned > 20


def test_streams_of_a_fleet_look_for_no_seasons():
    assert Averaged().seasonal
    assert not Averaged(2).seasonal
    assert not case("fleet-0").model.seasonal
    with pytest.raises(ValueError, match="'fleet' requires an input x of 2 numbers"):
        case("fleet-2").model.encode(None, case("fleet-2").prior().context)


# --- labels that lack outputs ---------------------------------------------------------------------


def gappy(one: Case, seed: int, steps: int = 40):
    """A series whose labels lack outputs at random, but never all; one is far off."""
    stream, rng = series(one, seed, steps, **TOLD), np.random.default_rng(seed)
    gone = rng.random(stream.y.shape) < 0.3
    gone[gone.all(1)] = False
    stream.y[steps // 2] += 20.0
    stream.y[gone] = np.nan
    return stream


@pytest.mark.parametrize("there", [0, 1])
def test_an_output_that_is_always_missing_leaves_the_other_alone(there):
    one, own = case("averaged-2"), case("averaged-2").model
    both, at = gappy(one, 7), slice(there, there + 1)
    both.y[:, 1 - there] = np.nan
    both.labelled[np.isnan(both.y[:, there])] = False
    single = replace(own, y_dim=1)
    alone = one._replace(model=single, location=one.location[at], scale=one.scale[at])
    steps = run(one, [both], 8), run(alone, [both._replace(y=both.y[:, at])], 8)
    for a, b in zip(*steps, strict=True):
        close = {"atol": 1e-12, "rtol": 1e-12, "equal_nan": True}
        for x, y in zip(a.info[1:3], b.info[1:3], strict=True):
            torch.testing.assert_close(x, y, **close)
        means = a.info.predictive.mean()[:, at], b.info.predictive.mean()
        torch.testing.assert_close(*means, **close)
        assert a.info.ok.all()


@SEVERAL
def test_the_density_of_a_partial_label_is_the_integral_over_the_rest(name):
    one = case(name)
    mixture = run(one, [gappy(one, 8, 16)], 6)[-1].info.predictive
    # Points far out are far apart: tails are those of three degrees of freedom.
    u = torch.linspace(-22, 22, 2_001, dtype=torch.float64)
    parts = [p.expand(len(u), *p.shape[1:]) for p in mixture.components.parameters()]
    wide = mixture._replace(
        log_weight=mixture.log_weight.expand(len(u), -1),
        components=mixture.components.rebuilt(*parts),
    )
    for there in (0, 1):
        spread, y = 2 * one.scale[1 - there], mixture.mean()[0] + 0.7 * tensor(one.scale)
        points = y.repeat(len(u), 1)
        points[:, 1 - there] = y[1 - there] + spread * torch.sinh(u)
        whole = torch.trapezoid(wide.log_prob(points).exp() * spread * torch.cosh(u), u)
        y[1 - there] = torch.nan
        part = mixture.log_prob(y[None])
        assert part.item() == pytest.approx(whole.log().item(), abs=1e-6)


def test_segments_have_the_moments_of_what_would_be_there():
    """Labels of one level and spread, a third of whose outputs is missing at random."""
    steps, rng = 120, np.random.default_rng(5)
    level, spread = np.array([3.0, -40.0]), np.array([0.5, 8.0])
    gone = rng.random((steps, 2)) < 0.33
    gone[gone.all(1)] = False
    y = np.where(gone, np.nan, level + spread * rng.normal(size=(steps, 2)))
    far = case("averaged-2")._replace(location=level + 2.0 * spread, scale=1.5 * spread)
    state = run(far, [series(far, 5, steps, hazard=1e-4)._replace(y=y)], 6)[-1].state
    count, *sums = state.totals[0].tolist()
    assert count == steps
    means, squares = np.array(sums[:2]) / steps, np.array(sums[2:]) / steps
    error = spread / np.sqrt((~gone).sum(0))
    assert (np.abs(means + far.location - level) < 4 * error).all()
    deviation = np.sqrt(squares - means**2)
    assert (np.abs(deviation / spread - 1) < 4 * np.sqrt(0.5 / (~gone).sum(0)) + 0.03).all()


def test_what_a_student_t_says_of_missing_outputs():
    """Beside the conditional of Ding (2016), with inverses."""
    rng = np.random.default_rng(0)
    root, loc, df = rng.normal(size=(3, 3)), rng.normal(size=3), 4.5
    scale, whole = root @ root.T + 0.2 * np.eye(3), rng.normal(size=3) * 3
    factor = torch.linalg.cholesky(tensor(scale))[None, None]
    one = MultivariateStudentT(tensor([[[df]]]), tensor(loc)[None, None], factor)
    for missing in product([False, True], repeat=3):
        gone = np.array(missing)
        if gone.all():
            continue
        y = np.where(gone, np.nan, whole)
        found = one.explain(tensor(y)[None, None])
        inner, error = np.linalg.inv(scale[np.ix_(~gone, ~gone)]), (y - loc)[~gone]
        across = scale[np.ix_(gone, ~gone)]
        expected = np.where(gone, 0.0, y - loc)
        expected[gone] = across @ inner @ error
        rest = np.zeros((3, 3))
        rest[np.ix_(gone, gone)] = scale[np.ix_(gone, gone)] - across @ inner @ across.T
        np.testing.assert_allclose(found.error[0, 0], expected, atol=1e-12)
        if gone.any():
            np.testing.assert_allclose(found.missing_scale[0, 0], rest, atol=1e-12)
        else:
            assert found.missing_scale is None
        marginal = distributions.multivariate_t(loc[~gone], scale[np.ix_(~gone, ~gone)], df)
        density = one.joint_log_density(tensor(y)[None, None])
        assert density.item() == pytest.approx(marginal.logpdf(y[~gone]), abs=1e-12)
