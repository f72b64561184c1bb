"""Templates of bodies: JSON whose strings may name fields of an event, as in `${stream}`.

A template is read as JSON once. Fields are put into its strings as values, and the whole is encoded
again, so that a body is JSON whatever a value holds. There are no expressions and no loops.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

MAX_TEMPLATE, MAX_PLACEHOLDERS = 10_000, 100  # characters, and fields named in all
TAG = "tags."  # what begins the name of one tag
_placeholder = re.compile(r"\$\{([^{}]*)\}")
_tag = re.compile(r"tags\.[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)


class Template(NamedTuple):
    """A body with placeholders."""

    document: Any  # as decoded from JSON

    @classmethod
    def parse(cls, text: str, names: Collection[str]) -> Template:
        """Read a template; raises ValueError that says what is wrong with it.

        names: fields there are, beside single tags such as `${tags.site}`.
        """
        if len(text) > MAX_TEMPLATE:
            raise ValueError(f"expected at most {MAX_TEMPLATE} characters, got {len(text)}")
        try:
            document = msgspec.json.decode(text)
            used = [name for each in _strings(document) for name in _placeholder.findall(each)]
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"expected JSON, {error}") from None
        if len(used) > MAX_PLACEHOLDERS:
            raise ValueError(f"expected at most {MAX_PLACEHOLDERS} placeholders, got {len(used)}")
        for name in used:
            if name not in names and not _tag.fullmatch(name):
                known = ", ".join([*sorted(names), "tags.NAME"])
                raise ValueError(f"unknown field {name[:100]!r} of a placeholder, expected {known}")
        return cls(document)

    def filled(self, values: Mapping[str, Any]) -> bytes:
        """Return the body with an event's fields."""
        return msgspec.json.encode(_filled(self.document, values))


def _strings(node: Any) -> list[str]:
    if isinstance(node, str):
        return [node]
    if isinstance(node, dict):
        if any(_placeholder.search(name) for name in node):
            raise ValueError("expected placeholders in values, got one in the name of a member")
        node = list(node.values())
    return [text for each in node for text in _strings(each)] if isinstance(node, list) else []


def _filled(node: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        return {name: _filled(each, values) for name, each in node.items()}
    if isinstance(node, list):
        return [_filled(each, values) for each in node]
    if not isinstance(node, str):
        return node
    alone = _placeholder.fullmatch(node)
    if alone is not None:  # stays what it is: a number, null, a list
        return _value(alone[1], values)
    return _placeholder.sub(lambda found: _text(_value(found[1], values)), node)


def _value(name: str, values: Mapping[str, Any]) -> Any:
    if name.startswith(TAG):
        return values["tags"].get(name.removeprefix(TAG), "")
    return values[name]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else msgspec.json.encode(value).decode()
