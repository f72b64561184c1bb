"""The examples of docs/client.md run as they stand, against a running service."""

import re
import shlex
from pathlib import Path

import httpx
import pytest
import typer

from service.commands.main import app

PAGE = (Path(__file__).parents[3] / "docs" / "client.md").read_text()
BLOCKS = re.findall(r"(?:<!-- needs: (\S+) -->\n)?```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("place", range(len(BLOCKS)))
def test_an_example_runs(place, service_url, tmp_path, monkeypatch):
    needs, code = BLOCKS[place]
    if "pandas" in code:
        pytest.importorskip("pandas", reason="pandas is not installed")
    known = httpx.get(f"{service_url}/openapi.json").json()["paths"]
    if needs and needs not in known:
        pytest.skip(f"the service has no {needs}")
    monkeypatch.chdir(tmp_path)
    assert "http://127.0.0.1:8000" in code
    exec(compile(code.replace("http://127.0.0.1:8000", service_url), "client.md", "exec"), {})


@pytest.mark.parametrize("line", re.findall(r"^moca .*$", PAGE, re.MULTILINE))
def test_a_command_is_one_with_these_options(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pump-7.snapshot").touch()  # which a command before it has written
    command = typer.main.get_command(app)
    _, *words = shlex.split(line.partition("#")[0].partition("<")[0])
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("moca", words).close()
