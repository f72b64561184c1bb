"""Lists over all streams: changes, streams by P(changed) or tags, results for Prometheus."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest.mock import AsyncMock

import msgspec
import pytest
import redis

from model_core.sentences import Explanation, Moments
from service import wire
from service.api.gateway import pages
from service.api.gateway.pages import ChangePages, IncidentPages, Ranking
from service.api.routes import prometheus
from service.observability import metrics
from service.problems import InvalidField, NotFound, RedisUnavailable
from service.schema.queries import (
    ChangesQuery,
    IncidentQuery,
    IncidentsQuery,
    OverviewQuery,
    kinds_of,
)
from service.store import keys
from service.store.connection import connect_async
from service.store.feed import ChangeFeed, Feeds, IncidentFeed
from service.store.reads import AsyncStore
from tests.feeding import MS, Writer
from tests.service.api.conftest import PARTITIONS
from tests.stored import put_head, put_records, record

STATES = ("suspected", "confirmed", "withdrawn")
GATEWAY = SimpleNamespace(partition=lambda stream: keys.partition_of(stream, PARTITIONS))
SITES = ("north", "süd", "東", "north-🜁", "ＮＯ")


@pytest.fixture
def writer(valkey_url):
    with closing(Writer(valkey_url, PARTITIONS, most=60)) as writer:
        yield writer


@pytest.fixture
async def changes(valkey_url):
    """Make an index that has read nothing yet."""
    async with connect_async(valkey_url) as client:
        with ThreadPoolExecutor(1) as thread:

            def make():
                reads = AsyncStore(client, PARTITIONS)
                feed = ChangeFeed(Feeds(client, PARTITIONS))
                incidents = IncidentFeed(reads, feed, thread)
                return ChangePages(feed, reads, incidents, True, thread)

            yield make


async def listed(changes, **query):
    return await changes.page(ChangesQuery(**({"limit": 500} | query)), MS / 1000)


async def test_it_reads_on_and_forgets_what_is_trimmed(writer, changes, store):
    old = changes()
    for i in range(1, 120):
        for stream in ("a", "b", "c", "d", "e"):
            writer.raise_(stream, i // 2, STATES[i % 2], kind="anomaly" if i % 7 == 0 else "change")
        if i % 20 == 0:
            seen, fresh = await listed(old), await listed(changes())
            states = [
                {(each.stream, each.id): (each.state, each.start) for each in page.changes}
                for page in (seen, fresh)
            ]
            assert states[0] == states[1]
            assert seen.total == len(seen.changes)
    retained = sum(store.xlen(keys.feed(p)) for p in range(PARTITIONS))
    assert retained < len(writer.written) / 2
    assert 0 < fresh.total < len({(stream, id_) for stream, id_, _ in writer.written})


async def test_a_store_that_was_emptied_and_filled_again_is_read_anew(writer, changes, store):
    one = changes()
    for i in range(1, 9):
        writer.raise_("a", i)
    assert (await listed(one)).total == 8
    store.delete(keys.feed(keys.partition_of("a", PARTITIONS)))
    assert (await listed(one)).total == 0
    writer.raise_("a", 9)
    assert [each.id for each in (await listed(one)).changes] == [9]


async def test_a_damaged_entry_is_left_out_and_counted_once(writer, changes, store):
    one = changes()
    writer.raise_("a", 1)
    name = keys.feed(keys.partition_of("a", PARTITIONS))
    store.xadd(name, {"e": b"\x00", "b": "0-0"}, id=f"{writer.ms}-7")
    before = metrics.CORRUPT_STATES._value.get()
    for _ in range(3):
        assert (await listed(one)).total == 1
    assert metrics.CORRUPT_STATES._value.get() == before + 1
    writer.raise_("a", 2)
    assert {each.id for each in (await listed(one)).changes} == {1, 2}


async def test_what_an_error_left_untrimmed_is_trimmed_by_the_next_request(
    writer, changes, store, monkeypatch
):
    one = changes()
    for i in range(1, 4):
        writer.raise_("a", i)
    assert (await listed(one)).total == 3
    writer.raise_("a", 4)
    with monkeypatch.context() as patched:
        patched.setattr(Feeds, "oldest", AsyncMock(side_effect=redis.ConnectionError("gone")))
        with pytest.raises(RedisUnavailable):
            await listed(one)
    store.xtrim(keys.feed(keys.partition_of("a", PARTITIONS)), maxlen=1, approximate=False)
    assert [each.id for each in (await listed(one)).changes] == [4]


async def test_a_change_has_what_was_explained_when_it_was_raised(writer, changes):
    """Whatever became of its stream, and of what that retains."""
    told = {
        "previous": 4,
        "before": Moments(30, 10.0, 0.5),
        "after": Moments(30, 12.0, None),
        "explanation": Explanation("mean rose", "mean", 10.0, 12.0, 0.9, size=4.0),
        "evidence": 1e5,
    }
    writer.raise_("a", 3, **told, start_ms=0)
    writer.raise_("b", 3, start_time="2024-05-01T12:00:00+02:00")
    a, b = sorted((await listed(changes())).changes, key=lambda change: change.stream)
    assert (a.sentence, a.explanation.size, a.evidence) == ("mean rose", 4.0, 1e5)
    assert (a.before.count, a.before.mean, a.after.sd) == (30, 10.0, None)
    assert (a.start_time, a.start_arrived) == ("1970-01-01T00:00:00.000+00:00", True)
    assert (b.start_time, b.start_arrived) == ("2024-05-01T12:00:00+02:00", False)
    assert (b.before, b.explanation) == (None, None)
    writer.raise_("c", 1, evidence=1e4)
    page = await listed(changes(), sort="evidence", min_evidence=1e4)
    assert [change.stream for change in page.changes] == ["a", "c"]


async def test_withdrawn_changes_are_listed_where_they_are_asked_for(writer, changes):
    for stream, state in zip("abc", STATES, strict=True):
        writer.raise_(stream, 1, state)
    one = changes()
    assert {change.stream for change in (await listed(one)).changes} == {"a", "b"}
    assert {change.stream for change in (await listed(one, state=STATES)).changes} == {*"abc"}


async def test_returns_are_listed_where_they_are_asked_for(writer, changes):
    writer.raise_("a", 1)
    writer.raise_("b", 1, returned=wire.KnownRegime("night shift", 0.9, 3, 2, 30))
    one = changes()
    assert [change.stream for change in (await listed(one)).changes] == ["a"]
    (back,) = (await listed(one, kind=["returned"])).changes
    assert (back.stream, back.returned.id, back.returned.name) == ("b", 3, "night shift")
    assert back.sentence.startswith("returned to regime 3 (night shift), last seen at 30")
    assert {change.stream for change in (await listed(one, kind=["all"])).changes} == {"a", "b"}


async def test_incidents_are_of_the_kinds_that_are_asked_for(writer, changes):
    """A page, one by an id of its changes, those of the feed, and what a listed change names."""
    night = wire.KnownRegime("night shift", 0.9, 3, 2, 30)
    for stream in "ab":
        writer.raise_(stream, 1, confirmed_at=42)
    for stream in "cd":
        writer.raise_(stream, 1, confirmed_at=42, returned=night)
    one = changes()
    pages = IncidentPages(one._incidents, one)
    ids = {}
    for kinds, members in (([], "ab"), (["change"], "ab"), (["returned"], "cd"), (["all"], "abcd")):
        listed_ = await pages.page(IncidentsQuery(kind=kinds), MS / 1000)
        (incident,) = listed_.incidents
        assert sorted(incident.names) == [*members], kinds
        detail = await pages.one(incident.id, IncidentQuery(kind=kinds))
        assert sorted(change.stream for change in detail.changes) == [*members]
        ids[members] = incident.id
        rows = (await listed(one, kind=kinds)).changes
        assert {row.stream: row.incident for row in rows} == dict.fromkeys(members, incident.id)
        (sent,) = await pages.of_changes({incident.id}, kinds_of(kinds))
        assert sorted(sent.names) == [*members]
    with pytest.raises(NotFound, match="of changes of kind change is retained"):
        await pages.one(ids["cd"], IncidentQuery())


async def test_values_around_a_start_come_with_the_change(writer, changes, store):
    """Missing ones as null, and no more than are retained."""
    rows = [daily(seq, offset=[0.5]) for seq in range(100)]
    rows[31].y = None
    rows[33].time = "2024-05-01T10:33:00Z"
    writer.raise_("a", 3, confirmed_at=40)
    writer.raise_("late", 9, "suspected")
    for name in ("a", "late"):
        keep(store, name, rows)
    writer.raise_("gone", 3)
    one = changes()
    page = await listed(one, around=4)
    around = {each.stream: each.around for each in page.changes}
    assert around["gone"] is None
    assert around["a"].first == 26
    assert around["a"].values == [5, 6, 0, 1, 2, None, 4, 5]  # with their season
    assert around["a"].times == [None] * 7 + [rows[33].time]
    assert (around["late"].first, len(around["late"].values)) == (86, 8)
    assert around["late"].times == []
    assert all(each.around is None for each in (await listed(one)).changes)
    assert len((await listed(one, around=100, limit=1)).changes[0].around.values) == 100
    store.lset(keys.tail(keys.partition_of("a", PARTITIONS), "a"), 30, b"?")
    page = await listed(one, around=4)
    assert page.unreadable == ["a"]
    assert {each.stream for each in page.changes if each.around} == {"late"}


async def test_values_around_are_of_the_output_that_changed(writer, changes, store):
    writer.raise_("a", 3, explanation=Explanation("output 2: mean rose", "mean", output=1))
    writer.raise_("a", 4)
    keep(store, "a", [record(seq, [seq % 3.0, seq % 5.0 + 9 * (seq >= 30)]) for seq in range(100)])
    p = keys.partition_of("a", PARTITIONS)
    settings = wire.StreamSettings("joint")
    put_head(store, p, "a", wire.Head(1, settings, seq=100, y_dim=2))
    one = changes()
    around = {each.id: each.around.values for each in (await listed(one, around=2)).changes}
    assert around == {3: [3, 4, 9, 10], 4: [2, 0, 1, 2]}


async def test_a_page_counts_changes_and_their_streams(writer, changes):
    for i in range(1, 8):
        writer.raise_(f"s{i % 3}", i, STATES[i % 2])
    page = await listed(changes(), limit=2, state=["confirmed"])
    assert (len(page.changes), page.total, page.streams) == (2, 4, 3)
    writer.raise_("s1", 1, generation=2)  # deleted, and made anew
    page = await listed(changes(), limit=2, state=["confirmed"])
    assert (page.total, page.streams) == (5, 3)


def daily(seq, offset=()):
    return record(seq, float(seq % 7), offset=[*offset])


def keep(store, name, records, season=None):
    """Store a stream of these records."""
    p = keys.partition_of(name, PARTITIONS)
    count = len(records)
    settings = wire.StreamSettings("gaussian")
    put_head(store, p, name, wire.Head(1, settings, seq=count, season=season))
    put_records(store, p, name, records)


async def test_pages_go_on_where_they_were_while_changes_come(writer, changes):
    one = changes()
    for i in range(1, 31):
        writer.raise_(f"s{i % 3}", i, pad=float(i))
    whole = (await listed(one, sort="size")).changes
    assert [each.size for each in whole] == sorted((each.size for each in whole), reverse=True)
    seen, cursor = [], None
    while True:
        page = await listed(one, sort="size", limit=4, cursor=cursor)
        seen += page.changes
        writer.raise_("late", 100 + len(seen), pad=1000.0)  # before every page that is left
        if (cursor := page.cursor) is None:
            break
    assert seen == whole


async def test_the_timeline_counts_every_page_by_time_and_state(writer, changes):
    begin = datetime(2024, 5, 1, tzinfo=UTC)
    for i in range(1, 31):
        time = (begin + timedelta(seconds=i)).isoformat()
        writer.raise_(f"s{i % 3}", i, state=STATES[i % 3], time=time)
    since, until = ((begin + timedelta(seconds=s)).isoformat() for s in (0.5, 31))
    page = await listed(changes(), state=STATES, bins=7, limit=5, since=since, until=until)
    width = 30.5 / 7
    expected = [[0] * 7, [0] * 7]
    for i in range(1, 31):
        expected[STATES[i % 3] != "confirmed"][int((i - 0.5) // width)] += 1
    assert [page.timeline.confirmed, page.timeline.other] == expected
    assert datetime.fromisoformat(page.timeline.since) == datetime.fromisoformat(since)
    assert datetime.fromisoformat(page.timeline.until) == datetime.fromisoformat(until)
    one = (
        await listed(changes(), state=STATES, bins=3)
    ).timeline  # from the first change to the last
    assert sum(one.confirmed) + sum(one.other) == 30
    assert one.confirmed[0] + one.other[0] == one.confirmed[2] + one.other[2] == 10
    assert (await listed(changes(), bins=3, prefix=["none"])).timeline is None
    assert "timeline" not in msgspec.json.decode(msgspec.json.encode(await listed(changes())))


async def test_a_change_dated_in_the_future_is_no_scale_of_the_others(writer, changes):
    now = datetime.fromtimestamp(MS / 1000, UTC)
    for i in range(10):
        writer.raise_("a", i, "confirmed", time=(now - timedelta(minutes=6 * i + 3)).isoformat())
    writer.raise_("b", 1, "confirmed", time="2999-01-01T00:00:00Z")
    timeline = (await listed(changes(), bins=10, since="1h")).timeline
    assert timeline.confirmed == [1] * 9 + [2]
    assert datetime.fromisoformat(timeline.until) == now


async def test_a_cursor_is_checked(writer, changes):
    one = changes()
    for i in range(1, 4):
        writer.raise_("a", i)
    cursor = (await listed(one, limit=1)).cursor
    assert len((await listed(one, cursor=cursor)).changes) == 2
    for query in ({"cursor": "?"}, {"cursor": cursor[:-2]}, {"cursor": cursor, "sort": "size"}):
        with pytest.raises(InvalidField) as caught:
            await listed(one, **query)
        assert [error.loc for error in caught.value.errors] == ["query.cursor"]


async def test_without_a_stream_there_is_no_link_and_no_explanation(writer, changes, store):
    writer.raise_("gone", 1)
    writer.raise_("other", 1)
    writer.raise_("damaged", 1)
    head = wire.Head(2, wire.StreamSettings("gaussian"), seq=20)  # of a later life
    put_head(store, keys.partition_of("other", PARTITIONS), "other", head)
    of_damaged = keys.heads(keys.partition_of("damaged", PARTITIONS))
    store.hset(of_damaged, keys.settled_field("damaged"), b"?")
    page = await listed(changes())
    assert len(page.changes) == 3
    for each in page.changes:
        assert (each.link, each.before, each.after, each.explanation) == (None,) * 4
    assert page.unreadable == ["damaged"]
    assert msgspec.json.encode(page)


async def test_parameters_at_the_bounds_are_taken(api):
    for query in ("changes?limit=500&min_evidence=1&around=100", "streams?limit=1000"):
        assert (await api.get(f"/v1/{query}")).is_success, query


# --- streams ------------------------------------------------------------------------------------


@pytest.fixture
async def reads(valkey_url):
    async with connect_async(valkey_url) as client:
        yield AsyncStore(client, PARTITIONS)


async def test_pages_by_probability_are_those_of_a_sort_of_all(store, reads, monkeypatch):
    """Many are equal; some have none, and some a damaged head."""
    monkeypatch.setattr(pages, "HEADS_AT_ONCE", 40)
    rng, values = random.Random(3), {}
    for i in range(150):
        name = f"{rng.choice(SITES)}-{i}"
        values[name] = rng.choice([None, 0.5, 0.5, rng.random()])
        head = wire.Head(1, wire.StreamSettings(), changed_probability=values[name])
        put_head(store, GATEWAY.partition(name), name, head)
        if i % 10 == 0:
            values[name] = None
            store.hset(keys.heads(GATEWAY.partition(name)), name, b"?")
    for prefix, contains in (("", ""), ("north", ""), ("東", "1"), ("", "ü"), ("north", "-🜁-")):
        expected = sorted(
            (name for name in values if name.startswith(prefix) and contains in name),
            key=lambda name: (1.0 if values[name] is None else -values[name], name),
        )
        with ThreadPoolExecutor(1) as thread:
            chosen, names, cursor = Ranking(reads, None, thread), [], None
            while True:
                asked = {"prefix": prefix, "contains": contains, "limit": 7, "cursor": cursor}
                query = OverviewQuery(sort="changed_probability", **asked)
                page, total, cursor = await chosen.page(query)
                assert total == len(expected)
                assert len(page) == 7 or cursor is None
                names += page
                if cursor is None:
                    break
        assert names == expected


@pytest.fixture
def tagged(store, monkeypatch):
    """Streams with one record each, of which every fifth is in the south; groups are small."""
    monkeypatch.setattr(pages, "TAGS_AT_ONCE", 10)
    monkeypatch.setattr(prometheus, "READ_AT_ONCE", 4)
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    for i in range(25):
        name = f"s{i:02}"
        chosen = wire.StreamSettings(tags={"site": "north" if i % 5 else "south"})
        p = GATEWAY.partition(name)
        put_head(store, p, name, wire.Head(1, chosen, seq=1, updated_ms=now_ms))
        put_records(store, p, name, [record(0, 1.0, anomaly=i / 100)])
    return [f"s{i:02}" for i in range(25)]


@pytest.fixture
def head_reads(store):
    """Numbers of reads of each head from the server, by any client; in its two parts.

    Rows are read with the position that they may lie beside.
    """
    with store.monitor() as monitor:

        def counts():
            store.echo("end")
            found, commands = Counter(), monitor.listen()
            while not (text := next(commands)["command"]).upper().startswith("ECHO"):
                operation, _, rest = text.partition(" ")
                key, *fields = rest.split(" ")
                if operation.upper() == "HGET" and key.endswith(":heads"):
                    assert "\\x00" not in fields[0]
                elif operation.upper() == "HMGET" and key.endswith(":heads"):
                    names = fields[1::2]
                    assert fields[::2] == [f"{name}\\x00" for name in names]
                    found.update(names)
                assert operation.upper() not in {"HGETALL", "HVALS", "HSCAN"}
            return found

        yield counts


async def test_results_read_each_head_once(tagged, reads, head_reads):
    head_reads()
    for match, expected in (([], range(25)), (['{site="south"}'], range(0, 25, 5))):
        results = await prometheus.results(reads, match, 25)
        assert head_reads() == dict.fromkeys(tagged, 1)
        assert [(name, labels["stream"], value) for name, labels, value in results] == [
            ("moca_anomaly", f"s{i:02}", i / 100) for i in expected
        ]


async def test_a_list_without_selectors_reads_each_head_once(tagged, reads, head_reads):
    head_reads()
    names, cursor = [], None
    while True:
        page = await pages.select(reads, "", [], cursor, 7)
        names += [row.stream for row in page.rows]
        assert len(page.rows) == 7 or page.cursor is None
        if (cursor := page.cursor) is None:
            break
    assert head_reads() == dict.fromkeys(names, 1)
    assert names == tagged


async def test_results_leave_out_streams_deleted_after_their_names_were_read(
    tagged, reads, store, monkeypatch
):
    read_heads = reads.heads

    async def heads(streams):
        deleted = wire.Head(1, wire.StreamSettings(), deleted=True)
        put_head(store, GATEWAY.partition("s01"), "s01", deleted)
        store.hdel(keys.heads(GATEWAY.partition("s02")), keys.settled_field("s02"))
        return await read_heads(streams)

    monkeypatch.setattr(reads, "heads", heads)
    results = await prometheus.results(reads, [], 25)
    assert [labels["stream"] for _, labels, _ in results] == ["s00", *tagged[3:]]
