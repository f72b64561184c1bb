"""Report an error of a command and exit."""

from __future__ import annotations

from typing import NoReturn

import typer


def fail(message: str) -> NoReturn:
    """Print the message in one line and exit with status 2."""
    typer.secho(f"moca: {message}", err=True, fg="red")
    raise typer.Exit(2)
