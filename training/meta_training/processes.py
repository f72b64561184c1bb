"""Data-parallel processes, as started by `torchrun`; one process without it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, distributed

from training.errors import BadConfig


class World(NamedTuple):
    """Rank of this process, and the number of processes that train together."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this one validates, logs and saves."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This process's windows of a batch of `count`; raises BadConfig."""
        if count % self.size:
            raise BadConfig(
                f"optimiser.batch: expected a multiple of {self.size}, the number of processes, "
                f"got {count}"
            )
        size = count // self.size
        return slice(self.rank * size, (self.rank + 1) * size)

    def total(self, value: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.size > 1:
            value = value.clone()
            distributed.all_reduce(value)
        return value

    def agree(self, decision: bool) -> bool:
        """Broadcast the first process's decision."""
        agreed = [decision]
        if self.size > 1:
            distributed.broadcast_object_list(agreed)
        return agreed[0]


@contextmanager
def world(device: str) -> Iterator[World]:
    """Join the processes that `torchrun` started; a single one without it.

    Raises BadConfig where the environment names several processes that cannot be joined.
    """
    size = _count("WORLD_SIZE", 1, least=1)
    if size == 1:
        yield World()
        return
    if device == "cuda":  # one for each process
        torch.cuda.set_device(_count("LOCAL_RANK", 0, least=0))
    try:
        distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise BadConfig(
            f"WORLD_SIZE is {size}, but the processes cannot be joined ({reason}): use torchrun"
        ) from error
    try:
        yield World(distributed.get_rank(), size)
    finally:
        # References to the group keep its threads running, and a process that ends with such a
        # thread is sometimes aborted.
        gc.collect()
        distributed.destroy_process_group()


def _count(name: str, default: int, *, least: int) -> int:
    """An integer of the environment; raises BadConfig."""
    text = os.environ.get(name) or str(default)
    if not text.isdecimal() or int(text) < least:
        raise BadConfig(f"{name}: expected a whole number from {least}, got {text!r}")
    return int(text)
