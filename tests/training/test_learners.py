"""Learners: one contract over all kinds, and the parts that are a kind's own."""

import copy
import math

import pytest
import torch
from torch import nn

from model_core import artifact, segments
from model_core.segments import Changes, Sequences
from model_core.upm.averaged import Averaged
from tests.training.tiny import seeded
from training import learners
from training.config import ModelConfig, Objective
from training.data.windows import Batch, Scaling
from training.learners import ConvEncoder, build
from training.meta_training.objective import log_scores, start
from training.paper import log_scores as filtered_scores

NAN = math.nan
SMALL = {"widths": (7,), "features": 5, "hazard": 0.07, "learn_hazard": True}
IMAGE, SIZE = {"image": (2, 9, 7), "blocks": (3, 4)}, 126
OUTPUTS = 2
KINDS = {
    "alpaca-known": ({"noise": "known"}, 0),
    "alpaca-lags": ({"noise": "unknown", "lags": 3}, 0),
    "alpaca-mixture": ({"noise": "known", "priors": 3}, 0),
    "alpaca-mixture-unknown": ({"noise": "unknown", "priors": 2, "lags": 1}, 0),
    "alpaca-conv": (IMAGE, 0),
    "lstm-lags": ({"kind": "lstm", "hidden": 6, "decoder": (8, 4), "lags": 2}, 0),
    "pcoc": ({"kind": "pcoc", "dirichlet": 2.0}, 3),
    "pcoc-conv": ({"kind": "pcoc", **IMAGE}, 3),
    "fleet": ({"kind": "fleet", "noise": "unknown", "lags": 2}, 0),
}


def learner_of(kind, seed=0):
    """A learner of float64, with scalings that do something."""
    settings, classes = KINDS[kind]
    x_dim, y_dim = SIZE if "image" in settings else 3, 1 if classes else OUTPUTS
    x, y = torch.arange(x_dim) / x_dim, torch.arange(y_dim) / 2.0
    scaling = Scaling(x, 1.5 + x, y, 2.0 + y)
    if classes:
        scaling = scaling._replace(y_offset=torch.zeros(1), y_scale=torch.ones(1))
    config = ModelConfig(**{**SMALL, **settings})
    return build(config, scaling, classes, seed).double()


def drawn(kind, count=3, steps=9):
    """Windows whose labels are partly missing."""
    settings, classes = KINDS[kind]
    shape = (count, steps)
    x = torch.randn(*shape, SIZE if "image" in settings else 3, generator=seeded(1)).double()
    y = 2 * torch.randn(*shape, OUTPUTS, generator=seeded(2)).double()
    if classes:
        y = torch.randint(classes, (*shape, 1), generator=seeded(2)).double()
    y[torch.rand(shape, generator=seeded(3)) < 0.2] = math.nan
    return Batch(x, y, torch.rand(shape, generator=seeded(4)) < 0.3)


def scores(model, batch):
    """Of a model alone, whose hazard is a plain number."""
    matrix = segments.segment_matrix(model, start(model, batch), Sequences(batch.x, batch.y))
    hazard = batch.y.new_full((1, 1), model.hazard)
    return segments.forward(matrix, Changes(hazard)).log_score


def loss(learner, batch, supervision=None):
    return -log_scores(learner, batch, Objective(), supervision).nansum()


def trained(learner, batch, steps):
    """Losses of some steps."""
    learned = [p for p in learner.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(learned, lr=0.03)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        value = loss(learner, batch)
        value.backward()
        optimiser.step()
        losses.append(value.item())
    return losses


@pytest.mark.parametrize("kind", KINDS)
def test_a_learner_learns_and_is_served_as_it_was_trained(kind, tmp_path):
    batch, learner = drawn(kind), learner_of(kind)
    losses = trained(learner, batch, 5)
    assert all(map(math.isfinite, losses))
    assert losses[2] < losses[0]
    learner.eval()
    artifact.save(tmp_path / "a", *learner.artifact())
    loaded = artifact.load(tmp_path / "a")
    assert loaded.kind == learner.kind
    with torch.no_grad():
        if kind == "fleet":  # its artifact is more than what is trained: see below
            return
        expected = log_scores(learner, batch, Objective(), None)
        scored = scores(loaded, batch)
    torch.testing.assert_close(scored, expected, atol=1e-10, rtol=0, equal_nan=True)
    assert torch.equal(torch.isnan(expected), torch.isnan(batch.y).any(-1))
    assert loaded.hazard == pytest.approx(learner.hazard.item(), abs=1e-15)
    assert loaded.hazard != pytest.approx(SMALL["hazard"], abs=1e-4)  # it moved


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_what_is_learned_and_are_those_of_differences(kind):
    """Of a direction through all parameters at once; a seed decides where they start.

    Also for beliefs of exactly 0, after no time at all, and at known switches.
    """
    before = torch.get_rng_state()
    learner, same, other, batch = (
        learner_of(kind),
        learner_of(kind),
        learner_of(kind, 2),
        drawn(kind),
    )
    assert torch.equal(torch.get_rng_state(), before)
    one, two, three = (
        dict(one_learner.named_parameters()) for one_learner in (learner, same, other)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    weights = [name for name in one if name.endswith("weight") and "norm" not in name]
    if kind != "fleet":  # it begins at the label before, whatever the seed
        assert all(not torch.equal(one[name], three[name]) for name in weights)
    elapsed = torch.tensor([1.0, 1.0, 0.0, 0.0, 3.0, 1.0, 0.5, 1.0, 1.0]).double()
    batch = batch._replace(elapsed=elapsed.expand(3, -1))
    supervision = torch.tensor([NAN, 1.0, 0.0, NAN, NAN, 0.0, 0.4, NAN, NAN]).double().expand(3, -1)
    loss(learner, batch, supervision).backward()
    learned = {name: p for name, p in learner.named_parameters() if p.requires_grad}
    assert set(one) - set(learned) <= {"log_dirichlet"}
    assert "hazard_logit" in learned
    for name, parameter in learned.items():
        assert torch.isfinite(parameter.grad).all(), name
        # A norm takes away what the bias before it adds, but for rounding.
        if not (name.endswith("conv.bias") and f"{name[:-9]}norm.bias" in learner.state_dict()):
            assert parameter.grad.abs().max() > 1e-8, name
    if "conv" in kind:  # pooling and rectifiers have corners; see the gradients of a block
        return
    direction = {n: torch.randn(p.shape, generator=seeded(7)).to(p) for n, p in learned.items()}

    def moved(step):
        there = copy.deepcopy(learner)
        with torch.no_grad():
            for name, part in direction.items():
                there.get_parameter(name).add_(step * part)
            return loss(there, batch, supervision)

    slope = sum((p.grad * direction[name]).sum() for name, p in learned.items()).item()
    measured = ((moved(1e-5) - moved(-1e-5)) / 2e-5).item()
    assert slope == pytest.approx(measured, rel=1e-5)


def test_a_hazard_and_noise_that_are_not_learned_stay():
    config = ModelConfig(**{**SMALL, "learn_hazard": False, "learn_noise": False})
    learner = build(config, Scaling.none(3, 1), 0, 0)
    fixed = {name for name, parameter in learner.named_parameters() if not parameter.requires_grad}
    assert fixed == {"hazard_logit", "log_noise_variance"}
    assert learner.hazard.item() == pytest.approx(0.07)


def test_a_variance_exists_whatever_alpha_is_learned(tmp_path):
    learner = learner_of("alpaca-lags")
    with torch.no_grad():
        learner.log_noise_alpha.fill_(-3.0)
    artifact.save(tmp_path / "a", *learner.artifact())
    alpha = artifact.load(tmp_path / "a").noise_prior.alpha
    torch.testing.assert_close(alpha, torch.full_like(alpha, 1.001))


def test_an_artifact_of_a_fleet_is_the_model_that_is_served(tmp_path):
    settings = ModelConfig(**{**SMALL, **KINDS["fleet"][0]})
    for k, x_dim in enumerate((3, 0)):
        scaling = Scaling.none(x_dim, OUTPUTS)
        scaling = scaling._replace(x_offset=scaling.x_offset + 2, x_scale=4 * scaling.x_scale)
        learner, batch = build(settings, scaling, 0, 0).double(), drawn("fleet")
        batch.y[1, 6, 1] = NAN  # one output of two
        batch = batch if x_dim else batch._replace(x=None)
        with torch.no_grad():
            for value in learner.parameters():
                value.add_(0.1 * torch.randn(value.shape, generator=seeded(5), dtype=value.dtype))
        artifact.save(tmp_path / str(k), *learner.artifact())
        served, loaded = learner.served(), artifact.load(tmp_path / str(k))
        ours, theirs = (filtered_scores(one, batch) for one in (loaded, served))
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0, equal_nan=True)
        built_in = Averaged()
        for model in (served, loaded):
            assert (model.kind, model.hazard) == ("fleet", built_in.hazard)
            assert model.outlier_rate == built_in.outlier_rate
            assert (model.x_dim, model.lags, model.chance) == (x_dim, 2, 0.5)
        # What is trained is the part that is served, but for the hazard.
        model = learner.model()
        assert torch.equal(served.prior_mean, model.prior_mean)
        assert torch.equal(served.prior_cov, model.prior_cov)
        assert torch.equal(served.noise_alpha, model.noise_prior.alpha)
        assert torch.equal(served.noise_beta, model.noise_prior.beta)
        assert (model.y_offset.tolist(), model.y_scale.tolist()) == ([0, 0], [1, 1])


IMAGES = {"channels": 3, "height": 12, "width": 12, "blocks": [5, 4, 6]}


def encoder() -> ConvEncoder:
    """Three blocks, norms of both signs."""
    torch.manual_seed(0)
    net = ConvEncoder(**IMAGES).double()
    for block in net:
        if "norm" in block:
            nn.init.normal_(block["norm"].weight)
            nn.init.normal_(block["norm"].bias)
    return net


def images(count: int) -> torch.Tensor:
    return torch.rand(count, 3 * 12 * 12, generator=seeded(1), dtype=torch.float64)


def test_features_of_an_image_depend_on_its_batch_in_training_alone(monkeypatch):
    monkeypatch.setattr(learners, "IMAGES", 2)
    net, x = encoder(), images(7)
    assert not torch.allclose(net(x)[3:4], net(x[3:5])[:1])
    net.eval()
    assert torch.equal(net(x)[3:4], net(x[3:4]))
    assert net(x.reshape(7, 1, -1)).shape == (7, 1, net.features)


def test_mixed_precision_is_near_in_training_and_absent_in_evaluation():
    plain, x = encoder().float(), images(200).float()
    mixed = ConvEncoder(**IMAGES, mixed=True)
    mixed.load_state_dict(plain.state_dict())
    ours, theirs = mixed(x), plain(x)
    assert ours.dtype == torch.float32
    assert not torch.equal(ours, theirs)
    torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.05)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    one, other = (
        torch.cat([parameter.grad.flatten() for parameter in net.parameters()])
        for net in (mixed, plain)
    )
    assert one.dtype == torch.float32
    assert (one - other).norm() < 0.1 * other.norm()
    mixed.load_state_dict(plain.state_dict())
    assert torch.equal(mixed.eval()(x), plain.eval()(x))
