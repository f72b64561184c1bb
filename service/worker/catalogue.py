"""Models as the worker holds them: built-in ones, and artifacts loaded once per device."""

from __future__ import annotations

from pathlib import Path

import torch

from model_core import artifact
from model_core import filter as moca
from model_core.errors import BadArtifact
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import BUILTIN, Options
from service import models
from service.errors import UnknownModel
from service.wire import Head


class Catalogue:
    """Underlying models by `NAME@VERSION`."""

    def __init__(self, models_dir: Path, device: str, largest: int = 1 << 30) -> None:
        self._folder, self._device, self._largest = models_dir, device, largest
        self._built: dict[tuple[str, Options], UnderlyingModel] = {}
        self._artifacts: dict[str, UnderlyingModel] = {}
        self._bytes: dict[int, int] = {}  # of a hypothesis, by the model's id: they are all kept

    def resolve(self, name: str) -> str:
        """Full `NAME@VERSION` of a model name; raises UnknownModel."""
        found = models.resolve(self._folder, name)
        if found is None:
            raise UnknownModel(f"there is no model {name!r}; GET /v1/models lists those there are")
        return found

    def of(self, head: Head) -> UnderlyingModel:
        """Model of a stream as far as its shape is known; raises UnknownModel."""
        return self.get(head.settings.model, options_of(head))

    def get(self, name: str, options: Options = Options()) -> UnderlyingModel:  # noqa: B008
        """Model of a full name, a built-in one in the shape of `options`; raises UnknownModel."""
        if name not in BUILTIN:
            return self._load(name)
        if (name, options) not in self._built:
            self._built[name, options] = BUILTIN[name](options)
        return self._built[name, options]

    def dimensions(self, name: str) -> tuple[int | None, int | None]:
        """Numbers in an input and in a label; None where a stream's first one decides."""
        for model in models.BUILT_IN:
            if model.reference == name:
                return model.x_dim, model.y_dim
        found = self._load(name)
        return found.x_dim, found.y_dim

    def hypothesis_bytes(self, model: UnderlyingModel) -> int:
        """Bytes of one hypothesis of a model that one of the other methods returned."""
        if id(model) not in self._bytes:
            one = torch.ones(1, model.scaled, dtype=torch.float64, device=self._device)
            state = moca.init(moca.make_prior(model, one, one), 1)
            self._bytes[id(model)] = sum(each.nbytes for each in moca.leaves(state)) // 2
        return self._bytes[id(model)]

    def _load(self, name: str) -> UnderlyingModel:
        if name not in self._artifacts:
            base, _, version = self.resolve(name).partition("@")
            try:
                folder = models.place(self._folder, base) / version
                models.check_files(folder, self._largest)
                self._artifacts[name] = artifact.load(folder, self._device)
            except (BadArtifact, OSError) as error:
                raise UnknownModel(f"model {name} cannot be loaded: {error}") from error
        return self._artifacts[name]


def options_of(head: Head) -> Options:
    """What shapes a stream's model, were it a built-in one."""
    settings = head.settings
    return Options(
        head.y_dim or 1,
        head.x_dim or 0,
        settings.classes or 0,
        settings.order,
        settings.trend,
        settings.season or 0,
    )
