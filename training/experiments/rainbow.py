"""Rainbow MNIST: digits whose colour, size and rotation switch.

A task is one of 56 transformations: 7 background colours x 2 scales x 4 rotations. A regime is a
task, each of its observations a random image of that task, the label the digit. A regime draws
its task uniformly from all of the split, also the one before: only so the colour changes with
probability 6/7, as the paper says, and `switch` marks a new regime even if its task is the same.

Prepared from MNIST as published (IDX files, gzipped or not): `rainbow_mnist_{train,val,test}.npz`
hold `gray` (tasks, images, 28, 28) uint8, scaled and turned; `y` (tasks, images); `rgb` (tasks, 3)
uint8, the background of a white digit.
"""

from __future__ import annotations

import gzip
import math
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor

from training.data.files import Place, arrays, save
from training.data.windows import Batch, Source, Splits, below, held, switches
from training.errors import BadData
from training.paper import Protocol
from training.paper import belief_picture as picture

__all__ = ["PROTOCOL", "picture", "prepare", "splits"]

PROTOCOL = Protocol(200, 400, "accuracy", torch.float32, 4)

CLASSES = 10
SHAPE = (3, 28, 28)  # of an image; x is its 2352 numbers, row-major
COLOURS = (
    (255, 0, 0),  # red
    (255, 165, 0),  # orange
    (255, 255, 0),  # yellow
    (0, 128, 0),  # green
    (0, 0, 255),  # blue
    (75, 0, 130),  # indigo
    (238, 130, 238),  # violet
)
SCALES = (1.0, 0.5)
ROTATIONS = (0, 90, 180, 270)  # degrees counter-clockwise
TASKS = tuple(product(COLOURS, SCALES, ROTATIONS))
# The paper does not name its split of the tasks; this one was drawn once.
VALIDATION = (2, 6, 10, 25, 29, 33, 35)
TEST = (1, 3, 19, 32, 36, 42, 55)
SPLITS = {
    "train": tuple(k for k in range(len(TASKS)) if k not in (*VALIDATION, *TEST)),
    "val": VALIDATION,
    "test": TEST,
}


def prepare(source: Path, out: Path, images: int = 900, seed: int = 0) -> list[Path]:
    """Write `rainbow_mnist_{train,val,test}.npz`.

    `source` holds `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, also with `.gz` or a dot
    before `idx`. Each task gets `images` different images, drawn by `seed`; no image is in two
    tasks. BadData for a file that is missing or damaged, or too few images.
    """
    x_file = _find(source, "train-images", 3)
    y_file = _find(source, "train-labels", 1)
    x = read_idx(x_file)
    y = read_idx(y_file)
    if x.ndim != 3 or x.shape[1:] != (28, 28) or len(x) == 0:
        raise BadData(f"{x_file}: expected images of 28 x 28, got {x.shape}")
    if y.shape != x.shape[:1] or y.max() > 9:
        raise BadData(f"{y_file}: expected {len(x)} digits, got {y.shape} up to {y.max()}")
    if not 0 < images <= len(x) // len(TASKS):
        raise BadData(f"expected 1 to {len(x) // len(TASKS)} images a task, got {images}")
    order = np.random.default_rng(seed).permutation(len(x))
    index = order[: len(TASKS) * images].reshape(len(TASKS), images).astype(np.int32)
    written = []
    for split, tasks in track(SPLITS.items(), "Transforming digits"):
        chosen = index[list(tasks)]
        rgb, scales, rotations = zip(*(TASKS[task] for task in tasks), strict=True)
        written.append(
            save(
                out / f"rainbow_mnist_{split}.npz",
                gray=np.stack(list(map(transformed, x[chosen], scales, rotations))),
                y=y[chosen],
                mnist_index=chosen,
                rgb=np.array(rgb, np.uint8),
            )
        )
    return written


def transformed(digits: NDArray[np.uint8], scale: float, rotation: int) -> NDArray[np.uint8]:
    """Scale and turn digits (n, 28, 28): at half size they are averaged 2 x 2 and centred."""
    if scale == 0.5:
        wide = digits.astype(np.int32)
        # Rows, then columns, each rounded half up, as image libraries do.
        narrow = (wide[:, :, 0::2] + wide[:, :, 1::2] + 1) >> 1
        small = (narrow[:, 0::2] + narrow[:, 1::2] + 1) >> 1
        digits = np.pad(small.astype(np.uint8), ((0, 0), (7, 7), (7, 7)))
    return np.rot90(digits, rotation // 90, axes=(1, 2))


def read_idx(file: Path) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes, gzipped or not; BadData for other files."""
    try:
        content = file.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError) as error:
        raise BadData(f"{file} cannot be read: {error}") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise BadData(f"{file} is not an IDX file of unsigned bytes")
    head = 4 + 4 * content[3]
    shape = tuple(np.frombuffer(content[4:head], ">u4").tolist())
    if len(shape) != content[3] or len(content) - head != math.prod(shape):
        raise BadData(f"{file}: expected {shape} bytes after the header, got {len(content) - head}")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _find(source: Path, stem: str, dimensions: int) -> Path:
    names = [
        f"{stem}{mark}idx{dimensions}-ubyte{suffix}" for suffix in ("", ".gz") for mark in "-."
    ]
    file = next((source / name for name in names if (source / name).is_file()), None)
    if file is None:
        raise BadData(f"{source} holds none of {', '.join(names)}")
    return file


class Digits(NamedTuple):
    """Images of some tasks: gray (tasks, n, 28, 28), y (tasks, n), rgb (tasks, 3), all uint8."""

    gray: NDArray[np.uint8]
    y: NDArray[np.uint8]
    rgb: NDArray[np.uint8]

    def part(self, start: int | None, stop: int | None) -> Digits:
        """Some of the images of every task."""
        return Digits(self.gray[:, start:stop], self.y[:, start:stop], self.rgb)


def source(digits: Digits, hazard: float) -> Source:
    """Generated windows: x (B, T, 2352) float32 in [0, 1], y (B, T, 1) the digit, switch (B, T).

    Images are coloured when they are drawn: round(rgb * (1 - gray / 255) + gray) / 255.
    """
    gray, y, rgb = map(torch.from_numpy, digits)

    def draw(generator: torch.Generator, count: int, length: int) -> Batch:
        switch = switches(generator, count, length, hazard)
        drawn = torch.randint(len(y), (count, length), generator=generator)
        task = held(drawn, switch)
        image = below(generator, torch.full_like(task, y.shape[1]))
        x = coloured(gray[task, image], rgb[task]).flatten(2)
        return Batch(x, y[task, image][..., None].float(), switch)

    return draw


def coloured(gray: Tensor, rgb: Tensor) -> Tensor:
    """Images (..., 3, H, W) in [0, 1], float32, of gray (..., H, W) and rgb (..., 3) uint8."""
    white = gray[..., None, :, :].float()
    background = rgb[..., None, None].float()
    image = (white / 255).neg_().add_(1) * background
    return image.add_(white).round_().div_(255)


def splits(
    place: Place,
    hazard: float,
    validation_images: int = 100,
) -> Splits:
    """Sources that share no image, and if possible no task between training and test.

    As in the paper the 42 tasks of `train` are for training, the 7 of `val` for validation, the 7
    of `test` for the test. Without the file of those the tasks of `val` are the test, and the last
    `validation_images` of each of the 42 for validation.

    BadData if a file cannot be read or a task has too few images.
    """
    folder = place.recorded
    train = _digits(folder, "train")
    validation = _digits(folder, "val")
    if (folder / "rainbow_mnist_test.npz").exists():
        test = _digits(folder, "test")
    else:
        test = validation
        images = train.y.shape[1]
        if not 0 < validation_images < images:
            raise BadData(
                f"cannot hold {validation_images} images of each task out: each has {images}"
            )
        validation = train.part(-validation_images, None)
        train = train.part(None, -validation_images)
    return Splits(
        source(train, hazard),
        source(validation, hazard),
        source(test, hazard),
        x_dim=int(np.prod(SHAPE)),
        y_dim=1,
        classes=CLASSES,
    )


def _digits(folder: Path, split: str) -> Digits:
    file = folder / f"rainbow_mnist_{split}.npz"
    content = arrays(file, ["gray", "y", "rgb"])
    if content["gray"].shape[2:] != SHAPE[1:] or content["gray"].dtype != np.uint8:
        raise BadData(
            f"{file}: expected 'gray' of (tasks, images, 28, 28) uint8, "
            f"got {content['gray'].shape} {content['gray'].dtype}"
        )
    if not content["y"].size:
        raise BadData(f"{file}: expected tasks with at least one image each")
    if content["y"].max() >= CLASSES:
        raise BadData(f"{file}: expected digits in 'y', got {content['y'].max()}")
    return Digits(**content)
