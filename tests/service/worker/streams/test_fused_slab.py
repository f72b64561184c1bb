"""A slab with a fused kernel, run by Triton's interpreter, beside one that steps eagerly."""

import os

import numpy as np
import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is loaded
pytest.importorskip("triton", reason="no Triton here: pip install -e '.[triton]', on Linux")

from model_core import fused
from model_core.upm import untrained
from model_core.upm.builtin import Options, build
from service.wire import Record
from service.worker.streams.answers import Place, Summarised
from service.worker.streams.slab import Slab

# The interpreter computes both sides of a choice by numpy, which warns of what is not finite.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ROWS = 4
MODELS = {
    "gaussian": build("gaussian", Options()),
    "alpaca": untrained.alpaca(3, 1, widths=(), lags=1),
}


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def slab_of(fuses, name="gaussian"):
    slab = Slab(MODELS[name], 5, "cpu", chunk_bytes=1)
    if fuses:
        slab._compiled = fused.kernel_of(slab.model, 5, "cpu")
        slab._compiled.compile()
    return slab, slab.begin([[2.0]] * ROWS, [[1.5]] * ROWS)


def records(rng, seq, x=None):
    labels = [*rng.normal(2.0, 3.0, ROWS - 1), None]
    return [Record(seq, y, x, None, 1.0, None, 0.01, 0.01) for y in labels]


@pytest.mark.parametrize("name", ["gaussian", pytest.param("alpaca", marks=pytest.mark.slow)])
def test_it_steps_as_the_eager_one(name):
    (eager, rows), (own, places) = slab_of(False, name), slab_of(True, name)
    rng = np.random.default_rng(2)
    for seq in range(4):
        told = records(rng, seq, [0.5 * seq] if name == "alpaca" else None)
        if seq == 3:
            told[1].y = 1e200
        one, other = (
            slab.step(at, told, [0] * ROWS) for slab, at in ((eager, rows), (own, places))
        )
        for mine, expected in zip(other.readouts, one.readouts, strict=True):
            assert mine.ok == expected.ok
            if mine.ok:
                same = {"rel": 1e-10, "abs": 1e-11, "nan_ok": True}
                assert mine.log_score == pytest.approx(expected.log_score, **same)
                assert mine.mean_run_length == pytest.approx(expected.mean_run_length, **same)
                assert mine.totals == pytest.approx(expected.totals, **same)
    kinds = [type(place) for place in other.places]
    assert kinds == [Summarised, Place, Summarised, Summarised]
    states = zip(own.states(places), eager.states(rows), strict=True)
    for mine, expected in states:
        alive = torch.isfinite(expected.belief.log_prob)
        assert mine.seq.tolist() == expected.seq.tolist()
        torch.testing.assert_close(mine.stats.mean[alive], expected.stats.mean[alive])


def test_a_series_is_its_steps_one_by_one():
    (eager, rows), (own, places) = slab_of(False), slab_of(True)
    assert own.in_series
    rng = np.random.default_rng(3)
    told = [records(rng, seq)[0] for seq in range(5)]
    found = own.series(places[0], told, 0, 0.1).readouts
    expected = [eager.step(rows[:1], [each], [0], [0.1]).readouts[0] for each in told]
    assert [each.log_score for each in found] == pytest.approx([e.log_score for e in expected])
