"""The life of changepoint events, from readings of the belief made up for the purpose."""

import math
import random

import pytest

from model_core import events as core
from service.wire import Alarm, Event, Head, StreamSettings
from service.worker.filtering.events import Reading, track


class Life:
    """A head and the labels so far; `see` tracks one observation."""

    def __init__(self, confirm_after=3, outputs=1, threshold=None):
        self.head = Head(1, StreamSettings(model="gaussian@1", confirm_after=confirm_after))
        self.head.alarm = None if threshold is None else Alarm(threshold)
        self.outputs = outputs
        self.labels = []

    def totals(self, count):
        rows = [row for row in self.labels[:count] if row is not None]
        found = [float(len(rows))]
        found += [math.fsum(row[i] for row in rows) for i in range(self.outputs)]
        return found + [math.fsum(row[i] ** 2 for row in rows) for i in range(self.outputs)]

    def see(self, start, previous=0, y=(0.0,), probability=0.9, changed=1.0):
        seq = len(self.labels)
        self.labels.append(y)
        totals = self.totals(seq + 1), self.totals(start)
        reading = Reading(seq, f"t{seq}", start, probability, previous, *totals, changed)
        return track(self.head, reading)

    def quiet(self, count, y=(0.0,)):
        """Labels of a regime that nobody doubts."""
        start = self.head.confirmed_start
        for i in range(count):
            assert self.see(start, y=(y[0] + (-1) ** i, *y[1:])) == []

    def regime(self, start, count, previous=0, level=0.0):
        """MAP start `start` for `count` observations; returns the events they raised."""
        return [
            event
            for i in range(count)
            for event in self.see(start, previous, y=(level + (-1) ** i,))
        ]


def states(events):
    return [(event.id, event.state, event.start) for event in events]


def test_suspected_then_confirmed():
    life = Life()
    life.quiet(10)
    (first,) = life.see(8, y=(5.0,))
    assert states([first]) == [(1, "suspected", 8)]
    assert (first.suspected_at, first.confirmed_at, first.delay) == (10, None, 2)
    assert (first.probability, first.time) == (0.9, "t10")
    assert life.see(8, y=(5.5,)) == life.see(8, y=(4.5,)) == []
    assert life.head.event == first
    (last,) = life.see(8, y=(5.0,), probability=0.99)
    assert states([last]) == [(1, "confirmed", 8)]
    assert (last.suspected_at, last.confirmed_at, last.delay) == (10, 13, 2)
    assert (last.probability, last.time) == (0.99, "t13")
    assert life.head.event is None
    assert life.head.last_event == last
    assert (life.head.confirmed_start, life.head.next_event) == (8, 2)
    assert life.regime(8, 20) == []


def test_withdrawn_when_the_confirmed_start_is_back():
    life = Life()
    life.quiet(10)
    life.see(9)
    (gone,) = life.see(0)
    assert states([gone]) == [(1, "withdrawn", 9)]
    assert (gone.probability, gone.time) == (0.0, "t11")
    assert life.head.event is None
    assert life.head.last_event is None
    assert life.see(0) == []
    # The next suspicion is another event, and counts from its own beginning.
    assert states(life.see(13)) == [(2, "suspected", 13)]
    assert life.see(13) == life.see(13) == []
    assert states(life.see(13)) == [(2, "confirmed", 13)]


def test_a_suspicion_that_moves_is_the_same_event_and_its_count_goes_on():
    life = Life()
    life.quiet(10)
    life.see(10)
    life.see(10)
    (moved,) = life.see(9)
    assert states([moved]) == [(1, "suspected", 9)]
    assert (moved.suspected_at, moved.delay) == (10, 1)
    (last,) = life.see(9)
    assert (last.state, last.start) == ("confirmed", 9)
    assert (last.suspected_at, last.confirmed_at) == (10, 13)


def test_a_start_after_the_suspicion_is_another_event():
    life = Life()
    life.quiet(10)
    life.see(10)
    assert states(life.see(11)) == [(1, "withdrawn", 10), (2, "suspected", 11)]
    assert life.head.event.suspected_at == 11


def test_confirm_after_may_change_under_way():
    life = Life(confirm_after=100)
    life.quiet(10)
    assert states(life.regime(10, 8)) == [(1, "suspected", 10)]
    life.head.settings.confirm_after = 5
    assert states(life.see(10)) == [(1, "confirmed", 10)]


def test_confirmed_at_once():
    life = Life(confirm_after=0)
    life.quiet(10)
    assert states(life.see(10)) == [(1, "suspected", 10), (1, "confirmed", 10)]


def test_by_probability_an_event_waits_for_it_alone():
    life = Life(threshold=0.99)
    life.quiet(10)
    assert states(life.see(9, changed=0.7)) == [(1, "suspected", 9)]
    for _ in range(50):
        assert life.see(9, changed=0.989) == []
    assert states(life.see(9, changed=0.99)) == [(1, "confirmed", 9)]
    assert life.head.last_event.confirmed_at == 61
    life.quiet(10)
    assert states(life.see(70, previous=9, changed=0.999)) == [
        (2, "suspected", 70),
        (2, "confirmed", 70),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_by_probability_each_observation_decides_alone(seed):
    """Confirmed is what is as probable as asked, whatever was before."""
    rng = random.Random(seed)
    life = Life(confirm_after=rng.choice([0, 1, 1000]), threshold=0.9)
    life.quiet(5)
    for seq in range(5, 200):
        confirmed, open_before = life.head.confirmed_start, life.head.event
        changed = rng.choice([0.1, 0.6, 0.8999, 0.9, 0.97])
        start = rng.randint(confirmed + 1, seq) if changed > 0.5 and confirmed < seq else confirmed
        found = [
            (event.state, event.start) for event in life.see(start, confirmed, changed=changed)
        ]
        if start == confirmed:
            expected = [] if open_before is None else [("withdrawn", open_before.start)]
        else:
            moved = open_before is None or open_before.start != start
            new = open_before is not None and start > open_before.suspected_at
            expected = [("withdrawn", open_before.start)] if new else []
            expected += [("suspected", start)] if moved else []
            expected += [("confirmed", start)] if changed >= 0.9 else []
        assert found == expected
        assert life.head.confirmed_start == (start if ("confirmed", start) in found else confirmed)


def test_the_rule_may_change_under_way():
    life = Life(confirm_after=100)
    life.quiet(10)
    assert states(life.see(10, changed=0.8)) == [(1, "suspected", 10)]
    life.head.alarm = Alarm(0.9)
    assert life.see(10, changed=0.8) == []
    life.head.alarm, life.head.settings.confirm_after = None, 2
    assert states(life.see(10, changed=0.8)) == [(1, "confirmed", 10)]


def confirmed_at_20():
    life = Life()
    life.quiet(20)
    assert states(life.regime(20, 10, level=5.0))[-1] == (1, "confirmed", 20)
    assert life.see(20, y=(5.0,)) == []
    return life


class TestBestPath:
    """What the path to a newly confirmed start says of the event confirmed before."""

    def test_through_the_confirmed_start(self):
        life = confirmed_at_20()
        assert states(life.regime(40, 20, previous=20)) == [
            (2, "suspected", 40),
            (2, "confirmed", 40),
        ]
        assert life.head.confirmed_start == 40

    def test_around_it_the_event_was_the_new_one_all_along(self):
        life = confirmed_at_20()
        before = life.head.last_event
        found = life.regime(24, 20, previous=0, level=5.0)
        assert states(found) == [(2, "suspected", 24), (2, "withdrawn", 24), (1, "confirmed", 24)]
        moved = found[-1]
        # First suspected before the start it now has: that was not this change.
        assert before.suspected_at == 20
        assert moved.suspected_at == found[0].suspected_at
        assert moved.delay == moved.suspected_at - 24 > 0
        assert (life.head.confirmed_start, life.head.last_event) == (24, moved)
        # The shift is from the regime before it, not from the piece that was one for a while.
        assert moved.size > 2
        assert states(life.regime(60, 20, previous=24))[-1] == (3, "confirmed", 60)

    def test_the_first_suspicion_stands_where_it_can(self):
        life = Life()
        life.quiet(26)
        life.regime(20, 10, level=5.0)
        found = life.regime(24, 20, previous=0, level=5.0)
        assert (found[-1].id, found[-1].suspected_at, found[-1].delay) == (1, 26, 2)

    def test_through_a_later_estimate_of_it(self):
        life = Life()
        life.quiet(26)
        life.regime(20, 10, level=5.0)
        found = life.regime(60, 20, previous=22, level=9.0)
        assert states(found) == [(2, "suspected", 60), (1, "confirmed", 22), (2, "confirmed", 60)]
        assert found[1].delay == 26 - 22

    def test_through_an_earlier_estimate_of_it(self):
        """The path leads through 18: a better start of event 1, and 60 is a change of its own."""
        life = confirmed_at_20()
        found = life.regime(60, 20, previous=18, level=9.0)
        assert states(found) == [(2, "suspected", 60), (1, "confirmed", 18), (2, "confirmed", 60)]
        assert found[1].delay == found[1].suspected_at - 18

    def test_through_a_regime_never_confirmed(self):
        """One that begins after the last event was suspected is no estimate of that event."""
        life = confirmed_at_20()
        found = life.regime(60, 20, previous=55, level=9.0)
        assert states(found) == [(2, "suspected", 60), (2, "confirmed", 60)]
        assert life.head.last_event.id == 2

    def test_near_the_start_before_the_confirmed_one(self):
        """By now that one looks like 21; still the path leaves the last event out."""
        life = confirmed_at_20()
        life.regime(60, 10, previous=20, level=9.0)
        found = life.regime(64, 20, previous=21, level=9.0)
        assert states(found)[1:] == [(3, "withdrawn", 64), (2, "confirmed", 64)]

    def test_no_event_is_ever_suspected_before_it_starts(self):
        for previous in (0, 10, 18, 20, 22, 31, 45):
            life = confirmed_at_20()
            life.regime(20, 19, level=5.0)
            for event in life.regime(50, 20, previous=previous):
                assert event.delay == event.suspected_at - event.start >= 0


class TestSize:
    def test_direction_and_size_in_standard_deviations(self):
        life = Life()
        life.quiet(20)
        (*_, last) = life.regime(20, 10, level=-4.0)
        assert last.direction == "down"
        # Four observations of the new regime: means 0 and -4, pooled variance 24 / 22.
        assert last.size == pytest.approx(-4 / math.sqrt(24 / 22))

    def test_labels_of_several_outputs(self):
        life = Life(outputs=2)
        for i in range(20):
            life.see(0, y=((-1.0) ** i, (-1.0) ** (i // 2)))
        for i in range(3):
            life.see(20, y=(2 + (-1.0) ** i, -9 + (-1.0) ** (i // 2)))
        (last,) = life.see(20, y=(1.0, -10.0))
        assert last.direction == "down"
        assert len(last.size) == 2
        assert 1 < last.size[0] < 3
        assert last.size[1] < -6

    def test_constant_segments_have_a_direction_and_no_size(self):
        life = Life()
        for _ in range(20):
            life.see(0, y=(1.0,))
        for _ in range(3):
            life.see(20, y=(2.0,))
        (last,) = life.see(20, y=(2.0,))
        assert (last.direction, last.size) == ("up", None)

    def test_rounding_is_no_spread(self):
        life = Life()
        for _ in range(37):
            life.see(0, y=(0.1,))
        for _ in range(3):
            life.see(37, y=(-0.7,))
        (last,) = life.see(37, y=(-0.7,))
        assert (last.direction, last.size) == ("down", None)

    def test_one_constant_output_leaves_the_other_its_size(self):
        life = Life(outputs=2)
        for i in range(20):
            life.see(0, y=((-1.0) ** i, 1.0))
        for i in range(3):
            life.see(20, y=(8 + (-1.0) ** i, 1.0))
        (last,) = life.see(20, y=(7.0, 1.0))
        assert last.direction == "up"
        assert last.size[0] > 5
        assert last.size[1] == 0.0

    def test_missing_labels(self):
        life = Life()
        for _ in range(20):
            life.see(0, y=None)
        for _ in range(3):
            life.see(20, y=None)
        (last,) = life.see(20, y=None)
        assert (last.direction, last.size) == (None, None)


def test_an_event_is_kept_field_by_field():
    *fields, kind = core.Event._fields
    assert (*fields, "verdict", kind) == Event.__struct_fields__
