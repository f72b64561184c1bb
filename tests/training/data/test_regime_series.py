"""Generated regimes: what they are made of, and that a seed decides them."""

import torch

from training.data import regime_series
from training.data.regime_series import RegimeSeries


def test_shapes_and_that_the_seed_decides():
    source = RegimeSeries(0.1)
    one, same = (source.draw(torch.Generator().manual_seed(3), 4, 30) for _ in range(2))
    assert one.x is None
    assert one.y.shape == (4, 30, 1)
    assert one.y.dtype == torch.float64
    assert one.switch[:, 0].all()
    torch.testing.assert_close(one.y, same.y)
    other = source.draw(torch.Generator().manual_seed(4), 4, 30)
    assert not torch.equal(one.y, other.y)


def test_memory_lasts_within_a_regime_only():
    switch = torch.zeros(4000, 40, dtype=torch.bool)
    switch[:, 0] = switch[:, 20] = True
    generator = torch.Generator().manual_seed(0)
    innovation = torch.randn(4000, 40, generator=generator, dtype=torch.float64)
    memory = torch.full((4000, 40), 0.8, dtype=torch.float64)
    found = regime_series._autoregression(switch, memory, innovation)
    for t in (0, 19, 20, 39):
        assert abs(found[:, t].var() - 1 / (1 - 0.64)) < 0.25
    assert abs(correlation(found[:, 30], found[:, 31]) - 0.8) < 0.03
    assert abs(correlation(found[:, 19], found[:, 20])) < 0.06


def correlation(one, other):
    return torch.corrcoef(torch.stack((one, other)))[0, 1].item()


def test_levels_hold_and_trends_start_anew(monkeypatch):
    monkeypatch.setattr(regime_series, "NOISE", (1e-9, 2e-9))
    batch = RegimeSeries(0.05).draw(torch.Generator().manual_seed(0), 50, 100)
    y, switch = batch.y.squeeze(-1), batch.switch
    straight = (y[:, 2:] - 2 * y[:, 1:-1] + y[:, :-2]).abs() < 1e-6
    within = ~switch[:, 2:] & ~switch[:, 1:-1]
    assert straight[within].all()
    starts = y[switch]
    assert abs(starts.std() - regime_series.LEVEL) < 0.5
