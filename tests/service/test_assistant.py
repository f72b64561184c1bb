"""Words of the tools of assistants: short, however much there is to say."""

from types import SimpleNamespace

from service import assistant


def test_answers_name_few_of_many_changes_and_outputs():
    events = [SimpleNamespace(state="confirmed", start=start) for start in range(1000, 2000)]
    text = assistant._confirmed(events)
    assert text.startswith("1000 changes, from observation 1980, 1981, ")
    assert text.endswith(", 1999 and 980 before")
    assert assistant._confirmed(events[:2]) == "2 changes, from observation 1000, 1001"
    assert assistant._numbers([1.0] * 256) == f"({'1, ' * 8}248 more)"
    assert assistant._numbers([1.0, None]) == "(1, unknown)"
