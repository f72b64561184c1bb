"""POST observations: one, a list for one stream, or items for many streams."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from moca_client.responses import Answer, ItemAnswer
from moca_client.tables import Columns
from service import problems, wire
from service.api import openapi, tables
from service.api.context import Context
from service.api.gateway.gateway import Group, Result, RowsResult, Waves, submit_waves
from service.api.http import (
    ListResponse,
    Rendered,
    answer_response,
    checked_stream,
    context_of,
    document_of,
    key_of,
    parse_body,
    read_json,
)
from service.api.parsing.bodies import ARROW, JSON, NDJSON
from service.api.parsing.observations import (
    BadItem,
    GoodItem,
    Items,
    Observations,
    digest,
    list_digest,
    observe_query,
)
from service.api.routes.calls import CHANGE, STREAM, UNFIT, Calls
from service.api.tables import Document
from service.schema import rendering
from service.schema.queries import ObserveQuery
from service.tasks import apart
from service.wire import rows

OWN = ("seq", "time", "elapsed")  # columns of observations beside labels and inputs
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
ITEMS_AT_ONCE = 1000  # grouped by stream, or refused, before the event loop does something else
RENDERED_AT_ONCE = 512  # quiet answers to items
SENT_AT_ONCE = 1024  # answers to items
_encoder = msgspec.json.Encoder()
_answer = msgspec.json.Decoder(ItemAnswer).decode
calls = Calls("observations")
T = TypeVar("T")


@calls.declare(
    "POST",
    f"{STREAM}/observations",
    Answer | list[Answer],
    (
        *CHANGE,
        *UNFIT,
        problems.ApiBusy,
        problems.KeyReused,
        problems.NumericalFault,
        problems.SeqConflict,
        problems.NotAwaited,
        problems.TimeBackwards,
    ),
    parameters=(openapi.STREAM, openapi.IDEMPOTENCY, *openapi.parameters(ObserveQuery)),
    body=openapi.OBSERVATIONS_BODY,
    described=openapi.with_columns(openapi.answer(Answer | list[Answer])),
)
async def observe(request: Request) -> Response:
    """Post one observation, or an ordered list of them."""
    scope = request.scope
    command, layout = template_of(
        scope["query_string"], checked_stream(scope["path_params"]["stream"])
    )
    command.key = key_of(scope)
    body, kind = await read_json(scope, request.receive, others=(ARROW,))
    return await apply_observations(
        context_of(request), command, layout, body, kind, scope["state"]
    )


async def apply_observations(
    context: Context,
    command: wire.Observe,
    layout: str,
    body: bytes,
    kind: str,
    state: dict[str, Any],
) -> Response:
    """Apply the body of a post to one stream; state: of the request, gets `list` for a list."""
    if kind == ARROW:
        body = await _forms(context, body, OWN)
    parser = context.observation_parser
    form = parser.valid_list(body)
    if form is None:
        form = await parse_body(context, parser.observations, body)
    command.seq = form.seq
    if form.many:
        state["list"] = True
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
    (problems.ApiBusy, problems.NotInstalled, problems.WaitTooLong),
    parameters=openapi.parameters(ObserveQuery),
    body=openapi.ITEMS_BODY,
    described=openapi.ITEM_ANSWERS,
)
async def observe_many(request: Request) -> Response:
    """Post observations of many streams; each item gets its own status."""
    scope = request.scope
    refuse_key(key_of(scope))
    template, layout = template_of(scope["query_string"])
    body, kind = await read_json(scope, request.receive, others=(NDJSON, ARROW))
    return await apply_items(context_of(request), template, layout, body, kind)


def refuse_key(key: str | None) -> None:
    """Raise InvalidField for the key of a request of many streams."""
    if key is not None:
        # Ignored, it would promise a safe retry that is none.
        detail = "not allowed for many streams: give each item its own `key`"
        raise problems.InvalidField.at("header.idempotency-key", detail)


async def apply_items(
    context: Context, template: wire.Observe, layout: str, body: bytes, kind: str
) -> Response:
    """Apply the body of a post to many streams."""
    lines = kind == NDJSON
    if kind == ARROW:
        body = await _forms(context, body, (*OWN, "stream", "key"))
    parser = context.observation_parser
    items = None if lines else parser.valid_items(body)
    if items is None:
        items = await parse_body(context, partial(parser.items, lines=lines), body)
    bulk = Bulk(context, items, template)
    await bulk.run()
    if layout != "objects":
        return await _table(
            context, lambda: tables.item_columns(bulk.documents(), template.full), layout
        )
    between = b"\n" if lines else b","
    pieces = [
        between.join(bulk.results[first : first + SENT_AT_ONCE])
        for first in range(0, len(bulk.results), SENT_AT_ONCE)
    ]
    if lines:
        return ListResponse(pieces, (b"", b"\n", b"\n" if pieces else b""), media_type=NDJSON)
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
    columns = 2 * settings.max_dimension + 2 * len(OWN)  # for a label, an input and others
    return await apart(
        context.thread, tables.forms_of, body, names, settings.max_observations, columns
    )


async def _table(context: Context, columns: Callable[[], Columns], layout: str) -> Response:
    """Return answers by columns, laid out in the thread."""
    content = await apart(context.thread, lambda: tables.rendered(columns(), layout))
    return Rendered(content, 200, ARROW if layout == "arrow" else JSON)


async def _observe_list(
    context: Context, template: wire.Observe, form: Observations, body: bytes, layout: str
) -> Response:
    """Apply a list in parts, in order; not atomic."""
    size = context.observation_parser.parts(form.observations)
    if template.key is not None:
        template.digest = await parse_body(context, partial(list_digest, size=size), body)
    answers: list[Answer] = []  # for columns
    pieces: list[bytes] = []  # for objects
    count = 0
    refusal: tuple[int, dict[str, Any], Mapping[str, str]] | None = None
    patience = context.gateway.patience()
    for first in range(0, len(form.observations), size):
        command = replace(
            template,
            observations=wire.sublist(form.observations, first, first + size),
            first=first,
            seq=None if template.seq is None else template.seq + first,
        )
        try:
            # The queue shields the append: a client that disconnects does not undo its request.
            outcome = await context.gateway.submit(command, first > 0, patience)
        except problems.ServiceError as error:
            refusal = error.status, error.document(), error.headers()
            break
        if layout == "objects":
            texts = rendering.texts(command, outcome)
            pieces += [b",".join(texts)] if texts else []
            count += len(texts)
        else:
            answers += rendering.answers(command, outcome)
        if outcome.status >= 400:
            refusal = outcome.status, document_of(outcome), NO_HEADERS
            break
        await asyncio.sleep(0)
    columns = partial(tables.answer_columns, answers, template.full)
    if refusal is None:
        return (
            ListResponse(pieces) if layout == "objects" else await _table(context, columns, layout)
        )
    # What was applied before is answered, and the error.
    status, document, headers = refusal
    document["applied"] = count or len(answers)
    if layout != "objects":
        document["answers"] = await apart(context.thread, columns)
        return Rendered(_encoder.encode(document), status, problems.PROBLEM_JSON, headers)
    around = _encoder.encode(document)[:-1] + b',"answers":[', b",", b"]}"
    return ListResponse(pieces, around, status, headers, problems.PROBLEM_JSON)


# --- observations of many streams -----------------------------------------------------------------


Kind = tuple[str, bool, wire.Layout]  # of quiet answers: model, whether in full, layout


class QuietItems:
    """Quiet answers of one kind, by columns, to be rendered together."""

    def __init__(self) -> None:
        self.places: list[int] = []  # of their items
        self.firsts: list[int] = []
        self.seasons: list[wire.SeasonPeriods | None] = []
        self.rows: list[bytes] = []  # of some answers each


def pick(places: Sequence[int]) -> Callable[[Sequence[T]], Sequence[T]]:
    """Return what takes the values at some places of a column, faster than a loop does."""
    if len(places) == 1:
        place = places[0]
        return lambda column: (column[place],)
    return itemgetter(*places)


class Bulk:
    """The items of one request: streams side by side, the items of each in order."""

    def __init__(self, context: Context, items: Items, template: wire.Observe) -> None:
        self._context = context
        self._items = items
        # The options of the answers, as of a command.
        self._options = (template.full, template.belief, template.components, template.quantiles)
        # JSON of the answer or the problem document of each item.
        self.results = [b""] * len(items.streams)
        self._refused: dict[int, Document] = {}  # by place
        # Places of a stream's items that are not answered, in groups, one row each, the first group
        # last: of streams with several items, or with one that is more than a number.
        self._groups: dict[str, list[Group]] = {}
        # Of all partitions: to render those of one apart takes as long as a dozen answers.
        self._quiet: dict[Kind, QuietItems] = {}

    async def run(self) -> None:
        """Apply all items."""
        context = self._context
        streams = cast(tuple[str, ...], tuple(self._items.streams))
        waves = None if self._items.others else context.gateway.waves(streams)
        if waves is None:
            waves = await self._begin()
        await submit_waves(context.gateway, waves, self._command, self._following)
        for kind in list(self._quiet):
            self._render(kind)

    async def _begin(self) -> Waves:
        """Return the first group of each stream, and answer what has no stream."""
        waves: defaultdict[int, list[Group]] = defaultdict(list)
        by_stream: dict[str, list[int]] = {}
        others = self._items.others
        for i, stream in enumerate(self._items.streams):
            if stream is None:
                bad = others[i]
                assert isinstance(bad, BadItem)
                self._refuse([i], bad.error)
            else:
                by_stream.setdefault(stream, []).append(i)
            if i % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                await asyncio.sleep(0)
        partitions = self._context.gateway.partitions(by_stream)
        for (stream, places), partition in zip(by_stream.items(), partitions, strict=True):
            group: Group = places
            if len(places) > 1 or places[0] in others:
                self._groups[stream] = [*self._grouped(places)]
                group = self._next(stream)
            if group:
                waves[partition].append(group)
        return waves

    def documents(self) -> list[Answer | Document]:
        """Return the answer or the problem document of each item."""
        return [
            self._refused[i] if i in self._refused else _answer(text)
            for i, text in enumerate(self.results)
        ]

    def _next(self, stream: str) -> Group:
        """Take the next group of a stream; none where none is left, or an invalid item is next."""
        groups = self._groups.get(stream)
        if not groups:
            return []
        group = groups.pop()
        bad = self._items.others.get(group[0])
        if isinstance(bad, BadItem):
            self._refuse(group, bad.error)
            self._skip(stream)
            return []
        return group

    def _following(self, wave: Sequence[Group], results: RowsResult) -> list[Group]:
        """Enter what rows came to; after a failed item of a stream nothing is attempted."""
        places = results.places
        groups = wave if len(places) == len(wave) else list(pick(places)(wave))
        result = results.result
        if isinstance(result, wire.Outcome) and result.quiet is not None:
            self._answer(groups, result.quiet, results.first)
        else:
            for group in groups:
                self._enter(group, result)
        if not self._groups:
            return []
        firsts = [group[0] for group in groups]
        later = map(self._next, pick(firsts)(cast(list[str], self._items.streams)))
        return [group for group in later if group]

    def _answer(self, groups: Sequence[Group], quiet: wire.QuietRows, first: int) -> None:
        """Take answers to groups of one item, from the `first` on."""
        places = list(chain.from_iterable(groups))
        stop = first + len(places)
        size = quiet.layout.row_bytes(quiet.full)
        kind = quiet.model, quiet.full, quiet.layout
        answers = self._quiet.setdefault(kind, QuietItems())
        answers.places += places
        answers.firsts += quiet.firsts[first:stop]
        answers.seasons += (
            [None] * len(places) if quiet.seasons is None else quiet.seasons[first:stop]
        )
        answers.rows.append(quiet.rows[size * first : size * stop])
        if len(answers.places) >= RENDERED_AT_ONCE:
            self._render(kind)

    def _render(self, kind: Kind) -> None:
        """Enter the texts of quiet answers of one kind."""
        answers = self._quiet.pop(kind)
        own = pick(answers.places)
        columns = rendering.QuietColumns(
            *kind,
            own(cast(list[str], self._items.streams)),
            answers.firsts,
            own(self._items.times),
            answers.seasons,
            b"".join(answers.rows),
        )
        results = self.results
        for place, text in zip(answers.places, columns.texts(ItemAnswer), strict=True):
            results[place] = text

    def _enter(self, group: Group, result: Result) -> None:
        stream = cast(str, self._items.streams[group[0]])
        if isinstance(result, problems.ServiceError):
            self._refuse(group, result)
            self._skip(stream)
            return
        command = wire.Observe(stream, list(map(self._items.observation, group)))
        texts = rendering.texts(command, result, ItemAnswer)
        for place, text in zip(group, texts, strict=False):
            self.results[place] = text
        if result.status < 400:
            return
        failed = group[len(texts) :]
        groups = self._groups.setdefault(stream, [])
        if len(group) == 1 or result.status >= 500:
            document = document_of(result)
            document.pop("applied", None)  # of the command, not of the client's request
            self._put(failed[0], document)
            groups.append(failed[1:])
            self._skip(stream)
        else:
            # A command is refused as a whole where it does not fit its stream: halves of it show
            # which item is the bad one, and those before it are applied.
            half = len(failed) // 2
            groups += [part for part in (failed[half:], failed[:half]) if part]

    def _grouped(self, places: list[int]) -> Sequence[Group]:
        """Group a stream's items: neighbours without a key go together, one with a key alone.

        The first group is last, to be taken from the end.
        """
        if len(places) == 1:
            return [places]
        others = self._items.others
        valid = [place for place in places if not isinstance(others.get(place), BadItem)]
        size = self._context.observation_parser.parts(list(map(self._items.observation, valid)))
        groups: list[list[int]] = []
        joinable = False  # whether a neighbour may join the last group
        for place in places:
            item = others.get(place)
            if isinstance(item, BadItem) or (item is not None and item.key is not None):
                groups.append([place])
                joinable = False
            elif joinable and (item is None or item.seq is None) and len(groups[-1]) < size:
                groups[-1].append(place)
            else:
                groups.append([place])
                joinable = True
        groups.reverse()
        return groups

    def _command(self, wave: Sequence[Group]) -> wire.ObserveMany:
        """Return the command of groups, a row each."""
        items = self._items
        places = list(chain.from_iterable(wave))
        several = len(places) > len(wave)
        own = pick(places)
        times = own(items.times)
        y, outputs, x, inputs = rows.columns(own(items.y), own(items.x))
        firsts = pick([group[0] for group in wave]) if several else own
        command = wire.ObserveMany(
            list(firsts(cast(list[str], items.streams))),
            y,
            list(map(len, wave)) if several else None,
            list(times) if any(times) else None,
            outputs,
            x,
            inputs,
        )
        if items.others:
            more = [place for place in places if place in items.others]
            command.others = list(map(items.observation, more)) or None
            stated = [cast(GoodItem | None, items.others.get(group[0])) for group in wave]
            command.seqs = rows.unless_empty([None if one is None else one.seq for one in stated])
            command.keys = rows.unless_empty([None if one is None else one.key for one in stated])
            digests = [None if one is None else one.digest for one in stated]
            command.digests = rows.unless_empty(digests)
        command.full, command.belief, command.components, command.quantiles = self._options
        return command

    def _refuse(self, places: Group, error: problems.ServiceError) -> None:
        """Answer items of one stream."""
        for place in places:
            self._put(place, error.document())

    def _skip(self, stream: str) -> None:
        """Answer groups of a stream that are not attempted; none are left."""
        detail = "not applied: an earlier item of the same stream failed"
        for group in self._groups.pop(stream, ()):
            self._refuse(group, problems.EarlierItemFailed(detail))

    def _put(self, place: int, document: Document) -> None:
        stream = self._items.streams[place]
        own = document if stream is None else {**document, "stream": stream}
        self.results[place] = _encoder.encode(own)
        self._refused[place] = own
