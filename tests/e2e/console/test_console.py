"""The console in Chromium, on the samples and on streams that go on while it is looked at."""

import random
import re
from urllib.parse import quote

import pytest

from tests.e2e.console.conftest import drawn, figure, post, until

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect


def trace(found, name):
    return next(each for each in found["data"] if each.get("name") == name)


def test_the_nile_stream_is_found_with_its_change_on_the_chart(page, demo):
    page.goto(demo)
    expect(page.get_by_role("link", name="coal")).to_be_visible()
    page.get_by_label("Search ids").fill("il")
    expect(page.get_by_role("row")).to_have_count(2)
    row = page.get_by_role("row").last
    expect(row.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("last 40 labels, from")
    )
    expect(row).to_contain_text("72 of 100")
    expect(row).to_contain_text("at 28 ▼ down by 2.3 sd")
    row.get_by_role("link", name="nile").click()
    expect(page).to_have_url(f"{demo}/#/streams/nile")
    expect(page).to_have_title("nile · MOCA console")
    found = drawn(page)
    expect(page.locator(".annotation-text", has_text="#1 confirmed")).to_be_visible()
    assert [shape["x0"] for shape in found["shapes"]] == [27.5]
    label = trace(found, "label")
    assert label["x"] == list(range(100))
    assert label["customdata"][28] == "1899-01-01"
    band = trace(found, "forecast, 90 %")
    assert sum(high is not None for high in band["y"]) >= 95
    expect(page.locator(".plot")).to_have_attribute(
        "aria-label", re.compile(r"1 confirmed change, the last at 28 ▼ down by 2\.3 sd")
    )


def test_the_link_of_a_change_opens_the_stream_at_it(page, demo, client):
    (change,) = client.get("/v1/changes?prefix=nile&state=confirmed").json()["changes"]
    page.goto(demo + change["link"])
    expect(page).to_have_title("nile · MOCA console")
    until(page, "document.querySelector('.plot')._fullLayout?.xaxis.range[1] < 95")
    low, high = page.evaluate("document.querySelector('.plot')._fullLayout.xaxis.range")
    assert low < change["start"] < high


def test_the_link_of_an_older_change_loads_the_window_that_has_it(page, demo, client, stream):
    post(client, stream, 10, 700)
    page.goto(f"{demo}/#/streams/{stream}?at=30")
    until(page, "document.querySelector('.plot')._fullLayout?.xaxis.range[1] < 200")
    low, high = page.evaluate("document.querySelector('.plot')._fullLayout.xaxis.range")
    assert low < 30 < high
    expect(page.get_by_label("Show", exact=True)).to_have_value("1000")


def test_a_link_to_a_change_that_is_not_retained_says_so(page, demo, client, stream):
    client.put(f"/v1/streams/{stream}", json={"history": 100}).raise_for_status()
    post(client, stream, 10, 400)
    page.goto(f"{demo}/#/streams/{stream}?at=30")
    expect(page.get_by_text("Observation 30 is older than what can be shown")).to_be_visible()


def test_the_belief_is_a_heat_map_and_everything_is_a_table_too(page, demo, client):
    page.goto(f"{demo}/#/streams/nile")
    expect(page.locator("#belief-note")).to_contain_text("come from a rerun")
    belief = client.get("/v1/streams/nile/run-length").json()["belief"]
    cells = "document.querySelector('.plot').data?.at(-1).z?.flat() ?? []"
    until(page, f"({cells}).filter((each) => each !== null).length > 1000")
    heat = figure(page)["data"][-1]
    assert heat["type"] == "heatmap"
    last = {row: 10 ** column[-1] for row, column in enumerate(heat["z"]) if column[-1] is not None}
    for each in belief:
        if each["probability"] > 0.001:
            assert last[each["run_length"]] == pytest.approx(each["probability"], rel=1e-3)
    page.get_by_text("View as tables").click()
    tables = page.locator(".tables table")
    expect(tables).to_have_count(2)
    newest = tables.first.get_by_role("row").nth(1)
    expect(newest).to_contain_text("1970-01-01")
    expect(newest).to_contain_text("740")


def test_a_stream_is_followed_live(page, demo, client, stream):
    post(client, stream, 10, 40)
    page.goto(f"{demo}/#/streams/{stream}")
    drawn(page)
    expect(page.locator("#feed")).to_have_text("live")
    until(page, "document.querySelector('.plot').data[2].x.length === 40")
    post(client, stream, 10, 5, seed=2)
    until(page, "document.querySelector('.plot').data[2].x.length === 45")
    post(client, stream, 14, 15, seed=3)
    said = page.locator("#announce")
    expect(said).to_contain_text(f"{stream}: change")
    event = page.locator("[data-event='1']")
    expect(event).to_contain_text("confirmed")
    expect(event).to_contain_text("#1 at 45")
    expect(page.locator(".annotation-text", has_text="#1 confirmed")).to_be_visible()
    until(page, "document.querySelector('.plot').data[2].x.length === 60")
    # Posted in lots: of most no belief was asked for, and the one before is drawn on.
    heat = figure(page)["data"][-1]["z"]
    assert all(any(row[column] is not None for row in heat) for column in range(60))


def test_the_list_shows_changes_as_they_come(page, demo, client, stream):
    client.put(f"/v1/streams/{stream}", json={"confirm_after": 10}).raise_for_status()
    post(client, stream, 10, 30)
    page.goto(f"{demo}/#/?prefix={quote(stream)}")
    expect(page.locator("#feed")).to_have_text("live")
    expect(page.get_by_role("row", name=stream)).to_contain_text("steady")
    post(client, stream, 15, 3, seed=2)
    expect(page.locator(".recent li").first).to_contain_text("suspected")
    expect(page.get_by_role("row", name=stream)).to_contain_text("suspected")
    post(client, stream, 15, 12, seed=3)
    expect(page.locator(".recent li").first).to_contain_text("confirmed")
    expect(page.get_by_role("row", name=stream)).to_contain_text("at 30 ▲ up")


def test_anomalies_and_changes_are_marked_apart(page, demo, client, stream):
    post(client, stream, 10, 130)
    page.goto(f"{demo}/#/streams/{stream}")
    drawn(page)
    expect(page.locator("#feed")).to_have_text("live")
    client.post(f"/v1/streams/{stream}/observations", json=[{"y": 19.0}])
    expect(page.locator("#announce")).to_contain_text("anomaly at observation 130, up")
    post(client, stream, 10, 30, seed=2)
    post(client, stream, 14, 30, seed=3)
    point = page.locator("[data-event='anomaly-130']")
    expect(point.locator("[data-state='anomaly']")).to_have_text("◇ anomaly")
    expect(point.get_by_role("button")).to_have_text(["at 130"])  # no feedback
    change = page.locator("[data-event][data-kind='change']", has_text="at 161")
    expect(change).to_contain_text("confirmed")
    listed = page.locator("[data-event]")
    expect(listed.filter(has=page.locator("[data-state='anomaly']"))).to_have_count(1)
    until(page, "document.querySelector('.plot').data[2].x.length === 191")
    found = figure(page)
    diamonds = trace(found, "anomaly")
    assert (diamonds["x"], diamonds["marker"]["symbol"]) == ([130], "diamond-open")
    assert 130 - 0.5 not in [shape["x0"] for shape in found["shapes"]]
    kinds = page.get_by_label("List", exact=True)
    kinds.select_option("anomaly")
    expect(listed).to_have_count(1)
    expect(point).to_be_visible()
    kinds.select_option("change")
    expect(point).to_have_count(0)
    expect(change).to_be_visible()


def test_live_anomalies_are_in_the_list_of_events(page, demo, client, stream):
    post(client, stream, 10, 130)
    page.goto(f"{demo}/#/?prefix={quote(stream)}")
    expect(page.locator("#feed")).to_have_text("live")
    client.post(f"/v1/streams/{stream}/observations", json=[{"y": 19.0}])
    newest = page.locator(".recent li", has=page.locator("[data-state='anomaly']"))
    expect(newest).to_contain_text("◇ anomaly")
    expect(newest).to_contain_text("at 130 ▲ up by")


def test_a_verdict_is_kept_and_shown(page, demo, client, stream):
    post(client, stream, 10, 40)
    post(client, stream, 14, 40, seed=2)
    page.goto(f"{demo}/#/streams/{stream}")
    event = page.locator("[data-event='1']")
    expect(event).to_contain_text("mean rose by")
    page.get_by_role("button", name="Not a change: event 1").click()
    expect(event).to_contain_text("withdrawn")
    expect(event).not_to_contain_text("mean rose by")
    pressed = page.get_by_role("button", name="Not a change: event 1")
    expect(pressed).to_have_attribute("aria-pressed", "true")
    expect(pressed).to_be_focused()
    events = client.get(f"/v1/streams/{stream}/changepoints").json()["events"]
    assert [(each["state"], each["verdict"]) for each in events] == [("withdrawn", False)]
    page.get_by_label("Report a missed change at observation").fill("40")
    page.get_by_role("button", name="Report", exact=True).click()
    expect(page.locator("[data-event='2']")).to_contain_text("confirmed")
    expect(page.locator("#announce")).to_contain_text("Saved: change at 40 reported")


def test_the_segmentation_is_shown_as_what_it_is(page, demo, client, stream):
    post(client, stream, 10, 40)
    post(client, stream, 14, 40, seed=2)
    page.goto(f"{demo}/#/streams/{stream}")
    said = page.locator("#regimes")
    expect(said).to_have_text(
        "Best segmentation, in hindsight up to observation 79: regimes begin at 40."
    )


def test_what_if_is_shown_beside_what_was_and_changes_nothing(page, demo, client):
    before = client.get("/v1/streams/nile").json()
    page.goto(f"{demo}/#/streams/nile")
    drawn(page)
    hazard = page.get_by_label("Hazard", exact=True)
    expect(hazard).to_have_value("0.01")
    page.get_by_label("Hazard, slider").press("ArrowRight")
    expect(hazard).to_have_value("0.0102")
    hazard.fill("0.2")
    page.get_by_role("button", name="Rerun").click()
    expect(page.locator("#what-if-result")).to_contain_text("Mean log score")
    body = {"settings": {"hazard": 0.2, "outlier_rate": 0.01}, "series": True}
    expected = client.post("/v1/streams/nile/what-if", json=body).json()
    until(page, "document.querySelector('.plot').data.length === 9")
    found = figure(page)
    tried = trace(found, "P(changed), what if")["y"]
    assert tried == pytest.approx(expected["changed_probability"], abs=1e-9)
    assert trace(found, "P(changed)")["y"] != tried
    starts = [e["start"] - 0.5 for e in expected["events"] if e["state"] != "withdrawn"]
    assert [s["x0"] for s in found["shapes"] if s["line"]["dash"] == "dashdot"] == starts
    assert client.get("/v1/streams/nile").json() == before
    page.get_by_role("button", name="Reset", exact=True).click()
    until(page, "document.querySelector('.plot').data.length === 7")


def test_the_threshold_is_drawn_and_withdrawn_changes_are_folded(page, demo, client, stream):
    client.put(f"/v1/streams/{stream}", json={"confirm_probability": 0.97}).raise_for_status()
    rng = random.Random(7)
    body = [{"y": 10 + rng.gauss(0, 0.6) + 4 * (i in (45, 46, 80, 81))} for i in range(120)]
    client.post(f"/v1/streams/{stream}/observations", json=body).raise_for_status()
    post(client, stream, 14, 20, seed=3)
    events = client.get(f"/v1/streams/{stream}/changepoints").json()["events"]
    withdrawn = [each["id"] for each in events if each["state"] == "withdrawn"]
    shown = [each["id"] for each in events if each["state"] != "withdrawn"]
    assert withdrawn
    assert shown
    page.goto(f"{demo}/#/streams/{stream}")
    assert drawn(page)["threshold"] == 0.97
    expect(page.locator(".annotation-text", has_text="confirmed at 97 %")).to_be_visible()
    listed = page.locator("[data-event][data-kind='change']")
    expect(listed).to_have_count(len(shown))
    fold = page.get_by_role("button", name="withdrawn change")
    expect(fold).to_have_attribute("aria-expanded", "false")
    fold.click()
    expect(listed).to_have_count(len(events))
    expect(fold).to_be_focused()
    expect(page.get_by_role("columnheader", name="P(start here)")).to_have_attribute(
        "title", re.compile("exactly this observation")
    )
    client.put(f"/v1/streams/{stream}", json={"confirm_after": 9}).raise_for_status()
    until(page, "!document.querySelector('.plot').layout.shapes.some((e) => e.xref === 'paper')")


def test_numbers_keep_their_differences(page, demo, client, stream):
    client.put(f"/v1/streams/{stream}", json={"location": 1e6, "scale": 0.2}).raise_for_status()
    body = [{"y": 1_000_000 + (1 + 2 * (i % 2)) / 10} for i in range(40)]
    client.post(f"/v1/streams/{stream}/observations", json=body).raise_for_status()
    page.goto(f"{demo}/#/?q={stream}")
    expect(page.get_by_role("row", name=stream)).to_contain_text("1,000,000.3")
    page.goto(f"{demo}/#/streams/{stream}")
    assert trace(drawn(page), "label")["hovertemplate"].startswith("%{y:.10~g}")
    page.get_by_text("View as tables").click()
    newest = page.locator(".tables table").first.get_by_role("row")
    expect(newest.nth(1)).to_contain_text("1,000,000.3")
    expect(newest.nth(2)).to_contain_text("1,000,000.1")
    ticks = page.eval_on_selector_all(".ytick text", "all => all.map((e) => e.textContent)")
    values = [each for each in ticks if each.startswith(("1,000,000", "999,999"))]
    assert len(set(values)) == len(values) >= 2


def test_the_belief_of_a_long_stream_is_there_unasked(page, demo, client, stream):
    post(client, stream, 10, 900)
    page.goto(f"{demo}/#/streams/{stream}")
    expect(page.locator("#belief-note")).to_contain_text("come from a rerun")
    cells = "document.querySelector('.plot').data?.at(-1).z?.flat() ?? []"
    until(page, f"({cells}).filter((each) => each !== null).length > 500")


def test_what_if_of_a_model_a_false_alarm_rate_and_a_delay(page, demo, client, stream):
    post(client, stream, 10, 60)
    post(client, stream, 13, 40, seed=2)
    page.goto(f"{demo}/#/streams/{stream}")
    drawn(page)
    rerun, result = page.get_by_role("button", name="Rerun"), page.locator("#what-if-result")

    def tried(**settings):
        path = f"/v1/streams/{stream}/what-if"
        return client.post(path, json={"settings": settings}).json()

    page.get_by_label("Confirm after, observations").fill("25")
    rerun.click()
    (event,) = [e for e in tried(confirm_after=25)["events"] if e["state"] == "confirmed"]
    assert event["confirmed_at"] - event["suspected_at"] >= 24
    expect(result.get_by_role("row").nth(1)).to_contain_text("confirmed")
    page.get_by_label("False alarms per 1,000").fill("2")
    expect(page.get_by_label("Confirm after, observations")).to_have_value("")  # not both
    page.get_by_label("Model", exact=True).select_option("averaged")
    rerun.click()
    answer = tried(model="averaged", sensitivity={"false_alarms_per_1000": 2})
    score = f"{answer['mean_log_score']:.4g}".replace("-", "−")
    expect(result).to_contain_text(f"Mean log score {score}")
    page.get_by_role("button", name="Apply these settings").click()
    expect(result).to_contain_text("now uses these settings")
    summary = client.get(f"/v1/streams/{stream}").json()
    assert summary["model"].startswith("averaged@")
    assert summary["settings"]["sensitivity"] == {"false_alarms_per_1000": 2}
    level = "document.querySelector('.plot').layout.shapes.find((e) => e.xref === 'paper')?.y0"
    until(page, f"{level} === {summary['sensitivity']['threshold']}")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("width", [390, 768, 1024, 1440])
def test_feedback_can_be_reached_at_every_width(watched, demo, width):
    page = watched(demo, viewport={"width": width, "height": 800}).page
    page.goto(f"{demo}/#/streams/nile")
    button = page.get_by_role("button", name="Not a change: event 1")
    button.scroll_into_view_if_needed()
    box, card = button.bounding_box(), page.locator("#card-events").locator("..").bounding_box()
    assert card["x"] <= box["x"]
    assert box["x"] + box["width"] <= card["x"] + card["width"] <= width


def test_settings_that_were_tried_can_be_used(page, demo, client, stream):
    post(client, stream, 10, 40)
    page.goto(f"{demo}/#/streams/{stream}")
    page.get_by_label("Outlier rate", exact=True).fill("0.05")
    page.get_by_label("Outlier rate", exact=True).press("Enter")
    page.get_by_role("button", name="Apply these settings").click()
    expect(page.locator("#what-if-result")).to_contain_text("now uses these settings")
    assert client.get(f"/v1/streams/{stream}").json()["settings"]["outlier_rate"] == 0.05
    expect(page.locator("dl.pairs")).to_contain_text("0.05")


def test_what_was_tried_is_applied_whatever_the_fields_say_by_then(page, demo, client, stream):
    post(client, stream, 10, 40)
    page.goto(f"{demo}/#/streams/{stream}")
    drawn(page)
    held = []
    page.route("**/what-if", lambda route: held.append(route))
    rate = page.get_by_label("Outlier rate", exact=True)
    rate.fill("0.05")
    with page.expect_request("**/what-if"):
        rate.press("Enter")
    rate.fill("0.2")
    page.get_by_label("Model", exact=True).select_option("averaged")
    held[0].continue_()
    page.get_by_role("button", name="Apply these settings").click()
    expect(page.locator("#what-if-result")).to_contain_text("now uses these settings")
    summary = client.get(f"/v1/streams/{stream}").json()
    assert summary["settings"]["outlier_rate"] == 0.05
    assert not summary["model"].startswith("averaged@")


def test_what_if_before_the_stream_is_known(page, demo, client, stream):
    post(client, stream, 10, 40)
    held = []
    page.route("**/observations/live*", lambda route: held.append(route))
    page.goto(f"{demo}/#/streams/{stream}")
    page.get_by_label("Outlier rate", exact=True).fill("0.05")
    page.get_by_label("Outlier rate", exact=True).press("Enter")
    hazard, rerun = (
        page.get_by_label("Hazard", exact=True),
        page.get_by_role("button", name="Rerun"),
    )
    expect(rerun).to_have_attribute("aria-disabled", "true")
    expect(hazard).to_have_value("")
    held[0].continue_()
    expect(page.locator("#what-if-result")).to_contain_text("Mean log score")
    present = hazard.input_value()
    assert present
    hazard.fill("")  # as now
    hazard.blur()
    expect(hazard).to_have_value(present)


def test_problems_are_shown_as_the_service_says_them(watched, demo):
    page = watched(demo, errors=("404", "422")).page
    page.goto(f"{demo}/#/streams/nobody")
    expect(page.get_by_role("alert")).to_contain_text("there is no stream 'nobody'")
    expect(page.get_by_role("alert")).to_contain_text("unknown-stream")
    expect(page.locator("#feed")).to_have_text("server error, retrying")
    expect(page.get_by_role("heading")).to_have_text(["nobody"])  # no empty chart, no settings
    page.goto(f"{demo}/#/models")
    expect(page.get_by_role("link", name="gaussian")).to_be_visible()
    expect(page.locator("#feed")).to_be_hidden()
    page.goto(f"{demo}/#/streams/nile")
    drawn(page)
    expect(page.get_by_role("heading", name="Events")).to_be_visible()
    page.get_by_label("Hazard", exact=True).fill("1")
    page.get_by_role("button", name="Rerun").click()
    expect(page.get_by_role("alert")).to_contain_text("body.settings.hazard")


def test_models_with_their_reports_and_sensitivity(page, demo):
    page.goto(demo)
    page.get_by_role("link", name="Models").click()
    page.get_by_role("link", name="regimes").click()
    expect(page.get_by_role("heading", name="Training report")).to_be_visible()
    expect(page.get_by_text("0.6316 (0.5828 to 0.6804)")).to_be_visible()
    expect(page.locator(".plot[data-drawn]")).to_have_count(3)
    expect(page.locator(".plot[data-drawn]").nth(1)).to_have_attribute(
        "aria-label", re.compile("False alarms per 1,000 observations fall from 7.827")
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_by_the_system_and_by_choice(watched, demo, scheme):
    page = watched(demo, color_scheme=scheme).page
    page.goto(f"{demo}/#/streams/nile")
    drawn(page)
    shade = "getComputedStyle(document.body).backgroundColor"
    own, dark = page.evaluate(shade), "rgb(15, 20, 25)"
    assert (own == dark) == (scheme == "dark")
    line = trace(figure(page), "label")["line"]["color"]
    button = page.get_by_role("button", name="Theme")
    button.click()
    if scheme == "light":
        button.click()  # auto, light, dark
    assert page.evaluate(shade) != own
    until(page, f"document.querySelector('.plot').data[3].line.color !== '{line}'")


def test_narrow_screens_need_no_scrolling_sideways(watched, demo):
    page = watched(demo, viewport={"width": 360, "height": 740}).page
    for place in ("#/", "#/changes?span=all", "#/streams/nile", "#/models", "#/models/regimes"):
        page.goto(f"{demo}/{place}")
        page.wait_for_selector("main .card")
        page.wait_for_timeout(500)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, place


def test_the_page_says_when_the_service_is_away_and_comes_back(watched, cable, client, stream):
    post(client, stream, 10, 30)
    page = watched(cable.url, errors=("ERR_",)).page
    page.goto(f"{cable.url}/#/streams/{stream}")
    drawn(page)
    expect(page.locator("#feed")).to_have_text("live")
    cable.cut()
    expect(page.get_by_role("alert")).to_contain_text("Service unreachable")
    expect(page.locator("#feed")).to_have_text("connection lost, retrying")
    post(client, stream, 10, 10, seed=2)
    cable.mend()
    expect(page.get_by_role("alert")).to_have_count(0)
    until(page, "document.querySelector('.plot').data[2].x.length === 40")


def test_without_plotting_code_there_are_tables(page, demo):
    def without(route):
        answer = route.fetch()
        text = re.sub(r'(name="moca-plotly" content=")[^"]+', r"\1", answer.text())
        route.fulfill(response=answer, body=text)

    page.route(f"{demo}/", without)
    page.goto(f"{demo}/#/streams/nile")
    expect(page.locator(".plot")).to_contain_text("moca-service[console]")
    page.get_by_text("View as tables").click()
    expect(page.locator(".tables table").first).to_contain_text("1970-01-01")
    expect(page.locator("[data-event='1']")).to_contain_text("#1 at 28")
    page.get_by_role("button", name="Rerun").click()
    expect(page.locator("#what-if-result")).to_contain_text("Mean log score")


def test_a_flood_of_changes_is_summed_up(page, demo, client):
    prefix = "flood-"
    settings = {"model": "gaussian", "location": 0.0, "scale": 1.0, "confirm_after": 3}
    names = [f"{prefix}{i:03d}" for i in range(100)]
    for name in names:
        client.put(f"/v1/streams/{name}", json=settings)
    page.goto(f"{demo}/#/?prefix={prefix}")
    expect(page.locator("#feed")).to_have_text("live")
    expect(page.locator(".streams tbody tr")).to_have_count(25)
    for level in (0.0, 9.0):
        for k in range(8):
            items = [{"stream": name, "y": level + (k % 3) / 9} for name in names]
            assert all(
                e["status"] == 200 for e in client.post("/v1/observations", json=items).json()
            )
    confirmed = "document.querySelectorAll(\".recent .badge[data-state='confirmed']\").length"
    until(page, f"{confirmed} === 12")
    assert page.locator(".recent li").count() == 12
    expect(page.locator("#announce")).to_contain_text(re.compile(r"And \d+ more"))
    expect(page.locator(".streams tbody tr").first).to_contain_text("up by")


KINDS = {
    "empty": ({}, []),
    "new": ({}, [{"y": 1.0}, {"y": 2.0}, {"y": None}]),
    "constant": ({}, [{"y": 3.0}] * 30),
    "forgetful": ({"history": 0}, [{"y": float(i % 5)} for i in range(40)]),
    "classes": ({"model": "categorical", "classes": 4}, [{"y": i % 4} for i in range(40)]),
    "bits": ({"model": "bernoulli"}, [{"y": i % 2} for i in range(40)]),
    "several": ({}, [{"y": [float(i % 5), float(i % 3)]} for i in range(40)]),
    "waits": (
        {"model": "linear"},
        [
            *({"x": [i % 7 / 7], "y": i % 7 + i % 2 / 9} for i in range(40)),
            {"x": [1], "pending": True},
        ],
    ),
    "durations": ({"hazard": {"mean": 50, "shape": 5}}, [{"y": float(i % 5)} for i in range(40)]),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_stream_is_drawn(page, demo, client, kind):
    settings, observations = KINDS[kind]
    client.put(f"/v1/streams/kind-{kind}", json=settings)
    if observations:
        path = f"/v1/streams/kind-{kind}/observations"
        assert client.post(path, json=observations).status_code == 200
    page.goto(f"{demo}/#/streams/kind-{kind}")
    found = drawn(page)
    shown = 0 if kind == "forgetful" else sum("pending" not in each for each in observations)
    assert len(trace(found, "label")["x"]) == shown
    page.get_by_text("View as tables").click()
    expect(page.locator(".tables table").first).to_be_visible()
    assert page.input_value("#hazard") != ""
    page.goto(f"{demo}/#/?prefix=kind-{kind}")
    expect(page.get_by_role("row", name=kind)).to_be_visible()
