"""Contracts of the filter, over every model: enumeration, batch-mates, refusals, pruning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from model_core import belief as beliefs
from model_core import filter as moca
from model_core import hazard as hazards
from model_core.belief import Belief
from model_core.filter import FilterState, Inputs
from model_core.stream.beliefs import restate
from model_core.table import LOG_PROB, RUN_LENGTH, SCORE, Layout
from model_core.upm.builtin import BUILTIN
from tests.model_core.cases import belief_of, by_start, inputs, leaves, read_off, run, series
from tests.model_core.enumeration import (
    OPTIONS,
    STEPS,
    evidence_bound,
    segmentations,
    streams,
    truths,
)
from tests.model_core.references import Series
from tests.model_core.registry import NAMES, PROVEN, case, tensor

# As others here, but for their numbers of outputs or what noise is known.
ALIKE = {
    "gaussian-1", "alpaca-1", "alpaca-unknown-1", "alpaca-mixture-1",
    "averaged-1",
}  # fmt: skip
every_model = pytest.mark.parametrize("name", [name for name in NAMES if name not in ALIKE])
# Pruning and resizing treat all statistics alike: one model of each form of them is quick.
FORMS = ("gaussian-3", "poisson", "alpaca-unknown-2", "pcoc-3", "joint-2", "fleet-2", "lstm-2")
every_form = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FORMS else pytest.mark.slow)
        for name in NAMES
        if name not in ALIKE
    ],
)
GAPS = [True, True, True, False]
NEVER_OUTLYING = ("bernoulli", "categorical")


def close_to(first: torch.Tensor, second: torch.Tensor) -> None:
    # Not to the bit: BLAS adds up a product, and log is rounded, by a row's place in the batch.
    torch.testing.assert_close(first, second, atol=1e-12, rtol=1e-12, equal_nan=True)


def leaf_bytes(state: FilterState, rows=slice(None)) -> list[bytes]:
    return [each[rows].numpy().tobytes() for each in leaves(state)]


def test_every_built_in_model_has_a_case():
    assert set(BUILTIN) <= {case(name).model.kind for name in NAMES}


@pytest.mark.parametrize("name", PROVEN)
def test_the_filter_is_the_sum_over_all_segmentations(name):
    """Scores, beliefs, best paths and predictives, after each of seven observations."""
    batch, truth = streams(name), truths(name)
    steps = run(case(name), batch, max_hypotheses=10)
    near = {"abs": 1e-12, "rel": 1e-12}
    for t, (now, state, info) in enumerate(steps):
        scored = now.labelled
        assert scored.tolist() == [bool(each.labelled[t]) for each in batch]
        assert torch.equal(info.log_score.isnan(), ~scored)
        again = info.predictive.log_prob(torch.nan_to_num(now.y))
        torch.testing.assert_close(again[scored], info.log_score[scored], atol=1e-12, rtol=1e-12)
        assert info.predictive.log_weight.exp().sum(-1).tolist() == pytest.approx([1] * 5, **near)
        assert info.pruned_mass.tolist() == [0.0] * 5
        for row, true in enumerate(each[t] for each in truth):
            where = f"stream {row}, step {t}"
            if scored[row]:
                assert info.log_score[row].item() == pytest.approx(true.log_score, **near), where
            found = belief_of(state, row)
            assert set(found) <= set(true.belief), where
            whole = {start: found.get(start, 0.0) for start in true.belief}
            assert whole == pytest.approx(true.belief, **near), where
            change = info.changepoint_probability[row].item()
            assert change == pytest.approx(true.belief[t], **near), where
            score, top = by_start(state, state.belief.score, row), max(true.score.values())
            expected = {start: true.score[start] - top for start in score}
            assert score == pytest.approx(expected, abs=1e-10, rel=1e-12), where
            previous = by_start(state, state.belief.previous_start, row)
            assert all(previous[start] in true.previous[start] for start in previous), where
            born = int(info.born_previous_start[row])
            assert true.belief[t] == 0 or born in true.previous[t], where


def check_beliefs(steps, max_hypotheses: int) -> None:
    """Distributions over distinct starts, of bounded number."""
    for t, step in enumerate(steps):
        belief = step.state.belief
        assert step.info.ok.all()
        close_to(belief.log_prob.exp().sum(-1), torch.ones(len(belief.log_prob)).double())
        assert ((step.info.pruned_mass >= 0) & (step.info.pruned_mass <= 0.5)).all()
        alive = torch.isfinite(belief.log_prob)
        assert torch.equal(alive, torch.isfinite(belief.score))
        assert (alive.sum(-1) <= min(max_hypotheses, t + 1)).all()
        for row in range(len(alive)):
            run_length = belief.run_length[row, alive[row]]
            assert len(run_length.unique()) == len(run_length)
            assert ((run_length >= 0) & (run_length <= t)).all()
            previous = belief.previous_start[row, alive[row]]
            assert ((previous >= -1) & (previous < t - run_length)).all()


def check_batch_mates(name: str, steps, batch: list[Series], rows: list[int]) -> None:
    """rows: in another order, or some of them alone, each is what it is among the others."""
    for a, b in zip(steps, run(case(name), [batch[i] for i in rows], 4), strict=True):
        pairs = zip(
            [*leaves(a.state), *a.info[1:], a.info.predictive.mean()],
            [*leaves(b.state), *b.info[1:], b.info.predictive.mean()],
            strict=True,
        )
        for first, second in pairs:
            close_to(first[rows], second)
    if case(name).model.label != "class":
        levels = tensor([0.05, 0.5, 0.95])
        quantiles = [step.info.predictive.quantile(levels) for step in (a, b)]
        close_to(quantiles[0][rows], quantiles[1])


@every_model
def test_no_stream_depends_on_its_batch_mates(name):
    batch = [series(case(name), i, 9, **told) for i, told in enumerate(OPTIONS)]
    steps = run(case(name), batch, 4)
    check_beliefs(steps, 4)
    check_batch_mates(name, steps, batch, [3, 1, 4, 0, 2])
    check_batch_mates(name, steps, batch, [4])


@every_model
def test_a_step_that_is_not_finite_keeps_its_stream_and_no_other(name):
    """Every number that the model reads; an infinite time is only a certain change."""
    one, unread = case(name), {"x": not case(name).model.x_dim}
    unread["outlier_rate"] = name in NEVER_OUTLYING
    spoilt = [
        (part, value)
        for part in ("y", "x", "hazard", "elapsed", "outlier_rate")
        for value in (np.nan, np.inf, -np.inf)
        if not unread.get(part) and (part, value) != ("elapsed", np.inf)
    ]
    if one.model.partial:
        spoilt = [each for each in spoilt if not (each[0] == "y" and np.isnan(each[1]))]
    # Between streams that go on, one for each number that is spoilt.
    bad = range(1, len(spoilt) + 1)
    batch = [series(one, seed, 8, outlier_rate=0.01) for seed in (0, *[1] * len(spoilt), 2)]
    now, prior = inputs(batch, 7), one.prior(len(batch))
    wrong = Inputs(*(None if each is None else each.clone() for each in now))
    for row, (part, value) in zip(bad, spoilt, strict=True):
        getattr(wrong, part)[row] = value
    for start in (run(one, batch, 5)[6].state, moca.init(prior, 5)):
        given_numbers = [*leaves(start), *prior.stats, *prior[1:]]
        before = [each.numpy().tobytes() for each in given_numbers]
        good, _ = moca.step(one.model, start, prior, now)
        state, info = moca.step(one.model, start, prior, wrong)
        for row, which in zip(bad, spoilt, strict=True):
            assert not info.ok[row], which
            assert leaf_bytes(state, row) == leaf_bytes(start, row), which
        assert info.ok[[0, -1]].all()
        assert leaf_bytes(state, [0, -1]) == leaf_bytes(good, [0, -1])
        assert [each.numpy().tobytes() for each in given_numbers] == before


def test_a_missing_label_is_never_read():
    for name in NAMES:
        batch = [series(case(name), 0, 6, labelled=[True] * 5 + [False])]
        start, now, states = run(case(name), batch, 4)[4].state, inputs(batch, 5), set()
        for value in (np.nan, np.inf, 0.0):
            there = now._replace(y=torch.full_like(now.y, value))
            state, info = moca.step(case(name).model, start, case(name).prior(), there)
            assert info.ok.item(), name
            assert torch.isnan(info.log_score).item(), name
            assert torch.equal(state.totals, start.totals), name
            states.add(b"".join(leaf_bytes(state)))
        assert len(states) == 1, name


def test_totals_are_the_moments_of_any_segment():
    for name in NAMES:
        one = series(case(name), 3, 7, labelled=[True, True, False])
        state = run(case(name), [one], 30)[-1].state
        for slot in range(7):
            start = 6 - state.belief.run_length[0, slot].item()
            y = (one.y - case(name).location[: one.y.shape[1]])[start:][one.labelled[start:]]
            found = (state.totals[0] - state.totals_at_start[0, slot]).numpy()
            expected = np.concatenate(([len(y)], y.sum(0), (y**2).sum(0)))
            np.testing.assert_allclose(found, expected, atol=1e-9, err_msg=name)


# --- pruning --------------------------------------------------------------------------------------


@every_form
def test_the_mass_reported_is_the_mass_lost(name):
    """One step from the same full state, with and without room for one more."""
    one, prior = series(case(name), 2, 14, outlier_rate=0.02, labelled=GAPS), case(name).prior()
    steps, blank = run(case(name), [one], max_hypotheses=6), moca.init(prior, 6)
    for t, (_, state, info) in enumerate(steps):
        assert torch.isfinite(state.belief.log_prob).sum() == min(t + 1, 6)
        assert (info.pruned_mass.item() > 0) == (t >= 6)
        pairs = zip(leaves(state), leaves(blank), strict=True)
        assert all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)
    for t in range(8, 13):
        roomy = resized(case(name).model, steps[t].state, prior, 7)
        whole, info = moca.step(case(name).model, roomy, prior, inputs([one], t + 1))
        assert info.pruned_mass.item() == 0
        kept, expected = belief_of(steps[t + 1].state), belief_of(whole)
        lost, gone = steps[t + 1].info.pruned_mass.item(), set(expected) - set(kept)
        assert [expected[start] for start in gone] == pytest.approx([lost], rel=1e-9)
        assert lost == pytest.approx(min(expected.values()), rel=1e-9)
        rest = {start: expected[start] / (1 - lost) for start in kept}
        assert kept == pytest.approx(rest, abs=1e-12)


def resized(model, state, prior, max_hypotheses):
    """A state in another number of slots, by way of its rows."""
    lines, heads = Layout(model, state.belief.log_prob.shape[-1] - 1).packed(state, prior)
    layout = Layout(model, max_hypotheses)
    slots = state.belief.log_prob.shape[-1]
    return layout.state(layout.resized(lines.numpy(), slots), heads)


@every_form
def test_resizing_keeps_the_likeliest_and_disturbs_nothing(name):
    batch, prior = [series(case(name), seed, 14) for seed in range(2)], case(name).prior(2)
    steps = run(case(name), batch, max_hypotheses=12)
    state = steps[9].state
    model = case(name).model
    small = resized(model, state, prior, 4)
    assert small.belief.log_prob.shape == (2, 5)
    for row in range(2):
        before = belief_of(state, row)
        best = sorted(before, key=before.get)[-4:]
        total = sum(before[start] for start in best)
        expected = {start: before[start] / total for start in best}
        assert belief_of(small, row) == pytest.approx(expected, abs=1e-13)
        large, little = ([*s.belief[1:], s.totals_at_start, *s.stats] for s in (state, small))
        for pair in zip(large, little, strict=True):  # what goes with a hypothesis goes along
            flat = [
                each.flatten(2).contiguous().sum(-1) if each.dim() > 2 else each for each in pair
            ]
            kept, all_of_them = by_start(small, flat[1], row), by_start(state, flat[0], row)
            assert kept == {start: all_of_them[start] for start in kept}
    again = resized(model, resized(model, state, prior, 20), prior, 12)
    fresh = resized(model, moca.init(prior, 9), prior, 12)
    first, _ = moca.step(model, fresh, prior, inputs(batch, 0))
    assert leaf_bytes(first) == leaf_bytes(steps[0].state)
    for t in range(10, 14):
        again, info = moca.step(model, again, prior, inputs(batch, t))
        torch.testing.assert_close(info.log_score, steps[t].info.log_score, atol=1e-11, rtol=0)
    assert belief_of(again, 1) == pytest.approx(belief_of(steps[-1].state, 1), abs=1e-11)


# The score of a generative model leaves out what its inputs say.
@pytest.mark.parametrize("name", [n for n in PROVEN if n not in (*ALIKE, "pcoc-3")])
def test_the_evidence_bound_is_the_evidence_of_what_was_never_pruned(name):
    """By enumeration, with three hypotheses of seven."""
    one = streams(name)[4]
    steps = run(case(name), [one], 3)
    alive = [set(belief_of(step.state)) for step in steps]
    score = torch.cat([step.info.log_score for step in steps])
    bound = evidence_bound(score, torch.cat([step.info.pruned_mass for step in steps]))
    for t in range(STEPS):
        paths = segmentations(name, 4, t)
        kept = [
            joint
            for starts, joint in paths
            if all(max(s for s in starts if s <= i) in alive[i] for i in range(t))
        ]
        assert bound[t] == pytest.approx(logsumexp(kept), abs=1e-9)
        assert bound[t] <= logsumexp([joint for _, joint in paths]) + 1e-12
    assert len(kept) < len(paths)


def test_a_certain_change_leaves_one_hypothesis():
    told = [math.nan] * 8 + [1.0] + [math.nan] * 3
    steps = run(case("gaussian-1"), [series(case("gaussian-1"), 9, 12, changepoint=told)], 4)
    assert belief_of(steps[8].state) == pytest.approx({8: 1.0})
    assert steps[8].info.pruned_mass.item() == 0
    assert set(belief_of(steps[-1].state)) == {8, 9, 10, 11}


# What a fleet was taught of inputs has their units; durations have no other origin.
SCALE_FREE = [
    "gaussian-3", "multivariate-2", "exponential", "linear", "autoregressive-lags",
    "autoregressive-all", "averaged-2", "joint-2", "fleet-0",
]  # fmt: skip


@pytest.mark.parametrize("name", SCALE_FREE)
def test_units_change_no_changepoint_probability(name):
    """`y -> factor (y + shift)`, inputs by another factor; location and scale with them."""
    one, plain = case(name), series(case(name), 4, 14, **OPTIONS[4])
    expected = run(one, [plain], 10)
    outputs = np.arange(len(one.location)) < one.model.y_dim
    for factor, shift in ((1e6, -1e5), (1e-6, 30.0)):
        shift = 0.0 if one.model.label == "positive" else shift
        factors = np.where(outputs, factor, 3 / factor)
        moved = one._replace(location=factors * (one.location + shift), scale=factors * one.scale)
        other = plain._replace(y=factor * (plain.y + shift), x=3 / factor * (plain.x + shift))
        for a, b in zip(expected, run(moved, [other], 10), strict=True):
            for first, second in zip(a.info[2:4], b.info[2:4], strict=True):
                torch.testing.assert_close(first, second, atol=1e-6, rtol=0)
            score = a.info.log_score - one.model.y_dim * np.log(factor)
            torch.testing.assert_close(b.info.log_score, score, atol=1e-5, rtol=0, equal_nan=True)


# --- what is read off a belief, and put in its place ----------------------------------------------


@pytest.fixture
def belief() -> Belief:
    """Hypotheses of run lengths 9, 2 and 5; the slot of run length 7 is empty."""
    probability, run_length = tensor([[0.5, 0.2, 0.0, 0.3]]), torch.tensor([[9, 2, 7, 5]])
    score = tensor([[-1.0, -2.0, -math.inf, -3.0]])
    changes = tensor([[0.0, 2.0, 0.0, 1.0]])
    gap = tensor([[0.0, 0.0, 0.0, math.log(4)]])
    return Belief(probability.log(), run_length, score, run_length - 10, changes, gap)


def test_a_change_is_of_shorter_runs_and_evidence_reaches_its_threshold(belief):
    for below, mass in ((2, 0.0), (3, 0.2), (5, 0.2), (6, 0.5), (10, 1.0)):
        assert read_off(belief, below, [0.02]).changed_probability == pytest.approx(mass)
    half = Belief(tensor([[0.5, 0.25, 0.0, 0.25]]).log(), *belief[1:])
    # The time before the last start made it four times as likely, which is no evidence.
    evidence = read_off(half, 6, [0.02]).evidence
    assert evidence == pytest.approx((0.25 + 0.25 / 4) / (0.5 * 0.02), rel=1e-12)
    # Of those who know of a change none counts: the longest has seen none in 9 steps.
    learned = read_off(half, 6, hazards.learned(0.1, 0.9)).evidence
    assert learned == pytest.approx((0.25 + 0.25 / 4) / (0.5 * 0.1 / (1.0 + 9)), rel=1e-12)
    # Of two as likely the earlier start.
    for threshold, run_length in ((evidence, 5), (31.3, 9), (0.0, 9)):
        assert read_off(half, 6, [0.02], threshold).event_run_length == run_length


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ([(2, 0.25), (9, 0.75)], {9: 0.75, 2: 0.25}),
        ([(5, 3.0), (2, 1.0)], {5: 0.75, 2: 0.25}),
        ([(7, 1.0)], {9: 1.0}),
        ([(3, 0.25), (5, 0.25), (6, 0.5)], {5: 0.5, 9: 0.5}),
        ([(0, 0.5), (400, 0.5)], {2: 0.5, 9: 0.5}),
        ([(9, 0.5), (2, 0.2), (5, 0.3)], {9: 0.5, 2: 0.2, 5: 0.3}),
    ],
)
def test_a_run_length_without_a_hypothesis_counts_as_the_next_longer_one(belief, stated, expected):
    before = np.concatenate([part.double().numpy() for part in belief])
    lines = before.copy()
    slots = lines.shape[1]
    restate(lines, slots, stated)
    lengths = zip(lines[RUN_LENGTH].tolist(), np.exp(lines[LOG_PROB]).tolist(), strict=True)
    assert {r: p for r, p in lengths if p > 0} == pytest.approx(expected, abs=1e-15)
    assert np.array_equal(np.isneginf(lines[SCORE]), np.isneginf(lines[LOG_PROB]))
    again = lines.copy()
    restate(again, slots, stated)
    np.testing.assert_allclose(again, lines, atol=1e-15, rtol=0)
    if len(stated) == 3 and stated[0][0] == 9:  # what is believed already
        np.testing.assert_allclose(lines, before, atol=1e-15, rtol=0)


def test_before_any_observation_there_is_nothing_to_restate():
    blank = np.concatenate([part.double().numpy() for part in beliefs.empty(1, 4)])
    lines = blank.copy()
    restate(lines, 4, [(0, 1.0)])
    assert np.array_equal(lines, blank)
