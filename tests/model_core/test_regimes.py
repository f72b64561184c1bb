"""Memory of regimes: births against enumeration, and what is stored."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from model_core import Detector, compiled, readout
from model_core import filter as moca
from model_core.compiled.kernel import Kernel
from model_core.errors import BadInput
from model_core.regimes import FRESH, NEXT_ID, OF_EACH, REGIMES, RETURNS
from model_core.stream import beliefs
from model_core.table import LOG_PROB, RUN_LENGTH, SCORE, Layout, Rows
from tests.model_core.references import Window
from tests.model_core.registry import Case, case

STEPS, HAZARD, ROOM = 7, 0.15, 400
MODELS = ("gaussian-3", "exponential", "bernoulli", "categorical")
SEEN, COUNTS = (3.0, 1.0), (4.5, 1.25)  # of two stored regimes; returns and fresh


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


class Stream(NamedTuple):
    """Labels (T, d) and, for each stored regime, those it was learned from."""

    case: Case
    y: np.ndarray
    known: tuple[np.ndarray, ...]


def stream(name: str) -> Stream:
    own = case(name)
    _, y = own.draw(np.random.default_rng(5), 3 * STEPS + 4)
    return Stream(own, y[:STEPS], (y[-5:], y[-9:-5]))


def inputs_of(y: np.ndarray, hazard=(HAZARD,), changepoint=np.nan) -> moca.Inputs:
    one = torch.ones(1, dtype=torch.float64)
    labels = torch.tensor(y, dtype=torch.float64).reshape(1, -1)
    table = torch.tensor([list(hazard)], dtype=torch.float64)
    return moca.Inputs(
        None, labels, torch.tensor([True]), table, one, changepoint * one, torch.zeros_like(one)
    )


def learned(own: Case, labels: np.ndarray):
    """Statistics of a regime of these labels, arrays (1, 1, ...)."""
    prior = own.prior()
    stats = prior.stats
    phi = own.model.encode(None, prior.context)
    for y in labels:
        label = torch.tensor(y, dtype=torch.float64).reshape(1, -1)
        stats = own.model.update(stats, phi, label, torch.ones(1, 1, dtype=torch.float64))
    return type(stats)(*(value.numpy() for value in stats))


def began(stream: Stream, order=(0, 1), room: int = ROOM) -> tuple[Layout, np.ndarray, np.ndarray]:
    """A row with stored regimes, in this order of places, before its first observation."""
    layout = Layout(stream.case.model, room, regimes=len(order))
    lines, heads = layout.begin(stream.case.location[None], stream.case.scale[None])
    numbers = heads[0, layout.numbers :]
    numbers[[RETURNS, FRESH, NEXT_ID]] = *COUNTS, 9
    ids, seen, _ = numbers[REGIMES:].reshape(OF_EACH, -1)
    for place, which in enumerate(order):
        ids[place], seen[place] = which + 1, SEEN[which]
        stats = learned(stream.case, stream.known[which])
        layout.put_column(lines[0], layout.stored.start + place, stats)
    return layout, lines, heads


def eager(stream: Stream, order=(0, 1), room: int = ROOM) -> list[dict[tuple[int, int], tuple]]:
    layout, lines, heads = began(stream, order, room)
    states = []
    for y in stream.y:
        state, prior = layout.state(lines, heads), layout.prior(lines, heads)
        state, info = moca.step(stream.case.model, state, prior, inputs_of(y))
        assert bool(info.ok)
        lines, heads = (part.numpy() for part in layout.packed(state, prior))
        states.append((float(info.log_score), believed(layout, lines, order)))
    return states


def kernel(stream: Stream, order=(0, 1), room: int = ROOM) -> list[dict[tuple[int, int], tuple]]:
    layout, lines, heads = began(stream, order, room)
    step = compiled.kernel_of(stream.case.model)
    assert isinstance(step, Kernel)
    states = []
    for y in stream.y:
        given = np.concatenate(([1.0, 1.0, np.nan, 0.0, 0.0, 0.0, 0.0], np.ravel(y)))[None]
        rows = Rows(layout.slots, lines, heads, layout.regimes)
        table, _ = step.advance(rows, np.zeros(1, np.int64), given, np.array([[HAZARD]]), 5)
        assert table[0, list(readout.NUMBERS).index("ok")] == 1
        states.append((table[0, 0], believed(layout, lines, order)))
    return states


def believed(layout: Layout, lines: np.ndarray, order) -> dict[tuple[int, int], tuple]:
    """Probability and score by run length and stored regime (0: fresh)."""
    own = lines[0, :, : layout.slots]
    names = (0, *(which + 1 for which in order))
    return {
        (int(own[RUN_LENGTH, i]), names[int(own[layout.origin, i])]): (
            np.exp(own[LOG_PROB, i]), own[SCORE, i],
        )
        for i in np.flatnonzero(np.isfinite(own[LOG_PROB]))
    }  # fmt: skip


def enumerated(  # noqa: C901  # a table of everything
    stream: Stream,
) -> list[tuple[float, dict[tuple[int, int], tuple]]]:
    """The same as sums and maxima over all segmentations and origins of their segments."""
    reference = stream.case.reference
    total = sum(SEEN)
    back = (1 + COUNTS[0]) / (2 + sum(COUNTS))

    def prior(m: int, z: int) -> float:
        if m == 0:
            return 1 - back
        return 0.0 if m == z else back * SEEN[m - 1] / (total - (SEEN[z - 1] if z else 0.0))

    def said(start: int, end: int, origin: int) -> float:
        """Log likelihood of labels start..end - 1 on a segment of an origin."""
        before = stream.known[origin - 1] if origin else stream.y[:0]
        value = 0.0
        for t in range(start, end):
            past = np.concatenate((before, stream.y[start:t]))
            window = Window(np.empty((len(past), 0)), past, np.ones(len(past)))
            value += reference.log_density(np.empty(0), stream.y[t], window)
        return value

    spans = {
        (s, e, z): said(s, e, z)
        for s in range(STEPS) for e in range(s + 1, STEPS + 1) for z in range(3)
    }  # fmt: skip
    answer, before = [], 0.0
    for t in range(1, STEPS + 1):
        joint: dict[tuple[int, int], list[float]] = {}
        for cuts in product((False, True), repeat=t - 1):
            starts = [0, *(i + 1 for i, cut in enumerate(cuts) if cut)]
            for later in product(range(3), repeat=len(starts) - 1):
                origins = (0, *later)
                chances = [prior(m, z) for z, m in zip(origins, later, strict=False)]
                if 0.0 in chances:
                    continue
                value = float(np.log(chances).sum()) if chances else 0.0
                value += sum(np.log(HAZARD if cut else 1 - HAZARD) for cut in cuts)
                ends = [*starts[1:], t]
                value += sum(spans[span] for span in zip(starts, ends, origins, strict=True))
                joint.setdefault((t - 1 - starts[-1], origins[-1]), []).append(value)
        evidence = logsumexp([value for values in joint.values() for value in values])
        best = max(max(values) for values in joint.values())
        belief = {
            end: (np.exp(logsumexp(values) - evidence), max(values) - best)
            for end, values in joint.items()
        }
        answer.append((evidence - before, belief))
        before = evidence
    return answer


@pytest.mark.parametrize("step", [eager, kernel])
@pytest.mark.parametrize("name", MODELS)
def test_belief_is_a_sum_over_segmentations_and_origins(name, step):
    one = stream(name)
    for (score, belief), (truth, truths) in zip(step(one), enumerated(one), strict=True):
        assert score == pytest.approx(truth, rel=1e-12, abs=1e-12)
        assert belief.keys() == truths.keys()
        for end, (probability, path) in belief.items():
            assert probability == pytest.approx(truths[end][0], rel=1e-11, abs=1e-12)
            assert path == pytest.approx(truths[end][1], rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("name", [*MODELS, "averaged-2"])
def test_order_of_stored_regimes_changes_nothing(name):
    one = stream(name)
    for room in (ROOM, 6):
        for (score, belief), (other, swapped) in zip(
            kernel(one, (0, 1), room), kernel(one, (1, 0), room), strict=True
        ):
            assert score == pytest.approx(other, rel=1e-13)
            assert belief.keys() == swapped.keys()
            for end, numbers in belief.items():
                assert numbers == pytest.approx(swapped[end], rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("name", [*MODELS, "averaged-2"])
@pytest.mark.parametrize("room", [ROOM, 6])
def test_kernel_is_the_eager_filter(name, room):
    one = stream(name)
    for (score, belief), (other, eagerly) in zip(
        kernel(one, room=room), eager(one, room=room), strict=True
    ):
        assert score == pytest.approx(other, rel=1e-11)
        assert belief.keys() == eagerly.keys()
        for end, numbers in belief.items():
            assert numbers == pytest.approx(eagerly[end], rel=1e-9, abs=1e-10)


# --- what is stored -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*MODELS, "averaged-2"])
def test_pooled_statistics_are_those_of_all_labels(name):
    """In any order; and the log Bayes factor is the difference of log evidences."""
    one = stream(name)
    first, second = one.known
    layout, lines, _ = began(one, (0,))
    prior = layout.columns(lines[0], [layout.width - 1])
    model = one.case.model
    both = learned(one.case, np.concatenate((first, second)))
    factor, pooled = model.pooled(
        learned(one.case, first), learned(one.case, second), prior
    )  # fmt: skip
    if name.startswith("averaged"):
        # Its labels' shares of scales depend on what came before: the sum is of the shares met.
        assert pooled.alpha == pytest.approx(both.alpha, rel=1e-12)
        return
    for own, truth in zip(pooled, both, strict=True):
        np.testing.assert_allclose(own, truth, rtol=1e-10, atol=1e-10)
    assert factor == pytest.approx(
        evidence(one, first, second) - evidence(one, second[:0], second), rel=1e-9, abs=1e-9
    )


def evidence(one: Stream, before, labels) -> float:
    """Log density of labels after others, by the reference."""
    value = 0.0
    seen = before
    for y in labels:
        window = Window(np.empty((len(seen), 0)), seen, np.ones(len(seen)))
        value += one.case.reference.log_density(np.empty(0), y, window)
        seen = np.concatenate((seen, y[None]))
    return value


@pytest.mark.parametrize("name", [*MODELS, "averaged-2"])
def test_tempered_statistics(name):
    """Of few labels they are those of the labels; of none left the prior's."""
    one = stream(name)
    layout, lines, _ = began(one, (0,))
    prior = layout.columns(lines[0], [layout.width - 1])
    known = learned(one.case, one.known[0])
    model = one.case.model
    kept = model.tempered(known, prior, 1000.0)
    again = model.tempered(kept, prior, 1000.0)
    gone = model.tempered(known, prior, 1e-12)
    for field in known._fields:
        if field == "origin":
            continue
        own, twice = getattr(kept, field), getattr(again, field)
        np.testing.assert_allclose(own, twice, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(getattr(gone, field), getattr(prior, field), 1e-6, 1e-9)
        if not name.startswith("averaged"):
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
    with pytest.raises(BadInput, match="regimes: expected 0"):
        Detector("poisson", regimes=3, location=2.0)


def test_restated_belief_is_shared_by_origins_of_a_start():
    one = stream("gaussian-3")
    layout, lines, heads = began(one)
    step = compiled.kernel_of(one.case.model)
    for y in one.y:
        given = np.concatenate(([1.0, 1.0, np.nan, 0.0, 0.0, 0.0, 0.0], np.ravel(y)))[None]
        rows = Rows(layout.slots, lines, heads, layout.regimes)
        step.advance(rows, np.zeros(1, np.int64), given, np.array([[HAZARD]]), 5)
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
