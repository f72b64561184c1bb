"""Quantiles of mixtures, found by their distribution functions. Float64 throughout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from model_core.components import Components
from model_core.lazy import Tensor, torch
from model_core.maths.special import ROOT_2_PI
from model_core.transfer import on_host

COUNT_STEPS = 500  # of a count's quantile; a dozen are needed
PLAIN_STEPS = 8  # of a quantile that is easily found
FIXED_STEPS = 12  # where the host does not wait to see whether it is found
NEWTON_STEPS = 40  # of a quantile; then its bracket is halved, at most 120 times
STEPS = 160
TOLERANCE = 1e-6  # last Newton step, in scales of the narrowest component; its error is squared


def continuous(weight: Tensor, components: Components, levels: Tensor, tolerance: float) -> Tensor:
    """Quantiles (B, Q, d) of continuous mixtures, of each output with weights (B, M, d, k).

    Newton's method from the quantile of a normal; where that has not arrived soon, again inside
    a bracket. A row that has arrived stays: no answer depends on its batch-mates. The host does not
    wait for numbers of a device: there nan stands where plain steps have not arrived.
    """
    batch, _, outputs, _ = weight.shape
    wanted = len(levels)

    def rows(value: Tensor) -> Tensor:
        """(B, M, d or 1, k or 1) as a row for each stream and output: (B d, 1, M, k or 1)."""
        wide = value.expand(-1, -1, outputs, -1)
        return wide.transpose(1, 2).reshape(batch * outputs, 1, value.shape[1], -1)

    centre, spread, narrowest = map(rows, _centre(weight, components))
    normal = torch.special.ndtri(levels).reshape(1, -1, 1, 1)
    start: Tensor = (centre + spread * normal).clamp(min=_least(components))
    if components.support == "positive":  # from 0 no plain step leads anywhere
        start = centre * -torch.log1p(-levels).reshape(1, -1, 1, 1)
    table = [rows(weight), *map(rows, components.table())]
    x, done = _plain(components, start, normal, tolerance, narrowest, *table)
    if not on_host(done):
        x = torch.where(done, x, torch.nan)
    elif not bool(done.all()):
        left = (~done).flatten().nonzero().squeeze(-1)
        row = left // wanted
        goal = levels[left % wanted].reshape(-1, 1, 1, 1)
        fixed = [spread, tolerance * narrowest, *table]
        again = start.reshape(-1, 1, 1, 1)[left]
        far = _bracketed(components, again, [goal, *(numbers[row] for numbers in fixed)])
        x.view(-1)[left] = far.flatten()
    return x.reshape(batch, outputs, wanted).transpose(1, 2)


def with_normal(levels: Sequence[float]) -> NDArray[np.float64]:
    """Levels over the standard normal's quantiles at them (2, Q), as compiled kernels take them."""
    normal = NormalDist()
    return np.array([levels, [normal.inv_cdf(level) for level in levels]], dtype=np.float64)


def _plain(
    family: Components,
    x: Tensor,
    normal: Tensor,
    tolerance: float,
    narrowest: Tensor,
    weight: Tensor,
    *table: Tensor,
) -> tuple[Tensor, Tensor]:
    """A few plain Newton steps; returns where they led and which (R, Q, 1, 1) have arrived.

    What they solve is `ndtri(F(x)) = normal`: of a mixture close to a normal it is almost a line.
    """
    done = torch.zeros_like(x, dtype=torch.bool)
    least = _least(family)
    waits = on_host(x)
    for _ in range(PLAIN_STEPS if waits else FIXED_STEPS):
        cdf, density = family.evaluate(x, table)
        at = torch.special.ndtri(_total(weight * cdf))
        slope = _total(weight * density) * torch.exp(0.5 * at.square())
        move = (at - normal) / (ROOT_2_PI * slope)
        x = torch.where(done, x, (x - move).clamp(min=least))
        # Steps are small as well where a positive value is all but 0, however far it has to go.
        near = ((at - normal).abs() < 10 * tolerance) & (move.abs() < tolerance * narrowest)
        done = done | near
        if waits and bool(done.all()):
            break
    return x, done


def _total(value: Tensor) -> Tensor:
    """Sum over components and their parts."""
    return value.sum((-2, -1), keepdim=True)


def _bracketed(family: Components, x: Tensor, fixed: list[Tensor]) -> Tensor:
    """Newton's method kept inside a bracket, which is halved where it does not get on."""
    low = torch.full_like(x, _least(family))
    high = torch.full_like(x, torch.inf)
    work = [x, low, high, *fixed]
    answer = x.clone()
    left = torch.arange(len(x), device=x.device)
    for step in range(STEPS):
        work[:3], done = _newton(family, step, *work)
        answer[left] = work[0]
        keep = (~done).nonzero().squeeze(-1)
        if len(keep) == 0:
            break
        if len(keep) < len(left):
            left = left[keep]
            work = [numbers[keep] for numbers in work]
    return answer


def _newton(
    family: Components,
    step: int,
    x: Tensor,
    low: Tensor,
    high: Tensor,
    goal: Tensor,
    spread: Tensor,
    small: Tensor,
    weight: Tensor,
    *table: Tensor,
) -> tuple[list[Tensor], Tensor]:
    """One step for each row; returns the new `[x, low, high]` and which rows have arrived."""
    cdf, density = family.evaluate(x, table)
    excess = _total(weight * cdf) - goal
    density = _total(weight * density)
    low = torch.where(excess < 0, x, low)
    high = torch.where(excess > 0, x, high)
    move = -excess / density.clamp(min=1e-300)
    limit = 4 * spread * 2.0**step  # far quantiles of heavy tails are found by doubling
    new = x + torch.maximum(torch.minimum(move, limit), -limit)
    new = torch.where(new == x, x - limit * excess.sign(), new)  # where x cannot move so little
    middle = 0.5 * (low + high)
    bounded = torch.isfinite(middle)
    bisect = ((new <= low) | (new >= high) | (step >= NEWTON_STEPS)) & bounded
    met = excess.abs() < 2e-15 * goal
    shut = bounded & ((middle == low) | (middle == high))
    near = move.abs() < small
    new = torch.where(shut, high, torch.where(bisect, middle, new))
    new = torch.where(met, x, torch.where(near, x + move, new))
    return [new, low, high], (met | near | shut).flatten()


def _least(family: Components) -> float:
    """What no quantile is below."""
    return 0.0 if family.support == "positive" else -math.inf


def _centre(weight: Tensor, components: Components) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, spread around it, and scale of the narrowest component; (B, 1, d, 1) and finite.

    A component's scale is taken from the height of its peak: its variance may not exist.
    """
    means = components.mean()
    present = weight > 0
    over = (1, 3)
    scale = components.width()
    mean = torch.where(present, weight * means, 0.0).sum(over, keepdim=True)
    between = torch.where(present, weight * (means - mean).square(), 0.0).sum(over, keepdim=True)
    # The average scale, not its square's: one wide component of little weight hardly moves it.
    within = torch.where(present, weight * scale, 0.0).sum(over, keepdim=True)
    narrowest = torch.where(present, scale, torch.inf).amin(over, keepdim=True)
    return mean, (between + within.square()).sqrt(), narrowest


def count(weight: Tensor, components: Components, levels: Tensor) -> Tensor:
    """Smallest count (B, Q, d) whose cumulative probability reaches each level.

    weight: (B, M, d, k). From the quantile of a normal outwards until it is bracketed, then false
    position and halving in turn. Of a device nan stands where a fixed number of steps has not
    arrived.
    """
    waits = on_host(weight)
    goal = levels.reshape(1, -1, 1)
    mean, spread, _ = (value.squeeze(-1) for value in _centre(weight, components))
    widened = components.mapped(lambda p: p.unsqueeze(2))
    x = (mean + spread * torch.special.ndtri(levels).reshape(1, -1, 1)).floor().clamp(min=0)
    # Each end of the bracket with the probability by which it exceeds the level.
    low = torch.full_like(x, -1.0)
    high = torch.full_like(x, torch.inf)
    below = -goal.expand_as(x)
    above = 1 - goal.expand_as(x)
    for step in range(COUNT_STEPS if waits else FIXED_STEPS):
        # Sums of masses may end a rounding error below a level that they meet.
        cdf = weight.unsqueeze(2) * widened.cdf(x[:, None, ..., None])
        excess = cdf.sum((1, 4)) - goal + 1e-12
        reached = excess >= 0
        low = torch.where(reached, low, x)
        below = torch.where(reached, below, excess)
        high = torch.where(reached, x, high)
        above = torch.where(reached, excess, above)
        part = below / (below - above) if step % 2 else 0.5
        inside = (low + part * (high - low)).floor()
        inside = torch.minimum(torch.maximum(inside, low + 1), high - 1)
        unbounded = torch.isinf(high)
        left = unbounded | ((inside > low) & (inside < high))  # floats may be far apart
        if waits and not left.any():
            break
        far = (0.25 * spread + 1).floor() * 2.0**step
        x = torch.where(low < 0, (high - far).clamp(min=0), inside)
        x = torch.where(unbounded, low + far, x)
    return high if waits else torch.where(left, torch.nan, high)
