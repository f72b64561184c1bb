"""Groups and formats by a real process: over HTTP, through kills, failures and dead letters."""

import json
import threading
import time

from service.store import keys
from tests.service.webhooks.test_delivery import (  # noqa: F401
    Receiver,
    receiver,
    until,
    verify,
    webhooks,
    writer,
)

EACH = '{"count": "${count}", "events": "${events}", "stream": "${stream}"}'
KEY = "r0utingkey" * 3


def groups_of(receiver, path, status=200):  # noqa: F811
    """Events (stream, id) of each group that was posted to a path and answered so."""
    return [
        [(each["stream"], each["id"]) for each in json.loads(body)["events"]]
        for at, _, body, answered in list(receiver.calls)
        if (at, answered) == (path, status)
    ]


def test_what_comes_together_is_one_delivery_by_tags(webhooks, receiver, writer):  # noqa: F811
    fields = {"format": "template", "template": EACH, "group_seconds": 3.0}
    webhooks.hook("all", f"{receiver.url}/all", **fields)
    webhooks.hook("sites", f"{receiver.url}/sites", **fields, group_by=["site"])
    webhooks.hook("north", f"{receiver.url}/north", **fields, match=['{site="north"}'])
    webhooks.hook("slack", f"{receiver.url}/slack", secret=None, format="slack", group_seconds=3.0)
    webhooks.start()
    for i in range(1, 5):
        for site in ("north", "south"):
            writer.raise_(f"{site}-1", i, tags={"site": site})
            writer.raise_(f"{site}-2", i, tags={"site": site})
    last = time.monotonic()
    until(lambda: webhooks.pending("all") == 16)
    time.sleep(1.0)
    assert webhooks.metric("lag_seconds", "all") == 0  # they wait as they should
    assert receiver.calls == []
    until(lambda: len(receiver.calls) >= 5, lambda: webhooks.processes.log_of("webhooks"))
    assert time.monotonic() - last > 1.0
    for hook in ("all", "sites", "north", "slack"):
        until(lambda hook=hook: webhooks.pending(hook) == 0)
    assert len(receiver.calls) == 5
    bodies = {path: json.loads(body) for path, _, body, _ in receiver.calls}
    assert bodies["/all"]["count"] == 16
    assert len(bodies["/all"]["events"]) == 10
    assert bodies["/north"]["count"] == 8
    assert bodies["/slack"]["text"] == "16 events"
    sites = groups_of(receiver, "/sites")
    assert sorted({stream[:5] for stream, _ in group}.pop() for group in sites) == [
        "north",
        "south",
    ]
    for group in sites:
        for stream in {stream for stream, _ in group}:
            assert [i for at, i in group if at == stream] == [1, 2, 3, 4]
    signed = [verify(head, body) for path, head, body, _ in receiver.calls if path != "/slack"]
    assert len(set(signed)) == 3  # "/north" has the same events as one group of "/sites"
    assert all(number.startswith("grp_") for number in signed)
    assert webhooks.metric("delivered_total", "all") == 16


def test_a_kill_loses_no_event_of_a_group(webhooks, receiver, writer):  # noqa: F811
    """Killed while a group waits, and while a group is on its way to the receiver."""
    arrived = threading.Event()

    def slow(path, data):
        arrived.set()
        return 3.0

    receiver.fate = slow
    fields = {"format": "template", "template": EACH, "group_seconds": 1.5}
    webhooks.hook("h", f"{receiver.url}/h", **fields)
    webhooks.start(timeout_s=20)
    for i in range(1, 5):
        writer.raise_("a", i)
    assert arrived.wait(10)
    for i in range(5, 8):
        writer.raise_("b", i)
    until(lambda: webhooks.pending("h") == 7)
    webhooks.processes.kill("webhooks")
    receiver.fate = lambda path, data: 200
    webhooks.start("second")
    until(lambda: webhooks.pending("h") == 0, lambda: webhooks.processes.log_of("second"))
    groups = groups_of(receiver, "/h")
    assert sorted(each for group in groups for each in group) == [
        *[("a", i) for i in range(1, 5)],
        *[("b", i) for i in range(5, 8)],
    ]
    (cut,) = groups_of(receiver, "/h", 3.0)
    assert cut == [("a", i) for i in range(1, 5)]
    ids = {verify(head, body) for _, head, body, _ in receiver.calls}
    assert len(ids) == len(receiver.calls)  # what came to the group was not dropped as a repeat


def test_a_group_that_fails_for_good_is_dead_letters_and_sent_again(
    webhooks,  # noqa: F811
    receiver,  # noqa: F811
    writer,  # noqa: F811
):
    receiver.fate = lambda path, data: 500
    fields = {"format": "template", "template": EACH, "group_seconds": 1.0}
    webhooks.hook("h", f"{receiver.url}/h", **fields)
    webhooks.start(attempts=2)
    for i in range(1, 4):
        writer.raise_("a", i)
    until(lambda: webhooks.metric("dead_total", "h") == 3)
    first, second = groups_of(receiver, "/h", 500)
    assert first == second == [("a", 1), ("a", 2), ("a", 3)]
    assert len({verify(head, body) for _, head, body, _ in receiver.calls}) == 1
    receiver.fate = lambda path, data: 200
    assert webhooks.client.xlen(keys.DEAD_LETTERS) == 1  # one delivery of those that are kept
    assert "1 confirmed and 2 more" in webhooks.command("--dead").stdout
    assert "redelivering 3 events" in webhooks.command("--redeliver").stdout
    until(lambda: webhooks.client.xlen(keys.webhook_again("h")) == 0)
    assert groups_of(receiver, "/h") == [[("a", 1), ("a", 2), ("a", 3)]]


def test_groups_that_are_given_up_leave_the_dead_letters_of_others(webhooks, receiver, writer):  # noqa: F811
    receiver.fate = lambda path, data: 500
    fields = {"format": "template", "template": EACH, "group_seconds": 0.5}
    webhooks.hook("groups", f"{receiver.url}/groups", **fields, prefix=["g"])
    webhooks.hook("single", f"{receiver.url}/single", prefix=["s"])
    webhooks.start(attempts=1, dead_letters=2)
    writer.raise_("s", 1)
    until(lambda: webhooks.metric("dead_total", "single") == 1)
    for i in range(1, 6):
        writer.raise_("g", i)
    until(lambda: webhooks.metric("dead_total", "groups") == 5)
    assert webhooks.metric("dead_evicted_total", "single") == 0
    assert webhooks.client.xlen(keys.DEAD_LETTERS) <= 2
    writer.raise_("s", 2)
    writer.raise_("s", 3)
    until(lambda: webhooks.metric("dead_evicted_total", "groups") == 5)
    assert webhooks.metric("dead_evicted_total", "single") == 1
    assert "(5 events) left the full dead-letter queue" in webhooks.processes.log_of("webhooks")


def test_dead_letters_are_bounded_in_bytes(webhooks, receiver, writer):  # noqa: F811
    receiver.fate = lambda path, data: 500
    webhooks.hook("h", f"{receiver.url}/h")
    webhooks.start(attempts=1, dead_letter_bytes=20_000)
    for i in range(1, 121):
        writer.raise_("a", i)
    until(lambda: webhooks.metric("dead_total", "h") == 120)
    until(lambda: webhooks.pending("h") == 0)
    left = webhooks.client.xrange(keys.DEAD_LETTERS)
    assert webhooks.client.memory_usage(keys.DEAD_LETTERS, 0) <= 20_000
    assert 20 < len(left) < 100
    assert webhooks.metric("dead_evicted_total", "h") == 120 - len(left)


def test_the_newest_dead_letter_is_kept_however_large(webhooks, receiver, writer):  # noqa: F811
    receiver.fate = lambda path, data: 500
    webhooks.hook("h", f"{receiver.url}/h")
    webhooks.start(attempts=1, dead_letter_bytes=1)
    for i in range(1, 4):
        writer.raise_("a", i)
        until(lambda i=i: webhooks.metric("dead_total", "h") == i)
    until(lambda: webhooks.pending("h") == 0)
    assert webhooks.client.xlen(keys.DEAD_LETTERS) == 1
    assert webhooks.metric("dead_evicted_total", "h") == 2


def test_one_refused_event_does_not_take_its_group_with_it(webhooks, receiver, writer):  # noqa: F811
    def fate(path, data):
        return 400 if any(each["id"] in (2, 4) for each in data["events"]) else 200

    receiver.fate = fate
    template = '{"data": {"events": "${events}"}}'
    fields = {"format": "template", "template": template, "group_seconds": 1.0}
    webhooks.hook("h", f"{receiver.url}/h", **fields)
    webhooks.start(attempts=2)
    for i in range(1, 6):
        writer.raise_("a", i)
    until(lambda: webhooks.pending("h") == 0 and webhooks.metric("dead_total", "h") == 2)
    sent = [
        ([each["id"] for each in json.loads(body)["data"]["events"]], answered)
        for _, _, body, answered in receiver.calls
    ]
    whole = ([1, 2, 3, 4, 5], 400)
    singly = [([1], 200), ([2], 400), ([3], 200), ([4], 400), ([5], 200)]
    assert sent == [whole, whole, *singly]
    assert webhooks.metric("delivered_total", "h") == 3
    assert "redelivering 2 events" in webhooks.command("--redeliver").stdout


def test_a_confirmation_is_not_redelivered_after_its_withdrawal(webhooks, receiver, writer):  # noqa: F811
    """Nothing would end the alarm that it opens."""
    receiver.fate = lambda path, data: 500
    webhooks.hook("p", f"{receiver.url}/p", secret=KEY, format="pagerduty")
    webhooks.start(attempts=1)
    for i in (1, 2):
        writer.raise_("a", i, confirmed_at=23)
    until(lambda: webhooks.metric("dead_total", "p") == 2)
    receiver.fate = lambda path, data: 202
    writer.raise_("a", 1, "withdrawn", confirmed_at=23)
    until(lambda: webhooks.metric("delivered_total", "p") == 1)
    assert "redelivering 2 events" in webhooks.command("--redeliver").stdout
    until(lambda: webhooks.client.xlen(keys.webhook_again("p")) == 0)
    accepted = [json.loads(body) for _, _, body, answered in receiver.calls if answered == 202]
    actions = [(each["dedup_key"], each["event_action"]) for each in accepted]
    assert actions == [("a/1/change/1", "resolve"), ("a/1/change/2", "trigger")]


def test_pagerduty_gets_its_key_and_the_log_does_not(webhooks, receiver, writer):  # noqa: F811
    fates = iter([429, 202])
    receiver.fate = lambda path, data: next(fates, 202)
    webhooks.hook("p", f"{receiver.url}/v2/enqueue", secret=KEY, format="pagerduty")
    webhooks.start()
    writer.raise_("a", 1, "suspected")
    writer.raise_("a", 1, "withdrawn")  # nobody was told of it
    writer.raise_("a", 2, confirmed_at=23)
    writer.raise_("a", 2, "withdrawn", confirmed_at=23)
    until(lambda: len(receiver.calls) == 3, lambda: webhooks.processes.log_of("webhooks"))
    until(lambda: webhooks.pending("p") == 0)
    bodies = [json.loads(body) for _, _, body, _ in receiver.calls]
    assert [body["event_action"] for body in bodies] == ["trigger", "trigger", "resolve"]
    assert {body["dedup_key"] for body in bodies} == {"a/1/change/2"}
    assert {body["routing_key"] for body in bodies} == {KEY}
    assert not any("webhook-signature" in head for _, head, _, _ in receiver.calls)
    webhooks.processes.kill("webhooks")
    assert "attempt 1 at evt_" in webhooks.processes.log_of("webhooks")
    assert KEY not in webhooks.processes.log_of("webhooks")


def test_a_redelivered_group_opens_no_alarm_that_it_ends(webhooks, receiver, writer):  # noqa: F811
    receiver.fate = lambda path, data: 500
    fields = {"format": "alertmanager", "secret": None, "group_seconds": 0.5}
    webhooks.hook("am", f"{receiver.url}/am", **fields)
    webhooks.start(attempts=1)
    writer.raise_("a", 1, confirmed_at=13)
    writer.raise_("a", 1, "withdrawn", confirmed_at=13)
    until(lambda: webhooks.metric("dead_total", "am") == 2)
    receiver.calls.clear()
    receiver.fate = lambda path, data: 200
    assert "redelivering 2 events" in webhooks.command("--redeliver").stdout
    until(lambda: webhooks.client.xlen(keys.webhook_again("am")) == 0)
    alerts = [alert for _, _, body, _ in receiver.calls for alert in json.loads(body)]
    assert ["startsAt" in alert for alert in alerts] == [False]
