"""Streams that look for seasons by default: once there are many labels, in those that are kept."""

import math

import msgspec
import numpy as np
import pytest

from model_core import season
from model_core.defaults import Defaults
from model_core.upm.builtin import Options, build
from service import wire
from service.store import keys
from service.store.worker_reads import decoded
from service.wire import Configure, Move, Observation, SegmentHistory, WhatIf
from service.worker.filtering import seasons
from service.worker.filtering.history import retained
from tests.service.worker.commands.test_snapshot import export, put
from tests.service.worker.test_seasonal import lose_workers, post_by_kernel
from training.evaluation.online import Settings, follow

LEVELS = (0.05, 0.5, 0.95)
FROM = 150  # in place of 1,000
FIRST, SECOND = 177, 212  # searches of stream "a"
GAUSSIAN = {"model": "gaussian"}


@pytest.fixture(autouse=True)
def _early(monkeypatch):
    monkeypatch.setattr(season, "SEASONS_FROM", FROM)
    monkeypatch.setattr(seasons, "SEASONS_FROM", FROM)


def noise(n, seed=0):
    return (5 + 0.3 * np.random.default_rng(seed).normal(size=n)).tolist()


def day(n=330, step=300, first=0, seed=0):
    """A season of 24 from `first` on, whose level rises at a step."""
    t = np.arange(n)
    y = np.array(noise(n, seed)) + 1.2 * np.sin(2 * np.pi * t / 24) * (t >= first)
    y[step:] += 2.0
    return y.tolist()


def held(bench, stream="a"):
    """The stream as its worker has it."""
    return bench.worker.engine.streams[bench.partition(stream), stream]


def made(bench, stream="a", **settings):
    answer = bench.ask(Configure(stream, {**GAUSSIAN, **settings}), status=201)
    assert answer["settings"]["seasonal"] is None
    return stream


def test_searches_of_a_stream():
    phase = season.phase_of("a")
    assert season.next_search(0, phase) == FIRST
    assert season.next_search(FIRST, phase) == SECOND


@pytest.mark.one_in(2)
@pytest.mark.parametrize("history", [2000, 150])
@pytest.mark.parametrize("model", ["gaussian", "averaged"])
@pytest.mark.parametrize("first", [0, 40])
def test_answers_are_those_of_the_evaluation(bench, model, history, first):
    y = day(first=first)
    y[20] = None
    made(bench, model=model, history=history)
    answers = bench.observe("a", y)
    rows = [[math.nan if value is None else value] for value in y]
    settings = Settings(Defaults(history=history), search_phase=season.phase_of("a"))
    (found,) = follow(build(model, Options()), [rows], settings, LEVELS)
    periods = [each.get("season") for each in answers]
    assert set(map(str, periods[: FIRST - 1])) == {"None"}
    assert periods[-1] == {"periods": [24]}
    told = {each["seq"]: each["event"] for each in answers if each["event"] and each["seq"] >= 20}
    expected = {t: event for t, event in found.events if t >= 20}
    assert {t: (each["id"], each["state"], each["start"]) for t, each in told.items()} == {
        t: (each.id, each.state, each.start) for t, each in expected.items()
    }
    assert any(each.state == "confirmed" and 300 <= t < 324 for t, each in expected.items())
    for name, ours in (
        ("log_score", found.answers.log_score),
        ("changed_probability", found.answers.changed),
        ("anomaly", found.answers.anomaly),
    ):
        theirs = [math.nan if each[name] is None else each[name] for each in answers]
        np.testing.assert_allclose(theirs[21:], ours[21:], rtol=1e-9, atol=1e-9)
    means = [each["predictive"]["mean"] for each in answers[21:]]
    np.testing.assert_allclose(means, found.answers.summary.mean[21:], rtol=1e-9)


def test_a_season_is_found_by_the_first_search_and_kept_from_then_on(bench):
    made(bench)
    answers = bench.observe("a", day(FIRST - 1, FIRST))
    assert held(bench).season is None
    assert b'"season"' not in bench.stored("a")["head"]
    answers += bench.observe("a", day(260, 260)[FIRST - 1 :])
    assert "season" not in answers[FIRST - 2]
    assert answers[FIRST - 1]["season"] == {"periods": [24]}
    assert bench.head("a").season.since == FIRST
    assert held(bench).season.nbytes > 25_000
    means = np.array([each["predictive"]["mean"][0] for each in answers[FIRST:]])
    expected = [5 + 1.2 * math.sin(2 * math.pi * t / 24) for t in range(FIRST, 260)]
    assert np.abs(means - expected).max() < 0.6


def test_streams_without_a_season_keep_nothing_of_seasons(bench):
    made(bench)
    answers = bench.observe("a", noise(300))
    assert held(bench).season is None
    assert bench.head("a").season is None
    assert all("season" not in each for each in answers)
    bench.stop()
    (checkpoint,) = bench.stored("a")["checkpoint"].values()
    assert b'"season"' not in checkpoint
    assert not any(record.offset for record in bench.records("a"))


def test_a_search_is_only_made_where_one_is_due(bench, monkeypatch):
    asked = []
    searched = season.searched
    monkeypatch.setattr(season, "searched", lambda y: asked.append(len(y)) or searched(y))
    made(bench)
    made(bench, "b", history=100)
    made(bench, "c", history=0)
    bench.ask(Configure("d", {**GAUSSIAN, "seasonal": False}), status=201)
    for stream, labels in (("a", {FIRST, SECOND}), ("b", {100}), ("c", {0}), ("d", set())):
        bench.observe(stream, noise(250))
        assert set(asked) == labels
        asked.clear()


def test_lists_by_a_kernel_are_the_same_one_by_one(make_bench, close):
    assert post_by_kernel(make_bench, close, day(), made).periods == [24]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("more", [{}, {"history": 120}, {"warmup": 100}])
def test_nothing_is_lost_with_a_worker(make_bench, close, more):
    """Not even between a search and the commit of what it found: the same is found again."""
    lose_workers(make_bench, close, day(first=60), lambda bench: made(bench, **more))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("history", [2000, 150])
def test_a_batch_that_is_applied_twice_finds_the_same(make_bench, close, history, monkeypatch):
    """The first worker dies before it commits the search; the second has other batches."""
    y = day()
    quiet, troubled = make_bench(db=0), make_bench(db=1)
    found = []
    searched = season.searched
    monkeypatch.setattr(season, "searched", lambda y: found.append(y) or searched(y))
    for bench in (quiet, troubled):
        made(bench, history=history)
        bench.observe("a", y[: FIRST - 5])
    expected = quiet.observe("a", y[FIRST - 5 :])
    worker = troubled.worker

    def lost(*_):
        raise ConnectionError("gone before the commit")

    monkeypatch.setattr(worker._committer, "submit", lost)
    seen = [Observation(y=value) for value in y[FIRST - 5 : FIRST + 20]]
    numbers = troubled.append(wire.Observe("a", seen))
    for _ in range(9):
        if len(found) == 2:
            break
        troubled.turn()
    troubled.crash()
    (outcome,) = troubled.outcomes(numbers)
    answers = [msgspec.json.decode(each) for each in outcome.body]
    answers += troubled.observe("a", y[FIRST + 20 :])
    close(answers, expected)
    assert len(found) == 3
    for each in found[1:]:
        np.testing.assert_array_equal(each, found[0])
    assert troubled.head("a").season == quiet.head("a").season


def test_pending_labels(make_bench, close):
    """Labels that come late, in order, are as if they had come at once."""
    y = day(230, 220)
    prompt, late = make_bench(db=0), make_bench(db=1)
    for bench in (prompt, late):
        made(bench)
        bench.observe("a", y[:150])
    expected = prompt.observe("a", y[150:])
    provisional = late.observe("a", [Observation(y=None, pending=True)] * 80, part=10)
    assert all(each["provisional"] for each in provisional)
    late.crash()
    answers = []
    for t in range(150, 230):
        answers += late.observe("a", [Observation(y=y[t])], seq=t)
    close(answers, expected)
    assert late.head("a").season.since == FIRST


def test_a_snapshot_has_the_season(make_bench, close):
    y = day()
    here, there = make_bench(db=0), make_bench(db=1)
    made(here)
    here.observe("a", y[:200])
    put(there, "a", export(here, "a"))
    assert there.head("a").season == here.head("a").season
    there.crash()
    close(there.observe("a", y[200:]), here.observe("a", y[200:]))


def test_reruns(bench):
    y = day()
    made(bench)
    bench.ask(Configure("never", {**GAUSSIAN, "seasonal": False}), status=201)
    bench.observe("a", y)
    bench.observe("never", y)
    bench.ask(SegmentHistory("a"), status=204)
    hindsight = bench.worker.engine.store.hindsight(bench.partition("a"), "a")
    assert hindsight.starts == [0, pytest.approx(300, abs=1)]
    same = bench.ask(WhatIf("a", {}, series=True))
    plain = bench.ask(WhatIf("never", {}, series=True))
    without = bench.ask(WhatIf("a", {"seasonal": False}, series=True))
    found = bench.ask(WhatIf("never", {"seasonal": None}, series=True))
    assert without["log_score"] == plain["log_score"]
    late = slice(100, None)
    for each in (same, found):
        assert np.mean(each["log_score"][late]) > np.mean(plain["log_score"][late]) + 0.2
        assert [one["start"] for one in each["segmentation"]][1:] == [pytest.approx(300, abs=1)]
    other = bench.ask(WhatIf("a", {"model": "averaged"}, series=True))
    assert np.mean(other["log_score"][late]) > np.mean(plain["log_score"][late]) + 0.2


def test_a_move_to_a_model_without_seasons_ends_them(make_bench, close):
    y = [float(round(10 * value)) for value in day(300, 300)]
    bench, lost = make_bench(db=0), make_bench(db=1)
    found = []
    for each in (bench, lost):
        made(each)
        each.observe("a", y[:250])
        assert each.head("a").season.periods == [24]
        each.ask(Move("a", "poisson"))
        assert each.head("a").season is None
        if each is lost:
            each.crash()
        found.append(each.observe("a", y[250:]))
        assert not any(record.offset for record in each.records("a")[-50:])
    close(found[0], found[1])
    assert held(bench).season is None
    bench.ask(Move("a", "gaussian"))
    bench.observe("a", day(400, 400)[300:])
    assert bench.head("a").season is None or bench.head("a").season.since > 300


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({"model": "poisson"}, [float(round(10 * each)) for each in day(230, 230)]),
        ({"model": "autoregressive", "season": 12}, day(230, 230)),
        ({"model": "gaussian", "location": [0.0, 0.0]}, [[each] * 2 for each in day(230, 230)]),
    ],
)
def test_other_models_do_not_look(bench, settings, labels):
    made(bench, **settings)
    bench.observe("a", labels)
    assert bench.head("a").season is None
    assert held(bench).season is None


@pytest.mark.one_in(2)
@pytest.mark.parametrize("length", [0, 50, 170])
def test_streams_of_earlier_versions_stay_without_seasons(make_bench, close, length):
    bench, never = make_bench(db=0), make_bench(db=1)
    y = day(250, 250)
    for each, settings in ((bench, {}), (never, {"seasonal": False})):
        each.ask(Configure("a", {**GAUSSIAN, **settings}), status=201)
        each.observe("a", y[:length])
    bench.crash()
    key = keys.heads(bench.partition("a"))
    head = decoded(wire.decode_head, bench.client.hget(key, "a"), "head", "a")
    plain = msgspec.msgpack.decode(wire.encode(head))
    assert plain["settings"].pop("seasonal") is None
    bench.client.hset(key, "a", wire.encode(plain))
    assert bench.ask(Configure("a", {"hazard": 0.01}))["settings"]["seasonal"] is False
    close(bench.observe("a", y[length:]), never.observe("a", y[length:]))
    assert bench.head("a").season is None


@pytest.mark.one_in(2)
@pytest.mark.parametrize("batch", [165, 330])
def test_history_of_a_batch_in_which_a_season_is_found_is_whole(bench, batch, monkeypatch):
    monkeypatch.setattr(season, "REPLAYED", 20)  # fewer than are in no chunk yet
    y = day()
    stream = made(bench)
    bench.observe(stream, y, part=batch)
    assert held(bench).live().season.periods == [24]
    kept = retained(held(bench), bench.worker.engine.store, len(y))
    assert [(each.seq, each.y) for each in kept] == list(enumerate(y))
