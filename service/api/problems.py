"""Which problems a call can be answered with, each with an example made of the error itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from service import errors, refusals, unfit
from service.errors import PROBLEM_JSON, FieldError, ServiceError

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
    Case(errors.MalformedBody("body: Invalid JSON: EOF while parsing at line 1 column 6"), BODIES),
    Case(
        refusals.Unauthorized("there is no such key", "invalid_token"),
        GUARDED,
    ),
    Case(
        refusals.MissingScope("key 'shop-7' lacks the scope 'write'", scope="write"),
        GUARDED,
    ),
    Case(
        errors.UnknownStream("there is no stream 'pump-7'"),
        tuple(call for call in OF_A_STREAM if call not in MAY_MAKE),
    ),
    Case(unfit.UnknownEvent("the stream has no event 3"), ("judge",)),
    Case(
        errors.NotFound("there is no model 'pump'; GET /v1/models lists those there are"),
        ("get_model", *CANARIES),
    ),
    Case(refusals.SlowBody("the body did not arrive within 30 s"), BODIES),
    Case(
        errors.SeqConflict("seq is 411, but the next observation is 412", seq=412),
        ("observe", "put_run_length"),
    ),
    Case(
        unfit.NotAwaited("seq 411 waits for its label, its input is known", field="x"),
        ("observe", "put_run_length"),
    ),
    Case(
        errors.SettingsConflict(
            "model cannot change on a stream with observations; "
            "POST /v1/streams/{id}/model moves it to another model",
            field="model",
        ),
        ("put_stream",),
    ),
    Case(errors.TooManyPinned("pinned: 100 streams are, which is the most"), ("put_stream",)),
    Case(
        unfit.StreamExists(
            "there is a stream 'pump-7' already; ?replace=true puts this in its place"
        ),
        ("put_snapshot",),
    ),
    Case(
        unfit.WarmingUp("the stream has no belief yet at seq 5", seq=5),
        ("act", "predict", "put_run_length", "report_change", "judge"),
    ),
    Case(
        unfit.NotRetained("start 12: only observations 101 to 411 can be judged still", first=100),
        ("report_change", "judge"),
    ),
    Case(
        unfit.StreamReplaced("the stream 'pump-7' has no observation 411 of that life", seq=3),
        ("follow_observations",),
    ),
    Case(errors.BodyTooLarge("the body has 9000000 bytes; at most 8388608"), BODIES),
    Case(
        errors.UnsupportedMediaType("Content-Type: expected application/json, got 'text/plain'"),
        BODIES,
    ),
    Case(
        refusals.UnsupportedEncoding("Content-Encoding: expected gzip or deflate, got 'br'"), BODIES
    ),
    Case(
        errors.InvalidField([_FIELD]),
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
        errors.DimensionMismatch("y: expected 1 number, got 2", field="y"),
        ("observe", "put_stream", "predict", "act", *RERUNS),
    ),
    Case(
        errors.LabelOutOfRange("y: expected 0 or 1, got 2", field="y"),
        ("observe", "put_stream", *RERUNS),
    ),
    Case(
        errors.UnknownModel("there is no model 'pump'; GET /v1/models lists those there are"),
        ("put_canary", *(call for call in LOGGED if call != "delete_stream")),
    ),
    Case(
        errors.UnfitSettings("classes: a categorical stream needs their number", field="classes"),
        ("observe", "put_stream", *RERUNS),
    ),
    Case(
        unfit.UnfitModel(
            "actions need a model with inputs and one numeric label; gaussian@1 has x_dim 0, "
            "y_dim 1 and labels of kind 'real'"
        ),
        ("act", "predict"),
    ),
    Case(
        unfit.UnfitBelief(
            "belief: no hypothesis has run length 9; there are 0, 1, 2, 3", field="belief"
        ),
        ("put_run_length",),
    ),
    Case(unfit.UnfitSnapshot("this is not a snapshot of a stream"), ("put_snapshot",)),
    Case(errors.KeyReused("idempotency key 'a81f' was used with another body"), ("observe",)),
    Case(
        unfit.TimeBackwards(
            "time: 60 s before the observation before it; give `elapsed`, or post in order",
            field="time",
        ),
        ("observe",),
    ),
    Case(
        refusals.RateExceeded("key 'shop-7': over its rate of 100 per 1 second", 100, 1, 1), GUARDED
    ),
    Case(
        errors.PartitionFull("10000 observations wait in this stream's partition already"), LOGGED
    ),
    Case(errors.TooManyWaiting("20000 requests wait already"), LOGGED),
    Case(
        errors.WaitTooLong("the estimated wait is 1.3 s; nothing was accepted", 2),
        (*LOGGED, "observe_many"),
    ),
    Case(errors.ApiBusy("220 requests keep this API process busy"), ("observe", "observe_many")),
    Case(
        errors.MemoryShort("the store's memory is nearly used up; reads and deletes work"), LOGGED
    ),
    Case(
        errors.TooManyEventStreams("100 connections follow the events already"),
        ("events", "follow_observations"),
    ),
    Case(errors.InternalError("an unexpected error", request_id="0b7c41d2a9e84f60"), ALL),
    Case(
        errors.NumericalFault(
            "the filter's step at seq 412 did not stay finite; the observation was not applied",
            seq=412,
        ),
        ("observe",),
    ),
    Case(errors.Quarantined("it stopped its worker each time; it was not applied"), LOGGED),
    Case(errors.CorruptState("its checkpoint at seq 384 is gone"), OF_A_STREAM),
    Case(
        errors.ModelChanged(
            "the files of pump@1 are not those that the stream was made with: put these back, or "
            "move it by POST /v1/streams/{id}/model"
        ),
        LOGGED,
    ),
    Case(errors.RedisUnavailable("the store cannot be reached; nothing was accepted"), GUARDED),
    Case(
        errors.OutcomeUnknown(
            "the store cannot be reached; send it again with the same Idempotency-Key"
        ),
        LOGGED,
    ),
    Case(
        errors.NotReady(
            "2 of 64 partitions have no worker: 4, 5",
            reasons=["2 of 64 partitions have no worker: 4, 5"],
        ),
        ("readyz",),
    ),
    Case(
        errors.NoAnswer(
            "no answer within 30 s; it was accepted, its outcome is not known yet, and it is "
            "applied at most once: send it again with the same Idempotency-Key for its answer"
        ),
        tuple(call for call in LOGGED if call not in READS),
    ),
    Case(errors.ReadTimeout("no answer within 30 s; nothing was changed"), READS),
    # Of no call: an address that is none, a head that cannot be taken, an item of a list.
    Case(errors.MethodNotAllowed("PATCH is not for /v1/streams/pump-7"), ()),
    Case(refusals.SlowHead("no head within 10 s"), ()),
    Case(errors.TooManyConnections("this API process has as many connections as it may"), ()),
    Case(refusals.UrlTooLong("the URL has more than 16384 bytes"), ()),
    Case(refusals.HeadTooLarge("at most 100 headers, and 32768 bytes with the URL"), ()),
    Case(
        errors.EarlierItemFailed("not applied, because an earlier item of the same stream failed"),
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
