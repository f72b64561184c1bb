"""Windows of recorded series."""

import pytest
import torch

from training.data.base import Batch
from training.data.windows import Fixed, Series, Windows, consecutive
from training.errors import BadData


def series(name, start, count, **changed):
    y = torch.arange(start, start + count, dtype=torch.float64)[:, None]
    return Series(**{"x": -y, "y": y, "switch": None, "name": name} | changed)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_every_place_is_as_likely_and_no_window_crosses_series():
    source = Windows([series("a", 0, 4), series("short", 50, 2), series("b", 100, 6)])
    batch = source.draw(seeded(), 60_000, 3)
    assert batch.x.shape == batch.y.shape == (60_000, 3, 1)
    assert torch.equal(batch.x, -batch.y)
    assert (batch.y.diff(dim=1) == 1).all()
    starts, times = batch.y[:, 0, 0].unique(return_counts=True)
    assert starts.tolist() == [0, 1, 100, 101, 102, 103]
    # 10 000 expected; the standard deviation is 91.
    assert (times - 10_000).abs().max() < 400


def test_a_seed_decides_the_windows():
    source = Windows([series("a", 0, 500)])
    once, again = (source.draw(seeded(7), 20, 5).y for _ in range(2))
    assert torch.equal(once, again)
    assert not torch.equal(once, source.draw(seeded(8), 20, 5).y)


def test_windows_that_fit_nowhere_name_the_series():
    with pytest.raises(BadData, match=r"shorter than 5: 'a' has 4, 'b' has 2"):
        Windows([series("a", 0, 4), series("b", 0, 2)]).draw(seeded(), 1, 5)
    with pytest.raises(BadData, match="at least one series"):
        Windows([])


def test_series_of_other_dimensions_are_refused():
    wide = series("wide", 0, 4, y=torch.zeros(4, 2))
    with pytest.raises(BadData, match=r"'wide' has .*\(1, 2\), 'a' \(1, 1\)"):
        Windows([series("a", 0, 4), wide])
    ragged = series("ragged", 0, 4, x=torch.zeros(3, 1))
    with pytest.raises(BadData, match="'ragged' has 3 inputs and 4 labels"):
        Windows([ragged])


def test_switches_are_the_series_own_and_true_at_the_start_of_a_window():
    switch = torch.zeros(10, dtype=torch.bool)
    switch[6] = True
    known = series("a", 0, 10, switch=switch)
    batch = Windows([known]).draw(seeded(), 50, 4)
    wanted = batch.y[:, :, 0] == 6
    wanted[:, 0] = True
    assert torch.equal(batch.switch, wanted)
    assert switch.sum() == 1
    assert Windows([known, series("b", 0, 10)]).draw(seeded(), 5, 4).switch is None


def test_labels_alone():
    batch = Windows([series("a", 0, 5, x=None)]).draw(seeded(), 2, 3)
    assert batch.x is None
    assert batch.y.shape == (2, 3, 1)


def test_fixed_windows_are_distinct_and_cut():
    y = torch.arange(24.0).view(6, 4, 1)
    source = Fixed(Batch(-y, y, y[..., 0] > 3))
    drawn = source.draw(seeded(), 4, 3)
    assert drawn.y.shape == (4, 3, 1)
    assert len(set(drawn.y[:, 0, 0].tolist())) == 4
    assert set(drawn.y[:, 0, 0].tolist()) <= {0, 4, 8, 12, 16, 20}
    assert torch.equal(drawn.switch, drawn.y[..., 0] > 3)
    everything = source.draw(seeded(), 9, 4)
    assert torch.equal(everything.y, y)
    with pytest.raises(
        BadData, match="expected at most 4 observations, as in the fixed windows, got 5"
    ):
        source.draw(seeded(), 1, 5)


def test_consecutive_windows_are_disjoint():
    source = consecutive([series("a", 0, 7), series("b", 50, 3)], 3)
    assert source.held.y[..., 0].tolist() == [[0, 1, 2], [3, 4, 5], [50, 51, 52]]
    with pytest.raises(BadData, match="shorter than 9: 'a' has 7"):
        consecutive([series("a", 0, 7)], 9)
