"""What OpenAPI says of each call: parameters and bodies that the routes read by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.api import examples
from service.api.documents import Problem
from service.api.http import BYTES, JSON, NDJSON
from service.errors import PROBLEM_JSON
from service.questions import (
    ActionForm,
    BeliefForm,
    CanaryForm,
    ChangeForm,
    ModelForm,
    MovesForm,
    PredictionForm,
    VerdictForm,
    WhatIfForm,
)
from service.schemas import KEY, STREAM_ID, Item, Observation, StreamForm

REF = "#/components/schemas/{model}"
BODIES: tuple[type[BaseModel], ...] = (
    ActionForm,
    BeliefForm,
    CanaryForm,
    ChangeForm,
    Item,
    ModelForm,
    MovesForm,
    Observation,
    PredictionForm,
    StreamForm,
    VerdictForm,
    WhatIfForm,
    Problem,
)

DESCRIPTION = """\
Post one observation at a time; each answer has the predictive distribution held before the label
was seen, how surprising the label was, and how probable it is that the regime has changed.

An answered observation is durable and was applied exactly once. After a 503 or 504, or no answer
at all, send the same body again with the same `Idempotency-Key`. Errors are
`application/problem+json` (RFC 9457).

Keys are sent as `Authorization: Bearer moca_...`. Bodies may be packed with gzip or deflate.
"""
WORDS = {
    400: "the body is not JSON",
    401: "there is no key, or one that does not count",
    403: "the key lacks the scope that this call needs",
    404: "there is no such stream",
    408: "the body did not arrive in time",
    409: "it conflicts with the stream as it is",
    413: "the body is too large",
    415: "the content type or encoding is not read here",
    422: "a field has a wrong value, or one that does not fit the stream",
    429: "overloaded or over the key's rate, nothing was accepted: try again after Retry-After "
    "seconds",
    500: "the service's own fault; the stream stays as it was",
    503: "the store is away; `type` says whether nothing was accepted or the outcome is unknown",
    504: "accepted, but not answered in time: it is applied at most once",
}
GUARDED = (401, 403, 429, 500, 503)  # what every call that takes a key can answer
BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "a key, `moca_...`; needed once one exists or where the service says so",
}
STREAM = {
    "name": "stream",
    "in": "path",
    "required": True,
    "description": "stream id",
    "schema": {"type": "string", "pattern": STREAM_ID},
    "example": "pump-7",
}
MODEL = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "model name",
    "schema": {"type": "string"},
    "example": "gaussian",
}
EVENT = {
    "name": "event",
    "in": "path",
    "required": True,
    "description": "id of an event of the stream",
    "schema": {"type": "integer", "minimum": 0},
    "example": 1,
}
IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "covers the whole body: sent again with it, the body has no second effect",
    "schema": {"type": "string", "pattern": KEY},
}
_BYTES = {BYTES: {"schema": {"type": "string", "format": "binary"}}}
BLOB: dict[str, Any] = {"description": "the snapshot", "content": _BYTES}
LINES: dict[str, Any] = {
    "description": "a status for each item, in their order; lines for lines",
    "content": {NDJSON: {"schema": {"type": "string"}}},
}
BLOB_BODY: dict[str, Any] = {"required": True, "content": _BYTES}

LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "`id` of the last message seen: go on right after it",
    "schema": {"type": "string"},
}
EVENT_MESSAGES: dict[str, Any] = {
    "description": "messages for as long as the connection lasts",
    "content": {
        "text/event-stream": {
            "schema": {"type": "string"},
        }
    },
}


def ref(model: type[BaseModel]) -> dict[str, Any]:
    """Return a reference to a model's schema."""
    return {"$ref": REF.format(model=model.__name__)}


def list_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a list of a model."""
    return {"type": "array", "items": ref(model)}


def items_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a list whose items may be of a model: any other is refused alone."""
    return {"type": "array", "items": _or_other(model)}


def _or_other(model: type[BaseModel]) -> dict[str, Any]:
    other = {"description": "anything else is answered with a problem of its own"}
    return {"anyOf": [ref(model), other]}


def one_or_list(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a model or a list of it."""
    return {"oneOf": [ref(model), list_of(model)]}


def parameters(*given: dict[str, Any], query: type[BaseModel]) -> list[dict[str, Any]]:
    """Return path and header parameters and those of a query form."""
    schema = query.model_json_schema()
    of_query = [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": field.pop("description", ""),
            "schema": field,
        }
        for name, field in schema.get("properties", {}).items()
    ]
    return [*given, *of_query]


def body(schema: dict[str, Any], required: bool = True, lines: bool = False) -> dict[str, Any]:
    """Return a JSON request body, with `lines` also as NDJSON."""
    content: dict[str, Any] = {JSON: {"schema": schema}}
    if lines:
        content[NDJSON] = {"schema": {"description": "a line of it", **_or_other(Item)}}
    return {"required": required, "content": content}


def security(scope: str) -> list[dict[str, list[str]]]:
    """Return what a call needs: a key with a scope, or nothing where the service asks for none."""
    return [{"key": [scope]}, {}]


def problems(statuses: Sequence[int]) -> dict[int | str, dict[str, Any]]:
    """Return the problem responses of a call."""
    content = {PROBLEM_JSON: {"schema": ref(Problem)}}
    return {status: {"description": WORDS[status], "content": content} for status in statuses}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the application's OpenAPI document, made once."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes
        )
        modes = [(model, "validation") for model in BODIES]
        _, schemas = models_json_schema(modes, ref_template=REF)  # type: ignore[arg-type]
        found.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        found["components"]["securitySchemes"] = {"key": BEARER}
        examples.describe(found)
        app.openapi_schema = found
    return app.openapi_schema
