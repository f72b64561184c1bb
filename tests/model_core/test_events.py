"""The life of events, from readings of the belief made up for the purpose."""

import math
import random
from statistics import fmean, pvariance

import pytest

from model_core.stream import events as core
from model_core.stream.state import KnownRegime
from model_core.stream_settings import DEFAULTS


class Life:
    """A track and the labels so far; `see` tracks one observation."""

    def __init__(self, confirm_after=3, outputs=1, threshold=None, **least):
        self.track = core.Track()
        rule = {"confirm_after": confirm_after, "false_alarm_every": threshold}
        self.settings = DEFAULTS._replace(**rule, **least)
        self.outputs = outputs
        self.labels = []

    def totals(self, count):
        rows = [row for row in self.labels[:count] if row is not None]
        found = [float(len(rows))]
        found += [math.fsum(row[i] for row in rows) for i in range(self.outputs)]
        return found + [math.fsum(row[i] ** 2 for row in rows) for i in range(self.outputs)]

    def see(self, start, previous=0, y=(0.0,), probability=0.9, evidence=0.0, **more):
        seq = len(self.labels)
        self.labels.append(y)
        totals = self.totals(seq + 1), self.totals(start)
        began = start - 1, start + 1, 0.95
        reading = core.EventReading(
            seq, f"t{seq}", start, probability, previous, *totals, evidence, *began, **more
        )
        self.track, changed = core.track(self.track, reading, self.settings)
        return changed

    def regime(self, start, count, previous=0, level=0.0):
        """MAP start `start` for `count` observations; returns the states they raised."""
        return [
            (event.id, event.state, event.start)
            for i in range(count)
            for event in self.see(start, previous, y=(level + (-1) ** i,))
        ]


def states(events):
    return [(event.id, event.state, event.start) for event in events]


def quiet(count, **options):
    """A life in whose first labels nobody sees a change."""
    life = Life(**options)
    assert life.regime(0, count) == []
    return life


def test_a_suspicion_is_confirmed_after_so_many_observations():
    life = quiet(10)
    (first,) = life.see(8, y=(5.0,))
    assert states([first]) == [(1, "suspected", 8)]
    assert (first.suspected_at, first.confirmed_at, first.delay) == (10, None, 2)
    assert (first.probability, first.time, first.direction) == (0.9, "t10", "up")
    assert life.see(8, y=(5.5,)) == life.see(8, y=(4.5,)) == []
    assert life.track.event == first
    (last,) = life.see(8, y=(5.0,), probability=0.99)
    assert states([last]) == [(1, "confirmed", 8)]
    assert (last.suspected_at, last.confirmed_at, last.delay) == (10, 13, 2)
    assert (last.probability, last.time) == (0.99, "t13")
    assert (first.earliest, last.earliest, last.latest, last.coverage) == (None, 7, 9, 0.95)
    assert (life.track.event, life.track.last_event) == (None, last)
    assert (life.track.confirmed_start, life.track.next_event) == (8, 2)
    # Its start is looked at once more, and then it is settled.
    assert life.regime(8, 20) == [(1, "confirmed", 8)]
    assert not life.track.last_event.news


def test_a_suspicion_is_withdrawn_when_the_confirmed_start_is_back():
    life = quiet(10)
    life.see(9)
    (gone,) = life.see(0)
    assert states([gone]) == [(1, "withdrawn", 9)]
    assert (gone.probability, gone.time) == (0.0, "t11")
    assert life.track.event is life.track.last_event is None
    assert life.see(0) == []
    # The next suspicion is another event, and counts from its own beginning.
    assert life.regime(13, 4) == [(2, "suspected", 13), (2, "confirmed", 13)]


def test_a_suspicion_may_move_but_not_past_itself():
    life = quiet(10, confirm_after=4)
    life.see(9)
    (moved,) = life.see(8)
    assert states([moved]) == [(1, "suspected", 8)]
    assert (moved.suspected_at, moved.delay) == (10, 2)
    (moved,) = life.see(10)  # up to where it was suspected
    assert states([moved]) == [(1, "suspected", 10)]
    assert life.see(10) == []
    (last,) = life.see(10)  # its count went on
    assert states([last]) == [(1, "confirmed", 10)]
    life = quiet(10, confirm_after=4)
    life.see(9)
    assert states(life.see(11)) == [(1, "withdrawn", 9), (2, "suspected", 11)]
    assert life.track.event.suspected_at == 11


def test_by_evidence_each_observation_decides_alone():
    """Confirmed is what there is as much evidence of as asked, whatever was before."""
    for seed in range(6):
        rng = random.Random(seed)
        life = quiet(5, confirm_after=rng.choice([0, 1, 1000]), threshold=900.0)
        for seq in range(5, 200):
            confirmed = life.track.confirmed_start
            settled = life.track.settled
            open_before = life.track.event
            looked_at = core.settling(life.track, seq) and confirmed > life.track.since
            evidence = rng.choice([0.1, 600.0, 899.9, 900.0, 1e6])
            start = confirmed
            if evidence > 500 and settled < seq:
                start = rng.randint(settled + 1, seq)
            found = [each[1:] for each in states(life.see(start, confirmed, evidence=evidence))]
            expected = []
            if start == confirmed:
                expected += [("withdrawn", open_before.start)] if open_before else []
                expected += [("confirmed", start)] if looked_at else []
            else:
                new = open_before is not None and start > open_before.suspected_at
                moved = open_before is None or open_before.start != start
                expected += [("withdrawn", open_before.start)] if new else []
                expected += [("suspected", start)] if moved else []
                expected += [("confirmed", start)] if evidence >= 900 else []
            assert found == expected, (seed, seq)
            last = start if start > settled and ("confirmed", start) in found else confirmed
            assert life.track.confirmed_start == last
            assert life.track.settled == (seq if last != confirmed else settled)


# --- what the best path to a newly confirmed start says of the event confirmed before ------------

SUSPECTED_AT = 26


def confirmed_at_20(before=0):
    """Event 1: of a change at 20, suspected at 26; `before` is the start before it."""
    life = quiet(SUSPECTED_AT)
    assert life.regime(20, 10, previous=before, level=5.0)[-1] == (1, "confirmed", 20)
    assert life.track.before_start == before
    return life


# Of the best path's start before the new one: whether event 1 stays, moves there, or was the new
# one all along.
FATES = {
    0: "replaced",
    10: "replaced",  # half-way to the start before
    11: "moved",
    19: "moved",
    20: "kept",
    21: "moved",
    SUSPECTED_AT: "moved",  # it may begin where it was suspected
    SUSPECTED_AT + 1: "kept",  # a short regime of its own
    55: "kept",
}


@pytest.mark.parametrize("previous", FATES)
def test_the_last_event_is_kept_moved_or_replaced(previous):
    life = confirmed_at_20()
    assert life.regime(20, 30, level=5.0) == [(1, "confirmed", 20)]
    found = life.regime(60, 10, previous=previous, level=9.0)
    track, fate = life.track, FATES[previous]
    middle = {
        "kept": [(2, "confirmed", 60)],
        "moved": [(1, "confirmed", previous), (2, "confirmed", 60)],
        "replaced": [(2, "withdrawn", 60), (1, "confirmed", 60)],
    }
    assert found == [(2, "suspected", 60), *middle[fate]]
    assert track.confirmed_start == track.last_event.start == 60
    assert track.before_start == (0 if fate == "replaced" else previous)
    assert track.last_event.id == (1 if fate == "replaced" else 2)


def test_half_way_is_between_the_last_two_starts_and_a_moved_event_keeps_its_suspicion():
    for previous, moves in ((15, False), (16, True)):
        life = confirmed_at_20(before=10)
        life.regime(20, 30, level=5.0)
        life.regime(60, 3, previous=previous)
        first, _ = life.see(60, previous)
        assert first.state == ("confirmed" if moves else "withdrawn")
        if moves:
            assert (first.id, first.start) == (1, previous)
            assert (first.suspected_at, first.delay) == (SUSPECTED_AT, SUSPECTED_AT - previous)
            # Where it began was said of another start.
            assert (first.earliest, first.latest, first.coverage) == (None, None, None)


def test_a_start_is_looked_at_once_more_soon_after_its_confirmation():
    """What begins before a confirmation is no new change; 10 observations later it has its say."""
    for start in (24, SUSPECTED_AT, SUSPECTED_AT + 1):
        life = confirmed_at_20()
        assert life.track.settled == 29
        assert life.regime(start, 4, level=5.0) == [(1, "confirmed", start)]
        last = life.track.last_event
        since = max(SUSPECTED_AT, start)
        assert (last.suspected_at, last.delay, last.confirmed_at) == (since, since - start, 29)
        assert last.size == size_of(life, 0, start)  # from the regime before it
        assert life.track.confirmed_start == start
        assert life.regime(start + 1, 20, level=5.0) == []
        assert life.regime(50, 20, previous=start)[-1] == (2, "confirmed", 50)
    life = confirmed_at_20()
    assert life.track.since < life.track.settled
    life.regime(20, 2, level=5.0)
    life.regime(38, 2, previous=20)  # another is suspected by then: it stays as it is
    assert life.track.since == life.track.settled
    assert life.track.last_event.refined_at is None
    life = confirmed_at_20()
    assert life.regime(0, 20, level=5.0) == []  # the regime before is no start of this one
    assert life.track.last_event.start == 20


def test_the_first_suspicion_of_a_replaced_event_stands():
    life = confirmed_at_20()
    life.regime(20, 4, level=5.0)
    assert life.regime(38, 4, level=5.0) == [
        (2, "suspected", 38),
        (2, "withdrawn", 38),
        (1, "confirmed", 38),
    ]
    last = life.track.last_event
    # It was suspected before the start that it has now: the suspicion of that counts.
    assert (last.id, last.suspected_at, last.delay) == (1, 40, 2)
    assert last.size == size_of(life, 0, 38)
    assert life.regime(80, 20, previous=38)[0] == (3, "suspected", 80)


def test_the_size_of_a_replaced_event_is_from_the_start_before_it():
    life = confirmed_at_20()
    assert life.regime(34, 4, previous=20, level=9.0)[-1] == (2, "confirmed", 34)
    assert life.track.last_event.size == size_of(life, 20, 34)
    assert life.regime(40, 4, previous=20, level=9.0)[-1] == (2, "confirmed", 40)
    assert life.track.last_event.size == size_of(life, 20, 40)


def size_of(life, before, start, end=None):
    """The shift at `start`, from the regime that begins at `before`, by the labels up to `end`."""
    labels = [y for (y,) in life.labels[:end]]
    old, new = labels[before:start], labels[start:]
    squares = pvariance(old) * len(old) + pvariance(new) * len(new)
    pooled = math.sqrt(squares / (len(old) + len(new) - 2))
    return pytest.approx((fmean(new) - fmean(old)) / pooled)


# --- how a change came about ----------------------------------------------------------------------


def two_confirmed(seed, gap, by, more, outputs=1, called=None, **reading):
    """A change by `by` at 20, confirmed at 22, and one by `more` soon after it, at 20 + `gap`.

    Returns the life and what the confirmation of the second raised.
    """
    rng = random.Random(seed)
    life = Life(threshold=900.0, outputs=outputs)

    def labels(level):
        return tuple(rng.gauss(level if i == 0 else 0.0, 1.0) for i in range(outputs))

    for _ in range(20):
        assert life.see(0, y=labels(0.0)) == []
    for i in range(max(gap, 3)):
        events = life.see(20, y=labels(by), evidence=1e3 if i == 2 else 0.0)
        assert (i == 2) == any(event.state == "confirmed" for event in events)
    for _ in range(3):
        life.see(20 + gap, 20, y=labels(by + more))
    life.track = life.track._replace(event=life.track.event._replace(verdict=called))
    return life, life.see(20 + gap, 20, y=labels(by + more), evidence=1e3, **reading)


def test_a_smaller_shift_soon_after_a_change_is_no_other_change():
    """What began up to 5 observations after it and moved the mean by less than half as much."""
    outcomes = set()
    for seed in range(300):
        rng = random.Random(seed)
        gap = rng.randint(3, 7)
        by = rng.choice([0.5, 2.0, 4.0, 8.0])
        life, changed = two_confirmed(seed, gap, by, rng.choice([0.0, 0.4, 0.6, -1.0]) * by)
        middle = 20 + gap
        before, between, after = (
            fmean(y for (y,) in life.labels[i:j])
            for i, j in ((0, 20), (20, middle), (middle, None))
        )
        first = abs(size_of(life, 0, 20, middle).expected)
        second = abs(size_of(life, 20, middle).expected)
        smaller = second < first / 2 and abs(after - between) < abs(between - before) / 2
        moved = first > 2 * math.sqrt(1 / 20 + 1 / gap)
        same = gap <= 5 and smaller and moved
        outcomes.add((gap <= 5, smaller, moved))
        end = [(2, "withdrawn", 20 + gap)] if same else [(2, "confirmed", 20 + gap)]
        assert states(changed) == end, seed
        track = life.track
        assert track.event is None
        assert track.settled == len(life.labels) - 1
        assert (track.last_event.id, track.confirmed_start) == ((1, 20) if same else (2, 20 + gap))
        if same:
            assert track.last_event.size == size_of(life, 0, 20, 23)
            assert track.since == track.settled  # its start is not looked at again
            assert life.regime(20 + gap, 20, level=by) == []
            # The next change is from the regime that began with the first.
            assert life.regime(40, 1, previous=20 + gap) == [(3, "suspected", 40)]
            (last,) = life.see(40, 20 + gap, evidence=1e3)
            assert (last.state, last.previous) == ("confirmed", 20)
            assert last.size == size_of(life, 20, 40)
    assert len(outcomes) == 8


def test_what_else_moves_soon_after_a_change():
    """Bursts end, another output moves, and constant labels are infinitely apart."""
    cases = [
        ((0.0,), (5.0,), (5.0,), "withdrawn"),
        ((0.0,), (5.0,), (0.0,), "confirmed"),
        ((0.0, 0.0), (5.0, 0.0), (5.0, 0.0), "withdrawn"),
        ((0.0, 0.0), (5.0, 0.0), (0.0, 0.0), "confirmed"),
        ((0.0, 0.0), (5.0, 0.0), (5.0, 3.0), "confirmed"),
    ]
    for *levels, state in cases:
        for noise in (0.0, 0.1):
            life = Life(threshold=900.0, outputs=len(levels[0]))
            for t in range(28):
                level = levels[(t >= 20) + (t >= 24)]
                y = tuple(value + noise * (-1.0) ** t for value in level)
                start = 0 if t < 20 else 20 if t < 24 else 24
                evidence = 1e3 if t in (22, 27) else 0.0
                changed = life.see(start, 20 if start == 24 else 0, y=y, evidence=evidence)
            assert states(changed) == [(2, state, 24)], (levels, noise)


def test_the_first_shift_is_from_the_regime_before_it():
    """Not from all that was before: a change long ago makes it no smaller."""
    life = Life(threshold=900.0)
    starts = {0: 0, 20: 0, 40: 20, 44: 40}  # of regimes, and those before them
    for t in range(48):
        start = max(own for own in starts if own <= t)
        level = {0: 0.0, 20: 1000.0, 40: 1005.0, 44: 1005.0}[start]
        evidence = 1e3 if t in (22, 42, 47) else 0.0
        changed = life.see(start, starts[start], y=(level + (-1) ** t,), evidence=evidence)
    assert states(changed) == [(3, "withdrawn", 44)]


def test_what_somebody_calls_a_change_and_what_returns_is_one_however_soon():
    returned = KnownRegime(None, 0.9, 1, 2, 15)
    cases = [({}, "withdrawn"), ({"called": True}, "confirmed"), ({"called": False}, "withdrawn")]
    cases += [({"returned": returned}, "confirmed"), ({"outputs": 2}, "withdrawn")]
    for options, state in cases:
        _, changed = two_confirmed(1, 4, 50.0, 0.0, **options)
        assert [event.state for event in changed] == [state], options


def test_a_change_is_confirmed_once_it_is_large_and_old_enough():
    rules = (
        ({"threshold": 100.0}, 22),
        ({"threshold": 100.0, "min_duration": 3}, 22),
        ({"threshold": 100.0, "min_duration": 4}, 23),
        ({"confirm_after": 1, "min_duration": 10}, 29),
        ({"threshold": 100.0, "min_size": 0.9}, 22),
        ({"threshold": 100.0, "min_size": 1.2}, 28),  # by more than chance
        ({"threshold": 100.0, "min_size": 1.9}, None),
        ({"threshold": 100.0, "min_size": 0.5, "outputs": 2}, 22),  # the largest counts
        ({"threshold": 100.0, "min_shift": 45.0}, 22),  # in units of labels of 50 an sd
        ({"threshold": 100.0, "min_shift": 60.0}, 26),
        ({"threshold": 100.0, "min_shift": 95.0}, None),
        ({"threshold": 100.0, "min_shift": 60.0, "min_size": 0.9}, 26),
        ({"threshold": 100.0, "min_shift": 45.0, "min_size": 1.2}, 28),
        ({"threshold": 100.0, "min_shift": 25.0, "outputs": 2}, 22),
    )
    for rule, expected in rules:
        life = Life(**rule)
        outputs = life.outputs
        for i in range(20):
            life.see(0, y=(50 * (-1.0) ** i,) * outputs)
        confirmed_at = None
        for i in range(20, 40):
            shifts = (0.1, *[-2.2] * (outputs - 1)) if outputs > 1 else (2.0,)
            y = tuple(50 * (shift + (-1.0) ** i) for shift in shifts)
            for event in life.see(20, y=y, evidence=1000.0 if i >= 22 else 1.0):
                if event.state == "confirmed" and event.news:
                    confirmed_at = event.confirmed_at
        assert confirmed_at == expected, rule


def test_the_least_size_is_of_the_shift_that_the_event_will_have():
    """That of one that replaces the last confirmed one is from the start before that."""
    for least, confirmed in ((0.2, True), (1.2, False)):  # 2.2 from the one that it replaces
        life = confirmed_at_20()
        life.regime(20, 30, level=5.0)
        life.settings = life.settings._replace(min_size=least)
        moved = life.regime(66, 10, previous=0)
        assert ((1, "confirmed", 66) in moved) == confirmed, moved


def test_what_cannot_be_measured_is_not_small():
    """Constant regimes are infinitely apart; one label says nothing yet, and classes never do."""
    for least, state in ((0.4, "confirmed"), (0.6, "suspected")):
        life = Life(threshold=100.0, min_size=5.0, min_shift=least)
        for _ in range(20):
            life.see(0, y=(1.0,))
        assert life.see(20, y=(1.5,), evidence=1e3)[-1].state == state
    life = Life(threshold=100.0, min_size=5.0)
    life.see(0, y=(1.0,))
    assert [event.state for event in life.see(1, y=(1e6,), evidence=1e3)] == ["suspected"]
    track = core.Track()
    settings = DEFAULTS._replace(min_size=5.0)
    reading = core.EventReading(30, None, 20, 0.9, 0, None, None, 1e6)
    _, changed = core.track(track, reading, settings)
    assert [event.state for event in changed] == ["suspected", "confirmed"]


# --- direction and size ---------------------------------------------------------------------------


def confirmed(labels, start, outputs=1, confirm_after=3):
    """The event confirmed by the last of some labels, the first of which are of one regime."""
    life = Life(outputs=outputs, confirm_after=confirm_after)
    for y in labels[:start]:
        life.see(0, y=y)
    for y in labels[start:]:
        events = life.see(start, y=y)
    assert events[-1].state == "confirmed"
    return events[-1]


def waves(count, *levels):
    """Labels that swing by one around each output's level, every output at half the pace."""
    return [
        tuple(level + (-1.0) ** (i >> k) for k, level in enumerate(levels)) for i in range(count)
    ]


def test_size_is_the_shift_in_standard_deviations_within_the_regimes():
    event = confirmed(waves(20, 0.0) + waves(4, -4.0), 20)
    assert event.direction == "down"
    assert event.size == pytest.approx(-4 / math.sqrt(24 / 22))
    event = confirmed(waves(20, 0.0, 0.0) + waves(4, 2.0, -9.0), 20, outputs=2)
    assert event.direction == "down"  # of the output that moved most
    pooled = math.sqrt(24 / 22)
    assert event.size == pytest.approx([2 / pooled, -9 / pooled])


def test_what_has_no_size():
    cases = {
        "constant regimes": ([(1.0,)] * 20 + [(2.0,)] * 4, 20, "up"),
        "rounding is no spread": ([(0.1,)] * 37 + [(-0.7,)] * 4, 37, "down"),
        "no labels": ([None] * 24, 20, None),
        "no shift": ([(1.0,)] * 24, 20, None),
    }
    for name, (labels, start, direction) in cases.items():
        event = confirmed(labels, start)
        size = 0.0 if name == "no shift" else None
        assert (event.direction, event.size) == (direction, size), name
    one_each = confirmed([(0.0,), (5.0,)], 1, confirm_after=0)
    assert (one_each.direction, one_each.size) == (None, None)
    assert confirmed([(0.0,), (5.0,), (6.0,)], 1, confirm_after=1).size == pytest.approx(
        5.5 / math.sqrt(0.5)
    )
    still = confirmed(
        [(y, 1.0) for (y,) in waves(20, 0.0)] + [(8.0, 1.0), (7.0, 1.0)] * 2, 20, outputs=2
    )
    assert still.direction == "up"
    assert still.size[0] > 5
    assert still.size[1] == 0.0


# --- anomalies ------------------------------------------------------------------------------------


def test_an_alarm_is_raised_at_the_threshold_and_then_silent_for_a_while():
    assert core.alarming(0.9, 0.9, 5, None)
    assert not core.alarming(0.9, 0.8999, 5, None)
    assert not core.alarming(None, 1.0, 5, None)
    assert not core.alarming(0.9, 1.0, 199, 100)
    assert core.alarming(0.9, 1.0, 200, 100)


def test_size_of_an_anomaly_is_the_distance_from_what_was_predicted():
    def of(label, mean, sd):
        event = core.anomaly(7, 0.99, label, (mean, sd))
        assert (event.id, event.start, event.suspected_at, event.confirmed_at) == (7, 7, 7, 7)
        assert (event.kind, event.state, event.probability) == ("anomaly", "confirmed", 0.99)
        return event.direction, event.size

    assert of([3.0], [1.0], [0.5]) == ("up", 4.0)
    assert of([1.0], [1.0], [0.5]) == (None, 0.0)
    assert of([0.0, math.nan, 9.0], [3.0, 0.0, 8.0], [1.0, 1.0, 1.0]) == ("down", [-3.0, None, 1.0])
    assert of([-1.0, 9.0], [0.0, 0.0], [1.0, 1.0]) == ("up", [-1.0, 9.0])
    # Without a variance of a label that is there, there is no size at all; of others none is asked.
    assert of([2.0, 3.0], [0.0, 0.0], [math.inf, 1.0]) == (None, None)
    assert of([2.0, 3.0], [0.0, 0.0], [0.0, 1.0]) == (None, None)
    assert of([math.nan, 3.0], [0.0, 0.0], [math.inf, 1.0]) == ("up", [None, 3.0])
    assert core.anomaly(7, 0.99, [1.0], None).size is None  # a class


def test_an_event_is_put_where_it_is_followed_and_nowhere_else():
    first, second = core.Event(1, "confirmed", 5, 8, 9), core.Event(2, "suspected", 12, 14)
    track = core.Track(event=second, last_event=first)
    later = second._replace(start=13)
    assert track.put(later) == core.Track(event=later, last_event=first)
    judged = first._replace(verdict=True)
    assert track.put(judged) == core.Track(event=second, last_event=judged)
    assert track.put(core.Event(3, "confirmed", 5, 8, 9)) == track
    assert core.Track().put(first) == core.Track()
