"""Progress of a training run: a progress bar, and TensorBoard logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import progress as bars
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.table import Column
from torch.utils.tensorboard import SummaryWriter

from training.config import Config
from training.meta_training.loop import LOOK_EVERY, Report, done
from training.meta_training.runs import Progress


@contextmanager
def shown(
    config: Config, folder: Path, title: str, console: Console, *, leads: bool = True
) -> Iterator[Report]:
    """Progress callback for `loop.train`; it does nothing in a process that does not lead."""
    if not leads:
        yield lambda progress, measured: None
        return
    with _bar(console) as bar, SummaryWriter(str(folder / "tensorboard")) as logs:
        # Share of the iterations or of the minutes, whichever ends first.
        task = bar.add_task(title, total=1.0, iteration=0, numbers="")
        latest: dict[str, float] = {}

        def report(progress: Progress, measured: dict[str, float]) -> None:
            latest.update(measured)
            speed = progress.iteration / max(progress.elapsed_s, 1e-9)
            values = [f"{name.split('/')[-1]} {value:.3f}" for name, value in latest.items()]
            numbers = f"{' '.join(values)} {speed:.1f}/s"
            iteration = progress.iteration
            bar.update(task, completed=done(config, progress), numbers=numbers, iteration=iteration)
            if len(measured) > 1 and not console.is_terminal:
                console.print(f"{title} {iteration}: {numbers}", highlight=False)
            if iteration % LOOK_EVERY == 0 or len(measured) > 1:
                for name, value in measured.items():
                    logs.add_scalar(name, value, iteration)

        yield report


def _bar(console: Console) -> bars.Progress:
    """Progress bar in one line; only the name is shortened where it is too long."""
    name = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    whole = Column(no_wrap=True)
    return bars.Progress(
        TextColumn("{task.description}", table_column=name),
        BarColumn(bar_width=10),
        TextColumn("{task.fields[iteration]}", table_column=whole),
        TextColumn("{task.fields[numbers]}", table_column=whole),
        TimeRemainingColumn(compact=True),
        TextColumn("left", table_column=whole),
        console=console,
        disable=not console.is_terminal,  # a file gets a line for each validation instead
        expand=True,
    )
