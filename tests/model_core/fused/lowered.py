"""Compile a model's fused kernel for a GPU that is not there, as far as its machine code.

In a process of its own, without Triton's interpreter. Prints how many kernels there were, and how
many of them are machine code.
"""

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from model_core import filter as moca
from model_core import fused, quantiles
from model_core.fused import kernel
from model_core.fused.step import step
from model_core.upm import conjugate

OUTPUTS, SLOTS = 2, 6


class Absent:
    """A driver of a GPU of compute capability 9.0 that starts nothing."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


class Warmed:
    """The kernel, compiled at each start in place of being started."""

    def __init__(self) -> None:
        self.found = []

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.found.append(step.warmup(*args, grid=grid, **kwargs))


def main() -> None:
    driver.set_active(Absent())
    kernel.step = warmed = Warmed()
    model = conjugate.Gaussian(y_dim=OUTPUTS)
    own = fused.kernel_of(model, SLOTS, "cpu")
    one = torch.ones(3, OUTPUTS, dtype=torch.float64)
    prior = moca.make_prior(model, one, one)
    leaves = [*moca.leaves(moca.init(prior, SLOTS)), *prior.stats, *prior[1:]]
    views = own.views([each.clone().contiguous() for each in leaves])
    levels = quantiles.with_normal((0.05, 0.5, 0.95))
    for entries in (1, 16):  # a table of hazards of any length
        for summarised in (True, False):
            given = np.zeros((3, 6 + OUTPUTS)), np.full((3, entries), 0.1)
            own.advance(views, np.arange(3), *given, 5, levels, summarised)
    ready = [each for each in warmed.found if each.asm["cubin"]]
    print(len({id(each) for each in warmed.found}), len(ready))


if __name__ == "__main__":
    main()
