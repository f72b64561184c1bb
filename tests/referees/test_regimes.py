"""What a memory of regimes is scored by."""

import numpy as np
import pytest

from model_core.upm.builtin import Options, build
from tests.referees import regimes
from training.quality.series import LabelledSeries

MODEL = build("gaussian", Options())


def test_a_memory_recognises_levels_that_recur_and_none_that_do_not():
    new, back = regimes.called(MODEL, True, 4.0, 8, 2)
    assert new[1] <= 6
    assert back[0] > 0.7 * back[1] > 20
    new, back = regimes.called(MODEL, False, 4.0, 8, 2)
    assert new[0] < 0.3 * new[1]
    assert back == [0, 0]
    new, back = regimes.called(MODEL, True, 4.0, 0, 2)
    assert new[0] == back[0] == 0
    assert regimes.seen_once(MODEL, 0.1, 8) == 0
    assert regimes.seen_once(MODEL, 6.0, 8) > 0.5


def test_windows_and_kinds_of_a_recorded_series():
    rng = np.random.default_rng(2)
    y = np.concatenate([level + rng.normal(size=100) for level in (0, 8, 0, 8, -9)])
    window = np.zeros(500, bool)
    window[95:130] = window[195:230] = True
    changed, returned, _, hit = regimes.recorded(MODEL, [LabelledSeries("a", y, window=window)], 4)
    assert hit == 1  # the other one holds a return
    assert changed == returned == 1000 * 2 / 500


def test_vectors_whose_states_recur_are_forecast_better():
    rng = np.random.default_rng(3)
    state = np.repeat([0, 1] * 5, 40)[:, None]
    bees = LabelledSeries("a", rng.normal(size=(400, 2)) + 6 * state)
    pause = np.repeat([0, 1] * 4, 500)[:, None]
    hasc = LabelledSeries(
        "b", rng.normal(size=(4000, 2)) * np.where(pause, 1.0, 9.0), {"corpus": []}
    )
    (_, first), (name, second) = regimes.vectors({"bees": [bees], "HASC": [hasc]})
    assert name == "b windows"
    assert second.shape == (80, 2)
    np.testing.assert_allclose(second.std(0), 1.0)
    spread = second[:, 0].reshape(8, 10).mean(1)
    assert (spread[::2] > 0.9).all()
    assert (spread[1::2] < -0.9).all()
    scores, gain, plain, remembering = regimes.gained(
        build("multivariate", Options(y_dim=2)), first
    )
    assert len(plain) == len(remembering) == 9
    assert sum(returned for _, returned in remembering) == 8
    assert gain.low > 0.1
    assert gain.mean == pytest.approx(scores[1] - scores[0], abs=0.01)


def test_a_regression_gains_where_tasks_recur():
    model = regimes.random_features(True)
    for tasks, least in ((4, 0.02), (0, -0.02)):
        plain, remembering = (regimes.sinusoid(model, tasks, memory, 3) for memory in (0, 8))
        assert (remembering - plain).mean() > least
