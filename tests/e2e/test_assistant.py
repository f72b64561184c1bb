"""The tools of assistants, called by the SDK's client: a process of `moca mcp`, and `POST /mcp`."""

import json
import os
import random
import re
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.e2e.calling import ask
from tests.e2e.deployment import MOCA, served
from tests.waiting import until

DOCS = Path(__file__).parents[2] / "docs" / "assistants.md"
# Mean and standard deviation of a pump, and those from minute 70 on: four of twelve pumps changed.
CHANGED = {"pump-1": (40, 2, 52, 2), "pump-2": (10, 1, 14, 1), "pump-3": (20, 1, 26, 1)}
CHANGED |= {"pump-4": (5, 1, 5, 5)}
PUMPS = CHANGED | {f"pump-{number}": (number, 1, number, 1) for number in range(5, 13)}


def observations(seed, mean, sd, mean_then, sd_then):
    chance = random.Random(seed)
    for i in range(120):
        y = chance.gauss(mean_then, sd_then) if i >= 70 else chance.gauss(mean, sd)
        yield {"y": round(y, 3), "time": f"2026-03-02T{i // 60:02}:{i % 60:02}:00Z"}


@pytest.fixture(scope="module")
def pumps(tmp_path_factory):
    """Address of a service with the streams that the page speaks of, and a key that may read."""
    with served(tmp_path_factory.mktemp("pumps")) as (processes, url):
        with httpx.Client(base_url=url, timeout=60) as client:
            for seed, (name, pump) in enumerate(PUMPS.items(), 30):
                site = "north" if name in CHANGED else "south"
                ask(client, "PUT", name, 201, json={"tags": {"site": site}})
                ask(client, "POST", f"{name}/observations", json=list(observations(seed, *pump)))
            fleet = lambda: client.get("/v1/incidents").json()["fleet"]["streams"]  # noqa: E731
            until(lambda: fleet() == len(PUMPS))  # it is up to 10 s old
            place = ("--data-dir", processes.folder / "data")
            said = processes.run("keys", "create", "assistant", "--scope", "read", *place)
            until(lambda: client.get("/v1/streams").status_code == 401)
        yield url, re.search(r"moca_\S+", said)[0]


@asynccontextmanager
async def stdio(url, key=None):
    environment = {**os.environ, "MOCA_URL": url} | ({"MOCA_API_KEY": key} if key else {})
    program = StdioServerParameters(command=MOCA[0], args=[*MOCA[1:], "mcp"], env=environment)
    async with Client(program) as client:
        yield client


@asynccontextmanager
async def http(url, key=None, mode="auto"):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as connection:
        transport = streamable_http_client(f"{url}/mcp", http_client=connection)
        async with Client(transport, mode=mode) as client:
            yield client


async def answer(client, tool, **arguments):
    """The words of an answer, and whether it is an error."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert result.structured_content is None
    words = re.sub(r"accepted \S+\.$", "accepted TIME.", content.text, flags=re.MULTILINE)
    return words, result.is_error


def recorded():
    """The session of the page: tool, arguments and answer."""
    (session,) = re.findall(r"^```text\n(> .*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    for entry in re.split(r"^> ", session, flags=re.MULTILINE)[1:]:
        question, _, words = entry.strip().partition("\n")
        tool, _, arguments = question.partition(" ")
        yield tool, json.loads(arguments), words


async def test_a_session_is_as_the_page_has_it(pumps):
    async with stdio(*pumps) as client:
        assert "list_changes" in client.instructions
        tools = (await client.list_tools()).tools
        assert {tool for tool, _, _ in recorded()} == {tool.name for tool in tools}
        assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
        for tool, arguments, words in recorded():
            assert await answer(client, tool, **arguments) == (words, False)


@pytest.mark.parametrize("connected", [stdio, http, partial(http, mode="legacy")])
async def test_both_transports_answer_alike_and_refuse_in_words(pumps, connected):
    async with connected(*pumps) as client:
        for tool, arguments, words in recorded():
            if tool in {"list_changes", "explain_change"}:
                assert await answer(client, tool, **arguments) == (words, False)
        for tool, arguments, hint in (
            ("stream_status", {"stream": "pmp-4"}, "did you mean 'pump-4' or"),
            ("list_changes", {"since": "noon"}, "such as 30m, 24h"),
            ("list_changes", {"match": "{"}, "query.match"),
            ("what_if", {"stream": "pump-4", "settings": {"hazard": 7}}, "below 1, got 7"),
            ("forecast", {"stream": "pump-4", "steps": 0}, "greater than or equal to 1"),
            ("forecast", {"stream": "pump-4", "step": 3}, "no argument 'step'; did you mean 'ste"),
            ("forecast", {"stream": "pump-4", "ahead": 3}, "it has stream, steps"),
            ("forecasts", {"ahead": 3}, "Unknown tool: forecasts"),
        ):
            words, failed = await answer(client, tool, **arguments)
            assert failed, words
            assert hint in words
        words, _ = await answer(client, "list_changes", since="all", limit=1)
        assert words.startswith("4 confirmed changes of all times, the newest first:")
        words, _ = await answer(client, "list_incidents", since="all", match='{site="south"}')
        assert words.startswith("No incidents of all times;")
        # The argument is called what the answers call it.
        words, _ = await answer(client, "explain_change", stream="pump-4", change=99)
        assert words.startswith("The stream pump-4 has no change 99. Its changes: ")


async def test_without_a_key_each_tool_is_refused(pumps):
    url, _ = pumps
    async with stdio(url) as client:
        words, failed = await answer(client, "stream_status")
        assert failed
        assert "401 Unauthorized: no API key" in words
