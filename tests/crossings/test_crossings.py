"""Situations in which three features meet keep every promise (`python -m tests.crossings` runs more of them)."""

import pytest

from tests.crossings.__main__ import ROWS, outcomes
from tests.crossings.planted import CROSSING_BUGS
from tests.crossings.promises import LOST_MAX
from tests.crossings.situations import covering_rows, missed_triples, situation_of
from tests.mutations.__main__ import ROOT
from tests.mutations.planted_bugs import PlantedBug


@pytest.mark.parametrize("bug", CROSSING_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_fits_exactly_one_place(bug: PlantedBug) -> None:
    """Its old text stands once in its file, and what it makes of the file can be compiled."""
    text = (ROOT / bug.path).read_text()
    assert text.count(bug.old) == 1
    compile(bug.planted(text), bug.path, "exec")


def test_every_three_kinds_of_different_features_meet() -> None:
    """In each block of situations, which takes half as many rows as it may."""
    rows = covering_rows(0, ROWS)
    assert missed_triples(rows) == 0
    assert len(rows) < 0.6 * ROWS


def test_a_situation_is_a_function_of_its_row_and_seed() -> None:
    row = covering_rows(0, ROWS)[0]
    assert situation_of(row, 5) == situation_of(row, 5)
    assert situation_of(row, 5) != situation_of(row, 6)


def test_thirty_situations_keep_every_promise() -> None:
    """The same ones in every run. A failure prints the recipe. Little of the time held is lost for others."""
    found = list(outcomes(0, 30))
    broken = [outcome.text for outcome in found if outcome.broken]
    assert not broken, "\n".join(broken)
    assert sum(outcome.cut_s for outcome in found) <= LOST_MAX * sum(outcome.held_s for outcome in found)


def test_a_core_that_is_told_its_jobs_moves_none_before_it_was_told_all() -> None:
    """Where one would be late: what looks free may be held by the next that is told."""
    (found,) = outcomes(594, 1)
    assert not found.broken, found.text
