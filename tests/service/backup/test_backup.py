"""What a backup holds, what a restore makes of it, and what is refused."""

import os
import random
import resource
import shutil
import subprocess
import sys
import zipfile
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from service import api_keys as access
from service import wire
from service.backup import Kept, Reader, Restore
from service.commands.main import app
from service.problems import StartupError
from service.store import keys
from service.store.api_keys import KEYS, VERSION, Keyring
from service.store.feed import entry_of
from service.store.health import fix_partitions
from service.store.keys import partition_of
from service.wire import Configure, Delete, NameRegime, Observe, Regimes
from service.wire.event_entries import START
from tests.service.worker.kinds import KINDS, configure, publish, series

# Streams, each with a model of its name.
STREAMS = {
    "gaussian": KINDS["gaussian"],
    "poisson": KINDS["poisson"],
    "joint": KINDS["joint-partial"],
    "pump": KINDS["alpaca"],
}


def moca(bench, *arguments, models=None):
    settings = bench.settings
    options = ["--redis-url", settings.redis_url, "--models-dir", models or settings.models_dir]
    return CliRunner().invoke(app, list(map(str, [*arguments, *options])))


def done(result):
    assert result.exit_code == 0, result.output
    return result.output


def refused(result):
    assert result.exit_code == 1, result.output
    return result.output.replace("\n", " ")


@pytest.fixture(scope="module")
def stored():
    """What `fill` left in the store, once it ran."""
    return {}


@pytest.fixture
def filled(bench, stored, tmp_path):
    """A store with a stream of each kind, changed, deleted, with keyed requests and keys."""
    publish(tmp_path / "models")
    bench.labels = {stream: series(kind, 160) for stream, kind in STREAMS.items()}
    if not stored:
        fill(bench, bench.labels)
        bench.stop()
        client = bench.client
        stored["keys"] = [(k, max(0, client.pttl(k)), client.dump(k)) for k in client.scan_iter()]
        stored["appended"] = bench.numbers, bench.batches.copy()
    else:
        for key, ttl_ms, blob in stored["keys"]:
            bench.client.restore(key, ttl_ms, blob)
        bench.numbers, bench.batches = stored["appended"][0], stored["appended"][1].copy()
    return bench


def fill(bench, labels):
    for stream, kind in STREAMS.items():
        configure(bench, stream, kind, 201, history=100, anomaly_alarm=0.6)
        bench.observe(stream, labels[stream][:90])
    bench.ask(Configure("gaussian", {"confirm_after": 5, "ttl": 1e6}))
    bench.ask(Observe("gaussian", labels["gaussian"][90:91], key="k", digest="d"))
    bench.observe("gone", [1.0, 2.0], key="k", digest="d")
    bench.ask(Delete("gone"), status=204)
    Keyring(bench.client).add(access.create("ops", ["read"], "", 0)[0])


@pytest.fixture
def file(filled, tmp_path):
    path = tmp_path / "all.moca"
    filled.stop()
    done(moca(filled, "backup", path))
    return path


def everything(bench):
    """Each stream's hashes by name, whatever its partition."""
    found = {}
    for p in range(bench.settings.partitions):
        heads = bench.client.hgetall(keys.heads(p))
        for name in map(bytes.decode, keys.names_of(heads)):
            hashes = (keys.events, keys.idempotency, keys.changes)
            found[name] = [bench.client.hgetall(key(p, name)) for key in hashes]
            found[name].append(bench.client.lrange(keys.tail(p, name), 0, -1))
            found[name].append([heads[field.encode()] for field in keys.head_fields([name])])
            found[name].append(bench.client.zscore(keys.names(p), name))
            found[name].append(bench.client.zscore(keys.due(p), name))
    return found


def feeds(bench):
    return {p: bench.client.xrange(keys.feed(p)) for p in range(bench.settings.partitions)}


def raised(feeds):
    """What readers find of each stream, in order; ids rise, and each entry names the one before."""
    found = {}
    for p, rows in feeds.items():
        before = START
        for id_, fields in rows:
            entry = entry_of(p, id_, fields)
            assert before == entry.before < entry.id
            assert partition_of(entry.raised.stream, len(feeds)) == p
            found.setdefault(entry.raised.stream, []).append(entry.raised)
            before = entry.id
    return found


@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_streams_go_on_where_they_were(filled, file, make_bench, close, partitions):
    before, told = everything(filled), feeds(filled)
    other = make_bench(db=1, partitions=partitions)
    output = done(moca(other, "restore", file, "--partitions", partitions))
    assert f"restored {len(STREAMS)} streams into {partitions} partitions" in output
    assert before.keys() == {*STREAMS, "gone"}
    assert everything(other) == before
    assert any(told.values())
    assert filled.anomalies("gaussian")
    if partitions == filled.settings.partitions:
        assert feeds(other) == told
    else:
        assert raised(feeds(other)) == raised(told)
    for stream in STREAMS:
        at = filled.head(stream).seq
        rest = filled.labels[stream][at : at + 20]
        close(other.observe(stream, rest), filled.observe(stream, rest))
    again = other.ask(Observe("gaussian", filled.labels["gaussian"][90:91], key="k", digest="d"))
    assert again["duplicate"]
    late = other.ask(Observe("gone", filled.labels["gaussian"][:1], key="k", digest="d"))
    assert late["duplicate"]  # the tombstone remembers it
    assert [key.name for key, _ in Keyring(other.client).all()] == ["ops"]


def test_changes_of_a_clock_ahead_come_before_those_to_come(filled, file, make_bench, monkeypatch):
    told = feeds(filled)
    other = make_bench(db=1)
    now = [1_000_000_000, 5]  # in 2001
    monkeypatch.setattr(other.client, "time", lambda: now)
    with Reader(file) as reader:
        reader.verify()
        Restore(other.client, reader, 2, 1000, False, lambda _: None).run()
    assert raised(feeds(other)) == raised(told)
    assert all(
        int(id_.split(b"-")[0]) < 10**12 for rows in feeds(other).values() for id_, _ in rows
    )


def test_regimes_go_on_with_their_ids_and_names(make_bench, close, tmp_path):
    bench = make_bench()
    rng = random.Random(3)
    labels = [rng.gauss(7.0 * (t // 30 % 2), 1.0) for t in range(220)]
    bench.ask(Configure("a", {"regimes": 4}), status=201)
    bench.observe("a", labels[:150])
    ids = [regime["id"] for regime in bench.ask(Regimes("a"))["regimes"]]
    assert len(ids) == 2
    for id_ in ids:
        bench.ask(NameRegime("a", id_, f"level {id_}"))
    known = bench.ask(Regimes("a"))
    bench.stop()
    path = tmp_path / "regimes.moca"
    done(moca(bench, "backup", path))
    other = make_bench(db=1, partitions=5)
    done(moca(other, "restore", path, "--partitions", 5))
    assert other.ask(Regimes("a")) == known
    answers = other.observe("a", labels[150:])
    close(answers, bench.observe("a", labels[150:]), 0.0)
    seen = {answer["regime"]["name"] for answer in answers if answer.get("regime")}
    assert seen == {f"level {id_}" for id_ in ids}


def test_of_a_store_under_work_each_stream_is_as_of_a_commit(filled, tmp_path, make_bench, close):
    """Here with its owner alive and states in memory alone."""
    filled.observe("gaussian", filled.labels["gaussian"][91:100])
    done(moca(filled, "backup", tmp_path / "b"))
    other = make_bench(db=1, partitions=3)
    done(moca(other, "restore", tmp_path / "b", "--partitions", 3))
    rest = filled.labels["gaussian"][100:]
    close(other.observe("gaussian", rest), filled.observe("gaussian", rest))


def test_every_damage_is_found_before_anything_is_written(file, make_bench, tmp_path):
    other, rng, good = make_bench(db=1), random.Random(1), file.read_bytes()
    with zipfile.ZipFile(file) as whole:
        entries = whole.infolist()
    # The first byte, one of a name, one near the end of each entry, and some of the first entry.
    places = [0, 31, *(next_.header_offset - 9 for next_ in entries[1:])]
    places += [rng.randrange(entries[0].header_offset + 40, places[2]) for _ in range(3)]
    broken = [
        good[:at] + bytes([good[at] ^ (1 << rng.randrange(8))]) + good[at + 1 :] for at in places
    ]
    broken += [good[: rng.randrange(len(good))] for _ in range(3)]
    broken += [good + b"\0", b"", good[:5], good[:20]]
    for missing in ("manifest", "streams/0"):
        with zipfile.ZipFile(tmp_path / "less", "w") as less, zipfile.ZipFile(file) as whole:
            for entry in whole.infolist():
                if entry.filename != missing:
                    less.writestr(entry, whole.read(entry))
        broken.append((tmp_path / "less").read_bytes())
    for blob in broken:
        (tmp_path / "bad").write_bytes(blob)
        assert "backup" in refused(moca(other, "restore", tmp_path / "bad"))
    assert other.client.dbsize() == 0
    done(moca(other, "restore", file, "--check"))
    assert other.client.dbsize() == 0


def test_a_store_with_streams_is_replaced_only_when_told(file, filled, make_bench):
    other = make_bench(db=1)
    other.observe("mine", [1.0, 2.0])
    other.stop()
    assert "--replace" in refused(moca(other, "restore", file))
    assert list(everything(other)) == ["mine"]
    done(moca(other, "restore", file, "--replace"))
    assert everything(other) == everything(filled)
    assert not [key for key in other.client.scan_iter() if key.endswith(b":mine")]


def test_not_beside_a_worker_or_before_what_was_accepted_is_applied(file, make_bench):
    other = make_bench(db=1)
    other.turn()
    assert "stop it first" in refused(moca(other, "restore", file))
    fix_partitions(other.client, 2)
    other.append(Observe("mine", []), Configure("mine", {}))
    other.stop()
    assert "accepted observations are still pending" in refused(moca(other, "restore", file))


def test_not_into_too_little_memory(filled, make_bench, tmp_path, monkeypatch):
    monkeypatch.setattr("service.backup.BLOCK_BYTES", 1)  # a stream in each
    other, file = make_bench(db=1), tmp_path / "all.moca"
    done(moca(filled, "backup", file))
    write = Restore._write

    def fill(self, streams):
        write(self, streams)
        other.client.config_set("maxmemory", 1000)

    other.client.config_set("maxmemory", 1000)
    assert "bytes, but the store's maxmemory is 1000" in refused(moca(other, "restore", file))
    other.client.config_set("maxmemory", 0)
    with monkeypatch.context() as patch:
        patch.setattr(Restore, "_write", fill)
        assert "full: raise maxmemory" in refused(moca(other, "restore", file))
    other.client.config_set("maxmemory", 0)
    assert len(everything(other)) == 1
    done(moca(other, "restore", file))
    assert len(everything(other)) == len(STREAMS) + 1


def test_the_number_of_partitions_of_a_store_stays(file, make_bench):
    other = make_bench(db=1, partitions=3)
    fix_partitions(other.client, 3)
    assert "3 partitions, got 4" in refused(moca(other, "restore", file, "--partitions", 4))
    assert "into 3 partitions" in done(moca(other, "restore", file))


def test_keys_and_windows_are_added_whatever_server_they_are_at(redis_client):
    redis_client.hset(KEYS, "b", "revoked")
    kept = SimpleNamespace(
        keys={b"a": b"1", b"b": b"2"}, keys_used={b"a": b"5"}, calendar={b"w": b"3"}
    )
    reader = SimpleNamespace(manifest=kept)
    Restore(redis_client, reader, 2, 5000, replace=False, progress=print)._write_keys()
    assert redis_client.hgetall(KEYS) == {b"a": b"1", b"b": b"revoked"}
    assert redis_client.hgetall(keys.CALENDAR) == {b"w": b"3"}
    assert redis_client.get(VERSION) == b"1"  # all that know the keys read them again


def test_one_that_was_interrupted_is_repeated(file, filled, make_bench, monkeypatch):
    other, cut = make_bench(db=1), Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as patch:
        patch.setattr(Restore, "_write_keys", cut)
        moca(other, "restore", file)
    assert everything(other)
    with pytest.raises(StartupError, match="run `moca restore` again"):
        fix_partitions(other.client, 2)
    half = moca(other, "backup", file.with_name("half"))
    assert "a restore into this store was interrupted" in refused(half)
    with monkeypatch.context() as patch:  # the next one even before its first stream
        patch.setattr(Restore, "_write", cut)
        moca(other, "restore", file)
    assert cut.call_count == 2
    assert not everything(other)
    done(moca(other, "restore", file))
    assert everything(other) == everything(filled)
    fix_partitions(other.client, 2)


def test_models_must_be_those_that_streams_are_on(file, filled, make_bench, tmp_path):
    other, models = make_bench(db=1), tmp_path / "elsewhere"
    assert "pump@1 is missing" in refused(moca(other, "restore", file, models=models))
    shutil.copytree(tmp_path / "models", models)
    changed = models / "pump" / "1" / "model.json"
    changed.write_text(changed.read_text().replace("0.05", "0.06"))
    assert "pump@1 differs" in refused(moca(other, "restore", file, models=models))
    assert other.client.dbsize() == 0
    done(moca(other, "restore", file, "--ignore-models", models=models))
    assert "pump" in everything(other)


def test_a_stream_that_cannot_be_read_is_named_and_left_out(filled, tmp_path):
    filled.stop()
    key = keys.tail(filled.partition("poisson"), "poisson")
    filled.client.unlink(key)
    filled.client.set(key, "x")
    filled.client.lset(keys.tail(filled.partition("joint"), "joint"), 0, b"?")
    said = refused(moca(filled, "backup", tmp_path / "b"))
    assert "poisson: WRONGTYPE" in said
    assert "joint: cannot read the stored tail" in said
    with Reader(tmp_path / "b") as reader:
        assert sorted(reader.verify().skipped) == ["joint", "poisson"]
        parts = [part for block in reader.streams() for part in block]
        names = {part.stream for part in parts if isinstance(part, Kept)}
    assert names == {*STREAMS, "gone"} - {"joint", "poisson"}


def test_a_file_that_is_there_stays(file, filled):
    good = file.read_bytes()
    refused(moca(filled, "backup", file))
    assert file.read_bytes() == good
    done(moca(filled, "backup", file, "--force"))
    assert file.stat().st_mode & 0o077 == 0
    assert [each.name for each in file.parent.iterdir() if "part" in each.name] == []


def test_nothing_to_take(make_bench, tmp_path):
    assert "no deployment" in refused(moca(make_bench(db=1), "backup", tmp_path / "b"))
    assert not (tmp_path / "b").exists()


def test_a_full_disk_leaves_no_file(filled, tmp_path):
    """A limit on the size of its files stands for a full disk."""
    path, settings = tmp_path / "all.moca", filled.settings
    command = [sys.executable, "-m", "service.commands.main", "backup", str(path)]
    command += ["--redis-url", settings.redis_url, "--models-dir", str(settings.models_dir)]

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    # Or it would leave the first 2,000 bytes of what Python compiles, for everyone to read.
    plain = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    made = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, env=plain)
    assert (made.returncode, "Traceback" in made.stderr) == (1, False)
    assert "File too large" in made.stderr
    assert not list(tmp_path.glob("*.moca*")) + list(tmp_path.glob(".*.part"))
    done(moca(filled, "backup", path))


def test_one_of_another_format_is_refused(file, make_bench, monkeypatch):
    other = make_bench(db=1)
    written = wire.FORMAT
    monkeypatch.setattr(wire, "FORMAT", 0)  # as it looks to another version
    assert f"in store format {written}, expected 0" in refused(moca(other, "restore", file))
    assert other.client.dbsize() == 0
