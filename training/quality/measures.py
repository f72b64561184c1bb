"""`moca evaluate all`: every measure of the default settings, then their tables and figures.

Measures return rows, some by the names of their tables; a row is a dict, by the names that its
function gives.

An alarm of a model is an event that is confirmed or `changed_probability` crossing .9. Delays count
the observations from the shift on, the first one included.
"""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import track

from model_core.stream.events import SETTLING
from model_core.stream_settings import DEFAULTS, StreamSettings
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import Options, build
from training.figures import Chart, Dots, dots
from training.online import Followed, StartBelief, follow, segmentation
from training.quality import baselines, scores
from training.quality.baselines import ALWAYS, EVEN, Detector, alarms_of, warmed_up
from training.quality.series import (
    FAMILIES,
    MARGINS,
    TCPD,
    VECTOR_MODELS,
    Corpora,
    LabelledSeries,
    Sizes,
    load,
)
from training.results import alone, bootstrap, page

Floats = NDArray[np.float64]

CROSSED = 0.9  # `changed_probability` above which a model alarms
LITTLE = 0.2  # `changed_probability` that tells of no change
SETTLED_FROM = 100  # observations, from which on it is to be little
CENTRAL = (0.05, 0.95)  # ranks of starts that are neither early nor late
SPREAD = 2.0  # random settings: each constant times a factor log-uniform in [1 / SPREAD, SPREAD]
SERVED = "segmentation as served"
OUTPUTS = ("confirmed online", SERVED, "by hindsight alone")
LESS_SEASONS = "less seasons"  # after a model's name
NAB = "NAB"
ANOMALY = "anomaly"
EVIDENCE = "evidence"
CONFIRMED = ", confirmed"  # after a model's name
SURPRISE = "-log_score"  # in the series' scale: one threshold serves all series

Candidate = tuple[UnderlyingModel, StreamSettings]
Rows = list[dict[str, Any]]
Results = dict[str, Any]  # as of `evaluate`
T = TypeVar("T")

TARGET = 0.5  # false alarms per 1,000 that are asked for
LEAST_RATE = 0.02  # below which the axis of rates is linear
COMPARED = ("normal", "Student-t3", "lognormal", "AR(0.5)", "season of 24")  # by their delays


class QualityStudy(NamedTuple):
    """What is measured, and on what.

    models: by name, at the default settings, and at others where wanted; see `variants`.
    rng: of intervals and choices; seed: of simulations. console: where progress is shown.
    """

    models: Mapping[str, Candidate]
    detectors: Mapping[str, Detector]
    data: Corpora
    sizes: Sizes
    seed: int
    rng: np.random.Generator
    console: Console | None = None

    @property
    def names(self) -> list[str]:
        """Those of the models at the default settings."""
        return [name for name, (_, settings) in self.models.items() if settings == DEFAULTS]

    def track(self, items: Sequence[T], name: str) -> Iterable[T]:
        """The items, with a progress bar of that name."""
        return track(items, name, console=self.console, transient=True)


def variants(names: Sequence[str], seasons: bool = False, regimes: int = 0) -> dict[str, Candidate]:
    """Built-in models at the service's default settings.

    seasons: also each with seasons sought from the first label on. regimes: also each with so many
    remembered.
    """
    settings = {"": DEFAULTS}
    if seasons:
        settings[f" {LESS_SEASONS}"] = DEFAULTS._replace(seasonal=True)
    if regimes:
        settings[f" with {regimes} regimes"] = DEFAULTS._replace(regimes=regimes)
    models = {name: build(name, Options()) for name in names}
    return {
        f"{name}{variant}": (model, own)
        for variant, own in settings.items()
        for name, model in models.items()
    }


def evaluate(
    folder: Path,
    models: Mapping[str, Candidate],
    seed: int = 0,
    sizes: Sizes | None = None,
    console: Console | None = None,
) -> Results:
    """Measure models; raises FileNotFoundError, BadData.

    Returns all rows, and `models`, `seed`, `day`, `torch`, `python`, `took_s` (wall time) and
    `missing`, the files and packages that were not there, hence not measured.
    """
    torch.set_num_threads(1)
    began = time.monotonic()
    data = load(folder)
    detectors, missing = baselines.detectors()
    rng = np.random.default_rng(seed)
    study = QualityStudy(models, detectors, data, sizes or Sizes(), seed, rng, console)
    # In this order they take their chance from `rng`.
    rows = {
        **families(study),
        "periods": periods(study),
        "ages": ages(study),
        "changes": changes(study),
        "selection": selection(study),
        **forecasts(study),
    }
    return {
        "models": list(models),
        "seed": seed,
        "day": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "took_s": time.monotonic() - began,
        "missing": [*data.missing, *missing],
        **rows,
    }


def families(study: QualityStudy) -> dict[str, Rows]:
    """False alarms and delays of every method on every family, and starts of changes of models.

    false: alarms per 1,000 quiet observations. found: share of shifts with an alarm in time, by
    size. delay: their median, inf where fewer than half are found. Of starts: see `starts_read`.
    """
    sizes = study.sizes
    rows = []
    starts: Rows = []
    for index, family in enumerate(study.track(FAMILIES, "simulated families")):
        rng = np.random.default_rng([study.seed, index])
        at = sizes.shift_at
        quiet = [family.draw(rng, sizes.quiet_length) for _ in range(sizes.quiet)]
        shifted = [
            [family.shifted(rng, at + sizes.within, at, by) for _ in range(sizes.shifted)]
            for by in sizes.shifts
        ]
        groups = [quiet, *shifted]
        runs = [
            {
                name: [follow(model, y, settings, starts_from=first) for y in series]
                for name, (model, settings) in study.models.items()
            }
            for series, first in zip(groups, [math.inf, *[at] * len(shifted)], strict=True)
        ]
        raised = [_alarms(study, *group) for group in zip(runs, groups, strict=True)]
        for name in [method for method in raised[0] if method.endswith(CONFIRMED)]:
            threshold = baselines.focus_threshold(quiet, sum(map(len, raised[0][name])))
            oracle = partial(baselines.focus, threshold=threshold)
            for series, by_method in zip(groups, raised, strict=True):
                by_method[f"{baselines.FOCUS} at the rate of {name}"] = _after_warmup(
                    oracle, series
                )
        for method in raised[0]:
            false, *after = (by_method[method] for by_method in raised)
            rates = [1000 * len(times) / sizes.quiet_length for times in false]
            delays = [[wait(times, at) for times in of_shift] for of_shift in after]
            rows.append(
                {
                    "family": family.name,
                    "method": method,
                    "false": bootstrap(rates, np.random.default_rng(study.seed)),
                    "found": [float(np.isfinite(of_shift).mean()) for of_shift in delays],
                    "delay": [statistics.median(of_shift) for of_shift in delays],
                }
            )
        starts += [
            {"family": family.name, "method": name, "shift": shift, **read}
            for shift, by_model in zip(sizes.shifts, runs[1:], strict=True)
            for name, followed in by_model.items()
            if (read := starts_read([one.starts for one in followed], at, study.seed))["confirmed"]
        ]
    return {"families": rows, "starts": starts}


def _alarms(
    study: QualityStudy, runs: Mapping[str, Sequence[Followed]], series: Sequence[Floats]
) -> dict[str, list[list[int]]]:
    """Times of the alarms on each series, by method; runs: of models."""
    raised: dict[str, list[list[int]]] = {}
    for name, followed in runs.items():
        raised[f"{name}{CONFIRMED}"] = [confirmations(one) for one in followed]
        raised[f"{name}, changed > .9"] = [crossings(one.changed) for one in followed]
    for name, detector in study.detectors.items():
        raised[name] = _after_warmup(partial(alarms_of, detector), series)
    return raised


def starts_read(
    beliefs: Sequence[Sequence[StartBelief]], start: int, seed: int
) -> dict[str, dict[str, Any] | None]:
    """How intervals fit the start of the first change confirmed from it on; see `_fit`.

    beliefs: of each series. confirmed: as it is; later: as its start is looked at once more.
    """
    rng = np.random.default_rng(seed)
    first = []
    for of_series in beliefs:
        own = [one for one in of_series if one.confirmed_at >= start]
        first += [one for one in own if one.confirmed_at == own[0].confirmed_at]
    return {
        when: _fit([one for one in first if one.seq == one.confirmed_at + after], start, rng)
        for when, after in (("confirmed", 0), ("later", SETTLING))
    }


def _fit(
    beliefs: Sequence[StartBelief], start: int, rng: np.random.Generator
) -> dict[str, Any] | None:
    """How intervals read off beliefs fit a start; None without any.

    count: of them. inside: share that holds it. stated: mean of their coverages. length: median.
    central: share of beliefs in which its rank is within `CENTRAL`.
    """
    if not beliefs:
        return None
    ranks = [one.rank(start, rng.random()) for one in beliefs]
    return {
        "count": len(beliefs),
        "inside": statistics.fmean(one.earliest <= start <= one.latest for one in beliefs),
        "stated": statistics.fmean(one.coverage for one in beliefs),
        "length": statistics.median(1 + one.latest - one.earliest for one in beliefs),
        "central": bootstrap([CENTRAL[0] <= rank <= CENTRAL[1] for rank in ranks], rng),
    }


def _after_warmup(detector: Detector, series: Sequence[Floats]) -> list[list[int]]:
    """Alarms on series in their own units, those of the warm-up left out."""
    return [[t for t in detector(y) if t >= DEFAULTS.warmup] for y in series]


def confirmations(followed: Followed) -> list[int]:
    """Times at which events were confirmed.

    One that is relocated counts again where its new start is after its confirmation: it cannot be
    the same change.
    """
    times = []
    latest: dict[int, int] = {}
    for t, event in followed.events:
        if event.state == "confirmed" and event.start > latest.get(event.id, -1):
            times.append(t)
            latest[event.id] = t
    return times


def crossings(changed: Floats) -> list[int]:
    """Times at which `changed_probability` comes to exceed `CROSSED`."""
    high = changed > CROSSED
    return (1 + np.flatnonzero(high[1:] & ~high[:-1])).tolist()


def wait(alarms: Sequence[int], change: int) -> float:
    """Observations of the new regime up to the first alarm in it; inf without one."""
    return min((t - change + 1 for t in alarms if t >= change), default=math.inf)


def periods(study: QualityStudy) -> Rows:
    """Alarms got over alarms asked for, of every model on every family, by `false_alarm_every`.

    steady: share of the observations from `SETTLED_FROM` on at which `changed_probability` is at
    most `LITTLE`.
    """
    sizes = study.sizes
    rows = []
    for index, family in enumerate(study.track(FAMILIES, "alarms asked and got")):
        rng = np.random.default_rng([study.seed, index, 1])
        quiet = [family.draw(rng, sizes.quiet_length) for _ in range(sizes.quiet)]
        for name, (model, settings) in study.models.items():
            for every in sizes.periods:
                asked = settings._replace(false_alarm_every=every)
                followed = [follow(model, series, asked) for series in quiet]
                got = [every * len(confirmations(one)) / sizes.quiet_length for one in followed]
                steady = statistics.mean(
                    float((one.changed[SETTLED_FROM:] <= LITTLE).mean()) for one in followed
                )
                rows.append(
                    {
                        "family": family.name,
                        "method": name,
                        "every": every,
                        "got": bootstrap(got, np.random.default_rng(study.seed)),
                        "steady": steady,
                    }
                )
    return rows


def ages(study: QualityStudy) -> Rows:
    """Delays of every model at shifts that come early and later in normal series.

    delay, late: median and 90 % quantile, inf where too few are found. found: share with an alarm.
    """
    sizes = study.sizes
    rows = []
    for after in study.track(sizes.ages, "delays by age"):
        for k, shift in enumerate(sizes.shifts):
            rng = np.random.default_rng([study.seed, after, k])
            series = rng.normal(size=(sizes.aged, after + sizes.within))
            series[:, after:] += shift
            for name, (model, settings) in study.models.items():
                delays = [wait(confirmations(follow(model, y, settings)), after) for y in series]
                rows.append(
                    {
                        "method": name,
                        "after": after,
                        "shift": shift,
                        "delay": statistics.median(delays),
                        "late": float(np.quantile(delays, 0.9, method="higher")),
                        "found": float(np.isfinite(delays).mean()),
                    }
                )
    return rows


def changes(study: QualityStudy) -> Rows:
    """Changes found on TCPD, scored as by its benchmark, and on corpora of vectors by F1.

    f1 and, on TCPD, cover: means over series.
    """
    rows = []
    for corpus, series in study.data.annotated.items():
        by_method: dict[str, list[list[int]]] = {}
        for one in study.track(series, f"changes: {corpus}"):
            for method, starts in _detections(study, corpus, one).items():
                by_method.setdefault(method, []).append(starts)
        if series:
            # The mean length of the regimes of the corpus, of all annotators.
            regimes = [1 + statistics.mean(map(len, one.annotations.values())) for one in series]
            apart = round(sum(len(one.y) for one in series) / sum(regimes))
            marks = [list(range(apart, len(one.y), apart)) for one in series]
            by_method[f"{ALWAYS}, every {apart}"] = marks
        for method, detections in by_method.items():
            # A generator of their own leaves what others draw as it was without these.
            own = method.startswith(ALWAYS) or (corpus != TCPD and method.endswith(SERVED))
            rng = np.random.default_rng(study.seed) if own else study.rng
            pairs = zip(series, detections, strict=True)
            measured = [_change_score(corpus, one, starts) for one, starts in pairs]
            f1 = bootstrap([score.f1 for score in measured], rng)
            cover = [score.cover for score in measured]
            rows.append(
                {
                    "corpus": corpus,
                    "method": method,
                    "f1": f1,
                    "cover": bootstrap(cover, rng) if corpus == TCPD else None,
                    "detections": sum(map(len, detections)),
                }
            )
    return rows


def _change_score(corpus: str, one: LabelledSeries, starts: Sequence[int]) -> scores.ChangeScore:
    if corpus == TCPD:
        return scores.change_score(one.annotations, starts, len(one.y))
    (marked,) = one.annotations.values()
    return scores.ChangeScore(scores.f1(marked, starts, MARGINS[corpus]), math.nan)


def _detections(study: QualityStudy, corpus: str, one: LabelledSeries) -> dict[str, list[int]]:
    """Changes of one series by method; on vectors models report what they confirm, and serve."""
    detections: dict[str, list[int]] = {}
    if corpus == TCPD:
        for name, (model, settings) in study.models.items():
            ways = zip(OUTPUTS, segmentations(one, model, settings), strict=False)
            detections |= {f"{name}, {way}": starts for way, starts in ways}
    else:
        for name in dict.fromkeys([*study.names, *VECTOR_MODELS]):
            model = build(name, Options(y_dim=one.y.shape[1]))
            settings = DEFAULTS._replace(history=len(one.y))
            followed = follow(model, one.y, settings)
            detections[name] = followed.confirmed()
            detections[f"{name}, {SERVED}"] = followed.segmented()
    for name, detector in study.detectors.items():
        detections[name] = alarms_of(detector, one.y, MARGINS.get(corpus, 1))
    count = round(statistics.mean(map(len, one.annotations.values())))
    detections[EVEN] = [round((i + 1) * len(one.y) / (count + 1)) for i in range(count)]
    return detections


def segmentations(
    one: LabelledSeries, model: UnderlyingModel, settings: StreamSettings
) -> list[list[int]]:
    """Changes of one series by way, as in `OUTPUTS`; less seasons there is none in hindsight."""
    followed = follow(model, one.y, settings)
    ways = [followed.confirmed(), followed.segmented()]
    if not settings.seasonal:
        ways.append(segmentation(model, one.y, settings))
    return ways


def selection(study: QualityStudy) -> Rows:
    """What choosing a model's constants on TCPD is worth: chosen on one half, scored on the other.

    Candidates are the default settings and random ones around them: every constant of the model,
    its outlier rate and `false_alarm_every`, each times a factor that is log-uniform in
    [1 / SPREAD, SPREAD]. On each of `REPETITIONS` random halves of the series the candidate with
    the best sum of F1 and covering is chosen, and scored on the other half.

    chosen, default: mean and standard deviation over halves of F1, then of covering. beaten: share
    of the random settings that the defaults beat on all series together, which chose them.
    """
    series = study.data.annotated.get(TCPD, [])
    if len(series) < 2:  # no halves
        return []
    rows = []
    for name in study.names:
        tried = candidates(build(name, Options()), study.sizes.candidates, study.rng)
        by_candidate = [
            [
                [
                    scores.change_score(one.annotations, points, len(one.y))
                    for points in segmentations(one, model, settings)
                ]
                for one in series
            ]
            for model, settings in study.track(tried, f"choices on TCPD: {name}")
        ]
        table = np.array(by_candidate)  # [candidate, series, output, measure]
        halves = [study.rng.permutation(len(series)) for _ in range(scores.REPETITIONS)]
        for k, output in enumerate(OUTPUTS):
            chosen = []
            default = []
            for order in halves:
                one, other = np.array_split(order, [len(order) // 2])
                for half, rest in ((one, other), (other, one)):
                    best = int(table[:, half, k].mean(1).sum(-1).argmax())
                    chosen.append(table[best, rest, k].mean(0))
                    default.append(table[0, rest, k].mean(0))
            sums = table[:, :, k].mean(1).sum(-1)
            rows.append(
                {
                    "method": name,
                    "output": output,
                    "chosen": np.stack([np.mean(chosen, 0), np.std(chosen, 0)], 1).tolist(),
                    "default": np.stack([np.mean(default, 0), np.std(default, 0)], 1).tolist(),
                    "beaten": float((sums[1:] < sums[0]).mean()),
                }
            )
    return rows


def candidates(model: UnderlyingModel, count: int, rng: np.random.Generator) -> list[Candidate]:
    """The defaults, then `count` random settings around them."""
    constants = [
        field.name
        for field in fields(model)  # type: ignore[arg-type]
        if isinstance(getattr(model, field.name), float)
    ]
    constants.sort(key=lambda name: name == "outlier_rate")  # which stands last, in any model
    drawn = [(model, DEFAULTS)]
    for _ in range(count):
        factors = np.exp(np.log(SPREAD) * rng.uniform(-1, 1, len(constants) + 1))
        values: dict[str, Any] = {
            name: getattr(model, name) * float(factor)
            for name, factor in zip(constants, factors, strict=False)
        }
        every = (DEFAULTS.false_alarm_every or 0.0) * float(factors[-1])
        defaults = DEFAULTS._replace(false_alarm_every=every)
        changed: UnderlyingModel = replace(model, **values)  # type: ignore[type-var]
        drawn.append((changed, defaults))
    return drawn


def forecasts(study: QualityStudy) -> dict[str, Rows]:
    """Scores of one-step forecasts on every corpus, and of anomaly scores made of them on NAB."""
    rows: Rows = []
    nab: Rows = []
    vus: Rows = []
    for corpus, everything in study.data.scalars.items():
        series = [
            one
            for one in everything
            if np.isfinite(one.y[warmed_up(one.y)[2] :]).sum() >= scores.SHORTEST
        ]
        strange: dict[str, list[Floats]] = {}
        by_method: dict[str, list[scores.SeriesScore]] = {}
        for one in study.track(series, f"forecasts: {corpus}"):
            for method, score in _forecast_scores(study, one, strange).items():
                by_method.setdefault(method, []).append(score)
        if not series:
            continue
        last_value = by_method[next(iter(baselines.FORECASTERS))]
        rows += [
            {
                "corpus": corpus,
                "method": method,
                "score": scores.pooled(of_method, last_value, study.rng),
            }
            for method, of_method in by_method.items()
        ]
        if corpus == NAB and any(one.window.any() for one in series):
            # Scores of each observation: of models, then of baselines.
            detectors = {
                **strange,
                "windowed Gaussian": [baselines.windowed_gaussian(one.y) for one in series],
                "random": [study.rng.random(len(one.y)) for one in series],
                baselines.NOTHING: [np.zeros(len(one.y)) for one in series],
            }
            nab, vus = _anomalies(study, series, detectors)
    return {"forecasts": rows, "nab": nab, "vus": vus}


def _forecast_scores(
    study: QualityStudy, one: LabelledSeries, strange: dict[str, list[Floats]]
) -> dict[str, scores.SeriesScore]:
    """Scores of every forecaster on one series; strange: gains the probabilities answered."""
    location, scale, first = warmed_up(one.y)
    by_method = {}
    for name, (model, settings) in study.models.items():
        levels = sorted({*scores.LEVELS, scores.MEDIAN})
        followed = follow(model, one.y, settings, levels)
        quantiles = followed.summary.quantiles[:, :, 0]
        middle = levels.index(scores.MEDIAN)
        forecast = scores.Forecast(
            followed.log_score,
            quantiles[:, middle],
            followed.summary.cdf[:, 0],
            np.delete(quantiles, middle, 1),
        )
        by_method[name] = scores.forecast_score(one.y, forecast, scale, first)
        for kind, values in (
            ("changed_probability", followed.changed),
            ("recent_change_probability", followed.recent),
            (SURPRISE, -followed.log_score - math.log(scale)),
            (ANOMALY, followed.anomaly),
            (EVIDENCE, followed.evidence),
        ):
            strange.setdefault(f"{name}, {kind}", []).append(values)
    z = (one.y - location) / scale
    for name, forecaster in baselines.FORECASTERS.items():
        forecast = scores.of_normal(z, *forecaster(z))
        by_method[name] = scores.forecast_score(z, forecast, 1.0, first)
    return by_method


def _anomalies(
    study: QualityStudy, series: Sequence[LabelledSeries], detectors: Mapping[str, list[Floats]]
) -> tuple[Rows, Rows]:
    """NAB's scores, and VUS-PR of the series that have a window; `evidence` by this alone."""
    nab = []
    vus = []
    weights = [scores.window_weights(one.window) for one in series]
    for name, values in detectors.items():
        if name.endswith(ANOMALY):
            score = scores.anomaly_score(values, weights, study.rng, scores.alarm_curve)
            nab.append({"method": f"{name}, alarms", "score": score})
        if not name.endswith(EVIDENCE):
            nab.append({"method": name, "score": scores.anomaly_score(values, weights, study.rng)})
        volumes = [
            scores.vus_pr(score, one.window)
            for score, one in zip(values, series, strict=True)
            if one.window.any()
        ]
        own = np.random.default_rng(study.seed)
        vus.append({"method": name, "vus": bootstrap(volumes, own)})
    return nab, vus


# --- tables and figures --------------------------------------------------------------------------


def tables(results: Results) -> str:
    """Tables of all results, as Markdown."""
    return page(
        "quality.md",
        **results,
        scores=scores,
        sizes=Sizes(),
        settling=SETTLING,
        central=CENTRAL,
        settled_from=SETTLED_FROM,
        little=LITTLE,
        margins=MARGINS,
        spread=SPREAD,
    )


def show(results: Results, console: Console) -> None:
    """Print every table, and what was not measured."""
    console.print(Markdown(tables(results)))
    if results["missing"]:
        console.print(f"not measured, as it is not there: {', '.join(results['missing'])}")
    console.print("{took_s:.0f} s, torch {torch}, Python {python}".format(**results))


def write(folder: Path, results: Results) -> None:
    """Write `tables.md`, and each figure as PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tables.md").write_text(tables(results), "utf-8")
    for name, chart in charts(results["families"]).items():
        chart.save(folder / name)


def charts(families: Sequence[Mapping[str, Any]]) -> dict[str, Chart]:
    """Figures of the simulated families, by name."""
    rates = {(row["family"], row["method"]): row["false"] for row in families}
    false_alarms = dots(
        "False alarms on simulated families",
        [Dots("false alarms per 1,000 observations", rates, floor=LEAST_RATE, rule=TARGET)],
        "False alarms on quiet series, with 95 % intervals over series. "
        f"The dashed line is at {TARGET:g}.",
    )
    compared = [row for row in families if row["family"] in COMPARED]
    panels = [
        Dots(
            "median delay (observations)",
            {(row["family"], row["method"]): alone(row["delay"][k]) for row in compared},
            f"shift of {shift:g} sd",
        )
        for k, shift in enumerate(Sizes().shifts)
    ]
    delays = dots(
        "Delay of alarms on simulated families",
        panels,
        "Median delay at shifts of so many standard deviations, the first observation "
        "included; none where fewer than half of the shifts are found.",
    )
    return {"false_alarms": false_alarms, "delays": delays}
