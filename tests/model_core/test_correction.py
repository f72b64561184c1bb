"""Corrections of forecasts, beside a plain loop over all that was forecast and came."""

import math

import numpy as np
import pytest

from model_core import Detector, codec, correction
from model_core.compiled import beside
from model_core.errors import BadState
from model_core.stream import forecasts
from model_core.stream.local import LocalPipeline
from model_core.stream.rows import Observation
from model_core.stream.settings import rules
from model_core.stream_settings import DEFAULTS
from model_core.summary import Summary
from model_core.upm.builtin import Options, build

LEVELS = (0.05, 0.5, 0.95)
MIDDLE, OUTSIDE = correction.interval(LEVELS)
RNG = np.random.default_rng


def pipeline(name="gaussian", levels=LEVELS, **options):
    model = build(name, Options(**options))
    settings = DEFAULTS._replace(anomaly_alarm=None)
    return LocalPipeline(model, rules(model, settings), [0.0], levels)


def observations(y):
    return [Observation(tuple(np.atleast_1d(row).tolist())) for row in y]


def medians_and_answers(y, taken):
    """Medians by the model, and quantiles as answered (T, Q), nan in the warm-up."""
    width = len(LEVELS)
    before = [own.step.uncorrected[0] if own.warm else math.nan for own in taken]
    answered = [
        Summary(own.numbers[None], 1, "real").quantiles[0, :, 0] if own.warm else [math.nan] * width
        for own in taken
    ]
    return np.array(before), np.array(answered)


def expected(y, medians, answered):
    """Points and scales by the definitions, from sums over the whole past."""
    points = np.full(len(y), math.nan)
    scales = np.full(len(y), math.nan)
    past = []  # label, median, and label before
    scale = 1.0
    for t, (label, median) in enumerate(zip(y, medians, strict=True)):
        if math.isnan(median):
            continue
        scales[t] = scale
        points[t] = median
        if past:
            last = past[-1][0]
            ages = 0.995 ** np.arange(len(past) - 2, -1, -1)
            model = sum(ages * [abs(own[0] - own[1]) for own in past[1:]])
            still = sum(ages * [abs(own[0] - own[2]) for own in past[1:]])
            weight = 0.5
            if still:
                weight = 1 / (1 + (1.05 * model / still) ** 16)
            elif model:
                weight = 0.0
            points[t] = weight * median + (1 - weight) * last
        if math.isnan(label):
            continue
        rate = max(0.02, min(0.1, 1 / (len(past) + 5)))
        outside = not answered[t, 0] <= label <= answered[t, -1]
        scale = min(max(scale * (1 + rate * (outside - 0.1)), 1 / 3), 3.0)
        past.append((label, median, past[-1][0] if past else math.nan))
    return points, scales


def walk(count, missing=True):
    y = RNG(3).normal(size=count).cumsum()
    if missing:
        y[60::17] = math.nan
    return y


def test_a_forecast_is_moved_and_scaled_by_its_past_errors(monkeypatch):
    y = walk(260)
    own = pipeline()
    taken = own.take_series(0, observations(y))
    medians, answered = medians_and_answers(y, taken)
    points, scales = expected(y, medians, answered)
    assert np.isfinite(points).sum() > 200
    np.testing.assert_allclose(answered[:, 1], points, rtol=1e-9)
    widths = np.diff(answered[:, [0, -1]])[:, 0]
    plain = pipeline()
    monkeypatch.setattr(plain.slab, "corrected", lambda rows, *_: np.zeros((len(rows), 0, 3)))
    raw = [
        Summary(one.numbers[None], 1, "real").quantiles[0, :, 0]
        for one in plain.take_series(0, observations(y))
        if one.warm
    ]
    warm = np.isfinite(scales)
    np.testing.assert_allclose(widths[warm], scales[warm] * np.ptp(raw, axis=1), rtol=1e-9)


def test_series_at_once_and_one_by_one_give_the_same_bytes():
    y = np.concatenate((walk(150), 30 + RNG(5).normal(size=150)))  # with a change
    together = pipeline()
    answers = together.take_series(0, observations(y))
    alone = pipeline()
    for seen, at_once in zip(observations(y), answers, strict=True):
        (one,) = alone.take([0], [seen])
        assert np.array_equal(one.numbers, at_once.numbers, equal_nan=True)
    rows = (own.slab.row(own.series[0].row) for own in (together, alone))
    first, second = (row.errors for row in rows)
    assert np.array_equal(first, second)


def test_what_was_answered_is_recalled_without_the_filter():
    y = walk(200)
    own = pipeline()
    taken = own.take_series(0, observations(y))
    medians, answered = medians_and_answers(y, taken)
    state = correction.start(1)
    intervals = answered[:, [0, -1]][:, :, None]
    usual = np.zeros(len(y), dtype=bool)
    beside.recall(state, y[:, None], usual, medians[:, None], intervals, OUTSIDE)
    assert np.array_equal(state, own.slab.row(own.series[0].row).errors)


def test_an_outlier_is_outside_of_its_interval_and_the_last_label_but_no_error():
    y = np.array([[0.0], [0.1], [1e4]])
    state = correction.start(1)
    intervals = np.tile([[-1.0], [1.0]], (3, 1, 1))
    beside.recall(state, y, np.array([False, False, True]), np.zeros_like(y), intervals, OUTSIDE)
    last, count, model, still, scale = state
    assert (last, count) == (1e4, 3.0)
    assert (model, still) == (0.1, 0.1)
    assert scale > 1.0


def test_a_walk_is_forecast_about_as_well_as_by_its_last_value_and_noise_better():
    for y, most in ((walk(600, missing=False), 1.02), (RNG(6).normal(size=600), 0.8)):
        taken = pipeline().take_series(0, observations(y))
        medians, answered = medians_and_answers(y, taken)
        warm = np.flatnonzero(np.isfinite(medians))[50:]
        error = np.abs(y[warm] - answered[warm, 1]).mean()
        assert error < most * np.abs(y[warm] - y[warm - 1]).mean()


def test_outputs_are_corrected_each_alone():
    y = np.stack((walk(120, missing=False), RNG(7).normal(size=120)), 1)
    state = correction.start(2)
    numbers = np.zeros((1, 6 + 4 + 2 * 3))
    for label in y:
        numbers[0] = [0, 0, 2.0, 0.5, 0.5, 2.0, 0, 0, 0, 0, -1, 0, 1, -1, 0, 1]
        row = np.zeros(1, np.int64)
        applied = np.full((1, 2, 3), math.nan)
        beside.correct_rows(
            state[None], row, row, label[None], np.zeros(1, dtype=bool), np.zeros((1, 2)), numbers,
            MIDDLE, OUTSIDE, applied,
        )  # fmt: skip
    (median, moved, scale) = applied[0].T
    assert np.array_equal(median, [0, 0])
    np.testing.assert_allclose(numbers[0, :2], moved)
    np.testing.assert_allclose(
        numbers[0, 10:].reshape(2, 3), moved[:, None] + np.outer(scale, [-1, 0, 1])
    )
    covariance = numbers[0, 2:6].reshape(2, 2)
    np.testing.assert_allclose(covariance, np.outer(scale, scale) * [[2, 0.5], [0.5, 2]])
    assert scale[0] > scale[1]
    assert abs(moved[1]) < 0.1 < abs(moved[0])


def test_lists_and_arrays_give_the_same_numbers():
    y = RNG(8).normal(size=(80, 1))
    listed = correction.start(1).tolist()
    array = correction.start(1)
    place = np.zeros(1, np.int64)
    for label, outlying in zip(y, np.arange(80) % 9 == 5, strict=True):
        numbers = [0.1, 2.0, 0.5, 0.5, -1.5, 0.1, 1.5]
        rows = np.array([numbers])
        applied = np.full((1, 1, 3), math.nan)
        beside.correct_rows(
            array[None], place, place, label[None], np.array([outlying]), np.zeros((1, 1)), rows,
            MIDDLE, OUTSIDE, applied,
        )  # fmt: skip
        correction.observe(
            listed, label.tolist(), outlying, [0.0], numbers, MIDDLE, OUTSIDE, [[0.0] * 3]
        )
        assert rows[0].tolist() == numbers
        assert array.tolist() == listed


@pytest.mark.parametrize(
    ("place", "value"), [(0, math.nan), (1, -1.0), (2, -1.0), (4, 0.0), (4, 10.0)]
)
def test_states_that_none_can_be_are_refused(place, value):
    own = pipeline()
    own.take_series(0, observations(walk(40)))
    layout = own.slab.layout
    row = own.slab.row(own.series[0].row)
    stored = codec.decode(layout, row, codec.encode(layout, row))
    assert stored.errors.tolist() == row.errors.tolist()
    row.errors[place] = value
    with pytest.raises(BadState, match="errors of forecasts"):
        codec.decode(layout, row, codec.encode(layout, row))


def test_counts_keep_the_quantiles_of_their_model():
    own = pipeline("poisson")
    taken = own.take_series(0, observations(RNG(9).poisson(4, 60).astype(float)))
    assert all(not step.step.uncorrected for step in taken if step.warm)
    assert all((step.numbers[-3:] % 1 == 0).all() for step in taken if step.warm)


def test_forecasts_begin_with_the_next_one():
    detector = Detector("gaussian")
    for label in walk(200, missing=False):
        detector.update(label)
    expected = detector.predict()
    first, *_, last = detector.forecast(12)
    # A kernel merges components for quantiles, which the forecast of several steps does not.
    assert first.quantiles == pytest.approx(expected.quantiles, abs=1e-3 * expected.sd)
    assert first.mean == pytest.approx(expected.mean, abs=1e-3 * expected.sd)  # moved by the median
    assert last.quantiles[0.5] == pytest.approx(expected.quantiles[0.5], rel=0.02)


def test_paths_are_corrected_as_the_next_forecast_is():
    own = pipeline("averaged")
    own.take_series(0, observations(RNG(6).normal(size=60)))
    slab = own.slab
    row = own.series[0].row

    def quantiles():
        """Of the next label, of the next four, and of paths of these: (9, Q)."""
        following = Summary(own.predict(0, (), 1.0, math.nan)[None], 1, "real").quantiles[0, :, 0]
        steps, drawn = forecasts.drawn(slab, row, own.coming(), np.zeros((4, 1)), LEVELS, 64, 0)
        paths = np.quantile(drawn[:, :, 0], LEVELS, axis=0).T
        return np.array([following, *steps.quantiles[:, :, 0], *paths])

    before = quantiles()
    learned = slab.row(row)
    scale = learned.errors[4]
    learned.errors[:] = (5.0, 40.0, 1e3, 1.0, 3.0)  # a model that is hopeless beside a last 5
    slab.put(row, learned)
    after = quantiles()
    np.testing.assert_allclose(after[:5, 1], 5.0, rtol=1e-9)
    np.testing.assert_allclose(np.diff(after), np.diff(before) * 3.0 / scale, rtol=1e-9)
    np.testing.assert_allclose(before[0], before[1], atol=1e-3)  # the next label is no draw


def test_levels_have_the_median():
    with pytest.raises(ValueError, match=r"0\.5 among them"):
        correction.interval((0.05, 0.95))
    assert Detector(quantiles=(0.1, 0.9)).update(1.0) is not None
