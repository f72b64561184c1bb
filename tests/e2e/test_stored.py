"""Data folders of earlier versions: opened, answered, and gone on with as those versions did."""

import json
import math
import tarfile

import pytest

from tests.e2e.stored.make import FOLDER, PARTITIONS, caller, go_on, read, serve

VERSIONS = sorted(path.name.removesuffix(".tar.gz") for path in FOLDER.glob("*.tar.gz"))
assert VERSIONS, "no data folder of an earlier version"


def leaves(answer, where=""):
    """The numbers, texts and lengths of an answer, by their place."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            yield from leaves(value, f"{where}.{name}")
    elif isinstance(answer, list):
        yield f"{where}.length", len(answer)
        for i, value in enumerate(answer):
            yield from leaves(value, f"{where}[{i}]")
    else:
        yield where, answer


def same(expected, got):
    if isinstance(expected, float) and isinstance(got, int | float):
        return math.isclose(expected, got, rel_tol=1e-8, abs_tol=1e-9)
    return expected == got


def assert_answered(expected, answers):
    """Each value that the earlier version answered is answered; new fields may stand beside."""
    found = dict(leaves(answers))
    differences = [
        f"{where}: expected {value!r}, got {found.get(where)!r}"
        for where, value in leaves(expected)
        if where not in found or not same(value, found[where])
    ]
    assert not differences[:10]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_data_folder_of_an_earlier_version_opens(version, processes, tmp_path):
    with tarfile.open(FOLDER / f"{version}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    answers = json.loads((tmp_path / "answers.json").read_text())
    processes.environment["MOCA_PARTITIONS"] = PARTITIONS
    # One stream is made anew by its first observation, as that version made it.
    processes.environment["MOCA_DEFAULT_MODEL"] = "averaged@1"
    url = serve(processes, tmp_path / "data")
    with caller(url, answers["key"]) as client:
        assert_answered(answers["read"], read(client))
        assert_answered(answers["next"], go_on(client))
