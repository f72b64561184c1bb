"""`moca webhooks`: deliver events to other services, and manage the dead-letter queue."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from service.commands.common import fail
from service.commands.connection import print_table, table
from service.commands.options import store_errors, with_settings
from service.commands.run import ParentFd, begin
from service.settings import WEBHOOKS, Settings, names_for


@with_settings(names_for(WEBHOOKS))
def webhooks(
    settings: Settings,
    dead: Annotated[bool, typer.Option("--dead", help="Show the dead-letter queue.")] = False,
    redeliver: Annotated[
        bool,
        typer.Option("--redeliver", help="Redeliver the dead-letter queue."),
    ] = False,
    hook: Annotated[
        str | None,
        typer.Option("--hook", help="Only this webhook.", show_default="every webhook"),
    ] = None,
    parent_fd: ParentFd = None,
) -> None:
    """Deliver changepoint events to the receivers of --webhooks-file.

    With --dead or --redeliver: show or redeliver the dead-letter queue, then exit. Without
    --redis-url that is the queue of the service running on --data-dir.
    """
    if dead or redeliver:
        _look_after(settings, redeliver, hook)
        return
    begin("webhooks", settings, parent_fd)
    from service.observability import metrics
    from service.webhooks.config import webhooks_of
    from service.webhooks.runner import deliver

    with store_errors():
        configured = webhooks_of(settings, os.environ)
        if not configured.hooks:
            fail("--webhooks-file (MOCA_WEBHOOKS_FILE) is required: the receivers to call", 2)
        if settings.metrics_port:
            metrics.serve(settings.metrics_port)
        deliver(settings, configured)


def _look_after(settings: Settings, again: bool, hook: str | None) -> None:
    from service.runtime.embedded import running_url
    from service.schema.rendering import instant
    from service.store.connection import connect
    from service.webhooks.dead_letters import dead_letters, redeliver

    url = settings.redis_url or running_url(settings.data_dir)
    if url is None:
        fail(f"no service is running on {settings.data_dir}: give --redis-url or --data-dir")
    of_hook = "" if hook is None else f" of hook {hook!r}"
    with store_errors(), connect(url) as client:
        if again:
            typer.echo(f"redelivering {redeliver(client, hook)} events{of_hook}")
            return
        letters = dead_letters(client, hook)
    if not letters:
        typer.secho(f"no dead letters{of_hook}", err=True, dim=True)
        return
    words = ("webhook-id", "stream", "event", "at", "why")
    made = table("hook", *words[:-1], "attempts", "why", words=words)
    for letter in letters:
        raised = letter.raised
        event = "" if raised is None else f"{raised.event.id} {raised.event.state}"
        stream = "" if raised is None else raised.stream
        at = "" if raised is None else instant(raised.at_ms)
        made.add_row(
            letter.hook, letter.number, stream, event, at, str(letter.attempts), letter.error
        )
    print_table(made)
