"""The command line: complete help, settings from options and environment, clear refusals."""

import csv
import subprocess
import sys
from contextlib import contextmanager
from importlib import resources
from threading import Event
from types import SimpleNamespace

import pytest
import typer

from moca_client.console import table
from moca_client.responses import StreamSummary
from service.commands import connection
from service.commands.main import app
from service.commands.options import flag, variable
from service.settings import Settings
from tests.waiting import PATIENCE_S


def test_help_names_each_option_and_its_variable(moca):
    text = moca("serve", "--help-all").output
    for name in Settings.model_fields.keys() - {"metrics_port"}:
        assert flag(name) in text
        assert variable(name) in text


def test_paragraphs_of_help_are_wrapped_by_the_terminal(moca, monkeypatch):
    # Typer reads the width once, in whichever test comes first.
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    text = " ".join(moca("restore", "--help").output.split("\n")[:8])
    assert "run it again: no service starts on the store" in text


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),
    [(["serve"], "--port", "--lease-ttl-ms"), ([], "replay", "restore")],
)
def test_help_shows_the_ten_or_so_that_matter(moca, words, shown, hidden):
    few = moca(*words, "--help").output
    assert shown in few
    assert hidden not in few
    assert "--help-all" in few
    assert hidden in moca(*words, "--help-all").output
    assert sum(flag(name) in few for name in Settings.model_fields) < 16


def test_a_command_of_the_client_imports_nothing_of_the_service():
    """Settings, models and the other commands take as long to import as it runs."""
    program = """
import sys
from service.commands.main import app
app(["replay", "--help"], standalone_mode=False)
print(*(name for name in sys.modules if name.startswith(("service.", "model_core.", "training"))))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    imported = ran.stdout.splitlines()[-1].split()
    own = [f"service.commands.{name}" for name in ("main", "common", "replay", "connection")]
    assert {*imported} == {"service.commands", "model_core.wording", *own}


def every_option(command):
    for each in getattr(command, "commands", {}).values():
        yield from every_option(each)
    for option in command.params:
        if option.param_type_name == "option" and (option.help or not option.hidden):
            yield command.name, option


# Beside settings: a client's address and key, a worker's name, and folders of data.
KEPT = {"MOCA_URL", "MOCA_API_KEY", "MOCA_WORKER_ID", "MOCA_TRAIN_DATA", "MOCA_TEST_DATA"}


def test_only_settings_have_variables_and_every_option_has_a_line_of_help():
    options = list(every_option(typer.main.get_command(app)))
    assert len(options) > 80
    for command, option in options:
        if option.name not in {"help", "show_version", "install_completion", "show_completion"}:
            kept = option.name in Settings.model_fields or option.envvar in KEPT
            assert option.envvar is None or kept, (command, option.name)
            assert option.help, (command, option.name)


@pytest.fixture
def served(monkeypatch):
    """The settings that `moca serve` would run with."""
    seen = []

    class Supervisor:
        def __init__(self, settings, environ, webhook_timeout_s):
            seen.append(settings)

        def run(self):
            return 0

    monkeypatch.setattr("service.runtime.supervisor.Supervisor", Supervisor)
    return seen


def test_an_option_wins_over_its_variable(moca, served):
    result = moca("serve", "--port", "1234", MOCA_PORT="99", MOCA_WORKERS="3", MOCA_HOST="::1")
    assert result.exit_code == 0
    assert (served[0].port, served[0].workers, served[0].host) == (1234, 3, "::1")
    assert served[0].partitions == 64


def test_what_cannot_be_is_named(moca, tmp_path):
    for arguments, env, said in (
        (["serve", "--port", "70000"], {}, "--port (MOCA_PORT)"),
        (["serve"], {"MOCA_WORKERS": "-1"}, "--workers (MOCA_WORKERS)"),
        (["serve"], {"MOCA_PORT": "http"}, "MOCA_PORT"),
        (["serve"], {"MOCA_REQUIRE_KEY": "1"}, "did you mean 'MOCA_REQUIRE_KEYS'?"),
        (["api"], {}, "--redis-url (or MOCA_REDIS_URL)"),
        (["worker"], {}, "--redis-url (or MOCA_REDIS_URL)"),
    ):
        result = moca(*arguments, **env)
        assert result.exit_code == 2
        assert said in result.output
    file = tmp_path / "a.csv"
    file.write_text("y\n1\n")
    assert "exclude" in moca("replay", str(file), "--append", "--replace").output
    assert "NAME=VALUE" in moca("replay", str(file), "--set", "hazard").output


def test_a_wait_for_an_answer_is_said(monkeypatch):
    monkeypatch.setattr(connection, "MOMENT_S", 0.0)
    said = Event()
    monkeypatch.setattr(connection.typer, "secho", lambda text, **_: said.set())
    with connection.noticed("no answer yet"):
        assert said.wait(PATIENCE_S)
    said.clear()
    monkeypatch.setattr(connection, "MOMENT_S", PATIENCE_S)
    with connection.noticed("no answer yet"):
        pass
    assert not said.is_set()


def test_a_command_gets_a_client_of_the_service_that_is_named(moca, monkeypatch):
    given = []

    @contextmanager
    def connected(url, api_key, retry_for_s):
        given.append((url, api_key, retry_for_s))
        yield SimpleNamespace(
            url=url,
            observe=lambda *_, **options: [],
            stream=lambda name: StreamSummary(name, "gaussian", 3),
        )

    monkeypatch.setattr(connection, "connected", connected)
    posted = moca("observe", "s", "1", "--url", "http://a", "--retry-for", "3", MOCA_API_KEY="key")
    shown = moca("streams", "show", "s", MOCA_URL="http://b", MOCA_API_KEY="")
    assert (posted.exit_code, shown.exit_code) == (0, 0)
    assert "gaussian" in shown.output
    assert given[0] == ("http://a", "key", 3.0)
    assert (given[1][0], given[1][2]) == ("http://b", 3.0)


def test_models_lists_the_built_in_ones(moca, tmp_path):
    said = moca("models", "--models-dir", str(tmp_path)).output
    for name in ("gaussian", "poisson", "bernoulli"):
        assert name in said


def test_a_table_that_is_piped_is_cut_only_where_a_width_is_stated(capsys, monkeypatch):
    sentence = " ".join(["mean rose by 3 sd"] * 8)
    made = table("stream", "what changed", words=("what changed",))
    made.add_row("a", sentence)
    monkeypatch.delenv("COLUMNS", raising=False)
    connection.print_table(made)
    assert sentence in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    connection.print_table(made)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("name", "first", "last", "count", "total"),
    [("nile", 1871, 1970, 100, 91_935), ("coal", 1851, 1962, 112, 191)],
)
def test_the_samples_are_the_published_series(name, first, last, count, total):
    text = (resources.files("service.samples") / f"{name}.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert [int(row["time"]) for row in rows] == list(range(first, last + 1))
    assert len(rows) == count
    assert sum(int(row["y"]) for row in rows) == total
