"""Models: the predictive of an output under each hypothesis, and the update of the statistics."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Parts(NamedTuple):
    """What a kernel needs of a model.

    component, learn: see `step`. family: of the predictives, see `mixture`. statistics: number of
    their leaves. A model whose statistics are too large for one program has `prepare`, launched
    before the step, and `absorb`, launched after it: one program for each stream and hypothesis.
    features: of an encoder, which are the kernel's inputs; 0 without one. numbers: of the model.
    """

    component: Any
    learn: Any
    family: int
    statistics: int
    prepare: Any = None
    absorb: Any = None
    features: int = 0
    numbers: Tensor | None = None
