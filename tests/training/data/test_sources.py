"""Sources of the paper's experiments: one contract, and what each of them is said to draw."""

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

from training.data import (
    base,
    miniimagenet,
    players,
    rainbow,
    regime_series,
    sinusoid,
    wheel,
)
from training.errors import BadData

HAZARD = 0.2
COLOURS = np.array([[255, 0, 0], [0, 128, 0], [75, 0, 130]], np.uint8)
SIZE = 4  # of miniImageNet's images here


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


def write_rainbow(folder, split, made):
    kept = {key: np.stack([getattr(task, key) for task in made]) for key in ("gray", "y", "rgb")}
    np.savez(folder / f"rainbow_mnist_{split}.npz", **kept)


def numbers(source):
    """Numbers of the images that a source draws, of tasks that are black."""
    x = source.draw(seeded(), 60, 40).x.view(60, 40, 3, 28, 28)
    return set((x[..., 0, 0, 1] * 255).round().long().flatten().tolist())


def jpeg(level, size=8):
    """One gray image of a level that JPEG keeps."""
    written = io.BytesIO()
    Image.new("RGB", (size, size), (level, level, level)).save(written, "JPEG", quality=95)
    return written.getvalue()


def write_images(folder, split, label, superclass, levels):
    parts = [np.frombuffer(jpeg(level), np.uint8) for level in levels]
    np.savez(
        folder / f"miniimagenet_{split}.npz",
        jpeg=np.concatenate(parts),
        offset=np.cumsum([0] + [len(part) for part in parts]),
        label=np.array(label, np.int16),
        superclass=np.array(superclass, np.int8),
    )


def write_players(folder, groups, key="play", steps=40, **more):
    """Two files as prepared; the position of a row says what group it is of."""
    x = np.full((len(groups), steps + 5, 2), np.nan, np.float32)
    for row, group in enumerate(groups):
        x[row, :steps] = np.arange(steps)[:, None] * 0.25 + [100 * group, row]
    length = np.full(len(groups), steps, np.int32)
    windows = np.cumsum(np.ones((4, 151, 2), np.float32), 1)
    for name in ("nba_12p5hz_train", "nba_12p5hz_val"):
        kept = {"x": x, "length": length, key: np.array(groups), "w151": windows} | more
        np.savez(folder / f"{name}.npz", **{k: v for k, v in kept.items() if v is not None})


@pytest.fixture
def digits(tmp_path):
    """Rainbow MNIST of black tasks: four for training, two others."""
    black = [task._replace(rgb=np.zeros(3, np.uint8)) for task in tasks(9)]
    write_rainbow(tmp_path, "train", black[:4])
    write_rainbow(tmp_path, "val", black[4:6])
    return tmp_path


@pytest.fixture
def images(tmp_path):
    """Ten classes in each file, two of each super-class, two images of each class, shuffled."""
    order = np.random.default_rng(0).permutation(20)
    label = order // 2
    for place, split in enumerate(miniimagenet.FILES):
        write_images(tmp_path, split, label + 10 * place, label % 5, 60 * place + 2 * order)
    return tmp_path


def splits_of(name, folder):
    return {
        "sinusoid": lambda: sinusoid.splits(HAZARD),
        "recurring sinusoids": lambda: sinusoid.splits(HAZARD, tasks=4),
        "wheel": lambda: wheel.splits(HAZARD, seed=3),
        "regimes": lambda: regime_series.splits(HAZARD),
        "rainbow": lambda: rainbow.splits(folder, HAZARD, validation_images=1),
        "miniimagenet": lambda: miniimagenet.splits(folder, HAZARD, SIZE, folder / "cache"),
        "players": lambda: players.splits(folder),
    }[name]()


RECORDED = ["rainbow", "miniimagenet", "players"]
SOURCES = ["sinusoid", "recurring sinusoids", "wheel", "regimes", *RECORDED]


@pytest.mark.parametrize("name", SOURCES)
def test_a_seed_decides_what_is_drawn_and_regimes_start_at_the_hazard(name, digits, images):
    write_players(digits, [1, 2, 3])
    splits = splits_of(name, digits)
    once, again, other = (splits.train.draw(seeded(seed), 300, 20) for seed in (3, 3, 4))
    for one, same in zip(once, again, strict=True):
        assert one is same is None or torch.equal(one, same)
    drawn = [batch.y if batch.x is None else batch.x for batch in (once, other)]
    assert not torch.equal(*drawn)
    assert once.y.shape == (300, 20, splits.y_dim)
    assert once.x.shape == (300, 20, splits.x_dim) if splits.x_dim else once.x is None
    if name == "players":
        assert once.switch is None
        return
    assert once.switch[:, 0].all()
    share = once.switch[:, 1:].double().mean().item()
    assert share == pytest.approx(HAZARD, abs=5 * math.sqrt(HAZARD * (1 - HAZARD) / 5700))


def test_hazards_at_their_ends():
    assert not sinusoid.Sinusoid(0.0).draw(seeded(), 9, 50).switch[:, 1:].any()
    assert sinusoid.Sinusoid(1.0).draw(seeded(), 9, 50).switch.all()
    for hazard, count, said in ((1.5, 0, "got 1.5"), (0.1, -1, "got -1")):
        with pytest.raises(ValueError, match=said):
            sinusoid.splits(hazard, tasks=count)


def test_parameters_change_exactly_at_switches_and_bounds_hold():
    switch = torch.tensor([[True, False, True, False, False], [True, True, False, False, True]])
    values = torch.arange(10).view(2, 5)
    assert base.held(values, switch).tolist() == [[0, 0, 2, 2, 2], [5, 6, 6, 6, 9]]
    drawn = base.below(seeded(), torch.tensor([1, 2, 5]).expand(20_000, 3))
    for column, bound in enumerate((1, 2, 5)):
        counts = torch.bincount(drawn[:, column], minlength=bound) / 20_000
        assert counts.tolist() == pytest.approx([1 / bound] * bound, abs=0.02)


def fitted(batch):
    """Amplitude, phase and residual variance of each row by least squares on (sin x, cos x)."""
    design = torch.cat([torch.sin(batch.x), torch.cos(batch.x)], 2)
    weights = torch.linalg.lstsq(design, batch.y).solution
    residual = (batch.y - design @ weights).square().sum((1, 2)) / (batch.y.shape[1] - 2)
    a, b = weights[:, 0, 0], -weights[:, 1, 0]  # A sin(x - p) = A cos p sin x - A sin p cos x
    phase = torch.atan2(b, a)
    return torch.hypot(a, b), torch.where(phase < -2, phase + 2 * math.pi, phase), residual


def test_amplitude_phase_inputs_and_noise():
    batch = sinusoid.Sinusoid(0.0).draw(seeded(), 2000, 200)
    assert batch.x.shape == batch.y.shape == (2000, 200, 1)
    amplitude, phase, variance = fitted(batch)
    assert variance.mean() == pytest.approx(0.05, rel=0.01)
    assert -0.05 < amplitude.min() < 0.2
    assert 4.9 < amplitude.max() < 5.1
    assert amplitude.mean() == pytest.approx(2.55, abs=0.15)
    clear = phase[amplitude > 1]
    assert -0.1 < clear.min() < 0.1
    assert math.pi - 0.1 < clear.max() < math.pi + 0.1
    assert clear.mean() == pytest.approx(math.pi / 2, abs=0.1)
    assert -5 <= batch.x.min() < -4.99
    assert 4.99 < batch.x.max() <= 5


def test_memory_lasts_within_a_regime_only():
    switch = torch.zeros(4000, 40, dtype=torch.bool)
    switch[:, 0] = switch[:, 20] = True
    generator = torch.Generator().manual_seed(0)
    innovation = torch.randn(4000, 40, generator=generator, dtype=torch.float64)
    memory = torch.full((4000, 40), 0.8, dtype=torch.float64)
    found = regime_series._autoregression(switch, memory, innovation)
    for t in (0, 19, 20, 39):
        assert abs(found[:, t].var() - 1 / (1 - 0.64)) < 0.25
    assert abs(correlation(found[:, 30], found[:, 31]) - 0.8) < 0.03
    assert abs(correlation(found[:, 19], found[:, 20])) < 0.06


def correlation(one, other):
    return torch.corrcoef(torch.stack((one, other)))[0, 1].item()


def literal(x1: float, x2: float, action: int, delta: float) -> float:
    """Mean reward as the paper has it, one state and action at a time."""
    if action == 0:
        return 1.0
    if x1 > 0 and x2 > 0:
        own = 1
    elif x1 <= 0 and x2 > 0:
        own = 2
    elif x1 <= 0 and x2 <= 0:
        own = 3
    else:
        own = 4
    return 2.0 if action == own and math.hypot(x1, x2) > delta else 0.0


@pytest.fixture(scope="module")
def met():
    return wheel.world(seeded(1), 40, 1000, 0.05)


def test_mean_rewards_are_the_papers(met):
    states, delta = met.states[0, :300], met.delta[0, :300]
    # The edges of quadrants, and a state at the radius itself.
    states = torch.cat((states, torch.tensor([[0.0, 0.5], [0.5, 0.0], [0.0, 0.0], [0.6, 0.8]])))
    delta = torch.cat((delta, torch.tensor([0.1, 0.1, 0.0, 1.0])))
    each = []
    for action in range(wheel.ACTIONS):
        got = wheel.reward_mean(states, torch.full((304,), action), delta)
        pairs = zip(states.tolist(), delta.tolist(), strict=True)
        assert got.tolist() == [literal(*state, action, radius) for state, radius in pairs]
        each.append(got)
    assert torch.equal(wheel.best_mean(states, delta), torch.stack(each).amax(0))


def test_the_world_of_the_wheel_is_the_papers(met):
    squared = met.states.square().sum(-1).flatten()
    assert squared.max() <= 1
    for inside in (0.25, 0.5, 0.75):  # uniform in the disc
        assert (squared < inside).double().mean().item() == pytest.approx(inside, abs=0.01)
    counts = torch.bincount(wheel.quadrant(met.states).flatten(), minlength=5) / squared.numel()
    assert counts.tolist() == pytest.approx([0.0, 0.25, 0.25, 0.25, 0.25], abs=0.01)
    moved = met.delta[:, 1:] != met.delta[:, :-1]
    assert torch.equal(moved, met.switch[:, 1:])
    drawn = met.delta[met.switch]
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.03)
    assert drawn.var().item() == pytest.approx(1 / 12, abs=0.01)
    assert met.noise.std().item() == pytest.approx(0.5, abs=0.01)


def test_an_image_is_a_white_digit_on_its_colour():
    gray = torch.tensor([[[0, 255, 51]]], dtype=torch.uint8)
    image = rainbow.coloured(gray, torch.tensor([[255, 165, 7]], dtype=torch.uint8))
    wanted = [[255, 255, 255], [165, 255, 183], [7, 255, 57]]  # 165 * 0.8 + 51; 7 * 0.8 + 51
    assert (image[0, :, 0] * 255).round().long().tolist() == wanted
    assert image.dtype == torch.float32
    assert image.shape == (1, 3, 1, 3)


def test_a_regime_of_digits_is_one_task_and_every_image_is_as_likely():
    batch = rainbow.Rainbow(tasks(3), hazard=0.2).draw(seeded(), 300, 101)
    colour = (batch.x.view(300, 101, 3, 28, 28)[..., -1, -1] * 255).round().long()
    changed = (colour.diff(dim=1) != 0).any(-1)
    later = batch.switch[:, 1:]
    assert not changed[~later].any()
    assert changed[later].double().mean() == pytest.approx(2 / 3, abs=0.03)
    made = [tasks(1, images=2)[0], tasks(1, images=5)[0]]
    batch = rainbow.Rainbow(made, hazard=1.0).draw(seeded(), 100, 400)
    share = torch.bincount(batch.y.long().flatten()).double() / 40_000
    assert share.tolist() == pytest.approx([0.35, 0.35, 0.1, 0.1, 0.1], abs=0.01)


def test_digits_of_each_split(digits):
    one = {n for n in range(40) if n % 10 < 3}
    splits = rainbow.splits(digits, 0.5, validation_images=1)  # no tasks for the test alone
    assert numbers(splits.train) == one
    assert numbers(splits.validation) == {3, 13, 23, 33}
    assert numbers(splits.test) == {40, 41, 42, 43, 50, 51, 52, 53}
    splits = rainbow.splits(digits, 0.5, all_tasks=True, validation_images=1, test_images=2)
    assert numbers(splits.train) == one | {40, 50}
    assert numbers(splits.validation) == {3, 13, 23, 33, 41, 51}
    assert numbers(splits.test) == {42, 43, 52, 53}
    black = [task._replace(rgb=np.zeros(3, np.uint8)) for task in tasks(9)]
    write_rainbow(digits, "test", black[6:8])
    splits = rainbow.splits(digits, 0.5)  # as in the paper
    shares = [{n // 10 for n in numbers(source)} for source in splits[:3]]
    assert shares == [{0, 1, 2, 3}, {4, 5}, {6, 7}]


def levels(batch):
    return (batch.x[..., 0] * 255).round().long()


def test_a_regime_of_images_is_one_class_of_each_superclass(images):
    splits = miniimagenet.splits(images, 0.05, SIZE, images / "cache")
    batch = splits.validation.draw(seeded(), 200, 101)
    level = levels(batch) - 60
    label = level // 2 // 2
    assert torch.equal(label % 5, batch.y[..., 0].long())
    regime = batch.switch.cumsum(1) + 1000 * torch.arange(200)[:, None]
    seen = torch.stack([regime.flatten(), (label % 5).flatten(), label.flatten()]).unique(dim=1)
    assert seen[:2].unique(dim=1).shape == seen[:2].shape
    share = torch.bincount(level.flatten() // 2, minlength=20).double() / level.numel()
    assert share.tolist() == pytest.approx([0.05] * 20, abs=0.01)
    # Files stay apart, and only images for training are changed.
    test, train = (levels(source.draw(seeded(), 50, 20)) for source in (splits.test, splits.train))
    assert set(test.unique().tolist()) == set(range(120, 160, 2))
    assert len(train.unique()) > 30
    assert train.max() <= 38 * 1.4 + 1


def test_inputs_of_players_are_feet_over_50_and_labels_the_step_in_feet(tmp_path):
    write_players(tmp_path, [1, 2, 3])
    batch = players.splits(tmp_path).train.draw(seeded(), 50, 39)
    torch.testing.assert_close(batch.x[:, 1:] * 50, batch.x[:, :-1] * 50 + batch.y[:, :-1])
    torch.testing.assert_close(batch.y, torch.full_like(batch.y, 0.25))
    test = players.splits(tmp_path).test
    assert test.draw(seeded(), 99, 150).x.shape == (4, 150, 2)
    with pytest.raises(BadData, match="at most 150 observations"):
        test.draw(seeded(), 99, 151)


def groups_of(source):
    x = source.draw(seeded(), 500, 10).x
    return set((x[:, 0, 0] * 50 // 100).long().tolist())


def test_plays_and_games_are_held_out_whole(tmp_path):
    write_players(tmp_path, [-1, 1, 2, 2, 3, 3, 7])
    splits = players.splits(tmp_path, validation=0.4)
    assert groups_of(splits.train) == {-1, 1, 2}
    assert groups_of(splits.validation) == {3, 7}
    write_players(tmp_path, [1, 2, 3, 1], game_id=np.array(["001", "001", "001", "002"]))
    x = players.splits(tmp_path).validation.draw(seeded(), 50, 10).x
    assert set(torch.unique(x[:, :, 1] * 50 // 1).tolist()) <= set(range(3, 14))
    assert groups_of(players.splits(tmp_path).train) == {1, 2, 3}


def test_files_that_cannot_be_used_are_named(digits, images):
    def refused(name, match):
        with pytest.raises(BadData, match=match):
            splits_of(name, digits)

    refused("players", "nba_12p5hz_train.npz does not exist")
    for groups, more, said in (
        ([1, 1], {}, "one play or game only"),
        ([1, 2], {"key": "other"}, "neither"),
        ([1, 2], {"w151": None}, "'w151'"),
        ([1, 2], {"length": np.array([40, 41])}, "row 1 .* not finite"),
    ):
        write_players(digits, groups, **more)
        refused("players", said)
    for label, superclass, said in (
        ([0, 0, 1, 2, 3], [0, 1, 1, 2, 3], "more than one super-class"),
        ([0, 1, 2, 3], [0, 1, 2, 3], r"got \[1, 1, 1, 1, 0\]"),
        ([0, 1, 2], [0, 1, 2, 3], "4 images, 3 labels and 4 super-classes"),
    ):
        write_images(images, "val", label, superclass, [9] * len(superclass))
        refused("miniimagenet", said)
    file = images / "miniimagenet_train.npz"
    with np.load(file) as found:
        kept = dict(found)
    kept["jpeg"][kept["offset"][3] : kept["offset"][4]] = 0
    np.savez(file, **kept)
    before = set((images / "cache").iterdir())
    refused("miniimagenet", "miniimagenet_train.npz, image 3")
    assert set((images / "cache").iterdir()) == before, "half of a file is left"
    for made, said in (
        ([task._replace(y=task.y + 9) for task in tasks(1)], "expected digits"),
        ([task._replace(gray=task.gray[:, :14]) for task in tasks(1)], r"\(1, 4, 14, 28\)"),
    ):
        write_rainbow(digits, "val", made)
        refused("rainbow", said)
    (digits / "rainbow_mnist_train.npz").write_bytes(b"nothing")
    refused("rainbow", "rainbow_mnist_train.npz")
