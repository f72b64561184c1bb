"""Problem responses of calls, with an example of each error."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from moca_client.responses import Problem
from service.errors import base, http, stream
from service.errors.base import PROBLEM_JSON, FieldError, ServiceError

DESCRIPTIONS = {
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
    503: "the store is unreachable; `type` says whether nothing was accepted or the outcome is "
    "unknown",
    504: "accepted, but not answered in time: it is applied at most once",
}
EXAMPLES: tuple[ServiceError, ...] = (
    base.MalformedBody("body: Invalid JSON: EOF while parsing at line 1 column 6"),
    http.Unauthorized("unknown API key", "invalid_token"),
    http.MissingScope("key 'shop-7' lacks the scope 'write'", scope="write"),
    base.UnknownStream("there is no stream 'pump-7'"),
    stream.UnknownEvent("the stream has no event 3"),
    base.NotFound("there is no model 'pump'; see GET /v1/models for the available ones"),
    http.SlowBody("the body did not arrive within 30 s"),
    base.SeqConflict("seq is 411, but the next observation is 412", seq=412),
    stream.NotAwaited(
        "the input of seq 411 was posted with the observation: post the pending label "
        "without `x` and `pending`",
        field="x",
    ),
    base.SettingsConflict(
        "model cannot change on a stream with observations; "
        "POST /v1/streams/{id}/model moves it to another model",
        field="model",
    ),
    stream.StreamExists("stream 'pump-7' already exists; add ?replace=true to replace it"),
    stream.WarmingUp("the stream has no belief yet at seq 5", seq=5),
    stream.NotRetained("start 12 is outside the retained range 101-411", first=100),
    stream.StreamReplaced("the stream 'pump-7' has no observation 411 of that generation", seq=3),
    base.BodyTooLarge("the body has 9000000 bytes; at most 8388608"),
    base.UnsupportedMediaType("Content-Type: expected application/json, got 'text/plain'"),
    http.UnsupportedEncoding("Content-Encoding: expected gzip or deflate, got 'br'"),
    base.InvalidField([FieldError("body.y", "expected a finite number")]),
    base.SamplesRejected(
        "1 of 500 samples cannot be taken: y: expected numbers up to 1e+100",
        rejected=1,
        untried=0,
    ),
    base.SamplesDeferred(
        "12 of 500 samples were not taken: the queue of this stream's partition is full: 10000 "
        "observations; send the request again",
        deferred=12,
    ),
    base.DimensionMismatch("y: expected 1 number, got 2", field="y"),
    base.LabelOutOfRange("y: expected 0 or 1, got 2", field="y"),
    base.UnknownModel("there is no model 'pump'; see GET /v1/models for the available ones"),
    base.UnfitSettings("classes: model categorical needs this setting", field="classes"),
    stream.UnfitModel(
        "actions require a model with inputs and one numeric label; gaussian has "
        "x_dim 0, y_dim 1 and labels of kind 'real'"
    ),
    stream.UnfitBelief(
        "belief: no hypothesis has run length 9; existing run lengths: 0, 1, 2, 3",
        field="belief",
    ),
    stream.UnfitSnapshot("not a snapshot of a stream"),
    base.KeyReused("idempotency key 'a81f' was used with another body"),
    stream.TimeBackwards(
        "time: 60 s before the previous observation; give `elapsed`, or post in order",
        field="time",
    ),
    http.RateExceeded("key 'shop-7': rate limit of 100 per 1 s exceeded", 100, 1, 1),
    base.PartitionFull("the queue of this stream's partition is full: 10000 observations"),
    base.TooManyWaiting("limit of 20000 waiting requests reached"),
    base.WaitTooLong("the estimated wait is 1.3 s; nothing was accepted", 2),
    base.ApiBusy("this API process is busy with 220 requests"),
    base.MemoryShort("the store's memory is nearly full; reads and deletes still work"),
    base.TooManyEventStreams("limit of 100 event-stream connections reached"),
    base.InternalError("internal error", request_id="0b7c41d2a9e84f60"),
    base.NumericalFault(
        "the filter step at seq 412 gave a non-finite number; the observation was not applied",
        seq=412,
    ),
    base.Quarantined("the command stopped its worker on every attempt; it was not applied"),
    base.CorruptState("its checkpoint at seq 384 is gone"),
    base.ModelChanged(
        "the files of pump@1 differ from those that the stream was created with: "
        "restore them, or move the stream by POST /v1/streams/{id}/model"
    ),
    base.RedisUnavailable("the store cannot be reached; nothing was accepted"),
    base.OutcomeUnknown("the store cannot be reached; send it again with the same Idempotency-Key"),
    base.NotReady(
        "2 of 64 partitions have no worker: 4, 5",
        reasons=["2 of 64 partitions have no worker: 4, 5"],
    ),
    base.NoAnswer(
        "no answer within 30 s; accepted and applied at most once, outcome not known "
        "yet: send it again with the same Idempotency-Key to get its answer"
    ),
    base.ReadTimeout("no answer within 30 s; nothing was changed"),
    base.MethodNotAllowed("method PATCH is not allowed for /v1/streams/pump-7"),
    base.TooManyConnections("connection limit of this API process reached"),
    base.EarlierItemFailed("not applied: an earlier item of the same stream failed"),
)  # one of each error, in the order in which OpenAPI shows those of a status


def responses(errors: Collection[type[ServiceError]]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of a call that raises these errors, by status."""
    by_status: dict[int, list[ServiceError]] = {}
    for example in sorted(EXAMPLES, key=lambda example: example.status):
        if type(example) in errors:
            by_status.setdefault(example.status, []).append(example)
    return {status: _response(status, examples) for status, examples in by_status.items()}


def _response(status: int, examples: list[ServiceError]) -> dict[str, Any]:
    content = {
        "schema": {"$ref": f"#/components/schemas/{Problem.__name__}"},
        "examples": {
            error.slug: {"summary": error.title, "value": error.document()} for error in examples
        },
    }
    headers = {name: text for error in examples for name, text in error.headers().items()}
    response: dict[str, Any] = {
        "description": DESCRIPTIONS[status],
        "content": {PROBLEM_JSON: content},
    }
    if headers:
        response["headers"] = {
            name: {"schema": {"type": "string"}, "example": text} for name, text in headers.items()
        }
    return response
