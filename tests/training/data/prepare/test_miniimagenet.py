"""miniImageNet in folders: to the prepared files, as the source reads them."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from training.data import miniimagenet as source
from training.data.prepare import miniimagenet
from training.errors import BadData

NAMES = {"train": "train", "val": "val", "test": "test_public"}


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
    for each in miniimagenet.classes().values():
        by_split[each.split].setdefault(each.superclass, []).append(each)
    for split, groups in by_split.items():
        lines = ["filename,label"]
        for each in [one for group in groups.values() for one in group[:2]]:
            content = jpeg(
                2 * each.label, (84, 100, 84)[each.label % 3], "L" if each.label % 3 == 2 else "RGB"
            )
            (folder / "images" / f"{each.wnid}_1.jpg").write_bytes(content)
            lines.append(f"{each.wnid}_1.jpg,{each.wnid}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_the_table_is_the_papers():
    table = miniimagenet.classes()
    assert [each.label for each in table.values()] == list(range(100))
    splits = [each.split for each in table.values()]
    assert [splits.count(name) for name in NAMES] == [64, 16, 20]
    assert table["n02110341"][2:] == (1, "Dogs, foxes, wolves", "test")  # Dalmatian
    assert {each.superclass for each in table.values()} == {0, 1, 2, 3, 4}


def test_the_source_reads_what_is_written(published, tmp_path):
    out = tmp_path / "out"
    written = miniimagenet.prepare(published, out)
    assert [file.name for file in written[:3]] == [f"miniimagenet_{n}.npz" for n in NAMES.values()]
    splits = source.splits(out, 0.5, 42, tmp_path / "cache")
    table = list(miniimagenet.classes().values())
    for each, split in ((splits.validation, "val"), (splits.test, "test")):
        batch = each.draw(torch.Generator().manual_seed(0), 20, 20)
        label = (batch.x.mean(2) * 255 / 2).round().long()
        kept = [table[one] for one in label.flatten().tolist()]
        assert {one.split for one in kept} == {split}
        assert [one.superclass for one in kept] == batch.y.long().flatten().tolist()
    assert splits.train.draw(torch.Generator(), 2, 3).x.shape == (2, 3, 5292)


def test_images_of_the_right_size_stay_the_bytes_they_are(published, tmp_path):
    miniimagenet.prepare(published, tmp_path)
    with np.load(tmp_path / "miniimagenet_val.npz") as found:
        kept = dict(found)
    table = list(miniimagenet.classes().values())
    assert (np.diff(kept["label"]) > 0).all()
    same = []
    for row, label in enumerate(kept["label"]):
        content = kept["jpeg"][kept["offset"][row] : kept["offset"][row + 1]].tobytes()
        with Image.open(io.BytesIO(content)) as image:
            assert (image.size, image.mode) == ((84, 84), "RGB")
        if label % 3 == 0:
            same.append(
                content == (published / "images" / f"{table[label].wnid}_1.jpg").read_bytes()
            )
    assert same
    assert all(same)


def test_images_are_counted_within_their_class():
    label = np.array([0, 0, 0, 4, 9, 9], np.int16)
    assert miniimagenet._within(label).tolist() == [0, 1, 2, 0, 0, 1]


def test_what_cannot_be_used_is_named(published, tmp_path):
    wanted = published / "val.csv"
    text = wanted.read_text()
    name = text.splitlines()[1].split(",")[0]
    (published / "images" / name).write_bytes(b"nothing")
    with pytest.raises(BadData, match=rf"val.csv, line 2: .*{name} is not a readable image"):
        miniimagenet.prepare(published, tmp_path)
    (published / "images" / name).unlink()
    with pytest.raises(BadData, match=rf"val.csv, line 2: .*{name}"):
        miniimagenet.prepare(published, tmp_path)
    wanted.write_text(text + "a.jpg,n00000000\n")
    with pytest.raises(BadData, match=r"val.csv, line \d+: label 'n00000000' is not a synset"):
        miniimagenet.prepare(published, tmp_path)
    wanted.write_text("file,label\n")
    with pytest.raises(BadData, match=r"val.csv: expected columns filename and label"):
        miniimagenet.prepare(published, tmp_path)
    wanted.write_text("filename,label\n")
    with pytest.raises(BadData, match="no image of the split 'val'"):
        miniimagenet.prepare(published, tmp_path)
    wanted.unlink()
    with pytest.raises(BadData, match=r"val.csv cannot be read"):
        miniimagenet.prepare(published, tmp_path)


def test_the_files_are_as_the_prepared_ones(data, published, tmp_path):
    miniimagenet.prepare(published, tmp_path)
    for name in ("val", "test_public"):
        file = f"miniimagenet_{name}.npz"
        with np.load(data / file) as old, np.load(tmp_path / file) as new:
            assert set(new.files) == set(old.files)
            for key in new.files:
                assert (new[key].dtype, new[key].ndim) == (old[key].dtype, old[key].ndim), key
            pairs = {
                tuple(pair) for pair in np.stack([old["label"], old["superclass"]], 1).tolist()
            }
            made = np.stack([new["label"], new["superclass"]], 1).tolist()
            assert {tuple(pair) for pair in made} <= pairs
    listed = json.loads((tmp_path / "miniimagenet_classes.json").read_text())
    assert listed == json.loads((data / "miniimagenet_classes.json").read_text())
