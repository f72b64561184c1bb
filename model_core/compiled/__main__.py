"""Compile kernels into the cache, on all cores: python -m model_core.compiled [NAME ...].

NAME: of built-in models, `alpaca`, `pcoc`, `fleet`; `step`, which all share, and `beside`, which
are anomalies and corrections; all without one. Those of learned models are for any sizes and
weights: one of each class is enough. They need torch; without it all are those of built-in models.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module
from importlib.util import find_spec

from model_core import compiled
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import BUILTIN

LEARNED: dict[str, Callable[[], UnderlyingModel]] = {}
if find_spec("torch"):
    from model_core.upm import untrained

    LEARNED = {"alpaca": untrained.alpaca, "pcoc": untrained.pcoc, "fleet": untrained.fleet}
STEP = "step"  # what all kernels share
BESIDE = "beside"  # of no model
# Processes that compile what they share at the same time compile it twice: the mixtures of gaussian
# are there once averaged begins, averaged and multivariate once joint does.
FIRST = (
    STEP, "gaussian", "bernoulli", "categorical", BESIDE, "averaged", "multivariate", "poisson",
    "joint",
)  # fmt: skip
NAMES = tuple(dict.fromkeys((*FIRST, *LEARNED, *BUILTIN)))


def compile_kernel(name: str) -> float:
    """Have a kernel in the cache; returns the seconds that took."""
    logging.getLogger("model_core").addHandler(logging.NullHandler())  # this program says it
    began = time.monotonic()
    step = import_module("model_core.compiled.step")
    if name == BESIDE:
        import_module("model_core.compiled.beside")
    elif name == STEP:
        step.driver()
        step.reader()
    else:
        build = LEARNED.get(name, lambda: BUILTIN[name].build(BUILTIN[name].example))
        parts = compiled.parts_of(build())
        assert parts is not None
        _, functions = parts
        step.addresses(functions)
    return time.monotonic() - began


def main() -> None:
    """Compile the kernels that the command line names."""
    parser = argparse.ArgumentParser("python -m model_core.compiled", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}")
    names = parser.parse_args().names or NAMES
    if unknown := set(names) - set(NAMES):
        parser.error(f"expected some of {', '.join(NAMES)}, got {', '.join(sorted(unknown))}")
    began = time.monotonic()
    # Most of what compilation allocates stays: to search it for garbage takes a tenth of the time.
    with ProcessPoolExecutor(os.cpu_count(), initializer=gc.disable) as pool:
        jobs = {pool.submit(compile_kernel, name): name for name in names}
        for number, job in enumerate(as_completed(jobs), 1):
            seconds = job.result()
            print(f"[{number}/{len(jobs)}] kernel of {jobs[job]}: {seconds:.1f} s", flush=True)
    print(f"{len(names)} kernels in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
