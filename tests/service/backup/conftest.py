"""Benches of the worker's tests: a store, its log, and a worker that is stepped."""

from tests.service.worker.conftest import _close, _torch, bench, make_bench  # noqa: F401
