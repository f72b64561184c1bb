"""Bytes that nobody meant, for everything that reads bytes: `python -m tests.referees.fuzz TARGET`.

What reads a body answers it or refuses it by an error of its own; it neither raises another one nor
takes more memory than some times the body. With atheris (of the extra `test-all`) new cases are
made from what earlier ones reached in the code; without it by chance alone. `corpus/TARGET` has the
cases that were worth keeping, beside the seeds below.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import inspect
import json
import multiprocessing
import random
import resource
import struct
import sys
import tempfile
import time
import tracemalloc
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cramjam
import msgspec
import pyarrow as pa
import torch
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from safetensors.torch import save

from model_core import artifact
from model_core.errors import BadArtifact
from service import wire
from service.api import tables
from service.api.parsing import samples
from service.api.parsing.bodies import JSON, CommandParser
from service.api.parsing.observations import ObservationParser
from service.api.parsing.samples import PROTOBUF, Version
from service.api.parsing.series import SeriesRules, StreamAssignment
from service.models.catalogue import Catalogue
from service.problems import ServiceError
from service.settings import Settings
from service.store.log import START, Entry
from service.store.streams import (
    UnreadablePart,
    decoded,
    reading,
    records_of,
    rows_of,
    values_of,
)
from service.wire import snapshot, stored_records
from service.wire.snapshot import BadSnapshot
from service.worker.streams.task import decode_entries
from tests.packing import pack
from tests.remote_write import version_1, version_2

CORPUS = Path(__file__).parent / "corpus"
SHM = Path("/dev/shm")
MEMORY = 8  # times the body
FLOOR = 1 << 20  # of a body: what is taken for any
LONGEST = 4096  # bytes of a case
MEASURED = 64  # one case of so many has its memory measured
NOW_MS = 1_767_225_600_000
SETTINGS = Settings(redis_url="redis://127.0.0.1:1/0")
SEED = b'{"stream":"pump-7","key":"k","y":1.5,"time":"2026-01-01T00:00:00Z","seq":3}'
TOKENS = [
    b"null", b"NaN", b"-Infinity", b"1e999", b"[[", b"]]", b'{"', b'":', b"\\u0000", b"\\ud800",
    b"\xff\xff\xff\xff", b"\x00" * 8, b"\x7f\xff\xff\xff", b"\x80\x80\x80\x80\x01", b"\n", b",",
    b'"y":', b'"x":', b'"time":', b'"elapsed":', b'"supervision":', b'"changepoint":', b"0.1",
]  # fmt: skip


class Target(NamedTuple):
    """Something that reads bytes. `refusals` are the errors by which it refuses them."""

    read: Callable[[bytes], object]
    seeds: list[bytes]
    refusals: tuple[type[Exception], ...]


class Failed(AssertionError):
    """A case that was neither read nor refused."""


# --- what reads bytes -----------------------------------------------------------------------------

_parser = ObservationParser(SETTINGS)
_rules = SeriesRules(None, CommandParser(SETTINGS))


def read_remote_write(body: bytes) -> None:
    """Read a remote write of either version, packed here or as it is."""
    for version in Version:
        for sent in (body, bytes(cramjam.snappy.compress_raw(body))):
            try:
                limits = SETTINGS.max_body_bytes, 1000
                known = samples.parse_known(sent, version, _rules.known, *limits)
                if known is not None:
                    StreamAssignment.of_known(known, NOW_MS)
                write = samples.parse_write(sent, version, _rules.known, *limits)
                StreamAssignment.of(write, _rules, NOW_MS)
            except ServiceError as error:
                check(error)


def read_otlp(body: bytes) -> None:
    """Read metrics of OpenTelemetry in both forms."""
    for media in (PROTOBUF, JSON):
        try:
            write = samples.parse_metrics(body, media, 1000)
            StreamAssignment.of(write, _rules, NOW_MS)
        except ServiceError as error:
            check(error)


def read_arrow(body: bytes) -> None:
    """Read a table as a list of observations."""
    names = ("seq", "time", "elapsed", "stream", "key")
    try:
        _parser.items(tables.forms_of(body, names, 1000, 20), lines=False)
    except ServiceError as error:
        check(error)


def check(error: ServiceError) -> None:
    """Raise an error that is the service's own fault."""
    if error.status >= 500:
        raise error


DECODERS: list[Callable[[bytes], object]] = [
    partial(decode, 0) if decode is wire.decode_row else decode
    for name, decode in vars(wire).items()
    if name.startswith("decode_")
]


def read_stored(body: bytes) -> None:
    """Read parts of streams whose checksum is right, whatever is in them, and one that has none."""
    blob = wire.checksummed(body, "part", "s", "1")
    for decode in DECODERS:
        with contextlib.suppress(UnreadablePart):
            decoded(decode, blob, "part", "s", "1")
    for fields in ({b"1": body}, {body[:64]: blob}):
        with contextlib.suppress(UnreadablePart):
            values_of("events", "s", fields)
    block = wire.checksummed(body, "tail", "s")
    with contextlib.suppress(UnreadablePart):
        records_of("s", [block])
    with contextlib.suppress(UnreadablePart), reading("tail", "s"):
        stored_records.labels_of(rows_of("s", [block])[1], 1)


def read_log(body: bytes) -> None:
    """Read an entry of the log: what cannot be read is skipped, without an error."""
    right = wire.Sums("i", 0, [wire.CommandSum(1, 1, 2, len(body), zlib.crc32(body))])
    sums = wire.checksummed(wire.encode(right), "entry", 0)
    other = wire.checksummed(body, "entry", 0)
    for item in decode_entries(0, START, [Entry("1-1", body, s) for s in (sums, other, body)]):
        list(item.singly())


def read_artifact(body: bytes) -> None:
    """Load a folder of a model: a description, and tensors after a line end."""
    description, _, tensors = body.partition(b"\n")
    folder = Path(_folder.name) / "fuzzed" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.json").write_bytes(description)
    (folder / "model.safetensors").write_bytes(tensors)
    (folder / "report.json").write_bytes(description)
    catalogue = Catalogue(folder.parent.parent)
    for model in catalogue.versions("fuzzed"):
        catalogue.report(model)
    artifact.load(folder)


# In memory where that can be had: files on a disk take longer than all else.
_folder = tempfile.TemporaryDirectory(prefix="fuzz-", dir=SHM if SHM.is_dir() else None)


def read_snapshot(body: bytes) -> None:
    """Load a snapshot as it is, and one with this content and the right checksum."""
    packed = zlib.compress(body)
    prefix = struct.pack("<8sHI", snapshot.MAGIC, snapshot.VERSION, zlib.crc32(packed))
    for blob in (body, prefix + packed):
        with contextlib.suppress(BadSnapshot):
            snapshot.load(blob)


# --- seeds ----------------------------------------------------------------------------------------


def arrow_seeds() -> list[bytes]:
    """Tables of numbers, times, names and dictionaries."""
    columns = [
        {"stream": ["a", "b"], "y": [1.0, None]},
        {"stream": pa.array(["a", "a"]).dictionary_encode(), "y": [1, 2], "seq": [0, 1]},
        {"stream": ["a"], "y1": [0.5], "y2": [1.5], "x1": [3.0], "time": ["2026-01-01T00:00:00Z"]},
    ]
    bodies = []
    for each in columns:
        table, sink = pa.table(each), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        bodies.append(sink.getvalue().to_pybytes())
    return bodies


def artifact_seeds() -> list[bytes]:
    """Descriptions of models, with their tensors."""
    float64 = torch.float64
    described: list[tuple[dict[str, Any], dict[str, torch.Tensor]]] = [
        (
            {"format": 1, "kind": "alpaca", "x_dim": 1, "y_dim": 1, "feature_dim": 1, "hazard": 0.1,
             "encoder": {"type": "identity"}},
            {"prior_mean": torch.zeros(1, 1, dtype=float64),
             "prior_covariance_factor": torch.eye(1, dtype=float64),
             "log_noise_variance": torch.zeros(1, dtype=float64)},
        ),
        ({"format": 1, "kind": "fleet", "x_dim": 0, "y_dim": 1}, {}),
    ]  # fmt: skip
    return [json.dumps(d).encode() + b"\n" + (save(t) if t else b"") for d, t in described]


def otlp_seeds() -> list[bytes]:
    """The same gauge in JSON and in protobuf."""
    point = {"timeUnixNano": str(NOW_MS * 10**6), "asDouble": 1.5}
    metric = {"name": "queue.length", "gauge": {"dataPoints": [point]}}
    labels = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    scope = {"resource": labels, "scopeMetrics": [{"metrics": [metric]}]}
    text = json.dumps({"resourceMetrics": [scope]})
    return [
        text.encode(),
        json_format.Parse(text, ExportMetricsServiceRequest()).SerializeToString(),
    ]


def remote_write_seeds() -> list[bytes]:
    """Requests of both versions, unpacked."""
    series = ({"__name__": "up", "instance": "a:1"}, [(1.0, NOW_MS), (2.0, NOW_MS + 60_000)])
    packed = [version_1(series), version_2(series)]
    return [bytes(cramjam.snappy.decompress_raw(body)) for body in packed]


def stored_seeds() -> list[bytes]:
    """Parts of a stream, and what is in the log."""
    head = wire.Head(1, wire.StreamSettings(model="gaussian"))
    ordinary = wire.Record(
        0, 1.5, None, None, 1.0, None, None, 0.0, mean=[1.0], variance=[[2.0]], log_score=-1.5,
        quantiles={level: [0.5] for level in stored_records.LEVELS}, accepted_ms=NOW_MS,
        changed_probability=0.5, evidence=2.0, anomaly=3.0, changepoint_probability=0.1,
        recent_change_probability=0.2, map_run_length=0, previous_start=-1,
    )  # fmt: skip
    timed = {"time": "2026-01-01T00:00:00Z", "accepted_ms": None, "elapsed": 2.0}
    classes = {"mean": None, "quantiles": None, "variance": None, "probabilities": [0.25, 0.75]}
    records = [ordinary, *(msgspec.structs.replace(ordinary, **own) for own in (timed, classes))]
    plain_rows = [wire.encode_row(record) for record in records]
    command = wire.Observe("s", [wire.Observation(1.5), wire.Observation([1.0, None])], key="k")
    envelope = wire.Envelope(1, NOW_MS, 0, "averaged", command)
    many = wire.ObserveMany(["a", "b"], struct.pack("<3d", 1, 2, 3), [1, 2])
    vectors = pack(
        [wire.Observe("a", [wire.Observation([1.0, 2.0])]),
         wire.Observe("b", [wire.Observation(3.0, [4.0]), wire.Observation(None)])]
    )  # fmt: skip
    return [
        wire.encode(wire.Envelope(1, NOW_MS, 0, "averaged", vectors)),
        wire.encode(wire.Envelope(1, NOW_MS, 0, "averaged", many)),
        wire.encode_settled(head),
        wire.encode_position(head),
        wire.encode(envelope),
        wire.encode(wire.LogEntry("i", [envelope])),
        wire.encode(wire.Record(0, 1.5, None, None, 1.0, None, 0.01, 0.0)),
        wire.encode([wire.Outcome(1, 200, [])]),
        *plain_rows,
        stored_records.block_of(0, plain_rows),
    ]


def snapshot_seeds() -> list[bytes]:
    """The content of a snapshot of a stream of one observation."""
    head = wire.Head(1, wire.StreamSettings(model="gaussian"))
    head.seq = 1
    record = wire.Record(0, 1.5, None, None, 1.0, None, 0.01, 0.0)
    taken = snapshot.StreamSnapshot("s", None, head, None, [record], [], {b"k": b"r"})
    return [wire.encode(taken)]


REFUSED = (ServiceError,)
TARGETS: dict[str, Callable[[], Target]] = {
    "ndjson": lambda: Target(
        partial(_parser.items, lines=True), [SEED + b"\n" + SEED, b'{"stream":"a","y":[1,null]}'],
        REFUSED,
    ),
    "json": lambda: Target(
        _parser.observations,
        [b'{"y":1.5}', b'[{"y":1,"x":[2]},{"y":null,"elapsed":3,"supervision":{"changepoint":1}}]'],
        REFUSED,
    ),
    "arrow": lambda: Target(read_arrow, arrow_seeds(), ()),
    "remote-write": lambda: Target(read_remote_write, remote_write_seeds(), ()),
    "otlp": lambda: Target(read_otlp, otlp_seeds(), ()),
    "msgpack": lambda: Target(read_log, stored_seeds(), ()),
    "rows": lambda: Target(read_stored, stored_seeds(), ()),
    "snapshot": lambda: Target(read_snapshot, snapshot_seeds(), ()),
    "artifact": lambda: Target(read_artifact, artifact_seeds(), (BadArtifact,)),
}  # fmt: skip


# --- cases ----------------------------------------------------------------------------------------


def hold(target: Target, case: bytes) -> None:
    """Read a case; raises Failed where it is neither read nor refused."""
    try:
        target.read(case)
    except target.refusals as error:
        if isinstance(error, ServiceError):
            check(error)
    except Exception as error:
        raise Failed(f"{type(error).__name__}: {error}, of {base64.b64encode(case)!r}") from error


def hold_memory(target: Target, case: bytes) -> None:
    """Read a case, and raise Failed where Python's memory for it is more than is allowed."""
    tracemalloc.start()
    try:
        hold(target, case)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > MEMORY * max(len(case), FLOOR):
        raise Failed(f"{peak} bytes of memory for {len(case)}, {base64.b64encode(case)[:500]!r}")


def memory_of(target: Target, body: bytes) -> int:
    """Bytes by which a process grows that reads a body: of all that allocates."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        hold(target, body)
        sender.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

    process = context.Process(target=child)
    process.start()
    process.join()
    if process.exitcode:
        raise Failed(f"a body of {len(body)} bytes ended its reader, {body[:80]!r}")
    return 1024 * int(receiver.recv())


def mutated(rng: random.Random, case: bytes) -> bytes:
    """A case with some changes."""
    body = bytearray(case)
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        at = rng.randrange(len(body) + 1)
        end = min(len(body), at + rng.choice([1, 1, 2, 4, 16]))
        kind = rng.randrange(5)
        if kind == 0:
            body[at:end] = bytes(rng.randrange(256) for _ in range(end - at))
        elif kind == 1:
            del body[at:end]
        elif kind == 2:
            body[at:at] = rng.choice(TOKENS)
        elif kind == 3:
            body[at:at] = body[at:end] * rng.choice([2, 8, 64])
        elif at < len(body):
            body[at] ^= 1 << rng.randrange(8)
    return bytes(body[:LONGEST])


def kept(name: str) -> list[bytes]:
    """Cases of the corpus."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def by_chance(target: Target, name: str, cases: int, seed: int) -> None:
    """Hold seeds, corpus, and so many cases made of them by chance."""
    rng = random.Random(f"{name} {seed}")
    known = [*target.seeds, *kept(name)]
    for case in known:
        hold_memory(target, case)
    for i in range(cases):
        case = mutated(rng, rng.choice(known))
        (hold if i % MEASURED else hold_memory)(target, case)
        if i % 50 == 0 and len(known) < 500:
            known.append(case)


def guided(name: str, cases: int, folder: Path, seed: int, seconds: int) -> None:
    """Hold so many cases, made by atheris from what earlier ones reached. It ends the process.

    seconds: end after so many; 0: not before the last case.
    """
    import atheris

    target = TARGETS[name]()
    folder.mkdir(parents=True, exist_ok=True)
    for i, case in enumerate([*target.seeds, *kept(name)]):
        (folder / f"seed-{i}").write_bytes(case)
    count = 0

    def one(case: bytes) -> None:
        nonlocal count
        count += 1
        (hold if count % MEASURED else hold_memory)(target, case)

    tokens = folder.parent / f"{name}.tokens"
    escaped = ("".join(f"\\x{byte:02x}" for byte in token) for token in TOKENS)
    tokens.write_text("\n".join(f'"{token}"' for token in escaped))
    options = [f"-runs={cases}", f"-max_len={LONGEST}", f"-seed={seed}", "-print_final_stats=1"]
    options += [f"-dict={tokens}", f"-artifact_prefix={folder.parent}/failed-{name}-"]
    options += ["-rss_limit_mb=4096", f"-max_total_time={seconds}"]
    for function in own_functions():
        atheris.instrument_func(function)
    atheris.Setup([sys.argv[0], *options, str(folder)], one)
    atheris.Fuzz()


def own_functions() -> list[Any]:
    """Functions and methods of the service's modules: what guides the making of cases."""
    names = [name for name in sys.modules if name.startswith(("service.", "model_core.artifact"))]
    owners = [sys.modules[name] for name in names]
    owners += [v for owner in owners for v in vars(owner).values() if inspect.isclass(v)]
    found = {v for owner in owners for v in vars(owner).values() if inspect.isfunction(v)}
    return [v for v in found if v.__module__.startswith(("service.", "model_core.artifact"))]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seconds", type=int, default=0, help="end earlier, where guided cases take longer"
    )
    parser.add_argument("--by-chance", action="store_true", help="without atheris")
    parser.add_argument("--folder", type=Path, help="where atheris keeps its cases")
    given = parser.parse_args()
    if not given.by_chance:
        folder = given.folder or Path(tempfile.mkdtemp(prefix="fuzz-"))
        guided(given.target, given.cases, folder / given.target, given.seed, given.seconds)
        return
    began = time.process_time()
    by_chance(TARGETS[given.target](), given.target, given.cases, given.seed)
    seconds = time.process_time() - began
    print(f"{given.target}: {given.cases} cases, {seconds:.0f} s of CPU; all read or refused")


if __name__ == "__main__":
    main()
