"""The exception tree and its problem documents."""

import json

from service.errors import base


def tree(kind=base.ServiceError):
    yield kind
    for below in kind.__subclasses__():
        yield from tree(below)


def test_every_error_has_a_type_of_its_own_and_a_fitting_status():
    kinds = [kind for kind in tree() if not kind.__subclasses__()]
    slugs = [kind.slug for kind in kinds]
    assert len(set(slugs)) == len(slugs)
    for kind in kinds:
        assert 400 <= kind.status < 600
        assert kind.__name__ in base.__doc__
        assert (kind.retry_after_s is not None) == (kind.status in (429, 503, 504))


def test_documents():
    error = base.SeqConflict("expected 3", seq=5)
    document = json.loads(error.render())
    assert document == {
        "type": "https://moca-service.dev/problems/seq-conflict",
        "title": "Sequence conflict",
        "status": 409,
        "detail": "expected 3",
        "seq": 5,
    }
    assert base.TooManyWaiting("busy").headers() == {"Retry-After": "1"}


def test_fields_are_named():
    error = base.InvalidField([base.FieldError("body.y", "bad"), base.FieldError("q", "x")])
    assert error.document()["errors"] == [
        {"loc": "body.y", "detail": "bad"},
        {"loc": "q", "detail": "x"},
    ]
    assert str(error) == "body.y: bad (and 1 more)"
