"""What a memory of regimes is scored by."""

import numpy as np
import pytest

from model_core.upm.builtin import Options, build
from training.quality import regimes
from training.quality.series import Annotated, Corpora, Scalars
from training.statistics import Estimate

MODEL = build("gaussian", Options())
GAINED = {
    "log_score": [1.0, 2.0],
    "gain": Estimate(0.5, 0.4, 0.6, 9),
    "changes": [3, 4],
    "back": 2,
}


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
    wanted = regimes.Simulations(MODEL, 1, 2, 1500)
    back = regimes.simulated(wanted, 8, True, 4.0)
    assert back["back"][0] > 0.7 * back["back"][1]
    assert back["pure"] > 0.9
    without = regimes.simulated(wanted, 0, True, 4.0)
    assert without["back"][0] == without["new"][0] == 0
    assert back["log_score"] > without["log_score"]
    never = regimes.simulated(wanted, 8, False, 4.0)
    assert never["new"][0] < 0.3 * never["new"][1]


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


def test_vectors_whose_states_recur_are_forecast_better(capsys):
    rng = np.random.default_rng(3)
    state = np.repeat([0, 1] * 5, 40)[:, None]
    bees = Annotated("a", rng.normal(size=(400, 2)) + 6 * state, {"corpus": []})
    pause = np.repeat([0, 1] * 4, 500)[:, None]
    hasc = Annotated("b", rng.normal(size=(4000, 2)) * np.where(pause, 1.0, 9.0), {"corpus": []})
    series = regimes.vectors(Corpora({"bees": [bees], "HASC": [hasc]}, {}, []))
    assert [one.y.shape for one in series] == [(400, 2), (80, 2)]
    for one in series:
        np.testing.assert_allclose(one.y.std(0), 1.0)
    spread = series[1].y[:, 0].reshape(8, 10).mean(1)
    assert (spread[::2] > 0.9).all()
    assert (spread[1::2] < -0.9).all()
    row = regimes.gained(build("multivariate", Options(y_dim=2)), series[0].y, 4)
    assert row["changes"] == [9, 9]
    assert row["back"] == 8
    assert row["gain"].low > 0.1
    assert row["gain"].mean == pytest.approx(row["log_score"][1] - row["log_score"][0], abs=0.01)


def test_every_table_is_there(monkeypatch):
    monkeypatch.setattr(regimes, "gained", lambda *_: GAINED)
    y = np.random.default_rng(4).normal(size=(120, 2))
    corpora = Corpora({"bees": [Annotated("a", y, {})]}, {"NAB": [Scalars("b", y[:, 0])]}, [])
    wanted = regimes.Simulations(MODEL, 0, 2, 400)
    printed = {table.title: table.rows for table in regimes.tables(wanted, corpora, (0, 8), 100)}
    assert [len(rows) for rows in printed.values()] == [2, 12, 6, 2, 8]
    vector = ("a", "joint", "1.000", "2.000", "0.500 (0.400, 0.600)", "3", "4", "2")
    assert printed["recorded vectors"][0] == vector
    assert printed["recorded series"][0][4] == "0/0"
    recur = printed["switching sinusoid"][:2]
    assert [row[:3] for row in recur] == [("fitted", "4", "0"), ("fitted", "4", "8")]
    gains = [float(row[4].split()[0]) for row in printed["switching sinusoid"]]
    assert gains[0] == 0.0 < gains[1]  # over itself; where tasks recur
    assert gains[3] > -0.02  # where they do not
