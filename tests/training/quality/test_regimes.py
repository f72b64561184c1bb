"""What a memory of regimes is scored by."""

import numpy as np
from rich.console import Console

from model_core.upm.builtin import Options, build
from training.quality import regimes
from training.quality.series import Scalars

MODEL = build("gaussian", Options())


def test_states_are_as_told():
    rng = np.random.default_rng(0)
    for recurring in (False, True):
        one = regimes.states(rng, recurring, 2.0, 2000)
        means = [one.y[one.state == own].mean() for own in np.unique(one.state)]
        assert len(means) == (4 if recurring else len(one.changes) + 1)
        assert all(back == recurring for _, back in one.changes[8:])
        assert np.abs(np.diff(one.state)).astype(bool).nonzero()[0].tolist() == [
            at - 1 for at, _ in one.changes
        ]
        apart = np.abs(np.subtract.outer(means, means))
        assert (apart[~np.eye(len(means), dtype=bool)] > 0.2).all()


def test_a_memory_recognises_states_that_recur_and_none_that_do_not():
    back = regimes.simulated(MODEL, 8, True, 4.0, 1, 2, 1500)
    assert back["back"][1] > 0.7 * sum(back["back"])
    assert back["pure"] > 0.9
    without = regimes.simulated(MODEL, 0, True, 4.0, 1, 2, 1500)
    assert without["back"][1] == without["new"][1] == 0
    assert back["log_score"] > without["log_score"]
    never = regimes.simulated(MODEL, 8, False, 4.0, 1, 2, 1500)
    assert never["new"][1] < 0.3 * sum(never["new"])


def test_windows_and_kinds_of_a_recorded_series():
    rng = np.random.default_rng(2)
    y = np.concatenate([level + rng.normal(size=100) for level in (0, 8, 0, 8, -9)])
    window = np.zeros(500, bool)
    window[95:130] = window[195:230] = True
    row = regimes.recorded(MODEL, [Scalars("a", y, window)], 4)
    assert row["windows"] == 2
    assert row["hit"] == 1  # the other one holds a return
    assert row["changed"] == 1000 * 2 / 500
    assert row["returned"] == 1000 * 2 / 500


def test_tables_are_printed(capsys):
    regimes.show(MODEL, [], (0, 2), 0, 1, Console(width=120), 400)
    printed = capsys.readouterr().out
    assert "simulated states" in printed
    assert "median delays" in printed
