"""Coarse labels: how their grid is found, and what is added to them."""

import math

import numpy as np
import pytest

from model_core import Detector
from model_core.stream.resolution import dither, renewed, resolution
from model_core.upm.builtin import BUILTIN

GAUSSIAN = BUILTIN["gaussian"].build(BUILTIN["gaussian"].example)
POISSON = BUILTIN["poisson"].build(BUILTIN["poisson"].example)


def step_of(labels, scale=1.0, model=GAUSSIAN):
    return resolution(model, [[label] for label in labels], [scale])


@pytest.mark.parametrize(
    ("labels", "step"),
    [
        ([5, 6, 4, 5, 5, math.nan], [1.0]),
        ([0.8, 0.2, 2.0, 0.8], [0.6]),
        ([1e6, 1e6 + 0.5, 1e6 + 1.5], [0.5]),
        ([5, 6.1, 4, 5, 5], None),  # on no grid of its smallest gap
        ([0, 0, 0, 7.3, 0], None),  # a spike is no grid
        ([0, 0, 1, 0, 1], [1.0]),
        ([5, 5, 5], None),
        ([], None),
    ],
)
def test_the_step_is_the_smallest_gap_if_all_labels_are_on_its_grid(labels, step):
    found = step_of(labels)
    assert found == (step if step is None else pytest.approx(step))


def test_a_fine_grid_is_none():
    labels = [5, 6, 4, 5, 5]
    assert step_of(labels, scale=4.0) == [1.0]
    assert step_of(labels, scale=4.01) is None
    assert step_of(labels, model=POISSON) is None


def test_outputs_have_steps_of_their_own():
    model = BUILTIN["joint"].build(BUILTIN["joint"].example)
    values = [[i % 3, math.sqrt(i), math.nan if i < 9 else i % 2][: model.y_dim] for i in range(20)]
    assert resolution(model, values, [1.0] * 3)[:2] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("labels", "step"),
    [
        ([5, 5, 5], [1.0]),  # few of them need not show it
        ([5, math.nan, 7, 9], [1.0]),
        ([5, 5.5, 6], [0.5]),
        ([5, 5.1, 6.3], None),
    ],
)
def test_a_known_grid_counts_while_labels_are_on_it(labels, step):
    y = np.array(labels, dtype=float)[:, None]
    assert renewed(GAUSSIAN, y, [1.0], [1.0]) == step


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_what_is_added_fills_a_step_evenly_and_outputs_do_not_move_together(outputs):
    added = dither(np.arange(400.0), outputs)
    assert added.shape == (400, outputs)
    for own in added.T:
        counts, _ = np.histogram(own, 20, (-0.5, 0.5))
        assert abs(counts - 20).max() <= 4
    assert np.abs(np.corrcoef(added.T) - np.eye(outputs)).max() < 0.05
    # Of one output it is the fractional part of multiples of the golden section.
    assert dither(np.array([0.0]), 1)[0, 0] == pytest.approx((math.sqrt(5) - 1) / 2 - 0.5)


def confirmed(y):
    detector = Detector()
    detector.update_many(y.tolist())
    return sum(event.state == "confirmed" for event in detector.events)


def test_whole_numbers_of_half_a_one_raise_few_alarms_and_their_changes_are_found():
    quiet = shifted = 0
    for seed in range(6):
        y = np.random.default_rng(seed).normal(5.0, 0.5, 800)
        quiet += confirmed(y.round())
        y[400:] += 1.5
        shifted += confirmed(y.round()) > 0
    assert quiet <= 2  # 8 without what is added
    assert shifted == 6


def test_a_grid_that_the_warm_up_did_not_show_is_found_and_one_that_is_left_is_forgotten():
    rng = np.random.default_rng(4)
    rare = Detector()
    rare.update_many([0.0] * 25 + (rng.random(80) < 0.2).astype(float).tolist())
    assert rare._all.pipeline.series[0].resolution == [1.0]
    left = Detector()
    answers = left.update_many(rng.normal(5.0, 0.5, 40).round().tolist())
    assert left._all.pipeline.series[0].resolution == [1.0]
    answers = left.update_many(rng.normal(5.0, 0.02, 120).tolist())
    assert left._all.pipeline.series[0].resolution is None
    low, high = answers[-1].predictive.interval
    assert high - low < 0.2


def test_a_coarse_series_goes_on_from_a_file_and_in_one_call_as_one_by_one(tmp_path):
    y = np.random.default_rng(3).normal(5.0, 0.6, 300).round().tolist()
    whole = Detector()
    expected = [answer.to_dict() for answer in whole.update_many(y)]
    one = Detector()
    answers = [one.update(label) for label in y[:150]]
    one.save(tmp_path / "one")
    again = Detector.load(tmp_path / "one")
    answers += [again.update(label) for label in y[150:]]
    assert [answer.to_dict() for answer in answers] == expected
