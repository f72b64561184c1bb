"""A short soak: kills of the API and of the worker in turn, under load."""

import pytest

from tests.referees.soak import Look, growth, soak


def test_what_grows_is_named():
    flat = [Look(5.0 * i, 2e8 + 1e6 * (i % 3), 40, 900) for i in range(30)]
    leaking = [Look(5.0 * i, 2e8 + 1e7 * i, 40 + 2 * i, 900) for i in range(30)]
    found = growth({"api": flat, "worker": leaking})
    assert [text.partition(" grew")[0] for text in found] == [
        "worker: memory",
        "worker: descriptors",
    ]


@pytest.mark.slow
def test_nothing_is_lost_in_a_short_soak():
    kills, _ = soak(seconds=24, per_second=40, kill_s=6)
    assert kills >= 2
