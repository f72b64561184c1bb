"""What is shown of committed state."""

from itertools import pairwise

import msgspec
import pytest

from service.schema import rendering
from service.schema.responses import Segment, StreamSummary
from service.wire import Event, Head, Hindsight, Record, Season, StreamSettings, TypicalRegime


def head(**more):
    return Head(1, StreamSettings(model="gaussian@1"), **more)


def shown(answer):
    return msgspec.json.decode(msgspec.json.encode(answer))


def records(pointers, first=0):
    return [
        Record(first + i, 0.0, None, None, 1.0, None, 0.01, 0.0, previous_start=previous)
        for i, previous in enumerate(pointers)
    ]


class TestSegmentation:
    def test_pointers_are_followed_from_the_last_start(self):
        found = rendering.segmentation(
            head(warm=True, seq=7, best_start=5), records([-1, 0, 1, 0, 3, 2, 2])
        )
        # 5 came from 2, and 2 from 1, and 1 from 0.
        starts = [0, 1, 2, 5]
        ends = [1, 2, 5, 7]
        assert found == [Segment(s, e) for s, e in zip(starts, ends, strict=True)]

    def test_one_regime(self):
        found = rendering.segmentation(head(warm=True, seq=3), records([-1, 0, 0]))
        assert found == [Segment(0, 3)]

    def test_it_begins_with_what_is_retained(self):
        kept = records([0, 11, 0, 0], first=12)
        found = rendering.segmentation(head(warm=True, seq=16, best_start=13), kept)
        assert found == [Segment(12, 13), Segment(13, 16)]
        found = rendering.segmentation(head(warm=True, seq=16, best_start=3), kept)
        assert found == [Segment(12, 16)]

    def test_none_without_records_or_before_the_filter_runs(self):
        assert rendering.segmentation(head(warm=True), []) == []
        assert rendering.segmentation(head(seq=2), records([-1, -1])) == []


class TestInHindsight:
    @pytest.mark.parametrize(
        ("starts", "seq", "online", "expected"),
        [
            ([0, 40], 100, [0, 60], [0, 40]),  # nothing since: as it was found
            ([0, 95], 100, [0], [0, 95]),
            ([0, 40], 110, [0, 60, 103], [0, 40, 103]),  # what began since
            ([0, 40], 110, [0, 60, 97], [0, 40, 97]),  # or was too new then
            ([0, 95], 110, [0], [0]),  # and what was too new to be kept
            ([0, 95], 110, [0, 88], [0, 88]),  # one change, on both sides of where it is settled
            ([0, 88], 110, [0, 95], [0, 88]),
            ([0], 110, [0, 88], [0]),
            ([30, 70], 100, [0, 20, 50], [0, 20, 70]),  # not all that is retained was segmented
            ([30, 70], 100, [0, 50], [0, 70]),
            ([30, 35], 100, [0, 28], [0, 35]),
            ([0, 30, 60], 104, [40, 58], [40, 60]),  # some of it is not retained any more
            ([0, 30], 104, [40, 58], [40]),
        ],
    )
    def test_goes_as_far_as_it_reaches(self, starts, seq, online, expected):
        path = [Segment(*each) for each in pairwise([*online, seq])]
        found = Hindsight(1, starts[0], 100, starts, 0)
        segments = rendering.in_hindsight(head(warm=True, seq=seq), path, found)
        assert segments == [Segment(*each) for each in pairwise([*expected, seq])]

    def test_none_without_records(self):
        found = Hindsight(1, 0, 100, [0, 50], 0)
        assert rendering.in_hindsight(head(warm=True, seq=100), [], found) == []

    @pytest.mark.parametrize(
        ("seq", "history", "usable", "current"),
        [
            (110, 2000, True, True),
            (111, 2000, True, False),
            (99, 2000, False, False),
            (2099, 2000, True, False),
            (2100, 2000, False, False),
            (105, 5, False, False),
        ],
    )
    def test_until_a_tenth_more_was_observed(self, seq, history, usable, current):
        stream = Head(1, StreamSettings(history=history), seq=seq)
        found = Hindsight(1, 0, 100, [0], 0)
        assert (found.usable(stream), found.current(stream)) == (usable, current)
        assert not Hindsight(2, 0, 100, [0], 0).usable(stream)


class TestSummary:
    def test_a_new_stream(self):
        found = shown(rendering.summary("a", head(created_ms=1_700_000_000_123)))
        assert found["created"] == "2023-11-14T22:13:20.123+00:00"
        assert (found["seq"], found["warming_up"], found["run_length"]) == (0, True, None)
        assert found["regime_start"] is None
        assert found["mean_log_score"] is None
        fields = [
            name for name in StreamSummary.__struct_fields__ if name not in ("season", "regime")
        ]
        assert list(found) == fields
        with_season = shown(rendering.summary("a", head(season=Season([24, 168], 600))))
        assert with_season["season"] == {"periods": [24, 168]}
        typical = shown(rendering.summary("a", head(regime=TypicalRegime("idle", 0.75))))
        assert typical["regime"] == {"name": "idle", "probability": 0.75}

    def test_one_with_observations(self):
        event = Event(3, "suspected", 8, suspected_at=9)
        told = head(seq=10, warm=True, map_run_length=1, event=event, log_score_sum=-6.0, scored=4)
        found = shown(rendering.summary("a", told))
        assert found["run_length"] == {"map": 1}
        assert found["regime_start"] == 8
        assert found["mean_log_score"] == -1.5
        assert found["event"]["state"] == "suspected"
        assert found["event"]["confirmed_at"] is None
        assert found["last_event"] is None


def test_an_event_has_every_field():
    found = shown(
        rendering.event(Event(1, "confirmed", 28, suspected_at=33, confirmed_at=43, delay=5))
    )
    assert list(found) == list(Event.__struct_fields__)
    assert rendering.event(None) is None
