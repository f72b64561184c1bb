"""Folders of training runs: configuration, checkpoint and result."""

from __future__ import annotations

import errno
import fcntl
import json
import pickle  # noqa: TID251  # what torch.load raises
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from model_core.stream.storage import replacing
from training.config import Config
from training.errors import BadRun

CHECKPOINT = "checkpoint.pt"
CONFIG = "config.json"
RESULT = "result.json"
LOCK = "lock"
# Exceptions of reading a file that is not a checkpoint.
_UNREADABLE = (
    *(OSError, EOFError, RuntimeError, LookupError, TypeError, ValueError),
    pickle.UnpicklingError,
)


@dataclass
class Progress:
    """Progress of a run; with learner and optimiser, everything that resuming needs.

    elapsed_s: time of training so far, processor time on a CPU, else wall time. history: one
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
    """A run's folder: `config.json`, `checkpoint.pt`, and `result.json` once it is finished.

    config, result: as they are there when they are first read; raise BadRun.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def config(self) -> Config:
        """Configuration of the run."""
        if not (self.folder / CONFIG).is_file():
            raise BadRun(f"{self.folder}: expected the folder of a run, found no {CONFIG} in it")
        try:
            return Config.model_validate_json((self.folder / CONFIG).read_text())
        except (OSError, ValidationError) as error:
            raise BadRun(f"{self.folder}: {CONFIG}: {error}") from error

    @cached_property
    def result(self) -> dict[str, Any]:
        """Result of the run, once it is finished."""
        try:
            result: dict[str, Any] = json.loads((self.folder / RESULT).read_text())
        except (OSError, ValueError) as error:
            raise BadRun(f"{self.folder}: {RESULT}: {error}") from error
        return result

    @property
    def done(self) -> bool:
        """Whether the run is finished."""
        return (self.folder / RESULT).exists()

    @property
    def begun(self) -> bool:
        """Whether the run has a checkpoint."""
        return (self.folder / CHECKPOINT).exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder; raises BadRun where another process trains in it.

        The system releases the lock when the process ends, also when it is killed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise BadRun(f"{self.folder}: another process trains in this folder") from None
                # Otherwise the file system has no locks.
            yield

    def begin(self, config: Config) -> None:
        """Create the folder and write the configuration.

        An old checkpoint is removed first: it may be of other settings.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / CHECKPOINT).unlink(missing_ok=True)
        self._write(CONFIG, config.model_dump_json(indent=2))
        self.__dict__.pop("config", None)

    def check(self, config: Config) -> None:
        """Raise BadRun if it was begun with other settings."""
        begun = self.config.model_dump()
        requested = config.model_dump()
        other = [name for name in requested if requested[name] != begun[name]]
        if other:
            raise BadRun(
                f"{self.folder}: was begun with other settings of {', '.join(other)}; "
                "choose another folder (--runs) or name (--name of data, or --set 'name=\"...\"')"
            )

    def save(self, progress: Progress, parts: dict[str, Any]) -> None:
        """Replace the checkpoint atomically: after a crash the old one or the new one exists."""
        with replacing(self.folder / CHECKPOINT) as temporary:
            torch.save({"progress": vars(progress), **parts}, temporary)

    def load(self) -> tuple[Progress, dict[str, Any]]:
        """Progress and the parts saved with it, all on the CPU; raises BadRun."""
        try:
            parts = torch.load(  # noqa: TID251  # its own, and numbers only
                self.folder / CHECKPOINT, map_location="cpu", weights_only=True
            )
            progress = Progress(**parts.pop("progress"))
        except _UNREADABLE as error:
            raise BadRun(f"{self.folder}: {CHECKPOINT}: {error}") from error
        return progress, parts

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result, which marks the run as finished."""
        self._write(RESULT, json.dumps(result, indent=2))

    def _write(self, name: str, text: str) -> None:
        with replacing(self.folder / name) as temporary:
            temporary.write_text(text + "\n")
