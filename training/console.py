"""What a training run shows while it goes: a progress bar, and TensorBoard logs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich import progress as bars
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Column
from torch.utils.tensorboard import SummaryWriter

from training.config import Config
from training.loop import Report
from training.runs import Progress

LOG_EVERY = 10  # iterations between logged losses
NAMES = {"validation/nll": "validation", "validation/accuracy": "accuracy"}


class Speed:
    """Iterations a second since the first report, of the clock."""

    def __init__(self) -> None:
        self.first: tuple[int, float] | None = None

    def __call__(self, iteration: int) -> str:
        """For people; nothing of the first, which may be slow."""
        now = time.monotonic()
        if self.first is None:
            self.first = iteration, now
        done, passed = iteration - self.first[0], now - self.first[1]
        return f" {done / passed:.1f}/s" if done and passed > 0 else ""


@contextmanager
def shown(
    config: Config, folder: Path, title: str, console: Console, *, leads: bool = True
) -> Iterator[Report]:
    """A report for `training.loop.train`; nothing is shown or logged by one that does not lead."""
    if not leads:
        yield lambda progress, measured: None
        return
    total, bar = config.optimiser.iterations, _bar(console)
    with bar, SummaryWriter(str(folder / "tensorboard")) as logs:
        task = bar.add_task(title, total=total, numbers="")
        seen: dict[str, float] = {}
        speed = Speed()

        def report(progress: Progress, measured: dict[str, float]) -> None:
            if not seen:  # what was done before it was interrupted took no time here
                bar.reset(task, total=total, completed=progress.iteration)
            seen.update(measured)
            numbers = said(seen) + speed(progress.iteration)
            bar.update(task, completed=progress.iteration, numbers=numbers)
            if len(measured) > 1 and not console.is_terminal:
                console.print(f"{title} {progress.iteration}: {numbers}", highlight=False)
            if progress.iteration % LOG_EVERY == 0 or len(measured) > 1:
                for name, value in measured.items():
                    logs.add_scalar(name, value, progress.iteration)

        yield report


def said(measured: Mapping[str, float]) -> str:
    """The latest of each number."""
    return " ".join(f"{NAMES.get(name, name)} {value:.3f}" for name, value in measured.items())


def _bar(console: Console) -> bars.Progress:
    """One line; where it is too narrow, the title is cut and nothing else."""
    whole = Column(no_wrap=True)
    return bars.Progress(
        TextColumn("{task.description}", table_column=Column(overflow="ellipsis", min_width=8)),
        BarColumn(bar_width=10, table_column=whole),
        MofNCompleteColumn(table_column=whole.copy()),
        TextColumn("{task.fields[numbers]}", table_column=whole.copy()),
        TimeRemainingColumn(table_column=whole.copy()),
        TextColumn("left", table_column=whole.copy()),
        console=console,
        disable=not console.is_terminal,  # which gets a line for each validation
    )
