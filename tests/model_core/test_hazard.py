"""Hazards: tables of negative-binomial regimes, what is refused, elapsed time, and learned ones."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from model_core import belief as beliefs
from model_core import hazard as hazards
from model_core.stream.detector import Detector
from tests.model_core.cases import read_off
from tests.model_core.registry import tensor

MEANS, SHAPES = (1.5, 3, 20, 100, 1000, 10_000), (0.01, 0.5, 0.999, 1.001, 2, 5.5, 50, 1e3, 1e12)


@pytest.mark.parametrize("mean", MEANS)
def test_negative_binomial_hazard_is_mass_over_survival(mean):
    """To its last entry, which stands for all that are longer."""
    for shape in SHAPES:
        found = np.array(hazards.negative_binomial(mean, shape))
        run_length, limit = np.arange(len(found)), shape / (mean - 1 + shape)
        after = stats.nbinom(shape, limit)  # observations after a regime's first
        mass, survival = after.pmf(run_length), after.sf(run_length - 1)
        if shape < 1e6:  # scipy's own tails end somewhere
            exact = (survival > 1e-10) & (mass > 1e-200)
            assert exact.any()
            np.testing.assert_allclose(found[exact], (mass / survival)[exact], rtol=1e-9)
        last = len(found) - 1
        with mpmath.workdps(40):
            k, m = mpmath.mpf(shape), mpmath.mpf(mean)
            exact = 1 / mpmath.hyp2f1(1, last + k, last + 1, 1 - k / (m - 1 + k))
        assert found[-1] == pytest.approx(float(exact), rel=1e-9)
        converged = abs(found[-1] / limit - 1) <= hazards.NEGLIGIBLE
        left = np.prod(1 - found)
        assert left <= hazards.NEGLIGIBLE or converged or len(found) == hazards.LONGEST
        assert hazards.checked(tuple(found)) == tuple(found)


def test_shape_one_is_constant():
    for mean in (1, 1.25, 7, 100, 10_000):
        assert hazards.negative_binomial(mean, 1) == (1 / mean,)
    assert hazards.negative_binomial(1, 5) == (1.0,)
    near = hazards.negative_binomial(50, 1 + 1e-9)
    assert near == pytest.approx([1 / 50] * len(near), rel=1e-8)


def test_what_is_refused():
    for mean in (0.5, 0, -3, math.nan, math.inf, hazards.LONGEST + 1):
        with pytest.raises(ValueError, match="mean regime duration"):
            hazards.negative_binomial(mean, 2)
    for shape in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="shape"):
            hazards.negative_binomial(10, shape)
    assert hazards.checked(0.25) == (0.25,)
    assert hazards.checked([0, 1, 0.5]) == (0.0, 1.0, 0.5)
    assert len(hazards.checked([0.1] * hazards.LONGEST)) == hazards.LONGEST
    for wrong, what in (
        ([], "entries"),
        ([0.1] * (hazards.LONGEST + 1), "entries"),
        ([0.1, 1.5], "run length 1"),
        (-0.1, "run length 0"),
        ([math.nan], "run length 0"),
        ([0.0, 0.0], "never"),
    ):
        with pytest.raises(ValueError, match=what):
            hazards.checked(wrong)


def test_hazards_of_zero_and_one_and_no_time():
    hazard, nothing = tensor([[0.0, 1.0, 0.3]]), tensor([[math.nan]])
    for elapsed, change in ((0.0, [0, 0, 0]), (1.0, [0, 1, 0.3]), (2.0, [0, 1, 0.51])):
        found, survival = hazards.log_change(hazard, tensor([[elapsed]]), nothing)
        assert found.exp()[0].tolist() == pytest.approx(change, abs=1e-15)
        assert survival.exp()[0].tolist() == pytest.approx([1 - p for p in change], abs=1e-15)


# --- a hazard that is learned ---------------------------------------------------------------------

CHANGES, STEPS_BEFORE, LENGTH = 0.5, 4.0, 9
ELAPSED = (1.0, 1.0, 0.5, 1.0, 3.0, 1.0, 1.0, 0.0, 1.0)
STATED = (np.nan, np.nan, np.nan, 0.3, np.nan, np.nan, 1.0, np.nan, np.nan)


def likelihoods(seed):
    """Log density [s, t] of each label under each start."""
    return np.random.default_rng(seed).normal(-1.5, 1.0, (LENGTH, LENGTH))


def filtered(log_density):
    """Beliefs and gaps by start of the belief's filter alone, labels as likely as stated."""
    slots = LENGTH + 1
    belief = beliefs.empty(1, slots)
    prior = torch.tensor([hazards.learned(CHANGES, STEPS_BEFORE)], dtype=torch.float64)
    behind = 0.0
    for t in range(LENGTH):
        steps = torch.tensor([behind], dtype=torch.float64)
        expected = hazards.expected(prior, belief.run_length, belief.changes, steps)
        elapsed = torch.tensor([[ELAPSED[t]]], dtype=torch.float64)
        stated = torch.tensor([[STATED[t]]], dtype=torch.float64)
        change = hazards.log_change(expected, elapsed, stated)
        unit = hazards.log_unit(expected, elapsed, stated, change)
        belief, _ = beliefs.grow(belief, torch.tensor([t]), *change, unit)
        behind += ELAPSED[t] if t else 0.0
        starts = (t - belief.run_length[0]).clamp(0, LENGTH - 1).numpy()
        belief, _ = beliefs.observe(belief, torch.tensor(log_density[starts, t])[None])
        alive = torch.isfinite(belief.log_prob[0])
        columns = belief.log_prob[0, alive].exp().tolist(), belief.gap[0, alive].tolist()
        yield tuple(dict(zip(starts[alive], column, strict=True)) for column in columns)


def by_loops(log_density, exact):
    """The same by loops; exact: every hypothesis keeps each number of changes, not their mean."""
    weights = {}  # of start and changes behind it
    gaps = {}
    behind = 0.0
    for t in range(LENGTH):
        grown = {}
        born = {}
        of_unit = 0.0
        for (start, n), weight in weights.items():
            rate = (CHANGES + n) / (CHANGES + STEPS_BEFORE + behind)
            change = STATED[t]
            if np.isnan(change):
                change = 1 - (1 - rate) ** ELAPSED[t]
            grown[start, n] = weight * (1 - change)
            born[n + 1] = born.get(n + 1, 0.0) + weight * change
            longer = np.isnan(STATED[t]) and ELAPSED[t] > 1
            odds = (1 - change) * rate / (1 - rate) if longer else change
            of_unit += weight * odds / math.exp(gaps[start])
        gaps[t] = math.log(sum(born.values()) / of_unit) if of_unit else 0.0
        if not exact and sum(born.values()):
            total = sum(born.values())
            born = {sum(n * weight for n, weight in born.items()) / total: total}
        grown.update({(t, n): weight for n, weight in (born if t else {0: 1.0}).items()})
        behind += ELAPSED[t] if t else 0.0
        weights = {key: w * np.exp(log_density[key[0], t]) for key, w in grown.items()}
        total = sum(weights.values())
        weights = {key: weight / total for key, weight in weights.items() if weight}
        by_start = {}
        for (start, _), weight in weights.items():
            by_start[start] = by_start.get(start, 0.0) + weight
        yield by_start, {start: gaps[start] for start in by_start}


@pytest.mark.parametrize("seed", range(5))
def test_a_learned_hazard_is_that_of_loops_and_close_to_that_of_every_number_of_changes(seed):
    log_density = likelihoods(seed)
    steps = filtered(log_density), by_loops(log_density, False), by_loops(log_density, True)
    for t, (found, mean, exact) in enumerate(zip(*steps, strict=True)):
        assert found[0] == pytest.approx(mean[0], abs=1e-12)
        assert found[1] == pytest.approx(mean[1], abs=1e-12)
        # Before the third observation no start has two numbers of changes behind it.
        assert found[0] == pytest.approx(exact[0], abs=1e-12 if t < 2 else 0.02)
        if t == 4:  # after three units of time
            assert found[1][t] > 0.1


def test_time_without_observations_is_no_evidence_of_a_change():
    """It is as much as that of a step of one unit, though a change becomes more probable."""
    nothing = tensor([[math.nan]])
    for table in ([0.01], [0.3], [1.0, 0.2, 0.1], hazards.learned(0.2, 200.0)):
        prior = tensor([table])
        read = {}
        for elapsed in (0.1, 1.0, 2.0, 50.0):
            belief = beliefs.empty(1, 4)
            for t, time in enumerate((1.0, elapsed)):
                expected = hazards.expected(
                    prior, belief.run_length, belief.changes, tensor([float(t)])
                )
                change = hazards.log_change(expected, tensor([[time]]), nothing)
                unit = hazards.log_unit(expected, tensor([[time]]), nothing, change)
                belief, _ = beliefs.grow(belief, torch.tensor([t]), *change, unit)
                belief, _ = beliefs.observe(belief, torch.zeros(1, 1, dtype=torch.float64))
            found = read_off(belief, 1, [0.01])
            read[elapsed] = (found.changed_probability, found.evidence)
        if table[0] == 1.0:
            continue  # the change is certain whatever the time
        assert [read[elapsed][1] for elapsed in (2.0, 50.0)] == pytest.approx([read[1.0][1]] * 2)
        assert read[1.0][0] < read[2.0][0] < read[50.0][0]
        assert read[0.1][1] < 0.5 * read[1.0][1]  # in less time there is less


def test_a_stream_learns_how_often_its_regimes_end():
    rng = np.random.default_rng(0)
    for every, least, most in ((20, 0.03, 0.07), (500, 0.0005, 0.005)):
        level = rng.normal(0, 20, 1 + 1000 // every)
        y = level[np.arange(1000) // every] + rng.normal(size=1000)
        detector = Detector("gaussian", location=0.0, scale=1.0, max_hypotheses=50, seasonal=False)
        detector.update_many(y)
        pipeline = detector._all.pipeline
        state = pipeline.slab.batch([pipeline.series[0].row])[0]
        table = torch.tensor([hazards.BY_STREAM], dtype=torch.float64)
        belief = state.belief
        rate = hazards.expected(table, belief.run_length, belief.changes, state.steps)
        mean = float((state.belief.log_prob.exp() * rate).sum())
        assert least < mean < most
