"""Whole sequences at once: every mode is read off the segment log-likelihood matrix.

`label[s, t] = log p(y_t | x_t, observations s..t-1)` for all starts `s <= t`, and, of a generative
model, `input[s, t]`, the same of `x_t` alone: computed once per sequence. The loss is a forward
recursion over its columns; baselines are selections of its entries. Everything is differentiable,
in log space, and agrees with the filter where that prunes nothing and no label is an outlier.

Shapes: `B` sequences of `T` observations. Beliefs are (B, T, T) by [t, r], `r` the run length (the
number of observations a hypothesis has absorbed), -inf where `r > t`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from model_core import hazard as hazards
from model_core.filter import Prior
from model_core.upm.base import Densities, Stats, UnderlyingModel, tree_map

NEG_INF = float("-inf")


class Sequences(NamedTuple):
    """What was observed. x: (B, T, x_dim) or None. y: (B, T, d), nan where the label is missing."""

    x: Tensor | None
    y: Tensor


class Segments(NamedTuple):
    """The matrices (B, T, T) by [s, t], -inf where s > t; `labelled` (B, T).

    label: 0 where the label is missing. input: None where the model is not generative.
    """

    label: Tensor
    input: Tensor | None
    labelled: Tensor


class ObservedRows(NamedTuple):
    """Sequences as models take them: features (B, T, n) or None, labels, (B, T) flags."""

    phi: Tensor | None
    y: Tensor
    labelled: Tensor


def segment_matrix(
    model: UnderlyingModel, prior: Prior, data: Sequences, longest: int | None = None
) -> Segments:
    """Predictive log densities of every observation under every start (DESIGN, sec. 2).

    `prior` is `make_prior` of the B sequences. longest: windows of at most as many observations,
    -inf elsewhere.
    """
    rows = observed_rows(model, prior, data)
    weight = rows.labelled.to(rows.y.dtype)
    t = torch.arange(rows.y.shape[1], device=rows.y.device)
    length = t - t.unsqueeze(-1)
    seen = (length >= 0) if longest is None else (length >= 0) & (length <= longest)
    densities = model.every_start(prior.stats, rows.phi, rows.y, weight, longest)
    if densities is None:
        stats = tree_map(lambda own: own.expand(-1, len(t), *own.shape[2:]), prior.stats)
        densities = _row_by_row(model, stats, rows, weight.unsqueeze(1) * seen)
    label = densities.label.masked_fill(~rows.labelled.unsqueeze(1), 0.0)
    log_input = densities.input
    if log_input is not None:
        log_input = log_input.masked_fill(~seen, NEG_INF)
    return Segments(label.masked_fill(~seen, NEG_INF), log_input, rows.labelled)


def _row_by_row(
    model: UnderlyingModel, stats: Stats, rows: ObservedRows, weight: Tensor
) -> Densities:
    """Densities under starts (B, S) that absorb rows, or do not: weight (B, S, T), 0 or 1."""
    labels = []
    inputs = []
    for i in range(rows.y.shape[1]):
        phi = None if rows.phi is None else rows.phi[:, i]
        y = rows.y[:, i]
        labels.append(model.predictive(stats, phi).joint_log_density(y.unsqueeze(1)))
        inputs.append(model.input_log_prob(stats, phi))
        stats = model.update(stats, phi, y, weight[..., i])
    evidence = [log_prob for log_prob in inputs if log_prob is not None]
    return Densities(torch.stack(labels, -1), torch.stack(evidence, -1) if evidence else None)


def observed_rows(model: UnderlyingModel, prior: Prior, data: Sequences) -> ObservedRows:
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
    return ObservedRows(phi, y, labelled)


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


class Changes(NamedTuple):
    """What is known of when regimes change.

    hazard: (B, H) table by run length, H = 1 for a constant; it may need a gradient. elapsed:
    (B, T) time before each observation, None for 1. changepoint: (B, T) supervision, the
    probability that the regime changed just before; nan, or None for all, where nothing is told;
    that of the first observation is ignored.
    """

    hazard: Tensor
    elapsed: Tensor | None = None
    changepoint: Tensor | None = None


class Forward(NamedTuple):
    """log_score: (B, T) `log p(y_t | x_t, past)`, nan where unlabelled.

    log_prior, log_given_input, log_posterior: beliefs before the observation, after its input, and
    after its label.
    """

    log_score: Tensor
    log_prior: Tensor
    log_given_input: Tensor
    log_posterior: Tensor


def forward(segments: Segments, changes: Changes, override: Tensor | None = None) -> Forward:
    """MOCA over a sequence (paper, alg. 1), exactly: no hypothesis is pruned.

    override: (B, T, T) log beliefs by [t, r], -inf or nan where r > t, that replace the belief that
    a label is predicted with; rows that are nan throughout replace nothing.
    """
    # Rows apart from the start: the gradient of a slice is as large as what it was cut from.
    label = by_run_length(segments.label).unbind(1)
    evidence = None if segments.input is None else by_run_length(segments.input).unbind(1)
    steps = len(label)
    change, survival = (logs.unbind(1) for logs in _transitions(changes, len(label[0]), steps))
    scores = []
    priors = []
    given_input = []
    posteriors = []
    after = label[0].new_zeros(len(label[0]), 0)
    for t in range(steps):
        before = after.new_zeros(len(after), 1)  # the first hypothesis is certain
        if t:  # growth (paper, eq. 4)
            born = _total(after + change[t][:, :t])
            before = torch.cat((born, after + survival[t][:, :t]), -1)
        given = before
        if evidence is not None:
            given, _ = _condition(before, evidence[t][:, : t + 1])
        if override is not None:
            stated = override[:, t, : t + 1]
            gone = torch.isnan(stated)
            told, _ = _condition(stated.masked_fill(gone, NEG_INF), torch.zeros_like(stated))
            given = torch.where(gone.all(-1, keepdim=True), given, told)
        after, score = _condition(given, label[t][:, : t + 1])
        scores.append(score)
        room = (0, steps - t - 1)
        priors.append(pad(before, room, value=NEG_INF))
        given_input.append(pad(given, room, value=NEG_INF))
        posteriors.append(pad(after, room, value=NEG_INF))
    score = torch.stack(scores, 1).masked_fill(~segments.labelled, torch.nan)
    return Forward(
        log_score=score,
        log_prior=torch.stack(priors, 1),
        log_given_input=torch.stack(given_input, 1),
        log_posterior=torch.stack(posteriors, 1),
    )


def select(segments: Segments, start: Tensor) -> Tensor:
    """`log p(y_t | x_t, observations start..t-1)` (B, T), nan where unlabelled.

    start: (T,) or (B, T) int64, at most t: of `oracle`, `window`, or your own.
    """
    index = start.to(segments.label.device).expand(segments.labelled.shape).unsqueeze(1)
    chosen = segments.label.gather(1, index).squeeze(1)
    return torch.where(segments.labelled, chosen, torch.nan)


def from_start(model: UnderlyingModel, prior: Prior, data: Sequences) -> Tensor:
    """`log p(y_t | x_t, all observations before)` (B, T): no change is ever thought of.

    The first row of the matrix, without the others.
    """
    rows = observed_rows(model, prior, data)
    weight = rows.labelled.unsqueeze(1).to(rows.y.dtype)
    label = _row_by_row(model, prior.stats, rows, weight).label.squeeze(1)
    return torch.where(rows.labelled, label, torch.nan)


def oracle(switch: Tensor) -> Tensor:
    """Starts (B, T) of the true regimes; switch: (B, T) whether one starts at each step."""
    steps = torch.arange(switch.shape[-1], device=switch.device)
    return torch.where(switch, steps, 0).cummax(-1).values


def window(steps: int, length: int | None) -> Tensor:
    """Starts (T,) of a sliding window of the last `length` observations.

    0 trains on everything and never adapts, None conditions on everything.
    """
    t = torch.arange(steps)
    return torch.zeros_like(t) if length is None else (t - length).clamp(min=0)


def _transitions(changes: Changes, batch: int, steps: int) -> tuple[Tensor, Tensor]:
    """Log probabilities (B, T, T) of a change before `t` and of none, by the run length before."""
    table = changes.hazard.expand(batch, -1)
    run_length = torch.arange(steps, device=table.device).expand(batch, -1)
    hazard = hazards.at(table, run_length).unsqueeze(1)
    elapsed = changes.elapsed
    changepoint = changes.changepoint
    elapsed = table.new_ones(batch, steps) if elapsed is None else elapsed
    changepoint = torch.full_like(elapsed, torch.nan) if changepoint is None else changepoint
    change, survival = hazards.log_change(hazard, elapsed.unsqueeze(-1), changepoint.unsqueeze(-1))
    return change.expand(-1, -1, steps), survival.expand(-1, -1, steps)


def _condition(belief: Tensor, log_likelihood: Tensor) -> tuple[Tensor, Tensor]:
    """Bayes' rule; the belief and `log p(new)` (B,)."""
    joint = belief + log_likelihood
    evidence = _total(joint)
    return joint - evidence, evidence.squeeze(-1)


def _total(log_value: Tensor) -> Tensor:
    """Logsumexp (B, 1) whose gradient is finite where terms, even all of them, are -inf."""
    gone = torch.isneginf(log_value)
    least = torch.finfo(log_value.dtype).min / 2
    total = torch.logsumexp(log_value.masked_fill(gone, least), -1, keepdim=True)
    return total.masked_fill(gone.all(-1, keepdim=True), NEG_INF)
