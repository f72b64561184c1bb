"""Compile kernels on all cores: python -m tests.kernels [--all].

`make test` does this before the tests, so that none of them waits for a compiler that others wait
for as well: the kernels of `QUICK` take a minute on two cores. All others are needed by long tests
alone, and are compiled with --all.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

LEARNED = ("alpaca", "fleet", "pcoc")
# Of the default model, of a regression with an encoder, and of a label of each kind that streams
# are served by. Long ones first: the last to end should not be alone for long.
QUICK = ("averaged", "alpaca", "poisson", "gaussian")


def compile_kernel(name: str) -> tuple[str, float]:
    """Compile the kernel of a model, or load it; returns its name and the seconds it took."""
    from model_core import compiled
    from model_core.upm import untrained
    from model_core.upm.builtin import BUILTIN

    began = time.monotonic()
    if name in LEARNED:
        model = getattr(untrained, name)()
    else:
        model = BUILTIN[name].build(BUILTIN[name].simulated)
    kernel = compiled.kernel_of(model)
    if kernel is not None:
        kernel.compile()
    return name, time.monotonic() - began


def main(everything: bool) -> None:
    names = list(QUICK)
    if everything:
        from model_core.upm.builtin import BUILTIN

        names = [*LEARNED, *reversed(BUILTIN)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(compile_kernel, name) for name in names]
        for done, job in enumerate(as_completed(jobs), 1):
            name, seconds = job.result()
            print(f"kernel {done}/{len(names)}: {name}, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main("--all" in sys.argv[1:])
