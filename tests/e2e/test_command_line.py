"""`moca` against a running service: completion, suggestions, plain lines, files of many streams."""

import csv
import json
import os
import subprocess
import sys

import httpx
import pytest

CODE = "import sys; sys.argv[0] = 'moca'; from service.commands.main import main; main()"
PROGRAM = [sys.executable, "-c", CODE]


@pytest.fixture
def moca(emptied, tmp_path):
    """Run `moca` with the service's address; returns the finished process."""

    def run(*arguments, text="", url=emptied, **environment):
        environ = {**os.environ, "MOCA_URL": url, "COLUMNS": "200", **environment}
        return subprocess.run(
            [*PROGRAM, *arguments],
            env=environ,
            input=text,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.fixture
def pumps(emptied):
    with httpx.Client(base_url=emptied, timeout=60) as client:
        for name in ("pump-7", "pump-8", "fan-1"):
            client.post(f"/v1/streams/{name}/observations", json={"y": 1.0}).raise_for_status()
        yield client


def completed(moca, words, **environment):
    done = moca(
        _MOCA_COMPLETE="complete_bash",
        COMP_WORDS=f"moca {words}",
        COMP_CWORD=str(len(words.split())),
        **environment,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.usefixtures("pumps")
def test_names_of_streams_are_completed(moca):
    assert completed(moca, "follow pu") == ["pump-7", "pump-8"]
    assert completed(moca, "streams show fan") == ["fan-1"]


def test_completion_is_quiet_without_a_service(moca):
    assert completed(moca, "follow pu", url="http://127.0.0.1:9") == []


@pytest.mark.usefixtures("pumps")
def test_a_stream_that_is_not_there_leads_to_one_that_is(moca):
    done = moca("streams", "show", "pmup-7")
    assert done.returncode == 1
    assert "there is no stream 'pmup-7'. Did you mean 'pump-7'" in done.stderr
    assert "Did you mean" not in moca("streams", "show", "zzz").stderr


def test_lines_may_be_plain_with_missing_outputs(moca, pumps):
    done = moca("observe", "two", "--json", text="1.5, 2\n3,nan\n[4, NaN]\nnull, 5\n")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["seq"] for line in done.stdout.splitlines()] == [0, 1, 2, 3]
    rows = pumps.get("/v1/streams/two/history").json()["observations"]
    assert [row["y"] for row in rows] == [[1.5, 2.0], [3.0, None], [4.0, None], [None, 5.0]]
    refused = moca("observe", "two", text="1;2\n")
    assert (refused.returncode, "line 1: not JSON" in refused.stderr) == (1, True)


def test_a_file_of_many_streams_becomes_them(moca, pumps, tmp_path):
    rows = [(t, name, 10 * k + t % 3) for t in range(30) for k, name in enumerate(("a", "b:1"))]
    with (tmp_path / "long.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("time", "sensor", "y"), *rows])
    done = moca("replay", "long.csv", "--by", "sensor", "--out", "out")
    assert done.returncode == 0, done.stderr
    for k, name in enumerate(("a", "b:1")):
        found = pumps.get(f"/v1/streams/{name}/history").json()["observations"]
        assert [row["y"] for row in found] == [10.0 * k + t % 3 for t in range(30)]
    made = sorted(path.name for path in (tmp_path / "out").glob("*.csv"))
    assert made == ["a-answers.csv", "b%3A1-answers.csv"]


def test_each_column_of_a_wide_file_becomes_a_stream(moca, pumps, tmp_path):
    lines = [f"2026-01-01T00:{t:02}:00Z,{t % 3},{t % 5 or ''},ok" for t in range(30)]
    (tmp_path / "wide.csv").write_text("\n".join(["time,north,south,note", *lines]))
    done = moca("replay", "wide.csv", "--wide", "--out", "out")
    assert done.returncode == 0, done.stderr
    for name, period in (("north", 3), ("south", 5)):
        found = pumps.get(f"/v1/streams/{name}/history").json()["observations"]
        wanted = [t % period if period == 3 else t % period or None for t in range(30)]
        assert [row.get("y") for row in found] == wanted
    assert sorted(path.name for path in (tmp_path / "out").glob("*.csv")) == [
        "north-answers.csv",
        "south-answers.csv",
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--by", "pump"], "has no column 'pump'"),
        (["--by", "sensor", "--stream", "a"], "exclude each other"),
        (["--wide", "--stream", "a"], "exclude each other"),
        (["--by", "sensor", "--out", "a.png"], "expected a folder with --by"),
        (["--by", "sensor"], "row 2 (line 3), column 'sensor' is empty"),
    ],
)
def test_a_file_that_does_not_name_its_streams_is_refused(moca, tmp_path, arguments, text):
    (tmp_path / "long.csv").write_text("sensor,y\na,1\n,2\n")
    done = moca("replay", "long.csv", *arguments)
    assert done.returncode in (1, 2)
    assert text in done.stderr
