"""The documents as a site: every page in its menu, no dead link, nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOADED = r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]*)"'


@pytest.mark.slow
def test_the_site_has_every_document_and_loads_nothing_from_elsewhere(tmp_path):
    """A warning, of a dead link say, fails the build."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in (ROOT / "docs").glob("**/*.md"):
        built = tmp_path / page.relative_to(ROOT / "docs").with_suffix(".html")
        assert built.exists(), page
        assert re.findall(LOADED, built.read_text()) == [], page
    text = (tmp_path / "mathematics.html").read_text()
    assert text.count("<math") > 100
    shown = re.sub(r"<(pre|code|script)\b.*?</\1>", "", text, flags=re.DOTALL)
    assert "$" not in re.sub(r"<[^>]+>", "", shown)
