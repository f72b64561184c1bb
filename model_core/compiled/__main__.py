"""Compile kernels into the cache, on all cores: python -m model_core.compiled [NAME ...].

NAME: of built-in models, `alpaca`, `pcoc`, `fleet`; `step`, which all share, `beside`, which are
anomalies and corrections, `explaining` and `periods`, which are loops of explanations and seasons,
`checksums`, of what is stored, `plain`, which are loops over plain observations; all without one.
Those of learned models are for any sizes and weights. Such models need torch; without it all are
those of built-in models.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module
from importlib.util import find_spec

from model_core import compiled
from model_core.upm.builtin import BUILTIN

# Modules of learned models, and what they compute there; of unknown noise `alpaca` is as `linear`.
LEARNED = {
    "alpaca": ("regression", "OF_KNOWN_NOISE"),
    "pcoc": ("pcoc", "FUNCTIONS"),
    "fleet": ("fleet", "FUNCTIONS"),
}
STEP = "step"  # what all kernels share
ALONE = ("beside", "explaining", "periods", "checksums", "plain")  # of no model
# Processes that compile what they share at the same time compile it twice: the mixtures of gaussian
# are there once averaged begins, averaged and multivariate once joint does.
FIRST = (
    STEP, "gaussian", "bernoulli", "categorical", *ALONE, "averaged", "multivariate", "poisson",
    "joint",
)  # fmt: skip
NAMES = tuple(dict.fromkeys((*FIRST, *(LEARNED if find_spec("torch") else ()), *BUILTIN)))


def compile_kernel(name: str) -> float:
    """Have a kernel in the cache; returns the seconds that took."""
    logging.getLogger("model_core").addHandler(logging.NullHandler())  # this program says it
    began = time.monotonic()
    step = import_module("model_core.compiled.step")
    if name in ALONE:
        import_module(f"model_core.compiled.{name}")
    elif name == STEP:
        step.driver()
        step.reader()
    elif name in LEARNED:
        module, functions = LEARNED[name]
        step.addresses(getattr(import_module(f"model_core.compiled.models.{module}"), functions))
    else:
        parts = compiled.parts_of(BUILTIN[name].build(BUILTIN[name].example))
        assert parts is not None
        step.addresses(parts[1])
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
