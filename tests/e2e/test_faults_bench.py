"""The benchmark of faults on real processes, shortened: its two rows run, and find no promise broken."""

import pytest

from benchmarks.bench_faults import ROWS, measure

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("row", ROWS)
def test_what_is_killed_or_cut_loses_no_job_and_starts_none_twice(row: str) -> None:
    """Ten seconds of kills and freezes; fifteen in which every second connection of an agent is cut."""
    (measured,) = measure(scale=0.5 / 60, row=row)
    assert [(figure.what, figure.value) for figure in measured.rows if not figure.met] == []
    assert measured.rows[0].value > 0
