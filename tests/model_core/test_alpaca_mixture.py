"""ALPaCA with a mixture prior, beside ALPaCA and beside what drew the labels."""

import dataclasses

import pytest
import torch

from model_core import artifact, readout
from model_core import filter as moca
from model_core.artifact import DESCRIPTION
from model_core.components import Choice
from model_core.encoder import Identity
from model_core.errors import BadArtifact
from model_core.segment_matrix import Sequences, segment_matrix
from model_core.upm import alpaca_mixture
from model_core.upm.alpaca import NoisePrior
from model_core.upm.alpaca_mixture import AlpacaMixture
from tests.model_core.cases import BY_NAME, run, series, tensor

KNOWN, UNKNOWN = BY_NAME["alpaca-mixture-1"], BY_NAME["alpaca-mixture-unknown-2"]
EACH = pytest.mark.parametrize("case", [KNOWN, UNKNOWN], ids=lambda case: case.name)


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)


def only(model, m):
    """A mixture of one of its types."""
    noise = model.noise_prior
    return dataclasses.replace(
        model,
        log_weight=torch.zeros(1, dtype=torch.float64),
        prior_mean=model.prior_mean[m : m + 1],
        prior_cov=model.prior_cov[m : m + 1],
        noise_variance=None if noise else model.noise_variance[m : m + 1],
        noise_prior=NoisePrior(*(each[m : m + 1] for each in noise)) if noise else None,
    )


@EACH
def test_a_mixture_of_one_is_alpaca(case):
    one = series(case, 0, 25, outlier_rate=0.02, labelled=[True, True, False, True])
    for m in range(3):
        plain = case._replace(model=case.model.alone(m))
        mixture = case._replace(model=only(case.model, m))
        for a, b in zip(run(plain, [one], 8), run(mixture, [one], 8), strict=True):
            scored = a.inputs.labelled
            close(b.info.log_score[scored], a.info.log_score[scored])
            close(b.info.predictive.mean(), a.info.predictive.mean())
            close(b.info.predictive.covariance(), a.info.predictive.covariance())
            close(b.state.belief.log_prob.exp(), a.state.belief.log_prob.exp())


@EACH
def test_types_by_turns_are_types_together(case, monkeypatch):
    one = series(case, 2, 15, labelled=[True, True, False, True])
    y = torch.where(torch.tensor(one.labelled.astype(bool))[:, None], tensor(one.y), torch.nan)
    data = Sequences(tensor(one.x)[None], y[None])
    whole = segment_matrix(case.model, case.prior(), data)
    for size in (1, 2 * y.numel() * 15):
        monkeypatch.setattr(alpaca_mixture, "TOGETHER", size)
        close(segment_matrix(case.model, case.prior(), data).label, whole.label)


def typical(names=()):
    """Level 0, 10 or -10, of one feature that is 1."""
    one = torch.ones(1, dtype=torch.float64)
    return AlpacaMixture(
        encoder=Identity(),
        log_weight=tensor([0.2, 0.5, 0.3]).log(),
        prior_mean=tensor([0.0, 10.0, -10.0]).reshape(3, 1, 1),
        prior_cov=tensor([1.0, 1.0, 1.0]).reshape(3, 1, 1),
        noise_variance=tensor([1.0, 1.0, 1.0]).reshape(3, 1),
        x_offset=0 * one,
        x_scale=one,
        y_offset=0 * one,
        y_scale=one,
        hazard=0.05,
        names=names,
    )


def followed(model, labels):
    """Regime after each label."""
    zero = torch.zeros(1, 1, dtype=torch.float64)
    prior = moca.make_prior(model, zero, zero + 1)
    state, found = moca.init(prior, 10), []
    nothing = tensor([torch.nan])
    for y in labels:
        now = moca.Inputs(
            zero + 1, tensor([[y]]), torch.tensor([True]), tensor([[0.05]]), tensor([1.0]), nothing,
            tensor([0.0]),
        )  # fmt: skip
        state, _ = moca.step(model, state, prior, now)
        found.append(readout.typical_regimes(model, state)[0])
    return state, found


def test_the_regime_is_that_of_the_labels():
    labels = [9.5, 10.4, 10.1, -9.3, -10.2, 0.4, 0.1]
    state, found = followed(typical(), labels)
    assert [each.name for each in found] == ["2", "2", "2", "3", "3", "1", "1"]
    assert all(0.97 < each.probability <= 1 for each in found)
    state, found = followed(typical(("idle", "up", "down")), labels)
    assert [each.name for each in found][::3] == ["up", "down", "idle"]
    weights = state.belief.log_prob.exp().unsqueeze(-1) * state.stats.log_weight.exp()
    assert found[-1].probability == pytest.approx(weights.sum(1)[0, 0].item(), abs=1e-14)


def test_between_two_it_is_not_sure():
    _, found = followed(typical(), [5.0])
    like = [0.2, 0.5]  # 5 is as far from level 0 as from level 10
    assert found[0].name == "2"
    assert found[0].probability == pytest.approx(like[1] / sum(like), abs=1e-9)


def test_draws_are_functions_of_one_type():
    model = typical()
    zero = torch.zeros(400, 1, dtype=torch.float64)
    stats = model.prior(zero, zero + 1)
    phi = torch.ones(400, 2, 1, dtype=torch.float64) * tensor([1.0, 2.0]).reshape(1, 2, 1)
    generators = [torch.Generator().manual_seed(i) for i in range(400)]
    drawn = model.draw(stats, phi, generators)[:, 0, :, 0]
    close(drawn[:, 1], 2 * drawn[:, 0])  # one function, at two inputs
    near = (drawn[:, :1] - tensor([0.0, 10.0, -10.0])).abs() < 4.5
    shares = near.double().mean(0)
    # Four standard deviations of 400 draws.
    assert shares.tolist() == pytest.approx([0.2, 0.5, 0.3], abs=0.1)


def description(**changes):
    plain = {"kind": "alpaca-mixture", "x_dim": 1, "y_dim": 1, "feature_dim": 1, "hazard": 0.05}
    return {**plain, "encoder": {"type": "identity"}, **changes}


def tensors():
    model = typical()
    return {
        "prior_logits": model.log_weight + 3.0,
        "prior_mean": model.prior_mean,
        "prior_covariance_factor": model.prior_cov.sqrt(),
        "log_noise_variance": model.noise_variance.log(),
    }


def named(*names):
    return [{"name": name, "probability": 0.3} for name in names]


def test_an_artifact_is_the_model(tmp_path):
    artifact.save(tmp_path, description(regimes=named("idle", "up", "down")), tensors())
    model = artifact.load(tmp_path)
    assert model.typical == ("idle", "up", "down")
    assert model.parts == 3
    labels = [9.5, 10.4, -9.3, 0.4]
    for a, b in zip(followed(model, labels)[1], followed(typical(), labels)[1], strict=True):
        assert a.probability == pytest.approx(b.probability, abs=1e-12)
    artifact.amend(tmp_path, regimes=None)
    assert artifact.load(tmp_path).typical == ("1", "2", "3")


@pytest.mark.parametrize(
    "regimes",
    [named("a", "b"), named("a", "b", "b"), named("a", " ", "c"), ["a", "b", "c"], [{}, {}, {}], 3],
)
def test_names_of_another_number_or_twice_are_refused(tmp_path, regimes):
    artifact.save(tmp_path, description(regimes=regimes), tensors())
    with pytest.raises(BadArtifact, match="regimes is .*, expected") as error:
        artifact.load(tmp_path)
    assert DESCRIPTION in str(error.value)


@pytest.mark.parametrize("name", tensors())
def test_every_tensor_is_needed(tmp_path, name):
    left = {key: value for key, value in tensors().items() if key != name}
    artifact.save(tmp_path, description(), left)
    with pytest.raises(BadArtifact, match=name):
        artifact.load(tmp_path)


def test_it_has_noise_of_one_sort_and_a_name_for_each():
    with pytest.raises(ValueError, match="one of noise_variance and noise_prior"):
        dataclasses.replace(typical(), noise_variance=None)
    with pytest.raises(ValueError, match="expected 3 names, got 2"):
        typical(("a", "b"))


def test_other_models_have_no_typical_regimes():
    case = BY_NAME["alpaca-1"]
    assert case.model.typical == ()
    with pytest.raises(TypeError, match="no typical regimes"):
        case.model.types(case.prior().stats)


@EACH
def test_marginals_of_a_choice_are_those_of_its_draws(case):
    state = run(case, [series(case, 1, 12)], 5)[-1].state
    each = case.model.predictive(state.stats, tensor([[0.3, -0.2, 0.5, 0.1]]))
    assert isinstance(each, Choice)
    one = each.mapped(lambda p: p[:, :1].expand(40_000, *p[:, :1].shape[1:]))
    drawn = one.sample(torch.Generator().manual_seed(0))[:, 0]
    spread = drawn.std(0)
    first = each.mapped(lambda p: p[:, :1])
    assert ((drawn.mean(0) - first.mean()[0, 0]).abs() < 5 * spread / 200).all()
    cov = torch.cov(drawn.T).reshape(first.covariance()[0, 0].shape)
    assert (cov - first.covariance()[0, 0]).abs().max() < 0.1 * spread.square().max()
    middle = first.mean()
    below = (drawn < middle[0]).double().mean(0)
    assert below.tolist() == pytest.approx(first.cdf(middle)[0, 0].tolist(), abs=0.0125)
    close(first.variance()[0, 0], first.covariance()[0, 0].diagonal())
