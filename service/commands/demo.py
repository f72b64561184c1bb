"""`moca demo`: serve, stream the sample series through the service, and keep serving."""

from __future__ import annotations

import logging
import os
from importlib import resources
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

from service.commands.options import SERVE, with_settings
from service.commands.run import webhook_timeout_s
from service.runtime.process import log_to_stderr
from service.settings import Settings

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
    plots_dir: Annotated[Path, typer.Option(help="Folder for answers and plots.")] = Path("plots"),
    once: Annotated[bool, typer.Option("--once", help="Exit after the samples.")] = False,
) -> None:
    """Start the service and stream both sample series through it.

    Prints the confirmed changes and keeps serving until Ctrl-C.
    """
    from moca_client import ClientError
    from moca_client.replay import ReplayError
    from service.runtime.supervisor import Supervisor

    log_to_stderr("demo", settings.log_level)
    console = Console()
    finished: list[str] = []

    def on_ready(url: str) -> None:
        try:
            for sample in SAMPLES:
                finished.append(_stream(sample, url, plots_dir, console))
            console.print("", *finished, sep="\n", style="bold", highlight=False, soft_wrap=True)
            where = f"plots and answers are in {plots_dir}/, the service is at {url}"
            end = "" if once else "; stop it with Ctrl-C"
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


def _stream(sample: Sample, url: str, plots_dir: Path, console: Console) -> str:
    """Stream a sample; returns what it was, in one sentence."""
    from moca_client.replay import replay

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
    return replayed.headline
