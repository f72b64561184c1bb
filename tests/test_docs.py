"""What the documents say is what the code has."""

import ast
import csv
import functools
import json
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest
import typer
import yaml

from model_core import Detector, artifact
from model_core.upm.builtin import BUILTIN
from service.api.routes import CALLS
from service.commands.main import app
from service.commands.options import SERVE, SHORT
from service.schema.observations import StreamForm
from service.settings import WORKER, Settings, names_for
from training.catalogue import preset
from training.config import merged
from training.experiments import own

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("**/*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PARSERS = {
    "json": json.loads,  # of the reference: elsewhere some are lines of a file
    "python": ast.parse,
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}


@functools.cache
def text_of(name):
    return (DOCS / name).read_text()


def blocks(kind):
    """Place and text of each block of code of a kind."""
    for page in PAGES:
        for found in BLOCK.finditer(page.read_text()):
            if found[1] == kind:
                line = page.read_text()[: found.start()].count("\n") + 1
                yield f"{page.relative_to(ROOT)}:{line}", found[2]


def test_the_generated_pages_are_up_to_date(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", "--check"])
    assert runpy.run_path(str(DOCS / "generate.py"))["main"]() == 0, capsys.readouterr().err
    assert all(f"### {call.method} {call.path}\n" in text_of("reference.md") for call in CALLS)


def test_the_numbers_of_quality_are_the_frozen_ones():
    frozen = json.loads((ROOT / "tests" / "referees" / "frozen" / "quality.json").read_text())
    sections = json.loads(text_of("numbers.json"))
    tables = {table["title"]: table["rows"] for section in sections for table in section["tables"]}
    for number, row in enumerate(tables["Changes: TCPD"][:3]):
        assert row[1].split()[0] == f"{frozen[f'changes {number} f1 mean']:.3f}", row
        assert row[2].split()[0] == f"{frozen[f'changes {number} cover mean']:.3f}", row
    alarms = [row for row in tables["Anomalies: NAB, standard profile"] if "alarms" in row[0]]
    assert [row[3] for row in alarms] == [f"{frozen['nab 3 score fixed']:.1f}"]


def test_every_setting_is_documented():
    options = SERVE | names_for(WORKER)
    assert set(Settings.model_fields) == options, "a setting is no command's option"
    lacking = [
        name
        for name in StreamForm.model_fields
        if not re.search(rf"^\|[^|]*`{name}`[^|]*\|", text_of("streams.md"), re.MULTILINE)
    ]
    assert lacking == []


def test_every_model_is_documented():
    assert [name for name in BUILTIN if f"| `{name}` |" not in text_of("models.md")] == []
    kinds = {"alpaca", "fleet", "lstm", "pcoc"}  # others may be registered by other tests
    assert kinds <= set(artifact.kinds())
    assert [kind for kind in kinds if f"| `{kind}` |" not in text_of("models.md")] == []


@functools.cache
def anchors(page):
    """Anchors of a page's headings, as they are made of them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_links_lead_somewhere():
    dead = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            linked = page.parent / path if path else page
            if "://" in target or (linked.exists() and (not anchor or anchor in anchors(linked))):
                continue
            dead.append(f"{page.name}: {target}")
    assert dead == []


def commands(text):
    """Words of each call of `moca` in lines of a shell."""
    for line in text.replace("\\\n", " ").splitlines():
        if not re.search(r"(^|[\s/(])moca ", line):
            continue
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        call, before = None, "--"
        for word in [*words, ";"]:
            if set(word) <= set("();<>|&"):
                if call:
                    yield call
                call, before = None, "--"
                continue
            if call is not None:
                call.append(word)
            elif before == "--" and word.rpartition("/")[2] == "moca":
                call = []
            before = word


@functools.cache
def moca():
    """The whole command line."""
    return typer.main.get_command(app)


def unknown(words):
    """Subcommand or options that no command has."""
    command = moca()
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return [words[0]]
        command, words = command.commands[words[0]], words[1:]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    given = (word.partition("=")[0] for word in words if word.startswith("--"))
    return [name for name in given if name not in known | {"--help"}]


def test_commands_that_the_pages_call_exist():
    calls = [(where, words) for where, text in blocks("sh") for words in commands(text)]
    assert len(calls) > 40
    assert [(where, unknown(words)) for where, words in calls if unknown(words)] == []
    assert unknown(["serve", "--no-such"]) == ["--no-such"]


def test_options_that_the_pages_of_security_and_training_name_exist():
    known = {name for names in SHORT.values() for name in names}
    known |= set(re.findall(r"`(--[a-z-]+)", text_of("commands.md")))
    for page in ("security.md", "training.md"):
        named = set(re.findall(r"`(--[a-z][a-z-]*)", text_of(page)))
        assert len(named) > 10
        assert named <= known, page


def test_blocks_of_code_are_code():
    for kind, parse in PARSERS.items():
        texts = [each for each in blocks(kind) if kind != "json" or "reference.md" in each[0]]
        assert texts, kind
        for where, text in texts:
            try:
                parse(text)
            except (SyntaxError, ValueError, yaml.YAMLError) as error:
                pytest.fail(f"{where}: {error}")


def test_the_settings_of_the_page_of_training_are_the_defaults():
    (text,) = (text for where, text in blocks("toml") if where.startswith("docs/training.md"))
    said = tomllib.loads(text)
    data = own.DataSource.model_validate({"path": "a.csv", **said.pop("data")})
    assert data == own.DataSource(path=Path("a.csv"))
    assert preset("data", "quick", said) == preset("data", "quick")
    changed = merged(said, {"model": {"features": 33}})
    assert preset("data", "quick", changed) != preset("data", "quick")


def test_names_of_the_code_exist():
    names = set(re.findall(r"\bmodel_core(?:\.\w+)+", text_of("mathematics.md")))
    assert len(names) > 10
    for name in names:
        assert callable(found := resolve_name(name)) or isinstance(found, int | float), name
    files = re.findall(r"`([\w/]+/[\w/]+\.(?:py|lua))`", text_of("architecture.md"))
    assert len(files) > 30
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_inline_formulas_survive_markdown():
    """Each ends on its line, and no escape of punctuation is in one: Markdown would eat it."""
    text = re.sub(r"```.*?```", "", text_of("mathematics.md"), flags=re.DOTALL)
    for line in text.splitlines():
        assert line.count("$") % 2 == 0, line
        assert not any(re.search(r"\\[^A-Za-z]", each) for each in line.split("$")[1::2]), line


def test_the_readme_shows_what_a_detector_prints(capsys):
    (code,) = (
        found[2] for found in BLOCK.finditer((ROOT / "README.md").read_text()) if found[1] == "py"
    )
    with (ROOT / "service" / "samples" / "nile.csv").open() as file:
        flow = [float(row["y"]) for row in csv.DictReader(file)]
    exec(code, {"Detector": Detector, "flow": flow})
    assert capsys.readouterr().out.strip() == code.strip().rpartition("# ")[2]


def test_the_readme_names_the_targets_and_constraints_pin_versions():
    makefile, readme = ((ROOT / name).read_text() for name in ("Makefile", "README.md"))
    for target in ("run", "test", "test-all", "check", "bench", "docs"):
        assert f"\n{target}: " in makefile
        assert f"make {target}" in readme
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(line.count("==") == 1 and "+" not in line and "/" not in line for line in pins)
    assert any(line.startswith("torch==") for line in pins)
