"""Resampling of ingested observations: one an interval, exactly once, despite repeats and kills."""

import math
import random
from datetime import UTC, datetime

from service.wire import AS_IT_IS, Configure, Delete, Ingest, Observation, Observe
from tests.packing import pack
from tests.remote_write import raw

T0 = 1_767_225_600
KNOWN = {"model": "gaussian", "location": [0.0], "scale": [1.0]}


def seen(seconds, y=1.0):
    time = datetime.fromtimestamp(T0 + seconds, UTC).isoformat(timespec="milliseconds")
    return Observation(y, None, time)


def ingest(bench, *observations, stream="s", interval=10.0):
    settings = KNOWN | ({} if interval is None else {"interval": interval})
    answer = bench.ask(Ingest(stream, list(observations), settings=raw(settings)))
    assert answer.keys() == {"applied", "skipped"}
    return answer["applied"], answer["skipped"]


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


def test_settings_are_those_of_a_new_stream_only(bench):
    ingest(bench, seen(0))
    bench.ask(Configure("s", {"interval": 60.0}))
    assert ingest(bench, seen(30), seen(61)) == (1, 1)
    bench.ask(Delete("s"), 204)
    assert ingest(bench, seen(0), seen(12)) == (2, 0)


def test_samples_without_settings_are_of_a_stream_that_is_there(bench):
    """One by one, and as rows among which some are of such streams."""
    bare = Ingest("s", [seen(0)], settings=AS_IT_IS)
    assert bench.ask(bare, 404)["detail"] == "there is no stream 's'"
    ingest(bench, seen(0))
    assert bench.ask(Ingest("s", [seen(12)], settings=AS_IT_IS))["applied"] == 1
    names = [f"s{i}" for i in range(40)]
    own = bench.partition(names[0])
    new, absent, there = [name for name in names if bench.partition(name) == own][:3]
    ingest(bench, seen(0), stream=there)
    bare = [Ingest(name, [seen(30)], settings=AS_IT_IS) for name in (there, absent)]
    ((partition, number),) = bench.append(
        pack([*bare, Ingest(new, [seen(30)], settings=raw(KNOWN))])
    )
    outcomes = bench.outcomes([(partition, number, row) for row in range(3)])
    assert [own.status for own in outcomes] == [200, 404, 200]
    assert [len(applied(bench, name)) for name in (there, new)] == [2, 1]


def test_pending_labels_are_the_last_observations(bench):
    ingest(bench, seen(0))
    for seconds in (20, 30):
        bench.ask(Observe("s", [Observation(None, None, seen(seconds).time, pending=True)]))
    assert ingest(bench, seen(10), seen(31), seen(40)) == (1, 2)
    for seq in (1, 2):
        bench.ask(Observe("s", [Observation(5.0)], seq=seq))
    assert applied(bench) == [(1.0, 0, 1.0), (5.0, 20, 2.0), (5.0, 30, 1.0), (1.0, 40, 1.0)]


def test_a_missing_label_does_not_take_its_intervals_place(bench):
    assert ingest(bench, seen(0), seen(20, None)) == (1, 1)
    assert ingest(bench, seen(25), seen(40, None), seen(50)) == (2, 1)
    assert applied(bench) == [(1.0, 0, 1.0), (1.0, 25, 2.0), (1.0, 50, 3.0)]
    # Without an interval every later sample counts.
    sent = [seen(0), seen(0.001, None), seen(0.001), seen(7)]
    assert ingest(bench, *sent, stream="t", interval=None) == (3, 1)
    assert applied(bench, "t") == [(1.0, 0, 1.0), (None, 0.001, 1.0), (1.0, 7, 1.0)]


def test_labels_that_the_model_refuses_hold_up_no_others(bench):
    """Each in the place of one that is taken, where there is one in its interval."""
    settings = {"model": "poisson", "interval": 10.0}
    values = [-1.0, 3.0, 0.5] * 30 + [-1.0, -1.0]
    sent = [seen(4 * i, y) for i, y in enumerate(values)]
    counts = bench.ask(Ingest("s", sent, settings=raw(settings)))
    expected = recount([(4 * i, y) for i, y in enumerate(values) if y == 3.0], 10.0)
    assert applied(bench) == expected
    assert counts["applied"] == len(expected)
    assert counts["applied"] + counts["skipped"] + counts["rejected"] == len(values)
    assert counts["rejected"] > 20
    again = bench.ask(Ingest("s", sent, settings=raw(settings)))
    assert (again["applied"], again["rejected"]) == (0, 2)  # those after the last that was taken
    bench.crash()
    assert applied(bench) == expected
    none = bench.ask(Ingest("t", [seen(0, -1.0), seen(20, 0.5)], settings=raw(settings)))
    assert (none["applied"], none["skipped"], none["rejected"]) == (0, 0, 2)
    assert bench.stored("t")["head"] is None


def test_repeats_and_crashes_leave_what_a_recount_gives(bench):
    for seed in range(3):
        rng, stream = random.Random(seed), f"s{seed}"
        samples, at = [], 0.0
        for i in range(50):
            at += rng.choice([1.0, 3.0, 4.5, 10.0, 35.0])
            samples.append((round(at, 3), float(i)))
        sent = 0
        while sent < len(samples):
            first = max(0, sent - rng.randrange(8))  # what was not acknowledged comes again
            sent = min(len(samples), first + rng.randrange(1, 12))
            part = [seen(*each) for each in samples[first:sent]]
            numbers = bench.append(Ingest(stream, part, settings=raw(KNOWN | {"interval": 10.0})))
            if rng.random() < 0.4:
                bench.turn()
                bench.crash()
            bench.outcomes(numbers)
        assert applied(bench, stream) == recount(samples, 10.0)
