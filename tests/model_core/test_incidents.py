"""Incidents: groups, what chance would show of them, and what their streams share."""

from collections import Counter
from itertools import combinations
from math import comb, isclose
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import model_core.incidents
from model_core.incidents import (
    DAY_S,
    RARE_PER_DAY,
    Beginning,
    Tagged,
    by_chance,
    incidents,
    moment,
    movers,
    reach,
    together,
)
from model_core.stream.detectors import Detectors

beginnings = st.lists(
    st.builds(
        lambda stream, at, before, after: Beginning(
            f"s{stream}", float(at - before), float(at), float(at + after), 1.0
        ),
        st.integers(0, 12),
        st.integers(0, 60),
        st.integers(1, 6),
        st.integers(0, 6),
    ),
    max_size=25,
)
few = settings(max_examples=200)


def share_a_moment(members):
    spans = [reach(member) for member in members]
    return max(lower for lower, _ in spans) <= min(upper for _, upper in spans)


def at(*times, step=1.0, width=1.0):
    return [
        Beginning(f"s{i}", time - width, time, time + width, step) for i, time in enumerate(times)
    ]


@few
@given(beginnings)
def test_groups_are_a_partition_of_what_shares_a_moment(rows):
    groups = together(rows)
    assert sorted(i for group in groups for i in group) == list(range(len(rows)))
    for group in groups:
        members = [rows[i] for i in group]
        assert share_a_moment(members)
        assert len({member.stream for member in members}) == len(members)


@few
@given(beginnings, st.randoms(use_true_random=False))
def test_the_order_of_changes_does_not_matter(rows, random):
    rows = list(dict.fromkeys(rows))
    shuffled = random.sample(rows, len(rows))

    def grouped(given):
        return {frozenset(given[i] for i in group) for group in together(given)}

    assert grouped(rows) == grouped(shuffled)


@few
@given(beginnings.filter(lambda rows: len({row.stream for row in rows}) == len(rows)))
def test_the_largest_group_is_the_largest_there_is(rows):
    largest = max((len(group) for group in together(rows)), default=0)
    points = [reach(row)[0] for row in rows]
    shared = [sum(reach(r)[0] <= point <= reach(r)[1] for r in rows) for point in points]
    assert largest == max(shared, default=0)


def plainly_together(rows):
    """Groups by a look at every interval for each group."""
    spans = [reach(row) for row in rows]
    left = sorted(range(len(rows)), key=lambda i: spans[i])
    groups = set()
    while left:
        sharing = {}
        for moment_ in sorted({spans[i][0] for i in left}):
            sharing[moment_] = [i for i in left if spans[i][0] <= moment_ <= spans[i][1]]
        chosen = max(sharing.values(), key=len)  # the first of the largest
        middle = float(np.median([rows[i].estimate for i in chosen]))
        nearest = {}
        for i in sorted(chosen, key=lambda i: abs(rows[i].estimate - middle)):
            nearest.setdefault(rows[i].stream, i)
        groups.add(frozenset(nearest.values()))
        left = [i for i in left if i not in nearest.values()]
    return groups


@few
@given(beginnings, st.integers(1, 5))
def test_groups_are_those_of_a_look_at_every_interval(rows, block):
    """Also where few moments are in a block."""
    with mock.patch.object(model_core.incidents, "BLOCK", block):
        assert {frozenset(group) for group in together(rows)} == plainly_together(rows)


@few
@given(beginnings.filter(len))
def test_the_moment_of_a_group_lies_within_its_starts(rows):
    for group in together(rows):
        members = [rows[i] for i in group]
        when = moment(members)
        estimates = [member.estimate for member in members]
        assert min(estimates) <= when.estimate <= max(estimates)
        assert when.lower <= when.estimate <= when.upper


def test_a_stream_that_joins_leaves_the_others_together():
    rows = at(100.0, 101.0, 99.0)
    assert together(rows) == [[0, 1, 2]]
    late = Beginning("late", 95.0, 101.0, 108.0, 1.0)
    assert together([*rows, late]) == [[0, 1, 2, 3]]


def test_what_chance_shows_often_is_no_incident():
    crowd = at(*np.arange(0.0, 3600.0, 2.0))  # of a fleet in which something begins at all times
    assert incidents(crowd, 0.0).groups == []
    quiet = at(0.0, 9e6, 9e6 + 1, 9e6 + 2)
    found = incidents(quiet, 0.0)
    assert found.groups == [[1, 2, 3]]
    assert found.chances[0].per_day < 1e-6
    noisy = incidents(quiet, false_alarms_per_day=1e5)
    assert (noisy.groups, noisy.per_day) == ([], 1e5)


def test_an_incident_counts_once_in_the_rate():
    apart = 10 * DAY_S
    rows = at(0.0, apart, *[apart / 2 + i for i in range(5)])
    found = incidents(rows, 0.0)
    assert [len(group) for group in found.groups] == [5]
    assert found.per_day == pytest.approx(2 / 10)


@pytest.mark.parametrize(("streams", "rate"), [(2, 40.0), (3, 400.0), (4, 1000.0)])
def test_independent_streams_show_as_many_incidents_as_is_said(streams, rate):
    """Counts beginnings of a Poisson process that so many others follow within the window."""
    window = 60.0
    rng = np.random.default_rng(streams)
    days = 3000
    times = np.sort(rng.uniform(0, days * DAY_S, rng.poisson(rate * days)))
    following = np.searchsorted(times, times + window) - np.arange(len(times)) - 1
    members = at(*np.linspace(0.0, window - 1.0, streams))
    chance = by_chance(members, rate)
    assert chance.expected == pytest.approx(rate * window / DAY_S)
    assert (following >= streams - 1).sum() / days == pytest.approx(chance.per_day, rel=0.1)


@given(st.integers(1, 40), st.floats(1e-6, 60))
def test_the_tail_of_a_count_is_scipys(least, mean):
    members = at(*[0.0] * (least + 1), step=mean * DAY_S)
    assert isclose(
        by_chance(members, 1.0).per_day,
        stats.poisson.sf(least - 1, mean),
        rel_tol=1e-7,
        abs_tol=1e-12,
    )


def test_movers_name_what_the_changed_streams_share():
    fleet = [{"region": "eu" if i < 10 else "us", "host": f"h{i}"} for i in range(208)]
    (mover,) = movers(Tagged(fleet[:10]), Tagged(fleet))
    assert (mover.tag, mover.value, mover.changed, mover.streams) == ("region", "eu", 10, 10)
    assert mover.expected == pytest.approx(100 / 208)
    looked_at = 2 + 208
    assert mover.probability == pytest.approx(looked_at / comb(208, 10))
    assert movers(Tagged(fleet[5:15:4]), Tagged(fleet)) == []  # one of eu, and two of us
    assert movers(Tagged([]), Tagged(fleet)) == []
    assert movers(Tagged(fleet), Tagged(fleet)) == []  # what all have is no finding


def test_a_combination_of_tags_is_named_where_it_says_more_than_its_parts():
    regions, services = ("eu", "us", "ap"), ("pay", "cart", "mail")
    fleet = [
        {"region": region, "service": service, "host": str(host), "site": f"{region}-1"}
        for region in regions
        for service in services
        for host in range(12)
    ]
    pay = [tags for tags in fleet if (tags["region"], tags["service"]) == ("eu", "pay")]
    (mover,) = movers(Tagged(pay[:10]), Tagged(fleet))  # and not what all of these have as well
    assert {mover.tag: mover.value, **mover.others} == {"region": "eu", "service": "pay"}
    assert (mover.changed, mover.streams, mover.expected) == (10, 12, 10 * 12 / 108)
    looked_at = 9 + 12  # values of tags
    tail = sum(comb(12, k) * comb(96, 10 - k) for k in (10,)) / comb(108, 10)
    assert mover.probability == pytest.approx(looked_at**2 * tail)
    # A part that more of the changed streams have stays.
    others = [tags for tags in fleet if (tags["region"], tags["service"]) == ("us", "pay")]
    (first, second, *_) = movers(Tagged(pay + others[:5]), Tagged(fleet))
    assert (first.changed, first.streams, len(first.others)) == (12, 12, 1)
    assert (second.tag, second.value, second.changed) == ("service", "pay", 17)


def test_movers_are_as_unlikely_as_all_choices_say():
    fleet = [{"kind": "ab"[i >= 4]} for i in range(12)]
    for changed in (4, 5):
        choices = list(combinations(range(12), changed))
        tail = sum(sum(i < 4 for i in choice) >= 4 for choice in choices) / len(choices)
        (mover,) = movers(Tagged(fleet[:changed]), Tagged(fleet))
        assert (mover.value, mover.changed) == ("a", 4)
        assert mover.probability == pytest.approx(2 * tail)


def test_movers_of_streams_drawn_at_random_are_rare():
    rng = np.random.default_rng(1)
    values = rng.integers(0, 8, (300, 6))
    fleet = [{f"t{j}": str(value) for j, value in enumerate(row)} for row in values]
    drawn = [rng.choice(300, 20, replace=False) for _ in range(400)]
    every = Tagged(fleet)
    shown = sum(bool(movers(Tagged([fleet[i] for i in rows]), every)) for rows in drawn)
    assert shown / 400 <= 0.05


def test_an_incident_is_rarer_than_one_a_day():
    rows = at(0.0, 30.0, step=60.0, width=60.0)
    expected = by_chance(rows, 5.0).per_day
    assert expected < RARE_PER_DAY
    assert incidents(rows, 5.0).groups == [[0, 1]]
    assert incidents(rows, 100.0).groups == []


def pairs(groups):
    """Pairs of changes that are in one group."""
    return {pair for group in groups for pair in combinations(sorted(group), 2)}


def by_time(times, gap):
    """Cluster alarms that are no further apart than `gap` from one to the next."""
    groups = []
    for i in sorted(range(len(times)), key=times.__getitem__):
        if groups and times[i] - times[groups[-1][-1]] <= gap:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def confirmed(shift, seed):
    """Changes of 40 streams, as rows and times of alarms: half at 400, others by themselves.

    Returns also the true pairs.
    """
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(40, 700))
    starts = [400 if i < 20 else int(rng.integers(150, 600)) for i in range(40)]
    detectors = Detectors(40, "gaussian", location=0.0, scale=1.0, hazard=0.004)
    rows = []
    alarms = []
    for stream, start in enumerate(starts):
        values[stream, start:] += shift
        last = {}
        for answer in detectors.update_many(stream, values[stream].tolist()):
            last |= {event.id: event for event in answer.events if event.kind == "change"}
        for event in last.values():
            if event.state == "confirmed" and event.earliest is not None:
                span = [60.0 * at for at in (event.earliest - 1, event.start, event.latest)]
                rows.append(Beginning(str(stream), *span, 60.0))
                alarms.append(event.confirmed_at)
    together_ = [i for i, row in enumerate(rows) if starts[int(row.stream)] == 400]
    return rows, alarms, pairs([together_])


@pytest.mark.slow
def test_starts_tell_incidents_better_than_any_distance_of_alarms_does():
    """A distance that suits shifts of 2 sd, found within minutes, does not suit those of 0.5."""
    gaps = (1, 2, 5, 10, 20)
    scores = Counter()
    for shift in (0.5, 1.0, 2.0):
        rows, alarms, true = confirmed(shift, seed=5)
        groups = {"starts": incidents(rows, 0.0).groups}
        groups |= {gap: by_time(alarms, gap) for gap in gaps}
        for name, each in groups.items():
            grouped = pairs(each)
            scores[name] += 2 * len(grouped & true) / (len(grouped) + len(true)) / 3
    assert scores["starts"] > 0.6
    assert scores["starts"] > max(scores[gap] for gap in gaps) + 0.05, scores
