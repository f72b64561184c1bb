"""The exception tree and its problem documents."""

import json

from service import problems


def tree(kind=problems.ServiceError):
    yield kind
    for below in kind.__subclasses__():
        yield from tree(below)


def test_every_error_has_a_type_of_its_own_and_a_fitting_status():
    kinds = list(problems.problem_types())
    assert {kind for kind in tree() if not kind.__subclasses__()} <= set(kinds)
    slugs = [kind.slug for kind in kinds]
    assert len(set(slugs)) == len(slugs) > 30
    for kind in kinds:
        assert 400 <= kind.status < 600
        assert kind.__name__ in problems.__doc__
        assert (kind.retry_after_s is not None) == (kind.status in (429, 503, 504))
        assert kind.shown().status == kind.status


def test_an_error_is_a_problem_document():
    error = problems.SeqConflict("expected 3", seq=5)
    assert json.loads(error.render()) == {
        "type": "https://moca-service.dev/problems/seq-conflict",
        "title": "Sequence conflict",
        "status": 409,
        "detail": "expected 3",
        "seq": 5,
    }
    assert problems.TooManyWaiting("busy").headers() == {"Retry-After": "1"}
    assert error.headers() == {}


def test_invalid_fields_are_named_up_to_a_number():
    many = [problems.FieldError(f"body[{i}].y", "bad") for i in range(21)]
    named = problems.InvalidField(many[:2]).document()["errors"]
    assert named == [{"loc": "body[0].y", "detail": "bad"}, {"loc": "body[1].y", "detail": "bad"}]
    assert len(problems.InvalidField(many).errors) == 20
    assert len(problems.InvalidField(many, 99).errors) == 20
    assert len(problems.InvalidField(many, limit=1).errors) == 1
