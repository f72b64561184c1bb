"""miniImageNet: decoding, regimes of classes, random changes."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from training.data import miniimagenet
from training.data.miniimagenet import luma
from training.errors import BadData

SIZE = 4


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def jpeg(level, size=8):
    """One gray image of a level that JPEG keeps."""
    written = io.BytesIO()
    Image.new("RGB", (size, size), (level, level, level)).save(written, "JPEG", quality=95)
    return written.getvalue()


def write(folder, split, label, superclass, levels):
    parts = [np.frombuffer(jpeg(level), np.uint8) for level in levels]
    np.savez(
        folder / f"miniimagenet_{split}.npz",
        jpeg=np.concatenate(parts),
        offset=np.cumsum([0] + [len(part) for part in parts]),
        label=np.array(label, np.int16),
        superclass=np.array(superclass, np.int8),
    )


@pytest.fixture
def folder(tmp_path):
    """Ten classes in each file, two of each super-class, two images of each class, shuffled."""
    order = np.random.default_rng(0).permutation(20)
    label = order // 2
    for place, split in enumerate(miniimagenet.FILES):
        levels = (60 * place + 2 * order).tolist()
        write(tmp_path, split, label + 10 * place, label % 5, levels)
    return tmp_path


def levels(batch):
    return (batch.x[..., 0] * 255).round().long()


def test_a_regime_is_one_class_of_each_superclass(folder):
    source = miniimagenet.splits(folder, 0.05, SIZE, folder / "cache").validation
    batch = source.draw(seeded(), 200, 101)
    assert batch.x.shape == (200, 101, 3 * SIZE * SIZE)
    level = levels(batch) - 60
    label = level // 2 // 2
    assert torch.equal(label % 5, batch.y[..., 0].long())
    regime = batch.switch.cumsum(1) + 1000 * torch.arange(200)[:, None]
    seen = torch.stack([regime.flatten(), (label % 5).flatten(), label.flatten()]).unique(dim=1)
    assert seen[:2].unique(dim=1).shape == seen[:2].shape
    share = torch.bincount(level.flatten() // 2, minlength=20).double() / level.numel()
    assert share.tolist() == pytest.approx([0.05] * 20, abs=0.01)
    assert batch.switch[:, 1:].double().mean() == pytest.approx(0.05, abs=0.008)


def test_files_stay_apart_and_only_training_images_change(folder):
    splits = miniimagenet.splits(folder, 0.5, SIZE, folder / "cache")
    validation, test = (levels(source.draw(seeded(), 50, 20)) for source in splits[1:3])
    assert set(validation.unique().tolist()) == set(range(60, 100, 2))
    assert set(test.unique().tolist()) == set(range(120, 160, 2))
    train = levels(splits.train.draw(seeded(), 50, 20))
    assert len(train.unique()) > 30
    assert train.max() <= 38 * 1.4 + 1
    assert (splits.x_dim, splits.y_dim, splits.classes) == (48, 1, 5)


def test_a_seed_decides_everything(folder):
    source = miniimagenet.splits(folder, 0.1, SIZE, folder / "cache").train
    once, again = (source.draw(seeded(3), 4, 9) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once[:3], again[:3], strict=True))
    assert not torch.equal(once.x, source.draw(seeded(4), 4, 9).x)


def test_the_cache_is_used_again_unless_file_or_size_change(folder, monkeypatch):
    cache = folder / "cache"
    miniimagenet.splits(folder, 0.1, SIZE, cache)
    kept = {file.name for file in cache.iterdir()}
    assert len(kept) == 3
    assert all(f"-{SIZE}-" in name and not name.startswith(".") for name in kept)
    with monkeypatch.context() as patched:
        patched.setattr(miniimagenet, "decoded", None)
        miniimagenet.splits(folder, 0.1, SIZE, cache)
    miniimagenet.splits(folder, 0.1, 8, cache)
    assert len(list(cache.iterdir())) == 6
    write(folder, "val", [0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [9, 9, 9, 9, 9])
    changed = miniimagenet.splits(folder, 0.1, SIZE, cache).validation
    assert levels(changed.draw(seeded(), 2, 5)).unique().tolist() == [9]


def test_a_broken_image_leaves_no_cache(folder):
    file = folder / "miniimagenet_train.npz"
    with np.load(file) as found:
        kept = dict(found)
    kept["jpeg"][kept["offset"][3] : kept["offset"][4]] = 0
    np.savez(file, **kept)
    with pytest.raises(BadData, match=r"miniimagenet_train.npz, image 3: not a readable image"):
        miniimagenet.splits(folder, 0.1, SIZE, folder / "cache")
    assert list((folder / "cache").iterdir()) == []


def test_unusable_files_are_refused(folder):
    write(folder, "val", [0, 0, 1, 2, 3], [0, 1, 1, 2, 3], [9] * 5)
    with pytest.raises(BadData, match="more than one super-class"):
        miniimagenet.splits(folder, 0.1, SIZE, folder / "cache")
    write(folder, "val", [0, 1, 2, 3], [0, 1, 2, 3], [9] * 4)
    with pytest.raises(BadData, match=r"got \[1, 1, 1, 1, 0\]"):
        miniimagenet.splits(folder, 0.1, SIZE, folder / "cache")
    write(folder, "val", [0, 1, 2], [0, 1, 2, 3], [9] * 4)
    with pytest.raises(BadData, match="4 images, 3 labels and 4 super-classes"):
        miniimagenet.splits(folder, 0.1, SIZE, folder / "cache")


def test_images_are_mirrored_half_the_time():
    ramp = torch.linspace(0.4, 0.5, 6).expand(2000, 3, 5, 6).contiguous()
    slope = miniimagenet.augmented(ramp, seeded()).diff(dim=-1)
    mirrored = (slope < 0).flatten(1).all(1)
    assert torch.equal(~mirrored, (slope > 0).flatten(1).all(1))
    assert mirrored.double().mean() == pytest.approx(0.5, abs=0.05)


def test_jitter_is_brightness_then_contrast_then_saturation():
    coloured = torch.rand(500, 3, 6, 7, generator=seeded(1)) * 0.1 + 0.4
    changed = miniimagenet.augmented(coloured, seeded())
    assert changed.shape == coloured.shape
    assert (changed >= 0).all()
    assert (changed <= 1).all()
    # Nothing is clipped here: the mean gray is that of the image times the brightness.
    brightness = luma(changed).mean((1, 2, 3)) / luma(coloured).mean((1, 2, 3))
    assert 0.6 <= brightness.min() < 0.61
    assert 1.39 < brightness.max() <= 1.4
    contrast = luma(changed).std((1, 2, 3)) / luma(coloured).std((1, 2, 3))
    contrast = contrast / brightness
    assert 0.599 < contrast.min() < 0.61
    assert 1.39 < contrast.max() < 1.401
    chroma = (changed - luma(changed)).std((1, 2, 3))
    saturation = chroma / (coloured - luma(coloured)).std((1, 2, 3)) / brightness / contrast
    assert 0.599 < saturation.min() < 0.61
    assert 1.39 < saturation.max() < 1.401


def test_augmentation_leaves_what_it_was_given():
    given = torch.rand(3, 3, 4, 4, generator=seeded())
    before = given.clone()
    miniimagenet.augmented(given, seeded())
    assert torch.equal(given, before)


def test_prepared_images(data, tmp_path):
    file = data / "miniimagenet_test_public.npz"
    with np.load(file) as found:
        part = {"jpeg": found["jpeg"], "offset": found["offset"][:21]}
    decoded = miniimagenet.cached(file, part["jpeg"], part["offset"], 42, tmp_path)
    assert decoded.shape == (20, 3, 42, 42)
    assert decoded.std() > 30
