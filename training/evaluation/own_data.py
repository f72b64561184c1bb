"""`moca evaluate data`: a trained model against the untrained built-in ones, on held-out data.

Every model is run as in the service: step by step from the start of each test series, in bounded
memory, at its own default settings. All are scored on the same observations, those after `BURN_IN`,
when the untrained models have left their warm-up.
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
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model_core import filter as moca
from model_core.filter import Prior
from model_core.stream_settings import DEFAULTS, VECTOR_OUTPUTS
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import Options, build
from training.config import OWN, Config
from training.data import own
from training.data.base import Batch, Splits
from training.data.windows import Series
from training.errors import BadData, BadRun
from training.evaluation import filter_trace
from training.evaluation.online import prior_of, warm
from training.evaluation.trained import PROTOCOLS, Trained, load, sequences
from training.experiments import catalogue
from training.experiments.catalogue import Place
from training.meta_training.runs import Run
from training.results import Table
from training.statistics import Estimate, estimate, formatted, paired

BURN_IN = 50  # unscored observations at the start of a series, of which 20 are warm-up
BATCH = 25  # series filtered together
GENERATED = 50  # test sequences of an experiment with generated data

Values = NDArray[np.float64]


class BlockScores(NamedTuple):
    """Log scores by method.

    values: mean log score of every block, the trained model's first. block: length of a
    block. observations: total number scored.
    """

    values: Mapping[str, Values]
    block: int
    observations: int


def evaluate(
    folder: Path, place: Place, data: Path | None = None, out: Path | None = None
) -> BlockScores:
    """Print the table, and write it as `table.json` and `table.md`; raises TrainingError."""
    torch.set_num_threads(1)
    console = Console()
    run = finished(folder, data)
    scores = compare(run, catalogue.splits(run.config, place), place, console)
    printed = table(folder.name, scores)
    console.print(printed.for_terminal())
    results = out or folder / "evaluation"
    results.mkdir(parents=True, exist_ok=True)
    (results / "table.json").write_text(as_json(scores) + "\n")
    (results / "table.md").write_text(printed.markdown())
    return scores


def finished(folder: Path, data: Path | None = None) -> Trained:
    """A finished run; `data`: where its data are now. Raises BadRun or BadConfig."""
    run = Run(folder)
    config = own.moved(run.config(), data)
    if not run.done:
        raise BadRun(f"{folder}: run is not finished; continue it with moca train ... --resume")
    if config.objective.mode == "toe" and config.model.kind == "pcoc":
        raise BadRun(f"{folder}: a classifier of mode toe never adapts and cannot be served")
    return Trained(run, config, run.result())


def compare(
    run: Trained,
    splits: Splits,
    place: Place,
    console: Console | None = None,
    most: int | None = None,
) -> BlockScores:
    """Log scores of the run's model and of the untrained ones, on its test series.

    most: observations from the start of each that are looked at; None: all. Raises BadData where
    no series is long enough.
    """
    series = [one.part(0, most or len(one.y)) for one in _series(run, place)]
    length = run.config.optimiser.length
    model = load(run, splits).served()
    models = {f"trained {run.config.model.kind}": model, **untrained(run.config, splits)}
    scored: dict[str, list[Tensor]] = {}
    for name, method in track(
        models.items(), "filtering", console=console, transient=True, disable=console is None
    ):
        scored[name] = log_scores(method, series)
    values = {name: _blocks(rows, length) for name, rows in scored.items()}
    first = next(iter(values.values()))
    if not len(first):
        raise BadData(
            f"no test series has more than {BURN_IN} observations, and a whole label after them: "
            "nothing to score"
        )
    count = sum(int((~s[BURN_IN:].isnan()).sum()) for s in next(iter(scored.values())))
    return BlockScores(values, length, count)


def leads(scores: BlockScores) -> dict[str, Estimate]:
    """Log score of the trained model less that of each other one, in nats an observation."""
    trained, *_ = scores.values.values()
    return {
        name: paired(trained, values)
        for name, values in scores.values.items()
        if values is not trained
    }


def log_scores(model: UnderlyingModel, series: Sequence[Series]) -> list[Tensor]:
    """`log p(y_t | x_t, past)` of every series (N,), nan where an output or all are missing.

    Not all models learn from what is left of such a label, and a density of fewer outputs is no
    match for one of all.
    """
    rows = []
    for first in range(0, len(series), BATCH):
        some = series[first : first + BATCH]
        whole = filter_trace.log_scores(model, _prior(model, some), _padded(some))
        for row, one in zip(whole, some, strict=True):
            rows.append(row[: len(one.y)].masked_fill(one.y.isnan().any(-1), torch.nan))
    return rows


def _series(run: Trained, place: Place) -> list[Series]:
    """The held-out series; new sequences of an experiment with generated data."""
    if run.config.experiment == OWN:
        return own.opened(run.config).test
    protocol = PROTOCOLS[run.config.experiment]._replace(sequences=GENERATED)
    batch = sequences(catalogue.splits(run.config, place), protocol)
    return [
        Series(None if batch.x is None else batch.x[k].double(), y.double(), None, str(k))
        for k, y in enumerate(batch.y)
    ]


def untrained(config: Config, splits: Splits) -> dict[str, UnderlyingModel]:
    """Built-in models for a run's labels; with inputs also the linear one."""
    if splits.classes:
        return {"categorical": build("categorical", Options(classes=splits.classes))}
    x_dim, y_dim = splits.x_dim, splits.y_dim
    models = {name: build(name, Options(y_dim=y_dim)) for name in ("autoregressive", "averaged")}
    lags = config.model.lags
    if lags > 1:
        options = Options(y_dim=y_dim, order=lags)
        models[f"autoregressive, order {lags}"] = build("autoregressive", options)
    if 1 < y_dim <= VECTOR_OUTPUTS:
        models["joint"] = build("joint", Options(y_dim=y_dim))
    models["gaussian"] = build("gaussian", Options(y_dim=y_dim))
    if x_dim:
        models["linear"] = build("linear", Options(y_dim=y_dim, x_dim=x_dim))
    return models


def _padded(series: Sequence[Series]) -> Batch:
    """One batch; padding after the end of a series is unlabelled, its scores dropped."""
    y = pad_sequence([one.y for one in series], batch_first=True, padding_value=math.nan)
    inputs = [one.x for one in series if one.x is not None]
    times = [one.elapsed for one in series if one.elapsed is not None]
    return Batch(
        pad_sequence(inputs, batch_first=True) if inputs else None,
        y,
        elapsed=pad_sequence(times, batch_first=True, padding_value=1.0) if times else None,
    )


def _prior(model: UnderlyingModel, series: Sequence[Series]) -> Prior:
    """Prior with location and scale of each series' warm-up, as of a stream of the service."""
    if not model.needs_scale:
        zeros = torch.zeros(len(series), model.scaled, dtype=torch.float64)
        return moca.make_prior(model, zeros, zeros + 1)
    labels = DEFAULTS.warmup
    moments = [warm(model, _scaled(model, one), labels)[:2] for one in series]
    return prior_of(model, moments)


def _scaled(model: UnderlyingModel, series: Series) -> Iterator[list[float]]:
    """Rows that a model takes location and scale of: labels, and inputs if it scales them."""
    rows = series.y
    if model.scales_inputs and series.x is not None:
        rows = torch.cat((rows, series.x), -1)
    for row in rows:
        yield row.tolist()


def _blocks(scores: Sequence[Tensor], length: int) -> Values:
    """Mean of every block of `length` after the start of a series; the last may be half of one."""
    means = []
    for series in scores:
        for start in range(BURN_IN, len(series), length):
            block = series[start : start + length]
            known = block[~block.isnan()]
            alone = len(series) - BURN_IN <= length
            if len(known) and (alone or 2 * len(block) >= length):
                means.append(float(known.mean()))
    return np.array(means)


def table(name: str, scores: BlockScores) -> Table:
    """The table of a run."""
    ahead = {other: formatted(lead) for other, lead in leads(scores).items()}
    rows = [
        (model, formatted(estimate(values)), ahead.get(model, ""))
        for model, values in scores.values.items()
    ]
    blocks = len(next(iter(scores.values.values())))
    caption = (
        f"{scores.observations} observations in {blocks} blocks of {scores.block}, "
        "mean and 95 % interval over blocks; more is better"
    )
    heads = ("model", "nats per observation", "trained less this")
    return Table(f"{name}: log score", caption, heads, rows)


def as_json(scores: BlockScores) -> str:
    """The numbers of the table."""
    ahead = leads(scores)
    rows = []
    for name, values in scores.values.items():
        row = {"model": name, "log_score": estimate(values)._asdict()}
        if name in ahead:
            row["trained_less_this"] = ahead[name]._asdict()
        rows.append(row)
    about = {"block": scores.block, "observations": scores.observations, "burn_in": BURN_IN}
    return json.dumps({**about, "rows": rows}, indent=1)
