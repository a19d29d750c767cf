"""What Gavel's mechanism remembers, and whom it selects."""

import numpy as np

from simulator.worlds.gavel.gavel_rounds import ALONE, NewServiceRow, ServiceTable
from walras.job_request import JobId

A, B, C = JobId(1), JobId(2), JobId(3)
EVERYWHERE = np.array([True, True])


def _rows(*jobs: JobId, count: int = 1) -> ServiceTable:
    rows = ServiceTable(pools=2, prior_s=180.0)
    rows.add([NewServiceRow(job, ALONE, count, EVERYWHERE) for job in jobs])
    return rows


def _allocate(rows: ServiceTable, shares: dict[JobId, tuple[float, float]]) -> None:
    cells = [((rows.row(job), pool), x) for job, row in shares.items() for pool, x in enumerate(row)]
    rows.allocate(shares, [cell for cell, _ in cells], [x for _, x in cells])


def test_who_had_least_of_his_share_goes_first() -> None:
    """Equal shares, and one of them has run a round more."""
    rows = _rows(A, B)
    _allocate(rows, {A: (0.5, 0.0), B: (0.5, 0.0)})
    rows.credit([(rows.row(A), 0, 360.0)])
    assert rows.select([0], [1, 0], only_shares=False) == {B: (0, ALONE)}


def test_ties_go_to_the_larger_deficit_then_to_the_older_row() -> None:
    """A solve turns what was missed into a deficit."""
    rows = _rows(A, B)
    _allocate(rows, {A: (0.5, 0.0), B: (0.5, 0.0)})
    assert rows.select([0], [1, 0], only_shares=False) == {A: (0, ALONE)}
    rows.credit([(rows.row(A), 0, 360.0)])
    rows.settle(360.0)
    assert rows.deficit_s[:, 0].tolist() == [-180.0, 180.0]
    assert rows.select([0], [1, 0], only_shares=False) == {B: (0, ALONE)}


def test_a_newcomer_takes_a_place_and_leaves_it_empty() -> None:
    """It has no share before the next solve, but it is counted; a gang behind it finds no room."""
    rows = _rows(A)
    _allocate(rows, {A: (0.5, 0.5)})
    rows.add([NewServiceRow(B, ALONE, 1, EVERYWHERE)])
    assert rows.select([0, 1], [1, 1], only_shares=False) == {A: (0, ALONE)}
    rows = _rows(A, B, count=2)
    _allocate(rows, {A: (1.0, 0.0), B: (0.0, 0.0)})
    assert rows.select([0], [3, 0], only_shares=False) == {A: (0, ALONE)}


def test_leftovers_go_to_rows_without_a_share_unless_only_shares_count() -> None:
    """Work conservation, which the FIFO policies switch off."""
    rows = _rows(A, B)
    _allocate(rows, {A: (1.0, 0.0), B: (0.0, 0.0)})
    assert rows.select([0], [2, 0], only_shares=False) == {A: (0, ALONE), B: (0, ALONE)}
    assert rows.select([0], [2, 0], only_shares=True) == {A: (0, ALONE)}


def test_a_pair_takes_both_its_jobs_and_goes_with_either() -> None:
    """Neither of them runs elsewhere in that round; a new pair has nothing to its account."""
    rows = _rows(A, B, C)
    rows.add([NewServiceRow(A, C, 1, EVERYWHERE)])
    assert rows.time_s[rows.row(C, A)].tolist() == [0.0, 0.0]
    rows.settle(0.0)
    assert rows.deficit_s[rows.row(A, C)].tolist() == [180.0, 180.0]
    rows.allocate([A, B, C], [(rows.row(A, C), 0)], [1.0])
    assert rows.select([0, 1], [1, 1], only_shares=False) == {A: (0, C), C: (0, A), B: (1, ALONE)}
    rows.drop([C])
    assert len(rows) == 2


def test_speed_zero_and_gangs_that_do_not_fit_are_passed_over() -> None:
    """Smaller rows behind them may still go."""
    rows = ServiceTable(pools=2, prior_s=180.0)
    rows.add(
        [
            NewServiceRow(A, ALONE, 1, np.array([False, True])),
            NewServiceRow(B, ALONE, 4, EVERYWHERE),
            NewServiceRow(C, ALONE, 1, EVERYWHERE),
        ]
    )
    _allocate(rows, {A: (1.0, 0.0), B: (1.0, 0.0), C: (0.1, 0.0)})
    assert rows.select([0], [2, 0], only_shares=False) == {C: (0, ALONE)}
