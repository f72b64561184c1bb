"""Threads of torch's operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from model_core.lazy import loaded, torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch use one thread: several wait for each other in thousands of small operations.

    It counts for all of the process; the number from before is restored at the end. Where nobody
    has imported torch there are none.
    """
    if not loaded():
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
