"""Feedback, other settings tried, other models: each as a stream that saw it all afresh."""

import pytest
import torch

from service.wire import (
    Configure,
    EventFeedback,
    Exclude,
    Move,
    Observation,
    Observe,
    Predict,
    RunLength,
    SetBelief,
    WhatIf,
)
from service.worker.commands import rerun
from tests.service.worker.conftest import Trouble, confirmed, shifted
from tests.service.worker.kinds import KINDS, configure, held, publish, series

KNOWN = {"location": [0.0], "scale": [1.0], "hazard": 0.01}
SHORT = [(2, 0.25), (0, 0.75)]


def supervised(labels, by_seq):
    return [Observation(y=y, changepoint=by_seq.get(i)) for i, y in enumerate(labels)]


def standing(bench, stream):
    return [each for each in bench.events(stream) if each.state != "withdrawn"]


def states(bench, stream, id_):
    """States of an event in the feed, in order."""
    events = [entry.raised.event for entry in bench.feed(stream)]
    return [event.state for event in events if event.id == id_]


def same_belief(bench, close, one, other, x=None):
    found, expected = bench.ask(RunLength(one)), bench.ask(RunLength(other))
    assert found["warming_up"] == expected["warming_up"]
    close(found["belief"], expected["belief"])
    found, expected = bench.ask(Predict(one, x)), bench.ask(Predict(other, x))
    close(found["predictions"], expected["predictions"])


def kept(bench, stream):
    engine = bench.worker.engine
    own = engine.streams[bench.partition(stream), stream]
    return own.tail.retained(own.live(), engine.store, 5000)


# --- moves --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "at"),
    [("gaussian", "averaged", 9), ("averaged", "gaussian", 90)],
)
def test_a_moved_stream_is_one_that_was_always_there(bench, close, before, after, at):
    observations = series(KINDS["gaussian"], 120)
    for stream, model in (("a", before), ("b", after)):
        configure(bench, stream, KINDS[model])
        bench.observe(stream, observations[:at])
    assert bench.ask(Move("a", after))["model"] == after
    same_belief(bench, close, "a", "b")
    bench.crash()
    same_belief(bench, close, "a", "b")
    found, expected = (bench.observe(stream, observations[at:]) for stream in "ab")
    for one, other in zip(found, expected, strict=True):
        close({**one, "stream": "b", "event": None}, {**other, "event": None})
    assert [record.seq for record in bench.records("a")] == list(range(120))


def test_a_move_reruns_what_is_retained(bench, close):
    observations = [Observation(y=y) for y in shifted(0, 4, each=150)]
    configure(bench, "a", KINDS["gaussian"], history=100)
    bench.observe("a", observations)
    first = bench.records("a")[0].seq
    bench.ask(Move("a", "averaged"))
    begun = kept(bench, "a")[0].seq
    assert first - 63 <= begun <= first
    configure(bench, "b", KINDS["averaged"])
    bench.observe("b", observations[begun:])
    close(bench.believed("a"), bench.believed("b"))
    assert bench.ask(RunLength("a"))["seq"] == 299
    bench.crash()
    assert bench.records("a")[0].seq == first
    bench.observe("a", observations[:40])
    assert bench.head("a").seq == 340


def test_a_model_that_does_not_fit_changes_nothing(bench):
    bench.observe("a", shifted(0, 3))
    before = bench.stored("a")
    refused = {
        "poisson": "label-out-of-range",
        "nothing": "unknown-model",
        "linear": "dimension-mismatch",
        "categorical": "unfit-settings",
    }
    for model, slug in refused.items():
        assert bench.ask(Move("a", model), status=422)["type"].endswith(f"/{slug}"), model
        assert bench.stored("a") == before


def test_events_go_on_under_their_ids(bench):
    bench.ask(Configure("a", {"warmup": 10}), status=201)
    bench.observe("a", shifted(0, 6, 0))
    before = bench.events("a")
    assert [each.state for each in before] == ["confirmed", "confirmed"]
    bench.ask(Move("a", "averaged"))
    assert bench.events("a") == before
    bench.observe("a", shifted(8))
    after = bench.events("a")
    assert after[:2] == before
    assert [each.id for each in after] == [1, 2, 3]
    assert abs(after[2].start - 120) <= 2


def test_what_a_move_confirms_is_news_once(bench):
    """However long ago its start was estimated anew; another estimate is none."""
    bench.ask(Configure("a", {**KNOWN, "model": "gaussian", "confirm_after": 1000}), status=201)
    bench.observe("a", shifted(0, 4))
    bench.ask(Configure("a", {"false_alarm_every": 1000.0}))
    bench.ask(Move("a", "averaged"))
    (event,) = standing(bench, "a")
    assert (event.state, event.confirmed_at < 70, event.news) == ("confirmed", True, True)
    bench.ask(Move("a", "gaussian"))
    told = [entry.raised.event for entry in bench.feed("a")]
    assert sum(one.news for one in told if one.state == "confirmed") == 1


# --- feedback -----------------------------------------------------------------------------------


def test_what_was_a_change_is_confirmed_however_small(bench):
    for name, least in (("a", {"min_size": 5.0}), ("b", {"min_shift": 5.0})):
        bench.ask(Configure(name, {**KNOWN, **least}), status=201)
        bench.observe(name, shifted(0, 2))
        (event,) = standing(bench, name)
        assert event.state == "suspected"
        bench.ask(EventFeedback(name, change=True, event=event.id))
        bench.observe(name, [2.0])
        (event,) = standing(bench, name)
        assert (event.state, event.verdict, abs(event.size) < 5) == ("confirmed", True, True)


def test_what_was_no_change_is_one_regime(bench, close):
    labels = shifted(0, 3, 3, each=30)
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", labels)
    (event,) = standing(bench, "a")
    answer = bench.ask(EventFeedback("a", change=False, event=event.id))
    assert (answer["event"]["state"], answer["event"]["verdict"]) == ("withdrawn", False)
    bench.ask(Configure("b", KNOWN), status=201)
    bench.observe("b", supervised(labels, dict.fromkeys(range(1, 90), 0.0)))
    same_belief(bench, close, "a", "b")
    assert [e.verdict for e in bench.events("a") if e.id == event.id] == [False]
    # Confirmed once more where its start was estimated anew.
    assert states(bench, "a", event.id) == ["suspected", "confirmed", "confirmed", "withdrawn"]
    bench.crash()
    same_belief(bench, close, "a", "b")
    assert [r.changepoint for r in bench.records("a")] == [None] + 89 * [0.0]


def test_a_missed_one_is_reported(bench, close):
    labels = shifted(0, 0.7, each=30)
    settings = {**KNOWN, "hazard": 1e-6}
    bench.ask(Configure("a", settings), status=201)
    bench.observe("a", labels)
    assert bench.events("a") == []
    event = bench.ask(EventFeedback("a", change=True, start=30))["event"]
    assert (event["start"], event["verdict"], event["state"]) == (30, True, "confirmed")
    bench.ask(Configure("b", settings), status=201)
    bench.observe("b", supervised(labels, {30: 1.0}))
    same_belief(bench, close, "a", "b")
    assert [each.start for each in bench.events("a")] == [30]
    (one,), (other,) = bench.observe("a", [0.5]), bench.observe("b", [0.5])
    close(one["changed_probability"], other["changed_probability"])


def test_feedback_stays_with_its_event(bench):
    """When it is confirmed later, and when feedback on another one comes."""
    bench.ask(Configure("a", {**KNOWN, "confirm_after": 40}), status=201)
    bench.observe("a", shifted(0, 4, each=30))
    (event,) = standing(bench, "a")
    assert event.state == "suspected"
    bench.ask(EventFeedback("a", change=True, event=event.id))
    bench.observe("a", shifted(4, each=30))
    (event,) = standing(bench, "a")
    assert (event.state, event.verdict) == ("confirmed", True)
    bench.ask(Configure("s", {**KNOWN, "confirm_after": 40}), status=201)
    bench.observe("s", shifted(0, 4, each=30))
    (suspected,) = standing(bench, "s")
    bench.ask(EventFeedback("s", change=False, event=suspected.id))
    assert states(bench, "s", suspected.id) == ["suspected", "withdrawn"]
    bench.ask(Configure("b", KNOWN), status=201)
    bench.observe("b", shifted(0, 5, 0))
    first, second = standing(bench, "b")
    bench.ask(EventFeedback("b", change=False, event=second.id))
    bench.ask(EventFeedback("b", change=True, event=first.id))
    first, second = (e for e in bench.events("b") if e.id in (first.id, second.id))
    assert (first.state, first.verdict) == ("confirmed", True)
    assert (second.state, second.verdict) == ("withdrawn", False)
    assert bench.head("b").track.confirmed_start == first.start == 40


def test_feedback_on_what_is_not_there_changes_nothing(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", shifted(0, 5))
    bench.observe("w", [1.0, 2.0])
    before = bench.stored("a")
    for command, status, slug in (
        (EventFeedback("a", change=False, event=9), 404, "unknown-event"),
        (EventFeedback("a", change=True, start=0), 409, "not-retained"),
        (EventFeedback("a", change=True, start=80), 409, "not-retained"),
        (EventFeedback("w", change=True, start=1), 409, "warming-up"),
    ):
        assert bench.ask(command, status=status)["type"].endswith(slug), command
        assert bench.stored("a") == before
    for start in (1, 79):
        bench.ask(EventFeedback("a", change=True, start=start))


# --- exclusion from learning --------------------------------------------------------------------


def frozen(labels, start, end):
    """As if what is excluded were missing, and certainly no change."""
    seen = [Observation(y=y) for y in labels]
    return [*seen[:start], *[Observation(changepoint=0.0)] * (end - start), *seen[end:]]


@pytest.mark.parametrize("model", ["gaussian", "averaged"])
def test_the_regime_before_an_excluded_change_goes_on(bench, close, model):
    """Until the change that ended it: the belief is that of a stream that never saw it."""
    labels = shifted(0, 5, 0)
    settings = {**KNOWN, "model": model}
    bench.ask(Configure("a", settings), status=201)
    bench.observe("a", labels)
    up, down = confirmed(bench, "a")
    answer = bench.ask(Exclude("a", event=up.id))
    assert (answer["start"], answer["end"]) == (up.start, down.start)
    assert [each["id"] for each in answer["events"]] == [up.id, down.id]
    bench.ask(Configure("b", settings), status=201)
    bench.observe("b", frozen(labels, up.start, down.start))
    same_belief(bench, close, "a", "b")
    bench.crash()
    same_belief(bench, close, "a", "b")
    after = confirmed(bench, "a")
    assert [(each.id, each.excluded, each.news) for each in after] == [
        (up.id, True, False),
        (down.id, True, False),
    ]
    assert bench.head("a").track.last_event is None
    own = [(each.state, each.start) for each in standing(bench, "a") if not each.excluded]
    assert own == [(each.state, each.start) for each in standing(bench, "b")]
    records = bench.records("a")
    assert [record.posted for record in records] == labels
    assert [record.excluded is not None for record in records] == [
        up.start <= i < down.start for i in range(120)
    ]
    found, expected = (bench.observe(stream, shifted(4, seed=3)) for stream in "ab")
    close(
        [each["changed_probability"] for each in found],
        [each["changed_probability"] for each in expected],
    )
    *_, last = confirmed(bench, "a")
    assert (last.id > down.id, abs(last.start - 120) <= 1, last.excluded) == (True, True, False)


def test_what_goes_on_is_excluded_up_to_now(bench):
    """What comes after it counts: at the same level it is a change that begins there."""
    labels = shifted(0, 5, 5)
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", labels[:80])
    (event,) = confirmed(bench, "a")
    assert bench.ask(Exclude("a", event=event.id))["end"] == 80
    assert bench.ask(RunLength("a"))["belief"][-1]["run_length"] == 79
    bench.observe("a", labels[80:])
    first, second = confirmed(bench, "a")
    assert (first.id, first.excluded) == (event.id, True)
    assert (second.start, second.excluded) == (80, False)


def test_it_is_taken_back(bench, close):
    """The stream is one that it never was excluded from; its events have their ids."""
    labels = shifted(0, 5, 0)
    for stream in "ab":
        bench.ask(Configure(stream, KNOWN), status=201)
        bench.observe(stream, labels)
    before = confirmed(bench, "a")
    bench.ask(Exclude("a", event=before[0].id))
    bench.ask(Exclude("a", event=before[0].id, excluded=False))
    same_belief(bench, close, "a", "b")
    after = confirmed(bench, "a")
    assert [(each.id, each.start, each.excluded) for each in after] == [
        (each.id, each.start, False) for each in before
    ]
    assert all(record.excluded is None for record in bench.records("a"))
    assert [record.y for record in bench.records("a")] == labels


def test_a_span_without_an_event(bench, close):
    """Also of a stream with stated changes, which are as they were once it counts again."""
    labels = shifted(0)
    seen = [*labels[:20], Observation(y=40.0, changepoint=0.25), *labels[20:]]
    for stream in "ab":
        bench.ask(Configure(stream, KNOWN), status=201)
        bench.observe(stream, seen)
    answer = bench.ask(Exclude("a", start=20, end=21))
    assert (answer["start"], answer["end"], answer["events"]) == (20, 21, [])
    bench.ask(Configure("c", KNOWN), status=201)
    bench.observe("c", [*labels[:20], Observation(changepoint=0.0), *labels[20:]])
    same_belief(bench, close, "a", "c")
    bench.ask(Exclude("a", start=20, end=21, excluded=False))
    same_belief(bench, close, "a", "b")
    assert bench.records("a")[20].changepoint == 0.25


def test_a_suspicion_of_what_is_excluded_ends(bench):
    bench.ask(Configure("a", {**KNOWN, "confirm_after": 40}), status=201)
    bench.observe("a", shifted(0, 4, each=30))
    (event,) = standing(bench, "a")
    bench.ask(Exclude("a", event=event.id))
    assert states(bench, "a", event.id)[-1] == "withdrawn"
    assert all(each.start < 30 for each in standing(bench, "a"))


@pytest.mark.parametrize("kind", ["cut_before", "cut_after", "fenced"])
def test_it_is_excluded_once_whatever_fails(bench, close, kind):
    labels = shifted(0, 5, 0)
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", labels[:80])
    (event,) = confirmed(bench, "a")
    numbers = bench.append(Exclude("a", event=event.id))
    numbers += bench.append(Observe("a", [Observation(y=y) for y in labels[80:]]))
    Trouble(bench, kind).crash()
    assert [each.status for each in bench.outcomes(numbers)] == [200, 200]
    bench.ask(Configure("b", KNOWN), status=201)
    bench.observe("b", frozen(labels, event.start, 80))
    same_belief(bench, close, "a", "b")
    assert [each.excluded for each in confirmed(bench, "a")] == [True]


def test_other_settings_are_tried_without_what_is_excluded(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", shifted(0, 5, 0))
    bench.ask(Exclude("a", event=confirmed(bench, "a")[0].id))
    tried = bench.ask(WhatIf("a", {}))["events"]
    assert "confirmed" not in {each["state"] for each in tried}
    bench.ask(Move("a", "averaged"))
    assert bench.head("a").track.last_event is None


def test_a_snapshot_has_it(bench, close):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", shifted(0, 5, 0))
    bench.ask(Exclude("a", event=confirmed(bench, "a")[0].id))
    bench.put("c", bench.export("a"))
    same_belief(bench, close, "a", "c")
    assert bench.records("c") == bench.records("a")


def test_what_cannot_be_excluded_changes_nothing(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", shifted(0, 5))
    bench.observe("w", [1.0, 2.0])
    before = bench.stored("a")
    for command, status, slug in (
        (Exclude("a", event=9), 404, "unknown-event"),
        (Exclude("a", start=0), 409, "not-retained"),
        (Exclude("a", start=80), 409, "not-retained"),
        (Exclude("a", start=20, end=20), 409, "not-retained"),
        (Exclude("a", start=20, end=81), 409, "not-retained"),
        (Exclude("w", start=1), 409, "warming-up"),
    ):
        assert bench.ask(command, status=status)["type"].endswith(slug), command
        assert bench.stored("a") == before


# --- what if ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["averaged", "averaged-held", "alpaca"])
def test_under_the_same_settings_a_rerun_is_the_stream(bench, close, tmp_path, name):
    """Its scores, events and last beliefs."""
    publish(tmp_path / "models")
    kind = KINDS[name]
    configure(bench, "a", kind)
    present = [answer["log_score"] for answer in bench.observe("a", series(kind, 120))]
    before = bench.stored("a")
    answer = bench.ask(WhatIf("a", {}, series=True, beliefs=20))
    assert bench.stored("a") == before
    # Those of the warm-up were answered before the filter ran.
    fewest = 20 if kind.label is held else 60
    assert len([new for new in answer["log_score"][40:] if new is not None]) > fewest
    close(answer["log_score"][40:], present[40:])
    assert [each["start"] for each in answer["events"]] == [e.start for e in bench.events("a")]
    assert [each["seq"] for each in answer["beliefs"]] == list(range(100, 120))
    last, now = answer["beliefs"][-1], bench.believed("a")
    probable = {r: p for r, p in now.items() if p >= 1e-4}
    assert last["run_length"] == list(probable)
    assert last["probability"] == pytest.approx(list(probable.values()), abs=1e-6)
    for each in answer["beliefs"]:
        assert 0.99 < sum(each["probability"]) < 1.0001
    assert "beliefs" not in bench.ask(WhatIf("a", {}))


@pytest.mark.parametrize("there", [{}, {"confirm_after": 10}])
def test_under_other_settings_it_is_as_if_they_had_been_given(bench, close, there):
    labels = [Observation(y=y) for y in shifted(0, 2, 0, each=50)]
    bench.ask(Configure("a", {**KNOWN, **there}), status=201)
    bench.observe("a", labels)
    fast = {"hazard": 0.2, "confirm_after": 3, "outlier_rate": 0.0, "max_hypotheses": 20}
    for i, tried in enumerate(({}, fast, {"false_alarm_every": 300.0})):
        answer = bench.ask(WhatIf("a", tried, series=True))
        name = f"b{i}"
        bench.ask(Configure(name, {**KNOWN, **(tried or there)}), status=201)
        expected = bench.observe(name, labels)
        close(answer["log_score"], [each["log_score"] for each in expected])
        close(answer["changed_probability"], [each["changed_probability"] for each in expected])
        times = [(e["start"], e["suspected_at"], e["confirmed_at"]) for e in answer["events"]]
        assert times == [(e.start, e.suspected_at, e.confirmed_at) for e in bench.events(name)]
        assert any(at is not None for *_, at in times)
        assert answer["settings"] == bench.ask(Configure(name, {}))["settings"]
        assert answer["compared"] == 150


def test_reruns_are_bounded(make_bench):
    bench = make_bench(max_replay=70)
    bench.ask(Configure("a", {**KNOWN, "max_hypotheses": 500}), status=201)
    bench.observe("a", [None] * 300)  # so that all run lengths are probable
    answer = bench.ask(WhatIf("a", {"hazard": 0.02}, beliefs=500))
    assert 300 - 70 - 63 <= answer["first"] <= 300 - 70
    assert len(answer["beliefs"]) == 300 - answer["first"]
    assert max(len(each["run_length"]) for each in answer["beliefs"]) == 64
    refused = bench.ask(WhatIf("a", {"model": "categorical"}), status=422)
    assert refused["type"].endswith("unfit-settings")


def test_settings_that_only_the_model_before_could_use_are_there_for_the_way_back(bench, close):
    shaped = {"model": "autoregressive", "order": 2, **KNOWN}
    labels = [0.1 * (at % 7) for at in range(60)]
    for name in ("moved", "stayed"):
        bench.ask(Configure(name, shaped), status=201)
        bench.observe(name, labels)
    bench.ask(Move("moved", "gaussian"))
    assert bench.head("moved").settings.order == 2
    bench.ask(WhatIf("moved", {"order": 2, "model": "autoregressive"}))
    refused = bench.ask(WhatIf("moved", {"order": 3}), status=422)
    assert (refused["type"].rpartition("/")[2], refused["field"]) == ("unfit-settings", "order")
    bench.put("copy", bench.export("moved"))
    bench.ask(Move("moved", "autoregressive"))
    same_belief(bench, close, "moved", "stayed")


# --- overridden beliefs -------------------------------------------------------------------------


def overridden(bench, stream, at, y, belief=SHORT, **settings):
    """A stream with an override before the observation `at`."""
    bench.ask(Configure(stream, {**KNOWN, "hazard": 0.02, **settings}), status=201)
    bench.observe(stream, y[:at])
    bench.ask(SetBelief(stream, belief))
    bench.observe(stream, y[at:])


def outcome(steps):
    """What a generator returns in the end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def check_rerun(bench, stream):
    """A rerun without any correction is the stream as it is."""
    bench.ask(RunLength(stream))
    engine = bench.worker.engine
    held = engine.streams[bench.partition(stream), stream]
    with torch.inference_mode():
        again = outcome(rerun.rerun_corrected(engine, held, kept(bench, stream)))
        states = [each.slab.batch([each.row])[0] for each in (held, again.stream)]
        again.stream.leave()
    for part in ("belief", "stats"):
        for one, other in zip(*(getattr(state, part) for state in states), strict=True):
            torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
    for name in ("seq", "best_start", "map_run_length", "belief_override"):
        assert getattr(again.head, name) == getattr(held.live(), name), name
    assert again.head.track.confirmed_start == held.live().track.confirmed_start
    expected = held.live().changed_probability
    assert again.head.changed_probability == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("at", "belief"), [(1, [(0, 1.0)]), (30, SHORT), (60, SHORT)])
def test_a_rerun_makes_an_override_again_where_it_was_made(bench, at, belief):
    overridden(bench, "a", at, shifted(0, each=60), belief)
    check_rerun(bench, "a")


def test_several_overrides_in_one_place_are_the_last_and_stay_with_the_record(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", shifted(0, each=20))
    bench.ask(SetBelief("a", [(0, 0.2), (4, 0.3), (19, 0.5)]))
    bench.ask(SetBelief("a", [(4, 0.9), (19, 0.1), (0, 0.0)]))
    bench.observe("a", shifted(0, each=20, seed=6))
    check_rerun(bench, "a")
    overrides = {
        r.seq: r.belief_override for r in bench.records("a") if r.belief_override is not None
    }
    assert overrides == {20: [(4, 0.9), (19, 0.1)]}


@pytest.mark.parametrize("at", [30, 60])
def test_moves_and_feedback_take_overrides_along(bench, at):
    """Feedback that says nothing new leaves the belief."""
    y = supervised(shifted(0, each=60), {10: 1.0})
    for stream, model in (("a", "gaussian"), ("b", "averaged")):
        overridden(bench, stream, at, y, model=model)
    before = bench.believed("a")
    bench.ask(EventFeedback("a", change=True, start=10))
    assert bench.believed("a") == pytest.approx(before, abs=1e-9)
    bench.ask(Move("a", "averaged"))
    assert bench.believed("a") == pytest.approx(bench.believed("b"), abs=1e-9)
    bench.crash()
    for each in ("a", "b"):
        bench.observe(each, shifted(0, each=30, seed=8))
    assert bench.believed("a") == pytest.approx(bench.believed("b"), abs=1e-9)


def test_later_feedback_is_stronger_than_an_override(bench):
    """That a regime began at 27 was the override's word; the feedback says that none did."""
    y = [*shifted(0, each=27, seed=5), *shifted(3, each=33, seed=5)]
    overridden(bench, "a", 30, y, [(2, 1.0)])
    assert {59 - r for r, p in bench.believed("a").items() if p > 0.5} == {27}
    (event,) = standing(bench, "a")
    bench.ask(EventFeedback("a", change=False, event=event.id))
    assert {59 - r for r, p in bench.believed("a").items() if p > 0.5} == {0}
