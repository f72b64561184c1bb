"""Observations in planned windows: a stream goes on as if their labels were missing."""

import pytest

from model_core import Detector
from service.wire import Configure, Ingest, Observation, Observe, PlannedSpan, RunLength
from tests.remote_write import raw
from tests.service.worker.conftest import NOW_MS, Trouble, confirmed, shifted
from tests.service.worker.kinds import ALIKE, KINDS, configure, kinds, publish, series

KNOWN = {"model": "gaussian", "location": [0.0], "scale": [1.0], "hazard": 0.01}
SPAN = PlannedSpan("backups", (), NOW_MS - 1, NOW_MS + 1)
MISSING = Observation(y=None, changepoint=0.0)


def minute(i):
    return f"2024-05-01T{i // 60:02}:{i % 60:02}:00Z"


def window(first, last, name="backups", match=()):
    """From the minute `first` to before `last`."""
    start_ms = 1_714_521_600_000  # 2024-05-01
    return PlannedSpan(name, match, start_ms + 60_000 * first, start_ms + 60_000 * last)


def within(bench, planned, observe):
    bench.planned = planned
    answers = observe()
    bench.planned = None
    return answers


@pytest.mark.parametrize("name", kinds(KINDS.keys() - ALIKE))
def test_the_belief_is_as_if_labels_were_missing(bench, close, tmp_path, name):
    """For every model: only an input that is a part of its evidence still counts."""
    publish(tmp_path / "models")
    kind = KINDS[name]
    seen = series(kind, 45, plain=True)
    for stream in "ab":
        configure(bench, stream, kind)
        bench.observe(stream, seen[:25])
    missing = [Observation(x=each.x, changepoint=0.0) for each in seen[25:35]]
    within(bench, [SPAN], lambda: bench.observe("a", seen[25:35]))
    # As many in a step: by that the last digits of a network's features differ.
    within(bench, [window(0, 1)], lambda: bench.observe("b", missing))
    assert bench.believed("a") == bench.believed("b")
    ours, theirs = (bench.observe(stream, seen[35:]) for stream in "ab")
    for one, other in zip(ours, theirs, strict=True):
        assert {**one, "stream": "b"} == other
    records = bench.records("a")
    assert [record.posted for record in records] == [each.y for each in seen]
    windows = [record.excluded and record.excluded.window for record in records]
    assert windows == [None] * 25 + ["backups"] * 10 + [None] * 10


def test_a_detector_that_is_told_so_says_the_same(bench):
    labels = shifted(0, 6, 0, each=40)
    detector = Detector(**{**KNOWN, "location": 0.0, "scale": 1.0})
    bench.ask(Configure("a", KNOWN), status=201)
    answers = bench.observe("a", labels[:40])
    answers += within(bench, [SPAN], lambda: bench.observe("a", labels[40:80]))
    bench.crash()
    answers += bench.observe("a", labels[80:])
    for i, (y, answer) in enumerate(zip(labels, answers, strict=True)):
        ours = detector.update(None, changepoint=0.0) if 40 <= i < 80 else detector.update(y)
        assert ours.to_dict()["run_length"] == answer["run_length"]
        assert ours.to_dict()["log_score"] == answer["log_score"]
        assert ours.to_dict()["changed_probability"] == answer["changed_probability"]
    assert confirmed(bench, "a") == []
    ours = [(each.id, each.state, each.start) for each in detector.events]
    standing = [each for each in bench.events("a") if each.state != "withdrawn"]
    assert ours == [(each.id, each.state, each.start) for each in standing]


def test_the_regime_before_a_window_goes_on_after_it(bench, close):
    """What comes back is no change; what stays is one, and begins after the window."""
    for stream, levels in (("back", (0, 6, 0)), ("stays", (0, 6, 6))):
        labels = shifted(*levels)
        bench.ask(Configure(stream, KNOWN), status=201)
        bench.observe(stream, labels[:40])
        before = bench.believed(stream)
        bench.planned = [SPAN]
        answers = bench.observe(stream, labels[40:80])
        bench.planned = None
        close({r - 40: p for r, p in bench.believed(stream).items()}, before)
        assert {each["log_score"] for each in answers} == {None}
        assert {each["event"] for each in answers} == {None}
        bench.observe(stream, labels[80:])
    assert confirmed(bench, "back") == []
    (event,) = confirmed(bench, "stays")
    assert (event.start, event.suspected_at >= 80) == (80, True)


@pytest.mark.parametrize("level", [1.5, 3, 6])
@pytest.mark.parametrize("length", [1, 40, 300])
def test_what_stays_is_confirmed_as_soon_as_if_it_began_after_the_window(bench, level, length):
    """However long the window was: its labels are no evidence, then or later."""
    before = shifted(0)
    after = shifted(level, seed=5)
    within_labels = shifted(level, each=length, seed=4)
    for stream in ("window", "none"):
        bench.ask(Configure(stream, KNOWN), status=201)
        bench.observe(stream, before)
    within(bench, [SPAN], lambda: bench.observe("window", within_labels))
    for stream in ("window", "none"):
        bench.observe(stream, after)
    (late,), (soon,) = confirmed(bench, "window"), confirmed(bench, "none")
    assert (late.start - length, late.confirmed_at - length) == (soon.start, soon.confirmed_at)


@pytest.mark.parametrize("rule", [{"false_alarm_every": 1e7}, {"confirm_after": 5}])
def test_nothing_is_confirmed_in_a_window(bench, rule):
    """Also what is suspected before it waits for the first observation after it."""
    labels = shifted(0, 3, each=40)
    bench.ask(Configure("a", {**KNOWN, **rule}), status=201)
    bench.observe("a", labels[:44])
    before = bench.events("a")
    assert before[-1].state == "suspected"
    within(bench, [SPAN], lambda: bench.observe("a", labels[44:60]))
    assert bench.events("a") == before
    bench.observe("a", labels[60:])
    (event,) = confirmed(bench, "a")
    assert event.id == before[-1].id
    assert event.start == 40
    assert event.confirmed_at >= 60


def test_selectors_decide_by_tags_at_the_time(bench):
    spans = [PlannedSpan("eu", ('{region="eu"}',), NOW_MS, NOW_MS + 1)]
    bench.ask(Configure("a", {**KNOWN, "tags": {"region": "eu"}}), status=201)
    bench.ask(Configure("b", {**KNOWN, "tags": {"region": "us"}}), status=201)
    for stream in "ab":
        within(bench, spans, lambda stream=stream: bench.observe(stream, [1.0]))
    bench.ask(Configure("a", {"tags": {}}))
    within(bench, spans, lambda: bench.observe("a", [2.0]))
    assert [each.excluded is not None for each in bench.records("a")] == [True, False]
    assert [each.excluded for each in bench.records("b")] == [None]
    made = Ingest(
        "c", [Observation(y=1.0, time=minute(0))], settings=raw({"tags": {"region": "eu"}})
    )
    eu = [window(0, 1, match=('{region="eu"}',))]
    within(bench, eu, lambda: bench.ask(made))
    assert [each.excluded.window for each in bench.records("c")] == ["backups"]


def test_the_time_of_an_observation_decides(bench):
    seen = [Observation(y=float(i), time=minute(i)) for i in range(6)]
    bench.ask(Configure("a", KNOWN), status=201)
    spans = [window(1, 2, "one"), window(3, 5, "two"), window(4, 5, "three")]
    within(bench, spans, lambda: bench.observe("a", seen))
    names = [each.excluded and each.excluded.window for each in bench.records("a")]
    assert names == [None, "one", None, "two", "two", None]


def test_rows_of_many_streams_are_in_the_windows_for_each(bench):
    """Also the first of a stream, and those whose streams would otherwise be at rest."""
    streams = [name for name in map(str, range(20)) if bench.partition(name) == 0][:4]
    for stream in streams[1:]:
        tags = {"region": "eu"} if stream == streams[1] else {}
        bench.ask(Configure(stream, {**KNOWN, "tags": tags}), status=201)
        bench.observe(stream, shifted(0))
    spans = [window(10, 12, "eu", ('{region="eu"}',)), window(11, 12, "all")]
    seen = [[Observation(y=50.0, time=minute(i)) for i in (9, 10, 11)] for _ in streams]
    commands = [Observe(name, own) for name, own in zip(streams, seen, strict=True)]
    within(bench, spans, lambda: bench.send_rows(*commands))
    for stream in streams:
        names = [each.excluded and each.excluded.window for each in bench.records(stream)[-3:]]
        assert names == [None, "eu" if stream == streams[1] else None, names[2]]
        assert names[2] == ("eu" if stream == streams[1] else "all")
        assert [each.posted for each in bench.records(stream)[-3:]] == [50.0] * 3


def test_a_label_that_comes_late_is_of_the_time_of_its_input(bench):
    bench.ask(Configure("a", {**KNOWN, "label_window": 10}), status=201)
    within(bench, [SPAN], lambda: bench.observe("a", [Observation(pending=True)]))
    bench.observe("a", [Observation(pending=True)])
    bench.ask(Observe("a", [Observation(y=1.0)], seq=0))
    within(bench, [SPAN], lambda: bench.ask(Observe("a", [Observation(y=2.0)], seq=1)))
    first, second = bench.records("a")
    assert (first.y, first.posted, first.excluded.window) == (None, 1.0, "backups")
    assert (second.y, second.excluded) == (2.0, None)


def test_a_label_that_does_not_fit_is_refused_there_too(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.planned = [SPAN]
    (problem,) = bench.observe("a", [Observation(y=[1.0, 2.0])], status=422)
    assert problem["type"].endswith("dimension-mismatch")


def test_the_warm_up_waits_for_labels_that_count(bench):
    labels = shifted(0, each=40)
    within(bench, [SPAN], lambda: bench.observe("a", [1e6] * 30))
    assert bench.ask(RunLength("a"))["warming_up"]
    bench.observe("a", labels)
    assert abs(bench.head("a").location[0]) < 1


@pytest.mark.parametrize("kind", ["cut_before", "cut_after", "fenced"])
def test_whatever_fails_the_windows_are_those_of_the_log(bench, kind):
    """What is applied once more after a crash is in the windows that it was in."""
    labels = shifted(0, 5, 0, each=30)
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", labels[:30])
    bench.planned = [SPAN]
    numbers = bench.append(Observe("a", [Observation(y=y) for y in labels[30:60]]))
    bench.planned = None
    numbers += bench.append(Observe("a", [Observation(y=y) for y in labels[60:]]))
    Trouble(bench, kind).crash()
    bench.outcomes(numbers)
    bench.ask(Configure("b", KNOWN), status=201)
    bench.observe("b", [*labels[:30], *[MISSING] * 30, *labels[60:]])
    assert bench.believed("a") == bench.believed("b")
    assert [each.excluded is not None for each in bench.records("a")] == (
        [False] * 30 + [True] * 30 + [False] * 30
    )
