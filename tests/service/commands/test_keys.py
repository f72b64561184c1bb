"""Keys: what one looks like, what is kept of it, who needs one; the commands that make them."""

import re
import time

import msgspec
import pytest

from service import api_keys
from service.problems import StartupError
from service.runtime.access_policy import is_loopback, is_own_name, keys_required
from service.runtime.embedded import Embedded
from service.runtime.process import EXIT_REFUSED
from service.settings import Settings
from service.store.api_keys import KEYS, Keyring
from service.store.connection import connect

DAY_MS = 86_400_000


def test_a_token_is_known_again_and_nowhere_stored():
    key, token = api_keys.create("a", ["write", "read"])
    assert re.fullmatch(r"moca_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", token)
    id_, secret = api_keys.parse_token(token)
    assert id_ == key.id
    assert key.matches(secret)
    assert not key.matches(secret[:-1] + ("A" if secret[-1] != "A" else "B"))
    assert secret.encode() not in msgspec.msgpack.encode(key)
    assert key.scopes == ("read", "write")
    other, _ = api_keys.create("a", ["read"])
    assert not other.matches(secret)
    start = "moca_0123456789ab_"
    for text in ("", "moca_", f"{start}short", start + "a" * 44, "x" * 10_000):
        assert api_keys.parse_token(text) is None


def test_times_and_rates():
    assert api_keys.parse_expiry("90d", 1000) == 1000 + 90 * DAY_MS
    assert api_keys.parse_expiry("1970-01-02", 0) == DAY_MS
    assert api_keys.parse_expiry("1970-01-02T01:00:00+01:00", 0) == DAY_MS
    for wrong in ("soon", "", "-1d", "5y", "1970-01-01"):
        with pytest.raises(ValueError, match="expires"):
            api_keys.parse_expiry(wrong, 1)
    for text, rate in (
        ("100/second", (100, 1)),
        ("5000 per 10 minutes", (5000, 600)),
        ("none", None),
    ):
        assert api_keys.parse_rate(text) == rate
    for wrong in ("", "fast", "0/second", "5/0 seconds", "1/second;5/minute", "-1/day"):
        with pytest.raises(ValueError, match="rate"):
            api_keys.parse_rate(wrong)
    expiring = msgspec.structs.replace(api_keys.create("a", ["read"])[0], expires_ms=1000)
    assert [expiring.state(now_ms) for now_ms in (999, 1000)] == ["active", "expired"]


def test_who_may_call_is_decided_at_the_start():
    here = ("127.0.0.1", "127.9.9.9", "::1", "localhost")
    for host in (*here, "0.0.0.0", "::", "", "10.0.0.1"):
        assert is_loopback(host) == (host in here)
        if host in here:
            assert not keys_required(Settings(host=host), any_keys=False)
        else:
            with pytest.raises(StartupError, match=r"--require-keys.*--open"):
                keys_required(Settings(host=host), any_keys=False)
        assert keys_required(Settings(host=host), any_keys=True)
        assert keys_required(Settings(host=host, require_keys=True), any_keys=False)
        assert not keys_required(Settings(host=host, open_access=True), any_keys=True)


def test_names_that_only_this_machine_has():
    own = [b"localhost", b"127.0.0.1:8000", b"[::1]:8000", b"api:8000", b"", b"moca.localhost:80"]
    for host in [*own, b"LOCALHOST.", b"10.0.0.7"]:
        assert is_own_name(host), host
    others = [b"evil.example", b"evil.example:8000", b"127.0.0.1.evil.example", b"u@evil.example"]
    others += [b"localhost.evil.example.", b"[::1", b"\xff.example", b"0x7f.1"]
    for host in [*others, b"evil.example/localhost"]:
        assert not is_own_name(host), host
    assert is_own_name(b"evil.example", frozenset({"evil.example"}))
    assert is_own_name(b"evil.example", frozenset({"*"}))


def test_names_are_unique_while_active(redis_client):
    ring = Keyring(redis_client)
    assert not ring.any()
    first, _ = api_keys.create("a", ["read"])
    ring.add(first)
    with pytest.raises(ValueError, match="'a'"):
        ring.add(api_keys.create("a", ["read"])[0])
    with pytest.raises(ValueError, match="'b'"):
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


def test_a_key_that_comes_meanwhile_is_seen(redis_client, redis_url, monkeypatch):
    """Two commands at once: the later one looks again, and refuses the name."""
    first, second = (api_keys.create("a", ["read"])[0] for _ in range(2))
    ring = Keyring(redis_client)
    read = redis_client.atomic
    late = iter([lambda: Keyring(other).add(first)])

    def before_it_writes(commands):
        answer = read(commands)
        next(late, lambda: None)()
        return answer

    with connect(redis_url) as other:
        monkeypatch.setattr(redis_client, "atomic", before_it_writes)
        with pytest.raises(ValueError, match="'a'"):
            ring.add(second)
    assert [key.id for key, _ in ring.all()] == [first.id]


def test_keys_of_an_embedded_store_at_rest_and_running(moca, tmp_path):
    data = ("--data-dir", tmp_path / "data")
    made = moca("keys", "create", "ops", "--scope", "read", "--expires", "90d", *data)
    assert made.exit_code == 0, made.output
    token = api_keys.parse_token(made.stdout.strip())
    assert "not shown again" in made.stderr
    assert "within its --key-cache-s, by default 5 s" in made.stderr
    store = Embedded(tmp_path / "data")
    store.start()
    try:
        with connect(store.url) as client:
            (blob,) = client.hvals(KEYS)
            assert token[1].encode() not in blob
        # The server runs under another process: it is reached, and still there afterwards.
        assert moca("keys", "create", "two", "--scope", "write", *data).exit_code == 0
        assert store.alive()
        assert moca("keys", "list", *data).stdout.count(" active ") == 2
        assert moca("keys", "revoke", "two", *data).stdout.startswith("revoked two (")
        again = moca("keys", "revoke", "two", *data)
        assert (again.exit_code, again.stdout) == (2, "")
        assert "'two'" in again.stderr
        with connect(store.url) as client:
            states = {key.name: key.state(time.time() * 1000) for key, _ in Keyring(client).all()}
        assert states == {"ops": "active", "two": "revoked"}
    finally:
        store.stop()


def test_wrong_wishes_are_refused_and_no_key_is_made(moca, valkey_url):
    for arguments, field in (
        (("--scope", "reed"), "scopes"),
        (("--scope", "read", "--rate", "fast"), "rate"),
        (("--scope", "read", "--expires", "never"), "expires"),
        ((), "--scope"),
    ):
        result = moca("keys", "create", "a", *arguments, "--redis-url", valkey_url)
        assert result.exit_code == 2
        assert field in result.stderr
    with connect(valkey_url) as client:
        assert not Keyring(client).any()


def test_listening_for_others_needs_keys_or_a_word(moca, valkey_url):
    wanted = {"MOCA_REDIS_URL": valkey_url, "MOCA_HOST": "0.0.0.0", "MOCA_PORT": "0"}
    for command in ("serve", "api"):
        result = moca(command, **wanted)
        assert result.exit_code == EXIT_REFUSED, result.output
    result = moca("serve", "--open", "--require-keys")
    assert result.exit_code == 2
    assert "open_access" in result.stderr


def test_looking_makes_no_store(moca, tmp_path):
    data = ["--data-dir", tmp_path / "typo"]
    for words in (["keys", "list"], ["keys", "revoke", "a"], ["backup", tmp_path / "b"]):
        result = moca(*words, *data)
        assert result.exit_code == EXIT_REFUSED
        assert "--data-dir" in result.stderr
    assert list(tmp_path.iterdir()) == []
