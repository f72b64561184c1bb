"""The command line in this process."""

import pytest
from typer.testing import CliRunner

from service.commands import run
from service.commands.main import app
from service.commands.options import variable
from service.settings import Settings

WIDE = {"COLUMNS": "250", "TERMINAL_WIDTH": "250", "NO_COLOR": "1"}


@pytest.fixture
def moca(monkeypatch):
    """Run a command on a wide terminal, with no settings but those given; returns its outcome."""
    for name in Settings.model_fields:
        monkeypatch.delenv(variable(name), raising=False)
    # Logging is the process's business: a test must keep its own.
    monkeypatch.setattr(run, "log_to_stderr", lambda role, level: None)
    return lambda *given, **env: CliRunner().invoke(app, list(map(str, given)), env=WIDE | env)
