"""Answers as they are declared: what is always sent, what is left out, what a client reads."""

import msgspec
import pytest

from service import wire
from service.api.openapi.document import answers
from service.api.routes.table import CALLS
from service.schema import responses
from service.schema.members import ABSENT, Response
from service.schema.rendering import of_classes, of_numbers, settings
from service.schema.responses import Answer, Event, ItemAnswer, RunLengthSummary

SCHEMAS = answers(call.answer for call in CALLS if call.answer is not None)
RESPONSES = [
    each
    for each in vars(responses).values()
    if isinstance(each, type) and issubclass(each, Response) and each.__name__ in SCHEMAS
]


def rendered(answer):
    return msgspec.json.decode(msgspec.json.encode(answer))


@pytest.mark.parametrize("kind", RESPONSES, ids=lambda kind: kind.__name__)
def test_members_at_their_defaults_are_sent_exactly_where_openapi_requires_them(kind):
    fields = msgspec.structs.fields(kind)
    answer = kind(**{each.encode_name: "" for each in fields if each.required})
    assert list(rendered(answer)) == SCHEMAS[kind.__name__]["required"]


def test_an_item_is_documented_with_the_members_of_an_answer():
    assert SCHEMAS["ItemAnswer"]["required"] == [*SCHEMAS["Answer"]["required"], "status"]
    assert issubclass(ItemAnswer, Answer)


def test_members_that_have_more_than_a_default_are_in_their_place():
    summary = RunLengthSummary(3, 2.5, {"0.5": 3}, 4, 0.0)
    assert list(rendered(summary)) == ["map", "mean", "quantiles", "hypotheses", "pruned_mass"]
    answer = Answer("a", 0, "m", time="2024-05-01T12:00:00Z", provisional=True)
    assert list(rendered(answer))[-2:] == ["time", "provisional"]


def test_a_variance_that_does_not_exist_is_null():
    found = rendered(of_numbers([1.0], None, {"0.5": [1.0]}))
    assert found == {"mean": [1.0], "variance": None, "quantiles": {"0.5": [1.0]}}


def test_a_class_has_probabilities_alone():
    assert rendered(of_classes([0.25, 0.75])) == {"probabilities": [0.25, 0.75]}
    assert of_classes([1.0]).mean is ABSENT


def test_an_answer_of_an_older_service_is_read():
    answer = msgspec.json.decode(b'{"stream":"a","seq":3,"model":"m","unheard":[]}', type=Answer)
    assert (answer.predictive, answer.components, answer.time) == (None, None, None)
    assert (answer.provisional, answer.duplicate) == (False, False)


def test_defaults_are_not_shared():
    first, second = responses.BeliefColumns(), responses.BeliefColumns()
    first.run_length.append(1)
    assert second.run_length == []


def test_a_state_of_a_later_version_is_read():
    body = b'{"id":1,"state":"merged","start":1,"suspected_at":2}'
    assert msgspec.json.decode(body, type=Event).state == "merged"
    assert SCHEMAS["Event"]["properties"]["state"]["enum"][0] == "suspected"


def test_the_settings_of_an_answer_are_those_of_a_stream():
    # A client leaves out settings that are not declared.
    stored = wire.StreamSettings("gaussian@1", hazard=(0.1, 0.2), sensitivity=wire.Sensitivity(0.5))
    shown = settings(stored)
    assert responses.StreamSettings.__annotations__.keys() == shown.keys()
    assert responses.StreamSettings.__required_keys__ == frozenset()
    read = msgspec.json.decode(msgspec.json.encode(shown), type=responses.StreamSettings)
    assert read == {**shown, "hazard": [0.1, 0.2]}
    assert SCHEMAS["StreamSettings"]["required"] == []
