"""The page of a stream is told what comes: no request is made by the clock."""

import httpx
import pytest

from tests.e2e.console.conftest import drawn, post, until

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect


def shown(count):
    return f"document.querySelector('.plot').data[2].x.length === {count}"


def following(page, url, stream):
    """The page of a stream, drawn and live."""
    page.goto(f"{url}/#/streams/{stream}")
    drawn(page)
    expect(page.locator("#feed")).to_have_text("live")
    return page


def test_what_is_posted_is_drawn_without_asking(watched, demo, client, stream):
    post(client, stream, 10, 40)
    found = watched(demo)
    page = following(found.page, demo, stream)
    expect(page.locator("#belief-note")).to_contain_text("come from a rerun")
    live = f"/v1/streams/{stream}/observations/live?state=true"
    assert found.paths.count(live) == 1
    assert not any(path.startswith("/v1/events") for path in found.paths)  # one connection a page
    page.wait_for_timeout(500)
    before = len(found.paths)
    page.wait_for_timeout(3000)
    assert found.paths[before:] == []  # a quiet stream is not asked about
    for i in range(5):
        post(client, stream, 10, 1, seed=i + 2)
        until(page, shown(41 + i))
    page.wait_for_timeout(1500)
    asked = {path.rpartition("/")[2] for path in found.paths[before:]}
    assert asked == {"run-length?"}  # the belief after what came, which no message says
    expect(page.locator(".facts")).to_contain_text("45")
    cells = page.evaluate("document.querySelector('.plot').data.at(-1).z.map((row) => row.at(-1))")
    assert any(each is not None for each in cells)


def test_changes_of_all_kinds_are_told(page, demo, client, stream):
    post(client, stream, 10, 40)
    page.goto(f"{demo}/#/streams/{stream}")
    drawn(page)
    client.put(f"/v1/streams/{stream}", json={"outlier_rate": 0.07})
    expect(page.locator("dl.pairs")).to_contain_text("0.07")
    post(client, stream, 15, 15, seed=2)
    expect(page.locator("#announce")).to_contain_text(f"{stream}: change")
    expect(page.locator("[data-event='1']")).to_contain_text("confirmed")
    # Somebody else's verdict.
    client.put(f"/v1/streams/{stream}/changepoints/1", json={"change": False})
    expect(page.locator("[data-event='1']")).to_contain_text("withdrawn")


def test_pause_gives_the_connection_back_and_goes_on(watched, demo, client, stream):
    post(client, stream, 10, 40)
    found = watched(demo)
    page = following(found.page, demo, stream)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#feed")).to_have_text("paused")
    before = len(found.paths)
    post(client, stream, 10, 7, seed=2)
    page.wait_for_timeout(1500)
    assert page.evaluate(shown(40))
    assert found.paths[before:] == []
    page.get_by_role("button", name="Follow").click()
    until(page, shown(47))
    expect(page.locator("#feed")).to_have_text("live")
    assert not any("/history" in path for path in found.paths[before:])  # what was missed is sent


def test_a_stream_that_is_made_anew_is_shown_anew(watched, demo, client, stream):
    post(client, stream, 10, 40)
    page = following(watched(demo, errors=("404",)).page, demo, stream)
    client.delete(f"/v1/streams/{stream}")
    expect(page.get_by_role("alert")).to_contain_text("there is no stream")
    post(client, stream, 3, 5)
    expect(page.get_by_role("alert")).to_have_count(0)
    until(page, shown(5))
    post(client, stream, 3, 2)
    until(page, shown(7))


@pytest.mark.slow
def test_without_a_place_to_follow_there_is_what_can_be_read(watched, start):
    url, _ = start("serve", MOCA_MAX_LIVE_STREAMS="1")
    with httpx.Client(base_url=url, timeout=60) as client:
        post(client, "a", 10, 30)
        first, second = watched(url).page, watched(url, errors=("429",)).page
        first.goto(f"{url}/#/streams/a")
        drawn(first)
        expect(first.locator("#feed")).to_have_text("live")
        second.goto(f"{url}/#/streams/a")
        drawn(second)
        expect(second.get_by_role("alert")).to_contain_text("live-observation connections reached")
        first.goto("about:blank")
        expect(second.get_by_role("alert")).to_have_count(0)
        post(client, "a", 10, 3)
        until(second, shown(33))
