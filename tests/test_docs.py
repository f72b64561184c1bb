"""What the documents say is what the code has."""

from pathlib import Path

import pytest

from service.commands.options import API, SERVE, WORKER, settings_markdown, variable
from service.settings import Settings

ROOT = Path(__file__).parent.parent


def test_every_setting_is_documented():
    text = (ROOT / "docs" / "settings.md").read_text()
    for name in Settings.model_fields:
        assert f"`{variable(name)}`" in text, f"{name} is not in docs/settings.md: moca settings"


def test_the_page_of_settings_is_the_one_that_is_made():
    assert (ROOT / "docs" / "settings.md").read_text() == settings_markdown(), (
        "make it anew: moca settings > docs/settings.md"
    )


def test_every_setting_is_an_option_of_some_command():
    assert set(Settings.model_fields) == API | WORKER | SERVE


@pytest.mark.parametrize("target", ["run", "test", "test-all", "check", "bench"])
def test_the_readme_names_the_targets_that_the_makefile_has(target):
    assert f"\n{target}: " in (ROOT / "Makefile").read_text()
    assert f"make {target}" in (ROOT / "README.md").read_text()


def test_constraints_pin_every_version_and_name_no_place():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(line.count("==") == 1 and "+" not in line and "/" not in line for line in pins)
    assert "torch==2.13.0" in pins
