"""The artifacts of models in a backup: packed, compared, put in place."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from service.backup.file import BackupError, UsedModel
from service.models import catalogue

_file_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}").fullmatch
_reference = re.compile(catalogue.REFERENCE).match


def artifact_files(models_dir: Path, reference: str) -> list[Path]:
    """Return the files of an artifact; none of a built-in model, or of one that is not there."""
    if catalogue.digest(models_dir, reference) is None:
        return []
    folder = catalogue.folder_of(models_dir, reference)
    return sorted(file for file in folder.iterdir() if file.is_file() and _file_name(file.name))


def unfit(wanted: Mapping[str, UsedModel], models_dir: Path) -> dict[str, str]:
    """Return what is wrong with each model that streams need, if anything is."""
    reasons = {}
    for reference, model in wanted.items():
        if catalogue.resolve(models_dir, reference) is None:
            if not model.packed:
                reasons[reference] = "is missing"
        elif catalogue.digest(models_dir, reference) != model.digest:
            reasons[reference] = "differs from the one that the streams were created with"
    return reasons


def install(
    files: Iterable[tuple[str, str, IO[bytes]]],
    wanted: Mapping[str, UsedModel],
    models_dir: Path,
) -> list[str]:
    """Put packed artifacts that are missing in the models folder; returns which.

    files: reference of the model, name of the file, content. Each model is written beside its place
    and moved there whole. Raises BackupError and OSError.
    """
    models_dir.mkdir(parents=True, exist_ok=True)
    missing = [
        reference for reference in wanted if catalogue.resolve(models_dir, reference) is None
    ]
    draft = Path(tempfile.mkdtemp(prefix=".restore-", dir=models_dir))
    try:
        for reference, file, content in files:
            # Names become paths: those of a file that somebody made up could lead elsewhere.
            if not (_file_name(file) and _reference(reference)):
                raise BackupError(f"invalid name of a packed model: {reference!r}, file {file!r}")
            if reference in missing:
                folder = draft / reference
                folder.mkdir(exist_ok=True)
                with (folder / file).open("wb") as target:
                    shutil.copyfileobj(content, target)
        return [
            reference
            for reference in missing
            if _put(draft, reference, wanted[reference], models_dir)
        ]
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _put(draft: Path, reference: str, model: UsedModel, models_dir: Path) -> bool:
    folder = draft / reference
    if not folder.is_dir():
        return False
    name, _, version = reference.partition("@")
    target = models_dir / name / version
    target.parent.mkdir(exist_ok=True)
    os.replace(folder, target)
    if catalogue.digest(models_dir, reference) != model.digest:
        shutil.rmtree(target)
        raise BackupError(f"the packed model {reference} is not the one that the streams use")
    return True
