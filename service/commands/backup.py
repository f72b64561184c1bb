"""`moca backup` and `moca restore`: the whole deployment to a file, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import redis
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from service.backup.artifacts import UnfitModels, install, unfit
from service.backup.file import BadBackup, Manifest, Reader, Writer
from service.backup.restore import Restore, Target, Unrestorable, partitions_for
from service.backup.take import Backup, NothingThere, Request
from service.commands.options import fail, input_file, with_settings
from service.process import EXIT_REFUSED, Refused
from service.redis.connection import UnusableServer, check_server
from service.redis.reach import reach
from service.settings import Settings

STORE = {"redis_url", "redis_password_file", "data_dir", "models_dir"}


@with_settings(STORE)
def backup(
    settings: Settings,
    file: Annotated[Path, typer.Argument(help="File to write.", show_default=False)],
    with_models: Annotated[
        bool,
        typer.Option(
            "--with-models", envvar="MOCA_WITH_MODELS", help="Pack the artifacts of models, too."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", envvar="MOCA_FORCE", help="Replace a file that is there.")
    ] = False,
) -> None:
    """Write the whole deployment to a file, whether the service runs or not.

    Each stream is taken as of one of its commits. The store is --redis-url or that of --data-dir.
    """
    if file.exists() and not force:
        fail(f"{file} is there already: --force replaces it", 1)
    with _told(), reach(settings) as client, _bar("streams") as advance:
        writer = Writer(file)
        try:
            asked = Request(
                client, settings.models_dir, version("moca-service"), with_models, advance
            )
            found = Backup(asked, writer).run()
        finally:
            writer.abandon()
    typer.echo(f"wrote {file}, {file.stat().st_size} bytes: {_describe(found)}")
    _warn(found)


@with_settings(STORE | {"lease_ttl_ms"})
def restore(
    settings: Settings,
    file: Annotated[Path, input_file("What `moca backup` wrote.")],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            envvar="MOCA_PARTITIONS",
            min=1,
            max=4096,
            help="Partitions of the deployment.",
            show_default="the store's; of an empty one, the backup's",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", envvar="MOCA_REPLACE", help="Put it in place of what is there."),
    ] = False,
    ignore_models: Annotated[
        bool,
        typer.Option(
            "--ignore-models",
            envvar="MOCA_IGNORE_MODELS",
            help="Go on where a model is missing or another: its streams answer with errors.",
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            envvar="MOCA_CHECK",
            help="Only see whether the file is whole; write nothing.",
        ),
    ] = False,
) -> None:
    """Make an empty store what a backup says, while no service runs on it.

    The file is read and checked as a whole before anything is written. A restore that was
    interrupted is run again; no service starts on the store before one has ended.
    """
    with _told(), Reader(file) as reader:
        with _bar("bytes checked") as advance:
            done = 0

            def checked(count: int) -> None:
                nonlocal done
                done += count
                advance(done, reader.size)

            manifest = reader.verify(checked)
        typer.echo(f"{file} is whole: {_describe(manifest)}")
        if manifest.damaged:
            _warn_of_damage(manifest)
        if check:
            return
        _models(manifest, settings.models_dir, ignore_models)
        with reach(settings, make=True) as client:
            check_server(client)
            number = partitions_for(client, partitions, manifest)
            with _bar("bytes") as advance:
                target = Target(
                    client,
                    number,
                    settings.lease_ttl_ms,
                    replace,
                    lambda at: advance(at, reader.streams_bytes),
                )
                _put(target, reader, settings.models_dir)
    typer.echo(f"restored {manifest.streams} streams into {number} partitions")


def _put(target: Target, reader: Reader, models_dir: Path) -> None:
    asked = Restore(target, reader)
    asked.check()
    manifest = reader.manifest
    if any(model.packed for model in manifest.models.values()):
        for reference in install(reader.models(), manifest.models, models_dir):
            typer.echo(f"put the model {reference} into {models_dir}")
    asked.run()


def _models(manifest: Manifest, models_dir: Path, ignore: bool) -> None:
    wrong = unfit(manifest.models, models_dir)
    if not wrong:
        return
    said = "; ".join(f"{reference} {what}" for reference, what in wrong.items())
    if not ignore:
        raise UnfitModels(
            f"models that streams are on do not fit those of {models_dir}: {said}. Put them there,"
            " or --ignore-models"
        )
    typer.secho(f"moca: warning: {said}", err=True, fg="yellow")


def _describe(found: Manifest) -> str:
    made = datetime.fromtimestamp(found.made_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        f"{found.streams} streams with {found.observations} observations,"
        f" {found.tombstones} deleted ones, {len(found.models)} models, {len(found.keys)} keys,"
        f" of {found.partitions} partitions, {made}"
    )


def _warn(found: Manifest) -> None:
    if found.waiting:
        typer.secho(
            f"moca: {found.waiting} observations were accepted and not yet applied when it began;"
            " those that still were when their stream was read are not in it",
            err=True,
            fg="yellow",
        )
    if found.damaged:
        _warn_of_damage(found)
    if found.skipped:
        some = "; ".join(f"{name}: {why}" for name, why in list(found.skipped.items())[:5])
        fail(f"{len(found.skipped)} streams could not be read and are not in it: {some}", 1)
    if found.damaged:
        raise typer.Exit(1)


def _warn_of_damage(found: Manifest) -> None:
    some = [f"{name}: {', '.join(parts[:5])}" for name, parts in list(found.damaged.items())[:5]]
    typer.secho(
        f"moca: {len(found.damaged)} streams have damaged parts, which are in it as they are:"
        f" {'; '.join(some)}",
        err=True,
        fg="yellow",
    )


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress on standard error; yields what is told how much is done, and of how much."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    shown = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    with shown as bar:
        task = bar.add_task(what, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield advance


def _place(error: OSError) -> str:
    """Return what could not be used: of a draft, whose name nobody gave, its folder."""
    path = Path(str(error.filename or "file"))
    return str(path.parent if path.suffix == ".part" else path)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Say what goes wrong in one line."""
    try:
        yield
    except (BadBackup, NothingThere, UnfitModels, Unrestorable) as error:
        fail(str(error), 1)
    except OSError as error:
        fail(f"{_place(error)}: {error.strerror or error}", 1)
    except (Refused, UnusableServer) as error:
        fail(str(error), EXIT_REFUSED)
    except redis.RedisError as error:
        fail(f"the store cannot be used: {error}", 1)
