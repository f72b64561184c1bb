"""Streams of a case, and how to run the filter on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from model_core import filter as moca
from model_core import readout
from model_core.belief import Belief
from model_core.compiled import LABEL, SETTLED
from model_core.filter import FilterState, Info, Inputs, Prior
from model_core.readout import Readout
from model_core.segments import Segments, segment_matrix
from model_core.table import SEQ, STEPS, Layout
from model_core.upm.base import UnderlyingModel
from model_core.upm.conjugate import Gaussian
from tests.model_core.references import Series
from tests.model_core.registry import Case, tensor


def leaves(tree) -> list[torch.Tensor]:
    """Every tensor of a state, in order."""
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in leaves(part)]
    return [] if tree is None else [tree]


def series(
    case: Case, seed: int, steps: int, hazard: float | tuple[float, ...] = 0.1, **told
) -> Series:
    """Random observations and their inputs of a step: a number, or one for each step.

    A hazard that is a tuple is a table by run length, the same at every step.
    """
    x, y = case.draw(np.random.default_rng(seed), steps)
    plain = {"labelled": True, "elapsed": 1.0, "changepoint": np.nan, "outlier_rate": 0.0}
    full = {name: np.resize(v, steps) for name, v in {**plain, **told}.items()}
    by_run_length = isinstance(hazard, tuple)
    table = np.tile(hazard, (steps, 1)) if by_run_length else np.resize(hazard, steps)
    return Series(x, y, hazard=table, **full)


def of_labels(
    y: np.ndarray,
    x=None,
    hazard: float | tuple[float, ...] = 0.1,
    outlier_rate: float = 0.0,
) -> Series:
    """A stream of labels (T, d), one unit of time apart, without stated changes."""
    ones, x = np.ones(len(y)), np.zeros((len(y), 0)) if x is None else x
    table = np.tile(hazard, (len(y), 1))
    return Series(x, y, ones > 0, table, ones, np.nan * ones, outlier_rate * ones)


def inputs(batch: list[Series], t: int) -> Inputs:
    """Step `t` of several streams; labels that are missing are nan."""
    x = tensor([each.x[t] for each in batch])
    labelled = torch.tensor([bool(each.labelled[t]) for each in batch])
    y = tensor([each.y[t] if each.labelled[t] else np.nan * each.y[t] for each in batch])
    elapsed, changepoint, rate = (
        tensor([getattr(each, name)[t] for each in batch])
        for name in ("elapsed", "changepoint", "outlier_rate")
    )
    tables = [np.atleast_1d(each.hazard[t]) for each in batch]
    longest = max(map(len, tables))
    hazard = tensor([np.pad(each, (0, longest - len(each)), "edge") for each in tables])
    x = x if x.shape[-1] else None
    return Inputs(x, y, labelled, hazard, elapsed, changepoint, rate)


class Step(NamedTuple):
    """Input of one step and what came of it."""

    inputs: Inputs
    state: FilterState
    info: Info


def run(
    case: Case, batch: list[Series], max_hypotheses: int, state: FilterState | None = None
) -> list[Step]:
    """The filter over all steps of several streams of one length."""
    return list(walk(case.model, case.prior(len(batch)), batch, max_hypotheses, state))


def walk(
    model: UnderlyingModel,
    prior: Prior,
    batch: list[Series],
    max_hypotheses: int,
    state: FilterState | None = None,
) -> Iterable[Step]:
    """Yield the steps of several streams one by one."""
    state = moca.init(prior, max_hypotheses) if state is None else state
    for t in range(len(batch[0].y)):
        now = inputs(batch, t)
        state, info = moca.step(model, state, prior, now)
        yield Step(now, state, info)


def row_by_row(model: UnderlyingModel, *arguments) -> Segments:
    """The matrix of a model that computes no starts at once."""
    with mock.patch.object(type(model), "every_start", UnderlyingModel.every_start):
        return segment_matrix(model, *arguments)


def by_start(state: FilterState, value: Tensor, row: int = 0) -> dict[int, float]:
    """Values (B, S) of one stream's hypotheses, by the position at which each starts."""
    alive = torch.isfinite(state.belief.log_prob[row])
    starts = state.seq[row] - 1 - state.belief.run_length[row]
    return dict(zip(starts[alive].tolist(), value[row, alive].tolist(), strict=True))


def belief_of(state: FilterState, row: int = 0) -> dict[int, float]:
    """Probabilities of one stream's hypotheses, by start."""
    return by_start(state, state.belief.log_prob.exp(), row)


def read_off(belief: Belief, below: int, hazard: Sequence[float], threshold=0.0) -> Readout:
    """What is read off one belief (1, S); run lengths below `below` are of a change."""
    slots = belief.run_length.shape[1]
    layout = Layout(Gaussian(), slots - 1)
    ((lines,), (head,)) = layout.begin(np.zeros((1, 1)), np.ones((1, 1)))
    for line, numbers in enumerate(belief):
        lines[line, :slots] = numbers[0]
    head[SEQ] = belief.run_length.max() + 1
    head[STEPS] = head[SEQ] - 1
    settled = head[SEQ] - 1 - below
    inputs = np.zeros((1, LABEL))
    inputs[:, SETTLED:] = settled, settled, threshold
    numbers = readout.at_rest(layout, lines[None], head[None])
    table, _ = readout.table(layout, numbers, inputs, np.array([hazard]), 5)
    (found,) = readout.rows(table)
    return found
