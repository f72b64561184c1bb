"""`moca bench train`: time and memory of a training iteration, against the plain recursion."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

BATCH = 50
LENGTH = 100
FEATURES = 32
REPEATS = 5


class Measured(NamedTuple):
    """One iteration, forward and backward: median seconds, and peak memory in MB."""

    seconds: float
    peak_mb: float
    loss: float


def command(
    dtype: Annotated[
        Literal["float32", "float64"],
        typer.Option(help="float32 or float64.", show_choices=False),
    ] = "float32",
    repeats: Annotated[int, typer.Option(min=1, help="Iterations; their median counts.")] = REPEATS,
) -> object:
    """Time and memory of a training iteration: batch 50, 100 observations, 32 features, one core.

    `plain` is the paper's recursion step by step, with torch's own gradients; `rows` is the block
    form with blocks of one row, `blocks` of twenty; `lattice` is what training does.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    measured = {
        name: _in_subprocess(name, dtype, repeats)
        for name in track(WAYS, "measuring", transient=True, console=Console(stderr=True))
    }
    plain = measured["plain"]
    title = f"One iteration: batch {BATCH}, T = {LENGTH}, n = {FEATURES}, {dtype}, one core"
    table = Table("way", box=SIMPLE_HEAD, title=title, title_justify="left")
    for heading in ("seconds", "times faster", "peak MB", "share of memory", "loss"):
        table.add_column(heading, justify="right")
    for name, way in measured.items():
        table.add_row(
            name,
            f"{way.seconds:.3f}",
            f"{plain.seconds / way.seconds:.1f}",
            f"{way.peak_mb:.0f}",
            f"{way.peak_mb / plain.peak_mb:.3f}",
            f"{way.loss:.5f}",
        )
    Console().print(table)
    return {"dtype": dtype, "ways": {name: way._asdict() for name, way in measured.items()}}


def _in_subprocess(way: str, dtype: str, repeats: int) -> Measured:
    """Measure in a process of its own: peak memory is of a whole process."""
    command = [sys.executable, "-m", "training.bench.train", way, dtype, str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Measured(*json.loads(done.stdout))


def measure(way: str, dtype: str, repeats: int) -> Measured:
    """Measure one way in this process; peak memory is the increase over the time before."""
    import torch

    from training.bench.losses import WAYS as losses
    from training.experiments.catalogue import Place, preset, splits
    from training.experiments.jobs import learner

    torch.set_num_threads(1)
    wanted = preset("sinusoid", "quick", {"optimiser": {"batch": BATCH, "length": LENGTH}})
    sources = splits(wanted, Place(None, Path()))
    kind: torch.dtype = getattr(torch, dtype)
    made = learner(wanted, sources).to(kind)
    batch = sources.train.draw(torch.Generator().manual_seed(0), BATCH, LENGTH).to("cpu", kind)
    before = _peak_mb()
    times = []
    value = 0.0
    for _ in range(repeats):
        made.zero_grad()
        begun = time.perf_counter()
        loss = losses[way](made, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        times.append(time.perf_counter() - begun)
        value = loss.item()
    return Measured(sorted(times)[len(times) // 2], max(0.0, _peak_mb() - before), value)


def _peak_mb() -> float:
    """Peak memory of this program; getrusage also counts the process before `exec`."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        return int(line) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


WAYS = ("plain", "rows", "blocks", "lattice")

if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
