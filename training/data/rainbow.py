"""Rainbow MNIST: digits whose colour, size and rotation switch.

A task is one of 56 transformations: 7 background colours x 2 scales x 4 rotations. A regime is a
task, each of its observations a random image of that task, the label the digit. A regime draws
its task uniformly from all of the split, also the one before: only so the colour changes with
probability 6/7, as the paper says, and `switch` marks a new regime even if its task is the same.

Files `rainbow_mnist_{train,val,test}.npz`: `gray` (tasks, images, 28, 28) uint8, scaled and
turned; `y` (tasks, images); `rgb` (tasks, 3) uint8, the background of a white digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.data.base import Batch, Splits, below, checked_hazard, held, switches
from training.data.files import arrays
from training.errors import BadData

CLASSES = 10
SHAPE = (3, 28, 28)  # of an image; x is its 2352 numbers, row-major


class Task(NamedTuple):
    """Images of one transformation: gray (n, 28, 28) uint8, y (n,), rgb (3,) uint8."""

    gray: NDArray[np.uint8]
    y: NDArray[np.uint8]
    rgb: NDArray[np.uint8]

    def part(self, start: int | None, stop: int | None) -> Task:
        """Some of the images."""
        return Task(self.gray[start:stop], self.y[start:stop], self.rgb)


class Rainbow:
    """Generated windows: x (B, T, 2352) float32 in [0, 1], y (B, T, 1) the digit, switch (B, T).

    Images are coloured when they are drawn: round(rgb * (1 - gray / 255) + gray) / 255.
    """

    def __init__(self, tasks: Sequence[Task], hazard: float) -> None:
        """Store the gray images; BadData without tasks or for a task without images."""
        if not tasks or not all(len(task.y) for task in tasks):
            raise BadData("expected tasks with at least one image each")
        self.hazard = checked_hazard(hazard)
        self._gray = torch.from_numpy(np.concatenate([task.gray for task in tasks]))
        self._y = torch.from_numpy(np.concatenate([task.y for task in tasks]))
        self._rgb = torch.from_numpy(np.stack([task.rgb for task in tasks]))
        self._count = torch.tensor([len(task.y) for task in tasks])
        self._first = torch.cumsum(self._count, 0) - self._count

    def draw(self, generator: torch.Generator, count: int, length: int) -> Batch:
        """`count` independent streams of `length`, each from the start of a regime."""
        switch = switches(generator, count, length, self.hazard)
        drawn = torch.randint(len(self._count), (count, length), generator=generator)
        task = held(drawn, switch)
        image = self._first[task] + below(generator, self._count[task])
        x = coloured(self._gray[image], self._rgb[task]).flatten(2)
        return Batch(x, self._y[image][..., None].float(), switch)


def coloured(gray: Tensor, rgb: Tensor) -> Tensor:
    """Images (..., 3, H, W) in [0, 1], float32, of gray (..., H, W) and rgb (..., 3) uint8."""
    white = gray[..., None, :, :].float()
    background = rgb[..., None, None].float()
    image = (white / 255).neg_().add_(1) * background
    return image.add_(white).round_().div_(255)


def splits(
    folder: Path,
    hazard: float,
    all_tasks: bool = False,
    validation_images: int = 100,
    test_images: int = 300,
) -> Splits:
    """Sources that share no image, and if possible no task between training and test.

    With `rainbow_mnist_test.npz` in the folder, as in the paper:

    - train on the 42 tasks of `train`, validation the 7 of `val`, test the 7 of `test`;
    - `all_tasks`: train on all 49 but the last `validation_images` of each, those for validation.

    Without that file the tasks of `val` take the place of the test tasks:

    - train on 42 tasks but the last `validation_images` of each, those for validation; test `val`;
    - `all_tasks`: of each task of `val`, moreover, the last `test_images` are the test. Images
      are then new in the test, tasks are not: expect better scores than on new tasks.

    BadData if a file cannot be read or a task has too few images.
    """
    train = _tasks(folder, "train")
    other = _tasks(folder, "val")
    tested = (folder / "rainbow_mnist_test.npz").exists()
    test = _tasks(folder, "test") if tested else other
    validation = other
    if all_tasks:
        if not tested:
            other, test = _parted(other, test_images)
        train, validation = _parted([*train, *other], validation_images)
    elif not tested:
        train, validation = _parted(train, validation_images)
    return Splits(
        Rainbow(train, hazard),
        Rainbow(validation, hazard),
        Rainbow(test, hazard),
        x_dim=int(np.prod(SHAPE)),
        y_dim=1,
        classes=CLASSES,
    )


def _parted(tasks: Sequence[Task], last: int) -> tuple[list[Task], list[Task]]:
    """Each task without its last images, and those."""
    fewest = min(len(task.y) for task in tasks)
    if not 0 < last < fewest:
        raise BadData(f"cannot hold {last} images of each task out: one has {fewest}")
    return [task.part(None, -last) for task in tasks], [task.part(-last, None) for task in tasks]


def _tasks(folder: Path, split: str) -> list[Task]:
    file = folder / f"rainbow_mnist_{split}.npz"
    content = arrays(file, ["gray", "y", "rgb"])
    if content["gray"].shape[2:] != SHAPE[1:] or content["gray"].dtype != np.uint8:
        raise BadData(
            f"{file}: expected 'gray' of (tasks, images, 28, 28) uint8, "
            f"got {content['gray'].shape} {content['gray'].dtype}"
        )
    if content["y"].max() >= CLASSES:
        raise BadData(f"{file}: expected digits in 'y', got {content['y'].max()}")
    return [Task(*row) for row in zip(content["gray"], content["y"], content["rgb"], strict=True)]
