"""Steps that torch compiles in a few sizes are those of the eager filter.

Without a GPU they are compiled for the CPU. That they can be traced at all shows that nothing in
them has the host look at a number, or depends on one.
"""

from __future__ import annotations

from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch

from model_core import compiled, quantiles
from model_core.errors import NotCompiled
from model_core.stream import batched, columns
from model_core.stream.columns import Columns
from model_core.stream.events import NOTHING_WATCHED
from model_core.stream.slab import Slab
from model_core.transfer import moved
from model_core.upm import conjugate
from tests.model_core.cases import series
from tests.model_core.registry import NAMES, case

ROOM, STEPS, LEVELS = 3, 5, (0.05, 0.5, 0.95)  # two of the steps prune
QUICK = ("pcoc-3", "averaged-2")
EACH = [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in NAMES]
KERNEL_OF = compiled.kernel_of
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Without kernels, and for few rows."""
    monkeypatch.setattr(compiled, "kernel_of", lambda model: None)
    monkeypatch.setattr(batched, "SIZES", (4,))
    yield
    batched._compiled.cache_clear()


@pytest.fixture
def traced(monkeypatch):
    """What was traced, as it is."""
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)


class Streams:
    """Streams of a model in a slab, and the observations that they get."""

    def __init__(self, name: str, rows: int, device: str = "cpu", regimes: int = 0, size: int = 4):
        self.case = case(name)
        self.batch = [
            series(self.case, seed, STEPS, elapsed=[1.0, 0.5, 2.0]) for seed in range(rows)
        ]
        self.slab = Slab(moved(self.case.model, device), ROOM, LEVELS, device, regimes)
        self.slab.step_rows = size
        moments = ([list(part)] * rows for part in (self.case.location, self.case.scale))
        self.rows = self.slab.begin(*moments)

    def coming(self, t: int, hazard=(0.1,)) -> Columns:
        """Some of them outliers, or without a label, or with a part of one."""
        y = np.array([own.y[t] for own in self.batch])
        y[t % len(y)] = np.nan
        if self.case.model.partial:
            y[1, 0] = np.nan
        x = np.array([own.x[t] for own in self.batch])
        elapsed, stated = (
            np.array([getattr(own, name)[t] for own in self.batch])
            for name in ("elapsed", "changepoint")
        )
        rates = np.full(len(y), 0.02)
        return Columns(y, x, elapsed, stated, rates, np.tile(hazard, (len(y), 1)), 0 * y)

    def step(self, seen: Columns, rows=None):
        rows = self.rows if rows is None else rows
        return self.slab.stepped(rows, columns.packed(self.case.model, seen, NOTHING_WATCHED))

    def walk(self, **told):
        return [self.step(self.coming(t, **told)) for t in range(STEPS)]

    def held(self) -> list[np.ndarray]:
        return [np.asarray(torch.as_tensor(part).cpu()) for part in self.slab.read(self.rows)]


def check(found, expected, tolerance=1e-12):
    np.testing.assert_allclose(found.table, expected.table, rtol=tolerance, atol=tolerance)
    own, other = found.predicted, expected.predicted
    if own.support in ("class", "binary"):
        np.testing.assert_allclose(own.numbers, other.numbers, rtol=tolerance, atol=tolerance)
        return
    for name in ("mean", "covariance", "cdf", "cdf_below"):
        pair = getattr(own, name), getattr(other, name)
        np.testing.assert_allclose(*pair, rtol=tolerance, atol=tolerance, err_msg=name)
    # Found in steps of a fixed number, so to the precision of a search.
    np.testing.assert_allclose(own.quantiles, other.quantiles, rtol=1e-5, atol=1e-5)


def compare(name: str, **told):
    here, there = Streams(name, 3, **told), Streams(name, 3, **told)
    there.slab.compile()
    for found, expected in zip(there.walk(), here.walk(), strict=True):
        assert expected.ok.all()
        check(found, expected)
    for found, expected in zip(there.held(), here.held(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", EACH)
def test_a_step_is_traced_and_is_that_of_the_filter(name):
    compare(name)


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", ["gaussian-3", "averaged-1"])
def test_so_is_one_with_a_memory_of_regimes(name):
    compare(name, regimes=2)


def test_batches_of_any_size_are_steps_of_two_that_were_compiled_once(monkeypatch):
    """Whatever fills them up, and no other row is touched."""
    monkeypatch.setattr(batched, "SIZES", (2, 4))
    graphs = []

    def compiler(graph, example):
        graphs.append(len(example[0]))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compiler))
    here, there = Streams("bernoulli", 7), Streams("bernoulli", 7)
    there.slab.compile()
    for t, rows in enumerate(([0], [1, 2], [4, 3, 6], [*range(7)], [5])):
        at = [here.rows[i] for i in rows]
        others = [row for row in here.rows if row not in at]
        before = [np.array(part) for part in there.slab.read(others)]
        seen = [streams.coming(t % STEPS).part(rows) for streams in (here, there)]
        check(there.step(seen[1], at), here.step(seen[0], at))
        for part, old in zip(there.slab.read(others), before, strict=True):
            np.testing.assert_array_equal(part, old)
    for found, expected in zip(there.held(), here.held(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert graphs == [2, 4]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # torch's own use
def test_what_the_compiler_makes_is_the_step():
    compare("gaussian-1")


@pytest.mark.usefixtures("traced")
def test_quantiles_that_fixed_steps_do_not_find_are_searched_by_the_host(monkeypatch):
    monkeypatch.setattr(quantiles, "FIXED_STEPS", 1)
    compare("gaussian-1")


@pytest.mark.usefixtures("traced")
def test_a_refused_label_leaves_its_row_as_it_was():
    streams = Streams("gaussian-1", 3)
    streams.slab.compile()
    before = streams.held()[0]
    seen = streams.coming(1)
    seen.y[0] = 1e200
    stepped = streams.step(seen)
    assert stepped.ok.tolist() == [False, True, True]
    np.testing.assert_array_equal(streams.held()[0][0], before[0])
    assert (streams.held()[0][2] != before[2]).any()


@pytest.mark.usefixtures("traced")
def test_a_longer_table_of_hazards_is_stepped_eagerly():
    here, there = Streams("bernoulli", 3), Streams("bernoulli", 3)
    there.slab.compile()
    there.slab._compiled.by_size.clear()
    told = {"hazard": (0.3, 0.1, 0.0, 0.1)}
    for found, expected in zip(there.walk(**told), here.walk(**told), strict=True):
        check(found, expected, 0.0)


class Looking(conjugate.BernoulliModel):
    """Has the host look at a number: in a trace there is none."""

    def labels(self, y):
        return y if bool((y > 0).all()) else y.clone()


@pytest.mark.parametrize("model", [Looking(), conjugate.BernoulliModel()])
def test_what_cannot_be_compiled_is_refused_and_stepped_eagerly(model, monkeypatch):
    monkeypatch.setattr(torch, "compile", mock.Mock(side_effect=RuntimeError("no compiler\nat")))
    slab = Slab(model, ROOM, LEVELS)
    with pytest.raises(NotCompiled) as refused:
        slab.compile()
    looks = isinstance(model, Looking)
    assert torch.compile.called == (str(refused.value) == "no compiler") == (not looks)
    (row,) = slab.begin([[0.5]], [[1.0]])
    seen = Streams("bernoulli", 1).coming(1)
    assert slab.stepped([row], columns.packed(model, seen)).ok.all()


@no_gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian-1", "averaged-2", "joint-2", "poisson", "fleet-2"])
def test_on_a_gpu_it_is_the_step_of_the_kernel(name, monkeypatch):
    there = Streams(name, 3, "cuda")
    there.slab.compile()
    monkeypatch.setattr(compiled, "kernel_of", KERNEL_OF)
    here = Streams(name, 3)
    assert here.slab.in_series
    for found, expected in zip(there.walk(), here.walk(), strict=True):
        check(found, expected, 1e-8)
