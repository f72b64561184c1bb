"""Streams whose sensitivity is to be calibrated are sent to their workers, one of a partition."""

import asyncio

import pytest

from service import wire
from service.api.gateway import calibrations
from service.api.gateway.calibrations import Calibrations
from service.errors.base import UnknownStream


class Listed:
    """A store that lists streams until they are calibrated."""

    def __init__(self, names):
        self.names = names

    async def uncalibrated(self, most):
        return self.names[:most]


class Worker:
    """A gateway that notes commands; those of streams named `bad` are refused."""

    def __init__(self, store, status=204):
        self.store, self.status, self.commands = store, status, []

    async def submit(self, command):
        assert isinstance(command, wire.CalibrateSensitivity)
        self.commands.append(command.stream)
        if command.stream == "bad":
            raise UnknownStream("there is no stream 'bad'")
        if command.stream == "broken":
            return wire.Outcome(1, 500, [b"{}"])
        self.store.names.remove(command.stream)
        return wire.Outcome(1, 204, [])


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(calibrations, "PERIOD_S", 0.01)


async def test_each_is_sent_and_what_failed_is_left_for_a_while(quick, until):
    store = Listed(["bad", "broken", "a", "b"])
    worker = Worker(store)
    watching = asyncio.create_task(Calibrations(store, worker).watch())
    await until(lambda: store.names == ["bad", "broken"])
    await asyncio.sleep(0.1)
    watching.cancel()
    assert worker.commands == ["bad", "broken", "a", "b"]
