"""Incidents: changes of several streams that began together, and what those streams share.

The start of a change is known to an interval. Changes whose intervals share a moment are one
incident, as far as independent streams would not show the like by chance. Times are in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import exp, lgamma, log
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DAY_S = 86_400.0
# How far out of its interval a start may be, in parts of the interval on that side. A small change
# is noticed where noise helps it, which is after it began: starts are late rather than early.
REACH_BEFORE = 2.0
REACH_AFTER = 1.0
RARE_PER_DAY = 1.0  # incidents that chance may bring a day
UNLIKELY = 0.05  # share of the changed streams, after the correction
MOST_MOVERS = 5
BLOCK = 256  # moments whose largest count is kept
Integers = NDArray[np.int64]
Tag = tuple[str, str]  # name and value


class Beginning(NamedTuple):
    """When a change of a stream began: after `lower`, up to `upper`, most probably at `estimate`.

    step: seconds between two observations of the stream: a start is known to no less.
    """

    stream: str
    lower: float
    estimate: float
    upper: float
    step: float


class Moment(NamedTuple):
    """When an incident began, by all its members."""

    lower: float
    estimate: float
    upper: float


class ByChance(NamedTuple):
    """What independent streams would show of an incident.

    expected: other changes that begin within its window. per_day: incidents of as many streams
    within as short a window.
    """

    expected: float
    per_day: float


class Mover(NamedTuple):
    """A tag's value, or one in combination with others, that many of the changed streams have.

    changed: of the streams that changed. streams: of all. expected: of those that changed, if
    which ones did had nothing to do with tags. probability: of so many or more then, times the
    number of values, or of combinations of as many. others: of a combination the other tags.
    """

    tag: str
    value: str
    changed: int
    streams: int
    expected: float
    probability: float
    others: Mapping[str, str] = MappingProxyType({})


class Tagged:
    """Tags of streams, and how many of them have each value of one."""

    def __init__(self, tags: Sequence[Mapping[str, str]]) -> None:
        self._tags = tags
        self.counts = Counter(tag for own in tags for tag in own.items())
        self._within: dict[Tag, Tagged] = {}

    @property
    def streams(self) -> int:
        """Number of the streams."""
        return len(self._tags)

    def within(self, tag: Tag) -> Tagged:
        """Return those of the streams that have a value of a tag; sought once for each."""
        if tag not in self._within:
            name, value = tag
            self._within[tag] = Tagged([own for own in self._tags if own.get(name) == value])
        return self._within[tag]

    def beside(self, other: Tagged) -> Tagged:
        """Return these streams and others."""
        both = Tagged(())
        both._tags = [*self._tags, *other._tags]
        both.counts = self.counts + other.counts
        return both


class Incidents(NamedTuple):
    """Groups of changes, as indices of the beginnings, with what chance would show of them.

    per_day: beginnings a day: of incidents and of changes by themselves.
    """

    groups: list[list[int]]
    chances: list[ByChance]
    per_day: float


def incidents(beginnings: Sequence[Beginning], false_alarms_per_day: float) -> Incidents:
    """Group changes that began together, where that is unlikely by chance.

    The rate of beginnings is that of the fleet's false alarms, or that of the beginnings
    themselves where that is higher, an incident being one. It does not depend on the order.
    """
    groups = [group for group in together(beginnings) if len(group) > 1]
    estimates = [beginning.estimate for beginning in beginnings]
    days = (max(estimates) - min(estimates)) / DAY_S if estimates else 0.0

    def rate(kept: Sequence[Sequence[int]]) -> float:
        separate = len(beginnings) - sum(len(group) - 1 for group in kept)
        # The first one begins the time in which the others are counted.
        observed = (separate - 1) / days if days > 0.0 and separate > 1 else 0.0
        return max(false_alarms_per_day, observed)

    # What is an incident changes the rate, and the rate what is one: the second look is the last.
    per_day = rate(groups)
    for _ in range(2):
        chances = [by_chance([beginnings[i] for i in group], per_day) for group in groups]
        kept = [i for i, chance in enumerate(chances) if chance.per_day <= RARE_PER_DAY]
        per_day = rate([groups[i] for i in kept])
    return Incidents([groups[i] for i in kept], [chances[i] for i in kept], per_day)


def together(beginnings: Sequence[Beginning]) -> list[list[int]]:
    """Partition changes into groups whose start intervals share a moment, one of a stream.

    The largest group is taken first, of equal ones the earliest; then that of the others. A moment
    that most intervals share is where one of them begins: `shared` counts the intervals at each of
    these, in blocks of which the largest count is kept, so that a group costs no look at all the
    others.
    """
    spans = np.array([reach(beginning) for beginning in beginnings]).reshape(-1, 2)
    order = np.lexsort((spans[:, 1], spans[:, 0]))
    lower, upper = spans[order].T
    # Of each interval the moments in it, as places in `lower`: from `first` to before `last`.
    first = _blocks(np.searchsorted(lower, lower, side="left"))
    last = _blocks(np.searchsorted(lower, upper, side="right"))
    shared = _blocks(np.zeros(len(order), dtype=int))
    count = _covered(first.flat[: len(order)], last.flat[: len(order)])
    shared.flat[: len(count)] = count
    most = shared.max(1)
    reaching = last.max(1)
    groups: list[list[int]] = []
    while most.max(initial=0) > 1:
        block = int(most.argmax())
        at = block * BLOCK + int(shared[block].argmax())
        begun = int(np.searchsorted(lower, lower[at], side="right"))
        near = np.flatnonzero(reaching[: (begun - 1) // BLOCK + 1] > at)
        rows, columns = np.nonzero((last[near] > at) & (first[near] <= at))
        chosen = near[rows] * BLOCK + columns
        own = [(place, beginnings[order[place]]) for place in chosen.tolist()]
        middle = float(np.median([beginning.estimate for _, beginning in own]))
        own.sort(key=lambda pair: abs(pair[1].estimate - middle))
        nearest: dict[str, int] = {}
        for place, beginning in own:
            nearest.setdefault(beginning.stream, place)
        members = np.array(sorted(nearest.values()))
        groups.append(sorted(order[members].tolist()))
        begin = int(first.flat[members].min())
        gone = _covered(first.flat[members] - begin, last.flat[members] - begin)
        shared.flat[begin : begin + len(gone)] -= gone
        last.flat[members] = 0  # in no moment any more
        changed = slice(begin // BLOCK, (begin + len(gone) - 1) // BLOCK + 1)
        most[changed] = shared[changed].max(1)
        left = np.unique(members // BLOCK)
        reaching[left] = last[left].max(1)
    return groups + [[int(order[place])] for place in np.flatnonzero(last.flat)]


def _blocks(values: Integers) -> Integers:
    """Return values in rows of BLOCK, the last one filled up with zeros."""
    rows = -(-len(values) // BLOCK)
    blocks = np.zeros((rows, BLOCK), dtype=int)
    blocks.flat[: len(values)] = values
    return blocks


def _covered(first: Integers, last: Integers) -> Integers:
    """Count at each place how many ranges, from `first` to before `last`, it is in."""
    ends = last.max(initial=0)
    changes = np.bincount(first, minlength=ends + 1) - np.bincount(last, minlength=ends + 1)
    return np.cumsum(changes)[:ends]


def reach(beginning: Beginning) -> tuple[float, float]:
    """Return the times between which a change may have begun together with others."""
    before = max(beginning.estimate - beginning.lower, beginning.step)
    after = max(beginning.upper - beginning.estimate, 0.0)
    return (
        beginning.estimate - (1 + REACH_BEFORE) * before,
        beginning.estimate + (1 + REACH_AFTER) * after,
    )


def moment(members: Sequence[Beginning]) -> Moment:
    """When an incident began: the median of its members' starts, by the precision of each.

    The interval is what those of the members that hold it have in common.
    """
    ordered = sorted(members, key=lambda member: member.estimate)
    weights = np.array(
        [1 / max(member.upper - member.lower, member.step, 1e-3) for member in ordered]
    )
    middle = int(np.searchsorted(np.cumsum(weights), weights.sum() / 2))
    estimate = ordered[min(middle, len(ordered) - 1)].estimate
    holding = [member for member in members if member.lower <= estimate <= member.upper]
    return Moment(
        max((member.lower for member in holding), default=estimate),
        estimate,
        min((member.upper for member in holding), default=estimate),
    )


def by_chance(members: Sequence[Beginning], per_day: float) -> ByChance:
    """Return what independent streams with so many beginnings a day would show of an incident.

    Beginnings are then a Poisson process: after any one of them so many others come within the
    window with a probability that is said here, and there are `per_day` of them.
    """
    estimates = [member.estimate for member in members]
    step = float(np.median([member.step for member in members]))
    expected = per_day * (max(estimates) - min(estimates) + step) / DAY_S
    return ByChance(expected, per_day * _poisson_tail(len(members) - 1, expected))


def _poisson_tail(least: int, mean: float) -> float:
    """Probability of `least` or more where `mean` are expected."""
    if least <= 0:
        return 1.0
    if mean <= 0.0:
        return 0.0
    if mean > least:
        return max(0.0, 1.0 - sum(exp(k * log(mean) - mean - lgamma(k + 1)) for k in range(least)))
    term = exp(least * log(mean) - mean - lgamma(least + 1))
    total = 0.0
    k = least
    while term > 1e-17 * total:
        total += term
        k += 1
        term *= mean / k
    return min(1.0, total)


def movers(changed: Tagged, fleet: Tagged) -> list[Mover]:
    """Return the values of tags that an unlikely share of the changed streams has.

    fleet: all streams, those that changed among them. The least likely come first. Where an
    unlikely share of the changed streams with the first one has another one, too, their combination
    takes its place, and that of all that the same streams have.
    """
    found = _unlikely(changed, fleet)
    if not found:
        return []
    tags = [(found[0].tag, found[0].value)]
    some = changed.within(tags[0])
    every = fleet.within(tags[0])
    while further := _unlikely(some, every):
        tags.append((further[0].tag, further[0].value))
        some = some.within(tags[-1])
        every = every.within(tags[-1])
    tail = _hypergeometric_tail(some.streams, fleet.streams, every.streams, changed.streams)
    probability = min(1.0, tail * len(fleet.counts) ** len(tags))
    if len(tags) > 1 and probability < found[0].probability:
        expected = changed.streams * every.streams / fleet.streams
        others = dict(tags[1:])
        combined = Mover(*tags[0], some.streams, every.streams, expected, probability, others)
        wider = [mover for mover in found if mover.changed > some.counts[mover.tag, mover.value]]
        found = [combined, *wider]
    return found[:MOST_MOVERS]


def _unlikely(changed: Tagged, fleet: Tagged) -> list[Mover]:
    unlikely = []
    for (name, value), count in changed.counts.items():
        streams = fleet.counts[name, value]
        tail = _hypergeometric_tail(count, fleet.streams, streams, changed.streams)
        probability = min(1.0, tail * len(fleet.counts))
        if count > 1 and probability <= UNLIKELY:
            expected = changed.streams * streams / fleet.streams
            unlikely.append(Mover(name, value, count, streams, expected, probability))
    unlikely.sort(key=lambda mover: (mover.probability, -mover.changed, mover.tag, mover.value))
    return unlikely


def _hypergeometric_tail(least: int, total: int, marked: int, drawn: int) -> float:
    """Probability that of `drawn` of `total` `least` or more are marked."""

    def log_choose(n: int, k: int) -> float:
        return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)

    every = log_choose(total, drawn)
    tail = 0.0
    for k in range(max(least, drawn + marked - total), min(drawn, marked) + 1):
        tail += exp(log_choose(marked, k) + log_choose(total - marked, drawn - k) - every)
    return min(1.0, tail)
