"""Folders of training runs: what was asked, where it stands, what came of it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from training.config import Config
from training.errors import BadRun

CHECKPOINT, CONFIG, RESULT = "checkpoint.pt", "config.json", "result.json"
LOCK = "lock"
# What reading a file that is no checkpoint may raise.
_UNREADABLE = (
    *(OSError, EOFError, RuntimeError, LookupError, TypeError, ValueError),
    pickle.UnpicklingError,
)


@dataclass
class Progress:
    """Where a run stands; with the learner and the optimiser, all that resuming needs.

    elapsed_s: time of training so far, of the processor on a CPU, else of the clock. history: one
    record per validation. best_metric: lower is better, so an accuracy is negative. best:
    parameters of the best validation. generator: state of the generator that draws windows.
    """

    iteration: int = 0
    elapsed_s: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)
    best_metric: float | None = None
    best_iteration: int = 0
    best: dict[str, Tensor] = field(default_factory=dict)
    skipped: int = 0
    generator: Tensor | None = None


class Run:
    """A folder: `config.json`, `checkpoint.pt`, and `result.json` once it is done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def done(self) -> bool:
        """Whether it has ended by itself."""
        return (self.folder / RESULT).exists()

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint."""
        return (self.folder / CHECKPOINT).exists()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder, so that none else trains there; raises BadRun where another does.

        The system lets go when the process ends, however it does.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOCK).open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise BadRun(f"{self.folder}: another process trains there") from None
                # Else the file system has no locks.
            yield

    def begin(self, config: Config) -> None:
        """Make the folder and write the configuration.

        A checkpoint that is there goes first: it may be of other settings.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / CHECKPOINT).unlink(missing_ok=True)
        self._write(CONFIG, config.model_dump_json(indent=2))

    def config(self) -> Config:
        """What was asked; raises BadRun."""
        if not (self.folder / CONFIG).is_file():
            raise BadRun(f"{self.folder}: not the folder of a run: there is no {CONFIG} in it")
        try:
            return Config.model_validate_json((self.folder / CONFIG).read_text())
        except (OSError, ValidationError) as error:
            raise BadRun(f"{self.folder}: {CONFIG}: {error}") from error

    def check(self, config: Config) -> None:
        """Raise BadRun if it was begun with other settings."""
        begun, asked = self.config().model_dump(), config.model_dump()
        other = [name for name in asked if asked[name] != begun[name]]
        if other:
            raise BadRun(
                f"{self.folder}: was begun with other settings of {', '.join(other)}; "
                "choose another folder (--runs) or name (--name of data, or --set 'name=\"...\"')"
            )

    def save(self, progress: Progress, parts: dict[str, Any]) -> None:
        """Replace the checkpoint; whatever dies meanwhile, the old one or the new one is there."""
        temporary = self.folder / f"{CHECKPOINT}.{os.getpid()}"
        torch.save({"progress": vars(progress), **parts}, temporary)
        temporary.replace(self.folder / CHECKPOINT)

    def load(self, device: str | torch.device = "cpu") -> tuple[Progress, dict[str, Any]]:
        """Progress, and the parts that were saved with it; raises BadRun."""
        try:
            found = torch.load(self.folder / CHECKPOINT, map_location=device, weights_only=True)
            progress = Progress(**found.pop("progress"))
        except _UNREADABLE as error:
            raise BadRun(f"{self.folder}: {CHECKPOINT}: {error}") from error
        if progress.generator is not None:
            progress.generator = progress.generator.cpu()
        return progress, found

    def finish(self, result: dict[str, Any]) -> None:
        """Write what came of it."""
        self._write(RESULT, json.dumps(result, indent=2))

    def result(self) -> dict[str, Any]:
        """What came of it; raises BadRun where it is not done."""
        try:
            found: dict[str, Any] = json.loads((self.folder / RESULT).read_text())
        except (OSError, ValueError) as error:
            raise BadRun(f"{self.folder}: {RESULT}: {error}") from error
        return found

    def _write(self, name: str, text: str) -> None:
        temporary = self.folder / f"{name}.{os.getpid()}"
        temporary.write_text(text + "\n")
        temporary.replace(self.folder / name)


def finished(folder: Path) -> Iterator[Run]:
    """Every run under a folder that is done, by name."""
    for result in sorted(folder.rglob(RESULT)):
        yield Run(result.parent)
