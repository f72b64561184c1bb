"""Observations: of one stream, alone and in lists, and of many streams in one request."""

import json

import numpy as np
import pytest

from moca_client.responses import ItemAnswer
from service import wire
from service.api.gateway.gateway import RowsResult
from service.api.parsing.bodies import NDJSON
from service.api.parsing.observations import LONGEST, digest, list_digest
from service.api.routes import observations
from service.schema import rendering
from service.store import log as logs
from tests.service.api.conftest import BAD_LABEL, MISFIT, located, post_raw, slug

POST = "/v1/streams/s/observations"
MANY = "/v1/observations"
LINES = {"Content-Type": NDJSON}


def lines(items):
    return "".join(json.dumps(item) + "\n" for item in items).encode()


async def posted_lines(api, items):
    response = await api.post(MANY, content=lines(items), headers=LINES)
    assert response.headers["content-type"] == NDJSON
    return [json.loads(line) for line in response.text.splitlines()]


# --- one stream ---------------------------------------------------------------------------------


async def test_everything_of_an_observation_reaches_the_worker_and_is_answered_alone(api, worker):
    sent = {
        "y": [1, 2.5],
        "x": [0.5],
        "time": "2024-02-29T12:00:00.123456789+05:30",
        "elapsed": 2,
        "supervision": {"changepoint": 0.25},
        "seq": 0,
    }
    response = await api.post(POST, params={"belief": "true"}, json=sent)
    assert response.status_code == 200
    answer = response.json()
    assert (answer["seq"], answer["time"]) == (0, sent["time"])
    assert answer["run_length"]["belief"] == {"run_length": [0], "probability": [1.0]}
    command = worker.commands[-1]
    assert (command.stream, command.seq, command.belief, command.key) == ("s", 0, True, None)
    (seen,) = command.observations
    assert (seen.y, seen.x, seen.time) == ([1.0, 2.5], [0.5], sent["time"])
    assert (seen.elapsed, seen.changepoint, seen.pending) == (2.0, 0.25, False)
    assert (await api.post(POST, json={"y": None})).json()["seq"] == 1
    assert "run_length" not in (await api.post(POST, json={})).json()
    longest = {"Idempotency-Key": "!~" * 100}
    assert (await api.post(POST, json={}, headers=longest)).is_success
    headers = {"Content-Type": "application/json; charset=utf-8"}
    twice = await api.post(POST, content=b'{"y": 1, "y": 2}', headers=headers)
    assert twice.json()["predictive"]["mean"] == [2.0]


async def test_lines_for_one_stream_are_refused_with_the_call_that_takes_them(api):
    refused = await api.post(POST, content=b'{"y": 1}\n', headers=LINES)
    assert (refused.status_code, slug(refused)) == (415, "unsupported-media-type")
    assert MANY in refused.json()["detail"]


@pytest.mark.parametrize("path", [POST, MANY])
async def test_answers_are_small_unless_details_are_asked_for(api, path):
    seen = [{"stream": "s", "y": 1.5}, {"stream": "s", "y": [1.5]}]
    seen = seen if path == MANY else [{"y": each["y"]} for each in seen]
    small = {"stream", "seq", "model", "predictive", "changed_probability", "evidence", "anomaly"}
    small |= {"event", "warming_up", "duplicate"} | ({"status"} if path == MANY else set())
    for answer in (await api.post(path, json=seen)).json():
        assert answer.keys() == small
        assert answer["predictive"].keys() == {"mean", "quantiles"}
    full, _ = (await api.post(path, params={"detail": "full"}, json=seen)).json()
    assert full.keys() - small == {
        "log_score", "changepoint_probability", "recent_change_probability", "run_length",
    }  # fmt: skip
    assert full["predictive"].keys() == {"mean", "variance", "quantiles"}


async def test_a_null_in_a_label_is_a_missing_output(api, worker):
    """One of nulls alone is a missing label, however it comes."""
    await api.post(POST, json={"y": [1, None, 2.5]})
    assert worker.commands[-1].observations[0].y == [1.0, None, 2.5]
    await api.post(POST, json=[{"y": [None, 3]}, {"y": [None, None]}, {"y": [None]}])
    assert [each.y for each in worker.commands[-1].observations] == [[None, 3.0], None, None]
    items = json.dumps([{"stream": "s", "y": [1, None]}, {"stream": "t", "y": [None, None]}])
    # What is too long for msgspec is read by pydantic.
    for body in (items, items.replace('"y"', " " * LONGEST + '"y"')):
        response = await post_raw(api, MANY, body)
        assert response.status_code == 200, response.text
        posted = {each.stream: each.observations[0].y for each in worker.commands[-2:]}
        assert posted == {"s": [1.0, None], "t": None}


async def test_a_pending_label_has_no_value(api, worker):
    assert (await api.post(POST, json={"y": [None, None], "pending": True})).status_code == 200
    seen = worker.commands[-1].observations[0]
    assert (seen.y, seen.pending) == (None, True)
    response = await api.post(POST, json=[{"y": 1}, {"y": [None, 1], "pending": True}])
    assert located(response) == ["body[1].pending"]


async def test_a_list_goes_in_parts_and_is_answered_as_a_list(api, worker):
    response = await api.post(POST, json=[{"y": 1}] * 1100, headers={"Idempotency-Key": "k"})
    assert [answer["seq"] for answer in response.json()] == list(range(1100))
    commands = worker.commands
    assert [len(command.observations) for command in commands] == [512, 512, 76]
    assert [command.first for command in commands] == [0, 512, 1024]
    assert len({(command.key, command.digest) for command in commands}) == 1
    assert (await api.post(POST, json=[])).json() == []


def test_a_list_of_several_parts_is_not_taken_for_one_in_other_parts():
    body = b"[...]"
    assert list_digest(body, 512) == list_digest(body, 512)
    assert len({digest(body), list_digest(body, 512), list_digest(body, 20)}) == 3


async def test_expected_positions(api, worker):
    body = [{"y": i, "seq": i} for i in range(600)]
    assert (await api.post(POST, json=body)).status_code == 200
    assert [command.seq for command in worker.commands] == [0, 512]
    conflict = await api.post(POST, json={"y": 1, "seq": 7})
    assert (conflict.status_code, slug(conflict)) == (409, "seq-conflict")
    assert conflict.json()["seq"] == 600
    for seqs in ((600, 602), (600, 600), (601, 600)):
        apart = await api.post(POST, json=[{"y": 1, "seq": seq} for seq in seqs])
        assert located(apart) == ["body[1].seq"], seqs
    before_the_first = await api.post(POST, json=[{"y": 1}, {"y": 1, "seq": 0}])
    assert located(before_the_first) == ["body[1].seq"]
    assert (await api.post(POST, json=[{"y": 1}, {"y": 1, "seq": 601}])).status_code == 200
    assert worker.commands[-1].seq == 600


async def test_a_list_refused_part_way_says_what_was_applied(api):
    body = [{"y": i} for i in range(40)]
    body[35]["y"] = BAD_LABEL
    response = await api.post(POST, json=body)
    assert (response.status_code, slug(response)) == (422, "label-out-of-range")
    assert response.json()["applied"] == 35
    assert [answer["seq"] for answer in response.json()["answers"]] == list(range(35))
    assert (await api.post(POST, json={"y": 0})).json()["seq"] == 35


async def test_lists_are_bounded_in_number(settings, worker, start):
    async with start(settings, max_observations=3) as api:
        items = [{"stream": "a", "y": 1}] * 4
        for response in (
            await api.post(POST, json=[{}] * 4),
            await api.post(MANY, json=items),
            await api.post(MANY, content=lines(items), headers=LINES),
        ):
            assert located(response) == ["body"]
        assert worker.commands == []
        assert (await api.post(POST, json=[{}] * 3)).status_code == 200
        assert len((await api.post(MANY, json=items[1:])).json()) == 3
        assert len(await posted_lines(api, items[1:])) == 3


async def test_wide_observations_go_in_smaller_parts(settings, worker, start, monkeypatch):
    monkeypatch.setattr(logs, "MAX_ENTRY_BYTES", 16384)
    async with start(settings) as api:
        body = [{"x": [0.1] * 200} for _ in range(20)]
        assert len((await api.post(POST, json=body)).json()) == 20
        assert {len(command.observations) for command in worker.commands} == {4}
        body = {"x": [[0.1] * 200] * 20}
        response = await api.post("/v1/streams/s/predictions", json=body)
        assert (response.status_code, slug(response)) == (413, "body-too-large")


async def test_wide_labels_go_in_parts_whose_answers_are_small(api, worker):
    """Each is answered with a covariance: 32 of 256 outputs would be 40 MB in one outcome."""
    for outputs, part in ((1, 512), (30, 58), (64, 12), (256, 1)):
        worker.commands.clear()
        count = part + 4
        answers = (await api.post(POST, json=[{"y": [0.5] * outputs}] * count)).json()
        assert len(answers) == count
        assert max(len(command.observations) for command in worker.commands) == part


# --- many streams -------------------------------------------------------------------------------


async def test_items_are_answered_in_order_and_in_the_form_they_came_in(api):
    items = [{"stream": f"s{i % 7}", "y": i} for i in range(50)]
    as_list = (await api.post(MANY, params={"belief": "1"}, json=items)).json()
    for first, answers in ((0, as_list), (1, await posted_lines(api, items))):
        assert [answer["status"] for answer in answers] == [200] * 50
        assert [(answer["stream"], answer["predictive"]["mean"]) for answer in answers] == [
            (item["stream"], [item["y"]]) for item in items
        ]
        seqs = [answer["seq"] for answer in answers if answer["stream"] == "s0"]
        assert seqs == list(range(8 * first, 8 * first + 8))
        assert ("run_length" in answers[0]) == (first == 0)
    assert (await api.post(MANY, json=[])).json() == []
    assert (await api.post(MANY, content=b"\n\n", headers=LINES)).content == b""


async def test_neighbours_of_a_stream_share_commands_and_streams_share_appends(api, worker):
    items = [{"stream": stream, "y": i} for i in range(600) for stream in ("a", "b")]
    items += [{"stream": f"s{i}", "y": i} for i in range(1000)]
    answers = (await api.post(MANY, json=items)).json()
    assert [answer["stream"] for answer in answers] == [item["stream"] for item in items]
    sizes = [len(command.observations) for command in worker.commands if command.stream == "a"]
    assert sizes == [512, 88]
    assert len(worker.batches) < 100


@pytest.mark.parametrize("name", ["a b", "..", "", "x" * 201])
async def test_requests_for_the_same_streams_are_checked_and_spread_alike(api, worker, name):
    items = [{"stream": f"s{i}", "y": float(i)} for i in range(50)]
    for streams in ([*items], [*items, {"stream": name, "y": 1.0}], [*items, items[0]]):
        for _ in range(2):
            answers = (await api.post(MANY, json=streams)).json()
            assert [answer["stream"] for answer in answers] == [own["stream"] for own in streams]
            wrong = [answer["status"] for answer in answers if answer["stream"] == name]
            assert wrong == [422 for own in streams if own["stream"] == name]
            assert sum(answer["status"] == 200 for answer in answers) == len(streams) - len(wrong)
    seqs = [answer["seq"] for answer in answers]
    assert seqs == [6, *[5] * 49, 7]


async def test_an_item_with_a_key_goes_alone_and_is_repeated_alone(api, worker):
    items = [{"stream": "a", "key": f"k{i}", "y": i} for i in range(3)] + [{"stream": "a", "y": 9}]
    first = (await api.post(MANY, json=items)).json()
    assert [len(command.observations) for command in worker.commands] == [1, 1, 1, 1]
    again = await posted_lines(api, items[:3])
    assert again == [{**answer, "duplicate": True} for answer in first[:3]]
    items[1]["y"] = 7
    statuses = [answer["status"] for answer in (await api.post(MANY, json=items)).json()]
    assert statuses == [200, 422, 424, 424]


@pytest.mark.parametrize(
    ("bad", "why"), [(BAD_LABEL, "label-out-of-range"), (MISFIT, "dimension-mismatch")]
)
async def test_after_a_failed_item_of_a_stream_nothing_more_of_it_is_applied(api, bad, why):
    items = [{"stream": s, "y": bad if (i, s) == (3, "a") else i} for i in range(6) for s in "ab"]
    answers = (await api.post(MANY, json=items)).json()
    of_a, of_b = answers[::2], answers[1::2]
    assert [answer["status"] for answer in of_b] == [200] * 6
    assert [answer["status"] for answer in of_a] == [200, 200, 200, 422, 424, 424]
    assert of_a[3]["type"].endswith(f"/{why}")
    assert of_a[3]["stream"] == "a"
    assert "applied" not in of_a[3]
    assert of_a[4]["type"].endswith("/earlier-item-failed")
    assert (await api.get("/v1/streams/a")).json()["seq"] == 3


async def test_a_bad_item_among_many_of_a_stream_is_found_by_halves(api, worker):
    items = [{"stream": "a", "y": MISFIT if i == 300 else i} for i in range(512)]
    answers = (await api.post(MANY, json=items)).json()
    assert [answer["status"] for answer in answers] == [200] * 300 + [422] + [424] * 211
    assert [answer["seq"] for answer in answers[:300]] == [*range(300)]
    assert len(worker.commands) < 20


async def test_an_item_with_a_wrong_form_fails_alone(api):
    items = [
        {"stream": "a", "y": 0},
        {"stream": "a", "y": "high"},
        {"stream": "b", "y": 1},
        {"stream": "a", "y": 2},
        {"y": 3},
        {"stream": "c d", "y": 4},
        {"stream": "e", "y": 5, "z": 1},
        {"stream": "e", "y": 6, "x": [0] * 300},
        4,
        {"stream": "b", "y": 1, "key": "a b"},
    ]
    answers = (await api.post(MANY, json=items)).json()
    statuses = [answer["status"] for answer in answers]
    assert statuses == [200, 422, 200, 424, 422, 422, 422, 424, 422, 422]
    locs = [error["loc"] for answer in answers for error in answer.get("errors", [])]
    expected = ["[1].y", "[4].stream", "[5].stream", "[6].z", "[8]", "[9].key"]
    assert locs == [f"body{loc}" for loc in expected]
    as_lines = await posted_lines(api, items)
    assert [answer["status"] for answer in as_lines] == statuses
    assert as_lines[1]["errors"][0]["loc"] == "line 2.y"
    content = b'[{"stream": "a", "y": 1e999}, {"stream": "b", "y": NaN}, {"stream": "c", "y": 1}]'
    answers = (await post_raw(api, MANY, content)).json()
    assert [answer["status"] for answer in answers] == [422, 422, 200]


async def test_a_body_that_is_not_json_is_refused_as_a_whole(api, worker):
    for content, loc in (
        (b'{"stream": "a", "y": 1}\n{"stream": "a"\n', "line 2"),
        (b'{"stream": "a"},{"stream": "b"}\n', "line 1"),
    ):
        response = await api.post(MANY, content=content, headers=LINES)
        assert (response.status_code, slug(response)) == (400, "malformed-body")
        assert response.json()["errors"][0]["loc"] == loc
    assert located(await api.post(MANY, json={"stream": "a", "y": 1})) == ["body"]
    assert worker.commands == []


@pytest.mark.parametrize("at_once", [3, 512])
async def test_quiet_answers_of_all_partitions_are_rendered_together_and_each_is_its_own(
    api, monkeypatch, at_once
):
    monkeypatch.setattr(observations, "RENDERED_AT_ONCE", at_once)
    rng = np.random.default_rng(1)
    models = [("a", False, wire.Layout()), ("b", True, wire.Layout()), ("c", False, wire.Layout(2))]
    expected = {}

    async def submit_rows(partition, command, begun, patience):
        """Answer the rows of a partition by those of one model, and some by two outcomes."""
        model, full, layout = models[partition % 3]
        count = len(command.streams)
        numbers = rng.normal(size=(count, layout.full))
        firsts = list(range(10 * partition, 10 * partition + count))
        seasons = [wire.SeasonPeriods([24], 0) if i % 2 else None for i in range(count)]
        quiet = wire.QuietRows(model, full, layout, firsts, layout.encoded(numbers, full), seasons)
        for i, stream in enumerate(command.streams):
            time = None if command.times is None else command.times[i]
            row = layout.encoded(numbers[i : i + 1], full)
            alone = rendering.QuietColumns(
                model, full, layout, [stream], [firsts[i]], [time], [seasons[i]], row
            )
            (expected[stream],) = alone.texts(ItemAnswer)
        half = count // 2
        outcome = wire.Outcome(1, 200, [], rows=count, quiet=quiet)
        parts = [RowsResult(range(half), outcome, 0), RowsResult(range(half, count), outcome, half)]
        return [part for part in parts if part.places]

    monkeypatch.setattr(api.app.state.context.gateway, "submit_rows", submit_rows)
    items = [{"stream": f"s{i}", "y": float(i)} for i in range(40)]
    for item in items[::3]:
        item["time"] = "2024-02-29T12:00:00Z"
    response = await api.post(MANY, json=items)
    assert response.content == b"[%s]" % b",".join(expected[item["stream"]] for item in items)
