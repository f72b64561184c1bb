"""The offline subcommands of `moca`: train, evaluate, publish, data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from training.errors import TrainingError

# Options of several commands.
Run = Annotated[Path, typer.Argument(help="Folder of a run that is done.")]
Runs = Annotated[Path, typer.Option(help="Folder of the runs.")]
Datasets = Annotated[Path | None, typer.Option(help="Folder of the data sets.", show_default=False)]
Data = Annotated[
    Path | None,
    typer.Option(
        envvar="MOCA_TRAIN_DATA",
        help="Where the run's own data are now.",
        show_default="as in training",
    ),
]


def fail(message: str) -> NoReturn:
    """Print the message in one line and exit with status 2."""
    typer.secho(f"moca: {message}", err=True, fg="red")
    raise typer.Exit(2)


def names(text: str | None) -> list[str] | None:
    """Read comma-separated names; None where no text is given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


@contextmanager
def refusals(before: str = "", also: type[Exception] = OSError) -> Iterator[None]:
    """Exit with status 2 and the message of an error that the user can correct."""
    try:
        yield
    except (TrainingError, OSError, also) as error:  # such as a folder that cannot be written
        fail(f"{before}{error}")
