"""docs/commands.md: every command of `moca` with its arguments and options."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill
from typing import Any

from service.settings import Settings

WIDTH = 100

HEAD = """\
# Commands

Made by `moca reference --commands`. An option with a variable can also be set in the environment;
the option wins. Settings of the service are named here, and explained in [settings](settings.md).

Every command ends with one of these statuses:

| status | meaning |
|---|---|
| 0 | done, or stopped as it was asked to |
| 1 | refused by the service or the store, not reached, or not all done; standard error says what |
| 2 | wrong arguments, options or variables |
| 78 | a process of the service, or its store, cannot run like this; starting it again cannot help |
| 130 | Ctrl-C |
"""


def page(root: Any) -> str:
    """Return the page of a command line, given its outermost command."""
    found = list(_commands(root, "moca"))
    names = "\n".join(f"* [`{name}`](#{name.replace(' ', '-')})" for name, _ in found)
    return "\n".join([HEAD, names + "\n", *(_section(*each) for each in found)])


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its whole name, in order."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for each, inner in sorted(command.commands.items()):
        yield from _commands(inner, f"{name} {each}")


def _section(name: str, command: Any) -> str:
    arguments: list[Any] = []
    options: list[Any] = []
    for each in command.params:
        (arguments if each.param_type_name == "argument" else options).append(each)
    usage = " ".join([name, *(_usage(each) for each in arguments)])
    text = fill(" ".join((command.help or "").split()), WIDTH, break_on_hyphens=False)
    lines = [f"## {name}", "", f"`{usage}`", "", text, ""]
    shown = [each for each in (*arguments, *options) if not getattr(each, "hidden", False)]
    rows = [_row(each) for each in shown if not _is_setting(each)]
    if rows:
        lines += ["| | variable | default | meaning |", "|---|---|---|---|", *rows, ""]
    settings = [f"`{each.opts[0]}`" for each in shown if _is_setting(each)]
    if settings:
        lines += [
            fill(f"[Settings](settings.md): {', '.join(settings)}.", WIDTH, break_on_hyphens=False),
            "",
        ]
    return "\n".join(lines)


def _is_setting(parameter: Any) -> bool:
    field = Settings.model_fields.get(parameter.name)
    return field is not None and parameter.help == f"{field.description}."


def _usage(argument: Any) -> str:
    shown = _metavar(argument) + ("..." if argument.nargs == -1 else "")
    return shown if argument.required else f"[{shown}]"


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = _metavar(parameter)
    else:
        name = "`, `".join([*parameter.opts, *parameter.secondary_opts])
    variable = parameter.envvar if isinstance(parameter.envvar, str) else ""
    help_text = " ".join((getattr(parameter, "help", None) or "").split())
    cells = (f"`{name}`", variable and f"`{variable}`", _default(parameter), help_text)
    return "| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |"


def _default(parameter: Any) -> str:
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return f"`{shown}`"
    value = parameter.default
    if parameter.required:
        return "required"
    if value is True and parameter.secondary_opts:
        return f"`{parameter.opts[0]}`"
    if value is None or value is False or callable(value) or value in ([], (), ""):
        return ""
    return f"`{value}`"
