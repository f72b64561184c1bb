"""`moca bench step`: processor time of one filter step, by model, batch, way and time of life.

Everything is measured in rounds, one after the other in each, so that a machine that slows down
slows all: ratios are those of one round. Times are of the thread, for one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track
from rich.table import Table

from service.bench.processes import BenchError
from service.bench.results import Interval, interval, table

if TYPE_CHECKING:
    from service.bench.peers import PeerStreams
    from service.bench.subjects import Subject

LIFE_STREAMS = 16  # in whose batch early and late steps are compared
SAMPLE_US = 4000.0  # a measurement is to take at least as long
MOST_STEPS = 50  # of a measurement
COMPARED = ("gaussian", "averaged")  # with other packages
SUMMARY = {False: "", True: " + summary"}


@dataclass
class StepTime:
    """Times of a step of one stream, in microseconds, one for each round."""

    name: str
    by: str  # eager, compiled, or the package's description
    streams: int
    max_hypotheses: int | None
    summary: bool
    us: list[float] = field(default_factory=list)

    def interval(self) -> Interval:
        """Over the rounds."""
        return interval(self.us)


@dataclass
class Ratio:
    """How often one time is contained in another: `of` over `over`, one for each round."""

    of: str
    over: str
    streams: int
    ratios: list[float]

    def interval(self) -> Interval:
        """Over the rounds."""
        return interval(self.ratios)


@dataclass
class StepBench:
    """Result of `bench_step`."""

    early: int
    late: int
    rounds: int
    steps: list[StepTime] = field(default_factory=list)
    lives: list[Ratio] = field(default_factory=list)  # a late step over an early one
    peers: list[Ratio] = field(default_factory=list)  # another package's step over ours
    missing: list[str] = field(default_factory=list)  # packages that are not installed

    def summary(self) -> dict[str, object]:
        """All times and ratios, with their intervals."""
        values = asdict(self)
        for name in ("steps", "lives", "peers"):
            for entry, own in zip(values[name], getattr(self, name), strict=True):
                entry.update(own.interval()._asdict())
        return values


def bench_step(
    *,
    models: Sequence[str] | None = None,
    batches: Sequence[int] = (1, 16, 256),
    max_hypotheses: int = 50,
    early: int = 500,
    late: int = 20_000,
    rounds: int = 11,
    console: Console | None = None,
) -> StepBench:
    """Measure the steps of models, and those of other packages beside them; print and return.

    models: all if None. batches: streams that are stepped at once, on one CPU thread as in a
    worker.
    """
    import torch

    from service.bench import peers, subjects

    chosen = list(models or subjects.MODELS)
    for name in chosen:
        subjects.model_of(name)
    if not (0 < early < late and rounds > 0 and max_hypotheses > 0):
        raise BenchError("expected 0 < early < late, and positive rounds and hypotheses")
    if not batches or min(batches) < 1:
        raise BenchError(f"expected batches of at least one stream, got {list(batches)}")
    console = console or Console()
    result = StepBench(early, late, rounds)
    peer_kinds, result.missing = peers.installed()
    torch.set_num_threads(1)
    with torch.inference_mode():
        for name in track(chosen, "models", console=console, transient=True):
            for batch in sorted({_batch(name, size) for size in batches}):
                others = peer_kinds if name in COMPARED else []
                rivals = [peers.PeerStreams(peer, module, batch) for peer, module in others]
                _measure(result, _subjects(name, batch, max_hypotheses, bool(rivals)), rivals)
            _compare_life(result, name, max_hypotheses)
    report(result, console)
    return result


def _batch(name: str, streams: int) -> int:
    from service.bench.subjects import ALPACA, ALPACA_STREAMS

    return min(streams, ALPACA_STREAMS) if name == ALPACA else streams


def _subjects(name: str, streams: int, max_hypotheses: int, compared: bool) -> list[Subject]:
    """Streams of a model; again with as many hypotheses as other packages have."""
    from service.bench.peers import RUN_LENGTHS
    from service.bench.subjects import Subject

    sizes = [max_hypotheses]
    if compared and name == "gaussian" and max_hypotheses != RUN_LENGTHS:
        sizes.append(RUN_LENGTHS)
    return [Subject(name, streams, size) for size in sizes]


def _measure(result: StepBench, ours: list[Subject], rivals: list[PeerStreams]) -> None:
    """Steps from t = `early` on, in all ways, and the ratios of other packages' to ours."""
    timed: list[tuple[StepTime, Callable[[int], float]]] = []
    for subject in ours:
        subject.walk(result.early)
        timed += [
            (_entry(subject, way, summary), _timer(subject, way, summary))
            for way in subject.ways
            for summary in SUMMARY
        ]
    for rival in rivals:
        rival.walk(result.early)
        peer = rival.peer
        entry = StepTime(peer.name, peer.description, rival.streams, None, False)
        timed.append((entry, rival.time_us))
    _run(result.rounds, timed)
    result.steps += [entry for entry, _ in timed]
    first = len(timed) - len(rivals)
    alike = [
        entry
        for (entry, _), rival in zip(timed[first:], rivals, strict=True)
        if rival.peer.posterior
    ]
    for entry, _ in timed[:first]:
        if entry.by == "compiled":
            result.peers += [_over(other, entry) for other in alike]


def _entry(subject: Subject, way: str, summary: bool) -> StepTime:
    return StepTime(subject.name, way, subject.streams, subject.max_hypotheses, summary)


def _timer(subject: Subject, way: str, summary: bool) -> Callable[[int], float]:
    return lambda steps: subject.time_us(way, summary, steps)


def _over(other: StepTime, own: StepTime) -> Ratio:
    ours = f"{own.name}, {own.max_hypotheses} hypotheses{SUMMARY[own.summary]}"
    ratios = [theirs / mine for theirs, mine in zip(other.us, own.us, strict=True)]
    return Ratio(f"{other.name}, {other.by}", ours, own.streams, ratios)


def _run(rounds: int, timed: Sequence[tuple[StepTime, Callable[[int], float]]]) -> None:
    """Measure each once a round, in turn; what is quick by several steps."""
    first = [max(timer(1) * entry.streams, 1.0) for entry, timer in timed]
    steps = [max(1, min(MOST_STEPS, round(SAMPLE_US / us))) for us in first]
    for _ in range(rounds):
        for (entry, timer), count in zip(timed, steps, strict=True):
            entry.us.append(timer(count))


def _compare_life(result: StepBench, name: str, max_hypotheses: int) -> None:
    """Late steps over early ones: memory is bounded, so that both cost the same."""
    from service.bench.subjects import Subject

    young, old = (Subject(name, LIFE_STREAMS, max_hypotheses) for _ in range(2))
    young.walk(result.early)
    old.walk(result.late)
    for way in young.ways:
        timed = [
            (_entry(subject, way, True), _timer(subject, way, True)) for subject in (young, old)
        ]
        _run(result.rounds, timed)
        (early, _), (late, _) = timed
        ratios = [b / a for a, b in zip(early.us, late.us, strict=True)]
        over = f"{name}, {way}, t = {result.early:,}"
        result.lives.append(Ratio(f"t = {result.late:,}", over, LIFE_STREAMS, ratios))


def report(result: StepBench, console: Console) -> None:
    """Print tables of the times and of the ratios."""
    console.print(_times(result.steps))
    titles = "Late over early", "Other packages over compiled steps"
    for title, ratios in zip(titles, (result.lives, result.peers), strict=True):
        if ratios:
            shown = table(title, "time of", "over", "streams", "ratio")
            for ratio in ratios:
                shown.add_row(ratio.of, ratio.over, str(ratio.streams), str(ratio.interval()))
            console.print(shown)
    for name in result.missing:
        console.print(f"{name}: not installed", highlight=False)


def _times(steps: list[StepTime]) -> Table:
    title = "µs of a thread for a step of one stream: median (10 % - 90 %) over the rounds"
    shown = table(title, "model", "hypotheses", "streams", "by", "step", "with summary")
    rows: dict[tuple[str, ...], dict[bool, str]] = {}
    for step in steps:
        size = "" if step.max_hypotheses is None else str(step.max_hypotheses)
        key = (step.name, size, str(step.streams), step.by)
        rows.setdefault(key, {})[step.summary] = str(step.interval())
    for names, cells in rows.items():
        shown.add_row(*names, cells.get(False, ""), cells.get(True, ""))
    return shown
