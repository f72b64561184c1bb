"""POST observations: one, a list for one stream, or items for many streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, cast

import msgspec
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from moca_client.responses import Answer, ItemAnswer
from moca_client.tables import Columns
from service import wire
from service.api import openapi, tables
from service.api.gateway.gateway import Result
from service.api.gateway.waves import submit_waves
from service.api.http import (
    Context,
    ListResponse,
    Rendered,
    answer_response,
    checked_stream,
    context_of,
    key_of,
    parse_body,
    read_json,
)
from service.api.parsing.bodies import ARROW, JSON, NDJSON
from service.api.parsing.observations import (
    BadItem,
    GoodItem,
    Observations,
    digest,
    list_digest,
    observe_query,
)
from service.api.routes.calls import CHANGE, STREAM, UNFIT, Calls
from service.api.tables import Document, TableLimits
from service.problems import (
    PROBLEM_JSON,
    ApiBusy,
    EarlierItemFailed,
    InvalidField,
    KeyReused,
    NotAwaited,
    NotInstalled,
    NumericalFault,
    SeqConflict,
    ServiceError,
    TimeBackwards,
    WaitTooLong,
)
from service.schema import rendering
from service.schema.queries import ObserveQuery
from service.tasks import apart

OWN = ("seq", "time", "elapsed")  # columns of observations beside labels and inputs
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
ITEMS_AT_ONCE = 1000  # grouped by stream, or refused, before the event loop does something else
AT_ONCE = 128  # answers rendered, and sent, in one piece
_encoder = msgspec.json.Encoder()
calls = Calls("observations")


@calls.declare(
    "POST",
    f"{STREAM}/observations",
    Answer | list[Answer],
    (
        *CHANGE,
        *UNFIT,
        ApiBusy,
        KeyReused,
        NumericalFault,
        SeqConflict,
        NotAwaited,
        TimeBackwards,
    ),
    parameters=(openapi.STREAM, openapi.IDEMPOTENCY, *openapi.parameters(ObserveQuery)),
    body=openapi.OBSERVATIONS_BODY,
    described=openapi.with_columns(openapi.answer(Answer | list[Answer])),
)
async def observe(request: Request) -> Response:
    """Post one observation, or an ordered list of them."""
    scope = request.scope
    context = context_of(request)
    command, layout = template_of(
        scope["query_string"], checked_stream(scope["path_params"]["stream"])
    )
    command.key = key_of(scope)
    body, kind = await read_json(scope, request.receive, others=(ARROW,))
    if kind == ARROW:
        body = await _forms(context, body, OWN)
    form = await parse_body(context, context.observation_parser.observations, body)
    command.seq = form.seq
    if form.many:
        scope["state"]["list"] = True
        return await _observe_list(context, command, form, body, layout)
    command.observations = form.observations
    if command.key is not None:
        command.digest = await parse_body(context, digest, body)
    outcome = await context.gateway.submit(command)
    if layout == "objects" or outcome.status >= 400:
        return answer_response(command, outcome)
    columns = partial(tables.answer_columns, rendering.answers(command, outcome), command.full)
    return await _table(context, columns, layout)


@calls.declare(
    "POST",
    "/v1/observations",
    None,
    (ApiBusy, NotInstalled, WaitTooLong),
    parameters=openapi.parameters(ObserveQuery),
    body=openapi.ITEMS_BODY,
    described=openapi.ITEM_ANSWERS,
)
async def observe_many(request: Request) -> Response:
    """Post observations of many streams; each item gets its own status."""
    context = context_of(request)
    if key_of(request.scope) is not None:
        # Ignored, it would promise a safe retry that is none.
        detail = "not allowed for many streams: give each item its own `key`"
        raise InvalidField.at("header.idempotency-key", detail)
    template, layout = template_of(request.scope["query_string"])
    body, kind = await read_json(request.scope, request.receive, others=(NDJSON, ARROW))
    lines = kind == NDJSON
    if kind == ARROW:
        body = await _forms(context, body, (*OWN, "stream", "key"))
    parser = context.observation_parser
    items: Sequence[GoodItem | BadItem] | None = None if lines else parser.valid_items(body)
    if items is None:
        items = await parse_body(context, partial(parser.items, lines=lines), body)
    results = await Bulk(context, items, template).run()
    if layout != "objects":
        return await _table(context, partial(tables.item_columns, results, template.full), layout)
    pieces: list[bytes] = []
    for first in range(0, len(results), AT_ONCE):
        part = results[first : first + AT_ONCE]
        pieces.append(_encoder.encode_lines(part) if lines else _encoder.encode(part)[1:-1])
        await asyncio.sleep(0)
    if lines:
        return ListResponse(pieces, (b"", b"", b""), media_type=NDJSON)
    return ListResponse(pieces)


@lru_cache(256)
def _query(query: bytes) -> ObserveQuery:
    return observe_query(QueryParams(query.decode("latin-1")).multi_items())


def template_of(query: bytes, stream: str = "") -> tuple[wire.Observe, str]:
    """Return a command without observations, with the answer options of the query; and `format`."""
    form = _query(query)
    if form.format == "arrow":
        tables.pyarrow()  # what was applied could not be answered without it
    command = wire.Observe(
        stream,
        [],
        full=form.detail == "full",
        belief=form.belief,
        components=form.components,
        quantiles=form.quantiles,
    )
    return command, form.format


async def _forms(context: Context, body: bytes, names: Sequence[str]) -> bytes:
    """Return an Arrow body as JSON, read in the thread; names: of columns beside `y` and `x`."""
    settings = context.settings
    # Columns for a label, an input and others.
    limits = TableLimits(settings.max_observations, 2 * settings.max_dimension + 2 * len(OWN))
    return await apart(context.thread, partial(tables.forms_of, body, limits, names))


async def _table(context: Context, columns: Callable[[], Columns], layout: str) -> Response:
    """Return answers by columns, laid out in the thread."""
    content = await apart(context.thread, lambda: tables.rendered(columns(), layout))
    return Rendered(content, 200, ARROW if layout == "arrow" else JSON)


class ListAnswers:
    """Answers to a list of observations, in the layout that was asked for."""

    def __init__(self, context: Context, layout: str, full: bool) -> None:
        self.count = 0
        self._context = context
        self._layout = layout
        self._full = full
        self._answers: list[Answer] = []  # for columns
        self._pieces: list[bytes] = []  # for objects

    def take(self, command: wire.Observe, outcome: wire.Outcome) -> None:
        """Take the answers to one part of the list."""
        answers = rendering.answers(command, outcome)
        self.count += len(answers)
        if self._layout == "objects":
            for first in range(0, len(answers), AT_ONCE):
                self._pieces.append(_encoder.encode(answers[first : first + AT_ONCE])[1:-1])
        else:
            self._answers += answers

    async def response(self) -> Response:
        """Return the response for a list that was applied."""
        if self._layout == "objects":
            return ListResponse(self._pieces)
        columns = partial(tables.answer_columns, self._answers, self._full)
        return await _table(self._context, columns, self._layout)

    async def stopped(
        self, status: int, document: dict[str, Any], headers: Mapping[str, str] = NO_HEADERS
    ) -> Response:
        """Return the response for a list applied in part: the answers so far, and the error."""
        document["applied"] = self.count
        if self._layout != "objects":
            columns = partial(tables.answer_columns, self._answers, self._full)
            document["answers"] = await apart(self._context.thread, columns)
            return Rendered(_encoder.encode(document), status, PROBLEM_JSON, headers)
        before = _encoder.encode(document)[:-1] + b',"answers":['
        return ListResponse(self._pieces, (before, b",", b"]}"), status, headers, PROBLEM_JSON)


async def _observe_list(
    context: Context, template: wire.Observe, form: Observations, body: bytes, layout: str
) -> Response:
    """Apply a list in parts, in order; not atomic."""
    size = context.observation_parser.parts(form.observations)
    if template.key is not None:
        template.digest = await parse_body(context, partial(list_digest, size=size), body)
    answers = ListAnswers(context, layout, template.full)
    patience = context.gateway.patience()
    for first in range(0, len(form.observations), size):
        part = form.observations[first : first + size]
        command = replace(
            template,
            observations=part,
            first=first,
            seq=None if template.seq is None else template.seq + first,
        )
        try:
            # The queue shields the append: a client that disconnects does not undo its request.
            outcome = await context.gateway.submit(command, first > 0, patience)
        except ServiceError as error:
            return await answers.stopped(error.status, error.document(), error.headers())
        answers.take(command, outcome)
        if outcome.status >= 400:
            return await answers.stopped(outcome.status, msgspec.json.decode(outcome.body[-1]))
        await asyncio.sleep(0)
    return await answers.response()


# --- observations of many streams -----------------------------------------------------------------


class Bulk:
    """The items of one request: streams side by side, the items of each in order."""

    def __init__(
        self, context: Context, items: Sequence[GoodItem | BadItem], template: wire.Observe
    ) -> None:
        self._context = context
        self._items = items
        # The options of the answers, as of a command.
        self._options = (template.full, template.belief, template.components, template.quantiles)
        self._results: list[Answer | Document] = [{}] * len(items)
        # Places of each stream's items that are not answered, in groups: one command each. The
        # first group is last.
        self._groups: dict[str, list[list[int]]] = {}

    async def run(self) -> list[Answer | Document]:
        """Apply all items; return the answer or the problem document of each, in order."""
        by_stream: dict[str, list[int]] = {}
        for i, item in enumerate(self._items):
            if item.stream is None:
                assert isinstance(item, BadItem)
                self._refuse([i], item.error)
            else:
                by_stream.setdefault(item.stream, []).append(i)
            if i % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                await asyncio.sleep(0)
        self._groups = {
            stream: [places] if len(places) == 1 else self._grouped(places)
            for stream, places in by_stream.items()
        }
        await submit_waves(self._context.gateway, self._next(by_stream), self._following)
        return self._results

    def _next(self, streams: Iterable[str]) -> Iterator[wire.Observe]:
        """Yield the next command of each stream that has one."""
        for stream in streams:
            groups = self._groups[stream]
            if not groups:
                continue
            item = self._items[groups[-1][0]]
            if isinstance(item, BadItem):
                self._refuse(groups.pop(), item.error)
                self._skip(groups)
            else:
                yield self._command(item, groups[-1])

    def _following(
        self, commands: Sequence[wire.Observe], results: Sequence[Result]
    ) -> list[wire.Observe]:
        """Enter what commands came to; after a failed item of a stream nothing is attempted."""
        for command, result in zip(commands, results, strict=True):
            groups = self._groups[command.stream]
            group = groups.pop()
            if isinstance(result, ServiceError):
                self._refuse(group, result)
                self._skip(groups)
                continue
            if isinstance(result, wire.QuietRow):
                self._results[group[0]] = rendering.quiet_answer(command, result, ItemAnswer)
                continue
            answers = rendering.answers(command, result, ItemAnswer)
            for place, answer in zip(group, answers, strict=False):
                self._results[place] = answer
            if result.status < 400:
                continue
            failed = group[len(answers) :]
            if len(group) == 1 or result.status >= 500:
                document = msgspec.json.decode(result.body[-1])
                document.pop("applied", None)  # of the command, not of the client's request
                self._results[failed[0]] = self._document(failed[0], document)
                groups.append(failed[1:])
                self._skip(groups)
            else:
                # A command is refused as a whole where it does not fit its stream: find out which
                # item is the bad one, and apply those before it.
                groups.extend([place] for place in reversed(failed))
        return list(self._next(command.stream for command in commands))

    def _grouped(self, places: list[int]) -> list[list[int]]:
        """Group a stream's items: neighbours without a key go together, one with a key alone.

        The first group is last, to be taken from the end.
        """
        good = [item for item in map(self._items.__getitem__, places) if isinstance(item, GoodItem)]
        size = self._context.observation_parser.parts([item.observation for item in good])
        groups: list[list[int]] = []
        joinable = False  # whether a neighbour may join the last group
        for place in places:
            item = self._items[place]
            if not isinstance(item, GoodItem) or item.key is not None:
                groups.append([place])
                joinable = False
            elif joinable and item.seq is None and len(groups[-1]) < size:
                groups[-1].append(place)
            else:
                groups.append([place])
                joinable = True
        groups.reverse()
        return groups

    def _command(self, first: GoodItem, group: list[int]) -> wire.Observe:
        items = cast(Sequence[GoodItem], self._items)  # as those of a group with a good one are
        observations = [items[place].observation for place in group]
        key = first.key
        of_key = None if key is None else digest(wire.encode(first.observation))
        return wire.Observe(first.stream, observations, key, of_key, 0, first.seq, *self._options)

    def _refuse(self, places: list[int], error: ServiceError) -> None:
        """Answer items of one stream."""
        for place in places:
            self._results[place] = self._document(place, error.document())

    def _skip(self, groups: list[list[int]]) -> None:
        """Answer groups of one stream that are not attempted; none are left."""
        detail = "not applied: an earlier item of the same stream failed"
        for group in groups:
            self._refuse(group, EarlierItemFailed(detail))
        groups.clear()

    def _document(self, place: int, document: Document) -> Document:
        stream = self._items[place].stream
        return document if stream is None else {**document, "stream": stream}
