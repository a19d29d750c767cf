"""Hadar and `walras` through the whole core, on the jobs and the cluster of Hadar's own simulations."""

import pytest

from simulator.study.bounds import BoundsAsked
from simulator.study.cell import Cell, Made, Source
from simulator.study.compare import compare
from simulator.study.parallel import Workers


@pytest.mark.slow
def test_fifo_is_slower_than_las_and_las_than_hadar_and_hadar_than_walras() -> None:
    """The published order of mean completion times and ours, seed by seed, with all jobs there at the beginning."""
    source = Source("generate:hadar-60", made=Made(jobs=150, rate_per_h=0.0, stretch=0.25))
    cell = Cell(source, "hadar-60", "fifo", bounds=BoundsAsked.NONE)
    found = compare(cell, ("fifo", "las", "hadar", "walras"), (0, 1), Workers())
    assert found.violations == []
    fifo, las, hadar, ours = ([row.values["avg_jct_s"] for row in found.rows[policy]] for policy in found.policies)
    assert all(
        first > second > third > fourth for first, second, third, fourth in zip(fifo, las, hadar, ours, strict=True)
    )


@pytest.mark.slow
def test_gangs_that_need_whole_machines_do_not_starve_under_walras() -> None:
    """Gangs of up to two whole machines among single jobs, four fifths loaded: nobody takes four times as long."""
    source = Source("generate:hadar-60", made=Made(jobs=240, rate_per_h=4.8, stretch=0.25))
    found = compare(Cell(source, "hadar-60", "walras", bounds=BoundsAsked.NONE), ("walras",), (0, 1, 2), Workers())
    assert found.violations == []
    assert max(row.values["slowdown_max"] for row in found.rows["walras"]) < 4
