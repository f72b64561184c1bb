"""The commands that talk to a service, against the running one."""

import json
import random
import signal
import subprocess
import sys
import uuid

import httpx
import pytest
from msgspec.structs import asdict
from typer.testing import CliRunner

from service.client import Client
from service.commands.main import app
from tests.service.client.conftest import running
from tests.service.client.conftest import Feed


@pytest.fixture
def stream():
    return f"c-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def moca(service_url):
    """Run `moca`; returns what it said."""

    def run(*arguments, stdin="", url=service_url, status=0):
        environment = {"MOCA_URL": url, "COLUMNS": "120", "TERMINAL_WIDTH": "120"}
        found = CliRunner().invoke(app, arguments, input=stdin, env=environment)
        assert found.exit_code == status, found.output
        return found

    return run


def test_a_stream_from_its_making_to_its_end(moca, stream):
    made = moca("streams", "create", stream, "--model", "gaussian", "--set", "hazard=0.05")
    assert "gaussian@1" in made.stdout
    assert "hazard=0.05" in made.stdout
    again = moca("streams", "create", stream, status=1)
    assert again.stderr.strip().endswith(
        "already exists, with 0 observations: use `moca streams set`, or delete it"
    )
    said = json.loads(moca("streams", "set", stream, "outlier_rate=0.01", "--json").stdout)
    assert said["settings"]["outlier_rate"] == 0.01
    assert moca("streams", "list", "--prefix", stream).stdout == f"{stream}\n"
    assert json.loads(moca("streams", "list", "--prefix", stream, "--json").stdout) == [
        {"stream": stream}
    ]
    assert "Delete" in moca("streams", "delete", stream, stdin="n\n", status=1).stdout
    assert moca("streams", "delete", stream, "--yes").stdout == f"deleted {stream}\n"
    gone = moca("streams", "show", stream, status=1)
    assert gone.stderr.startswith("moca: 404 Unknown stream")
    moca("streams", "set", stream, "hazard=0.1", status=1)
    assert moca("streams", "list", "--prefix", stream).stdout == ""


def test_changes_of_all_streams(moca, stream, monkeypatch):
    moca(
        "streams",
        "create",
        stream,
        "--model",
        "gaussian",
        "--set",
        "location=0",
        "--set",
        "scale=1",
    )
    rng = random.Random(1)
    labels = [rng.gauss(5.0 if i >= 40 else 0.0, 1.0) for i in range(80)]
    moca("observe", stream, stdin="\n".join(map(str, labels)))
    asked = ("changes", "--prefix", stream, "--state", "confirmed")
    found = json.loads(moca(*asked, "--json").stdout)
    assert [each["stream"] for each in found] == [stream] * len(found)
    assert found[0]["explanation"]["text"].startswith("mean rose by ")
    piped = moca(*asked).stdout
    assert piped == moca(*asked, "--csv").stdout
    assert piped.startswith("stream,model,id,state,start,")
    assert len(piped.splitlines()) == 1 + len(found)
    monkeypatch.setattr("service.commands.changes.on_terminal", lambda: True)
    shown = moca(*asked).stdout
    assert "what changed" in shown
    assert "mean rose by" in shown
    assert "no changes" in moca(*asked, "--min-size", "1000").stdout
    assert moca(*asked, "--csv", "--limit", "1", "--sort", "size").stdout.count("\n") == 2
    bad = moca("changes", "--since", "noon", status=1)
    assert "got 'noon'" in bad.stderr


def test_observing_and_reading(moca, stream, service_url):
    said = moca("observe", stream, "1.5", "-2", "null", "--retry-for", "5").stdout.splitlines()
    assert [line.split()[0] for line in said] == ["seq", "0", "1", "2"]
    lines = "".join(f"{json.dumps(value)}\n" for value in (1, [2.0], {"y": 3}, None)) + "\n"
    answers = moca("observe", stream, "--json", stdin=lines).stdout.splitlines()
    assert [json.loads(line)["seq"] for line in answers] == [3, 4, 5, 6]
    bad = moca("observe", stream, stdin="1\noops\n", status=1)
    assert "line 2: not JSON" in bad.stderr
    assert "'high'" in moca("observe", stream, stdin='"high"\n', status=1).stderr
    tall = moca("observe", stream, "tall", status=2)
    assert "comma-separated numbers" in tall.stderr
    assert tall.stdout == ""  # no heading over nothing
    with Client(service_url) as client:
        assert client.stream(stream).seq == 8
    text = moca("predict", stream, "--quantile", "0.1", "--samples", "2", "--seed", "1").stdout
    assert "0.1 quantile" in text
    assert "draw 2" in text
    predicted = json.loads(moca("predict", stream, "--json", "--samples", "2").stdout)
    assert len(predicted["predictions"][0]["samples"]) == 2


def test_json_has_all_fields_of_the_service(moca, stream, service_url):
    with Client(service_url) as client:
        client.put_stream(stream, {"model": "gaussian", "location": 0, "scale": 1})
        client.observe(stream, [(0.5, -0.5)[i % 2] + (6.0 if i >= 30 else 0) for i in range(60)])
    for words, path in ((["streams", "show"], ""), (["changepoints"], "/changepoints")):
        said = json.loads(moca(*words, stream, "--json").stdout)
        answered = httpx.get(f"{service_url}/v1/streams/{stream}{path}").json()
        # What the service leaves out is null.
        assert {k: v for k, v in said.items() if k in answered or v is not None} == answered


def test_labels_ahead_and_settings_as_they_are_typed(moca, stream):
    wish = 'sensitivity={"false_alarms_per_1000": 0.5}'
    made = moca("streams", "create", stream, "--model", "gaussian", "--set", wish).stdout
    assert wish in made
    assert "shifts found: 1 sd after" in made
    assert "warming up" not in made
    moca("observe", stream, *(str(i % 3) for i in range(25)))
    ahead = json.loads(moca("predict", stream, "--horizon", "3", "--json").stdout)["predictions"]
    assert [each["ahead"] for each in ahead] == [1, 2, 3]
    said = moca("predict", stream, "--horizon", "3").stdout.splitlines()
    assert said[0] == f"{stream} (gaussian@1), seq 25"


def test_vectors_and_inputs(moca, stream):
    moca("streams", "create", stream, "--model", "linear")
    moca("observe", stream, "1,2", "--x", "0.5,-1")
    assert moca("streams", "show", stream, "--json").stdout.count('"x_dim": 2') == 1
    said = moca("predict", stream, "--x", "0,1", "--x", "1,0", "--json").stdout
    assert [each["x"] for each in json.loads(said)["predictions"]] == [[0.0, 1.0], [1.0, 0.0]]


def test_missing_outputs_as_they_are_typed(moca, stream, service_url):
    """As words among the numbers, as null in JSON lines, and as NaN, which many programs write."""
    moca("observe", stream, "1,null", "nan,2.5", "null,null", "1.5,2")
    moca("observe", stream, stdin='[null, 3]\n{"y": [4, null]}\n')
    moca("observe", stream, stdin="[NaN, 5]\n")
    assert "got 'x'" in moca("observe", stream, "1,x", status=2).stderr
    with Client(service_url) as client:
        (page,) = client.history(stream)
        assert [each.y for each in page.observations] == [
            [1.0, None], [None, 2.5], None, [1.5, 2.0], [None, 3.0], [4.0, None],
            [None, 5.0],
        ]  # fmt: skip
        assert client.stream(stream).last == [4.0, 5.0]
    assert "4, 5" in moca("streams", "show", stream).stdout


def test_changepoints(moca, stream, service_url):
    with Client(service_url) as client:
        client.put_stream(stream, {"model": "gaussian", "location": 0, "scale": 1})
        client.observe(stream, [(0.5, -0.5)[i % 2] + (6.0 if i >= 30 else 0) for i in range(60)])
    said = moca("changepoints", stream).stdout
    assert "confirmed" in said
    assert "best segmentation, by seq: 0-29, 30-59" in said
    assert "what changed" in said
    assert "mean rose by" in " ".join(said.split())
    (found,) = json.loads(moca("changepoints", stream, "--json").stdout)["events"]
    assert (found["start"], found["before"]["count"], found["after"]["mean"]) == (30, 30, 6.0)
    assert found["explanation"]["kind"] == "mean"


def test_anomalies_are_shown_to_those_who_ask(moca, stream, service_url):
    rng = random.Random(1)
    y = [rng.gauss(0, 1) for _ in range(200)]
    y[180] = 15.0
    with Client(service_url) as client:
        client.put_stream(stream, {"model": "gaussian", "location": 0, "scale": 1})
        client.observe(stream, y)
        changes = client.changepoints(stream).events
        assert all(event.kind == "change" for event in changes)
        (anomaly,) = client.changepoints(stream, kinds=["anomaly"]).events
        assert (anomaly.id, anomaly.kind, anomaly.direction) == (180, "anomaly", "up")
        assert client.changepoints(stream, kinds=["all"]).events == [*changes, anomaly]
        assert client.stream(stream).last_anomaly == 180
        for kinds in (["anomaly"], ["change", "anomaly"]):
            messages = client.events(stream=stream, kinds=kinds, after="0")
            event = next(m.event for m in messages if m.event.kind == "anomaly")
            assert asdict(event).items() <= asdict(anomaly).items()
            messages.close()
    assert "anomaly" not in moca("changepoints", stream).stdout
    listed = moca("changepoints", stream, "--kind", "all").stdout
    (row,) = [line for line in listed.splitlines() if "anomaly" in line]
    assert row.split()[:4] == ["180", "anomaly", "confirmed", "180"]
    found = json.loads(moca("changepoints", stream, "--kind", "anomaly", "--json").stdout)
    assert [event["id"] for event in found["events"]] == [180]


def test_selectors_are_for_events_of_all_streams(moca):
    for words in (["s", "--follow", "--match", "{}"], ["--match", "{}"]):
        assert (
            "--match: expected --follow and no STREAM"
            in moca("changepoints", *words, status=2).stderr
        )
    assert "expected a STREAM, or --follow" in moca("changepoints", status=2).stderr


@pytest.mark.parametrize("options", [["--json"], [], ["--match", '{site="north"}']])
def test_following_changepoints(options):
    selected, as_json = "--match" in options, "--json" in options
    with running(Feed) as feed:
        feed.seen, feed.refusals, feed.gap, feed.beats = [], [], True, []
        feed.total, feed.cut, feed.kind, feed.hang_s = 8, 3, "text/event-stream", 0
        feed.message = "changepoint"
        command = [sys.executable, "-m", "service.commands.main", "changepoints", "--follow"]
        command += [] if selected else ["s"]
        with subprocess.Popen(
            [*command, "--after", "0", "--url", feed.url, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(8 if as_json else 7)]
            process.send_signal(signal.SIGINT)
            try:
                _, noise = process.communicate(timeout=20)
            finally:
                process.kill()
        assert process.returncode == 130
        query = feed.seen[0][0]
        assert (query.get("stream"), query.get("match")) == (
            (None, ['{site="north"}']) if selected else (["s"], None)
        )
    if as_json:
        gap, *events = map(json.loads, lines)
        assert gap["known"] == {"partitions": [{"partition": 1, "after": None, "until": "t"}]}
        assert [each["event"]["start"] for each in events] == list(range(1, 8))
        assert noise == ""
    else:
        assert lines[0] == f"confirmed  {'s: ' if selected else ''}event 1, start 1\n"
        assert noise == "some events are no longer retained\n"


def test_nobody_there(moca):
    found = moca("observe", "s", "1", "--retry-for", "0.2", url="http://127.0.0.1:1", status=1)
    assert "ConnectError" in found.stderr
    assert "Is `moca serve` running at http://127.0.0.1:1?" in found.stderr
    assert len(found.stderr.splitlines()) == 1
