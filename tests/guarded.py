"""A device on which tensors may not be mixed with those of the CPU, by CUDA's rules.

`guard` stands for an accelerator where none exists. Its tensors are real ones, computed on the
CPU, so that numbers can be compared; what is refused is what a GPU refuses: operands on two
devices, a number read without `.cpu()`, a generator of another device, integer products. As on
CUDA, a tensor without dimensions may come from the CPU in an elementwise operation, indices may
lie on the CPU, and copies cross.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "guard"
CPU = torch.device("cpu")
_setup_privateuseone_for_python_backend(NAME)
DEVICE = torch.device(NAME, 0)

# Operations whose operands may be on several devices.
COPIES = {"aten::copy_", "aten::copy", "aten::_to_copy", "aten::to", "aten::type_as"}
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# What CUDA computes of floating-point numbers only.
PRODUCTS = {
    f"aten::{name}"
    for name in ("mm", "bmm", "mv", "dot", "matmul", "addmm", "baddbmm", "einsum", "linear")
}


# What has the host wait for a device. A copy to the host does too.
LOOKS = {
    f"aten::{name}"
    for name in ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal")
}


class _Waiting:
    """Whether the host may wait for the device, and operations for which it did, if recorded."""

    refused = False
    recorded: list[str] | None = None


class Guarded(Tensor):
    """A tensor on the guarded device: one of the CPU, kept inside."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Guarded:
        made: Guarded = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As a tensor of the CPU, which is what a file holds."""
        return self.inner.__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Guarded({self.inner!r})"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (Tensor.numpy, Tensor.__array__):
            raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy; use .cpu() first")
        if func is Tensor.tolist:  # copies to the CPU, as it does from a GPU
            _wait("tolist")
            return args[0].inner.tolist()
        if func is Tensor.new_tensor:  # makes its tensor below where operations are seen
            return torch.tensor(args[1], dtype=args[0].dtype).to(DEVICE)
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            args = (args[0], _indices(args[1]), *args[2:])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _dispatched(func, args, kwargs or {})


class Generator(torch.Generator):
    """In place of torch's: one of the guarded device, or a plain one."""

    def __new__(cls, device: Any = CPU) -> torch.Generator:  # type: ignore[misc]
        return super().__new__(cls) if _is_guard(device) else _PLAIN(device)

    def __init__(self, device: Any = CPU) -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE


class _Operations(TorchDispatchMode):
    """Checks every operation, also those that make a tensor of none."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _dispatched(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Calls that reach no operation, or too late."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        generator, device = kwargs.get("generator"), kwargs.get("device")
        if isinstance(generator, _PLAIN):
            tensors: list[Tensor] = []
            _inner(args, tensors)
            told = [torch.device(device)] if device is not None else []
            for place in [*told, *(each.device for each in tensors)] or [CPU]:
                if place.type != generator.device.type:
                    raise RuntimeError(
                        f"{func.__name__}: expected a {place.type} generator, got one of "
                        f"{generator.device.type}"
                    )
        if func in (torch.tensor, torch.as_tensor) and _is_guard(device):
            kwargs["device"] = CPU  # what is inside; a GPU would not be initialised here
            return func(*args, **kwargs).to(DEVICE)
        return func(*args, **kwargs)


def _is_guard(device: object) -> bool:
    return device is not None and torch.device(device).type == NAME  # type: ignore[arg-type]


def _indices(value: Any) -> Any:
    """Indices, lists among them as tensors: torch itself would make those on the device."""
    if isinstance(value, tuple):
        return tuple(_indices(each) for each in value)
    return torch.tensor(value) if isinstance(value, list) else value


class _Operation(NamedTuple):
    """What the rules need to know of an operation; `arguments` are the names of its parameters."""

    name: str
    arguments: list[str]
    mutable: bool
    elementwise: bool


@cache
def _operation(func: Any) -> _Operation:
    name = func._schema.name
    elementwise = torch.Tag.pointwise in func.tags
    elementwise |= name.startswith(("aten::masked_fill", "aten::fill"))
    arguments = [each.name for each in func._schema.arguments]
    return _Operation(name, arguments, func._schema.is_mutable, elementwise)


def _dispatched(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Check an operation, compute it on the CPU, and place its result."""
    operation = _operation(func)
    tensors: list[Tensor] = []
    inner = [_inner(each, tensors) for each in args]
    named = {name: _inner(each, tensors) for name, each in kwargs.items()}
    here = [each for each in tensors if isinstance(each, Guarded)]
    if here:
        _check(operation, args, tensors)
        _check_waits(operation, args, kwargs)
    found = func(*inner, **named)
    if operation.mutable:  # returns what it was given, or nothing
        return kwargs.get("out", args[0]) if func._schema.returns else None
    place = _place(operation, args, kwargs, bool(here))
    if _Waiting.refused and operation.name in COPIES and not here and place.type == NAME:
        raise RuntimeError(f"{operation.name}: numbers would be copied from the host")
    return _wrapped(found) if place.type == NAME else found


def _inner(value: Any, tensors: list[Tensor]) -> Any:
    """A value as it is on the CPU; its tensors are added to `tensors`."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.inner if isinstance(value, Guarded) else value
    if isinstance(value, list | tuple):
        return type(value)([_inner(each, tensors) for each in value])
    return CPU if isinstance(value, torch.device) and value.type == NAME else value


def _wrapped(value: Any) -> Any:
    if isinstance(value, Tensor):
        return Guarded(value)
    if isinstance(value, list | tuple):
        return tuple(map(_wrapped, value)) if isinstance(value, tuple) else [*map(_wrapped, value)]
    return value


def _place(
    operation: _Operation, args: tuple[Any, ...], kwargs: dict[str, Any], guarded: bool
) -> torch.device:
    """Device of the result: the one named, else that of the operands."""
    named = dict(zip(operation.arguments, args, strict=False)) | kwargs
    if named.get("device") is not None:
        return torch.device(named["device"])
    if named.get("other") is not None and operation.name in ("aten::to", "aten::type_as"):
        return named["other"].device
    if operation.name in COPIES | INDEXED:
        return args[0].device
    return DEVICE if guarded else CPU


def _check(operation: _Operation, args: tuple[Any, ...], tensors: list[Tensor]) -> None:
    name = operation.name
    if name in PRODUCTS and not all(each.dtype.is_floating_point for each in tensors):
        raise NotImplementedError(f"{name} of {tensors[0].dtype} is not implemented on a GPU")
    if name in COPIES:
        return
    strangers = [each for each in tensors if not isinstance(each, Guarded)]
    if name in INDEXED and isinstance(args[0], Guarded):  # its indices may be anywhere
        values = args[2:3]
        strangers = [e for e in values if isinstance(e, Tensor) and not isinstance(e, Guarded)]
    if operation.elementwise or name in INDEXED and isinstance(args[0], Guarded):
        strangers = [each for each in strangers if each.dim()]
    if strangers:
        shapes = [f"{list(each.shape)} on {each.device.type}" for each in tensors]
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, got {shapes}")


def _check_waits(operation: _Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if _Waiting.refused and operation.name in INDEXED:
        for index in args[1]:
            if isinstance(index, Tensor) and not isinstance(index, Guarded):
                raise RuntimeError(f"{operation.name}: indices would be copied from the host")
    masks = [each for each in args[1] if each is not None] if operation.name in INDEXED else []
    copied = operation.name in COPIES and _place(operation, args, kwargs, True).type != NAME
    if operation.name in LOOKS or copied or any(each.dtype == torch.bool for each in masks):
        _wait(operation.name)


def _wait(name: str) -> None:
    if _Waiting.recorded is not None:
        _Waiting.recorded.append(name)
    if _Waiting.refused:
        raise RuntimeError(f"{name}: the host would wait for the device")


_PLAIN = torch.Generator


@contextmanager
def no_waiting() -> Iterator[None]:
    """Within it the host waits for the guarded device for nothing, and copies nothing to it."""
    _Waiting.refused = True
    try:
        yield
    finally:
        _Waiting.refused = False


@contextmanager
def waits() -> Iterator[list[str]]:
    """The operations for which the host waits for the guarded device, as they come."""
    _Waiting.recorded = []
    try:
        yield _Waiting.recorded
    finally:
        _Waiting.recorded = None


@contextmanager
def guarded() -> Iterator[torch.device]:
    """Within it there is the device `guard`, which the tensors of the program can be put on."""
    torch.Generator = Generator  # type: ignore[misc]
    try:
        with _Functions(), _Operations():
            yield DEVICE
    finally:
        torch.Generator = _PLAIN  # type: ignore[misc]
