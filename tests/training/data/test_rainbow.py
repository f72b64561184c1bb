"""Rainbow MNIST: what is drawn, and what the splits share."""

import numpy as np
import pytest
import torch

from training.data import rainbow
from training.errors import BadData

COLOURS = np.array([[255, 0, 0], [0, 128, 0], [75, 0, 130]], np.uint8)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def tasks(count, images=4, first=0):
    """Tasks of one colour each; the first pixel of an image is white, the second its number."""
    made = []
    for task in range(count):
        gray = np.zeros((images, 28, 28), np.uint8)
        gray[:, 0, 0] = 255
        gray[:, 0, 1] = 10 * (first + task) + np.arange(images)
        made.append(rainbow.Task(gray, np.arange(images, dtype=np.uint8), COLOURS[task % 3]))
    return made


def write(folder, split, made):
    kept = {key: np.stack([getattr(task, key) for task in made]) for key in ("gray", "y", "rgb")}
    np.savez(folder / f"rainbow_mnist_{split}.npz", **kept)


def numbers(source):
    """Numbers of the images that a source draws, of tasks that are black."""
    x = source.draw(seeded(), 60, 40).x.view(60, 40, 3, 28, 28)
    return set((x[..., 0, 0, 1] * 255).round().long().flatten().tolist())


@pytest.fixture
def folder(tmp_path):
    black = [task._replace(rgb=np.zeros(3, np.uint8)) for task in tasks(9)]
    write(tmp_path, "train", black[:4])
    write(tmp_path, "val", black[4:6])
    return tmp_path


def test_an_image_is_a_white_digit_on_its_colour():
    gray = torch.tensor([[[0, 255, 51]]], dtype=torch.uint8)
    image = rainbow.coloured(gray, torch.tensor([[255, 165, 7]], dtype=torch.uint8))
    wanted = [[255, 255, 255], [165, 255, 183], [7, 255, 57]]  # 165 * 0.8 + 51; 7 * 0.8 + 51
    assert (image[0, :, 0] * 255).round().long().tolist() == wanted
    assert image.dtype == torch.float32
    assert image.shape == (1, 3, 1, 3)


def test_colouring_rounds_as_in_double_precision():
    gray, level = np.meshgrid(np.arange(256), np.arange(256))
    exact = np.round(level * (1 - gray / 255.0) + gray)
    pixels = torch.from_numpy(gray.reshape(-1, 1, 1).astype(np.uint8))
    rgb = torch.from_numpy(np.repeat(level.reshape(-1, 1), 3, 1).astype(np.uint8))
    image = rainbow.coloured(pixels, rgb)[:, 0, 0, 0]
    assert torch.equal(image, torch.from_numpy(exact.reshape(-1)).float() / 255)


def test_regimes_keep_one_task_and_draw_the_next_from_all():
    batch = rainbow.Rainbow(tasks(3), hazard=0.2).draw(seeded(), 300, 101)
    assert batch.x.shape == (300, 101, 2352)
    assert batch.y.shape == (300, 101, 1)
    image = batch.x.view(300, 101, 3, 28, 28)
    assert (image[..., 0, 0] == 1).all()
    colour = (image[..., -1, -1] * 255).round().long()
    changed = (colour.diff(dim=1) != 0).any(-1)
    later = batch.switch[:, 1:]
    assert not changed[~later].any()
    assert later.double().mean() == pytest.approx(0.2, abs=0.01)
    assert changed[later].double().mean() == pytest.approx(2 / 3, abs=0.03)


def test_every_image_of_a_task_is_as_likely():
    made = [tasks(1, images=2)[0], tasks(1, images=5)[0]]
    batch = rainbow.Rainbow(made, hazard=1.0).draw(seeded(), 100, 400)
    share = torch.bincount(batch.y.long().flatten()).double() / 40_000
    assert share.tolist() == pytest.approx([0.35, 0.35, 0.1, 0.1, 0.1], abs=0.01)


def test_a_seed_decides_everything():
    source = rainbow.Rainbow(tasks(3), 0.1)
    once, again = (source.draw(seeded(3), 4, 9) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once[:3], again[:3], strict=True))
    assert not torch.equal(once.x, source.draw(seeded(4), 4, 9).x)


def test_without_test_tasks_those_of_val_are_the_test(folder):
    splits = rainbow.splits(folder, 0.5, validation_images=1)
    assert numbers(splits.train) == {n for n in range(40) if n % 10 < 3}
    assert numbers(splits.validation) == {3, 13, 23, 33}
    assert numbers(splits.test) == {40, 41, 42, 43, 50, 51, 52, 53}
    assert (splits.x_dim, splits.y_dim, splits.classes) == (2352, 1, 10)


def test_with_all_tasks_and_no_others_images_are_held_out(folder):
    splits = rainbow.splits(folder, 0.5, all_tasks=True, validation_images=1, test_images=2)
    assert numbers(splits.train) == {n for n in range(40) if n % 10 < 3} | {40, 50}
    assert numbers(splits.validation) == {3, 13, 23, 33, 41, 51}
    assert numbers(splits.test) == {42, 43, 52, 53}


def test_with_test_tasks_the_splits_are_the_papers(folder):
    black = [task._replace(rgb=np.zeros(3, np.uint8)) for task in tasks(9)]
    write(folder, "test", black[6:8])
    splits = rainbow.splits(folder, 0.5)
    assert {n // 10 for n in numbers(splits.train)} == {0, 1, 2, 3}
    assert {n // 10 for n in numbers(splits.validation)} == {4, 5}
    assert {n // 10 for n in numbers(splits.test)} == {6, 7}
    splits = rainbow.splits(folder, 0.5, all_tasks=True, validation_images=1)
    assert numbers(splits.train) == {10 * task + n for task in range(6) for n in range(3)}
    assert numbers(splits.validation) == {10 * task + 3 for task in range(6)}
    assert {n // 10 for n in numbers(splits.test)} == {6, 7}


def test_unusable_files_are_refused(folder):
    with pytest.raises(BadData, match="hold 4 images .* one has 4"):
        rainbow.splits(folder, 0.5, validation_images=4)
    (folder / "rainbow_mnist_val.npz").unlink()
    with pytest.raises(BadData, match=r"rainbow_mnist_val.npz does not exist"):
        rainbow.splits(folder, 0.5, validation_images=1)
    write(folder, "val", [task._replace(y=task.y + 9) for task in tasks(1)])
    with pytest.raises(BadData, match="expected digits"):
        rainbow.splits(folder, 0.5, validation_images=1)
    write(folder, "val", [task._replace(gray=task.gray[:, :14]) for task in tasks(1)])
    with pytest.raises(BadData, match=r"got \(1, 4, 14, 28\) uint8"):
        rainbow.splits(folder, 0.5, validation_images=1)


def test_prepared_files(data):
    splits = rainbow.splits(data, 0.05)
    for source in splits[:3]:
        batch = source.draw(seeded(), 5, 40)
        assert batch.x.shape == (5, 40, 2352)
        assert (batch.x.min(), batch.x.max()) == (0, 1)
        assert set(batch.y.unique().tolist()) <= set(range(10))
        # A corner is background: one colour for the whole of a regime.
        corner = batch.x.view(5, 40, 3, 28, 28)[..., 0, 0]
        assert not (corner.diff(dim=1) != 0).any(-1)[~batch.switch[:, 1:]].any()
