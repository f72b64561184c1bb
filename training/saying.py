"""What a command says of what went wrong."""

from __future__ import annotations

from typing import NoReturn

import typer


def fail(message: str) -> NoReturn:
    """Say it in a line, and end with status 2."""
    typer.secho(f"moca: {message}", err=True, fg="red")
    raise typer.Exit(2)
