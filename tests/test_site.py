"""The documents as a site: every page in its menu, no dead link, nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Folder of the built site; a warning, of a dead link say, fails the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_document_is_a_page(site):
    for page in (ROOT / "docs").glob("**/*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).exists(), page


def test_nothing_comes_from_elsewhere(site):
    loaded = r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]*)"'
    for page in site.glob("**/*.html"):
        assert re.findall(loaded, page.read_text()) == [], page


def test_formulas_are_formulas(site):
    text = (site / "mathematics.html").read_text()
    assert text.count("<math") > 100
    shown = re.sub(r"<(pre|code|script)\b.*?</\1>", "", text, flags=re.DOTALL)
    assert "$" not in re.sub(r"<[^>]+>", "", shown)
