"""Hypothesis draws the same examples in each run of `make test`, and others in `make test-all`."""

import importlib
import sys

from hypothesis import given, settings
from hypothesis import strategies as st


def drawn(profile):
    """Examples of one test, as text."""
    examples = []

    @settings(settings.get_profile(profile), max_examples=200)
    @given(st.integers(), st.floats())
    def test(number, real):
        examples.append(f"{number} {real}")

    test()
    return examples


def test_the_profile_is_fixed_unless_another_is_chosen(pytestconfig):
    chosen = pytestconfig.getoption("--hypothesis-profile") or "fixed"
    assert settings.get_current_profile_name() == chosen


def test_examples_do_not_depend_on_chance_nor_on_what_is_imported(tmp_path, monkeypatch):
    first = drawn("fixed")
    constants = [1000 * i + 0.123 for i in range(50)]
    (tmp_path / "some_constants.py").write_text(f"CONSTANTS = {constants}")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("some_constants")
    try:
        assert drawn("fixed") == first
    finally:
        del sys.modules["some_constants"]


def test_random_examples_differ():
    assert drawn("random") != drawn("random")
