"""Tasks that do not end at the first cancellation, and a process whose stop takes too long."""

import asyncio
import subprocess
import sys
import time

from service import tasks
from service.tasks import end, happened, is_cancelled
from tests.waiting import PATIENCE_S


async def stubborn(times, ended):
    """Drop so many cancellations, as a library may, and go on."""
    for _ in range(times):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
    await asyncio.Event().wait()
    ended.append(times)


async def begun(*runs):
    tasks_begun = [asyncio.create_task(run) for run in runs]
    await asyncio.sleep(0)
    return tasks_begun


async def test_an_event_came_though_it_is_cleared_before_its_waiter_goes_on():
    event = asyncio.Event()
    (waiting,) = await begun(happened(event, PATIENCE_S))
    event.set()
    event.clear()
    assert await waiting is True
    assert await happened(event, 0.0) is False


def logged(caplog):
    return [record for record in caplog.records if record.name == "service.tasks"]


async def test_a_task_that_drops_cancellations_is_cancelled_again(caplog, monkeypatch):
    monkeypatch.setattr(tasks, "END_WAIT_S", 60.0)
    ended = []
    running = await begun(*(stubborn(times, ended) for times in (0, 1, 3)))
    await end(*running, None, again_s=0.01)
    assert all(task.cancelled() for task in running)
    assert ended == []
    assert logged(caplog) == []


async def test_what_never_ends_is_logged_with_its_place_and_left(caplog, monkeypatch):
    monkeypatch.setattr(tasks, "END_WAIT_S", 0.2)
    running = await begun(stubborn(1_000_000, []), stubborn(0, []))
    running[0].set_name("the stubborn one")
    await end(*running)
    assert running[1].cancelled()
    assert not running[0].done()
    (record,) = logged(caplog)
    assert "the stubborn one" in record.getMessage()
    assert "test_tasks.py" in record.getMessage()
    running[0].get_coro().close()


async def test_what_ended_with_an_error_is_not_reported_as_lost():
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def failing():
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("the cancellation came out as this")

    running = await begun(failing())
    await end(*running)
    del running
    await asyncio.sleep(0)
    assert reported == []


async def test_a_clean_up_has_its_time_before_the_next_cancellation():
    cleaned = []

    async def run():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
            cleaned.append(True)

    await end(*await begun(run()), again_s=60.0)
    assert cleaned == [True]


async def test_a_dropped_cancellation_is_seen():
    seen = []

    async def run():
        while not is_cancelled():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append(is_cancelled())

    (task,) = await begun(run())
    task.cancel()
    await task
    assert seen == [True]


STUCK = """
import asyncio, signal, sys, threading
from service.runtime.process import limit_stop

async def never():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def main():
    signal.signal(signal.SIGTERM, lambda *_: limit_stop(0.5))
    waits = asyncio.create_task(never(), name="never-ending")
    print("up", flush=True)
    await waits

threading.Thread(target=threading.Event().wait, name="left", daemon=True).start()
asyncio.run(main())
"""


def test_a_stop_that_takes_too_long_ends_and_says_what_it_waits_for():
    command = [sys.executable, "-c", STUCK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.terminate()
        try:
            _, output = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 1
    assert b"never-ending" in output
    assert b"most recent call first" in output  # the threads


async def test_an_event_is_waited_for_up_to_a_bound():
    event = asyncio.Event()
    began = time.monotonic()
    assert not await happened(event, 0.05)
    assert time.monotonic() - began > 0.04
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await happened(event, 60)
    assert await happened(event, 0)  # it came before
