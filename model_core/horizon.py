"""Several labels to come, one after the other, of models that take no input.

Where labels of a regime are exchangeable, each one's marginal is the mixture after as many steps
without a label: exact. Where a label feeds back into what follows (lags, recurrent states), the
mixture has no closed form: whole paths are drawn, each step of which is learned from, so that they
are draws of the joint predictive `p(y_t+1, ..., y_t+h | y_1..t)`, switches to come included. A
marginal is then the average, over the paths, of the predictives of a step given the steps before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from model_core.belief import Belief, by_run_length
from model_core.filter import FilterState, Inputs, Prior, grow, leaves, predict, rebuild, step
from model_core.lazy import Tensor, torch
from model_core.predictive import Mixture, alike
from model_core.upm.base import UnderlyingModel, tree_map

PICKED = 4  # components that stand for the predictive of one step of a path: more are no quieter
Held = tuple[FilterState, Prior]
Advance = Callable[[FilterState, Prior, Inputs], FilterState]


def mixtures(
    model: UnderlyingModel, state: FilterState, prior: Prior, inputs: Inputs, steps: int
) -> Iterator[Mixture]:
    """Marginal predictives of the next labels; ValueError where they are not exchangeable.

    inputs: of the first of them; those after it are a time of 1 apart, and nothing is told of
    them. Labels in it count for nothing.
    """
    if not model.exchangeable:
        raise ValueError(f"labels of a model of kind {model.kind!r} are not exchangeable")
    inputs = inputs._replace(labelled=torch.zeros_like(inputs.labelled))
    for _ in range(steps):
        state, info = step(model, state, prior, inputs)
        yield info.predictive
        inputs = later(inputs)


def drawn(
    model: UnderlyingModel,
    held: Held,
    inputs: Inputs,
    steps: int,
    generator: torch.Generator,
    advance: Advance | None = None,
) -> Iterator[tuple[Mixture, Tensor]]:
    """Draw paths of the next labels, one for each row (B): yields what each step was drawn from.

    Of the first label that is the whole mixture (1, M), of later ones `PICKED` components of that
    after each path (1, B x PICKED), which together are the marginal predictive: far less noisy than
    the labels (B, d) themselves, which come with it. inputs as in `mixtures`. advance: steps the
    paths, in place of this filter.
    """
    state, prior = held
    state = ordered(state)
    inputs = inputs._replace(labelled=torch.ones_like(inputs.labelled))
    for ahead in range(steps):
        grown, _ = grow(state, prior, inputs)
        mixture = predict(model, grown, prior, inputs).mixture
        picked = mixture.picked(PICKED, generator)
        one = picked.rebuilt(*(parameter[:, :1] for parameter in picked.parameters()))
        y = one.sample(generator).squeeze(1)
        yield (alike(picked) if ahead else mixture.rows(slice(0, 1))), y
        coming = inputs._replace(y=y)
        state = advance(state, prior, coming) if advance else step(model, state, prior, coming)[0]
        inputs = later(inputs)


def ordered(state: FilterState) -> FilterState:
    """Hypotheses as of `order`."""
    chosen = order(state)
    rows = torch.arange(len(chosen), device=chosen.device).unsqueeze(-1)

    def moved(numbers: Tensor) -> Tensor:
        return numbers[rows, chosen]

    memory = state.memory
    if memory is not None:
        memory = memory._replace(
            origin=moved(memory.origin),
            returns=moved(memory.returns),
            ended_origin=moved(memory.ended_origin),
            ended=tree_map(moved, memory.ended),
        )
    return state._replace(
        belief=Belief(*map(moved, state.belief)),
        totals_at_start=moved(state.totals_at_start),
        stats=tree_map(moved, state.stats),
        memory=memory,
    )


def order(state: FilterState) -> Tensor:
    """Slots (B, S) of hypotheses, the shortest run first, of one start by origin, empty ones last.

    So that a seed means the same draws whatever slots they are in: a state that was stored and
    loaded has others.
    """
    belief = state.belief
    rank = belief.run_length
    if state.memory is not None:
        rank = rank * (1 + state.memory.stored[0].shape[1]) + state.memory.origin
    return by_run_length(belief.log_prob, rank)


def later(inputs: Inputs) -> Inputs:
    """Those of the observation after: a time of 1 later, nothing told."""
    return inputs._replace(
        elapsed=torch.ones_like(inputs.elapsed),
        changepoint=torch.full_like(inputs.changepoint, torch.nan),
    )


def repeated(state: FilterState, prior: Prior, count: int) -> Held:
    """One stream (batch 1) as `count` rows."""
    rows = rebuild(state, [leaf.expand(count, *leaf.shape[1:]) for leaf in leaves(state)])
    stats = tree_map(lambda leaf: leaf.expand(count, *leaf.shape[1:]), prior.stats)
    return rows, Prior(stats, *(leaf.expand(count, -1) for leaf in prior[1:]))
