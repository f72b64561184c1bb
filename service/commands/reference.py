"""`moca reference`: docs/reference.md and docs/commands.md, made of what the code says itself."""

from __future__ import annotations

from typing import Annotated

import typer


def reference(
    context: typer.Context,
    commands: Annotated[
        bool,
        typer.Option(
            "--commands",
            envvar="MOCA_COMMANDS",
            help="The commands of moca in place of the calls.",
        ),
    ] = False,
) -> None:
    """Print every call of the REST interface, or every command, as Markdown."""
    from service.commands import reference_calls, reference_commands

    root = context.find_root().command
    page = reference_commands.page(root) if commands else reference_calls.page()
    typer.echo(page, nl=False)
