"""Memory of regimes: births against enumeration, and what is stored."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_t

from model_core import Detector, compiled, readout
from model_core import filter as moca
from model_core.codec import StreamRow
from model_core.compiled.kernel import Kernel
from model_core.errors import UnfitSetting
from model_core.hazard import BY_STREAM, LEARNED
from model_core.regimes import NEXT_ID, OF_EACH, REGIMES
from model_core.stream import beliefs
from model_core.stream.checks import Dimensions, check_settings
from model_core.stream_settings import DEFAULTS
from model_core.table import (
    CHANGES,
    LOG_PROB,
    RUN_LENGTH,
    SCORE,
    Layout,
    Rows,
    context_place,
)
from model_core.table import STEPS as BEHIND
from model_core.upm.multivariate import Multivariate, MultivariateStats
from model_core.upm.regression import FORGOTTEN, Regression
from tests.model_core.references import Window
from tests.model_core.registry import Case, case

STEPS, HAZARD, ROOM = 7, 0.15, 400
MODELS = (
    "gaussian-3", "multivariate-2", "exponential", "gamma", "poisson", "bernoulli", "categorical",
    "alpaca-2", "alpaca-unknown-2", "linear",
)  # fmt: skip
AVERAGES = ("averaged-2", "joint-2")  # whose labels' shares of scales depend on what came before
SEEN = (3.0, 1.0)  # of two stored regimes
HAZARDS = [(HAZARD,), (LEARNED, 0.5, 4.0)]
# One with a prior of each kind: of a level, of counts, of weights.
QUICK = ("gaussian-3", "poisson", "alpaca-unknown-2", "linear", "averaged-2", "joint-2")


def by_kind(names):
    return [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in names]


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


class Stream(NamedTuple):
    """Inputs (T, n) and labels (T, d) and, for each stored regime, those it was learned from."""

    case: Case
    x: np.ndarray
    y: np.ndarray
    known: tuple[tuple[np.ndarray, np.ndarray], ...]


def stream(name: str) -> Stream:
    own = case(name)
    x, y = own.draw(np.random.default_rng(5), 3 * STEPS + 4)
    last, before = slice(-5, None), slice(-9, -5)
    return Stream(own, x[:STEPS], y[:STEPS], ((x[last], y[last]), (x[before], y[before])))


def row_of(values: np.ndarray) -> torch.Tensor | None:
    """An input or a label of one stream; None: without numbers."""
    return torch.tensor(values, dtype=torch.float64).reshape(1, -1) if np.size(values) else None


def inputs_of(x: np.ndarray, y: np.ndarray, hazard=(HAZARD,), elapsed=1.0) -> moca.Inputs:
    one = torch.ones(1, dtype=torch.float64)
    table = torch.tensor([list(hazard)], dtype=torch.float64)
    there, none = torch.tensor([True]), torch.zeros_like(one)
    return moca.Inputs(row_of(x), row_of(y), there, table, elapsed * one, np.nan * one, none)


def given(x: np.ndarray, y: np.ndarray, watch=(0.0, 0.0, 0.0), elapsed=1.0) -> np.ndarray:
    """The same as inputs of a kernel, watched so."""
    return np.concatenate(([1.0, elapsed, np.nan, 0.0], watch, np.ravel(y), np.ravel(x)))[None]


def learned(own: Case, inputs: np.ndarray, labels: np.ndarray):
    """Statistics of a regime of these observations, arrays (1, 1, ...)."""
    prior = own.prior()
    stats = prior.stats
    for x, y in zip(inputs, labels, strict=True):
        phi = own.model.encode(row_of(x), prior.context)
        label = torch.tensor(y, dtype=torch.float64).reshape(1, -1)
        stats = own.model.update(stats, phi, label, torch.ones(1, 1, dtype=torch.float64))
    return type(stats)(*(value.numpy() for value in stats))


def began(stream: Stream, order=(0, 1), room: int = ROOM) -> tuple[Layout, np.ndarray, np.ndarray]:
    """A row with stored regimes, in this order of places, before its first observation."""
    layout = Layout(stream.case.model, room, regimes=len(order))
    lines, heads = layout.begin(stream.case.location[None], stream.case.scale[None])
    numbers = heads[0, layout.numbers :]
    numbers[NEXT_ID] = 9
    ids, seen, _ = numbers[REGIMES:].reshape(OF_EACH, -1)
    for place, which in enumerate(order):
        ids[place], seen[place] = which + 1, SEEN[which]
        stats = learned(stream.case, *stream.known[which])
        layout.put_column(lines[0], layout.stored.start + place, stats)
    return layout, lines, heads


def eager(stream: Stream, order=(0, 1), room: int = ROOM, hazard=(HAZARD,)) -> list[tuple]:
    """Log score, belief and counts after each label."""
    layout, lines, heads = began(stream, order, room)
    states = []
    for x, y in zip(stream.x, stream.y, strict=True):
        state, prior = layout.state(lines, heads), layout.prior(lines, heads)
        state, info = moca.step(stream.case.model, state, prior, inputs_of(x, y, hazard))
        assert bool(info.ok)
        lines, heads = (part.numpy() for part in layout.packed(state, prior))
        states.append((float(info.log_score), *believed(layout, lines, order)))
    return states


def kernel(stream: Stream, order=(0, 1), room: int = ROOM, hazard=(HAZARD,)) -> list[tuple]:
    """As `eager`."""
    layout, lines, heads = began(stream, order, room)
    step = compiled.kernel_of(stream.case.model)
    assert isinstance(step, Kernel)
    states = []
    for x, y in zip(stream.x, stream.y, strict=True):
        rows = Rows(layout.slots, lines, heads, layout.regimes)
        table, _ = step.advance(rows, np.zeros(1, np.int64), given(x, y), np.array([hazard]), 5)
        assert table[0, list(readout.NUMBERS).index("ok")] == 1
        states.append((table[0, 0], *believed(layout, lines, order)))
    return states


def believed(layout: Layout, lines: np.ndarray, order) -> tuple[dict, dict]:
    """Probability and score, then changes and returns, by run length and regime (0: fresh)."""
    own = lines[0, :, : layout.slots]
    names = (0, *(which + 1 for which in order))
    slots = {
        (int(own[RUN_LENGTH, i]), names[int(own[layout.origin, i])]): own[:, i]
        for i in np.flatnonzero(np.isfinite(own[LOG_PROB]))
    }
    belief = {end: (np.exp(slot[LOG_PROB]), slot[SCORE]) for end, slot in slots.items()}
    return belief, {end: slot[[CHANGES, layout.returns]] for end, slot in slots.items()}


class Path(NamedTuple):
    """A segmentation with the origins of its segments: starts and origins, and its log weight."""

    segments: tuple[tuple[int, int], ...]
    weight: float

    @property
    def counts(self) -> np.ndarray:
        """Changes, and returns among them."""
        return np.array([len(self.segments) - 1.0, sum(z > 0 for _, z in self.segments)])


def chance_of_return(changes: float, returns: float) -> float:
    """Of the next change; the first of all changes was no sign of anything."""
    return (1 + returns) / (2 + returns + max(changes - returns - 1, 0))


def hazard_of(hazard: tuple[float, ...], counts: np.ndarray, t: int) -> float:
    """Of one that is stated or learned, of a hypothesis before observation t."""
    if hazard[0] != LEARNED:
        return hazard[0]
    return (hazard[1] + counts[0]) / (hazard[1] + hazard[2] + t - 1)


@cache
def enumerated(
    name: str, hazard: tuple[float, ...] = (HAZARD,), exact: bool = False
) -> list[tuple[float, dict[tuple[int, int], tuple], dict[tuple[int, int], np.ndarray]]]:
    """Log score, belief and counts as sums and maxima over all segmentations and origins.

    exact: every path has a hazard and returns by its own counts; else by their mean over the paths
    to the same start and origin, as the filter keeps it.
    """
    density = densities(stream(name))
    total = sum(SEEN)
    paths = [Path(((0, 0),), 0.0)]
    answer = []
    before = 0.0
    for t in range(STEPS):
        means = mean_counts(paths)
        grown = []
        for path in paths if t else []:
            start, z = path.segments[-1]
            counts = path.counts if exact else means[start, z]
            rate = hazard_of(hazard, counts, t)
            back = chance_of_return(*counts)
            grown.append(path._replace(weight=path.weight + np.log1p(-rate)))
            for m in range(3):
                others = total - (SEEN[z - 1] if z else 0.0)
                chance = back * SEEN[m - 1] / others if m else 1 - back
                if m != z or m == 0:
                    weight = path.weight + np.log(rate * chance)
                    grown.append(Path((*path.segments, (t, m)), weight))
        paths = [
            path._replace(weight=path.weight + density[(*path.segments[-1], t)])
            for path in grown or paths
        ]
        weights = np.array([path.weight for path in paths])
        evidence = logsumexp(weights)
        by_end: dict[tuple[int, int], list[float]] = {}
        for path in paths:
            start, z = path.segments[-1]
            by_end.setdefault((t - start, z), []).append(path.weight)
        belief = {
            end: (np.exp(logsumexp(own) - evidence), max(own) - weights.max())
            for end, own in by_end.items()
        }
        counts = {(t - start, z): mean for (start, z), mean in mean_counts(paths).items()}
        answer.append((evidence - before, belief, counts))
        before = evidence
    return answer


def mean_counts(paths: list[Path]) -> dict[tuple[int, int], np.ndarray]:
    """By start and origin of the last segment."""
    own: dict[tuple[int, int], list[Path]] = {}
    for path in paths:
        own.setdefault(path.segments[-1], []).append(path)
    means = {}
    for end, of_end in own.items():
        weights = np.array([path.weight for path in of_end])
        share = np.exp(weights - logsumexp(weights))
        means[end] = share @ np.array([path.counts for path in of_end])
    return means


def densities(stream: Stream) -> dict[tuple[int, int, int], float]:
    """Log density of each label by start and origin of its segment, and its position."""
    table = {}
    for z in range(3):
        x, y = stream.known[z - 1] if z else (stream.x[:0], stream.y[:0])
        for start in range(STEPS):
            for t in range(start, STEPS):
                inputs = np.concatenate((x, stream.x[start:t]))
                labels = np.concatenate((y, stream.y[start:t]))
                window = Window(inputs, labels, np.ones(len(labels)))
                table[start, z, t] = stream.case.reference.log_density(
                    stream.x[t], stream.y[t], window
                )
    return table


@pytest.mark.parametrize("hazard", HAZARDS)
@pytest.mark.parametrize("step", [eager, kernel])
@pytest.mark.parametrize("name", MODELS)
def test_belief_is_a_sum_over_segmentations_and_origins(name, step, hazard):
    for own, truth in zip(step(stream(name), hazard=hazard), enumerated(name, hazard), strict=True):
        score, belief, counts = own
        assert score == pytest.approx(truth[0], rel=1e-12, abs=1e-12)
        assert belief.keys() == truth[1].keys()
        for end, (probability, path) in belief.items():
            assert probability == pytest.approx(truth[1][end][0], rel=1e-11, abs=1e-12)
            assert path == pytest.approx(truth[1][end][1], rel=1e-11, abs=1e-11)
            assert counts[end] == pytest.approx(truth[2][end], rel=1e-11, abs=1e-11)


@pytest.mark.parametrize(
    ("hazard", "apart", "counts_apart"),
    [(BY_STREAM, 1e-6, 0.005), ((HAZARD,), 0.008, 0.1), (HAZARDS[1], 0.06, 0.7)],
)
@pytest.mark.parametrize("name", by_kind(MODELS))
def test_mean_counts_stand_for_the_counts_of_every_path(name, hazard, apart, counts_apart):
    """Exact while one path leads to a hypothesis, and close after it.

    How close depends on how much a change teaches: by the default prior of a learned hazard hardly
    anything, by one that stands for four observations much. Counts are up to six.
    """
    for t, (own, truth) in enumerate(
        zip(enumerated(name, hazard), enumerated(name, hazard, exact=True), strict=True)
    ):
        exact = t < 2
        assert own[0] == pytest.approx(truth[0], abs=1e-12 if exact else apart)
        for end, (probability, _) in own[1].items():
            assert probability == pytest.approx(truth[1][end][0], abs=1e-12 if exact else apart)
            within = 1e-12 if exact else counts_apart
            assert own[2][end] == pytest.approx(truth[2][end], abs=within)


@pytest.mark.parametrize("name", [*MODELS, *AVERAGES])
def test_order_of_stored_regimes_changes_nothing(name):
    one = stream(name)
    for room in (ROOM, 6):
        for (score, belief, _), (other, swapped, _) in zip(
            kernel(one, (0, 1), room), kernel(one, (1, 0), room), strict=True
        ):
            assert score == pytest.approx(other, rel=1e-13)
            assert belief.keys() == swapped.keys()
            for end, numbers in belief.items():
                assert numbers == pytest.approx(swapped[end], rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("name", [*MODELS, *AVERAGES])
@pytest.mark.parametrize("room", [ROOM, 6])
@pytest.mark.parametrize("hazard", HAZARDS)
def test_kernel_is_the_eager_filter(name, room, hazard):
    one = stream(name)
    for (score, belief, counts), (other, eagerly, eager_counts) in zip(
        kernel(one, room=room, hazard=hazard), eager(one, room=room, hazard=hazard), strict=True
    ):
        assert score == pytest.approx(other, rel=1e-11)
        assert belief.keys() == eagerly.keys()
        for end, numbers in belief.items():
            assert numbers == pytest.approx(eagerly[end], rel=1e-9, abs=1e-10)
            assert counts[end] == pytest.approx(eager_counts[end], rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("threshold", [0.0, 1e-3, 1e9])
@pytest.mark.parametrize("hazard", [*HAZARDS, (0.3, 0.01, 0.1)])
def test_evidence_of_new_regimes_and_of_returns(hazard, threshold):
    """By loops over the hypotheses; the more probable kind decides which start events are about.

    A long time before an observation is no evidence of a start there.
    """
    settled = 3
    one = stream("gaussian-3")
    _, back = one.known[0]
    one = one._replace(y=np.concatenate((one.y[: settled + 1], back[: STEPS - settled - 1])))
    layout, lines, heads = began(one)
    step = compiled.kernel_of(one.case.model)
    watch = torch.tensor([[float(settled), settled, threshold]])
    decided, gaps, before = set(), {}, {}
    for t, (x, y) in enumerate(zip(one.x, one.y, strict=True)):
        elapsed = 6.0 if t == settled + 2 else 1.0
        state, prior = layout.state(lines.copy(), heads.copy()), layout.prior(lines, heads)
        inputs = inputs_of(x, y, hazard, elapsed)
        state, info = moca.step(one.case.model, state, prior, inputs)
        seen = given(x, y, watch[0].numpy(), elapsed)
        held = layout.packed(state, prior)
        numbers = readout.columns(layout, *held, info).numpy()
        table, _ = readout.table(layout, numbers, seen, inputs.hazard.numpy(), 5)
        (eagerly,) = readout.rows(table, heads[:, layout.numbers :])
        rows = Rows(layout.slots, lines, heads, layout.regimes)
        table, _ = step.advance(
            rows,
            np.zeros(1, np.int64),
            seen,
            np.array([hazard]),
            5,
        )
        (own,) = readout.rows(table, heads[:, layout.numbers :])
        for name in ("evidence", "return_evidence", "new_probability", "changed_probability"):
            assert getattr(own, name) == pytest.approx(getattr(eagerly, name), rel=1e-9, abs=1e-12)
        assert own[9:12] == pytest.approx(eagerly[9:12], rel=1e-9)

        # Odds of a change over those of one unit of time: of all starts here.
        odds, of_unit = 0.0, 0.0
        for (age, _), (probability, rate) in before.items():
            change = 1 - (1 - rate) ** elapsed
            odds += probability * change
            of_unit += probability * (1 - change) * rate / (1 - rate) / gaps[t - 1 - age]
        gaps[t] = odds / of_unit if before else 1.0

        belief, counts = believed(layout, lines, (0, 1))
        behind = heads[0, BEHIND]
        before = {}
        mass, likened, rates = np.zeros(3), np.zeros(3), np.zeros(2)
        for (age, z), (probability, _) in belief.items():
            changes, returns = counts[age, z]
            rate, now = max(hazard), hazard[min(age, len(hazard) - 1)]
            if hazard[0] == LEARNED:
                rate = now = (hazard[1] + changes) / (hazard[1] + hazard[2] + behind)
            before[age, z] = probability, now
            q = chance_of_return(changes, returns)
            if age < t - settled:
                mass[z] += probability
                likened[z] += probability / gaps[t - age]
            else:
                rates += probability / gaps[t - age] * rate * np.array([1 - q, q])
        new, back = likened[0] / rates[0], likened[1:].sum() / rates[1]
        assert own.evidence == pytest.approx(new, rel=1e-9)
        assert own.return_evidence == pytest.approx(back, rel=1e-9)
        assert own.new_probability == pytest.approx(mass[0], abs=1e-12)
        assert own.changed_probability == pytest.approx(mass.sum(), abs=1e-12)
        assert (own.returned is None) == (mass[0] >= mass[1:].max())
        decisive = new if own.returned is None else back
        assert own.reading(t).evidence == pytest.approx(decisive, rel=1e-9)
        if threshold and decisive >= threshold:
            assert own.event_run_length < t - settled
        decided.add((own.returned is None, decisive >= threshold))
        row = StreamRow(lines[0], heads[0], *[np.empty(0)] * 4)
        read = readout.of_row(layout, row, settled, np.array(hazard))
        assert read.evidence == pytest.approx(own.evidence, rel=1e-9)
        assert read.changed_probability == pytest.approx(own.changed_probability, abs=1e-12)
        assert read.map_run_length == own.map_run_length
        assert read.best_start == own.best_start
    assert {new for new, _ in decided} == {True, False}
    assert gaps[settled + 2] > 5
    raised = np.array(list(gaps.values())) > 1 + 1e-9
    assert raised.argmax() == settled + 2
    assert raised[settled + 2 :].all()  # of later starts by those before them


# --- what is stored -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*MODELS, *AVERAGES])
def test_pooled_statistics_are_those_of_all_labels(name):
    """In any order; and the log Bayes factor is the difference of log evidences."""
    one = stream(name)
    first, second = one.known
    joined = [np.concatenate(parts) for parts in zip(first, second, strict=True)]
    layout, lines, heads = began(one, (0,))
    prior = layout.columns(lines[0], [layout.width - 1])
    model = one.case.model
    both = learned(one.case, *joined)
    context = heads[:, context_place(layout.outputs) :][:, : layout.context]
    factor, pooled = model.pooled(
        learned(one.case, *first), learned(one.case, *second), prior, context
    )
    if name in AVERAGES:  # the sum is of the shares met
        for field in {"alpha", "nu"} & set(both._fields):
            assert getattr(pooled, field) == pytest.approx(getattr(both, field), rel=1e-12)
        return
    for own, truth in zip(pooled, both, strict=True):
        np.testing.assert_allclose(own, truth, rtol=1e-9, atol=1e-10)
    nothing = [part[:0] for part in second]
    truth = evidence(one, first, second) - evidence(one, nothing, second)
    assert factor == pytest.approx(truth, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", [*MODELS, *AVERAGES])
def test_a_regime_without_labels_adds_nothing(name):
    one = stream(name)
    layout, lines, heads = began(one, (0,))
    prior = layout.columns(lines[0], [layout.width - 1])
    context = heads[:, context_place(layout.outputs) :][:, : layout.context]
    known = learned(one.case, *one.known[0])
    for pair in ((known, prior), (prior, known)):
        factor, pooled = one.case.model.pooled(*pair, prior, context)
        assert factor == pytest.approx(0.0, abs=1e-10)
        for field in set(known._fields) - {"origin"}:
            own = getattr(pooled, field)
            np.testing.assert_allclose(own, getattr(known, field), rtol=1e-9, atol=1e-10)


def test_vectors_are_pooled_by_their_evidence():
    """Against the log predictive densities of the labels of one regime after those of the other."""
    rng = np.random.default_rng(6)
    d = 2
    model = Multivariate(y_dim=d)
    prior = MultivariateStats(
        rng.normal(size=(1, 1, d)),
        np.full((1, 1, 1), 0.3),
        np.full((1, 1, 1), 4.0),
        np.diag([1.5, 0.4])[None, None],
    )

    def after(stats: MultivariateStats, labels) -> tuple[MultivariateStats, float]:
        total = 0.0
        for y in labels:
            mean, kappa, nu, psi = (part[0, 0] for part in stats)
            df = nu[0] - d + 1
            shape = psi * (1 + 1 / kappa) / df
            total += multivariate_t(mean, shape, df).logpdf(y)
            error = y - mean
            psi = psi + np.outer(error, error) / (1 + 1 / kappa)
            parts = mean + error / (kappa + 1), kappa + 1, nu + 1, psi
            stats = MultivariateStats(*(part[None, None] for part in parts))
        return stats, total

    first, second = (rng.normal(size=(count, d)) * 3 for count in (6, 4))
    one, _ = after(prior, first)
    other, alone = after(prior, second)
    both, continued = after(one, second)
    factor, pooled = model.pooled(one, other, prior, np.empty((1, 0)))
    assert factor == pytest.approx(continued - alone, rel=1e-10)
    for own, truth in zip(pooled, both, strict=True):
        np.testing.assert_allclose(own, truth, rtol=1e-10)
    kept = model.tempered(both, prior, 5.0)
    assert model.count(kept, prior) == pytest.approx(5.0)
    np.testing.assert_allclose(kept.kappa, 0.5 * (both.kappa + prior.kappa))


def evidence(one: Stream, before, observations) -> float:
    """Log density of observations after others, by the reference."""
    value = 0.0
    inputs, labels = before
    for x, y in zip(*observations, strict=True):
        window = Window(inputs, labels, np.ones(len(labels)))
        value += one.case.reference.log_density(x, y, window)
        inputs = np.concatenate((inputs, x[None]))
        labels = np.concatenate((labels, y[None]))
    return value


@pytest.mark.parametrize("name", [*MODELS, *AVERAGES])
def test_tempered_statistics(name):
    """Of few labels they are those of the labels, of none left the prior's; of regressions near.

    These keep the mean, and have a covariance between both.
    """
    one = stream(name)
    layout, lines, _ = began(one, (0,))
    prior = layout.columns(lines[0], [layout.width - 1])
    known = learned(one.case, *one.known[0])
    model = one.case.model
    if isinstance(model, Regression):
        kept = model.tempered(known, prior, 1e-12)
        assert kept.mean == pytest.approx(known.mean, rel=1e-12)
        wider = FORGOTTEN * prior.cov + (1 - FORGOTTEN) * known.cov
        assert kept.cov == pytest.approx(wider, rel=1e-12, abs=1e-15)
        for field in set(known._fields) & {"alpha", "beta"}:
            assert getattr(kept, field) == pytest.approx(getattr(prior, field), rel=1e-9)
        return
    kept = model.tempered(known, prior, 1000.0)
    again = model.tempered(kept, prior, 1000.0)
    gone = model.tempered(known, prior, 1e-12)
    for field in known._fields:
        if field == "origin":
            continue
        own, twice = getattr(kept, field), getattr(again, field)
        np.testing.assert_allclose(own, twice, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(getattr(gone, field), getattr(prior, field), 1e-6, 1e-9)
        if name not in AVERAGES:
            np.testing.assert_allclose(own, getattr(known, field), rtol=1e-9, atol=1e-12)


def recurring(rng, regimes: int = 4, count: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Labels of a series that moves between a few levels, and which it was at."""
    levels = np.array([0.0, 6.0, -5.0, 12.0])[:regimes]
    order = [0]
    while len(order) < count:
        order.append(int(rng.choice([k for k in range(regimes) if k != order[-1]])))
    lengths = rng.integers(30, 70, count)
    which = np.repeat(order, lengths)
    return levels[which] + rng.normal(size=len(which)), which


def test_detector_recognises_what_returns(tmp_path):
    labels, which = recurring(np.random.default_rng(1))
    whole = Detector(regimes=8)
    answers = whole.update_many(labels.tolist())
    confirmed = [event for event in whole.events if event.state == "confirmed"]
    later = [event for event in confirmed if event.start > len(labels) // 2]
    assert len(later) >= 8
    assert sum(event.returned is not None for event in later) >= len(later) - 1
    named = np.array([answer.regime.id if answer.regime else 0 for answer in answers])
    half = len(labels) // 2
    pure = sum(
        np.bincount(which[half:][named[half:] == own]).max() for own in np.unique(named[half:])
    )
    assert pure / (len(labels) - half) > 0.9
    event = later[-1]
    assert event.returned is not None
    assert event.returned.seen >= 2
    assert event.returned.last_seen < event.start
    assert event.sentence.startswith(f"returned to regime {event.returned.id}")

    remembered = whole.regimes
    assert [regime.id for regime in remembered] == sorted({regime.id for regime in remembered})
    assert {event.returned.id for event in later if event.returned} <= {r.id for r in remembered}
    assert max(regime.probability for regime in remembered) > 0.9
    assert max(remembered, key=lambda regime: regime.probability).id == answers[-1].regime.id

    # One at a time, and stored and loaded on the way: the same to the last bit, ids as well.
    single = Detector(regimes=8)
    for at, y in enumerate(labels.tolist()):
        if at in (40, half):
            single.save(tmp_path / "half")
            single = Detector.load(tmp_path / "half")
        assert repr(single.update(y).to_dict()) == repr(answers[at].to_dict())
    assert single.events == whole.events
    assert single.regimes == remembered
    assert Detector().regimes == []


@pytest.mark.parametrize("model", ["multivariate", "joint", "poisson", "gamma", "linear"])
def test_other_models_recognise_what_returns(model, tmp_path):
    """Stored and loaded on the way, with the same answers."""
    rng = np.random.default_rng(5)
    state = np.repeat([0, 1, 0, 1, 0], 50)
    x = rng.normal(size=(len(state), 1)) if model == "linear" else None
    vectors = np.array([[0, 0], [5, -5]])[state] + rng.normal(size=(len(state), 2))
    y = {
        "multivariate": vectors,
        "joint": vectors,
        "poisson": rng.poisson(np.array([3, 60])[state]),
        "gamma": rng.gamma(4.0, np.array([1.0, 12.0])[state]),
        "linear": np.array([2.0, -2.0])[state] * (x[:, 0] if x is not None else 1)
        + 0.2 * rng.normal(size=len(state)),
    }[model]
    whole, stored = Detector(model, regimes=3), Detector(model, regimes=3)
    answers = whole.update_many(y.tolist(), None if x is None else x.tolist())
    for at, label in enumerate(y.tolist()):
        if at == 130:
            stored.save(tmp_path / "half")
            stored = Detector.load(tmp_path / "half")
        own = stored.update(label, None if x is None else x[at].tolist())
        assert repr(own.to_dict()) == repr(answers[at].to_dict())
    confirmed = [event for event in whole.events if event.state == "confirmed"]
    assert [event.returned is not None for event in confirmed] == [False, True, True, True]
    assert [event.returned.id for event in confirmed[1:]] == [1, 2, 1]


def test_memory_that_holds_nothing_changes_nothing():
    labels = np.random.default_rng(2).normal(size=300)
    with_one, without = Detector(regimes=4), Detector()
    for own, plain in zip(
        with_one.update_many(labels.tolist()), without.update_many(labels.tolist()), strict=True
    ):
        assert (own.log_score is None) == (plain.log_score is None)
        assert (own.log_score or 0.0) == pytest.approx(plain.log_score or 0.0, rel=1e-9)
        assert plain.new_probability is None
        assert "new_probability" not in plain.to_dict()


def test_least_recently_seen_goes_and_ids_are_never_reused():
    rng = np.random.default_rng(3)
    levels = [0, 8, -8, 16, -16, 24, 0]
    labels = np.concatenate([level + rng.normal(size=60) for level in levels])
    detector = Detector(regimes=2)
    detector.update_many(labels.tolist())
    slab, row = detector._all.pipeline.slab, detector._all.pipeline.series[0].row
    numbers = slab.row(row).head[slab.layout.numbers :]
    ids, seen, last_seen = numbers[REGIMES:].reshape(OF_EACH, -1)
    assert numbers[NEXT_ID] > max(ids) > 2
    assert sorted(ids) == sorted(set(ids))
    assert (seen >= 1).all()
    assert last_seen.min() > 150
    confirmed = [event for event in detector.events if event.state == "confirmed"]
    assert {event.returned for event in confirmed} == {None}


def test_model_that_recalls_nothing_refuses():
    model = case("pcoc-3").model
    with pytest.raises(UnfitSetting, match="regimes: expected 0 for a model of kind 'pcoc'"):
        check_settings(DEFAULTS._replace(regimes=3), model, Dimensions(None, None))


def test_restated_belief_is_shared_by_origins_of_a_start():
    one = stream("gaussian-3")
    layout, lines, heads = began(one)
    step = compiled.kernel_of(one.case.model)
    for x, y in zip(one.x, one.y, strict=True):
        rows = Rows(layout.slots, lines, heads, layout.regimes)
        step.advance(rows, np.zeros(1, np.int64), given(x, y), np.array([[HAZARD]]), 5)
    before = beliefs.probabilities(
        lines[:, LOG_PROB, : layout.slots], lines[:, RUN_LENGTH, : layout.slots].astype(int)
    )[0]
    assert before.run_length == list(range(STEPS))
    assert sum(before.probability) == pytest.approx(1, rel=1e-12)
    own = lines[0].copy()
    beliefs.restate(own, layout.slots, before.pairs())
    np.testing.assert_allclose(
        own[LOG_PROB, : layout.slots], lines[0, LOG_PROB, : layout.slots], atol=1e-10
    )
