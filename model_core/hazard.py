"""Hazards: the probability that a regime ends, constant or by the run length it has reached.

A hazard is a table `lambda(r)` for run lengths `r = 0, 1, ...`; the last entry holds for all that
are longer, so a constant is a table of one. As everywhere, a run length of `r` has `r + 1`
observations behind it, the first of the regime included.
"""

from __future__ import annotations

import torch
from torch import Tensor


def at(table: Tensor, run_length: Tensor) -> Tensor:
    """Hazard (B, S) of run lengths (B, S) from tables (B, H); (B, 1) where they are constant."""
    if table.shape[-1] == 1:
        return table
    return table.gather(-1, run_length.clamp(0, table.shape[-1] - 1))


def log_change(hazard: Tensor, elapsed: Tensor, changepoint: Tensor) -> tuple[Tensor, Tensor]:
    """Log probabilities of a change and of none before the next observation.

    `lambda_dt = 1 - (1 - lambda)^dt` for an elapsed time `dt`; a finite `changepoint` (supervision,
    nan elsewhere) replaces it. hazard: (B, 1) or (B, S); elapsed, changepoint: (B, 1).
    """
    log_survival = elapsed * torch.log1p(-hazard)
    # No time, no change; the gradient of that is 0, not that of log at 0.
    still = log_survival == 0
    log_hazard = torch.log(-torch.expm1(torch.where(still, -1.0, log_survival)))
    log_hazard = torch.where(still, -torch.inf, log_hazard)
    told = ~torch.isnan(changepoint)
    return (
        torch.where(told, torch.log(changepoint), log_hazard),
        torch.where(told, torch.log1p(-changepoint), log_survival),
    )
