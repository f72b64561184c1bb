"""Answers as they are declared: what is always sent, what is left out, what a client reads."""

import functools

import msgspec

from moca_client import responses, stream_settings
from moca_client.responses import ABSENT, Answer, ItemAnswer, Response, RunLengthSummary
from service import wire
from service.api.openapi import answers
from service.api.routes import CALLS
from service.schema.rendering import of_classes, of_numbers, settings


@functools.cache
def schemas():
    """Schemas of all answers in the OpenAPI document, by name."""
    return answers(call.answer for call in CALLS if call.answer is not None)


def rendered(answer):
    return msgspec.json.decode(msgspec.json.encode(answer))


def test_members_at_their_defaults_are_sent_exactly_where_openapi_requires_them():
    kinds = [each for each in vars(responses).values() if isinstance(each, type)]
    checked = 0
    for kind in kinds:
        if not issubclass(kind, Response) or kind.__name__ not in schemas():
            continue
        fields = msgspec.structs.fields(kind)
        answer = kind(**{each.encode_name: "" for each in fields if each.required})
        assert list(rendered(answer)) == schemas()[kind.__name__]["required"], kind
        checked += 1
    assert checked > 30
    assert schemas()["ItemAnswer"]["required"] == [*schemas()["Answer"]["required"], "status"]
    assert issubclass(ItemAnswer, Answer)


def test_members_that_have_more_than_a_default_are_in_their_place():
    summary = RunLengthSummary(3, 2.5, {"0.5": 3}, 4, 0.0)
    assert list(rendered(summary)) == ["map", "mean", "quantiles", "hypotheses", "pruned_mass"]
    answer = Answer("a", 0, "m", time="2024-05-01T12:00:00Z", provisional=True)
    assert list(rendered(answer))[-2:] == ["time", "provisional"]


def test_numbers_have_moments_and_classes_probabilities_alone():
    answer = rendered(of_numbers([1.0], None, {"0.5": [1.0]}))
    assert answer == {"mean": [1.0], "variance": None, "quantiles": {"0.5": [1.0]}}
    assert rendered(of_classes([0.25, 0.75])) == {"probabilities": [0.25, 0.75]}
    assert of_classes([1.0]).mean is ABSENT


def test_the_settings_of_an_answer_are_those_of_a_stream():
    # A client leaves out settings that are not declared.
    stored = wire.StreamSettings("gaussian", hazard=(0.1, 0.2))
    shown = settings(stored)
    assert stream_settings.StreamSettings.__annotations__.keys() == shown.keys()
    assert stream_settings.StreamSettings.__required_keys__ == frozenset()
    read = msgspec.json.decode(msgspec.json.encode(shown), type=stream_settings.StreamSettings)
    assert read == {**shown, "hazard": [0.1, 0.2]}
    assert schemas()["StreamSettings"]["required"] == []
