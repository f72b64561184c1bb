"""Benches of the worker's tests: a store, its log, and a worker that is stepped."""

from tests.service.worker.conftest import (  # noqa: F401
    _torch,
    alpaca,
    bench,
    close,
    make_bench,
)
