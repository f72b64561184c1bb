"""The console without a mouse, without sight, and with keys."""

import pytest

from service import api_keys
from service.store.api_keys import Keyring
from service.store.connection import connect
from tests.conftest import _binary, running_server
from tests.e2e.console.conftest import drawn, until

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect


def focused(page):
    return page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id")


def tab_to(page, test, most=40):
    """Press Tab until the focused element passes."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate(f"(() => {{ const e = document.activeElement; return {test}; }})()"):
            return
    raise AssertionError(f"{most} times Tab and not at {test}, but at {focused(page)!r}")


def test_a_walk_by_keyboard_only(page, demo):
    page.goto(demo)
    expect(page.get_by_role("link", name="nile")).to_be_visible()
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    page.keyboard.press("Enter")
    until(page, "document.activeElement.id === 'main'")
    page.keyboard.press("/")
    until(page, "document.activeElement.id === 'search'")
    page.keyboard.type("nil")
    expect(page.get_by_role("row")).to_have_count(2)
    tab_to(page, "e.textContent === 'nile'")
    page.keyboard.press("Enter")
    drawn(page)
    until(page, "document.activeElement.id === 'main'")
    tab_to(page, "e.id === 'window'")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#window")).to_have_value("200")
    tab_to(page, "e.textContent.startsWith('#1 at 28')")
    page.keyboard.press("Enter")  # shows it in the chart
    until(page, "document.querySelector('.plot')._fullLayout.xaxis.range[1] < 95")
    tab_to(page, "e.id === 'hazard-slider'")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_label("Hazard", exact=True)).to_have_value("0.0102")
    tab_to(page, "e.textContent === 'Rerun'")
    page.keyboard.press("Enter")
    expect(page.locator("#what-if-result")).to_contain_text("Mean log score")


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1280),
        ("dark", 400),
        pytest.param("light", 400, marks=pytest.mark.slow),
        pytest.param("dark", 1280, marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing(watched, demo, axe, scheme, width):
    page = watched(demo, color_scheme=scheme, viewport={"width": width, "height": 900}).page
    for place in ("#/", "#/changes?span=all", "#/streams/nile", "#/models", "#/models/regimes"):
        page.goto(f"{demo}/{place}")
        page.wait_for_selector("main .card")
        if "/" in place[2:]:
            drawn(page)
        if "changes" in place:
            page.wait_for_selector(".changes tbody tr")
        if place.endswith("nile"):
            page.get_by_text("View as tables").click()
            page.get_by_role("button", name="Rerun").click()
            page.wait_for_selector("#what-if-result table")
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        said = [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in found]
        assert said == [], place


@pytest.fixture
def locked(start):
    """URL of a service whose calls need keys; tokens of one that may look and one that may not."""
    with running_server(str(_binary("valkey"))) as redis_url:
        tokens = {}
        with connect(redis_url) as client:
            for name, scope in (("viewer", "read"), ("writer", "write")):
                key, tokens[name] = api_keys.create(name, (scope,))
                Keyring(client).add(key)
        url, _ = start("serve", MOCA_REDIS_URL=redis_url)
        yield url, tokens


def test_the_page_asks_for_a_key_and_keeps_it_in_the_tab(watched, locked):
    url, tokens = locked
    found = watched(url, errors=("401", "403", "404"))
    page = found.page
    page.goto(url)
    ask = page.get_by_role("dialog")
    expect(ask).to_contain_text("no API key")
    field = ask.get_by_label("Key")
    expect(field).to_be_focused()
    field.fill("moca_wrong_key")
    page.keyboard.press("Enter")
    expect(ask).to_contain_text("unknown API key")
    field.fill(tokens["viewer"])
    page.keyboard.press("Enter")
    expect(ask).to_have_count(0)
    expect(page.locator("#count")).to_have_text("0 streams")
    expect(page.locator("#feed")).to_have_text("live")
    page.reload()
    expect(page.locator("#count")).to_have_text("0 streams")
    assert page.evaluate("Object.values(localStorage).join()").find("moca_") == -1
    assert not any("moca_" in path for path in found.paths)
    page.get_by_role("button", name="Forget key").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alert")).to_contain_text("no API key")
    page.get_by_role("button", name="Try again").click()
    page.get_by_label("Key", exact=True).fill(tokens["writer"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("lacks the scope 'read'")
