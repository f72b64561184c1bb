"""Quiet continuations of a stream, by a sieve bootstrap of its own labels.

What a stream's labels do within a regime is described by a level, or a line, and an autoregression
around it, whose innovations are those that were seen: drawn again with replacement they keep their
tails, and the autoregression keeps their memory (Buehlmann 1997, "Sieve bootstrap for time
series", *Bernoulli* 3). The coefficients are Burg's, which hardly damp a season or a walk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEWEST = 500  # labels that anything is learned from
LONGEST = 50  # order of the autoregression, at most
SHORTEST = 50  # labels of a regime that is looked at; shorter ones follow their noise


class Quiet(NamedTuple):
    """A regime that goes on.

    coefficients: (p,) of the labels before, the last one first. innovations: (n,) that were seen,
    of mean 0. past: (p,) last labels less the line, the last one first. level: of the line at the
    last label. slope: of the line, per label; 0 for a level.
    """

    coefficients: Floats
    innovations: Floats
    past: Floats
    level: float
    slope: float

    def draw(self, rng: np.random.Generator, series: int, steps: int) -> Floats:
        """Continuations (series, steps) of the labels."""
        drawn = rng.choice(self.innovations, (series, steps))
        order = len(self.coefficients)
        labels = np.empty((series, order + steps))
        labels[:, :order] = self.past[::-1]
        backwards = self.coefficients[::-1]
        for t in range(steps):
            labels[:, order + t] = labels[:, t : order + t] @ backwards + drawn[:, t]
        return labels[:, order:] + self.level + self.slope * np.arange(1, steps + 1)


def check(y: Floats) -> None:
    """Raise ValueError where labels (T,) are fewer than FEWEST, or no two differ."""
    if len(y) < FEWEST:
        raise ValueError(f"expected at least {FEWEST} retained labels, got {len(y)}")
    if not np.ptp(y) > 0:
        raise ValueError(f"expected labels that differ, got {len(y)} times {y[0]:g}")


def learn(y: Floats, starts: Sequence[int] = ()) -> Quiet:
    """What the labels (T,) do within a regime; starts: of regimes after the first, in `y`.

    Whether there was more than one, and whether they are lines or levels, is decided by an
    information criterion: a walk, or heavy tails, may look like many regimes. Innovations of
    several count in deviations of their regime, and go on with that of the last. Raises ValueError,
    as `check`.
    """
    check(y)
    parts = [
        y[start:end] for start, end in pairwise([0, *starts, len(y)]) if end - start >= SHORTEST
    ]
    parts = [part for part in parts if np.ptp(part) > 0]
    options = [_fitted([y], line, 1) for line in (False, True)]
    if starts and parts:
        options += [_fitted(parts, line, 1 + len(starts)) for line in (False, True)]
    return min(options, key=lambda option: option[0])[1]


def _fitted(parts: Sequence[Floats], line: bool, regimes: int) -> tuple[float, Quiet]:
    """Criterion, by label, and what it is of."""
    rests = []
    level = slope = 0.0
    for part in parts:
        place = np.arange(len(part)) - (len(part) - 1) / 2
        slope = float(place @ part / (place @ place)) if line else 0.0
        level = float(part.mean() + slope * place[-1])
        rests.append(part - part.mean() - slope * place)
    residuals = np.concatenate(rests)
    criterion, coefficients = _burg(residuals)
    constants = (1 + line) * regimes + regimes - 1  # with the places of the changes
    criterion += constants * math.log(len(residuals)) / len(residuals)
    if len(rests) > 1:
        last = rests[-1].std()
        residuals = np.concatenate([part * (last / part.std()) for part in rests])
    order = len(coefficients)
    innovations = residuals[order:].copy()
    for lag, coefficient in enumerate(coefficients, 1):
        innovations -= coefficient * residuals[order - lag : len(residuals) - lag]
    innovations -= innovations.mean()
    past = residuals[len(residuals) - order :][::-1]
    return criterion, Quiet(coefficients, innovations, past, level, slope)


def _burg(residuals: Floats) -> tuple[float, Floats]:
    """Akaike's criterion by label, and coefficients: of the order for which it is least."""
    forward = residuals[1:].copy()
    backward = residuals[:-1].copy()
    coefficients: Floats = np.zeros(0)
    variance = float(residuals @ residuals) / len(residuals)
    least = math.log(variance), coefficients
    for order in range(1, LONGEST + 1):
        power = float(forward @ forward + backward @ backward)
        if not power > 0:
            break
        reflection = 2 * float(forward @ backward) / power
        coefficients = np.append(coefficients - reflection * coefficients[::-1], reflection)
        variance *= 1 - reflection**2
        if not variance > 0:
            break
        forward, backward = (
            (forward - reflection * backward)[1:],
            (backward - reflection * forward)[:-1],
        )
        criterion = math.log(variance) + 2 * order / len(residuals)
        if criterion < least[0]:
            least = criterion, coefficients
    return least
