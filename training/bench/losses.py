"""Equivalent computations of the training loss, compared by `moca bench train`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from model_core import segments
from model_core.segments import Changes, Sequences
from training.data.base import Batch
from training.learners import AlpacaLearner, Learner
from training.meta_training.objective import start


def plain(learner: Learner, batch: Batch) -> Tensor:
    """The paper's recursion (alg. 1, app. A and B.2), one observation after another.

    All run lengths' statistics `(Q, Lambda^-1)` grow by one at each step, and torch keeps every
    step for its gradients.
    """
    assert isinstance(learner, AlpacaLearner)
    model = learner.model()
    assert model.noise_variance is not None
    assert batch.x is not None
    phi = learner.encoder(batch.x)
    noise = model.noise_variance
    count, steps, n = phi.shape
    prior_cov = model.prior_cov.expand(count, 1, n, n)
    prior_q = torch.linalg.solve(model.prior_cov, model.prior_mean).expand(count, 1, n, -1)
    cov = prior_cov
    q = prior_q
    belief = phi.new_zeros(count, 1)
    log_hazard = torch.log(learner.hazard)
    log_survival = torch.log1p(-learner.hazard)
    total = phi.new_zeros(())
    for t in range(steps):
        row = phi[:, None, t, :, None]
        y = batch.y[:, None, t]
        carried = cov @ row
        location = (q.mT @ carried).squeeze(-1)
        spread = 1 + (row.mT @ carried).squeeze(-1)
        variance = spread * noise
        log_density = -0.5 * (
            (y - location) ** 2 / variance + variance.log() + math.log(2 * math.pi)
        )
        joint = belief + log_density.sum(-1)
        evidence = joint.logsumexp(-1, keepdim=True)
        total = total - evidence.sum()
        after = joint - evidence
        new_cov = cov - carried @ carried.mT / spread.unsqueeze(-1)
        new_q = q + row * y.unsqueeze(-2)
        cov = torch.cat((prior_cov, new_cov), 1)
        q = torch.cat((prior_q, new_q), 1)
        belief = torch.cat((log_hazard.expand(count, 1), after + log_survival), 1)
    return total / (count * steps)


def _in_blocks(rows: int | None) -> Callable[[Learner, Batch], Tensor]:
    def loss(learner: Learner, batch: Batch) -> Tensor:
        model = learner.model()
        data = Sequences(batch.x, batch.y)
        return segments.loss(model, start(model, batch), data, Changes(learner.hazard), rows)

    return loss


WAYS: Mapping[str, Callable[[Learner, Batch], Tensor]] = {
    "plain": plain,
    "rows": _in_blocks(1),
    "blocks": _in_blocks(20),
    "lattice": _in_blocks(None),
}
