"""`moca evaluate data`: a trained model beside those that need no training, on later data.

Every model is run as the service runs it: step by step from the start of each test series, in
bounded memory, at its own default settings. What is scored is the same for all: the observations
after `BURN_IN`, by when the untrained ones are out of their warm-up and have seen some more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model_core import filter as moca
from model_core.defaults import Defaults
from model_core.filter import Prior
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import Options, build
from training import experiments
from training.config import OWN
from training.data import own
from training.data.base import Batch
from training.data.windows import Series
from training.errors import BadData, BadRun
from training.evaluation.trained import PROTOCOLS, Trained, load, sequences
from training.experiments import Place
from training.intervals import estimate, formatted, paired
from training.online import observed, prior_of, warm
from training.runs import Run

BURN_IN = 50  # observations at the start of a series that are not scored: warm-up is 20 of them
AT_ONCE = 25  # series filtered in one batch
GENERATED = 50  # test sequences of an experiment that makes them

Values = NDArray[np.float64]


class Found(NamedTuple):
    """values: of each method the mean log score of every block, the trained model's first.

    block: observations in one. observations: scored in all.
    """

    values: Mapping[str, Values]
    block: int
    observations: int


def evaluate(
    folder: Path, place: Place, data: Path | None = None, out: Path | None = None
) -> Found:
    """Print the table, and write it as `table.json` and `table.md`; raises TrainingError."""
    torch.set_num_threads(1)
    console = Console()
    each = finished(folder, data)
    found = compare(each, place, console)
    console.print(_table(folder, found))
    kept = out or folder / "evaluation"
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "table.json").write_text(as_json(found) + "\n")
    (kept / "table.md").write_text(markdown(found))
    return found


def finished(folder: Path, data: Path | None = None) -> Trained:
    """A run that is done; `data` is where its data are now. Raises BadRun or BadConfig."""
    run = Run(folder)
    config = own.moved(run.config(), data)
    if not run.done:
        raise BadRun(f"{folder}: is not done; moca train ... --resume goes on")
    if config.objective.mode == "toe" and config.model.kind == "pcoc":
        raise BadRun(f"{folder}: a classifier that never adapts is no model that is served")
    return Trained(run, config, run.result())


def compare(each: Trained, place: Place, console: Console | None = None) -> Found:
    """Log scores of the run's model and of those without training, on its test series."""
    splits = experiments.splits(each.config, place)
    series, length = _series(each, place), each.config.optimiser.length
    model = load(each, splits).model()
    models = {f"trained {each.config.model.kind}": model, **_untrained(each, splits.classes)}
    scored: dict[str, list[Tensor]] = {}
    for name, method in track(
        models.items(), "filtering", console=console, transient=True, disable=console is None
    ):
        scored[name] = log_scores(method, series)
    values = {name: _blocks(scores, length) for name, scores in scored.items()}
    first = next(iter(values.values()))
    if not len(first):
        raise BadData(f"no test series has more than {BURN_IN} observations: nothing to score")
    count = sum(int((~s[BURN_IN:].isnan()).sum()) for s in next(iter(scored.values())))
    return Found(values, length, count)


@torch.no_grad()
def log_scores(model: UnderlyingModel, series: Sequence[Series]) -> list[Tensor]:
    """`log p(y_t | x_t, past)` of every series (N,), nan where unlabelled."""
    found = []
    for first in range(0, len(series), AT_ONCE):
        some = series[first : first + AT_ONCE]
        batch, prior = _padded(some), _prior(model, some)
        state = moca.init(prior, Defaults().max_hypotheses)
        scores = []
        for t in range(batch.y.shape[1]):
            state, info = moca.step(model, state, prior, observed(model, batch, t))
            scores.append(info.log_score)
        whole = torch.stack(scores, 1)
        found += [row[: len(each.y)] for row, each in zip(whole, some, strict=True)]
    return found


def _series(each: Trained, place: Place) -> list[Series]:
    """What is kept for the test; of an experiment that makes its data, new sequences."""
    if each.config.experiment == OWN:
        return own.opened(each.config).test
    protocol = PROTOCOLS[each.config.experiment]._replace(sequences=GENERATED)
    batch = sequences(experiments.splits(each.config, place), protocol)
    return [
        Series(None if batch.x is None else batch.x[k].double(), y.double(), None, str(k))
        for k, y in enumerate(batch.y)
    ]


def _untrained(each: Trained, classes: int) -> dict[str, UnderlyingModel]:
    """Built-in models for such labels; with inputs also the one that reads them."""
    if classes:
        return {"categorical": build("categorical", Options(classes=classes))}
    progress, _ = each.run.load()
    x_dim, y_dim = (len(progress.best[name]) for name in ("x_offset", "y_offset"))
    found = {name: build(name, Options(y_dim=y_dim)) for name in ("autoregressive", "averaged")}
    lags = each.config.model.lags
    if lags > 1:
        options = Options(y_dim=y_dim, order=lags)
        found[f"autoregressive, order {lags}"] = build("autoregressive", options)
    found["gaussian"] = build("gaussian", Options(y_dim=y_dim))
    if x_dim:
        found["linear"] = build("linear", Options(y_dim=y_dim, x_dim=x_dim))
    return found


def _padded(series: Sequence[Series]) -> Batch:
    """One batch; what is behind the end of a series has no label, and its scores are cut off."""
    y = pad_sequence([each.y for each in series], batch_first=True, padding_value=math.nan)
    inputs = [each.x for each in series if each.x is not None]
    return Batch(pad_sequence(inputs, batch_first=True) if inputs else None, y)


def _prior(model: UnderlyingModel, series: Sequence[Series]) -> Prior:
    """Location and scale from each series' warm-up, as a stream of the service has them."""
    if not model.needs_scale:
        nothing = torch.zeros(len(series), model.scaled, dtype=torch.float64)
        return moca.make_prior(model, nothing, nothing + 1)
    labels = Defaults().warmup
    found = [warm(model, _scaled(model, each), labels)[:2] for each in series]
    return prior_of(model, found)


def _scaled(model: UnderlyingModel, series: Series) -> Iterator[list[float]]:
    """Rows of what a model takes location and scale of: labels, and inputs where it does."""
    rows = series.y
    if model.scales_inputs and series.x is not None:
        rows = torch.cat((rows, series.x), -1)
    for row in rows:
        yield row.tolist()


def _blocks(scores: Sequence[Tensor], length: int) -> Values:
    """Mean of every block of `length` after the start of a series; the last may be half of one."""
    found = []
    for each in scores:
        for start in range(BURN_IN, len(each), length):
            block = each[start : start + length]
            known = block[~block.isnan()]
            alone = len(each) - BURN_IN <= length
            if len(known) and (alone or 2 * len(block) >= length):
                found.append(float(known.mean()))
    return np.array(found)


def _rows(found: Found) -> list[tuple[str, str, str]]:
    trained, *_ = found.values.values()
    rows = []
    for name, values in found.values.items():
        ahead = "" if values is trained else formatted(paired(trained, values))
        rows.append((name, formatted(estimate(values)), ahead))
    return rows


HEADS = ("model", "nats per observation", "trained less this")


def _about(found: Found) -> str:
    blocks = len(next(iter(found.values.values())))
    return (
        f"{found.observations} observations in {blocks} blocks of {found.block}, "
        "mean and 95 % interval over blocks; more is better"
    )


def _table(folder: Path, found: Found) -> Table:
    table = Table(
        HEADS[0], box=SIMPLE_HEAD, title=f"{folder.name}: log score", caption=_about(found)
    )
    for head in HEADS[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    for row in _rows(found):
        table.add_row(*row)
    return table


def markdown(found: Found) -> str:
    """The table for a page of results."""
    lines = [f"| {' | '.join(HEADS)} |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(found)]
    return "\n".join([*lines, "", _about(found)]) + "\n"


def as_json(found: Found) -> str:
    """The numbers of the table."""
    trained, *_ = found.values.values()
    rows = []
    for name, values in found.values.items():
        row = {"model": name, "log_score": estimate(values)._asdict()}
        if values is not trained:
            row["trained_less_this"] = paired(trained, values)._asdict()
        rows.append(row)
    about = {"block": found.block, "observations": found.observations, "burn_in": BURN_IN}
    return json.dumps({**about, "rows": rows}, indent=1)
