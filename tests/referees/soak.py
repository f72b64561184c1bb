"""Soak: half the load that the service can take, with a kill every 20 s; what grows?

`python -m tests.referees.soak --minutes 30` runs `moca serve`, posts to it with retries, kills its
API and its worker in turn, and compares memory, descriptors and metric series at the end with those
after the first third. At the end every observation was applied once, and the belief of each stream
is that of one that was never interrupted, to 1e-9.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np

from tests.e2e.deployment import (
    Load,
    Processes,
    check_as_uninterrupted,
    create_streams,
    served,
    wait_ready,
)
from tests.waiting import PATIENCE_S, until

STREAMS = 40
KILL_S = 20.0
LOOK_S = 5.0
OF = ("api", "worker")  # killed in turn, and looked at
YOUNG_S = 8.0  # a process that is younger has not taken what it needs
GROWTH = 1.15  # of the mean of the last third over that of the second one
SLACK = {"memory": 16e6, "descriptors": 16.0, "series": 20.0}  # that may be more in any case


class Look(NamedTuple):
    """What a process has at a time: bytes, open descriptors; of the API, series of its metrics."""

    at_s: float
    memory: float
    descriptors: float
    series: float


def look(pid: int, url: str | None, began: float) -> Look:
    """Look at a process; raises OSError and httpx.TransportError where it is gone."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    lines = httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text.splitlines() if url else []
    series = sum(not line.startswith("#") for line in lines)
    memory = pages * os.sysconf("SC_PAGE_SIZE")
    return Look(time.monotonic() - began, memory, descriptors, series)


class Soak:
    """Kills and looks beside a load."""

    def __init__(self, processes: Processes, url: str, kill_s: float) -> None:
        self._processes = processes
        self._url = url
        self._kill_s = kill_s
        self.looks: dict[str, list[Look]] = defaultdict(list)
        self.kills = 0
        self.done = False

    def run(self) -> None:
        """Kill and look until the load is through."""
        began = time.monotonic()
        since = dict.fromkeys(OF, began)  # when each process began
        next_kill = began + self._kill_s
        while not self.done:
            time.sleep(min(LOOK_S, self._kill_s / 2))
            children = self._processes.children("serve")
            now = time.monotonic()
            for name in children.keys() & OF:
                if now - since[name] >= min(YOUNG_S, self._kill_s / 2):
                    with suppress(OSError, httpx.TransportError):
                        found = look(children[name], self._url if name == "api" else None, began)
                        self.looks[name].append(found)
            if now >= next_kill and not self.done:
                victim = OF[self.kills % len(OF)]
                self._kill(victim, children[victim])
                since[victim] = time.monotonic()
                next_kill = time.monotonic() + self._kill_s

    def _kill(self, name: str, pid: int) -> None:
        """Kill a process, and wait for the one that is started in its place."""
        os.kill(pid, signal.SIGKILL)
        self.kills += 1
        until(lambda: self._processes.children("serve").get(name, pid) != pid)
        wait_ready(self._url)


def growth(looks: Mapping[str, Sequence[Look]]) -> list[str]:
    """What grew from the second third to the last, by process and measure."""
    found = []
    for name, seen in looks.items():
        third = len(seen) // 3
        for measure, slack in SLACK.items():
            values = np.array([getattr(one, measure) for one in seen])
            before = float(values[third : 2 * third].mean()) if third else 0.0
            after = float(values[2 * third :].mean()) if third else 0.0
            print(f"{name}: {measure} {before:,.0f}, then {after:,.0f}")
            if after > max(GROWTH * before, before + slack):
                found.append(f"{name}: {measure} grew from {before:,.0f} to {after:,.0f}")
    return found


def soak(
    seconds: float, per_second: float, kill_s: float = KILL_S, seed: int = 5
) -> tuple[int, list[str]]:
    """Run it; returns the number of kills, and what grew; raises AssertionError."""
    rng = np.random.default_rng(seed)
    length = max(round(seconds * per_second / STREAMS), 2)
    level = 4.0 * (np.arange(length) // 60 % 2)
    load_labels = level + rng.normal(size=(STREAMS, length))
    with (
        tempfile.TemporaryDirectory(prefix="moca-soak-") as folder,
        served(Path(folder)) as (processes, url),
    ):
        create_streams(url, "load", STREAMS)
        load = Load(url, load_labels, per_second, retry=True)
        soaked = Soak(processes, url, kill_s)

        async def both() -> None:
            beside = asyncio.create_task(asyncio.to_thread(soaked.run))
            try:
                await load.run()
            finally:
                soaked.done = True
                await beside

        asyncio.run(both())
        wait_ready(url)
        check_as_uninterrupted(url, load)
    return soaked.kills, growth(soaked.looks)


def main() -> int:
    """Run it and print what grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.referees.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of load (30)")
    parser.add_argument("--per-second", type=float, default=250.0, help="observations (250)")
    parser.add_argument("--kill-every", type=float, default=KILL_S, help="seconds (20)")
    parser.add_argument("--seed", type=int, default=5, help="of the labels (5)")
    options = parser.parse_args()
    kills, grew = soak(60 * options.minutes, options.per_second, options.kill_every, options.seed)
    print(
        f"{kills} kills; every observation applied once, beliefs as without; grew: {grew or 'none'}"
    )
    return 1 if grew else 0


if __name__ == "__main__":
    raise SystemExit(main())
