"""Changes in words: `sentence` is the headline of an event, wherever one is shown."""

from __future__ import annotations

from math import ceil, floor, isfinite, log10
from typing import NamedTuple

UNCLEAR = "changed, kind unclear"
TOGETHER = "changed, no output clearly by itself"
BY_INPUTS = "relation to the inputs changed"


class Explanation(NamedTuple):
    """One change in one line, and the same in numbers.

    kind: mean, spread, slope, autocorrelation, rate (of counts; mean of durations) or share (of a
    class); None: nothing of it changed clearly. before, after: of that parameter. probability:
    posterior probability of the kind, all and nothing being as probable before. output: index of
    the one of several that changed most clearly, None: none did by itself; or the class whose share
    did. size: of the change: of a mean of numbers in standard deviations, of a spread, rate or mean
    duration a ratio, of other parameters the difference; None: without spread, or from nothing.
    """

    text: str
    kind: str | None = None
    before: float | None = None
    after: float | None = None
    probability: float = 0.0
    output: int | None = None
    size: float | None = None


class Moments(NamedTuple):
    """Labels of one regime; count: observations. sd: None of fewer than two labels.

    Of one output numbers, of several lists, of classes None.
    """

    count: int  # type: ignore[assignment]
    mean: float | list[float | None] | None
    sd: float | list[float | None] | None


def sentence(
    explanation: Explanation | None,
    direction: str | None,
    size: float | list[float | None] | None,
    kind: str = "change",
) -> str:
    """Return what an event is, in a few words: its headline.

    direction, size: of the event, which say what there is to say of an anomaly, and of a change of
    which too few labels were explained so far.
    """
    if explanation is not None:
        return explanation.text
    if direction is None:
        return "unusual" if kind == "anomaly" else "changed"
    output = farthest(size)
    of = "" if output is None else f"output {output + 1}: "
    largest = size[output] if isinstance(size, list) and output is not None else size
    by = f" by {_digits(abs(largest))} sd" if isinstance(largest, float) else ""
    if kind == "anomaly":
        return f"{of}{'above' if direction == 'up' else 'below'} the forecast{by}"
    return f"{of}{direction}{by} so far"


def farthest(size: float | list[float | None] | None) -> int | None:
    """Return the index of the output that moved most of several; None: there is one, or no size."""
    if not isinstance(size, list):
        return None
    sizes = [-1.0 if number is None else abs(number) for number in size]
    most = max(sizes, default=-1.0)
    return sizes.index(most) if most >= 0 else None


def moved(name: str, ends: tuple[float, float], size: float | None = None) -> str:
    """Return that a parameter rose or fell; size: in standard deviations."""
    verb = "rose" if ends[1] > ends[0] else "fell"
    by = "" if size is None else f" by {_digits(abs(size))} sd"
    return f"{name} {verb}{by}, {_from_to(ends)}"


def scaled(name: str, ends: tuple[float, float]) -> str:
    """Return by which factor a parameter changed, where it was any and is some."""
    factor = ratio(ends)
    return f"{name} × {_digits(factor)}, {_from_to(ends)}" if factor else moved(name, ends)


def either(means: tuple[float, float], spreads: tuple[float, float]) -> str:
    """Return that the mean or the spread changed, with both on each side."""
    old, new = (
        f"{_number(mean, max(spreads))} ± {_number(spread, max(spreads))}"
        for mean, spread in zip(means, spreads, strict=True)
    )
    return f"mean or spread changed, {old} → {new}"


def ratio(ends: tuple[float, float]) -> float | None:
    """Return the factor by which a parameter changed; None: from nothing."""
    return ends[1] / ends[0] if ends[0] > 0 else None


def _from_to(ends: tuple[float, float]) -> str:
    old, new = ends
    return f"{_number(old, new - old)} → {_number(new, new - old)}"


def _number(value: float, difference: float) -> str:
    """A number with as many digits as its difference from the other needs: about two."""
    if difference == 0 or not isfinite(value) or not isfinite(difference):
        return f"{value:.4g}"
    places = ceil(1 - log10(abs(difference)))
    if 1e-4 <= abs(difference) < 1e7 and abs(value) < 1e15:
        text = f"{value:.{max(0, places)}f}"
    else:
        whole = floor(log10(abs(value))) + 1 if value else 0
        text = f"{value:.{min(max(4, whole + places), 17)}g}"
    return text.removeprefix("-") if float(text) == 0 else text


def _digits(value: float) -> str:
    """A size with about two digits."""
    if not 0.095 <= value < 9950:
        return f"{value:.2g}"
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"
