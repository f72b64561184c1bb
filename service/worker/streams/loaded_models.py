"""Models as the worker holds them: built-in ones, and artifacts loaded once per device.

A stream is served by the very artifact that it was made with, known by its digest. One that is
edited under its name is another one: new streams, and streams that are moved, come to it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from model_core import lazy
from model_core.errors import BadArtifact, MissingTorch
from model_core.lazy import is_tensor
from model_core.stream.settings import options
from model_core.table import Layout
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import BUILTIN, Options
from service.models import catalogue
from service.models.catalogue import Catalogue
from service.problems import ModelChanged, NotInstalled, UnknownModel
from service.wire import Head

logger = logging.getLogger(__name__)
MAX_MODEL_BYTES = 1 << 30  # of an artifact's tensors, which each worker has in memory as a whole


class LoadedModels:
    """Underlying models by their references and, of artifacts, by their digest."""

    def __init__(self, models_dir: Path, device: str) -> None:
        self._catalogue = Catalogue(models_dir)
        self._device = device
        self._built: dict[tuple[str, Options], UnderlyingModel] = {}
        self._artifacts: dict[tuple[str, str | None], UnderlyingModel] = {}
        self._weights: dict[tuple[str, str | None], int] = {}  # bytes
        self._there: dict[str, tuple[object, str | None]] = {}  # stamp and digest, as last seen
        self._changed: set[str] = set()
        self._refused: set[tuple[str, str | None]] = set()
        # Of a hypothesis, by the id of its model (all are kept) and whether it has a memory.
        self._bytes: dict[tuple[int, bool], int] = {}

    def resolve(self, name: str) -> str:
        """Reference of a model name, with its version if it has any; raises UnknownModel."""
        reference = self._catalogue.resolve(name)
        if reference is None:
            raise catalogue.unknown(name)
        return reference

    def of(self, head: Head) -> UnderlyingModel:
        """Model of a stream as far as its shape is known; raises UnknownModel."""
        return self.get(head.settings.model, options_of(head), head.digest)

    def get(
        self,
        name: str,
        shape: Options = Options(),  # noqa: B008
        digest: str | None = None,
    ) -> UnderlyingModel:
        """Model of a full name, a built-in one in this shape.

        digest: of an artifact, None for the one that lies there. Raises UnknownModel, and
        ModelChanged where that is not the one wanted.
        """
        if name not in BUILTIN:
            return self._artifact(name, digest)
        if (name, shape) not in self._built:
            self._built[name, shape] = BUILTIN[name].build(shape)
        return self._built[name, shape]

    def dimensions(self, name: str, digest: str | None = None) -> tuple[int | None, int | None]:
        """Numbers in an input and in a label; None where a stream's first one decides."""
        if name in BUILTIN:
            return BUILTIN[name].x_dim, BUILTIN[name].y_dim
        model = self._artifact(name, digest)
        return model.x_dim, model.y_dim

    def hypothesis_bytes(self, model: UnderlyingModel, regimes: int = 0) -> int:
        """Bytes of one hypothesis of a model that one of the other methods returned.

        regimes: that its stream remembers.
        """
        key = id(model), regimes > 0
        if key not in self._bytes:
            remembered = int(regimes > 0 and model.recalls)
            self._bytes[key] = 8 * Layout(model, 1, self._device, remembered).height
        return self._bytes[key]

    @property
    def nbytes(self) -> int:
        """Bytes of the weights of artifacts that are loaded."""
        return sum(self._weights.values())

    def digest(self, name: str) -> str | None:
        """Digest of the artifact that lies there now; None of a built-in model.

        Raises UnknownModel if none can be loaded.
        """
        if name in BUILTIN:
            return None
        folder = self._catalogue.folder_of(self.resolve(name))
        try:
            catalogue.check_files(folder, MAX_MODEL_BYTES)
        except OSError as error:
            raise _unloadable(name, error) from error
        stamp = catalogue.stamp(folder)
        if name not in self._there or self._there[name][0] != stamp:
            self._there[name] = stamp, self._catalogue.digest(name)
        return self._there[name][1]

    def notice(self) -> int:
        """Count loaded artifacts whose files changed on disk."""
        loaded = {name for name, _ in self._artifacts}
        changed = {name for name in loaded if not self._is_there(name)}
        for name in changed - self._changed:
            logger.warning(
                "files of %s were changed or removed on disk: streams created with them "
                "are served from memory until this worker exits, and by no other worker",
                name,
            )
        self._changed = changed
        return len(changed)

    def _is_there(self, name: str) -> bool:
        try:
            return all(self.digest(name) == digest for n, digest in self._artifacts if n == name)
        except UnknownModel:
            return False

    def _artifact(self, name: str, digest: str | None) -> UnderlyingModel:
        wanted = self.digest(name) if digest is None else digest
        if (name, wanted) not in self._artifacts:
            self._artifacts[name, wanted] = self._load(name, wanted)
            self._weights[name, wanted] = _weight(self._artifacts[name, wanted], set())
        return self._artifacts[name, wanted]

    def _load(self, name: str, wanted: str | None) -> UnderlyingModel:
        if self.digest(name) != wanted:
            raise self._other(name, wanted)
        try:
            lazy.load()
            from model_core import artifact

            model = artifact.load(self._catalogue.folder_of(name), self._device)
        except MissingTorch as error:
            raise NotInstalled(f"model {name}: {error}") from error
        except (BadArtifact, OSError) as error:
            raise _unloadable(name, error) from error
        if self.digest(name) != wanted:
            raise _unloadable(name, "its files are being changed")
        return model

    def _other(self, name: str, wanted: str | None) -> ModelChanged:
        detail = (
            f"the files of {name} differ from those that the stream was created with: restore them"
        )
        if (name, wanted) not in self._refused:
            self._refused.add((name, wanted))
            logger.error("%s (digest %s), or move its streams", detail, wanted)
        return ModelChanged(f"{detail}, or move the stream by POST /v1/streams/{{id}}/model")


def _weight(part: object, seen: set[int]) -> int:
    """Bytes of the tensors in a model, or in a part of one that is not among those seen."""
    if id(part) in seen:
        return 0
    seen.add(id(part))
    if is_tensor(part):
        return part.nbytes
    if isinstance(part, dict):
        return sum(_weight(value, seen) for value in part.values())
    if isinstance(part, list | tuple):
        return sum(_weight(value, seen) for value in part)
    return _weight(vars(part), seen) if hasattr(part, "__dict__") else 0


def _unloadable(name: str, why: object) -> UnknownModel:
    return UnknownModel(f"cannot load model {name}: {why}")


def options_of(head: Head) -> Options:
    """What shapes a stream's model, were it a built-in one."""
    return options(head.settings, head.y_dim, head.x_dim)
