"""Learners: their artifacts are the same models, a seed decides them, and all of them learns."""

import copy
import math

import pytest
import torch

from model_core import artifact, segments
from model_core.segments import Changes, Sequences
from training.config import ModelConfig, Objective
from training.data.base import Batch
from training.learners import build
from training.learners.base import Scaling
from training.meta_training.objective import log_scores, start

SMALL = {"widths": (7,), "features": 5, "hazard": 0.07, "learn_hazard": True}
IMAGE = {"image": (2, 8, 8), "blocks": (3, 4)}
OUTPUTS = 2
KINDS = {
    "alpaca-known": ({"noise": "known"}, 0),
    "alpaca-unknown": ({"noise": "unknown"}, 0),
    "alpaca-lags": ({"lags": 3}, 0),
    "alpaca-mixture": ({"noise": "known", "priors": 3}, 0),
    "alpaca-mixture-unknown": ({"noise": "unknown", "priors": 2, "lags": 1}, 0),
    "alpaca-conv": (IMAGE, 0),
    "alpaca-identity": ({"identity": True, "lags": 1}, 0),
    "lstm": ({"kind": "lstm", "hidden": 6, "decoder": (8,)}, 0),
    "lstm-lags": ({"kind": "lstm", "hidden": 6, "decoder": (8, 4), "lags": 2}, 0),
    "pcoc": ({"kind": "pcoc", "dirichlet": 2.0}, 3),
    "pcoc-conv": ({"kind": "pcoc", **IMAGE}, 3),
}
# Its artifact is more than what is trained, and its first forecast is fixed: see `test_fleet`.
FLEET = {"fleet": ({"kind": "fleet", "noise": "unknown", "lags": 2}, 0)}
each_kind = pytest.mark.parametrize("kind", KINDS)


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


def made(kind, seed=0):
    """A learner of float64, with scalings that do something."""
    settings, classes = (KINDS | FLEET)[kind]
    x_dim, y_dim = 128 if "image" in settings else 3, 1 if classes else OUTPUTS
    x, y = torch.arange(x_dim) / x_dim, torch.arange(y_dim) / 2.0
    scaling = Scaling(x, 1.5 + x, y, 2.0 + y)
    if classes:
        scaling = scaling._replace(y_offset=torch.zeros(1), y_scale=torch.ones(1))
    config = ModelConfig(**{**SMALL, **settings})
    return build(config, scaling, classes, seed).double()


def drawn(kind, count=3, steps=9):
    """Windows whose labels are partly missing."""
    settings, classes = (KINDS | FLEET)[kind]
    shape = (count, steps)
    x = torch.randn(*shape, 128 if "image" in settings else 3, generator=chance(1)).double()
    y = 2 * torch.randn(*shape, OUTPUTS, generator=chance(2)).double()
    if classes:
        y = torch.randint(classes, (*shape, 1), generator=chance(2)).double()
    y[torch.rand(shape, generator=chance(3)) < 0.2] = math.nan
    return Batch(x, y, torch.rand(shape, generator=chance(4)) < 0.3)


def scores(model, batch):
    """Of a model alone, whose hazard is a plain number."""
    found = segments.segment_matrix(model, start(model, batch), Sequences(batch.x, batch.y))
    hazard = batch.y.new_full((1, 1), model.hazard)
    return segments.forward(found, Changes(hazard)).log_score


def moved(learner, batch):
    """Parameters some steps away from the first ones; moments of the norms, too."""
    optimiser = torch.optim.Adam([p for p in learner.parameters() if p.requires_grad], lr=0.03)
    for _ in range(3):
        optimiser.zero_grad()
        (-log_scores(learner, batch, Objective(), None).nansum()).backward()
        optimiser.step()
    return learner.eval()


@each_kind
def test_an_artifact_is_the_same_model(kind, tmp_path):
    batch = drawn(kind)
    learner = moved(made(kind), batch)
    artifact.save(tmp_path / "a", *learner.artifact())
    loaded = artifact.load(tmp_path / "a")
    with torch.no_grad():
        expected = log_scores(learner, batch, Objective(), None)
        found = scores(loaded, batch)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0, equal_nan=True)
    assert torch.equal(torch.isnan(expected), torch.isnan(batch.y).any(-1))
    assert loaded.hazard == pytest.approx(learner.hazard.item(), abs=1e-15)
    assert loaded.hazard != pytest.approx(SMALL["hazard"], abs=1e-4)  # it moved
    assert loaded.kind == learner.kind


@each_kind
def test_a_seed_decides_the_first_parameters(kind):
    before = torch.get_rng_state()
    one, same, other = made(kind, 1), made(kind, 1), made(kind, 2)
    assert torch.equal(torch.get_rng_state(), before)
    for (name, a), (_, b) in zip(one.named_parameters(), same.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    drawn_ones = [n for n, _ in one.named_parameters() if "weight" in n or n == "prior_mean"]
    assert drawn_ones
    kept = dict(other.named_parameters())
    changed = [name for name in drawn_ones if not torch.equal(kept[name], one.get_parameter(name))]
    assert len(changed) >= len([name for name in drawn_ones if "norm" not in name])


@pytest.mark.parametrize("kind", [*KINDS, *FLEET])
def test_gradients_reach_everything_that_is_learned(kind):
    learner, batch = made(kind), drawn(kind)
    (-log_scores(learner, batch, Objective(), None).nansum()).backward()
    for name, each in learner.named_parameters():
        if not each.requires_grad:
            assert name == "log_dirichlet"
            continue
        assert each.grad is not None, name
        assert torch.isfinite(each.grad).all(), name
        # A norm takes away what the bias before it adds, but for rounding.
        if not (name.endswith("conv.bias") and f"{name[:-9]}norm.bias" in learner.state_dict()):
            assert each.grad.abs().max() > 1e-8, name
    assert learner.hazard_logit.requires_grad


@pytest.mark.parametrize(
    "kind",
    [
        "alpaca-known",
        "alpaca-unknown",
        "alpaca-mixture",
        "alpaca-mixture-unknown",
        "lstm",
        "pcoc",
        *FLEET,
    ],
)
def test_gradients_are_those_of_differences(kind):
    """Of a direction through all parameters at once."""
    learner, batch = made(kind), drawn(kind)
    learned = {name: p for name, p in learner.named_parameters() if p.requires_grad}
    direction = {n: torch.randn(p.shape, generator=chance(7)).to(p) for n, p in learned.items()}

    def loss(step):
        there = copy.deepcopy(learner)
        with torch.no_grad():
            for name, each in direction.items():
                there.get_parameter(name).add_(step * each)
        return -log_scores(there, batch, Objective(), None).nansum()

    (-log_scores(learner, batch, Objective(), None).nansum()).backward()
    slope = sum((p.grad * direction[name]).sum() for name, p in learned.items()).item()
    with torch.no_grad():
        measured = ((loss(1e-5) - loss(-1e-5)) / 2e-5).item()
    assert slope == pytest.approx(measured, rel=1e-5)


def test_a_hazard_and_noise_that_are_not_learned_stay():
    config = ModelConfig(**{**SMALL, "learn_hazard": False, "learn_noise": False})
    learner = build(config, Scaling.none(3, 1), 0, 0)
    fixed = {name for name, each in learner.named_parameters() if not each.requires_grad}
    assert fixed == {"hazard_logit", "log_noise_variance"}
    assert learner.hazard.item() == pytest.approx(0.07)


def test_a_variance_exists_whatever_alpha_is_learned(tmp_path):
    learner = made("alpaca-unknown")
    with torch.no_grad():
        learner.log_noise_alpha.fill_(-3.0)
    artifact.save(tmp_path / "a", *learner.artifact())
    alpha = artifact.load(tmp_path / "a").noise_prior.alpha
    torch.testing.assert_close(alpha, torch.full_like(alpha, 1.001))


@pytest.mark.parametrize("noise", ["known", "unknown"])
def test_first_values_are_those_that_were_asked(noise):
    config = ModelConfig(noise=noise, noise_variance=0.3, prior_scale=0.05, widths=(7,))
    learner = build(config, Scaling.none(3, 2), 0, 0)
    level = learner.log_noise_variance if noise == "known" else learner.log_noise_beta
    assert level.exp().tolist() == pytest.approx([0.3, 0.3])
    assert learner.prior_covariance_factor.std().item() == pytest.approx(0.05, rel=0.1)
    assert learner.prior_mean.std().item() == pytest.approx(0.05, rel=0.4)
