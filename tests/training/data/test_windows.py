"""Windows of recorded series."""

import numpy as np
import pytest
import torch

from tests.training.tiny import seeded
from training.data.windows import Batch, Series, consecutive, fixed, in_units, windows
from training.errors import BadData


def series(name, start, count, **changed):
    y = torch.arange(start, start + count, dtype=torch.float64)[:, None]
    return Series(**{"x": -y, "y": y, "switch": None, "name": name} | changed)


def test_every_place_is_as_likely_and_no_window_crosses_series():
    source = windows([series("a", 0, 4), series("short", 50, 2), series("b", 100, 6)])
    batch = source(seeded(), 60_000, 3)
    assert batch.x.shape == batch.y.shape == (60_000, 3, 1)
    assert torch.equal(batch.x, -batch.y)
    assert (batch.y.diff(dim=1) == 1).all()
    starts, times = batch.y[:, 0, 0].unique(return_counts=True)
    assert starts.tolist() == [0, 1, 100, 101, 102, 103]
    # 10 000 expected; the standard deviation is 91.
    assert (times - 10_000).abs().max() < 400


def test_what_makes_no_windows_is_named():
    with pytest.raises(BadData, match=r"shorter than 5: 'a' has 4, 'b' has 2"):
        windows([series("a", 0, 4), series("b", 0, 2)])(seeded(), 1, 5)


def test_switches_are_the_series_own_and_true_at_the_start_of_a_window():
    switch = torch.zeros(10, dtype=torch.bool)
    switch[6] = True
    marked = series("a", 0, 10, switch=switch)
    batch = windows([marked])(seeded(), 50, 4)
    wanted = batch.y[:, :, 0] == 6
    wanted[:, 0] = True
    assert torch.equal(batch.switch, wanted)
    assert switch.sum() == 1
    assert windows([marked, series("b", 0, 10)])(seeded(), 5, 4).switch is None


def test_fixed_windows_are_distinct_and_cut():
    y = torch.arange(24.0).view(6, 4, 1)
    source = fixed(Batch(-y, y, y[..., 0] > 3))
    drawn = source(seeded(), 4, 3)
    assert drawn.y.shape == (4, 3, 1)
    assert len(set(drawn.y[:, 0, 0].tolist())) == 4
    assert set(drawn.y[:, 0, 0].tolist()) <= {0, 4, 8, 12, 16, 20}
    assert torch.equal(drawn.switch, drawn.y[..., 0] > 3)
    everything = source(seeded(), 9, 4)
    assert torch.equal(everything.y, y)
    with pytest.raises(BadData, match="at most 4 observations.* got 5"):
        source(seeded(), 1, 5)
    # Consecutive windows are disjoint.
    batch = consecutive([series("a", 0, 7), series("b", 50, 3)], 3)
    assert batch.y[..., 0].tolist() == [[0, 1, 2], [3, 4, 5], [50, 51, 52]]
    with pytest.raises(BadData, match="shorter than 9: 'a' has 7"):
        consecutive([series("a", 0, 7)], 9)


def test_windows_in_units_have_those_of_the_labels_before_them():
    y = torch.randn(400, 2, generator=seeded(3), dtype=torch.float64).cumsum(0)
    y[:, 1] = 1e9 + 1e-3 * y[:, 1]
    y[50:60, 0] = torch.nan
    switch = torch.zeros(400, dtype=torch.bool)
    switch[100] = True
    whole = windows([Series(y[:, :1], y, switch, name="a")])
    plain, scaled_batch = whole(seeded(5), 30, 32), in_units(whole, 20)(seeded(5), 30, 12)
    assert scaled_batch.y.shape == (30, 12, 2)
    assert torch.equal(scaled_batch.x.nan_to_num(), plain.x[:, 20:].nan_to_num())
    assert scaled_batch.switch[:, 0].all()
    assert torch.equal(scaled_batch.switch[:, 1:], plain.switch[:, 21:])
    for window, scaled in zip(plain.y, scaled_batch.y, strict=True):
        for o in range(2):
            before = window[:20, o][~window[:20, o].isnan()].numpy()
            expected = (window[20:, o] - np.median(before)) / before.std(ddof=1)
            torch.testing.assert_close(scaled[:, o], expected, equal_nan=True)


def test_an_output_without_units_has_no_labels_in_its_window():
    y = torch.randn(40, 2, generator=seeded(1), dtype=torch.float64)
    y[:16, 1] = torch.nan
    batch = in_units(windows([Series(None, y, name="a")]), 20)(seeded(), 1, 20).y
    assert batch[..., 1].isnan().all()  # of the 20 before only 4 are there
    assert batch[..., 0].isfinite().all()
    y[15, 1] = 0.5
    whole = in_units(windows([Series(None, y, name="a")]), 20)(seeded(), 1, 20).y
    before = y[15:20, 1]
    expected = (y[20:, 1] - before.median()) / before.std()
    torch.testing.assert_close(whole[0, :, 1], expected)


def test_what_follows_the_end_of_a_short_series_has_no_label():
    one = series("a", 0, 3, switch=torch.tensor([False, True, False]), elapsed=torch.arange(3.0))
    padded = one.padded(5)
    assert padded.y[:, 0].nan_to_num(-1).tolist() == [0, 1, 2, -1, -1]
    assert padded.x[:, 0].tolist() == [0, -1, -2, -2, -2]
    assert padded.switch.tolist() == [False, True, False, False, False]
    assert padded.elapsed.tolist() == [0, 1, 2, 1, 1]
    assert one.padded(3) is one


def test_times_go_with_their_observations():
    timed = [series(name, first, 9, elapsed=torch.arange(first, first + 9).double() / 2)
            for name, first in (("a", 0), ("b", 20))]  # fmt: skip
    for source in (windows(timed), fixed(consecutive(timed, 4)), in_units(windows(timed), 3)):
        batch = source(seeded(), 50, 4)
        assert torch.equal(batch.elapsed, -batch.x[..., 0] / 2)
        assert torch.equal(batch.part(slice(1, 3)).cut(1, 3).elapsed, batch.elapsed[1:3, 1:3])
    assert windows([timed[0], series("c", 0, 9)])(seeded(), 5, 4).elapsed is None


def test_each_window_is_a_series_of_its_own():
    batch = consecutive([series("a", 0, 6, elapsed=torch.arange(6.0))], 3)
    first, second = batch.series()
    assert (first.name, second.name) == ("0", "1")
    assert second.y[:, 0].tolist() == second.elapsed.tolist() == [3, 4, 5]
    assert second.switch is None
    assert torch.equal(second.x, batch.x[1])
