"""miniImageNet in five super-classes: which class stands for each of them switches.

A regime is one class of each super-class. Each of its observations is of a super-class drawn
uniformly, a random image of the regime's class of it; the label is the super-class (appendix C).

Files `miniimagenet_{train,val,test_public}.npz`: `jpeg` (bytes,) and `offset` (n + 1,), image i
is `jpeg[offset[i]:offset[i + 1]]`; `label` (n,), the class; `superclass` (n,) 0 to 4.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.data.base import Batch, Splits
from training.data.files import arrays
from training.data.images import augmented, cached
from training.data.regimes import below, checked_hazard, held, switches
from training.errors import BadData

SUPERCLASSES = 5
FILES = ("train", "val", "test_public")


class MiniImageNet:
    """Generated windows: x (B, T, 3 * size * size) float32 in [0, 1], y (B, T, 1), switch (B, T).

    An image is channels first, row-major. With `augment`, images are mirrored and jittered.
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        label: NDArray[Any],
        superclass: NDArray[Any],
        hazard: float,
        augment: bool,
    ) -> None:
        """Hold images (n, 3, size, size) of classes `label` (n,) in `superclass` (n,)."""
        self.hazard = checked_hazard(hazard)
        self.augment = augment
        self._images = images
        self._order = torch.from_numpy(np.argsort(label, kind="stable"))
        classes, first, count = np.unique(label, return_index=True, return_counts=True)
        self._count = torch.from_numpy(count)
        self._first = torch.cumsum(self._count, 0) - self._count
        # Classes of each super-class one after the other: where they begin and how many they are.
        parent = torch.from_numpy(superclass[first].astype(np.int64))
        self._members = torch.argsort(parent, stable=True)
        self._classes = torch.bincount(parent, minlength=SUPERCLASSES)
        if len(self._classes) > SUPERCLASSES or not self._classes.all():
            raise BadData(
                f"expected classes of super-classes 0 to {SUPERCLASSES - 1}, "
                f"got {self._classes.tolist()} classes of them"
            )
        self._begin = torch.cumsum(self._classes, 0) - self._classes

    def draw(self, generator: torch.Generator, count: int, length: int) -> Batch:
        """`count` independent streams of `length`, each from the start of a regime."""
        switch = switches(generator, count, length, self.hazard)
        offered = self._begin + below(generator, self._classes.expand(count, length, -1))
        regime = held(self._members[offered], switch)
        y = torch.randint(SUPERCLASSES, (count, length, 1), generator=generator)
        chosen = regime.gather(2, y)[..., 0]
        image = self._order[self._first[chosen] + below(generator, self._count[chosen])]
        x = torch.from_numpy(self._images[image.flatten().numpy()]).float().div_(255)
        if self.augment:
            x = augmented(x, generator)
        return Batch(x.reshape(count, length, -1), y.float(), switch)


def splits(folder: Path, hazard: float, size: int, cache: Path) -> Splits:
    """Sources of the three files, which share no class; only training images are changed.

    Images are decoded once to `size` x `size` (42 or 84 pixels fit the published ones) and kept
    in the folder `cache`. BadData if a file cannot be read.
    """
    if size < 1:
        raise ValueError(f"expected a size of at least one pixel, got {size}")
    train, validation, test = (_source(folder, name, hazard, size, cache) for name in FILES)
    return Splits(train, validation, test, x_dim=3 * size**2, y_dim=1, classes=SUPERCLASSES)


def _source(folder: Path, name: str, hazard: float, size: int, cache: Path) -> MiniImageNet:
    file = folder / f"miniimagenet_{name}.npz"
    found = arrays(file, ["jpeg", "offset", "label", "superclass"])
    offset, label, superclass = found["offset"], found["label"], found["superclass"]
    if not len(offset) - 1 == len(label) == len(superclass) or len(label) == 0:
        raise BadData(
            f"{file}: expected one label and super-class of each image, got {len(offset) - 1} "
            f"images, {len(label)} labels and {len(superclass)} super-classes"
        )
    pairs = np.unique(np.stack([label, superclass]), axis=1)
    if len(np.unique(pairs[0])) != pairs.shape[1]:
        raise BadData(f"{file}: a class is in more than one super-class")
    images = cached(file, found["jpeg"], offset, size, cache)
    return MiniImageNet(images, label, superclass, hazard, augment=name == "train")
