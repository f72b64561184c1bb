"""Resampling of ingested observations: one an interval, exactly once, despite repeats and kills."""

import math
import random
from datetime import UTC, datetime

import pytest

from service.wire import Configure, Delete, Ingest, Observation, Observe

T0 = 1_767_225_600
KNOWN = {"model": "gaussian", "location": [0.0], "scale": [1.0]}


def seen(seconds, y=1.0):
    time = datetime.fromtimestamp(T0 + seconds, UTC).isoformat(timespec="milliseconds")
    return Observation(y, None, time)


def ingest(bench, *observations, stream="s", interval=10.0):
    settings = KNOWN | ({} if interval is None else {"interval": interval})
    return bench.ask(Ingest(stream, list(observations), settings=settings))


def applied(bench, stream="s"):
    """Label, second and elapsed of what the stream holds."""
    return [
        (each.y, round(datetime.fromisoformat(each.time).timestamp() - T0, 3), each.elapsed)
        for each in bench.records(stream)
    ]


def recount(samples, interval):
    """What a stream should hold of samples, of which each was sent at least once, in order."""
    found, before = [], None
    for seconds, y in sorted(set(samples)):
        slot = math.floor((T0 + seconds) / interval)
        if before is None or slot > before:
            found.append((y, seconds, 1.0 if before is None else float(slot - before)))
            before = slot
    return found


def test_the_counts_are_those_of_the_command(bench):
    assert ingest(bench, seen(0), seen(4), seen(10)) == {"applied": 2, "skipped": 1}
    assert ingest(bench, seen(0), seen(4), seen(10)) == {"applied": 0, "skipped": 3}
    assert ingest(bench, seen(39.9)) == {"applied": 1, "skipped": 0}
    assert applied(bench) == [(1.0, 0, 1.0), (1.0, 10, 1.0), (1.0, 39.9, 2.0)]


def test_without_an_interval_every_later_sample_counts(bench):
    sent = [seen(0), seen(0.001), seen(0.001), seen(7)]
    assert ingest(bench, *sent, interval=None) == {"applied": 3, "skipped": 1}
    assert [elapsed for _, _, elapsed in applied(bench)] == [1.0, 1.0, 1.0]


def test_settings_are_those_of_a_new_stream_only(bench):
    ingest(bench, seen(0))
    bench.ask(Configure("s", {"interval": 60.0}))
    assert ingest(bench, seen(30), seen(61)) == {"applied": 1, "skipped": 1}
    bench.ask(Delete("s"), 204)
    assert ingest(bench, seen(0), seen(12)) == {"applied": 2, "skipped": 0}


def test_pending_labels_are_the_last_observations(bench):
    ingest(bench, seen(0))
    pending = [Observation(None, None, seen(20).time, pending=True)]
    bench.ask(Observe("s", pending))
    assert ingest(bench, seen(10), seen(21), seen(30)) == {"applied": 1, "skipped": 2}
    bench.ask(Observe("s", [Observation(5.0)], seq=1))
    assert applied(bench) == [(1.0, 0, 1.0), (5.0, 20, 2.0), (1.0, 30, 1.0)]


def test_a_refused_command_applies_nothing(bench):
    assert ingest(bench, seen(0)) == {"applied": 1, "skipped": 0}
    refused = bench.ask(Ingest("s", [seen(10), seen(20, 1e200)], settings=KNOWN), 422)
    assert refused["applied"] == 0
    assert len(applied(bench)) == 1


@pytest.mark.parametrize("seed", range(4))
def test_repeats_and_crashes_leave_what_a_recount_gives(bench, seed):
    rng = random.Random(seed)
    samples, at = [], 0.0
    for i in range(60):
        at += rng.choice([1.0, 3.0, 4.5, 10.0, 35.0])
        samples.append((round(at, 3), float(i)))
    sent = 0
    while sent < len(samples):
        first = max(0, sent - rng.randrange(8))  # what was not acknowledged comes again
        sent = min(len(samples), first + rng.randrange(1, 12))
        numbers = bench.append(
            Ingest(
                "s",
                [seen(*each) for each in samples[first:sent]],
                settings=KNOWN | {"interval": 10.0},
            )
        )
        if rng.random() < 0.4:
            bench.turn()
            bench.crash()
        bench.outcomes(numbers)
    assert applied(bench) == recount(samples, 10.0)


@pytest.mark.parametrize("interval", [5e-324, 1e-300, 1e-5])
def test_intervals_below_the_least_are_the_least(bench, interval):
    """As earlier versions stored them; a quotient by one was infinite, and failed the batch."""
    assert ingest(bench, seen(0), seen(0.005), interval=interval) == {"applied": 2, "skipped": 0}
    assert [elapsed for _, _, elapsed in applied(bench)] == [1.0, 5.0]


def test_a_missing_label_does_not_take_its_intervals_place(bench):
    assert ingest(bench, seen(0), seen(20, None)) == {"applied": 1, "skipped": 1}
    assert ingest(bench, seen(25), seen(40, None), seen(50)) == {"applied": 2, "skipped": 1}
    assert applied(bench) == [(1.0, 0, 1.0), (1.0, 25, 2.0), (1.0, 50, 3.0)]
    ingest(bench, seen(0), seen(1, None), stream="t", interval=None)
    assert [y for y, _, _ in applied(bench, "t")] == [1.0, None]


def test_labels_that_the_model_refuses_hold_up_no_others(bench):
    """Each in the place of one that is taken, where there is one in its interval."""
    settings = {"model": "poisson", "interval": 10.0}
    values = [-1.0, 3.0, 0.5] * 30 + [-1.0, -1.0]
    sent = [seen(4 * i, y) for i, y in enumerate(values)]
    counts = bench.ask(Ingest("s", sent, settings=settings))
    good = [(4 * i, y) for i, y in enumerate(values) if y == 3.0]
    expected = recount(good, 10.0)
    assert applied(bench) == expected
    assert counts["applied"] == len(expected)
    assert counts["applied"] + counts["skipped"] + counts["rejected"] == len(values)
    assert counts["rejected"] > 20
    assert counts["reason"] == "y: expected a count of at most 1e+12, got -1"
    again = bench.ask(Ingest("s", sent, settings=settings))
    assert (again["applied"], again["rejected"]) == (0, 2)  # those after the last that was taken
    bench.crash()
    assert applied(bench) == expected


def test_a_stream_whose_labels_are_all_refused_is_not_made(bench):
    sent = [seen(0, -1.0), seen(20, 0.5)]
    counts = bench.ask(Ingest("s", sent, settings={"model": "poisson", "interval": 10.0}))
    assert (counts["applied"], counts["skipped"], counts["rejected"]) == (0, 0, 2)
    assert bench.stored("s")["head"] is None
