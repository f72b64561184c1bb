"""Tasks that do not end at the first cancellation, and a process whose stop takes too long."""

import asyncio
import subprocess
import sys
import time

import pytest

from service import tasks
from service.tasks import described, end, is_cancelled


async def stubborn(times, ended):
    """Drop so many cancellations, as a library may, and go on."""
    for _ in range(times):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
    await asyncio.Event().wait()
    ended.append(times)


async def failing():
    try:
        await asyncio.Event().wait()
    finally:
        raise ConnectionError("the cancellation came out as this")


async def begun(*runs):
    found = [asyncio.create_task(run) for run in runs]
    await asyncio.sleep(0)
    return found


async def test_a_task_that_drops_cancellations_is_cancelled_again(caplog):
    ended = []
    found = await begun(*(stubborn(times, ended) for times in (0, 1, 3)))
    async with asyncio.timeout(tasks.END_WAIT_S):
        await end(*found, None)
    assert all(task.cancelled() for task in found)
    assert ended == []
    assert [record for record in caplog.records if record.name == "service.tasks"] == []


async def test_what_never_ends_is_logged_with_its_place_and_left(caplog, monkeypatch):
    monkeypatch.setattr(tasks, "END_WAIT_S", 0.3)
    found = await begun(stubborn(1000, []), stubborn(0, []))
    found[0].set_name("the stubborn one")
    began = time.monotonic()
    await end(*found)
    assert 0.3 <= time.monotonic() - began < 5
    assert found[1].cancelled()
    (record,) = (record for record in caplog.records if record.name == "service.tasks")
    assert "the stubborn one" in record.getMessage()
    assert "test_tasks.py" in record.getMessage()
    assert " wait" in record.getMessage()
    while not found[0].done():
        found[0].cancel()
        await asyncio.sleep(0)


async def test_what_ended_with_an_error_is_not_reported_as_lost():
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    found = await begun(failing())
    await end(*found)
    del found
    await asyncio.sleep(0)
    assert reported == []


async def test_a_clean_up_has_its_time_before_the_next_cancellation():
    cleaned = []

    async def run():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.3)
            cleaned.append(True)

    await end(*await begun(run()), again_s=5.0)
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
    async with asyncio.timeout(5):
        await task
    assert seen == [True]


async def test_a_place_is_that_of_all_that_waits():
    async def inner():
        await asyncio.sleep(5)

    async def outer():
        await inner()

    (task,) = await begun(outer())
    text = described(task)
    assert text.index(" outer") < text.index(" inner") < text.index(" sleep")
    await end(task)


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
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 1
    text = said.decode()
    assert "still stopping after 0.5 s" in text
    assert "never-ending" in text
    assert "most recent call first" in text  # the threads


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="mended in Python 3.12")
async def test_why_one_cancellation_is_not_enough():
    """`wait_for` drops one that comes in the turn of the loop in which its result does."""

    async def at_once():
        return "result"

    task = asyncio.ensure_future(asyncio.wait_for(at_once(), 60))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "result"
