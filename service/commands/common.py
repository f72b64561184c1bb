"""Refusals, `--help-all` and files: what commands have alike, those that need no settings too."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import typer


def option(help: str, *names: str, default: bool | str = True, **others: Any) -> Any:
    """Return an option by its help; default: what stands there in place of a value, False: nothing.

    names: those that are not the parameter's. others: as of typer.
    """
    return typer.Option(*names, help=help, show_default=default, **others)


def argument(help: str, default: bool | str = True, **others: Any) -> Any:
    """Return an argument, likewise."""
    return typer.Argument(help=help, show_default=default, **others)


def input_file(help: str) -> Any:
    """Return the argument for a file that a command reads."""
    return argument(help, False, exists=True, dir_okay=False, readable=True)


def fail(message: str, status: int = 2) -> NoReturn:
    """Report on standard error why the command cannot run, and exit."""
    typer.secho(f"moca: {message}", err=True, fg="red")
    raise typer.Exit(status)


def show_all(context: typer.Context, wanted: bool) -> None:
    """Print the help of a command with all of its options and subcommands, and exit."""
    if not wanted:
        return
    command: Any = context.command
    for part in (*command.params, *getattr(command, "commands", {}).values()):
        part.hidden = part.help is None  # what processes pass to one another
    typer.echo(command.get_help(context))
    raise typer.Exit


def with_parameters(
    run: Callable[..., None], command: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Have `run` stand for a command, with its name and help, and with these parameters."""
    functools.update_wrapper(run, command)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option("--help-all", help="Show all options.", callback=show_all, is_eager=True),
    ],
)


def names(text: str | None) -> list[str] | None:
    """Read comma-separated names; None where no text is given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
