"""Observations of many streams as columns, and back."""

import random

import msgspec
import pytest

from service import wire
from service.wire import Ingest, NumberList, Observation, Observe, ObserveMany, rows
from tests.packing import pack

LABELS = (None, -0.0, 1.5, 1e308, 5e-324, [1.0, None], [2.0, 3.0])


def observation(rng):
    """One of any form: half are numbers, most of the others numbers with their time."""
    seen = Observation(rng.choice([rng.gauss(0, 1), *LABELS]))
    if rng.random() < 0.5:
        seen.time = f"2026-01-01T00:00:{rng.randrange(60):02}Z"
    if rng.random() < 0.2:
        seen.x = [rng.random()]
    if rng.random() < 0.2:
        seen.elapsed = 2.0
    if rng.random() < 0.2:
        seen.changepoint = 0.25
    if rng.random() < 0.2:
        seen.pending = True
    return seen


def commands(rng, kind):
    """Of distinct streams, with a share of everything that a command may have."""
    options = {"belief": rng.random() < 0.3, "components": rng.random() < 0.3}
    if rng.random() < 0.3:
        options["quantiles"] = [0.1, 0.9]
    plain = rng.random() < 0.3
    for i in range(rng.randint(1, 9)):
        count = 1 if plain else rng.choice([0, 1, 1, 3])
        seen = [Observation(rng.random()) if plain else observation(rng) for _ in range(count)]
        own = {} if kind is Observe else {"settings": {"interval": float(i)} if i % 2 else {}}
        if not plain and rng.random() < 0.5:
            own |= {"key": f"k{i}", "digest": "d"}
        if not plain and rng.random() < 0.3:
            own["seq"] = i
        yield kind(f"s{i}", seen, **own, **options)


@pytest.mark.parametrize("kind", [Observe, Ingest])
def test_rows_stand_for_the_commands_that_they_were_made_of(kind):
    rng = random.Random(3)
    for _ in range(300):
        given = [*commands(rng, kind)]
        packed = wire.decode_envelope(wire.encode(wire.Envelope(1, 2, 0, "m", pack(given))))
        many = packed.command
        assert isinstance(many, ObserveMany)
        assert rows.rows_of(many) == len(given)
        assert wire.units(many) == sum(map(wire.units, given))
        seen = rows.observations_of(many)
        back = [rows.row_of(many, row, seen[row]) for row in range(len(given))]
        assert [*map(wire.encode, back)] == [*map(wire.encode, given)]  # -0.0 as well
        # The first of them are what the first commands say.
        room = rng.randrange(wire.units(many) + 2)
        count = rows.fitting(many, room)
        if count:
            first = rows.chosen(many, range(count))
            assert wire.units(first) == sum(map(wire.units, given[:count])) <= room
            seen = rows.observations_of(first)
            back = [rows.row_of(first, row, seen[row]) for row in range(count)]
            assert [*map(wire.encode, back)] == [*map(wire.encode, given[:count])]
        # And so do any of them.
        some = sorted(rng.sample(range(len(given)), rng.randint(1, len(given))))
        part = rows.chosen(many, some)
        seen = rows.observations_of(part)
        back = [rows.row_of(part, row, seen[row]) for row in range(len(some))]
        assert [*map(wire.encode, back)] == [wire.encode(given[row]) for row in some]
        assert count == len(given) or sum(map(wire.units, given[: count + 1])) > room


@pytest.mark.parametrize("times", [[None] * 3, ["2026-01-01T00:00:00Z", None, None]])
def test_a_list_of_numbers_is_as_its_observations(times):
    listed = [Observation(y, None, time) for y, time in zip((0.5, -0.0, 2.0), times, strict=True)]
    sent = wire.Envelope(1, 2, 0, "m", Observe("a", NumberList.of([0.5, -0.0, 2.0], times)))
    numbers = wire.decode_envelope(wire.encode(sent)).command.observations
    assert isinstance(numbers, NumberList)
    assert wire.encode([*numbers]) == wire.encode(listed)
    assert [numbers[i] for i in (0, 2, -1)] == [listed[i] for i in (0, 2, -1)]
    assert (numbers[1:2], numbers[5:]) == (listed[1:2], [])
    assert [*wire.sublist(numbers, 1, 3)] == listed[1:]
    assert wire.times_of(numbers) == wire.times_of(listed) == times
    for bad in (NumberList(b""), NumberList(b"\0" * 8, [None])):
        bad.y += b"\0" * (7 if bad.times is None else 8)
        with pytest.raises(msgspec.ValidationError, match="observations"):
            wire.decode_envelope(wire.encode(wire.Envelope(1, 2, 0, "m", Observe("a", bad))))


def test_plain_numbers_take_their_name_and_eight_bytes():
    given = [Observe(f"host-{i:04d}", [Observation(y=i / 7)]) for i in range(1000)]
    many = wire.encode(pack(given))
    assert len(many) < 1000 * (len("host-0000") + 1 + 8) + 60


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("y", b"\0" * 7),
        ("y", b"\0" * 24),
        ("streams", []),
        ("counts", [1]),
        ("counts", [2, 1]),
        ("times", [None]),
        ("outputs", [1]),
        ("outputs", [2, 1]),
        ("outputs", [2, 0]),
        ("x", b"\0" * 8),
        ("inputs", [0]),
        ("inputs", [1, 0]),
        ("seqs", [1]),
        ("keys", ["k"] * 3),
        ("digests", []),
        ("settings", [{}]),
    ],
)
def test_columns_of_different_lengths_are_refused(column, value):
    many = pack([Observe("a", [Observation(1.0)]), Observe("b", [Observation(2.0)])])
    setattr(many, column, value)
    with pytest.raises(msgspec.ValidationError, match="rows"):
        wire.decode_envelope(wire.encode(wire.Envelope(1, 2, 0, "m", many)))


def test_rows_without_observations_fit():
    many = pack([Observe("a", []), Observe("b", [])])
    numbers = rows.Numbers.of(many)
    rows.check(many)
    assert rows.observations_of(many) == [[], []]
    assert rows.Numbers.joined([numbers, numbers]).y.shape == (0, 1)


@pytest.mark.parametrize("others", [None, [], [Observation(None)] * 2])
def test_others_are_those_that_have_no_number(others):
    many = pack([Observe("a", [Observation(None)]), Observe("b", [Observation(2.0)])])

    many.others = others
    with pytest.raises(ValueError, match="expected 1 observations that are no numbers"):
        rows.check(many)


def test_each_row_has_its_own_of_what_has_no_number():
    seen = [[1.0, None], [None], [2.0], [None, 3.0]]
    own = [[Observation(y, elapsed=float(i)) for y in ys] for i, ys in enumerate(seen)]
    many = pack([Observe(name, part) for name, part in zip("abcd", own, strict=True)])
    ends = rows.ends_of(many)
    numbers = rows.Numbers.of(many)
    last = rows.part_of(many, numbers, ends[3], ends[4])
    assert last == own[3]
    assert rows.part_of(many, numbers, ends[0], ends[1]) == own[0]


@pytest.mark.parametrize("wide", [{"y": [1.0] * 256}, {"y": 1.0, "x": [1.0] * 256}])
def test_one_wide_observation_takes_no_room_of_all_others(wide):
    given = [Observe(f"s{i}", [Observation(float(i), [2.0])]) for i in range(100)]
    given.append(Observe("wide", [Observation(**wide)]))
    many = pack(given)
    numbers = rows.Numbers.of(many)
    assert numbers.y.nbytes + numbers.x.nbytes < 4 * len(wire.encode(many))
    assert [seen for (seen,) in rows.observations_of(many)] == [
        own.observations[0] for own in given
    ]
