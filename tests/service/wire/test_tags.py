"""Tags and selectors of streams."""

import pytest

from service.wire import tags

NODE = {"__name__": "node_load1", "job": "node", "instance": "a1:9100", "note": 'say "x"\nnow'}

SELECTORS = {
    "{}": True,
    '{job="node"}': True,
    '{job="node",}': True,
    "{ job = 'node' , env != \"dev\" }": True,
    '{job!="node"}': False,
    '{env=""}': True,
    '{env!=""}': False,
    '{instance=~"a.*"}': True,
    '{instance=~"a"}': False,  # the whole value
    '{instance=~"a|a1:9100"}': True,
    '{instance!~"a|b"}': True,
    '{instance=~"a1:9100",instance!~"a.*"}': False,
    "node_load1": True,
    "node_load5": False,
    'node_load1{job="db"}': False,
    '{__name__=~"node_.+"}': True,
    '{stream="pump-7"}': True,
    '{stream=~"pump-[0-6]"}': False,
    r'{instance=~"a1\\:\\d+"}': True,
    r'{instance=~"a1:\d+"}': True,  # an escape that is none stays as it is
    r'{note="say \"x\"\nnow"}': True,
    r'{note=~"say.*now"}': True,
}


def test_selectors_select_as_prometheus_does():
    for selector, fits in SELECTORS.items():
        assert tags.parse(selector).fits("pump-7", NODE) is fits, selector
        assert tags.selected(["none", selector], "pump-7", NODE) is fits, selector
    assert tags.selected([], "pump-7", NODE)


def test_what_is_no_selector_is_refused():
    for selector in (
        "",
        "{",
        '{job="node"',
        '{job="node" env="x"}',
        '{job="a"} or {job="b"}',
        "{job=node}",
        '{job=~"(("}',
        '{job=~"(a)\\\\1"}',  # RE2 has no references
    ):
        with pytest.raises(ValueError, match="expected"):
            tags.parse(selector)


def test_selectors_are_bounded():
    for longest, longer in (
        ('{job=~"' + "a" * 200 + '"}', '{job=~"' + "a" * 201 + '"}'),
        ("{" + 'a="b",' * 20 + "}", "{" + 'a="b",' * 21 + "}"),
        ("{" + " " * 998 + "}", "{" + " " * 999 + "}"),
    ):
        tags.parse(longest)
        with pytest.raises(ValueError, match="at most"):
            tags.parse(longer)


def test_expressions_that_take_other_engines_for_ever_take_no_time():
    slow = tags.parse('{a=~"(a|aa|a?)+b"}')
    assert not slow.fits("s", {"a": "a" * tags.MAX_VALUE})


def test_tags_are_bounded():
    tags.check(NODE)
    tags.check({f"a{i:02}": "é" * 122 for i in range(32)})  # 4,000 characters
    tags.check({"a" * 100: "x" * 500})
    for refused in (
        {"9a": "x"},
        {"a-b": "x"},
        {"ä": "x"},
        {"stream": "x"},
        {"a" * 101: "x"},
        {"a": "x" * 501},
        {f"a{i}": "" for i in range(33)},
        {f"a{i:02}": "é" * 122 + "x" * (i == 0) for i in range(32)},
    ):
        with pytest.raises(ValueError, match="expected"):
            tags.check(refused)
