"""MNIST in IDX files: to Rainbow MNIST, as the source reads it and as it was prepared before."""

import gzip
import json

import numpy as np
import pytest
import torch

from training.data import rainbow
from training.data.prepare import mnist
from training.errors import BadData


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return head + array.astype(np.uint8).tobytes()


def write(folder, x, y, mark="-", packed=False):
    for name, part in (("train", slice(None)), ("t10k", slice(0, 5))):
        for kind, array in (("images", x[part]), ("labels", y[part])):
            file = f"{name}-{kind}{mark}idx{array.ndim}-ubyte"
            content = idx(array)
            if packed:
                file, content = f"{file}.gz", gzip.compress(content)
            (folder / file).write_bytes(content)
    return folder


@pytest.fixture
def digits():
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (180, 28, 28), dtype=np.uint8)
    return x, generator.integers(0, 10, 180, dtype=np.uint8)


@pytest.mark.parametrize(("mark", "packed"), [("-", False), (".", False), ("-", True)])
def test_the_source_reads_what_is_written(tmp_path, digits, mark, packed):
    x, y = digits
    out = tmp_path / "out"
    written = mnist.prepare(write(tmp_path, x, y, mark, packed), out, images=3)
    assert len(written) == 5
    with np.load(out / "mnist.npz") as found:
        np.testing.assert_array_equal(found["x_train"], x)
        np.testing.assert_array_equal(found["y_test_public"], y[:5])
    used = []
    for split, count in (("train", 42), ("val", 7), ("test", 7)):
        with np.load(out / f"rainbow_mnist_{split}.npz") as found:
            assert found["gray"].shape == (count, 3, 28, 28)
            np.testing.assert_array_equal(found["y"], y[found["mnist_index"]])
            used += found["mnist_index"].flatten().tolist()
    assert len(set(used)) == 168
    splits = rainbow.splits(out, 0.5)
    for source in splits[:3]:
        assert source.draw(torch.Generator(), 2, 9).x.shape == (2, 9, 2352)


def test_the_seed_decides_which_images(tmp_path, digits):
    write(tmp_path, *digits)

    def index(seed):
        mnist.prepare(tmp_path, tmp_path / "out", 3, seed)
        with np.load(tmp_path / "out" / "rainbow_mnist_val.npz") as found:
            return found["mnist_index"]

    first = index(1)
    np.testing.assert_array_equal(first, index(1))
    assert (first != index(2)).any()


def test_digits_are_halved_in_the_middle_and_turned_counter_clockwise():
    digit = np.zeros((1, 28, 28), np.uint8)
    digit[0, 0, 26:] = 200  # upper right corner
    half = mnist.Task(0, "red", (255, 0, 0), 0.5, 0, "train")
    image = mnist.transformed(digit, half)[0]
    assert (image[7, 20], image.sum()) == (100, 100)
    turned = mnist.transformed(digit, half._replace(rotation=90))[0]
    assert (turned[7, 7], turned.sum()) == (100, 100)
    whole = mnist.transformed(digit, half._replace(scale=1.0, rotation=180))[0]
    assert (whole[27, :2] == 200).all()
    assert whole.sum() == 400


def test_the_tasks_are_seven_colours_two_scales_four_turns():
    table = mnist.tasks()
    assert len({(task.rgb, task.scale, task.rotation) for task in table}) == 56
    splits = [task.split for task in table]
    assert [splits.count(name) for name in ("train", "val", "test")] == [42, 7, 7]


def test_what_cannot_be_read_is_named(tmp_path, digits):
    x, y = digits
    with pytest.raises(BadData, match="holds none of train-images-idx3-ubyte, .*ubyte.gz"):
        mnist.prepare(tmp_path, tmp_path)
    write(tmp_path, x, y)
    with pytest.raises(BadData, match="expected 1 to 3 images a task, got 4"):
        mnist.prepare(tmp_path, tmp_path, images=4)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(y[1:]))
    with pytest.raises(
        BadData, match=r"train-labels-idx1-ubyte: expected 180 digits, got \(179,\)"
    ):
        mnist.prepare(tmp_path, tmp_path, images=3)
    labels.write_bytes(idx(y)[:-1])
    with pytest.raises(BadData, match=r"labels.*: expected \(180,\) bytes .* got 179"):
        mnist.prepare(tmp_path, tmp_path, images=3)
    labels.write_bytes(b"label")
    with pytest.raises(BadData, match="labels.* is not an IDX file"):
        mnist.prepare(tmp_path, tmp_path, images=3)
    labels.write_bytes(gzip.compress(idx(y))[:-9])
    with pytest.raises(BadData, match="labels.* cannot be read"):
        mnist.prepare(tmp_path, tmp_path, images=3)
    write(tmp_path, x[:, :14], y)
    with pytest.raises(BadData, match=r"expected images of 28 x 28, got \(180, 14, 28\)"):
        mnist.prepare(tmp_path, tmp_path, images=3)


def test_transformations_are_those_of_the_prepared_files(data):
    with np.load(data / "mnist.npz") as found:
        x, y = found["x_train"], found["y_train"]
    table = mnist.tasks()
    for split in ("train", "val"):
        with np.load(data / f"rainbow_mnist_{split}.npz") as found:
            kept = dict(found)
        assert [task.task for task in table if task.split == split] == kept["task"].tolist()
        assert [list(table[task].rgb) for task in kept["task"]] == kept["rgb"].tolist()
        for row in range(0, len(kept["task"]), 3):
            index = kept["mnist_index"][row]
            made = mnist.transformed(x[index], table[kept["task"][row]])
            np.testing.assert_array_equal(made, kept["gray"][row])
            np.testing.assert_array_equal(y[index], kept["y"][row])


def test_the_files_are_as_the_prepared_ones(data, tmp_path):
    with np.load(data / "mnist.npz") as found:
        write(tmp_path, found["x_train"][:1000], found["y_train"][:1000])
    mnist.prepare(tmp_path, tmp_path / "out", images=10)
    for name in ("mnist", "rainbow_mnist_train", "rainbow_mnist_val"):
        with np.load(data / f"{name}.npz") as old, np.load(tmp_path / "out" / f"{name}.npz") as new:
            assert set(new.files) == set(old.files)
            for key in new.files:
                assert (new[key].dtype, new[key].ndim) == (old[key].dtype, old[key].ndim), key
    listed = json.loads((tmp_path / "out" / "rainbow_mnist_tasks.json").read_text())
    assert listed == json.loads((data / "rainbow_mnist_tasks.json").read_text())
