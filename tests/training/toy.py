"""A model of the wheel bandit that needs no training, for tests."""

import torch
from torch import Tensor

from model_core.upm.alpaca import Alpaca
from training.data import wheel

RINGS = 8


class Rings:
    """Indicators: action 0, the quadrant's own action by ring, any other action."""

    def __call__(self, x: Tensor) -> Tensor:
        states, action = x[..., :2], x[..., 2:].argmax(-1)
        own = action == wheel.quadrant(states)
        ring = (states.norm(dim=-1) * RINGS).long().clamp(max=RINGS - 1)
        kind = torch.where(action == 0, RINGS, torch.where(own, ring, RINGS + 1))
        return torch.nn.functional.one_hot(kind, RINGS + 2).to(x)


def toy(samples: int = 20_000) -> Alpaca:
    """The prior's moments are those of the functions that the radii make, as far as rings go."""
    generator = torch.Generator().manual_seed(0)
    delta = torch.rand(samples, 1, generator=generator, dtype=torch.float64)
    edge = torch.arange(RINGS, dtype=torch.float64) / RINGS
    # Uniform in the ring's radius, near enough.
    within = edge + torch.rand(samples, RINGS, generator=generator, dtype=torch.float64) / RINGS
    value = torch.where(within > delta, wheel.HIGH, wheel.LOW).double()
    fixed = value.new_tensor([wheel.MEDIUM, wheel.LOW]).expand(samples, -1)
    weights = torch.cat((value, fixed), -1)
    noise = wheel.NOISE**2
    cov = weights.T.cov() / noise + 1e-6 * torch.eye(RINGS + 2, dtype=torch.float64)
    ones = torch.ones(wheel.X_DIM, dtype=torch.float64)
    return Alpaca(
        encoder=Rings(),
        prior_mean=weights.mean(0).unsqueeze(-1),
        prior_cov=0.5 * (cov + cov.T),
        noise_variance=torch.tensor([noise], dtype=torch.float64),
        x_offset=0 * ones,
        x_scale=ones,
        y_offset=0 * ones[:1],
        y_scale=ones[:1],
        hazard=0.02,
    )
