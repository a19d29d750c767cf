"""Hadar through the whole core, on the jobs and the cluster of its own simulations."""

import pytest

from simulator.study.bounds import BoundsAsked
from simulator.study.cell import Cell, Made, Source
from simulator.study.compare import compare
from simulator.study.parallel import Workers


@pytest.mark.slow
def test_fifo_is_slower_than_las_and_las_than_hadar() -> None:
    """The published order of mean completion times, seed by seed, with all jobs there at the beginning."""
    source = Source("generate:hadar-60", made=Made(jobs=150, rate_per_h=0.0, stretch=0.25))
    cell = Cell(source, "hadar-60", "fifo", bounds=BoundsAsked.NONE)
    found = compare(cell, ("fifo", "las", "hadar"), (0, 1), Workers())
    assert found.violations == []
    fifo, las, hadar = ([row.values["avg_jct_s"] for row in found.rows[policy]] for policy in found.policies)
    assert all(first > second > third for first, second, third in zip(fifo, las, hadar, strict=True))
