"""`moca data`: data sets for training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from training.commands import refusals

app = typer.Typer(no_args_is_help=True, help="Data sets for training.")
prepare = typer.Typer(
    no_args_is_help=True,
    help="Write a data set in its published format as the files that training reads.",
)
app.add_typer(prepare, name="prepare")

Out = Annotated[Path, typer.Option(help="Folder to write to; made if it is not there.")]


@prepare.command()
def sportvu(
    source: Annotated[Path, typer.Argument(help="A game file, or a folder of them.")],
    out: Out,
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            help="Id of a game for the test; may be given again.",
            show_default="the last of several games, the last fifth of the plays of one",
        ),
    ] = None,
) -> None:
    """Basketball players' paths from SportVU games: `.json` files at 25 Hz.

    Archives (.7z) are not read: unpack them first.
    """
    from training.experiments import players

    with refusals():
        _report(players.prepare(source, out, held_out or ()))


@prepare.command()
def mnist(
    source: Annotated[
        Path,
        typer.Argument(
            help="Folder with train-images-idx3-ubyte and train-labels-idx1-ubyte, .gz or not."
        ),
    ],
    out: Out,
    images: Annotated[int, typer.Option(min=1, help="Images of each of the 56 tasks.")] = 900,
    seed: Annotated[int, typer.Option(min=0, help="Seed of which images a task has.")] = 0,
) -> None:
    """Rainbow MNIST, 56 transformations of the digits, from MNIST as published."""
    from training.experiments import rainbow

    with refusals():
        _report(rainbow.prepare(source, out, images, seed))


@prepare.command()
def miniimagenet(
    source: Annotated[
        Path, typer.Argument(help="Folder with images/, train.csv, val.csv and test.csv.")
    ],
    out: Out,
) -> None:
    """Bring miniImageNet in the five super-classes of the paper."""
    from training.experiments import miniimagenet

    with refusals():
        _report(miniimagenet.prepare(source, out))


def _report(written: Sequence[Path]) -> None:
    for file in written:
        typer.echo(f"{file}  {file.stat().st_size / 2**20:.1f} MiB")
