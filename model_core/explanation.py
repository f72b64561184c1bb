"""What changed at a change: its mean, spread, slope or autocorrelation, by Bayes factors.

Labels around a change are modelled as a line with autoregressive noise: docs/mathematics.md,
section 15. In the model of *nothing* both regimes share every parameter. Each other model shares
all but one; in one more mean and spread change together. The most probable model is the
explanation, of those of which the labels themselves show something. Counts and durations are
compared by their rates, classes by their shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import exp, inf, isfinite, lgamma, log, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core.sentences import (
    BY_INPUTS,
    TOGETHER,
    UNCLEAR,
    Explanation,
    Moments,
    either,
    moved,
    ratio,
    scaled,
)
from model_core.stream.events import SETTLING, Event, Track
from model_core.stream.state import SeenLabels
from model_core.upm.base import UnderlyingModel

Array = NDArray[np.float64]

# Labels that are looked at: the last before a change, the first after it.
BEFORE = 200
AFTER = 100
FEWEST = 4  # labels before a change that is explained
LEAST = 2  # those after it; with fewer than FEWEST it is explained "so far"
OUTPUTS = 8  # that are explained at most
PHI = np.linspace(-0.6, 0.95, 12)  # autocorrelations
# Of the spread after a change to that before: closer to one each other, wide apart beyond six.
_FAR = np.geomspace(10, 1000, 5)
RATIO = np.concatenate([1 / _FAR[::-1], np.geomspace(1 / 6, 6, 13), _FAR])
# Prior standard deviations, in those of the innovations: of what a trend adds over all labels, of a
# step, and of what a change of slope adds until the last label. They are larger where the labels
# show more.
TREND = 3.0
STEP = 3.0
BEND = 6.0
ROUNDING = 1e-13  # as a share of the labels: what is less is no spread, and no change
CLEAR = log(3.0)  # of a log Bayes factor, from which a second change is mentioned
# From which on regimes share a trend: means are then the levels next to the change, and spreads
# those about the line.
TRENDING = log(100.0)
# Log Bayes factor of a mean against a spread, either way, up to which the sentence names both: of
# a few labels far off on one side either may be the reason.
ALIKE = log(10.0)
SAME = 1.15  # factor of a spread up to which it is not mentioned
# Of a mean, in standard deviations of the wider regime: if it moved by less it is not mentioned, if
# by more it is mentioned first.
LITTLE = 0.2
FAR_APART = 1.0
RARE = -log(5.0)  # log prior odds of a slope or an autocorrelation to a mean or a spread


def moments(observed: Array, label: str = "real") -> Moments | None:
    """Moments of a regime's labels (T, d), NaN where one is missing; None: it has none.

    Of classes how many there are. label: the kind, as of `UnderlyingModel`.
    """
    if not len(observed):
        return None
    if label in ("binary", "class"):
        return Moments(len(observed), None, None)
    mean, sd = _by_output(observed)
    if len(mean) == 1:
        return Moments(len(observed), mean[0], sd[0])
    return Moments(len(observed), mean, sd)


def _by_output(labels: Array) -> tuple[list[float | None], list[float | None]]:
    """Mean and standard deviation of each output."""
    from model_core.compiled import explaining

    mean: list[float | None] = []
    sd: list[float | None] = []
    for column in labels.T:
        present = explaining.within_reach(column[~np.isnan(column)])
        own = _spread(present) if len(present) else None
        mean.append(own.mean if own is not None else None)
        sd.append(own.sd if own is not None and own.number > 1 else None)
    return mean, sd


def explain(before: Array, after: Array, label: str = "real") -> Explanation | None:
    """Explain the change between two regimes; None with too few labels.

    before, after: (T, d) labels next to the change, in order; NaN: a missing output. Of classes
    d is 1 and labels are their indices. label: their kind, as of `UnderlyingModel`.
    """
    if before.shape[1] != after.shape[1]:
        raise ValueError(
            f"expected regimes of as many outputs, got {before.shape[1]} and {after.shape[1]}"
        )
    from model_core.compiled import explaining

    before = before[-BEFORE:]
    after = after[:AFTER]
    explanations: list[tuple[float, Explanation]] = []
    for i in _candidates(before, after):
        old, new = before[:, i], after[:, i]
        old = old[~np.isnan(old)]
        new = new[~np.isnan(new)]
        if label not in ("binary", "class"):
            old = explaining.within_reach(old)
            new = explaining.within_reach(new)
        if len(old) >= FEWEST and len(new) >= LEAST:
            with np.errstate(over="ignore", invalid="ignore"):
                clear, one = RULES[label](old, new)
            if one.kind is not None and len(new) < FEWEST:
                one = one._replace(text=f"{one.text} so far")
            if before.shape[1] > 1 and one.text == UNCLEAR:
                one = one._replace(text=TOGETHER)
            elif before.shape[1] > 1:
                one = one._replace(text=f"output {i + 1}: {one.text}", output=i)
            most = min(_repeated(old, new), _repeated(new, old))
            explanations.append((min(clear, most), one))
    return max(explanations, key=lambda rated: rated[0])[1] if explanations else None


def _repeated(labels: Array, others: Array) -> float:
    """Most that labels that are all the same say by being so: of others many may be that, too.

    So none of a rare signal is no change, however small its spread is then.
    """
    if labels[0] != labels[-1] or not (labels == labels[0]).all():
        return inf
    same = np.count_nonzero(others == labels[0])
    return len(labels) * log((len(others) + 1) / (same + 0.5)) if same else inf


def _candidates(before: Array, after: Array) -> list[int]:
    """Outputs to explain: of many those whose mean and spread moved most."""
    if before.shape[1] <= OUTPUTS:
        return list(range(before.shape[1]))
    old = _by_output(before)
    new = _by_output(after)
    shifts = [0.0] * before.shape[1]
    for i, (a, b, c, d) in enumerate(zip(old[0], new[0], old[1], new[1], strict=True)):
        if a is not None and b is not None and c and d:
            shifts[i] = abs(b - a) / (c + d) + abs(log(d / c))
        elif None not in (a, b, c, d) and (a, c) != (b, d):  # one that stands still, or did
            shifts[i] = inf
    return sorted(range(len(shifts)), key=lambda i: -shifts[i])[:OUTPUTS]


# --- numbers ---------------------------------------------------------------------------------


class _Line(NamedTuple):
    """Line through labels: sums of products with the time, and of its squares; sd about it."""

    products: float
    times: float
    sd: float


class _Spread(NamedTuple):
    """Mean of labels, and the sum of their squared distances from it."""

    number: int
    mean: float
    squares: float

    @property
    def sd(self) -> float:
        """Standard deviation of what they are a sample of."""
        return sqrt(self.squares / (self.number - 1))


def _spread(labels: Array) -> _Spread:
    from model_core.compiled import explaining

    return _Spread(len(labels), *explaining.spread(labels))


def _about(labels: Array, trend: float, first: int) -> _Spread:
    """Level at the change, and spread about a trend; first: place of the first label from there."""
    if trend:
        labels = labels - trend * (np.arange(len(labels)) + first + 0.5)
    return _spread(labels)


def _numbers(old: Array, new: Array) -> tuple[float, Explanation]:
    """Log Bayes factor of the best model against nothing, and the explanation."""
    from model_core.compiled import explaining

    labels = np.concatenate([old, new])
    largest = float(np.abs(labels).max())
    # Less what both share, before anything is squared: large labels with a small spread.
    centre = explaining.median(labels)
    old = old - centre
    new = new - centre
    # A level may take a few labels to change, and a start may be a few off.
    late, early = explaining.settled(old, new)
    old = old[: len(old) - late]
    new = new[early:]
    usual = [explaining.without_outliers(old), explaining.without_outliers(new)]
    spread_of = [_spread(usual[0]), _spread(usual[1])]
    scale = _within(*spread_of)
    least = ROUNDING * largest
    if not isfinite(scale):
        return -inf, Explanation("labels too large to compare")
    if scale <= least:  # constant within both regimes
        return _constant(centre + spread_of[0].mean, centre + spread_of[1].mean)
    weighed = _weighed(usual, spread_of, scale)
    # Outliers as well.
    every = _about(old, weighed.trend, -len(old)), _about(new, weighed.trend, 0)
    within = _within(*every)
    means = centre + every[0].mean, centre + every[1].mean
    if within <= least:  # constant, or on two lines
        return _constant(*means)
    shown = _Shown(means, (_sd(every[0], least), _sd(every[1], least)), within)
    evidence = weighed.evidence(shown)
    kind = max(evidence, key=lambda name: evidence[name])
    clear = evidence[kind] - weighed.nothing
    total = _log_sum(weighed.nothing, *evidence.values())
    probability = exp(max(evidence[kind], weighed.nothing) - total)
    if clear <= 0:
        return clear, Explanation(UNCLEAR, probability=probability)
    if kind == "slope":
        ends = weighed.slopes
        text = f"{moved('slope', ends)} per observation"
        return clear, Explanation(text, kind, *ends, probability, size=ends[1] - ends[0])
    if kind == "autocorrelation":
        ends = _autocorrelations(weighed.phis)
        text = moved(kind, ends)
        return clear, Explanation(text, kind, *ends, probability, size=ends[1] - ends[0])
    wider = spread_of[1].squares / len(new) > spread_of[0].squares / len(old)
    text = weighed.sentence(kind, shown, wider)
    if kind == "mean":
        return clear, Explanation(text, kind, *means, probability, size=shown.shift / within)
    size = ratio(shown.spreads)
    return clear, Explanation(text, kind, *shown.spreads, probability, size=size)


class _Shown(NamedTuple):
    """What the labels of two regimes show: means and spreads of both, and the spread within."""

    means: tuple[float, float]
    spreads: tuple[float, float]
    within: float

    @property
    def shift(self) -> float:
        return self.means[1] - self.means[0]

    @property
    def moved(self) -> float:
        """How far the mean moved, in standard deviations of the wider regime."""
        return abs(self.shift) / max(self.spreads)

    @property
    def same(self) -> bool:
        """Whether the spread is, of the labels: innovations' may change with autocorrelation."""
        old, new = self.spreads
        return new < SAME * old and old < SAME * new


class _Weighed(NamedTuple):
    """Log evidence of nothing and, with the prior odds, of each kind of change.

    both: of mean and spread. slopes: of each regime. trend: slope of the line that both regimes
    share; 0: there is none. phis: at the points where phi differs.
    """

    nothing: float
    mean: float
    spread: float
    both: float
    others: dict[str, float]
    slopes: tuple[float, float]
    trend: float
    phis: Array

    def evidence(self, shown: _Shown) -> dict[str, float]:
        """Evidence of each kind that can be named: of those of which the labels show something.

        A change of both mean and spread counts as one of the mean where that moved far, else of
        what says more.
        """
        kinds = dict(self.others)
        if shown.moved >= LITTLE:
            kinds["mean"] = self.mean
        if not shown.same:
            kinds["spread"] = self.spread
        if len(kinds) > len(self.others):
            more = max(("mean", "spread"), key=lambda name: kinds.get(name, -inf))
            if self.both - max(self.mean, self.spread) > CLEAR and not shown.same:
                more = "mean" if shown.moved >= FAR_APART else "spread"
            kinds[more] = _log_sum(kinds[more], self.both) - log(2)
        return kinds or {"mean": -inf}

    def sentence(self, kind: str, shown: _Shown, wider: bool) -> str:
        """Name a change of mean or spread: with the other one, or either, where that is as likely.

        wider: whether the later regime is, without outliers.
        """
        # Without what looks like outliers a few labels may be closer together than they are: of a
        # spread nothing is said that all labels contradict.
        plain = kind == "spread" or wider == (shown.spreads[1] > shown.spreads[0])
        mean = moved("mean", shown.means, shown.shift / shown.within if kind == "mean" else None)
        spread = scaled("spread", shown.spreads)
        one = mean if kind == "mean" else spread
        if shown.same or shown.moved < LITTLE or not plain:
            return one
        if self.both - (self.mean if kind == "mean" else self.spread) > CLEAR:
            return f"{mean}; {spread}" if kind == "mean" else f"{spread}; {mean}"
        alike = abs(self.mean - self.spread) < ALIKE
        return either(shown.means, shown.spreads) if alike else one


def _weighed(usual: Sequence[Array], spread_of: Sequence[_Spread], scale: float) -> _Weighed:
    """Weigh the kinds of changes between two regimes' numbers, of which scale is the spread."""
    from model_core.compiled import explaining

    old, new = spread_of
    cleaned = np.concatenate(usual)
    lines = [_line(labels, own) for labels, own in zip(usual, spread_of, strict=True)]
    # The smaller spread is the unit: in one of both a regime that is quiet beside the other would
    # be less than the priors of its noise and of a step.
    unit = max(min(line.sd for line in lines), scale / RATIO[-1])
    slope = sum(line.products for line in lines) / sum(line.times for line in lines)
    shift = new.mean - old.mean
    steps = abs(shift), abs(shift - slope * len(cleaned) / 2)
    slopes = lines[0].products / lines[0].times, lines[1].products / lines[1].times
    sizes = (
        max(STEP, max(steps) / unit),
        max(BEND, abs(slopes[1] - slopes[0]) * new.number / unit),
        max(TREND, abs(slope) * len(cleaned) / unit),
    )
    standardised = (cleaned - explaining.median(cleaned)) / unit
    points = _GRID.factors, _GRID.log_scale, _BENT
    level, trending = explaining.evidence(standardised, old.number, sizes, *points)
    # Averaged over having a trend.
    logs = np.maximum(level, trending) + np.log1p(np.exp(-np.abs(level - trending))) - log(2)
    mean = explaining.mean_log(logs[_STEP])
    others: dict[str, float] = {}
    if new.number >= FEWEST:
        bends = explaining.mean_log(logs[_BEND])
        # A step with a bend counts as what says more by itself.
        stepped = explaining.mean_log(logs[_STEP_BEND]) + RARE - log(2)
        if bends > mean:
            others["slope"] = _log_sum(bends + RARE - log(2), stepped)
        else:
            others["slope"] = bends + RARE - log(2)
            mean = _log_sum(mean, stepped)
        others["autocorrelation"] = explaining.mean_log(logs[_PHIS]) + RARE
    lines_of = explaining.mean_log(trending[_LINES]), explaining.mean_log(level[_LINES])
    trend = lines_of[0] - lines_of[1] > TRENDING
    return _Weighed(
        explaining.mean_log(logs[_NOTHING]),
        mean,
        explaining.mean_log(logs[_SPREAD]),
        explaining.mean_log(logs[_STEP_SPREAD]),
        others,
        slopes,
        slope if trend else 0.0,
        logs[_PHIS],
    )


def _constant(old: float, new: float) -> tuple[float, Explanation]:
    if abs(new - old) <= ROUNDING * max(abs(old), abs(new)):
        return 0.0, Explanation(UNCLEAR, probability=1.0)
    return 1e9, Explanation(moved("mean", (old, new)), "mean", old, new, 1.0)


def _crossed(*axes: Array) -> list[Array]:
    return [axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")]


# Points of all models one after the other, weighed at once: phi before and after, and the ratio of
# the spreads of the innovations. A step alone, and with a change of the spread; a step with a bend,
# and a bend alone; nothing; a spread; autocorrelations, at the same noise and spread.
_COUNTS = [len(PHI), len(PHI) * len(RATIO), len(PHI), len(PHI), len(PHI), len(PHI) * len(RATIO)]
_ENDS = np.cumsum(_COUNTS).tolist()
_STEP, _STEP_SPREAD, _STEP_BEND, _BEND, _NOTHING, _SPREAD = map(slice, [0, *_ENDS[:-1]], _ENDS)
_LINES = slice(0, _ENDS[1])  # with a step, without a bend
_PHIS = slice(_ENDS[5], None)
_BENT = _ENDS[2], _ENDS[1], _ENDS[3]  # the first have a step, and from one to another a bend


class _Grid(NamedTuple):
    """What labels are weighed by at each point.

    first, last: (P,) phi of `_PHIS`. factors: (6, G) of sums of products before and after the
    change, in those of x_t - phi x_{t-1}. log_scale: (2, G) 0.5 log(1 - phi^2) of the first
    label, and log ratio of those after the change.
    """

    first: Array
    last: Array
    factors: Array
    log_scale: Array


def _whole_grid() -> _Grid:
    ones = np.ones_like(PHI)
    phi, ratio = _crossed(PHI, RATIO)
    first, last = _crossed(PHI, PHI)
    same = np.sqrt((1 - last**2) / (1 - first**2))
    usual = [PHI, phi, PHI, PHI, PHI, phi]
    ratios = np.concatenate([ones, ratio, ones, ones, ones, ratio, np.ones_like(first), same])
    befores = np.concatenate([*usual, first, first])
    afters = np.concatenate([*usual, last, last])
    before, after = (np.stack([np.ones_like(p), -p, p**2]) for p in (befores, afters))
    factors = np.concatenate([before, after / ratios**2])
    log_scale = np.stack([0.5 * np.log(1 - befores**2), np.log(ratios)])
    return _Grid(befores[_PHIS], afters[_PHIS], factors, log_scale)


_GRID = _whole_grid()


def _autocorrelations(logs: Array) -> tuple[float, float]:
    """Posterior means of phi before and after. logs: evidence at the points where they differ."""
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    return float(weights @ _GRID.first), float(weights @ _GRID.last)


def _log_sum(*logs: float) -> float:
    """Log of the sum of what these are logs of."""
    largest = max(logs)
    return largest + log(sum([exp(one - largest) for one in logs]))


def _within(old: _Spread, new: _Spread) -> float:
    return sqrt((old.squares + new.squares) / (old.number + new.number - 2))


def _sd(own: _Spread, least: float) -> float:
    """Standard deviation; 0 where it is less than `least`, which is rounding."""
    return own.sd if own.sd > least else 0.0


def _line(labels: Array, own: _Spread) -> _Line:
    """Line through a regime's labels; of few of them the sd is about their mean."""
    from model_core.compiled.explaining import OUTLIERS_FROM

    count = len(labels)
    products = float((np.arange(count) - (count - 1) / 2) @ labels)
    times = count * (count**2 - 1) / 12
    left = own.squares
    if count >= OUTLIERS_FROM:
        left = max(left - products**2 / times, 0.0)
    return _Line(products, times, sqrt(left / count))


# --- counts, durations, classes --------------------------------------------------------------


def _rates(old: Array, new: Array, durations: bool) -> tuple[float, Explanation]:
    """Counts are Poisson, durations exponential; the rate has a gamma prior at the mean of both.

    That of counts is of shape a half, that of durations of shape one.
    """
    total = np.array([old.sum(), new.sum()])
    labels = np.array([len(old), len(new)])
    mean = float(total.sum() / labels.sum())
    if mean <= 0:
        return 0.0, Explanation(UNCLEAR, probability=1.0)
    shape, rate = (1.0, mean) if durations else (0.5, 0.5 / mean)
    events, time = (labels, total) if durations else (total, labels)

    def evidence(events: float, time: float) -> float:
        """Log evidence, but for what no prior matters to."""
        after = shape + events
        return shape * log(rate) - lgamma(shape) + lgamma(after) - after * log(rate + time)

    apart = sum(map(evidence, events.tolist(), time.tolist()))
    clear = apart - evidence(float(events.sum()), float(time.sum()))
    ends = float(old.mean()), float(new.mean())
    return _rated(clear, ends, "mean" if durations else "rate")


def _classes(old: Array, new: Array) -> tuple[float, Explanation]:
    """Categorical with a Dirichlet prior of a half; the class whose share changed most."""
    names = np.union1d(old, new)
    tables = [np.array([(part == name).sum() for name in names]) for part in (old, new)]

    def evidence(table: Array) -> float:
        total = float(table.sum())
        count = len(table)
        logs = sum(lgamma(0.5 + count) - lgamma(0.5) for count in table.tolist())
        return logs + lgamma(0.5 * count) - lgamma(0.5 * count + total)

    clear = evidence(tables[0]) + evidence(tables[1]) - evidence(tables[0] + tables[1])
    shares = [table / table.sum() for table in tables]
    most = len(names) - 1 - int(np.argmax(np.abs(shares[1] - shares[0])[::-1]))  # 1 before 0
    name = int(names[most])
    ends = float(shares[0][most]), float(shares[1][most])
    clear, explanation = _rated(clear, ends, "share")
    if explanation.kind is None:
        return clear, explanation
    verb = "rose" if ends[1] > ends[0] else "fell"
    text = f"share of class {name} {verb}, {100 * ends[0]:.0f} % → {100 * ends[1]:.0f} %"
    return clear, explanation._replace(text=text, output=name, size=ends[1] - ends[0])


def _rated(clear: float, ends: tuple[float, float], kind: str) -> tuple[float, Explanation]:
    """The explanation by one parameter. clear: log Bayes factor of a change of it."""
    probability = 1 / (1 + exp(-abs(clear))) if isfinite(clear) else 1.0
    if clear <= 0:
        return clear, Explanation(UNCLEAR, probability=probability)
    text = scaled(kind, ends)
    return clear, Explanation(text, kind, ends[0], ends[1], probability, size=ratio(ends))


RULES: dict[str, Any] = {
    "real": _numbers,
    "count": partial(_rates, durations=False),
    "positive": partial(_rates, durations=True),
    "binary": _classes,
    "class": _classes,
}


# --- events ----------------------------------------------------------------------------------


def reach(event: Event) -> int:
    """Position of the first label that is looked at."""
    return max(event.previous, event.start - BEFORE, 0)


def next_due(event: Event, seq: int) -> float:
    """Position from `seq` on at which a confirmed change is explained again; inf: never.

    That is when its start is settled, and when all is there.
    """
    confirmed_at = event.confirmed_at or 0
    due = (confirmed_at + SETTLING, event.start + AFTER - 1)
    return min((at for at in due if at >= max(seq, confirmed_at + 1)), default=inf)


def uncovered(event: Event, changed: Sequence[Event]) -> bool:
    """Whether a confirmed change has more labels to explain it, since a suspicion was withdrawn.

    The suspicion was open at the last explanation, which therefore used only labels before it.
    """
    looked_at = max(event.confirmed_at or 0, event.refined_at or 0)
    return any(
        other.state == "withdrawn"
        and event.start < other.start < event.start + AFTER
        and other.suspected_at <= looked_at
        for other in changed
    )


def following(event: Event, track: Track) -> int | None:
    """Start of the change after it, of those that are followed; None: there is none."""
    others = [other.start for other in (track.event, track.last_event) if other is not None]
    return min((start for start in others if start > event.start), default=None)


def explained(
    event: Event, model: UnderlyingModel, seen: SeenLabels, end: int, until: int, history: int
) -> Event:
    """Return a confirmed event with what changed at it.

    seen: the last labels before position `end`. until: position after the last of them that
    is of its regime. history: observations that are sure to be retained, wherever they are: no
    others count.
    """
    first = max(end - len(seen.y), end - history)
    event = event._replace(before=None, after=None, explanation=None, start_time=None)
    event = event._replace(start_ms=None)
    if event.kind != "change" or not first <= event.start < until:
        return event
    labels = seen.filtered[first - end :]
    start = event.start - first
    before = labels[max(reach(event) - first, 0) : start]
    before = before[~np.isnan(before).all(1)]
    after = labels[start : min(until - first, start + AFTER)]
    after = after[~np.isnan(after).all(1)]
    explanation = Explanation(BY_INPUTS) if model.x_dim else explain(before, after, model.label)
    time, accepted_ms = seen.moment(len(seen.y) + event.start - end)
    return event._replace(
        before=moments(before, model.label),
        after=moments(after, model.label),
        explanation=explanation,
        start_time=time,
        start_ms=accepted_ms,
    )
