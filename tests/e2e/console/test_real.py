"""The console on a real service, which answers as the stand-in of the other tests does."""

import json

import httpx
import pytest

from tests.e2e.console.fake import FILE, observations, record
from tests.e2e.console.test_console import LABELS, choose, drawn, seen, unfold
from tests.waiting import PATIENCE_S, until

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
pytestmark = pytest.mark.slow


def differences(found, expected, at=""):
    """Where two answers have other fields, or values of another kind; null may be anything."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in found.keys() ^ expected.keys():
            yield f"{at}.{name}"
        for name in found.keys() & expected.keys():
            yield from differences(found[name], expected[name], f"{at}.{name}")
    elif isinstance(found, list) and isinstance(expected, list):
        for pair in zip(found, expected, strict=False):
            yield from differences(*pair, f"{at}[]")
    elif None not in (found, expected):
        kinds = {float if isinstance(each, int) else type(each) for each in (found, expected)}
        if len(kinds) > 1:
            yield f"{at}: {found!r}, {expected!r}"


def test_the_stand_in_answers_as_a_service_does(serve):
    """If not: record its answers anew, see `fake.py`."""
    found, expected = record(serve()), json.loads(FILE.read_text())
    assert found.keys() == expected.keys()
    assert sorted(set(differences(found, expected))) == []


def test_what_is_posted_is_drawn_and_what_is_told_is_kept(opened, serve):
    url = serve()
    settings, posted = observations()["pump"]
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        client.put("/v1/streams/pump", json=settings).raise_for_status()
        path = "/v1/streams/pump/observations"
        client.post(path, json=posted[:30]).raise_for_status()
        page = opened(url, errors=("ERR_",))
        page.goto(f"{url}/#/streams")
        page.get_by_role("link", name="pump").click()
        drawn(page)
        expect(page.locator("#feed")).to_have_text("live")
        client.post(path, json=posted[30:]).raise_for_status()
        seen(page, f"{LABELS} === 60")
        unfold(page, "All changes")
        event = page.locator("[data-event='1']")
        expect(event).to_contain_text("#1 at 40")
        expect(event).to_contain_text("confirmed")
        event.get_by_role("button", name="No change: event 1").click()
        expect(event).to_contain_text("withdrawn")
        listed = client.get("/v1/streams/pump/changepoints?state=withdrawn").json()["events"]
        assert [(each["state"], each["verdict"]) for each in listed] == [("withdrawn", False)]
        unfold(page, "What if")
        page.get_by_label("Outlier rate", exact=True).fill("0.05")
        page.get_by_label("Outlier rate", exact=True).press("Enter")
        page.get_by_role("button", name="Apply these settings").click()
        expect(page.locator("#what-if-result")).to_contain_text("now uses these settings")
        assert client.get("/v1/streams/pump").json()["settings"]["outlier_rate"] == 0.05
        page.goto(f"{url}/#/?state=all&span=all")
        expect(page.locator(".change")).to_have_count(1)
        page.goto(f"{url}/#/streams")
        choose(
            page, "plant.csv", "time,flow\n" + "".join(f"2024-05-0{i},{i}\n" for i in range(1, 9))
        )
        page.get_by_role("button", name="Create 1 stream").click()
        expect(page.get_by_text("Created 1 stream:")).to_be_visible()
        history = client.get("/v1/streams/plant.flow/history").json()["observations"]
        assert [each["y"] for each in history] == list(range(1, 9))
        client.delete("/v1/streams/pump").raise_for_status()
        until(lambda: page.evaluate("document.querySelectorAll('.streams tbody tr').length") == 1)
