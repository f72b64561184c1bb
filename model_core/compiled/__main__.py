"""Compile the kernels of all built-in models into the cache: python -m model_core.compiled."""

import sys
import time

from model_core import compiled
from model_core.upm.builtin import BUILTIN

if not compiled.available():
    sys.exit("model_core.compiled: numba is missing; install the extra `fast`")
for number, (reference, model) in enumerate(BUILTIN.items(), 1):
    began = time.monotonic()
    kernel = compiled.kernel_of(model.build(model.simulated))
    if kernel is not None:
        kernel.compile()
        took_s = time.monotonic() - began
        print(f"[{number}/{len(BUILTIN)}] {reference}: {took_s:.1f} s", flush=True)
