"""The offline commands as the command line has them, on models small enough for tests."""

import typer
from typer.testing import CliRunner

from training.commands.evaluate import app as evaluate
from training.commands.publish import publish
from training.commands.train import train

WIDE = {"COLUMNS": "250", "TERMINAL_WIDTH": "250", "NO_COLOR": "1"}
SMALL = {
    "optimiser.iterations": 6,
    "optimiser.batch": 4,
    "optimiser.warmup": 0,
    "validation.every": 3,
    "validation.windows": 4,
    "model.widths": "[8]",
    "model.features": 4,
    "model.hidden": 6,
    "model.decoder": "[8]",
}


def moca(*arguments):
    """Run a command; the result has `exit_code`, `stdout` and `stderr`."""
    app = typer.Typer()
    app.command("train")(train)
    app.command("publish")(publish)
    app.add_typer(evaluate, name="evaluate")
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=WIDE)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def small(**others):
    """Options that make a training run one of a second."""
    chosen = SMALL | {name.replace("__", "."): value for name, value in others.items()}
    return [part for name, value in chosen.items() for part in ("--set", f"{name}={value}")]
