"""What an encoder is; none, and layers of weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from model_core.lazy import Tensor, torch

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda value: torch.relu(value),
    "tanh": lambda value: torch.tanh(value),
    "identity": lambda value: value,
}


class Encoder(Protocol):
    """Anything that maps inputs (B, x_dim) to features (B, n)."""

    def __call__(self, x: Tensor) -> Tensor:
        """Features of a batch of inputs."""
        ...


@dataclass(frozen=True)
class Identity:
    """Features are the inputs."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the inputs."""
        return x


@dataclass(frozen=True)
class Mlp:
    """Layers `activation(W x + b)`, the last one with `output_activation`; W is (out, in).

    linear: `W` and `b` of features that are linear in the inputs, after the others.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    activation: str = "relu"
    output_activation: str = "identity"
    linear: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Features of a batch of inputs."""
        last = len(self.weights) - 1
        inputs = x
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            name = self.output_activation if i == last else self.activation
            x = ACTIVATIONS[name](torch.nn.functional.linear(x, weight, bias))
        if self.linear is None:
            return x
        return torch.cat((x, torch.nn.functional.linear(inputs, *self.linear)), -1)
