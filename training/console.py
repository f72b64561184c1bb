"""What a training run shows while it goes: a progress bar, and TensorBoard logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import progress as bars
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch.utils.tensorboard import SummaryWriter

from training.config import Config
from training.loop import Report
from training.runs import Progress

LOG_EVERY = 10  # iterations between logged losses


@contextmanager
def shown(
    config: Config, folder: Path, title: str, console: Console, *, leads: bool = True
) -> Iterator[Report]:
    """A report for `training.loop.train`; nothing is shown or logged by one that does not lead."""
    if not leads:
        yield lambda progress, measured: None
        return
    bar = bars.Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,  # which gets a line for each validation
    )
    total = config.optimiser.iterations
    with bar, SummaryWriter(str(folder / "tensorboard")) as logs:
        task = bar.add_task(title, total=total, numbers="")
        seen: dict[str, float] = {}

        def report(progress: Progress, measured: dict[str, float]) -> None:
            seen.update(measured)
            speed = progress.iteration / max(progress.elapsed_s, 1e-9)
            each = " ".join(f"{name.split('/')[-1]} {value:.3f}" for name, value in seen.items())
            numbers = f"{each} {speed:.1f}/s"
            bar.update(task, completed=progress.iteration, numbers=numbers)
            if len(measured) > 1 and not console.is_terminal:
                console.print(f"{title} {progress.iteration}: {numbers}", highlight=False)
            if progress.iteration % LOG_EVERY == 0 or len(measured) > 1:
                for name, value in measured.items():
                    logs.add_scalar(name, value, progress.iteration)

        yield report
