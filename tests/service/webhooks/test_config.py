"""What may be called: the file of webhooks, secrets, the list of hosts."""

import base64
import ipaddress
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.errors.base import StartupError
from service.settings import Settings
from service.webhooks.allowlist import Allowed, NotAllowed
from service.webhooks.config import Delivery, webhooks_of
from service.webhooks.sender import headers_of

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
HOOK = f"""
[[hook]]
name = "pager"
url = "https://hooks.example.org/a?token=t0ken"
secret = "{SECRET}"
"""


@pytest.fixture
def read(tmp_path):
    """Read a file of webhooks."""

    def read(text, hosts="hooks.example.org", **environ):
        path = tmp_path / "hooks.toml"
        path.write_text(text)
        return webhooks_of(Settings(webhooks_file=path, webhook_hosts=hosts), environ)

    return read


def test_secrets_come_from_three_places(read, tmp_path):
    (tmp_path / "key").write_text(SECRET + "\n")
    plain = HOOK.replace(f'secret = "{SECRET}"', "{}")
    (given,) = read(HOOK).hooks
    (from_file,) = read(plain.format('secret_file = "key"')).hooks
    (from_env,) = read(plain.format('secret_env = "PAGER"'), PAGER=SECRET).hooks
    assert given.secret == from_file.secret == from_env.secret == KEY
    assert given.wanted.states == {"confirmed"}
    assert given.wanted.kinds == {"change"}
    assert "0001" not in repr(given)
    assert "token" not in repr(given)
    assert webhooks_of(Settings(), {}) == ([], Delivery())


@pytest.mark.parametrize(
    ("lines", "header"),
    [
        ('username = "moca"\npassword = "pässw0rd"', "Basic bW9jYTpww6Rzc3cwcmQ="),
        ('username = "moca"\npassword_env = "PASS"', "Basic bW9jYTpww6Rzc3cwcmQ="),
        ('username = "moca"\npassword_file = "pass"', "Basic bW9jYTpww6Rzc3cwcmQ="),
        ('bearer_token = "pa55-w0rd=="', "Bearer pa55-w0rd=="),
        ('bearer_token_env = "TOKEN"', "Bearer pa55-w0rd=="),
        ('bearer_token_file = "token"', "Bearer pa55-w0rd=="),
    ],
)
def test_credentials_come_from_three_places(read, tmp_path, lines, header):
    (tmp_path / "pass").write_text("pässw0rd\n")
    (tmp_path / "token").write_text("pa55-w0rd==\n")
    (hook,) = read(f"{HOOK}{lines}\n", PASS="pässw0rd", TOKEN="pa55-w0rd==").hooks
    assert hook.authorization == header
    assert "w0rd" not in repr(hook)
    assert header.split()[1] not in f"{hook}"
    (plain,) = read(HOOK).hooks
    assert plain.authorization == ""


@pytest.mark.parametrize(
    ("line", "password"),
    [
        ('password = " pä ss\u00a0"', " pä ss\u00a0"),
        ('password_env = "PASS"', "pä  ss "),
        ('password_file = "pass"', "\u3000pä ss "),
        ('password_file = "crlf"', " pä ss "),
    ],
)
def test_a_password_keeps_its_spaces(read, tmp_path, line, password):
    """Of a variable or a file one newline at the end is none of it, nor is the mark of a file."""
    (tmp_path / "pass").write_bytes(("\ufeff" + "\u3000pä ss \n").encode())
    (tmp_path / "crlf").write_bytes(" pä ss \r\n".encode())
    (hook,) = read(f'{HOOK}username = "moca"\n{line}\n', PASS=password + "\r\n").hooks
    assert base64.b64decode(hook.authorization.split()[1]).decode() == f"moca:{password}"


def test_spaces_around_an_address_a_secret_or_a_token_are_no_part_of_them(read, tmp_path):
    address = "https://hooks.example.org/a"
    (tmp_path / "url").write_text(f"\ufeff {address}\r\n\n", "utf-8")
    (tmp_path / "key").write_text(f"\ufeff{SECRET} \n\n", "utf-8")
    (tmp_path / "token").write_text(" pa55-w0rd\n\n")
    files = 'url_file = "url"\nsecret_file = "key"\nbearer_token_file = "token"\n'
    inline = f'url = " {address} "\nsecret = " {SECRET} "\nbearer_token = " pa55-w0rd "\n'
    for lines in (files, inline):
        (hook,) = read(f'[[hook]]\nname = "pager"\n{lines}').hooks
        assert (hook.url, hook.secret) == (address, KEY)
        assert hook.authorization == "Bearer pa55-w0rd"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('username = "moca"', "expected username and password together"),
        ('password = "pa55w0rd"', "expected username and password together"),
        ('username = "moca"\npassword = ""', "expected username and password together"),
        ('username = "a:b"\npassword = "pa55w0rd"', "no colon in the username"),
        ('username = "moca"\npassword = "pa55w0rd\\n\\u0007x"', "no control characters"),
        ('username = "moca"\npassword_env = "NONE"', "password_env: the variable NONE is not set"),
        ('password = "pa55w0rd"\npassword_env = "A"', "one of password, password_env and"),
        ('bearer_token = "pa55w0rd x"', "bearer_token: expected letters"),
        ('bearer_token = ""', "bearer_token: expected letters"),
        ('bearer_token = "a"\nusername = "pa55w0rd"', "bearer_token, or username and password"),
        ("bearer_token = 55", "hook.0.bearer_token: Input should be a valid string"),
    ],
)
def test_credentials_that_cannot_be_used_are_refused_without_them(read, lines, said):
    with pytest.raises(StartupError) as refused:
        read(f"{HOOK}{lines}\n")
    assert said in str(refused.value)
    assert "pa55w0rd" not in str(refused.value)


def test_bounds_of_delivery_are_at_the_top_of_the_file(read):
    defaults = {
        "attempts": 10,
        "timeout_s": 10.0,
        "backoff_s": 1.0,
        "backoff_max_s": 300.0,
        "in_flight": 8,
        "dead_letters": 1000,
        "dead_letter_bytes": 16777216,
    }
    bounds = read(HOOK).delivery
    assert {name: getattr(bounds, name) for name in defaults} == defaults
    assert {name: getattr(Delivery(), name) for name in defaults} == defaults
    chosen = {name: value + 2 for name, value in defaults.items()}
    top = "".join(f"{name} = {int(value)}\n" for name, value in chosen.items())
    bounds = read(top + HOOK).delivery
    assert {name: getattr(bounds, name) for name in chosen} == chosen


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("attempts = 0", "attempts: Input should be greater than or equal to 1, got 0"),
        ("attempts = 1.5", "attempts: Input should be a valid integer, got 1.5"),
        ('attempts = "3"', "attempts: Input should be a valid integer, got str"),
        ("timeout_s = 0", "timeout_s: Input should be greater than 0, got 0"),
        ("timeout_s = inf", "timeout_s: Input should be a finite number, got inf"),
        ("backoff_s = -1", "backoff_s: Input should be greater than 0, got -1"),
        ("backoff_max_s = nan", "backoff_max_s: Input should be a finite number, got nan"),
        ("in_flight = true", "in_flight: Input should be a valid integer, got True"),
        (
            "dead_letter_bytes = 0",
            "dead_letter_bytes: Input should be greater than or equal to 1, got 0",
        ),
        ("dead_letters = 0", "dead_letters: Input should be greater than or equal to 1, got 0"),
        ("webhook_attempts = 3", "webhook_attempts: Extra inputs"),
    ],
)
def test_bounds_of_delivery_that_cannot_be_used_are_refused(read, line, said):
    with pytest.raises(StartupError, match=r"hooks\.toml: ") as refused:
        read(f"{line}\n{HOOK}")
    assert said in str(refused.value)


def test_bounds_of_delivery_below_a_hook_are_refused_with_their_place(read):
    with pytest.raises(StartupError, match=r"hook\.0\.attempts: .* the top of the file"):
        read(HOOK + "attempts = 3\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("https://hooks.example.org", "https://evil.org"),
            "evil.org:443 is not on",
        ),
        (("https://hooks", "http://hooks"), "http://hooks.example.org:80 is not on the allowlist"),
        (("https://hooks", "https://user:pw@hooks"), "without user info"),
        (("https://hooks.example.org", "ftp://hooks.example.org"), "expected a url"),
        (('name = "pager"\n', ""), "hook.0.name: Field required"),
        (('name = "pager"', 'name = "a b"'), "hook.0.name"),
        (("[[hook]]", "[[hook]]\nretries = 3"), "hook.0.retries: Extra inputs"),
        (("[[hook]]", '[[hook]]\nstates = ["new"]'), "hook.0.states.0"),
        (("[[hook]]", '[[hook]]\nkinds = ["all"]'), "hook.0.kinds.0"),
        (("[[hook]]", '[[hook]]\nsecret_env = "A"'), "one of secret, secret_env and secret_file"),
        ((SECRET, "short"), "expected a secret of 24 to 64 bytes, got 5"),
        ((SECRET, "whsec_!!"), "not base64"),
        (
            (f'secret = "{SECRET}"', 'secret_env = "NONE"'),
            "secret_env: the variable NONE is not set",
        ),
        ((f'secret = "{SECRET}"', 'secret_file = "none"'), "cannot read secret_file"),
        (("[[hook]]", "[[hook"), "invalid TOML"),
        (("[[hook]]", "[[hooks]]"), "hooks: Extra inputs"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(read, change, said):
    with pytest.raises(StartupError) as refused:
        read(HOOK.replace(*change))
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)
    assert "t0ken" not in str(refused.value)


def test_two_hooks_of_one_name_are_refused(read):
    with pytest.raises(StartupError, match="duplicate hook name 'pager'"):
        read(HOOK + HOOK)


@pytest.mark.parametrize(
    ("hosts", "url", "allowed"),
    [
        ("", "https://a.example.com/", False),
        ("a.example.com", "https://a.example.com/x", True),
        ("a.example.com", "https://A.Example.com:8443/x", True),
        ("a.example.com", "http://a.example.com/x", False),
        ("a.example.com:443", "https://a.example.com:8443/x", False),
        ("http://a.example.com", "http://a.example.com/x", True),
        ("http://a.example.com", "https://a.example.com/x", False),
        ("*.example.com", "https://a.b.example.com/x", True),
        ("*.example.com", "https://example.com/x", False),
        ("*.example.com", "https://badexample.com/x", False),
        ("b.org, http://127.0.0.1:9", "http://127.0.0.1:9/", True),
        ("http://127.0.0.1:9", "http://127.0.0.1:10/", False),
        ("http://10.0.0.0/8", "http://10.3.4.5:80/", True),
        ("http://10.0.0.0/8", "http://11.3.4.5:80/", False),
        ("http://[::1]:80", "http://[::1]/", True),
        ("*.0.0.1", "https://127.0.0.1/", False),
    ],
)
def test_the_list_of_hosts(hosts, url, allowed):
    found = Allowed.parse(hosts)
    if allowed:
        found.check_url(url)
    else:
        with pytest.raises(NotAllowed, match="webhook-hosts"):
            found.check_url(url)


@pytest.mark.parametrize("hosts", ["*", "a.*.com", "ftp://a.com", "a.com/path", "u@a.com", "a:b"])
def test_a_malformed_list_is_refused(hosts):
    with pytest.raises(StartupError, match="webhook-hosts"):
        Allowed.parse(hosts)


@pytest.mark.parametrize(
    ("address", "hosts", "allowed"),
    [
        ("127.0.0.1", "localhost", False),
        ("::ffff:127.0.0.1", "localhost", False),
        ("10.0.0.1", "*.corp", False),
        ("169.254.169.254", "*.corp", False),
        ("fd00::1", "*.corp", False),
        ("100.64.0.1", "*.corp", False),
        ("0.0.0.0", "*.corp", False),
        ("192.88.99.1", "*.corp", False),
        ("5f00::1", "*.corp", False),
        ("3fff::1", "*.corp", False),
        ("100:0:0:1::1", "*.corp", False),
        ("192.88.99.1", "*.corp,192.88.99.0/24", True),
        ("10.0.0.1", "*.corp,10.0.0.0/24", True),
        ("::ffff:10.0.0.1", "*.corp,10.0.0.0/24", True),
        ("8.8.8.8", "*.corp", True),
    ],
)
def test_private_addresses_have_to_be_listed_themselves(address, hosts, allowed):
    assert Allowed.parse(hosts).lets(ipaddress.ip_address(address), "https", 443) == allowed


@pytest.mark.parametrize(
    ("hosts", "scheme", "port", "allowed"),
    [
        ("http://10.0.0.1:8080", "http", 8080, True),
        ("http://10.0.0.1:8080", "http", 6379, False),
        ("http://10.0.0.1:8080", "https", 8080, False),
        ("10.0.0.0/8", "https", 8443, True),
        ("10.0.0.0/8", "http", 80, False),
        ("http://10.0.0.0/8", "http", 80, True),
    ],
)
def test_a_private_address_is_listed_for_its_scheme_and_port(hosts, scheme, port, allowed):
    """Also where a name, allowed by another rule, resolves to it."""
    rules = Allowed.parse(f"*.corp, http://*.corp, {hosts}")
    assert rules.lets(ipaddress.ip_address("10.0.0.1"), scheme, port) == allowed


async def test_a_listed_name_at_a_private_address_is_not_called():
    with ThreadPoolExecutor() as resolvers:
        with pytest.raises(NotAllowed, match="which is not public"):
            await Allowed.parse("http://localhost").resolve("http://localhost:9/", resolvers)
        allowed = Allowed.parse("http://localhost,http://127.0.0.1,http://[::1]")
        host, address, port = await allowed.resolve("http://localhost:9/", resolvers)
        assert (host, port) == ("localhost", 9)
        assert ipaddress.ip_address(address).is_loopback


def test_the_check_in_the_documents_accepts_what_is_sent_and_nothing_else():
    page = (Path(__file__).parents[3] / "docs" / "events.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found = {}
    exec(code, found)  # what readers copy
    headers = headers_of(KEY, "evt_1", 1_700_000_000, b"{}")
    assert found["genuine"](headers, b"{}", SECRET)
    assert not found["genuine"](headers, b"{ }", SECRET)
    assert not found["genuine"]({**headers, "webhook-id": "evt_2"}, b"{}", SECRET)
