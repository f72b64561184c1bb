"""Which stream a series goes to."""

import pytest

from service.api.parsing.observations import ObservationParser
from service.api.parsing.series_rules import SeriesRules
from service.errors.base import StartupError
from service.settings import Settings
from service.wire import tags
from tests.deploy.dashboards import PROMETHEUS

PARSER = ObservationParser(Settings())


def rules_of(tmp_path, text):
    path = tmp_path / "rules.toml"
    path.write_text(text)
    return SeriesRules(path, PARSER)


def labels(**named):
    return tuple(text for pair in named.items() for text in pair)


UP = labels(__name__="up", instance="a:9100", job="node")


def test_without_rules_each_series_is_a_stream_of_its_own():
    rules = SeriesRules(None, PARSER)
    target = rules.target(UP)
    assert target.stream.startswith("up@a:9100~")
    assert target.settings == {
        "interval": 60.0,
        "ttl": 604_800.0,
        "tags": {"__name__": "up", "instance": "a:9100", "job": "node"},
    }
    others = [
        labels(__name__="up", instance="a:9100", job="db"),
        labels(__name__="up", instance="a:9100"),
        labels(__name__="up", instance="a:9100", job="node", mode="x"),
    ]
    assert len({target.stream, *(rules.target(each).stream for each in others)}) == 4
    for same in (
        labels(job="node", instance="a:9100", __name__="up"),
        labels(__name__="up", instance="a:9100", job="node", mode=""),  # an empty label is none
    ):
        assert rules.target(same) == target


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a.b": "1"}, {"a_b": "1"}),
        ({"stream": "1"}, {"exported_stream": "1"}),
        ({"a": "1", "b": "2"}, {"a": "1\0b\0002"}),
        ({"a": "1\0b", "c": "2"}, {"a": "1", "b": "c\0002"}),
    ],
)
def test_series_that_look_alike_are_streams_of_their_own(one, other):
    rules = SeriesRules(None, PARSER)
    assert rules.target(labels(**one)).stream != rules.target(labels(**other)).stream


def test_labels_that_would_be_one_tag_are_refused():
    rules = SeriesRules(None, PARSER)
    with pytest.raises(ValueError, match="got two for the tag 'a_b'"):
        rules.target(labels(**{"a.b": "1", "a_b": "2"}))
    both = rules.target(labels(stream="s", exported_stream="t"))
    assert both.settings["tags"] == {"exported_stream": "t", "exported_exported_stream": "s"}


def test_long_labels_are_shortened_where_the_fingerprint_tells_them_apart():
    rules = SeriesRules(None, PARSER)
    targets = [rules.target(labels(__name__="x" * 150, instance="é/" * 100 + i)) for i in "ab"]
    assert targets[0].stream != targets[1].stream
    assert targets[0].stream.startswith("x" * 80 + "@~c3a9~2f")
    assert max(len(target.stream) for target in targets) <= 200


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("", False),
        ('[[rule]]\nmatch = "{}"', False),
        ("[[rule]]\nmatch = '{job=\"moca\"}'", False),
        ('[[rule]]\nmatch = "moca_anomaly"', True),
        (
            "[[rule]]\nmatch = '{job=\"moca\"}'\ndrop = true\n"
            "[[rule]]\nmatch = '{__name__=~\".+\"}'",
            False,
        ),
        ("[[rule]]\nmatch = '{__name__=~\"moca_.*\"}'", True),
    ],
)
def test_results_become_streams_only_by_a_rule_with_their_name(tmp_path, text, taken):
    rules = rules_of(tmp_path, text) if text else SeriesRules(None, PARSER)
    result = rules.target(labels(__name__="moca_anomaly", job="moca"))
    assert (result is not None) is taken


def test_the_first_rule_that_matches_counts(tmp_path):
    rules = rules_of(
        tmp_path,
        """
        [[rule]]
        match = '{instance=~"a.*"}'
        stream = "first:{job}"
        [[rule]]
        match = 'up{instance="b"}'
        drop = true
        [[rule]]
        match = 'up'
        stream = "last"
        interval = 15
        """,
    )
    assert rules.target(UP).stream == "first:node"
    assert rules.target(labels(__name__="up", instance="b")) is None
    assert rules.target(labels(__name__="down", instance="c")) is None
    last = rules.target(labels(__name__="up", instance="c"))
    assert (last.stream, last.settings["interval"]) == ("last", 15.0)


def test_values_of_any_characters_give_different_ids(tmp_path):
    rules = rules_of(tmp_path, '[[rule]]\nstream = "{__name__}:{path}"')
    values = ["a/b", "a~2fb", "a-b", "a b", "é", "", "a~b"]
    ids = [rules.target(labels(__name__="x", path=value)).stream for value in values]
    assert ids[:2] == ["x:a~2fb", "x:a~7e2fb"]
    assert len(set(ids)) == len(values)


def test_names_that_no_tag_can_have_are_changed(tmp_path):
    given = {"__name__": "x", "stream": "s", "http.status": "2", "0a": "1"}
    target = SeriesRules(None, PARSER).target(labels(**given))
    assert target.settings["tags"] == {
        "__name__": "x",
        "exported_stream": "s",
        "http_status": "2",
        "_0a": "1",
    }
    tags.check(target.settings["tags"])


def test_series_that_no_stream_can_be_made_of_are_refused(tmp_path):
    rules = rules_of(tmp_path, '[[rule]]\nstream = "{path}"')
    with pytest.raises(ValueError, match="expected a stream id of 1 to 200 characters"):
        rules.target(labels(path="x" * 201))
    with pytest.raises(ValueError, match="expected a stream id"):
        rules.target(labels(path=".."))
    with pytest.raises(ValueError, match="other: expected at most 500 characters"):
        rules.target(labels(path="x", other="x" * 501))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "rule: Field required"),
        ("x", "invalid TOML"),
        ('[[rule]]\nstream = "{a}/b"', "rule.0.stream"),
        ('[[rule]]\nmatch = "{"', "rule.0.match"),
        ("[[rule]]\nhistory = 100000000", "rule.0.history: expected at most 100000"),
        ("[[rule]]\ncolour = 1", "rule.0.colour"),
        ("[[rule]]\ninterval = 0.0009", "rule.0.interval: .* greater than or equal to 0.001"),
        ("[[rule]]\nconfirm_after = 3\nconfirm_probability = 0.9", "confirm_probability"),
    ],
)
def test_a_file_that_cannot_be_used_says_where(tmp_path, text, why):
    with pytest.raises(StartupError, match=why):
        rules_of(tmp_path, text)


def test_a_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(StartupError, match="cannot read the rules of series"):
        SeriesRules(tmp_path / "none.toml", PARSER)


def test_the_sample_file_does_what_its_page_says():
    rules = SeriesRules(PROMETHEUS / "series-rules.toml", PARSER)
    load = rules.target(labels(__name__="node_load1", instance="a:9100", job="node"))
    assert load.stream == "load:a:9100"
    assert load.settings["tags"]["team"] == "platform"
    assert rules.target(labels(__name__="x_bucket", job="node")) is None
    assert rules.target(labels(__name__="x", job="db")) is None
