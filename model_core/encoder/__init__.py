"""Encoders from inputs to features. Weights come from an artifact; evaluation only needs them."""

from model_core.encoder.conv import Conv, ConvBlock
from model_core.encoder.network import ACTIVATIONS, Encoder, Identity, Mlp
from model_core.encoder.time import Time

__all__ = ["ACTIVATIONS", "Conv", "ConvBlock", "Encoder", "Identity", "Mlp", "Time"]
