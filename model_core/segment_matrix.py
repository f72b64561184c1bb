"""The segment log-likelihood matrix: every observation under every start, once per sequence."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from model_core import filter as moca
from model_core.filter import Prior
from model_core.upm.base import Stats, UnderlyingModel, tree_map

NEG_INF = float("-inf")
CHUNK = 20  # observations in a block


class Sequences(NamedTuple):
    """What was observed. x: (B, T, x_dim) or None. y: (B, T, d), nan where the label is missing.

    outlier_rate: (B, T), or None for 0 everywhere. Only then are blocks absorbed at once.
    """

    x: Tensor | None
    y: Tensor
    outlier_rate: Tensor | None = None


class Segments(NamedTuple):
    """The matrices (B, T, T) by [s, t], -inf where s > t; `labelled` (B, T).

    label: 0 where the label is missing. input: None where the model is not generative.
    """

    label: Tensor
    input: Tensor | None
    labelled: Tensor


class Rows(NamedTuple):
    """Part of a sequence: features (B, c, n) or None, labels, (B, c) flags and outlier rates."""

    phi: Tensor | None
    y: Tensor
    labelled: Tensor
    rate: Tensor

    def part(self, at: slice | int) -> Rows:
        """Some of them, or one."""
        phi = None if self.phi is None else self.phi[:, at]
        return Rows(phi, self.y[:, at], self.labelled[:, at], self.rate[:, at])


def segment_matrix(
    model: UnderlyingModel,
    prior: Prior,
    data: Sequences,
    chunk: int | None = None,
    longest: int | None = None,
) -> Segments:
    """Predictive log densities of every observation under every start (DESIGN, sec. 2).

    `prior` is `make_prior` of the B sequences. chunk: rows of a block; None leaves the way to the
    model. longest: windows of at most as many observations, -inf elsewhere.
    """
    rows = observed_rows(model, prior, data)
    if chunk is None and data.outlier_rate is None:
        weight = rows.labelled.to(rows.y.dtype)
        densities = model.every_start(prior.stats, rows.phi, rows.y, weight, longest)
        if densities is not None:
            steps = torch.arange(rows.y.shape[1], device=rows.y.device)
            unseen = ~_seen(steps, steps, longest)
            label = densities.log_label.masked_fill(~rows.labelled.unsqueeze(1), 0.0)
            log_input = densities.log_input
            if log_input is not None:
                log_input = log_input.masked_fill(unseen, NEG_INF)
            return Segments(label.masked_fill(unseen, NEG_INF), log_input, rows.labelled)
    return _in_blocks(model, prior, rows, data.outlier_rate is None, chunk or CHUNK, longest)


def _in_blocks(
    model: UnderlyingModel,
    prior: Prior,
    rows: Rows,
    at_once: bool,
    chunk: int,
    longest: int | None,
) -> Segments:
    """In memory at once: statistics of the starts that the present block needs."""
    absorb = _block if at_once else _one_by_one
    steps = rows.y.shape[1]
    stats = None
    labels = []
    inputs = []
    oldest = 0
    for first in range(0, steps, chunk):
        part = rows.part(slice(first, first + chunk))
        count = part.y.shape[1]
        born = tree_map(lambda t, c=count: t.expand(-1, c, *t.shape[2:]), prior.stats)
        if stats is not None and longest is not None:
            gone = max(0, first - longest - oldest)
            oldest = oldest + gone
            stats = tree_map(lambda t, g=gone: t[:, g:], stats)
        stats = born if stats is None else tree_map(lambda a, b: torch.cat((a, b), 1), stats, born)
        starts = torch.arange(oldest, first + count, device=part.y.device)
        seen = _seen(starts, starts[first - oldest :], longest)
        label, log_input, stats = absorb(model, prior, stats, part, seen)
        missing = ~part.labelled.unsqueeze(1)
        labels.append(_column(label.masked_fill(missing, 0.0), seen, oldest, steps))
        if log_input is not None:
            inputs.append(_column(log_input, seen, oldest, steps))
    whole = torch.cat(inputs, -1) if inputs else None
    return Segments(torch.cat(labels, -1), whole, rows.labelled)


def _seen(start: Tensor, t: Tensor, longest: int | None) -> Tensor:
    """Which starts (S,) count at which observations (c,): (S, c)."""
    length = t - start.unsqueeze(-1)
    return (length >= 0) if longest is None else (length >= 0) & (length <= longest)


def observed_rows(model: UnderlyingModel, prior: Prior, data: Sequences) -> Rows:
    """Features of all observations, in the contexts that were theirs.

    Raises ValueError for a model that remembers labels as a filter believes them.
    """
    if model.believes:
        raise ValueError(
            f"a model of kind {model.kind!r} remembers labels as its filter believes them: step "
            "it through the sequence by filter.step"
        )
    present = ~torch.isnan(data.y)
    labelled = present.any(-1) if model.partial else present.all(-1)
    y = torch.where(labelled.unsqueeze(-1), data.y, prior.location.unsqueeze(1))
    batch, steps = labelled.shape
    contexts = [prior.context]
    for t in range(steps - 1):
        contexts.append(model.remember(contexts[-1], y[:, t], labelled[:, t]))
    flat = None if data.x is None else data.x.flatten(0, 1)
    phi = model.encode(flat, torch.stack(contexts, 1).flatten(0, 1))
    phi = None if phi is None else phi.reshape(batch, steps, -1)
    rate = torch.zeros_like(y[..., 0]) if data.outlier_rate is None else data.outlier_rate
    return Rows(phi, y, labelled, rate)


def _column(value: Tensor, seen: Tensor, oldest: int, steps: int) -> Tensor:
    """Columns of the matrix (B, T, c) from values (B, starts, c), the first of them `oldest`."""
    masked = value.masked_fill(~seen, NEG_INF)
    return pad(masked, (0, 0, oldest, steps - oldest - len(seen)), value=NEG_INF)


def _block(
    model: UnderlyingModel, prior: Prior, stats: Stats, rows: Rows, seen: Tensor
) -> tuple[Tensor, Tensor | None, Stats]:
    weight = (seen & rows.labelled.unsqueeze(1)).to(rows.y.dtype)
    return model.block(stats, rows.phi, rows.y, weight)


def _one_by_one(
    model: UnderlyingModel, prior: Prior, stats: Stats, rows: Rows, seen: Tensor
) -> tuple[Tensor, Tensor | None, Stats]:
    """With outliers: how much a row counts depends on the rows before it, as in `filter.step`."""
    labels = []
    inputs = []
    for i in range(rows.y.shape[1]):
        phi, y, labelled, rate = rows.part(i)
        rate = rate[:, None]
        labelled = labelled[:, None]
        wide = model.outlier(prior.stats, phi)
        log_input, log_inlier, log_outlier = moca.input_likelihood(
            model, stats, prior, phi, rate, wide is not None
        )
        inside = model.predictive(stats, phi).joint_log_density(y[:, None])
        outside = None if wide is None else wide.joint_log_density(y[:, None])
        label, weight = moca.label_likelihood(
            inside, outside, log_inlier, log_outlier, rate, labelled
        )
        stats = model.update(stats, phi, y, torch.where(seen[:, i], weight, 0.0))
        labels.append(label)
        inputs += [] if log_input is None else [log_input]
    return torch.stack(labels, -1), torch.stack(inputs, -1) if inputs else None, stats


def by_run_length(matrix: Tensor) -> Tensor:
    """From [s, t] to [t, r], -inf where r > t; (B, T, T)."""
    t = torch.arange(matrix.shape[-1], device=matrix.device)
    start = t.unsqueeze(-1) - t
    moved = matrix.mT.gather(-1, start.clamp(min=0).expand(matrix.shape))
    return moved.masked_fill(start < 0, NEG_INF)


def by_start(matrix: Tensor) -> Tensor:
    """From [t, r] to [s, t], -inf where s > t; (B, T, T). Undoes `by_run_length`."""
    t = torch.arange(matrix.shape[-1], device=matrix.device)
    length = t - t.unsqueeze(-1)
    moved = matrix.mT.gather(1, length.clamp(min=0).expand(matrix.shape))
    return moved.masked_fill(length < 0, NEG_INF)
