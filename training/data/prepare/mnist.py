"""Convert MNIST as published (four IDX files, gzipped or not) to Rainbow MNIST."""

from __future__ import annotations

import gzip
import json
import math
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from training.data.files import save
from training.errors import BadData

COLOURS = {
    "red": (255, 0, 0),
    "orange": (255, 165, 0),
    "yellow": (255, 255, 0),
    "green": (0, 128, 0),
    "blue": (0, 0, 255),
    "indigo": (75, 0, 130),
    "violet": (238, 130, 238),
}
SCALES = (1.0, 0.5)
ROTATIONS = (0, 90, 180, 270)  # degrees counter-clockwise
# The paper does not name its split of the 56 tasks; this one was drawn once.
VALIDATION = frozenset({2, 6, 10, 25, 29, 33, 35})
TEST = frozenset({1, 3, 19, 32, 36, 42, 55})


class Task(NamedTuple):
    """One transformation of the digits; `split` is train, val or test."""

    task: int
    color: str
    rgb: tuple[int, int, int]
    scale: float
    rotation: int
    split: str


def tasks() -> list[Task]:
    """Return the 56 transformations: 7 colours x 2 scales x 4 rotations."""
    return [
        Task(place, color, COLOURS[color], scale, rotation, _split(place))
        for place, (color, scale, rotation) in enumerate(product(COLOURS, SCALES, ROTATIONS))
    ]


def prepare(source: Path, out: Path, images: int = 900, seed: int = 0) -> list[Path]:
    """Write `mnist.npz`, `rainbow_mnist_{train,val,test}.npz` and the table of tasks.

    `source` holds `train-images-idx3-ubyte` and its three companions, also with `.gz` or a dot
    before `idx`. Each task gets `images` different training images, drawn by `seed`; no image is
    in two tasks. BadData for a file that is missing or damaged, or too few images.
    """
    x, y = _pair(source, "train")
    x_test, y_test = _pair(source, "t10k")
    table = tasks()
    if not 0 < images <= len(x) // len(table):
        raise BadData(f"expected 1 to {len(x) // len(table)} images a task, got {images}")
    order = np.random.default_rng(seed).permutation(len(x))
    index = order[: len(table) * images].reshape(len(table), images).astype(np.int32)
    kept = {"x_train": x, "y_train": y, "x_test_public": x_test, "y_test_public": y_test}
    written = [save(out / "mnist.npz", **kept)]
    for split in track(("train", "val", "test"), "Transforming digits"):
        chosen = [task for task in table if task.split == split]
        rows = [task.task for task in chosen]
        written.append(
            save(
                out / f"rainbow_mnist_{split}.npz",
                gray=np.stack([transformed(x[index[task.task]], task) for task in chosen]),
                y=y[index[rows]],
                mnist_index=index[rows],
                task=np.array(rows, np.int64),
                rgb=np.array([task.rgb for task in chosen], np.uint8),
            )
        )
    listed = out / "rainbow_mnist_tasks.json"
    listed.write_text(json.dumps([task._asdict() for task in table], indent=0) + "\n")
    return [*written, listed]


def transformed(digits: NDArray[np.uint8], task: Task) -> NDArray[np.uint8]:
    """Scale and turn digits (n, 28, 28): at half size they are averaged 2 x 2 and centred."""
    if task.scale == 0.5:
        wide = digits.astype(np.int32)
        # Rows, then columns, each rounded half up, as image libraries do.
        narrow = (wide[:, :, 0::2] + wide[:, :, 1::2] + 1) >> 1
        small = (narrow[:, 0::2] + narrow[:, 1::2] + 1) >> 1
        digits = np.pad(small.astype(np.uint8), ((0, 0), (7, 7), (7, 7)))
    return np.rot90(digits, task.rotation // 90, axes=(1, 2))


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


def _split(task: int) -> str:
    if task in TEST:
        return "test"
    return "val" if task in VALIDATION else "train"


def _pair(source: Path, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    x_file = _find(source, f"{name}-images", 3)
    y_file = _find(source, f"{name}-labels", 1)
    x = read_idx(x_file)
    y = read_idx(y_file)
    if x.ndim != 3 or x.shape[1:] != (28, 28) or len(x) == 0:
        raise BadData(f"{x_file}: expected images of 28 x 28, got {x.shape}")
    if y.shape != x.shape[:1] or y.max() > 9:
        raise BadData(f"{y_file}: expected {len(x)} digits, got {y.shape} up to {y.max()}")
    return x, y


def _find(source: Path, stem: str, dimensions: int) -> Path:
    names = [
        f"{stem}{mark}idx{dimensions}-ubyte{suffix}" for suffix in ("", ".gz") for mark in "-."
    ]
    file = next((source / name for name in names if (source / name).is_file()), None)
    if file is None:
        raise BadData(f"{source} holds none of {', '.join(names)}")
    return file
