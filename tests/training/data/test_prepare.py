"""`moca data prepare`: published files become those that the sources read."""

import gzip
import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from training.commands.data import app
from training.data import miniimagenet as images
from training.data import players, rainbow
from training.data.prepare import miniimagenet, mnist, sportvu

NAMES = {"train": "train", "val": "val", "test": "test_public"}
TEAMS = {player: 1 + (player > 5) for player in range(1, 11)}


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return head + array.astype(np.uint8).tobytes()


def write_mnist(folder, x, y, mark="-", packed=False):
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


def test_mnist_becomes_tasks_that_the_source_reads(tmp_path, digits):
    x, y = digits
    for k, (mark, packed) in enumerate([("-", False), (".", False), ("-", True)]):
        folder, out = tmp_path / str(k), tmp_path / str(k) / "out"
        folder.mkdir()
        written = mnist.prepare(write_mnist(folder, x, y, mark, packed), out, images=3)
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
    assert len(set(used)) == 168  # no image twice
    for source in rainbow.splits(out, 0.5)[:3]:
        assert source.draw(torch.Generator(), 2, 9).x.shape == (2, 9, 2352)
    written = []
    for seed in (1, 1, 2):
        mnist.prepare(folder, out, 3, seed)
        with np.load(out / "rainbow_mnist_val.npz") as found:
            written.append(found["mnist_index"].tolist())
    assert written[0] == written[1] != written[2]
    assert len({(task.rgb, task.scale, task.rotation) for task in mnist.tasks()}) == 56


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


def test_images_in_folders_become_what_the_source_reads(published, tmp_path):
    table = list(miniimagenet.classes().values())
    assert [each.label for each in table] == list(range(100))
    assert miniimagenet.classes()["n02110341"][2:] == (1, "Dogs, foxes, wolves", "test")
    out = tmp_path / "out"
    written = miniimagenet.prepare(published, out)
    assert [file.name for file in written[:3]] == [f"miniimagenet_{n}.npz" for n in NAMES.values()]
    splits = images.splits(out, 0.5, 42, tmp_path / "cache")
    for each, split in ((splits.validation, "val"), (splits.test, "test")):
        batch = each.draw(torch.Generator().manual_seed(0), 20, 20)
        label = (batch.x.mean(2) * 255 / 2).round().long()
        kept = [table[one] for one in label.flatten().tolist()]
        assert {one.split for one in kept} == {split}
        assert [one.superclass for one in kept] == batch.y.long().flatten().tolist()
    with np.load(out / "miniimagenet_val.npz") as found:
        kept = dict(found)
    assert (np.diff(kept["label"]) > 0).all()
    for row, label in enumerate(kept["label"]):
        content = kept["jpeg"][kept["offset"][row] : kept["offset"][row + 1]].tobytes()
        with Image.open(io.BytesIO(content)) as image:
            assert (image.size, image.mode) == ((84, 84), "RGB")
        if label % 3 == 0:  # of the right size and mode: its bytes stay
            file = published / "images" / f"{table[label].wnid}_1.jpg"
            assert content == file.read_bytes()


def moment(frame, time_ms=None, lost=(), shift=0.0, leaves=0, enters=99):
    """Ten players who walk 0.1 ft a frame, and the ball far away."""
    ids = [enters if player == leaves else player for player in TEAMS if player not in lost]
    where = [
        [TEAMS.get(player, 1), player, 0.1 * frame + shift, float(player), 0.0] for player in ids
    ]
    ball = [[-1, -1, 500.0 * (frame % 2), 0.0, 9.0]]
    return [
        1,
        1_000_000 + 40 * frame if time_ms is None else time_ms,
        700.0,
        24.0,
        None,
        ball + where,
    ]


def write_game(folder, game_id, events):
    found = {"gameid": game_id, "events": [{"moments": moments} for moments in events]}
    (folder / f"{game_id}.json").write_text(json.dumps(found))
    return folder / f"{game_id}.json"


def frames(start, stop, **changed):
    return [moment(frame, **changed) for frame in range(start, stop)]


def shape(pieces):
    """Positions, play and first frame of each stretch; all ten players have the same."""
    assert len(pieces) % 10 == 0
    return [(len(each.x), each.play, each.raw_start) for each in pieces[::10]]


ENDS = {
    "lost frames": frames(302, 600),
    "lost player": [moment(300, lost=(4,)), *frames(301, 600)],
    "jump": frames(300, 600, shift=1.5),
    "substitution": frames(300, 600, leaves=4),
    "time too close": [moment(300, time_ms=1_000_000 + 40 * 299 + 5), *frames(301, 600)],
}


def test_a_game_becomes_pieces_that_end_where_the_path_does(tmp_path):
    """Events that overlap count once; what is shorter than eight seconds is dropped."""
    overlap = [frames(0, 200), frames(100, 300), frames(50, 90)]
    pieces = sportvu.game_pieces(write_game(tmp_path, "0021500001", overlap))
    assert shape(pieces) == [(150, 0, 0)]
    assert [piece.player for piece in pieces] == list(range(1, 11))
    np.testing.assert_allclose(pieces[3].x[:, 0], 0.2 * np.arange(150), rtol=1e-5)
    assert (pieces[3].x[:, 1] == 4).all()
    assert {piece.game_id for piece in pieces} == {"0021500001"}
    for name, second in ENDS.items():
        first, last = shape(
            sportvu.game_pieces(write_game(tmp_path, "1", [frames(0, 300) + second]))
        )
        assert first == (150, 0, 0), name
        assert 149 <= last[0] <= 150, name
    for count, expected in ((200, []), (201, [(101, 0, 0)])):
        assert shape(sportvu.game_pieces(write_game(tmp_path, "1", [frames(0, count)]))) == expected


def plays(count):
    """Plays of 16 seconds, a pause between them."""
    return [frames(1000 * play, 1000 * play + 402) for play in range(count)]


def test_games_become_what_the_source_of_players_reads(tmp_path):
    for game in ("0021500001", "0021500002", "0021500003"):
        write_game(tmp_path, game, plays(2))
    train, test = sportvu.prepare(tmp_path, tmp_path / "out")
    splits = players.splits(tmp_path / "out")
    assert {name.split(" of ")[1] for name in splits.train.names} == {"0021500001"}
    assert {name.split(" of ")[1] for name in splits.validation.names} == {"0021500002"}
    y = splits.test.draw(torch.Generator(), 99, 150).y[..., 0]
    torch.testing.assert_close(y, torch.full((20, 150), 0.2).double(), atol=1e-4, rtol=0)
    with np.load(test) as found:
        assert set(found["game_id"]) == {"0021500003"}
        row, start = found["w151_src"][7]
        np.testing.assert_array_equal(found["w151"][7], found["x"][row, start : start + 151])
    train, test = sportvu.prepare(tmp_path, tmp_path / "out", ["0021500001"])
    with np.load(train) as kept, np.load(test) as held:
        assert set(held["game_id"]) == {"0021500001"}
        assert set(kept["game_id"]) == {"0021500002", "0021500003"}
    single = tmp_path / "single"
    single.mkdir()
    train, test = sportvu.prepare(write_game(single, "1", plays(5)), single / "out")
    with np.load(train) as kept, np.load(test) as held:
        assert (set(kept["play"]), set(held["play"])) == ({0, 1, 2, 3}, {4})


def test_the_command_prepares_and_refuses_in_a_line(tmp_path, digits):
    def run(*arguments):
        return CliRunner().invoke(app, ["prepare", *map(str, arguments)])

    write_mnist(tmp_path, *digits)
    made = run("mnist", tmp_path, "--out", tmp_path / "out", "--images", "1")
    assert made.exit_code == 0, made.output
    assert "rainbow_mnist_val.npz" in made.output
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in ("mnist", "sportvu", "miniimagenet"):
        said = run(name, empty, "--out", empty / "out")
        assert said.exit_code == 2
        (line,) = (line for line in said.output.splitlines() if line.startswith("moca: "))
        assert str(empty) in line
        assert not (empty / "out").exists()
    code = "import sys, training.commands.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
