"""The offline subcommands of `moca`: train, evaluate, publish, data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from training.errors import TrainingError


def fail(message: str) -> NoReturn:
    """Print the message in one line and exit with status 2."""
    typer.secho(f"moca: {message}", err=True, fg="red")
    raise typer.Exit(2)


@contextmanager
def refusals(before: str = "", also: type[Exception] = OSError) -> Iterator[None]:
    """Exit with status 2 and the message of an error that the user can correct."""
    try:
        yield
    except (TrainingError, OSError, also) as error:  # such as a folder that cannot be written
        fail(f"{before}{error}")
