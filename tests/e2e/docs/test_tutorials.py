"""The tutorial, the examples and the README, run against a real service."""

from pathlib import Path

import httpx
import pytest

from tests.e2e.docs.pages import ADDRESS, Reader, blocks, play

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [*(DOCS / "tutorials" / f"{name}.md" for name in ("metric", "pump")), DOCS / "examples.md"]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_and_prints_what_it_says(page, tmp_path):
    done = 0
    for said, printed in play(page, tmp_path):
        done += 1
        if said is not None:
            assert printed.split() == said.split(), f"python -m tests.e2e.docs.pages {page}"
    assert done == len(list(blocks(page))) > 3


def test_the_readme_tries_it_with_what_works(url, prefix, tmp_path):
    """On the service of the run, on which another page has a stream of the same name."""
    readme = Path(__file__).parents[3] / "README.md"
    tried = [each for each in blocks(readme) if each[0] == "python" or each[1].startswith("curl")]
    assert len(tried) == 2
    reader = Reader(tmp_path)
    reader.ports[ADDRESS] = httpx.URL(url).port
    for kind, code, shown in tried:
        printed = reader.run(kind, code.replace("pump-7", f"{prefix}pump"))
        if kind == "python":
            assert printed.split() == shown.split()
        else:
            assert '"seq":50,' in printed
