"""Sources of the experiments: one contract, and the chance of their regimes."""

import math

import pytest
import torch

from tests.training.experiments.test_miniimagenet import SIZE, write_folder
from tests.training.experiments.test_players import write_players
from tests.training.experiments.test_rainbow import write_black
from tests.training.tiny import seeded
from training import catalogue
from training.config import Config
from training.data.files import Place
from training.data.windows import below, held
from training.errors import BadConfig
from training.experiments import regimes
from training.experiments.sinusoid import sinusoids

HAZARD = 0.2
SOURCES = {
    "sinusoid": ("sinusoid", {"hazard": HAZARD}),
    "recurring sinusoids": ("sinusoid", {"hazard": HAZARD, "tasks": 4}),
    "wheel": ("bandit", {"hazard": HAZARD, "seed": 3}),
    "regimes": ("regimes", {"hazard": HAZARD}),
    "rainbow": ("rainbow", {"hazard": HAZARD, "validation_images": 1}),
    "miniimagenet": ("miniimagenet", {"hazard": HAZARD, "size": SIZE}),
    "players": ("players", {}),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_seed_decides_what_is_drawn_and_regimes_start_at_the_hazard(name, tmp_path):
    experiment, data = SOURCES[name]
    for write in (write_black, write_folder, lambda folder: write_players(folder, [1, 2, 3])):
        write(tmp_path)
    config = Config(experiment=experiment, data=data)
    splits = catalogue.splits(config, Place(tmp_path, tmp_path / "cache"))
    once, again, other = (splits.train(seeded(seed), 300, 20) for seed in (3, 3, 4))
    for one, same in zip(once, again, strict=True):
        assert one == same if not isinstance(one, torch.Tensor) else torch.equal(one, same)
    drawn = [batch.y if batch.x is None else batch.x for batch in (once, other)]
    assert not torch.equal(*drawn)
    assert once.y.shape == (300, 20, splits.y_dim)
    assert once.x.shape == (300, 20, splits.x_dim) if splits.x_dim else once.x is None
    if name == "players":
        assert once.switch is None
        return
    assert once.switch[:, 0].all()
    share = once.switch[:, 1:].double().mean().item()
    assert share == pytest.approx(HAZARD, abs=5 * math.sqrt(HAZARD * (1 - HAZARD) / 5700))


def test_hazards_at_their_ends():
    assert not sinusoids(0.0)(seeded(), 9, 50).switch[:, 1:].any()
    assert sinusoids(1.0)(seeded(), 9, 50).switch.all()
    for hazard, count, message in ((1.5, 0, "got 1.5"), (0.1, -1, "got -1")):
        config = Config(experiment="sinusoid", data={"hazard": hazard, "tasks": count})
        with pytest.raises(BadConfig, match=message):
            catalogue.splits(config, Place(None, None))


def test_parameters_change_exactly_at_switches_and_bounds_hold():
    switch = torch.tensor([[True, False, True, False, False], [True, True, False, False, True]])
    values = torch.arange(10).view(2, 5)
    assert held(values, switch).tolist() == [[0, 0, 2, 2, 2], [5, 6, 6, 6, 9]]
    drawn = below(seeded(), torch.tensor([1, 2, 5]).expand(20_000, 3))
    for column, bound in enumerate((1, 2, 5)):
        counts = torch.bincount(drawn[:, column], minlength=bound) / 20_000
        assert counts.tolist() == pytest.approx([1 / bound] * bound, abs=0.02)


def test_memory_lasts_within_a_regime_only():
    switch = torch.zeros(4000, 40, dtype=torch.bool)
    switch[:, 0] = switch[:, 20] = True
    generator = seeded()
    innovation = torch.randn(4000, 40, generator=generator, dtype=torch.float64)
    memory = torch.full((4000, 40), 0.8, dtype=torch.float64)
    values = regimes._autoregression(switch, memory, innovation)
    for t in (0, 19, 20, 39):
        assert abs(values[:, t].var() - 1 / (1 - 0.64)) < 0.25
    assert abs(correlation(values[:, 30], values[:, 31]) - 0.8) < 0.03
    assert abs(correlation(values[:, 19], values[:, 20])) < 0.06


def correlation(one, other):
    return torch.corrcoef(torch.stack((one, other)))[0, 1].item()


def fitted(batch):
    """Amplitude, phase and residual variance of each row by least squares on (sin x, cos x)."""
    design = torch.cat([torch.sin(batch.x), torch.cos(batch.x)], 2)
    weights = torch.linalg.lstsq(design, batch.y).solution
    residual = (batch.y - design @ weights).square().sum((1, 2)) / (batch.y.shape[1] - 2)
    a, b = weights[:, 0, 0], -weights[:, 1, 0]  # A sin(x - p) = A cos p sin x - A sin p cos x
    phase = torch.atan2(b, a)
    return torch.hypot(a, b), torch.where(phase < -2, phase + 2 * math.pi, phase), residual


def test_amplitude_phase_inputs_and_noise():
    batch = sinusoids(0.0)(seeded(), 2000, 200)
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
