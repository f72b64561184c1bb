"""LSTM meta-learner: statistics are what a recurrent cell remembers (MOCA, app. B.1).

Hochreiter et al. (2001), but for the decoder, which sees the input's features beside the hidden
state. The cell takes in the features of the coming input and the label before it, and only then is
the coming label is predicted.

Of every start at once: after `r` rows the starts `0..T-r-1` stand before the rows `r..T-1`. With
time as the first axis both are slices that lie together in memory, no start is carried before it is
born, and what does not depend on the start, the inputs' share of the gates, is computed once for
each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from model_core.components import Normal
from model_core.encoder import Mlp
from model_core.upm import lattice
from model_core.upm.base import Densities, Stats, tree_map
from model_core.upm.learned import Learned


class LstmStats(NamedTuple):
    """Hidden and cell state (B, S, h), and the label before, scaled, (B, S, y)."""

    hidden: Tensor
    cell: Tensor
    y_prev: Tensor


@dataclass(frozen=True, kw_only=True)
class Lstm(Learned):
    """Gaussian predictives with a diagonal covariance, decoded from the hidden state.

    weight_ih: (4h, n + y) and weight_hh: (4h, h), bias_ih and bias_hh: (4h,), in the order of
    torch.nn.LSTMCell (input, forget, cell, output). decoder: from (hidden, features) to the means
    and then the log variances. All answers are in the units of the labels. Every regime starts
    from zeros.
    """

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor
    decoder: Mlp
    kind = "lstm"
    outliers = True

    def prior(self, location: Tensor, scale: Tensor) -> LstmStats:
        """Zeros: the state, and the label before the first, in scaled units."""
        hidden = self.weight_hh.new_zeros(len(location), 1, self.weight_hh.shape[1])
        return LstmStats(hidden, hidden, hidden.new_zeros(len(location), 1, self.y_dim))

    def advance(self, stats: LstmStats, phi: Tensor) -> LstmStats:
        """The cell with the features (B, n) of the coming input; the label before stays."""
        # The features are the same for all hypotheses: their share of the gates is too.
        gates = self._share(phi).unsqueeze(1)
        gates = gates + linear(stats.y_prev, self.weight_ih[:, -self.y_dim :])
        gates = gates + linear(stats.hidden, self.weight_hh, self.bias_hh)
        hidden, cell = _gated(gates, stats.cell)
        return stats._replace(hidden=hidden, cell=cell)

    def _share(self, phi: Tensor) -> Tensor:
        """What features (..., n) add to the gates (..., 4h)."""
        return linear(phi, self.weight_ih[:, : phi.shape[-1]], self.bias_ih)

    def predictive(self, stats: LstmStats, phi: Tensor | None) -> Normal:
        """Decoded from the state after `advance`, in the units of the labels."""
        phi = self.required(phi)
        hidden = self.advance(stats, phi).hidden
        features = phi.unsqueeze(1).expand(-1, hidden.shape[1], -1)
        return self._normal(self.decoder(torch.cat((hidden, features), -1)))

    def update(self, stats: LstmStats, phi: Tensor | None, y: Tensor, weight: Tensor) -> LstmStats:
        """The cell's state and the label; between old and new by `weight`, in a straight line.

        A state is not a sum of observations, so a fraction of one has no exact meaning; at 0 and 1
        it is exactly the old and exactly the new.
        """
        label = ((y - self.y_offset) / self.y_scale).unsqueeze(1).expand_as(stats.y_prev)
        new = self.advance(stats, self.required(phi))._replace(y_prev=label)
        share = weight.unsqueeze(-1)
        return tree_map(lambda a, b: torch.where(share > 0, torch.lerp(a, b, share), a), stats, new)

    def every_start(
        self, prior: Stats, phi: Tensor | None, y: Tensor, weight: Tensor, longest: int | None
    ) -> Densities | None:
        """By the rows behind a start; row by row where some are not absorbed."""
        if not bool(weight.all()):
            return None
        steps = y.shape[1]
        lengths = steps if longest is None else min(steps, longest + 1)
        features, label = (
            sequence.transpose(0, 1).contiguous() for sequence in (self.required(phi), y)
        )
        share = self._share(features) + self.bias_hh
        before = pad((label[:-1] - self.y_offset) / self.y_scale, (0, 0, 0, 0, 1, 0))
        later = share + linear(before, self.weight_ih[:, -self.y_dim :])
        hidden = cell = share.new_zeros(*share.shape[:2], self.weight_hh.shape[1])
        densities = []
        for r in range(lengths):
            rows = later[r:] if r else share
            behind = hidden[: steps - r].flatten(0, 1)
            gates = torch.addmm(rows.flatten(0, 1), behind, self.weight_hh.T)
            hidden, cell = _gated(gates.view_as(rows), cell[: steps - r])
            predictive = self._normal(self.decoder(torch.cat((hidden, features[r:]), -1)))
            densities.append(pad(predictive.joint_log_density(label[r:]), (0, 0, r, 0)))
        by_length = torch.stack(densities).permute(2, 0, 1).unsqueeze(-1)
        return Densities(lattice.by_start(by_length).squeeze(-1))

    def _normal(self, answers: Tensor) -> Normal:
        """Predictive of a decoder's answers (..., 2 y)."""
        mean, log_variance = answers.chunk(2, -1)
        scale = (0.5 * log_variance).exp()
        return Normal(mean * self.y_scale + self.y_offset, scale * self.y_scale)


def _gated(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden state and cell (..., h) after gates (..., 4h)."""
    write, keep, new, read = gates.chunk(4, -1)
    cell = torch.sigmoid(keep) * cell + torch.sigmoid(write) * torch.tanh(new)
    return torch.sigmoid(read) * torch.tanh(cell), cell
