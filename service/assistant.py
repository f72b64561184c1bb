"""Tools of assistants, by the Model Context Protocol: what changed, since when and why, in words.

They read only. A tool calls the REST interface by the client, with the key of its caller: `moca
mcp` that of a service at an address, `POST /mcp` that of the process it is part of. Needs `mcp`,
which is an extra: importing this module takes most of a second.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import Field

from moca_client import AsyncClient, ClientError, calls, responses
from moca_client.errors import UnknownStream
from moca_client.tables import describe_evidence, describe_season, describe_start
from model_core.wording import did_you_mean
from service import installed_version

INSTRUCTIONS = (
    "Changepoint detection on data streams. Start with list_incidents or list_changes: what "
    "changed, and since when. explain_change has the figures of one change, stream_status the "
    "state of one stream, forecast what comes next, what_if how other settings would have done. "
    "Times are RFC 3339; `since` also takes an age such as 30m, 24h or 7d. A change is `suspected` "
    "until its evidence suffices, then `confirmed`, or `withdrawn`. Nothing here changes anything."
)
MOST = 100  # changes in an answer
SUSPECTED = 10  # streams that are named when none is asked for
NAMED = 20  # changes of a stream that are named by number alone
OUTPUTS = 8  # numbers of a vector
LEAST_EVIDENCE = 10.0  # observations in which chance gives as much
NAMES = 1000  # streams among which the one that was meant is looked for
SEED = 0  # of the paths of a forecast, so that a question asked twice has one answer
LEVELS = (0.05, 0.5, 0.95)
ALL = "all"
STATES = ("suspected", "confirmed", "withdrawn")
Connect = Callable[[Context[Any, Any]], AsyncClient]
Since = Annotated[
    str, Field(description="RFC 3339 time, or an age such as 30m, 24h or 7d, or all: of all times")
]
Stream = Annotated[str, Field(description="stream id", min_length=1, max_length=200)]
Match = Annotated[
    str, Field(description='selector of streams by tags, such as {job="node"}; empty: all')
]
Most = Annotated[int, Field(ge=1, le=MOST, description="most lines of the answer")]


class Server(MCPServer[Any]):
    """A server that refuses arguments which a tool does not have: the SDK ignores them."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool; raises ToolError."""
        schemas = {tool.name: tool.input_schema for tool in await self.list_tools()}
        expected = list(schemas.get(name, {}).get("properties", arguments))
        for argument in arguments:
            if argument not in expected:
                hint = did_you_mean(argument, expected) or f"; it has {', '.join(expected)}"
                raise ToolError(f"{name} has no argument {argument!r}{hint}")
        return await super().call_tool(name, arguments, context)


def server(connect: Connect) -> Server:
    """Return a server of the tools; `connect` gives a client of the caller's."""
    made = Server(
        "moca",
        title="MOCA changepoint detection",
        version=installed_version(),
        instructions=INSTRUCTIONS,
        log_level="WARNING",
    )
    # It logs each call, and the arguments of those that fail.
    logging.getLogger("mcp").setLevel(logging.WARNING)
    tools = Tools(connect)
    for tool in (
        tools.list_incidents,
        tools.list_changes,
        tools.explain_change,
        tools.stream_status,
        tools.forecast,
        tools.what_if,
    ):
        # Text alone: with a schema of the output the same words would be sent twice.
        made.add_tool(
            tool,
            annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
            structured_output=False,
        )
    return made


class Tools:
    """The tools; the docstring of each is what an assistant reads of it."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    @asynccontextmanager
    async def _client(self, ctx: Context[Any, Any], stream: str = "") -> AsyncIterator[AsyncClient]:
        """A client; what the service refuses reaches the model in the words of its problems."""
        try:
            async with self._connect(ctx) as client:
                try:
                    yield client
                except UnknownStream as error:
                    query = {"prefix": stream[:1], "limit": NAMES}
                    page = await client.call(calls.get("/v1/streams", responses.StreamPage, query))
                    names = [row.stream for row in page.streams]
                    raise ToolError(f"{error}{did_you_mean(stream, names, 3)}") from error
        except ClientError as error:
            raise ToolError(str(error)) from error

    async def list_incidents(
        self, ctx: Context[Any, Any], since: Since = "24h", match: Match = "", limit: Most = 10
    ) -> str:
        """List changes of several streams that began together, and what these streams share."""
        call = calls.incidents(since=_beginning(since), match=[match] if match else [], limit=limit)
        async with self._client(ctx) as client:
            page = await client.call(call)
        if not page.incidents:
            return f"No incidents {_since(since)}; single changes are in list_changes."
        lines = [f"{_count(page.total, 'incident')} {_since(since)}, the newest first:"]
        return "\n".join([*lines, *map(_incident_line, page.incidents)])

    async def list_changes(
        self,
        ctx: Context[Any, Any],
        since: Since = "24h",
        until: Annotated[str, Field(description="likewise; empty: now")] = "",
        state: Literal["confirmed", "suspected", "withdrawn", "any"] = "confirmed",
        match: Match = "",
        contains: Annotated[str, Field(description="text in the stream id")] = "",
        sort: Literal["time", "size"] = "time",
        limit: Most = 20,
    ) -> str:
        """List changes of all streams, the newest or the largest first: what changed since when."""
        call = calls.changes(
            since=_beginning(since),
            until=until or None,
            states=STATES if state == "any" else [state],
            contains=contains or None,
            match=[match] if match else [],
            sort=sort,
            limit=limit,
        )
        async with self._client(ctx) as client:
            page = await client.call(call)
        kind = "change" if state == "any" else f"{state} change"
        if not page.changes:
            return f"No {kind} {_since(since)}."
        order = "the newest first" if sort == "time" else "the largest first"
        lines = [_change_line(change) for change in page.changes]
        left = page.total - len(lines)
        more = [f"And {left} more: raise `limit` or narrow the query."] if left > 0 else []
        return "\n".join([f"{_count(page.total, kind)} {_since(since)}, {order}:", *lines, *more])

    async def explain_change(
        self,
        ctx: Context[Any, Any],
        stream: Stream,
        change: Annotated[
            int | None, Field(description="number of the change; default: the last confirmed one")
        ] = None,
    ) -> str:
        """Explain one change: what changed, by how much, since when, how sure, with what others."""
        async with self._client(ctx, stream) as client:
            events = (await client.changepoints(stream, states=STATES)).events
            if change is None:
                wanted = [e for e in events if e.state == "confirmed"][-1:]
            else:
                wanted = [e for e in events if e.id == change]
            together = await self._together(client, stream, wanted[0]) if wanted else []
        if not wanted:
            what = "no confirmed change" if change is None else f"no change {change}"
            states = _last([f"{e.id} ({e.state})" for e in events]) or "none"
            return f"The stream {stream} has {what}. Its changes: {states}."
        return "\n".join([*_explained(stream, wanted[0]), *together])

    async def _together(
        self, client: AsyncClient, stream: str, change: responses.Event
    ) -> list[str]:
        """Return of which incident a change is part, in a line; none: of none."""
        if change.state != "confirmed":
            return []
        call = calls.changes(prefix=stream, states=[change.state], limit=MOST)
        listed = (await client.call(call)).changes
        ids = [e.incident for e in listed if (e.stream, e.id) == (stream, change.id) and e.incident]
        if not ids:
            return []
        incident = await client.incident(ids[0])
        return [f"Part of an incident: {incident.headline}."]

    async def stream_status(
        self,
        ctx: Context[Any, Any],
        stream: Annotated[
            str, Field(description="stream id; empty: how many there are, and which to look at")
        ] = "",
    ) -> str:
        """Describe a stream now: last value, current regime, what is suspected, last change."""
        async with self._client(ctx, stream) as client:
            if stream:
                return "\n".join(_status(await client.stream(stream)))
            page = await client.overview(sort="changed_probability", limit=SUSPECTED, labels=0)
        suspected = [glance for glance in page.streams if glance.event is not None]
        lines = [f"{page.total} streams; " + ("suspected now:" if suspected else "none suspected.")]
        for glance in suspected:
            assert glance.event is not None
            about = f"{glance.event.sentence}, from observation {glance.event.start}"
            lines.append(f"- {glance.stream}: {about}; {_evidence(glance.evidence)}")
        return "\n".join(lines)

    async def forecast(
        self,
        ctx: Context[Any, Any],
        stream: Stream,
        steps: Annotated[int, Field(ge=1, le=24, description="observations ahead")] = 6,
    ) -> str:
        """Forecast the next values of a stream, with 90 % intervals; changes may still come."""
        async with self._client(ctx, stream) as client:
            answer = await client.predict(stream, quantiles=LEVELS, horizon=steps, seed=SEED)
        lines = [f"{stream}, after observation {answer.seq - 1}, by the model {answer.model}:"]
        return "\n".join([*lines, *map(_forecast_line, answer.predictions)])

    async def what_if(
        self,
        ctx: Context[Any, Any],
        stream: Stream,
        settings: Annotated[
            dict[str, Any],
            Field(
                description="settings to try: `false_alarm_every` (observations), `hazard` "
                "(probability of a change at an observation), `model`, `min_size` (sd), `seasonal`",
                examples=[{"false_alarm_every": 5000}],
            ),
        ],
    ) -> str:
        """Rerun a stream's retained history under other settings, and compare; changes nothing."""
        async with self._client(ctx, stream) as client:
            rerun = await client.what_if(stream, {"settings": settings})
            present = (await client.changepoints(stream)).events
        then = _confirmed(rerun.events)
        now = _confirmed([event for event in present if event.start >= rerun.first])
        words = ", ".join(f"{name} {value}" for name, value in settings.items()) or "its settings"
        lines = [
            f"{stream}, rerun from observation {rerun.first} to {rerun.seq - 1} with {words}:",
            f"- it would have confirmed {then}",
            f"- as it is, it confirmed {now}",
        ]
        score = rerun.mean_log_score
        actual = rerun.present_mean_log_score
        if score is not None and actual is not None:
            lines.append(
                f"- forecasts: mean log score {score:.4g}, now {actual:.4g}, over {rerun.compared} "
                "observations (higher is better; .01 is little)"
            )
        return "\n".join(lines)


# --- words ----------------------------------------------------------------------------------------


def _beginning(since: str) -> str | None:
    return None if since == ALL else since


def _since(since: str) -> str:
    return "of all times" if since == ALL else f"since {since}"


def _incident_line(incident: responses.Incident) -> str:
    left = incident.streams - len(incident.names)
    more = f" and {left} more" if left else ""
    return (
        f"- {incident.headline}; began {incident.start_time}, confirmed {incident.confirmed_time}; "
        f"{incident.by_chance.per_day:.2g} such a day by chance; "
        f"streams {', '.join(incident.names)}{more}"
    )


def _change_line(change: responses.StreamChange) -> str:
    confirmed = f", confirmed {change.confirmed_time}" if change.confirmed_time else ""
    state = "" if change.state == "confirmed" else f" ({change.state})"
    began = change.start_time or f"by {change.suspected_time}"
    return (
        f"- {change.stream}: {change.sentence}{state}; began {began}{confirmed}; change {change.id}"
    )


def _explained(stream: str, change: responses.Event) -> Iterator[str]:
    """Yield what is known of a change, line by line."""
    yield f"{stream}, change {change.id}, {change.state}: {change.sentence}."
    if change.verdict is not None:
        yield f"Feedback: it was {'a' if change.verdict else 'no'} change."
    when = "" if change.start_time is None else f", at {change.start_time}"
    arrived = " (of its arrival)" if change.start_arrived else ""
    sure = "" if change.coverage is None else f", with probability {change.coverage:.2g}"
    yield f"Began at observation {describe_start(change)}{sure}{when}{arrived}."
    if change.confirmed_at is not None:
        yield f"Confirmed at observation {change.confirmed_at}, by {_evidence(change.evidence)}."
    for side, regime in (("Before", change.before), ("After", change.after)):
        if regime is not None:
            moments = f"mean {_numbers(regime.mean)}, standard deviation {_numbers(regime.sd)}"
            yield f"{side}: {regime.count} values, {moments}."
    if change.explanation is not None and change.explanation.kind is not None:
        sure = f"{change.explanation.probability:.2g}"
        yield f"Probability that it was the {change.explanation.kind}: {sure}."


def _status(summary: responses.StreamSummary) -> Iterator[str]:
    """Yield the state of a stream, line by line."""
    tags = ", ".join(f"{name}={value}" for name, value in summary.settings.get("tags", {}).items())
    yield f"{summary.stream}: model {summary.model}" + (f", tags {tags}" if tags else "") + "."
    if not summary.seq:
        yield "No observation yet."
        return
    yield (
        f"{summary.seq} observations; last value {_numbers(summary.last)}, "
        f"accepted {summary.updated}."
    )
    if summary.warming_up:
        yield "Warming up: no changes are looked for yet."
        return
    if summary.regime_start is not None:
        length = summary.seq - summary.regime_start
        yield f"Current regime: since observation {summary.regime_start}, {length} long."
    event = summary.event
    suspected = "No change suspected"
    if event is not None:
        suspected = f"Suspected: {event.sentence}, from observation {event.start}"
    yield f"{suspected}; {_evidence(summary.evidence)}."
    last = summary.last_event
    if last is not None:
        yield f"Last confirmed change: {last.id}, {last.sentence}, from observation {last.start}."
    if summary.season is not None:
        yield f"Season: {describe_season(summary.season)}."


def _evidence(evidence: float | None) -> str:
    if evidence is None or evidence < LEAST_EVIDENCE:
        return "no evidence of one"
    return f"evidence that chance alone gives {describe_evidence(evidence)} observations"


def _forecast_line(prediction: responses.Prediction) -> str:
    ahead = f"- in {prediction.ahead}: "
    predictive = prediction.predictive
    if predictive is None:
        return ahead + "unknown"
    if predictive.probabilities is not None:
        likely = max(range(len(predictive.probabilities)), key=predictive.probabilities.__getitem__)
        return f"{ahead}class {likely} with probability {predictive.probabilities[likely]:.2g}"
    low, middle, high = ((predictive.quantiles or {}).get(str(level)) for level in LEVELS)
    return f"{ahead}{_numbers(middle)}, 90 % from {_numbers(low)} to {_numbers(high)}"


def _confirmed(events: Sequence[responses.Event]) -> str:
    starts = [event.start for event in events if event.state == "confirmed"]
    if not starts:
        return "no change"
    return f"{_count(len(starts), 'change')}, from observation {_last([*map(str, starts)])}"


def _last(texts: Sequence[str]) -> str:
    """Return the last of a list, and how many there are before them."""
    left = len(texts) - NAMED
    more = f" and {left} before" if left > 0 else ""
    return ", ".join(texts[-NAMED:]) + more


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _numbers(values: responses.Numbers) -> str:
    if values is None:
        return "unknown"
    if isinstance(values, list):
        texts = [_numbers(value) for value in values[:OUTPUTS]]
        if len(values) > OUTPUTS:
            texts.append(f"{len(values) - OUTPUTS} more")
        return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
    return f"{values:.4g}"
