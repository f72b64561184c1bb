"""Trainable LSTM meta-learner (paper, app. B.1)."""

from __future__ import annotations

from typing import Any

from torch import nn

from model_core.encoder import Mlp
from model_core.upm.lstm import Lstm
from training.config import ModelConfig
from training.learners.base import Learner, Scaling
from training.learners.encoders import EncoderModule


class LstmLearner(Learner):
    """Parameters of `model_core.upm.lstm.Lstm`."""

    kind = "lstm"

    def __init__(self, encoder: EncoderModule, scaling: Scaling, config: ModelConfig) -> None:
        super().__init__(encoder, scaling, config)
        outputs = len(scaling.y_offset)
        self.lags = config.lags
        self.lstm = nn.LSTMCell(encoder.features + outputs, config.hidden)
        widths = [config.hidden + encoder.features, *config.decoder, 2 * outputs]
        pairs = zip(widths[:-1], widths[1:], strict=True)
        self.decoder = nn.ModuleList(nn.Linear(into, out) for into, out in pairs)

    def model(self) -> Lstm:
        """Model of the current parameters."""
        layers = [layer for layer in self.decoder if isinstance(layer, nn.Linear)]
        weights = tuple(layer.weight for layer in layers)
        decoder = Mlp(weights, tuple(layer.bias for layer in layers))
        return Lstm(
            encoder=self.encoder,
            weight_ih=self.lstm.weight_ih,
            weight_hh=self.lstm.weight_hh,
            bias_ih=self.lstm.bias_ih,
            bias_hh=self.lstm.bias_hh,
            decoder=decoder,
            lags=self.lags,
            hazard=self._hazard_number(),
            **self._scalings(),
        )

    def description(self) -> dict[str, Any]:
        """With lags and decoder; the other sizes are those of the tensors."""
        decoder = {"activation": "relu"}
        return {**super().description(), "lags": self.lags, "decoder": decoder}
