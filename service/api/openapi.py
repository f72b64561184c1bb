"""The OpenAPI document: answers, errors, raw bodies and examples, which FastAPI does not know of.

`examples.json` has requests in an order that works on a service with the streams `pump-7`, `mill`,
`ad` and `coin`; their answers are those of a real service, with long lists cut. The tests send them
again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, cast, is_typeddict

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from msgspec.json import schema_components
from pydantic import BaseModel

from moca_client import responses
from moca_client.responses import ItemAnswer, Problem
from service.api.parsing.bodies import ARROW, BYTES, CSV, JSON, NDJSON
from service.api.parsing.samples import PROTOBUF
from service.problems import PROBLEM_JSON, InvalidField, ServiceError, problem_types
from service.schema.observations import (
    KEY,
    STREAM_ID,
    ItemForm,
    ObservationForm,
)

EXAMPLES = Path(__file__).with_name("examples.json")
REF = "#/components/schemas/{name}"

DESCRIPTION = """\
Post one observation at a time; each answer has the predictive distribution held before the label
was seen, its log score, and the probability that the regime has changed.

An answered observation is durable and was applied exactly once. After a 503 or 504, or no answer
at all, send the same body again with the same `Idempotency-Key`. Errors are
`application/problem+json` (RFC 9457).

Send API keys as `Authorization: Bearer moca_...`. Bodies may be compressed with gzip or deflate.
"""
BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "an API key, `moca_...`; required once a key exists, or with --require-keys",
}
STREAM = {
    "name": "stream",
    "in": "path",
    "required": True,
    "description": "stream id",
    "schema": {"type": "string", "pattern": STREAM_ID},
    "example": "pump-7",
}
IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "idempotency key of the whole body; a retry with it has no second effect",
    "schema": {"type": "string", "pattern": KEY},
}
PROBLEMS = {
    400: "malformed JSON body",
    401: "missing, unknown, expired or revoked API key",
    403: "the key lacks the required scope",
    404: "unknown stream",
    408: "the body did not arrive in time",
    409: "conflict with the current state of the stream",
    413: "the body is too large",
    415: "unsupported content type or encoding",
    422: "a field is invalid, or does not fit the stream",
    429: "overloaded, or over the key's rate limit; nothing was accepted: retry after "
    "Retry-After seconds",
    500: "internal fault; the stream is unchanged",
    501: "torch, which the call needs, is not installed; nothing was changed",
    503: "the store is unreachable; `type` says whether nothing was accepted or the outcome is "
    "unknown",
    504: "accepted, but not answered in time: it is applied at most once",
}
BINARY = {"schema": {"type": "string", "format": "binary"}}
PLAIN = {"schema": {"type": "string"}}
ANYTHING = {"schema": {"type": "object"}}
WRITE_BODY: dict[str, Any] = {
    "required": True,
    "description": "a message `prometheus.WriteRequest` or `io.prometheus.write.v2.Request`, "
    "compressed by snappy (block format)",
    "content": {PROTOBUF: BINARY},
}
WRITTEN: dict[str, Any] = {
    "description": "everything was taken",
    "headers": {
        f"X-Prometheus-Remote-Write-{counted}-Written": {
            "description": "to requests of version 2.0",
            "schema": {"type": "integer"},
        }
        for counted in ("Samples", "Histograms", "Exemplars")
    },
}
METRICS_BODY: dict[str, Any] = {
    "required": True,
    "description": "an `ExportMetricsServiceRequest`",
    "content": {JSON: ANYTHING, PROTOBUF: BINARY},
}
METRICS_TAKEN: dict[str, Any] = {
    "description": "an `ExportMetricsServiceResponse`, in the media type of the request: "
    "`partialSuccess` has `rejectedDataPoints` and `errorMessage`, if there are any",
    "content": {JSON: ANYTHING, PROTOBUF: BINARY},
}
CSV_BODY: dict[str, Any] = {"required": True, "content": {CSV: PLAIN}}
BLOB_BODY: dict[str, Any] = {"required": True, "content": {BYTES: BINARY}}
BLOB: dict[str, Any] = {"description": "the snapshot", "content": {BYTES: BINARY}}
METRICS: dict[str, Any] = {
    "description": "Prometheus's text format",
    "content": {"text/plain": PLAIN},
}
EVENT_MESSAGES: dict[str, Any] = {
    "description": "a stream of messages, until the connection is closed",
    "content": {"text/event-stream": PLAIN},
}
COLUMNS: dict[str, Any] = {
    "description": "with `format=columns`: a list for each column, all of one length",
    "type": "object",
    "additionalProperties": {"type": "array"},
}


def ref(model: type[BaseModel | msgspec.Struct]) -> dict[str, Any]:
    """Return a reference to a model's schema."""
    return {"$ref": REF.format(name=model.__name__)}


def answer(kind: Any, description: str = "Successful Response") -> dict[str, Any]:
    """Return the description of a JSON answer."""
    (schema,), _ = schema_components([kind], ref_template=REF)
    return {"description": description, "content": {JSON: {"schema": schema}}}


def answer_or_table(kind: Any) -> dict[str, Any]:
    """Return the description of a JSON answer that is also there as CSV."""
    described = answer(kind)
    described["content"][CSV] = PLAIN
    return described


def with_columns(described: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a JSON answer that is also there by columns, and as Arrow."""
    content = described["content"]
    content[JSON] = {"schema": {"anyOf": [content[JSON]["schema"], COLUMNS]}}
    content[ARROW] = BINARY
    return described


def answers(kinds: Iterable[Any]) -> dict[str, Any]:
    """Return the schemas of answers and observations, by name.

    See `moca_client.responses` for `required`.
    """
    _, schemas = schema_components(
        [*kinds, ItemAnswer, Problem, ObservationForm, ItemForm],
        schema_hook=lambda kind: cast(Any, kind).SCHEMA,
        ref_template=REF,
    )
    for kind, schema in schemas.items():
        if is_typeddict(getattr(responses, kind, None)):
            continue  # such as settings, where msgspec knows what is required
        members = schema["properties"].items()
        schema["required"] = [name for name, member in members if "default" not in member]
    example = InvalidField.shown().document()
    schemas["Problem"] |= {"additionalProperties": True, "examples": [example]}
    return schemas


def parameters(query: type[BaseModel]) -> tuple[dict[str, Any], ...]:
    """Return the parameters of the query of an endpoint that reads it itself."""
    return tuple(
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": field.pop("description", ""),
            "schema": field,
        }
        for name, field in query.model_json_schema()["properties"].items()
    )


def _observations(schema: dict[str, Any], columns: str) -> dict[str, Any]:
    arrow = {"type": "string", "format": "binary", "description": columns}
    content = {JSON: {"schema": schema}, ARROW: {"schema": arrow}}
    return {"required": True, "content": content}


_COLUMNS = "columns `y` and `x`, or numbered, `time`, `elapsed`, `seq`"
_ONE = ref(ObservationForm)
OBSERVATIONS_BODY = _observations({"oneOf": [_ONE, {"type": "array", "items": _ONE}]}, _COLUMNS)
_OTHER = {"description": "anything else gets a problem document of its own"}
_ITEM = {"anyOf": [ref(ItemForm), _OTHER]}
ITEMS_BODY = _observations({"type": "array", "items": _ITEM}, f"{_COLUMNS}; `stream` and `key`")
ITEMS_BODY["content"][NDJSON] = {"schema": {"description": "one line of the body", **_ITEM}}


def problem_responses(errors: Collection[type[ServiceError]]) -> dict[int | str, dict[str, Any]]:
    """Return the problem responses of a call that raises these errors, by status."""
    by_status: dict[int, list[ServiceError]] = {}
    for kind in sorted(problem_types(), key=lambda kind: kind.status):
        if kind in errors:
            by_status.setdefault(kind.status, []).append(kind.shown())
    responses: dict[int | str, dict[str, Any]] = {}
    for status, examples in by_status.items():
        shown = {one.slug: {"summary": one.title, "value": one.document()} for one in examples}
        content = {PROBLEM_JSON: {"schema": ref(Problem), "examples": shown}}
        responses[status] = {"description": PROBLEMS[status], "content": content}
        headers = {
            name: {"schema": {"type": "string"}, "example": text}
            for error in examples
            for name, text in error.headers().items()
        }
        if headers:
            responses[status]["headers"] = headers
    return responses


ITEM_ANSWERS = with_columns(
    {
        "description": "a status for each item, in request order; NDJSON for an NDJSON body",
        "content": {
            JSON: {
                "schema": {"type": "array", "items": {"anyOf": [ref(ItemAnswer), ref(Problem)]}}
            },
            NDJSON: PLAIN,
        },
    }
)


def document(app: FastAPI, kinds: Iterable[Any]) -> dict[str, Any]:
    """Return the application's OpenAPI document, made once. kinds: of the answers to its calls."""
    if app.openapi_schema is None:
        result = get_openapi(
            title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes
        )
        components = result["components"]
        components["schemas"] |= answers(kinds)
        components["securitySchemes"] = {"key": BEARER}
        _leave_out_own_errors(result)
        _add_examples(result)
        app.openapi_schema = result
    return app.openapi_schema


def _leave_out_own_errors(result: dict[str, Any]) -> None:
    """Leave out FastAPI's own form of errors, which calls never answer."""
    for name in ("HTTPValidationError", "ValidationError"):
        result["components"]["schemas"].pop(name, None)
    for operations in result["paths"].values():
        for operation in operations.values():
            errors = operation["responses"]
            if "HTTPValidationError" in str(errors.get("422")):
                del errors["422"]


# --- examples -------------------------------------------------------------------------------------


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
    return msgspec.json.decode(EXAMPLES.read_bytes(), type=tuple[Example, ...])


def of_call(call: str) -> list[Example]:
    """Return the examples of a call."""
    return [example for example in all_examples() if example.call == call]


def _add_examples(document: dict[str, Any]) -> None:
    """Add examples of requests and answers to an OpenAPI document."""
    every = [one for operations in document["paths"].values() for one in operations.values()]
    for operation in every:
        for example in of_call(operation["operationId"]):
            if example.body is not msgspec.UNSET:
                _show(operation["requestBody"]["content"][example.media], example, example.body)
            if example.answer is not msgspec.UNSET:
                content = operation["responses"][str(example.status)]["content"]
                # In the media type of the request, if the call answers in it.
                media = example.media if example.media in content else next(iter(content))
                _show(content[media], example, example.answer)


def _show(content: dict[str, Any], example: Example, value: Any) -> None:
    content.setdefault("examples", {})[example.name] = {"summary": example.summary, "value": value}
