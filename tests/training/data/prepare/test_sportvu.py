"""SportVU games: what becomes a piece, and that the players' source reads it."""

import json

import numpy as np
import pytest
import torch

from training.data import players
from training.data.prepare import sportvu
from training.errors import BadData

TEAMS = {player: 1 + (player > 5) for player in range(1, 11)}


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


def write(folder, game_id, events):
    found = {"gameid": game_id, "events": [{"moments": moments} for moments in events]}
    (folder / f"{game_id}.json").write_text(json.dumps(found))
    return folder / f"{game_id}.json"


def frames(start, stop, **changed):
    return [moment(frame, **changed) for frame in range(start, stop)]


def shape(pieces):
    """Positions, play and first frame of each stretch; all ten players have the same."""
    assert len(pieces) % 10 == 0
    return [(len(each.x), each.play, each.raw_start) for each in pieces[::10]]


def test_events_that_overlap_count_once(tmp_path):
    file = write(tmp_path, "0021500001", [frames(0, 200), frames(100, 300), frames(50, 90)])
    pieces = sportvu.game_pieces(file)
    assert shape(pieces) == [(150, 0, 0)]
    assert [piece.player for piece in pieces] == list(range(1, 11))
    np.testing.assert_allclose(pieces[3].x[:, 0], 0.2 * np.arange(150), rtol=1e-5)
    assert (pieces[3].x[:, 1] == 4).all()
    assert {piece.game_id for piece in pieces} == {"0021500001"}


@pytest.mark.parametrize(
    "second",
    [
        frames(302, 600),
        [moment(300, lost=(4,)), *frames(301, 600)],
        frames(300, 600, shift=1.5),
        frames(300, 600, leaves=4),
        [moment(300, time_ms=1_000_000 + 40 * 299 + 5), *frames(301, 600)],
    ],
    ids=["lost frames", "lost player", "jump", "substitution", "time too close"],
)
def test_pieces_end_where_the_path_does(tmp_path, second):
    pieces = sportvu.game_pieces(write(tmp_path, "1", [frames(0, 300) + second]))
    stretches = shape(pieces)
    assert len(stretches) == 2
    assert stretches[0] == (150, 0, 0)
    assert 149 <= stretches[1][0] <= 150


def test_pieces_below_eight_seconds_are_dropped(tmp_path):
    short = frames(0, 200)
    assert shape(sportvu.game_pieces(write(tmp_path, "1", [short]))) == []
    assert shape(sportvu.game_pieces(write(tmp_path, "1", [frames(0, 201)]))) == [(101, 0, 0)]
    with pytest.raises(BadData, match="no piece with 10 players lasts 101"):
        sportvu.prepare(write(tmp_path, "1", [short]), tmp_path)


def plays(count):
    """Plays of 16 seconds, a pause between them."""
    return [frames(1000 * play, 1000 * play + 402) for play in range(count)]


def test_the_players_source_reads_what_is_written(tmp_path):
    for game in ("0021500001", "0021500002", "0021500003"):
        write(tmp_path, game, plays(2))
    out = tmp_path / "out"
    written = sportvu.prepare(tmp_path, out)
    assert [file.name for file in written] == ["nba_12p5hz_train.npz", "nba_12p5hz_val.npz"]
    splits = players.splits(out)
    assert {name.split(" of ")[1] for name in splits.train.names} == {"0021500001"}
    assert {name.split(" of ")[1] for name in splits.validation.names} == {"0021500002"}
    batch = splits.test.draw(torch.Generator(), 99, 150)
    assert batch.x.shape == (20, 150, 2)
    torch.testing.assert_close(
        batch.y[..., 0], torch.full((20, 150), 0.2).double(), atol=1e-4, rtol=0
    )
    with np.load(written[1]) as found:
        assert set(found["game_id"]) == {"0021500003"}
        assert (found["x"].shape, found["w201"].shape) == ((20, 201, 2), (20, 201, 2))
        row, start = found["w151_src"][7]
        np.testing.assert_array_equal(found["w151"][7], found["x"][row, start : start + 151])


def test_games_can_be_held_out_by_id(tmp_path):
    for game in ("1", "2"):
        write(tmp_path, game, plays(1))
    train, test = sportvu.prepare(tmp_path, tmp_path / "out", ["1"])
    with np.load(train) as kept, np.load(test) as held:
        assert (set(kept["game_id"]), set(held["game_id"])) == ({"2"}, {"1"})
    with pytest.raises(BadData, match="no game '7' to hold out; there are 1, 2"):
        sportvu.prepare(tmp_path, tmp_path / "out", ["7"])
    with pytest.raises(BadData, match="every game is held out"):
        sportvu.prepare(tmp_path, tmp_path / "out", ["1", "2"])


def test_of_a_single_game_the_last_plays_are_held_out(tmp_path):
    train, test = sportvu.prepare(write(tmp_path, "1", plays(5)), tmp_path / "out")
    with np.load(train) as kept, np.load(test) as held:
        assert (set(kept["play"]), set(held["play"])) == ({0, 1, 2, 3}, {4})
    with pytest.raises(BadData, match="one play only"):
        sportvu.prepare(write(tmp_path, "1", plays(1)), tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "1.json cannot be read as JSON"),
        ("[]", "expected an object with 'gameid' and 'events'"),
        ('{"gameid": "1", "events": [{}]}', "event 0 has no list 'moments'"),
        (
            '{"gameid": "1", "events": [{"moments": []}, {"moments": [[1, 2, 3]]}]}',
            "event 1, moment 0: expected .*quarter",
        ),
        (
            '{"gameid": "1", "events": [{"moments": [[1,2,3,4,null,[[1,7,NaN,2,3]]]]}]}',
            "event 0, moment 0: .*not finite",
        ),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, content, message):
    (tmp_path / "1.json").write_text(content)
    with pytest.raises(BadData, match=message):
        sportvu.prepare(tmp_path, tmp_path)


def test_archives_are_not_read(tmp_path):
    (tmp_path / "game.7z").touch()
    with pytest.raises(BadData, match="holds no .json file .unpack the .7z archives first"):
        sportvu.prepare(tmp_path, tmp_path)
