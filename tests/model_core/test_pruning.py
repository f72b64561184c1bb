"""Bounded memory: what pruning and resizing keep, and what they report."""

from __future__ import annotations

import math

import pytest
import torch

from model_core import filter as moca
from tests.model_core.cases import CASES, by_start, gaussian, inputs, run, series, tensor

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def belief_of(state, row: int = 0) -> dict[int, float]:
    return by_start(state, state.belief.log_prob.exp(), row)


@cases
def test_nothing_is_pruned_while_there_is_room(case):
    batch = [series(case, seed, 14, outlier_rate=0.02) for seed in range(2)]
    for t, step in enumerate(run(case, batch, max_hypotheses=10)):
        alive = torch.isfinite(step.state.belief.log_prob).sum(-1)
        assert alive.tolist() == [min(t + 1, 10)] * 2
        assert ((step.info.pruned_mass > 0) == (t >= 10)).all()


@cases
def test_room_for_all_is_the_same_as_more_room(case):
    one = series(case, 1, 20)
    exact, roomy = run(case, [one], max_hypotheses=20), run(case, [one], max_hypotheses=60)
    for a, b in zip(exact, roomy, strict=True):
        assert belief_of(a.state) == pytest.approx(belief_of(b.state), abs=1e-13)
        assert a.info.log_score.item() == pytest.approx(b.info.log_score.item(), abs=1e-12)
        assert a.info.pruned_mass.item() == b.info.pruned_mass.item() == 0


@pytest.mark.one_in(2)
@cases
def test_the_mass_reported_is_the_mass_lost(case):
    """One step from the same full state, with and without room for one more."""
    one, prior = series(case, 2, 30), case.prior()
    steps = run(case, [one], max_hypotheses=6)
    for t in range(10, 29):
        before, now = steps[t].state, inputs([one], t + 1)
        whole, info = moca.step(case.model, moca.resize(before, prior, 7), prior, now)
        assert info.pruned_mass.item() == 0
        kept, expected = belief_of(steps[t + 1].state), belief_of(whole)
        lost = steps[t + 1].info.pruned_mass.item()
        gone = set(expected) - set(kept)
        assert len(gone) == 1
        assert expected[gone.pop()] == pytest.approx(lost, rel=1e-9)
        assert lost == pytest.approx(min(expected.values()), rel=1e-9)
        rest = {start: expected[start] / (1 - lost) for start in kept}
        assert kept == pytest.approx(rest, abs=1e-13)
        assert sum(kept.values()) == pytest.approx(1, abs=1e-12)


def test_pruning_costs_little():
    """Twenty hypotheses say what two hundred do, to the mass that they lost."""
    case = gaussian(1)
    one = series(case, 5, 200, hazard=0.02)
    pruned, exact = run(case, [one], max_hypotheses=20), run(case, [one], max_hypotheses=200)
    off = [
        a.info.log_score.item() - b.info.log_score.item()
        for a, b in zip(pruned, exact, strict=True)
    ]
    assert max(map(abs, off)) < 0.1
    assert abs(sum(off)) < 0.2
    start = max(belief_of(exact[-1].state), key=belief_of(exact[-1].state).get)
    assert belief_of(pruned[-1].state)[start] == pytest.approx(
        belief_of(exact[-1].state)[start], abs=0.05
    )


@pytest.mark.one_in(2)
@cases
def test_memory_is_fixed(case):
    state = run(case, [series(case, 6, 40)], max_hypotheses=5)[-1].state
    blank = moca.init(case.prior(), 5)
    pairs = zip(moca.leaves(state), moca.leaves(blank), strict=True)
    assert all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


@cases
def test_resizing_keeps_the_likeliest(case):
    batch = [series(case, seed, 15) for seed in range(2)]
    state = run(case, batch, max_hypotheses=15)[-1].state
    small = moca.resize(state, case.prior(2), 4)
    assert small.belief.log_prob.shape == (2, 5)
    for row in range(2):
        before = belief_of(state, row)
        best = sorted(before, key=before.get)[-4:]
        total = sum(before[start] for start in best)
        expected = {start: before[start] / total for start in best}
        assert belief_of(small, row) == pytest.approx(expected, abs=1e-13)
        tensors = zip(moca.leaves(state), moca.leaves(small), strict=True)
        parts = [(a, b) for a, b in tensors if a.shape[1:2] == (16,)]
        assert len(parts) == 4 + 1 + len(state.stats)
        for large, little in parts[1:]:  # what goes with a hypothesis goes along
            flat = [each.flatten(2).sum(-1) if each.dim() > 2 else each for each in (large, little)]
            kept = by_start(small, flat[1], row)
            assert kept == {start: by_start(state, flat[0], row)[start] for start in kept}


@pytest.mark.one_in(2)
@cases
def test_resizing_does_not_disturb_what_follows(case):
    one, prior = series(case, 7, 30), case.prior()
    steps = run(case, [one], max_hypotheses=40)
    grown = moca.resize(moca.resize(steps[9].state, prior, 12), prior, 40)
    for t in range(10, 30):
        grown, info = moca.step(case.model, grown, prior, inputs([one], t))
        assert info.log_score.item() == pytest.approx(steps[t].info.log_score.item(), abs=1e-11)
    assert belief_of(grown) == pytest.approx(belief_of(steps[-1].state), abs=1e-11)


@cases
def test_resizing_before_the_first_observation(case):
    one, prior = series(case, 8, 5), case.prior()
    resized = moca.resize(moca.init(prior, 9), prior, 3)
    fresh = moca.init(prior, 3)
    for t in range(5):
        now = inputs([one], t)
        resized, info = moca.step(case.model, resized, prior, now)
        fresh, expected = moca.step(case.model, fresh, prior, now)
        assert info.ok.item()
        assert info.log_score.item() == expected.log_score.item()


def test_a_certain_change_leaves_one_hypothesis():
    case = gaussian(1)
    one = series(case, 9, 12, changepoint=[math.nan] * 8 + [1.0] + [math.nan] * 3)
    steps = run(case, [one], max_hypotheses=4)
    assert belief_of(steps[8].state) == pytest.approx({8: 1.0})
    assert steps[8].info.pruned_mass.item() == 0
    assert set(belief_of(steps[-1].state)) == {8, 9, 10, 11}


def test_pruning_empties_the_least_likely_slot():
    from model_core import belief as beliefs

    log_prob = tensor([[0.5, 0.1, 0.4], [0.7, 0.3, 0.0]]).log()
    where = torch.arange(3).expand(2, 3)
    kept, mass = beliefs.prune(beliefs.Belief(log_prob, where, log_prob, where))
    assert mass.tolist() == pytest.approx([0.1, 0.0])
    expected = tensor([[5 / 9, 0, 4 / 9], [0.7, 0.3, 0]])
    torch.testing.assert_close(kept.log_prob.exp(), expected, atol=1e-15, rtol=0)
    assert torch.isinf(kept.score[0]).tolist() == [False, True, False]
