"""The mutations of `make mutations` are still of this source."""

from tests.mutations import MUTATIONS, ROOT


def test_each_is_of_a_text_that_stands_once_and_of_tests_that_are_there():
    assert len(MUTATIONS) == len({each.name for each in MUTATIONS}) == 97
    for mutation in MUTATIONS:
        assert (ROOT / mutation.file).read_text().count(mutation.old) == 1, mutation.name
        assert mutation.old != mutation.new, mutation.name
        assert all((ROOT / area).exists() for area in mutation.area.split()), mutation.name
