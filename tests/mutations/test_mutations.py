"""Every planted bug still fits the code: otherwise `make mutations` would count a bug that is not there."""

from pathlib import Path

import pytest

from tests.mutations.planted_bugs import BUGS, PlantedBug

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_fits_exactly_one_place(bug: PlantedBug) -> None:
    """Its old text stands once in its file, and what it makes of the file can be compiled."""
    text = (ROOT / bug.path).read_text()
    assert text.count(bug.old) == 1
    compile(bug.planted(text), bug.path, "exec")


def test_there_are_enough_of_them() -> None:
    """At least forty, each with a name of its own."""
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 40
