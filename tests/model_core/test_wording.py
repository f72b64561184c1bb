"""Errors of forms: what was expected and what was got."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, StrictInt, ValidationError, model_validator

from model_core import Detector, wording
from service.schema.observations import Number, StreamForm


class Every(BaseModel):
    ratio: Annotated[Number, Field(ge=1e-100, lt=1)] = 0.5
    count: Annotated[StrictInt, Field(gt=0, le=2**53)] = 1
    steps: int = 1
    state: Literal["open", "shut"] = "open"
    wait: bool = False
    name: Annotated[str, Field(min_length=1, max_length=3, pattern="^a")] = "a"
    tags: dict[str, str] = {}
    rows: Annotated[list[int], Field(min_length=1, max_length=2)] = [1]
    must: int

    @model_validator(mode="after")
    def _together(self):
        if self.wait and self.state == "shut":
            raise ValueError("expected no wait for what is shut")
        return self


def error_of(**given):
    with pytest.raises(ValidationError) as raised:
        Every(**{"must": 1, **given})
    (error,) = raised.value.errors()
    return error


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ratio": 0}, "expected a number of at least 1e-100, got 0"),
        ({"ratio": 1}, "expected a number below 1, got 1"),
        ({"ratio": "x"}, "expected a number, got 'x'"),
        ({"ratio": float("inf")}, "expected a finite number"),
        ({"count": 0}, "expected a number above 0, got 0"),
        ({"count": 2**53 + 1}, "expected a number of at most 9007199254740992, got 90071992547409"),
        ({"count": 1.5}, "expected an integer, got 1.5"),
        ({"steps": "many"}, "expected an integer, got 'many'"),
        ({"state": "ajar"}, "expected 'open' or 'shut', got 'ajar'"),
        ({"wait": "perhaps"}, "expected true or false, got 'perhaps'"),
        ({"wait": None}, "expected true or false, got null"),
        ({"name": ""}, "expected at least 1 character, got ''"),
        ({"name": "a" * 60}, f"expected at most 3 characters, got '{'a' * 49}..."),
        ({"name": "b"}, "expected text that matches ^a, got 'b'"),
        ({"tags": [1]}, "expected an object, got a list"),
        ({"tags": {"a": {}}}, "expected a string, got an object"),
        ({"rows": []}, "expected at least 1 item, got 0"),
        ({"rows": [1, 2, 3]}, "expected at most 2 items, got 3"),
        ({"wait": True, "state": "shut"}, "expected no wait for what is shut"),
    ],
)
def test_errors_say_what_was_expected_and_got(given, words):
    text = wording.described(error_of(**given))
    assert text.startswith(words)
    assert text.endswith("got an object") == words.endswith("got an object")


def test_a_field_that_is_missing_is_required():
    with pytest.raises(ValidationError) as raised:
        Every()
    assert [wording.described(error) for error in raised.value.errors()] == ["required"]


def test_what_may_be_secret_is_not_shown():
    assert wording.expected(error_of(name="hunter2")) == "expected at most 3 characters"


def test_an_unknown_field_leaves_the_other_errors_as_they_are():
    with pytest.raises(ValidationError) as raised:
        StreamForm.model_validate({"hystory": 3, "warmup": 201})
    assert {wording.described(error) for error in raised.value.errors()} == {
        "unknown field; did you mean 'history'?",
        "expected a number of at most 200, got 201",
    }


@pytest.mark.parametrize(
    "refused",
    [
        lambda name: Detector(**{name: 1.0}),
        lambda name: StreamForm.model_validate({name: 1.0}),
    ],
)
def test_a_rate_of_alarms_is_not_taken_for_a_period(refused):
    with pytest.raises(ValueError, match="service's option --false-alarms-per-day") as raised:
        refused("false_alarms_per_day")
    assert "did you mean" not in str(raised.value)
