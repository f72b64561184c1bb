"""POST /v1/observations: many streams in one request."""

import json

import pytest

POST = "/v1/observations"
NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}


def lines(items):
    return "".join(json.dumps(item) + "\n" for item in items).encode()


async def test_answers_in_order_and_in_the_same_form(api):
    items = [{"stream": f"s{i % 7}", "y": i} for i in range(50)]
    as_list = await api.post(POST, json=items)
    assert as_list.headers["content-type"] == "application/json"
    as_lines = await api.post(POST, content=lines(items), headers=NDJSON)
    assert as_lines.headers["content-type"] == "application/x-ndjson"
    for first, answers in (
        (0, as_list.json()),
        (50, [json.loads(line) for line in as_lines.text.splitlines()]),
    ):
        assert [answer["status"] for answer in answers] == [200] * 50
        assert [(answer["stream"], answer["y"]) for answer in answers] == [
            (item["stream"], item["y"]) for item in items
        ]
        seqs = [answer["seq"] for answer in answers if answer["stream"] == "s0"]
        assert seqs == list(range(len(seqs) * (first // 50), len(seqs) * (first // 50 + 1)))


async def test_neighbours_of_a_stream_share_commands(api, worker):
    items = [{"stream": stream, "y": i} for i in range(600) for stream in ("a", "b")]
    assert len((await api.post(POST, json=items)).json()) == 1200
    sizes = [len(command.observations) for command in worker.commands if command.stream == "a"]
    assert sizes == [512, 88]


async def test_items_with_keys(api, worker):
    items = [{"stream": "a", "key": f"k{i}", "y": i} for i in range(3)] + [{"stream": "a", "y": 9}]
    first = (await api.post(POST, json=items)).json()
    assert [len(command.observations) for command in worker.commands] == [1, 1, 1, 1]
    again = (await api.post(POST, content=lines(items[:3]), headers=NDJSON)).text.splitlines()
    assert [json.loads(line) for line in again] == [
        {**answer, "duplicate": True} for answer in first[:3]
    ]
    items[1]["y"] = 7
    statuses = [answer["status"] for answer in (await api.post(POST, json=items)).json()]
    assert statuses == [200, 422, 424, 424]


@pytest.mark.parametrize("bad", [666, 777])
async def test_after_a_failed_item_of_a_stream_nothing_more_of_it_is_applied(api, worker, bad):
    items = [{"stream": s, "y": bad if (i, s) == (3, "a") else i} for i in range(6) for s in "ab"]
    answers = (await api.post(POST, json=items)).json()
    of_a, of_b = answers[::2], answers[1::2]
    assert [answer["status"] for answer in of_b] == [200] * 6
    assert [answer["status"] for answer in of_a] == [200, 200, 200, 422, 424, 424]
    expected = "/label-out-of-range" if bad == 666 else "/dimension-mismatch"
    assert of_a[3]["type"].endswith(expected)
    assert of_a[3]["stream"] == "a"
    assert "applied" not in of_a[3]
    assert of_a[4]["type"].endswith("/earlier-item-failed")
    assert (await api.get("/v1/streams/a")).json()["seq"] == 3


async def test_an_item_with_a_wrong_form_fails_alone(api, worker):
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
    answers = (await api.post(POST, json=items)).json()
    assert [answer["status"] for answer in answers] == [
        200, 422, 200, 424, 422, 422, 422, 424, 422, 422,
    ]  # fmt: skip
    locs = [error["loc"] for answer in answers for error in answer.get("errors", [])]
    assert locs == [
        "body[1].y", "body[4].stream", "body[5].stream", "body[6].z", "body[8]", "body[9].key",
    ]  # fmt: skip
    as_lines = (await api.post(POST, content=lines(items), headers=NDJSON)).text.splitlines()
    assert [json.loads(line)["status"] for line in as_lines] == [
        answer["status"] for answer in answers
    ]
    assert json.loads(as_lines[1])["errors"][0]["loc"] == "line 2.y"


async def test_numbers_that_are_not_finite(api):
    content = b'[{"stream": "a", "y": 1e999}, {"stream": "b", "y": NaN}, {"stream": "c", "y": 1}]'
    answers = (await api.post(POST, content=content, headers=JSON)).json()
    assert [answer["status"] for answer in answers] == [422, 422, 200]


async def test_a_body_that_is_not_json_is_refused_as_a_whole(api, worker):
    for content, headers, loc in (
        (b'[{"stream": "a", "y": 1}', JSON, "body"),
        (b'{"stream": "a", "y": 1}\n{"stream": "a"\n', NDJSON, "line 2"),
        (b'{"stream": "a"},{"stream": "b"}\n', NDJSON, "line 1"),
    ):
        response = await api.post(POST, content=content, headers=headers)
        assert response.status_code == 400
        assert response.json()["errors"][0]["loc"] == loc
    response = await api.post(POST, json={"stream": "a", "y": 1})
    assert response.status_code == 422
    assert worker.commands == []


async def test_empty_requests(api):
    assert (await api.post(POST, json=[])).json() == []
    assert (await api.post(POST, content=b"\n\n", headers=NDJSON)).content == b""


async def test_too_many_items(settings, worker, start):
    async with start(settings.model_copy(update={"max_observations": 2})) as api:
        items = [{"stream": "a", "y": 1}] * 3
        for response in (
            await api.post(POST, json=items),
            await api.post(POST, content=lines(items), headers=NDJSON),
        ):
            assert response.status_code == 422
            assert "at most 2" in response.json()["detail"]


async def test_a_thousand_streams_at_once(api, worker):
    items = [{"stream": f"s{i}", "y": i} for i in range(1000)]
    answers = (await api.post(POST, json=items)).json()
    assert [answer["stream"] for answer in answers] == [item["stream"] for item in items]
    assert len(worker.batches) < 100  # they went to the log together


async def test_belief(api):
    answers = (await api.post(POST, params={"belief": "1"}, json=[{"stream": "a", "y": 1}])).json()
    assert answers[0]["belief"] is True
