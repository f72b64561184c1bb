"""Lists of one stream, stepped through in few calls of a kernel, beside the same one by one."""

import contextlib
import json
import random

import pytest

pytest.importorskip("numba")

import numpy as np
import torch

from model_core import kernel, readout
from model_core.compiled import LABEL
from model_core.summary import Summary
from model_core.upm.conjugate import Gaussian
from service.wire import Configure, Observation, Observe, SetBelief, WhatIf
from service.worker.streams.slab import RECENT_RUN_LENGTHS

GIVEN = {
    "averaged": {"location": [0.0], "scale": [1.0]},
    "gaussian": {"location": [0.0], "scale": [1.0]},
    "poisson": {"location": [4.0]},
    "categorical": {"classes": 4},
}
LENGTH = 260


@pytest.fixture
def pair(make_bench):
    """Two workers with kernels that step a stream of the same settings."""

    def pair(model, **settings):
        benches = []
        for db in (0, 1):
            bench = make_bench(db=db, partitions=1, checkpoint_every=48)
            bench.worker.engine.compiles = True
            settings = {"model": model, "hazard": 0.02, **GIVEN[model], **settings}
            bench.ask(Configure("first", settings), status=201)
            bench.observe("first", [1.0])
            (slab,) = bench.worker.engine._slabs.values()
            slab._compiled.compile()  # waits for it
            assert slab.in_series
            bench.ask(Configure("a", settings), status=201)
            bench.observe("a", [1.0])
            benches.append(bench)
        return benches

    return pair


def series(model, length, rng):
    """Levels that change every 40 observations; missing labels, outliers, odd times."""
    for at in range(length):
        level = at // 40 % 3
        y = {
            "poisson": float(rng.randrange(3) + 20**level),
            "categorical": float(level),
        }.get(model, rng.gauss(6.0 * level, 1.0))
        if model not in ("poisson", "categorical") and rng.random() < 0.03:
            y *= 1e4
        elapsed = rng.choice([None, None, None, 0.5, 3.0])
        changepoint = 0.7 if rng.random() < 0.05 else None
        missing = rng.random() < 0.1
        yield Observation(None if missing else y, elapsed=elapsed, changepoint=changepoint)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", GIVEN)
def test_a_list_is_its_observations_one_by_one(pair, model):
    by_one, in_lists = pair(model)
    coming = list(series(model, LENGTH, random.Random(model)))
    assert by_one.observe("a", coming, part=1) == in_lists.observe("a", coming, part=32)
    assert by_one.records("a") == in_lists.records("a")
    events = by_one.events("a")
    assert events == in_lists.events("a")
    assert sum(event.state == "confirmed" for event in events) >= 3
    # Another process goes on from what was stored.
    in_lists.crash()
    more = list(series(model, 20, random.Random(7)))
    for one, other in zip(by_one.observe("a", more), in_lists.observe("a", more), strict=True):
        assert one["log_score"] == pytest.approx(other["log_score"], abs=1e-9)


def test_alarms_of_a_sensitivity_are_confirmed_within_a_list(pair):
    by_one, in_lists = pair("averaged", sensitivity={"false_alarms_per_1000": 1.0})
    coming = list(series("averaged", LENGTH, random.Random(3)))
    assert by_one.observe("a", coming, part=1) == in_lists.observe("a", coming, part=32)
    assert by_one.events("a") == in_lists.events("a") != []


BAD = 666.0  # a label that the kernel refuses


class Refusing:
    """A kernel that leaves a row as it is where the label is BAD."""

    ready = True

    def __init__(self, kernel):
        self._kernel = kernel

    def advance(self, views, rows, inputs, hazards, window, levels, summarised, beliefs):
        refused = inputs[:, LABEL] == BAD
        table = np.zeros((len(rows), len(readout.NUMBERS) + 6))
        parts = []
        for i in range(len(rows)):  # one by one, as the kernel itself goes through them
            at = slice(i, i + 1)
            if refused[i]:
                parts.append(parts[-1] if parts else np.zeros((1, 7)))
                continue
            table[at], summary = self._kernel.advance(
                views, rows[at], inputs[at], hazards[at], window, levels, summarised, beliefs[at]
            )
            parts.append(summary.numbers if summary is not None else np.zeros((1, 7)))
        return table, Summary(np.concatenate(parts), 1, "real")


class Fragile(Gaussian):
    """A Gaussian whose update breaks on BAD."""

    def update(self, stats, phi, y, weight):
        new = super().update(stats, phi, y, weight)
        return new._replace(mean=torch.where((y == BAD).unsqueeze(1), torch.nan, new.mean))


@pytest.mark.parametrize("at", [0, 1, 7, 19])
@pytest.mark.parametrize("broken", [False, True])
def test_what_the_kernel_refuses_eager_steps_decide(pair, at, broken):
    """Taken, the list goes on; not taken, all before it is applied, nothing after it."""
    by_one, in_lists = pair("gaussian")
    labels = [float(i % 5) for i in range(20)]
    labels[at] = BAD
    for bench in (by_one, in_lists):
        (slab,) = bench.worker.engine._slabs.values()
        slab._compiled = Refusing(slab._compiled)
        if broken:
            slab._kernel = kernel.select(Fragile(), "cpu", RECENT_RUN_LENGTHS)
    (outcome,) = in_lists.send(Observe("a", [Observation(y) for y in labels]))
    found = [json.loads(each) for each in outcome.body]
    if broken:
        *found, problem = found
        assert (outcome.status, problem["type"].rpartition("/")[2]) == (500, "numerical-fault")
        assert problem["applied"] == len(found) == at
    assert found == by_one.observe("a", labels[: len(found)], part=1)
    assert in_lists.head("a").seq == len(found) + 1
    more = [0.5, 1.5, 1.0]
    assert in_lists.observe("a", more) == by_one.observe("a", more, part=1)
    assert in_lists.records("a") == by_one.records("a")


@pytest.mark.parametrize("model", GIVEN)
def test_a_rerun_is_what_torch_makes_of_it(pair, model):
    """Also past an override of the belief, with beliefs of the last, and from the middle on."""
    _, bench = pair(model, history=100)
    coming = list(series(model, LENGTH, random.Random(model)))
    bench.observe("a", coming[:200])
    bench.ask(SetBelief("a", [(0, 0.9), (30, 0.1)]))
    bench.observe("a", coming[200:])
    settings = {"hazard": 0.05, "outlier_rate": 0.02}
    found = []
    for turned_off in (contextlib.nullcontext, kernel.eager_only):
        with turned_off():
            found.append(bench.ask(WhatIf("a", settings, series=True, beliefs=3)))
    assert found[0]["events"] != []
    close(*found)


def close(one, other):
    """Equal but for rounding, in numbers within dicts and lists."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        for pair in zip(one, other, strict=True):
            close(*pair)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-8, abs=1e-10)
    else:
        assert one == other


def test_details_are_answered_one_by_one(pair):
    by_one, in_lists = pair("gaussian")
    labels = [float(i % 3) for i in range(12)]
    wanted = {"components": True, "quantiles": [0.1, 0.9]}
    assert by_one.observe("a", labels, part=1, **wanted) == in_lists.observe("a", labels, **wanted)
    own = {"belief": True}
    assert by_one.observe("a", labels, part=1, **own) == in_lists.observe("a", labels, **own)
