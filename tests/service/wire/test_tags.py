"""Tags and selectors of streams."""

import re
import time

import pytest

from service.wire import tags

NODE = {"__name__": "node_load1", "job": "node", "instance": "a1:9100", "note": 'say "x"\nnow'}


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ("{}", True),
        ('{job="node"}', True),
        ('{job="node",}', True),
        ("{ job = 'node' , env != \"dev\" }", True),
        ('{job!="node"}', False),
        ('{env=""}', True),
        ('{env!=""}', False),
        ('{instance=~"a.*"}', True),
        ('{instance=~"a"}', False),  # the whole value
        ('{instance=~"a|a1:9100"}', True),
        ('{instance!~"a|b"}', True),
        ('{instance=~"a1:9100",instance!~"a.*"}', False),
        ("node_load1", True),
        ("node_load5", False),
        ('node_load1{job="db"}', False),
        ('{__name__=~"node_.+"}', True),
        ('{stream="pump-7"}', True),
        ('{stream=~"pump-[0-6]"}', False),
        (r'{instance=~"a1\\:\\d+"}', True),
        (r'{instance=~"a1:\d+"}', True),  # an escape that is none stays as it is
        (r'{note="say \"x\"\nnow"}', True),
        (r'{note=~"say.*now"}', True),
    ],
)
def test_selectors_select_as_prometheus_does(selector, fits):
    assert tags.parse(selector).fits("pump-7", NODE) is fits
    assert tags.selected(["none", selector], "pump-7", NODE) is fits


@pytest.mark.parametrize(
    ("selector", "why"),
    [
        ("", "expected a selector such as"),
        ("{", "cannot read ''"),
        ('{job="node"', "cannot read"),
        ('{job="node" env="x"}', "cannot read 'job="),
        ('{job="a"} or {job="b"}', "cannot read 'or"),
        ("{job=node}", "cannot read 'job=node}'"),
        ('{job=~"(("}', "job: expected an RE2 expression, got '((': missing )"),
        ('{job=~"(a)\\\\1"}', "job: expected an RE2 expression"),
        ('{job=~"' + "a" * 201 + '"}', "at most 200 characters in an expression, got 201"),
        ("{" + 'a="b",' * 21 + "}", "at most 20 matchers, got 21"),
        ("{" + " " * 1000 + "}", "at most 1000 characters, got 1002"),
    ],
)
def test_what_is_no_selector_is_refused_by_its_place(selector, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        tags.parse(selector)


def test_expressions_that_are_slow_elsewhere_are_not():
    slow = tags.parse('{a=~"(a|aa|a?)+b"}')
    began = time.perf_counter()
    assert not slow.fits("s", {"a": "a" * tags.MAX_VALUE})
    assert time.perf_counter() - began < 0.1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"9a": "x"}, "got '9a'"),
        ({"a-b": "x"}, "got 'a-b'"),
        ({"ä": "x"}, "got 'ä'"),
        ({"stream": "x"}, "got 'stream'"),
        ({"a" * 101: "x"}, "expected names of 1 to 100"),
        ({"a": "x" * 501}, "a: expected at most 500 characters, got 501"),
        ({f"a{i}": "" for i in range(33)}, "at most 32 tags, got 33"),
        ({f"a{i}": "x" * 500 for i in range(8)}, "at most 4000 characters"),
    ],
)
def test_tags_are_bounded(given, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        tags.check(given)


def test_the_largest_tags_pass():
    tags.check({f"a{i:02}": "é" * 122 for i in range(32)})
    tags.check(NODE)
