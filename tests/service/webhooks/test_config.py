"""The file of webhooks: secrets, credentials, bounds, which addresses may be called, bodies."""

import base64
import ipaddress
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pytest

from model_core.sentences import Explanation, Moments
from service.problems import StartupError
from service.settings import Settings
from service.webhooks.allowlist import Allowed, NotAllowed
from service.webhooks.config import Delivery, HookForm, webhooks_of
from service.webhooks.sender import Format, alert_body, headers_of, native_body
from service.wire import KnownRegime
from tests.service.webhooks.conftest import KEY, SECRET, notice, raised

HOOK = f"""
[[hook]]
name = "pager"
url = "https://hooks.example.org/a?token=t0ken"
secret = "{SECRET}"
"""
ADDED = {"summary", "link"}
DOCS = Path(__file__).parents[3] / "docs" / "events.md"
AT = 1_714_564_800_000  # 2024-05-01T12:00:00Z


@pytest.fixture
def read(tmp_path):
    """Read a file of webhooks."""

    def read(text, hosts="hooks.example.org", **environ):
        path = tmp_path / "hooks.toml"
        path.write_text(text)
        return webhooks_of(Settings(webhooks_file=path, webhook_hosts=hosts), environ)

    return read


@pytest.fixture
def refused(read):
    """Read a file that cannot be used; returns what is said of it, without any secret."""

    def refused(text, **environ):
        with pytest.raises(StartupError) as caught:
            read(text, **environ)
        for secret in (SECRET, "t0ken", "pa55w0rd"):
            assert secret not in str(caught.value), text
        return str(caught.value)

    return refused


# --- secrets ----------------------------------------------------------------------------------


def test_addresses_secrets_and_credentials_come_from_three_places(read, tmp_path):
    address = "https://hooks.example.org/t0ken"
    files = {"url": f"\ufeff {address}\r\n", "key": f"\ufeff{SECRET} \n\n", "pass": "pässw0rd\n"}
    for name, text in {**files, "token": " pa55-w0rd==\n"}.items():
        (tmp_path / name).write_text(text, "utf-8")
    environ = {"URL": address, "KEY": SECRET, "PASS": "pässw0rd", "TOKEN": "pa55-w0rd=="}
    ways = {
        "url": (f'url = " {address} "', 'url_env = "URL"', 'url_file = "url"'),
        "secret": (f'secret = " {SECRET} "', 'secret_env = "KEY"', 'secret_file = "key"'),
        "password": ('password = "pässw0rd"', 'password_env = "PASS"', 'password_file = "pass"'),
        "token": (
            'bearer_token = " pa55-w0rd== "',
            'bearer_token_env = "TOKEN"',
            'bearer_token_file = "token"',
        ),
    }
    for url, secret, password, token in zip(*ways.values(), strict=True):
        named = f'[[hook]]\nname = "pager"\n{url}\n{secret}\n'
        basic = f'{named}username = "moca"\n{password}\n'
        hooks = [read(text, **environ).hooks[0] for text in (named, basic, f"{named}{token}\n")]
        assert [hook.authorization for hook in hooks] == [
            "",
            "Basic bW9jYTpww6Rzc3cwcmQ=",
            "Bearer pa55-w0rd==",
        ]
        for hook in hooks:
            assert (hook.url, hook.secret) == (address, KEY)
            for secret in ("w0rd", "t0ken", "0001"):
                assert secret not in f"{hook!r} {hook}"
    assert hooks[0].wanted.states == {"confirmed"}
    assert hooks[0].wanted.kinds == {"change"}
    assert webhooks_of(Settings(), {}) == ([], Delivery())


def test_a_password_keeps_its_spaces(read, tmp_path):
    """Of a variable or a file one newline at the end is none of it, nor is the mark of a file."""
    (tmp_path / "pass").write_bytes(("\ufeff" + "\u3000pä ss \n").encode())
    (tmp_path / "crlf").write_bytes(" pä ss \r\n".encode())
    for line, password in (
        ('password = " pä ss\u00a0"', " pä ss\u00a0"),
        ('password_env = "PASS"', "pä  ss "),
        ('password_file = "pass"', "\u3000pä ss "),
        ('password_file = "crlf"', " pä ss "),
    ):
        text = f'{HOOK}username = "moca"\n{line}\n'
        (hook,) = read(text, PASS="pä  ss \r\n").hooks
        assert base64.b64decode(hook.authorization.split()[1]).decode() == f"moca:{password}"


def test_credentials_that_cannot_be_used_are_refused_by_name(refused):
    for lines, field in (
        ('username = "moca"', "username"),
        ('password = "pa55w0rd"', "password"),
        ('username = "moca"\npassword = ""', "password"),
        ('username = "a:b"\npassword = "pa55w0rd"', "username"),
        ('username = "moca"\npassword = "pa55w0rd\\n\\u0007x"', "password"),
        ('username = "moca"\npassword_env = "NONE"', "password_env"),
        ('username = "moca"\npassword = "pa55w0rd"\npassword_env = "A"', "password_env"),
        ('bearer_token = "pa55w0rd x"', "bearer_token"),
        ('bearer_token = ""', "bearer_token"),
        ('bearer_token = "a"\nusername = "pa55w0rd"', "bearer_token"),
        ("bearer_token = 55", "hook.0.bearer_token"),
    ):
        assert field in refused(f"{HOOK}{lines}\n"), lines


# --- the file ---------------------------------------------------------------------------------


def test_bounds_of_delivery_are_at_the_top_of_the_file(read, refused):
    defaults = {
        "attempts": 10,
        "timeout_s": 10.0,
        "backoff_s": 1.0,
        "backoff_max_s": 300.0,
        "in_flight": 8,
        "dead_letters": 1000,
    }
    assert read(HOOK).delivery.model_dump(include=set(defaults)) == defaults
    chosen = {name: value + 2 for name, value in defaults.items()}
    top = "".join(f"{name} = {int(value)}\n" for name, value in chosen.items())
    assert read(top + HOOK).delivery.model_dump(include=set(defaults)) == chosen
    wrong = ["attempts = 0", "attempts = 1.5", 'attempts = "3"', "timeout_s = 0", "in_flight = 0"]
    wrong += ["timeout_s = inf", "backoff_s = -1", "backoff_max_s = nan", "in_flight = true"]
    for line in [*wrong, "dead_letters = 0", "webhook_attempts = 3"]:
        assert f"hooks.toml: {line.split()[0]}: " in refused(f"{line}\n{HOOK}")
    below = refused(f"{HOOK}attempts = 3\n")
    assert "hook.0.attempts: unknown field; move it to the top of the file" in below


def test_a_file_that_cannot_be_used_is_refused_by_its_field(refused):
    for old, new, field in (
        ("https://hooks.example.org", "https://evil.org", "evil.org:443"),
        ("https://hooks", "http://hooks", "http://hooks.example.org:80"),
        ("https://hooks", "https://user:pw@hooks", "user info"),
        ("https://hooks.example.org", "ftp://hooks.example.org", "url"),
        ('name = "pager"\n', "", "hook.0.name"),
        ('name = "pager"', 'name = "a b"', "hook.0.name"),
        ("[[hook]]", "[[hook]]\nretries = 3", "hook.0.retries"),
        ("[[hook]]", '[[hook]]\nstates = ["new"]', "hook.0.states.0"),
        ("[[hook]]", '[[hook]]\nkinds = ["all"]', "hook.0.kinds.0"),
        ("[[hook]]", '[[hook]]\nsecret_env = "A"', "secret_env"),
        (SECRET, "short", "24 to 64 bytes, got 5"),
        (SECRET, "x" * 65, "got 65"),
        (SECRET, "whsec_!!", "base64"),
        (f'secret = "{SECRET}"', 'secret_env = "NONE"', "secret_env"),
        (f'secret = "{SECRET}"', 'secret_file = "none"', "secret_file"),
        ("[[hook]]", "[[hook", "invalid TOML"),
        ("[[hook]]", "[[hooks]]", "hooks"),
        ("[[hook]]", '[[hook]]\nurl_env = "A"', "url_env"),
        ("\n[[hook]]", 'console_url = "javascript:alert(1)"\n[[hook]]', "console_url"),
        ("[[hook]]", '[[hook]]\nmatch = ["{site"]', "selector"),
    ):
        assert field in refused(HOOK.replace(old, new)), (old, new)
    assert "'pager'" in refused(HOOK + HOOK)  # two of one name
    assert "hook.0.prefx: unknown field; did you mean 'prefix'?" in refused(HOOK + 'prefx = "a"')
    assert "hoook: unknown field; did you mean 'hook'?" in refused(HOOK.replace("hook]", "hoook]"))


# --- the list of hosts ------------------------------------------------------------------------


def test_which_addresses_the_list_allows():
    for hosts, url, allowed in (
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
    ):
        allowed_hosts = Allowed.parse(hosts)
        if allowed:
            allowed_hosts.check_url(url)
        else:
            with pytest.raises(NotAllowed):
                allowed_hosts.check_url(url)
    for hosts in ("*", "a.*.com", "ftp://a.com", "a.com/path", "u@a.com", "a:b"):
        with pytest.raises(StartupError, match="webhook-hosts"):
            Allowed.parse(hosts)


PRIVATE = [
    *("127.0.0.1", "10.0.0.1", "169.254.169.254", "fd00::1", "100.64.0.1", "0.0.0.0", "fec0::1"),
    *("192.88.99.1", "5f00::1", "3fff::1", "100:0:0:1::1", "::1", "224.0.0.1"),
    # The same in other words: mapped, translated, of 6to4.
    *("::ffff:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::", "::7f00:1"),
    "::ffff:0:7f00:1",
]
PUBLIC = ["8.8.8.8", "64:ff9b::808:808", "2002:808:808::", "2606:4700::1111", "::ffff:8.8.8.8"]


def test_private_addresses_have_to_be_listed_themselves():
    names = "*.corp, http://*.corp"
    for address in map(ipaddress.ip_address, PRIVATE):
        listed = f"http://[{address}]" if address.version == 6 else f"http://{address}"
        assert not Allowed.parse(names).lets(address, "http", 80), address
        assert Allowed.parse(f"{names},{listed}").lets(address, "http", 80), address
    for address in map(ipaddress.ip_address, PUBLIC):
        assert Allowed.parse(names).lets(address, "https", 443), address
    mapped = ipaddress.ip_address("::ffff:10.0.0.1")
    assert Allowed.parse(f"{names},10.0.0.0/24").lets(mapped, "https", 443)


def test_a_private_address_is_listed_for_its_scheme_and_port():
    """Also where a name, allowed by another rule, resolves to it."""
    for hosts, scheme, port, allowed in (
        ("http://10.0.0.1:8080", "http", 8080, True),
        ("http://10.0.0.1:8080", "http", 6379, False),
        ("http://10.0.0.1:8080", "https", 8080, False),
        ("10.0.0.0/8", "https", 8443, True),
        ("10.0.0.0/8", "http", 80, False),
        ("http://10.0.0.0/8", "http", 80, True),
    ):
        rules = Allowed.parse(f"*.corp, http://*.corp, {hosts}")
        assert rules.lets(ipaddress.ip_address("10.0.0.1"), scheme, port) == allowed, hosts


async def test_a_listed_name_at_a_private_address_or_none_is_not_called():
    with ThreadPoolExecutor() as resolvers:
        with pytest.raises(NotAllowed):
            await Allowed.parse("http://localhost").resolve("http://localhost:9/", resolvers)
        allowed = Allowed.parse("http://localhost,http://127.0.0.1,http://[::1]")
        host, address, port = await allowed.resolve("http://localhost:9/", resolvers)
        assert (host, port) == ("localhost", 9)
        assert ipaddress.ip_address(address).is_loopback
        for url in ("https://a..example.org/", f"https://{'a' * 64}.example.org/"):
            with pytest.raises(NotAllowed):
                await Allowed.parse("*.example.org").resolve(url, resolvers)


# --- bodies -----------------------------------------------------------------------------------


def test_our_own_body_has_what_changed_in_words():
    told = {"before": Moments(200, 10.0, 1.0), "explanation": Explanation("mean fell", "mean")}
    event = raised(direction="down", size=-3.96, at_ms=AT, start_ms=AT, evidence=12_345.0, **told)
    message = json.loads(native_body(notice(event=event, link="https://c/#/a")))
    assert message["type"] == "changepoint.confirmed"
    assert message["timestamp"] == message["data"]["at"] == "2024-05-01T12:00:00.000+00:00"
    data = message["data"]
    assert set(data) == {*("stream", "model", "event", "time", "at"), *ADDED}
    assert data["summary"] == "pump-7: mean fell"
    assert data["event"]["before"] == {"count": 200, "mean": 10.0, "sd": 1.0}
    assert (data["event"]["start_time"], data["event"]["start_arrived"]) == (data["at"], True)
    assert data["link"] == "https://c/#/a"
    assert notice(event=raised(state="withdrawn", direction="up")).line == (
        "pump-7: withdrawn: up so far"
    )
    interval = raised(earliest=37, latest=40, start_time="noon")
    assert notice(event=interval).details == "since observation 39 (37 to 40), noon"


def test_alerts_of_alertmanager(read):
    (hook,) = read(
        '[[hook]]\nname = "a"\nurl = "https://hooks.example.org/"\nformat = "alertmanager"\n'
    ).hooks
    tags = {"site": "north", "alertname": "Other"}
    first, last = (
        json.loads(alert_body(notice(event=event, link="https://c/1"), AT + 60_000, 600))[0]
        for event in (
            raised(tags=tags, size=-3.96, direction="down", at_ms=AT),
            raised(tags=tags, state="withdrawn", at_ms=AT),
        )
    )
    assert first["labels"] == {
        "alertname": "MocaChange",
        "stream": "pump-7",
        "model": "gaussian",
        "generation": "2",
        "event": "3",
        "site": "north",
        "exported_alertname": "Other",
    }
    assert first["annotations"]["link"] == first["generatorURL"] == "https://c/1"
    assert first["annotations"]["summary"] == "pump-7: down by 4.0 sd so far"
    assert first["annotations"]["description"] == "since observation 39"
    assert first["startsAt"] == "2024-05-01T12:00:00.000+00:00"
    assert first["endsAt"] == "2024-05-01T12:11:00.000+00:00"
    assert last["labels"] == first["labels"]
    assert (last["endsAt"], "startsAt" in last) == ("2024-05-01T12:00:00.000+00:00", False)
    assert hook.wanted.states == {"confirmed", "withdrawn"}
    assert hook.wants(raised(state="withdrawn"))
    assert not hook.wants(raised(state="withdrawn", confirmed_at=None))
    assert "webhook-signature" not in headers_of(hook.secret, "evt_1", 1, b"{}")


def test_returns_are_delivered_to_hooks_that_name_them(read):
    text = '[[hook]]\nname = "a"\nurl = "https://hooks.example.org/"\nformat = "alertmanager"\n'
    (usual,) = read(text).hooks
    (named,) = read(text + 'kinds = ["change", "returned"]\n').hooks
    back = raised(returned=KnownRegime("night shift", 0.9, 3, 2, 30))
    assert [hook.wants(raised()) for hook in (usual, named)] == [True, True]
    assert [hook.wants(back) for hook in (usual, named)] == [False, True]
    assert notice(event=back).line == (
        "pump-7: returned to regime 3 (night shift), last seen at 30: changed"
    )


def test_apprise_targets_are_read_from_their_url_alone(read, refused):
    text = '[[hook]]\nname = "a"\nformat = "apprise"\nurl = "{}"\n'
    slack = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#general"
    assert read(text.format(slack)).hooks[0].wanted.states == {"confirmed"}
    for wrong in ("nothing://t0ken", "https://hooks.example.org/t0ken", ""):
        assert "Apprise URL" in refused(text.format(wrong)), wrong
    for line in (f'secret = "{SECRET}"', 'bearer_token = "pa55w0rd"'):
        assert "beside an Apprise URL" in refused(text.format(slack) + line + "\n")


def test_apprise_names_its_extra_where_it_is_not_installed(monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "apprise", None)
    text = '[[hook]]\nname = "a"\nformat = "apprise"\nurl = "slack://A/B/C"\n'
    assert "pip install 'moca-service[notify]'" in refused(text)


def test_the_documents_show_what_works(tmp_path):
    page = DOCS.read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names_of_page = {}
    exec(code, names_of_page)  # what readers copy
    headers = headers_of(KEY, "evt_1", 1_700_000_000, b"{}")
    assert names_of_page["genuine"](headers, b"{}", SECRET)
    assert not names_of_page["genuine"](headers, b"{ }", SECRET)
    assert not names_of_page["genuine"]({**headers, "webhook-id": "evt_2"}, b"{}", SECRET)
    path = tmp_path / "hooks.toml"
    environ = {
        "PAGER_SECRET": SECRET,
        "SLACK_URL": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
        "PAGERDUTY_URL": "pagerduty://A1BRTD4JD@TIiajkdnlazkcOXrIdevi7FQ",
    }
    (tmp_path / "alertmanager.password").write_text("pass")
    hosts = "*.example.org, http://alertmanager:9093"
    hooks = []
    for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL):
        path.write_text(text)
        hooks += webhooks_of(Settings(webhooks_file=path, webhook_hosts=hosts), environ).hooks
    assert {each.format for each in hooks} == set(get_args(Format))
    names = [*HookForm.model_fields, *Delivery.model_fields, "console_url", *ADDED]
    assert [name for name in names if f"`{name}`" not in page] == []
