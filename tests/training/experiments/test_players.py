"""Basketball players: games as published become pieces of paths, and those windows of steps."""

import json

import numpy as np
import pytest
import torch

from tests.training.tiny import seeded
from training.data.files import Place
from training.errors import BadData
from training.experiments import players

TEAMS = {player: 1 + (player > 5) for player in range(1, 11)}


def moment(frame, time_ms=None, lost=(), shift=0.0, leaves=0, enters=99):
    """Ten players who walk 0.1 ft a frame, and the ball far away."""
    ids = [enters if player == leaves else player for player in TEAMS if player not in lost]
    where = [
        [TEAMS.get(player, 1), player, 0.1 * frame + shift, float(player), 0.0] for player in ids
    ]
    ball = [[-1, -1, 500.0 * (frame % 2), 0.0, 9.0]]
    time_ms = 1_000_000 + 40 * frame if time_ms is None else time_ms
    return [1, time_ms, 700.0, 24.0, None, ball + where]


def write_game(folder, game_id, events):
    game = {"gameid": game_id, "events": [{"moments": moments} for moments in events]}
    (folder / f"{game_id}.json").write_text(json.dumps(game))
    return folder / f"{game_id}.json"


def frames(start, stop, **changed):
    return [moment(frame, **changed) for frame in range(start, stop)]


def shape(pieces):
    """Positions, play and first place of each stretch; all ten players have the same."""
    assert len(pieces) % 10 == 0
    return [(len(piece.x), piece.play, piece.x[0, 0]) for piece in pieces[::10]]


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
    pieces = players.game_pieces(write_game(tmp_path, "0021500001", overlap))
    assert shape(pieces) == [(150, 0, 0)]
    assert [piece.x[0, 1] for piece in pieces] == list(range(1, 11))
    np.testing.assert_allclose(pieces[3].x[:, 0], 0.2 * np.arange(150), rtol=1e-5)
    assert (pieces[3].x[:, 1] == 4).all()
    assert {piece.game_id for piece in pieces} == {"0021500001"}
    for name, second in ENDS.items():
        first, last = shape(
            players.game_pieces(write_game(tmp_path, "1", [frames(0, 300) + second]))
        )
        assert first == (150, 0, 0), name
        assert 149 <= last[0] <= 150, name
    for count, expected in ((200, []), (201, [(101, 0, 0)])):
        assert shape(players.game_pieces(write_game(tmp_path, "1", [frames(0, count)]))) == expected


def plays(count):
    """Plays of 16 seconds, a pause between them."""
    return [frames(1000 * play, 1000 * play + 402) for play in range(count)]


def test_games_become_what_the_source_of_players_reads(tmp_path):
    for game in ("0021500001", "0021500002", "0021500003"):
        write_game(tmp_path, game, plays(2))
    train, test = players.prepare(tmp_path, tmp_path / "out")
    splits = source(tmp_path / "out")
    y = splits.test(torch.Generator(), 99, 150).y[..., 0]
    torch.testing.assert_close(y, torch.full((20, 150), 0.2).double(), atol=1e-4, rtol=0)
    with np.load(test) as content:
        assert set(content["game_id"]) == {"0021500003"}
        np.testing.assert_array_equal(content["w151"][7], content["x"][7, :151])
    train, test = players.prepare(tmp_path, tmp_path / "out", ["0021500001"])
    with np.load(train) as kept, np.load(test) as held:
        assert set(held["game_id"]) == {"0021500001"}
        assert set(kept["game_id"]) == {"0021500002", "0021500003"}
    single = tmp_path / "single"
    single.mkdir()
    train, test = players.prepare(write_game(single, "1", plays(5)), single / "out")
    with np.load(train) as kept, np.load(test) as held:
        assert (set(kept["play"]), set(held["play"])) == ({0, 1, 2, 3}, {4})


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


def test_inputs_of_players_are_feet_over_50_and_labels_the_step_in_feet(tmp_path):
    write_players(tmp_path, [1, 2, 3])
    batch = source(tmp_path).train(seeded(), 50, 39)
    torch.testing.assert_close(batch.x[:, 1:] * 50, batch.x[:, :-1] * 50 + batch.y[:, :-1])
    torch.testing.assert_close(batch.y, torch.full_like(batch.y, 0.25))
    test = source(tmp_path).test
    assert test(seeded(), 99, 150).x.shape == (4, 150, 2)
    with pytest.raises(BadData, match="at most 150 observations"):
        test(seeded(), 99, 151)


def groups_of(source):
    x = source(seeded(), 500, 10).x
    return set((x[:, 0, 0] * 50 // 100).long().tolist())


def test_plays_and_games_are_held_out_whole(tmp_path):
    write_players(tmp_path, [-1, 1, 2, 2, 3, 3, 7])
    splits = source(tmp_path, validation=0.4)
    assert groups_of(splits.train) == {-1, 1, 2}
    assert groups_of(splits.validation) == {3, 7}
    write_players(tmp_path, [1, 2, 3, 1], game_id=np.array(["001", "001", "001", "002"]))
    x = source(tmp_path).validation(seeded(), 50, 10).x
    assert set(torch.unique(x[:, :, 1] * 50 // 1).tolist()) <= set(range(3, 14))
    assert groups_of(source(tmp_path).train) == {1, 2, 3}


def source(folder, **options):
    return players.splits(Place(folder, folder), **options)


def test_files_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(BadData, match="nba_12p5hz_train.npz does not exist"):
        source(tmp_path)
    for groups, more, message in (
        ([1, 1], {}, "one play or game only"),
        ([1, 2], {"key": "other"}, "neither"),
        ([1, 2], {"w151": None}, "'w151'"),
        ([1, 2], {"length": np.array([40, 41])}, "row 1 .* not finite"),
    ):
        write_players(tmp_path, groups, **more)
        with pytest.raises(BadData, match=message):
            source(tmp_path)
