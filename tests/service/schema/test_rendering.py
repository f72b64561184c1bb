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
        head(warm=True, seq=7, best_start=5), records([-1, 0, 1, 0, 3, 2, 2])
    )
    # 5 came from 2, and 2 from 1, and 1 from 0.
    assert segments == [Segment(0, 1), Segment(1, 2), Segment(2, 5), Segment(5, 7)]
    segments = rendering.segmentation(head(warm=True, seq=3), records([-1, 0, 0]))
    assert segments == [Segment(0, 3)]


def test_a_segmentation_begins_with_what_is_retained():
    kept = records([0, 11, 0, 0], first=12)
    segments = rendering.segmentation(head(warm=True, seq=16, best_start=13), kept)
    assert segments == [Segment(12, 13), Segment(13, 16)]
    segments = rendering.segmentation(head(warm=True, seq=16, best_start=3), kept)
    assert segments == [Segment(12, 16)]
    assert rendering.segmentation(head(warm=True), []) == []
    assert rendering.segmentation(head(seq=2), records([-1, -1])) == []


def test_in_hindsight_goes_as_far_as_it_reaches():
    for starts, seq, online, expected in (
        ([0, 40], 100, [0, 60], [0, 40]),  # nothing since: as it was hindsight
        ([0, 95], 100, [0], [0, 95]),
        ([0, 40], 110, [0, 60, 103], [0, 40, 103]),  # what began since
        ([0, 40], 110, [0, 60, 97], [0, 40, 97]),  # or was too new then
        ([0, 90], 110, [0], [0]),  # and what was too new to be kept
        ([0, 89], 110, [0], [0, 89]),
        ([0, 95], 110, [0, 88], [0, 88]),  # one change, on both sides of where it is settled
        ([0, 88], 110, [0, 95], [0, 88]),
        ([0, 85], 110, [0, 95], [0, 85]),  # 10 apart is near, 11 is not
        ([0, 84], 110, [0, 95], [0, 84, 95]),
        ([0], 110, [0, 88], [0]),
        ([30, 70], 100, [0, 20, 50], [0, 20, 70]),  # not all that is retained was segmented
        ([30, 70], 100, [0, 50], [0, 70]),
        ([30, 35], 100, [0, 28], [0, 35]),
        ([0, 30, 60], 104, [40, 58], [40, 60]),  # some of it is not retained any more
        ([0, 30], 104, [40, 58], [40]),
    ):
        path = [Segment(*each) for each in pairwise([*online, seq])]
        hindsight = StoredHindsight(1, starts[0], 100, starts, 0)
        segments = rendering.in_hindsight(head(warm=True, seq=seq), path, hindsight)
        assert segments == [Segment(*each) for each in pairwise([*expected, seq])], (starts, online)
    assert rendering.in_hindsight(head(warm=True, seq=100), [], hindsight) == []


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
    assert answer["event"] == event.plain() | {"start_arrived": False}
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
