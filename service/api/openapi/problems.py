"""Which problems a call can be answered with, each with an example made of the error itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from service.errors import base, http, stream
from service.errors.base import PROBLEM_JSON, FieldError, ServiceError

# Calls by the names of their endpoints, which are their operation ids.
READS = ("predict", "run_length", "act", "what_if")
CHANGES = ("put_stream", "delete_stream", "put_run_length", "move_stream", "report_change", "judge")
LOGGED = ("observe", "put_snapshot", *READS, *CHANGES)  # go through the log
STORED = (
    *("get_stream", "get_snapshot", "changepoints", "history"),
    "follow_observations",
)  # read what is committed
OF_A_STREAM = (*LOGGED, *STORED)
MAY_MAKE = ("observe", "put_stream", "put_snapshot")
RERUNS = ("what_if", "move_stream")
OPEN = ("livez", "readyz")
CANARIES = ("get_canary", "put_canary", "delete_canary")
GUARDED = (
    *(
        *OF_A_STREAM,
        *CANARIES,
        "move_streams",
        "observe_many",
        "list_streams",
        "overview",
        "events",
    ),
    *("list_models", "get_model"),
)
JSON_BODIES = (
    *("observe", "observe_many", "put_stream", "predict", "put_run_length", "act"),
    *("move_stream", "what_if", "report_change", "judge", "put_canary", "move_streams"),
)
BODIES = (*JSON_BODIES, "put_snapshot")
ALL = (*GUARDED, *OPEN)


class Case(NamedTuple):
    """A problem and the calls that it may answer; none: what is no call, or an item of a list."""

    error: ServiceError
    calls: tuple[str, ...]


_FIELD = FieldError("body.y", "expected a finite number")
CASES = (
    Case(base.MalformedBody("body: Invalid JSON: EOF while parsing at line 1 column 6"), BODIES),
    Case(
        http.Unauthorized("unknown API key", "invalid_token"),
        GUARDED,
    ),
    Case(
        http.MissingScope("key 'shop-7' lacks the scope 'write'", scope="write"),
        GUARDED,
    ),
    Case(
        base.UnknownStream("there is no stream 'pump-7'"),
        tuple(call for call in OF_A_STREAM if call not in MAY_MAKE),
    ),
    Case(stream.UnknownEvent("the stream has no event 3"), ("judge",)),
    Case(
        base.NotFound("there is no model 'pump'; see GET /v1/models for the available ones"),
        ("get_model", *CANARIES),
    ),
    Case(http.SlowBody("the body did not arrive within 30 s"), BODIES),
    Case(
        base.SeqConflict("seq is 411, but the next observation is 412", seq=412),
        ("observe", "put_run_length"),
    ),
    Case(
        stream.NotAwaited(
            "the input of seq 411 was posted with the observation: post the pending label "
            "without `x` and `pending`",
            field="x",
        ),
        ("observe", "put_run_length"),
    ),
    Case(
        base.SettingsConflict(
            "model cannot change on a stream with observations; "
            "POST /v1/streams/{id}/model moves it to another model",
            field="model",
        ),
        ("put_stream",),
    ),
    Case(base.TooManyPinned("pinned: limit of 100 streams reached"), ("put_stream",)),
    Case(
        stream.StreamExists("stream 'pump-7' already exists; add ?replace=true to replace it"),
        ("put_snapshot",),
    ),
    Case(
        stream.WarmingUp("the stream has no belief yet at seq 5", seq=5),
        ("act", "predict", "put_run_length", "report_change", "judge"),
    ),
    Case(
        stream.NotRetained("start 12 is outside the retained range 101-411", first=100),
        ("report_change", "judge"),
    ),
    Case(
        stream.StreamReplaced(
            "the stream 'pump-7' has no observation 411 of that generation", seq=3
        ),
        ("follow_observations",),
    ),
    Case(base.BodyTooLarge("the body has 9000000 bytes; at most 8388608"), BODIES),
    Case(
        base.UnsupportedMediaType("Content-Type: expected application/json, got 'text/plain'"),
        BODIES,
    ),
    Case(http.UnsupportedEncoding("Content-Encoding: expected gzip or deflate, got 'br'"), BODIES),
    Case(
        base.InvalidField([_FIELD]),
        (
            *OF_A_STREAM,
            "observe_many",
            "list_streams",
            "overview",
            "events",
            "put_canary",
            "move_streams",
            "readyz",
        ),
    ),
    Case(
        base.DimensionMismatch("y: expected 1 number, got 2", field="y"),
        ("observe", "put_stream", "predict", "act", *RERUNS),
    ),
    Case(
        base.LabelOutOfRange("y: expected 0 or 1, got 2", field="y"),
        ("observe", "put_stream", *RERUNS),
    ),
    Case(
        base.UnknownModel("there is no model 'pump'; see GET /v1/models for the available ones"),
        ("put_canary", *(call for call in LOGGED if call != "delete_stream")),
    ),
    Case(
        base.UnfitSettings("classes: model categorical@1 needs this setting", field="classes"),
        ("observe", "put_stream", *RERUNS),
    ),
    Case(
        stream.UnfitModel(
            "actions require a model with inputs and one numeric label; gaussian@1 has "
            "x_dim 0, y_dim 1 and labels of kind 'real'"
        ),
        ("act", "predict"),
    ),
    Case(
        stream.UnfitBelief(
            "belief: no hypothesis has run length 9; existing run lengths: 0, 1, 2, 3",
            field="belief",
        ),
        ("put_run_length",),
    ),
    Case(stream.UnfitSnapshot("not a snapshot of a stream"), ("put_snapshot",)),
    Case(base.KeyReused("idempotency key 'a81f' was used with another body"), ("observe",)),
    Case(
        stream.TimeBackwards(
            "time: 60 s before the previous observation; give `elapsed`, or post in order",
            field="time",
        ),
        ("observe",),
    ),
    Case(
        http.RateExceeded("key 'shop-7': rate limit of 100 per 1 second exceeded", 100, 1, 1),
        GUARDED,
    ),
    Case(
        base.PartitionFull("the queue of this stream's partition is full: 10000 observations"),
        LOGGED,
    ),
    Case(base.TooManyWaiting("limit of 20000 waiting requests reached"), LOGGED),
    Case(
        base.WaitTooLong("the estimated wait is 1.3 s; nothing was accepted", 2),
        (*LOGGED, "observe_many"),
    ),
    Case(base.ApiBusy("this API process is busy with 220 requests"), ("observe", "observe_many")),
    Case(
        base.MemoryShort("the store's memory is nearly full; reads and deletes still work"), LOGGED
    ),
    Case(
        base.TooManyEventStreams("limit of 100 event-stream connections reached"),
        ("events", "follow_observations"),
    ),
    Case(base.InternalError("internal error", request_id="0b7c41d2a9e84f60"), ALL),
    Case(
        base.NumericalFault(
            "the filter step at seq 412 gave a non-finite number; the observation was not applied",
            seq=412,
        ),
        ("observe",),
    ),
    Case(
        base.Quarantined("the command stopped its worker on every attempt; it was not applied"),
        LOGGED,
    ),
    Case(base.CorruptState("its checkpoint at seq 384 is gone"), OF_A_STREAM),
    Case(
        base.ModelChanged(
            "the files of pump@1 differ from those that the stream was created with: "
            "restore them, or move the stream by POST /v1/streams/{id}/model"
        ),
        LOGGED,
    ),
    Case(base.RedisUnavailable("the store cannot be reached; nothing was accepted"), GUARDED),
    Case(
        base.OutcomeUnknown(
            "the store cannot be reached; send it again with the same Idempotency-Key"
        ),
        LOGGED,
    ),
    Case(
        base.NotReady(
            "2 of 64 partitions have no worker: 4, 5",
            reasons=["2 of 64 partitions have no worker: 4, 5"],
        ),
        ("readyz",),
    ),
    Case(
        base.NoAnswer(
            "no answer within 30 s; accepted and applied at most once, outcome not known "
            "yet: send it again with the same Idempotency-Key to get its answer"
        ),
        tuple(call for call in LOGGED if call not in READS),
    ),
    Case(base.ReadTimeout("no answer within 30 s; nothing was changed"), READS),
    # Of no call: an address that is none, a head that cannot be taken, an item of a list.
    Case(base.MethodNotAllowed("method PATCH is not allowed for /v1/streams/pump-7"), ()),
    Case(http.SlowHead("request head not received within 10 s"), ()),
    Case(base.TooManyConnections("connection limit of this API process reached"), ()),
    Case(http.UrlTooLong("URL too long: at most 16384 bytes"), ()),
    Case(
        http.HeadTooLarge(
            "request head too large: at most 100 headers, and 32768 bytes with the URL"
        ),
        (),
    ),
    Case(
        base.EarlierItemFailed("not applied: an earlier item of the same stream failed"),
        (),
    ),
)


def of_call(call: str) -> dict[int, list[ServiceError]]:
    """Return the problems of a call, by status."""
    return by_status(case.error for case in CASES if call in case.calls)


def of_no_call() -> list[ServiceError]:
    """Return the problems that come before any call, and those of items."""
    return [case.error for case in CASES if not case.calls]


def by_status(found: Iterable[ServiceError]) -> dict[int, list[ServiceError]]:
    """Return errors by their status, in order."""
    sorted_by: dict[int, list[ServiceError]] = {}
    for error in sorted(found, key=lambda each: each.status):
        sorted_by.setdefault(error.status, []).append(error)
    return sorted_by


def describe(responses: dict[str, Any], call: str) -> None:
    """Add to a call's problem responses what they look like: body and headers."""
    for status, found in of_call(call).items():
        response = responses[str(status)]
        response["content"][PROBLEM_JSON]["examples"] = {
            error.slug: {"summary": error.title, "value": error.document()} for error in found
        }
        headers = {name: text for error in found for name, text in error.headers().items()}
        if headers:
            response["headers"] = {
                name: {"schema": {"type": "string"}, "example": text}
                for name, text in headers.items()
            }
