"""Calls of the service over HTTP, and by commands."""

import random

import httpx
from typer.testing import CliRunner, Result

from service.commands.main import app

KNOWN = {"model": "gaussian", "location": 0.0, "scale": 1.0, "hazard": 0.02}
BYTES = {"Content-Type": "application/octet-stream"}


def ask(client: httpx.Client, method: str, path: str, status: int = 200, **request):
    """Send a call about a stream; returns its answer, which has to have this status."""
    response = client.request(method, f"/v1/streams/{path}", **request)
    assert response.status_code == status, response.text
    return response.json() if response.content else None


def post(client: httpx.Client, stream: str, observations: list) -> list[dict]:
    """Post labels or observations, in lists of some."""
    answers = []
    for first in range(0, len(observations), 50):
        some = observations[first : first + 50]
        body = [each if isinstance(each, dict) else {"y": each} for each in some]
        answers += ask(client, "POST", f"{stream}/observations", json=body)
    return answers


def moca(*arguments: object, at: str, stdin: str = "", status: int = 0) -> Result:
    """Run a command of `moca` in this process, on a service; its status has to be this."""
    environment = {"MOCA_URL": at, "COLUMNS": "120", "TERMINAL_WIDTH": "120"}
    result = CliRunner().invoke(app, [*map(str, arguments)], input=stdin, env=environment)
    assert result.exit_code == status, result.output
    return result


def labels(count: int, seed: int = 1, size: float = 4.0, regime: int = 60) -> list[dict]:
    """Observations whose level shifts at the end of each regime."""
    rng = random.Random(seed)
    return [{"y": rng.gauss(size * (i // regime % 2), 1)} for i in range(count)]


def slug(response: httpx.Response) -> str:
    """The kind of a problem; empty: none."""
    document = response.json() if "json" in response.headers["content-type"] else {}
    return document.get("type", "").rpartition("/")[2] if isinstance(document, dict) else ""


def history(client: httpx.Client, stream: str) -> list[dict]:
    """All observations that are retained."""
    return ask(client, "GET", f"{stream}/history?start=0&limit=1000&detail=full")["observations"]
