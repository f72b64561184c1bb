"""Hazards: the probability that a regime ends, learned, constant, or by the run length reached.

A hazard is a table `lambda(r)` for run lengths `r = 0, 1, ...`; the last entry holds for all that
are longer, so a constant is a table of one. As everywhere, a run length of `r` has `r + 1`
observations behind it, the first of the regime included. In place of the table of one that is
learned, with the prior Beta(a, b), stands `(LEARNED, a, b)`: docs/mathematics.md, "Learned".

Settings, artifacts and snapshots state a number, a table by run length, or
`{"mean": m, "shape": k}` of regime durations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_core.lazy import Tensor, torch
from model_core.stream_settings import DURATIONS, Durations, Hazard

LONGEST = 10_000  # entries of a table
LEARNED = -1.0  # first entry of what stands in place of a table
# Steps that one observation adds to those a hazard is learned from: changes in a gap go unseen.
MOST_STEPS = 1000.0
NEGLIGIBLE = 1e-6  # share of regimes, or relative difference from the limit, not worth an entry


def checked(hazard: float | Sequence[float]) -> tuple[float, ...]:
    """A constant or a table as a table; raises ValueError that says what is wrong with it."""
    table = (hazard,) if isinstance(hazard, int | float) else tuple(hazard)
    if not 1 <= len(table) <= LONGEST:
        raise ValueError(f"expected a hazard table of 1 to {LONGEST} entries, got {len(table)}")
    for run_length, value in enumerate(table):
        if not 0 <= value <= 1:
            raise ValueError(
                f"expected a hazard between 0 and 1, got {value} at run length {run_length}"
            )
    if not any(table):
        raise ValueError(
            "a hazard of 0 at every run length never allows a change: expected one above 0"
        )
    return tuple(map(float, table))


def stated(value: Any) -> Hazard:
    """Return a hazard as it was stated; raises ValueError for what is none."""
    try:
        if isinstance(value, Mapping):
            if set(value) != set(DURATIONS):
                raise ValueError(f"expected `mean` and `shape` of regime durations, got {value!r}")
            for name, meaning in DURATIONS.items():
                if not meaning.allows(_number(value[name])):
                    bounds = meaning.words()
                    raise ValueError(f"{name}: expected a number {bounds}, got {value[name]!r}")
            return Durations(mean=float(value["mean"]), shape=float(value["shape"]))
        if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes):
            return checked(list(map(_number, value)))
        (number,) = checked(_number(value))
    except (OverflowError, TypeError) as error:
        raise ValueError(str(error)) from error
    if number == 1:
        raise ValueError(f"expected a hazard below 1, got {value!r}")
    return number


def _number(value: Any) -> float:
    """A number; text and truth values are none."""
    if isinstance(value, str | bytes | bool | np.bool_):
        raise TypeError(f"expected a number, a table or durations, got {value!r}")
    return float(value)


def table_of(hazard: Hazard) -> NDArray[np.float64]:
    """Hazards (H,) by run length, of which the last entry holds on; not to be changed.

    Tables may have thousands of entries: they are made once.
    """
    if isinstance(hazard, dict):
        return _table((hazard["mean"], hazard["shape"]), True)
    return _table(hazard if isinstance(hazard, tuple) else (hazard,), False)


@lru_cache(maxsize=256)
def _table(numbers: tuple[float, ...], durations: bool) -> NDArray[np.float64]:
    entries = negative_binomial(*numbers) if durations else numbers
    return np.asarray(entries, dtype=np.float64)


def learned(changes: float, steps: float) -> tuple[float, float, float]:
    """A hazard that is learned, as if so many changes and steps without one had been seen."""
    return LEARNED, changes, steps


# As all streams do whose settings and model state none: about one change in 1,000 steps.
BY_STREAM = learned(0.2, 200.0)


def negative_binomial(mean: float, shape: float) -> tuple[float, ...]:
    """Table of regimes of D >= 1 observations, `D - 1` negative binomial with mean `mean - 1`.

    `lambda(r) = P(D = r + 1) / P(D >= r + 1)`. A shape of 1 is the constant `1 / mean`; above 1
    regimes are more regular (their squared coefficient of variation is about `1 / shape`), below
    it more irregular. The hazard tends to `shape / (mean - 1 + shape)`: the table ends where it is
    within 1e-6 of that, or where all but 1e-6 of the regimes have ended, at the latest after
    LONGEST entries; longer regimes keep its last. Raises ValueError unless `1 <= mean <= LONGEST`
    and `0 < shape < inf`.
    """
    if not 1 <= mean <= LONGEST:
        raise ValueError(f"expected a mean regime duration between 1 and {LONGEST}, got {mean}")
    if not 0 < shape < math.inf:
        raise ValueError(f"expected a finite shape above 0, got {shape}")
    if shape == 1 or mean == 1:
        return (1 / mean,)
    # P(N >= r) / P(N = r) = 1 + (P(N = r + 1) / P(N = r)) P(N >= r + 1) / P(N = r + 1), N = D - 1:
    # sums of positive numbers, whose relative error shrinks on the way down.
    q = (mean - 1) / (mean - 1 + shape)
    odds = _odds(LONGEST - 1, shape, q)
    hazard = [1 / odds]
    for r in range(LONGEST - 2, -1, -1):
        odds = 1 + q * ((r + shape) / (r + 1)) * odds
        hazard.append(1 / odds)
    hazard.reverse()
    return tuple(hazard[: _length(hazard, shape / (mean - 1 + shape))])


def _odds(r: int, shape: float, q: float) -> float:
    """`P(N >= r) / P(N = r) = 2F1(1, r + shape; r + 1; q)`, Gauss's continued fraction.

    Its error falls by `exp(-4 sqrt(1 - q))` with every two terms, once those are more than the
    spread of `N`, which where q is small is at most about 100.
    """
    terms = 1000 + int(20 / math.sqrt(1 - q))
    tail = 1.0
    for m in range(terms, 0, -1):
        even = (shape - m) * m / ((r + 2 * m - 1) * (r + 2 * m))
        odd = -(r + m) * (r + shape + m) / ((r + 2 * m) * (r + 2 * m + 1))
        tail = 1 + even * q / (1 + odd * q / tail)
    return 1 / (1 - (r + shape) / (r + 1) * q / tail)


def _length(hazard: list[float], limit: float) -> int:
    """Entries worth keeping."""
    left = 1.0
    for r, chance in enumerate(hazard):
        left *= 1 - chance
        if left <= NEGLIGIBLE or abs(chance - limit) <= NEGLIGIBLE * limit:
            return r + 1
    return len(hazard)


def at(table: Tensor, run_length: Tensor) -> Tensor:
    """Hazard (B, S) of run lengths (B, S) from tables (B, H); (B, 1) where they are constant."""
    if table.shape[-1] == 1:
        return table
    return table.gather(-1, run_length.clamp(0, table.shape[-1] - 1))


def expected(table: Tensor, run_length: Tensor, changes: Tensor, steps: Tensor) -> Tensor:
    """Hazard (B, S), or (B, 1), that hypotheses expect; learned ones included.

    changes: (B, S) behind each hypothesis, in `steps` (B,) of the hazard.
    """
    listed = at(table, run_length)
    if table.shape[-1] < 3:
        return listed
    mark, a, b = (table[:, k : k + 1] for k in range(3))
    return torch.where(mark == LEARNED, (a + changes) / (a + b + steps.unsqueeze(-1)), listed)


def log_change(hazard: Tensor, elapsed: Tensor, changepoint: Tensor) -> tuple[Tensor, Tensor]:
    """Log probabilities of a change and of none before the next observation.

    `lambda_dt = 1 - (1 - lambda)^dt` for an elapsed time `dt`; a finite `changepoint` (supervision,
    nan elsewhere) replaces it. hazard: (B, 1) or (B, S); elapsed, changepoint: (B, 1).
    """
    # A time of 0 changes nothing, even at a hazard of 1.
    log_survival: Tensor = torch.special.xlog1py(elapsed, -hazard)
    # No time, no change; the gradient of that is 0, not that of log at 0.
    still = log_survival == 0
    log_hazard = torch.log(-torch.expm1(torch.where(still, -1.0, log_survival)))
    log_hazard = torch.where(still, -torch.inf, log_hazard)
    supervised = ~torch.isnan(changepoint)
    return (
        torch.where(supervised, torch.log(changepoint), log_hazard),
        torch.where(supervised, torch.log1p(-changepoint), log_survival),
    )


def log_unit(
    hazard: Tensor, elapsed: Tensor, changepoint: Tensor, log_change: tuple[Tensor, Tensor]
) -> Tensor:
    """As the first of `log_change`, with the odds that one unit of time gives a change.

    Of a longer time, that is; what was stated of the change, or a shorter time, stands.
    log_change: what it returned for these.
    """
    log_hazard, log_survival = log_change
    longer = (elapsed > 1) & torch.isnan(changepoint) & (hazard < 1)
    odds = torch.log(hazard) - torch.log1p(-hazard)
    return torch.where(longer, odds + log_survival, log_hazard)
