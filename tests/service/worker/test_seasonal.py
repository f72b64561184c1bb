"""Streams that look for seasons: as `moca evaluate` has it, and through whatever befalls them."""

import math

import msgspec
import numpy as np
import pytest

from model_core import codec
from model_core.defaults import Defaults
from model_core.errors import CorruptState
from model_core.upm.builtin import Options, build
from service.schema import rendering
from service.wire import (
    Configure,
    EventFeedback,
    Move,
    Observation,
    Predict,
    SegmentHistory,
    WhatIf,
)
from tests.service.worker.commands.test_snapshot import export, put
from tests.service.worker.filtering.test_anomaly_events import anomalies
from training.evaluation.online import Settings, follow

LEVELS = (0.05, 0.5, 0.95)
SEASONAL = {"model": "gaussian", "seasonal": True}


def day(n=330, step=300, seed=0):
    """A season of 24 whose level rises by 4 standard deviations at a step."""
    rng = np.random.default_rng(seed)
    y = 5 + 1.2 * np.sin(2 * np.pi * np.arange(n) / 24) + 0.5 * rng.normal(size=n)
    y[step:] += 2.0
    return y.tolist()


def numbers(values):
    return [math.nan if value is None else value for value in values]


@pytest.mark.parametrize("model", ["gaussian", "averaged"])
def test_answers_are_those_of_the_evaluation(bench, model):
    y = day()
    y[150] = None
    bench.ask(Configure("a", {**SEASONAL, "model": model}), status=201)
    answers = bench.observe("a", y)
    rows = [[math.nan if value is None else value] for value in y]
    (found,) = follow(build(model, Options()), [rows], Settings(Defaults(seasonal=True)), LEVELS)
    head = bench.head("a")
    told = {each["seq"]: each["event"] for each in answers if each["event"] and each["seq"] >= 20}
    expected = {t: event for t, event in found.events if t >= 20}
    assert {t: (each["id"], each["state"], each["start"]) for t, each in told.items()} == {
        t: (each.id, each.state, each.start) for t, each in expected.items()
    }
    for t, each in expected.items():
        assert told[t]["probability"] == pytest.approx(each.probability, rel=1e-9)
        assert told[t]["size"] == pytest.approx(each.size, rel=1e-9)
    assert any(each.state == "confirmed" and 300 <= t < 324 for t, each in expected.items())
    after = answers[20:]
    for name, ours in (
        ("log_score", found.answers.log_score),
        ("changed_probability", found.answers.changed),
        ("anomaly", found.answers.anomaly),
    ):
        theirs = numbers(each[name] for each in after)
        np.testing.assert_allclose(theirs, ours[20:], rtol=1e-9, atol=1e-9)
    means = [each["predictive"]["mean"] for each in after]
    np.testing.assert_allclose(means, found.answers.summary.mean[20:], rtol=1e-9)
    low = [each["predictive"]["quantiles"]["0.05"] for each in after]
    np.testing.assert_allclose(low, found.answers.summary.quantiles[20:, 0], rtol=1e-6)
    segments = rendering.segmentation(head, bench.records("a"))
    assert [segment.start for segment in segments][1:] == list(found.served)
    assert head.season.periods == [24]
    periods = [each.get("season") for each in answers]
    assert periods[:48] == [None] * 48
    assert periods[-1] == {"periods": [24]}


def seasonal(bench, stream="a", **more):
    bench.ask(Configure(stream, {**SEASONAL, **more}), status=201)
    return stream


def season_at(t):
    return 5 + 1.2 * math.sin(2 * math.pi * t / 24)


def post_by_kernel(make_bench, close, y, begin):
    """Labels one by one and in lists, by a kernel: answers are the same. Returns the season."""
    pytest.importorskip("numba")
    found = []
    for db, part in ((0, 1), (1, 150)):
        bench = make_bench(db=db, partitions=1)
        bench.worker.engine.compiles = True
        begin(bench)
        answers = bench.observe("a", y[:20])
        (slab,) = bench.worker.engine._slabs.values()
        slab._compiled.compile()  # waits for it
        answers += bench.observe("a", y[20:], part=part, belief=True)
        found.append((answers, bench.head("a").season, bench.records("a")))
    close(found[1][0], found[0][0], 1e-9)
    assert found[1][1] == found[0][1]
    for one, other in zip(found[1][2], found[0][2], strict=True):
        assert one.offset == other.offset
        assert one.previous_start == other.previous_start
    return found[0][1]


def test_lists_by_a_kernel_are_the_same_one_by_one(make_bench, close):
    post_by_kernel(make_bench, close, day(), seasonal)


def lose_workers(make_bench, close, y, begin):
    """Labels of a season of 24, posted to one worker and to many that die: answers are the same."""
    quiet = make_bench(db=0, checkpoint_every=48)
    troubled = make_bench(db=1, checkpoint_every=48)
    for bench in (quiet, troubled):
        begin(bench)
    expected = quiet.observe("a", y)
    answers = []
    for i in range(0, len(y), 30):
        answers += troubled.observe("a", y[i : i + 30])
        (troubled.crash if i % 60 else troubled.stop)()
    close(answers, expected)  # slots of a state that was stored are in another order
    assert troubled.head("a").season == quiet.head("a").season
    assert quiet.head("a").season.periods == [24]
    assert [(r.offset, r.previous_start) for r in troubled.records("a")] == [
        (r.offset, r.previous_start) for r in quiet.records("a")
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("more", [{}, {"warmup": 100}, {"location": [5.0], "scale": [1.0]}])
def test_nothing_is_lost_with_a_worker(make_bench, close, more):
    lose_workers(make_bench, close, day(), lambda bench: seasonal(bench, **more))


@pytest.mark.parametrize("first", [110, 180])
def test_pending_labels(make_bench, close, first):
    """Labels that come late, in order, are as if they had come at once.

    first: pending label, before the season is found, or after it.
    """
    y = day(230, 220)
    prompt, late = make_bench(db=0), make_bench(db=1)
    for bench in (prompt, late):
        seasonal(bench)
        bench.observe("a", y[:first])
    y = y[: first + 50]
    expected = prompt.observe("a", y[first:])
    provisional = late.observe("a", [Observation(y=None, pending=True)] * 50, part=10)
    assert all(each["provisional"] for each in provisional)
    means = [each["predictive"]["mean"][0] for each in provisional]
    errors = np.abs(np.array(means) - [season_at(t) for t in range(first, first + 50)])
    assert (errors.max() < 0.6) == (first == 180)
    late.crash()
    answers = []
    for t in range(first, first + 50):
        answers += late.observe("a", [Observation(y=y[t])], seq=t)
    close(answers, expected)


def test_a_snapshot_has_the_season(make_bench, close):
    y = day()
    here, there = make_bench(db=0), make_bench(db=1)
    seasonal(here)
    here.observe("a", y[:200])
    put(there, "a", export(here, "a"))
    close(there.observe("a", y[200:]), here.observe("a", y[200:]))
    parts = here.worker.engine.streams[here.partition("a"), "a"]
    blob = parts.slab.encoded(parts.row, parts.slab.state(parts.row))
    with pytest.raises(CorruptState, match="no array 'season'"):
        codec.decode_season(parts.slab.model, blob)
    broken = parts.season.copy()
    broken[4] = 1e6  # a period longer than the retained labels
    blob = parts.slab.encoded(parts.row, parts.slab.state(parts.row), broken)
    with pytest.raises(CorruptState, match="no state of a season"):
        codec.decode_season(parts.slab.model, blob)


@pytest.mark.parametrize(
    "model", [{"model": "gaussian"}, {"model": "averaged"}, {"model": "autoregressive", "order": 2}]
)
def test_forecasts_follow_the_season(bench, model):
    seasonal(bench, **model)
    bench.observe("a", day(288, 288))
    ahead = bench.ask(Predict("a", horizon=30, samples=3))["predictions"]
    quantiles = [each["predictive"]["quantiles"] for each in ahead]
    lower, medians = ([each[level][0] for each in quantiles] for level in ("0.05", "0.5"))
    expected = np.array([season_at(t) for t in range(288, 318)])
    assert np.abs(medians - expected).max() < 0.6
    assert np.corrcoef(medians, expected)[0, 1] > 0.95
    assert 0.3 < np.subtract(medians, lower).mean() < 2
    assert np.abs(np.array(ahead[0]["samples"]) - expected[0]).max() < 3
    (one,) = bench.ask(Predict("a", components=True))["predictions"]
    (answer,) = bench.observe("a", [5.0])
    assert one["predictive"]["mean"] == pytest.approx(answer["predictive"]["mean"], rel=1e-9)
    parts = [each["weight"] * each["mean"][0] for each in one["components"]]
    assert sum(parts) == pytest.approx(one["predictive"]["mean"][0], rel=1e-9)


def test_details_are_of_the_labels(bench):
    seasonal(bench)
    bench.observe("a", day(200, 200))
    (answer,) = bench.observe("a", [5.0], components=True, quantiles=[0.5])
    mean = answer["predictive"]["mean"][0]
    assert mean == pytest.approx(season_at(200), abs=0.6)
    assert answer["predictive"]["quantiles"]["0.5"][0] == pytest.approx(mean, abs=0.3)
    parts = [each["weight"] * each["parameters"]["loc"][0] for each in answer["components"]]
    assert sum(parts) == pytest.approx(mean, rel=1e-9)


def test_reruns_see_labels_less_their_season(bench):
    y = day()
    seasonal(bench)
    bench.ask(Configure("plain", {"model": "gaussian"}), status=201)
    bench.observe("plain", y)
    answers = bench.observe("a", y)
    late = [each["log_score"] for each in answers[100:]]
    confirmed = [e.start for e in bench.events("a") if e.state == "confirmed" and e.start > 200]
    assert confirmed == [pytest.approx(300, abs=2)]
    bench.ask(SegmentHistory("a"), status=204)
    hindsight = bench.worker.engine.store.hindsight(bench.partition("a"), "a")
    assert hindsight.starts == [0, pytest.approx(300, abs=1)]
    with_it = bench.ask(WhatIf("a", {"hazard": 0.02}, series=True))
    assert [each["start"] for each in with_it["segmentation"]][1:] == [pytest.approx(300, abs=1)]
    assert np.mean(with_it["log_score"][100:]) > np.mean(late) - 0.05
    without = bench.ask(WhatIf("a", {"seasonal": False}, series=True))
    plain = bench.ask(WhatIf("plain", {}, series=True))
    assert without["log_score"] == plain["log_score"]
    found = bench.ask(WhatIf("plain", {"seasonal": True}, series=True))
    same = bench.ask(WhatIf("a", {}, series=True))
    assert found["log_score"] == pytest.approx(same["log_score"], abs=1e-9)
    assert np.mean(found["log_score"][100:]) > np.mean(plain["log_score"][100:]) + 0.2


@pytest.mark.parametrize("command", ["feedback", "move"])
def test_a_stream_goes_on_after_a_rerun(make_bench, close, command):
    y = day(360, 250)
    bench, lost = make_bench(db=0), make_bench(db=1)
    found = []
    for each in (bench, lost):
        seasonal(each)
        each.observe("a", y[:300])
        if command == "move":
            each.ask(Move("a", "averaged"))
        else:
            event = next(e for e in each.events("a") if e.state == "confirmed" and e.start > 200)
            each.ask(EventFeedback("a", event=event.id, change=False))
            assert each.head("a").best_start < 200
        if each is lost:
            each.crash()
        found.append(each.observe("a", y[300:]))
        assert each.head("a").season.periods == [24]
    close(found[0], found[1])
    means = np.array([each["predictive"]["mean"][0] for each in found[0]])
    expected = [2 + season_at(t) for t in range(300, 360)]
    if command == "move":
        assert np.abs(means - expected).mean() < 0.4
    assert np.corrcoef(means, expected)[0, 1] > 0.9


def test_a_season_that_ends_is_given_up(bench):
    rng = np.random.default_rng(1)
    y = [*day(240, 240), *(5 + 0.5 * rng.normal(size=360)).tolist()]
    seasonal(bench)
    answers = bench.observe("a", y)
    assert answers[200]["season"] == {"periods": [24]}
    assert "season" not in answers[-1]
    head = bench.head("a")
    assert (head.season.periods, head.season.since > 240) == ([], True)
    assert "season" not in msgspec.to_builtins(rendering.summary("a", head))
    assert bench.records("a")[-1].offset == 0


def test_a_season_found_in_the_warm_up(bench):
    seasonal(bench, warmup=150)
    answers = bench.observe("a", day(200, 200))
    assert answers[140]["warming_up"]
    assert answers[140]["season"] == {"periods": [24]}
    found = [each["predictive"]["mean"][0] for each in answers[100:]]
    assert np.abs(np.array(found[45:]) - [season_at(t) for t in range(145, 200)]).max() < 0.6
    assert bench.head("a").scale[0] < 0.7  # of the noise


@pytest.mark.parametrize(
    ("settings", "status", "problem"),
    [
        ({"model": "poisson"}, 422, "unfit-settings"),
        ({"model": "categorical", "classes": 3}, 422, "unfit-settings"),
        ({"model": "gaussian", "location": [0.0, 1.0]}, 422, "dimension-mismatch"),
    ],
)
def test_models_without_one_real_label_are_refused(bench, settings, status, problem):
    found = bench.ask(Configure("a", {**settings, "seasonal": True}), status=status)
    assert found["type"].endswith(problem)


def test_labels_of_several_numbers_are_refused(bench):
    seasonal(bench)
    assert bench.observe("a", [[1.0, 2.0]], status=422)[0]["type"].endswith("dimension-mismatch")
    bench.observe("a", [1.0])
    found = bench.ask(Configure("a", {"seasonal": False}), status=409)
    assert found["type"].endswith("settings-conflict")
    bench.ask(Configure("a", {"seasonal": True, "hazard": 0.02}))
    refused = bench.ask(Move("a", "poisson"), status=422)
    assert refused["field"] == "seasonal"


def test_streams_without_the_setting_are_stored_as_before(bench):
    bench.ask(Configure("a", {"model": "gaussian", "seasonal": False}), status=201)
    answers = bench.observe("a", day(150, 150))
    assert b"season" not in bench.stored("a")["head"]
    assert all("season" not in each for each in answers)
    bench.stop()
    (checkpoint,) = bench.stored("a")["checkpoint"].values()
    assert b'"season"' not in checkpoint
    assert not any(record.offset for record in bench.records("a"))


@pytest.mark.parametrize("more", [{}, {"history": 0}])
def test_seasons_without_noise_or_history(bench, more):
    """A scale of rounding alone, and a filter that begins anew with next to nothing."""
    sd = 0.5 if more else 0.0
    rng = np.random.default_rng(2)
    y = [season_at(t) + sd * rng.normal() for t in range(400)]
    seasonal(bench, **more)
    answers = bench.observe("a", y)
    assert answers[-1]["season"]["periods"][0] == 24
    means = np.array([each["predictive"]["mean"][0] for each in answers[300:]])
    assert np.abs(means - [season_at(t) for t in range(300, 400)]).max() < (0.6 if more else 0.01)


def test_the_size_of_an_anomaly_is_in_noise_less_the_season(bench):
    """Near the season's trough, where the label is not far from the mean of all."""
    seasonal(bench, anomaly_alarm=0.97)
    bench.observe("a", day(306, 306))
    bench.observe("a", [season_at(306) + 4])
    event = anomalies(bench)[-1]
    assert event.start == 306
    assert event.direction == "up"
    assert event.size == pytest.approx(8, rel=0.3)
