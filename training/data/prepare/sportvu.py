"""Convert SportVU games as published (JSON, 25 Hz) to pieces of players' paths at 12.5 Hz.

A game file is `{"gameid": ..., "events": [{"moments": [moment, ...]}, ...]}`, a moment
`[quarter, epoch ms, game clock, shot clock, null, [[team, player, x, y, z], ...]]` in feet; the
ball is of team -1. Events overlap: a moment counts once, where it comes first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from training.data.files import save
from training.errors import BadData

RATE_HZ = 12.5
EVERY = 2  # frames of 25 Hz
GAP_MS = (20, 60)  # between frames of one piece
JUMP_FT = 1.0  # a frame: faster than any player
PLAYERS = 10
SHORTEST = 101  # positions: 8 seconds
WINDOWS = (151, 201)
HELD_OUT = 0.2  # share of the plays, of a single game
MOMENT = "[quarter, ms, clock, shot clock, null, [[team, player, x, y, z], ...]]"


class Frame(NamedTuple):
    """Positions at a time; `event` and `place` locate its first occurrence in the file."""

    time_ms: int
    event: int
    place: int
    position: dict[int, tuple[float, float]]  # of each player, feet


class Piece(NamedTuple):
    """One player's path without a break: x (n, 2) feet at 12.5 Hz."""

    x: NDArray[np.float32]
    player: int
    play: int
    game_id: str
    raw_start: int


def prepare(source: Path, out: Path, held_out: Sequence[str] = ()) -> list[Path]:
    """Write `nba_12p5hz_train.npz` and `nba_12p5hz_val.npz` of a game file or a folder of them.

    The second file holds the games `held_out`; if none is named, the last of several by its id,
    of a single one the last fifth of its plays. BadData names file, event and moment of what
    cannot be read. Archives (`.7z`) have to be unpacked before.
    """
    pieces = [
        piece for file in track(_files(source), "Reading games") for piece in game_pieces(file)
    ]
    if not pieces:
        raise BadData(f"{source}: no piece with {PLAYERS} players lasts {SHORTEST} positions")
    late = _late(pieces, held_out)
    train = [piece for piece, is_late in zip(pieces, late, strict=True) if not is_late]
    kept = [piece for piece, is_late in zip(pieces, late, strict=True) if is_late]
    return [
        save(out / f"nba_12p5hz_{name}.npz", **_arrays(part))
        for name, part in (("train", train), ("val", kept))
    ]


def game_pieces(file: Path) -> list[Piece]:
    """Paths of all players of a game: cut at lost frames, substitutions and impossible jumps."""
    game_id, frames = _frames(file)
    pieces = []
    for stretch in _stretches(frames):
        kept = stretch[::EVERY]
        if len(kept) < SHORTEST:
            continue
        for player in stretch[0].position:
            x = np.array([frame.position[player] for frame in kept], np.float32)
            pieces.append(Piece(x, player, kept[0].event, game_id, kept[0].place))
    return pieces


def _frames(file: Path) -> tuple[str, list[Frame]]:
    try:
        game = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise BadData(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(game, dict) or not {"gameid", "events"} <= game.keys():
        raise BadData(f"{file}: expected an object with 'gameid' and 'events'")
    frames: dict[int, Frame] = {}
    for number, event in enumerate(game["events"]):
        if not isinstance(event, dict) or not isinstance(event.get("moments"), list):
            raise BadData(f"{file}: event {number} has no list 'moments'")
        for place, moment in enumerate(event["moments"]):
            frame = _frame(file, moment, number, place)
            if len(frame.position) == PLAYERS:
                frames.setdefault(frame.time_ms, frame)
    return str(game["gameid"]), [frames[time_ms] for time_ms in sorted(frames)]


def _frame(file: Path, moment: Any, event: int, place: int) -> Frame:
    try:
        position = {
            int(player): (float(x), float(y)) for team, player, x, y, _ in moment[5] if team != -1
        }
        time_ms = int(moment[1])
        if not np.isfinite(list(position.values())).all():
            raise ValueError("a position is not finite")
    except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
        raise BadData(
            f"{file}: event {event}, moment {place}: expected {MOMENT}: {error}"
        ) from error
    return Frame(time_ms, event, place, position)


def _stretches(frames: Sequence[Frame]) -> list[list[Frame]]:
    stretches: list[list[Frame]] = []
    for place, frame in enumerate(frames):
        if place == 0 or not _follows(frames[place - 1], frame):
            stretches.append([])
        stretches[-1].append(frame)
    return stretches


def _follows(before: Frame, frame: Frame) -> bool:
    if not GAP_MS[0] <= frame.time_ms - before.time_ms <= GAP_MS[1]:
        return False
    if before.position.keys() != frame.position.keys():
        return False
    steps = ((before.position[player], to) for player, to in frame.position.items())
    return all((x - u) ** 2 + (y - v) ** 2 <= JUMP_FT**2 for (u, v), (x, y) in steps)


def _late(pieces: Sequence[Piece], held_out: Sequence[str]) -> list[bool]:
    games = sorted({piece.game_id for piece in pieces})
    if unknown := sorted(set(held_out) - set(games)):
        raise BadData(f"no game {unknown[0]!r} to hold out; there are {', '.join(games)}")
    if held_out or len(games) > 1:
        late = set(held_out or games[-1:])
        if late == set(games):
            raise BadData(f"every game is held out: {', '.join(games)}; none is left to train on")
        return [piece.game_id in late for piece in pieces]
    plays = sorted({piece.play for piece in pieces})
    if len(plays) < 2:
        raise BadData(f"game {games[0]} has one play only; two are needed to hold one out")
    first = plays[-max(1, round(HELD_OUT * len(plays)))]
    return [piece.play >= first for piece in pieces]


def _arrays(pieces: Sequence[Piece]) -> dict[str, NDArray[Any]]:
    longest = max(len(piece.x) for piece in pieces)
    x = np.full((len(pieces), longest, 2), np.nan, np.float32)
    for row, piece in enumerate(pieces):
        x[row, : len(piece.x)] = piece.x
    kept: dict[str, NDArray[Any]] = {
        "x": x,
        "length": np.array([len(piece.x) for piece in pieces], np.int32),
        "game_id": np.array([piece.game_id for piece in pieces]),
        "rate_hz": np.array(RATE_HZ, np.float32),
    }
    for key in ("play", "player", "raw_start"):
        kept[key] = np.array([getattr(piece, key) for piece in pieces], np.int32)
    for positions in WINDOWS:
        # Neighbours share the border position, so that no step is lost or in both.
        at = [
            (row, start)
            for row, piece in enumerate(pieces)
            for start in range(0, len(piece.x) - positions + 1, positions - 1)
        ]
        cut = [pieces[row].x[start : start + positions] for row, start in at]
        kept[f"w{positions}"] = np.array(cut, np.float32).reshape(-1, positions, 2)
        kept[f"w{positions}_src"] = np.array(at, np.int32).reshape(-1, 2)
    return kept


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    files = sorted(source.glob("*.json"))
    if not files:
        packed = " (unpack the .7z archives first)" if any(source.glob("*.7z")) else ""
        raise BadData(f"{source} holds no .json file{packed}")
    return files
