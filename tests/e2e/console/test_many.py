"""Ten thousand streams: the list asks for what it shows, and answers at once."""

import time

import httpx
import pytest

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
expect.set_options(timeout=30_000)
STREAMS, BATCH = 10_000, 500


@pytest.fixture(scope="module")
def many(start):
    url, _ = start("serve")
    with httpx.Client(base_url=url, timeout=120) as client:
        for first in range(0, STREAMS, BATCH):
            items = [
                {"stream": f"pump-{i:05d}", "y": float(i % 7 + k)}
                for k in range(3)
                for i in range(first, first + BATCH)
            ]
            answers = client.post("/v1/observations", json=items).json()
            assert all(each["status"] == 200 for each in answers)
    return url


@pytest.mark.slow
def test_ten_thousand_streams(watched, many):
    found = watched(many)
    page = found.page
    page.goto(many)
    expect(page.locator("#count")).to_have_text("10,000 streams")
    rows = page.locator(".streams tbody tr")
    expect(rows).to_have_count(25)
    expect(page.get_by_label("Pages of streams")).to_contain_text("1–25 of 10,000")
    seconds = {}
    for name, act, first in (
        ("next", lambda: page.get_by_role("button", name="Next").click(), "pump-00025"),
        ("back", lambda: page.get_by_role("button", name="Previous").click(), "pump-00000"),
        ("search", lambda: page.get_by_role("searchbox").fill("pump-099"), "pump-09900"),
    ):
        began = time.perf_counter()
        act()
        page.wait_for_selector(f".streams tbody tr:first-child >> text={first}")
        seconds[name] = time.perf_counter() - began
    expect(page.locator("#count")).to_have_text("100 streams with prefix “pump-099”")
    overviews = [path for path in found.paths if path.startswith("/v1/overview")]
    assert overviews
    assert all("limit=25" in path for path in overviews)
    print({name: round(value, 3) for name, value in seconds.items()})
    assert max(seconds.values()) < 3  # a quarter of a second of it waits for the typing to end


@pytest.mark.slow
def test_a_page_of_the_overview_is_cheap(many):
    with httpx.Client(base_url=many, timeout=60) as client:
        times, cursor = [], None
        for _ in range(40):
            began = time.perf_counter()
            params = {"limit": 25, **({"cursor": cursor} if cursor else {})}
            page = client.get("/v1/overview", params=params).json()
            times.append(time.perf_counter() - began)
            cursor = page["cursor"]
    times.sort()
    print(f"median {1e3 * times[20]:.1f} ms, slowest {1e3 * times[-1]:.1f} ms")
    assert times[20] < 0.25
