"""Choices on halves of TCPD: what is chosen on one half is scored on the other."""

import numpy as np
import pytest

from model_core.upm.averaged import Averaged
from training.evaluation.quality import selection
from training.evaluation.tcpd import Series


def test_candidates_lie_around_the_defaults():
    model = Averaged()
    first, *others = selection.candidates(model, 40, np.random.default_rng(1))
    assert first[0] is model
    assert len(others) == 40
    for changed, settings in others:
        factors = [
            getattr(changed, name) / getattr(model, name)
            for name in ("kappa", "slope", "autoregression", "alpha", "beta", "hazard")
        ]
        assert all(0.5 <= factor <= 2.0 for factor in factors)
        assert len(set(factors)) == 6
        odds = settings.threshold / (1 - settings.threshold)
        assert 49.4 <= odds <= 198.1  # of .99, times 1/2 to 2


def test_the_choice_of_one_half_is_scored_on_the_other():
    """The candidate that wins on each series alone scores nothing on all others."""
    table = np.full((5, 4, 2), 0.2)
    table[0] = 0.4
    for series in range(4):
        table[1 + series, series] = 2.0
    halves = [np.array([0, 1, 2, 3])]
    row = selection._row("online", table, halves)
    # On either half one of two candidates comes to 1.1, and to .2 on the other.
    assert row.chosen == (pytest.approx((0.2, 0.0)), pytest.approx((0.2, 0.0)))
    assert row.default == (pytest.approx((0.4, 0.0)), pytest.approx((0.4, 0.0)))
    assert row.beaten == 0.0


def test_scores_of_series_with_a_clear_change():
    rng = np.random.default_rng(2)
    series = [
        Series(str(k), np.r_[rng.normal(size=60), 9 + rng.normal(size=60)][:, None].tolist(), {
            "a": [60], "b": [60],
        })
        for k in range(2)
    ]  # fmt: skip
    calls = []
    rows = selection.selected(series, Averaged(), 2, rng, lambda: calls.append(1))
    assert [row.output for row in rows] == list(selection.OUTPUTS)
    assert len(calls) == 3
    for row in rows:
        assert row.default[0] == pytest.approx((1.0, 0.0))
        assert row.chosen[0][0] > 0.8
