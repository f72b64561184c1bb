"""Curves of false alarms by threshold: what is simulated, what is counted, what is read off."""

import itertools
import json
import math

import pytest
import torch

from model_core import belief as beliefs
from model_core import filter as moca
from model_core import warmup
from model_core.belief import Belief
from model_core.errors import CannotSimulate, OutOfRange
from model_core.events import Reading, Track, track
from model_core.sensitivity import Curve, Delay, Plan, Point, calibrate, choose, read
from model_core.sensitivity import curve as curves
from model_core.sensitivity.alarms import Streams, _inputs, watch
from model_core.sensitivity.curve import log_odds, probability_of
from model_core.sensitivity.regimes import Drawn, draw, shifted, windows
from model_core.upm.builtin import Options, build
from service.models import sensitivity_curves
from service.models.catalogue import BUILT_IN
from tests.model_core.learned_cases import lstm_case, pcoc_case
from tests.model_core.regression_cases import alpaca_case

SMALL = Plan(10_000, length=250, shifted=16)


def drawn(model, series, steps, seed=0):
    return draw(model, series, steps, torch.Generator().manual_seed(seed))


# --- the rule -----------------------------------------------------------------------------------


def readings(changed, start=5):
    return [
        Reading(10 + i, None, start, 0.5, 0, None, None, mass) for i, mass in enumerate(changed)
    ]


def states(changed, *rule):
    state, found = Track(), []
    for reading in readings(changed):
        state, moved = track(state, reading, *rule)
        found.append([event.state for event in moved])
    return found


def test_a_threshold_is_waited_for_and_confirms_at_once():
    assert states([0.7, 0.8, 0.9, 0.95], 0, 0.9) == [["suspected"], [], ["confirmed"], []]
    assert states([0.9], 0, 0.9) == [["suspected", "confirmed"]]


def test_without_one_time_alone_confirms():
    assert states([0.1] * 4, 2) == [["suspected"], [], ["confirmed"], []]
    assert states([0.1] * 4, 2, 0.0) == states([0.1] * 4, 2)


def test_both_must_be_so():
    assert states([0.9, 0.9, 0.1, 0.9], 2, 0.5) == [["suspected"], [], [], ["confirmed"]]


def test_below_one_half_an_event_is_of_the_likeliest_later_start():
    probability = torch.tensor([[0.6, 0.1, 0.25, 0.05]], dtype=torch.float64)
    lengths = torch.tensor([[9, 3, 2, 0]])
    belief = Belief(probability.log(), lengths, probability.log(), lengths)
    below = torch.tensor([9])

    def asked(threshold):
        mass, slot = beliefs.suspected(belief, below, torch.tensor([threshold]))
        assert mass.item() == pytest.approx(0.4)
        return slot.item()

    assert [asked(each) for each in (0.0, 0.3, 0.39, 0.41, 0.99)] == [0, 2, 2, 0, 0]


# --- what is simulated --------------------------------------------------------------------------


def test_a_regime_is_labels_around_one_mean():
    found = drawn(build("gaussian", Options()), 400, 300)
    means, within = found.y.mean(1), found.y.var(1)
    first, last = found.y[:, :150].mean(1), found.y[:, 150:].mean(1)
    # The halves differ by noise alone, and series by what the prior says: kappa is 0.3.
    noise = ((first - last).square() / (within * 2 / 150)).mean().item()
    assert noise == pytest.approx(1, abs=0.25)
    assert (means.square() / (within / 0.3)).median().item() == pytest.approx(0.45, abs=0.15)
    assert within.median().item() == pytest.approx(1 / 1.678, abs=0.12)  # of an IG(2, 1)
    at_end = found.deviation[:, -1] / within.sqrt()
    assert at_end.median().item() == pytest.approx(1, abs=0.02)


def test_series_that_run_away_are_drawn_anew():
    y = drawn(build("autoregressive", Options()), 64, 400).y
    spread = y[:, :50].std(1, keepdim=True)
    assert len(y) == 64
    assert ((y - y[:, :50].mean(1, keepdim=True)).abs() <= 100 * spread).all()


@pytest.mark.parametrize("name", ["gaussian", "poisson", "exponential"])
def test_a_shift_moves_the_mean_by_deviations(name):
    model = build(name, Options())
    quiet = drawn(model, 500, 120)
    moved = shifted(quiet, model.label, 60, 2.0, torch.Generator().manual_seed(3))
    assert torch.equal(moved.y[:, :60], quiet.y[:, :60])
    rise = (moved.y - quiet.y)[:, 60:] / quiet.deviation[:, 60:]
    assert rise.mean().item() == pytest.approx(2, abs=0.15)
    if name == "poisson":
        assert torch.equal(moved.y, moved.y.round())
    if name == "exponential":
        assert (moved.y >= 0).all()


def test_inputs_of_ones_own_are_windows():
    x = torch.arange(12.0).reshape(2, 6, 1)
    found = windows(x)(50, 9, torch.Generator().manual_seed(0))
    assert found.shape == (50, 9, 1)
    for row in found[..., 0]:
        assert row[:6].tolist() in x[..., 0].tolist()
        assert row[6:].tolist() in x[:, :3, 0].tolist()


def test_a_model_that_explains_its_inputs_is_refused():
    with pytest.raises(CannotSimulate, match="kind 'pcoc': its regimes depend on the inputs"):
        calibrate(pcoc_case().model, SMALL)


@pytest.mark.parametrize("case", [alpaca_case, lstm_case])
def test_trained_kinds_can_be_drawn_from(case):
    model = case(y_dim=2).model
    found = drawn(model, 4, 60)
    assert torch.isfinite(found.y).all()
    assert found.x is None or found.x.shape == (4, 60, model.x_dim)


# --- what is counted ----------------------------------------------------------------------------


def alarms(model, found, row, threshold):
    """One series, one threshold, and the filter by itself."""
    rows = found.y[row, :20].tolist()
    place = [torch.tensor([each], dtype=torch.float64) for each in warmup.estimate(rows, model)]
    prior = moca.make_prior(model, *place)
    one = Drawn(None, *(each[row : row + 1] for each in found[1:]))
    state, events, when = moca.init(prior, 50), Track(), []
    for t in range(found.y.shape[1]):
        state, _ = moca.step(model, state, prior, _inputs(model, one, t, Streams()))
        p, starts = state.belief.log_prob[0].exp(), t - state.belief.run_length[0]
        later = starts > events.confirmed_start
        mass = float(p[later].sum())
        high = mass >= threshold
        slot = int((p * later if high else p).argmax())
        previous = int(state.belief.previous_start[0, slot])
        reading = Reading(t, None, int(starts[slot]), float(p[slot]), previous, None, None, mass)
        events, moved = track(events, reading, 0, threshold)
        when += [(t, each.id, each.start) for each in moved if each.confirmed_at == t]
    first: list[int] = []
    ids = set()
    for t, event, start in when:
        if event not in ids or start > first[-1]:
            first.append(t)
        ids.add(event)
    return first


def test_alarms_are_those_of_the_filter_and_the_events():
    model = build("gaussian", Options())
    quiet = drawn(model, 6, 160)
    moved = shifted(quiet, "real", 80, 2.0, torch.Generator().manual_seed(1))
    thresholds = (0.2, 0.6, 0.9, 0.999)
    found = watch(model, moved, Streams(), thresholds)
    for i, row in itertools.product(range(4), range(6)):
        assert found[i][row] == alarms(model, moved, row, thresholds[i]), (i, row)
    assert [sum(map(len, each)) for each in found] == sorted(
        (sum(map(len, each)) for each in found), reverse=True
    )


def test_a_seed_makes_the_same_curves():
    model = build("poisson", Options())
    done = []
    first = calibrate(model, SMALL, tick=done.append)
    assert first == calibrate(model, SMALL)
    assert calibrate(model, SMALL._replace(seed=1))["curves"] != first["curves"]
    assert json.loads(json.dumps(first)) == first
    assert sum(done) == SMALL.amount(model)


# --- what is read off ---------------------------------------------------------------------------


def test_rates_fall_and_lie_in_their_intervals():
    thresholds = [probability_of(odds) for odds in range(-2, 6)]
    counts = [4000, 1500, 560, 200, 210, 30, 9, 5]  # one of them rises
    found = curves.rates(thresholds, counts, 100_000)
    assert [low <= rate <= high for rate, low, high in found] == [True] * 8
    assert all(a[0] >= b[0] for a, b in itertools.pairwise(found))
    assert found[0][0] == pytest.approx(40, rel=0.01)
    # Quiet thresholds lean on the line through all others.
    assert found[7][0] == pytest.approx(0.05, rel=0.5)


def test_a_line_has_no_say_where_counts_have_left_it():
    thresholds = [probability_of(odds) for odds in range(-2, 8)]
    counts = [4000, 1500, 560, 200, 150, 120, 110, 105, 102, 101]
    found = curves.rates(thresholds, counts, 100_000)
    assert found[-1][0] == pytest.approx(1.01, rel=0.02)
    few = curves.rates(thresholds, [400, 150, 56, 21, 8, 3, 3, 3, 3, 3], 10_000)
    assert [rate for rate, *_ in few[-3:]] == pytest.approx([0.3] * 3, rel=0.3)


def test_equal_rates_are_pooled():
    assert curves._falling([4.0, 1.0, 2.0, 3.0, 0.5], [1.0, 1.0, 1.0, 2.0, 1.0]) == (
        [4.0, *[2.25] * 3, 0.5]
    )


def test_intervals_hold_the_truth_as_often_as_they_say():
    draws = torch.poisson(torch.full((2000,), 7.0), generator=torch.Generator().manual_seed(0))
    inside = [curves._interval(n, 1.0) for n in draws.tolist()]
    share = sum(low <= 7 <= high for low, high in inside) / 2000
    assert 0.93 < share < 0.99
    assert curves._interval(0, 2.0)[0] == 0
    assert curves._interval(0, 1.0)[1] == pytest.approx(3.69, abs=0.1)


def line(hazard, level=1.0, delays=True):
    """A curve whose rate is `level / odds` times the hazard in hundredths."""
    late = tuple(Delay(s, 20.0 / s, 21.0 / s, 1.0) for s in (1.0, 2.0, 3.0)) if delays else ()
    places = [(odds, 100 * hazard * level * math.exp(-odds)) for odds in range(-3, 6)]
    points = [Point(probability_of(x), rate, rate / 2, 2 * rate, late) for x, rate in places]
    return Curve(hazard, tuple(points))


def test_a_rate_has_its_threshold():
    curve = line(0.01)
    for rate in (0.01, 0.1, math.exp(-2), 1.0, 15.0):
        found = choose([curve], rate, None)
        assert log_odds(found.threshold) == pytest.approx(-math.log(rate))
        assert found.exact
        assert [each.median for each in found.delays] == pytest.approx([20, 10, 20 / 3])
    for rate in curve.range:
        assert choose([curve], rate, 0.01).exact


@pytest.mark.parametrize("rate", [1e-5, 1e3])
def test_rates_beyond_the_ends_are_refused_with_the_range(rate):
    with pytest.raises(OutOfRange, match=r"expected 0\.00674 to 20\.1, got"):
        choose([line(0.01)], rate, None)


def test_other_hazards_are_read_between_and_below():
    many = [line(0.01), line(0.1), line(0.001)]
    odds = -math.log(1.0)
    assert choose(many, 1.0, 0.1).exact
    between = choose(many, 1.0, 0.03)
    assert log_odds(between.threshold) == pytest.approx(odds + math.log(3))
    assert not between.exact
    below = choose(many, 0.1, 0.0005)
    moved = log_odds(0.0005) - log_odds(0.001)
    assert log_odds(below.threshold) == pytest.approx(moved)
    # That of 0.001 has no rate above 2.01; that of 0.01 has.
    beside = choose(many, 10.0, 0.001)
    moved = log_odds(0.001) - log_odds(0.01)
    assert log_odds(beside.threshold) == pytest.approx(-math.log(10) + moved)
    assert not beside.exact
    assert choose(many, 1.0, 0.11).exact is False
    with pytest.raises(
        OutOfRange, match=r"hazard: false alarms are calibrated up to 0\.12, got 0\.3"
    ):
        choose(many, 1.0, 0.3)
    with pytest.raises(OutOfRange, match="only at the model's own hazard"):
        choose([line(0.01)._replace(hazard=None)], 1.0, 0.01)


def test_json_and_back():
    curve = line(0.02)
    again = read(json.loads(json.dumps(curves.written(curve))))
    assert again.hazard == 0.02
    for a, b in zip(again.points, curve.points, strict=True):
        assert a.threshold == b.threshold
        assert a.false_alarms_per_1000 == pytest.approx(b.false_alarms_per_1000, rel=1e-3)
    without = read(curves.written(line(0.02, delays=False)))
    assert choose([without], 1.0, None).delays == ()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found["points"].reverse(),
        lambda found: found.pop("points"),
        lambda found: found["points"].clear(),
        lambda found: found["points"][0].update(threshold=0.0),
        lambda found: found["points"][3].update(extra=1),
        lambda found: found["points"][3].update(false_alarms_per_1000=None),
        lambda found: found["points"][-1].update(false_alarms_per_1000=0.0),
    ],
)
def test_curves_that_are_none(spoil):
    found = curves.written(line(0.02))
    spoil(found)
    with pytest.raises((KeyError, TypeError, ValueError)):
        read(found)


# --- what comes with the package ----------------------------------------------------------------


# Draws of its prior are walks of all outputs: no level whose shift could be found, at any rate.
WITHOUT_CURVES = {"joint@1"}


def test_models_without_curves_have_none(tmp_path):
    for name in WITHOUT_CURVES:
        assert sensitivity_curves.of(tmp_path, name) is None


@pytest.mark.parametrize("name", sorted({model.reference for model in BUILT_IN} - WITHOUT_CURVES))
def test_built_in_models_have_curves(name, tmp_path):
    found = sensitivity_curves.of(tmp_path, name)
    assert found is not None, "run moca calibrate, see docs/sensitivity.md"
    each = [read(curve) for curve in found["curves"]]
    model = build(name, Options(classes=4))
    assert each[0].hazard == model.hazard
    least, most = each[0].range
    assert least < 0.1 or name == "autoregressive@1"
    assert most > 10
    assert sorted(curve.hazard for curve in each) == [0.001, 0.01, 0.03]


@pytest.mark.parametrize("name", ["gaussian@1", pytest.param("poisson@2", marks=pytest.mark.slow)])
def test_the_curves_of_the_package_are_what_a_coarse_simulation_says(name, tmp_path):
    kept = read(sensitivity_curves.of(tmp_path, name)["curves"][0])
    found = read(calibrate(build(name, Options()), Plan(40_000, shifted=24, seed=5))["curves"][0])
    compared = 0
    for ours, theirs in zip(kept.points, found.points, strict=False):
        assert ours.threshold == pytest.approx(theirs.threshold)
        if theirs.false_alarms_per_1000 > 0.5:
            ratio = theirs.false_alarms_per_1000 / ours.false_alarms_per_1000
            assert 2 / 3 < ratio < 3 / 2, (ours.threshold, ratio)
            compared += 1
        assert abs(ours.delays[1].mean - theirs.delays[1].mean) < 2.5
    assert compared >= 4
