"""What the documents say is what the code has."""

import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

from model_core import artifact
from model_core.upm.builtin import BUILTIN, NEWEST
from service.api.openapi import problems
from service.api.routes.table import CALLS
from service.commands.options import API, SERVE, WORKER, variable
from service.schema.observations import StreamForm
from service.settings import Settings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("**/*.md"))]
NAMES = re.findall(r"\bmodel_core(?:\.\w+)+", (DOCS / "mathematics.md").read_text())


def test_every_setting_is_documented():
    text = (ROOT / "docs" / "settings.md").read_text()
    for name in Settings.model_fields:
        assert f"`{variable(name)}`" in text, (
            f"{name} is not in docs/settings.md: run deploy/site/pages.py"
        )


def test_the_generated_pages_are_up_to_date():
    command = [sys.executable, str(ROOT / "deploy" / "site" / "pages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_reference_has_every_call_and_every_problem():
    page = (DOCS / "reference.md").read_text()
    assert all(f"### {call.method} {call.path}\n" in page for call in CALLS)
    assert all(f"### {error.slug}\n" in page for error in problems.EXAMPLES)


def test_the_page_of_commands_has_those_of_training():
    assert "## moca train\n" in (DOCS / "commands.md").read_text()


def test_what_the_page_of_the_architecture_names_is_there():
    named = re.findall(r"`([\w/]+/[\w/]+\.(?:py|lua))`", (DOCS / "architecture.md").read_text())
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_setting_is_an_option_of_some_command():
    assert set(Settings.model_fields) == API | WORKER | SERVE


@pytest.mark.parametrize("target", ["run", "test", "test-all", "check", "bench", "docs"])
def test_the_readme_names_the_targets_that_the_makefile_has(target):
    assert f"\n{target}: " in (ROOT / "Makefile").read_text()
    assert f"make {target}" in (ROOT / "README.md").read_text()


def test_constraints_pin_every_version_and_name_no_place():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(line.count("==") == 1 and "+" not in line and "/" not in line for line in pins)
    assert "torch==2.13.0" in pins


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_every_name_in_the_mathematics_exists(name):
    assert callable(found := resolve_name(name)) or isinstance(found, int | float)


def test_inline_formulas_survive_markdown():
    """Each ends on its line, and no escape of punctuation is in one: Markdown would eat it."""
    text = re.sub(r"```.*?```", "", (DOCS / "mathematics.md").read_text(), flags=re.DOTALL)
    for line in text.splitlines():
        assert line.count("$") % 2 == 0, line
        assert not any(re.search(r"\\[^A-Za-z]", each) for each in line.split("$")[1::2]), line


@pytest.mark.parametrize("page", ["models.md", "streams.md"])
@pytest.mark.parametrize("name", NEWEST)
def test_every_built_in_model_has_its_row(name, page):
    assert f"| `{name}` |" in (DOCS / page).read_text()


def test_every_kind_of_trained_model_is_described():
    models = (DOCS / "models.md").read_text()
    # Kinds of other tests may be registered, too.
    kinds = {"alpaca", "fleet", "lstm", "pcoc"}
    assert kinds <= set(artifact.kinds())
    assert all(f"| `{kind}` |" in models for kind in kinds)


@pytest.mark.parametrize("page", ["models.md", "mathematics.md", "streams.md"])
def test_versions_after_the_first_are_named(page):
    text = (DOCS / page).read_text()
    assert all(f"`{full}`" in text for full in BUILTIN if not full.endswith("@1"))


def test_every_setting_of_a_stream_is_documented():
    text = (DOCS / "streams.md").read_text()
    for name in StreamForm.model_fields:
        assert re.search(rf"^\|[^|]*`{name}`[^|]*\|", text, re.MULTILINE), f"{name}: streams.md"


def _anchors(page):
    """Anchors of a page's headings, as they are made of them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        assert not anchor or anchor in _anchors(linked), target
