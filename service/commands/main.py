"""The console script `moca`. The only place that reads the environment.

Commands are imported when they run, or are shown: many take longer to import than to run.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pkgutil import resolve_name
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from service import installed_version
from service.commands.common import show_all

RUN = "Run"
STREAMS = "Streams"
MODELS = "Models"
OPERATE = "Operate"


class CommandPlace(NamedTuple):
    """Where a command is, and the panel of `--help` that it is in; hidden: `--help-all` has it."""

    where: str
    panel: str
    hidden: bool = False
    context_settings: dict[str, Any] | None = None


_NEGATIVE = {"ignore_unknown_options": True}  # -1.5 is a label, not an option
_PLACES = {
    "serve": CommandPlace("service.commands.run:serve", RUN),
    "demo": CommandPlace("service.commands.run:demo", RUN),
    "stop": CommandPlace("service.commands.run:stop", RUN),
    "api": CommandPlace("service.commands.run:api", RUN, True),
    "worker": CommandPlace("service.commands.run:worker", RUN, True),
    "webhooks": CommandPlace("service.commands.run:webhooks", RUN, True),
    "observe": CommandPlace(
        "service.commands.observing:observe", STREAMS, context_settings=_NEGATIVE
    ),
    "predict": CommandPlace("service.commands.observing:predict", STREAMS),
    "changepoints": CommandPlace("service.commands.observing:changepoints", STREAMS),
    "changes": CommandPlace("service.commands.observing:changes", STREAMS),
    "incidents": CommandPlace("service.commands.observing:incidents", STREAMS),
    "replay": CommandPlace("service.commands.replay:replay", STREAMS),
    "mcp": CommandPlace("service.commands.tools:mcp", STREAMS, True),
    "models": CommandPlace("service.commands.tools:models", MODELS),
    "backup": CommandPlace("service.commands.backup:backup", OPERATE, True),
    "restore": CommandPlace("service.commands.backup:restore", OPERATE, True),
    "streams": CommandPlace("service.commands.streams:app", STREAMS),
    "calendar": CommandPlace("service.commands.streams:calendar", STREAMS, True),
    "snapshot": CommandPlace("service.commands.streams:snapshots", STREAMS, True),
    "keys": CommandPlace("service.commands.keys:app", OPERATE),
    "bench": CommandPlace("service.commands.tools:bench", OPERATE, True),
}


class Commands(Mapping[str, Any]):
    """The commands by their names, those of `moca.commands` that are installed among them."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    @cached_property
    def _places(self) -> dict[str, CommandPlace]:
        from importlib.metadata import entry_points

        # The offline jobs: the service does not import them, they are found as installed.
        installed = sorted(entry_points(group="moca.commands"), key=lambda entry: entry.name)
        return _PLACES | {
            entry.name: CommandPlace(entry.value, MODELS, hidden=entry.name != "train")
            for entry in installed
        }

    def __getitem__(self, name: str) -> Any:
        """Return a command, imported; KeyError: there is none of this name."""
        if name not in self._loaded:
            # To look for what is installed takes as long as other commands run.
            place = _PLACES.get(name) or self._places[name]
            found = resolve_name(place.where)
            alone = typer.Typer()
            if isinstance(found, typer.Typer):
                alone.add_typer(found, name=name, rich_help_panel=place.panel, hidden=place.hidden)
            else:
                alone.command(
                    name,
                    rich_help_panel=place.panel,
                    hidden=place.hidden,
                    context_settings=place.context_settings,
                )(found)
            self._loaded[name] = typer.main.get_group(alone).commands[name]
            _unwrap(self._loaded[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _unwrap(command: Any) -> None:
    """Leave the lines of a help's paragraphs to the terminal, of subcommands as well."""
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for subcommand in getattr(command, "commands", {}).values():
        _unwrap(subcommand)


class Program(TyperGroup):
    """The command `moca`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()  # type: ignore[assignment]


app = typer.Typer(
    name="moca",
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local values, such as passwords in URLs
    help="Online changepoint detection and forecasting for data streams.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(installed_version())
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
    finally:
        gc.freeze()  # the end of the process would look through all that is left


if __name__ == "__main__":
    main()
