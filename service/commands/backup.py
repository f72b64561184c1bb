"""`moca backup` and `moca restore`: the whole deployment to a file, and back.

What uses the store is imported by the commands themselves: redis alone takes longer than `--help`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from moca_client.console import progress_bar
from service import installed_version
from service.commands.common import argument, fail, input_file, option
from service.commands.options import store_errors, with_settings
from service.settings import Settings

if TYPE_CHECKING:
    from service.backup import Manifest

STORE = {"redis_url", "redis_password_file", "data_dir", "models_dir"}


@with_settings(STORE)
def backup(
    settings: Settings,
    file: Annotated[Path, argument("Output file.", default=False)],
    force: Annotated[bool, option("Overwrite an existing file.", "--force")] = False,
) -> None:
    """Back up the whole deployment to a file, with the service running or stopped.

    Each stream is saved as of one of its commits. The store is --redis-url or that of --data-dir.
    """
    from service.backup import Writer, take
    from service.models.catalogue import Catalogue
    from service.runtime.embedded import reach

    if file.exists() and not force:
        fail(f"{file} already exists: use --force to overwrite it", 1)
    with _told(), reach(settings) as client, _bar("streams") as advance:
        writer = Writer(file)
        try:
            catalogue = Catalogue(settings.models_dir)
            manifest = take(client, writer, installed_version(), catalogue, advance)
        finally:
            writer.abandon()
    typer.echo(f"wrote {file}, {file.stat().st_size} bytes: {_describe(manifest)}")
    _warn(manifest)


@with_settings(STORE | {"lease_ttl_ms"})
def restore(
    settings: Settings,
    file: Annotated[Path, input_file("Backup written by `moca backup`.")],
    partitions: Annotated[
        int | None,
        option(
            "Number of partitions.",
            "--partitions",
            envvar="MOCA_PARTITIONS",
            min=1,
            max=4096,
            default="the store's, or the backup's if it is empty",
        ),
    ] = None,
    replace: Annotated[bool, option("Replace the streams in the store.", "--replace")] = False,
    ignore_models: Annotated[
        bool,
        option(
            "Continue if a model is missing or different; its streams then answer with errors.",
            "--ignore-models",
        ),
    ] = False,
    check: Annotated[bool, option("Check the file only; write nothing.", "--check")] = False,
) -> None:
    """Restore a backup into an empty store. Stop the service first.

    The whole file is checked before anything is written. If a restore is interrupted, run it again:
    no service starts on the store until one has finished.
    """
    from service.backup import BackupError, Reader, Restore, partitions_for, unfit
    from service.models.catalogue import Catalogue
    from service.runtime.embedded import reach
    from service.store.health import check_server

    with _told(), Reader(file) as reader:
        with _bar("bytes checked") as advance:
            done = 0

            def checked(count: int) -> None:
                nonlocal done
                done += count
                advance(done, reader.size)

            manifest = reader.verify(checked)
        typer.echo(f"{file} is complete: {_describe(manifest)}")
        if check:
            return
        wrong = unfit(manifest.models, Catalogue(settings.models_dir))
        if wrong:
            mismatches = "; ".join(f"{reference} {what}" for reference, what in wrong.items())
            if not ignore_models:
                raise BackupError(
                    f"models of streams do not match those in {settings.models_dir}: {mismatches}. "
                    "Restore them there, or use --ignore-models"
                )
            typer.secho(f"moca: warning: {mismatches}", err=True, fg="yellow")
        with reach(settings, make=True) as client:
            check_server(client)
            number = partitions_for(client, partitions, manifest)
            with _bar("bytes") as advance:
                restoring = Restore(
                    client,
                    reader,
                    number,
                    settings.lease_ttl_ms,
                    replace,
                    lambda at: advance(at, reader.streams_bytes),
                )
                restoring.check()
                restoring.run()
    typer.echo(f"restored {manifest.streams} streams into {number} partitions")


def _describe(manifest: Manifest) -> str:
    made = datetime.fromtimestamp(manifest.made_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        f"{manifest.streams} streams with {manifest.observations} observations, "
        f"{manifest.tombstones} deleted streams, {len(manifest.models)} models, "
        f"{len(manifest.keys)} keys, {manifest.partitions} partitions, {made}"
    )


def _warn(manifest: Manifest) -> None:
    if manifest.waiting:
        typer.secho(
            f"moca: {manifest.waiting} observations were accepted but not applied when the "
            "backup began; those still pending when their stream was read are missing from "
            "it",
            err=True,
            fg="yellow",
        )
    if manifest.skipped:
        some = "; ".join(f"{name}: {why}" for name, why in list(manifest.skipped.items())[:5])
        fail(
            f"{len(manifest.skipped)} streams could not be read and are missing from the backup: "
            f"{some}",
            1,
        )


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress on standard error; yields a function of the amounts done and in all."""
    with progress_bar(Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield advance


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Report errors in one line and exit."""
    from service.backup import BackupError

    try:
        with store_errors():
            yield
    except BackupError as error:
        fail(str(error), 1)
    except OSError as error:
        # Of a draft, whose name nobody gave, its folder.
        path = Path(str(error.filename or "file"))
        place = path.parent if path.suffix == ".part" else path
        fail(f"{place}: {error.strerror or error}", 1)
