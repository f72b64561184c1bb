"""From the body of a remote write to series: limits on labels."""

import sys

import pytest

from service.api.parsing import remote_write, series_rules
from service.api.parsing.observations import ObservationParser
from service.api.parsing.remote_write import Version, parse
from service.api.parsing.series_rules import SeriesRules
from service.errors.base import BodyTooLarge
from service.settings import Settings
from service.wire import tags
from tests.remote_write import packed, version_1, version_2

LIMITS = 8 << 20, 1000


def request_2(*references, symbols=("", "a", "b")):
    request = remote_write._CLASS["Request2"]()
    request.symbols.extend(symbols)
    for refs in references:
        series = request.timeseries.add()
        series.labels_refs.extend(refs)
        series.samples.add(value=1.0, timestamp=1000)
    return packed(request)


def test_a_series_with_too_many_labels_is_refused_before_they_are_read():
    body = request_2([1, 2] * 500_000, [1, 2])
    assert len(body) < 100_000
    write = parse(body, Version.V2, *LIMITS)
    assert [series.labels for series in write.series] == [("a", "b")]
    assert [refusal.samples for refusal in write.refusals] == [1]
    assert "expected at most 32 labels, got 500000" in write.refusals[0].reason
    labels = {f"l{i}": "x" for i in range(tags.MAX_TAGS + 1)}
    for body, version in ((version_1, Version.V1), (version_2, Version.V2)):
        write = parse(body((labels, [(1.0, 1), (2.0, 2)])), version, *LIMITS)
        assert (write.series, write.samples, write.refusals[0].samples) == ([], 2, 2)
        del labels["l0"]
        assert len(parse(body((labels, [])), version, *LIMITS).series[0].labels) == 64
        labels["l0"] = "x"


def test_repeated_names_of_labels_are_refused():
    write = parse(request_2([1, 2, 2, 1, 1, 2]), Version.V2, *LIMITS)
    assert write.series == []
    assert "expected each label once, got 'a'" in write.refusals[0].reason


def test_series_share_their_strings_and_symbols_are_bounded():
    long = "x" * 100_000
    write = parse(request_2(*[[1, 2]] * 100, symbols=("", "a", long)), Version.V2, *LIMITS)
    assert len({id(series.labels[1]) for series in write.series}) == 1
    with pytest.raises(BodyTooLarge, match="at most 64 symbols"):
        parse(request_2([1, 2], symbols=["s"] * 65), Version.V2, 8 << 20, 1)


def test_the_rules_remember_no_more_than_their_memory(monkeypatch):
    monkeypatch.setattr(series_rules, "MAX_REMEMBERED", 100_000)
    rules = SeriesRules(None, ObservationParser(Settings()))
    first = ("a", "0" * 400, "b", "1" * 400)
    target = rules.target(first)
    assert rules.target(first) is target
    for i in range(1000):
        rules.target(("a", f"{i:0400}", "b", "2" * 400))
        assert len(rules._targets) <= 100
        assert rules.target(first) is target  # what is in use stays
    assert sum(sys.getsizeof(text) for labels in rules._targets._recent for text in labels) < 1e5
