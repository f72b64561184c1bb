"""What receivers get: bodies of each format, templates, and which events are for a hook."""

import base64
import json
import re
from pathlib import Path
from typing import get_args
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from service.errors.base import StartupError
from service.settings import Settings
from service.webhooks import formats
from service.webhooks.config import HookForm, webhooks_of
from service.webhooks.formats import body_of
from service.webhooks.groups import MAX_GROUP, Grouping, Groups
from service.webhooks.sender import headers_of
from service.webhooks.template import MAX_PLACEHOLDERS, MAX_TEMPLATE, Template
from service.wire import Event, tags
from service.wire.event_entries import Raised

KEY = "R0UT1NGKEY" * 3
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
AT = 1_714_564_800_000  # 2024-05-01T12:00:00Z
NOW = AT + 60_000
ODD = 'a"b\\c<&>\n${stream}\u2028é'  # a value that could break out of a body


def raised(stream="pump-7", state="confirmed", tags=None, number=3, **more):
    event = {"confirmed_at": 41, "probability": 0.5625, "direction": "down", "size": -3.96, **more}
    event = Event(number, state, 39, 41, **event)
    return Raised(stream, "gaussian@1", 2, event, None, AT, tags or {})


@pytest.fixture
def hook(tmp_path):
    """Read a hook of a format, with other lines of its own."""

    def hook(format_, *lines, top='console_url = "https://moca.example.org/ui/"', **environ):
        own = [f"format = {json.dumps(format_)}", *lines]
        if format_ in ("native", "pagerduty") and not any("secret" in line for line in lines):
            own.append(f'secret = "{KEY}"')
        head = [top, "[[hook]]", 'name = "a"', 'url = "https://hooks.example.org/t0ken"']
        path = tmp_path / "hooks.toml"
        path.write_text("\n".join([*head, *own, ""]))
        settings = Settings(webhooks_file=path, webhook_hosts="hooks.example.org")
        (found,) = webhooks_of(settings, environ).hooks
        return found

    return hook


def said(hook, *events):
    numbered = [(f"evt_0_{i}-0", each) for i, each in enumerate(events)]
    return json.loads(body_of(hook, numbered, NOW))


def test_an_alert_fires_at_the_change_and_ends_by_itself(hook):
    (alert,) = said(hook("alertmanager", "resolve_s = 600"), raised(tags={"site": "north"}))
    assert alert == {
        "labels": {
            "alertname": "MocaChange",
            "stream": "pump-7",
            "model": "gaussian@1",
            "generation": "2",
            "event": "3",
            "site": "north",
        },
        "annotations": {
            "summary": "Change confirmed: pump-7 down by 3.96 sd, probability 0.562",
            "probability": "0.5625",
            "direction": "down",
            "size": "-3.96",
            "link": "https://moca.example.org/ui/#/streams/pump-7?at=39",
        },
        "generatorURL": "https://moca.example.org/ui/#/streams/pump-7?at=39",
        "startsAt": "2024-05-01T12:00:00.000+00:00",
        "endsAt": "2024-05-01T12:11:00.000+00:00",
    }


def test_a_withdrawal_ends_the_alert_of_the_same_labels(hook):
    tags = {"site": "north", "stream_": "x"}
    first, last = said(
        hook("alertmanager"), raised(tags=tags), raised(state="withdrawn", tags=tags)
    )
    assert first["labels"] == last["labels"]
    assert last["endsAt"] == "2024-05-01T12:00:00.000+00:00"
    assert "startsAt" not in last  # Alertmanager takes the end, and keeps the start it knows


def test_tags_never_replace_the_labels_of_an_alert(hook):
    tags = {"alertname": "Other", "model": "m", "event": "e", "__name__": "node_load1"}
    (alert,) = said(hook("alertmanager"), raised(tags=tags))
    labels = alert["labels"]
    assert (labels["alertname"], labels["model"], labels["event"]) == (
        "MocaChange",
        "gaussian@1",
        "3",
    )
    assert labels["exported_alertname"] == "Other"
    assert labels["exported_event"] == "e"
    assert labels["metric"] == "node_load1"
    (anomaly,) = said(hook("alertmanager"), raised(kind="anomaly"))
    assert anomaly["labels"]["alertname"] == "MocaAnomaly"


def test_labels_of_an_alert_are_all_there_whatever_the_order_of_tags(hook):
    tags = {"model": "a", "exported_model": "b", "metric": "c", "__name__": "d", "generation": "e"}
    backwards = dict(reversed(tags.items()))
    (one,), (other,) = (said(hook("alertmanager"), raised(tags=each)) for each in (tags, backwards))
    assert one["labels"] == other["labels"]
    assert {*tags.values(), "gaussian@1", "2"} <= set(one["labels"].values())


def test_a_stream_that_is_made_anew_has_alerts_of_its_own(hook):
    again = replace(raised(), generation=3)
    first, second = said(hook("alertmanager"), raised(), again)
    assert first["labels"] != second["labels"]


def test_receivers_with_alarms_hear_of_withdrawals_of_what_they_know(hook):
    known = raised(state="withdrawn")
    unknown = raised(state="withdrawn", confirmed_at=None)
    for format_ in ("alertmanager", "pagerduty"):
        plain = hook(format_)
        assert plain.wanted.states == {"confirmed", "withdrawn"}
        assert (plain.wants(known), plain.wants(unknown)) == (True, False)
        assert hook(format_, 'states = ["suspected", "withdrawn"]').wants(unknown)
        assert not hook(format_, 'states = ["confirmed"]').wants(known)
    assert hook("slack").wanted.states == {"confirmed"}
    assert hook("slack", 'states = ["withdrawn"]').wants(unknown)


def test_slack_has_text_and_blocks_with_what_it_reads_as_markup_escaped(hook):
    message = said(hook("slack"), raised("a<b>&c"))
    text = "Change confirmed: a&lt;b&gt;&amp;c down by 3.96 sd, probability 0.562"
    link = "https://moca.example.org/ui/#/streams/a%3Cb%3E%26c?at=39"
    section = {"type": "section", "text": {"type": "mrkdwn", "text": f"{text} <{link}|console>"}}
    assert message == {"text": text, "blocks": [section]}
    (block,) = said(hook("slack", top=""), raised())["blocks"]
    assert "console" not in block["text"]["text"]  # its address is not known


def test_a_group_in_slack_has_a_count_and_the_first_ten(hook):
    message = said(hook("slack"), *[raised(f"s{i}") for i in range(23)])
    assert message["text"] == "23 events"
    texts = [block["text"]["text"] for block in message["blocks"]]
    assert texts[0] == "*23 events*"
    assert [re.search(r"s\d+", text)[0] for text in texts[1:-1]] == [f"s{i}" for i in range(10)]
    assert texts[-1] == "and 13 more"
    whole = said(hook("slack"), *[raised(f"s{i}") for i in range(10)])
    assert len(whole["blocks"]) == 11


def test_pagerduty_triggers_and_resolves_by_one_key(hook):
    pager = hook("pagerduty", 'severity = "critical"')
    trigger, resolve = said(pager, raised()), said(pager, raised(state="withdrawn"))
    assert (trigger["event_action"], resolve["event_action"]) == ("trigger", "resolve")
    assert trigger["dedup_key"] == resolve["dedup_key"] == "pump-7/2/change/3"
    assert trigger["routing_key"] == KEY
    assert trigger["payload"]["severity"] == "critical"
    assert trigger["payload"]["source"] == "pump-7"
    assert trigger["payload"]["custom_details"]["size"] == -3.96
    assert trigger["links"][0]["href"].endswith("#/streams/pump-7?at=39")
    long = [said(pager, raised("s" * 250 + end))["dedup_key"] for end in "ab"]
    assert len(set(long)) == 2
    assert max(map(len, long)) <= 255
    others = [raised(number=4), raised(kind="anomaly"), raised("pump-8")]
    keys = {said(pager, each)["dedup_key"] for each in [raised(), *others]}
    assert len(keys) == 4


def test_a_routing_key_is_for_pagerduty_alone(hook):
    pager = hook("pagerduty", 'secret_env = "PAGER"', PAGER=f"{KEY}\n")
    assert said(pager, raised())["routing_key"] == KEY
    assert KEY not in repr(pager)
    headers = headers_of(pager.signing, "evt_1", 1, b"{}")
    assert "webhook-signature" not in headers
    assert KEY not in str(headers)
    with pytest.raises(StartupError, match="expected a routing key") as refused:
        hook("pagerduty", 'secret = "no key at all, k3y"')
    assert "k3y" not in str(refused.value)
    with pytest.raises(StartupError, match="expected one of secret"):
        hook("pagerduty", "# no secret")


def test_other_formats_are_signed_only_with_a_secret(hook):
    assert "webhook-signature" not in headers_of(hook("slack").signing, "evt_1", 1, b"{}")
    signed = hook("slack", f'secret = "{SECRET}"')
    assert "webhook-signature" in headers_of(signed.signing, "evt_1", 1, b"{}")


def test_a_template_is_filled_with_values_that_stay_values(hook):
    text = """{"title": "${stream} is ${state}: ${size}", "n": "${id}", "size": "${size}",
        "site": "${tags.site}", "none": "${tags.other}", "fixed": [1, null, "$5 {x}"],
        "when": "${confirmed_at}", "direction": "${direction}", "link": "${link}"}"""
    plain = hook("template", f"template = '''{text}'''")
    tags = {"site": ODD}
    assert said(plain, raised(ODD, tags=tags, direction=None, confirmed_at=None)) == {
        "title": f"{ODD} is confirmed: -3.96",
        "n": 3,
        "size": -3.96,
        "site": ODD,  # a placeholder within a value is left alone
        "none": "",
        "fixed": [1, None, "$5 {x}"],
        "when": None,
        "direction": None,
        "link": f"https://moca.example.org/ui/#/streams/{quote(ODD, safe='')}?at=39",
    }


def test_a_template_of_a_group_has_a_count_and_the_first_ten(hook):
    text = '{"n": "${count}", "text": "${summary}", "all": "${events}", "first": "${stream}"}'
    found = said(hook("template", f"template = '{text}'"), *[raised(f"s{i}") for i in range(12)])
    assert (found["n"], found["first"]) == (12, "s0")
    assert found["text"].startswith("12 events: Change confirmed: s0")
    assert [each["stream"] for each in found["all"]] == [f"s{i}" for i in range(10)]
    assert set(found["all"][0]) == set(formats.FIELDS)


@pytest.mark.parametrize("name", sorted(formats.NAMES))
def test_each_field_of_a_template_is_there(hook, name):
    text = json.dumps({"value": f"${{{name}}}", "text": f"it: ${{{name}}}"})
    found = said(hook("template", f"template = '{text}'"), raised(time="2024-05-01T12:00:00Z"))
    assert set(found) == {"value", "text"}
    assert found["text"].startswith("it: ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "expected JSON"),
        ('{"a": "${streams}"}', "unknown field 'streams' of a placeholder, expected at, "),
        ('{"a": "${stream.__class__}"}', "unknown field"),
        ('{"a": "${tags.a b}"}', "unknown field"),
        ('{"a": "${}"}', "unknown field"),
        ('{"${stream}": 1}', "in the name of a member"),
        ("[" * 5000 + "]" * 5000, "expected JSON"),
        (json.dumps("a" * MAX_TEMPLATE), "at most 10000 characters"),
        (json.dumps("${id}" * (MAX_PLACEHOLDERS + 1)), "at most 100 placeholders"),
    ],
)
def test_templates_that_cannot_be_used_are_refused(text, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        Template.parse(text, formats.NAMES)


@pytest.mark.parametrize(
    ("format_", "lines", "reason"),
    [
        ("template", [], 'expected template and format = "template" together'),
        ("slack", ["template = '{}'"], 'expected template and format = "template" together'),
        ("template", ["template = '{'"], "template: expected JSON"),
        ("native", ["group_seconds = 5"], "expected a format that holds several events"),
        ("pagerduty", ["group_seconds = 5"], "expected a format that holds several events"),
        ("slack", ["group_seconds = 301"], "hook.0.group_seconds"),
        ("slack", ['group_by = ["site"]'], "group_by: expected group_seconds beside it"),
        ("slack", ['match = ["{site"]'], "expected a selector such as"),
        ("slack", ["match = ['{site=~\"(\"}']"], "expected an RE2 expression"),
        ("slack", ["group_seconds = 5", 'group_by = ["a b"]'], "group_by: expected names of"),
        ("teams", [], "hook.0.format"),
    ],
)
def test_hooks_that_cannot_be_used_are_refused(hook, format_, lines, reason):
    with pytest.raises(StartupError, match=re.escape(reason)):
        hook(format_, *lines)


def test_the_address_of_the_console_is_one(hook):
    with pytest.raises(StartupError, match="console_url"):
        hook("slack", top='console_url = "javascript:alert(1)"')


def test_selectors_choose_the_streams_of_a_hook(hook):
    lines = [
        'match = ["{site=\\"north\\"}", "{stream=~\\"a.*\\",env!=\\"dev\\"}"]',
        'prefix = ["a"]',
    ]
    chosen = hook("slack", *lines)
    assert chosen.wants(raised("a1", tags={"site": "north", "env": "dev"}))
    assert chosen.wants(raised("a2"))
    assert not chosen.wants(raised("a3", tags={"env": "dev"}))
    assert not chosen.wants(raised("b1", tags={"site": "north"}))  # every filter has to fit
    assert hook("slack").wants(raised("b1"))


def test_selectors_are_compiled_once_however_many_there_are(hook):
    cached = tags.parse.cache_info().maxsize
    texts = [[f"{{site=~'{i}-{j}.*'}}" for j in range(20)] for i in range(cached // 20 + 1)]
    hooks = [hook("slack", f"match = {json.dumps(each)}") for each in texts]
    before = tags.parse.cache_info()
    assert [each.wants(raised(tags={"site": "1-2."})) for each in hooks].count(True) == 1
    assert tags.parse.cache_info().misses == before.misses


class Waiting:
    """A letter, as far as groups look at it."""

    def __init__(self, stream, **tags):
        self.raised = raised(stream, tags=tags)


def test_groups_close_after_their_time_or_when_full():
    groups = Groups(Grouping(5.0, ("site",)))
    first = [Waiting("a", site="n"), Waiting("b", site="s"), Waiting("c", site="n"), Waiting("d")]
    for i, letter in enumerate(first):
        groups.add(letter, float(i))
    assert groups.due(4.9) == []
    assert groups.due(6.5) == [(("n",), [first[0], first[2]]), (("s",), [first[1]])]
    assert groups.due(8.0) == [(("",), [first[3]])]
    many = [Waiting("e") for _ in range(MAX_GROUP + 1)]
    for letter in many:
        groups.add(letter, 10.0)
    assert groups.due(10.0) == [(("",), many[:-1])]
    assert groups.due(15.0) == [(("",), many[-1:])]


def test_a_stream_whose_tags_change_stays_in_its_group_until_it_is_settled():
    """Else its later event could be delivered first: groups of two keys have no order."""
    groups = Groups(Grouping(5.0, ("site",)))
    other, first, second = Waiting("b", site="s"), Waiting("a", site="n"), Waiting("a", site="s")
    for i, letter in enumerate((other, first, second)):
        groups.add(letter, float(i))
    assert groups.due(5.0) == [(("s",), [other])]
    third = Waiting("a", site="s")
    (north,) = groups.due(6.0)
    assert north == (("n",), [first, second])
    groups.add(third, 6.0)  # while the first two are on their way
    groups.settle(north[1])
    assert groups.due(11.0) == [(("n",), [third])]
    groups.settle([third])
    groups.add(third, 12.0)
    assert groups.due(17.0) == [(("s",), [third])]


def test_groups_by_stream_are_of_one_stream_each(hook):
    lines = ("group_seconds = 5", 'group_by = ["stream", "site"]')
    groups = Groups(hook("slack", *lines).grouping)
    letters = [Waiting("a", site="n"), Waiting("b", site="n"), Waiting("a", site="n")]
    for letter in letters:
        groups.add(letter, 0.0)
    assert groups.due(5.0) == [
        (("a", "n"), [letters[0], letters[2]]),
        (("b", "n"), [letters[1]]),
    ]


def test_an_address_may_be_kept_apart_as_a_secret(tmp_path):
    address = "https://hooks.example.org/services/T0KEN"
    (tmp_path / "address").write_text(address + "\n")
    path = tmp_path / "hooks.toml"
    settings = Settings(webhooks_file=path, webhook_hosts="hooks.example.org")
    head = '[[hook]]\nname = "a"\nformat = "slack"\n'
    for line in (f'url = "{address}"', 'url_env = "SLACK"', 'url_file = "address"'):
        path.write_text(f"{head}{line}\n")
        (found,) = webhooks_of(settings, {"SLACK": address}).hooks
        assert found.url == address
        assert "T0KEN" not in repr(found)
    for lines, reason in [
        ("", "expected one of url, url_env and url_file"),
        (f'url = "{address}"\nurl_env = "SLACK"', "expected one of url, url_env and url_file"),
        ('url_env = "SLACK"', "url_env: the variable SLACK is not set"),
        ('url_file = "none"', "cannot read url_file"),
    ]:
        path.write_text(f"{head}{lines}\n")
        with pytest.raises(StartupError, match=reason) as refused:
            webhooks_of(settings, {})
        assert "T0KEN" not in str(refused.value)


def test_the_hooks_in_the_documents_are_accepted(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "events.md").read_text()
    path = tmp_path / "hooks.toml"
    hosts = "*.example.org, hooks.slack.com, events.pagerduty.com, http://alertmanager:9093"
    settings = Settings(webhooks_file=path, webhook_hosts=hosts)
    environ = {
        "PAGER_SECRET": SECRET,
        "PAGERDUTY_KEY": KEY,
        "SLACK_URL": "https://hooks.slack.com/a",
    }
    (tmp_path / "alertmanager.password").write_text("pass")
    found = []
    for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL):
        path.write_text(text)
        found += webhooks_of(settings, environ).hooks
    assert {each.format for each in found} == set(get_args(formats.Format))
    for each in found:
        assert said(each, raised(tags={"site": "north"}))


def test_the_documents_name_each_field_of_a_hook():
    page = (Path(__file__).parents[3] / "docs" / "events.md").read_text()
    missing = {name for name in [*HookForm.model_fields, "console_url"] if f"`{name}`" not in page}
    assert missing == set()
    rows = {name for name in formats.NAMES if f"`{name}`" not in page}
    assert rows == set()
