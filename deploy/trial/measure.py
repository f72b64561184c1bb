"""What batches cost a running service: the lines that deploy/trial/simulate.py is given.

    moca serve &
    python deploy/trial/measure.py --url http://127.0.0.1:8000 --pid $!

Posts one observation to each of many streams, a list of them in a request, in lists of several
sizes; reads from /metrics how long the worker computed and committed, and fits straight lines. Also
the store's memory for each stream, once the answers are gone that it keeps for a minute, and with
--pid the processor time of each process for an observation. On a machine that does nothing else.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import Annotated, NamedTuple

import httpx
import numpy as np
import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from service.bench.processes import Server, cpu_seconds

SIZES = (1, 8, 32, 128, 512)
BYTES = "moca_redis_used_memory_bytes"


class Cost(NamedTuple):
    """Means over the batches of one size; milliseconds. cpu: by process, microseconds each."""

    size: float
    compute: float
    commit: float
    cpu: dict[str, float]


def read(client: httpx.Client) -> dict[str, float]:
    """Sums and counts of the service's metrics, each with its stage, if any."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(client.get("/metrics").raise_for_status().text):
        for sample in family.samples:
            if sample.name.endswith(("_sum", "_count")) or sample.name == BYTES:
                name = sample.name + sample.labels.get("stage", "")
                found[name] = found.get(name, 0.0) + sample.value
    return found


def post(client: httpx.Client, names: list[str], rng: random.Random) -> None:
    """One observation for each stream, in one request."""
    items = [{"stream": name, "y": rng.gauss(0, 1)} for name in names]
    for answer in client.post("/v1/observations", json=items).raise_for_status().json():
        if "log_score" not in answer:
            raise RuntimeError(f"not answered: {answer}")


def cost(server: Server, names: list[str], rounds: int, rng: random.Random) -> Cost:
    """Post lists of all the streams so many times."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        before, used = read(client), cpu_seconds(server)
        for _ in range(rounds):
            post(client, names, rng)
        after, spent = read(client), cpu_seconds(server)

    def mean(name: str, stage: str = "") -> float:
        count = f"{name}_count{stage}"
        total = after[f"{name}_sum{stage}"] - before.get(f"{name}_sum{stage}", 0.0)
        return total / max(1.0, after[count] - before.get(count, 0.0))

    stage = "moca_stage_duration_seconds"
    size = mean("moca_batch_size_observations")
    each = 1e6 / (rounds * len(names))
    cpu = {role: each * (spent[role] - used.get(role, 0.0)) for role in sorted(spent)}
    return Cost(size, 1e3 * mean(stage, "compute"), 1e3 * mean(stage, "commit"), cpu)


def show(console: Console, found: list[Cost]) -> None:
    """Print what the sizes cost, and the straight lines."""
    roles = sorted(found[-1].cpu)
    columns = ("batch", "compute ms", "commit ms", *(f"{role} us" for role in roles))
    table = Table(*columns, box=SIMPLE_HEAD)
    for each in found:
        used = (f"{each.cpu.get(role, 0.0):.0f}" for role in roles)
        table.add_row(f"{each.size:.1f}", f"{each.compute:.2f}", f"{each.commit:.2f}", *used)
    console.print(table)
    sizes = [each.size for each in found]
    for name in ("compute", "commit"):
        times = np.array([getattr(each, name) for each in found])
        slope, start = np.polyfit(sizes, times, 1, w=1 / times)  # as exact for small batches
        console.print(f"{name}: {1e3 * start:.0f} us, and {1e3 * slope:.1f} us an observation")


def main(
    url: Annotated[str, typer.Option(help="Address of the service.")] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option(help="Model of the streams.")] = "gaussian",
    rounds: Annotated[int, typer.Option(min=1, help="Requests per size.")] = 200,
    history: Annotated[int, typer.Option(min=40, help="Earlier observations per stream.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the labels.")] = 0,
    settle_s: Annotated[
        float, typer.Option(help="Seconds to settle; more than twice the request deadline.")
    ] = 65,
    pid: Annotated[
        int | None, typer.Option(help="Process id of `moca serve` on this machine.")
    ] = None,
) -> None:
    """Measure and print; the streams are deleted again."""
    console, rng, server = Console(), random.Random(seed), Server(url, pid)
    names = [f"measure-{uuid.uuid4().hex[:8]}-{i}" for i in range(max(SIZES))]
    with httpx.Client(base_url=url, timeout=60) as client:
        empty = read(client)[BYTES]
        try:
            for name in track(names, "priming", console=console):
                client.put(f"/v1/streams/{name}", json={"model": model}).raise_for_status()
                body = [{"y": rng.gauss(0, 1)} for _ in range(history)]
                client.post(f"/v1/streams/{name}/observations", json=body).raise_for_status()
            at_once = (read(client)[BYTES] - empty) / len(names)
            time.sleep(settle_s)
            stored = (read(client)[BYTES] - empty) / len(names)
            found = [
                cost(server, names[:size], rounds, rng) for size in track(SIZES, console=console)
            ]
        finally:
            for name in names:
                client.delete(f"/v1/streams/{name}")
    show(console, found)
    console.print(
        f"in the store: {stored / 1000:.1f} kB per stream after {history} observations, "
        f"{at_once / 1000:.1f} kB including answers that are kept for a while"
    )


if __name__ == "__main__":
    typer.run(main)
