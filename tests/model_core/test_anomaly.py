"""Ranks by a sketch of fixed size, beside those of all that came; the anomaly they make."""

import bisect
import math

import numpy as np
import pytest

from model_core import anomaly
from model_core.compiled import beside

RNG = np.random.default_rng
ROOM = np.empty(anomaly.ROOM)


def ranked(states, rows, surprises, labels) -> np.ndarray:
    """Anomalies of rows, whose states take the labels in."""
    anomalies = np.full(len(rows), np.nan)
    beside.rank_rows(states, rows, surprises, labels, anomalies, ROOM)
    return anomalies


def series(name, count):
    noise = RNG(0).normal(size=count)
    return {
        "normal": noise,
        "heavy": np.exp(3 * noise),
        "falling": -np.arange(count) + 1e3 * noise,
        "walk": RNG(1).normal(size=count).cumsum(),
        "few": RNG(0).integers(0, 7, count).astype(float),
        "rounded": np.round(noise, 2),
        "sorted": np.sort(noise),
        "reversed": np.sort(noise)[::-1],
    }[name]


def exact_ranks(values):
    """Share of values as large, this one counted, by keeping them all."""
    past, ranks = [], []
    for value in values:
        place = bisect.bisect_left(past, value)
        ranks.append((1 + len(past) - place) / (1 + len(past)))
        past.insert(place, value)
    return np.array(ranks)


def sketched_ranks(values):
    state = anomaly.start([], [])
    sketch = state[: len(state) // 2]
    return np.array([anomaly.rank(sketch, value, ROOM) for value in values]), state


def observed(surprises, labels):
    labels = labels.reshape(len(labels), -1)
    outputs = labels.shape[1]
    states = anomaly.start([0.0] * outputs, [1.0] * outputs)[None]
    rows = np.zeros(len(surprises), dtype=np.int64)
    return ranked(states, rows, surprises, labels), states


@pytest.mark.parametrize(
    "name", ["normal", "heavy", "falling", "walk", "rounded", "sorted", "reversed"]
)
def test_ranks_are_about_those_of_all_that_came(name):
    values = series(name, 5000)
    ranks, state = sketched_ranks(values)
    off = np.abs(np.log10(ranks) - np.log10(exact_ranks(values)))
    assert off.max() < 0.15
    assert off.mean() < 0.04
    assert anomaly.valid(state)
    used = int(state[0])
    kept = state[1 : 1 + used]
    assert sum(state[1 + anomaly.POINTS :][:used]) == 5000
    assert np.array_equal(kept, np.sort(kept))
    assert kept[-1] == values.max()
    # The largest so far is known as such.
    newest = np.flatnonzero(values[1:] > np.maximum.accumulate(values)[:-1]) + 1
    assert np.array_equal(ranks[newest], 1 / (newest + 1))


def test_ranks_are_exact_as_long_as_few_values_came():
    for values in (series("normal", anomaly.POINTS - 1), series("few", 5000)):
        ranks, _ = sketched_ranks(values)
        assert np.array_equal(ranks, exact_ranks(values))


def test_distance_is_that_of_a_moving_mean_from_all_before():
    labels = RNG(2).normal(3.0, 2.0, (300, 2))
    labels[40, 1] = math.nan  # one output is missing
    state = anomaly.start([3.0, 0.0], [2.0, 0.5])
    found = [anomaly.distance(state, label) for label in labels]
    scaled = (labels - [3.0, 0.0]) / [2.0, 0.5]
    moving = [scaled[0, 0], scaled[0, 1]]
    for t in range(1, 300):
        total = 0.0
        for i in range(2):
            if math.isnan(scaled[t, i]):
                continue
            moving[i] += (scaled[t, i] - moving[i]) / 8
            past = scaled[:t, i][np.isfinite(scaled[:t, i])]
            if len(past) > 1:
                total += (moving[i] - past.mean()) ** 2 / past.var(ddof=1)
        assert found[t] == pytest.approx(total, rel=1e-9)


def test_an_anomaly_joins_both_ranks_by_fishers_method():
    y = RNG(4).normal(size=200)
    surprises = np.floor(0.5 * y**2 * anomaly.RESOLUTION + 0.5) / anomaly.RESOLUTION
    found, _ = observed(0.5 * y**2, y)
    state = anomaly.start([0.0], [1.0])
    distances = np.array([anomaly.distance(state, label) for label in y[:, None]])
    x = sketched_ranks(surprises)[0] * sketched_ranks(distances)[0]
    np.testing.assert_allclose(found, 1 - x * (1 - np.log(x)), rtol=1e-12)


def test_an_outlier_and_a_shift_are_strange():
    y = RNG(3).normal(size=1000)
    y[500] = 8.0
    found, _ = observed(0.5 * y**2, y)
    assert found[500] > 0.999
    y = RNG(3).normal(size=1000)
    y[500:] += 4.0  # the filter gets used to it: its surprises are those of the noise
    found, _ = observed(0.5 * (y - 4.0 * (np.arange(1000) > 505)) ** 2, y)
    assert found[500:520].max() > 0.9998


def test_a_class_has_the_rank_of_its_surprise():
    surprises = series("few", 500)
    found, _ = observed(surprises, np.empty((500, 0)))
    assert np.allclose(found, 1 - exact_ranks(surprises))
    assert found[100:].max() < 0.9  # ties count as strange: what comes all the time is not


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_what_is_missing_is_no_more_and_no_less_strange(unit):
    """Surprises are in the units of the outputs, and so would the lack of one be."""
    rng = RNG(5)
    scale = [1.0, unit]
    state = anomaly.start([0.0, 0.0], scale)

    def observe(*label):
        known = [(y, s) for y, s in zip(label, scale, strict=True) if y == y]
        surprise = sum(0.5 * (y / s) ** 2 + math.log(s * math.sqrt(2 * math.pi)) for y, s in known)
        return anomaly.observe(state, surprise, np.array(label), ROOM)

    found = []
    for t, row in enumerate((rng.normal(size=(600, 2)) * scale).tolist()):
        found.append(observe(row[0], math.nan if t % 3 == 0 else row[1]))
    lacking = np.array(found[60::3])
    assert 0.3 < lacking.mean() < 0.7
    assert (lacking > 0.99).mean() < 0.05
    assert observe(9.0, math.nan) > 0.99


def test_without_a_label_a_row_stays_as_it_is():
    states = np.stack([anomaly.start([0.0], [1.0])] * 2)
    ranked(states, np.array([0, 1, 0]), np.array([1.0, 2.0, 0.5]), np.ones((3, 1)))
    before = states.copy()
    nothing = np.array([math.nan, math.inf])
    found = ranked(states, np.array([0, 1]), nothing, np.ones((2, 1)))
    assert np.isnan(found).all()
    assert np.array_equal(states, before)


@pytest.mark.parametrize("outputs", [0, 1, 3])
def test_compiled_it_is_the_same_to_the_last_bit(outputs):
    rng = RNG(outputs)
    rows = rng.integers(0, 5, 2000)
    surprises = np.where(rng.random(2000) < 0.2, rng.integers(0, 3, 2000), rng.normal(size=2000))
    surprises[::17] = math.nan
    labels = np.exp(rng.normal(size=(2000, outputs)))
    if outputs:
        labels[::29, 0] = math.nan
    states = np.stack([anomaly.start([0.5] * outputs, [2.0] * outputs)] * 5)
    others = states.copy()
    found = ranked(states, rows, surprises, labels)
    expected = [
        math.nan if math.isnan(surprise) else anomaly.observe(others[row], surprise, label, ROOM)
        for row, surprise, label in zip(rows, surprises, labels, strict=True)
    ]
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.array_equal(states, others)


def test_states_are_finite_whatever_comes_and_others_are_not_valid():
    y = np.array([1e100, -1e100, 1e300, 0.0, 1e-300] * 40)
    found, states = observed(np.abs(y) / 1e295, y)
    assert np.isfinite(found).all()
    assert anomaly.valid(states[0])
    _, states = observed(series("normal", 100), series("normal", 100))
    assert anomaly.valid(states[0])
    for at, value in ((0, 48), (0, -1), (0, 2.5), (0, math.nan), (1, 1e9), (1, math.inf), (49, 0),
                      (49, 1.5), (49, 1e16), (-2, -1), (-4, -1), (-5, 0)):  # fmt: skip
        other = states[0].copy()
        other[at] = value
        assert not anomaly.valid(other), (at, value)
