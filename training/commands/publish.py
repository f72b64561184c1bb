"""`moca publish`: turn a finished run into a model that a service offers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from training.commands import Data, Datasets, Run, names, refusals


def publish(
    run: Run,
    name: Annotated[str, typer.Option(help="Name of the model.")],
    models_dir: Annotated[
        Path, typer.Option(envvar="MOCA_MODELS_DIR", help="Folder of model artifacts.")
    ] = Path("models"),
    version: Annotated[
        str,
        typer.Option(help="A whole number, or auto: the next that is free."),
    ] = "auto",
    description: Annotated[str, typer.Option(help="Shown where models are listed.")] = "",
    date: Annotated[
        str | None,
        typer.Option(help="Kept with the model.", show_default="none"),
    ] = None,
    page: Annotated[
        bool,
        typer.Option(help="Write report.html (needs no network) too, or only JSON."),
    ] = True,
    data: Data = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="Publish even if a built-in model is ahead on the held-out data."
        ),
    ] = False,
    regimes: Annotated[
        str | None,
        typer.Option(
            help="Names of its typical regimes in order, comma-separated.",
            show_default="1, 2, ...",
        ),
    ] = None,
    datasets: Datasets = None,
) -> None:
    """Publish a trained run as MODELS_DIR/NAME/VERSION/, with its report.

    A model of own data is first compared with the built-in models on the data that were held out.
    The artifact is checked against the run and appears at once and complete; a version is never
    overwritten. A running service offers it from then on.
    """
    from rich.console import Console

    from model_core.errors import ModelCoreError
    from training.data.files import Place
    from training.publish import Publication
    from training.publish import publish as run_publish

    publication = Publication(
        run,
        name,
        models_dir,
        version,
        Place(datasets, run / "cache"),
        data=data,
        description=description,
        date=date,
        page=page,
        anyway=anyway,
        regimes=names(regimes) or [],
    )
    with refusals("", ModelCoreError):
        folder = run_publish(publication, Console())
    size = sum(file.stat().st_size for file in folder.iterdir())
    typer.echo(f"{name}@{folder.name} in {folder}, {size / 1000:.0f} kB")
