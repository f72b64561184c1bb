"""Labels with missing outputs over HTTP: one by one, in lists, of many streams, and late."""

import json
import random

import httpx
import pytest

from tests.e2e.test_calls import ask, close, labels, post
from tests.feeding import Follower

SETTINGS = {"model": "joint", "warmup": 10, "hazard": 0.02}
COUNT = 90


def holes(count=COUNT, seed=1):
    """Labels of three outputs with a shift half-way, of which some or all may be missing."""
    rng = random.Random(seed)
    made = []
    for i in range(count):
        level = 5.0 * (i >= count // 2)
        y = [rng.gauss(level, 1), rng.gauss(-level, 1), rng.gauss(100, 20)]
        made.append({"y": [None if rng.random() < 0.25 else value for value in y]})
    return made


def kept(label):
    """A label as the service keeps it."""
    return None if set(label["y"]) == {None} else label["y"]


def as_of(answers, stream):
    return [answer | {"stream": stream} for answer in answers]


def many(client, stream, observations, lines):
    """Post through `/v1/observations`, as a list or as lines."""
    items = [{"stream": stream, **each} for each in observations]
    if not lines:
        results = client.post("/v1/observations", json=items).raise_for_status().json()
    else:
        body, kind = "\n".join(map(json.dumps, items)), {"Content-Type": "application/x-ndjson"}
        sent = client.post("/v1/observations", content=body, headers=kind).raise_for_status()
        results = [json.loads(line) for line in sent.text.splitlines()]
    for each in results:
        assert each.pop("status", 200) == 200, each
    return results


def test_however_they_come_and_wherever_workers_die(separate, processes):
    observations = holes()
    assert any(kept(each) is None for each in observations)
    with httpx.Client(base_url=separate, timeout=60) as client:
        for stream in ("list", "single", "many", "lines", "late", "nulls"):
            ask(client, "PUT", stream, 201, json=SETTINGS)
        expected = post(client, "list", observations)
        before = {
            "single": [ask(client, "POST", "single/observations", json=each)
                       for each in observations[:31]],
            "many": many(client, "many", observations[:31], lines=False),
            "lines": many(client, "lines", observations[:31], lines=True),
        }  # fmt: skip
        post(client, "late", observations[:31])
        for name in ("worker-a", "worker-b"):
            processes.kill(name)
        processes.start("worker-c", "worker", "--worker-id", "worker-c")
        before["single"] += post(client, "single", observations[31:])
        before["many"] += many(client, "many", observations[31:], lines=False)
        before["lines"] += many(client, "lines", observations[31:], lines=True)
        for answers in before.values():
            close(as_of(answers, "list"), expected)
        # A list of nulls is a missing label.
        nulled = [{"y": kept(each)} for each in observations]
        close(as_of(post(client, "nulls", nulled), "list"), expected)
        for _ in observations[31:]:
            ask(client, "POST", "late/observations", json={"pending": True})
        for seq in (33, 31, 32, *range(34, COUNT)):
            late = {**observations[seq], "seq": seq}
            ask(client, "POST", "late/observations", json=late)
        page = ask(client, "GET", "list/history?limit=1000")["observations"]
        assert [each["y"] for each in page] == [kept(each) for each in observations]
        for stream in (*before, "late", "nulls"):
            found = ask(client, "GET", f"{stream}/history?limit=1000")["observations"]
            assert [each["y"] for each in found] == [each["y"] for each in page]
            close([e["log_score"] for e in found], [e["log_score"] for e in page])
        seen = Follower(str(client.base_url), "list", after="-1")
        seen.read(COUNT)
        assert seen.seen == [(seq, kept(each)) for seq, each in enumerate(observations)]
        summary = ask(client, "GET", "list")
        for i, last in enumerate(summary["last"]):
            assert last == [e["y"][i] for e in observations if e["y"][i] is not None][-1]
        events = ask(client, "GET", "list/changepoints")["events"]
        confirmed = [each for each in events if each["state"] == "confirmed"]
        assert any(abs(each["start"] - COUNT // 2) <= 2 for each in confirmed)
        tried = ask(client, "POST", "list/what-if", json={"settings": {"hazard": 0.05}})
        assert tried["compared"] > 60
        overview = client.get("/v1/overview", params={"labels": 5}).json()
        (row,) = [each for each in overview["streams"] if each["stream"] == "list"]
        first = [None if kept(each) is None else each["y"][0] for each in observations[-5:]]
        assert row["labels"] == first


def test_who_takes_them(emptied):
    with httpx.Client(base_url=emptied, timeout=60) as client:
        (answer,) = post(client, "new", [{"y": [None, 1.5]}])
        assert answer["model"] == "joint@1", "the model that is chosen for vectors"
        ask(client, "PUT", "plain", 201, json={"model": "gaussian"})
        post(client, "plain", [{"y": [1.0, 2.0]}])
        body = [{"y": [1.0, 2.5]}, {"y": [None, 2.5]}]
        problem = ask(client, "POST", "plain/observations", 422, json=body)
        assert problem["type"].endswith("/dimension-mismatch")
        assert problem["detail"].startswith("observations[1].y: expected 2 numbers, got 1: ")
        assert problem["detail"].endswith("averaged@2, joint@1")
        assert "applied" not in problem or problem["applied"] == 0
        assert ask(client, "GET", "plain")["seq"] == 1
        (answer,) = post(client, "plain", [{"y": [None, None]}])
        assert (answer["seq"], answer["log_score"]) == (1, None)
        # Of many streams the others go on.
        items = [{"stream": "plain", "y": [None, 1.0]}, {"stream": "new", "y": [1.0, None]}]
        refused, taken = client.post("/v1/observations", json=items).json()
        assert (refused["status"], taken["seq"]) == (422, 1)
        moved = ask(client, "POST", "new/model", 422, json={"model": "multivariate"})
        assert moved["detail"].startswith("observation 0: y: expected 2 numbers, got 1")
        assert ask(client, "GET", "new")["model"] == "joint@1"
        # Labels of one number are as they ever were.
        post(client, "one", labels(3))
        (answer,) = post(client, "one", [{"y": [None]}])
        assert (answer["seq"], answer["log_score"]) == (3, None)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["joint", "averaged"])
def test_kernels_change_no_answer(serve, processes, model):
    """Some rows are stepped by the kernel, those with missing outputs by torch."""
    pytest.importorskip("numba")
    observations, found = holes(200), {}
    settings = {**SETTINGS, "model": model}
    for folder, off in (("plain", "true"), ("kernels", "false")):
        processes.environment["MOCA_NO_KERNELS"] = off
        with httpx.Client(base_url=serve(folder), timeout=60) as client:
            ask(client, "PUT", "first", 201, json=settings)
            post(client, "first", holes(20))
            if off == "false":
                kind = {"averaged": "robust-averaged"}.get(model, model)
                processes.wait_for(f"kernel of {kind} is ready", f"serve {folder}")
            ask(client, "PUT", "a", 201, json=settings)
            found[off] = post(client, "a", observations)
    compared = 0
    for mine, other in zip(found["false"], found["true"], strict=True):
        for name in ("log_score", "changed_probability", "changepoint_probability", "anomaly"):
            assert (mine[name] is None) == (other[name] is None)
            if mine[name] is not None:
                assert mine[name] == pytest.approx(other[name], rel=1e-8, abs=1e-8)
                compared += 1
        if mine["predictive"] is not None:
            expected = pytest.approx(other["predictive"]["mean"], rel=1e-8)
            assert mine["predictive"]["mean"] == expected
    assert compared > 600
