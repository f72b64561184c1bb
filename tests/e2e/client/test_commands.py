"""The commands that talk to a service, against the running one."""

import csv
import json
import os
import random
import signal
import subprocess
from functools import partial

import httpx
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from moca_client.tables import describe_evidence
from service.commands.main import app
from tests.e2e import calling
from tests.e2e.calling import KNOWN
from tests.e2e.client.conftest import labels
from tests.e2e.deployment import MOCA
from tests.waiting import PATIENCE_S


@pytest.fixture
def moca(url):
    """Run `moca`; returns what it printed."""
    return partial(calling.moca, at=url)


@pytest.fixture
def program(url):
    """Start `moca` as a process of its own."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [*MOCA, *arguments],
            env={**os.environ, "MOCA_URL": url, "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def shifted(client, stream):
    """A stream whose level changed at 30."""
    client.put_stream(stream, KNOWN)
    client.observe(stream, [(0.5, -0.5)[i % 2] + (6.0 if i >= 30 else 0) for i in range(60)])
    return stream


def test_a_stream_from_its_making_to_its_end(moca, stream, tmp_path):
    made = moca("streams", "create", stream, "--model", "gaussian", "--set", "hazard=0.05")
    assert "gaussian" in made.stdout
    assert "hazard=0.05" in made.stdout
    assert "already exists" in moca("streams", "create", stream, status=1).stderr
    said = json.loads(moca("streams", "set", stream, "outlier_rate=0.01", "--json").stdout)
    assert said["settings"]["outlier_rate"] == 0.01
    assert moca("streams", "list", "--prefix", stream).stdout == f"{stream}\n"
    listed = json.loads(moca("streams", "list", "--prefix", stream, "--json").stdout)
    assert listed == [{"stream": stream}]
    assert "did you mean" in moca("streams", "show", f"{stream}x", status=1).stderr
    moca("observe", stream, "1", "2")
    moved = json.loads(moca("streams", "set", stream, "model=averaged", "--json").stdout)
    assert (moved["model"].partition("@")[0], moved["seq"]) == ("averaged", 2)
    alone = moca("streams", "set", stream, "model=poisson", "hazard=0.1", status=1).stderr
    assert f"moca streams set {stream} model=poisson" in alone
    moca("snapshot", "export", stream, "--out", str(tmp_path / "state"))
    refused = moca("snapshot", "import", stream, str(tmp_path / "state"), status=1).stderr
    assert "already exists: choose another name, or --replace it" in refused
    moca("snapshot", "import", stream, str(tmp_path / "state"), "--replace")
    moca("streams", "delete", stream, stdin="n\n", status=1)
    moca("streams", "delete", stream, "--yes")
    assert "404" in moca("streams", "show", stream, status=1).stderr
    moca("streams", "set", stream, "hazard=0.1", status=1)


def test_observing_words_lines_and_missing_outputs(moca, client, prefix):
    one, two = f"{prefix}one", f"{prefix}two"
    text = moca("observe", one, "1.5", "-2", "null", "--retry-for", "5").stdout.splitlines()
    assert [line.split()[0] for line in text] == ["seq", "0", "1", "2"]
    lines = "".join(f"{json.dumps(value)}\n" for value in (1, [2.0], {"y": 3}, None)) + "\n"
    answers = moca("observe", one, "--json", stdin=lines).stdout.splitlines()
    assert [json.loads(line)["seq"] for line in answers] == [3, 4, 5, 6]
    for text, said in (
        ("1\noops\n", "line 2: expected a number, comma-separated numbers or null, got 'oops'"),
        ('1\n{"y": 2\n', "line 2: not JSON: Expecting ',' delimiter"),
        ('1\n\n{"yy": 2}\n', "line 3: 422 Invalid field: body[0].yy: unknown field"),
        ("1\n2,3\n", "line 2: 422 Dimension mismatch: y: expected 1 number, got 2"),
    ):
        assert said in moca("observe", one, "--batch", "1", stdin=text, status=1).stderr
    several = moca("observe", one, "--batch", "9", stdin="1\n\n2,3\n4\n", status=1).stderr
    assert "line 3: 422 Dimension mismatch: observations[1].y" in several
    assert "LABEL '2,3': 422 Dimension" in moca("observe", one, "2,3", status=1).stderr
    assert moca("observe", one, "tall", status=2).stdout == ""  # no heading over nothing
    moca("streams", "create", two, "--model", "joint")
    moca("observe", two, "1,null", "nan,2.5", "null,null", "1.5,2")
    moca("observe", two, stdin='[null, 3]\n{"y": [4, null]}\n[NaN, 5]\n')
    moca("observe", two, stdin="1.5, 2\n3,nan\nnull, 5\n")
    assert labels(client, two) == [
        [1.0, None], [None, 2.5], None, [1.5, 2.0], [None, 3.0], [4.0, None], [None, 5.0],
        [1.5, 2.0], [3.0, None], [None, 5.0],
    ]  # fmt: skip
    assert client.stream(one).seq == 11


def without_nulls(said, answered):
    """What a command printed, without what is null and the service leaves out."""
    if isinstance(said, dict) and isinstance(answered, dict):
        return {
            name: without_nulls(value, answered.get(name))
            for name, value in said.items()
            if name in answered or value is not None
        }
    if isinstance(said, list) and isinstance(answered, list) and len(said) == len(answered):
        return [without_nulls(*pair) for pair in zip(said, answered, strict=True)]
    return said


def test_changepoints_as_text_and_with_all_fields_of_the_service(moca, shifted, url):
    said = moca("changepoints", shifted).stdout
    assert "confirmed" in said
    assert "0-29, 30-59" in said
    assert "mean rose by" in " ".join(said.split())
    for words, path in ((["streams", "show"], ""), (["changepoints"], "/changepoints")):
        said = json.loads(moca(*words, shifted, "--json").stdout)
        answered = httpx.get(f"{url}/v1/streams/{shifted}{path}").json()
        assert without_nulls(said, answered) == answered


def test_changes_of_all_streams(moca, shifted):
    asked = ("changes", "--prefix", shifted, "--state", "confirmed")
    (change,) = json.loads(moca(*asked, "--json").stdout)
    assert (change["stream"], change["start"]) == (shifted, 30)
    table = list(csv.DictReader(moca(*asked, "--csv").stdout.splitlines()))
    assert [(row["stream"], row["start"]) for row in table] == [(shifted, "30")]
    assert len(moca(*asked, "--min-size", "1000").stdout.splitlines()) == 1
    assert "noon" in moca("changes", "--since", "noon", status=1).stderr
    none = moca(*asked, "--since", "2200-01-01")
    assert none.stdout.count("\n") == 1
    assert none.stderr == "no changes with --since 2200-01-01; 1 before that: --since all\n"
    assert moca(*asked, "--since", "all").stdout == moca(*asked).stdout
    none = moca("incidents", "--prefix", "nobody").stderr
    assert none == "no incidents with --since 24h, and none before that\n"
    assert "since" not in moca("incidents", "--prefix", "nobody", "--since", "all").stderr


def test_predictions_as_a_table(moca, shifted, client, prefix):
    heads, numbers = (
        line.split("  ")
        for line in moca("predict", shifted).stdout.splitlines()
        if "─" not in line and line.strip() and "seq" not in line
    )
    assert [head.strip() for head in heads if head.strip()] == ["median", "90 % interval", "mean"]
    predictive = client.predict(shifted).predictions[0].predictive
    low, median, high = (f"{value[0]:.4g}" for value in predictive.quantiles.values())
    shown = [cell.strip() for cell in numbers if cell.strip()]
    assert shown == [median, f"{low} to {high}", f"{predictive.mean[0]:.4g}"]
    two = f"{prefix}two"
    client.observe(two, [[k % 3, k % 5] for k in range(30)])
    said = moca("predict", two, "--quantile", "0.1", "--quantile", "0.25", "--samples", "1").stdout
    for text in ("output", "0.1 quantile", "0.25 quantile", "draw"):
        assert text in said


def test_changepoints_are_followed_until_interrupted(program, shifted):
    process = program("changepoints", shifted, "--follow", "--after", "0", "--json")
    event = json.loads(process.stdout.readline())
    while event["event"]["state"] != "confirmed":
        event = json.loads(process.stdout.readline())
    assert (event["stream"], event["event"]["start"]) == (shifted, 30)
    process.send_signal(signal.SIGINT)
    _, noise = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, noise) == (130, "")


def test_changes_of_streams_of_a_prefix_are_followed(program, client, shifted):
    client.put_stream(other := f"x-{shifted}", KNOWN)
    client.observe(other, [(0.5, -0.5)[i % 2] + (6.0 if i >= 30 else 0) for i in range(60)])
    process = program(
        "changepoints", "--follow", "--after", "0", "--prefix", other, "--state", "confirmed"
    )
    line = process.stdout.readline()
    while line.startswith(" incident"):  # streams of other tests may have changed with it
        line = process.stdout.readline()
    assert f"{other}: " in line


def test_options_for_many_streams_are_refused_of_one(moca):
    for option in ("--prefix", "--match"):
        refused = moca("changepoints", "s", option, "a", status=2).stderr
        assert f"{option}: expected --follow and no STREAM" in refused


def test_a_confirmed_change_is_followed_once_and_then_refined(program, shifted):
    process = program("changepoints", shifted, "--follow", "--after", "0")
    states = []
    while "refined" not in states:
        states.append(process.stdout.readline().split()[0])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert states.count("confirmed") == 1


def test_a_file_of_several_columns_of_numbers_is_refused_with_the_ways_to_read_it(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text("host,load,errors\na,1,2\n")
    refused = CliRunner().invoke(app, ["replay", str(file)])
    assert refused.exit_code == 1
    assert "by --y, or each as a stream of its own by --wide" in refused.output
    refused = CliRunner().invoke(app, ["replay", str(file), "--by", "host"])
    assert refused.exit_code == 1
    assert "by --y" in refused.output
    assert "--wide" not in refused.output


def test_names_of_streams_are_completed_and_without_a_service_nothing_is_said(url, shifted):
    for place, names in ((url, [shifted]), ("http://127.0.0.1:9", [])):
        asked = {"COMP_WORDS": f"moca predict {shifted[:-1]}", "COMP_CWORD": "2", "MOCA_URL": place}
        asked["_MOCA_COMPLETE"] = "complete_bash"
        assert CliRunner().invoke(app, prog_name="moca", env=asked).output.split() == names


def test_files_of_many_streams_become_them(moca, client, url, prefix, tmp_path, monkeypatch):
    """One row for each observation of a stream, or one column for each stream."""
    monkeypatch.setattr("moca_client.replay.find_spec", lambda name: None)  # no pictures
    long, wide, out = tmp_path / "long.csv", tmp_path / "wide.csv", tmp_path / "out"
    rows = [(t, f"{prefix}{name}", k + t % 3) for t in range(30) for k, name in enumerate("ab")]
    with long.open("w", newline="") as file:
        csv.writer(file).writerows([("time", "sensor", "y"), *rows])
    lines = [f"2026-01-01T00:{t:02}:00Z,{t % 3},{t % 5 or ''},ok" for t in range(30)]
    header = f"time,{prefix}north,{prefix}south,note"
    wide.write_text("\n".join([header, *lines]))
    moca("replay", str(long), "--by", "sensor", "--out", str(out), "--model", "gaussian")
    moca("replay", str(wide), "--wide", "--out", str(out), "--model", "gaussian")
    expected = {
        "a": [t % 3 for t in range(30)],
        "b": [1 + t % 3 for t in range(30)],
        "north": [t % 3 for t in range(30)],
        "south": [t % 5 or None for t in range(30)],
    }
    for name, y in expected.items():
        assert labels(client, f"{prefix}{name}") == y, name
    for name, streams in (("long", "ab"), ("wide", ("north", "south"))):
        with (out / f"{name}-answers.csv").open() as file:
            rows = list(csv.DictReader(file))
        for stream in streams:
            own = [row for row in rows if row["stream"] == f"{prefix}{stream}"]
            assert [int(row["seq"]) for row in own] == [*range(30)]
            assert [float(row["y"]) if row["y"] else None for row in own] == expected[stream]
    long.write_text("sensor,y\na,1\n,2\n")
    for arguments in (
        ["--by", "pump"],
        ["--by", "sensor", "--stream", "a"],
        ["--wide", "--stream", "a"],
        ["--by", "sensor", "--out", "a.png"],
        ["--by", "sensor"],
    ):
        done = CliRunner().invoke(app, ["replay", str(long), *arguments], env={"MOCA_URL": url})
        assert done.exit_code in (1, 2), arguments


def test_what_changed_in_a_file_of_many_streams_is_shown(moca, client, url, prefix, tmp_path):
    """With pictures of the streams with the largest changes."""
    rng = random.Random(7)  # the start of the smallest is estimated anew
    file, out = tmp_path / "many.csv", tmp_path / "out"
    rows = [
        (t, f"{prefix}{k}", rng.gauss(2 * k if t >= 60 else 0, 1))
        for t in range(90)
        for k in range(4)
    ]
    with file.open("w", newline="") as handle:
        csv.writer(handle).writerows([("time", "sensor", "y"), *rows])
    asked = ("replay", str(file), "--by", "sensor", "--out", str(out), "--batch", "100")
    said = moca(*asked, "--plots", "1").stdout
    assert "3 of 4 streams changed; 360 observations, 3 confirmed changes" in " ".join(said.split())
    assert "pictures of 1 of 3 streams" in said
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for k in (1, 2, 3):
        event = client.stream(f"{prefix}{k}").last_event
        assert event.refined_at is not None
        rarely = describe_evidence(event.evidence)
        assert event.sentence.startswith("mean rose by ")
        assert f"{prefix}{k} {event.start} {event.sentence} {rarely}" in lines
    names = {path.name for path in out.iterdir()}
    assert names == {"many-answers.csv", "many-answers.parquet", f"many-{prefix}3.png"}
    table = parquet.read_table(out / "many-answers.parquet").to_pydict()
    assert table["stream"] == [f"{prefix}{k}" for k in range(4) for _ in range(90)]
    assert table["seq"] == [*range(90)] * 4
    sent = [y for k in range(4) for _, name, y in rows if name == f"{prefix}{k}"]
    assert table["y"] == pytest.approx(sent, abs=1e-12)
    refused = moca(*asked, status=1).stderr
    assert "already has 90 observations" in " ".join(refused.split())
    moca(*asked, "--replace", "--plots", "0")
    assert "4 streams changed" in " ".join(moca(*asked, "--append").stdout.split())


def test_nobody_there(moca):
    result = moca("observe", "s", "1", "--retry-for", "0.2", at="http://127.0.0.1:1", status=1)
    assert "moca serve" in result.stderr
    assert len(result.stderr.splitlines()) == 1
