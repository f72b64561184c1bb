"""The console in Chromium: what it shows of the answers it gets, and what it asks and sends.

`test_real.py` shows that the answers are those of a service.
"""

import copy
import itertools
import json
import re

import pytest

from tests.e2e.console.fake import changes, observations
from tests.waiting import until

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
PAGES = (
    "#/?span=all",
    "#/streams",
    "#/streams/pump",
    "#/incidents/{incident}",
    "#/models",
    "#/models/regimes",
    "#/calendar",
    "#/api",
    "#/nowhere",
)
WIDTHS = (320, 390, 768, 1024, 1440)
DAY = re.compile(r"^\d{4}-\d\d-\d\d$")
VALUES = ".plot"  # the first chart of a stream's page
LABELS = f"document.querySelector('{VALUES}').data[3].x.length"
FOLDS = (
    "Evidence over time",
    "Where it began",
    "All changes",
    "What if",
    "Run-length belief",
    "Settings and model",
    "Values as a table",
)


def drawn(page):
    """Wait until the chart of values is there; its figure as plotly has it."""
    page.wait_for_selector(f"{VALUES}[data-drawn]")
    return figure(page)


def figure(page, fold=None):
    """The figure of the values, or of the chart in a fold, as plotly has it."""
    box = page.locator(VALUES).first if fold is None else fold_of(page, fold).locator(".plot")
    return json.loads(
        box.evaluate("({ data, layout }) => JSON.stringify({ data, shapes: layout.shapes ?? [] })")
    )


def fold_of(page, title):
    return page.locator(".folds > details", has=page.locator("summary", has_text=title))


def unfold(page, title):
    """Open a fold, and wait for its chart if it has one."""
    fold = fold_of(page, title)
    fold.locator("summary").click()
    if title in ("Evidence over time", "Run-length belief"):
        fold.locator(".plot[data-drawn]").wait_for()
    return fold


def trace(found, name):
    return next(each for each in found["data"] if each.get("name") == name)


def seen(page, condition):
    """Wait for a condition in JavaScript; playwright's own way evaluates text in the page."""
    until(lambda: page.evaluate(condition), lambda: condition)


def starts(found):
    """Where intervals of starts stand, and where the tried starts do."""
    bands = [each for each in found["shapes"] if each.get("name") == "start"]
    tried = [each for each in found["shapes"] if each["line"].get("dash") == "dashdot"]
    return [(each["x0"] + 0.5, each["x1"] - 0.5) for each in bands], [
        each["x0"] + 0.5 for each in tried
    ]


def test_a_stream_is_found_in_the_list_and_drawn_with_its_change(page, fake):
    page.goto(f"{fake.url}/#/streams")
    expect(page.get_by_role("link", name="bits")).to_be_visible()
    expect(page.locator("#count")).to_have_text(f"{len(observations())} streams")
    page.get_by_label("Search ids").fill("um")
    expect(page.get_by_role("row")).to_have_count(2)
    assert fake.asked("GET", "/v1/overview")[-1][0]["contains"] == "um"
    row = page.get_by_role("row").last
    expect(row).to_contain_text("20 of 60")
    row.get_by_role("link", name="pump").click()
    expect(page).to_have_title("pump · MOCA console")
    chart = drawn(page)
    (event,) = changes(fake.answers["GET /v1/streams/pump/changepoints"])
    expect(page.get_by_role("heading", level=1)).to_contain_text(event["sentence"][1:])
    expect(page.get_by_role("heading", level=1)).to_contain_text("at 1940-01-01")
    expect(page.locator("#verdict")).to_contain_text("Confirmed at 1941-01-01; steady since")
    _, seen_y = observations()["pump"]
    values = trace(chart, "value")
    assert (values["x"], values["y"]) == (list(range(60)), [each["y"] for each in seen_y])
    assert values["customdata"][28] == "1928-01-01"
    band = trace(chart, "forecast, 90 %")
    assert sum(high is not None for high in band["y"]) >= 55
    ahead = fake.answers["POST /v1/streams/pump/predictions"]["predictions"][0]
    assert band["y"][-1] == pytest.approx(ahead["predictive"]["quantiles"]["0.95"][0])
    assert trace(chart, "anomaly")["x"] == [20]
    assert starts(chart) == ([(event["earliest"], event["latest"])], [])
    levels = [each["y0"] for each in chart["shapes"] if each.get("yref") != "paper"]
    assert levels == [event["before"]["mean"], event["after"]["mean"]]
    expect(page.locator(VALUES).first).to_have_attribute(
        "aria-label", re.compile(r"1 confirmed change, the last at 40\.")
    )
    axis = page.evaluate(f"document.querySelector('{VALUES}')._fullLayout.xaxis.range")
    assert axis[0] == -0.5  # nothing is drawn where nothing is
    expect(fold_of(page, "Where it began").locator("summary")).to_contain_text(" with ")
    unfold(page, "All changes")
    expect(page.locator("#regimes")).to_contain_text("observation 59: regimes begin at 40.")
    unfold(page, "Run-length belief")
    expect(page.locator("#belief-note")).to_contain_text("come from a rerun")
    heat = figure(page, "Run-length belief")["data"][-1]
    last = {row: 10 ** column[-1] for row, column in enumerate(heat["z"]) if column[-1] is not None}
    for each in fake.answers["GET /v1/streams/pump/run-length"]["belief"]:
        if each["probability"] > 0.001:
            assert last[each["run_length"]] == pytest.approx(each["probability"], rel=1e-3)
    table = unfold(page, "Values as a table")
    expect(table.get_by_role("row").nth(1)).to_contain_text("1959-01-01")
    with page.expect_download() as download:
        table.get_by_role("button", name="Download as CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0] == "seq,time,value,evidence"
    assert lines[1].startswith(f"0,1900-01-01T00:00:00Z,{seen_y[0]['y']},")
    assert len(lines) == 61
    page.goto(f"{fake.url}/#/streams/pump?at=40")  # the link of a change
    seen(page, f"document.querySelector('{VALUES}')._fullLayout?.xaxis.range[0] > 10")
    page.get_by_role("button", name="Reset zoom").click()
    seen(page, f"document.querySelector('{VALUES}')._fullLayout?.xaxis.range[0] < 0")
    page.goto(f"{fake.url}/#/streams/pump?window=2000&at=-5")
    expect(page.get_by_text("is older than what can be shown")).to_be_visible()


def test_remembered_regimes_are_a_band_and_a_list_with_names(page, fake):
    def remembered(id_, name=None):
        predictive = {"mean": [10.0 + 4 * (id_ == 2)], "variance": [[0.25]], "quantiles": {}}
        about = {"id": id_, "name": name, "probability": 0.9, "seen": 2, "last_seen": 39}
        return about | {"predictive": predictive}

    path = "/v1/streams/pump"
    summary = copy.deepcopy(fake.answers[f"GET {path}"])
    summary["settings"]["regimes"] = 4
    summary["regime"] = {"id": 2, "name": None, "probability": 0.97, "seen": 1, "last_seen": 39}
    fake.answers[f"GET {path}"] = summary
    history = copy.deepcopy(fake.answers[f"GET {path}/history"])
    for row in history["observations"][10:]:
        id_ = 1 + (row["seq"] >= 40)
        row["regime"] = {"id": id_, "name": None, "probability": 0.9, "seen": 1, "last_seen": 9}
    fake.answers[f"GET {path}/history"] = history
    fake.answers[f"GET {path}/regimes"] = {"regimes": [remembered(1), remembered(2)]}
    fake.answers[f"PUT {path}/regimes/2"] = lambda _, body: remembered(2, body["name"])
    page.goto(f"{fake.url}/#/streams/pump")
    drawn(page)

    def band():
        return [
            (each["x0"] + 0.5, each["x1"] - 0.5)
            for each in figure(page)["shapes"]
            if each.get("name") == "regime"
        ]

    assert band() == [(10, 39), (40, 59)]
    fold = fold_of(page, "Remembered regimes")
    expect(fold.locator("summary")).to_contain_text("now regime 2, with 97")
    fold.locator("summary").click()
    expect(fold.get_by_role("row")).to_have_count(3)
    expect(fold.get_by_role("row").last).to_contain_text("14")
    fold.get_by_label("Name of regime 2", exact=True).fill("night shift")
    fold.get_by_role("button", name="Save the name of regime 2").click()
    expect(fold).to_contain_text("Saved: night shift.")
    assert fake.asked("PUT", f"{path}/regimes/2")[-1][1] == {"name": "night shift"}
    seen(page, f"JSON.stringify(document.querySelector('{VALUES}').layout).includes('night shift')")
    page.goto(f"{fake.url}/#/streams/bits")
    drawn(page)
    expect(fold_of(page, "Remembered regimes")).to_be_hidden()


def test_every_kind_of_stream_is_drawn(page, fake):
    for name, (settings, posted) in observations().items():
        page.goto(f"{fake.url}/#/streams/{name}")
        expect(page).to_have_title(f"{name} · MOCA console")
        chart = drawn(page)
        shown = sum("pending" not in each for each in posted) * (settings.get("history") != 0)
        assert len(trace(chart, "value")["x"]) == shown, name
        for title in FOLDS:
            unfold(page, title)
        expect(fold_of(page, "Values as a table").locator("table")).to_be_visible()
        seen(page, "document.querySelector('#outlier-rate').value !== ''")
        learned = settings.get("hazard") is None
        assert page.evaluate("document.querySelector('#hazard').value === ''") == learned, name
        if name == "millions":  # numbers keep their differences
            rows = fold_of(page, "Values as a table").get_by_role("row")
            expect(rows.nth(1)).to_contain_text("1,000,000.3")
            expect(rows.nth(2)).to_contain_text("1,000,000.1")


def test_a_period_by_the_service_is_shown_in_observations_and_days(page, fake):
    period = {"observations_per_day": 1440.0, "false_alarm_every": 299_520.0, "days": 208.0}
    fake.answers["GET /v1/streams/pump"]["alarm_period"] = period
    page.goto(f"{fake.url}/#/streams/pump")
    unfold(page, "Settings and model")
    expect(page.locator(".facts")).to_contain_text("once in 300,000, one in 208 days")


def test_a_stream_is_followed_by_messages_and_nothing_is_asked_by_the_clock(opened, fake):
    page = opened(fake.url, own=True)
    page.clock.install()
    page.goto(f"{fake.url}/#/streams/pump")
    drawn(page)
    expect(page.locator("#feed")).to_have_text("live")
    unfold(page, "Settings and model")
    unfold(page, "Run-length belief")
    expect(page.locator("#belief-note")).to_contain_text("come from a rerun")
    path = "/v1/streams/pump/observations/live"
    assert [query for query, _ in fake.asked("GET", path)] == [{"state": "true", "detail": "full"}]
    assert fake.asked("GET", "/v1/events") == []  # one connection a page
    before = len(fake.requests)
    page.clock.run_for(30_000)
    assert fake.requests[before:] == []
    new = fake.answers["observation"] | {"seq": 60, "y": 13.5, "time": "1960-01-01T00:00:00Z"}
    fake.send("observation", new, "60@1")
    fake.send("state", fake.answers["state"] | {"seq": 61}, "60@1")
    until(lambda: page.clock.run_for(200) or page.evaluate(LABELS) == 61)
    expect(page.locator(".facts")).to_contain_text("61")
    until(lambda: page.clock.run_for(500) or fake.requests[before:])
    until(lambda: page.clock.run_for(500) or len(fake.requests[before:]) > 1)
    read = {f"/v1/streams/pump/{each}" for each in ("run-length", "predictions")}
    assert {each[1] for each in fake.requests[before:]} == read
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#feed")).to_have_text("paused")
    page.get_by_role("button", name="Follow").click()
    expect(page.locator("#feed")).to_have_text("live")
    until(lambda: fake.cursors[-1] == "60@1")
    assert len(fake.asked("GET", "/v1/streams/pump/history")) == 1  # what was missed is sent
    # An event in the summary that was not read yet: a change that is told.
    answer = copy.deepcopy(fake.answers["GET /v1/streams/pump/changepoints"])
    (event,) = changes(answer)
    answer["events"].append(event | {"id": 2, "start": 55, "suspected_at": 57})
    fake.answers["GET /v1/streams/pump/changepoints"] = answer
    last = {"id": 2, "state": "confirmed"}
    fake.send("state", fake.answers["state"] | {"seq": 61, "last_event": event | last}, "60@1")
    until(lambda: page.clock.run_for(500) or page.locator("[data-event='2']").count())
    expect(page.locator("#announce")).to_contain_text(f"pump: {event['sentence']}")


def test_of_several_outputs_the_one_that_changed_is_shown_by_its_number(page, fake):
    (event,) = changes(fake.answers["GET /v1/streams/pump/changepoints"])
    explanation = event["explanation"] | {"output": 1}
    answer = copy.deepcopy(fake.answers["GET /v1/streams/several/changepoints"])
    answer["events"] = [event | {"start": 12, "explanation": explanation}]
    fake.answers["GET /v1/streams/several/changepoints"] = answer
    page.goto(f"{fake.url}/#/streams/several")
    chosen = page.get_by_label("Output")
    expect(chosen.locator("option")).to_have_text(["1", "2"])
    expect(chosen.locator("option:checked")).to_have_text("2")
    chosen.select_option("1")
    expect(chosen.locator("option:checked")).to_have_text("1")


def test_feedback_is_sent_and_withdrawn_changes_are_folded(page, fake):
    page.goto(f"{fake.url}/#/streams/pump")
    drawn(page)
    unfold(page, "All changes")
    event = page.locator("[data-event='1']")
    (change,) = changes(fake.answers["GET /v1/streams/pump/changepoints"])
    expect(event).to_contain_text(change["sentence"][1:])
    listed = page.locator("[data-event]")
    expect(listed).to_have_count(2)
    page.get_by_label("List", exact=True).select_option("anomaly")
    expect(listed).to_have_count(1)
    expect(page.locator("[data-event='anomaly-20']").get_by_role("button")).to_have_text(["at 20"])
    page.get_by_label("List", exact=True).select_option("all")
    fake.answers["PUT /v1/streams/pump/changepoints/1"] = fake.answers["verdict"]
    fake.answers["GET /v1/streams/pump/changepoints"] = fake.answers["judged"]
    event.get_by_role("button", name="No change: event 1").click()
    expect(event).to_contain_text("withdrawn")
    pressed = event.get_by_role("button", name="No change: event 1")
    expect(pressed).to_have_attribute("aria-pressed", "true")
    expect(pressed).to_be_focused()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Steady for 60 observations")
    sent = fake.asked("PUT", "/v1/streams/pump/changepoints/1")
    assert [body for _, body in sent] == [{"change": False}]
    fake.answers["POST /v1/streams/pump/changepoints"] = fake.answers["verdict"]
    folded = copy.deepcopy(fake.answers["judged"])
    folded["events"].append(folded["events"][0] | {"id": 2, "verdict": None})
    fake.answers["GET /v1/streams/pump/changepoints"] = folded
    page.get_by_label("Report a missed change at observation").fill("42")
    page.get_by_role("button", name="Report", exact=True).click()
    expect(page.locator("#announce")).to_contain_text("change at 42 reported")
    assert fake.asked("POST", "/v1/streams/pump/changepoints")[0][1] == {"start": 42}
    fold = page.get_by_role("button", name="Show 1 withdrawn change")
    expect(listed).to_have_count(2)
    fold.click()
    expect(listed).to_have_count(3)


def test_what_was_not_normal_is_excluded_and_shaded(page, fake):
    page.goto(f"{fake.url}/#/streams/pump")
    assert not [each for each in drawn(page)["shapes"] if each.get("name") == "excluded"]
    history = copy.deepcopy(fake.answers["GET /v1/streams/pump/history"])
    for each in history["observations"][20:23]:
        each["excluded"] = {"window": "backups"}
    for each in history["observations"][40:]:
        each["excluded"] = {"window": None}

    def exclude(query, body):
        fake.answers["GET /v1/streams/pump/changepoints"] = fake.answers["excluded"]
        fake.answers["GET /v1/streams/pump/history"] = history
        return {}

    fake.answers["POST /v1/streams/pump/exclusions"] = exclude
    button = page.get_by_role("button", name="Not normal: event 1").first
    expect(button).to_have_attribute("aria-pressed", "false")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#announce")).to_contain_text("event 1: excluded from learning")
    expect(page.locator("#verdict")).to_contain_text("Excluded from learning")
    (sent,) = fake.asked("POST", "/v1/streams/pump/exclusions")
    assert sent[1] == {"event": 1, "excluded": True}
    page.reload()
    shapes = [each for each in drawn(page)["shapes"] if each.get("name") == "excluded"]
    assert [(each["x0"], each["x1"]) for each in shapes] == [(19.5, 22.5), (39.5, 59.5)]
    expect(page.locator(VALUES).first).to_contain_text("backups")
    expect(page.locator(VALUES).first).to_have_attribute(
        "aria-label", re.compile("23 observations excluded from learning")
    )
    expect(button).to_have_attribute("aria-pressed", "true")
    with page.expect_response("**/exclusions"):  # a click does not wait for what it sends
        button.click()
    assert fake.asked("POST", "/v1/streams/pump/exclusions")[1][1]["excluded"] is False


def test_an_incident_that_was_not_normal_is_excluded(page, fake):
    incident = fake.show_incident()
    path = f"/v1/incidents/{incident['id']}"

    def exclude(query, body):
        fake.answers[f"GET {path}"] = after
        return {"failed": [{"stream": "north.heat"}]}

    fake.answers[f"POST {path}/exclusions"] = exclude
    page.goto(f"{fake.url}/#/incidents/{incident['id']}")
    after = copy.deepcopy(incident)
    for each in after["changes"]:
        each["excluded"] = True
    button = page.get_by_role("button", name="Not normal")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("alert")).to_contain_text("north.heat")
    assert fake.asked("POST", f"{path}/exclusions")[0][1] == {"excluded": True}


def test_the_calendar_is_listed_and_changed(page, fake):
    window = fake.answers["GET /v1/calendar"]["windows"][0]
    page.goto(f"{fake.url}/#/calendar")
    expect(page.get_by_role("heading", level=1)).to_have_text("1 planned window")
    row = page.get_by_role("row").nth(1)
    for text in ("backups", "of databases", "next 20", "every day", '{job="db"}'):
        expect(row).to_contain_text(text)
    fake.answers["PUT /v1/calendar/works"] = {}
    fake.answers["GET /v1/calendar"] = {
        "windows": [window, {**window, "name": "works"}],
        "times": [],
    }
    page.get_by_role("textbox", name="Name").fill("works")
    page.get_by_label("From, local time").fill("2024-05-04T22:00")
    page.get_by_label("To, local time").fill("2024-05-05T02:00")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_label("Repeated").select_option("every week")
    page.get_by_label("Streams with tags").fill('{site="eu"}')
    page.get_by_role("button", name="Set window").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("2 planned windows")
    assert fake.asked("PUT", "/v1/calendar/works")[0][1] == {
        "start": "2024-05-04T22:00",
        "end": "2024-05-05T02:00",
        "time_zone": "Europe/Berlin",
        "repeat": "FREQ=WEEKLY",
        "match": ['{site="eu"}'],
        "note": "",
    }
    fake.answers["DELETE /v1/calendar/works"] = {}
    fake.answers["GET /v1/calendar"] = {"windows": [], "times": []}
    page.get_by_role("button", name="Remove window works").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("No planned windows")


def test_what_if_is_shown_beside_what_was_and_applied_as_it_was_tried(page, fake):
    page.goto(f"{fake.url}/#/streams/pump")
    drawn(page)
    unfold(page, "What if")
    path, result = "/v1/streams/pump/what-if", page.locator("#what-if-result")
    hazard, rerun = (
        page.get_by_label("Hazard", exact=True),
        page.get_by_role("button", name="Rerun"),
    )
    expect(hazard).to_have_value("0.02")
    page.get_by_label("Hazard, slider").press("ArrowRight")
    expect(hazard).to_have_value("0.0204")
    hazard.fill("0.2")
    page.get_by_label("Confirm after, observations").fill("25")
    page.get_by_label("Confirm at evidence of 1 in").fill("100000")
    expect(page.get_by_label("Confirm after, observations")).to_have_value("")  # not both
    page.get_by_label("Model", exact=True).select_option("averaged")
    held = []
    page.route(f"**{path}", lambda route: held.append(route))
    fake.answers[f"POST {path}"] = fake.answers["what-if"]
    rerun.click()
    until(lambda: page.evaluate("1") and held)
    hazard.fill("0.3")  # before the answer comes
    held[0].continue_()
    expect(result).to_contain_text("Mean log score")
    asked = {"hazard": 0.2, "false_alarm_every": 100_000, "model": "averaged"}
    assert fake.asked("POST", path)[-1][1]["settings"] == asked
    fold_of(page, "Evidence over time").locator(".plot[data-drawn]").wait_for()  # it is opened
    seen(page, "document.querySelector('.folds .plot').data.length === 2")
    chart = figure(page, "Evidence over time")
    tried = fake.answers["what-if"]
    inside = [min(max(each, 1), 1e6) for each in tried["evidence"]]
    assert trace(chart, "evidence, what if")["y"] == inside
    events = [e["start"] for e in tried["events"] if e["state"] != "withdrawn"]
    assert starts(figure(page))[1] == events
    fake.answers["POST /v1/streams/pump/model"] = fake.answers["GET /v1/streams/pump"]
    fake.answers["PUT /v1/streams/pump"] = fake.answers["GET /v1/streams/pump"]
    page.get_by_role("button", name="Apply these settings").click()
    expect(result).to_contain_text("now uses these settings")
    assert fake.asked("POST", "/v1/streams/pump/model")[0][1] == {"model": "averaged"}
    (put,) = fake.asked("PUT", "/v1/streams/pump")
    assert put[1] == {"hazard": 0.2, "false_alarm_every": 100_000}
    page.get_by_role("button", name="Reset", exact=True).click()
    seen(page, "document.querySelector('.folds .plot').data.length === 1")
    expect(hazard).to_have_value("0.02")


def test_the_first_page_answers_how_many_changed_which_and_since_when(page, fake):
    page.goto(fake.url)
    total = len(observations())
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text(f"1 of {total} streams changed in 24 hours")
    expect(page.locator("#context")).to_contain_text(f"{total - 1} steady.")
    row = page.locator(".change")
    expect(row).to_have_count(1)
    for text in ("pump", "1940-01-01", "Mean rose by", "once in "):
        expect(row).to_contain_text(text)
    change = fake.answers["GET /v1/changes"]({"limit": "1"}, None)["changes"][0]
    assert row.locator("path.level").count() == 2
    drawn_values = row.locator("path.values").evaluate_all(
        "all => all.map(each => each.getAttribute('d').split(/[ML]/).length - 1)"
    )
    assert drawn_values == [40, 21]  # the last before the start begins the second line
    assert len(change["around"]["values"]) == 60
    queries = [query for query, _ in fake.asked("GET", "/v1/changes")]
    wanted = {"since": "24h", "state": ["confirmed", "suspected"], "limit": "25", "around": "60"}
    assert wanted in [{name: query.get(name) for name in wanted} for query in queries]
    quiet = page.locator(".steady li")
    expect(quiet).to_have_count(total - 1)
    expect(quiet.first).to_contain_text("bits")
    link = row.get_by_role("link")
    assert link.get_attribute("href") == "#/streams/pump?at=40"
    fake.answers["GET /v1/changes"] = {"changes": [], "total": 0, "streams": 0, "cursor": None}
    page.reload()
    expect(heading).to_have_text("Nothing changed in 24 hours")
    expect(page.locator("#context")).to_contain_text(f"All {total} streams are steady.")
    fake.answers["GET /v1/overview"] = {"streams": [], "total": 0, "cursor": None}
    page.reload()
    expect(heading).to_have_text("No streams yet")
    expect(page.locator("pre")).to_contain_text(f"curl {fake.url}/v1/streams/pump-7/observations")


def test_a_row_says_what_did_not_change_and_hours_of_two_days(opened, fake):
    page = opened(fake.url, timezone_id="UTC")
    listed = fake.answers["GET /v1/changes"]({"limit": "9"}, None)
    (one,) = listed["changes"]
    ends = {"count": 40, "mean": 10.0, "sd": 1.0}, {"count": 40, "mean": 14.0, "sd": 1.1}
    one |= {"before": ends[0], "after": ends[1], "earliest": 38, "latest": 41}
    times = one["around"]["times"]
    for at in range(len(times)):
        times[at] = f"2024-05-0{1 + (at >= 40)}T{(23 if at < 40 else 0):02}:{(at + 20) % 60:02}:00Z"
    fake.answers["GET /v1/changes"] = listed
    page.goto(f"{fake.url}/#/?span=all")
    row = page.locator(".change")
    expect(row).to_contain_text("pump · spread unchanged")
    expect(row.locator(".since")).to_contain_text("23:58–00:01")
    one["after"] |= {"sd": 4.0, "mean": 10.2}
    one["explanation"] |= {"kind": "spread"}
    page.reload()
    expect(row).to_contain_text("pump · mean unchanged at 10")
    one["after"] |= {"mean": 10.6}
    page.reload()
    expect(page.locator(".change figure")).to_be_visible()
    expect(row).not_to_contain_text("unchanged")


def test_the_level_of_a_regime_that_ended_is_that_of_all_its_values(page, fake):
    """At its confirmation little of it was there; the change that ended it knows all."""
    path = "GET /v1/streams/pump/changepoints"
    answer = copy.deepcopy(fake.answers[path])
    (event,) = changes(answer)
    first = copy.deepcopy(event) | {"id": 90, "start": 20, "earliest": 20, "latest": 20}
    first["after"]["mean"] = event["before"]["mean"] + 0.5
    first["before"]["mean"] = event["before"]["mean"] - 3
    answer["events"] = [first, *answer["events"]]
    fake.answers[path] = answer
    page.goto(f"{fake.url}/#/streams/pump")
    lines = [each for each in drawn(page)["shapes"] if each.get("yref") != "paper"]
    assert [(each["x0"], each["x1"], each["y0"]) for each in lines] == [
        (-0.5, 19.5, first["before"]["mean"]),
        (19.5, 39.5, event["before"]["mean"]),
        (39.5, 58.5, event["after"]["mean"]),
    ]


def test_streams_that_are_suspected_or_changed_on_later_pages_are_not_steady(page, fake):
    overview = copy.deepcopy(fake.answers["GET /v1/overview"]({"limit": "96"}, None))
    total = overview["total"]
    one, other = overview["streams"][:2]
    one["event"] = {"id": 1, "state": "suspected", "start": 3}
    fake.answers["GET /v1/overview"] = overview
    page.goto(fake.url)
    expect(page.locator("#context")).to_contain_text(f"{total - 2} steady.")
    expect(page.locator(".steady h2")).to_have_text(f"{total - 2} steady")
    quiet = page.locator(".steady li")
    expect(quiet).to_have_count(total - 2)
    expect(quiet.filter(has_text=one["stream"])).to_have_count(0)
    other["last_event"] = {"id": 1, "state": "confirmed", "start": 3, "sentence": "changed"}
    listed = fake.answers["GET /v1/changes"]
    fake.answers["GET /v1/changes"] = lambda query, body: listed(query, body) | {"cursor": "next"}
    page.reload()
    expect(quiet).to_have_count(total - 3)
    expect(quiet.filter(has_text=other["stream"])).to_have_count(0)


def test_changes_of_a_file_of_the_past_are_a_link_away(page, fake):
    listed = fake.answers["GET /v1/changes"]

    def answer(query, _):
        total = 1 if "since" in query else 36
        return {**listed(query, _), "total": total}

    fake.answers["GET /v1/changes"] = answer
    page.goto(fake.url)
    page.get_by_role("link", name="Show 35 earlier changes").click()
    expect(page.get_by_label("Time", exact=True)).to_have_value("all")
    expect(page.get_by_role("heading", level=1)).to_contain_text("so far")
    expect(page.locator("#context")).not_to_contain_text("earlier")


def test_changes_are_filtered_behind_one_button(page, fake):
    page.goto(fake.url)
    row = page.locator(".change")
    expect(row).to_have_count(1)
    expect(page.get_by_label("Size from")).to_be_hidden()
    page.keyboard.press("f")
    seen(page, "document.activeElement.id === 'state'")
    page.get_by_label("First", exact=True).select_option("size")
    page.get_by_label("Tags or id").fill("p-")
    page.get_by_label("Size from").fill("5")
    page.get_by_label("Chance from").fill("30000")
    page.get_by_label("Model").select_option("averaged")
    wanted = {"sort": "size", "contains": "p-", "min_size": "5", "model": "averaged"}
    wanted["min_evidence"] = "30000"
    until(lambda: page.evaluate("1") and _asked(fake, wanted))
    assert page.url.endswith("#/?q=p-&size=5&evidence=30000&model=averaged&sort=size")
    page.keyboard.press("Escape")
    expect(page.get_by_label("Size from")).to_be_hidden()
    page.reload()
    until(lambda: page.evaluate("1") and _asked(fake, wanted))
    page.keyboard.press("f")
    expect(page.get_by_label("Model")).to_have_value("averaged")
    page.get_by_label("Tags or id").fill("site=north, line=~a.*")
    selector = {"match": '{site="north",line=~"a.*"}'}
    until(lambda: page.evaluate("1") and _asked(fake, selector))
    page.get_by_role("button", name="Reset", exact=True).click()
    expect(page.get_by_label("Size from")).to_have_value("")
    assert page.url.endswith("#/")
    page.keyboard.press("Escape")
    page.get_by_label("Time", exact=True).select_option("all")
    until(lambda: page.evaluate("1") and "since" not in _last(fake, "/v1/changes"))
    listed = fake.answers["GET /v1/changes"]
    fake.answers["GET /v1/changes"] = lambda *call: {**listed(*call), "total": 60, "cursor": "next"}
    page.reload()
    expect(page.get_by_label("Pages of changes")).to_contain_text("of 60 changes")
    page.get_by_role("button", name="Next").click()
    until(lambda: page.evaluate("1") and _asked(fake, {"cursor": "next"}))


def test_new_changes_wait_while_somebody_reads(opened, fake):
    page = opened(fake.url, viewport={"width": 1000, "height": 300})
    listed = fake.answers["GET /v1/changes"]
    (one,) = listed({"limit": "9"}, None)["changes"]
    rows = [one | {"stream": f"pump-{i}", "id": i} for i in range(12)]

    def answer(query, _):
        states = query.get("state", [])
        shown = [each for each in rows if each["state"] in states]
        return {"changes": shown, "total": len(shown), "streams": len(shown), "cursor": None}

    fake.answers["GET /v1/changes"] = answer
    page.goto(fake.url)
    row = page.locator(".change")
    expect(row).to_have_count(12)
    expect(page.locator("#feed")).to_have_text("live")
    page.mouse.wheel(0, 400)
    seen(page, "window.scrollY > 200")
    read = row.nth(5).bounding_box()
    rows.append(one | {"stream": "late", "id": 99})
    raised = fake.answers["changepoint"]
    confirmed = raised["event"] | {"state": "confirmed"}
    fake.send("changepoint", raised | {"stream": "late", "event": confirmed}, "1")
    waiting = page.get_by_role("button", name="1 new change")
    expect(waiting).to_be_in_viewport(ratio=1)
    expect(row).to_have_count(12)
    assert row.nth(5).bounding_box() == read  # no row has moved
    waiting.click()
    expect(row).to_have_count(13)
    assert page.evaluate("window.scrollY") == 0
    expect(waiting).to_be_hidden()
    expect(page.locator("#announce")).to_contain_text(f"late: {confirmed['sentence']}")
    for i in range(20):
        rows.append(one | {"stream": f"may-{i}", "id": i, "state": "suspected"})
    fake.send("changepoint", fake.answers["changepoint"] | {"stream": "may-1"}, "2")
    fold = page.get_by_role("button", name="Show 20 suspected changes")
    fold.click()
    expect(row).to_have_count(33)


def test_rows_are_walked_by_keys_and_streams_are_found(page, fake):
    incident = fake.show_incident()
    page.goto(fake.url)
    expect(page.locator(".change")).to_have_count(2)
    focus = "document.activeElement.dataset.focus"
    page.keyboard.press("j")
    first = page.evaluate(focus)
    page.keyboard.press("j")
    second = page.evaluate(focus)
    assert {first, second} == {"pump 1", incident["id"]}
    page.keyboard.press("k")
    assert page.evaluate(focus) == first
    page.keyboard.press("/")
    finder = page.get_by_role("dialog", name="Find a stream")
    expect(finder.get_by_role("link")).to_have_count(len(observations()))
    page.keyboard.type("ump")
    expect(finder.get_by_role("link")).to_have_text(["pump"])
    page.keyboard.press("Enter")
    expect(page).to_have_title("pump · MOCA console")
    expect(finder).to_be_hidden()


def test_an_incident_is_one_row_and_a_page_of_its_own(page, fake):
    incident = fake.show_incident()
    page.goto(fake.url)
    heading = page.get_by_role("heading", level=1)
    at = page.evaluate(f"new Date('{incident['start_time']}').toTimeString().slice(0, 5)")
    expect(heading).to_contain_text(f"four of them at {at}")
    row = page.locator(".incident")
    expect(row).to_contain_text("4 streams of north changed together")
    expect(row).to_contain_text("all site=north: 4 of 4")
    expect(row.locator(".members li")).to_have_count(4)
    assert row.locator("path.values").count() == 8
    row.get_by_role("link", name="changed together").click()
    expect(heading).to_have_text(f"4 streams of north changed together at {at}")
    members = page.locator(".multiple")
    expect(members).to_have_count(4)
    for each in incident["changes"]:
        member = members.filter(has_text=each["stream"].removeprefix("north."))
        expect(member.get_by_role("link")).to_have_attribute(
            "href", f"#/streams/{each['stream']}?at={each['start']}"
        )
    tables = page.locator("aside table")
    expect(tables.first).to_contain_text("site=north")
    expect(tables.nth(1)).to_contain_text("all other streams")
    expect(tables.nth(2)).to_contain_text("first suspicion")
    times = [each.text_content() for each in tables.nth(2).locator("td, th").all()][2::2]
    assert times == sorted(times)
    near = page.get_by_text("Near it, no part of it")
    expect(near.get_by_role("link", name="pump")).to_be_visible()
    # A stream's page says which incident its change is part of.
    listed = fake.answers["GET /v1/changes"]({"limit": "1"}, None)
    listed["changes"][0] = listed["changes"][0] | {"incident": incident["id"]}
    fake.answers["GET /v1/changes"] = listed
    page.goto(f"{fake.url}/#/streams/pump")
    expect(page.get_by_text("Part of an incident of 4 streams")).to_be_visible()


def test_an_incident_of_spreads_says_so_and_names_a_combination_of_tags(page, fake):
    incident = fake.show_incident()
    incident["movers"][0] |= {"others": {"service": "pay"}}
    for change in incident["changes"][1:]:
        explanation = {"kind": "spread", "before": 1.0, "after": 4.0, "size": 4.0, "output": None}
        change["explanation"] = {**(change["explanation"] or {}), **explanation}
    page.goto(fake.url)
    row = page.locator(".incident")
    expect(row).to_contain_text("all site=north and service=pay: 4 of 4")
    expect(row.locator(".members dt")).to_have_text(["Rose, sd", "Spread, ×"])
    expect(row.locator(".members dd").nth(1).locator("li")).to_contain_text(["4", "4", "4"])
    # Two levels, and twice two standard deviations, before and after.
    assert (row.locator("path.level:not(.new)").count(), row.locator("path.level.new").count()) == (
        3,
        3,
    )
    row.get_by_role("link", name="changed together").click()
    expect(page.get_by_text("1 rose, 3 changed in spread.")).to_be_visible()
    expect(page.locator("aside table").first).to_contain_text("site=north and service=pay")


def test_an_address_without_a_page_is_answered_in_words(opened, fake):
    page = opened(fake.url, errors=("404",))
    page.goto(f"{fake.url}/#/nowhere")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such page")
    page.goto(f"{fake.url}/#/incidents/none")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such incident")


def test_the_reference_is_in_the_frame_of_the_page(page, fake):
    page.goto(fake.url)
    page.get_by_role("link", name="API").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("REST interface")
    expect(page.get_by_text("/v1/streams")).to_be_visible()
    expect(page.get_by_role("link", name="Changes", exact=True)).to_be_visible()


def _asked(fake, wanted):
    return any(wanted.items() <= query.items() for query, _ in fake.asked("GET", "/v1/changes"))


def _last(fake, path):
    return fake.asked("GET", path)[-1][0]


def test_models_are_shown_with_their_reports(page, fake):
    page.goto(fake.url)
    page.get_by_role("link", name="Models").click()
    row = page.locator("tr").filter(has_text="bernoulli")
    expect(row).to_contain_text("learned")
    page.get_by_role("link", name="regimes").click()
    expect(page.get_by_role("heading", name="Training report")).to_be_visible()
    expect(page.get_by_text("0.6316 (0.5828 to 0.6804)")).to_be_visible()
    expect(page.locator(".plot[data-drawn]")).to_have_count(1)


def choose(page, name, text):
    file = {"name": name, "mimeType": "text/csv", "buffer": text.encode()}
    page.get_by_label("Add streams from CSV").set_input_files(file)


DROP = """([name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name, { type: "text/csv" }));
  for (const kind of ["dragover", "drop"])
    document.querySelector("main h1").dispatchEvent(
      new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
}"""
REFUSED = {
    "a,b\n1,2\n3\n": "row 2 (line 3) has 1 cells, the header 2",
    "stream,y\npump,1\n": "pump",
}


def test_a_csv_file_becomes_streams_once_that_is_confirmed(opened, fake):
    page = opened(fake.url, errors=("422",))
    lines = [f"2024-05-01 10:{i:02d}:00,{i / 4},{i * 2 if i % 5 else ''},on" for i in range(30)]
    page.goto(f"{fake.url}/#/streams")
    expect(page.get_by_role("link", name="pump")).to_be_visible()
    text = "\ufefftime,Flow (l/s),count,state\r\n" + "\r\n".join(lines) + "\r\n"
    page.evaluate(DROP, ["plant.csv", text])
    offer = page.get_by_label("Streams from CSV", exact=True)
    expect(offer).to_contain_text("60 observations of plant.Flow-l-s-, plant.count.")
    flow, counted = "/v1/streams/plant.Flow-l-s-", "/v1/streams/plant.count"
    for stream in (flow, counted, "/v1/streams/csv-0"):
        fake.answers[f"POST {stream}/observations"] = []
    assert not any(path.endswith("/observations") for _, path, *_ in fake.requests)
    page.get_by_role("button", name="Create 2 streams").click()
    expect(page.get_by_text("Created 2 streams:")).to_be_visible()
    (flows,) = [body for _, body in fake.asked("POST", f"{flow}/observations")]
    (counts,) = [body for _, body in fake.asked("POST", f"{counted}/observations")]
    assert [each["y"] for each in flows] == [i / 4 for i in range(30)]
    assert [each["y"] for each in counts] == [float(i * 2) if i % 5 else None for i in range(30)]
    assert flows[7]["time"].replace(".000Z", "Z") == "2024-05-01T10:07:00Z"
    choose(page, "many.csv", "stream;value\n" + "\n".join(f'"csv-0";{y}' for y in range(519)))
    page.get_by_role("button", name="Create 1 stream").click()
    expect(page.get_by_text("Created 1 stream:")).to_be_visible()
    bodies = [body for _, body in fake.asked("POST", "/v1/streams/csv-0/observations")]
    assert [len(body) for body in bodies] == [500, 19]
    assert [each["y"] for body in bodies for each in body] == list(map(float, range(519)))
    choose(page, "german.csv", "Datum;Uhrzeit\n05.01.23;1,5\n06.01.23;2,5\n")
    expect(offer).to_contain_text("2 observations of german.Uhrzeit.")
    expect(offer).to_contain_text("'05.01.23' was read as 2023-01-05")
    before = len([each for each in fake.requests if each[1].endswith("/observations")])
    for text, why in REFUSED.items():
        choose(page, "bad.csv", text)
        expect(page.get_by_role("alert")).to_contain_text("Cannot read bad.csv")
        expect(page.get_by_role("alert")).to_contain_text(why)
    assert len([each for each in fake.requests if each[1].endswith("/observations")]) == before


def test_the_page_asks_for_a_key_and_keeps_it_in_the_tab(opened, fake):
    fake.key = "moca_right"
    page = opened(fake.url, errors=("401",))
    page.goto(f"{fake.url}/#/streams")
    ask = page.get_by_role("dialog")
    expect(ask).to_contain_text("no API key")
    field = ask.get_by_label("Key")
    expect(field).to_be_focused()
    field.fill("moca_wrong")
    page.keyboard.press("Enter")
    expect(ask).to_contain_text("unknown API key")
    field.fill("moca_right")
    page.keyboard.press("Enter")
    expect(ask).to_have_count(0)
    expect(page.get_by_role("link", name="pump")).to_be_visible()
    page.reload()
    expect(page.get_by_role("link", name="pump")).to_be_visible()
    assert "moca_right" not in page.evaluate("Object.values(localStorage).join()")
    assert not any("moca_right" in str(query) for _, _, query, _ in fake.requests)
    page.get_by_role("button", name="Forget key").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alert")).to_contain_text("no API key")
    expect(page.locator("#feed")).to_have_text("refused, asking again")


def test_the_page_says_when_the_service_is_away_and_what_it_refuses(opened, fake):
    page = opened(fake.url, errors=("ERR_", "404"))
    page.goto(f"{fake.url}/#/streams/pump")
    drawn(page)
    expect(page.locator("#feed")).to_have_text("live")
    fake.away = True
    fake.end()
    expect(page.get_by_role("alert")).to_contain_text("Service unreachable")
    expect(page.locator("#feed")).to_have_text("connection lost, retrying")
    fake.away = False
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("#feed")).to_have_text("live")
    page.goto(f"{fake.url}/#/streams/nobody")
    expect(page.get_by_role("heading")).to_have_text(["nobodyThere is no such stream"])
    expect(page.get_by_role("alert")).to_have_count(0)  # no empty chart, no settings
    expect(page.locator("#feed")).to_have_text("no such stream, asking again")
    page.goto(f"{fake.url}/#/models")
    expect(page.get_by_role("link", name="gaussian")).to_be_visible()
    expect(page.locator("#feed")).to_be_hidden()


APART = 6  # pixels


def test_words_on_a_chart_leave_one_another_room(opened, fake):
    """Those on a level are within a narrow chart; times of the axis beside that of the start."""
    path = "GET /v1/streams/pump/changepoints"
    page = opened(fake.url)
    for width, start in itertools.product([390, 1320], [42, 54]):
        answer = copy.deepcopy(fake.answers[path])
        (event,) = changes(answer)
        event |= {"start": start, "earliest": start, "latest": start}
        fake.answers[path] = answer
        page.set_viewport_size({"width": width, "height": 844})
        page.goto(f"{fake.url}/#/models")
        expect(page.get_by_role("heading", level=1)).to_have_text("Models")
        page.goto(f"{fake.url}/#/streams/pump")
        drawn(page)
        words = page.locator(f"{VALUES} .annotation-text")
        begun = words.filter(has_text=DAY).bounding_box()
        ticks = [each.bounding_box() for each in page.locator(f"{VALUES} .xtick").all()]
        assert ticks
        for tick in ticks:
            left = tick["x"] + tick["width"] + APART <= begun["x"]
            assert left or begun["x"] + begun["width"] + APART <= tick["x"], (tick, begun)
        before = words.filter(has_text="before").bounding_box()
        since = words.filter(has_text="since").bounding_box()
        for name in ("before", "since"):  # they may lie on a line, and are read all the same
            behind = page.locator(f"{VALUES} .annotation").filter(has_text=name).locator("rect.bg")
            assert behind.evaluate("each => getComputedStyle(each).fillOpacity") == "1"
        chart = page.locator(VALUES).first.bounding_box()
        assert since["x"] + since["width"] <= chart["x"] + chart["width"]
        if (width, start) == (390, 54):
            assert since["y"] >= before["y"] + before["height"] - 4


def test_an_axis_has_the_date_of_a_day_once(opened, fake):
    path = "GET /v1/streams/pump/history"
    answer = copy.deepcopy(fake.answers[path])
    for hour, each in enumerate(answer["observations"]):
        each["time"] = f"2024-01-{1 + hour // 24:02}T{hour % 24:02}:00:00Z"
    fake.answers[path] = answer
    page = opened(fake.url, viewport={"width": 1320, "height": 844}, timezone_id="UTC")
    page.goto(f"{fake.url}/#/streams/pump")
    drawn(page)
    texts = [each.text_content() for each in page.locator(f"{VALUES} .xtick").all()]
    assert texts[:2] == ["2024-01-01", "06:00"]
    assert texts.count("2024-01-02") == 1
    assert sum("-" in text for text in texts) == 3


def test_the_list_of_models_fits_a_narrow_screen(opened, fake):
    page = opened(fake.url, viewport={"width": 390, "height": 844})
    page.goto(f"{fake.url}/#/models")
    expect(page.get_by_role("columnheader", name="Versions")).to_be_in_viewport(ratio=1)
    assert page.locator(".models .scroll").evaluate("(e) => e.scrollWidth <= e.clientWidth")


def test_a_walk_by_keyboard_on_a_narrow_dark_screen(opened, fake):
    """Nothing has to be scrolled sideways, feedback can be reached, colours follow the system."""
    page = opened(fake.url, color_scheme="dark", viewport={"width": 360, "height": 740})

    def tab_to(test):
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate(f"(() => {{ const e = document.activeElement; return {test}; }})()"):
                return
        raise AssertionError(f"Tab does not lead to {test}")

    page.goto(fake.url)
    expect(page.locator(".change")).to_have_count(1)
    top = page.locator(".change.confirmed").bounding_box()
    assert top["y"] <= 338  # the first confirmed change is above the fold
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # skips to the content
    seen(page, "document.activeElement.id === 'main'")
    page.keyboard.press("/")
    seen(page, "document.activeElement.id === 'find-text'")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    drawn(page)
    seen(page, "document.activeElement.id === 'main'")
    tab_to("e.textContent === 'No change'")
    tab_to("e.tagName === 'SUMMARY' && e.textContent.startsWith('All changes')")
    page.keyboard.press("Enter")
    tab_to("e.textContent.startsWith('#1 at 40')")
    page.keyboard.press("Enter")  # shows it in the chart
    seen(page, f"document.querySelector('{VALUES}')._fullLayout.xaxis.range[0] > 10")
    tab_to("e.tagName === 'SUMMARY' && e.textContent.startsWith('What if')")
    page.keyboard.press("Enter")
    tab_to("e.textContent === 'Rerun'")
    page.keyboard.press("Enter")
    expect(page.locator("#what-if-result")).to_contain_text("Mean log score")
    button = page.get_by_role("button", name="No change: event 1").last
    button.scroll_into_view_if_needed()
    box = button.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360
    shade = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(shade) == "rgb(15, 19, 24)"
    line = trace(figure(page), "value")["line"]["color"]
    page.get_by_role("button", name="Theme").click()  # auto, light, dark
    seen(page, f"document.querySelector('{VALUES}').data[3].line.color !== '{line}'")
    incident = fake.show_incident()["id"]
    for place in PAGES:
        page.goto(f"{fake.url}/{place.format(incident=incident)}")
        shown(page, place)
        for narrow in (360, 320):
            page.set_viewport_size({"width": narrow, "height": 740})
            page.evaluate("document.getElementById('key').hidden = false")
            assert page.evaluate("document.documentElement.scrollWidth") <= narrow, place


def shown(page, place):
    """Wait for what a page has."""
    page.wait_for_selector("main h1")
    if "pump" in place or "regimes" in place:
        page.wait_for_selector(".plot[data-drawn]")
    for text, selector in (("span", ".incident"), ("incidents", ".multiple"), ("api", ".opblock")):
        if text in place:
            page.wait_for_selector(selector)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_at_five_widths(opened, fake, axe, scheme):
    page = opened(fake.url, color_scheme=scheme, viewport={"width": WIDTHS[-1], "height": 900})
    incident = fake.show_incident()["id"]
    for place in PAGES:
        page.goto(f"{fake.url}/{place.format(incident=incident)}")
        shown(page, place)
        if "span" in place:
            page.locator("details.filter summary").click()
        if place.endswith("pump"):
            for title in FOLDS:
                unfold(page, title)
            page.get_by_role("button", name="Rerun").click()
            page.wait_for_selector("#what-if-result table")
        page.evaluate(axe)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
            said = [
                (each["id"], [node["html"][:120] for node in each["nodes"]])
                for each in found["violations"]
            ]
            assert said == [], (place, width)
            seen(page, f"document.documentElement.scrollWidth <= {width}")  # plots are drawn anew
