"""Example requests and answers of each call, for OpenAPI and the reference.

`examples.json` has them in an order that works on a service with the streams `pump-7`, `ad` and
`coin`; the answers are those of a real service, with long lists cut. The tests send them again.
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
    return [example for example in all_examples() if example.call == call]


def describe(document: dict[str, Any]) -> None:
    """Add examples of requests and answers to an OpenAPI document."""
    for operations in document["paths"].values():
        for method in METHODS:
            if method in operations:
                _operation(operations[method])


def _operation(operation: dict[str, Any]) -> None:
    call = operation["operationId"]
    for example in of_call(call):
        if example.body is not msgspec.UNSET:
            _show(operation["requestBody"]["content"][example.media], example, example.body)
        content = operation["responses"][str(example.status)].get("content", {})
        if example.answer is not msgspec.UNSET:
            _show(content[_answered(example, content)], example, example.answer)


def _answered(example: Example, content: dict[str, Any]) -> str:
    """Return the media type of an answer: that of the request, if the call has it."""
    return example.media if example.media in content else next(iter(content))


def _show(content: dict[str, Any], example: Example, value: Any) -> None:
    content.setdefault("examples", {})[example.name] = {"summary": example.summary, "value": value}
