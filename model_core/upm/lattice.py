"""Bayesian linear regression under every start at once, in `O(T^2 n)`: a lattice recursion.

Blocks (`regression.absorb`) move a covariance for each start, which costs `n^2` for each pair of
start and observation. Predicting one observation from a window needs less: for the window
`s+1..t-1` with posterior covariance `P`, keep `g = P phi_t`, which looks forward, and
`h = P phi_s`, which looks back. With `d = phi_s' P phi_t`, absorbing the observation at either end
is a step of order one,

    g'  = g - h d w_s / (1 + w_s phi_s' h),    h' = h - g d w_t / (1 + w_t phi_t' g),

and the same steps carry the residuals of both: a generalised Levinson, or lattice, recursion for
the covariance `I + F P_0 F'`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Predicted(NamedTuple):
    """Every observation under every start, by [s, t]; what lies below the diagonal is 0.

    residual: (B, T, T, y) label less predictive mean. spread: (B, T, T) predictive variances, in
    those of the noise, 1 below the diagonal.
    """

    residual: Tensor
    spread: Tensor


class _Orders(NamedTuple):
    """Windows of one length: what is predicted from them at either end, (B, windows, ...).

    projected: `(g, residual)` or `(h, residual)`, (..., n + y). excess: `phi' P phi` of the end.
    """

    projected: Tensor
    excess: Tensor

    def part(self, at: slice) -> _Orders:
        return _Orders(self.projected[:, at], self.excess[:, at])

    def absorb(self, other: _Orders, shared: Tensor, weight: Tensor) -> _Orders:
        """Absorb the observation at the other end; shared, weight: (B, windows)."""
        gain = weight * shared / (1 + weight * other.excess)
        moved = torch.addcmul(self.projected, other.projected, gain.unsqueeze(-1), value=-1)
        return _Orders(moved, self.excess - shared * gain)


def predict(
    mean: Tensor, cov: Tensor, phi: Tensor, y: Tensor, weight: Tensor, longest: int | None = None
) -> Predicted:
    """Predict each row from the rows `s..t-1`, for all `s`.

    mean: (B, n, y). cov: (B, n, n) symmetric. phi: (B, T, n). y: (B, T, y). weight: (B, T) in
    [0, 1]; a row of weight 0 is predicted and not absorbed. longest: windows of at most as many
    rows; what is further from the diagonal is 0 and 1 too.
    """
    steps, n = phi.shape[1:]
    low = phi @ cov
    forward = _Orders(torch.cat((low, y - phi @ mean), -1), (low * phi).sum(-1))
    backward, orders = forward, [forward]
    for length in range(1, steps if longest is None else min(steps, longest + 1)):
        first, last = phi[:, : steps - length], forward.projected[:, 1:, :n]
        shared = (first * last).sum(-1)
        ahead, back = forward.part(slice(1, None)), backward.part(slice(None, -1))
        forward = ahead.absorb(back, shared, weight[:, : steps - length])
        backward = back.absorb(ahead, shared, weight[:, length:])
        orders.append(forward)
    residual = torch.stack(
        [pad(each.projected[..., n:], (0, 0, 0, i)) for i, each in enumerate(orders)], 1
    )
    excess = torch.stack([pad(each.excess, (0, i)) for i, each in enumerate(orders)], 1)
    return Predicted(_by_start(residual), 1 + _by_start(excess.unsqueeze(-1)).squeeze(-1))


def _by_start(diagonals: Tensor) -> Tensor:
    """From (B, length, s, d) to [s, t], 0 where there is no such length; (B, T, T, d)."""
    lengths, steps = diagonals.shape[1:3]
    t = torch.arange(steps, device=diagonals.device)
    length = t - t.unsqueeze(-1)  # [s, t]
    known = (length >= 0) & (length < lengths)
    found = diagonals[:, length.clamp(0, lengths - 1), t.unsqueeze(-1)]
    return found.masked_fill(~known.unsqueeze(-1), 0.0)
