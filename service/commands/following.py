"""`moca follow`: a stream's live observations."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands.connection import (
    DEFAULT_URL,
    ApiKey,
    Json,
    Stream,
    Url,
    connected,
    number,
    print_json,
)

if TYPE_CHECKING:
    from moca_client.subscriptions import Followed, Message

_LINE = "{:>8}  {:>12}  {:>12}  {:>10}  {:>10}  {:>9}  {}"
_HEAD = _LINE.format("seq", "label", "expected", "log score", "changed", "evidence", "time")


def follow(
    stream: Stream,
    after: Annotated[
        str | None,
        typer.Option(
            help="Position or cursor to resume after; -1: everything retained.",
            show_default="new observations only",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Print a stream's observations as they are applied, until the stream is deleted."""
    with connected(url, api_key) as client:
        if not as_json:
            typer.echo(_HEAD)
        for message in client.follow(stream, after=after, retry_for_s=None):
            if as_json:
                print_json(message, lines=True)
            else:
                _tell(message)
            sys.stdout.flush()


def _tell(message: Message) -> None:
    from moca_client import Ended, Missed

    if isinstance(message, Missed):
        what = f"{message.start} to {message.end - 1} are no longer retained"
        typer.secho(what, err=True, fg="yellow")
    elif isinstance(message, Ended):
        typer.secho(message.detail or message.reason, err=True, fg="yellow")
    else:
        typer.echo(_observation(message))


def _observation(seen: Followed) -> str:
    predictive = seen.predictive
    expected = "" if predictive is None else number(predictive.mean or predictive.probabilities)
    score = number(seen.log_score)
    changed = number(seen.changed_probability)
    evidence = number(seen.evidence, 3)
    line = _LINE.format(
        seen.seq, number(seen.y), expected, score, changed, evidence, seen.time or ""
    )
    return line.rstrip()
