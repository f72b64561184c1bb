"""Mixtures of real or of positive labels: moments, distribution function, quantiles.

What `predictive` and `quantiles` compute. `components` is (FIELDS, M), a column for each
component of one output's mixture.

Components of real labels, each a Student-t, are merged: those of hypotheses of similar run lengths
hardly differ, and most weigh next to nothing. Promised: a distribution function that is exact to
`EXACT` of the tail of the outermost level, 1e-4 where that is 5 %; see docs/mathematics.md. Of
positive labels it is exact to 2e-10.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from model_core.compiled import LABEL, LABELLED, arithmetic
from model_core.compiled.arithmetic import INF, maths
from model_core.compiled.jit import (
    Floats,
    Ints,
    bits_of,
    compiled,
    entry,
    inlined,
    linewise,
    of_class,
    padded,
    regrouped,
    state_at,
    whole,
    widest,
)
from model_core.maths.special import FARTHEST, ROOT_2_PI
from model_core.table import BESIDE, LANES

_SPECIAL = maths("special")
UNSEEN = 1e-18  # weight of a hypothesis, or of a component of positive labels, that is left out
# Largest error of a distribution function, in tails of the outermost level; that tail where there
# are no levels. NEGLIGIBLE: of what a component is allowed, the weight of one that is left out.
EXACT = 2e-3
USUAL_TAIL = 0.05
NEGLIGIBLE = 0.02
# Largest second derivative of a Student-t's distribution function as merging measures it: .85 by
# docs/mathematics.md, and what the components that are left out weigh.
CURVED = 0.9
ORDERING = -4096  # bits of a number that order it; the lowest, which are the slot's, decide ties
HALLEY_STEPS = 12
BRACKET_STEPS = 200
NEWTON_STEPS = 40  # in a bracket; then it is halved
NEAR = 1e-12  # of a tail, below which the normal's quantile of it is not worth taking
# Longest last step of a quantile of real labels, in scales of the narrowest component that weighs
# anything, and how far the normal's quantiles may be apart before it; then of positive labels. The
# error that is left is of the third order: of real labels a twentieth of `EXACT`.
SHORT = 0.07
CLOSE = 0.07
FINE = 2e-5  # the same of Newton's method, whose error is of the second order
SHORT_POSITIVE = 5e-4
CLOSE_POSITIVE = 1e-3

# Fields of a component of real labels, a Student-t. TERM and what follows up to LEVEL are of
# `maths.special.student_t_table`, INVERSE is 1 / scale below the mode, ABOVE that above it, SIDE
# twice the weight that lies below it. SCALE is that of a side on average.
LOC, SKEW, WEIGHT, INVERSE, HALF, NORM, TERM = range(7)
HILL, HILL_B, SLOPE, LEVEL, ABOVE, SIDE, SCALE = range(11, 18)
# Numbers at one place: distance of the mode in scales, log(1 + t^2 / df) and the inverse of what
# that is the logarithm of, density and tail.
DISTANCE, MORE, NEARNESS, DENSITY, TAIL = range(18, 23)
# While components are merged, of a group: averages of the squared scale and of 1 / HALF, variances
# of the location and of these two, the least squared scale, and how many members there are.
SQUARE = INVERSE
FREEDOM = NORM
LOC_VARIANCE = SCALE
SQUARE_VARIANCE, FREEDOM_VARIANCE, LEAST, SIZE = range(TERM, TERM + 4)
# Slots in order; those that have a component at a location; weights of all slots; of slots places
# in the order, and keys of it.
SLOTS, MEMBERS, MASS, RANKS = range(23, 27)
KEYS = MEMBERS
# Once components are merged, numbers of a line: where sums are taken, these sums, and which level a
# quantile is searched for.
AT, OPEN, CDF, DENSITIES = MEMBERS, MASS, RANKS, 27
DERIVATIVES = 28
FIELDS = 29
# Sums over the members of a group, beside its first one: their number, weight, distance from its
# location, ratio to its squared scale and FREEDOM, and of the squares of these; the least ratio.
Group = tuple[float, float, float, float, float, float, float, float, float]
NOBODY = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, INF)
# Of positive labels: weight, mean as LOC, parameters from `PARAMETERS` on, and SCALE.
PARAMETERS = INVERSE


# --- merging --------------------------------------------------------------------------------------


@compiled
def tail_of(levels: Floats) -> float:
    """Probability beyond the outermost of the levels (2, Q)."""
    tail = USUAL_TAIL
    for k in range(levels.shape[1]):
        tail = min(tail, levels[0, k], 1.0 - levels[0, k])
    return tail


@inlined
def allowed(levels: Floats, components: int) -> float:
    """What each of so many components may add to the squared differences in its group."""
    return 2.0 * EXACT * tail_of(levels) / components


@compiled
def order(chance: Floats, half: Floats, components: Floats) -> int:
    """Fill SLOTS with the columns that weigh anything, by rising degrees of freedom.

    Those of no hypothesis are the last. Returns how many there are.
    """
    slots = components[SLOTS].view(np.int64)
    keys = components[KEYS].view(np.int64)
    ranks = components[RANKS].view(np.int64)
    n = whole(chance) - BESIDE
    count = 0
    for i in range(n):
        keys[count] = (bits_of(half[i]) & ORDERING) + i
        slots[count] = i
        count += 1 if chance[i] > UNSEEN else 0
    _rank(keys[:count], ranks[:count])
    for a in range(count):
        keys[a] = slots[a]
    for a in range(count):
        slots[ranks[a]] = keys[a]
    for i in range(n, n + BESIDE):
        slots[count] = i
        count += 1 if chance[i] > UNSEEN else 0
    return count


@linewise
def _rank(keys: Ints, ranks: Ints) -> None:
    """Fill in how many of the keys, which all differ, are less than each."""
    widest()
    n = keys.shape[0]
    by_four = n & -4
    for a in range(n):
        ranks[a] = 0
    for b in range(0, by_four, 4):
        one = keys[b]
        two = keys[b + 1]
        three = keys[b + 2]
        four = keys[b + 3]
        for a in range(n):
            key = keys[a]
            below = (1 if one < key else 0) + (1 if two < key else 0)
            ranks[a] += below + (1 if three < key else 0) + (1 if four < key else 0)
    for b in range(by_four, n):
        one = keys[b]
        for a in range(n):
            ranks[a] += 1 if one < keys[a] else 0


@compiled
def merge(
    allowed: float,
    count: int,
    chance: Floats,
    weight: Floats,
    loc: Floats,
    squares: Floats,
    shares: Floats,
    half: Floats,
    skew: float,
    n: int,
    components: Floats,
) -> int:
    """Append the components that hypotheses have at their locations; returns how many there are.

    allowed: what each of so many hypotheses may add to the error, twice. count: of `order`. chance,
    weight: of each hypothesis, and of the location under it. squares: (C, W) of the kinds of
    components at a location, which have shares of its weight. half: of the degrees of freedom.

    Hypotheses are merged by their components of the first kind, the narrowest. Those of each other
    kind are merged by the same groups, and these once more.
    """
    # Unsigned: an index that might be below 0 costs a choice.
    slots = components[SLOTS].view(np.uint64)
    members = components[MEMBERS].view(np.uint64)
    usual = squares[0]
    mass = components[MASS]
    kinds = squares.shape[0]
    roots = 0.0
    for c in range(kinds):
        roots += math.sqrt(shares[c])
    # Of the two sides of a skewed component one is steeper.
    allowed *= (1.0 + skew * skew) / (2.0 * CURVED * max(1.0, skew * skew))
    least = NEGLIGIBLE * allowed / kinds
    arithmetic.multiply(chance, weight, mass)
    entries = 0
    for at in range(count):
        members[entries] = slots[at]
        entries += 1 if mass[slots[at]] > least else 0
    end = n
    at = 0
    of_usual = allowed * (math.sqrt(shares[0]) / roots)
    while at < entries:
        middle = loc[members[at]]
        per_unit = 1.0 / usual[members[at]]
        group = NOBODY
        while at < entries:
            i = members[at]
            times = usual[i] * per_unit
            more = _joined(
                group, 1.0, mass[i] * shares[0], loc[i] - middle, times, 1.0 / half[i], 0.0, 0.0,
                0.0, times,
            )  # fmt: skip
            if group[0] > 0.0 and not _alike(more, of_usual, per_unit):
                break
            group = more
            at += 1
        _close(group, middle, per_unit, end, components)
        end += 1
    size = end - n
    for c in range(1, kinds):
        first = end
        square = squares[c]
        share = shares[c]
        own_allowed = allowed * (math.sqrt(share) / roots)
        begin = 0
        for g in range(n, n + size):
            until = begin + int(components[SIZE, g])
            per_unit = 1.0 / square[members[begin]]
            total = 0.0
            ratio = 0.0
            ratio_2 = 0.0
            smallest = 1.0
            for at in range(begin, until):
                own = mass[members[at]]
                times = square[members[at]] * per_unit
                total += own
                ratio += own * times
                ratio_2 += own * (times * times)
                smallest = min(smallest, times)
            if total * share > least:
                average = ratio / total
                varied = max(ratio_2 / total - average * average, 0.0)
                apart = components[LOC_VARIANCE, g]
                freedom = components[FREEDOM_VARIANCE, g]
                differs = _difference(apart * per_unit, varied, freedom, smallest)
                if total * share * differs <= own_allowed * (until - begin) * smallest * smallest:
                    components[WEIGHT, end] = total * share
                    components[LOC, end] = components[LOC, g]
                    components[SQUARE, end] = average / per_unit
                    components[FREEDOM, end] = components[FREEDOM, g]
                    components[LOC_VARIANCE, end] = components[LOC_VARIANCE, g]
                    components[SQUARE_VARIANCE, end] = varied / (average * average)
                    components[FREEDOM_VARIANCE, end] = components[FREEDOM_VARIANCE, g]
                    components[LEAST, end] = smallest / per_unit
                    components[SIZE, end] = components[SIZE, g]
                    end += 1
                else:  # the groups of the first kind are too wide for this one
                    for at in range(begin, until):
                        i = members[at]
                        _enter(mass[i] * share, loc[i], square[i], 1.0 / half[i], end, components)
                        end += 1
            begin = until
        end = first + _condense(own_allowed, first, end - first, components)
    for i in range(n, end):
        components[SQUARE, i] += components[LOC_VARIANCE, i]
        components[SKEW, i] = skew
    return end


@inlined
def _enter(
    weight: float, loc: float, square: float, freedom: float, at: int, components: Floats
) -> None:
    """Fill in a group of one member."""
    components[WEIGHT, at] = weight
    components[LOC, at] = loc
    components[SQUARE, at] = square
    components[FREEDOM, at] = freedom
    components[LOC_VARIANCE, at] = 0.0
    components[SQUARE_VARIANCE, at] = 0.0
    components[FREEDOM_VARIANCE, at] = 0.0
    components[LEAST, at] = square
    components[SIZE, at] = 1.0


@inlined
def _difference(loc: float, square: float, freedom: float, least: float) -> float:
    """What `_alike` bounds, by variances of a group, times least^2.

    loc, square: in units of some squared scale and of its square. least: of the squared scales.
    """
    return loc * least + 0.25 * square + 0.25 * freedom * (least * least)


@inlined
def _joined(
    group: Group,
    members: float,
    weight: float,
    apart: float,
    ratio: float,
    freedom: float,
    loc_variance: float,
    square_variance: float,
    freedom_variance: float,
    least: float,
) -> Group:
    """A group with more members, which have these averages and variances.

    apart: distance of their location from that of the group's first member. ratio, least: squared
    scale, and the least one, to its.
    """
    return (
        group[0] + members,
        group[1] + weight,
        group[2] + weight * apart,
        group[3] + weight * (apart * apart + loc_variance),
        group[4] + weight * ratio,
        group[5] + weight * (ratio * ratio * (1.0 + square_variance)),
        group[6] + weight * freedom,
        group[7] + weight * (freedom * freedom + freedom_variance),
        min(group[8], least),
    )


@inlined
def _alike(group: Group, allowed: float, per_unit: float) -> bool:
    """Whether a group of average location, squared scale and inverse degrees of freedom may stand
    for its members.

    With the variance of the locations in the squared scale as well, its distribution function
    differs from theirs by at most half of CURVED times

        W (var(loc) / s^2 + var(square) / (4 s^4) + var(1 / half) / 4),

    W being the weight and s the least scale of the members, which is kept to what is allowed for
    each of them. per_unit: 1 over the squared scale of its first member.
    """
    members, weight, apart, apart_2, ratio, ratio_2, freedom, freedom_2, least = group
    differs = _difference(
        (weight * apart_2 - apart * apart) * per_unit,
        weight * ratio_2 - ratio * ratio,
        weight * freedom_2 - freedom * freedom,
        least,
    )
    return differs <= weight * (allowed * members) * (least * least)


@inlined
def _close(group: Group, middle: float, per_unit: float, to: int, components: Floats) -> None:
    """Write a group; middle: location of its first member."""
    members, weight, apart, apart_2, ratio, ratio_2, freedom, freedom_2, least = group
    over = 1.0 / weight
    apart *= over
    ratio *= over
    freedom *= over
    components[WEIGHT, to] = weight
    components[LOC, to] = middle + apart
    components[SQUARE, to] = ratio / per_unit
    components[FREEDOM, to] = freedom
    components[LOC_VARIANCE, to] = max(apart_2 * over - apart * apart, 0.0)
    components[SQUARE_VARIANCE, to] = max(ratio_2 * over / (ratio * ratio) - 1.0, 0.0)
    components[FREEDOM_VARIANCE, to] = max(freedom_2 * over - freedom * freedom, 0.0)
    components[LEAST, to] = least / per_unit
    components[SIZE, to] = members


@compiled
def _condense(allowed: float, first: int, entries: int, components: Floats) -> int:
    """Merge neighbours among groups from column `first` on, in place; returns how many remain."""
    at = first
    end = first + entries
    to = first
    while at < end:
        middle = components[LOC, at]
        per_unit = 1.0 / components[SQUARE, at]
        group = NOBODY
        while at < end:
            more = _joined(
                group,
                components[SIZE, at],
                components[WEIGHT, at],
                components[LOC, at] - middle,
                components[SQUARE, at] * per_unit,
                components[FREEDOM, at],
                components[LOC_VARIANCE, at],
                components[SQUARE_VARIANCE, at],
                components[FREEDOM_VARIANCE, at],
                components[LEAST, at] * per_unit,
            )
            if group[0] > 0.0 and not _alike(more, allowed, per_unit):
                break
            group = more
            at += 1
        _close(group, middle, per_unit, to, components)
        to += 1
    return to - first


@linewise
def complete(components: Floats, n: int) -> int:
    """Fill in what follows of merged components, and columns up to whole vectors.

    Returns how many columns there are then.
    """
    widest()
    end = padded(n)
    for i in range(n, end):
        components[WEIGHT, i] = 0.0
        components[LOC, i] = components[LOC, 0]
        components[SKEW, i] = components[SKEW, 0]
        components[SQUARE, i] = components[SQUARE, 0]
        components[FREEDOM, i] = components[FREEDOM, 0]
    count = end & -LANES
    # Lines are cut one by one: those of a cut through all of them would have no known stride.
    weight = components[WEIGHT]
    side = components[SIDE]
    skew = components[SKEW]
    square = components[SQUARE]
    freedom = components[FREEDOM]
    half = components[HALF]
    norm = components[NORM]
    scale = components[SCALE]
    inverse = components[INVERSE]
    above = components[ABOVE]
    a = components[TERM]
    b = components[TERM + 1]
    c = components[TERM + 2]
    d = components[TERM + 3]
    e = components[TERM + 4]
    hill = components[HILL]
    hill_b = components[HILL_B]
    slope = components[SLOPE]
    level = components[LEVEL]
    for i in range(count):
        root = math.sqrt(square[i])
        scale[i] = root
        side[i] = weight[i] * (2.0 / (1.0 + skew[i] * skew[i]))
        above[i] = 1.0 / (root * skew[i])
        inverse[i] = skew[i] / root
        half[i] = 1.0 / freedom[i]
    for i in range(count):
        least, factor, _ = _SPECIAL.student_t_norm(half[i])
        norm[i] = least + 0.5 * arithmetic.log(factor)
    for i in range(count):
        a[i], b[i], c[i], d[i], e[i], hill[i], hill_b[i], slope[i], level[i] = (
            _SPECIAL.student_t_table(half[i])
        )
    return end


# --- distribution function and quantiles ----------------------------------------------------------


@compiled
def spread(components: Floats, n: int, centre: float) -> float:
    """Width of the mixture around its mean, by the components' SCALE."""
    between, within = _spread_of(components, n, centre)
    return math.sqrt(between + within * within)


@regrouped
def _spread_of(components: Floats, n: int, centre: float) -> tuple[float, float]:
    """Weighted sums of squared distances from the mean, and of SCALE."""
    widest()
    weight = components[WEIGHT]
    loc = components[LOC]
    scale = components[SCALE]
    between = 0.0
    within = 0.0
    for i in range(n):
        apart = loc[i] - centre
        between += weight[i] * (apart * apart)
        within += weight[i] * scale[i]
    return between, within


@compiled
def narrowest(levels: Floats, components: Floats, n: int) -> float:
    """Scale of the narrowest component that weighs more than quantiles may be off."""
    weight = components[WEIGHT]
    scale = components[SCALE]
    least = EXACT * tail_of(levels) / n
    smallest = INF
    for i in range(n):
        smallest = scale[i] if weight[i] > least and scale[i] < smallest else smallest
    return smallest


@compiled
def sums(x: float, components: Floats, n: int, family: Any) -> tuple[float, float, float]:
    """CDF, density and its derivative of a mixture; family: None of real labels."""
    if family is None:
        components[AT, 0] = x
        _sums_at(1, components, n)
        return components[CDF, 0], components[DENSITIES, 0], components[DERIVATIVES, 0]
    return _positive_sums(x, components, n, family)


@regrouped
def _positive_sums(x: float, components: Floats, n: int, family: Any) -> tuple[float, float, float]:
    weight = components[WEIGHT]
    y = max(x, 0.0)
    cdf = 0.0
    density = 0.0
    derivative = 0.0
    for i in range(n):
        f, p, q = of_class(family, "reached", y, state_at(components, family, i))
        cdf += weight[i] * f
        density += weight[i] * p
        derivative += weight[i] * q
    return cdf, density, derivative


@regrouped
def _sums_at(places: int, components: Floats, columns: int) -> None:
    """Fill CDF, density and its derivative at the first places AT.

    Of whole vectors of columns. A processor works on several turns of a short loop at once, and on
    several places: none waits for another's sums.
    """
    widest()
    n = columns & -LANES
    weight = components[WEIGHT]
    side = components[SIDE]
    loc = components[LOC]
    half = components[HALF]
    inverse = components[INVERSE]
    above = components[ABOVE]
    norm = components[NORM]
    hill = components[HILL]
    a = components[TERM]
    b = components[TERM + 1]
    c = components[TERM + 2]
    d = components[TERM + 3]
    e = components[TERM + 4]
    hill_b = components[HILL_B]
    slope = components[SLOPE]
    level = components[LEVEL]
    for k in range(places):
        x = components[AT, k]
        distance = components[DISTANCE, k * n : (k + 1) * n]
        more = components[MORE, k * n : (k + 1) * n]
        near = components[NEARNESS, k * n : (k + 1) * n]
        for i in range(n):
            error = x - loc[i]
            left = inverse[i]
            right = above[i]
            t = error * (left if error < 0 else right)
            t = t if t > -FARTHEST else -FARTHEST
            t = t if t < FARTHEST else FARTHEST
            ratio = t * t * a[i]
            distance[i] = t
            more[i], near[i] = arithmetic.log1p_and_inverse(ratio)
    for k in range(places):
        more = components[MORE, k * n : (k + 1) * n]
        height = components[DENSITY, k * n : (k + 1) * n]
        tail = components[TAIL, k * n : (k + 1) * n]
        for i in range(n):
            height[i] = _SPECIAL.student_t_density(more[i], half[i], norm[i])
            tail[i] = _SPECIAL.student_t_bent(more[i], hill[i], hill_b[i], slope[i], level[i])
    tail = components[TAIL]
    for i in range(places * n):
        tail[i] = arithmetic.half_erfc(tail[i])
    for k in range(places):
        distance = components[DISTANCE, k * n : (k + 1) * n]
        near = components[NEARNESS, k * n : (k + 1) * n]
        height = components[DENSITY, k * n : (k + 1) * n]
        tail = components[TAIL, k * n : (k + 1) * n]
        cdf = 0.0
        density = 0.0
        derivative = 0.0
        for i in range(n):
            t = distance[i]
            series = _SPECIAL.student_t_series(near[i], a[i], b[i], c[i], d[i], e[i])
            beyond = tail[i] + abs(t) * height[i] * series
            below = side[i]
            left = inverse[i]
            right = above[i]
            share = below if t < 0 else 2.0 * weight[i] - below
            narrow = left if t < 0 else right
            p = share * height[i] * narrow
            reached = share * beyond
            cdf += reached if t < 0 else weight[i] - reached
            density += p
            derivative -= p * narrow * (2.0 * half[i] + 1.0) * t * near[i] * a[i]
        components[CDF, k] = cdf
        components[DENSITIES, k] = density
        components[DERIVATIVES, k] = derivative


@inlined
def _halley(normal: float, cdf: float, density: float, derivative: float) -> tuple[float, float]:
    """How far beyond the quantile x is by Halley's method, and `ndtri(F(x)) - normal`.

    cdf to derivative: of `sums` at x. nan where there is no quantile of the normal.
    """
    if not (NEAR < cdf < 1.0 - NEAR and density > 0):
        return np.nan, np.nan
    at = arithmetic.ndtri(cdf)
    slope = density * ROOT_2_PI * math.exp(0.5 * at * at)
    bend = at * slope * slope + derivative / density * slope
    newton = (at - normal) / slope
    return newton / max(1.0 - 0.5 * newton * bend / slope, 0.5), at - normal


@compiled
def _by_bracket(
    level: float,
    start: float,
    spread: float,
    small: float,
    components: Floats,
    n: int,
    family: Any,
    least: float,
) -> float:
    """Newton's method kept inside a bracket, as `quantiles._newton`."""
    x = start
    low = least
    high = INF
    for step in range(BRACKET_STEPS):
        cdf, density, _ = sums(x, components, n, family)
        excess = cdf - level
        low = x if excess < 0 else low
        high = x if excess > 0 else high
        limit = 4.0 * spread * 2.0**step
        move = min(max(-excess / max(density, 1e-300), -limit), limit)
        new = x + move
        if new == x:
            new = x - (limit if excess > 0 else -limit)
        middle = 0.5 * (low + high)
        bounded = math.isfinite(middle)
        if abs(excess) < 2e-15 * level:
            return x
        if bounded and middle in (low, high):
            return high
        if abs(move) < small:
            return x + move
        x = middle if bounded and (new <= low or new >= high or step >= NEWTON_STEPS) else new
    return x


@compiled
def real_quantiles(
    levels: Floats, y: float, centre: float, components: Floats, n: int, out: Floats
) -> float:
    """Quantiles of real labels at levels (2, Q), which stand over the normal's.

    Returns the cumulative probability of y, unless it is nan. centre: the mixture's mean.

    Solves `ndtri(F(x)) = normal`, of a mixture close to a normal almost a line, by Halley's method
    at all levels at once; where that fails by Newton's.
    """
    width = spread(components, n, centre)
    small = narrowest(levels, components, n)
    cdf = np.nan
    which = components[OPEN].view(np.int64)
    at = components[AT]
    count = levels.shape[1]
    first = 0 if math.isnan(y) else -1  # y stands before the levels
    while first < count:
        places = min(components.shape[1] // n, count - first)  # as there is room for
        for k in range(places):
            which[k] = first + k
            at[k] = y if first + k < 0 else centre + width * levels[1, first + k]
        first += places
        for _ in range(HALLEY_STEPS):
            _sums_at(places, components, n)
            left = 0
            for k in range(places):
                level = which[k]
                if level < 0:
                    cdf = components[CDF, k]
                    continue
                move, apart = _halley(
                    levels[1, level], components[CDF, k], components[DENSITIES, k],
                    components[DERIVATIVES, k],
                )  # fmt: skip
                x = at[k] - move
                out[level] = x
                if abs(move) >= SHORT * small or abs(apart) >= CLOSE:
                    which[left] = level
                    at[left] = x
                    left += 1
            places = left
            if places == 0:
                break
        for k in range(places):
            out[which[k]] = np.nan
    for k in range(count):
        if math.isnan(out[k]):
            start = centre + width * levels[1, k]
            out[k] = _by_bracket(
                levels[0, k], start, width, FINE * small, components, n, None, -INF
            )
    return cdf


@entry
def marginal(
    outputs: int,
    output: int,
    number: Floats,
    levels: Floats,
    components: Floats,
    merged: int,
    out: Floats,
) -> float:
    """One output's cumulative probability at the label (twice) and quantiles, after its mean.

    components, merged: its mixture, and how many they are.
    """
    n = complete(components, merged)
    first = outputs + outputs * outputs
    count = levels.shape[1]
    at = first + 2 * outputs + output * count
    y = number[LABEL + output] if number[LABELLED] > 0 else np.nan
    cdf = real_quantiles(levels, y, out[output], components, n, out[at : at + count])
    out[first + output] = cdf
    out[first + outputs + output] = cdf
    return 0.0


@compiled
def positive_quantiles(
    levels: Floats, centre: float, components: Floats, n: int, family: Any, out: Floats
) -> None:
    """As `real_quantiles`, of positive labels, one by one."""
    width = spread(components, n, centre)
    small = SHORT_POSITIVE * arithmetic.smallest(components[SCALE], n)
    for k in range(levels.shape[1]):
        level = levels[0, k]
        start = -centre * math.log1p(-level)  # from 0 no step leads anywhere
        x = start
        arrived = False
        for _ in range(HALLEY_STEPS):
            cdf, density, derivative = sums(x, components, n, family)
            move, apart = _halley(levels[1, k], cdf, density, derivative)
            if math.isnan(move):
                break
            x = max(x - move, 0.0)
            # Steps are small as well where a value is all but 0, however far it has to go.
            if abs(move) < small and abs(apart) < CLOSE_POSITIVE:
                arrived = True
                break
        if not arrived:
            fine = 1e-3 * small
            x = _by_bracket(level, start, width, fine, components, n, family, 0.0)
        out[k] = x


@compiled
def moments(weight: Floats, means: Floats, variances: Floats, n: int, out: Floats) -> None:
    """Mean (d) and covariance (d, d) into `out`; means, variances (d, M) of the components.

    inf on the diagonal where a variance does not exist.
    """
    outputs = means.shape[0]
    for o in range(outputs):
        out[o] = arithmetic.dot(weight, means[o], n)
    for o in range(outputs):
        for p in range(o, outputs):
            value = 0.0
            for i in range(n):
                value += weight[i] * ((means[o, i] - out[o]) * (means[p, i] - out[p]))
            out[outputs + o * outputs + p] = value
            out[outputs + p * outputs + o] = value
        out[outputs + o * outputs + o] += _average(weight, variances[o], n)


@compiled
def _average(weight: Floats, values: Floats, n: int) -> float:
    """Average with weights; a value of weight 0 may be infinite."""
    average = arithmetic.dot(weight, values, n)
    if math.isfinite(average):
        return average
    average = 0.0
    for i in range(n):
        average += weight[i] * values[i] if weight[i] > 0 else 0.0
    return average
