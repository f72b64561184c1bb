"""Thresholds by false alarms: what is simulated, counted and read off; on a stream's own labels."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from model_core import artifact, compiled
from model_core import filter as moca
from model_core.errors import CannotSimulate, OutOfRange
from model_core.filter import Inputs
from model_core.sensitivity import Curve, Delay, Plan, Point, calibrate, choose, own, quiet, read
from model_core.sensitivity.alarms import watch
from model_core.sensitivity.curve import log_odds, probability_of
from model_core.sensitivity.regimes import Drawn, draw, shifted, windows
from model_core.stream import warmup
from model_core.stream.events import Reading, Track, track
from model_core.stream.filters import Filters
from model_core.upm.builtin import Options, build
from service.models import sensitivity_curves
from service.models.catalogue import BUILT_IN, SHIPPED
from tests.model_core.registry import case


def drawn(model, series, steps, seed=0):
    return draw(model, series, steps, torch.Generator().manual_seed(seed))


def test_trained_kinds_and_inputs_of_ones_own_are_drawn_but_no_explained_inputs():
    for name in ("alpaca-2", "lstm-2"):
        found = drawn(case(name).model, 4, 60)
        assert torch.isfinite(found.y).all()
        assert found.x is None or found.x.shape == (4, 60, 2)
    x = torch.arange(12.0).reshape(2, 6, 1)
    found = windows(x)(50, 9, torch.Generator().manual_seed(0))
    for row in found[..., 0]:
        assert row[:6].tolist() in x[..., 0].tolist()
        assert row[6:].tolist() in x[:, :3, 0].tolist()
    with pytest.raises(CannotSimulate, match="pcoc"):
        calibrate(case("pcoc-3").model, Plan(1000))
    with pytest.raises(CannotSimulate, match="60 observations .* simulate more"):
        calibrate(build("gaussian", Options()), Plan(60, length=60))


def alarms(model, found, row, threshold):
    """One series, one threshold, and the filter by itself."""
    rows = found.y[row, :20].tolist()
    place = [torch.tensor([each], dtype=torch.float64) for each in warmup.estimate(rows, model)]
    prior = moca.make_prior(model, *place)
    labels = found.y[row : row + 1]
    one = torch.ones(1, dtype=torch.float64)
    hazard = torch.tensor([[model.hazard]], dtype=torch.float64)
    state = moca.init(prior, 50)
    events = Track()
    when = []
    for t in range(found.y.shape[1]):
        rate = one * model.outlier_rate
        inputs = Inputs(None, labels[:, t], one > 0, hazard, one, one * math.nan, rate)
        state, _ = moca.step(model, state, prior, inputs)
        p, starts = state.belief.log_prob[0].exp(), t - state.belief.run_length[0]
        later = starts > events.confirmed_start
        mass = float(p[later].sum())
        slot = int((p * later if mass >= threshold else p).argmax())
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
    moved = shifted(drawn(model, 4, 100), "real", 60, 2.0, torch.Generator().manual_seed(1))
    thresholds = (0.2, 0.6, 0.9, 0.999)
    found = watch(model, moved, thresholds)
    for i in range(4):
        assert found[i][i] == alarms(model, moved, i, thresholds[i])
    counts = [sum(map(len, each)) for each in found]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] > 0


def test_a_seed_makes_the_same_curves_which_are_json():
    model = build("poisson", Options())
    plan = Plan(300, length=60, shifted=2, before=30, horizon=20)
    done = []
    first = calibrate(model, plan, tick=done.append)
    assert first == calibrate(model, plan)
    assert calibrate(model, plan._replace(seed=1))["curves"] != first["curves"]
    assert json.loads(json.dumps(first)) == first
    assert sum(done) == plan.amount(model)


def line(hazard):
    """A curve whose rate is inverse to the odds, times the hazard in hundredths."""
    late = tuple(Delay(s, 20.0 / s, 21.0 / s, 1.0) for s in (1.0, 2.0, 3.0))
    rates = {odds: 100 * hazard * math.exp(-odds) for odds in range(-3, 6)}
    points = [Point(probability_of(x), r, r / 2, 2 * r, late) for x, r in rates.items()]
    return Curve(hazard, tuple(points))


def test_a_rate_has_its_threshold_within_the_curve():
    curve = line(0.01)
    for rate in (0.01, 0.1, math.exp(-2), 1.0, 15.0):
        found = choose([curve], rate, None)
        assert log_odds(found.threshold) == pytest.approx(-math.log(rate))
        assert found.exact
        assert [each.median for each in found.delays] == pytest.approx([20, 10, 20 / 3])
    for rate in curve.range:
        assert choose([curve], rate, 0.01).exact
    for rate in (1e-5, 1e3):
        with pytest.raises(OutOfRange, match="false_alarms_per_1000"):
            choose([curve], rate, None)


def test_other_hazards_are_read_between_and_below():
    many = [line(0.01), line(0.1), line(0.001)]
    assert choose(many, 1.0, 0.1).exact
    between = choose(many, 1.0, 0.03)
    assert log_odds(between.threshold) == pytest.approx(math.log(3))
    assert not between.exact
    below = choose(many, 0.1, 0.0005)
    moved = log_odds(0.0005) - log_odds(0.001)
    assert log_odds(below.threshold) == pytest.approx(moved)
    # That of 0.001 has no rate above 2.01; that of 0.01 has.
    beside = choose(many, 10.0, 0.001)
    moved = log_odds(0.001) - log_odds(0.01)
    assert log_odds(beside.threshold) == pytest.approx(-math.log(10) + moved)
    assert not choose(many, 1.0, 0.12).exact
    for refused, hazard in ((many, 0.121), ([line(0.01)._replace(hazard=None)], 0.01)):
        with pytest.raises(OutOfRange, match="hazard"):
            choose(refused, 1.0, hazard)


def joined(parts: list[Drawn]) -> Drawn:
    """Series of several draws, simulated at once."""
    columns = zip(*parts, strict=True)
    return Drawn(*(None if each[0] is None else torch.cat(each) for each in columns))


# Draws of its prior are walks of all outputs: no level whose shift could be found, at any rate.
WITHOUT_CURVES = {"joint"}


def test_built_in_models_have_curves(tmp_path):
    for name in {model.reference for model in BUILT_IN}:
        found = sensitivity_curves.of(tmp_path, name)
        assert (found is None) == (name in WITHOUT_CURVES), f"{name}: run moca calibrate"
        if found is None:
            continue
        each = [read(curve) for curve in found["curves"]]
        assert each[0].hazard == build(name, Options(classes=4)).hazard
        assert each[0].range[0] < 0.1 or name == "autoregressive"
        assert each[0].range[1] > 10
        assert sorted(curve.hazard for curve in each) == [0.001, 0.01, 0.03]


PROVEN = [
    ("gaussian", 1.0, 1),
    *(pytest.param(name, 0.1, 12, marks=pytest.mark.slow) for name in ("poisson", "regimes@1")),
]


@pytest.mark.parametrize(("name", "rate", "times"), PROVEN)
def test_a_requested_rate_and_the_stated_delays_are_what_comes(name, rate, times):
    shipped = SHIPPED / name.partition("@")[0] / "1"
    model = artifact.load(shipped) if shipped.exists() else build(name, Options())
    kept = sensitivity_curves.of(Path(), name)["curves"]
    choice = choose([read(each) for each in kept], rate, None)
    generator = torch.Generator().manual_seed(1_000_003)
    count = 0
    for _ in range(times):
        (found,) = watch(model, draw(model, 64, 500, generator), [choice.threshold])
        count += sum(map(len, found))
    measured = 1000 * count / (times * 32_000)
    assert rate / 2 < measured < 2 * rate, count
    still = [draw(model, 64, 250, generator) for _ in choice.delays]
    moved = [
        shifted(series, model.label, 100, delay.shift, generator)
        for series, delay in zip(still, choice.delays, strict=True)
    ]
    (found,) = watch(model, joined(moved), [choice.threshold])
    for i, delay in enumerate(choice.delays):
        first = (
            next((t - 99 for t in each if t >= 100), math.inf) for each in found[64 * i :][:64]
        )
        waits = sorted(first)
        if delay.median is not None and delay.detected > 0.6:
            assert waits[32] == pytest.approx(delay.median, rel=0.4, abs=1.5)


LABELS = 2000


def test_an_autoregression_and_a_line_go_on_from_the_last_label():
    rng = np.random.default_rng(3)
    y = np.full(LABELS, 50.0)
    for t in range(1, LABELS):
        y[t] = 50 + 0.9 * (y[t - 1] - 50) + rng.normal()
    regime = quiet.learn(y)
    assert regime.coefficients.sum() == pytest.approx(0.9, abs=0.03)
    found = regime.draw(np.random.default_rng(4), 400, 300)
    assert found[:, 0].mean() == pytest.approx(50 + 0.9 * (y[-1] - 50), abs=0.3)
    assert found[:, -1].mean() == pytest.approx(50, abs=0.6)
    assert found[:, 100:].std() == pytest.approx(1 / math.sqrt(1 - 0.9**2), rel=0.15)
    rising = quiet.learn(0.01 * np.arange(LABELS) + rng.normal(size=LABELS))
    assert rising.slope == pytest.approx(0.01, rel=0.05)
    ends = rising.draw(np.random.default_rng(6), 50, 500)[:, -1]
    assert ends.mean() == pytest.approx(25, abs=1)
    # A change that is known is no noise.
    y = rng.normal(size=LABELS)
    y[800:] = 6 + 2 * y[800:]
    found = quiet.learn(y, [800]).draw(np.random.default_rng(8), 20, 500)
    assert (found.mean(), found.std()) == (pytest.approx(6, abs=0.3), pytest.approx(2, rel=0.1))
    quiet.learn(y[:500])
    for few in (y[:499], np.ones(LABELS)):
        with pytest.raises(ValueError, match="expected"):
            quiet.learn(few)


def counts(floor=0.0, thousands=16.0):
    """Alarms whose rate is inverse to the odds of the threshold."""
    return [round(thousands * (10 * math.exp(-odds) + floor)) for odds in own.LOG_ODDS]


def test_the_own_threshold_has_the_rate_or_the_nearest_that_there_is():
    for rate in (0.1, 0.5, 2.0):
        found = own.calibrated(counts(), 16_000, rate)
        assert found.false_alarms_per_1000 == rate
        assert log_odds(found.threshold) == pytest.approx(math.log(10 / rate), abs=0.3)
    found = own.calibrated(counts(floor=0.5), 16_000, 0.1)
    assert found.false_alarms_per_1000 == pytest.approx(0.5, rel=0.15)
    assert log_odds(found.threshold) < 12  # beyond it is only later, not quieter
    loud = own.calibrated(counts(), 16_000, 100.0)
    assert log_odds(loud.threshold) == pytest.approx(own.LOG_ODDS[0])


def confirmed(model, y, continuations):
    filters = Filters(model, 1, 50)
    filters.begin(0, [0.0], [1.0])
    for _ in filters.together(y[None, :, None]):
        pass
    before = filters.row(0)
    given = filters.row(0), 50, continuations, np.array([0.01]), 0.01
    *_, found = own.confirmations(model, *given)
    assert all(map(np.array_equal, before, filters.row(0)))  # the stream's own is left alone
    return found


def test_kernels_confirm_what_eager_steps_do(monkeypatch):
    model = build("gaussian", Options())
    rng = np.random.default_rng(10)
    y, continuations = rng.normal(size=60), rng.normal(size=(4, 50))
    continuations[1, 20:] += 6
    continuations[2, 30:] -= 9
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "kernel_of", lambda model: None)
        expected = confirmed(model, y, continuations)
    assert confirmed(model, y, continuations) == expected
    assert expected[0] >= expected[own.LOG_ODDS.index(6.0)] >= 2
