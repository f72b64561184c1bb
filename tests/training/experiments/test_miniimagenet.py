"""miniImageNet: images in folders become files by class, and those streams of super-classes."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training.tiny import seeded
from training.data.files import Place
from training.errors import BadData
from training.experiments import miniimagenet

NAMES = {"train": "train", "val": "val", "test": "test_public"}
SIZE = 4  # of miniImageNet's images here


def jpeg(level, size=84, mode="RGB"):
    written = io.BytesIO()
    Image.new(mode, (size, size), level if mode == "L" else (level,) * 3).save(written, "JPEG")
    return written.getvalue()


@pytest.fixture
def published(tmp_path):
    """Two classes of each super-class and split, an image of each; some not 84 x 84 in RGB."""
    folder = tmp_path / "published"
    (folder / "images").mkdir(parents=True)
    by_split = {name: {} for name in NAMES}
    for one_class in miniimagenet.classes().values():
        by_split[one_class.split].setdefault(one_class.superclass, []).append(one_class)
    for split, groups in by_split.items():
        lines = ["filename,label"]
        for one_class in [one for group in groups.values() for one in group[:2]]:
            size, mode = ((84, "RGB"), (100, "RGB"), (84, "L"))[one_class.label % 3]
            content = jpeg(2 * one_class.label, size, mode)
            (folder / "images" / f"{one_class.wnid}_1.jpg").write_bytes(content)
            lines.append(f"{one_class.wnid}_1.jpg,{one_class.wnid}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_images_in_folders_become_what_the_source_reads(published, tmp_path):
    table = list(miniimagenet.classes().values())
    assert [entry.label for entry in table] == list(range(100))
    assert miniimagenet.classes()["n02110341"][2:] == (1, "test")
    out = tmp_path / "out"
    written = miniimagenet.prepare(published, out)
    assert [file.name for file in written] == [f"miniimagenet_{n}.npz" for n in NAMES.values()]
    splits = source(out, size=42)
    for part, split in ((splits.validation, "val"), (splits.test, "test")):
        batch = part(seeded(), 20, 20)
        label = (batch.x.mean(2) * 255 / 2).round().long()
        kept = [table[one] for one in label.flatten().tolist()]
        assert {one.split for one in kept} == {split}
        assert [one.superclass for one in kept] == batch.y.long().flatten().tolist()
    with np.load(out / "miniimagenet_val.npz") as arrays:
        kept = dict(arrays)
    assert (np.diff(kept["label"]) > 0).all()
    for row, label in enumerate(kept["label"]):
        content = kept["jpeg"][kept["offset"][row] : kept["offset"][row + 1]].tobytes()
        with Image.open(io.BytesIO(content)) as image:
            assert (image.size, image.mode) == ((84, 84), "RGB")
        if label % 3 == 0:  # of the right size and mode: its bytes stay
            file = published / "images" / f"{table[label].wnid}_1.jpg"
            assert content == file.read_bytes()


def write_images(folder, split, label, superclass, levels):
    parts = [np.frombuffer(jpeg(level, 8), np.uint8) for level in levels]
    offset = np.cumsum([0] + [len(part) for part in parts])
    kept = {"label": np.array(label, np.int16), "superclass": np.array(superclass, np.int8)}
    file = folder / f"miniimagenet_{split}.npz"
    np.savez(file, jpeg=np.concatenate(parts), offset=offset, **kept)


def write_folder(folder):
    """Ten classes in each file, two of each super-class, two images of each class, shuffled."""
    order = np.random.default_rng(0).permutation(20)
    label = order // 2
    for place, split in enumerate(miniimagenet.OUTPUTS.values()):
        write_images(folder, split, label + 10 * place, label % 5, 60 * place + 2 * order)


def levels(batch):
    return (batch.x[..., 0] * 255).round().long()


def test_a_regime_of_images_is_one_class_of_each_superclass(tmp_path):
    write_folder(tmp_path)
    splits = source(tmp_path, 0.05)
    batch = splits.validation(seeded(), 200, 101)
    level = levels(batch) - 60
    label = level // 2 // 2
    assert torch.equal(label % 5, batch.y[..., 0].long())
    regime = batch.switch.cumsum(1) + 1000 * torch.arange(200)[:, None]
    seen = torch.stack([regime.flatten(), (label % 5).flatten(), label.flatten()]).unique(dim=1)
    assert seen[:2].unique(dim=1).shape == seen[:2].shape
    share = torch.bincount(level.flatten() // 2, minlength=20).double() / level.numel()
    assert share.tolist() == pytest.approx([0.05] * 20, abs=0.01)
    # Files stay apart, and only images for training are changed.
    test, train = (levels(source(seeded(), 50, 20)) for source in (splits.test, splits.train))
    assert set(test.unique().tolist()) == set(range(120, 160, 2))
    assert len(train.unique()) > 30
    assert train.max() <= 38 * 1.4 + 1


def test_files_that_cannot_be_used_are_named(tmp_path):
    write_folder(tmp_path)
    source(tmp_path)
    for label, superclass, message in (
        ([0, 0, 1, 2, 3], [0, 1, 1, 2, 3], "more than one super-class"),
        ([0, 1, 2, 3], [0, 1, 2, 3], r"got \[1, 1, 1, 1, 0\]"),
        ([0, 1, 2], [0, 1, 2, 3], "4 images, 3 labels and 4 super-classes"),
    ):
        write_images(tmp_path, "val", label, superclass, [9] * len(superclass))
        with pytest.raises(BadData, match=message):
            source(tmp_path)
    file = tmp_path / "miniimagenet_train.npz"
    with np.load(file) as content:
        kept = dict(content)
    kept["jpeg"][kept["offset"][3] : kept["offset"][4]] = 0
    np.savez(file, **kept)
    before = set((tmp_path / "cache").iterdir())
    with pytest.raises(BadData, match="miniimagenet_train.npz, image 3"):
        source(tmp_path)
    assert set((tmp_path / "cache").iterdir()) == before, "half of a file is left"


def source(folder, hazard=0.2, size=SIZE):
    return miniimagenet.splits(Place(folder, folder / "cache"), hazard, size)
