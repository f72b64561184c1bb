"""The catalogue of models: the built-in ones, and artifacts found by their `model.json` alone.

Artifacts are those of the models folder, and trained ones that come with the package, unless the
folder has one of the same name.

No torch here: the API lists models with it, the worker finds the folder to load.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Struct

from moca_client.responses import ModelVersion, TrainingReport
from model_core import artifact_digest
from model_core.artifact_digest import DESCRIPTION, TENSORS
from model_core.upm.builtin import BUILTIN
from model_core.wording import did_you_mean
from service.problems import UnknownModel

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
REFERENCE = rf"^{NAME}(@{NAME})?$"
FORMAT = 1
SHIPPED = Path(__file__).parents[1] / "samples" / "models"
FILES = (DESCRIPTION, TENSORS)
LARGEST_REPORT = 1 << 20  # bytes
LARGEST_DESCRIPTION = 16 << 20  # bytes
SHARES = 1_000_000  # a canary gets a whole number of as many parts of all streams
_name = re.compile(NAME)


BUILT_IN = tuple(
    ModelVersion(
        name=entry.name,
        version=None,
        kind=entry.name,
        description=entry.description,
        x_dim=entry.x_dim,
        y_dim=entry.y_dim,
        built_in=True,
    )
    for entry in BUILTIN.values()
)


class _ModelFile(Struct):
    """What the catalogue reads of a `model.json`; loading it checks the rest."""

    format: int
    kind: str
    x_dim: int
    y_dim: int
    description: str = ""
    feature_dim: int | None = None
    hazard: Any = None
    encoder: dict[str, Any] | None = None
    training: dict[str, Any] | None = None
    regimes: list[Any] | None = None


_decode = msgspec.json.Decoder(_ModelFile).decode
_TYPES = {field.name: field.type for field in msgspec.structs.fields(ModelVersion)}


class Catalogue:
    """Models by name and version. Artifacts are looked for at every call: they may be added."""

    def __init__(self, models_dir: Path) -> None:
        self.models_dir = models_dir

    def models(self) -> list[ModelVersion]:
        """Return every version of every model, by name and then from old to new."""
        models = [*BUILT_IN]
        taken = {model.name for model in BUILT_IN}
        for parent in (self.models_dir, SHIPPED):
            named = {folder.name: _folders(folder) for folder in _folders(parent)}
            for name in named.keys() - taken:
                models += [_read(version) for version in named[name]]
            taken |= {name for name, versions in named.items() if versions}
        return sorted(models, key=lambda model: (model.name, version_key(model.version)))

    def versions(self, name: str) -> list[ModelVersion]:
        """Return the versions of one model from old to new; UnknownModel when there are none."""
        versions = [model for model in BUILT_IN if model.name == name]
        if not versions and _name.fullmatch(name):
            versions = [_read(version) for version in _folders(self.place(name))]
        if not versions:
            raise unknown(name)
        return sorted(versions, key=lambda model: version_key(model.version))

    def usable(self, name: str) -> list[str]:
        """Return the versions of a trained model that can be used, from old to new."""
        try:
            versions = self.versions(name)
        except UnknownModel:
            return []
        return [
            version.version for version in versions if version.version and version.error is None
        ]

    def report(self, model: ModelVersion) -> TrainingReport | None:
        """Return the numbers of a model's training report; None without a readable one."""
        if model.version is None:
            return None
        file = self.folder_of(model.reference) / "report.json"
        try:
            if file.stat().st_size > LARGEST_REPORT:
                return None
            numbers = msgspec.json.decode(file.read_bytes())
        except (OSError, RecursionError, UnicodeDecodeError, msgspec.MsgspecError):
            return None
        report: TrainingReport | None = documented(TrainingReport, numbers)
        return report

    def place(self, name: str) -> Path:
        """Return the folder that holds a model's versions, if there are any."""
        own = self.models_dir / name
        shipped = SHIPPED / name
        return shipped if not _folders(own) and shipped.is_dir() else own

    def folder_of(self, reference: str) -> Path:
        """Return the folder of the artifact NAME@VERSION, whether it is there or not."""
        name, _, version = reference.partition("@")
        return self.place(name) / version

    def resolve(self, reference: str) -> str | None:
        """Return the model that a name means, with its version if it has any; None: there is none.

        It may be one that cannot be used: loading it says why.
        """
        name, _, version = reference.partition("@")
        try:
            versions = self.versions(name)
        except UnknownModel:
            return None
        if version:
            return reference if any(model.version == version for model in versions) else None
        usable = [model for model in versions if model.error is None]
        return (usable or versions)[-1].reference

    def digest(self, reference: str) -> str | None:
        """Return what tells an artifact from another of its name; None: built in, or not there.

        What is only said about a model does not count.
        """
        if reference in BUILTIN:
            return None
        folder = self.folder_of(reference)
        description = folder / DESCRIPTION
        tensors = folder / TENSORS
        try:
            if not description.is_file() or description.stat().st_size > LARGEST_DESCRIPTION:
                return None
            if not tensors.is_file() and (tensors.exists() or tensors.is_symlink()):
                return None
            return artifact_digest.digest(folder)
        except (OSError, RecursionError, ValueError):
            return None


def unknown(name: str) -> UnknownModel:
    """Return the error of a name that no model has."""
    hint = did_you_mean(name, BUILTIN) or "; see GET /v1/models for the available ones"
    return UnknownModel(f"there is no model {name!r}{hint}")


def stamp(folder: Path) -> list[tuple[int, ...] | None]:
    """Return what changes whenever a file of an artifact does, without reading it."""
    stamps: list[tuple[int, ...] | None] = []
    for name in FILES:
        try:
            stat = (folder / name).stat()
            stamps.append((stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
        except OSError:
            stamps.append(None)
    return stamps


def version_key(version: str | None) -> tuple[tuple[int, int, str], ...]:
    """Order versions by their numbers where they have any: 9 < 10, 1.9 < 1.10."""
    parts = re.split(r"[._-]", version or "")
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)


def _folders(parent: Path) -> list[Path]:
    try:
        folders = sorted(parent.iterdir())
        # A publisher writes to a hidden folder and renames it: such a name is not a model.
        return [path for path in folders if _name.fullmatch(path.name) and path.is_dir()]
    except OSError:  # not there, no folder, a loop of links, not to be read
        return []


def check_files(folder: Path, largest: int) -> None:
    """Raise OSError for an artifact whose files are none, or larger than `largest` bytes.

    What they declare is looked at only once they are in memory.
    """
    for name, limit in zip(FILES, (LARGEST_DESCRIPTION, largest), strict=True):
        file = folder / name
        if not file.exists():
            continue  # some kinds need no tensors; what is missing is said elsewhere
        if not file.is_file():
            raise OSError(f"{name}: not a plain file")
        if file.stat().st_size > limit:
            raise OSError(f"{name}: {file.stat().st_size} bytes, at most {limit}")


def _read(folder: Path) -> ModelVersion:
    name = folder.parent.name
    version = folder.name
    try:
        if (folder / DESCRIPTION).exists():
            check_files(folder, 1 << 62)
        file = _decode((folder / DESCRIPTION).read_bytes())
    except (OSError, RecursionError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        return ModelVersion(
            name=name, version=version, kind="unknown", error=f"model.json: {error}"
        )
    described = {
        field: documented(_TYPES[field], getattr(file, field))
        for field in _ModelFile.__struct_fields__[1:]
    }
    unknown = f"model.json: format {file.format}, expected {FORMAT}"
    return ModelVersion(
        name=name,
        version=version,
        **described,
        error=None if file.format == FORMAT else unknown,
    )


def documented(kind: Any, value: Any) -> Any:
    """Return a part of a model's files, or None if it is not as the answers document it.

    It may have members that are not documented.
    """
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError):
        return None
    return value


# --- canaries -------------------------------------------------------------------------------------


class Canary(Struct):
    """A model's canary: a share of its new streams is created with this version."""

    version: str
    share: float


encode_canary = msgspec.json.Encoder().encode
decode_canary = msgspec.json.Decoder(Canary).decode


def choose_version(canary: Canary, name: str, stream: str, versions: Sequence[str]) -> str | None:
    """Return the NAME@VERSION of a new stream; None where there is no choice.

    The stream's id decides, so that it always comes to the same. versions: usable ones, from old to
    new.
    """
    others = [version for version in versions if version != canary.version]
    if canary.version not in versions or not others:
        return None
    picked = crc32(f"canary {stream}".encode()) % SHARES < canary.share * SHARES
    return f"{name}@{canary.version if picked else others[-1]}"
