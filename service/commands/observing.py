"""`moca observe`, `predict`, `changepoints`: a stream; `changes` and `incidents`: all of them."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from moca_client.console import table
from moca_client.errors import Invalid
from moca_client.responses import (
    Answer,
    ChangesPage,
    Gap,
    Incident,
    IncidentDetail,
    Mover,
    Prediction,
    Predictions,
    StreamChange,
    StreamEvent,
)
from moca_client.tables import (
    change_lines,
    describe_regime,
    describe_segmentation,
    describe_start,
)
from service.commands.common import argument, fail, option
from service.commands.connection import (
    Json,
    Match,
    Stream,
    change_cells,
    complete_stream,
    event_text,
    noticed,
    number,
    numbers,
    print_json,
    print_table,
    with_client,
)

if TYPE_CHECKING:
    from moca_client import Client
    from moca_client.retry import Call

PAGE = 200  # changes of one request
EVER = "all"
FILE_BATCH = 500
MISSING = frozenset({"null", "none", "nan", "na"})  # labels, or outputs, in words
_index = re.compile(r"(?:body|observations)\[(\d+)\]").match
_LINE = "{:>8}  {:>12}  {:>10}  {:>9}  {:>8}  {}"
_HEAD = _LINE.format("seq", "expected", "changed", "evidence", "anomaly", "event")


class EventState(StrEnum):
    """States of an event; typer takes a list of these, of a Literal it does not."""

    SUSPECTED = "suspected"
    CONFIRMED = "confirmed"
    WITHDRAWN = "withdrawn"


@with_client(retry_for_s=60.0)
def observe(
    client: Client,
    stream: Stream,
    values: Annotated[
        list[str] | None,
        argument(
            "Labels, one observation each: a number, comma-separated numbers (null: a missing "
            "output), or null. "
            "Default: standard input, one of these, or a JSON observation, per line.",
            metavar="LABEL",
            default=False,
        ),
    ] = None,
    x: Annotated[
        str | None, option("Input of each observation: comma-separated numbers.", default=False)
    ] = None,
    batch: Annotated[
        int | None,
        option(
            "Observations per request.", min=1, default=f"{FILE_BATCH} from a file, 1 from a pipe"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Post observations and print one answer per line; with --json all of it.

    Each line is applied exactly once, whichever answers are lost; a second run posts them again.
    """
    if values:
        observations: Iterator[tuple[str, dict[str, Any]]] = (
            (f"LABEL {text!r}", _observation(_labels(text, "LABEL", 2), f"LABEL {text!r}", x))
            for text in values
        )
        size = batch or len(values)
    else:
        if sys.stdin.isatty():
            typer.secho("moca: reading labels, one per line; end with Ctrl-D", err=True, dim=True)
        observations = _lines(sys.stdin, x)
        size = batch or (FILE_BATCH if _is_file(sys.stdin) else 1)
    headed = as_json
    while some := list(islice(observations, size)):
        rows = [row for _, row in some]
        try:
            with noticed(f"no answer yet from {client.url}: trying on, see --retry-for"):
                answers = client.observe(stream, rows, detail="full" if as_json else "summary")
        except Invalid as problem:
            found = _index(problem.detail)
            if found is None and len(some) > 1:
                raise
            fail(f"{some[int(found[1]) if found else 0][0]}: {problem}", 1)
        for answer in answers:
            if not headed:
                typer.echo(_HEAD)
                headed = True
            _tell(answer, as_json)


def _show_predictions(answer: Predictions) -> None:
    warming = ", warming up" if answer.warming_up else ""
    typer.echo(f"{answer.stream} ({answer.model}), seq {answer.seq}{warming}")
    _print_rows(chain.from_iterable(map(_described, answer.predictions)))
    _print_rows(
        _place(prediction) | {"draw": str(i), "drawn label": number(draw)}
        for prediction in answer.predictions
        for i, draw in enumerate(prediction.samples or [], 1)
    )
    if all(prediction.predictive is None for prediction in answer.predictions):
        typer.echo("the next label: not known yet")


def _print_rows(rows: Iterable[dict[str, str]]) -> None:
    """Print cells by their heading as a table, if there are any."""
    cells = list(rows)
    headings = list(dict.fromkeys(chain.from_iterable(cells)))
    if headings:
        made = table(*headings, words=("x", "drawn label"))
        for row in cells:
            made.add_row(*(row.get(heading, "") for heading in headings))
        print_table(made)


@with_client(show=_show_predictions)
def predict(
    client: Client,
    stream: Stream,
    x: Annotated[
        list[str] | None, option("Input: comma-separated numbers; may be repeated.", default=False)
    ] = None,
    quantile: Annotated[
        list[float] | None, option("Quantile level; may be repeated.", default="0.05, 0.5, 0.95")
    ] = None,
    samples: Annotated[int, option("Samples to draw at each input.", min=0)] = 0,
    seed: Annotated[int | None, option("Seed of the samples.", default="a new one")] = None,
    elapsed: Annotated[
        float | None, option("Time since the last observation.", default="1")
    ] = None,
    horizon: Annotated[
        int | None,
        option(
            "Forecast horizon in steps, at most 100, for a model without inputs.",
            min=1,
            default="the next one",
        ),
    ] = None,
) -> Predictions:
    """Print the predictive distribution of the next labels; changes nothing."""
    inputs = [numbers(text, "--x") for text in x] if x else None
    return client.predict(
        stream,
        inputs,
        quantiles=quantile,
        samples=samples,
        seed=seed,
        elapsed=elapsed,
        horizon=horizon,
    )


@with_client()
def changepoints(
    client: Client,
    stream: Annotated[
        str | None,
        argument(
            "Stream id; with --follow it may be left out: all streams.",
            default=False,
            autocompletion=complete_stream,
        ),
    ] = None,
    follow: Annotated[bool, option("Stream new events.", "--follow", "-f")] = False,
    after: Annotated[
        str | None,
        option(
            "With --follow: cursor to resume after; 0: everything retained.",
            default="new events only",
        ),
    ] = None,
    kind: Annotated[
        Literal["change", "returned", "anomaly", "all"] | None,
        option(
            "Kind of events; `returned`: changes to a remembered regime.",
            default="all changes; with --follow those to a new regime",
        ),
    ] = None,
    state: Annotated[
        list[EventState] | None,
        option(
            "State of events; may be repeated.", default="suspected, confirmed; with --follow all"
        ),
    ] = None,
    prefix: Annotated[str | None, option("Only streams with this prefix.", default="all")] = None,
    match: Match = None,
    as_json: Json = False,
) -> None:
    """Print a stream's events and segmentation, or stream new events with --follow.

    The segmentation keeps confirmed changes. Its line says how far hindsight has added others.
    --prefix and --match are for --follow without a stream.
    """
    if stream or not follow:
        _refuse_selection({"--prefix": prefix, "--match": match})
    if stream is None and not follow:
        fail("expected a STREAM, or --follow for events of all streams")
    kinds = [] if kind is None else [kind]
    states = state or []
    if follow:
        with noticed(f"no answer yet from {client.url}: trying on, see --url"):
            client.wait_ready(inf)
        messages = client.events(
            stream=stream,
            states=states,
            kinds=kinds,
            prefix=prefix,
            match=match or (),
            incidents=stream is None and not as_json,
            after=after,
            retry_for_s=None,
        )
        for message in messages:
            _follow(message, as_json, named=stream is None)
        return
    assert stream is not None
    answer = client.changepoints(stream, kinds=kinds, states=states)
    if as_json:
        print_json(answer)
        return
    headings = ("id", "start", "since (UTC)", "what changed", "evidence", "state")
    title = f"{answer.stream} ({answer.model}), {answer.seq} observations"
    made = table(*headings, words=("what changed", "state"), title=title)
    for event in answer.events:
        entered = "anomaly" if event.kind == "anomaly" else event.state
        made.add_row(str(event.id), describe_start(event), *change_cells(event), entered)
    if answer.events:
        print_table(made)
    else:
        typer.echo(f"{title}: no events of this kind and state")
    typer.echo(describe_segmentation(answer.segmentation, answer.hindsight))


def _refuse_selection(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value:
            fail(
                f"{name}: expected --follow and no STREAM: it selects streams whose events to "
                "follow; past changes of many streams: `moca changes`"
            )


def _follow(message: StreamEvent | Incident | Gap, as_json: bool, named: bool) -> None:
    if as_json:
        print_json(message, lines=True)
    elif isinstance(message, Gap):
        typer.secho("some events are no longer retained", err=True, fg="yellow")
    elif isinstance(message, Incident):
        typer.echo(f" incident  {message.headline}")
    else:
        event = message.event
        since = f"seq {event.start}" if event.start_time is None else event.start_time
        state = "anomaly" if event.kind == "anomaly" else event.state
        if state == "confirmed" and event.refined_at is not None:
            state = "refined"  # told before; only its start and sentence are better known
        name = f"{message.stream}: " if named else ""
        typer.echo(f"{state:>9}  {name}{event.sentence}, since {since}")
    sys.stdout.flush()


def _tell(answer: Answer, as_json: bool) -> None:
    if as_json:
        print_json(answer, lines=True)
        return
    predictive = answer.predictive
    expected = ""
    if predictive is not None:  # the median of numbers, the probabilities of classes
        expected = number((predictive.quantiles or {}).get("0.5") or predictive.probabilities)
    event = "" if answer.event is None else event_text(answer.event)
    note = "warming up" if answer.warming_up else event
    changed = number(answer.changed_probability)
    evidence = number(answer.evidence, 3)
    if answer.regime is not None:
        note = f"{note}  regime {describe_regime(answer.regime)}".strip()
    strange = number(answer.anomaly, 5)
    line = _LINE.format(answer.seq, expected, changed, evidence, strange, note)
    typer.echo(line.rstrip())


def _described(prediction: Prediction) -> Iterator[dict[str, str]]:
    """Rows of a prediction, one for each output or class: cells by their heading."""
    predictive = prediction.predictive
    if predictive is None:
        return
    place = _place(prediction)
    for name, probability in enumerate(predictive.probabilities or []):
        yield place | {"class": str(name), "probability": number(probability)}
    means = predictive.mean or []
    for i, mean in enumerate(means):
        output = {"output": str(i + 1)} if len(means) > 1 else {}
        levels = {float(level): row[i] for level, row in (predictive.quantiles or {}).items()}
        yield place | output | _quantile_cells(levels) | {"mean": number(mean)}


def _place(prediction: Prediction) -> dict[str, str]:
    """Cells that tell a prediction from others."""
    if prediction.ahead is not None:
        return {"ahead": str(prediction.ahead)}
    return {"x": number(prediction.x)} if prediction.x else {}


def _quantile_cells(quantiles: dict[float, float | None]) -> dict[str, str]:
    """The median, and an interval of each two levels that have as much beyond them."""
    cells: dict[str, str] = {}
    if 0.5 in quantiles:
        cells["median"] = number(quantiles.pop(0.5))
    while quantiles:
        low = min(quantiles)
        lower = quantiles.pop(low)
        high = next((level for level in quantiles if abs(low + level - 1) < 1e-9), None)
        if high is None:
            cells[f"{low:g} quantile"] = number(lower)
        else:
            share = f"{100 * (high - low):.6g} % interval"
            cells[share] = f"{number(lower)} to {number(quantiles.pop(high))}"
    return cells


def _lines(source: Iterable[str], x: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read observations, each with its place."""
    for place, line in enumerate(source, 1):
        if line.strip():
            where = f"line {place}"
            try:
                value = json.loads(line, parse_constant=_constant)
            except ValueError as error:
                if line.lstrip()[0] in "{[":
                    fail(f"{where}: not JSON: {getattr(error, 'msg', error)}", 1)
                value = _labels(line, where, 1)
            yield where, _observation(value, where, x)


def _constant(name: str) -> None:
    """Read JavaScript's NaN as a missing number; refuse its infinities."""
    if name != "NaN":
        raise ValueError(f"{name} is not finite")


def _labels(text: str, where: str, status: int) -> Any:
    """Parse comma-separated numbers, and words for missing outputs; `status`: exit of others."""
    words = [word.strip().lower() for word in text.split(",")]
    try:
        outputs = [None if word in MISSING else float(word) for word in words]
    except ValueError:
        got = text.strip()[:40]
        fail(f"{where}: expected a number, comma-separated numbers or null, got {got!r}", status)
    return outputs[0] if len(outputs) == 1 else outputs


def _observation(value: Any, where: str, x: str | None) -> dict[str, Any]:
    inputs = {} if x is None else {"x": numbers(x, "--x")}
    if isinstance(value, dict):
        return inputs | value
    if isinstance(value, bool | str):
        fail(f"{where}: expected a number, a list, null or an object, got {value!r}", 1)
    return {"y": value} | inputs


def _is_file(source: Any) -> bool:
    try:
        return stat.S_ISREG(os.fstat(source.fileno()).st_mode)
    except (OSError, ValueError):  # not a real file
        return False


# --- changes of all streams -----------------------------------------------------------------------

Kind = Annotated[
    Literal["change", "returned", "all"],
    option("`returned`: to a remembered regime; `change`: to a new one."),
]

Since = Annotated[
    str,
    option("Only those from then on: an age such as 30m, 24h, 7d, or a time; all: of all times."),
]
Until = Annotated[str | None, option("Only those before then.", default="now")]
Prefix = Annotated[str | None, option("Only of streams with this prefix.", default="all")]
MinSize = Annotated[
    float | None,
    option("Smallest size of a change in standard deviations.", min=0, default="any"),
]


@with_client()
def changes(
    client: Client,
    since: Since = "24h",
    until: Until = None,
    kind: Kind = "change",
    state: Annotated[
        list[EventState] | None, option("State; may be repeated.", default="suspected, confirmed")
    ] = None,
    model: Annotated[str | None, option("NAME or NAME@VERSION.", default="all")] = None,
    prefix: Prefix = None,
    contains: Annotated[
        str | None, option("Only streams with this text in their id.", default="all")
    ] = None,
    match: Match = None,
    min_size: MinSize = None,
    min_evidence: Annotated[
        float | None, option("Smallest evidence: 1 in so many observations.", min=0, default="any")
    ] = None,
    sort: Annotated[Literal["time", "size", "evidence"], option("What comes first.")] = "time",
    limit: Annotated[int, option("Most changes to print.", min=1)] = 1000,
    as_csv: Annotated[
        bool, option("Print CSV, as is done where the output is no terminal.", "--csv")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the changes of all streams: which, since when, what changed, and how sure that is."""
    from moca_client import calls

    ask = partial(
        calls.changes,
        until=until,
        kinds=[kind],
        states=state or [],
        model=model,
        prefix=prefix,
        contains=contains,
        min_size=min_size,
        min_evidence=min_evidence,
        sort=sort,
        match=match or (),
    )
    first = None if since == EVER else since
    call: Call[ChangesPage] | None = ask(since=first, limit=min(limit, PAGE), movers=True)
    rows: list[StreamChange] = []
    movers: Sequence[Mover] = ()
    unreadable: set[str] = set()
    while call is not None and len(rows) < limit:
        page = client.call(call)
        unreadable.update(page.unreadable)
        rows += page.changes
        movers = page.movers or ()
        call = calls.following(call, page)
    del rows[limit:]
    _warn_unreadable(unreadable)
    if as_json:
        print_json(rows)
    elif as_csv or not on_terminal():
        typer.echo(change_lines(rows), nl=False)
    elif rows:
        _show(rows)
        _show_movers(movers)
    if not rows:
        earlier = client.call(ask(limit=1)).total if first else 0
        _say_nothing("change", first, earlier)


@with_client()
def incidents(
    client: Client,
    incident: Annotated[
        str | None, argument("Id of one, to print its changes.", default="list them")
    ] = None,
    since: Since = "24h",
    until: Until = None,
    kind: Kind = "change",
    prefix: Prefix = None,
    match: Match = None,
    min_streams: Annotated[int, option("Smallest number of streams.", min=2)] = 2,
    min_size: MinSize = None,
    limit: Annotated[int, option("Most incidents to print.", min=1)] = 100,
    as_json: Json = False,
) -> None:
    """Print the changes that began together, a line for each incident, and what its streams share.

    With an id: that incident and each of its changes.
    """
    if incident is not None:
        one = client.incident(incident, kinds=[kind])
        if as_json:
            print_json(one)
        else:
            _show_incident(one)
        return
    ask = partial(
        client.incidents,
        until=until,
        kinds=[kind],
        prefix=prefix,
        match=match or (),
        min_streams=min_streams,
        min_size=min_size,
    )
    first = None if since == EVER else since
    rows = list(islice(ask(since=first, limit=min(limit, PAGE)), limit))
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            typer.echo(f"{row.id}  {row.headline}")
    if not rows:
        earlier = sum(1 for _ in ask(limit=PAGE)) if first else 0
        _say_nothing("incident", first, earlier)


def _say_nothing(what: str, since: str | None, earlier: int) -> None:
    """Print to standard error that nothing matches, with the option for earlier rows."""
    if since is None:
        text = f"no {what}s; see --help for what is left out"
    elif earlier:
        text = f"no {what}s with --since {since}; {earlier} before that: --since {EVER}"
    else:
        text = f"no {what}s with --since {since}, and none before that"
    typer.echo(text, err=True)


def _show_incident(one: IncidentDetail) -> None:
    typer.echo(one.headline)
    typer.echo(
        f"began between {one.earliest_time} and {one.latest_time}; "
        f"by chance {one.by_chance.per_day:.2g} such incidents a day"
    )
    _show_movers(one.movers)
    _warn_unreadable(one.unreadable)
    _show(one.changes)


def _show_movers(movers: Sequence[Mover]) -> None:
    for mover in movers:
        typer.echo(
            f"{mover.name}: {mover.changed} of {mover.streams} changed, "
            f"{mover.expected:.2g} expected"
        )


def _warn_unreadable(names: Collection[str]) -> None:
    """Warn that an answer lacks what is damaged in the store."""
    if names:
        text = f"moca: warning: cannot read the state or history of {', '.join(sorted(names))}"
        typer.secho(f"{text}: damaged in the store", err=True, fg="yellow")


def on_terminal() -> bool:
    """Whether people read the output."""
    return sys.stdout.isatty()


def _show(rows: list[StreamChange]) -> None:
    headings = ("stream", "since (UTC)", "what changed", "evidence", "state")
    made = table(*headings, words=("what changed", "state"))
    for change in rows:
        made.add_row(change.stream, *change_cells(change), change.state)
    print_table(made)
