"""What a key looks like, what is kept of it, rates and times; the command line that makes keys."""

import os
import re
import time

import msgspec
import pytest

from service import api_keys
from service.errors.base import StartupError
from service.runtime.access_policy import describe, is_loopback, is_own_name, keys_required
from service.runtime.embedded import Embedded
from service.runtime.process import EXIT_REFUSED
from service.settings import Settings
from service.store.api_keys import KEYS, Keyring
from service.store.connection import connect
from tests.service.api.real import moca

DAY_MS = 86_400_000


def test_a_token_is_known_again_and_nowhere_stored():
    key, token = api_keys.create("a", ["write", "read"])
    assert re.fullmatch(r"moca_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", token)
    given = api_keys.parse_token(token)
    assert given.id == key.id
    assert key.matches(given.secret)
    assert not key.matches(given.secret[:-1] + ("A" if given.secret[-1] != "A" else "B"))
    stored = msgspec.msgpack.encode(key)
    assert given.secret.encode() not in stored
    assert key.scopes == ("read", "write")
    other, _ = api_keys.create("a", ["read"])
    assert not other.matches(given.secret)


@pytest.mark.parametrize(
    "token", ["", "moca_", "moca_0123456789ab_short", "moca_0123456789ab_" + "a" * 44, "x" * 10_000]
)
def test_what_is_no_token(token):
    assert api_keys.parse_token(token) is None


def test_times_and_rates():
    assert api_keys.parse_expiry("90d", 1000) == 1000 + 90 * DAY_MS
    assert api_keys.parse_expiry("1970-01-02", 0) == DAY_MS
    assert api_keys.parse_expiry("1970-01-02T01:00:00+01:00", 0) == DAY_MS
    for wrong in ("soon", "", "-1d", "5y", "1970-01-01"):
        with pytest.raises(ValueError, match="expires"):
            api_keys.parse_expiry(wrong, 1)
    rate = api_keys.parse_rate("5000 per 10 minutes")
    assert (rate.amount, rate.get_expiry()) == (5000, 600)
    assert api_keys.parse_rate("none") is None


@pytest.mark.parametrize(
    ("host", "only_here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
    ],
)
def test_who_may_call_is_decided_at_the_start(host, only_here):
    assert is_loopback(host) == only_here
    here = Settings(host=host)
    if only_here:
        assert not keys_required(here, any_keys=False)
    else:
        with pytest.raises(StartupError, match=r"--require-keys.*--open"):
            keys_required(here, any_keys=False)
    assert keys_required(here, any_keys=True)
    assert keys_required(Settings(host=host, require_keys=True), any_keys=False)
    everyone = Settings(host=host, open_access=True)
    assert not keys_required(everyone, any_keys=True)
    assert "open access" in describe(everyone, False)


def test_names_are_unique_while_active(redis_client):
    ring = Keyring(redis_client)
    assert not ring.any()
    first, _ = api_keys.create("a", ["read"])
    ring.add(first)
    with pytest.raises(ValueError, match="active key 'a'"):
        ring.add(api_keys.create("a", ["read"])[0])
    with pytest.raises(ValueError, match="no active key 'b'"):
        ring.revoke("b")
    assert [key.id for key in ring.revoke("a")] == [first.id]
    second, _ = api_keys.create("a", ["write"])
    # Both within one millisecond, and the later one with the smaller id.
    second = msgspec.structs.replace(second, id="0" * 12, created_ms=first.created_ms)
    ring.add(second)
    now_ms = time.time() * 1000
    assert [(key.id, key.state(now_ms)) for key, _ in ring.all()] == [
        (first.id, "revoked"),
        (second.id, "active"),
    ]
    assert ring.any()


def test_keys_of_an_embedded_store_at_rest_and_running(tmp_path):
    data = ("--data-dir", str(tmp_path / "data"))
    made = moca("keys", "create", "ops", "--scope", "read", "--expires", "90d", *data, **os.environ)
    assert made.returncode == 0, made.stderr
    token = api_keys.parse_token(made.stdout.strip())
    assert "not shown again" in made.stderr
    store = Embedded(tmp_path / "data")
    store.start()
    try:
        with connect(store.url) as client:
            (blob,) = client.hvals(KEYS)
            assert token.secret.encode() not in blob
        # The server runs under another process: it is reached, and still there afterwards.
        made = moca("keys", "create", "two", "--scope", "write", *data, **os.environ)
        assert made.returncode == 0, made.stderr
        assert store.alive()
        listed = moca("keys", "list", *data, **os.environ).stdout
        assert listed.count(" active ") == 2
        assert moca("keys", "revoke", "two", *data, **os.environ).stdout.startswith("revoked two (")
        again = moca("keys", "revoke", "two", *data, **os.environ)
        assert (again.returncode, again.stdout) == (2, "")
        assert "no active key 'two'" in again.stderr
        with connect(store.url) as client:
            states = {key.name: key.state(time.time() * 1000) for key, _ in Keyring(client).all()}
        assert states == {"ops": "active", "two": "revoked"}
    finally:
        store.stop()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--scope", "reed"), "scopes: expected some of read, write, admin"),
        (("--scope", "read", "--rate", "fast"), "rate 'fast'"),
        (("--scope", "read", "--expires", "never"), "expires 'never'"),
        ((), "--scope"),
    ],
)
def test_wrong_wishes_are_refused_and_no_key_is_made(valkey_url, arguments, says):
    said = moca("keys", "create", "a", *arguments, "--redis-url", valkey_url, **os.environ)
    assert said.returncode == 2
    assert says in said.stderr
    with connect(valkey_url) as client:
        assert not Keyring(client).any()


@pytest.mark.parametrize("command", ["serve", "api"])
def test_listening_for_others_needs_keys_or_a_word(command, valkey_url):
    wanted = {**os.environ, "MOCA_REDIS_URL": valkey_url, "MOCA_HOST": "0.0.0.0", "MOCA_PORT": "0"}
    said = moca(command, **wanted)
    assert said.returncode == EXIT_REFUSED
    assert "--require-keys" in said.stderr
    assert "Traceback" not in said.stderr


def test_settings_that_exclude_each_other():
    said = moca("serve", "--open", "--require-keys", **os.environ)
    assert said.returncode == 2
    assert said.stderr.strip() == "moca: require_keys and open_access exclude each other"


def test_looking_makes_no_store(tmp_path):
    data = ["--data-dir", str(tmp_path / "typo")]
    for words in (["keys", "list"], ["keys", "revoke", "a"], ["backup", str(tmp_path / "b")]):
        said = moca(*words, *data, **os.environ)
        assert said.returncode == EXIT_REFUSED
        assert "set --data-dir to the folder of the store" in said.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("host", "own"),
    [
        (b"localhost", True), (b"127.0.0.1:8000", True), (b"[::1]:8000", True), (b"api:8000", True),
        (b"", True), (b"moca.localhost:80", True), (b"LOCALHOST.", True), (b"10.0.0.7", True),
        (b"evil.example", False), (b"evil.example:8000", False), (b"127.0.0.1.evil.example", False),
        (b"localhost.evil.example.", False), (b"u@evil.example", False), (b"[::1", False),
        (b"\xff.example", False), (b"0x7f.1", False), (b"evil.example/localhost", False),
    ],
)  # fmt: skip
def test_names_that_only_this_machine_has(host, own):
    assert is_own_name(host) is own
