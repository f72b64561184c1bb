"""Options, errors and output shared by the commands that talk to a running service."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC
from inspect import Parameter, signature
from itertools import islice
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Table

from moca_client import DEFAULT_URL
from moca_client.tables import describe_evidence
from model_core.wording import did_you_mean
from service.commands.common import argument, fail, option, with_parameters

if TYPE_CHECKING:
    from moca_client import Client
    from moca_client.responses import Event, StreamChange

Url = Annotated[str, option("Address of the service.", "--url", envvar="MOCA_URL")]
ApiKey = Annotated[
    str | None,
    option(
        "API key of the service; prefer the variable, which keeps it out of the process list.",
        "--api-key",
        envvar="MOCA_API_KEY",
        default=False,
    ),
]
Json = Annotated[
    bool,
    option("Print the full answer as JSON.", "--json"),
]
RetryFor = Annotated[
    float,
    option("Retry for this many seconds.", "--retry-for", min=0),
]
GivenSettings = Annotated[
    list[str] | None,
    option("Stream setting such as hazard=0.01; may be repeated.", "--set", metavar="NAME=VALUE"),
]
MOMENT_S = 2.0
COMPLETION_S = 1.0
COMPLETIONS = 50
PIPED = 200  # characters of a line of a table that nobody sees on a terminal
NAMES = 1000  # among which a name that was meant is looked for


def complete_stream(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return ids of streams that begin so; none where the service cannot be asked."""
    url = ctx.params.get("url") or os.environ.get("MOCA_URL") or DEFAULT_URL
    api_key = ctx.params.get("api_key") or os.environ.get("MOCA_API_KEY")
    return _first_streams(url, api_key, incomplete, COMPLETIONS)


def _first_streams(url: str, api_key: str | None, prefix: str, count: int) -> list[str]:
    """Return the first ids with a prefix; none where the service does not answer at once."""
    from moca_client import Client, ClientError

    brief = Client(url, api_key=api_key, timeout_s=COMPLETION_S, retry_for_s=0)
    with suppress(ClientError), brief as client:
        return list(islice(client.streams(prefix, limit=count), count))
    return []


Stream = Annotated[str, argument("Stream id.", default=False, autocompletion=complete_stream)]


@contextmanager
def connected(url: str, api_key: str | None, retry_for_s: float) -> Iterator[Client]:
    """Connect to a service; errors end the command with status 1 and one line."""
    from moca_client import Client, ClientError, Unavailable
    from moca_client.errors import Unauthorized, UnknownStream

    try:
        with Client(url, api_key=api_key, retry_for_s=retry_for_s) as client:
            yield client
    except Unavailable as error:
        hint = (
            ""
            if error.problem
            else ". Is `moca serve` running there? Use --url for another address"
        )
        fail(f"{error}{hint}", 1)
    except UnknownStream as error:
        fail(f"{error}{_meant(url, api_key, error.detail)}", 1)
    except ClientError as error:
        keyless = isinstance(error, Unauthorized) and api_key is None
        fail(str(error) + ("; use --api-key or MOCA_API_KEY" if keyless else ""), 1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:  # of `| head`
        raise typer.Exit(0) from None


@contextmanager
def noticed(text: str) -> Iterator[None]:
    """Say on standard error what is waited for, where it takes longer than a moment."""
    timer = Timer(MOMENT_S, typer.secho, (f"moca: {text}",), {"err": True, "dim": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def with_client(
    retry_for_s: float | None = None, show: Callable[[Any], None] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Give a command the address and the key of a service as options; it receives `client` instead.

    retry_for_s: default of an option for how long to retry; None: three seconds, and no option.
    show: prints what the command returns; an option has it printed as JSON.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., None]:
        # The type of the client is not needed, and takes longer to import than `--help`.
        hints = get_type_hints(command, localns={"Client": object}, include_extras=True)
        own = dict(signature(command).parameters)
        del own["client"]
        options: dict[str, tuple[Any, Any]] = {"url": (Url, DEFAULT_URL), "api_key": (ApiKey, None)}
        if retry_for_s is not None:
            options = {"retry_for": (RetryFor, retry_for_s), **options}
        if own.pop("as_json", None) is not None or show is not None:
            options["as_json"] = (Json, False)
        parameters = [
            *(own[name].replace(annotation=hints[name]) for name in own),
            *(
                Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)
                for name, (kind, default) in options.items()
            ),
        ]

        def run(url: str, api_key: str | None, retry_for: float = 3.0, **values: Any) -> None:
            with connected(url, api_key, retry_for) as client:
                if show is None:
                    command(client, **values)
                    return
                as_document = values.pop("as_json")
                document = command(client, **values)
                if as_document:
                    print_json(document)
                else:
                    show(document)

        return with_parameters(run, command, parameters)

    return decorate


def _meant(url: str, api_key: str | None, detail: str) -> str:
    """Return a question about the stream that may have been meant; empty: none is like it."""
    _, quote, quoted = detail.partition("'")
    name = quoted.partition("'")[0]
    if not (quote and name):
        return ""
    names = _first_streams(url, api_key, name[0], NAMES)
    return did_you_mean(name, names, 3)


def print_json(document: Any, lines: bool = False) -> None:
    """Print a document; with `lines` on one line, for those that come one after the other."""
    import msgspec

    text = msgspec.json.encode(_whole(document))
    typer.echo(text if lines else msgspec.json.format(text))


def _whole(document: Any) -> Any:
    """Return a document with all its fields; some structs leave out those of default value."""
    from msgspec import Struct

    if isinstance(document, Struct):
        return {name: _whole(getattr(document, name)) for name in document.__struct_fields__}
    if isinstance(document, list):
        return [_whole(member) for member in document]
    return document


def print_table(made: Table) -> None:
    """Print a table; what is piped elsewhere is not cut to the width of a terminal.

    COLUMNS says another width of either.
    """
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    Console(width=PIPED if piped else None).print(made)


def short_utc(time: str) -> str:
    """Return an RFC 3339 time in UTC, to the minute, or the second where it has one."""
    from service.wire import timestamps  # takes longer than most commands

    whole, _ = timestamps.parse(time)
    try:
        text = whole.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:  # within hours of the year 1 or 10000
        return time
    return text.removesuffix(":00")


def number(value: float | Sequence[float | None] | None, digits: int = 4) -> str:
    """Return how people read a number, or several, of which some may be missing."""
    if isinstance(value, Sequence):
        return ", ".join("null" if part is None else number(part, digits) for part in value)
    return "" if value is None else f"{value:.{digits}g}"


def change_cells(event: Event | StreamChange) -> tuple[str, str, str]:
    """Return since when, what changed and how sure, as cells of a table."""
    since = "" if event.start_time is None else short_utc(event.start_time)
    about = "≈ " if event.start_arrived else ""
    return about + since, event.sentence, describe_evidence(event.evidence)


def event_text(event: Event) -> str:
    """Return an event in a line, without its stream."""
    return f"{event.state}: {event.sentence}, start {event.start}"


Match = Annotated[
    list[str] | None,
    option(
        "Only streams with such tags, as '{job=\"node\"}'; may be repeated: any of them.",
        metavar="SELECTOR",
        default="all",
    ),
]


def setting(text: str) -> tuple[str, Any]:
    """Split NAME=VALUE; the value is JSON if it reads as such, else a text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        fail(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def numbers(text: str, what: str) -> list[float]:
    """Read comma-separated numbers."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        fail(f"{what}: expected comma-separated numbers, got {text!r}")
