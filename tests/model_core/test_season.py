"""Seasons: periods by exhaustive search, evidence by brute force, what noise and changes do."""

import math

import numpy as np
import pytest

from model_core import periodicity
from model_core.compiled import periods
from model_core.stream import season

DAY = 24
KINDS = ("white", "heavy tails", "AR(0.9)", "random walk", "drift")


def noise(kind, rng, n):
    e = rng.normal(size=n)
    if kind == "heavy tails":
        return rng.standard_t(3, n)
    if kind == "AR(0.9)":
        for t in range(1, n):
            e[t] += 0.9 * e[t - 1]
    if kind == "random walk":
        return e.cumsum()
    return e + 0.002 * np.arange(n) if kind == "drift" else e


def sine(rng, n, period=DAY, sd=0.5):
    return np.sin(2 * np.pi * np.arange(n) / period) * 1.2 + sd * rng.normal(size=n)


def square(rng, n, period=DAY, sd=0.5):
    return np.where(np.arange(n) % period < period / 3, 1.0, -1.0) + sd * rng.normal(size=n)


def passed(y):
    """State after labels, and the positions at which a filter would begin anew."""
    y = y.reshape(len(y), -1)
    state = season.blank(y.shape[1])
    begun = [t for t, label in enumerate(y.tolist()) if season.observe(state, [label])]
    return state, begun


def searched(y):
    """State after labels (T,) or (T, d), if they have a season."""
    (state,) = season.searched([y if y.ndim > 1 else y[:, None]])
    return state


def ahead(state, count=DAY):
    return season.coming(state, count)[:, 0]


def brute_force_evidence(rows):
    """Evidence of rows (n, P) that are white, harmonic by harmonic."""
    n, period = rows.shape
    total = most = 0.0
    choices = 0
    for k in range(1, (period + 1) // 2):
        wave = np.exp(-2j * np.pi * k * np.arange(period) / period)
        coefficients = [complex((row * wave).sum()) for row in rows]
        mean = sum(coefficients) / n
        squares = sum(abs(each) ** 2 for each in coefficients)
        within = sum(abs(each - mean) ** 2 for each in coefficients)
        total += (n - 1) * math.log(squares / within)
        if k & (k - 1) == 0 or k == (period - 1) // 2:
            poisson = sum(math.exp(j * math.log(total) - math.lgamma(j + 1)) for j in range(k))
            choices += 1
            most = max(most, total - math.log(poisson) - math.log(choices * (choices + 1)))
    return most


def recent(state, count):
    """Up to so many of the last labels, less their season as it is known now."""
    known = season.offsets(state, count)
    return season._labels(state, len(known)).T - known


def test_evidence_is_that_of_the_harmonics():
    y = sine(np.random.default_rng(0), 5 * DAY, sd=2.0)
    rows = periodicity._whitened(y, DAY)
    assert periodicity.evidence(y, DAY) == pytest.approx(brute_force_evidence(rows), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS[:4])
def test_evidence_in_noise_is_as_rare_as_it_says(kind):
    rng = np.random.default_rng(1)
    for period, level in ((7, 2.0), (24, 4.0)):
        scores = [
            periodicity.evidence(noise(kind, rng, 5 * period + 1), period) for _ in range(600)
        ]
        assert np.mean(np.array(scores) >= level) < 1.2 * math.exp(-level)


def test_noise_and_straight_lines_have_no_season():
    rng = np.random.default_rng(2)
    for kind in KINDS:
        for _ in range(3):
            assert passed(noise(kind, rng, 700))[1] == [], kind
            assert searched(noise(kind, rng, 1200)) is None, kind
    for slope in (0.1, -3.0):
        y = slope * np.arange(300.0)
        y[170:] = y[170]
        assert periodicity.found([periodicity.detrended(y)[None]]) == [(0, 0)]
        assert passed(y)[1] == []
    for y in ([], [1.0], [1.0] * 11, [np.nan] * 50, [7.0] * 2000):
        assert searched(np.array(y)) is None


@pytest.mark.parametrize("make", [sine, square])
def test_the_period_is_that_of_an_exhaustive_search(make):
    for period in (7, 24, 96):
        y = make(np.random.default_rng(3), 8 * period, period)
        y -= y.mean()
        every = range(periodicity.SHORTEST, len(y) // periodicity.PERIODS + 1)
        best = max(every, key=lambda each: periodicity.evidence(y, each))
        assert periodicity.found([y[None]]) == [(best, 0)]
        assert abs(best - period) <= period // 48


def explained(y, period, harmonics):
    """Squares that waves of a period and a mean explain, by least squares."""
    turns = 2 * np.pi * np.arange(len(y)) / period
    waves = [np.ones(len(y))]
    for k in range(1, min(harmonics, (period - 1) // 2) + 1):
        waves += [np.cos(k * turns), np.sin(k * turns)]
    fit = np.column_stack(waves) @ np.linalg.lstsq(np.column_stack(waves), y, rcond=None)[0]
    return float((fit**2).sum())


@pytest.mark.parametrize("period", [7, 24, 97])
def test_compiled_loops_give_what_numpy_does(period):
    y = noise("random walk", np.random.default_rng(period), 6 * period + 5)
    at = np.arange(len(y))
    straight = np.polynomial.Polynomial.fit(at, y, 1)(at)
    np.testing.assert_allclose(periods.detrended(y), y - straight, atol=1e-9)

    whole = y[len(y) % period :].reshape(-1, period)
    means = whole.mean(1)
    within = (np.arange(period) - (period - 1) / 2) / period
    for robust, slopes in ((True, np.median(np.diff(means))), (False, np.gradient(means))):
        rows = whole - means[:, None] - np.outer(slopes * np.ones(len(means)), within)
        np.testing.assert_allclose(periods.folded(y, period, robust, 12), rows, atol=1e-9)
    assert periods.folded(y, period, False, 4).shape == (4, period)

    between = (rows.mean(0) ** 2).mean()
    share = (between - ((rows**2).mean() - between) / 5) / (rows**2).mean()
    assert periods.explained(y, period, 12) == pytest.approx(share)

    off = rows - rows.mean(0)
    lag = (off[:, 1:] * off[:, :-1]).sum() / (off**2).sum()
    assert periods.correlation(rows) == pytest.approx(lag)

    weights = np.ones(len(rows))
    for _ in range(3):
        distances = ((rows - np.average(rows, 0, weights)) ** 2).mean(1)
        weights = 1 / np.maximum(distances / np.median(distances), 1)
    np.testing.assert_allclose(periods.weights(rows), weights)

    harmonics = periodicity._harmonics(rows)
    mean, inner, between, total = periods.variation(harmonics, weights)
    expected = np.average(harmonics, 0, weights)
    spread = np.average(np.abs(harmonics - expected) ** 2, 0, weights)
    assert total == pytest.approx(weights.sum() ** 2 / (weights**2).sum())
    np.testing.assert_allclose(mean, expected)
    np.testing.assert_allclose(inner, total * spread)
    np.testing.assert_allclose(between, total * np.abs(expected) ** 2)

    for candidate in (period - 1, period, period + 1):
        for count in range(1, min(9, candidate // 2)):
            fitted = periods.fitted(y, candidate, count)
            assert fitted == pytest.approx(explained(y, candidate, count))

    y[3] = 1e9
    squares = (y - np.median(y)) ** 2
    most = (4 * 1.4826) ** 2 * np.median(squares)
    assert periods.spread(y) == pytest.approx(np.minimum(squares, most).mean())


@pytest.mark.parametrize("make", [sine, square])
def test_a_period_is_refined_to_the_best_fit_of_its_harmonics(make):
    for period, other, apart in ((7, 7, 1), (24, 25, 1), (96, 93, 4), (288, 295, 9)):
        y = periodicity.detrended(make(np.random.default_rng(3), 4 * period + 40, period))
        rows = periodicity._folded(y, other)
        count = min(periodicity._evidence(y, other)[1], periodicity.FITTED)
        near = range(other - apart, min(other + apart, len(y) // periodicity.PERIODS) + 1)
        best = max(near, key=lambda each: explained(rows.ravel(), each, count))
        assert periodicity.refined(y[None], other, apart) == best
        assert periodicity.refined(1e200 * y[None], other, apart) == best
    assert periodicity.refined(np.zeros((1, 100)), 24, 2) == 24


def test_a_long_period_is_known_to_an_observation_or_so_from_four_of_it():
    """The smallest sd of an unbiased estimate is .65 here (Cramer and Rao)."""
    rng = np.random.default_rng(5)
    errors = []
    for _ in range(12):
        state = searched(sine(rng, 1200, 288))
        if state is not None:
            errors.append(season.periods(state)[0] - 288)
    assert len(errors) >= 9
    assert np.sqrt(np.mean(np.square(errors))) < 1.2


@pytest.mark.parametrize("make", [sine, square])
def test_a_season_is_found_within_six_periods_and_forecast(make):
    rng = np.random.default_rng(4)
    state, begun = passed(make(rng, 20 * DAY))
    assert season.periods(state) == [DAY]
    assert begun[0] < 6 * DAY
    assert len(begun) == 1
    quiet = make(rng, 22 * DAY, sd=0.0)
    found = ahead(state, 2 * DAY)
    assert np.abs(found - (quiet[20 * DAY :] - quiet.mean())).mean() < 0.2
    np.testing.assert_array_equal(found[:DAY], found[DAY:])


def test_what_a_filter_begins_with_has_no_season():
    y = sine(np.random.default_rng(5), 300)
    state, _ = passed(y)
    rest = recent(state, 100)[:, 0]
    assert rest.shape == (100,)
    assert rest.std() == pytest.approx(0.5, rel=0.2)
    known = season.offsets(state, 100)
    np.testing.assert_allclose(y[-100:] - rest, known[:, 0], atol=1e-12)
    assert known[-1].tolist() == pytest.approx(season.offset(state, -1))


def test_labels_that_are_corrected_leave_no_trace():
    """Also where the ring of labels begins anew among them."""
    rng = np.random.default_rng(6)
    days = season.CAPACITY // DAY
    y = sine(rng, (days + 4) * DAY)
    right, _ = passed(y)
    assert season.periods(right) == [DAY]
    wrong = right.copy()
    back, count = 4 * DAY + 6, DAY
    ring = (len(y) - back + np.arange(count)) % season.CAPACITY
    assert ring[0] > ring[-1]
    wrong[0, season.NUMBERS + ring] = 4 * rng.normal(size=count)
    before = wrong.copy()
    missing = np.full((count, 1), np.nan)
    found = season.corrected(wrong, back, missing)
    expected = season.corrected(right, back, missing)
    assert season.periods(found) == season.periods(expected) == [DAY]
    assert np.abs(ahead(found, DAY) - ahead(expected, DAY)).max() < 0.02
    np.testing.assert_array_equal(wrong, before)
    assert season.valid(found)
    # Those that are forgotten have no part in it.
    again = season.corrected(found, len(y) - DAY, 5 * sine(rng, len(y) - DAY)[:, None])
    quiet = sine(rng, len(y) + DAY, sd=0.0)[len(y) :]
    assert np.abs(ahead(found, DAY) - (quiet - quiet.mean())).mean() < 0.3
    assert np.corrcoef(ahead(again, DAY), ahead(found, DAY))[0, 1] > 0.9
    assert ahead(again, DAY).std() > 3 * ahead(found, DAY).std()


def test_days_and_weeks_are_two_seasons():
    t = np.arange(24 * 7 * 8)
    y = sine(np.random.default_rng(6), len(t)) + np.where(t // DAY % 7 < 5, 0.0, -1.5)
    state, _ = passed(y)
    assert season.periods(state) == [DAY, 7 * DAY]
    days = ahead(state, 7 * DAY).reshape(7, DAY).mean(1)
    assert days[:5].mean() - days[5:].mean() == pytest.approx(1.5, abs=0.25)
    t = np.arange(1500)
    y = sine(np.random.default_rng(0), 1500) + 1.0 * (t // DAY % 7 >= 5)
    y[700:710] = np.nan
    at_once = searched(y)
    assert season.periods(at_once) == [DAY, 7 * DAY]
    assert season.valid(at_once)
    # Of as many labels as a state holds.
    longer = np.concatenate([sine(np.random.default_rng(2), 2000, 48), np.resize(y, 2016)])
    np.testing.assert_array_equal(searched(longer), searched(longer[2000:]))


def test_series_that_are_searched_together_are_as_each_alone():
    """Of any lengths: transforms of one length are made together."""
    rng = np.random.default_rng(8)
    series = []
    for length in [0, 11, 12, *range(284, 292), *range(380, 390), *rng.integers(90, 1200, 20)]:
        y = rng.normal(size=length)
        if length % 2:
            y = square(rng, length, int(rng.integers(4, 30)))
        series.append(y[:, None])
    together = season.searched(series)
    assert 10 < sum(state is not None for state in together) < 30
    for y, state in zip(series, together, strict=True):
        alone = searched(y)
        assert (alone is None) == (state is None)
        if state is not None:
            np.testing.assert_array_equal(state, alone)


def test_steps_outliers_and_missing_labels_do_not_hide_a_season():
    clean = 1.2 * np.sin(2 * np.pi * np.arange(DAY) / DAY)
    y = sine(np.random.default_rng(7), 20 * DAY)
    without, _ = passed(y)
    moved = y.copy()
    moved[17 * DAY + 5 :] += 3.0
    state, begun = passed(moved)
    assert (season.periods(state), len(begun)) == ([DAY], 1)
    assert np.abs(ahead(state) - ahead(without)).max() < 0.4  # a step is not learned as a season
    rng = np.random.default_rng(8)
    y = sine(rng, 20 * DAY)
    y[rng.integers(0, len(y), 5)] += 8.0
    state, _ = passed(y)
    assert season.periods(state) == [DAY]
    assert np.abs(ahead(state) - clean).max() < 0.6
    y = sine(rng, 20 * DAY)
    y[rng.random(len(y)) < 0.2] = np.nan
    state, _ = passed(y)
    assert season.periods(state) == [DAY]
    assert np.isnan(recent(state, 200)).sum() == np.isnan(y[-200:]).sum()
    nothing, begun = passed(np.full(100, np.nan))
    assert (begun, season.offset(nothing)) == ([], [])


def test_a_season_that_ends_is_given_up():
    rng = np.random.default_rng(10)
    y = np.concatenate([sine(rng, 20 * DAY), 0.5 * rng.normal(size=20 * DAY)])
    state, begun = passed(y)
    assert season.periods(state) == []
    assert len(begun) == 2
    assert season.offset(state) == []
    assert begun[1] < 26 * DAY
    # Labels from before that are none of what a filter begins with.
    short, begun = passed(y[: begun[1] + 1])
    assert len(recent(short, 500)) <= season.BLOCK


def test_labels_between_looks_at_the_seasons_are_taken_at_once():
    y = np.concatenate([sine(np.random.default_rng(13), 20 * DAY), np.zeros(20 * DAY)])
    y[100] = np.nan
    state, begun = passed(y)
    assert len(begun) == 2
    at_once = season.blank()
    by_one = season.blank()
    while at_once[0, 0] < len(y):
        position = int(at_once[0, 0])
        part = y[position : position + season.left(at_once), None].tolist()
        coming = season.coming(at_once, len(part))
        for label, offset in zip(part[:-1], coming.tolist(), strict=False):
            assert (season.offset(by_one) or [0.0]) == offset
            assert not season.observe(by_one, [label])
        assert (season.offset(by_one) or [0.0]) == coming[-1].tolist()
        moved = season.observe(by_one, part[-1:])
        assert season.observe(at_once, part) == moved
        assert moved == (int(at_once[0, 0]) - 1 in begun)
        np.testing.assert_array_equal(at_once, by_one)
    np.testing.assert_array_equal(at_once, state)


def test_the_state_is_all_that_there_is_and_of_fixed_size():
    y = sine(np.random.default_rng(13), 30 * DAY)
    y[100] = np.nan
    state, begun = passed(y)
    assert begun
    for cut in (10, 100, 400):
        again, _ = passed(y[:cut])
        loaded = np.frombuffer(again.tobytes()).reshape(again.shape).copy()
        for label in y[cut:].tolist():
            season.observe(loaded, [[label]])
        np.testing.assert_array_equal(loaded, state)
    long, _ = passed(np.tile(y[: 4 * DAY], 22))
    assert long.nbytes == state.nbytes == season.blank().nbytes
    assert season.valid(long)
    assert len(recent(long, 5000)) == season.CAPACITY


def test_what_cannot_be_a_state_is_not_valid():
    state, _ = passed(sine(np.random.default_rng(14), 200))
    assert season.valid(state)
    assert season.valid(season.blank())
    assert not season.valid(state[:, :-1])
    assert not season.valid(state[:, :5])
    profiles = -2 * season.CAPACITY // 3
    first = season.FIRST_LAYER
    second = first + season.LAYER
    bad = [
        *[(season.SEEN, number) for number in (np.nan, 1e300, 250.5)],
        *[(season.USABLE, number) for number in (1e6, -1.0, DAY - 1, 99.5)],
        *[(first, number) for number in (2.0, -DAY, DAY + 0.5)],
        *[(first + 1, number) for number in (-(2.0**40), 1.5, 1e6)],
        (second, -1.0),
        (season.NUMBERS, np.inf),
        *[(profiles, number) for number in (np.inf, 1e300)],
    ]
    for place, number in bad:
        other = state.copy()
        other[0, place] = number
        assert not season.valid(other), (place, number)
    state[0, [second, first]] = [DAY, 0]  # none before the second
    assert not season.valid(state)


def test_a_search_among_no_labels_finds_nothing():
    state = season.blank()
    state[0, season.SEEN] = 99.0  # its search is due
    assert season.valid(state)
    assert not season.observe(state, [[1.0]])


def test_searches_are_a_half_and_later_a_fifth_apart_and_begin_at_two_hundred():
    for phase in (0.0, 0.3, 0.999):
        at = 0
        found = []
        while at < 100_000:
            at = season.next_search(at, phase)
            found.append(at)
            assert season.next_search(at - 1, phase) == at
        assert found[0] == int(200 * 1.2**phase)
        apart = np.where(np.array(found[:-1]) < 1000, 0.5, 0.2)
        np.testing.assert_allclose(np.diff(found) / found[:-1], apart, atol=6e-3)
    phases = [season.phase_of(f"pump-{i}") for i in range(200)]
    assert 0 <= min(phases) < 0.05
    assert 0.95 < max(phases) < 1


def test_a_multiple_of_a_period_is_not_taken_for_it():
    """It has the more evidence where there are many labels."""
    rng = np.random.default_rng(3)
    y = periodicity.detrended(sine(rng, 1000))
    assert periodicity.evidence(y, 3 * DAY) > periodicity.evidence(y, DAY)
    assert periodicity.fundamental(y, 3 * DAY) == DAY
    assert periodicity.fundamental(y, DAY) == DAY
    weekly = periodicity.detrended(square(rng, 2000, 7 * DAY))
    assert periodicity.fundamental(weekly, 7 * DAY) == 7 * DAY


@pytest.mark.parametrize("multiple", [3, 5, 13])
def test_nor_is_it_where_two_of_the_last_days_are_missing(multiple):
    y = sine(np.random.default_rng(multiple), 84 * DAY)
    y[-5 * DAY : -3 * DAY] = 0.0
    assert periodicity.fundamental(y, multiple * DAY) == DAY


def several(rng, n, phases=(0.0, 2.0), flat=1, period=DAY):
    """Outputs of one season with phases of their own, and some without it, whose noise is alike."""
    t = np.arange(n)
    y = [1.2 * np.sin(2 * np.pi * t / period + phase) for phase in phases] + flat * [0.0 * t]
    common = rng.normal(size=(n, 1))
    return np.column_stack(y) + 0.4 * rng.normal(size=(n, len(y))) + 0.3 * common


def test_outputs_share_a_period_and_have_profiles_of_their_own():
    rng = np.random.default_rng(3)
    y = several(rng, 20 * DAY)
    y[rng.random(y.shape) < 0.1] = np.nan
    state, begun = passed(y)
    assert (season.periods(state), len(begun)) == ([DAY], 1)
    assert season.valid(state)
    t = np.arange(20 * DAY, 21 * DAY)
    truth = [1.2 * np.sin(2 * np.pi * t / DAY + phase) for phase in (0.0, 2.0)]
    found = season.coming(state, DAY)
    assert np.abs(found[:, :2] - np.column_stack(truth)).max() < 0.4
    assert not found[:, 2].any()
    assert season.offset(state, 5) == found[5].tolist()
    missing = np.full((30, 3), np.nan)
    again = season.corrected(state, 60, missing)
    assert season.periods(again) == [DAY]
    assert np.abs(season.coming(again, DAY) - found).max() < 0.3
    np.testing.assert_array_equal(searched(y), searched(y.copy()))


def test_outputs_that_are_the_same_have_the_season_of_one():
    y = sine(np.random.default_rng(4), 20 * DAY)
    alone, _ = passed(y)
    state, _ = passed(np.column_stack((y, y)))
    for found in season.coming(state, DAY).T:
        np.testing.assert_array_equal(found, ahead(alone))


def test_one_output_is_enough_and_many_that_correlate_find_none():
    rng = np.random.default_rng(5)
    y = several(rng, 1100, phases=(1.0,), flat=5)
    state = searched(y)
    assert season.periods(state) == [DAY]
    assert season.coming(state, DAY).any(0).tolist() == [True] + 5 * [False]
    for kind in KINDS:
        for _ in range(4):
            common = noise(kind, rng, 1200)
            alike = common[:, None] + 0.3 * rng.normal(size=(1200, 8))
            assert searched(alike) is None, kind


def test_a_season_of_several_outputs_that_ends_is_given_up():
    rng = np.random.default_rng(6)
    y = np.concatenate([several(rng, 20 * DAY), 0.5 * rng.normal(size=(20 * DAY, 3))])
    state, begun = passed(y)
    assert (season.periods(state), season.offset(state), len(begun)) == ([], [], 2)


@pytest.mark.parametrize("value", [0.5, math.nan], ids=["stuck", "missing"])
def test_an_output_that_is_stuck_or_missing_does_not_end_the_season_of_others(value):
    rng = np.random.default_rng(7)
    y = several(rng, 40 * DAY)
    y[20 * DAY : 28 * DAY, 1] = value
    state, begun = passed(y[: 28 * DAY])
    assert (season.periods(state), len(begun)) == ([DAY], 1)
    found = season.coming(state, DAY)
    assert np.ptp(found[:, 0]) > 1.5
    assert (np.ptp(found[:, 1]) > 1.5) == math.isnan(value)
    state, begun = passed(y)
    assert (season.periods(state), len(begun)) == ([DAY], 1)
    assert np.ptp(season.coming(state, DAY)[:, :2], axis=0).min() > 1.5  # once it moves again


def test_missing_labels_are_no_evidence_against_a_season():
    y = sine(np.random.default_rng(8), 34 * DAY)
    y[20 * DAY : 30 * DAY] = np.nan
    state, begun = passed(y)
    assert (season.periods(state), len(begun)) == ([DAY], 1)
    t = np.arange(34 * DAY, 35 * DAY)
    assert np.corrcoef(ahead(state), np.sin(2 * np.pi * t / DAY))[0, 1] > 0.95


def explained_share(y, period):
    rows = periodicity._folded(y, period)
    between = (rows.mean(0) ** 2).mean()
    squares = (rows**2).mean()
    return (between - (squares - between) / (len(rows) - 1)) / squares


@pytest.mark.parametrize("seed", range(20))
def test_candidates_are_the_highest_local_maxima_and_climb_to_the_best_nearby(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(12, 200))
    products = np.round(rng.normal(size=count), 1)  # some are as high as others
    products[0] = 4.0
    correlation = products / products[0] * (count / (count - np.arange(count)))
    last = min(int(rng.integers(4, count)), count - 2)
    lags = np.arange(4, last + 1)
    own = correlation[lags]
    high = (own >= correlation[lags - 1]) & (own >= correlation[lags + 1]) & (own > 0.1)
    expected = sorted(lags[high].tolist(), key=lambda lag: -correlation[lag])[:4]
    assert periods.highest(products, 4, last, 0.1).tolist() == expected
    y = rng.normal(size=count) + np.sin(np.arange(count))
    begin = int(rng.integers(4, count // 3 + 1))
    known = np.full(count // 3 + 1, np.nan)
    found = periods.climbed(y, begin, 4, count // 3, known)
    shares = {near: explained_share(y, near) for near in range(4, count // 3 + 1)}
    for near in np.flatnonzero(~np.isnan(known)):
        assert known[near] == pytest.approx(shares[near], abs=1e-12)
    assert shares[found] >= shares[begin]
    assert all(shares.get(near, -1.0) <= shares[found] for near in (found - 1, found + 1))
