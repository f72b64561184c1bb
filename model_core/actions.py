"""Choosing among candidate inputs under the mixture over run lengths: contextual bandits.

Thompson sampling draws one function from the posterior and takes its best candidate (Mellor and
Shapiro 2013; MOCA, app. on training details), the optimistic choice is the best candidate over
several such functions, the greedy one has the best mean of the mixture: docs/mathematics.md,
section 13. The larger label is the better. Candidates say nothing about the regime, and outliers
have no part in it.

`B` streams, `S` hypotheses, `A` candidates, `D` drawn functions. All chance is that of one
generator for each stream; so a stream's seed decides its draws, not its batch-mates, nor the slots
that its hypotheses happen to be in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from model_core.belief import by_run_length
from model_core.components import average
from model_core.filter import FilterState
from model_core.lazy import Tensor, torch
from model_core.upm.base import Stats, UnderlyingModel, tree_map

Name = Literal["thompson", "optimistic", "greedy"]


class Strategy(NamedTuple):
    """How to choose; `samples` functions are drawn by the optimistic one."""

    name: Name
    samples: int = 3


class Hypotheses(NamedTuple):
    """What is believed of the coming label.

    log_prob: (B, S) belief after growth, -inf for an empty slot. run_length: (B, S).
    stats: (B, S, ...). context: (B, c) of the model.
    """

    log_prob: Tensor
    run_length: Tensor
    stats: Stats
    context: Tensor


class ChosenCandidate(NamedTuple):
    """chosen: (B,) int64 index of a candidate. values: (B, A) what it was the best of.

    Those are the drawn function at each candidate, the largest of the `samples` drawn ones, or the
    mixture's mean; labels' units.
    """

    chosen: Tensor
    values: Tensor


def hypotheses(grown: FilterState) -> Hypotheses:
    """Those of a state after `filter.grow`; of one before it, without that of a change."""
    belief = grown.belief
    return Hypotheses(belief.log_prob, belief.run_length, grown.stats, grown.context)


def seeded(seeds: Sequence[int], device: torch.device | str = "cpu") -> list[torch.Generator]:
    """One generator for each stream."""
    return [torch.Generator(device).manual_seed(seed) for seed in seeds]


def choose(
    model: UnderlyingModel,
    held: Hypotheses,
    candidates: Tensor,
    strategy: Strategy,
    generators: Sequence[torch.Generator],
) -> ChosenCandidate:
    """The best of each stream's candidates (B, A, x_dim); `generators` (B,) move on.

    For regressions draws are of the function, without noise, jointly over the candidates. For all
    others they are of labels, independent between candidates: see `UnderlyingModel.draw`. Raises
    ValueError for a model that takes no input or whose label is not one ordered number.
    """
    if strategy.name == "greedy":
        values = mean(model, held, candidates)
    else:
        count = 1 if strategy.name == "thompson" else strategy.samples
        values = draw(model, held, candidates, count, generators).amax(1)
    return ChosenCandidate(values.argmax(-1), values)


def mean(model: UnderlyingModel, held: Hypotheses, candidates: Tensor) -> Tensor:
    """Mean (B, A) of the mixture at each candidate."""
    means = model.means(held.stats, _encoded(model, held, candidates)).squeeze(-1)
    return average(held.log_prob, means)


def draw(
    model: UnderlyingModel,
    held: Hypotheses,
    candidates: Tensor,
    count: int,
    generators: Sequence[torch.Generator],
) -> Tensor:
    """Values (B, D, A) of `count` functions drawn from the mixture."""
    phi = _encoded(model, held, candidates)
    like = held.log_prob
    uniform = torch.stack(
        [
            torch.rand(count, generator=generator, dtype=like.dtype, device=like.device)
            for generator in generators
        ]
    )
    slots = draw_slots(like, held.run_length, uniform)
    rows = torch.arange(len(slots), device=slots.device).unsqueeze(-1)
    drawn = tree_map(lambda leaf: leaf[rows, slots], held.stats)
    return model.draw(drawn, phi, generators).squeeze(-1)


def draw_slots(log_prob: Tensor, run_length: Tensor, uniform: Tensor) -> Tensor:
    """Slots (B, D) of hypotheses drawn by numbers (B, D) in [0, 1): inverse CDF, shortest first."""
    there = torch.isfinite(log_prob)
    order = by_run_length(log_prob, run_length)
    cumulative = log_prob.exp().gather(-1, order).cumsum(-1)
    # Scaled by the sum, or rounding could draw an empty slot.
    place = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    return order.gather(-1, torch.minimum(place, there.sum(-1, keepdim=True) - 1))


def _encoded(model: UnderlyingModel, held: Hypotheses, candidates: Tensor) -> Tensor:
    """Features (B, A, n) of the candidates."""
    if model.x_dim == 0 or model.label == "class" or model.y_dim != 1:
        raise ValueError(
            f"expected a model with inputs and one ordered label, got {model.kind!r} with "
            f"x_dim {model.x_dim}, y_dim {model.y_dim}, label {model.label!r}"
        )
    if candidates.dim() != 3 or candidates.shape[-1] != model.x_dim or not candidates.shape[1]:
        shape = tuple(candidates.shape)
        raise ValueError(f"expected candidates (B, A, {model.x_dim}), got {shape}")
    batch, count = candidates.shape[:2]
    context = held.context.repeat_interleave(count, 0)
    phi = model.required(model.encode(candidates.flatten(0, 1), context))
    return phi.reshape(batch, count, -1)
