"""What is sent to each call and what it answers, for OpenAPI and the reference.

`examples.json` has them in an order in which a service with the streams `pump-7`, `ad` and `coin`
can be asked; its answers are a real service's, with long lists cut. The tests send them again.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

FILE = Path(__file__).with_name("examples.json")
METHODS = ("get", "put", "post", "delete")


class Example(msgspec.Struct, omit_defaults=True):
    """One request and its answer."""

    call: str  # operation id
    summary: str
    path: dict[str, Any] = {}
    query: str = ""
    media: str = "application/json"
    body: Any = msgspec.UNSET
    status: int = 200
    answer: Any = msgspec.UNSET

    @property
    def name(self) -> str:
        """Key of the example in OpenAPI."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.summary.lower()).split())


@lru_cache(1)
def all_examples() -> tuple[Example, ...]:
    """Return every example, in order."""
    return msgspec.json.decode(FILE.read_bytes(), type=tuple[Example, ...])


def of_call(call: str) -> list[Example]:
    """Return the examples of a call."""
    return [each for each in all_examples() if each.call == call]


def describe(document: dict[str, Any]) -> None:
    """Add examples of requests and answers to an OpenAPI document."""
    for operations in document["paths"].values():
        for method in METHODS:
            if method in operations:
                _operation(operations[method])


def _operation(operation: dict[str, Any]) -> None:
    call = operation["operationId"]
    for each in of_call(call):
        if each.body is not msgspec.UNSET:
            _show(operation["requestBody"]["content"][each.media], each, each.body)
        content = operation["responses"][str(each.status)].get("content", {})
        if each.answer is not msgspec.UNSET:
            _show(content[_answered(each, content)], each, each.answer)


def _answered(each: Example, content: dict[str, Any]) -> str:
    """Return the media type of an answer: that of the request where the call knows it."""
    return each.media if each.media in content else next(iter(content))


def _show(content: dict[str, Any], each: Example, value: Any) -> None:
    content.setdefault("examples", {})[each.name] = {"summary": each.summary, "value": value}
