"""Scores of changes on small series."""

import math

import numpy as np
import pytest

from model_core.events import Event
from training.evaluation.online import Followed, Settings
from training.evaluation.quality import changes
from training.evaluation.quality.changes import Sizes, f1
from training.evaluation.quality.families import FAMILIES, Family


def test_f1_by_hand():
    assert f1([10, 50], [12, 80], 5) == pytest.approx(0.5)
    assert f1([10, 50], [], 5) == 0.0
    assert f1([10, 50], [9, 11, 49], 5) == pytest.approx(4 / 5)
    assert f1([], [], 5) == 1.0


def test_alarms_are_false_on_quiet_series_and_delays_count_the_first(monkeypatch):
    monkeypatch.setattr(changes, "FAMILIES", (Family("zero", lambda rng, n: np.zeros(n)),))
    sizes = Sizes(4, 500, 3, 30, 20, (1.0, 5.0))

    def watch(y):
        # One alarm in each quiet series; of shifts only the large one is found, at once.
        quiet = y.shape[1] == sizes.quiet_length
        return {"tests": [[7] if quiet else [10, *np.flatnonzero(one > 4)[:1]] for one in y]}

    (row,) = changes.simulate([watch], 0, sizes, lambda: None)
    assert (row.family, row.method) == ("zero", "tests")
    assert row.false.mean == pytest.approx(2.0)
    assert row.found == (0.0, 1.0)
    assert row.delay == (math.inf, 1.0)


def test_a_relocated_event_counts_again_after_its_confirmation():
    one = Event(1, "confirmed", 28, 30)
    events = [
        (30, one._replace(state="suspected")), (40, one), (45, one._replace(start=26)),
        (90, one._replace(start=75)), (91, Event(2, "withdrawn", 80, 85)),
    ]  # fmt: skip
    assert changes.confirmations(Followed(events, [])) == [40, 90]


def test_a_model_finds_large_shifts_in_normal_series(monkeypatch):
    from model_core.upm.conjugate import Gaussian

    monkeypatch.setattr(changes, "FAMILIES", FAMILIES[:1])
    watch = changes.watch_model("gaussian", Gaussian(), Settings())
    confirmed, crossed = changes.simulate(
        [watch], 0, Sizes(3, 300, 5, 60, 50, (5.0,)), lambda: None
    )
    assert (confirmed.method, crossed.method) == ("gaussian, confirmed", "gaussian, changed > .9")
    assert confirmed.found == crossed.found == (1.0,)
    assert crossed.delay[0] <= 4
    # From .9 to .99 it takes one observation of a large shift, or none.
    assert crossed.delay[0] <= confirmed.delay[0] <= crossed.delay[0] + 1
    assert confirmed.false.mean <= 3.0
