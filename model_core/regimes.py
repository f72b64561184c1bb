"""Memory of regimes: hypotheses begin fresh, from the prior, or as regimes a stream has stored.

A hypothesis is a start and an origin `z`: 0 is fresh, m = 1..M a stored regime. A regime is
followed by a fresh one with probability `1 - q`, by stored regime m with `q` times its share of how
often those were seen that may follow: docs/mathematics.md, "Memory of regimes". Each hypothesis has
a `q` of its own, by the mean number of changes behind it, as for the hazard, and how many of them
were `returns`. So a hazard is that of changes of either kind, and `1 - q` of it that of new
regimes. A birth from a stored regime has its statistics, which `stream.memory` makes.

This is the eager filter's part, and where the numbers of a memory lie.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from model_core import belief as beliefs
from model_core.belief import NEG_INF, Belief, Growth
from model_core.lazy import Tensor, torch
from model_core.upm.base import Floats, Stats, select, tree_map

N = TypeVar("N", Tensor, Floats, float)
# Places in the numbers of a memory: last position up to which changes are confirmed (-1: not known
# yet), the next id. Those of stored regimes follow, M each: ids (0: there is none), how often it
# was seen, and the position of its last observation.
SETTLED, NEXT_ID, REGIMES = range(3)
OF_EACH = 3
OF_HYPOTHESIS = 3  # numbers beside statistics: origin, returns and the origin of what ended


class Memory(NamedTuple):
    """What a filter with a memory keeps beside its hypotheses.

    origin: (B, S) int64 of each hypothesis, 0: fresh. returns: (B, S) mean number of returns among
    the changes behind it. stored: statistics (B, M, ...) that returns begin with. ended_origin:
    (B, S) int64 and ended: (B, S, ...) origin and statistics, as of the observation before, of the
    regime that a hypothesis began after: of the most probable that began up to what is settled.
    numbers: (B, 2 + 3 M), see `SETTLED`.
    """

    origin: Tensor
    returns: Tensor
    stored: Stats
    ended_origin: Tensor
    ended: Stats
    numbers: Tensor


def size(regimes: int) -> int:
    """Numbers of a memory of so many regimes; none of a filter without one."""
    return REGIMES + OF_EACH * regimes if regimes else 0


def returning(returns: N, changes: N) -> N:
    """`q` of hypotheses with so many returns among the changes behind them.

    Tensors, arrays or, as kernels compile it, numbers; all of these know `abs`, and no one maximum.
    """
    others = changes - returns - 1
    fresh = (others + abs(others)) / 2
    return (1 + returns) / (2 + returns + fresh)


def shares(memory: Memory, changes: Tensor) -> Tensor:
    """`pi(m | z)` (B, S, M + 1) of what follows each hypothesis; changes: (B, S) behind it."""
    ids, seen, _ = memory.numbers[:, REGIMES:].chunk(OF_EACH, -1)
    seen = torch.where(ids > 0, seen, 0.0)
    itself = torch.arange(1, seen.shape[1] + 1, device=seen.device) == memory.origin.unsqueeze(-1)
    others = seen.unsqueeze(1).masked_fill(itself, 0.0)
    total = others.sum(-1, keepdim=True)
    q = returning(memory.returns, changes).unsqueeze(-1)
    back = torch.where(total > 0, q, 0.0)
    return torch.cat((1 - back, back * others / total.clamp(min=1e-300)), -1)


def grow(
    belief: Belief,
    memory: Memory,
    seq: Tensor,
    log_hazard: Tensor,
    log_survival: Tensor,
    log_unit: Tensor,
) -> tuple[Belief, Growth, Memory, Tensor]:
    """As `belief.grow`, with a birth from each stored regime.

    The memory has its new origins and returns; then what each slot (B, S) begins as, -1 of those
    that go on.
    """
    plain, growth = beliefs.grow(belief, seq, log_hazard, log_survival, log_unit)
    first = (seq == 0).unsqueeze(-1)
    share = shares(memory, belief.changes).log()
    every = share.shape[-1]
    ways = (belief.log_prob + log_hazard).unsqueeze(-1) + share
    birth = torch.logsumexp(ways.masked_fill(first.unsqueeze(-1), NEG_INF), 1)
    weight = torch.exp(ways - birth.unsqueeze(1)).nan_to_num(0.0)
    changes = (weight * (belief.changes + 1).unsqueeze(-1)).sum(1)
    fresh = torch.arange(every, device=seq.device) == 0
    returns = (weight * memory.returns.unsqueeze(-1)).sum(1) + (~fresh).to(weight.dtype)
    paths = ((belief.score + log_hazard).unsqueeze(-1) + share).mT
    best = paths.amax(-1)
    came_from = beliefs.likeliest(paths, belief.run_length.unsqueeze(1).expand_as(paths))
    previous = seq.unsqueeze(-1) - 1 - belief.run_length.gather(1, came_from)
    birth = torch.where(first, torch.where(fresh, 0.0, NEG_INF), birth)
    best = torch.where(first, torch.where(fresh, 0.0, NEG_INF), best)
    began = _places(belief, growth.born, torch.isfinite(birth))
    born = began >= 0
    places = began.clamp(min=0)

    def of_births(values: Tensor, otherwise: Tensor) -> Tensor:
        return torch.where(born, values.gather(1, places), otherwise)

    grown = Belief(
        of_births(birth, plain.log_prob),
        torch.where(born, 0, plain.run_length),
        of_births(best, plain.score),
        of_births(torch.where(first, -1, previous), plain.previous_start),
        of_births(torch.where(first, 0.0, changes), plain.changes),
        torch.where(born, growth.gap.unsqueeze(-1), plain.gap),
    )
    memory = memory._replace(
        origin=torch.where(born, began, memory.origin),
        returns=of_births(torch.where(first, 0.0, returns), memory.returns),
    )
    return grown, growth._replace(born=born), memory, began


def _places(belief: Belief, fresh: Tensor, possible: Tensor) -> Tensor:
    """What each slot (B, S) begins as: those that are possible (B, M + 1) in the empty slots.

    fresh: (B, S) the slot of the fresh one.
    """
    empty = torch.isneginf(belief.log_prob) & ~fresh
    order = (~empty).long().argsort(dim=-1, stable=True)
    began = torch.where(fresh, 0, -1)
    slots = torch.arange(began.shape[1], device=began.device)
    rank = possible[:, 1:].long().cumsum(-1) - 1
    for m in range(1, possible.shape[1]):
        slot = order.gather(1, rank[:, m - 1 : m].clamp(min=0))
        began = torch.where(possible[:, m : m + 1] & (slots == slot), m, began)
    return began


def begin(
    memory: Memory,
    belief: Belief,
    origin: Tensor,
    seq: Tensor,
    prior: Stats,
    stats: Stats,
    began: Tensor,
) -> tuple[Memory, Stats]:
    """Statistics of births, and the memory with what they come after.

    memory, began: by `grow`. belief, origin, stats: (B, S, ...) as of before it.
    """
    born = began >= 0
    start = seq.unsqueeze(-1) - 1 - belief.run_length
    last_settled = memory.numbers[:, SETTLED : SETTLED + 1]
    settled = (start <= last_settled) & torch.isfinite(belief.log_prob)
    candidates = torch.where(settled | ~settled.any(-1, keepdim=True), belief.log_prob, NEG_INF)
    ended = candidates.argmax(-1, keepdim=True)
    ended_origin = torch.where(born, origin.gather(1, ended), memory.ended_origin)
    last = tree_map(lambda own: _taken(own, ended), stats)
    places = began.clamp(min=0)
    beginnings = tree_map(
        lambda fresh, stored: _taken(torch.cat((fresh, stored), 1), places), prior, memory.stored
    )
    memory = memory._replace(ended_origin=ended_origin, ended=select(born, last, memory.ended))
    return memory, select(born, beginnings, stats)


def _taken(values: Tensor, places: Tensor) -> Tensor:
    """Entries (B, N, ...) of values (B, K, ...) at places (B, N)."""
    index = places.reshape(places.shape + (1,) * (values.dim() - 2))
    return values.gather(1, index.expand(*places.shape, *values.shape[2:]))


def prune(belief: Belief, most: int) -> tuple[Belief, Tensor]:
    """Empty all but the most likely slots; returns the mass lost (B,)."""
    order = beliefs.spared(belief).argsort(dim=-1, descending=True, stable=True)
    dropped = torch.ones_like(order, dtype=torch.bool).scatter_(-1, order[:, :most], False)
    mass = torch.where(dropped, belief.log_prob.exp(), 0.0).sum(-1)
    log_prob = belief.log_prob.masked_fill(dropped, NEG_INF)
    score = belief.score.masked_fill(dropped, NEG_INF)
    kept = belief._replace(log_prob=log_prob - torch.log1p(-mass).unsqueeze(-1), score=score)
    return kept, mass
