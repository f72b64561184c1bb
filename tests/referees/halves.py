"""Referee of the client: its two halves have the same calls, and get the same answers."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

from moca_client import AsyncClient, Client
from tests.e2e.deployment import served
from tests.referees.judging import Row, worst

SETTINGS = {"model": "gaussian", "location": 0.0, "scale": 1.0}
LABELS = [0.1 * (t % 7) + (5.0 if t >= 30 else 0.0) for t in range(60)]
TOLERANCE = 1e-9


def measure(folder: Path) -> dict[str, Any]:
    """Calls with their parameters, by half; and what each answers to one course of a stream."""
    with served(folder) as (_, url):
        return {
            "calls": {"synchronous": _calls(Client), "asynchronous": _calls(AsyncClient)},
            "answers": {"synchronous": _course(url), "asynchronous": asyncio.run(_acourse(url))},
        }


def judge(now: dict[str, Any], frozen: dict[str, Any]) -> list[Row]:
    calls = now["calls"]
    gone = sorted(set(frozen["calls"]["synchronous"]) - set(calls["synchronous"]))
    alike = worst(now["answers"]["asynchronous"], now["answers"]["synchronous"])
    moved = worst(now["answers"]["synchronous"], frozen["answers"]["synchronous"])
    count = len(frozen["calls"]["synchronous"])
    return [
        Row("calls", str(count), str(len(calls["synchronous"])), not gone),
        *(Row(f"gone: {name}", "there", "-", False) for name in gone),
        Row(
            "same calls and parameters",
            "yes",
            "yes" if calls["synchronous"] == calls["asynchronous"] else "no",
            calls["synchronous"] == calls["asynchronous"],
        ),
        Row("answers, asynchronous to synchronous", "0", f"{alike:.1e}", alike <= TOLERANCE),
        Row("answers, to those frozen", "0", f"{moved:.1e}", moved <= TOLERANCE),
    ]


def _calls(client: type) -> dict[str, list[str]]:
    return {
        name: [f"{each.kind.description} {each.name}" for each in _parameters(member)]
        for name, member in inspect.getmembers(client, callable)
        if not name.startswith("_") and name not in ("close", "aclose")
    }


def _parameters(member: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(member).parameters.values())


def _course(url: str) -> dict[str, Any]:
    with Client(url) as client:
        client.put_stream("half-sync", SETTINGS)
        answers = [client.observe("half-sync", y, detail="full") for y in LABELS[:30]]
        answers += client.observe("half-sync", LABELS[30:], detail="full")
        changes = client.changepoints("half-sync")
    return _summary(answers, changes)


async def _acourse(url: str) -> dict[str, Any]:
    async with AsyncClient(url) as client:
        await client.put_stream("half-async", SETTINGS)
        answers = [await client.observe("half-async", y, detail="full") for y in LABELS[:30]]
        answers += await client.observe("half-async", LABELS[30:], detail="full")
        changes = await client.changepoints("half-async")
    return _summary(answers, changes)


def _summary(answers: list[Any], changes: Any) -> dict[str, Any]:
    return {
        "log_score": [each.log_score for each in answers],
        "changed_probability": [each.changed_probability for each in answers],
        "events": [[each.state, each.start, each.confirmed_at] for each in changes.events],
    }
