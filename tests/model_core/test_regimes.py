"""Memory of regimes: births against enumeration, and what is stored."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from model_core import compiled, readout
from model_core import filter as moca
from model_core.compiled.kernel import Kernel
from model_core.regimes import FRESH, NEXT_ID, OF_EACH, REGIMES, RETURNS
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
    for (score, belief), (truth, beliefs) in zip(step(one), enumerated(one), strict=True):
        assert score == pytest.approx(truth, rel=1e-12, abs=1e-12)
        assert belief.keys() == beliefs.keys()
        for end, (probability, path) in belief.items():
            assert probability == pytest.approx(beliefs[end][0], rel=1e-11, abs=1e-12)
            assert path == pytest.approx(beliefs[end][1], rel=1e-11, abs=1e-11)


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
