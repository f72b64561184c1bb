"""The step of a batch as one call, by model and device.

Every kernel computes what `filter.step` computes; they differ in speed alone. The eager one serves
every model on every device; `in_place` gives the one of a model that has it, which steps rows where
they lie and is compiled for the CPU (see `model_core.compiled`).
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_core import compiled, readout
from model_core import filter as moca
from model_core.filter import FilterState, Inputs, Prior
from model_core.predictive import Mixture
from model_core.summary import Summary
from model_core.upm.base import UnderlyingModel

logger = logging.getLogger(__name__)


class InPlace(Protocol):
    """A kernel that steps rows where they lie; see `compiled.kernel.Kernel`."""

    model: UnderlyingModel
    ready: bool
    asked: bool

    def compile(self) -> None:
        """Make it ready; any thread may."""
        ...

    def views(self, tensors: Sequence[Tensor]) -> Any:
        """Rows of tensors, as `advance` takes them."""
        ...

    def advance(
        self,
        views: Any,
        rows: NDArray[np.int64],
        inputs: NDArray[np.float64],
        hazards: NDArray[np.float64],
        window: int,
        levels: NDArray[np.float64] = ...,
        summarised: bool = True,
        beliefs: NDArray[np.float64] = ...,
    ) -> tuple[NDArray[np.float64], Summary]:
        """Step rows by one observation each, in place; returns table and summary."""
        ...


class Stepped(NamedTuple):
    """The states after a step, the predictive mixture before it, and the table of `readout`."""

    state: FilterState
    predictive: Mixture
    table: Tensor


# Arguments: states, priors, inputs; confirmed (B,) and thresholds (B,) as in `readout.table`.
Kernel = Callable[[FilterState, Prior, Inputs, Tensor, Tensor], Stepped]


def select(model: UnderlyingModel, device: torch.device | str, recent_window: int) -> Kernel:
    """Return the kernel for a model on a device; the eager one serves all."""

    def eager(
        state: FilterState, prior: Prior, inputs: Inputs, confirmed: Tensor, thresholds: Tensor
    ) -> Stepped:
        state, info = moca.step(model, state, prior, inputs)
        table = readout.table(state, info, confirmed, thresholds, recent_window)
        return Stepped(state, info.predictive, table)

    return eager


def in_place(model: UnderlyingModel, device: torch.device | str) -> InPlace | None:
    """Return the kernel of a model on a device that steps in place, None where there is none.

    It may be used once it is `ready`; until then, and for rows that it refuses, the eager kernel
    serves. Streams of one model share it.
    """
    if _Switch.off or torch.device(device).type != "cpu":
        return None
    return compiled.kernel_of(model)


def usable(kernel: InPlace | None) -> bool:
    """Whether a kernel is compiled, and kernels are not turned off."""
    return kernel is not None and kernel.ready and not _Switch.off


def compile_soon(kernel: InPlace | None) -> None:
    """Have a kernel compiled, or loaded from the cache, in a background thread of its own."""
    if kernel is None or kernel.ready or kernel.asked:
        return
    kernel.asked = True
    _Compiler.waiting.put(kernel)
    with _Compiler.starting:
        if _Compiler.thread is None:
            _Compiler.thread = threading.Thread(target=_compile, name="compile", daemon=True)
            _Compiler.thread.start()


def compiling() -> bool:
    """Whether kernels are being compiled in this process, or wait for it."""
    return _Compiler.busy or not _Compiler.waiting.empty()


@contextlib.contextmanager
def eager_only() -> Iterator[None]:
    """Turn compiled kernels off, in the whole process."""
    before, _Switch.off = _Switch.off, True
    try:
        yield
    finally:
        _Switch.off = before


class _Switch:
    """Whether compiled kernels are turned off."""

    off = False


class _Compiler:
    """Kernels that wait to be compiled, and the thread that does."""

    waiting: queue.SimpleQueue[InPlace] = queue.SimpleQueue()
    starting = threading.Lock()
    thread: threading.Thread | None = None
    busy = False


def _compile() -> None:
    while True:
        kernel = _Compiler.waiting.get()
        _Compiler.busy = True
        try:
            kernel.compile()
            logger.info("the compiled kernel of %s is ready", kernel.model.kind)
        except Exception:  # the eager kernel goes on serving
            logger.exception("cannot compile the kernel of %s", kernel.model.kind)
        finally:
            _Compiler.busy = False
