"""The console script `moca`. The only place that reads the environment."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from service.commands import (
    backup,
    calendar,
    changes,
    demo,
    keys,
    observing,
    run,
    streams,
    tools,
    webhooks,
)
from service.commands.options import show_all

app = typer.Typer(
    name="moca",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local values, such as passwords in URLs
    help="Online changepoint detection and forecasting for data streams.",
)
RUN = "Run"
STREAMS = "Streams"
MODELS = "Models"
OPERATE = "Operate"
app.command(rich_help_panel=RUN)(run.serve)
app.command(rich_help_panel=RUN)(demo.demo)
# Hidden are commands that few need: `--help-all` has them.
for _process in (run.stop, run.api, run.worker, webhooks.webhooks):
    app.command(rich_help_panel=RUN, hidden=True)(_process)
app.command(context_settings=observing.NEGATIVE, rich_help_panel=STREAMS)(observing.observe)
for _ask in (
    observing.changepoints,
    changes.changes,
    changes.incidents,
    tools.replay,
):
    app.command(rich_help_panel=STREAMS)(_ask)
for _seldom in (observing.follow, observing.predict, tools.mcp):
    app.command(rich_help_panel=STREAMS, hidden=True)(_seldom)
app.add_typer(streams.app, name="streams", rich_help_panel=STREAMS)
app.add_typer(calendar.app, name="calendar", rich_help_panel=STREAMS, hidden=True)
app.add_typer(streams.snapshots, name="snapshot", rich_help_panel=STREAMS, hidden=True)
app.command(rich_help_panel=MODELS)(tools.models)
app.add_typer(keys.app, name="keys", rich_help_panel=OPERATE)
app.command(rich_help_panel=OPERATE, hidden=True)(backup.backup)
app.command(rich_help_panel=OPERATE, hidden=True)(backup.restore)
app.add_typer(tools.bench, name="bench", rich_help_panel=OPERATE, hidden=True)
# The offline jobs: the service does not import them, they are found as installed.
for _command in sorted(entry_points(group="moca.commands"), key=lambda entry: entry.name):
    _found = _command.load()
    if isinstance(_found, typer.Typer):
        app.add_typer(_found, name=_command.name, rich_help_panel=MODELS, hidden=True)
    else:
        app.command(_command.name, rich_help_panel=MODELS, hidden=_command.name != "train")(_found)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("moca-service"))
        raise typer.Exit


@app.callback()
def _common(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
    help_all: Annotated[
        bool,
        typer.Option("--help-all", help="Show all commands.", callback=show_all, is_eager=True),
    ] = False,
) -> None:
    """Online changepoint detection and forecasting for data streams."""


# Packages of training by module, which imports them where it needs them; those of the service it
# names itself.
_OF_TRAINING = {
    "PIL": "pillow",
    **{name: name for name in ("jinja2", "matplotlib", "pyarrow", "scipy", "tensorboard", "torch")},
}


def main() -> None:
    """Run the command line."""
    try:
        app()
    except ModuleNotFoundError as error:
        if error.name not in _OF_TRAINING:
            raise
        package = _OF_TRAINING[error.name]
        line = (
            f"moca: this needs {package}: `make install` installs all that training needs, "
            f"`pip install {package}` it alone"
        )
        typer.secho(line, err=True, fg="red")
        sys.exit(2)


if __name__ == "__main__":
    main()
