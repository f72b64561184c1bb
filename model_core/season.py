"""Seasons of a stream: found in its labels, and taken from them before the filter.

A period is believed where its harmonics recur with the same phase in all periods that are kept.
The evidence is exact under any stationary noise: with n periods, the coefficients of a harmonic are
n draws of one complex normal distribution, so (n - 1) log(total / within) of their squares is
exponential, whatever the noise's spectrum. Steps and drifts do not recur.

The state is one array of float64, of fixed length: numbers of `_Head`, the ring of the last labels
(nan: missing), and the profiles of up to `LAYERS` seasons (a day, and a week on top of it). It
depends on the labels alone, neither on the model nor on its device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CAPACITY = 2016  # labels kept: six weeks of half-hours, a week of five minutes
REPLAYED = 200  # of the labels before a season is found, that a filter begins anew with
LAYERS = 2
PERIODS = 3  # that a season has to be seen for
SHORTEST = 4  # observations
RECENT_PERIODS = 12  # that a profile and its evidence are taken from
FIRST_SEARCH = 24  # labels
GROWTH = 1.2  # of the number of labels between searches
SEARCHES = 4  # in a ring of labels, once it is full
FEWEST = 8  # observations between searches
EVIDENCE = 12.0  # nats: one period in 160,000 by chance
EXPLAINED = 0.3  # share of a period's variation that the others have to forecast
GAINED = 0.1  # share of what is left of it by an autoregression
CANDIDATES = 4  # of each autocorrelation
CORRELATED = 0.15  # at the lag of a candidate
PLAUSIBLE = 0.1  # share of the variation that it explains
HARMONICS = 32  # that evidence is taken from
FORGETTING = 0.8  # of a period in the profile
AMPLITUDE_FORGETTING = 0.6
AMPLITUDES = (0.5, 1.5)  # of the last periods, in units of the profile
SHRINKAGE = 2.0  # squared standard errors by which a harmonic is taken to be smaller
BLOCK = 64  # observations between updates of a profile, at least
WORTH = 0.3  # nats an observation; the most that counts for a season
WORST = -0.6  # and against it
WORTH_FORGETTING = 0.75
OUTLYING = 4.0  # standard deviations beyond which a label says no more of what a season is worth
MULTIPLE = 0.02  # a longer period as close as this to a multiple of the shorter one is that
FLOOR = 1e-12  # of sums of squares
MOST_SEEN = 2**53  # observations that float64 can count
ROUNDING = 1e-12  # of labels
MAD_SD = 1.4826  # standard deviations of normal noise in a median absolute deviation


class Layer(NamedTuple):
    """One season.

    period: observations. origin: position at which the profile begins. worth: average gain in nats
    an observation of forecasts by it, between `WORST` and `WORTH`.
    """

    period: int
    origin: int
    worth: float


class _Head(NamedTuple):
    """Numbers before the ring.

    seen: observations so far. known: the last of them that the seasons are taken from.
    search, update: positions of the next search and the next update.
    """

    seen: int
    known: int
    search: int
    update: int


FIRST_LAYER = len(_Head._fields)
NUMBERS = FIRST_LAYER + LAYERS * len(Layer._fields)


def blank(capacity: int = CAPACITY) -> Floats:
    """State of a stream without labels; capacity: labels that it keeps, a multiple of 3."""
    if capacity < PERIODS * SHORTEST or capacity % PERIODS:
        raise ValueError(
            f"capacity: expected a multiple of {PERIODS}, at least {PERIODS * SHORTEST}, "
            f"got {capacity}"
        )
    state = np.zeros(NUMBERS + capacity + LAYERS * (capacity // PERIODS))
    _put_head(state, _Head(0, 0, FIRST_SEARCH, 0))
    return state


def observe(state: Floats, y: float) -> bool:
    """Take in the next label (nan: missing), in place.

    Returns whether a season was found or given up, so that a filter of the labels without their
    season should begin anew; `recent` has what it can begin with.
    """
    # Numbers are read one by one: most observations end here.
    seen, capacity = int(state.item(0)), _capacity(state)
    state[NUMBERS + seen % capacity] = y
    state[0] = seen + 1
    state[1] = min(state.item(1) + 1, capacity)
    moved = False
    if state.item(FIRST_LAYER) and seen + 1 >= state.item(3):
        moved = _update(state)
    if seen + 1 >= state.item(2):
        moved = _search(state) or moved
    return moved


def offset(state: Floats, ahead: int = 0) -> float:
    """Season of the next label, or of one that comes so many observations later."""
    if not state.item(FIRST_LAYER):
        return 0.0
    position = int(state.item(0)) + ahead
    total = 0.0
    for i, layer in enumerate(layers(state)):
        total += _profile(state, i).item((position - layer.origin) % layer.period)
    return total


def valid(state: Floats) -> bool:
    """Whether an array can be the state of a stream: for those that were stored."""
    room = len(state) - NUMBERS
    if room < PERIODS * SHORTEST or room % (PERIODS + LAYERS):
        return False
    numbers = state[:NUMBERS]
    if not np.isfinite(numbers).all() or (np.abs(numbers) > MOST_SEEN).any():
        return False
    longest = _capacity(state) // PERIODS
    kept = layers(state)
    profiles = [_profile(state, i)[: layer.period] for i, layer in enumerate(kept)]
    return (
        0 <= _head(state).known <= min(_head(state).seen, _capacity(state))
        and all(SHORTEST <= layer.period <= longest for layer in kept)
        and all(np.isfinite(each).all() for each in profiles)
    )


def recent(state: Floats, count: int) -> Floats:
    """Up to `count` of the last labels without their season, oldest first; nan where missing.

    Labels from before a season was given up are left out.
    """
    count = min(count, _head(state).known)
    return _labels(state, count) - _seasons(state, count, LAYERS)


def periods(state: Floats) -> list[int]:
    """Periods in observations, shorter ones first; empty: no season."""
    return [layer.period for layer in layers(state)]


def layers(state: Floats) -> list[Layer]:
    """Seasons that are believed."""
    first, size = FIRST_LAYER, len(Layer._fields)
    rows = state[first:NUMBERS].reshape(LAYERS, size).tolist()
    return [Layer(int(row[0]), int(row[1]), row[2]) for row in rows if row[0] > 0]


def _capacity(state: Floats) -> int:
    return (len(state) - NUMBERS) * PERIODS // (PERIODS + LAYERS)


def _head(state: Floats) -> _Head:
    return _Head(*map(int, state[: len(_Head._fields)].tolist()))


def _put_head(state: Floats, head: _Head) -> None:
    state[: len(_Head._fields)] = head


def _put_layers(state: Floats, kept: list[Layer]) -> None:
    first, size = FIRST_LAYER, len(Layer._fields)
    state[first:NUMBERS] = 0.0
    for i, layer in enumerate(kept):
        state[first + i * size : first + (i + 1) * size] = layer


def _profile(state: Floats, layer: int) -> Floats:
    """Room for the profile of a layer."""
    capacity = _capacity(state)
    longest = capacity // PERIODS
    first = NUMBERS + capacity + layer * longest
    return state[first : first + longest]


def _labels(state: Floats, count: int) -> Floats:
    """The last labels, oldest first."""
    seen, capacity = int(state[0]), _capacity(state)
    return state[NUMBERS + np.arange(seen - count, seen) % capacity]


def _seasons(state: Floats, count: int, number: int) -> Floats:
    """Sum of the first `number` seasons at the last labels."""
    seen = int(state[0])
    positions = np.arange(seen - count, seen)
    total = np.zeros(count)
    for i, layer in enumerate(layers(state)[:number]):
        total += _profile(state, i)[(positions - layer.origin) % layer.period]
    return total


def _filled(y: Floats) -> Floats:
    """Labels with those that are missing interpolated."""
    there = np.isfinite(y)
    if there.all():
        return y
    at = np.arange(len(y))
    return np.interp(at, at[there], y[there]) if there.any() else np.zeros(len(y))


def _update(state: Floats) -> bool:
    """Learn the profiles anew; returns whether a season was given up.

    Each is first judged by the labels since it was last learned.
    """
    head = _head(state)
    y = _filled(_labels(state, head.known))
    kept = layers(state)
    locked = len(kept) == LAYERS and kept[1].period % kept[0].period == 0
    block = min(_block(kept), len(y))
    for i, layer in enumerate(kept):
        rest = y - _seasons(state, len(y), i)
        season = _seasons(state, block, i + 1) - _seasons(state, block, i)
        worth = _worth(layer.worth, rest[-block:], season)
        if worth < 0:
            _put_layers(state, kept[:i])
            search = head.seen + max(block // SEARCHES, FEWEST)
            _put_head(state, head._replace(known=block, search=search))
            _plan_update(state)
            return True
        period = layer.period
        if not locked and len(rest) >= PERIODS * (period + 1):
            period = _nearby(_detrended(rest), period)
        kept[i] = _learn(state, i, rest, period, worth, len(kept) == 1)
        _put_layers(state, kept)
    _plan_update(state)
    return False


def _block(kept: list[Layer]) -> int:
    """Observations between updates."""
    return max([BLOCK, *(layer.period for layer in kept)])


def _plan_update(state: Floats) -> None:
    head = _head(state)
    _put_head(state, head._replace(update=head.seen + _block(layers(state))))


def _worth(before: float, y: Floats, season: Floats) -> float:
    """Worth of a season after labels (B,) that it was not learned from."""
    size = float(np.abs(y).max()) or 1.0
    gain = 0.5 * (math.log(_spread(y / size)) - math.log(_spread((y - season) / size)))
    return WORTH_FORGETTING * before + (1 - WORTH_FORGETTING) * min(max(gain, WORST), WORTH)


def _spread(y: Floats) -> float:
    """Mean square about the median, which a few outliers do not move."""
    squares = (y - np.median(y)) ** 2
    most = (OUTLYING * MAD_SD) ** 2 * np.median(squares)
    return float(np.minimum(squares, most).mean()) + 1e-300


def _learn(state: Floats, index: int, y: Floats, period: int, worth: float, scaled: bool) -> Layer:
    """Write a profile from labels (T,); scaled: by the amplitude of the last periods."""
    profile = learned(y, period, scaled)
    _profile(state, index)[:period] = profile
    count = min(len(y) // period, RECENT_PERIODS)
    return Layer(period, int(state[0]) - count * period, worth)


def _search(state: Floats) -> bool:
    """Look for a further season; returns whether there is one."""
    head, kept = _head(state), layers(state)
    wait = min(int((GROWTH - 1) * head.known), _capacity(state) // SEARCHES)
    _put_head(state, head._replace(search=head.seen + max(wait, FEWEST)))
    if len(kept) == LAYERS:
        return False
    y = _filled(_labels(state, head.known))
    rest = _detrended(y)
    if kept:
        rest = _without(rest, kept[0].period)
    period = found(rest, 2 * kept[0].period if kept else SHORTEST)
    if not period:
        return False
    if kept:
        multiple = round(period / kept[0].period) * kept[0].period
        near = abs(multiple - period) <= MULTIPLE * period
        period = multiple if near and multiple * PERIODS <= len(y) else period
    rest = y - _seasons(state, len(y), LAYERS)
    kept.append(_learn(state, len(kept), rest, period, WORTH, False))
    _put_layers(state, kept)
    _plan_update(state)
    return True


def found(y: Floats, shortest: int = SHORTEST) -> int:
    """Period of the season of labels (T,) without trend; 0 where there is no evidence of one."""
    longest = len(y) // PERIODS
    size = float(np.abs(y).max(initial=0.0))
    if longest < shortest or size == 0:
        return 0
    y = y / size
    peaks = {*_peaks(y, shortest, longest), *_peaks(np.diff(y), shortest, longest)}
    candidates = sorted({_climbed(y, each, shortest, longest) for each in peaks})
    scored = [(evidence(y, each), each) for each in candidates if _explained(y, each) >= PLAUSIBLE]
    most, best = max(scored, default=(0.0, 0))
    return best if most >= EVIDENCE and _forecasts(y, best) else 0


def evidence(y: Floats, period: int) -> float:
    """Evidence of a period in labels (T,) without trend, in nats: -log of its chance in noise.

    The most that any first 1, 2, 4 ... harmonics give, less what the choice costs.
    """
    rows = _whitened(y, period)
    if len(rows) < PERIODS or (rows**2).sum() <= FLOOR * (y**2).sum():  # rounding alone
        return 0.0
    within, between = _variation(*_harmonics(rows, np.ones(len(rows))))
    sums = np.cumsum((len(rows) - 1) * np.log1p(between / within)).tolist()
    best = 0.0
    for choices, count in enumerate(_doubled(min(len(sums), HARMONICS)), 1):
        # 1/2, 1/6, 1/12 ...: shares of the first, second, third choice; together less than 1.
        share = 1 / (choices * (choices + 1))
        best = max(best, _log_tail(sums[count - 1], count) + math.log(share))
    return best


def _doubled(last: int) -> Iterator[int]:
    """1, 2, 4 ... and the last."""
    count = 1
    while count < last:
        yield count
        count *= 2
    yield last


def _log_tail(x: float, shape: int) -> float:
    """-log P(X > x) of a gamma variate of this shape: that of fewer Poisson events than it."""
    if x <= shape:
        return 0.0
    terms = [k * math.log(x) - x - math.lgamma(k + 1) for k in range(shape)]
    most = max(terms)
    return -(most + math.log(math.fsum(math.exp(term - most) for term in terms)))


def _forecasts(y: Floats, period: int) -> bool:
    """Whether periods forecast each other, better than an autoregression does alone."""
    kept, _ = _held_out(_folded(y, period))
    _, gained = _held_out(_whitened(y, period))
    return bool(np.median(kept) >= EXPLAINED) and gained >= GAINED


def _held_out(rows: Floats) -> tuple[Floats, float]:
    """Share of each row's squares that the mean of the others explains, and of all of them."""
    errors = (rows - rows.mean(0)) * (len(rows) / (len(rows) - 1))
    missed, squares = (errors**2).sum(1), (rows**2).sum(1) + 1e-300
    return 1 - missed / squares, float(1 - missed.sum() / squares.sum())


def learned(y: Floats, period: int, scaled: bool = False) -> Floats:
    """Profile (P,) of the last periods of labels (T,): the season from the first of them on.

    Periods that differ from the others weigh less, as do old ones. Harmonics are shrunk by
    their standard errors. scaled: to the amplitude of the last periods.
    """
    size = float(np.abs(y).max(initial=0.0)) or 1.0  # squares are numbers, whatever the unit
    rows = _folded(y / size, period, robust=True)
    weights = _weights(rows)
    ages = np.arange(len(rows))[::-1]
    mean, squares, total = _harmonics(rows, weights * FORGETTING**ages)
    within, between = _variation(mean, squares, total)
    freedom = max(total - 1, 1e-6)
    spectrum = np.zeros(period // 2 + 1, dtype=np.complex128)
    shrunk = np.maximum(0, 1 - SHRINKAGE * within / (freedom * between + 1e-300))
    spectrum[1 : (period + 1) // 2] = mean * shrunk
    profile: Floats = np.fft.irfft(spectrum, period)
    power = float(profile @ profile)
    if not scaled or power == 0:
        return profile * size
    late = weights * AMPLITUDE_FORGETTING**ages
    amplitude = float(late @ (rows @ profile)) / (float(late.sum()) * power)
    return profile * (size * min(max(amplitude, AMPLITUDES[0]), AMPLITUDES[1]))


def _folded(y: Floats, period: int, robust: bool = False) -> Floats:
    """The last periods as rows (n, P) about their means and the slope through those.

    The slope is that of the neighbours' means; robust: the median of all, not moved by one step.
    """
    count = min(len(y) // period, RECENT_PERIODS)
    rows = y[len(y) - count * period :].reshape(count, period)
    means = rows.mean(1)
    slopes = np.zeros(count)
    if count > 1:
        slopes = np.gradient(means)
    if robust:
        slopes[:] = np.median(np.diff(means)) if count > 1 else 0.0
    centred = (np.arange(period) - (period - 1) / 2) / period
    folded: Floats = rows - means[:, None] - slopes[:, None] * centred
    return folded


def _weights(rows: Floats) -> Floats:
    """Weights (n,) of periods, less for those far from the others."""
    weights = np.ones(len(rows))
    if len(rows) <= PERIODS:
        return weights
    for _ in range(3):
        distances = ((rows - weights @ rows / weights.sum()) ** 2).mean(1)
        middle = np.median(distances)
        if middle <= 0:
            break
        weights = 1 / np.maximum(distances / middle, 1)
    return weights


def _whitened(y: Floats, period: int) -> Floats:
    """Periods as rows, without the first-order autoregression of what is no season.

    Else level shifts and slow noise enter many harmonics at once, each of which would count.
    """
    rows = _folded(y, period)
    if len(rows) < 2:
        return rows[:0]
    rest = rows - rows.mean(0)
    squares = float((rest**2).sum())
    lag = float((rest[:, 1:] * rest[:, :-1]).sum()) / squares if squares > 0 else 0.0
    lag += (1 + 3 * lag) / period  # bias of short rows about their mean
    lag = min(max(lag, 0.0), 1.0)
    return _folded(y[1:] - lag * y[:-1], period)


def _harmonics(rows: Floats, weights: Floats) -> tuple[NDArray[np.complex128], Floats, float]:
    """Mean of the harmonics (H,) of rows, mean squares about it, and number of rows that count."""
    coefficients = np.fft.rfft(rows, axis=1)[:, 1 : (rows.shape[1] + 1) // 2]
    share = weights / weights.sum()
    mean = share @ coefficients
    squares = share @ np.abs(coefficients - mean) ** 2
    return mean, squares, float(1 / (share @ share))


def _variation(
    mean: NDArray[np.complex128], squares: Floats, total: float
) -> tuple[Floats, Floats]:
    """Variation of harmonics within (never 0) and between phases."""
    within, between = total * squares, total * np.abs(mean) ** 2
    return within + FLOOR * (within + between).sum() + 1e-300, between


def _detrended(y: Floats) -> Floats:
    """Labels about the least-squares line through them; 0 where only rounding is left."""
    at = np.arange(len(y)) - (len(y) - 1) / 2
    slope = float(at @ y) / float(at @ at)
    rest = y - float(y.mean()) - slope * at
    return np.where(np.abs(rest) > ROUNDING * np.abs(y).max(), rest, 0.0)


def _without(y: Floats, period: int) -> Floats:
    """Labels about their mean of each phase."""
    phase = np.arange(len(y)) % period
    means: Floats = np.bincount(phase, y) / np.bincount(phase)
    return y - means[phase]


def _peaks(y: Floats, shortest: int, longest: int) -> list[int]:
    """Lags of the highest local maxima of the autocorrelation."""
    count = len(y)
    y = y - y.mean()
    products = np.fft.irfft(np.abs(np.fft.rfft(y, 2 * count)) ** 2)[:count]
    if products[0] <= 0:
        return []
    correlation = products / products[0] * (count / (count - np.arange(count)))
    lags = np.arange(shortest, min(longest, count - 2) + 1)
    middle = correlation[lags]
    high = (middle >= correlation[lags - 1]) & (middle >= correlation[lags + 1])
    highest = sorted(lags[high & (middle > CORRELATED)].tolist(), key=lambda lag: -correlation[lag])
    return highest[:CANDIDATES]


def _climbed(y: Floats, period: int, shortest: int, longest: int) -> int:
    """Period near another one that explains most, by steps that are halved."""
    shares: dict[int, float] = {}

    def share(each: int) -> float:
        if each not in shares:
            shares[each] = _explained(y, each) if shortest <= each <= longest else -1.0
        return shares[each]

    step = max(1, period // 16)
    while step:
        best = max((period, period - step, period + step), key=share)
        if best == period:
            step //= 2
        period = best
    return period


def _nearby(y: Floats, period: int) -> int:
    """Period within a thirty-second of another one that explains most."""
    apart = max(1, period // 32)
    longest = min(period + apart, len(y) // PERIODS)
    return _climbed(y, period, max(SHORTEST, period - apart), longest)


def _explained(y: Floats, period: int) -> float:
    """Share of the variation within periods that their mean explains, less that by chance."""
    rows = _folded(y, period)
    squares = float((rows**2).mean())
    if squares <= 0 or len(rows) < 2:
        return 0.0
    between = float((rows.mean(0) ** 2).mean())
    return (between - (squares - between) / (len(rows) - 1)) / squares
