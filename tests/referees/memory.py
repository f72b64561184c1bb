"""Referee of memory: by how much hostile bodies raise the peak of an API process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cramjam
import httpx

from tests.e2e.deployment import Processes, served
from tests.referees.judging import Row

MIB = 1 << 20
SIZE = 8 * MIB - 64  # a body may have 8 MiB
ALLOWED = 1.25  # times what was frozen
NOISE_MIB = 16.0
JSON = {"content-type": "application/json"}
LINES = {"content-type": "application/x-ndjson"}
WRITE = {
    "content-type": "application/x-protobuf",
    "content-encoding": "snappy",
    "x-prometheus-remote-write-version": "0.1.0",
}
ONE = "/v1/streams/s/observations"
MANY = "/v1/observations"


def _full(head: bytes, piece: bytes, tail: bytes, between: bytes = b",") -> bytes:
    """A body as large as may be, of one piece again and again."""
    count = (SIZE - len(head) - len(tail)) // (len(piece) + len(between))
    return head + between.join([piece] * count) + tail


def _remote_write() -> bytes:
    """Millions of empty labels: a few hundred kB once compressed."""
    label = b"\x0a\x00"
    series = label * (4 * MIB // 2)
    length = bytearray()
    size = len(series)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(cramjam.snappy.compress_raw(b"\x0a" + bytes(length) + series))


BODIES: dict[str, tuple[str, dict[str, str], Any]] = {
    "a list of numbers": (ONE, JSON, lambda: _full(b'{"y":[', b"1", b"]}")),
    "a list of lists": (ONE, JSON, lambda: _full(b'{"x":[', b"[]", b"]}")),
    "a list of objects": (ONE, JSON, lambda: _full(b"[", b"{}", b"]")),
    "one field again and again": (ONE, JSON, lambda: _full(b"{", b'"y":1', b"}")),
    "many fields": (
        ONE,
        JSON,
        lambda: b"{" + b",".join(b'"f%d":1' % i for i in range(500_000)) + b"}",
    ),
    "depth": (ONE, JSON, lambda: b"[" * SIZE),
    "items with nothing in them": (MANY, JSON, lambda: _full(b"[", b"{}", b"]")),
    "lines with nothing in them": (MANY, LINES, lambda: _full(b"", b"{}", b"", b"\n")),
    "10,000 items with errors": (
        MANY,
        JSON,
        lambda: json.dumps([{f"f{i}": 1 for i in range(70)}] * 10_000).encode(),
    ),
    "a remote write of empty labels": ("/v1/prometheus/write", WRITE, _remote_write),
}


def measure(folder: Path) -> dict[str, Any]:
    """MiB by which the peak rises, by body; each on a new process, which has no memory to spare."""
    grown = {}
    for number, (name, (path, headers, make)) in enumerate(BODIES.items()):
        home = folder / str(number)
        home.mkdir()
        with served(home) as (processes, url), httpx.Client(base_url=url, timeout=120) as client:
            pid = _api_pid(processes)
            client.post(ONE, json={"y": 1.0}).raise_for_status()
            body = make()
            before = _reset_peak(pid)
            answer = client.post(path, content=body, headers=headers)
            assert answer.status_code < 500, (name, answer.text)
            grown[name] = round(mib(pid, "VmHWM") - before, 1)
    return grown


def judge(now: dict[str, Any], frozen: dict[str, Any]) -> list[Row]:
    return [
        Row(name, f"{old:.0f} MiB", f"{now[name]:.0f} MiB", now[name] <= ALLOWED * old + NOISE_MIB)
        for name, old in frozen.items()
    ]


def _api_pid(processes: Processes) -> int:
    """The API process, a child of `moca serve`."""
    serve = processes.running["serve"].pid
    children = Path(f"/proc/{serve}/task/{serve}/children").read_text().split()
    for pid in children:
        if b"\0api\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    raise AssertionError(f"no API process among {children}")


def _reset_peak(pid: int) -> float:
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return mib(pid, "VmRSS")


def mib(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {field} of process {pid}")
