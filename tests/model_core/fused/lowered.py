"""Compile a model's fused kernels for a GPU that is not there, as far as its machine code.

In a process of its own, without Triton's interpreter. Prints how many kernels there were, and how
many of their starts had machine code.
"""

import sys

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from model_core import filter as moca
from model_core import fused, quantiles
from model_core.compiled import LABEL
from model_core.fused import kernel
from model_core.upm import conjugate, untrained

MODELS = {
    "gaussian": (conjugate.Gaussian(y_dim=2), 6),
    "alpaca": (untrained.alpaca(), 50),
    "alpaca-known": (untrained.alpaca(known_noise=True), 50),
}


class Absent:
    """A driver of a GPU of compute capability 9.0 that starts nothing."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def main(name: str) -> None:
    driver.set_active(Absent())
    model, hypotheses = MODELS[name]
    found = []

    def compiled(each, grid, *arguments, **constants):
        found.append(each.warmup(*arguments, grid=grid, **constants))

    kernel.start = compiled
    own = fused.kernel_of(model, hypotheses, "cpu")
    one = torch.ones(3, model.scaled, dtype=torch.float64)
    prior = moca.make_prior(model, one, one)
    leaves = [*moca.leaves(moca.init(prior, hypotheses)), *prior.stats, *prior[1:]]
    views = own.views([each.clone().contiguous() for each in leaves])
    levels = quantiles.with_normal((0.05, 0.5, 0.95))
    seen = np.zeros((3, LABEL + model.y_dim + model.x_dim))
    for entries in (1, 16):  # a table of hazards of any length
        for summarised in (True, False):
            hazards = np.full((3, entries), 0.1)
            own.advance(views, np.arange(3), seen, hazards, 5, levels, summarised)
    ready = [each for each in found if each.asm["cubin"]]
    print(len({id(each) for each in found}), len(ready))


if __name__ == "__main__":
    main(sys.argv[1])
