"""Observations are read alike, alone or in a list, and say what is wrong with them."""

import json
import re
import struct

from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from service.api.parsing.observations import BadItem, Items, ObservationParser
from service.problems import ServiceError
from service.settings import Settings
from tests.service.api.calls import check, openapi

PARSER = ObservationParser(Settings(max_observations=2000))

# --- bodies, most of them nearly right ----------------------------------------------------------

numbers = st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.sampled_from(
    ["0", "-0", "-0.0", "7", "1e400", "1e-400", "5e-324", "9007199254740993", "01", "1.", ".5"]
    + ["+1", "1E+5", "-", "NaN", "-Infinity", "true", "null", '"1"', "0x1", "1_0", "١", "2.0"]
    + ["1" + "0" * 400, "9" * 4301, "[]", "{}", '""', "[1,null]", "[null]", "[1.5,2]", '["a"]']
)
strings = st.text(max_size=9).map(json.dumps) | st.sampled_from(
    ['"2024-05-01t12:00:60.123456789+01:00"', '"2024-02-30T12:00:00Z"', '"a\\n"', '"."', '"é"']
    + [f'"{"a" * 201}"', '"\\u0000"', '"a b"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\x"', "'a'"]
)
GOOD = {
    "y": "[1.5,null]",
    "x": "[0.5,-0.0]",
    "time": '"2024-05-01T12:00:00.5+01:00"',
    "elapsed": "1e-300",
    "supervision": '{"changepoint":0.5}',
    "seq": "3",
    "pending": "false",
    "stream": '"pump-7"',
    "key": '"k"',
    "z": "1",  # no field
    "\\u0079": "1",  # y in other letters
}


def objects(names):
    """Most values are good, some are anything."""
    anything = numbers | strings | numbers.map('{{"changepoint":{}}}'.format)
    fields = st.sampled_from(names).flatmap(
        lambda name: (st.just(GOOD[name]) | numbers | anything).map(f'"{name}":{{}}'.format)
    )
    return st.lists(fields, max_size=5).map(lambda parts: "{" + ",".join(parts) + "}")


# --- the comparison -----------------------------------------------------------------------------


def bits(value):
    """A value with its type and every bit of its numbers: -0.0 is not 0.0."""
    if isinstance(value, float):
        return struct.pack("d", value)
    if isinstance(value, list):
        return [bits(each) for each in value]
    if hasattr(value, "__struct_fields__"):
        return [bits(getattr(value, name)) for name in value.__struct_fields__]
    return type(value), value


def outcome(read):
    """What came of a body: its first observation and position, or the first error."""
    try:
        result = read()
    except ServiceError as error:
        first = error.extra["errors"][0]
        return error.slug, first["loc"], first["detail"]
    if isinstance(result, Items):
        assert len(result.streams) == 1
        item = result.others.get(0)
        if isinstance(item, BadItem):
            first = item.error.errors[0]
            return item.error.slug, first.loc, first.detail
        return bits(result.observation(0)), item and item.seq
    return bits(result.observations[0]), result.seq


def without(loc, found):
    """An outcome with places inside of `loc` as of a body."""
    if not isinstance(found[0], str):
        return found
    slug, place, detail = found
    assert place == "body" or place.startswith(loc), found
    return slug, "body" + place.removeprefix(loc) if place.startswith(loc) else place, detail


WIDE = str([0] * 257)
# By the field that is named: what is wrong with it.
WRONG = {
    "y": ["1e400", "NaN", "true", "{}", "[]", '"1"', WIDE, 'NaN, "time": "NaN"'],
    "y[0]": ["[[]]", "[[1]]"],
    "y[1]": ["[1, -Infinity]", '[null, "1"]', '[null, {"a": 1}]'],
    "x": ["{}", "1", WIDE],
    "x[1]": ["[1, null]"],
    "seq": ["9007199254740993", "1.5", "-1"],
    "elapsed": ["1e-400", "0"],
    "supervision.changepoint": ["{}", '{"changepoint": 2}', '{"changepoint": 2}, "supervision": 0'],
    "supervision.p": ['{"changepoint": 1, "p": 1}'],
    "pending": ["1", 'true, "y": [null, 1]', 'true, "y": 0'],
    "time": [
        '"01.05.2024"',
        "true",
        "99999999",
        "6e19",
        '"2024-02-30"',
        '"2024-02-30T00:00:00Z"',
        '"2024-02-03 00:00:00"',
    ],
    "Y": ["2"],
}
CORNERS = {"3": "", "null": ""} | {
    f'{{"{re.split(r"[.[]", field)[0]}": {value}}}': field
    for field, values in WRONG.items()
    for value in values
}
GOOD_CORNERS = (
    b"{}", b'{"y": -0.0}', b'{"y": 9007199254740993}', b'{"seq": 9007199254740991}',
    b'{"seq": 1.0}', b'{"elapsed": 5e-324}', b'{"y": [null], "pending": true}', b'{"\\u0079": 1}',
    b'{"y": %b}' % str([0] * 256).encode(),
)  # fmt: skip
NOT_JSON = (
    b'{"y": "\xff"}',
    b"", b"{} {}", b'{"y":1', b'{"y":1},', b'{"time": "\\ud800"}', b'{"\xff": 1}',
    b"\xef\xbb\xbf{}", b'{"y": "bad", "x": ', b'{"y":' * 10_000,
)  # fmt: skip


def test_corners_are_named():
    for text, field in CORNERS.items():
        body = text.encode()
        for content, root in ((body, "body"), (b"[" + body + b"]", "body[0]")):
            slug, place, detail = outcome(lambda content=content: PARSER.observations(content))
            assert (slug, place) == ("invalid-field", f"{root}.{field}" if field else root), content
            assert detail, body
    for body in GOOD_CORNERS:
        alone = outcome(lambda body=body: PARSER.observations(body))
        assert not isinstance(alone[0], str), (body, alone)
        assert outcome(lambda body=body: PARSER.observations(b"[" + body + b"]")) == alone
    for body in NOT_JSON:
        assert outcome(lambda body=body: PARSER.observations(body))[0] == "malformed-body", body


def test_dates_and_numbers_are_times_and_other_names_of_fields_are_known():
    for sent, time in (
        ('"2024-05-01"', "2024-05-01T00:00:00Z"),
        ("1700000000", "2023-11-14T22:13:20Z"),
        ("1700000000.25", "2023-11-14T22:13:20.250000Z"),
        ("1700000000250", "2023-11-14T22:13:20.250000Z"),
        ("1.70000000025e15", "2023-11-14T22:13:20.250000Z"),
        ("1700000000250000000", "2023-11-14T22:13:20.250000Z"),
    ):
        body = f'{{"y": 1, "time": {sent}}}'.encode()
        for content in (body, b"[" + body + b"]"):
            (seen,) = PARSER.observations(content).observations
            assert seen.time == time, sent
    for field, meant in (
        ("value", "y"),
        ("Timestamp", "time"),
        ("features", "x"),
        ("elapsd", "elapsed"),
    ):
        found = outcome(lambda field=field: PARSER.observations(f'{{"{field}": 3}}'.encode()))
        unknown = f"unknown field; did you mean '{meant}'?"
        assert found == ("invalid-field", f"body.{field}", unknown)
    inner = outcome(lambda: PARSER.observations(b'{"supervision": {"changepoint": 1, "value": 3}}'))
    assert inner == ("invalid-field", "body.supervision.value", "unknown field")
    for body, loc, detail in (
        (b"5", "body", 'expected object, got integer; post objects such as {"y": 1.5}'),
        (b"[[1]]", "body[0]", 'expected object, got array; post objects such as {"y": 1.5}'),
        (b'{"y": NaN}', "body.y", "expected a finite number, or null where the label is missing"),
        (
            b'[{"y": [1, 1e999]}]',
            "body[0].y[1]",
            "expected a finite number, or null where the label is missing",
        ),
        (b'{"x": [1e999]}', "body.x[0]", "expected a finite number"),
        (
            b'{"time": "2024-13-01T00:00:00Z"}',
            "body.time",
            "expected a valid time, got '2024-13-01T00:00:00Z': month must be in 1..12",
        ),
    ):
        found = outcome(lambda body=body: PARSER.observations(body))
        assert found == ("invalid-field", loc, detail)
    (bad,) = PARSER.items(b"[1]", lines=False).others.values()
    assert '{"stream": "pump-7", "y": 1.5}' in bad.error.errors[0].detail


@given_settings(max_examples=80)
@given(objects([name for name in GOOD if name not in ("stream", "key")]))
def test_any_observation_is_read_alike_and_as_the_document_says(text):
    body = text.encode("utf-8", "surrogatepass")
    alone = outcome(lambda: PARSER.observations(body))
    in_list = outcome(lambda: PARSER.observations(b"[" + body + b"]"))
    at_once = PARSER.valid_list(b"[" + body + b"]")
    item = b'{"stream":"s"' + (b"," if body != b"{}" else b"") + body[1:]
    as_item = outcome(lambda: PARSER.items(b"[" + item + b"]", lines=False))
    as_line = outcome(lambda: PARSER.items(item, lines=True))
    if alone[0] == "malformed-body":
        assert {in_list[0], as_item[0], as_line[0]} == {"malformed-body"}
        return
    assert without("body[0]", in_list) == alone
    assert (at_once is None) == isinstance(alone[0], str)
    assert at_once is None or outcome(lambda: at_once) == alone
    assert without("body[0]", as_item) == alone
    assert without("line 1", as_line) == alone
    if isinstance(alone[0], str):
        return
    check(openapi()["components"]["schemas"]["ObservationForm"], json.loads(body))
