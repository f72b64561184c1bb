"""Forecasts of a series whose filter runs: predictives of the labels to come, and paths of them.

Of models that take no input. Where labels of a regime are exchangeable, each one's marginal is the
mixture after as many steps without a label: exact. Where a label feeds back into what follows
(lags, recurrent states), the mixture has no closed form: whole paths are drawn, each step of which
is learned from, so that they are draws of the joint predictive `p(y_t+1, ..., y_t+h | y_1..t)`,
switches to come included. A marginal is then the average, over the paths, of the predictives of a
step given the steps before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import log
from typing import NamedTuple

from model_core import correction, summary
from model_core.belief import by_run_length
from model_core.components import Components
from model_core.filter import FilterState, Inputs, Prior, grow, predict, step
from model_core.lazy import Tensor, torch
from model_core.predictive import Mixture, alike
from model_core.stream import columns
from model_core.stream.columns import Floats
from model_core.stream.events import NOTHING_WATCHED
from model_core.stream.slab import Slab, SlabMemory
from model_core.summary import Summary
from model_core.transfer import to_device
from model_core.upm.base import UnderlyingModel, tree_map

MEDIAN = 0.5
PATHS = 256  # drawn where labels feed back
MAX_HORIZON = 10_000  # labels to come
MAX_DRAWN = 10_000_000  # numbers of paths
# Components that stand for the predictive of one step of a path: of one output, and fewer of more,
# whose summaries take most of the time. More are no quieter.
PICKED = 4
PART_BYTES = 16 << 20  # of the statistics that are predicted from at once
Held = tuple[FilterState, Prior]
Advance = Callable[[FilterState, Prior, Inputs], FilterState]


class Before(NamedTuple):
    """Streams before a label."""

    state: FilterState
    prior: Prior
    inputs: Inputs

    def part(self, rows: slice) -> Before:
        """Some of the streams."""
        return tree_map(lambda numbers: numbers[rows], self)

    def predictive(self, model: UnderlyingModel) -> Mixture:
        """Of the label."""
        grown, _ = grow(self.state, self.prior, self.inputs)
        return predict(model, grown, self.prior, self.inputs).mixture


# --- of a series --------------------------------------------------------------------------------


def summarised(
    slab: Slab, row: int, mixture: Mixture, levels: Sequence[float]
) -> tuple[Summary, Floats]:
    """Summaries of mixtures of labels to come of a series, corrected by its errors so far.

    levels: of quantiles, rising. Also the corrections (B, d, 3), see `correction`.
    """
    count = len(mixture.log_weight)
    nothing = torch.full((count, slab.model.y_dim), torch.nan, dtype=torch.float64)
    predicted = summary.of_mixture(mixture, nothing, levels)
    if MEDIAN in levels:  # corrected in place
        return predicted, slab.corrected([row] * count, predicted, correction.interval(levels))
    medians = summary.of_mixture(mixture, nothing, [MEDIAN])
    applied = slab.corrected([row] * count, medians, correction.interval([MEDIAN]))
    correction.apply(predicted.numbers, applied)
    return predicted, applied


def moved(drawn: Tensor, applied: Floats) -> Tensor:
    """Draws (..., d) that are moved and scaled as corrections (..., d, 3) say."""
    if not applied.shape[-2]:  # of other labels than real numbers
        return drawn
    median, by, scale = to_device(applied, drawn.device).unbind(-1)
    return median + by + scale * (drawn - median)


def ahead(
    slab: Slab, row: int, coming: Inputs, offsets: Floats, levels: Sequence[float]
) -> list[Summary]:
    """Summaries of the next labels, of a model whose labels are exchangeable; as `summarised`.

    coming: inputs of the first of them. offsets: (T, d) their seasons. The last label counts for
    each of them as for the next one.
    """
    state = slab.state(row)
    prior = slab.prior(row)
    steps = mixtures(slab.model, state, prior, coming, len(offsets))
    return [
        summarised(slab, row, mixture.shifted(offset), levels)[0]
        for mixture, offset in zip(steps, offsets.tolist(), strict=True)
    ]


def drawn(
    slab: Slab,
    row: int,
    coming: Inputs,
    offsets: Floats,
    levels: Sequence[float],
    seed: int,
    tick: Callable[[], object] = lambda: None,
) -> tuple[list[Summary], Tensor]:
    """Draw paths (N, T, d) of the next labels, samples of their joint predictive, corrected.

    Returns the summaries of each label alone, too. coming: inputs of the first of them, a row for
    each path. offsets: (T, d) seasons. tick: is called with each label.
    """
    count = len(coming.elapsed)
    room = SlabMemory(expected=count)
    regimes = slab.layout.regimes
    copies = Slab(slab.model, slab.max_hypotheses, (), slab.device, regimes, room)
    own = slab.row(row)
    (slots,) = order(slab.state(row)).cpu().numpy()
    own.lines[:, : len(slots)] = own.lines[:, slots]
    rows = [copies.add(own) for _ in range(count)]

    def advance(state: FilterState, prior: Prior, observed: Inputs) -> FilterState:
        """Step the copies as any rows are: by a kernel, if the model has one."""
        seen = columns.of_inputs(observed)
        for at in range(0, count, copies.step_rows):
            part = slice(at, at + copies.step_rows)
            nothing = [NOTHING_WATCHED] * len(rows[part])
            copies.step(rows[part], seen.part(part), nothing, (), False)
        return copies.batch(rows)[0]  # good until the next step

    generator = torch.Generator(slab.device).manual_seed(seed)
    held = copies.batch(rows)
    steps = paths(slab.model, held, coming, len(offsets), generator, advance)
    summaries = []
    labels = []
    for (mixture, y), offset in zip(steps, offsets.tolist(), strict=True):
        tick()
        predicted, applied = summarised(slab, row, mixture.shifted(offset), levels)
        summaries.append(predicted)
        labels.append(moved(y + y.new_tensor(offset) if any(offset) else y, applied))
    return summaries, torch.stack(labels, 1)


# --- of a filter --------------------------------------------------------------------------------


def mixtures(
    model: UnderlyingModel, state: FilterState, prior: Prior, inputs: Inputs, steps: int
) -> Iterator[Mixture]:
    """Marginal predictives of the next labels; ValueError where they are not exchangeable.

    inputs: of the first of them; each later one is a unit of time after the one before, without
    stated changes. Labels in it count for nothing.
    """
    if not model.exchangeable:
        raise ValueError(f"labels of a model of kind {model.kind!r} are not exchangeable")
    inputs = inputs._replace(labelled=torch.zeros_like(inputs.labelled))
    for _ in range(steps):
        state, info = step(model, state, prior, inputs)
        yield info.predictive
        inputs = later(inputs)


def paths(
    model: UnderlyingModel,
    held: Held,
    inputs: Inputs,
    steps: int,
    generator: torch.Generator,
    advance: Advance | None = None,
) -> Iterator[tuple[Mixture, Tensor]]:
    """Draw paths of the next labels, one for each row (B): yields what each step was drawn from.

    Of the first label that is the whole mixture (1, M), of later ones N = `PICKED` / d components
    of that after each path (1, B x N), which together are the marginal predictive: far less noisy
    than the labels (B, d) themselves, which come with it. inputs as in `mixtures`. advance: steps
    the paths, in place of this filter.
    """
    state, prior = held
    state = ordered(state)
    inputs = inputs._replace(labelled=torch.ones_like(inputs.labelled))
    rows = max(1, PART_BYTES // sum(numbers[0].nbytes for numbers in state.stats))
    picks = max(1, PICKED // model.y_dim)
    for ahead in range(steps):
        before = Before(state, prior, inputs)
        parts = [
            _picked(model, before.part(slice(at, at + rows)), picks, generator)
            for at in range(0, len(state.seq), rows)
        ]
        parameters = zip(*(part.parameters() for part in parts), strict=True)
        picked = parts[0].rebuilt(*map(torch.cat, parameters))
        one = picked.rebuilt(*(parameter[:, :1] for parameter in picked.parameters()))
        y = one.sample(generator).squeeze(1)
        yield (alike(picked) if ahead else before.part(slice(1)).predictive(model)), y
        coming = inputs._replace(y=y)
        state = advance(state, prior, coming) if advance else step(model, state, prior, coming)[0]
        inputs = later(inputs)


def _picked(
    model: UnderlyingModel, before: Before, picks: int, generator: torch.Generator
) -> Components:
    """Components (B, picks) of predictives, drawn by their weights.

    Hypotheses are drawn first, and only these are predicted from.
    """
    grown, _ = grow(before.state, before.prior, before.inputs)
    chances = grown.belief.log_prob.exp()
    few = taken(grown, torch.multinomial(chances, picks, True, generator=generator))
    alike_likely = torch.full_like(few.belief.log_prob, -log(picks))
    few = few._replace(belief=few.belief._replace(log_prob=alike_likely))
    mixture = predict(model, few, before.prior, before.inputs).mixture
    weight = mixture.log_weight.exp()
    # What each is of: the hypothesis in its place, outliers or what is beside all.
    inside = weight[:, :picks].sum(-1, keepdim=True)
    kind = torch.multinomial(
        torch.cat((inside, weight[:, picks:]), -1), picks, True, generator=generator
    )
    places = torch.arange(picks, device=kind.device)
    return mixture.at(torch.where(kind == 0, places, kind + (picks - 1)))


def ordered(state: FilterState) -> FilterState:
    """Hypotheses as of `order`."""
    return taken(state, order(state))


def taken(state: FilterState, chosen: Tensor) -> FilterState:
    """Hypotheses in slots `chosen` (B, N)."""
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
        belief=tree_map(moved, state.belief),
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
    """Those of the observation after: a unit of time later, without stated changes."""
    return inputs._replace(
        elapsed=torch.ones_like(inputs.elapsed),
        changepoint=torch.full_like(inputs.changepoint, torch.nan),
    )


def repeated(state: FilterState, prior: Prior, count: int) -> Held:
    """One stream (batch 1) as `count` rows."""

    def copied(numbers: Tensor) -> Tensor:
        return numbers.expand(count, *numbers.shape[1:])

    return tree_map(copied, state), tree_map(copied, prior)
