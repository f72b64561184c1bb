"""The page of changes: which streams changed, when, how big, how sure."""

import random
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.e2e.console.conftest import until

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
LONG = "plant-7.building-12.floor-3.compressor-204.bearing-temperature"
SIZES = {"pump-1": 3.0, "pump-2": -6.0, "fan-1": 9.0, LONG: 4.0}
COUNT, CHANGE = 60, 40  # observations, of which the last are after a change


@pytest.fixture(scope="module")
def fleet(start):
    """URL of a service with a change in each stream, an observation a minute, until now."""
    url, _ = start("serve")
    began = datetime.now(UTC) - timedelta(minutes=COUNT)
    with httpx.Client(base_url=url, timeout=60) as client:
        for i, (stream, size) in enumerate(SIZES.items()):
            rng = random.Random(i)
            settings = {"model": "averaged" if i == 2 else "gaussian", "location": 50, "scale": 1}
            client.put(f"/v1/streams/{stream}", json=settings).raise_for_status()
            body = [
                {
                    "y": 50 + rng.gauss(0, 1) + (size if k >= CHANGE - 10 * i else 0),
                    "time": (began + timedelta(minutes=k)).isoformat(),
                }
                for k in range(COUNT)
            ]
            client.post(f"/v1/streams/{stream}/observations", json=body).raise_for_status()
    return url


def listed(url, **query):
    params = {"state": ["confirmed", "suspected"], "since": "24h"} | query
    return httpx.get(f"{url}/v1/changes", params=params).json()["changes"]


def streams(page):
    return page.eval_on_selector_all(
        ".changes tbody th a", "all => all.map((e) => e.title || e.textContent)"
    )


def opened(page, url, rest=""):
    page.goto(f"{url}/#/changes{rest}")
    page.wait_for_selector(".changes tbody tr")
    return page


def test_rows_say_which_when_how_big_how_sure_and_what(watched, fleet):
    page = opened(watched(fleet).page, fleet)
    rows = listed(fleet)
    assert {row["stream"] for row in rows} == set(SIZES)
    assert streams(page) == [row["stream"] for row in rows]
    for i, row in enumerate(rows):
        shown = page.locator(".changes tbody tr").nth(i)
        when = datetime.fromisoformat(row["confirmed_time"] or row["suspected_time"])
        expect(shown).to_contain_text(f"{when:%Y-%m-%d %H:%M}")
        expect(shown).to_contain_text("▲ up by" if row["direction"] == "up" else "▼ down by")
        expect(shown).to_contain_text(f"{abs(row['size']):.2g}".rstrip("0").rstrip("."))
        expect(shown).to_contain_text(row["explanation"]["text"])
        expect(shown).to_contain_text(row["state"])
    expect(page.get_by_role("columnheader", name="P(start here)")).to_have_count(1)
    expect(page.locator("#count")).to_contain_text(f"{len(rows)} changes of 4 streams")
    name = page.get_by_role("link", name=LONG)  # whole for those who hear it
    assert "…" in name.inner_text()
    assert len(name.inner_text()) < 40
    name.click()
    expect(page).to_have_title(f"{LONG} · MOCA console")
    expect(page.locator(".annotation-text", has_text="#1 confirmed")).to_be_visible()


def test_filters_and_orders_are_those_of_the_service_and_of_the_address(watched, fleet):
    page = opened(watched(fleet).page, fleet)

    def shown(**query):
        wanted = [row["stream"] for row in listed(fleet, **query)]
        until(page, f"{streams_in_page} === {'|'.join(wanted)!r}")
        return wanted

    streams_in_page = (
        "[...document.querySelectorAll('.changes tbody th .id')]"
        ".map((e) => e.title || e.textContent).join('|')"
    )
    page.get_by_label("First").select_option("size")
    assert shown(sort="size")[0] == "fan-1"
    page.get_by_label("First").select_option("probability")
    shown(sort="probability")
    page.get_by_label("Stream id").fill("p-")
    assert set(shown(sort="probability", contains="p-")) == {"pump-1", "pump-2"}
    page.get_by_label("Stream id").fill("^p-")
    expect(page.get_by_text("No change fits these filters.")).to_be_visible()
    page.get_by_label("Stream id").fill("")
    page.get_by_label("Size, sd or more").fill("5")
    assert set(shown(sort="probability", min_size=5)) < set(SIZES)
    page.get_by_label("P(start here) or more").fill("0.5")
    shown(sort="probability", min_size=5, min_probability=0.5)
    page.get_by_label("P(start here) or more").fill("")
    page.get_by_label("Model").select_option("averaged")
    assert set(shown(sort="probability", min_size=5, model="averaged")) == {"fan-1"}
    assert page.url.endswith("#/changes?model=averaged&size=5&sort=probability")
    page.reload()
    assert set(shown(sort="probability", min_size=5, model="averaged")) == {"fan-1"}
    page.get_by_label("State").select_option("withdrawn")
    shown(sort="probability", min_size=5, model="averaged", state="withdrawn")


def test_the_timeline_counts_and_a_bar_narrows_the_list(watched, fleet):
    page = opened(watched(fleet).page, fleet, "?span=1h")
    counts = "[...document.querySelectorAll('.bars button')].map((e) => e.ariaLabel)"
    labels = page.evaluate(counts)
    total = len(listed(fleet, since="1h"))
    assert sum(int(each.split(": ")[1].split(" ")[0]) for each in labels) == total == 4
    bar = page.locator(".bars button:not([aria-disabled='true'])").first
    bar.click()
    first = min(listed(fleet), key=lambda row: row["confirmed_time"])
    expect(page.locator("#count")).to_have_text("1 change of 1 stream")
    assert streams(page) == [first["stream"]]
    page.get_by_role("button", name="Show the whole time").click()
    expect(page.locator("#count")).to_contain_text("4 changes")
    page.locator(".bars button[tabindex='0']").focus()
    page.keyboard.press("End")
    until(page, "document.activeElement === document.querySelector('.bars').lastElementChild")


def test_a_change_comes_by_itself(watched, fleet):
    page = watched(fleet).page
    page.goto(f"{fleet}/#/changes?q=new-")
    expect(page.get_by_text("No change fits these filters.")).to_be_visible()
    expect(page.locator("#feed")).to_have_text("live")
    with httpx.Client(base_url=fleet, timeout=60) as client:
        settings = {"model": "gaussian", "location": 0, "scale": 1}
        client.put("/v1/streams/new-1", json=settings).raise_for_status()
        body = [{"y": k % 3 / 3 + (9 if k > 30 else 0)} for k in range(45)]
        client.post("/v1/streams/new-1/observations", json=body).raise_for_status()
        expect(page.locator(".changes tbody tr")).to_have_count(1, timeout=6000)
        client.delete("/v1/streams/new-1").raise_for_status()
    page.reload()
    expect(page.locator(".changes tbody tr")).to_contain_text("deleted")
    expect(page.locator(".changes tbody a")).to_have_count(0)


def test_without_changes_the_page_says_what_to_do(watched, start):
    url, _ = start("serve")
    page = watched(url).page
    page.goto(f"{url}/#/changes")
    expect(page.locator("pre")).to_contain_text(f"curl {url}/v1/streams/pump-7/observations")
    expect(page.locator(".timeline")).to_be_hidden()


def test_more_than_a_page_by_cursor(watched, start):
    url, _ = start("serve")
    with httpx.Client(base_url=url, timeout=60) as client:
        names = [f"s-{i:02d}" for i in range(60)]
        for name in names:
            settings = {"model": "gaussian", "location": 0, "scale": 1, "confirm_after": 3}
            client.put(f"/v1/streams/{name}", json=settings).raise_for_status()
        for k in range(45):
            items = [{"stream": name, "y": k % 3 / 3 + (9 if k > 30 else 0)} for name in names]
            client.post("/v1/observations", json=items).raise_for_status()
    page = opened(watched(url).page, url)
    seen = []
    for place in ("1–25", "26–50", "51–60"):
        expect(page.get_by_label("Pages of changes")).to_contain_text(f"{place} of 60")
        seen += streams(page)
        if len(seen) < len(names):
            page.get_by_role("button", name="Next").click()
    assert sorted(seen) == names
