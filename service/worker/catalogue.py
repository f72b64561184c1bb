"""Models as the worker holds them: built-in ones, and artifacts loaded once per device."""

from __future__ import annotations

from pathlib import Path

from model_core import artifact
from model_core.errors import BadArtifact
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import BUILTIN, Options
from service import models
from service.errors import UnknownModel


class Catalogue:
    """Underlying models by `NAME@VERSION`."""

    def __init__(self, models_dir: Path, device: str) -> None:
        self._folder, self._device = models_dir, device
        self._built: dict[tuple[str, int], UnderlyingModel] = {}
        self._artifacts: dict[str, UnderlyingModel] = {}

    def resolve(self, name: str) -> str:
        """Full `NAME@VERSION` of a model name; raises UnknownModel."""
        found = models.resolve(self._folder, name)
        if found is None:
            raise UnknownModel(f"there is no model {name!r}; GET /v1/models lists those there are")
        return found

    def get(self, name: str, y_dim: int) -> UnderlyingModel:
        """Model of a full name, for labels of `y_dim` numbers; raises UnknownModel."""
        base = name.partition("@")[0]
        if base not in BUILTIN:
            return self._load(name)
        if (name, y_dim) not in self._built:
            self._built[name, y_dim] = BUILTIN[base](Options(y_dim=y_dim))
        return self._built[name, y_dim]

    def y_dim(self, name: str) -> int | None:
        """Outputs of a model; None where the stream's first label decides."""
        base = name.partition("@")[0]
        return None if base == "gaussian" else self.get(name, 1).y_dim

    def _load(self, name: str) -> UnderlyingModel:
        if name not in self._artifacts:
            base, _, version = self.resolve(name).partition("@")
            try:
                self._artifacts[name] = artifact.load(self._folder / base / version, self._device)
            except BadArtifact as error:
                raise UnknownModel(f"model {name} cannot be loaded: {error}") from error
        return self._artifacts[name]
