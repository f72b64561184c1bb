"""What is shown of committed state."""

from itertools import pairwise

import msgspec
from msgspec.structs import replace

from moca_client.responses import Segment, StreamSummary
from model_core.stream.events import Track
from service.schema import rendering
from service.wire import (
    Event,
    Head,
    KnownRegime,
    Pace,
    SeasonPeriods,
    StoredHindsight,
    StreamSettings,
)
from tests.stored import record


def head(**more):
    return Head(1, StreamSettings(model="gaussian"), **more)


def shown(answer):
    return msgspec.json.decode(msgspec.json.encode(answer))


def records(pointers, first=0):
    return [record(first + i, previous_start=previous) for i, previous in enumerate(pointers)]


def test_a_segmentation_follows_pointers_back_from_the_last_start():
    segments = rendering.segmentation(
        head(warm=True, seq=70, best_start=50),
        [record(t, previous_start={0: -1, 50: 20, 30: 0, 20: 12}.get(t, 0)) for t in range(70)],
        [],
    )
    # 50 came from 20, and 20 from 12, which is as near as its own beginning.
    assert segments == [Segment(0, 12), Segment(12, 20), Segment(20, 50), Segment(50, 70)]
    segments = rendering.segmentation(head(warm=True, seq=3), records([-1, 0, 0]), [])
    assert segments == [Segment(0, 3)]


def test_a_segmentation_begins_with_what_is_retained():
    kept = records([11] * 20, first=12)
    segments = rendering.segmentation(head(warm=True, seq=32, best_start=23), kept, [])
    assert segments == [Segment(12, 23), Segment(23, 32)]
    segments = rendering.segmentation(head(warm=True, seq=32, best_start=3), kept, [])
    assert segments == [Segment(12, 32)]
    assert rendering.segmentation(head(warm=True), [], []) == []
    assert rendering.segmentation(head(seq=2), records([-1, -1]), []) == []


def test_no_confirmed_change_is_taken_from_a_segmentation():
    """The best path and hindsight add what is farther than 10 observations from all others."""
    for confirmed, path, hindsight, expected in (
        ([40], [0], [0], [0, 40]),
        ([40, 45], [0, 43, 80], [0, 85], [0, 40, 45, 80]),  # confirmed ones may be close
        ([40], [0, 50], [0, 30], [0, 40]),  # 10 apart is near, 11 is not
        ([40], [0, 51], [0, 29], [0, 29, 40, 51]),
        ([], [0, 50, 55], [0, 20, 25], [0, 20, 25, 50, 55]),  # as are those of one path
        ([4], [0], [0], [0, 4]),
        ([], [0, 10], [0, 9], [0]),  # so close to the first it is a change if confirmed alone
        ([], [0, 11], [0], [0, 11]),
        ([], [0], [0, 89], [0, 89]),  # hindsight knew little of its last 10
        ([], [0], [0, 90], [0]),
        ([], [0], [30, 40, 60], [0, 60]),  # and of its first, which is no change itself
        ([20, 40, 120], [30, 60], [0, 20, 80], [30, 40, 60, 80]),  # of what is retained
        ([30], [30, 60], [], [30, 60]),
    ):
        events = [Event(i, "confirmed", start, start) for i, start in enumerate(confirmed, 1)]
        events += [
            Event(7, "withdrawn", 70, 70),
            Event(8, "suspected", 70, 70),
            Event(9, "confirmed", 70, 70, excluded=True),
            Event(70, "confirmed", 70, 70, kind="anomaly"),
        ]
        first = path[0]
        pointers = dict(pairwise(reversed(path)))
        kept = [record(t, previous_start=pointers.get(t, -1)) for t in range(first, 100)]
        stored = StoredHindsight(1, hindsight[0], 100, hindsight, 0) if hindsight else None
        stream = head(warm=True, seq=100, best_start=path[-1])
        segments = rendering.segmentation(stream, kept, events, stored)
        starts = [segment.start for segment in segments]
        assert starts == expected, (confirmed, path, hindsight)
        assert [segment.end for segment in segments] == [*starts[1:], 100]


def test_hindsight_is_current_until_a_tenth_more_was_observed():
    hindsight = StoredHindsight(1, 0, 100, [0], 0)
    for seq, history, usable, current in (
        (110, 2000, True, True),
        (111, 2000, True, False),
        (99, 2000, False, False),
        (2099, 2000, True, False),
        (2100, 2000, False, False),
        (105, 5, False, False),
    ):
        stream = Head(1, StreamSettings(history=history), seq=seq)
        assert (hindsight.usable(stream), hindsight.current(stream)) == (usable, current), (
            seq,
            history,
        )
        assert not StoredHindsight(2, 0, 100, [0], 0).usable(stream)


def test_the_summary_of_a_new_stream_and_of_one_with_observations():
    answer = shown(rendering.summary("a", head(created_ms=1_700_000_000_123)))
    assert answer["created"] == "2023-11-14T22:13:20.123+00:00"
    assert (answer["seq"], answer["warming_up"], answer["run_length"]) == (0, True, None)
    assert answer["regime_start"] is None
    assert answer["mean_log_score"] is None
    optional = ("season", "regime", "alarm_period")
    assert list(answer) == [n for n in StreamSummary.__struct_fields__ if n not in optional]
    state = head(
        seq=10, warm=True, map_run_length=1,
        track=Track(event=Event(3, "suspected", 8, suspected_at=9)),
        log_score_sum=-6.0, scored=4, season=SeasonPeriods([24, 168], 600),
        regime=KnownRegime("idle", 0.75), pace=Pace(0.0, True, 5, per_day=500.0),
    )  # fmt: skip
    answer = shown(rendering.summary("a", state))
    expected = {"observations_per_day": 500.0, "false_alarm_every": 10_000.0, "days": 20.0}
    assert answer["alarm_period"] == expected
    assert answer["season"] == {"periods": [24, 168]}
    assert answer["regime"] == {"name": "idle", "probability": 0.75}
    assert answer["run_length"] == {"map": 1}
    assert answer["regime_start"] == 8
    assert answer["mean_log_score"] == -1.5
    event = Event(3, "suspected", 8, suspected_at=9)
    assert answer["event"] == event.to_dict() | {"start_arrived": False}
    assert (answer["event"]["state"], answer["event"]["confirmed_at"]) == ("suspected", None)
    assert answer["last_event"] is None


def test_a_record_has_its_details_only_for_those_who_ask():
    details = {
        "hazard": 0.01,
        "outlier_rate": 0.02,
        "log_score": -1.5,
        "changepoint_probability": 0.25,
        "recent_change_probability": 0.5,
    }
    plain = record(3, 1.0, mean=[2.0], variance=[[4.0]], quantiles={"0.5": [2.0]})
    stored = replace(plain, map_run_length=7, **details)
    small = msgspec.to_builtins(rendering.record(stored, False))
    full = msgspec.to_builtins(rendering.record(stored, True))
    assert small["predictive"] == {"mean": [2.0], "quantiles": {"0.5": [2.0]}}
    assert full.pop("predictive") == small.pop("predictive") | {"variance": [[4.0]]}
    assert full == small | details | {"run_length": {"map": 7}}
