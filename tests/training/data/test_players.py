"""Positions of players as inputs and steps."""

import numpy as np
import pytest
import torch

from training.data import players
from training.errors import BadData


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def write(folder, groups, key="play", steps=40, **more):
    """Two files as prepared; the position of a row says what group it is of."""
    folder.mkdir(exist_ok=True)
    x = np.full((len(groups), steps + 5, 2), np.nan, np.float32)
    for row, group in enumerate(groups):
        x[row, :steps] = np.arange(steps)[:, None] * 0.25 + [100 * group, row]
    length = np.full(len(groups), steps, np.int32)
    windows = np.cumsum(np.ones((4, 151, 2), np.float32), 1)
    for name in ("nba_12p5hz_train", "nba_12p5hz_val"):
        kept = {"x": x, "length": length, key: np.array(groups), "w151": windows} | more
        np.savez(folder / f"{name}.npz", **{k: v for k, v in kept.items() if v is not None})


def groups_of(source):
    x = source.draw(seeded(), 500, 10).x
    return set((x[:, 0, 0] * 50 // 100).long().tolist())


def test_inputs_are_feet_over_50_and_labels_the_step_in_feet(tmp_path):
    write(tmp_path, [1, 2, 3])
    batch = players.splits(tmp_path).train.draw(seeded(), 50, 39)
    assert batch.x.shape == batch.y.shape == (50, 39, 2)
    assert batch.switch is None
    torch.testing.assert_close(batch.x[:, 1:] * 50, batch.x[:, :-1] * 50 + batch.y[:, :-1])
    torch.testing.assert_close(batch.y, torch.full_like(batch.y, 0.25))


def test_plays_are_held_out_whole(tmp_path):
    write(tmp_path, [-1, 1, 2, 2, 3, 3, 7])
    splits = players.splits(tmp_path, validation=0.4)
    assert groups_of(splits.train) == {-1, 1, 2}
    assert groups_of(splits.validation) == {3, 7}


def test_games_are_held_out_whole_where_there_are_several(tmp_path):
    games = np.array(["001", "001", "001", "002"])
    write(tmp_path, [1, 2, 3, 1], game_id=games)
    x = players.splits(tmp_path).validation.draw(seeded(), 50, 10).x
    assert set(torch.unique(x[:, :, 1] * 50 // 1).tolist()) <= set(range(3, 14))
    assert groups_of(players.splits(tmp_path).train) == {1, 2, 3}


def test_test_windows_have_150_pairs(tmp_path):
    write(tmp_path, [1, 2], key="example")
    batch = players.splits(tmp_path).test.draw(seeded(), 99, 150)
    assert batch.x.shape == (4, 150, 2)
    assert batch.y.unique().tolist() == [1]
    with pytest.raises(BadData, match="expected at most 150 observations"):
        players.splits(tmp_path).test.draw(seeded(), 99, 151)


def test_unusable_files_are_named(tmp_path):
    with pytest.raises(BadData, match=r"nba_12p5hz_train.npz does not exist"):
        players.splits(tmp_path)
    write(tmp_path, [1, 1])
    with pytest.raises(BadData, match="one play or game only"):
        players.splits(tmp_path)
    write(tmp_path, [1, 2], key="other")
    with pytest.raises(BadData, match="neither"):
        players.splits(tmp_path)
    write(tmp_path, [1, 2], w151=None)
    with pytest.raises(BadData, match="no array 'w151'"):
        players.splits(tmp_path)
    write(tmp_path, [1, 2], length=np.array([40, 41]))
    with pytest.raises(BadData, match=r"row 1 .* not finite"):
        players.splits(tmp_path)
    (tmp_path / "nba_12p5hz_train.npz").write_bytes(b"nothing")
    with pytest.raises(BadData, match="not a readable"):
        players.splits(tmp_path)


@pytest.mark.parametrize("name", ["nba_12p5hz", "nba_cle_5hz"])
def test_prepared_files(data, name):
    splits = players.splits(data, name)
    for source in splits[:3]:
        batch = source.draw(seeded(), 30, 100)
        assert batch.x.shape[1:] == batch.y.shape[1:] == (100, 2)
        assert batch.x.isfinite().all()
        assert (batch.x > -0.3).all()
        assert (batch.x < 2.1).all()
        # A player runs below 35 feet a second.
        assert batch.y.abs().max() < 35 / (5 if "5hz" in name.split("_")[-1][:3] else 12.5)
    kept = splits.validation
    rows = {name.split(" of ")[1] for name in kept.names}
    assert rows.isdisjoint(name.split(" of ")[1] for name in splits.train.names)
