"""The law of the switching sinusoid."""

import math

import pytest
import torch

from training.data import regimes, sinusoid


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


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


@pytest.mark.parametrize("hazard", [0.0, 0.02, 0.2, 1.0])
def test_regimes_start_at_the_hazard(hazard):
    switch = sinusoid.Sinusoid(hazard).draw(seeded(), 500, 101).switch
    assert switch[:, 0].all()
    # 50 000 draws: five standard deviations are below 0.01.
    assert switch[:, 1:].double().mean() == pytest.approx(hazard, abs=0.01)


def test_parameters_change_exactly_at_switches():
    switch = torch.tensor([[True, False, True, False, False], [True, True, False, False, True]])
    values = torch.arange(10).view(2, 5)
    assert regimes.held(values, switch).tolist() == [[0, 0, 2, 2, 2], [5, 6, 6, 6, 9]]


def test_whole_numbers_stay_below_their_bound():
    bound = torch.tensor([1, 2, 5]).expand(20_000, 3)
    drawn = regimes.below(seeded(), bound)
    assert (drawn >= 0).all()
    assert (drawn < bound).all()
    assert torch.bincount(drawn[:, 2], minlength=5) / 20_000 == pytest.approx([0.2] * 5, abs=0.02)


def test_a_seed_decides_everything():
    source = sinusoid.splits(0.1).train
    once, again = (source.draw(seeded(3), 4, 9) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once[:3], again[:3], strict=True))
    assert not torch.equal(once.y, source.draw(seeded(4), 4, 9).y)


def test_a_hazard_is_a_probability():
    with pytest.raises(ValueError, match="got 1.5"):
        sinusoid.splits(1.5)


def test_recurring_tasks_are_few_and_the_same_for_every_source():
    one = sinusoid.Sinusoid(0.2, tasks=4).draw(seeded(1), 50, 60)
    two = sinusoid.Sinusoid(0.2, tasks=4).draw(seeded(2), 50, 60)
    assert 0.15 < one.switch.double().mean() < 0.3
    for batch in (one, two):
        # Within four standard deviations of the noise of one of them.
        means = sinusoid.Sinusoid(0.2, tasks=4).tasks
        each = means[:, 0] * torch.sin(batch.x - means[:, 1])
        distance = (batch.y - each).abs().amin(-1)
        assert (distance < 4 * math.sqrt(sinusoid.NOISE_VARIANCE)).double().mean() > 0.99
        nearest = (batch.y - each).abs().argmin(-1)
        shares = torch.bincount(nearest.flatten(), minlength=4) / nearest.numel()
        assert (shares > 0.1).all()


def test_a_number_of_tasks_is_none_or_more():
    with pytest.raises(ValueError, match="expected 0 tasks or more, got -1"):
        sinusoid.splits(0.1, tasks=-1)
