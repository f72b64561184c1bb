"""Requests made from the OpenAPI document: no fault, nothing undocumented, no answer unlike it."""

import pytest

from tests.e2e.deployment import served
from tests.referees import rest


@pytest.mark.slow
def test_every_call_in_two_thousand_ways(tmp_path):
    pytest.importorskip("schemathesis")
    with served(tmp_path) as (_, url):
        assert rest.run(url, tmp_path, examples=60) > 2000
