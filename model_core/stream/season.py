"""Seasons of a stream: found in its labels, and taken from them before the filter.

All outputs of a label have one period, and each a profile of its own. The state is one array of
float64, of fixed size, a row of each output: four numbers, those of each season, the ring of the
last labels (nan: missing), and the profiles of up to `LAYERS` seasons (a day, and a week on top of
it). The numbers are those of the first row. It depends on the labels alone, neither on the model
nor on its device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from model_core import periodicity
from model_core.labels import LARGEST
from model_core.periodicity import PERIODS, RECENT_PERIODS, SHORTEST
from model_core.stream_settings import SEASONS_FROM

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CAPACITY = 2016  # labels kept: six weeks of half-hours, a week of five minutes
LONGEST = CAPACITY // PERIODS  # period
REPLAYED = 200  # of the labels before a season is found, that a filter begins anew with
LAYERS = 2
FIRST_SEARCH = 24  # labels
GROWTH = 1.2  # of the number of labels between searches
EARLY_GROWTH = 1.5  # the same before `SETTLED`, of a stream without a state
SETTLED = 1000  # labels
SEARCHES = 4  # in a ring of labels, once it is full
FEWEST = 8  # observations between searches
REFINED = 32  # a period that was found is refined within this part of it
BLOCK = 64  # observations between updates of a profile, at least
WORTH = 0.3  # nats an observation; the most that counts for a season
WORST = -0.6  # and against it
WORTH_FORGETTING = 0.75
MULTIPLE = 0.02  # a longer period as close as this to a multiple of the shorter one is that
MOST_SEEN = 2**53  # observations that float64 can count
MOST_PROFILE = 10.0  # of the largest label: a profile may go beyond the labels that it is of
SHOWN = 3.0  # nats of evidence: an output with less has no season, unless none has more
FILLINGS = 3  # of missing labels by a profile, which is learned from them again each time


class Layer(NamedTuple):
    """One season.

    period: observations. origin: position at which the profile begins. worth: average gain in nats
    an observation of forecasts by it, between `WORST` and `WORTH`.
    """

    period: int
    origin: int
    worth: float


# Places in a state: observations so far; the last of them that seasons are taken from; positions
# of the next search and of the next update of the profiles. Then the numbers of each layer.
SEEN, USABLE, SEARCH, UPDATE, FIRST_LAYER = range(5)
LAYER = len(Layer._fields)
NUMBERS = FIRST_LAYER + LAYERS * LAYER
PROFILES = NUMBERS + CAPACITY  # after the labels
WIDTH = PROFILES + LAYERS * LONGEST


def blank(outputs: int = 1) -> Floats:
    """State of a stream without labels."""
    state = np.zeros((outputs, WIDTH))
    state[0, SEARCH] = FIRST_SEARCH
    return state


def phase_of(name: str) -> float:
    """Phase of the searches of a stream, in [0, 1)."""
    return crc32(name.encode()) / 2**32


def next_search(seen: int, phase: float) -> int:
    """Observations, more than `seen`, after which a stream without a state looks for seasons.

    First at `SEASONS_FROM`, then whenever their number has grown by a half, from `SETTLED` on by a
    fifth; all that by a factor between 1 and `GROWTH`, which a phase between 0 and 1 chooses, so
    that streams of one age do not all search at one time.
    """
    at = SEASONS_FROM * GROWTH**phase
    while int(at) <= seen:
        at *= EARLY_GROWTH if at < SETTLED else GROWTH
    return int(at)


def searched(series: Sequence[Floats]) -> list[Floats | None]:
    """State of each of several series after labels (T, d), nan where missing, the last of them.

    They are searched now, at once. None where no season is found. Earlier searches have left no
    trace in it.
    """
    recent = [y[-CAPACITY:] for y in series]
    found = periodicity.found([_detrended(_filled(np.array(y.T, order="C"))) for y in recent])
    each = zip(recent, found, strict=True)
    return [_searched(y) if period else None for y, (period, _) in each]


def _searched(y: Floats) -> Floats:
    """State after labels (T, d) that have a season."""
    state = blank(y.shape[1])
    state[:, NUMBERS : NUMBERS + len(y)] = y.T
    state[0, [SEEN, USABLE]] = len(y)
    while _search(state):
        pass  # a week on top of a day
    return state


def left(state: Floats) -> int:
    """Labels, at least one, after the last of which the seasons are looked at again."""
    due = state.item(SEARCH)
    if state.item(FIRST_LAYER):
        due = min(due, state.item(UPDATE))
    return max(int(due - state.item(SEEN)), 1)


def observe(state: Floats, labels: Sequence[Sequence[float]] | Floats) -> bool:
    """Take in the next labels (T, d; nan: missing), at most `left` of them, in place.

    Returns whether a season was found or given up, so that a filter of the labels without their
    season should begin anew.
    """
    # Numbers are read one by one: most observations end here.
    first = int(state.item(SEEN))
    seen = first + len(labels)
    if len(labels) == 1:
        at = NUMBERS + first % CAPACITY
        for output, value in enumerate(labels[0]):
            state[output, at] = value
    else:
        positions = np.arange(first, seen) % CAPACITY
        state[:, NUMBERS + positions] = np.array(labels).T
    state[0, SEEN] = seen
    state[0, USABLE] = min(state.item(USABLE) + len(labels), CAPACITY)
    moved = False
    if state.item(FIRST_LAYER) and seen >= state.item(UPDATE):
        moved = _update(state)
    if seen >= state.item(SEARCH):
        moved = _search(state) or moved
    return moved


def corrected(state: Floats, back: int, labels: Floats) -> Floats:
    """State with other labels, from which seasons are learned anew.

    labels: (T, d), nan where missing, of the observations from `back` before the next one on. A
    season that was given up among them or later is looked for in the labels before, too. Where no
    season is found those that there were stay, with the profiles of the labels that count.
    """
    state = state.copy()
    seen = int(state[0, SEEN])
    positions = seen - back + np.arange(len(labels))
    kept = positions >= max(seen - CAPACITY, 0)
    state[:, NUMBERS + positions[kept] % CAPACITY] = labels[kept].T
    anew = state.copy()
    if state[0, USABLE] <= back:
        anew[0, USABLE] = min(seen, CAPACITY)
    _put_layers(anew, [])
    while _search(anew):
        pass
    if layers(anew):
        state = anew
    for _ in range(FILLINGS):
        positions = _last(state, int(state[0, USABLE]))
        known = _seasons(state, positions, LAYERS)
        y = _filled(_labels(state, len(positions)) - known) + known
        present = layers(state)
        for i, layer in enumerate(present):
            deseasoned = y - _seasons(state, positions, i)
            showing = _showing(_detrended(deseasoned), layer.period)
            present[i] = _learn(state, i, layer, deseasoned, showing, len(present) == 1)
            _put_layers(state, present)
    return state


def offset(state: Floats | None, ahead: int = 0) -> list[float]:
    """Season (d) of the next label, or of one that comes so many observations later.

    Empty where none is known.
    """
    if state is None or not state.item(FIRST_LAYER):
        return []
    # Numbers are read one by one, as in `observe`.
    position = int(state.item(SEEN)) + ahead
    outputs, width = state.shape
    total = [0.0] * outputs
    first = PROFILES  # of the profile of a layer
    for layer in range(FIRST_LAYER, NUMBERS, LAYER):
        period = int(state.item(layer))
        if not period:
            break
        at = first + (position - int(state.item(layer + 1))) % period
        for output in range(outputs):
            total[output] += state.item(output * width + at)
        first += LONGEST
    return total


def coming(state: Floats, count: int) -> Floats:
    """Seasons (count, d) of the next labels, as they are known now."""
    if count == 1:  # a third of the time
        return np.array([offset(state) or [0.0] * len(state)])
    seen = int(state.item(SEEN))
    return _seasons(state, np.arange(seen, seen + count), LAYERS).T


def next_update(state: Floats) -> float:
    """Observations after which the profiles are learned anew, and periods may be."""
    return state.item(UPDATE)


def valid(state: Floats) -> bool:
    """Whether an array can be the state of a stream: for those that were stored."""
    if state.dtype != np.float64 or state.ndim != 2 or not len(state) or state.shape[1] != WIDTH:
        return False
    numbers = state[0, :NUMBERS]
    if not np.isfinite(numbers).all() or (np.abs(numbers) > MOST_SEEN).any():
        return False
    rows = numbers[FIRST_LAYER:].reshape(LAYERS, LAYER)
    kept = layers(state)
    counted = np.concatenate((numbers[[SEEN, USABLE]], rows[:, :2].ravel()))
    if (counted != np.floor(counted)).any() or rows[len(kept) :, 0].any():
        return False
    seen = numbers[SEEN]
    usable = numbers[USABLE]
    longest = min(LONGEST, usable)
    largest = MOST_PROFILE * LARGEST
    profiles = [_profile(state, i)[:, : layer.period] for i, layer in enumerate(kept)]
    return bool(
        0 <= usable <= min(seen, CAPACITY)
        and all(SHORTEST <= layer.period <= longest for layer in kept)
        and all(0 <= layer.origin <= seen for layer in kept)
        and all((np.abs(profile) <= largest).all() for profile in profiles)
        and not (np.abs(state[:, NUMBERS:PROFILES]) > LARGEST).any()
    )


def offsets(state: Floats, count: int) -> Floats:
    """Season, as it is known now, of up to `count` of the last labels (T, d), oldest first.

    Of labels from before a season was given up there are none.
    """
    return _seasons(state, _last(state, min(count, int(state[0, USABLE]))), LAYERS).T


def periods(state: Floats) -> list[int]:
    """Periods in observations, shorter ones first; empty: no season."""
    return [layer.period for layer in layers(state)]


def layers(state: Floats) -> list[Layer]:
    """Seasons that are believed."""
    rows = state[0, FIRST_LAYER:NUMBERS].reshape(LAYERS, LAYER).tolist()
    return [Layer(int(row[0]), int(row[1]), row[2]) for row in rows if row[0] > 0]


def _put_layers(state: Floats, kept: list[Layer]) -> None:
    state[0, FIRST_LAYER:NUMBERS] = 0.0
    for i, layer in enumerate(kept):
        state[0, FIRST_LAYER + i * LAYER :][:LAYER] = layer


def _profile(state: Floats, layer: int) -> Floats:
    """Room for the profiles (d, longest) of a layer."""
    first = PROFILES + layer * LONGEST
    return state[:, first : first + LONGEST]


def _labels(state: Floats, count: int) -> Floats:
    """The last labels (d, T), oldest first."""
    end = int(state.item(SEEN)) % CAPACITY
    ring = state[:, NUMBERS:PROFILES]
    recent = ring[:, max(end - count, 0) : end]
    return np.concatenate((ring[:, CAPACITY - count + recent.shape[1] :], recent), 1)


def _last(state: Floats, count: int) -> Ints:
    """Positions of the last labels, oldest first."""
    seen = int(state.item(SEEN))
    return np.arange(seen - count, seen)


def _seasons(state: Floats, positions: Ints, number: int) -> Floats:
    """Sum of the first `number` seasons (d, T) at positions (T,) of labels."""
    total = np.zeros((len(state), len(positions)))
    for i, layer in enumerate(layers(state)[:number]):
        total += _season(state, i, layer, positions)
    return total


def _season(state: Floats, index: int, layer: Layer, positions: Ints) -> Floats:
    """One season (d, T) at positions (T,) of labels."""
    return _profile(state, index).take((positions - layer.origin) % layer.period, 1)


def _filled(y: Floats) -> Floats:
    """Labels (d, T) with those that are missing interpolated; they may be changed in place."""
    at = np.arange(y.shape[1])
    for row in y:
        there = np.isfinite(row)
        if not there.all():
            row[:] = np.interp(at, at[there], row[there]) if there.any() else 0.0
    return y


def _detrended(y: Floats) -> Floats:
    return np.array([periodicity.detrended(row) for row in y])


def _update(state: Floats) -> bool:
    """Learn the profiles anew; returns whether a season was given up.

    Each is first judged by the labels since it was last learned.
    """
    count = int(state[0, USABLE])
    kept = layers(state)
    locked = len(kept) == LAYERS and kept[1].period % kept[0].period == 0
    block = min(_block(kept), count)
    positions = _last(state, count)
    deseasoned = _labels(state, count)
    there = np.isfinite(deseasoned)
    if not there.all():
        # What is missing is as expected: a straight line there would be one without a season.
        known = _seasons(state, positions, LAYERS)
        deseasoned = _filled(deseasoned - known) + known
    for i, layer in enumerate(kept):
        season = _season(state, i, layer, positions[-block:])
        gain = sum(_gains(deseasoned[:, -block:], season, there[:, -block:]))
        worth = WORTH_FORGETTING * layer.worth
        worth += (1 - WORTH_FORGETTING) * min(max(gain, WORST), WORTH)
        if worth < 0:
            _put_layers(state, kept[:i])
            state[0, USABLE] = block
            state[0, SEARCH] = state[0, SEEN] + max(block // SEARCHES, FEWEST)
            _plan_update(state, kept[:i])
            return True
        period = layer.period
        detrended = _detrended(deseasoned)
        showing = _showing(detrended, period)
        if not locked and count >= PERIODS * (period + 1):
            period = periodicity.refined(detrended[showing], period, 1)
            if period != layer.period:
                showing = _showing(detrended, period)
        layer = Layer(period, 0, worth)
        kept[i] = _learn(state, i, layer, deseasoned, showing, len(kept) == 1)
        if i + 1 < len(kept):
            deseasoned -= _season(state, i, kept[i], positions)
    _put_layers(state, kept)
    _plan_update(state, kept)
    return False


def _block(kept: list[Layer]) -> int:
    """Observations between updates."""
    return max([BLOCK, *(layer.period for layer in kept)])


def _plan_update(state: Floats, kept: list[Layer]) -> None:
    state[0, UPDATE] = state[0, SEEN] + _block(kept)


def _showing(y: Floats, period: int) -> list[int]:
    """Outputs that show a season of this period in labels (d, T) without trend: one at least.

    The profile of another would only add noise to its labels.
    """
    if len(y) == 1:
        return [0]
    evidence = [periodicity.evidence(row, period) for row in y]
    least = min(SHOWN, max(evidence))
    return [output for output, own in enumerate(evidence) if own >= least]


def _gains(y: Floats, season: Floats, there: NDArray[np.bool_]) -> list[float]:
    """Gains of forecasts of labels (d, B) by a season: of each output, in nats an observation.

    Labels that were not there say nothing, and an output that is stuck no more than `WORST`: the
    season is that of the others, too.
    """
    gains = []
    for own, expected, kept in zip(y, season, there, strict=True):
        own = own[kept]
        if not len(own):
            gains.append(0.0)
            continue
        size = float(np.abs(own).max()) or 1.0
        whole = periodicity.spread(own / size)
        left = periodicity.spread((own - expected[kept]) / size)
        gain = 0.5 * (math.log(whole) - math.log(left)) * len(own) / len(kept)
        gains.append(max(gain, WORST))
    return gains


def _learn(
    state: Floats, index: int, layer: Layer, y: Floats, showing: Sequence[int], scaled: bool
) -> Layer:
    """Write profiles from labels (d, T); returns the layer, which begins with them.

    showing: outputs that have one. scaled: by the amplitude of the last periods.
    One of several outputs whose last period is worse with its profile has none: it is stuck.
    """
    period = layer.period
    profiles = _profile(state, index)
    profiles[:, :period] = 0.0
    for output in showing:
        profiles[output, :period] = periodicity.learned(y[output], period, scaled)
    if len(y) > 1:  # profiles begin whole periods ago
        there = np.isfinite(_labels(state, period))
        gains = _gains(y[:, -period:], profiles[:, :period], there)
        profiles[np.array(gains) < -WORTH, :period] = 0.0
    count = min(y.shape[1] // period, RECENT_PERIODS)
    return layer._replace(origin=int(state[0, SEEN]) - count * period)


def _search(state: Floats) -> bool:
    """Look for a further season; returns whether there is one."""
    kept = layers(state)
    usable = int(state[0, USABLE])
    wait = min(int((GROWTH - 1) * usable), CAPACITY // SEARCHES)
    state[0, SEARCH] = state[0, SEEN] + max(wait, FEWEST)
    if len(kept) == LAYERS or usable < PERIODS * SHORTEST:
        return False
    y = _filled(_labels(state, usable))
    deseasoned = _detrended(y)
    if kept:
        rows = [periodicity.without(row, kept[0].period) for row in deseasoned]
        deseasoned = np.array(rows)
    shortest = 2 * kept[0].period if kept else SHORTEST
    ((period, leading),) = periodicity.found([deseasoned], shortest)
    if not period:
        return False
    if not kept:
        period = periodicity.fundamental(deseasoned[leading], period)
        shown = deseasoned[_showing(deseasoned, period)]
        period = periodicity.refined(shown, period, max(1, period // REFINED))
    else:
        multiple = round(period / kept[0].period) * kept[0].period
        near = abs(multiple - period) <= MULTIPLE * period
        period = multiple if near and multiple * PERIODS <= usable else period
    deseasoned = y - _seasons(state, _last(state, usable), LAYERS)
    showing = _showing(_detrended(deseasoned), period)
    layer = Layer(period, 0, WORTH)
    kept.append(_learn(state, len(kept), layer, deseasoned, showing, False))
    _put_layers(state, kept)
    _plan_update(state, kept)
    return True
