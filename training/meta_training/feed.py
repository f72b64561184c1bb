"""Training batches on the device: the next one is drawn and copied while the device works."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from model_core import transfer
from training.config import Config
from training.data.windows import Batch, Source
from training.errors import BadConfig
from training.meta_training.objective import reveal


class Fed(NamedTuple):
    """What one iteration learns from.

    supervision: (B, T), None without; see `objective.reveal`.
    """

    batch: Batch
    supervision: Tensor | None


class Feed:
    """Windows of one process's share of each batch.

    All processes draw whole batches, from generators of one seed.
    """

    def __init__(
        self,
        source: Source,
        config: Config,
        share: slice,
        generator: torch.Generator,
        device: torch.device,
    ) -> None:
        self._source = source
        self._config = config
        self._share = share
        self._generator = generator
        self._device = device
        self._ahead: Fed | None = None
        self._before = generator.get_state()

    @property
    def state(self) -> Tensor:
        """State of the generator that a resumed run draws its next batch from."""
        return self._generator.get_state() if self._ahead is None else self._before

    def take(self) -> Fed:
        """The next batch; raises BadConfig where supervision is not known."""
        fed = self._ahead or self._drawn()
        self._ahead = None
        return fed

    def prepare(self) -> None:
        """Draw the next batch; the host has nothing to gain from it, only another device has."""
        if self._device.type != "cpu" and self._ahead is None:
            self._before = self._generator.get_state()
            self._ahead = self._drawn()

    def _drawn(self) -> Fed:
        wanted = self._config.optimiser
        batch = self._source.draw(self._generator, wanted.batch, wanted.length)
        supervision = _supervision(self._config, batch, self._generator)
        there = batch.part(self._share).to(self._device, wanted.precision)
        if supervision is not None:
            part = supervision[self._share].to(wanted.precision)
            supervision = transfer.to_device(part, self._device)
        return Fed(there, supervision)


def _supervision(config: Config, batch: Batch, generator: torch.Generator) -> Tensor | None:
    """Supervision of a batch."""
    if config.objective.supervision == 0:
        return None
    if batch.switch is None:
        raise BadConfig("supervision needs switches: those of the data are unknown")
    return reveal(batch.switch, config.objective.supervision, generator)
