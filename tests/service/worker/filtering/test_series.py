"""Lists of one stream, stepped through in few calls of a kernel, beside the same one by one."""

import json
import random

import numpy as np
import pytest

from model_core import readout
from model_core.compiled import LABEL
from model_core.summary import Summary
from service.wire import Configure, Observation, Observe
from tests.service.worker.conftest import BAD, slug

GIVEN = {
    "averaged": {"location": [0.0], "scale": [1.0]},
    "gaussian": {"location": [0.0], "scale": [1.0]},
    "poisson": {"location": [4.0]},
    "categorical": {"classes": 4},
}
LENGTH = 130  # beyond two levels


@pytest.fixture
def pair(make_bench):
    """Two workers that step a stream of the same settings."""

    def pair(model, **settings):
        benches = [make_bench(db=db, partitions=1, checkpoint_every=48) for db in (0, 1)]
        for bench in benches:
            given = {"model": model, "hazard": 0.02, **GIVEN[model], **settings}
            bench.ask(Configure("a", given), status=201)
            bench.observe("a", [1.0])
            (slab,) = bench.worker.engine._slabs.values()
            assert slab.in_series
        return benches

    return pair


def series(model, length, seed):
    """Levels that change every 40 observations; missing labels, outliers, odd times."""
    rng = random.Random(seed)
    for at in range(length):
        level = at // 40 % 3
        y = {
            "poisson": float(rng.randrange(3) + 20**level),
            "categorical": float(level),
        }.get(model, rng.gauss(6.0 * level, 1.0))
        if model not in ("poisson", "categorical") and rng.random() < 0.03:
            y *= 1e4
        yield Observation(
            None if rng.random() < 0.1 else y,
            elapsed=rng.choice([None, None, None, 0.5, 3.0]),
            changepoint=0.7 if rng.random() < 0.05 else None,
        )


@pytest.mark.parametrize(
    "model", ["poisson", "averaged", pytest.param("categorical", marks=pytest.mark.slow)]
)
def test_a_list_is_its_observations_one_by_one(pair, close, model):
    by_one, in_lists = pair(model)
    coming = list(series(model, LENGTH, 3))
    assert by_one.observe("a", coming, part=1) == in_lists.observe("a", coming, part=32)
    assert by_one.records("a") == in_lists.records("a")
    events = by_one.events("a")
    assert events == in_lists.events("a")
    assert sum(event.state == "confirmed" for event in events) >= 3
    assert by_one.anomalies("a") == in_lists.anomalies("a")
    # Another process goes on from what was stored.
    in_lists.crash()
    more = list(series(model, 20, 7))
    close(in_lists.observe("a", more), by_one.observe("a", more))


class Refusing:
    """A kernel that leaves a row as it is where the label is BAD."""

    def __init__(self, kernel):
        self._kernel = kernel

    def advance(self, views, rows, inputs, hazards, window, levels, summarised, *others):
        beliefs, noise, runs = others
        refused = inputs[:, LABEL] == BAD
        ending = len(runs.quiet) > 0  # all are of one row
        table = np.zeros((len(rows), len(readout.NUMBERS) + 6))
        parts = []
        for i in range(len(rows)):  # one by one, as the kernel itself goes through them
            at = slice(i, i + 1)
            if refused[i] or (ending and i and not runs.quiet[i - 1]):
                parts.append(parts[-1] if parts else np.zeros((1, 7)))
                continue
            table[at], summary = self._kernel.advance(
                views,
                rows[at],
                inputs[at],
                hazards[at],
                window,
                levels,
                summarised,
                beliefs[at],
                noise,
                runs.part(at) if ending else runs,
            )
            parts.append(summary.numbers if summary is not None else np.zeros((1, 7)))
        return table, Summary(np.concatenate(parts), 1, "real")


@pytest.mark.parametrize("at", [0, 7, 19])
def test_what_the_kernel_refuses_ends_a_list(pair, at):
    """All before it is applied, nothing after it."""
    by_one, in_lists = pair("gaussian")
    labels = [float(i % 5) for i in range(20)]
    labels[at] = BAD
    for bench in (by_one, in_lists):
        (slab,) = bench.worker.engine._slabs.values()
        slab._kernel = Refusing(slab._kernel)
    (outcome,) = in_lists.send(Observe("a", [Observation(y) for y in labels]))
    *found, problem = [json.loads(each) for each in outcome.body]
    assert (outcome.status, slug(problem)) == (500, "numerical-fault")
    assert problem["applied"] == len(found) == at
    assert found == by_one.observe("a", labels[: len(found)], part=1)
    assert in_lists.head("a").seq == len(found) + 1
    more = [0.5, 1.5, 1.0]
    assert in_lists.observe("a", more) == by_one.observe("a", more, part=1)
    assert in_lists.records("a") == by_one.records("a")
