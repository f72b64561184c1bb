"""msgspec under the rules of the pydantic forms: the same bodies, values and complaints."""

import json
import math
import struct
import time
from typing import Annotated

import pytest
from hypothesis import assume, example, given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from service.api.parsing import observations as forms
from service.api.parsing.msgspec_forms import MsgspecForm
from service.api.parsing.observations import ObservationParser
from service.errors.base import InvalidField, MalformedBody, ServiceError
from service.schema.observations import Form, Item, Observation
from service.settings import Settings

FORMS = ObservationParser(Settings(max_observations=2000))

# --- bodies, most of them nearly right ----------------------------------------------------------

numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers().map(str),
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(
        ["0", "-0", "-0.0", "0.0", "1e400", "-1e400", "1e-400", "5e-324", "1.7976931348623159e308"]
        + ["9007199254740993", "01", "1.", ".5", "+1", "1e5", "1E+5", "-1", "-", "NaN", "Infinity"]
        + ["-Infinity", "true", "null", '"1"', "0x1", "1_0", "١", "1e", "2.0"]
        + ["1" + "0" * 400, "0." + "1" * 400, "9" * 4301, "[]", "{}", '""']
    ),
)
lists = st.lists(numbers, max_size=4).map(lambda parts: "[" + ",".join(parts) + "]")
times = st.sampled_from(
    [
        *("2024-05-01T12:00:00Z", "2024-05-01t12:00:60.123456789+01:00", "2024-02-30T12:00:00Z"),
        *("2024-05-01", "yesterday", "", "2024-05-01T12:00:00Z\n", "٢٠٢٤-05-01T12:00:00Z"),
    ]
).map(json.dumps)
strings = st.one_of(
    st.text(max_size=20).map(json.dumps),
    st.sampled_from(
        ["a", "a\n", ".", "..", "é", "a" * 200, "a" * 201, "pump-7", "\x00", "a b"]
    ).map(json.dumps),
    st.sampled_from(['"\\ud800"', '"\\ud83d\\ude00"', '"\\x"', '"\t"', '"\\u0061"', "'a'"]),
)
supervision = st.one_of(
    numbers,
    numbers.map(lambda n: f'{{"changepoint":{n}}}'),
    st.sampled_from(['{"changepoint":0.5}', '{"changepoint":1,"changepoint":2}', '{"other":1}']),
)


def mostly(good, bad):
    return st.integers(0, 9).flatmap(lambda n: bad if n == 0 else good)


finite = st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.integers(-99, 99).map(str)
positive = st.floats(1e-300, 1e300).map(repr) | st.just("1")
some = st.lists(finite, min_size=1, max_size=4).map(lambda parts: "[" + ",".join(parts) + "]")
gappy = some | st.just("null,1").map("[{}]".format) | some.map(lambda s: s[:-1] + ",null]")
names = st.from_regex(r"[A-Za-z0-9._:@~-]{1,20}", fullmatch=True).map(json.dumps)
VALUES = {
    "y": mostly(finite | gappy | st.just("null"), numbers | lists),
    "x": mostly(some, lists | numbers),
    "time": mostly(st.just('"2024-05-01T12:00:00.5+01:00"'), times | strings | numbers),
    "elapsed": mostly(positive, numbers),
    "supervision": mostly(st.floats(0, 1).map('{{"changepoint":{!r}}}'.format), supervision),
    "seq": mostly(st.integers(0, 2**53).map(str), numbers),
    "stream": mostly(names, strings),
    "key": mostly(names, strings),
    "z": numbers,
    "\\u0079": numbers,  # y in other letters
}
WRITTEN = ["y", "x", "time", "elapsed", "supervision", "seq"]


def objects(names):
    fields = st.lists(
        st.sampled_from(names).flatmap(
            lambda name: VALUES[name].map(lambda value: f'"{name}":{value}')
        ),
        max_size=5,
    )
    return fields.map(lambda parts: "{" + ",".join(parts) + "}")


observations = objects([*3 * WRITTEN, "z", "\\u0079"])
items = st.tuples(objects([*2 * WRITTEN, "key", "z"]), VALUES["stream"]).map(
    lambda both: both[0].replace("{", f'{{"stream":{both[1]}' + ("" if both[0] == "{}" else ","), 1)
)


@st.composite
def bent(draw, bodies):
    """A body, sometimes with a byte changed, added or cut."""
    body = bytearray(draw(bodies).encode("utf-8", "surrogatepass"))
    if draw(st.integers(0, 4)) == 0 and body:
        at = draw(st.integers(0, len(body) - 1))
        byte = draw(st.sampled_from(b' ,:{}[]"\\0\n\t\x00\xff\xc3\xed/-.eE') | st.integers(0, 255))
        cut = draw(st.integers(0, 2))
        body[at : at + cut] = bytes([byte])
    return bytes(body)


def either(bodies):
    many = st.lists(bodies, max_size=3).map(lambda parts: " [" + ",".join(parts) + "]")
    return bent(st.one_of(bodies, many))


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


def both(read, monkeypatch):
    """What a reader makes of a body with msgspec, and with pydantic alone."""
    with monkeypatch.context() as patch:
        quick = outcome(read)
        for name in ("_fast", "_fast_item"):
            patch.setattr(forms, name, Never(getattr(forms, name).struct))
        return quick, outcome(read)


class Never:
    """As if msgspec refused everything."""

    def __init__(self, kind):
        self.struct = kind

    def one(self, body):
        return None

    many = one

    def each(self, parts):
        return [None] * len(parts)


EXAMPLES = (
    b'{"y": -0.0}', b'{"y": -0}', b'{"y": 1e400}', b'{"y": NaN}', b'{"y": true}',
    b'{"y": 9007199254740993}', b'{"y": "bad", "y": 1}', b'{"y": 1, "y": "bad"}', b'{"y": null}',
    b'{"time": "\\ud800"}', b'{"time": "\xff"}', b'{"\xff": 1}', b"\xef\xbb\xbf{}", b"{} {}", b"",
    b'{"seq": 9007199254740993}', b'{"seq": 1.0}', b'{"seq": -0}', b'{"x": []}', b"null", b"[null]",
    b'{"y": {}}', b'{"y": {"a": 1}}', b'{"y": [[]]}', b'{"x": {}}', b'[{"y": 1}, {"y": {}}]',
    b'{"supervision": {"changepoint": 2}, "supervision": null}', b'{"elapsed": 1e-400}',
)  # fmt: skip


@pytest.mark.parametrize("body", EXAMPLES)
def test_known_corners(body, monkeypatch):
    quick, slow = both(lambda: FORMS.observations(body), monkeypatch)
    assert quick == slow
    assert quick[0] != "refused" or quick[1]["detail"]


def test_an_object_in_place_of_a_number_is_named(monkeypatch):
    (status, document) = outcome(lambda: FORMS.observations(b'[{"y": 1}, {"y": {}}]'))
    assert (status, document["errors"]) == (
        "refused",
        [{"loc": "body[1].y", "detail": "wrong type"}],
    )


@pytest.fixture(scope="module")
def patches():
    with pytest.MonkeyPatch.context() as found:
        yield found


@given_settings(max_examples=300, deadline=None)
@given(either(observations))
@example(b'[{"y":1},{"seq":3}]')
def test_observations_are_read_alike(patches, body):
    quick, slow = both(lambda: FORMS.observations(body), patches)
    assert quick == slow


@given_settings(max_examples=200, deadline=None)
@given(either(items), st.booleans())
@example(b'[{"stream":"a\\n"}]', False)
@example(b'{"stream":"a"}\n{"stream":"b","key":"\xc3\xa9"}', True)
def test_items_are_read_alike(patches, body, lines):
    quick, slow = both(lambda: FORMS.items(body, lines), patches)
    assert quick == slow


whole_list = TypeAdapter(list[Observation]).validate_json
CUT = (
    b'[{"y":NaN}]',
    b'[{"y":-Infinity},{"time":"NaN"}]',
    b'[{"y":1}{"y":2}]',
    b'[{"y":1},]',
    b"[NaN",
)


def cut_alike(body):
    """A list that is cut into its parts is taken or refused as it is when read as a whole."""
    try:
        expected = [bits(each.y) for each in whole_list(body)]
    except ValidationError as error:
        malformed = error.errors()[0]["type"] == "json_invalid"
        with pytest.raises(MalformedBody if malformed else InvalidField):
            FORMS.observations(body)
    else:
        assert [bits(each.y) for each in FORMS.observations(body).observations] == expected


@given_settings(max_examples=300, deadline=None)
@given(bent(st.lists(observations, max_size=3).map(lambda parts: f" [{','.join(parts)}]")))
@example(CUT[0])
def test_a_list_is_cut_into_its_parts_as_json_has_them(patches, body):
    assume(body.lstrip()[:1] == b"[" and b'"seq"' not in body)  # which is checked by the form
    with patches.context() as patch:
        patch.setattr(forms, "_fast", CutOnly())
        cut_alike(body)


@pytest.mark.parametrize("body", CUT)
def test_corners_of_cutting(body):
    cut_alike(body)


class CutOnly(MsgspecForm):
    """As if no list were short enough for msgspec to read it as a whole."""

    def __init__(self):
        super().__init__(Observation)

    def many(self, body):
        return None


@given_settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_good_bodies_take_the_quick_way(values):
    body = json.dumps({"y": values, "x": values, "time": "2024-05-01T12:00:00Z", "seq": 3})
    found = forms._fast.one(body.encode())
    assert bits(found.y) == bits(values)
    one = {"stream": "s", "key": "k", "y": values[0], "supervision": {"changepoint": 1}}
    item = forms._fast_item.one(json.dumps(one).encode())
    assert (item.stream, item.supervision.changepoint) == ("s", 1.0)
    assert math.copysign(1, item.y) == math.copysign(1, values[0])


def test_the_quick_form_has_every_field():
    for form, fast in ((Observation, forms._fast), (Item, forms._fast_item)):
        assert set(fast.struct.__struct_fields__) == set(form.model_fields)


# --- a rule that cannot be carried over is refused when the form is set up ----------------------


class Open(BaseModel):
    y: float


class Decorated(Form):
    y: float

    @field_validator("y")
    @classmethod
    def _no(cls, y: float) -> float:
        raise ValueError("no")


class Within(Form):
    y: list[Annotated[float, AfterValidator(abs)]]


class OfSeveral(Form):
    y: Annotated[float, AfterValidator(abs)] | str


class Multiple(Form):
    y: Annotated[float, Field(multiple_of=2)]


class Words(Form):
    y: Annotated[str, Field(pattern=r"^\w$")]


class Anything(Form):
    y: dict[str, float]


class Made(Form):
    y: list[float] = Field(default_factory=list)


class Aliased(Form):
    model_config = ConfigDict(alias_generator=str.upper)
    y: float


UNFIT = [Open, Decorated, Within, OfSeveral, Multiple, Words, Anything, Made, Aliased]


@pytest.mark.parametrize("form", UNFIT)
def test_rules_that_cannot_be_carried_over(form):
    with pytest.raises(TypeError):
        MsgspecForm(form)


def test_it_is_quicker(patches):
    """Prints how much; the bound is far below what is measured on a quiet machine."""
    one = b'{"x": [0.3, 1.2], "y": 10.4, "time": "2024-05-01T12:00:00Z"}'
    many = b"[" + b",".join([one] * 1000) + b"]"
    for name, body, rounds, least in (("one", one, 2000, 1.0), ("1,000", many, 8, 1.5)):
        took = {"msgspec": math.inf, "pydantic": math.inf}
        for _ in range(5):
            with patches.context() as patch:
                for way in took:
                    if way == "pydantic":
                        patch.setattr(forms, "_fast", Never(None))
                    began = time.perf_counter()
                    for _ in range(rounds):
                        FORMS.observations(body)
                    spent = (time.perf_counter() - began) / rounds
                    took[way] = min(took[way], spent)
        ratio = took["pydantic"] / took["msgspec"]
        us = {way: f"{seconds * 1e6:.1f} us" for way, seconds in took.items()}
        print(f"{name}: {us}, ratio {ratio:.2f}")
        assert ratio > least
