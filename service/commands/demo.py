"""`moca demo`: serve, stream the sample series through the service, and keep serving."""

from __future__ import annotations

import logging
import os
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console

from service.commands.options import SERVE, with_settings
from service.process import log_to_stderr
from service.settings import Settings

if TYPE_CHECKING:
    from service.replay import Replayed
    from service.supervisor import Supervisor

log = logging.getLogger(__name__)


class Sample(NamedTuple):
    """A series that ships with the service."""

    stream: str
    model: str
    title: str


SAMPLES = (
    Sample("nile", "gaussian", "annual flow of the Nile at Aswan, 1871-1970"),
    Sample("coal", "poisson", "British coal-mining disasters per year, 1851-1962"),
)


@with_settings(SERVE)
def demo(
    settings: Settings,
    plots_dir: Annotated[
        Path, typer.Option(envvar="MOCA_PLOTS_DIR", help="Folder for answers and plots.")
    ] = Path("plots"),
    once: Annotated[
        bool, typer.Option("--once", envvar="MOCA_ONCE", help="End after the samples.")
    ] = False,
) -> None:
    """Serve as `moca serve` does, and stream both sample series through the service.

    Prints the confirmed changes and goes on serving until Ctrl-C.
    """
    from service.supervisor import Supervisor

    log_to_stderr("demo")
    console = Console()
    failures: list[str] = []
    finished: list[str] = []

    def on_ready(url: str) -> None:
        try:
            for sample in SAMPLES:
                _stream(sample, url, plots_dir, console)
                finished.append(sample.stream)
            if not once:
                console.print(f"\nserving at {url} - press Ctrl-C to stop", highlight=False)
        finally:
            if len(finished) < len(SAMPLES):
                failures.append("the sample series did not go through")
            if once or failures:
                supervisor.stop("the demo is over")

    supervisor: Supervisor = Supervisor(settings, os.environ, on_ready)
    status = supervisor.run()
    if failures:
        log.error(failures[0])
    sys.stdout.flush()
    raise typer.Exit(status or (1 if failures or (once and not finished) else 0))


def _stream(sample: Sample, url: str, plots_dir: Path, console: Console) -> None:
    from service.replay import replay

    console.print(f"\n[bold]{sample.title}[/bold] ({sample.model})", highlight=False)
    packaged = resources.files("service.samples") / f"{sample.stream}.csv"
    with resources.as_file(packaged) as file:
        # "replace": a second run on the same data folder starts the sample streams anew.
        replayed = replay(
            file,
            url=url,
            stream=sample.stream,
            model=sample.model,
            out=plots_dir,
            existing="replace",
            console=console,
        )
    for line in confirmed_changes(replayed):
        console.print(line, highlight=False)


def confirmed_changes(replayed: Replayed) -> list[str]:
    """Return one line per confirmed change, with its year."""
    confirmed = [event for event in replayed.events if event.state == "confirmed"]
    if not confirmed:
        return [f"{replayed.stream}: no confirmed change"]
    return [
        f"{replayed.stream}: confirmed change in {replayed.when(event.start)}"
        f" (seq {event.start}), suspected in {replayed.when(event.suspected_at)},"
        f" confirmed in {replayed.when(event.confirmed_at or event.suspected_at)}"
        for event in confirmed
    ]
