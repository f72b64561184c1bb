"""From responses to the exceptions they mean."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import msgspec

from moca_client.errors import Conflict, Fault, Problem, SeqConflict


def problem_of(
    status: int, document: dict[str, Any], headers: Mapping[str, str] | None = None
) -> Problem:
    """Return a problem document as the exception of its type, else of its status."""
    slug = str(document.get("type") or "").rpartition("/")[2]
    kind = Problem.types.get(slug) or Problem.statuses.get(status)
    if kind is None:
        kind = Fault if status >= 500 else Problem
    if kind is SeqConflict and not isinstance(document.get("seq"), int):
        kind = Conflict
    known = headers or {}
    return kind(
        status,
        document,
        request_id=known.get("x-request-id"),
        retry_after_s=retry_after_s(known.get("retry-after")),
    )


def problem_in(response: httpx.Response) -> Problem:
    """Return a refused response as an exception; whatever is no document becomes its detail."""
    try:
        document = msgspec.json.decode(response.content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        document = None
    if not isinstance(document, dict):
        title = response.reason_phrase or "refused"
        document = {"title": title, "detail": response.text[:500]}
    return problem_of(response.status_code, document, response.headers)


def retry_after_s(value: str | None) -> float | None:
    """Read a Retry-After header: seconds, or a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
