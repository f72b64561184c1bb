"""miniImageNet in five super-classes: which class stands for each of them switches.

A regime is one class of each super-class. Each of its observations is of a super-class drawn
uniformly, a random image of the regime's class of it; the label is the super-class (appendix C).

Prepared from the published form, a folder `images` and lists `train.csv`, `val.csv`, `test.csv` of
the columns `filename` and `label`, the synset of the image. Which split and which super-class a
synset is of comes from the table of the paper (appendix C), not from the lists.

Files `miniimagenet_{train,val,test_public}.npz`: `jpeg` (bytes,) and `offset` (n + 1,), image i
is `jpeg[offset[i]:offset[i + 1]]`; `label` (n,), the class; `superclass` (n,) 0 to 4.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Collection, Iterator
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from rich.progress import track
from torch import Tensor

from moca_client.series import SeriesError, listed, read_table
from model_core.stream.storage import replacing
from training.data.files import Place, arrays, save
from training.data.windows import Batch, Source, Splits, held, member, switches
from training.errors import BadData
from training.paper import Protocol
from training.paper import belief_picture as picture

__all__ = ["PROTOCOL", "picture", "prepare", "splits"]

PROTOCOL = Protocol(200, 400, "accuracy", torch.float32, 4)

LISTS = ("train.csv", "val.csv", "test.csv")
SIZE = 84
QUALITY = 95
OUTPUTS = {"train": "train", "val": "val", "test": "test_public"}
SUPERCLASSES = 5
JITTER = 0.4
CHUNK = 32  # images augmented together: as many as fit a processor's cache
GRAY = (0.299, 0.587, 0.114)  # ITU-R 601 luma


class Class(NamedTuple):
    """One of the 100 classes; `label` is its position by synset, `superclass` counts from 0."""

    label: int
    wnid: str
    superclass: int
    split: str


def classes() -> dict[str, Class]:
    """Return the paper's table by synset, in their order."""
    text = package_files("training.experiments").joinpath("superclasses.json").read_text()
    rows = sorted(
        (wnid, superclass, split)
        for superclass, entry in enumerate(json.loads(text))
        for split in OUTPUTS
        for wnid in entry[split]
    )
    return {row[0]: Class(label, *row) for label, row in enumerate(rows)}


def prepare(source: Path, out: Path) -> list[Path]:
    """Write `miniimagenet_{train,val,test_public}.npz`.

    JPEG images of 84 x 84 in RGB are copied; others are scaled to that size. BadData names
    list and line of an image that is missing, damaged or of an unknown synset.
    """
    table = classes()
    images = sorted(image for name in LISTS for image in _listed(source, name, table))
    written = []
    for split, name in OUTPUTS.items():
        chosen = [image for image in images if table[image[0]].split == split]
        if not chosen:
            raise BadData(f"{source}: the lists name no image of the split {split!r}")
        parts = [
            _jpeg(source / "images" / file, where)
            for _, file, where in track(chosen, f"Reading images: {split}")
        ]
        kinds = [table[wnid] for wnid, _, _ in chosen]
        written.append(
            save(
                out / f"miniimagenet_{name}.npz",
                jpeg=np.frombuffer(b"".join(parts), np.uint8),
                offset=np.cumsum([0] + [len(part) for part in parts], dtype=np.int64),
                label=np.array([kind.label for kind in kinds], np.int16),
                superclass=np.array([kind.superclass for kind in kinds], np.int8),
            )
        )
    return written


def _listed(source: Path, name: str, classes: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Synset, file and place in a list of each of its images."""
    file = source / name
    try:
        table = read_table(file)
    except (OSError, SeriesError) as error:
        raise BadData(f"{file} cannot be read: {error}") from error
    if not {"filename", "label"} <= table.columns.keys():
        raise BadData(f"{file}: expected columns filename and label, got {listed(table.columns)}")
    for row, wnid in enumerate(table.columns["label"]):
        where = f"{file}, {table.where(row, 'label')}"
        if wnid not in classes:
            raise BadData(f"{where}: {wnid!r} is not a synset of miniImageNet")
        yield wnid, table.columns["filename"][row], where


def _jpeg(file: Path, where: str) -> bytes:
    image = _image(file, f"{where}: {file}")
    if (image.format, image.mode, image.size) == ("JPEG", "RGB", (SIZE, SIZE)):
        return file.read_bytes()
    written = io.BytesIO()
    scaled = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BOX)
    scaled.save(written, "JPEG", quality=QUALITY)
    return written.getvalue()


def _image(file: Path | io.BytesIO, name: str) -> Image.Image:
    """A decoded image; BadData if it is broken."""
    try:
        image = Image.open(file)
        image.load()
    except (UnidentifiedImageError, OSError) as error:
        raise BadData(f"{name} is not a readable image: {error}") from error
    return image


def source(
    images: NDArray[np.uint8],
    label: NDArray[Any],
    superclass: NDArray[Any],
    hazard: float,
    augment: bool,
) -> Source:
    """Generated windows: x (B, T, 3 * size * size) float32 in [0, 1], y (B, T, 1), switch (B, T).

    images: (n, 3, size, size) of classes `label` (n,) in `superclass` (n,); in a window channels
    first, row-major. With `augment`, images are mirrored and jittered.
    """
    order = torch.from_numpy(np.argsort(label, kind="stable"))
    _, first, counts = np.unique(label, return_index=True, return_counts=True)
    of_class = torch.from_numpy(counts)
    # Classes of each super-class one after the other, and how many they are.
    parent = torch.from_numpy(superclass[first].astype(np.int64))
    members = torch.argsort(parent, stable=True)
    classes = torch.bincount(parent, minlength=SUPERCLASSES)
    if len(classes) > SUPERCLASSES or not classes.all():
        raise BadData(
            f"expected classes of super-classes 0 to {SUPERCLASSES - 1}, "
            f"got {classes.tolist()} classes of them"
        )

    def draw(generator: torch.Generator, count: int, length: int) -> Batch:
        switch = switches(generator, count, length, hazard)
        every = torch.arange(SUPERCLASSES).expand(count, length, -1)
        offered = member(generator, classes, every)
        regime = held(members[offered], switch)
        y = torch.randint(SUPERCLASSES, (count, length, 1), generator=generator)
        chosen = regime.gather(2, y)[..., 0]
        image = order[member(generator, of_class, chosen)]
        x = torch.from_numpy(images[image.flatten().numpy()]).float().div_(255)
        if augment:
            x = augmented(x, generator)
        return Batch(x.reshape(count, length, -1), y.float(), switch)

    return draw


def splits(place: Place, hazard: float, size: int) -> Splits:
    """Sources of the three files, which share no class; only training images are changed.

    Images are decoded once to `size` x `size` (42 or 84 pixels fit the published ones) and kept
    in the cache. BadData if a file cannot be read.
    """
    if size < 1:
        raise ValueError(f"expected a size of at least one pixel, got {size}")
    train, validation, test = (_source(place, name, hazard, size) for name in OUTPUTS.values())
    return Splits(train, validation, test, x_dim=3 * size**2, y_dim=1, classes=SUPERCLASSES)


def _source(place: Place, name: str, hazard: float, size: int) -> Source:
    file = place.recorded / f"miniimagenet_{name}.npz"
    content = arrays(file, ["jpeg", "offset", "label", "superclass"])
    offset = content["offset"]
    label = content["label"]
    superclass = content["superclass"]
    if not len(offset) - 1 == len(label) == len(superclass) or len(label) == 0:
        raise BadData(
            f"{file}: expected one label and super-class of each image, got {len(offset) - 1} "
            f"images, {len(label)} labels and {len(superclass)} super-classes"
        )
    pairs = np.unique(np.stack([label, superclass]), axis=1)
    if len(np.unique(pairs[0])) != pairs.shape[1]:
        raise BadData(f"{file}: a class is in more than one super-class")
    images = cached(file, content["jpeg"], offset, size, place.cache)
    return source(images, label, superclass, hazard, augment=name == "train")


def cached(
    file: Path, jpeg: NDArray[np.uint8], offset: NDArray[np.int64], size: int, cache: Path
) -> NDArray[np.uint8]:
    """Images (n, 3, size, size) uint8 of JPEG bytes, mapped from a file in the folder `cache`.

    Image i is `jpeg[offset[i]:offset[i + 1]]`. The cache file is named by size and digest of
    `file`, the origin of the bytes, and written atomically.
    """
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    target = cache / f"{file.stem}-{size}-{digest[:32]}.npy"
    if not target.exists():
        shape = (len(offset) - 1, 3, size, size)
        cache.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            images: Any = np.lib.format.open_memmap(
                temporary, mode="w+", dtype=np.uint8, shape=shape
            )
            for place, (start, stop) in enumerate(zip(offset[:-1], offset[1:], strict=True)):
                content = jpeg[start:stop].tobytes()
                images[place] = decoded(content, size, f"{file}, image {place}")
            images.flush()
            del images
    mapped: NDArray[np.uint8] = np.load(target, mmap_mode="r")
    return mapped


def decoded(image: bytes, size: int, name: str) -> NDArray[np.uint8]:
    """Return one image (3, size, size) uint8, averaged if it was larger; BadData if broken."""
    rgb = _image(io.BytesIO(image), name).convert("RGB")
    if rgb.size != (size, size):
        rgb = rgb.resize((size, size), Image.Resampling.BOX)
    return np.asarray(rgb).transpose(2, 0, 1)


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images (n, 3, H, W) in [0, 1], each mirrored with probability 1/2 and its colours changed.

    Brightness, contrast and saturation are multiplied, in this order, by factors uniform on
    [0.6, 1.4] (Chen et al. 2019), each result clipped to [0, 1].
    """
    count = len(images)
    mirrored = torch.rand(count, generator=generator) < 0.5
    factor = 1 + JITTER * (2 * torch.rand(3, count, 1, 1, 1, generator=generator) - 1)
    changed = torch.empty_like(images)
    for start in range(0, count, CHUNK):
        at = slice(start, start + CHUNK)
        part = changed[at].copy_(images[at])
        part[mirrored[at]] = part[mirrored[at]].flip(-1)
        _jitter(part, *factor[:, at])
    return changed


def luma(images: Tensor) -> Tensor:
    """Gray value (n, 1, H, W) of images (n, 3, H, W)."""
    red = images[:, 0:1]
    green = images[:, 1:2]
    blue = images[:, 2:3]
    return (red * GRAY[0]).add_(green, alpha=GRAY[1]).add_(blue, alpha=GRAY[2])


def _jitter(images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> None:
    images.mul_(brightness).clamp_(0, 1)
    mean = luma(images).mean((-1, -2), keepdim=True)
    images.mul_(contrast).add_(mean * (1 - contrast)).clamp_(0, 1)
    gray = luma(images).mul_(1 - saturation)
    images.mul_(saturation).add_(gray).clamp_(0, 1)
