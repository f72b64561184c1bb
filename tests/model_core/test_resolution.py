"""Coarse labels: how their grid is found, and what is added to them."""

import itertools
import math

import numpy as np
import pytest

from model_core import Detector
from model_core.errors import BadState
from model_core.stream.resolution import (
    dither,
    held_at_start,
    hold,
    renewed,
    repeats,
    resolution,
    undecided,
    valid,
)
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
    assert found == (step if step is None else pytest.approx([*step, 0.0]))


def brute_force_step(labels):
    there = np.array([label for label in labels if label == label])
    values, counts = np.unique(there, return_counts=True)
    if len(values) < 2 or (len(values) == 2 and counts.min() == 1):
        return None
    step = np.diff(values).min()
    steps = (there - there[0]) / step
    return [step, 0.0] if step >= 0.25 and np.abs(steps - np.round(steps)).max() <= 1e-6 else None


def brute_force_hold(labels):
    """As of labels that are on no grid."""
    levels = [[*same] for _, same in itertools.groupby(x for x in labels if x == x)]
    lengths = [len(level) for level in levels]
    came_again = [level[0] for level in levels if len(level) > 1]
    if len(levels) <= 4 or not 2 <= np.median(lengths) <= 10:
        return 0.0
    if len(set(came_again)) < max(4, len(came_again) / 4):
        return 0.0
    return 3 * np.quantile(lengths, 0.9) - 1


def test_steps_and_holds_of_any_labels_are_those_by_brute_force():
    rng = np.random.default_rng(1)
    held = stepped = 0
    for _ in range(400):
        different = rng.integers(1, 12)
        values = rng.integers(0, 9, different) if rng.random() < 0.5 else rng.normal(size=different)
        times = rng.integers(1, rng.integers(2, 5), different)
        labels = np.repeat(values * 1.0, times)
        labels[rng.random(len(labels)) < 0.1] = math.nan
        step = step_of(labels.tolist())
        assert step == brute_force_step(labels)
        stepped += step is not None
        if values.dtype == float:
            assert hold(GAUSSIAN, labels[:, None]) == brute_force_hold(labels.tolist())
            held += brute_force_hold(labels.tolist()) > 0
    assert min(held, stepped) > 20


def test_a_fine_grid_is_none():
    labels = [5, 6, 4, 5, 5]
    assert step_of(labels, scale=4.0) == [1.0, 0.0]
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
    assert renewed(GAUSSIAN, y, [1.0], [1.0, 0.0]) == (step and [*step, 0.0])


def test_what_is_added_fills_a_step_evenly():
    (added,) = dither(np.arange(400.0), 1).T
    counts, _ = np.histogram(added, 20, (-0.5, 0.5))
    assert abs(counts - 20).max() <= 4
    # Of one output it is the fractional part of multiples of the golden section.
    assert dither(np.array([0.0]), 1)[0, 0] == pytest.approx((math.sqrt(5) - 1) / 2 - 0.5)


@pytest.mark.parametrize("outputs", [2, 3, 8, 32])
@pytest.mark.parametrize("first", [0, 2**20 - 2000, 10**12])
def test_what_is_added_to_outputs_moves_neither_with_the_others_nor_with_the_label_before(
    outputs, first
):
    added = dither(first + np.arange(4000.0), outputs)
    assert added.shape == (4000, outputs)
    for own in added.T:
        counts, _ = np.histogram(own, 20, (-0.5, 0.5))
        assert abs(counts - 200).max() <= 70
        assert abs(np.corrcoef(own[1:], own[:-1])[0, 1]) < 0.08
    assert np.abs(np.corrcoef(added.T) - np.eye(outputs)).max() < 0.08


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
    assert rare._all.pipeline.series[0].resolution == [1.0, 0.0]
    left = Detector()
    answers = left.update_many(rng.normal(5.0, 0.5, 40).round().tolist())
    assert left._all.pipeline.series[0].resolution == [1.0, 0.0]
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


# --- held labels ----------------------------------------------------------------------------------

LIVELY = np.random.default_rng(7).normal(size=60)


def most_of(labels, model=GAUSSIAN):
    y = np.array(labels, dtype=float)
    return hold(model, y if y.ndim == 2 else y[:, None])


@pytest.mark.parametrize(
    ("labels", "most"),
    [
        (np.repeat(LIVELY, 2), 5.0),
        (np.repeat(LIVELY[:20], 5), 14.0),
        (np.repeat(LIVELY[:6], 10), 29.0),
        (np.repeat(LIVELY[:5], 3), 8.0),
        (np.repeat(LIVELY[:4], 3), 0.0),  # too few values to say so
        (np.repeat(LIVELY[:8], 13), 0.0),  # levels, which are regimes
        (LIVELY, 0.0),
        (np.where(np.arange(60) % 6 < 4, 0.0, LIVELY), 0.0),  # zeros between demands
        (np.minimum(LIVELY, -0.5), 0.0),  # a sensor at its end
        (np.repeat(np.arange(20.0), 5), 0.0),  # a slow counter
        (np.round(20 + 0.02 * np.cumsum(LIVELY), 1), 0.0),  # a slow sensor of few digits
        (np.repeat(np.round(LIVELY, 1), 4), 11.0),  # few digits, yet far more than the values need
        (np.repeat([5e-324, *LIVELY[:8], 0.0], 5), 14.0),  # of smaller steps than can be counted
        (np.round(2 * LIVELY), 0.0),
        (np.repeat([0.0, 50.0, 100.0] * 8, 5), 0.0),  # states that come again
        ([], 0.0),
    ],
)
def test_labels_are_held_where_many_values_come_again_at_once(labels, most):
    assert most_of(labels) == most


def test_counts_are_never_held_and_vectors_are_where_all_outputs_come_again():
    assert most_of(np.repeat(np.arange(20.0) ** 2, 5), POISSON) == 0.0
    pairs = np.stack([LIVELY, LIVELY[::-1]], 1)
    assert most_of(np.repeat(pairs, 4, 0)) == 11.0
    one = np.stack([np.repeat(LIVELY, 4), np.random.default_rng(0).normal(size=240)], 1)
    assert most_of(one) == 0.0


def test_a_label_that_comes_again_is_missing_until_it_is_held_for_too_long():
    state = held_at_start(1)
    y = np.array([3.0, 3.0, math.nan, 3.0, 3.0, 4.0, 4.0, 3.0])[:, None]
    assert repeats(y[:3], state, 2.0) == [False, True, False]
    assert repeats(y[3:], state, 2.0) == [True, False, False, True, False]
    assert valid(state, 8.0)
    for damaged in ([math.nan, 3.0], [0.0, math.inf], [0.5, 3.0], [-2.0, 3.0], [9.0, 3.0]):
        assert not valid(np.array(damaged), 8.0)


@pytest.mark.parametrize(
    ("counts", "waits"),
    [([10, 10], True), ([3, 2, 1], True), ([20], False), ([10, 1, 5], False), ([13, 4], False)],
)
def test_a_warm_up_waits_for_what_may_be_held(counts, waits):
    assert undecided(GAUSSIAN, np.repeat(LIVELY[: len(counts)], counts)[:, None]) == waits
    assert not undecided(GAUSSIAN, np.array([[1.0], [1.0], [2.0], [2.0], [1.0], [1.0]]))


def test_a_warm_up_counts_values_that_are_held_once():
    detector = Detector(warmup=20)
    answers = detector.update_many(np.repeat(LIVELY, 5).tolist())
    assert [answer.warming_up for answer in answers].index(False) == 96  # at the 20th update


def test_a_known_hold_counts_while_labels_are_held_or_too_few_to_say():
    held = [0.0, 14.0]
    assert renewed(GAUSSIAN, np.repeat(LIVELY[:20], 6)[:, None], [1.0], held) == held
    assert renewed(GAUSSIAN, np.repeat(LIVELY[:9], 10)[:, None], [1.0], held) == [0.0, 29.0]
    assert renewed(GAUSSIAN, np.full((200, 1), 3.0), [1.0], held) == held
    assert renewed(GAUSSIAN, LIVELY[:, None], [1.0], held) is None


@pytest.mark.parametrize("times", [2, 5, 10])
def test_held_values_raise_few_alarms_and_their_changes_are_found(times):
    quiet = 0
    covered = []
    for seed in range(4):
        updates = np.random.default_rng(seed).normal(size=120)
        y = np.repeat(updates, times)
        detector = Detector()
        answers = detector.update_many(y.tolist())
        quiet += sum(event.state == "confirmed" for event in detector.events)
        for label, answer in itertools.islice(zip(y, answers, strict=True), 40 * times, None):
            low, high = answer.predictive.interval
            covered.append(low <= label <= high)
        updates[80:] += 4.0
        shifted = Detector()
        shifted.update_many(np.repeat(updates, times).tolist())
        (event,) = (event for event in shifted.events if event.state == "confirmed")
        assert abs(event.start - 80 * times) <= 2 * times
        assert event.confirmed_at - 80 * times <= 4 * times
    assert quiet <= 1
    assert 0.86 < np.mean(covered) < 0.97


def test_a_sensor_that_sticks_is_a_change_and_a_repeat_has_no_score():
    y = np.append(np.repeat(LIVELY[:40], 3), np.full(40, LIVELY[39]))
    detector = Detector()
    answers = detector.update_many(y.tolist())
    scored = [answer.log_score is not None for answer in answers[90:129]]
    assert scored == [True, False, False] * 10 + [False] * 6 + [True] * 3
    assert all(answer.anomaly is None for answer in answers[91:93])
    (event,) = detector.events
    assert event.state == "confirmed"
    assert 117 <= event.start <= 130


def test_a_held_series_goes_on_from_a_file_and_in_one_call_as_one_by_one(tmp_path):
    y = np.repeat(LIVELY, 4).tolist()
    whole = Detector()
    expected = [answer.to_dict() for answer in whole.update_many(y)]
    for at in (101, 102, 103, 104):
        one = Detector()
        answers = [one.update(label) for label in y[:at]]
        one.save(tmp_path / "one")
        again = Detector.load(tmp_path / "one")
        answers += [again.update(label) for label in y[at:]]
        assert [answer.to_dict() for answer in answers] == expected
    slab = again._all.pipeline.slab
    arrays = slab.read([0])
    arrays[4][0, 0] = 1e6  # times that a label came again, of 240
    slab.write([0], arrays)
    again.save(tmp_path / "damaged")
    with pytest.raises(BadState, match="repeated labels"):
        Detector.load(tmp_path / "damaged")
