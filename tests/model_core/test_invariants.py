"""What must hold for any stream, any settings and any batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_core import belief as beliefs
from model_core import filter as moca
from model_core.components import Bernoulli
from model_core.filter import FilterState, Inputs
from tests.model_core.cases import (
    EVERY,
    Case,
    exponential,
    inputs,
    multivariate_case,
    run,
    series,
    tensor,
)
from tests.model_core.reference import Series

STEPS = 12
quick = settings(max_examples=30, deadline=None, derandomize=True)
NEVER_OUTLYING = ("bernoulli", "categorical")
any_case = st.sampled_from(EVERY)
ordered_case = st.sampled_from([case for case in EVERY if case.model.label != "class"])
SCALE_FREE = [
    *(case for case in EVERY if case.model.needs_scale and case.model.label == "real"),
    multivariate_case(3),
]
# What a fleet taught of inputs has their units.
SCALE_FREE = [case for case in SCALE_FREE if case.name != "fleet-2"]
table = st.tuples(*[st.floats(0.01, 0.9)] * 2, st.floats(0.0, 0.5))  # by run length
probability = st.one_of(st.just(np.nan), st.sampled_from([0.0, 1.0]), st.floats(0, 1))


@st.composite
def told_of(draw, steps: int = STEPS) -> dict[str, object]:
    """Anything that may be told with observations."""

    def each(values) -> list:
        return draw(st.lists(values, min_size=steps, max_size=steps))

    return {
        "hazard": draw(st.one_of(st.floats(1e-9, 0.999), table)),
        "elapsed": each(st.one_of(st.just(1.0), st.floats(0, 1e6))),
        "changepoint": each(probability),
        "labelled": each(st.booleans()),
        "outlier_rate": each(st.one_of(st.just(0.0), st.floats(0, 0.5))),
    }


@st.composite
def batches(draw, cases=any_case, streams: int = 4) -> tuple[Case, list[Series]]:
    case = draw(cases)
    seeds = draw(st.lists(st.integers(0, 2**32 - 1), min_size=streams, max_size=streams))
    return case, [series(case, seed, STEPS, **draw(told_of())) for seed in seeds]


def same_bits(first: FilterState, second: FilterState) -> bool:
    pairs = zip(moca.leaves(first), moca.leaves(second), strict=True)
    return all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in pairs)


def rows(state: FilterState, index: list[int]) -> FilterState:
    return moca.rebuild(state, [each[index] for each in moca.leaves(state)])


def close_to(first: torch.Tensor, second: torch.Tensor) -> None:
    # Not to the bit: BLAS adds up a product, and log is rounded, by a row's place in the batch.
    torch.testing.assert_close(first, second, atol=1e-12, rtol=1e-12, equal_nan=True)


@quick
@given(batches(), st.integers(2, 15))
def test_a_belief_is_a_distribution_over_distinct_starts(both, max_hypotheses):
    case, batch = both
    for t, step in enumerate(run(case, batch, max_hypotheses)):
        belief = step.state.belief
        assert step.info.ok.all()
        total = torch.logsumexp(belief.log_prob, -1)
        torch.testing.assert_close(total, torch.zeros_like(total), atol=1e-12, rtol=0)
        assert ((step.info.pruned_mass >= 0) & (step.info.pruned_mass <= 0.5)).all()
        alive = torch.isfinite(belief.log_prob)
        assert torch.equal(alive, torch.isfinite(belief.score))
        assert (alive.sum(-1) <= min(max_hypotheses, t + 1)).all()
        for row in range(len(batch)):
            run_length = belief.run_length[row, alive[row]]
            assert len(run_length.unique()) == len(run_length)
            assert ((run_length >= 0) & (run_length <= t)).all()
            previous = belief.previous_start[row, alive[row]]
            assert ((previous >= -1) & (previous < t - run_length)).all()


@quick
@given(batches(), st.permutations(range(4)), st.integers(2, 8))
def test_permuting_a_batch_permutes_its_answers(both, order, max_hypotheses):
    case, batch = both
    plain = run(case, batch, max_hypotheses)
    permuted = run(case, [batch[i] for i in order], max_hypotheses)
    for a, b in zip(plain, permuted, strict=True):
        before = [*moca.leaves(a.state), *a.info[1:]]
        for first, second in zip(before, [*moca.leaves(b.state), *b.info[1:]], strict=True):
            close_to(first[order], second)


@quick
@given(batches(), st.integers(0, 3), st.integers(2, 8))
def test_a_stream_never_sees_its_batch_mates(both, row, max_hypotheses):
    case, batch = both
    together = run(case, batch, max_hypotheses)
    alone = run(case, [batch[row]], max_hypotheses)
    for a, b in zip(together, alone, strict=True):
        pairs = zip(moca.leaves(a.state), moca.leaves(b.state), strict=True)
        for first, second in pairs:
            close_to(first[row], second[0])
        close_to(a.info.predictive.mean()[row], b.info.predictive.mean()[0])


@quick
@given(batches(ordered_case))
def test_quantiles_and_draws_do_not_depend_on_batch_mates(both):
    case, batch = both
    mix = run(case, batch, 8)[-1].info.predictive
    if case.model.label == "class":
        mix = mix._replace(components=Bernoulli(mix.components.mean()[..., :1]))  # of the first
    levels = tensor([0.05, 0.5, 0.95])
    together = mix.quantile(levels)
    for row in range(len(batch)):
        one = mix.components.rebuilt(*(p[row : row + 1] for p in mix.components.parameters()))
        alone = mix._replace(log_weight=mix.log_weight[row : row + 1], components=one)
        found = alone.quantile(levels)[0]
        close_to(together[row], found)


@quick
@given(batches())
def test_a_step_modifies_nothing_it_was_given(both):
    case, batch = both
    prior = case.prior(len(batch))
    steps = run(case, batch, 4)
    state, now = steps[5].state, inputs(batch, 6)
    given_tensors = [*moca.leaves(state), *prior.stats, prior.location]
    given_tensors += [each for each in now if each is not None]
    before = [each.numpy().tobytes() for each in given_tensors]
    after, info = moca.step(case.model, state, prior, now)
    if case.model.label != "class":
        info.predictive.quantile(tensor([0.1, 0.9]))
    moca.resize(after, prior, 3)
    moca.predict(case.model, moca.grow(state, prior, now)[0], prior, now)
    assert [each.numpy().tobytes() for each in given_tensors] == before


def assert_units_do_not_matter(case, seed, factor, shift, told) -> None:
    """`y -> factor (y + shift)`, inputs by another factor; location and scale with them."""
    plain = series(case, seed, 30, **told)
    factors = np.where(np.arange(len(case.location)) < case.model.y_dim, factor, 3 / factor)
    moved = case._replace(location=factors * (case.location + shift), scale=factors * case.scale)
    other = plain._replace(y=factor * (plain.y + shift), x=3 / factor * (plain.x + shift))
    for a, b in zip(run(case, [plain], 10), run(moved, [other], 10), strict=True):
        change = a.info.changepoint_probability - b.info.changepoint_probability
        assert change.abs().item() < 1e-6
        lost = a.info.pruned_mass - b.info.pruned_mass
        assert lost.abs().item() < 1e-6
        if a.inputs.labelled.item():
            expected = a.info.log_score.item() - case.model.y_dim * np.log(factor)
            assert b.info.log_score.item() == pytest.approx(expected, abs=1e-5)


any_seed, any_factor = st.integers(0, 2**32 - 1), st.floats(-6, 6).map(lambda power: 10**power)


@quick
@given(st.sampled_from(SCALE_FREE), any_seed, any_factor, st.floats(-1e5, 1e5), told_of(30))
def test_units_change_no_changepoint_probability(case, seed, factor, shift, told):
    assert_units_do_not_matter(case, seed, factor, shift, told)


@quick
@given(any_seed, any_factor, told_of(30))
def test_units_of_time_change_no_changepoint_probability(seed, factor, told):
    assert_units_do_not_matter(exponential(), seed, factor, 0.0, told)


def spoilt(now: Inputs, part: str, value: float, row: int) -> Inputs:
    """The same observation with one number of one stream replaced."""
    tensors = now._asdict()
    tensors[part] = tensors[part].clone()
    tensors[part][row] = value
    return Inputs(**tensors)


def poison() -> Iterator[tuple[Case, str, float]]:
    """Every number that a model reads, not finite; an infinite time is only a certain change."""
    for case in EVERY:
        for part in ("y", "x", "hazard", "elapsed", "outlier_rate"):
            unread = {"x": not case.model.x_dim, "outlier_rate": case.name in NEVER_OUTLYING}
            for value in (np.nan, np.inf, -np.inf):
                missing = case.model.partial and part == "y" and np.isnan(value)
                if not (missing or unread.get(part) or (part, value) == ("elapsed", np.inf)):
                    yield case, part, value


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("case", "part", "value"), list(poison()), ids=lambda v: getattr(v, "name", str(v))
)
def test_a_step_that_is_not_finite_keeps_the_state(case, part, value):
    batch = [series(case, seed, 8, outlier_rate=0.01) for seed in range(3)]
    now, prior = inputs(batch, 7), case.prior(3)
    for start in (run(case, batch, 5)[6].state, moca.init(prior, 5)):
        good, _ = moca.step(case.model, start, prior, now)
        state, info = moca.step(case.model, start, prior, spoilt(now, part, value, 1))
        assert info.ok.tolist() == [True, False, True]
        assert same_bits(rows(state, [1]), rows(start, [1]))
        assert same_bits(rows(state, [0, 2]), rows(good, [0, 2]))


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_a_missing_label_is_never_read(case):
    batch = [series(case, 0, 8, labelled=[True] * 7 + [False])]
    states = []
    for value in (np.nan, np.inf, 0.0):
        start = run(case, batch, 5)[6].state
        now = spoilt(inputs(batch, 7), "y", value, 0)
        state, info = moca.step(case.model, start, case.prior(), now)
        assert info.ok.item()
        assert torch.isnan(info.log_score).item()
        assert torch.equal(state.totals, start.totals)
        states.append(state)
    assert same_bits(states[0], states[1])
    assert same_bits(states[0], states[2])


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_totals_are_the_moments_of_any_segment(case):
    one = series(case, 3, 20, labelled=[True, True, False])
    state = run(case, [one], 30)[-1].state
    for slot in range(20):
        start = 19 - state.belief.run_length[0, slot].item()
        used = (one.y - case.location[: case.model.y_dim])[start:][one.labelled[start:]]
        found = (state.totals[0] - state.totals_at_start[0, slot]).numpy()
        expected = np.concatenate(([len(used)], used.sum(0), (used**2).sum(0)))
        np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_scores_have_gradients(case):
    """In the prior and the hazard, from the first step on, against central differences."""
    told = {"outlier_rate": 0.05, "labelled": [True, True, True, False], "hazard": (0.1, 0.3)}
    one, blank = series(case, 5, 12, **told), case.prior()

    def total(factor: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
        """Score of a prior whose statistics are all so many times as large, a hazard as well."""
        prior = blank._replace(stats=type(blank.stats)(*(factor * s for s in blank.stats)))
        state, score = moca.init(prior, 5), tensor(0.0)
        for t in range(12):
            now = inputs([one], t)
            now = now._replace(hazard=change * now.hazard)
            state, info = moca.step(case.model, state, prior, now)
            score = score + torch.nan_to_num(info.log_score).sum()
        return score

    given_numbers = tensor(1.1).requires_grad_(), tensor(0.9).requires_grad_()
    found = torch.autograd.grad(total(*given_numbers), given_numbers)
    for i, each in enumerate(found):
        low, high = [1.1, 0.9], [1.1, 0.9]
        low[i], high[i] = low[i] - 1e-5, high[i] + 1e-5
        slope = (total(*map(tensor, high)) - total(*map(tensor, low))) / 2e-5
        assert each.item() == pytest.approx(slope.item(), rel=1e-5, abs=1e-7)


def test_mass_below_counts_short_runs():
    log_prob = tensor([[0.5, 0.3, 0.2, 0.0]]).log()
    run_length = torch.tensor([[0, 7, 3, 1]])
    belief = beliefs.Belief(log_prob, run_length, log_prob, run_length)
    for below, expected in ((0, 0.0), (1, 0.5), (3, 0.5), (4, 0.7), (8, 1.0)):
        assert beliefs.mass_below(belief, torch.tensor([below])).item() == pytest.approx(expected)
