"""Images: decoding into a cache, and the random changes of training."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.errors import BadData

JITTER = 0.4
CHUNK = 32  # images changed at once: as many as stay in a processor's cache
GRAY = (0.299, 0.587, 0.114)  # ITU-R 601 luma


def cached(
    file: Path, jpeg: NDArray[np.uint8], offset: NDArray[np.int64], size: int, cache: Path
) -> NDArray[np.uint8]:
    """Images (n, 3, size, size) uint8 of JPEG bytes, mapped from a file in the folder `cache`.

    Image i is `jpeg[offset[i]:offset[i + 1]]`. The cache file is named by size and digest of
    `file`, where the bytes are from, and appears only when it is complete.
    """
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    target = cache / f"{file.stem}-{size}-{digest[:32]}.npy"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        images = (
            decoded(jpeg[start:stop].tobytes(), size, f"{file}, image {place}")
            for place, (start, stop) in enumerate(zip(offset[:-1], offset[1:], strict=True))
        )
        _write(target, images, (len(offset) - 1, 3, size, size))
    found: NDArray[np.uint8] = np.load(target, mmap_mode="r")
    return found


def decoded(image: bytes, size: int, name: str) -> NDArray[np.uint8]:
    """Return one image (3, size, size) uint8, averaged if it was larger; BadData if broken."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(image)) as opened:
            rgb = opened.convert("RGB")
    except (UnidentifiedImageError, OSError) as error:
        raise BadData(f"{name}: not a readable image: {error}") from error
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
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    return (red * GRAY[0]).add_(green, alpha=GRAY[1]).add_(blue, alpha=GRAY[2])


def _jitter(images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> None:
    images.mul_(brightness).clamp_(0, 1)
    mean = luma(images).mean((-1, -2), keepdim=True)
    images.mul_(contrast).add_(mean * (1 - contrast)).clamp_(0, 1)
    gray = luma(images).mul_(1 - saturation)
    images.mul_(saturation).add_(gray).clamp_(0, 1)


def _write(
    target: Path, images: Iterable[NDArray[np.uint8]], shape: tuple[int, int, int, int]
) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}-")
    os.close(handle)
    try:
        filled: Any = np.lib.format.open_memmap(name, mode="w+", dtype=np.uint8, shape=shape)
        for place, image in enumerate(images):
            filled[place] = image
        filled.flush()
        del filled
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)
