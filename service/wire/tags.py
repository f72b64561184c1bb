"""Tags of streams, and selectors of streams by them, written as in Prometheus.

A selector such as `node_load1{job="node",instance=~"a.*",env!="dev"}` has matchers, all of which
must hold. The name `stream` is the stream's id; a tag that a stream has not got is empty. Regular
expressions are RE2's, match whole values, and take time linear in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import re2

NAME = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
STREAM = "stream"  # stands for the id in selectors, so no tag has this name
METRIC = "__name__"  # tag that the name before a selector's braces is matched with
MAX_TAGS = 32
MAX_VALUE = 500  # characters
MAX_ALL = 4000  # characters of all tags together
MAX_SELECTOR = 1000  # characters
MAX_MATCHERS = 20
MAX_EXPRESSION = 200  # characters
MAX_MEMORY = 1 << 20  # bytes of a compiled expression
EXAMPLE = '{job="node",instance=~"a.*"}'
_name = re.compile(NAME, re.ASCII)
_metric = re.compile(r"\s*([A-Za-z_:][A-Za-z0-9_:]*)?\s*(\{)?", re.ASCII)
_matcher = re.compile(
    rf"""\s*({NAME})\s*(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*(,|(?=\}}))""",
    re.ASCII | re.DOTALL,
)
_end = re.compile(r"\s*\}\s*")
_escape = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'"}


class Matcher(NamedTuple):
    """One condition on one tag."""

    name: str
    fits: Callable[[str], bool]


class Selector(NamedTuple):
    """Conditions, all of which must hold."""

    matchers: tuple[Matcher, ...]

    def fits(self, stream: str, tags: Mapping[str, str]) -> bool:
        """Whether a stream is one of those selected."""
        return all(
            fits(stream if name == STREAM else tags.get(name, "")) for name, fits in self.matchers
        )


def check(tags: dict[str, str]) -> dict[str, str]:
    """Return tags; raises ValueError for those beyond their limits, or of names that cannot be."""
    if len(tags) > MAX_TAGS:
        raise ValueError(f"expected at most {MAX_TAGS} tags, got {len(tags)}")
    for name, value in tags.items():
        if not _name.fullmatch(name) or name == STREAM:
            raise ValueError(
                f"expected names of 1 to 100 letters, digits and _, not beginning with a digit, "
                f"and not {STREAM!r}, got {name[:120]!r}"
            )
        if len(value) > MAX_VALUE:
            raise ValueError(f"{name}: expected at most {MAX_VALUE} characters, got {len(value)}")
    length = sum(len(name) + len(value) for name, value in tags.items())
    if length > MAX_ALL:
        raise ValueError(
            f"expected at most {MAX_ALL} characters in all names and values, got {length}"
        )
    return tags


def exported(name: str, taken: Container[str]) -> str:
    """Return another name for a label, as Prometheus names those that its own labels hide."""
    name = f"exported_{name}"
    while name in taken:
        name = f"exported_{name}"
    return name


def selected(selectors: Sequence[str], stream: str, tags: Mapping[str, str]) -> bool:
    """Whether a stream fits one of several selectors at least; any does where there are none."""
    return not selectors or any(parse(text).fits(stream, tags) for text in selectors)


@lru_cache(maxsize=256)
def parse(text: str) -> Selector:
    """Return a selector; raises ValueError that says what is wrong with it."""
    if len(text) > MAX_SELECTOR:
        raise ValueError(f"expected at most {MAX_SELECTOR} characters, got {len(text)}")
    head = _metric.match(text)
    assert head is not None  # everything in it is optional
    matchers = [] if head[1] is None else [Matcher(METRIC, head[1].__eq__)]
    at = head.end()
    if head[2] is not None:
        while (condition := _matcher.match(text, at)) is not None:
            name, operator, quoted = condition.group(1, 2, 3)
            value = _escape.sub(lambda escape: _ESCAPES.get(escape[1], escape[0]), quoted[1:-1])
            matchers.append(_new_matcher(name, operator, value))
            at = condition.end()
        end = _end.match(text, at)
        if end is None:
            raise _unreadable(text, at)
        at = end.end()
    if at < len(text) or (head[1] is None and head[2] is None):
        raise _unreadable(text, at)
    if len(matchers) > MAX_MATCHERS:
        raise ValueError(f"expected at most {MAX_MATCHERS} matchers, got {len(matchers)}")
    return Selector(tuple(matchers))


def _unreadable(text: str, at: int) -> ValueError:
    return ValueError(f"expected a selector such as {EXAMPLE}, cannot read {text[at : at + 50]!r}")


def _new_matcher(name: str, operator: str, value: str) -> Matcher:
    if operator == "=":
        return Matcher(name, value.__eq__)
    if operator == "!=":
        return Matcher(name, value.__ne__)
    if len(value) > MAX_EXPRESSION:
        detail = f"at most {MAX_EXPRESSION} characters in an expression, got {len(value)}"
        raise ValueError(f"{name}: expected {detail}")
    options = re2.Options()
    options.max_mem = MAX_MEMORY
    options.log_errors = False
    options.dot_nl = True
    try:
        whole = re2.compile(value, options).fullmatch
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"{name}: expected an RE2 expression, got {value!r}: {text}") from None
    if operator == "=~":
        return Matcher(name, lambda tag: whole(tag) is not None)
    return Matcher(name, lambda tag: whole(tag) is None)
