"""Judge the rebuilding from outside: `make referees`, or python -m tests.referees [NAME ...].

Each referee measures, and prints what it found beside what was frozen. What users may rely on has
to be the same: a difference is named in the commit that makes it, with its reason, and frozen anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from tests.referees import halves, history, memory, outputs, quality, rest, speed
from tests.referees.judging import Row

FROZEN = Path(__file__).with_name("frozen")


class Referee(NamedTuple):
    """Something that must not change, how it is measured and judged."""

    name: str
    what: str
    measure: Callable[[Path], dict[str, Any]]
    judge: Callable[[dict[str, Any], dict[str, Any]], list[Row]]


REFEREES = [
    Referee("outputs", "answers of every model to 20 series", outputs.measure, outputs.judge),
    Referee("rest", "reference of the REST interface", rest.reference, rest.judge_reference),
    Referee("client", "the client's two halves", halves.measure, halves.judge),
    Referee("memory", "peak memory under hostile bodies", memory.measure, memory.judge),
    *(
        Referee(
            f"history-{topology}",
            f"faults held against the sequential model, store: {topology}",
            lambda folder, topology=topology: history.measure(topology, folder),
            history.judge,
        )
        for topology in history.TOPOLOGIES
    ),
    Referee(
        "schemathesis", "requests from the document", rest.schemathesis, rest.judge_schemathesis
    ),
    Referee("quality", "moca evaluate all", quality.measure, quality.judge),
    Referee("serve", "moca bench serve, ratios of this machine", speed.serve, speed.judge),
    Referee("step", "moca bench step, ratios of this machine", speed.step, speed.judge),
]


def main() -> int:
    names = [each.name for each in REFEREES]
    parser = argparse.ArgumentParser(prog="python -m tests.referees", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--freeze", action="store_true", help="keep what is measured from now on")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"expected names of {', '.join(names)}; got {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)  # two threads of OpenMP wait for each other on two cores
    console = Console()
    failed = []
    for referee in REFEREES:
        if options.names and referee.name not in options.names:
            continue
        console.print(f"[bold]{referee.name}[/bold]: {referee.what}")
        if not _passes(referee, options.freeze, console):
            failed.append(referee.name)
    console.print(f"[red]differ: {', '.join(failed)}" if failed else "[green]as frozen")
    return 1 if failed else 0


def _passes(referee: Referee, freeze: bool, console: Console) -> bool:
    path = FROZEN / f"{referee.name}.json"
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="moca-referee-") as folder:
            now = referee.measure(Path(folder))
    except Exception:  # noqa: BLE001, the others have their turn
        console.print_exception()
        return False
    if freeze:
        lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in now.items())
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    if not path.exists():
        console.print(
            f"[red]nothing is frozen: run python -m tests.referees --freeze {referee.name}"
        )
        return False
    rows = referee.judge(now, json.loads(path.read_text()))
    table = Table("", "frozen", "now", "")
    for row in rows:
        table.add_row(
            row.what, row.frozen, row.now, {True: "same", False: "DIFFERS"}.get(row.ok, "")
        )
    console.print(table)
    console.print(f"{time.monotonic() - began:.0f} s")
    return all(row.ok is not False for row in rows)


if __name__ == "__main__":
    sys.exit(main())
