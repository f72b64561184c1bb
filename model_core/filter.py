"""MOCA's filter (paper, sec. 3-4): init, predict, step. The only implementation of it.

One step is: growth, input update, mixture prediction, label update, statistics, pruning. State is
kept *before* growth, which needs the next observation's elapsed time and supervision. `B` streams,
`S = max_hypotheses + 1` slots, `d` outputs; float64.
"""

from __future__ import annotations

from typing import NamedTuple

from model_core import belief as beliefs
from model_core import hazard as hazards
from model_core import regimes
from model_core.belief import Belief, Growth
from model_core.components import average, join
from model_core.lazy import Tensor, torch
from model_core.predictive import Mixture
from model_core.regimes import Memory
from model_core.transfer import on_host
from model_core.upm.base import Reading, Stats, UnderlyingModel, over, select, tree_map


class FilterState(NamedTuple):
    """What the next step needs.

    belief: `b(r | x_t, y_t)` and path scores. seq: (B,) int64 observations applied. steps: (B,) of
    the hazard between the first of them and the last. totals:
    (B, 1 + 2d) count, sums and sums of squares of the labels that are more probably inliers than
    outliers, less the prior's location; totals_at_start: (B, S, 1 + 2d) the same when each
    hypothesis was born, so that differences give the moments of any segment. context: (B, c) what
    the model keeps of a stream for all hypotheses alike. stats: the model's statistics (B, S, ...).
    memory: of a filter that has one, with M slots more.
    """

    belief: Belief
    seq: Tensor
    steps: Tensor
    totals: Tensor
    totals_at_start: Tensor
    context: Tensor
    stats: Stats
    memory: Memory | None = None


class Prior(NamedTuple):
    """What streams start from: stats (B, 1, ...), labels' location (B, d), context (B, c)."""

    stats: Stats
    location: Tensor
    context: Tensor


class Inputs(NamedTuple):
    """One observation of each stream.

    x: (B, x_dim) or None. y: (B, d), anything where not labelled; of a `partial` model nan where an
    output is missing. labelled: (B,) bool.
    hazard: (B, H) as `model_core.hazard` has it, H = 1 for a constant. elapsed, outlier_rate: (B,).
    changepoint: (B,) supervision, nan where none.
    """

    x: Tensor | None
    y: Tensor
    labelled: Tensor
    hazard: Tensor
    elapsed: Tensor
    changepoint: Tensor
    outlier_rate: Tensor


class Prediction(NamedTuple):
    """What is expected of the coming label, given its input.

    mixture: of the S hypotheses, outliers if there are any, and what is beside them. belief: after
    the input alone. phi: features. log_inlier, log_outlier: (B, 1) or (B, S), of the input having
    been drawn from each hypothesis or from the outliers. beside: (B, 1) weight of what answers are
    averaged with, None where there is nothing.
    """

    mixture: Mixture
    belief: Belief
    phi: Tensor | None
    log_inlier: Tensor
    log_outlier: Tensor
    beside: Tensor | None


class Info(NamedTuple):
    """What the step found; all but `predictive` are (B,) and of the belief after the label.

    predictive: the mixture before the label. log_score: its log density, nan if unlabelled.
    changepoint_probability: `b_t(0 | x_t, y_t)`. born_previous_start: where the best path before
    a regime that starts here starts. ok: the step stayed finite; where not, the state is the old.
    outlying: the label is more probably an outlier than not.
    """

    predictive: Mixture
    log_score: Tensor
    changepoint_probability: Tensor
    pruned_mass: Tensor
    born_previous_start: Tensor
    ok: Tensor
    outlying: Tensor


def make_prior(model: UnderlyingModel, location: Tensor, scale: Tensor) -> Prior:
    """Prior of streams with the given location and scale, both (B, model.scaled)."""
    stats = model.prior(location, scale)
    context = model.context(location, scale)
    return Prior(stats, location[:, : model.y_dim], context)


def init(prior: Prior, max_hypotheses: int) -> FilterState:
    """State before any observation."""
    batch, outputs = prior.location.shape
    slots = max_hypotheses + 1
    device = prior.location.device
    stats = tree_map(lambda t: t.expand(-1, slots, *t.shape[2:]).clone(), prior.stats)
    totals = torch.zeros(batch, 1 + 2 * outputs, dtype=torch.float64, device=device)
    at_start = totals.unsqueeze(1).repeat(1, slots, 1)
    seq = torch.zeros(batch, dtype=torch.int64, device=device)
    belief = beliefs.empty(batch, slots, device)
    steps = torch.zeros(batch, dtype=torch.float64, device=device)
    return FilterState(belief, seq, steps, totals, at_start, prior.context.clone(), stats)


def grow(state: FilterState, prior: Prior, inputs: Inputs) -> tuple[FilterState, Growth]:
    """Make room for the hypothesis that the coming observation starts a regime."""
    elapsed = inputs.elapsed.unsqueeze(-1)
    belief = state.belief
    hazard = hazards.expected(inputs.hazard, belief.run_length, belief.changes, state.steps)
    stated = inputs.changepoint.unsqueeze(-1)
    change = hazards.log_change(hazard, elapsed, stated)
    unit = hazards.log_unit(hazard, elapsed, stated, change)
    memory = state.memory
    if memory is None:
        grown, growth = beliefs.grow(belief, state.seq, *change, unit)
        stats = select(growth.born, prior.stats, state.stats)
    else:
        origin = memory.origin
        grown, growth, memory, began = regimes.grow(belief, memory, state.seq, *change, unit)
        memory, stats = regimes.begin(
            memory, belief, origin, state.seq, prior.stats, state.stats, began
        )
    born = growth.born
    at_start = torch.where(
        over(born, state.totals_at_start), state.totals[:, None], state.totals_at_start
    )
    passed = inputs.elapsed.clamp(max=hazards.MOST_STEPS)
    steps = state.steps + torch.where(state.seq > 0, passed, 0.0)
    new = state._replace(
        belief=grown, steps=steps, totals_at_start=at_start, stats=stats, memory=memory
    )
    return new, growth


def predict(model: UnderlyingModel, state: FilterState, prior: Prior, inputs: Inputs) -> Prediction:
    """Mixture predictive of the coming label from a grown state (paper, eq. 5).

    With an outlier rate `e` each hypothesis's density is `(1-e) p(x, y | eta[r]) + e p_out(x, y)`;
    after theirs the mixture has the outlier's component, then that of what is beside them.
    """
    phi = model.encode(inputs.x, state.context)
    rate = inputs.outlier_rate.unsqueeze(-1)
    outlier = model.outlier(prior.stats, phi)
    belief = state.belief
    log_input, log_inlier, log_outlier = input_likelihood(
        model, state.stats, prior, phi, rate, outlier is not None
    )
    if log_input is not None:
        belief, _ = beliefs.observe(belief, log_input)
    mixture = Mixture(belief.log_prob, model.predictive(state.stats, phi))
    if outlier is not None:
        astray = torch.logsumexp(belief.log_prob + log_outlier, -1, keepdim=True)
        weight = torch.cat((belief.log_prob + log_inlier, astray), -1)
        mixture = Mixture(weight, join(mixture.components, outlier))
    beside = model.beside(state.context)
    if beside is None:
        return Prediction(mixture, belief, phi, log_inlier, log_outlier, None)
    weights = mixture.log_weight + torch.log1p(-beside.weight), torch.log(beside.weight)
    mixture = Mixture(torch.cat(weights, -1), join(mixture.components, beside.components))
    return Prediction(mixture, belief, phi, log_inlier, log_outlier, beside.weight)


def step(
    model: UnderlyingModel, state: FilterState, prior: Prior, inputs: Inputs
) -> tuple[FilterState, Info]:
    """Predict the label, then learn from it (paper, algorithm 1)."""
    grown, growth = grow(state, prior, inputs)
    prediction = predict(model, grown, prior, inputs)
    y = torch.where(inputs.labelled.unsqueeze(-1), inputs.y, prior.location)
    log_likelihood, inlier, log_beside = label_likelihood(prediction, y, inputs)
    posterior, log_score = beliefs.observe(prediction.belief, log_likelihood)
    counted = model.evidence_share(grown.context)
    if counted is not None:
        posterior, _ = beliefs.observe(prediction.belief, counted * log_likelihood)
    change = torch.where(growth.born, posterior.log_prob.exp(), 0.0).sum(-1)
    stats = model.update(grown.stats, prediction.phi, y, inlier)
    if grown.memory is None:
        kept, pruned = beliefs.prune(posterior)
    else:
        regimes_stored = grown.memory.stored[0].shape[1]
        kept, pruned = regimes.prune(posterior, posterior.log_prob.shape[-1] - 1 - regimes_stored)
    seen = torch.cat(
        (torch.ones_like(y[:, :1]), *_moments(model, prediction.mixture, prior, y)), -1
    )
    # All or nothing: of one far enough off any share is too much.
    outlying = inputs.labelled & ((posterior.log_prob.exp() * inlier).sum(-1) < 0.5)
    counts = (inputs.labelled & ~outlying).unsqueeze(-1)
    totals = grown.totals + torch.where(counts, seen, 0.0)
    lead = torch.zeros_like(log_score)
    if prediction.beside is not None:
        lead = log_beside - log_score
        log_own = torch.log1p(-prediction.beside)[:, 0]
        log_other = torch.log(prediction.beside)[:, 0]
        log_score = torch.logaddexp(log_own + log_score, log_other + log_beside)
    reading = None
    if model.believes:
        read = model.read(grown.stats, prediction.phi, y, inlier)
        reading = _reading(prediction, posterior, read, lead, outlying)
    context = model.remember(grown.context, y, inputs.labelled, reading)
    new = FilterState(
        kept, grown.seq + 1, grown.steps, totals, grown.totals_at_start, context, stats,
        grown.memory,
    )  # fmt: skip
    ok = torch.isfinite(log_score) & finite(new)
    score = torch.where(inputs.labelled, log_score, torch.nan)
    info = Info(prediction.mixture, score, change, pruned, growth.previous_start, ok, outlying)
    # A look at `ok` would have the host wait for a device.
    fine = on_host(ok) and bool(ok.all())
    return (new if fine else choose(ok, new, state)), info


def _moments(
    model: UnderlyingModel, mixture: Mixture, prior: Prior, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Labels less the prior's location and their squares (B, d).

    Of a missing output they are those that the mixture expects, so that segments which have it in
    part have its mean and spread nevertheless.
    """
    centred = y - prior.location
    missing = torch.isnan(y)
    if not model.partial or (on_host(missing) and not bool(missing.any())):
        return centred, centred.square()
    mean = mixture.components.mean()
    variance = mixture.components.variance()
    off = mean - prior.location.unsqueeze(1)
    first = average(mixture.log_weight, off)
    second = average(mixture.log_weight, variance + off.square())
    return torch.where(missing, first, centred), torch.where(missing, second, centred.square())


def _reading(
    prediction: Prediction, posterior: Belief, read: Tensor, lead: Tensor, outlying: Tensor
) -> Reading:
    """What is believed of labels; read: (B, S, k) by `UnderlyingModel.read`."""
    before = prediction.belief.log_prob.exp().unsqueeze(-1)
    slots = read.shape[1]
    mean = prediction.mixture.components.mean()[:, :slots]
    average = (posterior.log_prob.exp().unsqueeze(-1) * read).sum(1)
    return Reading(average, (before * mean).sum(1) / before.sum(1), lead, outlying)


def input_likelihood(
    model: UnderlyingModel,
    stats: Stats,
    prior: Prior,
    phi: Tensor | None,
    rate: Tensor,
    outliers: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """`log p(x)` (B, S) under each hypothesis, None where the model is not generative.

    Then `log_inlier` and `log_outlier` of a Prediction. rate: (B, 1), of outliers, if there are
    `outliers` at all.
    """
    log_inlier = torch.log1p(-rate)
    log_outlier = torch.log(rate)
    log_input = model.input_log_prob(stats, phi)
    if log_input is not None and outliers:
        strange = model.outlier_input_log_prob(prior.stats, phi)
        if strange is not None:
            inside = log_inlier + log_input
            outside = log_outlier + strange
            log_input = torch.logaddexp(inside, outside)
            log_inlier = inside - log_input
            log_outlier = outside - log_input
    return log_input, log_inlier, log_outlier


def label_likelihood(
    prediction: Prediction, y: Tensor, inputs: Inputs
) -> tuple[Tensor, Tensor, Tensor]:
    """Each hypothesis's log likelihood and the inlier responsibility of a label, both (B, S).

    Then the log density (B,) of what is last in the mixture. y: (B, d), finite where not labelled.
    """
    densities = prediction.mixture.components.joint_log_density(y.unsqueeze(1))
    slots = prediction.belief.log_prob.shape[-1]
    inside = densities[:, :slots]
    outside = densities[:, slots : densities.shape[1] - (prediction.beside is not None)]
    weight = torch.ones_like(inside)
    if outside.shape[1]:
        log_in = prediction.log_inlier + inside
        inside = torch.logaddexp(log_in, prediction.log_outlier + outside)
        any_outliers = inputs.outlier_rate.unsqueeze(-1) > 0
        weight = torch.where(any_outliers, torch.exp(log_in - inside), weight)
    labelled = inputs.labelled.unsqueeze(-1)
    likelihood = torch.where(labelled, inside, 0.0)
    return likelihood, torch.where(labelled, weight, 0.0), densities[:, -1]


def finite(state: FilterState) -> Tensor:
    """Whether a row (B,) has only finite statistics where there is a hypothesis."""
    present = ~torch.isneginf(state.belief.log_prob)
    if on_host(present):
        # Sums of all there is find all that is not finite; those of finite numbers may overflow.
        total = state.totals.sum(-1) + state.context.sum(-1) + state.belief.log_prob.exp().sum(-1)
        for leaf in state.stats:
            total = total + leaf.flatten(1).sum(-1)
        if bool(torch.isfinite(total).all()):
            return present.any(-1)
    fine = torch.isfinite(state.belief.log_prob) | ~present
    for leaf in state.stats:
        fine = fine & (torch.isfinite(leaf).flatten(2).all(-1) | ~present)
    alone = torch.cat((state.totals, state.context), -1)
    return fine.all(-1) & present.any(-1) & torch.isfinite(alone).all(-1)


def order(state: FilterState) -> Tensor:
    """Slots (B, S) of hypotheses, the shortest run first, of one start by origin, empty ones last.

    So that a seed means the same draws whatever slots they are in: a state that was resized, or
    filtered again, has others.
    """
    belief = state.belief
    rank = belief.run_length
    if state.memory is not None:
        rank = rank * (1 + state.memory.stored[0].shape[1]) + state.memory.origin
    return beliefs.by_run_length(belief.log_prob, rank)


def repeated(state: FilterState, prior: Prior, count: int) -> tuple[FilterState, Prior]:
    """One stream (batch 1) as `count` rows."""

    def copied(numbers: Tensor) -> Tensor:
        return numbers.expand(count, *numbers.shape[1:])

    return tree_map(copied, state), tree_map(copied, prior)


def choose(mask: Tensor, chosen: FilterState, otherwise: FilterState) -> FilterState:
    """Rows of `chosen` where `mask` (B,), else of `otherwise`."""
    return tree_map(lambda a, b: torch.where(over(mask, a), a, b), chosen, otherwise)
