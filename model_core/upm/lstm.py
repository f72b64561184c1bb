"""LSTM meta-learner: statistics are what a recurrent cell remembers (MOCA, app. B.1).

Hochreiter et al. (2001), but for the decoder, which sees the input's features beside the hidden
state. The cell takes in the features of the coming input and the label before it, and only then is
the coming label predicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from model_core.components import Normal
from model_core.encoder import ACTIVATIONS, Mlp
from model_core.upm import recurrent
from model_core.upm.base import OUTLIER_SPREAD, Block, Starts, Stats, tree_map
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
    kind: str = "lstm"

    def prior(self, location: Tensor, scale: Tensor) -> LstmStats:
        """Zeros: the state, and the label before the first, in scaled units."""
        hidden = self.weight_hh.new_zeros(len(location), 1, self.weight_hh.shape[1])
        return LstmStats(hidden, hidden, hidden.new_zeros(len(location), 1, self.y_dim))

    def advance(self, stats: LstmStats, phi: Tensor) -> LstmStats:
        """The cell with the features (B, n) of the coming input; the label before stays."""
        # The features are the same for all hypotheses: their share of the gates is too.
        return self._cell(stats, self._share(phi).unsqueeze(1))

    def _share(self, phi: Tensor) -> Tensor:
        """What features (..., n) add to the gates (..., 4h)."""
        return linear(phi, self.weight_ih[:, : phi.shape[-1]], self.bias_ih)

    def _cell(self, stats: LstmStats, share: Tensor) -> LstmStats:
        gates = share + linear(stats.y_prev, self.weight_ih[:, -self.y_dim :])
        gates = gates + linear(stats.hidden, self.weight_hh, self.bias_hh)
        write, keep, new, read = gates.chunk(4, -1)
        cell = torch.sigmoid(keep) * stats.cell + torch.sigmoid(write) * torch.tanh(new)
        return stats._replace(hidden=torch.sigmoid(read) * torch.tanh(cell), cell=cell)

    def decode(self, hidden: Tensor, phi: Tensor) -> Normal:
        """Predictive of each hypothesis from the state (B, S, h) after `advance`."""
        features = phi.unsqueeze(1).expand(-1, hidden.shape[1], -1)
        return self._normal(self.decoder(torch.cat((hidden, features), -1)))

    def predictive(self, stats: LstmStats, phi: Tensor | None) -> Normal:
        """Predictive of each hypothesis, in the units of the labels."""
        features = self.required(phi)
        return self.decode(self.advance(stats, features).hidden, features)

    def outlier(self, prior: LstmStats, phi: Tensor | None) -> Normal:
        """The prior predictive with ten times its variance."""
        wide = self.predictive(prior, phi)
        return wide._replace(scale=wide.scale * OUTLIER_SPREAD**0.5)

    def update(self, stats: LstmStats, phi: Tensor | None, y: Tensor, weight: Tensor) -> LstmStats:
        """The cell's state and the label; between old and new by `weight`, in a straight line.

        A state is not a sum of observations, so a fraction of one has no exact meaning; at 0 and 1
        it is exactly the old and exactly the new.
        """
        return self._moved(stats, self.advance(stats, self.required(phi)), y, weight)

    def block(self, stats: LstmStats, phi: Tensor | None, y: Tensor, weight: Tensor) -> Block:
        """The cell row by row, all starts as one batch; what needs no state before is done at once.

        The cell is the same for predicting and for learning.
        """
        features = self.required(phi)
        states = []
        certain = bool((weight == 1).all())
        for i, share in enumerate(self._share(features).unsqueeze(2).unbind(1)):
            new = self._cell(stats, share)
            states.append(new.hidden)
            if certain:
                stats = new._replace(y_prev=self._label(y[:, i]).expand_as(stats.y_prev))
            else:
                stats = self._moved(stats, new, y[:, i], weight[..., i])
        hidden = torch.stack(states, 2)
        tiled = features.unsqueeze(1).expand(-1, hidden.shape[1], -1, -1)
        predictive = self._normal(self.decoder(torch.cat((hidden, tiled), -1)))
        return Block(predictive.joint_log_density(y.unsqueeze(1)), None, stats)

    def every_start(
        self, prior: Stats, phi: Tensor | None, y: Tensor, weight: Tensor, longest: int | None
    ) -> Starts | None:
        """By the rows behind a start; in blocks where rows are not absorbed."""
        if not bool(weight.all()):
            return None
        steps = y.shape[1]
        lengths = steps if longest is None else min(steps, longest + 1)
        features, label = (
            sequence.transpose(0, 1).contiguous() for sequence in (self.required(phi), y)
        )
        first = self._share(features) + self.bias_hh
        before = pad((label[:-1] - self.y_offset) / self.y_scale, (0, 0, 0, 0, 1, 0))
        later = first + linear(before, self.weight_ih[:, -self.y_dim :])
        states = recurrent.hidden(first, later, self.weight_hh, lengths)
        predictive = self._normal(self._decoded(states, features, lengths))
        densities = predictive.joint_log_density(torch.cat([label[r:] for r in range(lengths)]))
        return Starts(recurrent.by_start(densities, steps, lengths))

    def _decoded(self, states: Iterable[Tensor], features: Tensor, lengths: int) -> Tensor:
        """Answers of the decoder, one length after the other; features: (T, B, n)."""
        layers = self.decoder
        size = self.weight_hh.shape[1]
        weight = layers.weights[0]
        deeper = len(layers.weights) > 1
        share = recurrent.tails(linear(features, weight[:, size:], layers.biases[0]), lengths)
        activate = ACTIVATIONS[layers.activation if deeper else layers.output_activation]
        deeper_layers = replace(layers, weights=layers.weights[1:], biases=layers.biases[1:])
        answers = []
        for hidden, tail in zip(states, share, strict=True):
            into = torch.addmm(tail.flatten(0, 1), hidden.flatten(0, 1), weight[:, :size].T)
            answers.append(deeper_layers(activate(into.view_as(tail))))
        return torch.cat(answers)

    def _normal(self, answers: Tensor) -> Normal:
        """Predictive of a decoder's answers (..., 2 y)."""
        mean, log_variance = answers.chunk(2, -1)
        scale = (0.5 * log_variance).exp()
        return Normal(mean * self.y_scale + self.y_offset, scale * self.y_scale)

    def _label(self, y: Tensor) -> Tensor:
        """Scaled (B, 1, y)."""
        return ((y - self.y_offset) / self.y_scale).unsqueeze(1)

    def _moved(self, old: LstmStats, new: LstmStats, y: Tensor, weight: Tensor) -> LstmStats:
        label = self._label(y).expand_as(old.y_prev)
        share = weight.unsqueeze(-1)
        return tree_map(
            lambda a, b: torch.where(share > 0, torch.lerp(a, b, share), a),
            old,
            new._replace(y_prev=label),
        )
