"""Following by both clients and on the command line, against the running service."""

import asyncio
import json
import subprocess
import sys
import uuid

import pytest

from service.client import Client, Ended, Followed, errors


@pytest.fixture
def stream():
    return f"f-{uuid.uuid4().hex[:8]}"


async def test_a_stream_is_followed_to_its_end(client, stream):
    await client.observe(stream, [1.0, 2.0])
    found = []

    async def follow():
        async for message in client.follow(stream, after=-1):
            found.append(message)
            if len(found) == 2:
                await client.observe(stream, [3.0, {"y": 4.0, "time": "2024-05-01T12:00:00Z"}])
            if len(found) == 4:
                await client.delete_stream(stream)

    await asyncio.wait_for(follow(), 30)
    assert [each.seq for each in found[:4]] == [0, 1, 2, 3]
    assert all(isinstance(each, Followed) for each in found[:4])
    assert (found[3].y, found[3].time) == (4.0, "2024-05-01T12:00:00Z")
    assert found[2].predictive.mean
    assert found[4:] == [Ended("deleted", found[4].detail)]


async def test_a_cursor_goes_on_and_knows_its_stream(client, stream):
    await client.observe(stream, [1.0, 2.0, 3.0])

    async def first(**asked):
        following = client.follow(stream, **asked)
        async for message in following:
            await following.aclose()
            return message
        return None

    two = await first(after=0)
    assert (two.seq, (await first(after=two.cursor)).seq) == (1, 2)
    await client.delete_stream(stream)
    await client.observe(stream, [1.0, 2.0, 3.0])
    with pytest.raises(errors.Conflict):
        await first(after=two.cursor)
    await client.delete_stream(stream)
    with pytest.raises(errors.UnknownStream):
        await first()


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_moca_follow(service_url, stream, options):
    with Client(service_url) as client:
        client.observe(stream, [1.0, 2.0])
        command = [sys.executable, "-m", "service.commands.main", "follow", stream, "--after", "-1"]
        with subprocess.Popen(
            [*command, "--url", service_url, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            head = [] if options else [process.stdout.readline()]
            lines = [process.stdout.readline() for _ in range(2)]
            client.observe(stream, 3.25)
            lines.append(process.stdout.readline())
            client.delete_stream(stream)
            rest, noise = process.communicate(timeout=30)
    assert process.returncode == 0
    if options:
        assert [json.loads(each)["y"] for each in lines] == [1.0, 2.0, 3.25]
        assert json.loads(rest)["reason"] == "deleted"
        assert noise == ""
    else:
        assert head[0].split() == ["seq", "label", "expected", "log", "score", "changed", "time"]
        assert [each.split()[:2] for each in lines] == [["0", "1"], ["1", "2"], ["2", "3.25"]]
        assert (rest, noise) == ("", "the stream was deleted or has expired\n")
