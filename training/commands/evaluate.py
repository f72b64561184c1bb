"""`moca evaluate`: tables of the performance of trained models and of the default settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from training.commands import Data, Datasets, Run, Runs, fail, refusals

app = typer.Typer(
    no_args_is_help=True, help="Measure trained models, and the service's default settings."
)


@app.command("all")
def everything(
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="MOCA_TEST_DATA",
            help="Folder that holds tcpd.json, nab.npz, skab.npz, beedance.npz, hasc.npz and "
            "elec2.npz, or some of them.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A built-in model of numbers; may be given several times.",
            show_default="the service's default",
        ),
    ] = None,
    seasons: Annotated[
        bool,
        typer.Option("--seasons", help="Also score each model with `seasonal` true."),
    ] = False,
    regimes: Annotated[
        int,
        typer.Option(
            min=0, max=32, help="Also score each model with so many remembered regimes; 0: no more."
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the simulations and intervals.")] = 0,
    json: Annotated[
        Path | None, typer.Option(help="File for all numbers.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the tables as Markdown and figures as SVG and PNG.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Score the default settings beside baselines: changes, false alarms, forecasts, anomalies.

    On simulated families and on the corpora that the folder holds; those that are absent are
    skipped, as are ADWIN and fast-bocpd where river and fast-bocpd are not installed. Takes
    minutes. Needs the extra train.
    """
    if data is None:
        fail("--data (or MOCA_TEST_DATA) is needed: the folder that holds tcpd.json and the like")
    from rich.console import Console

    from model_core.stream_settings import DEFAULT_MODEL
    from model_core.upm.builtin import BUILTIN, Options, build
    from training.quality import measures
    from training.results import write as write_numbers

    models = model or [DEFAULT_MODEL]
    real = [kind for kind in BUILTIN if build(kind, Options()).label == "real"]
    for name in models:
        if name not in real:
            fail(f"--model: expected one of {', '.join(real)}, got {name!r}")
    console = Console()
    with refusals("--data: "):
        chosen = measures.variants(models, seasons, regimes)
        results = measures.evaluate(data, chosen, seed, console=console)
    measures.show(results, console)
    with refusals():
        if json is not None:
            write_numbers(json, results)
        if out is not None:
            measures.write(out, results)


Preset = Annotated[str, typer.Option(help="Of the runs: quick or paper.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for results.", show_default="results/EXPERIMENT/PRESET"),
]


def _experiment(name: str, about: str) -> None:
    """A command for the runs of one experiment."""

    def command(
        preset: Preset = "quick",
        ablation: Annotated[
            str | None,
            typer.Option(help="An ablation's runs in place of a preset's."),
        ] = None,
        runs: Runs = Path("runs"),
        datasets: Datasets = None,
        out: Out = None,
    ) -> None:
        from training import catalogue, paper
        from training.data.files import Place

        kept = ablation or preset
        results = out or Path("results") / name / kept
        with refusals():
            asked = None if ablation is None else catalogue.ablation(ablation, name)
            place = Place(datasets, runs / "cache")
            paper.evaluate(paper.Study(name, kept, runs, place, results, asked))

    text = "Trained runs on the same test sequences: table, JSON, figures as SVG and PNG."
    app.command(name, help=f"{about} {text}")(command)


_experiment("sinusoid", "Switching sinusoid.")
_experiment("players", "Movement of basketball players.")
_experiment("rainbow", "Rainbow MNIST.")
_experiment("miniimagenet", "miniImageNet by super-classes.")


@app.command("data")
def own_data(
    run: Run,
    data: Data = None,
    datasets: Datasets = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the table.", show_default="RUN/evaluation"),
    ] = None,
) -> None:
    """Score a trained model on the part of its data kept for the test, beside untrained ones.

    Log score per observation of models run as the service runs them, and paired differences.
    """
    from training import catalogue
    from training.data.files import Place
    from training.experiments import own

    with refusals():
        finished = own.finished(run, data)
        splits = catalogue.splits(finished.config, Place(datasets, run / "cache"))
        own.evaluate(finished, splits, out)


@app.command()
def bandit(
    preset: Preset = "quick",
    runs: Runs = Path("runs"),
    trials: Annotated[
        int,
        typer.Option(min=2, help="Trials of 1,000 steps; the paper has 10."),
    ] = 30,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            help="thompson, optimistic-3, optimistic-5 or greedy; may be given several times.",
            show_default="all four",
        ),
    ] = None,
    out: Out = None,
) -> None:
    """Switching wheel bandit. Regret of trained runs on the same worlds: tables and figures."""
    from training.data.files import Place
    from training.experiments.bandit import STRATEGIES, evaluate
    from training.paper import Study

    results = out or Path("results") / "bandit" / preset
    wanted = Study("bandit", preset, runs, Place(None, runs / "cache"), results)
    with refusals():
        evaluate(wanted, trials, strategy or list(STRATEGIES))
