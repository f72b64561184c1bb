"""Bayesian linear regression under every start at once, in `O(T^2 n)`: a lattice recursion.

To move a covariance `P` for each start costs `n^2` for each pair of start and observation. For the
window `s+1..t-1` it is enough to keep `P phi_t`, which looks forward, and `P phi_s`, which looks
back, with the residuals of both: absorbing the observation at either end is a step of order one.
Derived in docs/mathematics.md, "All starts at once".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Predicted(NamedTuple):
    """Every observation under every start, by [s, t]; what lies below the diagonal is 0.

    residual: (B, T, T, y) label less predictive mean. spread: (B, T, T) predictive variances, in
    those of the noise, 1 below the diagonal.
    """

    residual: Tensor
    spread: Tensor


def predict(
    mean: Tensor, cov: Tensor, phi: Tensor, y: Tensor, weight: Tensor, longest: int | None = None
) -> Predicted:
    """Predict each row from the rows `s..t-1`, for all `s`.

    mean: (B, n, y). cov: (B, n, n) symmetric. phi: (B, T, n). y: (B, T, y). weight: (B, T) in
    [0, 1]; a row of weight 0 is predicted and not absorbed. longest: windows of at most as many
    rows; what is further from the diagonal is 0 and 1 too.

    In float64, whatever the model has: a window takes from a variance of the prior nearly all of
    it, and in single precision what a wide prior leaves is rounding, at times below 0.
    """
    precision = phi.dtype
    mean, cov, phi, y, weight = (value.double() for value in (mean, cov, phi, y, weight))
    steps = phi.shape[1]
    low = phi @ cov
    lengths = steps if longest is None else min(steps, longest + 1)
    first = torch.cat((low, y - phi @ mean), -1)
    residual, excess = _Lattice.apply(  # type: ignore[no-untyped-call]
        first, (low * phi).sum(-1), phi, weight, lengths
    )
    spread = 1 + by_start(excess.unsqueeze(-1)).squeeze(-1)
    return Predicted(by_start(residual).to(precision), spread.to(precision))


class _Lattice(torch.autograd.Function):
    """Residuals and excess variances of every window, by [length, t], 0 where t < length.

    With its own gradient: that of slices, which torch would keep apart, costs several times more.
    """

    @staticmethod
    def forward(
        ctx: Any, first: Tensor, spread: Tensor, phi: Tensor, weight: Tensor, lengths: int
    ) -> tuple[Tensor, Tensor]:
        """first: (B, T, n + y) `(P phi_t, residual)`. spread: (B, T) `phi' P phi`."""
        n = phi.shape[-1]
        steps = phi.shape[1]
        ahead = back = first
        q = p = spread
        residual = first.new_zeros(len(first), lengths, steps, first.shape[-1] - n)
        excess = spread.new_zeros(len(first), lengths, steps)
        residual[:, 0] = first[..., n:]
        excess[:, 0] = spread
        saved: list[Tensor] = []
        for m in range(1, lengths):
            # By [t] ahead and by [s] back: the window of s and t = s + m loses both its ends.
            a = ahead[:, 1:]
            b = back[:, :-1]
            q = q[:, 1:]
            p = p[:, :-1]
            start = weight[:, : steps - m]
            end = weight[:, m:]
            at_start = start / (1 + start * p)
            at_end = end / (1 + end * q)
            shared = (phi[:, : steps - m] * a[..., :n]).sum(-1)
            saved += (a, b, at_start, at_end, shared)
            u = at_start * shared
            v = at_end * shared
            ahead = torch.addcmul(a, b, u.unsqueeze(-1), value=-1)
            back = torch.addcmul(b, a, v.unsqueeze(-1), value=-1)
            q = torch.addcmul(q, shared, u, value=-1)
            p = torch.addcmul(p, shared, v, value=-1)
            residual[:, m, m:] = ahead[..., n:]
            excess[:, m, m:] = q
        ctx.save_for_backward(phi, *saved)
        return residual, excess

    @staticmethod
    def backward(ctx: Any, d_residual: Tensor, d_excess: Tensor) -> tuple[Tensor | None, ...]:
        """The steps in reverse; weights have no gradient."""
        phi, *saved = ctx.saved_tensors
        n = phi.shape[-1]
        steps = phi.shape[1]
        lengths = d_excess.shape[1]
        d_phi = torch.zeros_like(phi)
        d_ahead = phi.new_zeros(*phi.shape[:2], n + d_residual.shape[-1])
        d_back = torch.zeros_like(d_ahead)
        d_q = torch.zeros_like(phi[..., 0])
        d_p = torch.zeros_like(d_q)
        for m in range(lengths - 1, 0, -1):
            a, b, at_start, at_end, shared = saved[5 * (m - 1) : 5 * m]
            u = at_start * shared
            v = at_end * shared
            d_ahead[:, m:, n:] += d_residual[:, m, m:]
            d_q[:, m:] += d_excess[:, m, m:]
            d_a = d_ahead[:, m:]
            d_b = d_back[:, : steps - m]
            d_u = -(b * d_a).sum(-1) - shared * d_q[:, m:]
            d_v = -(a * d_b).sum(-1) - shared * d_p[:, : steps - m]
            d_shared = d_u * at_start + d_v * at_end - u * d_q[:, m:] - v * d_p[:, : steps - m]
            before = d_a.clone()
            d_a.addcmul_(d_b, v.unsqueeze(-1), value=-1)
            d_b.addcmul_(before, u.unsqueeze(-1), value=-1)
            d_p[:, : steps - m].addcmul_(d_u * u, at_start, value=-1)
            d_q[:, m:].addcmul_(d_v * v, at_end, value=-1)
            d_a[..., :n].addcmul_(phi[:, : steps - m], d_shared.unsqueeze(-1))
            d_phi[:, : steps - m].addcmul_(a[..., :n], d_shared.unsqueeze(-1))
        d_ahead[..., n:] += d_residual[:, 0]
        return d_ahead + d_back, d_q + d_p + d_excess[:, 0], d_phi, None, None


def by_start(by_length: Tensor) -> Tensor:
    """From (B, length, t, d) to [s, t], 0 where there is no such length; (B, T, T, d)."""
    lengths, steps = by_length.shape[1:3]
    t = torch.arange(steps, device=by_length.device)
    length = t - t.unsqueeze(-1)  # [s, t]
    exists = (length >= 0) & (length < lengths)
    values = by_length[:, length.clamp(0, lengths - 1), t.expand(steps, -1)]
    return values.masked_fill(~exists.unsqueeze(-1), 0.0)
