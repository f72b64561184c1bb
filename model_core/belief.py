"""The belief over run lengths, in log space: grow, observe, prune.

What is read off it, `model_core.compiled.belief` has, for rows of any model.

Shapes: `B` streams, `S = max_hypotheses + 1` slots. A `log_prob` of -inf is an empty slot; after
`prune` at least one slot is empty, so `grow` always finds room for the new hypothesis.
"""

from __future__ import annotations

from typing import NamedTuple

from model_core.lazy import Tensor, torch

NEG_INF = float("-inf")
# Log probabilities that differ by less are equal: rounding must not choose between two starts.
TIE = 1e-12
GREATEST = 1e290  # evidence, of a change that is certain


class Belief(NamedTuple):
    """Belief over run lengths and the max-product path of each hypothesis.

    log_prob: (B, S) log b(r); rows sum to one. run_length: (B, S) int64.
    score: (B, S) log probability of the best segmentation that ends in this hypothesis, up to a
    constant per row. previous_start: (B, S) int64, start of that segmentation's segment before
    this one; -1 without one. changes: (B, S) mean number of changes on the way to this hypothesis.
    gap: (B, S) log of how many times as likely this hypothesis is as it were if all gaps on the way
    to it, times of more than one unit, had been one unit.
    """

    log_prob: Tensor
    run_length: Tensor
    score: Tensor
    previous_start: Tensor
    changes: Tensor
    gap: Tensor


class Growth(NamedTuple):
    """What growth did: `born` (B, S) marks the new hypothesis; its `previous_start`, `gap` (B,)."""

    born: Tensor
    previous_start: Tensor
    gap: Tensor


def empty(batch: int, slots: int, device: torch.device | str = "cpu") -> Belief:
    """Belief before any observation: no hypothesis in any slot."""
    nothing = torch.full((batch, slots), NEG_INF, dtype=torch.float64, device=device)
    zeros = torch.zeros(batch, slots, dtype=torch.int64, device=device)
    none = torch.zeros_like(nothing)
    return Belief(nothing, zeros, nothing.clone(), zeros - 1, none, none.clone())


def grow(
    belief: Belief, seq: Tensor, log_hazard: Tensor, log_survival: Tensor, log_unit: Tensor
) -> tuple[Belief, Growth]:
    """Growth: `b(0) = sum_r lambda(r) b(r)`, `b(r+1) = (1-lambda(r)) b(r)` (paper, eq. 4).

    seq: (B,) position of the coming observation; at 0 the new hypothesis is certain.
    log_hazard, log_survival, log_unit: (B, 1) or (B, S), see `hazard.log_change` and `log_unit`.
    """
    first = (seq == 0).unsqueeze(-1)
    slot = belief.log_prob.argmin(-1, keepdim=True)
    born = torch.zeros_like(belief.log_prob, dtype=torch.bool).scatter_(-1, slot, True)
    # At first there is nothing to sum: masked, or its gradient would be nan.
    joint = (belief.log_prob + log_hazard).masked_fill(first, 0.0)
    change = torch.logsumexp(joint, -1, keepdim=True)
    ways = torch.exp(joint - change).detach()
    changes = (ways * (belief.changes + 1)).sum(-1, keepdim=True)
    changes = torch.where(first | torch.isneginf(change), 0.0, changes)
    of_unit = (belief.log_prob - belief.gap + log_unit).detach().masked_fill(first, 0.0)
    unit = torch.logsumexp(of_unit, -1, keepdim=True)
    gap = (change.detach() - unit).nan_to_num(0.0).clamp(min=0.0)
    path = belief.score + log_hazard
    best = path.amax(-1, keepdim=True)
    came_from = likeliest(path, belief.run_length).unsqueeze(-1)
    zero = torch.zeros_like(change)
    change = torch.where(first, zero, change)
    best = torch.where(first, zero, best)
    starts = seq.unsqueeze(-1) - 1 - belief.run_length
    previous = torch.where(first | best.isneginf(), -1, starts.gather(-1, came_from))
    grown = Belief(
        torch.where(born, change, belief.log_prob + log_survival),
        torch.where(born, 0, belief.run_length + 1),
        torch.where(born, best, belief.score + log_survival),
        torch.where(born, previous, belief.previous_start),
        torch.where(born, changes, belief.changes),
        torch.where(born, gap, belief.gap),
    )
    return grown, Growth(born, previous.squeeze(-1), gap.squeeze(-1))


def observe(belief: Belief, log_likelihood: Tensor) -> tuple[Belief, Tensor]:
    """Bayes' rule: `b(r | new) ∝ p(new | r) b(r)`; returns it and `log p(new)` (B,).

    log_likelihood: (B, S), or (B, 1) where it is the same for all (an observation that says
    nothing has 0).
    """
    joint = belief.log_prob + log_likelihood
    # The largest first: where it is beyond 1e16 the sum's own logarithm is lost beside it.
    top = joint.detach().amax(-1, keepdim=True)
    evidence = torch.logsumexp(joint - top, -1, keepdim=True)
    score = belief.score + log_likelihood
    score = score - score.amax(-1, keepdim=True)
    posterior = belief._replace(log_prob=joint - top - evidence, score=score)
    return posterior, (top + evidence).squeeze(-1)


def spared(belief: Belief) -> Tensor:
    """Log probabilities (B, S) by which slots are pruned: inf of one, which is not.

    That is what would be likeliest if all gaps had been units of time: else a gap alone could leave
    nothing that evidence of a change is against.
    """
    kept = (belief.log_prob - belief.gap).argmax(-1, keepdim=True)
    return belief.log_prob.scatter(-1, kept, torch.inf)


def prune(belief: Belief) -> tuple[Belief, Tensor]:
    """Empty the least likely slot where none is empty; returns the mass lost (B,)."""
    lowest, slot = spared(belief).min(-1, keepdim=True)
    dropped = torch.zeros_like(belief.log_prob, dtype=torch.bool).scatter_(-1, slot, True)
    log_prob = belief.log_prob.masked_fill(dropped, NEG_INF)
    score = belief.score.masked_fill(dropped, NEG_INF)
    mass = lowest.exp()
    kept = belief._replace(log_prob=log_prob - torch.log1p(-mass), score=score)
    return kept, mass.squeeze(-1)


def by_run_length(log_prob: Tensor, run_length: Tensor) -> Tensor:
    """Slots (B, S) in the order of their run lengths, the shortest first, empty ones last."""
    last = torch.iinfo(run_length.dtype).max
    return torch.where(torch.isfinite(log_prob), run_length, last).argsort(-1)


def likeliest(log_prob: Tensor, run_length: Tensor) -> Tensor:
    """Slot (...) of the largest of `log_prob` (..., S); of equal ones that of the earliest start.

    run_length: as `log_prob`, at least 0.
    """
    equal = log_prob >= log_prob.amax(-1, keepdim=True) - TIE
    return run_length.masked_fill(~equal, -1).argmax(-1)
