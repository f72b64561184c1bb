"""POST observations: one, a list for one stream, or items for many streams."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import msgspec
from fastapi import FastAPI
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from moca_client.responses import Answer
from moca_client.tables import Columns
from service import wire
from service.api import openapi, tables
from service.api.gateway.gateway import PendingCommand
from service.api.gateway.waves import StreamCommands, submit_waves
from service.api.http import (
    Admission,
    Context,
    ListResponse,
    Rendered,
    Route,
    checked_key,
    checked_stream,
    context_of,
    defect_problem,
    is_json,
    is_light,
    key_of,
    load_shed,
    outcome_response,
    parse_body,
    problem,
    read_json,
    request_duration,
    request_id_of,
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
from service.observability.metrics import Gathered
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
from service.schema.observations import STREAM_CHARACTERS, ItemForm, ObservationForm
from service.schema.queries import ObserveQuery
from service.tasks import apart

OWN = ("seq", "time", "elapsed")  # columns of observations beside labels and inputs
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
AT_ONCE = 1000  # items grouped by stream, or refused, before the event loop does something else
LONGEST_HEAD = 4096  # bytes
HEADS = 1024  # that are kept: those of one client hardly differ
# Headers that change how a request is read or answered.
OTHERS = frozenset(
    {
        b"content-encoding",
        b"expect",
        b"origin",
        b"proxy-connection",  # by which the parser ends connections
        b"transfer-encoding",
        b"upgrade",
    }
)
_line = re.compile(
    rb"POST /v1/(?:streams/((?!\.\.?/)[%b]{1,200})/)?observations(?:\?([\w=&.,-]*))? HTTP/1\.1"
    % STREAM_CHARACTERS.encode()
).fullmatch
_header = re.compile(rb"([A-Za-z0-9-]+): ([\x20-\x7e]*)").fullmatch
_length = re.compile(rb"\d{1,7}").fullmatch
Sender = Callable[[Response], None]  # of the answer to a plain post
_encode = msgspec.json.Encoder().encode
_STATUS_200 = b'{"status":200,'
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
    body=openapi.body(openapi.one_or_list(ObservationForm)),
    described=openapi.answer_or_columns(Answer | list[Answer]),
)
async def observe(request: Request) -> Response:
    """Post one observation, or an ordered list of them."""
    scope = request.scope
    context = context_of(request)
    command, layout = _asked(scope["query_string"], checked_stream(scope["path_params"]["stream"]))
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
        return _answered(command, outcome)
    columns = partial(tables.answer_columns, rendering.answers(command, outcome), command.full)
    return await _table(context, columns, layout)


@calls.declare(
    "POST",
    "/v1/observations",
    None,
    (ApiBusy, NotInstalled, WaitTooLong),
    parameters=openapi.parameters(ObserveQuery),
    body=openapi.body(openapi.items_of(ItemForm), lines=True),
    described=openapi.ITEM_ANSWERS,
)
async def observe_many(request: Request) -> Response:
    """Post observations of many streams; each item gets its own status."""
    context = context_of(request)
    if key_of(request.scope) is not None:
        # Ignored, it would promise a safe retry that is none.
        detail = "not allowed for many streams: give each item its own `key`"
        raise InvalidField.at("header.idempotency-key", detail)
    template, layout = _asked(request.scope["query_string"])
    body, kind = await read_json(request.scope, request.receive, others=(NDJSON, ARROW))
    lines = kind == NDJSON
    if kind == ARROW:
        body = await _forms(context, body, (*OWN, "stream", "key"))
    items = await parse_body(context, partial(context.observation_parser.items, lines=lines), body)
    results = await Bulk(context, items, template).run()
    if layout != "objects":
        return await _table(context, partial(tables.item_columns, results, template.full), layout)
    rendered = await _rendered(results)
    if lines:
        return ListResponse(rendered, (b"", b"\n", b"\n" if rendered else b""), media_type=NDJSON)
    return ListResponse(rendered)


@lru_cache(256)
def _query(query: bytes) -> ObserveQuery:
    return observe_query(QueryParams(query.decode("latin-1")).multi_items())


def _asked(query: bytes, stream: str = "") -> tuple[wire.Observe, str]:
    """Return a command without observations, with the answer options of the query; and `format`."""
    if not query:
        return wire.Observe(stream, []), "objects"
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


def _answered(command: wire.Observe, outcome: wire.Outcome) -> Response:
    """Return the answer to one observation, or the problem document of its refusal."""
    if outcome.status >= 400:
        return outcome_response(outcome)
    (answer,) = rendering.answers(command, outcome)
    return Rendered(_encode(answer), 200, JSON)


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


async def _rendered(results: Sequence[Answer | Document]) -> list[bytes]:
    """Return results as JSON; those of items have their status."""
    rendered = []
    for i, result in enumerate(results, start=1):
        text = _encode(result)
        rendered.append(_STATUS_200 + text[1:] if isinstance(result, Answer) else text)
        if i % AT_ONCE == 0:
            await asyncio.sleep(0)
    return rendered


class ListAnswers:
    """Answers to a list of observations, in the layout that was asked for."""

    def __init__(self, context: Context, layout: str, full: bool) -> None:
        self.count = 0
        self._context = context
        self._layout = layout
        self._full = full
        self._answers: list[Answer] = []  # for columns
        self._rendered: list[bytes] = []  # for objects

    def take(self, command: wire.Observe, outcome: wire.Outcome) -> None:
        """Take the answers to one part of the list."""
        answers = [*rendering.answers(command, outcome)]
        self.count += len(answers)
        if self._layout == "objects":
            self._rendered += map(_encode, answers)
        else:
            self._answers += answers

    async def response(self) -> Response:
        """Return the response for a list that was applied."""
        if self._layout == "objects":
            return ListResponse(self._rendered)
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
            return Rendered(_encode(document), status, PROBLEM_JSON, headers)
        before = _encode(document)[:-1] + b',"answers":['
        return ListResponse(self._rendered, (before, b",", b"]}"), status, headers, PROBLEM_JSON)


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


# --- plain posts ----------------------------------------------------------------------------------

# Nearly all requests are a post of one observation, whole in one piece, with headers that change
# nothing about how it is read or answered. Parser, scope, middleware, route and task would cost
# more than all that is done for the observation. So those go from the bytes on the connection to
# those of the answer. What is not plain, and what has to wait for anything but its outcome, is left
# to `observe`, which answers the same.


class PlainHead(NamedTuple):
    """What the headers of a plain post say."""

    length: int  # of the body
    hosts: list[bytes]  # at most one
    authorization: bytes | None
    key: bytes | None  # for idempotency
    request_id: bytes | None


@lru_cache(HEADS)
def plain_head(lines: bytes) -> PlainHead | None:
    """Read headers; None where one of them makes a request other than plain."""
    headers: dict[bytes, bytes] = {}
    for line in lines.split(b"\r\n"):
        match = _header(line)
        if match is None or match[1].lower() in headers:
            return None
        headers[match[1].lower()] = match[2].strip()
    length = headers.get(b"content-length", b"")
    ends = headers.get(b"connection", b"keep-alive").lower() != b"keep-alive"
    if ends or not OTHERS.isdisjoint(headers) or not _length(length):
        return None
    if not is_json(headers.get(b"content-type", b"")):
        return None
    return PlainHead(
        int(length),
        [headers[b"host"]] if b"host" in headers else [],
        headers.get(b"authorization"),
        headers.get(b"idempotency-key"),
        headers.get(b"x-request-id"),
    )


class PlainPosts:
    """Answers the plain posts of one process, which has neither an access log nor traces."""

    def __init__(self, app: FastAPI, context: Context) -> None:
        self._context = context
        self._longest = context.settings.max_body_bytes
        self._admission: Admission = app.state.admission
        self._gathered: Gathered = app.state.gathered
        routes = {route.name: route for route in app.routes if isinstance(route, Route)}
        self._one = routes["observe"]
        self._many = routes["observe_many"]
        # As the layer of CORS has it, where there is one: answers are other ones for other origins.
        self._added = [(b"vary", b"Origin")] if app.user_middleware else []

    def take(self, data: bytes, send: Sender) -> bool:
        """Answer a plain post, now or later; whether this is one.

        Under overload, lists and posts of many streams are refused here as well: to parse a request
        costs three times what it takes to refuse it.
        """
        last = data.find(b"\r\n\r\n", 0, LONGEST_HEAD)
        first = data.find(b"\r\n")
        line = _line(data[:first])
        if line is None or last < 0:
            return False
        head = plain_head(data[first + 2 : last])
        beyond = last + 4
        if head is None or len(data) != beyond + head.length or self._admission.crowded:
            return False
        began = time.perf_counter()
        stream, query = line.groups()
        route = self._many if stream is None else self._one
        end = partial(self._end, route, began, request_id_of(head.request_id), send)
        refusal = self._admission.refusal("POST")
        if refusal is not None:
            load_shed(refusal.reason).inc()
            end(refusal)
            return True
        body = data[beyond:]
        if stream is None or body[:1] != b"{" or head.length > self._longest or not is_light(body):
            return False
        try:
            pending = self._submit(stream.decode(), query or b"", head, body)
        except Exception as error:  # noqa: BLE001, a defect is answered as well
            end(error)
            return True
        if pending is None:
            return False
        self._admission.plain_posts += 1
        pending.group.future.add_done_callback(partial(self._done, pending, end))
        return True

    def _submit(
        self, stream: str, query: bytes, head: PlainHead, body: bytes
    ) -> PendingCommand | None:
        """Submit an observation; None where its post is not plain after all."""
        context = self._context
        authenticator = context.authenticator
        if authenticator.stale:
            return None
        key = authenticator.check(head.authorization, head.hosts, self._one.needs)
        if key is not None and authenticator.rates.of(key) is not None:  # the store counts them
            return None
        command, layout = _asked(query, stream)
        if layout != "objects":
            return None
        command.key = checked_key(head.key)
        form = context.observation_parser.observations(body)
        command.seq = form.seq
        command.observations = form.observations
        if command.key is not None:
            command.digest = digest(body)
        return context.gateway.begin(command)

    def _done(
        self,
        pending: PendingCommand,
        end: Callable[[Response | Exception], None],
        _: asyncio.Future[None],
    ) -> None:
        """Answer with the outcome of an observation."""
        self._admission.plain_posts -= 1
        result: Response | Exception
        try:
            outcome = self._context.gateway.end(pending)
            result = _answered(cast(wire.Observe, pending.envelope.command), outcome)
        except Exception as error:  # noqa: BLE001
            result = error
        end(result)

    def _end(
        self,
        route: Route,
        began: float,
        request_id: bytes,
        send: Sender,
        result: Response | Exception,
    ) -> None:
        """Send an answer, or that to an error, and record it."""
        if isinstance(result, ServiceError):
            result = problem(result)
        elif isinstance(result, Exception):
            result = defect_problem(result, request_id.decode())
        result.raw_headers += [*self._added, (b"x-request-id", request_id)]
        send(result)
        seconds = time.perf_counter() - began
        self._gathered.add(request_duration(route.path, "POST", result.status_code), seconds)


# --- observations of many streams -----------------------------------------------------------------


class Bulk:
    """The items of one request: streams side by side, the items of each in order."""

    def __init__(
        self, context: Context, items: Sequence[GoodItem | BadItem], template: wire.Observe
    ) -> None:
        self._context = context
        self._items = items
        self._template = template  # a command without observations, with the options of the answers
        self._results: list[Answer | Document] = [{}] * len(items)

    async def run(self) -> list[Answer | Document]:
        """Apply all items; return the answer or the problem document of each, in order."""
        by_stream: dict[str, list[int]] = {}
        for i, item in enumerate(self._items):
            if item.stream is None:
                assert isinstance(item, BadItem)
                self._refuse([i], item.error)
            else:
                by_stream.setdefault(item.stream, []).append(i)
            if i % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        await submit_waves(self._context.gateway, map(self._commands, by_stream.values()))
        return self._results

    def _commands(self, places: list[int]) -> StreamCommands:
        """Apply one stream's items; after a failed one nothing more is attempted."""
        groups = self._groups(places)
        while groups:
            group = groups.pop()
            item = self._items[group[0]]
            if isinstance(item, BadItem):
                self._refuse(group, item.error)
                break
            command = self._command(item, group)
            result = yield command
            if isinstance(result, ServiceError):
                self._refuse(group, result)
                break
            applied = 0
            for place, answer in zip(group, rendering.answers(command, result), strict=False):
                self._results[place] = answer
                applied += 1
            if result.status < 400:
                continue
            failed = group[applied:]
            if len(group) == 1 or result.status >= 500:
                document = msgspec.json.decode(result.body[-1])
                document.pop("applied", None)  # of the command, not of the client's request
                self._results[failed[0]] = self._document(failed[0], document)
                self._skip(failed[1:])
                break
            # A command is refused as a whole where it does not fit its stream: find out which item
            # is the bad one, and apply those before it.
            groups.extend([place] for place in reversed(failed))
        for group in groups:
            self._skip(group)

    def _groups(self, places: list[int]) -> list[list[int]]:
        """Group a stream's items: neighbours without a key go together, one with a key alone.

        The first group is last, to be taken from the end.
        """
        if len(places) == 1:
            return [places]
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
        items = map(self._items.__getitem__, group)
        return replace(
            self._template,
            stream=first.stream,
            observations=[item.observation for item in items if isinstance(item, GoodItem)],
            key=first.key,
            digest=digest(wire.encode(first.observation)) if first.key is not None else None,
            seq=first.seq,
        )

    def _refuse(self, places: list[int], error: ServiceError) -> None:
        """Answer items of one stream."""
        for place in places:
            self._results[place] = self._document(place, error.document())

    def _skip(self, places: list[int]) -> None:
        """Answer items that were not attempted."""
        detail = "not applied: an earlier item of the same stream failed"
        self._refuse(places, EarlierItemFailed(detail))

    def _document(self, place: int, document: Document) -> Document:
        stream = self._items[place].stream
        return document if stream is None else {**document, "stream": stream}
