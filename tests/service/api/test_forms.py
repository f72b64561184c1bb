"""msgspec under the rules of the pydantic forms: the same bodies, values and complaints."""

import json
import struct
from types import SimpleNamespace
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    create_model,
    field_validator,
)

from service.api.parsing import observations as forms
from service.api.parsing.msgspec_forms import MsgspecForm
from service.api.parsing.observations import ObservationParser
from service.problems import ServiceError
from service.schema.observations import Form, Item, Observation
from service.settings import Settings

FORMS = ObservationParser(Settings(max_observations=2000))

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


@st.composite
def bent(draw, each):
    """A body or a list of some, sometimes with a byte changed, added or cut."""
    many = st.lists(each, max_size=3).map(lambda parts: " [" + ",".join(parts) + "]")
    body = bytearray(draw(each | many).encode("utf-8", "surrogatepass"))
    if draw(st.integers(0, 4)) == 0 and body:
        at = draw(st.integers(0, len(body) - 1))
        byte = draw(st.sampled_from(b' ,:{}[]"\\0\n\t\x00\xff\xc3\xed/-.eE') | st.integers(0, 255))
        cut = draw(st.integers(0, 2))
        body[at : at + cut] = bytes([byte])
    return bytes(body)


observations = bent(objects([name for name in GOOD if name not in ("stream", "key")]))
items = bent(objects([*GOOD, "stream", "stream", "stream"]))

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
    try:
        found = read()
    except ServiceError as error:
        return "refused", error.document()
    if isinstance(found, list):  # items: each good or bad
        return [
            (item.stream, item.error.document())
            if hasattr(item, "error")
            else (item.stream, item.key, item.seq, bits(item.observation))
            for item in found
        ]
    return [bits(each) for each in found.observations], found.seq, found.many


def never(body):
    """As if msgspec refused everything."""


NEVER = SimpleNamespace(one=never, many=never, each=lambda parts: [None] * len(parts))


def both(read):
    """Compare what a reader makes of a body with msgspec, and with pydantic alone."""
    quick = outcome(read)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_fast", "_fast_item"):
            patch.setattr(forms, name, NEVER)
        assert outcome(read) == quick
    return quick


CORNERS = (
    b'{"y": -0.0}', b'{"y": -0}', b'{"y": 1e400}', b'{"y": NaN}', b'{"y": true}',
    b'{"y": 9007199254740993}', b'{"y": "bad", "y": 1}', b'{"y": 1, "y": "bad"}', b'{"y": null}',
    b'{"time": "\\ud800"}', b'{"time": "\xff"}', b'{"\xff": 1}', b"\xef\xbb\xbf{}", b"{} {}", b"",
    b'{"seq": 9007199254740993}', b'{"seq": 1.0}', b'{"seq": -0}', b'{"x": []}', b"null", b"[null]",
    b'{"y": {}}', b'{"y": {"a": 1}}', b'{"y": [[]]}', b'{"x": {}}', b'[{"y": 1}, {"y": {}}]',
    b'{"supervision": {"changepoint": 2}, "supervision": null}', b'{"elapsed": 1e-400}',
    b'[{"y":1},{"seq":3}]', b'[{"stream":"a\\n"}]', b'{"stream":"a"}\n{"stream":"b","key":"\xc3"}',
    b'[{"y":NaN}]', b'[{"y":-Infinity},{"time":"NaN"}]', b'[{"y":1}{"y":2}]', b'[{"y":1},]',
    b"[NaN",
)  # fmt: skip


def test_known_corners_are_read_alike():
    for body in CORNERS:
        found = both(lambda body=body: FORMS.observations(body))
        assert found[0] != "refused" or found[1]["detail"]
        for lines in (False, True):
            both(lambda body=body, lines=lines: FORMS.items(body, lines))
    refused = outcome(lambda: FORMS.observations(b'[{"y": 1}, {"y": {}}]'))
    assert [error["loc"] for error in refused[1]["errors"]] == ["body[1].y"]


@given_settings(max_examples=80, deadline=None, database=None)
@given(observations, items, st.booleans())
def test_any_body_is_read_alike(body, many, lines):
    both(lambda: FORMS.observations(body))
    both(lambda: FORMS.items(many, lines))


def test_good_bodies_take_the_quick_way():
    values = [-0.0, 2.0, 5e-324, 1e308]
    body = json.dumps({"y": values, "x": values, "time": "2024-05-01T12:00:00Z", "seq": 3})
    assert bits(forms._fast.one(body.encode()).y) == bits(values)
    one = {"stream": "s", "key": "k", "y": -0.0, "supervision": {"changepoint": 1}}
    item = forms._fast_item.one(json.dumps(one).encode())
    assert (item.stream, item.supervision.changepoint, bits(item.y)) == ("s", 1.0, bits(-0.0))
    for form, fast in ((Observation, forms._fast), (Item, forms._fast_item)):
        assert set(fast.struct.__struct_fields__) == set(form.model_fields)


def test_a_rule_that_cannot_be_carried_over_is_refused_when_the_form_is_set_up():
    class Decorated(Form):
        y: float

        @field_validator("y")
        @classmethod
        def _no(cls, y: float) -> float:
            raise ValueError("no")

    kinds = [
        list[Annotated[float, AfterValidator(abs)]],
        Annotated[float, AfterValidator(abs)] | str,
        Annotated[float, Field(multiple_of=2)],
        Annotated[str, Field(pattern=r"^\w$")],
        dict[str, float],
        (list[float], Field(default_factory=list)),
    ]
    made = [create_model("Made", __base__=Form, y=kind) for kind in kinds]
    for form in (Decorated, create_model("Open", __base__=BaseModel, y=float), *made):
        with pytest.raises(TypeError):
            MsgspecForm(form)
