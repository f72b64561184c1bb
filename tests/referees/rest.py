"""Referee of the REST interface: its reference line by line, and what schemathesis makes of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.deployment import served
from tests.referees.judging import Row

HERE = Path(__file__).parent
DEPTH = 6  # of fields within fields
REQUESTS = 5  # examples of schemathesis for each operation


def reference(folder: Path) -> dict[str, Any]:
    """Every parameter, field and status of every operation, a line each."""
    with served(folder) as (_, url):
        document = httpx.get(f"{url}/openapi.json").raise_for_status().json()
    return {"lines": sorted(set(_lines(document)))}


def judge_reference(now: dict[str, Any], frozen: dict[str, Any]) -> list[Row]:
    old = set(frozen["lines"])
    new = set(now["lines"])
    rows = [Row(f"gone: {line}", "there", "-", False) for line in sorted(old - new)]
    rows += [Row(f"new: {line}", "-", "there", None) for line in sorted(new - old)]
    return [Row("lines of the reference", str(len(old)), str(len(new)), old <= new), *rows]


def schemathesis(folder: Path) -> dict[str, Any]:
    """Requests made from the OpenAPI document, and whether every answer was as it says."""
    with served(folder) as (_, url):
        return {"requests": run(url, folder, REQUESTS)}  # fails where an answer contradicts it


def run(url: str, folder: Path, examples: int) -> int:
    """Run all checks of schemathesis; returns how many requests were made.

    Answers that have no end are left out: they have tests of their own.
    """
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        *("--config-file", str(HERE / "schemathesis.toml"), "run", f"{url}/openapi.json"),
        *("--max-examples", str(examples), "--phases", "examples,coverage,fuzzing"),
        *("--exclude-path-regex", "/(events|live)$", "--seed", "1"),
        *("--continue-on-failure", "--no-color"),
    ]
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "tests.referees.schemathesis_hooks",
        "PYTHONPATH": str(HERE.parents[1]),
    }
    found = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500
    )
    assert found.returncode == 0, found.stdout[-20_000:]
    (made,) = re.findall(r"([0-9,]+) generated", found.stdout)
    return int(made.replace(",", ""))


def judge_schemathesis(now: dict[str, Any], frozen: dict[str, Any]) -> list[Row]:
    made = now["requests"]
    before = frozen["requests"]
    return [Row("requests without a contradiction", str(before), str(made), made > before / 2)]


def _lines(document: dict[str, Any]) -> Iterator[str]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            call = f"{method.upper()} {path}"
            yield from (f"{call} {line}" for line in _taken(document, operation))
            yield from (f"{call} {line}" for line in _answered(document, operation))


def _taken(document: dict[str, Any], operation: dict[str, Any]) -> Iterator[str]:
    """Parameters, kinds of bodies and their fields."""
    for parameter in operation.get("parameters", []):
        need = "required" if parameter.get("required") else "optional"
        yield f"{parameter['in']} {parameter['name']} ({need})"
    for kind, body in operation.get("requestBody", {}).get("content", {}).items():
        yield f"body {kind}"
        for field in _fields(document, body.get("schema", {}), DEPTH):
            yield f"body {field}"


def _answered(document: dict[str, Any], operation: dict[str, Any]) -> Iterator[str]:
    """Statuses, and the fields of answers that are no problems."""
    for status, answer in operation["responses"].items():
        yield status
        for body in answer.get("content", {}).values() if status.startswith("2") else ():
            for field in _fields(document, body.get("schema", {}), DEPTH):
                yield f"{status} {field}"


def _fields(document: dict[str, Any], schema: dict[str, Any], depth: int) -> Iterator[str]:
    """Names of all fields within a schema, with dots between them."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = document["components"]["schemas"][name]
    if not depth:
        return
    for part in ("anyOf", "oneOf", "allOf"):
        for member in schema.get(part, []):
            yield from _fields(document, member, depth)
    if isinstance(schema.get("items"), dict):
        yield from _fields(document, schema["items"], depth)
    for name, field in schema.get("properties", {}).items():
        yield name
        for inner in _fields(document, field, depth - 1):
            yield f"{name}.{inner}"
