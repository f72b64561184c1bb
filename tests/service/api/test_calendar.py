"""The calendar over HTTP: windows are set and listed, and stated with the observations in them."""

from moca_client.responses import Window
from service import calendar, wire
from service.store import keys
from tests.service.api.conftest import located, slug

NIGHT = {
    "start": "2024-05-01T22:00",
    "end": "2024-05-02T02:00",
    "time_zone": "Europe/Berlin",
    "repeat": "FREQ=DAILY",
    "match": ['{region="eu"}'],
    "note": "backups",
}
RANGE = {"since": "2024-05-02T00:00:00Z", "until": "2024-05-03T12:00:00Z"}


async def put(api, name, **form):
    response = await api.put(f"/v1/calendar/{name}", json={**NIGHT, **form})
    assert response.status_code == 200, response.text
    return response.json()


async def listed(api, **query):
    response = await api.get("/v1/calendar", params={**RANGE, **query})
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_window_is_set_shown_replaced_and_removed(api, settings, start):
    assert await listed(api) == {"windows": [], "times": []}
    made = await put(api, "night")
    assert made == {"name": "night", **NIGHT}
    assert (await api.get("/v1/calendar/night")).json() == made
    assert (await listed(api))["times"] == [
        {
            "window": "night",
            "start": "2024-05-01T20:00:00.000+00:00",
            "end": "2024-05-02T00:00:00.000+00:00",
        },
        {
            "window": "night",
            "start": "2024-05-02T20:00:00.000+00:00",
            "end": "2024-05-03T00:00:00.000+00:00",
        },
    ][1:]
    await put(api, "night", repeat="", note="")
    async with start(settings) as other:  # of another process
        found = await listed(other, since="2024-05-01T00:00:00Z")
    assert [window["repeat"] for window in found["windows"]] == [""]
    assert len(found["times"]) == 1
    assert (await api.delete("/v1/calendar/night")).status_code == 204
    for method in ("get", "delete"):
        assert slug(await getattr(api, method)("/v1/calendar/night")) == "not-found"
    assert (await listed(api))["windows"] == []


async def test_windows_of_a_stream_are_those_for_its_tags(api):
    await put(api, "night")
    await put(api, "all", match=[])
    for stream, tags in (("a", {"region": "eu"}), ("b", {})):
        await api.put(f"/v1/streams/{stream}", json={"tags": tags})
    for stream, names in (("a", ["all", "night"]), ("b", ["all"])):
        found = await listed(api, stream=stream)
        assert [window["name"] for window in found["windows"]] == names
        assert {time["window"] for time in found["times"]} == set(names)
    response = await api.get("/v1/calendar", params={"stream": "nobody"})
    assert slug(response) == "unknown-stream"


async def test_commands_carry_the_windows_that_their_observations_are_in(api, worker):
    await put(api, "night")
    worker.envelopes.clear()
    for y, time in ((1.0, "21:59:59"), (2.0, "22:00:00"), (3.0, "23:59:59")):
        seen = {"y": y, "time": f"2024-05-10T{time}+02:00"}
        await api.post("/v1/streams/a/observations", json=seen)
    await api.post("/v1/streams/a/observations", json={"y": 4.0})  # now, which may be at night
    first, second, third, _ = worker.envelopes
    assert first.planned is None
    (span,) = second.planned
    assert (span.window, span.match) == ("night", ('{region="eu"}',))
    assert span.start_ms <= 1000 * wire.timestamps.seconds("2024-05-10T20:00:00Z") < span.end_ms
    assert third.planned == second.planned
    days = [{"y": 1.0, "time": f"2024-06-{day:02}T23:00:00Z"} for day in range(1, 6)]
    await api.post("/v1/streams/a/observations", json=days)
    assert len(worker.envelopes[-1].planned) == 5
    items = [
        {"stream": "b", "y": 1.0, "time": "2024-05-10T12:00:00Z"},
        {"stream": "b", "y": 1.0, "time": "2024-05-10T23:00:00Z"},
    ]
    await api.post("/v1/observations", json=items)  # one of them is in it
    assert [span.window for span in worker.envelopes[-1].planned] == ["night"]
    await api.post("/v1/observations", json=items[:1])
    assert worker.envelopes[-1].planned is None
    await put(api, "now", start="2000-01-01", end="2000-12-31", repeat="FREQ=DAILY", match=[])
    await api.post("/v1/streams/a/observations", json={"y": 4.0})
    assert "now" in {span.window for span in worker.envelopes[-1].planned}
    await api.get("/v1/streams/a/run-length")
    assert worker.envelopes[-1].planned is None


async def test_what_is_wrong_with_a_window_is_named(api):
    for field, value in (
        ("start", "yesterday"),
        ("end", "2024-05-01"),
        ("time_zone", "Mars"),
        ("repeat", "FREQ=SECONDLY"),
    ):
        response = await api.put("/v1/calendar/w", json={**NIGHT, field: value})
        assert located(response) == [f"body.{field}"]
    response = await api.put("/v1/calendar/w", json={**NIGHT, "match": ["{a=~'(('}"]})
    assert located(response) == ["body.match[0]"]
    response = await api.get("/v1/calendar", params={**RANGE, "until": "2026-01-01T00:00:00Z"})
    assert located(response) == ["query.until"]


async def test_there_are_at_most_so_many(settings, worker, start):
    async with start(settings, max_windows=1) as api:
        await put(api, "one")
        response = await api.put("/v1/calendar/two", json=NIGHT)
        assert located(response) == ["path.window"]
        await put(api, "one", note="again")


async def test_a_damaged_window_is_left_out_until_it_is_set_again(api, store):
    await put(api, "night")
    store.hset(keys.CALENDAR, "night", b"nothing")
    assert [one["name"] for one in (await listed(api))["windows"]] == ["night"]  # as it was known
    store.hset(keys.CALENDAR, "other", calendar.encode(Window("other", "1", "2")))
    assert [one["name"] for one in (await listed(api))["windows"]] == ["night"]
    await put(api, "other")
    assert len((await listed(api))["windows"]) == 2


async def test_a_whole_incident_that_is_not_there_is_not_excluded(api):
    response = await api.post("/v1/incidents/0123456789ab/exclusions", json={})
    assert slug(response) == "not-found"


async def test_an_exclusion_is_of_an_event_or_a_start(api, worker):
    await api.post("/v1/streams/a/observations", json={"y": 1.0})
    for body in ({}, {"event": 1, "start": 2}):
        response = await api.post("/v1/streams/a/exclusions", json=body)
        assert located(response) == ["body"]
    await api.post("/v1/streams/a/exclusions", json={"start": 1, "end": 4, "excluded": False})
    assert worker.commands[-1] == wire.Exclude("a", False, None, 1, 4)
