"""The switching sinusoid: what is drawn."""

import math

import pytest
import torch

from tests.training.tiny import seeded
from training.experiments import sinusoid


def fitted(batch):
    """Amplitude, phase and residual variance of each row by least squares on (sin x, cos x)."""
    design = torch.cat([torch.sin(batch.x), torch.cos(batch.x)], 2)
    weights = torch.linalg.lstsq(design, batch.y).solution
    residual = (batch.y - design @ weights).square().sum((1, 2)) / (batch.y.shape[1] - 2)
    a, b = weights[:, 0, 0], -weights[:, 1, 0]  # A sin(x - p) = A cos p sin x - A sin p cos x
    phase = torch.atan2(b, a)
    return torch.hypot(a, b), torch.where(phase < -2, phase + 2 * math.pi, phase), residual


def test_amplitude_phase_inputs_and_noise():
    batch = sinusoid.Sinusoid(0.0).draw(seeded(), 2000, 200)
    assert batch.x.shape == batch.y.shape == (2000, 200, 1)
    amplitude, phase, variance = fitted(batch)
    assert variance.mean() == pytest.approx(0.05, rel=0.01)
    assert -0.05 < amplitude.min() < 0.2
    assert 4.9 < amplitude.max() < 5.1
    assert amplitude.mean() == pytest.approx(2.55, abs=0.15)
    clear = phase[amplitude > 1]
    assert -0.1 < clear.min() < 0.1
    assert math.pi - 0.1 < clear.max() < math.pi + 0.1
    assert clear.mean() == pytest.approx(math.pi / 2, abs=0.1)
    assert -5 <= batch.x.min() < -4.99
    assert 4.99 < batch.x.max() <= 5
