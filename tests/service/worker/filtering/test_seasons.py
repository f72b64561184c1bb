"""Seasons: found when asked for, or by default once there are many labels, and never lost."""

import json
import math

import numpy as np
import pytest

from model_core.stream import pipeline, season
from service.store import keys
from service.store.streams import Store
from service.wire import (
    Configure,
    EventFeedback,
    Exclude,
    Move,
    Observation,
    Observe,
    Predict,
    SegmentHistory,
    WhatIf,
)
from service.worker.commands import rerun
from tests.service.worker.conftest import confirmed

FROM = 150  # in place of 200
FIRST, SECOND = 177, 212  # searches of stream "a"
ASKED = {"seasonal": True}  # by default they are looked for once there are labels enough


@pytest.fixture(autouse=True)
def _early(monkeypatch):
    monkeypatch.setattr(season, "SEASONS_FROM", FROM)
    monkeypatch.setattr(rerun, "SEASONS_FROM", FROM)
    monkeypatch.setattr(season, "SETTLED", FROM)  # searches are a fifth apart


@pytest.fixture
def pair(make_bench):
    """Two benches, with checkpoints often."""
    return [make_bench(db=db, checkpoint_every=48) for db in (0, 1)]


def noise(n, seed=0):
    return (5 + 0.3 * np.random.default_rng(seed).normal(size=n)).tolist()


def season_at(t):
    return 5 + 1.2 * math.sin(2 * math.pi * t / 24)


def day(n=330, step=300, first=0):
    """A season of 24 from `first` on, whose level rises at a step."""
    t = np.arange(n)
    y = np.array(noise(n)) + 1.2 * np.sin(2 * np.pi * t / 24) * (t >= first)
    y[step:] += 2.0
    return y.tolist()


def made(bench, stream="a", **settings):
    bench.ask(Configure(stream, {"model": "gaussian", "warmup": 5, **settings}), status=201)
    return stream


def held(bench, stream="a"):
    """The stream as its worker has it."""
    return bench.worker.engine.streams[bench.partition(stream), stream]


def means(answers):
    return np.array([each["predictive"]["mean"][0] for each in answers])


def test_a_season_is_found_by_the_first_search_and_kept_from_then_on(bench):
    assert season.next_search(0, season.phase_of("a")) == FIRST
    assert season.next_search(FIRST, season.phase_of("a")) == SECOND
    made(bench)
    answers = bench.observe("a", day(FIRST - 1, FIRST))
    assert held(bench).season_state is None
    assert b'"season"' not in bench.stored("a")["head"]
    made(bench, "never", seasonal=False)
    assert all("season" not in each for each in bench.observe("never", day(FIRST + 9, FIRST)))
    answers += bench.observe("a", day(260, 260)[FIRST - 1 :])
    assert "season" not in answers[FIRST - 2]
    assert answers[FIRST - 1]["season"] == {"periods": [24]}
    assert bench.head("a").season.since == FIRST
    expected = [season_at(t) for t in range(FIRST, 260)]
    assert np.abs(means(answers[FIRST:]) - expected).max() < 0.6


@pytest.mark.parametrize("part", [1, 32])
def test_a_stream_that_retains_nothing_goes_on_with_its_filter_once_it_knows_a_season(
    pair, close, part
):
    quiet, troubled = pair
    for bench in pair:
        made(bench, seasonal=True, history=0)
    expected, answers = quiet.observe("a", day(290)), []
    for i in range(0, 290, 58):
        answers += troubled.observe("a", day(290)[i : i + 58], part=part)
        troubled.crash()
    close(answers, expected)
    assert answers[-1]["season"] == {"periods": [24]}


def test_a_vector_that_retains_nothing_goes_on_where_an_output_moves_for_the_first_time(bench):
    made(bench, model="joint", history=0)
    moving = [[y, 5.0 + y * (i >= 50)] for i, y in enumerate(noise(100))]
    assert bench.observe("a", moving)[-1]["seq"] == 99


@pytest.mark.parametrize("settings", [{"seasonal": True, "warmup": 100}, {"history": 120}], ids=str)
def test_nothing_is_lost_with_a_worker(pair, close, settings):
    """Nor where the labels by which the season is found come late, in order."""
    quiet, troubled = pair
    for bench in pair:
        made(bench, **settings)
    y = day(270, 240)
    expected, answers = quiet.observe("a", y), []
    for i in range(0, len(y), 30):
        if i == 150:
            waiting = troubled.observe("a", [Observation(y=None, pending=True)] * 30)
            assert all(each["provisional"] for each in waiting)
            troubled.crash()
            for t in range(i, i + 30):
                answers += troubled.observe("a", [Observation(y=y[t])], seq=t)
        else:
            answers += troubled.observe("a", y[i : i + 30])
        (troubled.crash if i % 60 else troubled.stop)()
    close(answers, expected)  # slots of a state that was stored are in another order
    assert troubled.head("a").season == quiet.head("a").season
    assert quiet.head("a").season.periods == [24]
    assert [(r.offset, r.previous_start) for r in troubled.records("a")] == [
        (r.offset, r.previous_start) for r in quiet.records("a")
    ]


def searches_of(monkeypatch):
    """Labels of all searches from here on."""
    searches = []
    searched = season.searched

    def noted(series):
        searches.extend(y.copy() for y in series)
        return searched(series)

    monkeypatch.setattr(season, "searched", noted)
    return searches


def test_a_search_that_is_done_again_in_other_batches_finds_the_same(pair, close, monkeypatch):
    """Two workers end before they commit it; what is retained was trimmed after other commits."""
    searches = searches_of(monkeypatch)
    quiet, troubled = pair
    first = FIRST - 32
    y = day(first + 64, 230)
    for bench in pair:
        made(bench, history=100)
        bench.observe("a", y[:first])
    expected = quiet.observe("a", y[first:], part=1)
    numbers = troubled.append(Observe("a", [Observation(y=value) for value in y[first:]]))

    def lost(*_):
        raise ConnectionError("gone before the commit")

    while len(searches) < 3:
        monkeypatch.setattr(troubled.worker._committer, "submit", lost)
        troubled.turn()
        troubled.crash()
    (outcome,) = troubled.outcomes(numbers)
    close([json.loads(body) for body in outcome.body], expected)
    assert len(searches) == 4
    for again in searches[1:]:
        np.testing.assert_array_equal(again, searches[0])
    assert troubled.head("a").season == quiet.head("a").season


def test_labels_are_read_once_however_often_they_are_looked_at(bench, monkeypatch):
    spans = []
    searches = searches_of(monkeypatch)
    tails = Store.tails
    monkeypatch.setattr(Store, "tails", lambda store, of: spans.extend(of) or tails(store, of))
    made(bench)
    y = noise(500)
    bench.observe("a", y, part=1)
    assert len(searches) > 4
    # Of the first look alone: from there on it sleeps.
    assert 0 < sum(span.end - span.first for span in spans) <= 50
    for found in searches:
        assert found[:, 0].tolist() == y[: len(found)]
    engine = bench.worker.engine
    assert held(bench).tail in engine.kept_labels._labels
    engine.evict(held(bench))
    assert not engine.kept_labels._labels


def test_forecasts_and_details_are_of_the_labels(bench):
    made(bench, model="autoregressive", order=2, seasonal=True)
    bench.observe("a", day(200, 200))
    ahead = bench.ask(Predict("a", horizon=30, samples=3))["predictions"]
    quantiles = [each["predictive"]["quantiles"] for each in ahead]
    lower, medians = ([each[level][0] for each in quantiles] for level in ("0.05", "0.5"))
    expected = np.array([season_at(t) for t in range(200, 230)])
    assert np.abs(medians - expected).max() < 0.6
    assert 0.2 < np.subtract(medians, lower).mean() < 2
    assert np.abs(np.array(ahead[0]["samples"]) - expected[0]).max() < 3
    (one,) = bench.ask(Predict("a", components=True))["predictions"]
    (answer,) = bench.observe("a", [5.0], components=True, quantiles=[0.5])
    mean = answer["predictive"]["mean"][0]
    assert one["predictive"]["mean"] == pytest.approx([mean], rel=1e-9)
    assert answer["predictive"]["quantiles"]["0.5"][0] == pytest.approx(mean, abs=0.3)
    # Components are those of the model, before its forecast is corrected.
    assert one["components"] == answer["components"]
    weights, centres, variances = np.array(
        [(part["weight"], part["mean"][0], part["variance"][0]) for part in one["components"]]
    ).T
    centre = weights @ centres
    scale = math.sqrt(
        one["predictive"]["variance"][0][0] / (weights @ (variances + (centres - centre) ** 2))
    )
    (median,) = bench.records("a")[200].uncorrected
    point = one["predictive"]["quantiles"]["0.5"][0]
    assert mean == pytest.approx(point + scale * (centre - median), rel=1e-9)
    assert answer["predictive"]["quantiles"]["0.5"][0] == pytest.approx(point, rel=1e-9)


def test_reruns_see_labels_less_their_season(bench):
    y = day()
    made(bench)
    made(bench, "plain", seasonal=False)
    bench.observe("a", y)
    bench.observe("plain", y)
    assert [event.start for event in confirmed(bench, after=200)] == [pytest.approx(300, abs=2)]
    bench.ask(SegmentHistory("a"), status=204)
    assert bench.hindsight("a").starts == [0, pytest.approx(300, abs=1)]
    plain = bench.ask(WhatIf("plain", {}, series=True))
    without = bench.ask(WhatIf("a", {"seasonal": False}, series=True))
    assert without["log_score"] == plain["log_score"]
    late = slice(100, None)
    for stream, settings in (
        ("a", {}),
        ("a", {"hazard": 0.02}),
        ("a", {"model": "averaged"}),
        ("plain", {"seasonal": None}),
    ):
        found = bench.ask(WhatIf(stream, settings, series=True))
        assert np.mean(found["log_score"][late]) > np.mean(plain["log_score"][late]) + 0.2
        assert [each["start"] for each in found["segmentation"]][1:] == [pytest.approx(300, abs=1)]


@pytest.mark.parametrize("command", ["feedback", "averaged", "poisson"])
def test_a_stream_goes_on_after_a_rerun(pair, close, command):
    y = [float(round(10 * each)) for each in day(300, 250)]
    found = []
    for each in pair:
        made(each, **ASKED if command == "feedback" else {})
        each.observe("a", y[:270])
        if command == "feedback":
            (event,) = confirmed(each, after=200)
            each.ask(EventFeedback("a", event=event.id, change=False))
            assert each.head("a").best_start < 200
        else:
            each.ask(Move("a", command))
        if each is pair[1]:
            each.crash()
        found.append(each.observe("a", y[270:]))
    close(found[0], found[1])
    if command == "poisson":  # which has no seasons
        assert pair[0].head("a").season is held(pair[0]).season_state is None
        assert not any(record.offset for record in pair[0].records("a")[-30:])
    else:
        assert pair[0].head("a").season.periods == [24]
        expected = [10 * (2 + season_at(t)) for t in range(270, 300)]
        assert np.corrcoef(means(found[0]), expected)[0, 1] > 0.7


@pytest.mark.parametrize("spoilt", [lambda t: 5 + 0.01 * (t % 7), lambda t: 15 - 2 * season_at(t)])
def test_a_season_is_learned_without_what_is_excluded(pair, spoilt):
    """Where it was given up, and where it was taken for one of another period."""
    y = day(330, 330)
    y[200:290] = [spoilt(t) for t in range(200, 290)]
    missing = [*y[:200], *[Observation(changepoint=0.0)] * 90, *y[290:]]
    for bench, labels in zip(pair, (y, missing), strict=True):
        made(bench, hazard=0.01)
        bench.observe("a", labels)
    before = held(pair[0]).season_state.copy()
    pair[0].ask(Exclude("a", start=200, end=290))
    found = held(pair[0]).season_state.copy()
    expected = season.corrected(before, 130, np.array([*[np.nan] * 90, *y[290:]])[:, None])
    np.testing.assert_array_equal(found, expected)
    offsets = [record.offset for record in pair[0].records("a")]
    since = pair[0].head("a").season.since
    as_met = [record.offset for record in pair[1].records("a")]
    assert offsets[since:200] == as_met[since:200]
    np.testing.assert_array_equal(offsets[200:], season.offsets(found, 130))
    pair[0].crash()
    pair[0].ask(Predict("a"))
    np.testing.assert_array_equal(held(pair[0]).season_state, found)
    truth = 1.2 * np.sin(2 * np.pi * np.arange(330, 354) / 24)
    before_error, error = (
        np.abs(season.coming(state, 24)[:, 0] - truth).mean() for state in (before, found)
    )
    assert error < 0.1 < 0.5 < before_error
    assert season.periods(before) != pair[0].head("a").season.periods == [24]
    pair[0].ask(Exclude("a", start=200, end=290, excluded=False))
    again = season.corrected(found, 130, np.array(y[200:]))
    np.testing.assert_array_equal(held(pair[0]).season_state, again)


def vectors(n=300):
    """Three outputs: two of a season with other phases, one without; some are missing."""
    rng = np.random.default_rng(8)
    t = 2 * np.pi * np.arange(n)[:, None] / 24
    y = (5 + 1.2 * np.sin(t + [0.0, 2.0, 0.0]) * [1, 1, 0] + 0.3 * rng.normal(size=(n, 3))).tolist()
    y[7] = y[250] = None
    y[120][0] = y[230][2] = y[261][1] = None
    return y


def test_seasons_of_vectors_outlast_crashes_corrections_and_snapshots(pair, close):
    """One worker ends again and again, and hands the stream to another deployment at last."""
    quiet, troubled = pair
    y = vectors()
    answers = [[], []]
    for i, bench in enumerate(pair):
        made(bench, model="joint", history=280, seasonal=True)
        for at in range(0, 270, 27):
            answers[i] += bench.observe("a", y[at : at + 27])
            if bench is troubled:
                (bench.crash if at % 2 else bench.stop)()
        bench.ask(Exclude("a", start=200, end=215))
        if bench is troubled:
            bench.crash()
        answers[i] += bench.observe("a", y[270:285])
    close(answers[1], answers[0])
    assert quiet.head("a").season == troubled.head("a").season
    assert quiet.head("a").season.periods == [24]
    offsets = np.array([record.offset for record in quiet.records("a")[-40:]])
    assert [record.offset for record in troubled.records("a")[-40:]] == offsets.tolist()
    t = 2 * np.pi * np.arange(245, 285)[:, None] / 24
    assert np.abs(offsets - 1.2 * np.sin(t + [0.0, 2.0, 0.0]) * [1, 1, 0]).max() < 0.5
    assert not offsets[:, 2].any()
    blob = quiet.export("a")
    troubled.put("b", blob)
    expected = [each | {"stream": "b"} for each in quiet.observe("a", y[285:])]
    close(troubled.observe("b", y[285:]), expected)


@pytest.fixture
def ticks(bench, monkeypatch):
    """One for each sign of life, without which leases end."""
    ticks = []
    monkeypatch.setattr(bench.worker.engine, "tick", lambda: ticks.append(1))
    return ticks


def test_a_filter_that_begins_anew_with_labels_that_lack_outputs_gives_signs_of_life(bench, ticks):
    made(bench, model="averaged", seasonal=True)
    y = [[value, 0.5 * value, value if t < 5 else None] for t, value in enumerate(day(150, 150))]
    for label in y:
        ticks.clear()
        (answer,) = bench.observe("a", [label])
        if "season" in answer:
            break
    assert len(ticks) > min(answer["seq"], season.REPLAYED)


def test_a_list_of_labels_that_lack_outputs_gives_signs_of_life(bench, ticks):
    """Also where a label before them is to come, and they go ahead."""
    made(bench, model="averaged")
    bench.observe("a", vectors()[:20])
    lacking = [[first, None, last] for first, _, last in vectors()[20:40]]
    bench.observe("a", lacking)
    assert len(ticks) > 20
    bench.observe("a", [Observation(y=None, pending=True)] * 20)
    bench.observe("a", [Observation(y=[5.0, None, 5.0])], seq=41)
    ticks.clear()
    bench.observe("a", [[5.0, 5.0, 5.0]])
    assert len(ticks) > 18


def test_forecasts_give_signs_of_life(bench, ticks):
    made(bench, model="autoregressive")
    bench.observe("a", noise(30))
    ticks.clear()
    bench.ask(Predict("a", horizon=12))
    assert len(ticks) > 12


def test_between_many_streams_that_look_for_seasons_there_are_signs_of_life(
    bench, ticks, monkeypatch
):
    names = [made(bench, name, seasonal=True) for name in "abc"]
    for name in names:
        bench.observe(name, vectors()[:20])
    counts = []
    for most in (64, 1):
        monkeypatch.setattr(pipeline, "AT_ONCE", most)
        ticks.clear()
        seen = [Observation(y=[5.0, 5.0, 5.0], changepoint=0.01)]  # not entered as columns
        bench.send(*(Observe(name, seen) for name in names))
        counts.append(len(ticks))
    assert counts[1] == counts[0] + 2 + 2  # they are entered, and then looked at


def test_an_exclusion_where_no_season_was_found_says_of_none(bench):
    made(bench, seasonal=True)
    bench.observe("a", noise(100))
    bench.ask(Exclude("a", start=60, end=70))
    assert bench.head("a").season is None
    assert "season" not in bench.observe("a", noise(1))[0]


def test_a_season_that_a_move_has_dropped_is_looked_for_under_the_next_model(pair):
    """As soon as by a worker that has never seen the one before."""
    y = [float(round(10 * each)) for each in day(310, 310)]
    for bench in pair:
        made(bench)
        bench.observe("a", y[:270])
        for model in ("poisson", "gaussian"):
            bench.ask(Move("a", model))
        if bench is pair[1]:
            bench.crash()
        bench.observe("a", y[270:])
        assert bench.head("a").season.since == season.next_search(270, season.phase_of("a"))


@pytest.mark.parametrize("settings", [ASKED, {}], ids=str)
def test_a_damaged_history_stops_no_observation(bench, settings):
    """None is found in it; one found by the state itself begins with what is not committed."""
    made(bench, **settings)
    y = day(230, 230)
    bench.observe("a", y[:140])
    bench.stop()  # with a checkpoint, so that nothing of the tail is replayed
    key = keys.tail(bench.partition("a"), "a")
    damaged = bench.client.llen(key)
    for at in range(damaged):
        bench.client.lset(key, at, b"?")
    answers = bench.observe("a", y[140:])
    assert [answer["seq"] for answer in answers] == list(range(140, 230))
    assert (bench.head("a").season is None) == (settings != ASKED)
    bench.crash()
    assert bench.observe("a", [5.0])[0]["seq"] == 230
    assert bench.client.lrange(key, 0, damaged - 1) == [b"?"] * damaged
    assert bench.ask(WhatIf("a", {}), status=500)["type"].endswith("/corrupt-state")
