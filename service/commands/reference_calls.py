"""docs/reference.md: every call as OpenAPI describes it, with one example each."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from service.api import examples, problems
from service.api.app import create_app
from service.errors import PROBLEM_JSON, ServiceError
from service.settings import Settings

URL = "http://127.0.0.1:8000"
BYTES = "application/octet-stream"
WIDTH = 100
TAGS = {
    "observations": "Observations",
    "streams": "Streams",
    "reads": "What is asked of a stream",
    "events": "Events",
    "models": "Models",
    "service": "The service itself",
}
BOUNDS = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "below {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "{} or more"),
    ("maxItems", "up to {}"),
)
HEAD = """\
# Reference of the calls

Made by `moca reference` of the OpenAPI document, which a running service has at `/openapi.json` and
shows at `/docs`. [Streams](streams.md), [further calls](calls.md) and [events](events.md) explain
what it all means. Examples are answers of a real service; of long lists they have the beginning.

JSON in, JSON out. Keys are sent as `Authorization: Bearer moca_...` where the service asks for
them; each call names the [scope](access.md#keys) that it needs. Bodies may be packed with gzip or
deflate. After a 503 or 504, or no answer at all, send the same body again with the same
`Idempotency-Key`. Every answer has an `X-Request-Id`.
"""

PROBLEMS = """\
## Problems

A refusal is `{media}` (RFC 9457): `type` ends in the word below, `detail` says what exactly was
wrong, and some have further members. A list to one stream that was applied in part has `applied`
and `answers`, too. An item of `POST /v1/observations` may have any problem of a single observation,
with its `stream`.

Beside those of the calls there are {others}: of requests that are for no call or whose head cannot
be taken, and of items behind a failed one.
"""


def page() -> str:
    """Return the page."""
    document = create_app(Settings.model_validate({"redis_url": "redis://127.0.0.1"})).openapi()
    parts = [HEAD, _contents(document)]
    for tag, title in TAGS.items():
        parts.append(f"## {title}\n")
        parts += [_call(*found) for found in _operations(document, tag)]
    parts += [_objects(document), _all_problems()]
    return "\n".join(parts)


Found = tuple[str, str, dict[str, Any]]


def _operations(document: dict[str, Any], tag: str) -> Iterator[Found]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag in operation["tags"]:
                yield method.upper(), path, operation


def _contents(document: dict[str, Any]) -> str:
    lines = ["| call | |", "|---|---|"]
    for tag in TAGS:
        for method, path, operation in _operations(document, tag):
            anchor = _anchor(f"{method} {path}")
            lines.append(f"| [`{method} {path}`](#{anchor}) | {operation['summary']} |")
    return "\n".join(lines) + "\n"


def _anchor(heading: str) -> str:
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in "-_ ")
    return kept.replace(" ", "-")


def _call(method: str, path: str, operation: dict[str, Any]) -> str:
    needs = operation.get("security", [{}])[0].get("key")
    scope = f" Scope `{needs[0]}`." if needs else " No key is needed."
    parts = [f"### {method} {path}\n", f"{operation['description']}{scope}\n"]
    if operation.get("parameters"):
        parts.append(_table(_parameter(each) for each in operation["parameters"]))
    if "requestBody" in operation:
        parts.append(_body(operation["requestBody"]))
    parts += _answers(operation["responses"])
    parts.append(_refusals(operation["operationId"]))
    parts.append(_example(method, path, operation["operationId"]))
    return "\n".join(parts)


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = ["| name | type | meaning |", "|---|---|---|"]
    lines += ["| " + " | ".join(each.replace("|", "\\|") for each in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _parameter(found: dict[str, Any]) -> tuple[str, str, str]:
    where = found["in"] + (", required" if found["required"] else "")
    return f"`{found['name']}` ({where})", _type(found["schema"]), found.get("description", "")


def _body(body: dict[str, Any]) -> str:
    kinds = [
        f"{_type(content['schema'])}" + ("" if media.endswith("/json") else f" as `{media}`")
        for media, content in body["content"].items()
    ]
    return f"Body{'' if body['required'] else ', which may be left out'}: {'; or '.join(kinds)}.\n"


def _answers(responses: dict[str, Any]) -> Iterator[str]:
    for status, response in responses.items():
        if status.startswith("2"):
            kinds = [
                _type(content["schema"]) + ("" if media.endswith("/json") else f" as `{media}`")
                for media, content in response.get("content", {}).items()
            ]
            yield f"Answer {status}: {'; or '.join(kinds) or 'nothing'}.\n"


def _type(schema: dict[str, Any]) -> str:
    """Return what a schema allows, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[several]))
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{json.dumps(e)}`" for e in schema.get("enum", [schema.get("const")]))
    return _plain(schema)


def _plain(schema: dict[str, Any]) -> str:
    bounds = [text.format(f"{schema[name]:g}") for name, text in BOUNDS if name in schema]
    if "pattern" in schema:
        bounds.append(f"`{schema['pattern']}`")
    limits = f" ({', '.join(bounds)})" if bounds else ""
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}{limits}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return "object" + (f" of {_type(inner)}" if isinstance(inner, dict) and inner else "")
    return f"{kind}{limits}"


def _refusals(call: str) -> str:
    lines = ["Problems:", ""]
    for status, found in problems.of_call(call).items():
        slugs = ", ".join(f"[`{each.slug}`](#{each.slug})" for each in found)
        lines.append(f"* {status}: {slugs}")
    return "\n".join(lines) + "\n"


def _example(method: str, path: str, call: str) -> str:
    parts = []
    for each in examples.of_call(call):
        parts.append(f"{each.summary}:\n\n```sh\n{_curl(method, path, each)}\n```\n")
        if isinstance(each.answer, str):
            parts.append(f"```\n{each.answer.strip()}\n```\n")
        elif isinstance(each.answer, dict | list):
            parts.append(f"```json\n{pretty(each.answer)}\n```\n")
    return "\n".join(parts)


def _curl(method: str, path: str, each: examples.Example) -> str:
    url = f"{URL}{path.format(**each.path)}" + (f"?{each.query}" if each.query else "")
    words = ["curl", *([] if method in ("GET", "POST") else ["-X", method])]
    words.append(shlex.quote(url) if urlsplit(url).query else url)
    has_body = each.body is not msgspec.UNSET
    if has_body:
        words.append(f"\\\n  -H 'Content-Type: {each.media}'")
    if each.media == BYTES:
        words.append("--data-binary @pump-9.moca")
    elif has_body:
        body = each.body if isinstance(each.body, str) else json.dumps(each.body)
        words.append(f"\\\n  --data-binary {shlex.quote(body)}")
    elif method == "POST":
        words[1:1] = ["-X", "POST"]
    return " ".join(words) + (" -o pump-9.moca" if each.call == "get_snapshot" else "")


def pretty(value: Any, indent: int = 0) -> str:
    """Return JSON that stays on a line where it fits one."""
    flat = json.dumps(value)
    if len(flat) + indent <= WIDTH or not isinstance(value, dict | list) or not value:
        return flat
    pad = " " * (indent + 1)
    if isinstance(value, list):
        inner = [pretty(each, indent + 1) for each in value]
        return "[" + f",\n{pad}".join(inner) + "]"
    inner = [f"{json.dumps(k)}: {pretty(v, indent + len(k) + 5)}" for k, v in value.items()]
    return "{" + f",\n{pad}".join(inner) + "}"


def _objects(document: dict[str, Any]) -> str:
    parts = ["## Objects\n"]
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts.append(f"### {name}\n\n{schema.get('description', '')}\n")
        required = schema.get("required", [])
        rows = [
            (f"`{field}`", _type(found), _meaning(found, field in required))
            for field, found in schema["properties"].items()
        ]
        parts.append(_table(rows))
    return "\n".join(parts)


def _meaning(schema: dict[str, Any], required: bool) -> str:
    said = str(schema.get("description", ""))
    default = schema.get("default")
    if not required and default not in (None, "", {}):
        said += f" (default `{json.dumps(default)}`)"
    return said.strip()


def _all_problems() -> str:
    """Return every type of problem with an example."""
    others = ", ".join(
        f"[`{each.slug}`](#{each.slug}) ({each.status})" for each in problems.of_no_call()
    )
    parts = [PROBLEMS.format(media=PROBLEM_JSON, others=others)]
    known: dict[str, ServiceError] = {each.error.slug: each.error for each in problems.CASES}
    for slug, error in sorted(known.items()):
        said = (type(error).__doc__ or "").partition("\n")[0]
        shown = pretty(error.document())
        parts.append(f"### {slug}\n\n{error.status}. {said}\n\n```json\n{shown}\n```\n")
    return "\n".join(parts)
