"""Scales that are taken anew: labels that are constant, at rest, or on another scale later."""

import numpy as np
import pytest

from model_core import Detector
from model_core.stream import seasons

OUTPUTS = 6


def vector(seed, n=300):
    return np.random.default_rng(seed).standard_normal((n, OUTPUTS))


def changes(y, **settings):
    detector = Detector(model="joint", **settings)
    detector.update_many(y.tolist())
    return detector, [event for event in detector.events if event.state == "confirmed"]


def odd(kind, n=300):
    rng = np.random.default_rng(9)
    if kind == "constant":
        return np.full(n, 7.0)
    if kind == "zero":
        return np.zeros(n)
    if kind == "rare":
        return (rng.random(n) < 0.01).astype(float)
    rare = rng.random(n) < 0.03
    return np.where(rare, rng.gamma(2, 50, n), 0.0)


@pytest.mark.parametrize("kind", ["constant", "zero", "rare", "spikes"])
def test_an_output_that_hardly_ever_moves_hides_no_change_of_another(kind):
    for seed in range(4):
        y = vector(seed)
        y[200:, 1] += 2.5
        y[:, -1] = odd(kind)
        _, found = changes(y)
        near = [event for event in found if abs(event.start - 200) <= 5]
        assert near
        assert near[0].confirmed_at < 230
        assert len(found) <= 2


def test_an_output_that_dies_and_comes_back_leaves_each_change_its_event():
    """The filter begins anew twice, once just where a regime began."""
    for seed in range(3):
        y = vector(seed, 900)[:, :4]
        y[300:700, 2] = y[300, 2]
        y[600:, 0] += 3.0
        detector, found = changes(y)
        true = [pytest.approx(start, abs=2) for start in (300, 600, 700)]
        assert [event.start for event in found][:3] == true
        assert [segment.start for segment in detector.segments()][1:4] == true


@pytest.mark.parametrize(
    ("by", "sentence"),
    [
        (np.full(100, 2.0), "output 4: mean rose"),
        (np.full(100, 0.001), "output 4: mean rose"),
        (np.random.default_rng(3).standard_normal(100), "output 4: "),
    ],
    ids=["level", "little", "noise"],
)
def test_the_first_move_of_a_constant_output_is_a_change_that_names_it(by, sentence):
    y = vector(1)
    y[:, 3] = 7.0
    y[200:, 3] += by
    _, found = changes(y)
    assert [event.start for event in found] == [pytest.approx(200, abs=2)]
    assert found[0].confirmed_at < 220
    assert found[0].explanation.text.startswith(sentence)


def test_one_error_code_of_a_constant_output_is_no_change():
    y = vector(2)
    y[:, 3] = 7.0
    y[200, 3] = -9999.0
    detector, found = changes(y)
    assert not found
    assert detector._all.pipeline.series[0].scale[3] > 100


@pytest.mark.parametrize("chosen", [slice(None), slice(2)], ids=["all", "one"])
def test_outputs_that_lay_at_rest_have_a_scale_of_their_own_life(chosen):
    for seed in range(4):
        y = vector(seed)
        y[:60, chosen] /= 1000
        y[200:, 1] += 4
        detector, found = changes(y)
        assert found[0].start == 60
        assert [event.start for event in found if event.start > 70] == [pytest.approx(200, abs=5)]
        scale = detector._all.pipeline.series[0].scale
        assert max(scale) < 3
        assert min(scale) > 0.3


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("louder", [30, 100])
def test_a_loud_warm_up_hides_no_later_change(louder, outputs):
    for seed in range(3):
        y = vector(seed, 400)[:, :outputs]
        y[:20] *= louder
        y[300:, 0] += 2.5
        detector = Detector()
        detector.update_many(y.tolist() if outputs > 1 else y[:, 0].tolist())
        assert max(detector._all.pipeline.series[0].scale) < 3
        late = [event.start for event in detector.events if event.start > 100]
        assert late == [pytest.approx(300, abs=5)]


@pytest.mark.parametrize("outputs", [1, 4])
def test_levels_that_return_keep_the_scale_though_each_is_calm(outputs):
    """It holds what is between regimes, too."""
    rng = np.random.default_rng(3)
    y = 0.1 * vector(3, 800)[:, :outputs]
    y += 5.0 * np.repeat(np.arange(200) % 2, rng.geometric(1 / 12, 200))[:800, None]
    labels = y.tolist() if outputs > 1 else y[:, 0].tolist()
    detector = Detector(seasonal=False)
    detector.update_many(labels[:30])
    first = detector._all.pipeline.series[0].scale
    assert min(first) > 1
    detector.update_many(labels[30:])
    assert detector._all.pipeline.series[0].scale == first


def mostly_zero(rng, n):
    return np.where(rng.random(n) > 0.08, 0.0, rng.normal(size=n))


def bursts(rng, n):
    return rng.normal(size=n) * np.where(np.arange(n) % 150 < 14, 1000.0, 1.0)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("labels", [mostly_zero, bursts])
def test_a_scale_is_not_taken_anew_again_and_again(monkeypatch, labels, outputs):
    begun = []
    begin_anew = seasons.begin_anew
    monkeypatch.setattr(
        seasons, "begin_anew", lambda *own: begun.append(own[1].state.seq) or begin_anew(*own)
    )
    y = vector(4, 3000)[:, :2]
    y[:, 0] = labels(np.random.default_rng(4), 3000)
    Detector(seasonal=False).update_many(y.tolist() if outputs > 1 else y[:, 0].tolist())
    assert len(begun) <= 2


def test_a_stated_scale_stays():
    y = vector(0)
    y[:, 3] = 0.0
    y[100:, 3] = 1000.0
    detector, _ = changes(y, location=[0.0] * OUTPUTS, scale=[1.0] * OUTPUTS)
    assert detector._all.pipeline.series[0].scale == [1.0] * OUTPUTS


def test_an_output_that_stands_still_again_counts_for_nothing_again():
    y = vector(4, 800)
    y[:, 3] = 7.0
    y[60, 3] = -9999.0
    y[500:, 1] += 2.5
    detector, found = changes(y)
    assert detector._all.pipeline.series[0].scale[3] == pytest.approx(0.07)
    assert [event.start for event in found] == [pytest.approx(500, abs=5)]


def test_one_by_one_it_is_the_same():
    y = vector(5, 260)
    y[:, 3] = 7.0
    y[130:, 3] = np.random.default_rng(0).standard_normal(130)
    y[:60, 0] /= 1000
    whole, _ = changes(y)
    single = Detector(model="joint")
    for label in y.tolist():
        single.update(label)
    one, other = (each._all.pipeline.series[0] for each in (whole, single))
    assert one.scale == other.scale
    assert one.resolution == other.resolution
    assert [event.id for event in whole.events] == [event.id for event in single.events]
    assert whole.last.log_score == single.last.log_score
