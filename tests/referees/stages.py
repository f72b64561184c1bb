"""Where a worker's time goes: CPU time and calls of an observation by stage, and a flame graph.

`python -m tests.referees.stages --model averaged --folded FILE` has one worker apply lists of one
observation of each of 1,000 streams, or of 1,000 of one stream (`--one`: the series of `moca bench
serve`), from the log to the commit, under cProfile. Time within numpy, msgspec, redis and the like
is of the stage that calls it. cProfile makes calls dearer than they are: compare shares, and counts
of calls, not sums. FILE: stacks as `flamegraph.pl` and speedscope take them, two levels deep.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from service.bench.serve import rows_of
from service.wire import NumberList, Observation, ObservationList, Observe
from tests.clusters import running_server, valkey
from tests.service.worker.conftest import Bench

ROOT = Path(__file__).parents[2]
STREAMS = 1000
BEFORE = (26,) * 4  # lists of each stream before those that count: past a look at its scale
COUNTED = 64  # as many as are between two checkpoints
UNRENEWED = {"lease_ttl_ms": 1_200_000, "request_deadline_s": 3600.0}  # nothing renews it here
# The first that a file's path begins with.
STAGES = {
    "service/store": "store: requests and replies",
    "service/worker/worker.py": "the loop, and leases",
    "service/worker/streams/task.py": "commands of the log, and their outcomes",
    "service/wire/rows.py": "commands of the log, and their outcomes",
    "service/wire/commands.py": "commands of the log, and their outcomes",
    "service/worker/commit.py": "commands of the log, and their outcomes",
    "service/worker/batch.py": "checks, and what is quiet",
    "service/worker/filtering/quiet.py": "checks, and what is quiet",
    "service/worker/streams/stream.py": "what a commit writes of streams",
    "service/worker/streams/history.py": "what a commit writes of streams",
    "service/wire": "what a commit writes of streams",
    "model_core/codec.py": "checkpoints",
    "model_core/compiled": "filter",
    "model_core": "filter",
    "service/observability": "metrics",
    "service": "others: events, alarms, streams that are awake",
}
Function = tuple[str, int, str]


def stage_of(path: str) -> str | None:
    """Stage of a file; None: it is of no stage, such as a library."""
    if not path.startswith(str(ROOT)):
        return None
    own = path.removeprefix(f"{ROOT}/")
    return next((stage for start, stage in STAGES.items() if own.startswith(start)), None)


@contextmanager
def worker(model: str) -> Iterator[Bench]:
    """A worker with a store of its own."""
    with tempfile.TemporaryDirectory() as folder, running_server(valkey()) as url:
        bench = Bench(url, Path(folder), partitions=1, **UNRENEWED)
        bench.default_model = model
        bench.full = False
        try:
            yield bench
        finally:
            bench.close()


def lists_of(model: str, one: bool) -> Iterator[tuple[bool, list[Observe]]]:
    """Lists of one stream or of many; whether they count."""
    if one:
        for number, at in enumerate(range(0, STREAMS * (len(BEFORE) + COUNTED), STREAMS)):
            rows = rows_of(model, at + STREAMS)[at:]
            observations: ObservationList = [Observation(row["y"], row.get("x")) for row in rows]
            if all(isinstance(row["y"], float) and "x" not in row for row in rows):
                observations = NumberList.of([row["y"] for row in rows], [None] * len(rows))
            yield number >= len(BEFORE), [Observe("host", observations)]
        return
    rng = random.Random(1)
    names = [f"host-{number:06}" for number in range(STREAMS)]
    for number in (*BEFORE, *(1,) * COUNTED):
        lists = [[Observation(rng.gauss(0.0, 1.0)) for _ in range(number)] for _ in names]
        yield number == 1, [*map(Observe, names, lists)]


def profiled(model: str, one: bool) -> pstats.Stats:
    """Profile of `COUNTED` lists, by the CPU time of the worker's thread."""
    torch.set_num_threads(1)
    profile = cProfile.Profile(time.thread_time)
    with worker(model) as bench:
        for counts, commands in lists_of(model, one):
            if one:
                bench.append(*commands)
            else:
                bench.append_rows(*commands)
            if counts:
                profile.enable()
            bench.turn()
            profile.disable()
    return pstats.Stats(profile)


def by_stage(stats: Any) -> tuple[Counter[str], Counter[str], Counter[tuple[str, str]]]:
    """Seconds and calls by stage; and seconds by stage and function.

    What a library takes is shared among those who call it, by the time that it took for each.
    """
    seconds: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    stacks: Counter[tuple[str, str]] = Counter()

    def enter(function: Function, took_s: float, called: float, depth: int) -> None:
        stage = stage_of(function[0])
        if stage is not None:
            seconds[stage] += took_s
            calls[stage] += called
            stacks[stage, f"{Path(function[0]).stem}.{function[2]}"] += took_s
            return
        callers = stats.stats[function][4]
        total_s = sum(entry[2] for entry in callers.values())
        if not callers or depth > 20:
            return
        for caller, entry in callers.items():
            share = entry[2] / total_s if total_s else 1 / len(callers)
            enter(caller, share * took_s, share * called, depth + 1)

    for function, (_, called, own_s, _, _) in stats.stats.items():
        enter(function, own_s, called, 0)
    return seconds, calls, stacks


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.referees.stages", description=__doc__)
    parser.add_argument("--model", default="averaged")
    parser.add_argument("--one", action="store_true", help="lists of one stream")
    parser.add_argument("--folded", type=Path, metavar="FILE")
    options = parser.parse_args()
    seconds, calls, stacks = by_stage(profiled(options.model, options.one))
    number = STREAMS * COUNTED
    for stage, took_s in seconds.most_common():
        print(f"{stage:48} {1e6 * took_s / number:7.2f} us {calls[stage] / number:7.2f} calls")
    whole_us = 1e6 * sum(seconds.values()) / number
    print(f"{'all':48} {whole_us:7.2f} us {sum(calls.values()) / number:7.2f} calls")
    if options.folded:
        lines = (f"{';'.join(stack)} {round(1e6 * s)}" for stack, s in stacks.most_common())
        options.folded.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
