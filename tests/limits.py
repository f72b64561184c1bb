"""Which cases run; and the end of a test that takes too long, with what it waits for.

It fails with every task and thread that waits.
pytest-timeout raises in the main thread, so that the rest of the run goes on. A test that goes on
waiting in spite of that ends its process LAST_S later; xdist then starts another for the rest.
"""

import asyncio
import faulthandler
import gc
import os
import signal
import tempfile
import threading

import pytest
from pytest_timeout import timeout_timer

from service.tasks import described

SLOW_S = 1800  # for a test that is marked slow and has no limit of its own
LAST_S = float(os.environ.get("MOCA_TEST_LAST_S", "60"))


@pytest.hookimpl(tryfirst=True)  # before items are chosen by their marks
def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S))


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item, settings):
    done = yield
    fail = signal.getsignal(signal.SIGALRM)

    def say_where_and_fail(number, frame):
        item.add_report_section("timeout", "tasks and threads", waiting())
        fail(number, frame)

    signal.signal(signal.SIGALRM, say_where_and_fail)
    item.last_resort = threading.Timer(settings.timeout + LAST_S, timeout_timer, (item, settings))
    item.last_resort.daemon = True
    item.last_resort.start()
    return done


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    try:
        return (yield)
    finally:
        if hasattr(item, "last_resort"):  # not at the first failure: a teardown may hang as well
            item.last_resort.cancel()


def waiting() -> str:
    """Say where all tasks of all event loops and all threads are."""
    loops = [x for x in gc.get_objects() if issubclass(type(x), asyncio.AbstractEventLoop)]
    tasks = [task for loop in loops if not loop.is_closed() for task in asyncio.all_tasks(loop)]
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return "\n".join([f"{len(tasks)} tasks", *map(described, tasks), file.read()])
