"""What models with a learned encoder share: scaling, and labels before as inputs."""

from __future__ import annotations

from dataclasses import dataclass

from model_core.encoder import Encoder
from model_core.lazy import Tensor, torch
from model_core.upm import lags as memory
from model_core.upm.base import Reading, UnderlyingModel


@dataclass(frozen=True, kw_only=True)
class Encoded(UnderlyingModel):
    """A model of features of inputs that are scaled by `(x - x_offset) / x_scale`."""

    encoder: Encoder
    x_offset: Tensor
    x_scale: Tensor

    @property
    def x_dim(self) -> int:  # type: ignore[override]
        """Numbers in an input."""
        return len(self.x_offset)

    def encoded(self, x: Tensor | None, before: Tensor | None = None) -> Tensor:
        """Features (B, n) of inputs (B, x_dim), and of labels before (B, k) as they are."""
        parts = [] if before is None else [before]
        if self.x_dim > 0 or before is None:
            parts.insert(0, (self.required(x) - self.x_offset) / self.x_scale)
        return self.encoder(parts[0] if len(parts) == 1 else torch.cat(parts, -1))


@dataclass(frozen=True, kw_only=True)
class Learned(Encoded):
    """Features of scaled inputs, and of the last `lags` labels of the stream.

    Labels are scaled likewise. The encoder takes the inputs, then the labels, the latest first; 0
    stands for those before the first.
    """

    y_offset: Tensor
    y_scale: Tensor
    lags: int = 0
    hazard: float | tuple[float, ...] = 0.01
    outlier_rate: float = 0.0

    @property
    def y_dim(self) -> int:  # type: ignore[override]
        """Number of outputs."""
        return len(self.y_offset)

    def context(self, location: Tensor, scale: Tensor) -> Tensor:
        """The labels before, none yet."""
        if self.lags == 0:
            return super().context(location, scale)
        offset, unit = (own.expand(len(location), -1) for own in (self.y_offset, self.y_scale))
        return memory.begin(offset, unit, self.lags)

    def remember(
        self, context: Tensor, y: Tensor, labelled: Tensor, reading: Reading | None = None
    ) -> Tensor:
        """Labels before, one later; an outlier does not count in full, nor a missing output."""
        if self.lags == 0:
            return context
        return memory.advance(context, y, labelled.unsqueeze(-1) & ~torch.isnan(y))

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """Features (B, n) of inputs (B, x_dim), or None where that is 0, in a context."""
        before = memory.read(context, self.y_dim)[1] if self.lags > 0 else None
        return self.encoded(x, before)
