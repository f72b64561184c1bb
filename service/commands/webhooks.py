"""`moca webhooks`: deliver events to other services, and look after what could not be."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import redis
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from service import metrics
from service.commands.options import WEBHOOKS, fail, with_settings
from service.commands.run import ParentFd, begin, end
from service.feed import instant
from service.process import Refused
from service.redis.connection import UnusableServer, connect
from service.redis.embedded import running_url
from service.settings import Settings


@with_settings(WEBHOOKS)
def webhooks(
    settings: Settings,
    dead: Annotated[
        bool, typer.Option("--dead", envvar="MOCA_DEAD", help="Show deliveries given up.")
    ] = False,
    redeliver: Annotated[
        bool,
        typer.Option(
            "--redeliver", envvar="MOCA_REDELIVER", help="Have what was given up tried again."
        ),
    ] = False,
    hook: Annotated[
        str | None,
        typer.Option(
            "--hook", envvar="MOCA_HOOK", help="Only this hook's.", show_default="every hook's"
        ),
    ] = None,
    parent_fd: ParentFd = None,
) -> None:
    """Deliver changepoint events to the receivers of --webhooks-file.

    With --dead or --redeliver: look after what was given up, and end. Without --redis-url that is
    of the service that runs on --data-dir.
    """
    if dead or redeliver:
        _look_after(settings, redeliver, hook)
        return
    begin("webhooks", settings, parent_fd)
    from service.webhooks.config import hooks_of
    from service.webhooks.process import deliver

    try:
        hooks = hooks_of(settings, os.environ)
        if not hooks:
            fail("--webhooks-file (MOCA_WEBHOOKS_FILE) is needed: who is to be called", 2)
        if settings.metrics_port:
            metrics.serve(settings.metrics_port)
        deliver(settings, hooks)
    except (Refused, UnusableServer, redis.RedisError) as error:
        end(error)


def _look_after(settings: Settings, again: bool, hook: str | None) -> None:
    from service.webhooks.letters import dead_letters, redeliver

    url = settings.redis_url or running_url(settings.data_dir)
    if url is None:
        fail(f"no service runs on {settings.data_dir}; give --redis-url or --data-dir")
    try:
        with connect(url) as client:
            if again:
                typer.echo(f"{redeliver(client, hook)} to be delivered again{_of(hook)}")
                return
            found = dead_letters(client, hook)
    except redis.RedisError as error:
        fail(f"the store cannot be reached: {error}", 1)
    if not found:
        typer.secho(f"nothing was given up{_of(hook)}", err=True, dim=True)
        return
    table = Table("hook", "webhook-id", "stream", "event", "at", "attempts", "why", box=SIMPLE_HEAD)
    for letter in found:
        raised = letter.raised
        event = "" if raised is None else f"{raised.event.id} {raised.event.state}"
        stream, at = ("", "") if raised is None else (raised.stream, instant(raised.at_ms))
        row = (letter.hook, letter.number, stream, event, at, str(letter.attempts), letter.error)
        table.add_row(*row)
    # What is piped elsewhere is not to be cut to the width of a terminal that is not there.
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _of(hook: str | None) -> str:
    return "" if hook is None else f" of hook {hook!r}"
