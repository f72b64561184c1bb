"""States that earlier versions of the codec wrote are read, and go on to the recorded numbers."""

import json

import pytest

from model_core import codec
from model_core import filter as moca
from model_core.upm.builtin import BUILTIN
from tests.model_core.cases import BY_NAME, Step, inputs
from tests.model_core.golden.make import (
    AFTER,
    BEFORE,
    EVERY,
    FOLDER,
    MAX_HYPOTHESES,
    answer,
    inputs_of,
)

FILES = sorted(FOLDER.glob("*.moca"))


def test_there_is_one_of_every_model_in_this_version():
    assert {f"{case.name}.v{codec.VERSION}.moca" for case in EVERY} <= {f.name for f in FILES}
    assert {case.name for case in EVERY} == set(BY_NAME)


@pytest.mark.parametrize("built_in", BUILTIN.values(), ids=lambda each: each.reference)
def test_there_is_one_of_every_built_in_model(built_in):
    kinds = {case.model.kind for case in EVERY}
    assert built_in.kind in kinds, "add a case and its reference to cases.py, run golden/make.py"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_golden_state_goes_on_to_the_recorded_numbers(file):
    case = BY_NAME[file.name.split(".")[0]]
    recorded = json.loads(file.with_suffix(".json").read_text())
    data, prior = inputs_of(recorded["observations"]), case.prior()
    state = codec.decode(case.model, prior, MAX_HYPOTHESES, file.read_bytes())
    assert state.seq.item() == BEFORE
    assert len(recorded["answers"]) == AFTER
    for t, expected in enumerate(recorded["answers"]):
        now = inputs([data], t)
        state, info = moca.step(case.model, state, prior, now)
        found = answer(Step(now, state, info))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_same(name, found[name], value)


def assert_same(name: str, found: object, expected: object) -> None:
    """Whole numbers and nothings exactly, the rest to rounding."""
    if name == "covariance":
        found, expected = sum(found, []), sum(expected, [])
    exact = expected is None or name in ("run_length", "previous_start")
    assert found == (expected if exact else pytest.approx(expected, rel=1e-9, abs=1e-12)), name


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_golden_state_is_written_as_it_was(file):
    if f".v{codec.VERSION}." not in file.name:
        pytest.skip("written by an earlier version")
    case, blob = BY_NAME[file.name.split(".")[0]], file.read_bytes()
    state = codec.decode(case.model, case.prior(), MAX_HYPOTHESES, blob)
    assert codec.encode(case.model, state) == blob
