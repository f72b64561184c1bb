"""miniImageNet as published: a folder `images` and lists `train.csv`, `val.csv`, `test.csv`.

A list has the columns `filename` and `label`, the synset of the image. Which split and which
super-class a synset is of comes from the table of the paper (appendix C), not from the lists.
"""

from __future__ import annotations

import csv
import io
import json
from importlib.resources import files as package_files
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from training.data.files import save
from training.errors import BadData

LISTS = ("train.csv", "val.csv", "test.csv")
SIZE = 84
QUALITY = 95
OUTPUTS = {"train": "train", "val": "val", "test": "test_public"}
SPLITS = {"train": "train", "val": "validation", "test": "test"}


class Class(NamedTuple):
    """One of the 100 classes; `label` is its position by synset, `superclass` counts from 0."""

    label: int
    wnid: str
    superclass: int
    superclass_name: str
    split: str


class Item(NamedTuple):
    """One image of a list, and its place in the list."""

    file: Path
    wnid: str
    where: str


def classes() -> dict[str, Class]:
    """Return the paper's table by synset, in their order."""
    text = package_files("training.data").joinpath("superclasses.json").read_text()
    rows = sorted(
        (wnid, superclass, entry["name"], split)
        for superclass, entry in enumerate(json.loads(text))
        for split in OUTPUTS
        for wnid in entry[split]
    )
    return {row[0]: Class(label, *row) for label, row in enumerate(rows)}


def prepare(source: Path, out: Path) -> list[Path]:
    """Write `miniimagenet_{train,val,test_public}.npz` and the table of classes.

    JPEG images of 84 x 84 in RGB are copied; others are scaled to that size. BadData names
    list and line of an image that is missing, damaged or of an unknown synset.
    """
    table = classes()
    items = [item for name in LISTS for item in _items(source, name, table)]
    items.sort(key=lambda item: (item.wnid, item.file.name))
    written = []
    for split, name in OUTPUTS.items():
        chosen = [item for item in items if table[item.wnid].split == split]
        if not chosen:
            raise BadData(f"{source}: the lists name no image of the split {split!r}")
        parts = [_jpeg(item) for item in track(chosen, f"Reading images: {split}")]
        label = np.array([table[item.wnid].label for item in chosen], np.int16)
        written.append(
            save(
                out / f"miniimagenet_{name}.npz",
                jpeg=np.frombuffer(b"".join(parts), np.uint8),
                offset=np.cumsum([0] + [len(part) for part in parts], dtype=np.int64),
                label=label,
                superclass=np.array([table[item.wnid].superclass for item in chosen], np.int8),
                image_id=_within(label),
            )
        )
    listed = out / "miniimagenet_classes.json"
    # The file counts super-classes from 1, as the paper does.
    rows = [
        one._replace(superclass=one.superclass + 1, split=SPLITS[one.split])._asdict()
        for one in table.values()
    ]
    listed.write_text(json.dumps(rows, indent=0) + "\n")
    return [*written, listed]


def _items(source: Path, name: str, table: dict[str, Class]) -> list[Item]:
    file = source / name
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened)
            if not {"filename", "label"} <= set(reader.fieldnames or ()):
                raise BadData(
                    f"{file}: expected columns filename and label, got {reader.fieldnames}"
                )
            items = [
                Item(
                    source / "images" / str(row["filename"]),
                    str(row["label"]),
                    f"{file}, line {reader.line_num}",
                )
                for row in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadData(f"{file} cannot be read: {error}") from error
    for item in items:
        if item.wnid not in table:
            raise BadData(f"{item.where}: label {item.wnid!r} is not a synset of miniImageNet")
    return items


def _jpeg(item: Item) -> bytes:
    from PIL import Image, UnidentifiedImageError

    try:
        content = item.file.read_bytes()
        with Image.open(io.BytesIO(content)) as opened:
            fits = (opened.format, opened.mode, opened.size) == ("JPEG", "RGB", (SIZE, SIZE))
            image = opened.convert("RGB")
    except (UnidentifiedImageError, OSError) as error:
        raise BadData(f"{item.where}: {item.file} is not a readable image: {error}") from error
    if fits:
        return content
    written = io.BytesIO()
    scaled = image.resize((SIZE, SIZE), Image.Resampling.BOX)
    scaled.save(written, "JPEG", quality=QUALITY)
    return written.getvalue()


def _within(label: NDArray[np.int16]) -> NDArray[np.int32]:
    """Index of each image within its class; equal labels are neighbours."""
    return (np.arange(len(label)) - np.searchsorted(label, label)).astype(np.int32)
