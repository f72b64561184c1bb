"""One process or several: `torchrun` starts them and says so in the environment it gives them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, distributed

from training.errors import BadConfig


class World(NamedTuple):
    """This process among those that train together."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this one validates, logs and saves."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Windows of a batch of `count` that are this process's; raises BadConfig."""
        if count % self.size:
            raise BadConfig(
                f"optimiser.batch: {count} windows cannot be shared evenly by {self.size} processes"
            )
        each = count // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def total(self, value: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.size > 1:
            value = value.clone()
            distributed.all_reduce(value)
        return value

    def agree(self, decision: bool) -> bool:
        """What the first process decided."""
        if self.size == 1:
            return decision
        flag = torch.tensor([int(decision)])
        if distributed.get_backend() == "nccl":
            flag = flag.cuda()
        distributed.broadcast(flag, 0)
        return bool(flag.item())


@contextmanager
def world(device: str) -> Iterator[World]:
    """The processes that `torchrun` started; alone without it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    if device == "cuda":  # each its own
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield World(distributed.get_rank(), size)
    finally:
        distributed.destroy_process_group()
