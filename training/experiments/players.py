"""Basketball players: from a position to the next step.

Of positions p_t in feet (court about 94 x 50), the input is p_t / 50 and the label the step
p_{t+1} - p_t in feet, as in appendix C of the paper. The switches are unknown.

Prepared from SportVU games as published (JSON, 25 Hz), cut into pieces of players' paths at 12.5
Hz. A game file is `{"gameid": ..., "events": [{"moments": [moment, ...]}, ...]}`, a moment
`[quarter, epoch ms, game clock, shot clock, null, [[team, player, x, y, z], ...]]` in feet; the
ball is of team -1. Events overlap: a moment counts once, where it comes first.

Files `<name>_train.npz` and `<name>_val.npz` hold `x` (n, T_max, 2) padded with nan, `length` (n,)
and the origin of the pieces: `game_id`, `play` or `example` (n,); the second one also `w151`
(m, 151, 2), fixed windows of 151 positions, thus 150 observations, and `w201`, alike, for figures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import compress, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.progress import track

from training import figures, paper
from training.data.files import Place, arrays, save
from training.data.windows import Batch, Series, Splits, fixed, windows
from training.errors import BadData
from training.figures import CURRENT, INK, MOCA, QUIET, SEGMENTS, Chart, Floats
from training.meta_training.runs import Run
from training.paper import Protocol

EVERY = 2  # frames of 25 Hz
GAP_MS = (20, 60)  # between frames of one piece
JUMP_FT = 1.0  # a frame: faster than any player
PLAYERS = 10
SHORTEST = 101  # positions: 8 seconds
WINDOWS = (151, 201)
HELD_OUT = 0.2  # share of the plays, of a single game
MOMENT = "[quarter, ms, clock, shot clock, null, [[team, player, x, y, z], ...]]"
SCALE_FT = 50.0
TESTED = 150  # observations of a test window
VALIDATION = 0.15
PROTOCOL = Protocol(200, TESTED)
# Of the figure of a trajectory.
PATH_LENGTH = 200  # observations (paper, fig. 4)
LENGTH = 94.0  # of an NBA court, feet
WIDTH = 50.0  # likewise
BELOW = 5  # a switch is where the most probable run length falls below it


class Piece(NamedTuple):
    """One player's path without a break: x (n, 2) feet at 12.5 Hz."""

    x: NDArray[np.float32]
    play: int
    game_id: str


def prepare(source: Path, out: Path, held_out: Sequence[str] = ()) -> list[Path]:
    """Write `nba_12p5hz_train.npz` and `nba_12p5hz_val.npz` of a game file or a folder of them.

    The second file holds the games `held_out`; if none is named, the last of several by its id,
    of a single one the last fifth of its plays. BadData names file, event and moment of what
    cannot be read. Archives (`.7z`) have to be unpacked before.
    """
    files = sorted(source.glob("*.json")) if source.is_dir() else [source]
    if not files:
        packed = " (unpack the .7z archives first)" if any(source.glob("*.7z")) else ""
        raise BadData(f"{source} holds no .json file{packed}")
    pieces = [piece for file in track(files, "Reading games") for piece in game_pieces(file)]
    if not pieces:
        raise BadData(f"{source}: no piece with {PLAYERS} players lasts {SHORTEST} positions")
    late = _held_out(pieces, held_out)
    return [
        save(out / f"nba_12p5hz_{name}.npz", **_arrays(list(compress(pieces, chosen))))
        for name, chosen in (("train", [not held for held in late]), ("val", late))
    ]


def game_pieces(file: Path) -> list[Piece]:
    """Paths of all players of a game: cut at lost frames, substitutions and impossible jumps."""
    game_id, frames = _frames(file)
    times = sorted(frames)
    step = np.diff(times)
    play = [frames[time_ms][0] for time_ms in times]
    player = np.array([sorted(frames[time_ms][1]) for time_ms in times]).reshape(-1, PLAYERS)
    position = np.array(
        [[xy for _, xy in sorted(frames[time_ms][1].items())] for time_ms in times]
    ).reshape(-1, PLAYERS, 2)
    lost = (step < GAP_MS[0]) | (step > GAP_MS[1])
    substituted = (player[1:] != player[:-1]).any(-1)
    jumped = (np.diff(position, axis=0) ** 2).sum(-1).max(-1, initial=0) > JUMP_FT**2
    cuts = 1 + np.flatnonzero(lost | substituted | jumped)
    pieces = []
    for stretch in np.split(np.arange(len(times)), cuts):
        kept = stretch[::EVERY]
        if len(kept) >= SHORTEST:
            paths = position[kept].astype(np.float32).swapaxes(0, 1)
            pieces += [Piece(x, play[kept[0]], game_id) for x in paths]
    return pieces


# A frame: the event in which it is first, and the position of each player in feet.
Frame = tuple[int, dict[int, tuple[float, float]]]


def _frames(file: Path) -> tuple[str, dict[int, Frame]]:
    """The game's id, and its frames with all players by their time in ms."""
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
            try:
                time_ms, players = _frame(moment)
            except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
                raise BadData(
                    f"{file}: event {number}, moment {place}: expected {MOMENT}: {error}"
                ) from error
            if len(players) == PLAYERS:
                frames.setdefault(time_ms, (number, players))
    return str(game["gameid"]), frames


def _frame(moment: Any) -> tuple[int, dict[int, tuple[float, float]]]:
    """Time in ms, and the position of each player."""
    players = {
        int(player): (float(x), float(y)) for team, player, x, y, _ in moment[5] if team != -1
    }
    if not np.isfinite(list(players.values())).all():
        raise ValueError("a position is not finite")
    return int(moment[1]), players


def _held_out(pieces: Sequence[Piece], held_out: Sequence[str]) -> list[bool]:
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
        "play": np.array([piece.play for piece in pieces], np.int32),
    }
    for positions in WINDOWS:
        # Neighbours share the border position, so that no step is lost or in both.
        cut = [
            piece.x[start : start + positions]
            for piece in pieces
            for start in range(0, len(piece.x) - positions + 1, positions - 1)
        ]
        kept[f"w{positions}"] = np.array(cut, np.float32).reshape(-1, positions, 2)
    return kept


def splits(place: Place, name: str = "nba_12p5hz", validation: float = VALIDATION) -> Splits:
    """Training and validation of `<name>_train.npz`, test windows of `<name>_val.npz`.

    Validation are the last games, or the last plays if there are not several games named in the
    file: the fewest whole ones with at least the share `validation` of the positions. All players
    of a play are thus on one side. BadData if a file cannot be read or only one play is in it.
    """
    folder = place.recorded
    file = folder / f"{name}_train.npz"
    content = arrays(file, ["x", "length"], optional=["game_id", "play", "example"])
    games = content.get("game_id")
    groups = content.get("play", content.get("example"))
    if games is not None and len(np.unique(games)) > 1:
        groups = games
    if groups is None:
        raise BadData(f"{file} has neither several games in 'game_id' nor 'play' nor 'example'")
    lengths = content["length"]
    order = np.unique(groups)
    if len(order) < 2:
        raise BadData(f"{file} holds one play or game only; two are needed to hold one out")
    if not 0 < validation < 1:
        raise ValueError(f"expected a share in (0, 1), got {validation}")
    sizes = np.array([lengths[groups == group].sum() for group in order])
    later = np.cumsum(sizes[::-1])[::-1] - sizes  # positions after each group
    held_out = order[later < validation * sizes.sum()]
    late = np.isin(groups, held_out[held_out != order[0]])
    pieces = []
    for row, (stop, group) in enumerate(zip(lengths.tolist(), groups.tolist(), strict=True)):
        position = torch.from_numpy(content["x"][row, :stop]).double()
        if not position.isfinite().all():
            raise BadData(f"row {row} of 'x' is not finite within its length {stop}")
        pieces.append(Series(*pairs(position), name=f"row {row} of {group}"))
    train = windows(list(compress(pieces, ~late)))
    kept = windows(list(compress(pieces, late)))
    return Splits(train, kept, fixed(held(folder, name)), x_dim=2, y_dim=2)


def held(folder: Path, name: str, length: int = TESTED) -> Batch:
    """The fixed windows of `length` observations (m, length, 2) of `<name>_val.npz`; BadData."""
    file = folder / f"{name}_val.npz"
    key = f"w{length + 1}"
    windows = arrays(file, [key])[key]
    if len(windows) == 0:
        raise BadData(f"{file} has no window in {key!r}")
    return Batch(*pairs(torch.from_numpy(windows).double()))


def pairs(position_ft: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels (..., T, 2) of positions (..., T + 1, 2) in feet."""
    return position_ft[..., :-1, :] / SCALE_FT, position_ft.diff(dim=-2)


def picture(run: Run, splits: Splits, place: Place) -> Chart:
    """The test window of the longest path, in the segments that the filter finds online."""
    name = str(run.config.data["name"])
    windows = held(place.recorded, name, PATH_LENGTH)
    longest = int(windows.y.norm(dim=-1).sum(-1).argmax())
    batch = windows.part(slice(longest, longest + 1))
    assert batch.x is not None
    (belief,) = paper.trace(paper.load(run, splits).model(), batch)
    title = f"A player's trajectory, window {longest} of {name}"
    return trajectory((batch.x[0] * SCALE_FT).numpy(), belief.numpy(), title)


@figures.styled
def trajectory(position: Floats, belief: Floats, title: str) -> Chart:
    """A player's path (T, 2) in feet, coloured by predicted segment; positions and belief below.

    Predicted switches, where the most probable run length of the belief (T, R) falls below `BELOW`,
    are dashed gray lines. A player who stands has no segments.
    """
    figure = Figure((8, 9))
    court, coordinates, lower = figure.subplots(3, 1, height_ratios=(43, 19, 22))
    likeliest = np.asarray(belief).argmax(-1)
    switch = 1 + np.flatnonzero((likeliest[1:] < BELOW) & (likeliest[:-1] >= BELOW))
    _draw_court(court)
    borders = [0, *switch.tolist(), len(position)]
    for k, (first, last) in enumerate(pairwise(borders)):
        part = position[max(first - 1, 0) : last]  # from where the one before ends
        court.plot(*part.T, color=SEGMENTS[k % len(SEGMENTS)], lw=2.6)
    for place, name, marker in ((position[0], "start", "s"), (position[-1], "end", "D")):
        court.plot(*place, color=INK, marker=marker, ls="", label=name)
    court.grid(False)
    court.set(xlabel="x (ft)", ylabel="y (ft)", title="colour: predicted segment", aspect="equal")
    coordinates.plot(position[:, 0], color=MOCA, label="x position")
    coordinates.plot(position[:, 1], color=CURRENT, ls="--", label="y position")
    coordinates.set(xlabel="time (steps)", ylabel="position (ft)")
    coordinates.set_xlim(-0.5, len(position) - 0.5)
    figures.draw_belief(lower, belief)
    for axes in (coordinates, lower):
        rules: dict[str, Any] = {"color": QUIET, "ls": "--", "lw": 1.2}
        figures.draw_rules(axes, switch - 0.5, "predicted switch", **rules)
    count = len(borders) - 1
    text = f"A trajectory of {len(position)} steps in {count} segments, its positions and belief."
    return figures.finished(figure, title, text)


def _draw_court(axes: Axes) -> None:
    """Sides, middle, and the keys before the baskets, in feet."""
    middle = LENGTH / 2
    lines: list[tuple[list[float], list[float]]] = [
        ([0, LENGTH, LENGTH, 0, 0], [0, 0, WIDTH, WIDTH, 0]),
        ([middle, middle], [0, WIDTH]),
        ([0, 19, 19, 0], [17, 17, 33, 33]),
        ([LENGTH, LENGTH - 19, LENGTH - 19, LENGTH], [17, 17, 33, 33]),
    ]
    for x, y in lines:
        axes.plot(x, y, color="#9aa5b1", lw=1.0)
