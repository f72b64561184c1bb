"""Write the generated pages of docs/: `python docs/generate.py`, or with --check compare them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any
from urllib.parse import urlsplit

import msgspec
import typer
from jinja2 import Environment, FileSystemLoader

from service.api import openapi
from service.api.app import create_app
from service.api.routes import CALLS
from service.commands.main import app
from service.commands.options import flag, variable
from service.observability import metrics as registered
from service.problems import PROBLEM_JSON, problem_types
from service.settings import Settings

DOCS = Path(__file__).parent
URL = "http://127.0.0.1:8000"
BYTES = "application/octet-stream"
ARROW = "application/vnd.apache.arrow.stream"
WIDTH = 100
TAGS = {
    "observations": "Observations",
    "streams": "Streams",
    "reads": "Reads",
    "events": "Events and the calendar",
    "prometheus": "Prometheus and OpenTelemetry",
    "models": "Models",
    "service": "Service",
}
BOUNDS = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "below {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "{} or more"),
    ("maxItems", "up to {}"),
)


def reference() -> str:
    """Return docs/reference.md: every call as OpenAPI describes it, with its examples."""
    document = create_app(Settings.model_validate({"redis_url": "redis://127.0.0.1"})).openapi()
    calls = [
        (method.upper(), path, call)
        for path, methods in document["paths"].items()
        for method, call in methods.items()
    ]
    sections = [
        (title, [call for call in calls if tag in call[2]["tags"]]) for tag, title in TAGS.items()
    ]
    declared = {error for call in CALLS for error in call.raises}
    return page(
        "reference.md",
        contents=[
            (f"[`{method} {path}`](#{anchor(f'{method} {path}')})", call["summary"])
            for _, section in sections
            for method, path, call in section
        ],
        sections=sections,
        objects=sorted(document["components"]["schemas"].items()),
        problem=PROBLEM_JSON,
        problems=sorted(problem_types(), key=lambda kind: kind.slug),
        others=[kind for kind in problem_types() if kind not in declared],
    )


def anchor(heading: str) -> str:
    """Return what links to a heading end in."""
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in "-_ ")
    return kept.replace(" ", "-")


def parameter(parameter: dict[str, Any]) -> tuple[str, str, str]:
    """Return a row of a call's table."""
    required = ", required" if parameter.get("required") else ""
    name = f"`{parameter['name']}` ({parameter['in']}{required})"
    return name, type_of(parameter["schema"]), parameter.get("description", "")


def type_of(schema: dict[str, Any]) -> str:
    """Return what a schema allows, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{anchor(name)})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(type_of(each) for each in schema[several]))
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{json.dumps(e)}`" for e in schema.get("enum", [schema.get("const")]))
    return _plain(schema)


def _plain(schema: dict[str, Any]) -> str:
    bounds = [text.format(f"{schema[name]:g}") for name, text in BOUNDS if name in schema]
    if "pattern" in schema:
        bounds.append(f"`{schema['pattern']}`")
    limits = f" ({', '.join(bounds)})" if bounds else ""
    kind = schema.get("type", "anything")
    if kind == "array":
        item = type_of(schema.get("items", {}))
        return f"list of {f'({item})' if ' or ' in item else item}{limits}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return "object" + (f" of {type_of(inner)}" if isinstance(inner, dict) and inner else "")
    return f"{kind}{limits}"


def curl(each: openapi.Example, method: str, path: str) -> str:
    """Return the command of an example."""
    url = f"{URL}{path.format(**each.path)}" + (f"?{each.query}" if each.query else "")
    words = ["curl", *([] if method in ("GET", "POST") else ["-X", method])]
    words.append(shlex.quote(url) if urlsplit(url).query else url)
    has_body = each.body is not msgspec.UNSET
    if has_body:
        words.append(f"\\\n  -H 'Content-Type: {each.media}'")
    if each.media in (BYTES, ARROW):
        file = "pump-9.moca" if each.media == BYTES else "flow.arrow"
        words.append(f"--data-binary @{file}")
    elif has_body:
        body = each.body if isinstance(each.body, str) else json.dumps(each.body)
        words.append(f"\\\n  --data-binary {shlex.quote(body)}")
    elif method == "POST":
        words[1:1] = ["-X", "POST"]
    return " ".join(words) + (" -o pump-9.moca" if each.call == "get_snapshot" else "")


def pretty(value: Any, indent: int = 0) -> str:
    """Return JSON that stays on a line where it fits one."""
    flat = json.dumps(value)
    if len(flat) + indent <= WIDTH or not isinstance(value, dict | list) or not value:
        return flat
    pad = " " * (indent + 1)
    if isinstance(value, list):
        inner = [pretty(each, indent + 1) for each in value]
        return "[" + f",\n{pad}".join(inner) + "]"
    inner = [f"{json.dumps(k)}: {pretty(v, indent + len(k) + 5)}" for k, v in value.items()]
    return "{" + f",\n{pad}".join(inner) + "}"


def members(schema: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of an object's table."""
    required = schema.get("required", [])
    return [
        (f"`{name}`", type_of(field), _meaning(field, name in required))
        for name, field in schema["properties"].items()
    ]


def _meaning(schema: dict[str, Any], required: bool) -> str:
    meaning = str(schema.get("description", ""))
    default = schema.get("default")
    if not required and default not in (None, "", {}):
        meaning += f" (default `{json.dumps(default)}`)"
    return meaning.strip()


def commands(root: Any) -> str:
    """Return docs/commands.md: every command below `root` with its arguments and options."""
    named = [(name, _command(name, command)) for name, command in _commands(root, "moca")]
    return page("commands.md", commands=named)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands without subcommands, by their whole names, in order."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word, inner in sorted(command.commands.items()):
        yield from _commands(inner, f"{name} {word}")


def _command(name: str, command: Any) -> dict[str, Any]:
    arguments: list[Any] = []
    options: list[Any] = []
    for parameter in command.params:
        (arguments if parameter.param_type_name == "argument" else options).append(parameter)
    shown = [*arguments, *(each for each in options if each.help and each.name != "help_all")]
    return {
        "usage": " ".join([name, *map(_usage, arguments)]),
        "help": " ".join((command.help or "").split()),
        "rows": [_option(each) for each in shown if not _is_setting(each)],
        "settings": [f"`{each.opts[0]}`" for each in shown if _is_setting(each)],
    }


def _is_setting(parameter: Any) -> bool:
    field = Settings.model_fields.get(parameter.name)
    return field is not None and parameter.help == f"{field.description}."


def _usage(argument: Any) -> str:
    shown = _metavar(argument) + ("..." if argument.nargs == -1 else "")
    return shown if argument.required else f"[{shown}]"


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _option(parameter: Any) -> tuple[str, str, str, str]:
    if parameter.param_type_name == "argument":
        name = _metavar(parameter)
    else:
        name = "`, `".join([*parameter.opts, *parameter.secondary_opts])
    variable = parameter.envvar if isinstance(parameter.envvar, str) else ""
    help_text = " ".join((getattr(parameter, "help", None) or "").split())
    return f"`{name}`", variable and f"`{variable}`", _default(parameter), help_text


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


def settings() -> str:
    """Return docs/settings.md: every setting with its option, variable, default and meaning."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else f"`{field.default}`"
        rows.append((f"`{flag(name)}`", f"`{variable(name)}`", default, field.description or ""))
    return page("settings.md", rows=rows)


def metrics() -> str:
    """Return docs/metrics.md: every metric with its labels and meaning, the first ones first."""
    rows: dict[str, tuple[str, str, str, str]] = {}
    for collector in dict.fromkeys(registered.REGISTRY._names_to_collectors.values()):
        labels = ", ".join(f"`{name}`" for name in getattr(collector, "_labelnames", ()))
        for family in collector.describe() if hasattr(collector, "describe") else ():
            name = family.name + ("_total" if family.type == "counter" else "")
            if name.startswith("moca_"):
                rows[name] = (f"`{name}`", family.type, labels, family.documentation)
    first = [rows.pop(name) for name in registered.FIRST]
    return page("metrics.md", first=first, others=list(rows.values()))


def numbers() -> str:
    """Return docs/numbers.md: every table of docs/numbers.json, by section."""
    return page("numbers.md", sections=json.loads((DOCS / "numbers.json").read_text()))


def page(template: str, **content: Any) -> str:
    """Return a page of docs/templates."""
    environment = Environment(  # noqa: S701  # Markdown
        loader=FileSystemLoader(DOCS / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "anchor": anchor,
        "curl": curl,
        "examples": openapi.of_call,
        "filled": lambda text: fill(text, WIDTH, break_on_hyphens=False),
        "members": members,
        "parameter": parameter,
        "pretty": pretty,
        "type": type_of,
    }
    return environment.get_template(f"{template}.jinja").render(content)


def main() -> int:
    """Return 0; with --check 1 if a page is not what would be written."""
    check = "--check" in sys.argv[1:]
    pages = {
        "reference.md": reference(),
        "commands.md": commands(typer.main.get_command(app)),
        "settings.md": settings(),
        "metrics.md": metrics(),
        "numbers.md": numbers(),
    }
    outdated = 0
    for name, text in pages.items():
        path = DOCS / name
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{name} is outdated: make docs", file=sys.stderr)
            outdated = 1
    return outdated


if __name__ == "__main__":
    sys.exit(main())
