"""Rainbow MNIST: digits as published become tasks, and those streams of coloured images."""

import gzip

import numpy as np
import pytest
import torch

from tests.training.tiny import seeded
from training.data.files import Place
from training.errors import BadData
from training.experiments import rainbow

COLOURS = np.array([[255, 0, 0], [0, 128, 0], [75, 0, 130]], np.uint8)


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return head + array.astype(np.uint8).tobytes()


def write_mnist(folder, x, y, mark="-", packed=False):
    for kind, array in (("images", x), ("labels", y)):
        file = f"train-{kind}{mark}idx{array.ndim}-ubyte"
        content = idx(array)
        if packed:
            file = f"{file}.gz"
            content = gzip.compress(content)
        (folder / file).write_bytes(content)
    return folder


def digits():
    """180 random images and their digits."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (180, 28, 28), dtype=np.uint8)
    return x, generator.integers(0, 10, 180, dtype=np.uint8)


def test_mnist_becomes_tasks_that_the_source_reads(tmp_path):
    x, y = digits()
    for k, (mark, packed) in enumerate([("-", False), (".", False), ("-", True)]):
        folder, out = tmp_path / str(k), tmp_path / str(k) / "out"
        folder.mkdir()
        written = rainbow.prepare(write_mnist(folder, x, y, mark, packed), out, images=3)
        assert len(written) == 3
    used = []
    for split, count in (("train", 42), ("val", 7), ("test", 7)):
        with np.load(out / f"rainbow_mnist_{split}.npz") as content:
            assert content["gray"].shape == (count, 3, 28, 28)
            np.testing.assert_array_equal(content["y"], y[content["mnist_index"]])
            used += content["mnist_index"].flatten().tolist()
    assert len(set(used)) == 168  # no image twice
    for source in splits(out)[:3]:
        assert source(torch.Generator(), 2, 9).x.shape == (2, 9, 2352)
    written = []
    for seed in (1, 1, 2):
        rainbow.prepare(folder, out, 3, seed)
        with np.load(out / "rainbow_mnist_val.npz") as content:
            written.append(content["mnist_index"].tolist())
    assert written[0] == written[1] != written[2]
    assert len(set(rainbow.TASKS)) == 56


def test_digits_are_halved_in_the_middle_and_turned_counter_clockwise():
    digit = np.zeros((1, 28, 28), np.uint8)
    digit[0, 0, 26:] = 200  # upper right corner
    image = rainbow.transformed(digit, 0.5, 0)[0]
    assert (image[7, 20], image.sum()) == (100, 100)
    turned = rainbow.transformed(digit, 0.5, 90)[0]
    assert (turned[7, 7], turned.sum()) == (100, 100)
    whole = rainbow.transformed(digit, 1.0, 180)[0]
    assert (whole[27, :2] == 200).all()
    assert whole.sum() == 400


def tasks(count, images=4):
    """Tasks of one colour each; the first pixel of an image is white, the second its number."""
    gray = np.zeros((count, images, 28, 28), np.uint8)
    gray[..., 0, 0] = 255
    gray[..., 0, 1] = 10 * np.arange(count)[:, None] + np.arange(images)
    y = np.tile(np.arange(images, dtype=np.uint8), (count, 1))
    return rainbow.Digits(gray, y, np.array([COLOURS[task % 3] for task in range(count)]))


def write_rainbow(folder, split, digits):
    np.savez(folder / f"rainbow_mnist_{split}.npz", **digits._asdict())


def some(digits, first, last):
    return rainbow.Digits(*(part[first:last] for part in digits))


def write_black(folder):
    """Black tasks: four for training, two others."""
    black = tasks(9)._replace(rgb=np.zeros((9, 3), np.uint8))
    write_rainbow(folder, "train", some(black, 0, 4))
    write_rainbow(folder, "val", some(black, 4, 6))
    return black


def numbers(source):
    """Numbers of the images that a source draws, of tasks that are black."""
    x = source(seeded(), 60, 40).x.view(60, 40, 3, 28, 28)
    return set((x[..., 0, 0, 1] * 255).round().long().flatten().tolist())


def test_an_image_is_a_white_digit_on_its_colour():
    gray = torch.tensor([[[0, 255, 51]]], dtype=torch.uint8)
    image = rainbow.coloured(gray, torch.tensor([[255, 165, 7]], dtype=torch.uint8))
    wanted = [[255, 255, 255], [165, 255, 183], [7, 255, 57]]  # 165 * 0.8 + 51; 7 * 0.8 + 51
    assert (image[0, :, 0] * 255).round().long().tolist() == wanted
    assert image.dtype == torch.float32
    assert image.shape == (1, 3, 1, 3)


def test_a_regime_of_digits_is_one_task_and_every_image_is_as_likely():
    batch = rainbow.source(tasks(3), 0.2)(seeded(), 150, 60)
    colour = (batch.x.view(150, 60, 3, 28, 28)[..., -1, -1] * 255).round().long()
    changed = (colour.diff(dim=1) != 0).any(-1)
    later = batch.switch[:, 1:]
    assert not changed[~later].any()
    assert changed[later].double().mean() == pytest.approx(2 / 3, abs=0.04)
    batch = rainbow.source(tasks(2, images=5), 1.0)(seeded(), 50, 200)
    share = torch.bincount(batch.y.long().flatten()).double() / 10_000
    assert share.tolist() == pytest.approx([0.2] * 5, abs=0.02)


def test_digits_of_each_split(tmp_path):
    black = write_black(tmp_path)
    sources = splits(tmp_path, validation_images=1)  # no tasks for the test alone
    assert numbers(sources.train) == {n for n in range(40) if n % 10 < 3}
    assert numbers(sources.validation) == {3, 13, 23, 33}
    assert numbers(sources.test) == {40, 41, 42, 43, 50, 51, 52, 53}
    write_rainbow(tmp_path, "test", some(black, 6, 8))
    sources = splits(tmp_path)  # as in the paper
    shares = [{n // 10 for n in numbers(source)} for source in sources[:3]]
    assert shares == [{0, 1, 2, 3}, {4, 5}, {6, 7}]


def test_files_that_cannot_be_used_are_named(tmp_path):
    write_black(tmp_path)
    for images, message in (
        (tasks(1)._replace(y=tasks(1).y + 9), "expected digits"),
        (tasks(1)._replace(gray=tasks(1).gray[:, :, :14]), r"\(1, 4, 14, 28\)"),
        (tasks(0), "at least one image"),
    ):
        write_rainbow(tmp_path, "val", images)
        with pytest.raises(BadData, match=message):
            splits(tmp_path)
    (tmp_path / "rainbow_mnist_train.npz").write_bytes(b"nothing")
    with pytest.raises(BadData, match="rainbow_mnist_train.npz"):
        splits(tmp_path)


def splits(folder, **options):
    return rainbow.splits(Place(folder, folder), 0.5, **options)
