"""`moca serve`, `stop`, `api`, `worker`, `webhooks` and `demo`: the processes of the service.

What uses the store is imported by the commands themselves: redis alone takes longer than `--help`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from service.commands.common import fail, option
from service.commands.options import SERVE, store_errors, with_settings
from service.runtime.access_policy import depends_on_keys, keys_required
from service.runtime.process import (
    WORKER_STOP_S,
    bind,
    follow_parent,
    import_plugins,
    limit_stop,
    log_to_stderr,
)
from service.settings import API, WEBHOOKS, WORKER, Settings, names_for

log = logging.getLogger(__name__)

# How the supervisor tells a child what it inherits; nobody types these.
ParentFd = Annotated[int | None, typer.Option("--parent-fd", hidden=True)]
Sharing = Annotated[int, typer.Option("--sharing", hidden=True)]
ListenFd = Annotated[int | None, typer.Option("--listen-fd", hidden=True)]


@with_settings(SERVE)
def serve(settings: Settings) -> None:
    """Run the whole service: store, API and workers.

    Without --redis-url the store is an embedded Valkey that keeps its data in --data-dir.
    """
    from service.runtime.supervisor import Supervisor

    log_to_stderr("serve", settings.log_level)
    timeout_s = webhook_timeout_s(settings)
    raise typer.Exit(Supervisor(settings, os.environ, webhook_timeout_s=timeout_s).run())


@with_settings({"data_dir"})
def stop(
    settings: Settings,
    wait_s: Annotated[
        float, option("Longest wait for its end, in seconds.", "--wait-s", min=0)
    ] = 60.0,
) -> None:
    """Stop the service that runs on --data-dir, as Ctrl-C would; return once it has ended."""
    from service.runtime.embedded import owner_of

    give_up = time.monotonic() + wait_s
    pid = owner_of(settings.data_dir)
    if pid is None:
        fail(f"no service runs on {settings.data_dir}: give its folder with --data-dir", 1)
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        fail(f"process {pid} on {settings.data_dir} is another user's: stop it as that user", 1)
    while owner_of(settings.data_dir) == pid:
        if time.monotonic() > give_up:
            fail(f"process {pid} still stops after {wait_s:g} s: see its log", 1)
        time.sleep(0.05)
    typer.echo(f"stopped the service on {settings.data_dir}, process {pid}")


def webhook_timeout_s(settings: Settings) -> float:
    """Longest attempt of a webhook; a file that cannot be used ends the start before it begins."""
    from service.webhooks.config import webhooks_of

    with store_errors():
        return webhooks_of(settings, os.environ).delivery.timeout_s


@with_settings(names_for(API))
def api(settings: Settings, parent_fd: ParentFd = None, listen_fd: ListenFd = None) -> None:
    """Run one API process with an existing Redis or Valkey."""
    begin("api", settings, parent_fd)
    from service.api.app import create_app
    from service.api.context import check_store
    from service.api.server import Server

    with store_errors():
        app = create_app(settings)
        if depends_on_keys(settings):  # asked before anyone can connect
            keys_required(settings, check_store(settings))
        inherited = None if listen_fd is None else socket.socket(fileno=listen_fd)
        listener = inherited or bind(settings.host, settings.port)
    server = Server(app, settings)
    # A refusal to start is said below, in one line and without a traceback; a stop is no error.
    logging.getLogger("uvicorn.error").addFilter(
        lambda _: app.state.refused is None and (server.started or not server.should_exit)
    )
    with listener, contextlib.suppress(SystemExit):  # raised when the start fails
        server.run(sockets=[listener])
        return
    if server.should_exit:  # asked to stop meanwhile
        return
    with store_errors():
        if app.state.refused is not None:
            raise app.state.refused
    raise typer.Exit(1)


@with_settings(names_for(WORKER))
def worker(
    settings: Settings,
    worker_id: Annotated[
        str | None,
        option(
            "Worker id; must be unique among all workers.",
            "--worker-id",
            envvar="MOCA_WORKER_ID",
            default="a random one",
        ),
    ] = None,
    parent_fd: ParentFd = None,
    sharing: Sharing = 0,
) -> None:
    """Run one worker with an existing Redis or Valkey."""
    chosen = worker_id or f"worker-{secrets.token_hex(4)}"
    if "/" in chosen:
        fail(f"--worker-id: expected an id without '/', got {chosen!r}")
    begin("worker" if parent_fd is None else chosen.partition("-")[0], settings, parent_fd)
    from service.observability import metrics
    from service.store.connection import START_TIMEOUT_S, connect, patiently
    from service.worker.worker import (
        Collector,
        Worker,  # numba: a second
    )

    with store_errors():  # of the start: later ones are lived through
        import_plugins(settings.plugins)
        with connect(settings.redis_url or "", START_TIMEOUT_S) as client:
            patiently(client.ping)
        instance = Worker(settings, chosen, sharing)

        def stop(*_: object) -> None:
            limit_stop(WORKER_STOP_S)
            instance.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        if settings.metrics_port:
            metrics.serve(settings.metrics_port)
        log.info("%s computes on %s", chosen, settings.device)
        instance.collector = Collector()
        instance.run()


@with_settings(names_for(WEBHOOKS))
def webhooks(
    settings: Settings,
    dead: Annotated[bool, option("Show the dead-letter queue.", "--dead")] = False,
    redeliver: Annotated[bool, option("Redeliver the dead-letter queue.", "--redeliver")] = False,
    hook: Annotated[
        str | None, option("Only this webhook.", "--hook", default="every webhook")
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
    from moca_client.console import table
    from service.commands.connection import print_table
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


def begin(role: str, settings: Settings, parent_fd: int | None) -> None:
    """Start a process that uses a store: logging, parent watch, settings."""
    log_to_stderr(role, settings.log_level)
    if parent_fd is not None:
        follow_parent(parent_fd)
    if settings.redis_url is None:
        fail(
            "--redis-url (or MOCA_REDIS_URL) is required: the store shared by API and "
            "workers; `moca serve` starts its own"
        )


# --- the demo -----------------------------------------------------------------------------------


SAMPLES = (  # series that ship with the service: stream, model and title
    ("nile", "gaussian", "annual flow of the Nile at Aswan, 1871-1970"),
    ("coal", "poisson", "British coal-mining disasters per year, 1851-1962"),
)


@with_settings(SERVE)
def demo(
    settings: Settings,
    plots_dir: Annotated[Path, option("Folder for answers and plots.")] = Path("plots"),
    once: Annotated[bool, option("Exit after the samples.", "--once")] = False,
) -> None:
    """Start the service and stream both sample series through it.

    Prints the confirmed changes and keeps serving until Ctrl-C.
    """
    from rich.console import Console

    from moca_client import ClientError
    from moca_client.replay import ReplayError, replay
    from moca_client.series import read_series
    from service.runtime.supervisor import Supervisor

    log_to_stderr("demo", settings.log_level)
    console = Console()
    finished: list[str] = []

    def on_ready(url: str) -> None:
        try:
            for stream, model, title in SAMPLES:
                console.print(f"\n[bold]{title}[/bold] ({model})", highlight=False)
                packaged = resources.files("service.samples") / f"{stream}.csv"
                with resources.as_file(packaged) as file:
                    # "replace": a second run on the same data folder starts these streams anew.
                    (replayed,) = replay(
                        file,
                        {stream: read_series(file)},
                        url=url,
                        settings={"model": model},
                        out=plots_dir,
                        existing="replace",
                        console=console,
                    )
                finished.append(replayed.headline)
            console.print("", *finished, sep="\n", style="bold", highlight=False, soft_wrap=True)
            where = f"plots and answers are in {plots_dir}/"
            end = "" if once else f", the service is at {url}; stop it with Ctrl-C"
            console.print(f"\n{where}{end}", highlight=False, soft_wrap=True)
        except (ClientError, ReplayError, OSError) as error:
            log.error("%s", error)
        finally:
            # Whatever went wrong, a service that nobody waits for must not stay behind.
            if once or len(finished) < len(SAMPLES):
                supervisor.stop("the demo has finished")

    timeout_s = webhook_timeout_s(settings)
    supervisor = Supervisor(settings, os.environ, on_ready, webhook_timeout_s=timeout_s)
    status = supervisor.run()
    raise typer.Exit(status or int(len(finished) < len(SAMPLES)))
