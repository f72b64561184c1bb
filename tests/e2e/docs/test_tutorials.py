"""The tutorial, the examples and the README, run against a real service."""

from pathlib import Path

import pytest

from tests.e2e.docs.pages import Reader, blocks, play

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [DOCS / "tutorials" / "metric.md", DOCS / "examples.md"]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_and_prints_what_it_says(page, tmp_path):
    done = 0
    for said, printed in play(page, tmp_path):
        done += 1
        if said is not None:
            assert printed.split() == said.split(), f"python -m tests.e2e.docs.pages {page}"
    assert done == len(list(blocks(page))) > 3


def test_the_readme_tries_it_with_what_works(tmp_path):
    readme = Path(__file__).parents[3] / "README.md"
    tried = [each for each in blocks(readme) if each[0] == "python" or each[1].startswith("curl")]
    assert len(tried) == 2
    reader = Reader(tmp_path)
    try:
        reader.run("sh", "moca serve")
        printed = [reader.run(kind, code) for kind, code, _ in tried]
    finally:
        reader.close()
    for (kind, _, shown), found in zip(tried, printed, strict=True):
        if kind == "python":
            assert found.split() == shown.split()
        else:
            assert '"seq":50,' in found
