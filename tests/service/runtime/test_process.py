"""What a process does at its start: plugins."""

import sys

import pytest

from model_core import artifact
from model_core.artifact import files
from service.errors.base import StartupError
from service.runtime.process import import_plugins

MODULES = {
    "fine": "from model_core import artifact\nartifact.register('fine', print)\n",
    "half": "raise ValueError('half done')",
    "leaving": "import sys\nsys.exit(0)",
    "unreadable": "def",
    "taken": "from model_core import artifact\nartifact.register('alpaca', print)",
}


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BUILDERS", dict(files._BUILDERS))
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("names", ["fine", " fine,, json ,", "json,fine,fine"])
def test_plugins_register_their_kinds(names):
    import_plugins(names)
    assert "fine" in artifact.kinds()


def test_none(capsys):
    import_plugins("")
    import_plugins(" , ")
    assert artifact.kinds() == ["alpaca", "alpaca-mixture", "fleet", "lstm", "pcoc"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("half", r"ValueError\('half done'\)"),
        ("leaving", r"SystemExit\(0\)"),
        ("unreadable", "SyntaxError"),
        ("taken", "kind 'alpaca' is already registered"),
        ("nothing_of_that_name", "ModuleNotFoundError"),
        ("not a name", "ModuleNotFoundError"),
        (".relative", "TypeError"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_named(name, said):
    with pytest.raises(StartupError, match=f"cannot import plugin '{name}': .*{said}"):
        import_plugins(f"fine,{name}")
