"""The model of a fleet: `averaged@2` with a learned regression; beside its parts, and its files."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch

from model_core import artifact
from model_core import filter as moca
from model_core.encoder import Mlp
from model_core.errors import BadArtifact
from model_core.upm import untrained
from model_core.upm.alpaca import Alpaca, NoisePrior
from model_core.upm.fleet import Fleet
from model_core.upm.robust_averaged import MOST_ODDS, REACH, RobustAveraged
from tests.model_core.cases import BY_NAME, run, series, tensor
from tests.model_core.test_robust_averaged import stepped
from training.learners.encoders import MlpEncoder

WITH_INPUTS, ALONE = BY_NAME["fleet-2"], BY_NAME["fleet-0"]
BOTH = pytest.mark.parametrize("case", [WITH_INPUTS, ALONE], ids=lambda case: case.name)
TOLD = {"outlier_rate": 0.02, "labelled": [True] * 6 + [False]}


def compared(case, other, one, another):
    """Scores, means and change probabilities of two cases on their series, step by step."""
    for a, b in zip(run(case, [one], 20), run(other, [another], 20), strict=True):
        change = a.info.changepoint_probability, b.info.changepoint_probability
        yield a.info.log_score, b.info.log_score, change, a.info.predictive, b.info.predictive


@BOTH
def test_what_has_no_chance_leaves_averaged(case):
    own = case.model
    plain = RobustAveraged(own.y_dim, own.kappa, own.slope, own.autoregression, own.alpha, own.beta)
    never, one = replace(own, chance=1e-300), series(case, 3, 60, **TOLD)
    one.y[20] += 30.0
    pair = case._replace(model=never), case._replace(model=plain)
    for score, other, change, mixture, another in compared(*pair, one, one):
        torch.testing.assert_close(score, other, atol=1e-9, rtol=0, equal_nan=True)
        torch.testing.assert_close(*change, atol=1e-9, rtol=0)
        torch.testing.assert_close(mixture.mean(), another.mean(), atol=1e-9, rtol=0)
    scores = [step.info.log_score for step in run(case, [one], 20)]
    found = [step.info.log_score for step in run(pair[1], [one], 20)]
    assert (torch.cat(scores) - torch.cat(found)).abs().nanmean() > 0.01, "it has a part in it"


@BOTH
def test_units_of_each_output_do_not_matter(case):
    factor, shift = np.array([1e3, 0.02]), np.array([-4e3, 7.0])
    one = series(case, 4, 60, **TOLD)
    moved = case._replace(location=factor * case.location + shift, scale=factor * case.scale)
    other = one._replace(y=factor * one.y + shift)
    for score, another, change, mixture, far in compared(case, moved, one, other):
        expected = score - np.log(factor).sum()
        torch.testing.assert_close(another, expected, atol=1e-8, rtol=0, equal_nan=True)
        torch.testing.assert_close(*change, atol=1e-8, rtol=0)
        there = tensor(factor) * mixture.mean() + tensor(shift)
        torch.testing.assert_close(far.mean(), there, atol=0, rtol=1e-8)


def certain(model, location, scale):
    """Statistics and context at the start, all but the learned part ruled out."""
    stats, context = model.prior(location, scale), model.context(location, scale)
    log_weight = torch.full_like(stats.log_weight, -700.0)
    log_weight[..., -1] = 0.0
    return stats._replace(log_weight=log_weight), context


@BOTH
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_the_learned_part_alone_learns_as_alpaca(case, weight):
    model, one = case.model, series(case, 5, 40)
    d, n = model.y_dim, len(model.prior_mean)
    zero, unit = torch.zeros(d, dtype=torch.float64), torch.ones(d, dtype=torch.float64)
    alpaca = Alpaca(
        encoder=model.encoder,
        x_offset=torch.zeros(n, dtype=torch.float64),
        x_scale=torch.ones(n, dtype=torch.float64),
        y_offset=zero,
        y_scale=unit,
        prior_mean=model.prior_mean,
        prior_cov=model.prior_cov,
        noise_prior=NoisePrior(model.noise_alpha, model.noise_beta),
    )
    location, scale = tensor(case.location)[None], tensor(case.scale)[None]
    stats, context = certain(model, location, scale)
    other = alpaca.prior(zero[None], unit[None])
    # A label that is no outlier counts by odds of `MOST_ODDS`.
    share = tensor([[min(weight, MOST_ODDS / (1 + MOST_ODDS))]])
    there = torch.tensor([True])
    for x, y in zip(tensor(one.x), tensor(one.y), strict=True):
        phi, features = model.encode(x[None], context), model.features(x[None], context)
        ours, theirs = model.predictive(stats, phi), alpaca.predictive(other, features)
        expected = location + scale * theirs.mean()[:, 0]
        least, most = (each[..., 0] for each in phi[:, None, 1 + d : 1 + 3 * d, None].chunk(2, 2))
        bounded = torch.maximum(least, torch.minimum(most, expected[:, None]))
        torch.testing.assert_close(ours.each.loc[..., -1], bounded, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(
            ours.each.scale[..., -1] / scale, theirs.scale, atol=1e-10, rtol=1e-10
        )
        if (bounded != expected[:, None]).any():  # beyond, it learns from less of an error
            context = model.remember(context, y[None], there)
            continue
        stats = model.update(stats, phi, y[None], tensor([[weight]]))
        other = alpaca.update(other, features, (y[None] - location) / scale, share)
        context = model.remember(context, y[None], there)
        pairs = zip(stats[-4:], other, strict=True)
        assert all(torch.allclose(a, b, atol=1e-10, rtol=1e-10) for a, b in pairs)
    assert other.alpha.min() > model.noise_alpha.max() + 10 * weight, "most labels are learned"


def test_an_output_learns_whatever_another_lacks():
    model, batch = WITH_INPUTS.model, series(WITH_INPUTS, 6, 30)
    state = run(WITH_INPUTS, [batch], 6)[-1].state
    phi = model.encode(tensor([[0.3, -0.2]]), state.context)
    weight = torch.linspace(0.1, 1.0, state.stats.alpha.shape[1]).double()[None]
    y = tensor(WITH_INPUTS.location + 0.3 * WITH_INPUTS.scale)[None]
    lacking = y.clone()
    lacking[0, 1] = torch.nan
    whole, part = (model.update(state.stats, phi, each, weight) for each in (y, lacking))
    by_output = {"mean": 2, "precision": 2, "beta": 2, "log_weight": 2, "weights": 3, "shape": 2,
                 "rate": 2}  # fmt: skip
    for name, axis in by_output.items():
        full, some, old = (
            getattr(each, name).movedim(axis, 0) for each in (whole, part, state.stats)
        )
        torch.testing.assert_close(some[0], full[0], atol=1e-12, rtol=1e-12, msg=name)
        if name in ("weights", "shape", "rate"):
            assert torch.equal(some[1], old[1]), name
    # P learns by the average share, that of the missing output being 0.
    lone = (part.shape - state.stats.shape).sum(-1)
    features = model.features(tensor([[0.3, -0.2]]), state.context)
    for slot, g in enumerate(lone[0]):
        p, f = state.stats.cov[0, slot], features[0]
        expected = p - g * torch.outer(p @ f, p @ f) / (1 + g * (f @ p @ f))
        torch.testing.assert_close(part.cov[0, slot], expected, atol=1e-12, rtol=1e-12)


class Unbounded(Fleet):
    def _bounded(self, found, phi):
        return found


LABELS = {
    "walk": np.random.default_rng(1).normal(size=200).cumsum(),
    "growth": np.exp(0.2 * np.random.default_rng(2).normal(size=200).cumsum()),
    "jumps": np.r_[np.zeros(20), 1e-3, 0.3, 1e2, 1e4, 1e6, np.ones(30)],
}


def taught_wrongly(kind):
    """As `kind`, a learned part that forecasts 30 times what was last."""
    model = untrained.fleet(5, inputs=0, widths=(6,), lags=3, chance=0.9)
    last = tensor([[1.0, 0, 0]]), tensor([0.0])
    fields = {each.name: getattr(model, each.name) for each in dataclasses.fields(model)}
    mean = torch.cat((model.prior_mean, tensor([[30.0]])))
    cov = torch.block_diag(model.prior_cov, tensor([[1.0]]))
    encoder = dataclasses.replace(model.encoder, linear=last)
    return kind(**{**fields, "encoder": encoder, "prior_mean": mean, "prior_cov": cov})


def excess(kind, labels):
    """How far forecasts lie outside the range of labels, at most; in scales."""
    means, _, location, scale = stepped(taught_wrongly(kind), labels)
    before = np.r_[location, labels[:-1]]
    least, most = np.minimum.accumulate(before), np.maximum.accumulate(before)
    return np.maximum(least - means, means - most).max() / scale


@pytest.mark.parametrize("name", LABELS)
def test_no_forecast_runs_away(name):
    assert excess(Fleet, LABELS[name]) <= REACH + 1e-9


def test_without_bounds_the_same_labels_lead_astray():
    assert excess(Unbounded, LABELS["walk"]) > 10


def description(case, **changes):
    model = case.model
    layers = [model.encoder.weights[0].shape[1], *(len(b) for b in model.encoder.biases)]
    spec = {"type": "mlp", "layers": layers, "output_activation": "tanh", "linear": model.y_dim}
    scaling = {"offset": model.x_offset.tolist(), "scale": model.x_scale.tolist()}
    whole = {"kind": "fleet", "x_dim": model.x_dim, "y_dim": model.y_dim, "lags": model.lags}
    whole |= {"feature_dim": len(model.prior_mean), "encoder": spec, "input_scaling": scaling}
    whole |= {"hazard": 0.1, "outlier_rate": 0.02, "chance": 0.4}
    return {name: value for name, value in {**whole, **changes}.items() if value is not ...}


def tensors(case, **changes):
    model = case.model
    found = {
        "prior_mean": model.prior_mean,
        "prior_covariance_factor": torch.linalg.cholesky(model.prior_cov),
        "log_noise_alpha": model.noise_alpha.log(),
        "log_noise_beta": model.noise_beta.log(),
    }
    layers = zip(model.encoder.weights, model.encoder.biases, strict=True)
    for name, (weight, bias) in [*enumerate(layers), ("linear", model.encoder.linear)]:
        found |= {f"encoder.{name}.weight": weight, f"encoder.{name}.bias": bias}
    found |= {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in found.items() if value is not None}


# Of a stream, not of the artifact.
PLAIN = {"kappa": 1.0, "slope": 10.0, "autoregression": 16.0, "alpha": 2.0, "beta": 0.7}


@BOTH
def test_a_saved_model_is_the_model(tmp_path, case):
    artifact.save(tmp_path, description(case), tensors(case))
    model = artifact.load(tmp_path)
    assert (model.kind, model.x_dim, model.y_dim, model.lags) == (
        "fleet", case.model.x_dim, 2, 2,
    )  # fmt: skip
    assert (model.hazard, model.outlier_rate, model.chance) == (0.1, 0.02, 0.4)
    ours, one = case._replace(model=replace(case.model, **PLAIN)), series(case, 0, 30, **TOLD)
    for a, b in zip(run(ours, [one], 8), run(case._replace(model=model), [one], 8), strict=True):
        torch.testing.assert_close(
            a.info.log_score, b.info.log_score, atol=1e-9, rtol=0, equal_nan=True
        )
    artifact.save(tmp_path, description(case, chance=...), tensors(case))
    assert artifact.load(tmp_path).chance == 0.5


REFUSED = [
    ({"output_scaling": {"offset": 0, "scale": 1}}, "output_scaling: remove it, every stream"),
    ({"chance": 0}, "chance is 0, expected a number between 0.0 and 1.0"),
    ({"chance": 1}, "chance is 1"),
    ({"chance": "0.5"}, "chance is '0.5'"),
    ({"y_dim": 3}, r"encoder.layers is \[6, 6, 4\], expected \[8, ..., 4\]"),
    ({"y_dim": 0}, "y_dim is 0"),
    ({"x_dim": -1}, "x_dim is -1, expected at least 0"),
    ({"lags": -1}, "lags is -1"),
    ({"hazard": ...}, "hazard is None"),
    ({"outlier_rate": 1}, "outlier_rate is 1"),
    ({"input_scaling": {"offset": [0], "scale": [1]}}, "input_scaling needs 2"),
    ({"feature_dim": 7}, "prior_covariance_factor"),
    ({"encoder": {"type": "mlp", "layers": [6, 6, 4]}}, r"expected \[6, ..., 6\]"),
]
LINEAR = [
    *((value, f"encoder.linear is {value!r}, expected a whole number below 6")
      for value in (-1, 6, "2", 1.5, [2])),
    (3, r"encoder.layers is \[6, 6, 4\], expected \[6, ..., 3\]"),
    (0, r"encoder.layers is \[6, 6, 4\], expected \[6, ..., 6\]"),
]  # fmt: skip


def refuse(folder, described, stored, words):
    artifact.save(folder, described, stored)
    with pytest.raises(BadArtifact, match=words.replace("[2]", r"\[2\]")) as error:
        artifact.load(folder)
    assert "model.json" in str(error.value) or "model.safetensors" in str(error.value)


@pytest.mark.parametrize(("fields", "words"), REFUSED)
def test_a_bad_description_is_named(tmp_path, fields, words):
    refuse(tmp_path, description(WITH_INPUTS, **fields), tensors(WITH_INPUTS), words)


@pytest.mark.parametrize(("linear", "words"), LINEAR)
def test_a_bad_number_of_linear_features_is_named(tmp_path, linear, words):
    described = description(WITH_INPUTS)
    described["encoder"]["linear"] = linear
    refuse(tmp_path, described, tensors(WITH_INPUTS), words)


@pytest.mark.parametrize("name", sorted(tensors(WITH_INPUTS)))
def test_every_tensor_is_needed_and_checked(tmp_path, name):
    good = tensors(WITH_INPUTS)[name]
    for words, value in {
        "is missing": None,
        "has shape": good.unsqueeze(0),
        "non-finite": good * torch.nan,
        "expected float32 or float64": good.half(),
    }.items():
        stored = tensors(WITH_INPUTS, **{name: value})
        refuse(tmp_path, description(WITH_INPUTS), stored, f"'{name}'.*{words}")


def test_an_input_is_required():
    context = WITH_INPUTS.prior().context
    with pytest.raises(ValueError, match="'fleet' requires an input x of 2 numbers"):
        WITH_INPUTS.model.encode(None, context)


@pytest.mark.parametrize("linear", [0, 1, 3])
def test_the_trained_encoder_is_the_one_that_is_served(linear):
    torch.manual_seed(0)
    trained = MlpEncoder([4, 7, 5], "relu", "tanh", linear).double()
    layers = [(each.weight.detach(), each.bias.detach()) for each in list(trained)[:2]]
    last = trained.linear and (trained.linear.weight.detach(), trained.linear.bias.detach())
    served = Mlp(*map(tuple, zip(*layers, strict=True)), "relu", "tanh", last)
    x = torch.randn(3, 2, 4, dtype=torch.float64)
    assert torch.equal(served(x), trained(x).detach())
    assert served(x).shape == (3, 2, trained.features) == (3, 2, 5 + linear)
    assert trained.spec().get("linear", 0) == linear
    if linear:
        affine = x @ last[0].T + last[1]
        torch.testing.assert_close(served(x)[..., 5:], affine, atol=1e-12, rtol=0)


def test_streams_of_a_fleet_look_for_no_seasons():
    model = untrained.fleet(4, inputs=0, lags=2)
    assert RobustAveraged().seasonal
    assert not model.seasonal
    assert moca.make_prior(model, *(tensor([[1.0]]),) * 2).context.shape == (1, 3 + 10 + 2)
