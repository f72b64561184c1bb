"""Calls of the service over HTTP, and comparisons of its answers."""

import random

import httpx
import pytest

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
    return ask(client, "GET", f"{stream}/history?start=0&limit=1000")["observations"]


def close(found: object, expected: object, at: str = "") -> None:
    """Compare two answers: numbers to the ninth digit, all else exactly."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), at
        assert found.keys() == expected.keys(), at
        for key in expected:
            close(found[key], expected[key], f"{at}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list), at
        assert len(found) == len(expected), at
        for i, pair in enumerate(zip(found, expected, strict=True)):
            close(*pair, f"{at}[{i}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9), at
    else:
        assert found == expected, at
