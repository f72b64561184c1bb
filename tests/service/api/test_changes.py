"""The index of changes behind GET /v1/changes: reading on, trims, a store that was restored."""

import msgspec
import pytest

from service import wire
from service.api.gateway.changes import Changes
from service.errors.base import InvalidField
from service.schema.queries import ChangesQuery
from service.store import keys
from service.store.api_reads import AsyncStore
from service.store.connection import connect, connect_async
from service.store.event_log import Feeds
from tests.feeding import MS, Writer

PARTITIONS = 4
STATES = ("suspected", "confirmed", "withdrawn")


@pytest.fixture
def writer(valkey_url):
    found = Writer(valkey_url, PARTITIONS, most=60)
    yield found
    found.close()


@pytest.fixture
def store(valkey_url):
    with connect(valkey_url) as client:
        yield client


@pytest.fixture
async def changes(valkey_url):
    """Make an index that has read nothing yet."""
    client = connect_async(valkey_url)

    def made():
        reads = AsyncStore(client, PARTITIONS)
        return Changes(Feeds(client, client, PARTITIONS), reads, console=True)

    yield made
    await client.aclose()


async def listed(changes, **query):
    return await changes.page(ChangesQuery(**({"limit": 500} | query)), MS / 1000)


async def test_it_reads_on_and_forgets_what_is_trimmed(writer, changes, store):
    old = changes()
    for i in range(1, 120):
        for stream in ("a", "b", "c", "d", "e"):
            writer.raise_(stream, i // 2, STATES[i % 2], kind="anomaly" if i % 7 == 0 else "change")
        if i % 20 == 0:
            seen, fresh = await listed(old), await listed(changes())
            assert seen == fresh
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


async def test_a_damaged_entry_is_left_out(writer, changes, store):
    writer.raise_("a", 1)
    name = keys.feed(keys.partition_of("a", PARTITIONS))
    store.xadd(name, {"e": b"\x00", "b": "0-0"}, id=f"{writer.ms}-7")
    writer.raise_("a", 2)
    assert {each.id for each in (await listed(changes())).changes} == {1, 2}


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


async def test_a_cursor_is_checked(writer, changes):
    one = changes()
    for i in range(1, 4):
        writer.raise_("a", i)
    cursor = (await listed(one, limit=1)).cursor
    assert len((await listed(one, cursor=cursor)).changes) == 2
    bad = [
        ({"cursor": "?"}, "unmodified"),
        ({"cursor": cursor[:-2]}, "unmodified"),
        ({"cursor": cursor, "sort": "size"}, "expected a cursor of sort=size, got one of sort=tim"),
    ]
    for query, text in bad:
        with pytest.raises(InvalidField) as caught:
            await listed(one, **query)
        (error,) = caught.value.errors
        assert error.loc == "query.cursor"
        assert text in error.detail


async def test_without_a_stream_there_is_no_link_and_no_explanation(writer, changes, store):
    writer.raise_("gone", 1)
    writer.raise_("other", 1)
    writer.raise_("damaged", 1)
    p = keys.partition_of("other", PARTITIONS)
    head = wire.Head(2, wire.StreamSettings("gaussian@1"), seq=20)  # of a later life
    blob = wire.checksummed(wire.encode(head), "head", "other")
    store.hset(keys.heads(p), "other", blob)
    store.hset(keys.heads(keys.partition_of("damaged", PARTITIONS)), "damaged", b"?")
    page = await listed(changes())
    assert len(page.changes) == 3
    for each in page.changes:
        assert (each.link, each.before, each.after, each.explanation) == (None,) * 4
    assert page.unreadable == ["damaged"]
    assert msgspec.json.encode(page)


@pytest.mark.parametrize(
    ("query", "loc", "text"),
    [
        ("since=yesterday", "since", "got 'yesterday'"),
        ("until=2024-05-01", "until", "RFC 3339 time, or an age such as 30m, 24h or 7d"),
        ("state=gone", "state[0]", "'suspected', 'confirmed' or 'withdrawn'"),
        ("model=a@b@c", "model[0]", "match"),
        ("min_size=-1", "min_size", "greater than or equal to 0"),
        ("min_size=nan", "min_size", "finite"),
        ("min_probability=2", "min_probability", "less than or equal to 1"),
        ("sort=stream", "sort", "'time', 'size' or 'probability'"),
        ("limit=501", "limit", "500"),
        ("format=xml", "format", "'json' or 'csv'"),
        ("cursor=x", "cursor", "unmodified"),
        ("stream=a", "stream", "unknown field"),
    ],
)
async def test_a_bad_parameter_is_named(api, query, loc, text):
    response = await api.get(f"/v1/changes?{query}")
    assert response.status_code == 422
    (error,) = response.json()["errors"]
    assert error["loc"] == f"query.{loc}"
    assert text in error["detail"]
