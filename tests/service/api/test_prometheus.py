"""Remote writes: from bodies to series, from series to streams, and what is sent again."""

import json
import math
import random
import time
from unittest.mock import Mock

import cramjam
import msgspec
import pytest
from msgspec.structs import replace

from model_core import labels as model_labels
from service import wire
from service.api.gateway.gateway import RowsResult
from service.api.parsing import samples, series
from service.api.parsing.bodies import CommandParser
from service.api.parsing.samples import MOST_PARTS, Version, parse_known, parse_write
from service.api.parsing.series import SeriesRules
from service.api.routes import prometheus
from service.api.routes.prometheus import SampleWrite
from service.problems import (
    BodyTooLarge,
    LabelOutOfRange,
    MalformedBody,
    NumericalFault,
    OutcomeUnknown,
    PartitionFull,
    RedisUnavailable,
    ServiceError,
    StartupError,
    UnknownModel,
    UnknownStream,
)
from service.settings import Settings
from service.wire import rows, tags
from tests.remote_write import CLASS, V2, packed, raw, version_1, version_2
from tests.service.api.conftest import slug

SERIES = [({"__name__": "x", "instance": each}, [(1.0, 1000), (2.0, 100_000)]) for each in "abc"]
WRITTEN = "x-prometheus-remote-write-samples-written"
LIMITS = {}, 8 << 20, 1000  # no series is known
PARSER = CommandParser(Settings())


def outcome(**counts):
    body = {"applied": 2, "skipped": 0, **counts}
    return wire.Outcome(1, 200, [json.dumps(body).encode()])


def each_by(submit):
    """A gateway's `submit_rows` that has a function submit each command."""

    async def submit_rows(partition, many, begun, patience):
        results = []
        for row, seen in enumerate(rows.observations_of(many)):
            try:
                result = submit(rows.row_of(many, row, seen))
            except ServiceError as error:
                result = error
            results.append(RowsResult([row], result, 0))
        return results

    return submit_rows


@pytest.fixture
def write(api, monkeypatch):
    """Write series, of whose commands `submit` says what comes; returns the answer."""

    async def write(submit, *series):
        monkeypatch.setattr(api.app.state.context.gateway, "submit_rows", each_by(submit))
        body = version_2(*(series or SERIES))
        return await api.post("/v1/prometheus/write", content=body, headers=V2)

    return write


# --- what is not taken: Prometheus drops what is answered 429, and repeats after 503 ------------


async def test_what_is_refused_in_part_is_to_be_sent_again(write):
    for error in (PartitionFull("full"), OutcomeUnknown("?"), RedisUnavailable("")):

        def submit(command, error=error):
            if command.stream.startswith("x@b"):
                raise error
            return outcome()

        answer = await write(submit)
        assert (answer.status_code, answer.headers[WRITTEN]) == (503, "4")
        assert answer.json()["deferred"] == 2


async def test_only_streams_that_are_not_admitted_are_deferred(api, write, monkeypatch):
    gateway, streams = api.app.state.context.gateway, []
    monkeypatch.setattr(gateway, "partitions", lambda names: [int(s[:3] == "x@b") for s in names])

    def admit(partition, command, begun=False):
        if partition:
            raise PartitionFull("full")

    def submit(command):
        streams.append(command.stream)
        return outcome()

    monkeypatch.setattr(gateway, "admit", admit)
    answer = await write(submit)
    assert (answer.status_code, slug(answer)) == (503, "samples-deferred")
    assert (answer.json()["deferred"], answer.headers[WRITTEN]) == (2, "4")
    assert answer.headers["retry-after"] == "1"
    assert sorted(stream[:3] for stream in streams) == ["x@a", "x@c"]


async def test_labels_that_a_worker_left_out_or_that_were_not_tried_are_counted(write, monkeypatch):
    answer = await write(lambda _: outcome(applied=1, rejected=1, reason="y: expected 0 or 1"))
    assert (answer.status_code, answer.headers[WRITTEN]) == (400, "3")
    assert (answer.json()["rejected"], answer.json()["untried"]) == (3, 0)
    assert "y: expected 0 or 1" in answer.json()["detail"]

    def fail(command):
        raise NumericalFault("not finite")

    monkeypatch.setattr(prometheus, "MAX_REFUSED", 1)
    answer = await write(fail)
    assert (answer.status_code, answer.headers[WRITTEN]) == (400, "0")
    assert (answer.json()["rejected"], answer.json()["untried"]) == (3, 3)


async def test_bad_samples_are_rejected_one_by_one(write):
    sent = []

    def submit(command):
        sent.extend(seen.y for seen in command.observations)
        return outcome()

    now = int(time.time() * 1000)
    samples = [(1.0, now), (2.0, 10**17), (3.0, -(10**17)), (4.0, now + 660_000)]
    samples += [(1e101, now), (5.0, now), (6.0, now + 540_000)]
    answer = await write(submit, ({"__name__": "x"}, samples))
    assert (answer.status_code, answer.json()["rejected"]) == (400, 4)
    assert sent == [1.0, 5.0, 6.0]
    assert model_labels.LARGEST == series.MAX_LABEL


class NonNegativeWorker:
    """A gateway whose stream takes labels that are not negative, one after another."""

    def __init__(self, refusal=None):
        self.last, self.commands, self._refusal = "", 0, refusal
        self.submit_rows = each_by(self._submit)

    def partitions(self, streams):
        return [0] * len(streams)

    def waves(self, streams):
        return None

    def patience(self):
        return None

    def admit(self, partition, command):
        pass

    def _submit(self, command):
        self.commands += 1
        if self._refusal is not None:
            raise self._refusal
        applied = skipped = 0
        for seen in command.observations:
            if seen.time <= self.last:
                skipped += 1
            elif seen.y < 0:
                raise LabelOutOfRange("negative", applied=applied)
            else:
                self.last = seen.time
                applied += 1
        return wire.Outcome(1, 200, [msgspec.json.encode({"applied": applied, "skipped": skipped})])


async def counts_of(worker, values, size=1000):
    assigned = series.StreamAssignment(len(values))
    assigned.targets = [series.Target("s", raw({}), "")] * len(values)
    assigned.y = values
    assigned.times = [f"{i:05}" for i in range(len(values))]
    await SampleWrite(assigned, size).submit(worker)
    assert sum(assigned.tally.counts.values()) == len(values)
    return assigned.tally.counts


async def test_settings_are_sent_with_samples_of_streams_that_may_not_be_there(write):
    there, sent = set(), []

    def submit(command):
        made = command.settings != wire.AS_IT_IS
        sent.append((command.stream[:3], made))
        if not made and command.stream not in there:
            raise UnknownStream("there is no stream")
        there.add(command.stream)
        return outcome()

    for streams, commands in (
        (None, [("x@a", True)]),
        (None, [("x@a", False)]),
        (set(), [("x@a", False), ("x@a", True)]),  # deleted, and made again
        (None, [("x@a", False)]),
    ):
        there = there if streams is None else streams
        sent.clear()
        answer = await write(
            submit, ({"__name__": "x", "instance": "a"}, [(1.0, 1000), (2.0, 2000)])
        )
        assert answer.status_code == 204
        assert sent == commands


async def test_requests_that_find_a_stream_deleted_at_once_both_make_it_again(api, write):
    sent = []

    def submit(command):
        sent.append(command.settings != wire.AS_IT_IS)
        if sent == [False]:
            for target in api.app.state.context.series_rules.known.values():
                target.made = False  # as the other request does
            raise UnknownStream("there is no stream")
        return outcome()

    samples = {"__name__": "x", "instance": "a"}, [(1.0, 1000), (2.0, 2000)]
    await write(lambda _: outcome(), samples)
    assert (await write(submit, samples)).status_code == 204
    assert sent == [False, True]


async def test_a_refused_part_is_halved_and_what_it_had_applied_is_not_skipped():
    worker, values = NonNegativeWorker(), [1.0] * 1000
    values[700] = -1.0
    counts = await counts_of(worker, values)
    assert (counts["applied"], counts["skipped"], counts["rejected"]) == (999, 0, 1)
    assert worker.commands < 25
    assert (await counts_of(worker, values))["skipped"] == 1000  # sent again


async def test_refusals_of_a_stream_are_not_looked_for_sample_by_sample():
    for worker, size, rejected, commands in (
        (NonNegativeWorker(UnknownModel("no such model")), 100, 1000, 1),
        (NonNegativeWorker(), 1000, 20, 99),
    ):
        counts = await counts_of(worker, [-1.0] * 1000, size)
        assert (counts["rejected"], counts["untried"]) == (rejected, 1000 - rejected)
        assert worker.commands <= commands


# --- bodies -------------------------------------------------------------------------------------


def request_2(*references, symbols=("", "a", "b")):
    request = CLASS["Request2"]()
    request.symbols.extend(symbols)
    for refs in references:
        series = request.timeseries.add()
        series.labels_refs.extend(refs)
        series.samples.add(value=1.0, timestamp=1000)
    return packed(request)


def test_a_series_with_too_many_labels_is_refused_before_they_are_read():
    body = request_2([1, 2] * 500_000, [1, 2])
    assert len(body) < 100_000
    parsed = parse_write(body, Version.V2, *LIMITS)
    assert [labels for labels, _ in parsed.series] == [("a", "b")]
    assert [count for count, _ in parsed.refusals] == [1]
    labels = {f"l{i}": "x" for i in range(tags.MAX_TAGS)}
    for body, version in ((version_1, Version.V1), (version_2, Version.V2)):
        parsed = parse_write(body((labels, [(1.0, 1)])), version, *LIMITS)
        assert len(parsed.texts(parsed.series[0][0])) == 2 * tags.MAX_TAGS
        parsed = parse_write(body((labels | {"m": "x"}, [(1.0, 1), (2.0, 2)])), version, *LIMITS)
        assert (parsed.series, parsed.samples, parsed.refusals[0][0]) == ([], 2, 2)


def test_symbols_are_shared():
    symbols = ("", "a", "x" * 100_000)
    parsed = parse_write(request_2(*[[1, 2]] * 100, symbols=symbols), Version.V2, *LIMITS)
    assert len({id(labels[1]) for labels, _ in parsed.series}) == 1


def filled(version, part, count):
    """Message of a request with so many of a part."""
    plain = version is Version.V1
    request = CLASS["Request1" if plain else "Request2"]()
    owner = request
    if part not in ("timeseries", "symbols"):
        owner = CLASS["Series1"]() if plain else request.timeseries.add()
    parts = getattr(owner, part)
    for _ in range(count):
        if part in ("symbols", "labels", "histograms", "exemplars") or (plain and owner is request):
            parts.append("" if part == "symbols" else b"")
        else:
            parts.add()
    if plain and owner is not request:
        request.timeseries.append(owner.SerializeToString())
    return request


@pytest.mark.parametrize("version", Version)
def test_more_than_a_request_may_have_is_refused_before_an_object_is_made_of_it(
    version, monkeypatch
):
    for part in ("timeseries", "samples"):
        assert parse_write(packed(filled(version, part, 3)), version, {}, 8 << 20, 3)
        with pytest.raises(BodyTooLarge, match=rf"at most 3 {part} .* max_samples_per_send"):
            parse_write(packed(filled(version, part, 4)), version, {}, 8 << 20, 3)
    monkeypatch.setattr(samples._remote_write, "classes", {})
    own = "labels" if version is Version.V1 else "symbols"
    for part in ("timeseries", "samples", "histograms", "exemplars", own):
        with pytest.raises(BodyTooLarge, match="parts in a request"):
            parse_write(packed(filled(version, part, 3 * MOST_PARTS + 1)), version, {}, 8 << 20, 3)
    first = 1 if version is Version.V1 else 5
    for longer in (b"\x80\x00", b"\x00"):  # tags of more bytes than need be are read, too
        tag = bytes([first << 3 | 0x82]) + longer
        body = bytes(cramjam.snappy.compress_raw((tag + b"\0") * (3 * MOST_PARTS + 1)))
        with pytest.raises(BodyTooLarge, match="parts in a request"):
            parse_write(body, version, {}, 8 << 20, 3)


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (
            version_1(({"__name__": "up", "job": "a"}, [(1.5, 1_767_225_600_000), (-2.0, -1)])),
            "0a420a0e0a085f5f6e616d655f5f120275700a080a036a6f62120161121009000000000000f83f1080d0ea"
            "b6b73312140900000000000000c010ffffffffffffffffff01",
        ),
        (
            version_2(({"__name__": "up", "job": "a"}, [(1.5, 2)]), histograms=[b"\x08\x01"]),
            "220022085f5f6e616d655f5f2202757022036a6f62220161"
            "2a170a0401020304120b09000000000000f83f10021a020801",
        ),
    ],
)
def test_messages_are_those_of_the_specifications(body, content):
    assert bytes(cramjam.snappy.decompress_raw(body)).hex() == content


def test_bytes_that_are_cut_short_or_no_message_are_refused():
    good = cramjam.snappy.decompress_raw(version_1(({"a": "b"}, [(1.0, 2)])))
    none = (b"\x0b", b"\x00\x00", b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f")
    for content in (bytes(good)[:-1], *none):
        with pytest.raises(MalformedBody):
            parse_write(bytes(cramjam.snappy.compress_raw(content)), Version.V1, {}, 8 << 20, 10)
    body = version_1(({"a": "b"}, [(1.0, 2)]))
    assert parse_write(body, Version.V1, {}, len(good), 1).samples == 1


def test_samples_of_known_series_are_read_as_their_messages_are(monkeypatch):
    rng = random.Random(1)
    now = 1_767_225_600_000
    labels = [{"a": "b", "__name__": "x" * size} for size in (0, 1, 127, 128, 200, 2000, 20_000)]
    labels += [{}, {f"l{i}": "v" for i in range(tags.MAX_TAGS)}]
    labels += [{f"l{i}": "v" for i in range(tags.MAX_TAGS + 1)}]
    values = (0.0, -0.0, 1.5, math.nan, math.inf, 1e300)
    times = (now, 0, 1, -1, 2**35 - 1, 2**35, 2**42 - 1, 2**42, 2**63 - 1)
    bodies = [version_1((own, [(value, now)])) for own in labels for value in values]
    bodies += [version_1((labels[1], [(1.0, ms)])) for ms in times]
    bodies += [version_1((labels[1], [(1.0, now + i) for i in range(n)])) for n in range(4)]
    contents = [cramjam.snappy.decompress_raw(body).read() for body in bodies]
    contents += [b"".join(rng.sample(contents, 3)) for _ in range(300)]
    for content in rng.sample(contents, 100) * 10:
        changed = bytearray(content)
        changed[rng.randrange(min(len(content), 60)) - rng.randrange(2) * 30] = rng.randrange(256)
        contents.append(bytes(changed))
    bodies = [bytes(cramjam.snappy.compress_raw(content)) for content in contents]

    def parsed(parse, body, known):
        try:
            return parse(body, Version.V1, known, *LIMITS[1:])
        except MalformedBody as error:
            return str(error)

    read = [parsed(parse_write, body, {}) for body in bodies]
    writes = [write for write in read if not isinstance(write, str)]
    known = {own: series.Target("", raw({}), "") for write in writes for own, _ in write.series}
    messages = Mock(side_effect=samples._series_of)
    monkeypatch.setattr(samples, "_series_of", messages)
    assert [repr(parsed(parse_write, body, known)) for body in bodies] == [*map(repr, read)]
    assert messages.call_count < sum(len(write.series) for write in writes) / 2
    count = 0
    for body, write in zip(bodies, read, strict=True):
        columns = parsed(parse_known, body, known)
        if not isinstance(columns, series.KnownSamples):
            assert columns in (None, write)
            continue
        count += 1
        pairs = zip(columns.values.tolist(), columns.times.tolist(), strict=True)
        assert [[(series.finite(value), ms)] for value, ms in pairs] == [
            own for _, own in write.series
        ]
        assert [known[own] for own, _ in write.series] == columns.targets
    assert count > len(bodies) / 3


# --- from series to streams ---------------------------------------------------------------------


def rules_of(tmp_path, text):
    path = tmp_path / "rules.toml"
    path.write_text(text)
    return SeriesRules(path, PARSER)


def plain(target):
    return replace(target, settings=msgspec.msgpack.decode(target.settings))


def labels(**named):
    return tuple(text for pair in named.items() for text in pair)


UP = labels(__name__="up", instance="a:9100", job="node")


def test_without_rules_each_series_is_a_stream_of_its_own():
    rules = SeriesRules(None, PARSER)
    target = rules.target(UP)
    assert target.stream.startswith("up@a:9100~")
    assert plain(target).settings == {
        "interval": 60.0,
        "ttl": 604_800.0,
        "tags": {"__name__": "up", "instance": "a:9100", "job": "node"},
    }
    for same in (
        labels(job="node", instance="a:9100", __name__="up"),
        labels(__name__="up", instance="a:9100", job="node", mode=""),  # an empty label is none
    ):
        assert plain(rules.target(same)) == plain(target)
    others = [
        UP,
        labels(__name__="up", instance="a:9100", job="db"),
        labels(__name__="up", instance="a:9100"),
        labels(**{"a.b": "1"}),
        labels(a_b="1"),
        labels(stream="1"),
        labels(exported_stream="1"),
        labels(a="1", b="2"),
        labels(a="1\0b\0002"),
        labels(a="1\0b", c="2"),
        labels(a="1", b="c\0002"),
    ]
    assert len({rules.target(each).stream for each in others}) == len(others)


def test_names_that_no_tag_can_have_are_changed_and_long_ones_shortened():
    rules = SeriesRules(None, PARSER)
    given = {"__name__": "x", "stream": "s", "exported_stream": "t", "http.status": "2", "0a": "1"}
    target = rules.target(labels(**given))
    given = plain(target).settings
    assert given["tags"] == {
        "__name__": "x",
        "exported_stream": "t",
        "exported_exported_stream": "s",
        "http_status": "2",
        "_0a": "1",
    }
    tags.check(given["tags"])
    with pytest.raises(ValueError, match="a_b"):
        rules.target(labels(**{"a.b": "1", "a_b": "2"}))
    with pytest.raises(ValueError, match="each label once, got 'b' several times"):
        rules.target(("a", "1", "b", "1", "b", "2"))
    targets = [rules.target(labels(__name__="x" * 150, instance="é/" * 100 + i)) for i in "ab"]
    assert targets[0].stream != targets[1].stream
    assert targets[0].stream.startswith("x" * 80 + "@~c3a9~2f")
    assert max(len(target.stream) for target in targets) <= 200


def test_results_become_streams_only_by_a_rule_with_their_name(tmp_path):
    result = labels(__name__="moca_anomaly", job="moca")
    assert SeriesRules(None, PARSER).target(result) is None
    for match, taken in (
        ('{job="moca"}', False),
        ('{__name__=~".+"}', True),
        ("moca_anomaly", True),
    ):
        rules = rules_of(tmp_path, f"[[rule]]\nmatch = '{match}'")
        assert (rules.target(result) is not None) is taken, match


def test_the_first_rule_that_matches_counts(tmp_path):
    rules = rules_of(
        tmp_path,
        """
        [[rule]]
        match = '{instance=~"a.*"}'
        stream = "first:{job}"
        [[rule]]
        match = 'up{instance="b"}'
        drop = true
        [[rule]]
        match = 'up'
        stream = "last"
        interval = 15
        """,
    )
    assert rules.target(UP).stream == "first:node"
    assert rules.target(labels(__name__="up", instance="b")) is None
    assert rules.target(labels(__name__="down", instance="c")) is None
    last = rules.target(labels(__name__="up", instance="c"))
    assert (last.stream, plain(last).settings["interval"]) == ("last", 15.0)


def test_values_of_any_characters_give_different_ids(tmp_path):
    rules = rules_of(tmp_path, '[[rule]]\nstream = "{path}"')
    values = ["a/b", "a~2fb", "a-b", "a b", "é", "a~b", "x" * 200]
    ids = [rules.target(labels(path=value)).stream for value in values]
    assert ids[:2] == ["a~2fb", "a~7e2fb"]
    assert len(set(ids)) == len(values)
    for refused in ({"path": "x" * 201}, {"path": ".."}, {"path": "x", "other": "x" * 501}):
        with pytest.raises(ValueError, match="expected"):
            rules.target(labels(**refused))


def test_a_file_that_cannot_be_used_says_where(tmp_path):
    for text, where in (
        ("", "rule"),
        ("x", "TOML"),
        ('[[rule]]\nstream = "{a}/b"', "rule.0.stream"),
        ('[[rule]]\nmatch = "{"', "rule.0.match"),
        ("[[rule]]\nhistory = 100000001", "rule.0.history"),
        ("[[rule]]\ncolour = 1", "rule.0.colour"),
        ("[[rule]]\ninterval = 0.0009", "rule.0.interval"),
        ("[[rule]]\nconfirm_after = 3\nfalse_alarm_every = 1000", "false_alarm_every"),
    ):
        with pytest.raises(StartupError, match=where):
            rules_of(tmp_path, text)
    with pytest.raises(StartupError, match=r"none\.toml"):
        SeriesRules(tmp_path / "none.toml", PARSER)


def test_labels_of_a_series_that_is_known_are_not_read(monkeypatch):
    rules = SeriesRules(None, PARSER)
    body = version_1(({"__name__": "up"}, [(1.0, 1000)]))

    def assigned():
        write = parse_write(body, Version.V1, rules.known, *LIMITS[1:])
        return series.StreamAssignment.of(write, rules, 10_000).targets

    first = assigned()
    monkeypatch.setattr(samples, "_labels", None)
    assert assigned() == first
    monkeypatch.undo()
    whole = parse_write(body, Version.V1, *LIMITS)
    with pytest.raises(MalformedBody, match=r"prometheus\.Label"):
        rules.target(b"\x0a\x02\x0a\xff", whole.texts)


def test_the_rules_remember_so_many_series_and_none_of_endless_labels(monkeypatch):
    monkeypatch.setattr(series, "MAX_REMEMBERED", 10)
    rules = SeriesRules(None, PARSER)
    for i in range(1000):
        labels = ("a", f"{i:0400}", "b", "2" * 400)
        assert rules.target(labels) is rules.target(labels)
    assert [*rules.known] == [("a", f"{i:0400}", "b", "2" * 400) for i in range(990, 1000)]
    with pytest.raises(ValueError, match="expected"):
        rules.target(("a", "x" * (series.MAX_KEY + 1)))
    assert len(rules.known) == 10


def test_samples_of_known_series_are_assigned_as_one_by_one(tmp_path):
    text = "match = 'b'\ndrop = true\n[[rule]]\nmatch = '{__name__=~\"e|f\"}'\nstream = 'one'\n"
    rules = rules_of(tmp_path, f"[[rule]]\n{text}[[rule]]\n")
    now = 1_767_225_600_000
    known = {name: version_1(({"__name__": name}, [(1.0, now)])) for name in "abcdef"}
    for body in known.values():
        series.StreamAssignment.of(parse_write(body, Version.V1, *LIMITS), rules, now)
    rng = random.Random(1)
    count = 0
    for _ in range(300):
        values = (0.0, -1.5, math.nan, math.inf, 1e100, 1e101)
        chosen = rng.choices(values, (3, 3, 3, 3, 3, 1), k=3)
        times = [now + rng.choice((0, 0, -60_000, 600_000, 600_001)) for _ in chosen]
        names = [rng.choice("abcdef") for _ in chosen]
        samples_of = zip(names, chosen, times, strict=True)
        body = version_1(*[({"__name__": name}, [(y, ms)]) for name, y, ms in samples_of])
        columns = parse_known(body, Version.V1, rules.known, *LIMITS[1:])
        quick = series.StreamAssignment.of_known(columns, now)
        own = series.StreamAssignment.of(parse_write(body, Version.V1, *LIMITS), rules, now)
        if quick is None:
            assert own.tally.reason
            continue
        count += 1
        assert repr((quick.y, quick.times)) == repr((own.y, own.times))
        assert (quick.targets, quick.tally.counts) == (own.targets, own.tally.counts)
    assert count > 50


def test_a_long_text_that_many_series_name_is_not_looked_at(monkeypatch):
    assigned = series.StreamAssignment.of(
        parse_write(request_2([1, 2], symbols=("", "a", "é" * tags.MAX_ALL)), Version.V2, *LIMITS),
        SeriesRules(None, PARSER),
        10_000,
    )
    assert "expected at most 500 characters" in assigned.tally.reason
    monkeypatch.setattr(series, "_tags", None)
    parsed = parse_write(
        request_2(*[[1, 2]] * 100, symbols=("", "a", "x" * (1 << 20))), Version.V2, *LIMITS
    )
    assigned = series.StreamAssignment.of(parsed, SeriesRules(None, PARSER), 10_000)
    assert assigned.tally.counts["rejected"] == 100
    assert "expected at most 8000 characters in all labels" in assigned.tally.reason


def test_no_id_is_made_of_labels_that_no_tag_can_have(monkeypatch):
    monkeypatch.setattr(series, "_id_from", None)
    with pytest.raises(ValueError, match="expected at most 500 characters, got 501"):
        SeriesRules(None, PARSER).target(("instance", "é" * 501))
