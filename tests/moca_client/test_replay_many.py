"""Replays of files of many streams, to a client that is made up."""

import csv
from collections import Counter

import pytest

from moca_client.console import table
from moca_client.errors import problem_of
from moca_client.replay import ReplayError, by_largest_change, changes_table, replay
from moca_client.responses import (
    Changepoints,
    Event,
    Predictive,
    StreamChange,
    StreamSummary,
)
from moca_client.series import read_table, streams_by_column, streams_of
from tests.moca_client.test_plots import replayed_of, row
from tests.moca_client.test_replay import ClientOfItself, quiet, written


def replay_many(file, streams, **options):
    return replay(file, streams, many=True, **options)


def by_host(file):
    return streams_of(read_table(file), "host")


class ManyService(ClientOfItself):
    """Streams that change at 5, by the calls of a client that it takes."""

    def __init__(self):
        self.seqs = Counter()
        self.refused = None  # stream and seq of an observation that is refused
        self.refined = []  # changes as the service lists them
        self.asked = []  # for that list
        self.others = 0  # observations of another writer after those of a request
        self.settings = {}  # that were put, by stream

    def stream(self, name):
        if name not in self.seqs:
            raise problem_of(404, {"type": "x/unknown-stream"})
        return StreamSummary(name, "gaussian", self.seqs[name])

    def put_stream(self, name, settings):
        self.settings[name] = settings
        return StreamSummary(name, "gaussian", 0, settings=settings)

    def delete_stream(self, name):
        del self.seqs[name]

    def observe(self, name, observations, detail, belief):
        assert detail == "full"  # the file has every column
        if observations[0]["seq"] != self.seqs[name]:
            raise problem_of(409, {"type": "x/seq-conflict", "seq": self.seqs[name]})
        answers = []
        for _ in observations:
            if self.refused == (name, self.seqs[name]):
                error = problem_of(422, {"title": "bad", "detail": "too large"})
                error.answers = answers
                raise error
            answers.append(self.answer(name))
        self.seqs[name] += self.others
        return answers

    def answer(self, name):
        seq = self.seqs[name]
        answer = row(seq)
        answer.stream = name
        answer.event = (
            Event(
                id=1,
                state="confirmed",
                start=5,
                suspected_at=6,
                confirmed_at=7,
                size=2.0,
                sentence="mean",
            )
            if seq == 7
            else None
        )
        self.seqs[name] += 1
        return answer

    def changes(self, *, states, prefix, limit):
        """Those of `refined`, and one of another stream."""
        self.asked.append((states, prefix))
        return (row for row in [*self.refined, listed("elsewhere", 3)])

    def changepoints(self, name):
        return Changepoints(name, self.seqs[name], "gaussian", [], [], None)


def listed(stream, start, confirmed_at=7):
    return StreamChange(
        stream=stream,
        id=1,
        state="confirmed",
        start=start,
        suspected_at=6,
        confirmed_at=confirmed_at,
        earliest=3,
        latest=4,
        coverage=0.9,
        direction="up",
        size=2.5,
        probability=0.8,
        evidence=12_345.0,
        sentence="mean rose",
    )


@pytest.fixture
def service(monkeypatch):
    service = ManyService()
    monkeypatch.setattr("moca_client.replay.Client", service)
    return service


def rows_of(file):
    with file.open(newline="") as handle:
        return list(csv.DictReader(handle))


def hosts(tmp_path, names="abc", rows=9):
    lines = [f"{name},{10 * k + len(name)}" for k in range(rows) for name in names]
    return written(tmp_path, "\n".join(["host,y", *lines]), "hosts.csv")


def test_a_refusal_keeps_the_answers_of_all_streams(service, tmp_path):
    """Also of the rows before it in its request, and of requests that were on their way."""
    file = hosts(tmp_path)
    service.refused = ("b", 4)
    console = quiet()
    with pytest.raises(ReplayError, match="'b', rows 4 to 6: 422 bad: too large"):
        replay_many(
            file,
            by_host(file),
            out=tmp_path / "out",
            batch=3,
            console=console,
        )
    kept = Counter(row["stream"] for row in rows_of(tmp_path / "out" / "hosts-answers.csv"))
    assert kept == service.seqs
    assert kept["b"] == 4
    assert kept["a"] in (6, 9)
    assert kept["c"] in (3, 6)
    assert f"wrote the answers to {kept.total()} rows" in console.file.getvalue()


@pytest.mark.parametrize("settings", [{}, {"hazard": 0.1}])
def test_each_stream_gets_the_settings_that_are_stated_and_none_others(service, tmp_path, settings):
    file = hosts(tmp_path)
    replay_many(
        file, by_host(file), settings=settings, out=tmp_path / "out", plots=0, console=quiet()
    )
    assert service.settings == (dict.fromkeys("abc", settings) if settings else {})
    assert service.seqs == dict.fromkeys("abc", 9)


def test_streams_that_are_there_are_refused_together_before_any_is_changed(service, tmp_path):
    file = hosts(tmp_path)

    def again(existing, settings=None):
        replay_many(
            file,
            by_host(file),
            settings=settings,
            out=tmp_path / "out",
            plots=0,
            existing=existing,
            console=quiet(),
        )

    service.seqs["b"] = 4
    with pytest.raises(ReplayError, match=r"'b' already has 4 observations: append to them"):
        again("refuse", {"hazard": 0.1})
    service.seqs["c"] = 2
    with pytest.raises(ReplayError) as refused:
        again("refuse", {"hazard": 0.1})
    assert "and 1 others of 3 have some" in str(refused.value)
    assert "--stream" not in str(refused.value)  # excluded by --by
    assert service.settings == {}
    again("append")
    assert service.seqs == {"a": 9, "b": 13, "c": 11}
    again("replace")
    assert service.seqs == {"a": 9, "b": 9, "c": 9}


def test_without_changes_there_is_a_sentence_and_no_empty_table(service, tmp_path):
    file = hosts(tmp_path, "ab", rows=5)
    console = quiet()
    replay_many(file, by_host(file), out=tmp_path / "out", plots=0, console=console)
    lines = console.file.getvalue().splitlines()
    assert "0 of 2 streams changed; 10 observations, no confirmed changes" in lines
    assert "what changed" not in console.file.getvalue()


def test_times_are_read_in_the_form_of_the_whole_column(service, tmp_path):
    text = "date;host;value\n01/02/99;a;1\n03/02/99;a;2\n02/02/99;b;3\n31/12/99;b;4\n"
    file = written(tmp_path, text, "hosts.csv")
    streams = by_host(file)
    assert streams["a"].axis.rfc3339 == ["1999-02-01T00:00:00Z", "1999-02-03T00:00:00Z"]
    console = quiet()
    replay_many(file, streams, out=tmp_path / "out", plots=0, console=console)
    assert console.file.getvalue().count("'01/02/99' was read as 1999-02-01: ") == 1


def test_a_sentence_fits_a_line_beside_the_time_of_its_start(service, tmp_path):
    lines = [f"2026-03-01T{k:02}:00:00Z,web-1,{k}" for k in range(9)]
    file = written(tmp_path, "\n".join(["time,host,y", *lines]), "hosts.csv")
    service.refined = [listed("web-1", 4)]
    console = quiet()
    replay_many(file, by_host(file), out=tmp_path / "out", plots=0, console=console)
    (row,) = [line for line in console.file.getvalue().splitlines() if "web-1" in line]
    assert row.split()[:5] == ["web-1", "2026-03-01", "04:00", "mean", "rose"]


def test_long_names_leave_room_for_sentences():
    made = table("stream", "since", "what changed", "evidence", words=("what changed",))
    name = "eu.checkout.latency-ms.host-0123456789.abcdef"
    made.add_row(name, "2026-03-01 04:00", "mean rose by 3.3 sd, 100 → 115", "1 in 120,000")
    console = quiet()
    console.print(made)
    text = console.file.getvalue()
    assert "1 in 120,000" in text
    cells = [line.split("  ") for line in text.splitlines()]
    assert name == "".join(row[0].strip() for row in cells[3:])
    assert "mean rose by" in text


def test_another_writer_is_noticed(service, tmp_path):
    file = hosts(tmp_path)
    service.others = 1
    with pytest.raises(ReplayError, match="another client writes to 'a'"):
        replay_many(file, by_host(file), out=tmp_path, batch=6, console=quiet())


def test_changes_are_shown_as_the_service_has_estimated_them_since(service, tmp_path):
    """One of an earlier life of a stream, confirmed elsewhere, is another change."""
    file = hosts(tmp_path, ("web-1", "web-2", "web-3"))
    service.refined = [listed("web-1", 4), listed("web-2", 1, confirmed_at=3)]
    console = quiet()
    replay_many(file, by_host(file), out=tmp_path / "out", plots=0, console=console)
    assert service.asked == [(["confirmed"], "web-")]
    rows = [line.split() for line in console.file.getvalue().splitlines() if "web-" in line]
    shown = {row[0]: row[1:] for row in rows}
    assert shown["web-1"] == ["4", "(3-4)", "mean", "rose", "1", "in", "12,000"]
    assert shown["web-2"] == shown["web-3"] == ["5", "mean"]


def test_the_table_of_all_streams_has_what_only_some_of_them_have(service, tmp_path):
    answer = service.answer

    def of_classes(name):
        answered = answer(name)
        if name == "b":
            answered.predictive = Predictive(probabilities=[0.25, 0.75])
        return answered

    service.answer = of_classes
    file = hosts(tmp_path, "ab", rows=2)
    replay_many(file, by_host(file), out=tmp_path / "out", plots=0, console=quiet())
    rows = rows_of(tmp_path / "out" / "hosts-answers.csv")
    cells = [(row["stream"], row["mean"], row["probability1"]) for row in rows]
    assert cells == [("a", "5.0", "")] * 2 + [("b", "", "0.75")] * 2
    assert not list((tmp_path / "out").glob("*.png"))


def test_only_confirmed_changes_are_listed_the_latest_and_drawn_the_largest_first(
    service, tmp_path
):
    answer = service.answer

    def suspected(name):
        answered = answer(name)
        if answered.event is not None and name == "b":
            answered.event.state = "suspected"
        if answered.event is not None and name == "c":
            answered.event.kind = "anomaly"
        return answered

    service.answer = suspected
    file = hosts(tmp_path)
    replays = replay_many(file, by_host(file), out=tmp_path, plots=0, console=quiet())
    assert [replayed.stream for replayed in replays if replayed.confirmed] == ["a"]
    early, late = replayed_of(), replayed_of()
    for own, name, start, sizes in ((early, "early", 20, (1.0, 9.0)), (late, "late", 40, (5.0,))):
        own.stream = name
        own.events = [
            Event(id=id_, state="confirmed", start=start, suspected_at=45, size=size)
            for id_, size in enumerate(sizes)
        ]
    listed_names = list(changes_table([early, late]).columns[0].cells)
    assert listed_names == ["late", "early", "early"]
    assert by_largest_change([late, early, replays[1]]) == [early, late]


def test_a_column_named_as_one_of_the_answers_keeps_its_labels(service, tmp_path):
    file = written(tmp_path, "low,mean\n1,50\n2,60\n", "wide.csv")
    replay_many(
        file, streams_by_column(read_table(file)), out=tmp_path / "out", plots=0, console=quiet()
    )
    rows = rows_of(tmp_path / "out" / "wide-answers.csv")
    assert [row["y"] for row in rows] == ["1.0", "2.0", "50.0", "60.0"]
    assert [row["mean"] for row in rows] == ["5.0"] * 4


def test_streams_with_the_largest_changes_have_pictures(service, tmp_path):
    file = hosts(tmp_path)
    out = tmp_path / "out"
    console = quiet()
    replay_many(file, by_host(file), out=out, plots=2, console=console)
    assert {path.name for path in out.glob("*.png")} == {"hosts-a.png", "hosts-b.png"}
    assert "pictures of 2 of 3 streams that changed" in console.file.getvalue()
