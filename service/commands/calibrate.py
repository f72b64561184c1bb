"""`moca calibrate`: simulate a model's false-alarm rate by threshold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from service.commands.options import fail, with_settings
from service.settings import Settings

if TYPE_CHECKING:
    from model_core.sensitivity import Curve, Plan
    from model_core.upm.base import UnderlyingModel

OWN_OBSERVATIONS = 100_000


@with_settings({"models_dir"})
def calibrate(
    settings: Settings,
    names: Annotated[list[str], typer.Argument(help="Models, as NAME or NAME@VERSION.")],
    observations: Annotated[
        int,
        typer.Option(min=10_000, help="Simulated observations without a change."),
    ] = OWN_OBSERVATIONS,
    shifted: Annotated[
        int, typer.Option(min=8, help="Simulated series for each size of shift.")
    ] = 64,
    hazard: Annotated[
        list[float] | None,
        typer.Option(
            help="Additional hazard besides the model's own; may be repeated.",
            show_default="none",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulation.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="JSON file to write the curves to, by model; required for built-in models.",
            show_default="the model's own model.json",
        ),
    ] = None,
) -> None:
    """Calibrate the stream setting `sensitivity`: simulate false alarms and delays.

    Writes the curves to the `model.json` of the artifact; a running service uses them at once.
    Simulated inputs are standard normal, scaled as the model's; `moca publish` uses real ones.
    """
    from model_core.sensitivity import Plan

    if any(not 0 < value < 1 for value in hazard or []):
        fail("--hazard: expected numbers between 0 and 1")
    if out is not None:
        _kept(out)  # before the work
    plan = Plan(observations, shifted=shifted, hazards=tuple(hazard or ()), seed=seed)
    for name in names:
        _one(settings, name, plan, out)


def _one(settings: Settings, name: str, plan: Plan, out: Path | None) -> None:
    from model_core import artifact
    from model_core.errors import ModelCoreError
    from model_core.sensitivity import read
    from model_core.upm.builtin import BUILTIN, Options
    from service.models import catalogue as models
    from service.problems import ServiceError
    from service.worker.streams.loaded_models import LoadedModels

    catalogue = LoadedModels(settings.models_dir, "cpu")
    try:
        reference = catalogue.resolve(name)
        base, _, version = reference.partition("@")
        if reference in BUILTIN and out is None:
            fail(f"{reference} is built in: give --out FILE for its curves")
        shape = BUILTIN[reference].simulated if reference in BUILTIN else Options()
        calibration = _simulated(catalogue.get(reference, shape), plan, reference)
        if out is not None:
            _entered(out, reference, calibration)
        else:
            folder = models.place(settings.models_dir, base) / version
            artifact.amend(folder, sensitivity=calibration)
    except (ModelCoreError, ServiceError, OSError) as error:
        fail(f"{name}: {error}", 1)
    Console().print(_table(reference, read(calibration["curves"][0])))


def _simulated(model: UnderlyingModel, plan: Plan, reference: str) -> dict[str, Any]:
    import torch

    from model_core.sensitivity import calibrate as simulate

    torch.set_num_threads(1)
    with Progress(transient=True) as progress:
        task = progress.add_task(reference, total=plan.amount(model))
        return simulate(model, plan, tick=lambda done: progress.advance(task, done))


def _kept(out: Path) -> dict[str, Any]:
    """What a file of several models' curves holds by now."""
    import msgspec

    try:
        return msgspec.json.decode(out.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        fail(f"--out {out}: {error}")


def _entered(out: Path, reference: str, calibration: dict[str, Any]) -> None:
    """Enter a model's curves in such a file, a point to a line."""
    import msgspec

    text = msgspec.json.encode(dict(sorted({**_kept(out), reference: calibration}.items())))
    out.write_bytes(text.replace(b'{"threshold"', b'\n{"threshold"') + b"\n")


def _table(reference: str, curve: Curve) -> Table:
    hazard = "its own" if curve.hazard is None else f"{curve.hazard:g}"
    table = Table("threshold", box=SIMPLE_HEAD, title=f"{reference}, hazard {hazard}")
    table.add_column("false per 1,000", justify="right")
    table.add_column("95 %", justify="right")
    for delay in curve.points[0].delays:
        table.add_column(f"delay at\n{delay.shift:g} sd", justify="right")
    for point in curve.points:
        medians = ("" if d.median is None else f"{d.median:g}" for d in point.delays)
        between = f"{point.low:.3g} to {point.high:.3g}"
        rate = f"{point.false_alarms_per_1000:.3g}"
        table.add_row(f"{point.threshold:.6f}", rate, between, *medians)
    return table
