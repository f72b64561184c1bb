"""The password of Redis from a file."""

import os

import pytest

from service.commands.options import read_settings
from tests.conftest import running_server
from tests.service.api.real import moca


def test_commands_reach_a_store_with_a_password(server_binary, tmp_path):
    file = tmp_path / "password"
    file.write_text("p@ss:/w\n")
    with running_server(server_binary) as url:
        _lock(url, "p@ss:/w")
        environment = {**os.environ, "MOCA_REDIS_URL": url}
        assert moca("keys", "list", **environment).returncode == 1
        made = moca(
            "keys", "create", "a", "--scope", "read", "--redis-password-file", file, **environment
        )
        assert made.returncode == 0, made.stderr
        listed = moca("keys", "list", **environment, MOCA_REDIS_PASSWORD_FILE=str(file))
        assert " a " in f" {listed.stdout} "
        assert "p@ss" not in made.stdout + made.stderr + listed.stdout


def _lock(url, password):
    from service.store.connection import connect

    with connect(url) as client:
        client.config_set("requirepass", password)


@pytest.mark.parametrize(
    ("url", "content", "says"),
    [
        (None, "x", "requires --redis-url"),
        ("redis://h", "", "empty"),
        ("redis://:old@h", "new", "already"),
        ("redis://h", None, "No such file"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, capsys, url, content, says):
    file = tmp_path / "password"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BaseException) as ended:  # noqa: PT011  # of the command line
        read_settings({"redis_url": url, "redis_password_file": file})
    assert getattr(ended.value, "exit_code", None) == 2
    assert says in capsys.readouterr().err
    assert "new" not in capsys.readouterr().err
