"""Compile all kernels into the cache: python -m model_core.compiled.

Those of learned models are for any sizes and weights, so that one model of each class is enough.
"""

import sys
import time

from model_core import compiled
from model_core.upm import untrained
from model_core.upm.builtin import BUILTIN

if not compiled.available():
    sys.exit("model_core.compiled: numba is missing; install the extra `fast`")
models = {reference: model.build(model.simulated) for reference, model in BUILTIN.items()}
models |= {"alpaca": untrained.alpaca(), "pcoc": untrained.pcoc(), "fleet": untrained.fleet()}
for number, (reference, model) in enumerate(models.items(), 1):
    began = time.monotonic()
    kernel = compiled.kernel_of(model)
    if kernel is not None:
        kernel.compile()
        took_s = time.monotonic() - began
        print(f"[{number}/{len(models)}] {reference}: {took_s:.1f} s", flush=True)
