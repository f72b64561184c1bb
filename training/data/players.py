"""Basketball players: from a position to the next step.

Of positions p_t in feet (court about 94 x 50), the input is p_t / 50 and the label the step
p_{t+1} - p_t in feet, as in appendix C of the paper. The switches are unknown.

Files `<name>_train.npz` and `<name>_val.npz` hold `x` (n, T_max, 2) padded with nan, `length` (n,)
and the origin of the pieces: `game_id`, `play` or `example` (n,); the second one also `w151`
(m, 151, 2), fixed windows of 151 positions, thus 150 observations, and `w201`, alike, for figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.data.base import Batch, Splits
from training.data.files import arrays, keys
from training.data.windows import Fixed, Series, Windows
from training.errors import BadData

SCALE_FT = 50.0
TESTED = 150  # observations of a test window
VALIDATION = 0.15


def splits(folder: Path, name: str = "nba_12p5hz", validation: float = VALIDATION) -> Splits:
    """Training and validation of `<name>_train.npz`, test windows of `<name>_val.npz`.

    Validation are the last games, or the last plays if there are not several games named in the
    file: the fewest whole ones with at least the share `validation` of the positions. All players
    of a play are thus on one side. BadData if a file cannot be read or only one play is in it.
    """
    file = folder / f"{name}_train.npz"
    groups = _groups(file)
    content = arrays(file, ["x", "length"])
    late = _last(groups, content["length"], validation, file)
    pieces = _pieces(content["x"], content["length"], groups)
    train = [piece for piece, held_out in zip(pieces, late, strict=True) if not held_out]
    kept = [piece for piece, held_out in zip(pieces, late, strict=True) if held_out]
    return Splits(Windows(train), Windows(kept), Fixed(held(folder, name)), x_dim=2, y_dim=2)


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


def _groups(file: Path) -> NDArray[Any]:
    """Group of each piece: the game if there are several, else the play."""
    have = keys(file)
    if "game_id" in have:
        games = arrays(file, ["game_id"])["game_id"]
        if len(np.unique(games)) > 1:
            return games
    segment = next((key for key in ("play", "example") if key in have), None)
    if segment is None:
        raise BadData(f"{file} has neither several games in 'game_id' nor 'play' nor 'example'")
    return arrays(file, [segment])[segment]


def _last(
    groups: NDArray[Any], length: NDArray[Any], share: float, file: Path
) -> NDArray[np.bool_]:
    order = np.unique(groups)
    if len(order) < 2:
        raise BadData(f"{file} holds one play or game only; two are needed to hold one out")
    if not 0 < share < 1:
        raise ValueError(f"expected a share in (0, 1), got {share}")
    sizes = np.array([length[groups == group].sum() for group in order])
    later = np.cumsum(sizes[::-1])[::-1] - sizes  # positions after each group
    held_out = order[later < share * sizes.sum()]
    return np.isin(groups, held_out[held_out != order[0]])


def _pieces(x: NDArray[Any], length: NDArray[Any], groups: NDArray[Any]) -> list[Series]:
    pieces = []
    for row, (stop, group) in enumerate(zip(length.tolist(), groups.tolist(), strict=True)):
        position = torch.from_numpy(x[row, :stop]).double()
        if not position.isfinite().all():
            raise BadData(f"row {row} of 'x' is not finite within its length {stop}")
        pieces.append(Series(*pairs(position), None, f"row {row} of {group}"))
    return pieces
