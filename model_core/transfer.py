"""Copies between the host and a device: as few as may be, so that the host seldom waits.

A number that is read off a device makes the host wait for all work before it. What a step or an
answer needs is therefore computed without a look at any, and copied together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_core.lazy import Tensor, is_tensor, torch


def moved(value: Any, device: torch.device | str) -> Any:
    """A model, or a part of one, with its tensors on the device."""
    if is_tensor(value):
        return value.to(device)
    if isinstance(value, tuple):
        parts = [moved(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        changed = {name: moved(part, device) for name, part in fields.items()}
        return dataclasses.replace(value, **changed)
    return value


def out_of_memory(error: Exception) -> bool:
    """Whether a device had no room left."""
    return type(error).__name__ == "OutOfMemoryError"


def on_host(tensor: Tensor) -> bool:
    """Whether a look at the tensor's numbers waits for no device; none are there in a trace."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def constant(values: float | Sequence[Any], like: Tensor) -> Tensor:
    """A few numbers where a tensor is: on a device they are filled in, not copied from the host."""
    if on_host(like):
        return like.new_tensor(values)
    if isinstance(values, Sequence):
        return torch.stack([constant(value, like) for value in values])
    return like.new_full((), values)


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of 64-bit numbers that lie on one device, on the host: one copy, one wait.

    Those on the host are returned as they are.
    """
    if all(map(on_host, tensors)):
        return list(tensors)
    packed = torch.cat([tensor.reshape(-1).view(torch.float64) for tensor in tensors])
    # Pinned memory alone is copied to while the host goes on.
    pinned = packed.device.type == "cuda"
    host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=pinned)
    host.copy_(packed, non_blocking=pinned)
    if pinned:
        torch.cuda.current_stream(packed.device).synchronize()
    parts = torch.split(host, [prod(tensor.shape) for tensor in tensors])
    pairs = zip(parts, tensors, strict=True)
    return [part.view(tensor.dtype).reshape(tensor.shape) for part, tensor in pairs]


def to_arrays(values: Sequence[NDArray[Any]] | Sequence[Tensor]) -> list[NDArray[Any]]:
    """Arrays as they are, and tensors as arrays of the host; see `to_host`."""
    if all(isinstance(value, np.ndarray) for value in values):
        return list(values)  # type: ignore[arg-type]
    return [tensor.numpy() for tensor in to_host(values)]  # type: ignore[arg-type]


def to_device(values: NDArray[Any] | Sequence[int] | Tensor, device: torch.device | str) -> Tensor:
    """Numbers of the host as a tensor on a device; the host does not wait for the copy."""
    tensor = torch.as_tensor(values)
    here = on_host(tensor)  # a copy to the host must be waited for
    if here and torch.device(device).type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=here)
