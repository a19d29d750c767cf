"""Jobs that say the same are told once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Setting, build
from strategies_problems import settings_of_problems

from optimizer.market import distinct, distinct_kernels
from optimizer.market.distinct import distinct_jobs, offsets
from optimizer.problem import Columns, Problem

FIELDS = ("weight", "gang", "entity")
#: Three columns, the second over two pools.
MIXED = Columns(
    job=np.array([0, 0, 1, 1, 2, 2]),
    steps_per_s=np.array([1.0, 3.0, 1.0, 3.0, 1.0, 3.0]),
    use_column=np.array([0, 1, 1, 2, 3, 3, 4, 5, 5]),
    use_pool=np.array([0, 0, 1, 0, 0, 1, 0, 0, 1]),
    use_count=np.array([2.0, 1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 1.0, 2.0]),
    running=np.zeros(6, dtype=bool),
)


def mixed() -> Problem:
    return replace(build(Setting(speeds=[[1.0, 3.0]] * 3, capacity=[4.0, 4.0])), columns=MIXED)


@pytest.fixture(params=["plain", "compiled"])
def engine(request, monkeypatch):
    """Both ways of doing it."""
    monkeypatch.setattr(distinct, "_COMPILED_FROM", 0 if request.param == "compiled" else 10**12)


def said(problem: Problem, job: int) -> list:
    """All that a job says."""
    columns = problem.columns
    mine = np.flatnonzero(columns.job == job)
    uses = [
        sorted(zip(columns.use_pool[columns.use_column == c], columns.use_count[columns.use_column == c], strict=True))
        for c in mine
    ]
    return [columns.steps_per_s[mine].tolist(), uses, *(getattr(problem.jobs, name)[job] for name in FIELDS)]


@pytest.mark.usefixtures("engine")
@settings(max_examples=40, deadline=None)
@given(setting=settings_of_problems())
def test_every_job_is_represented_by_one_that_says_the_same(setting: Setting):
    """Nothing that a job says is lost, jobs that say the same share a representative, columns find their way back."""
    problem = build(setting)
    found = distinct_jobs(problem, FIELDS)
    full = [said(problem, job) for job in range(len(problem.jobs))]
    small = [said(found.problem, row) for row in range(len(found.count))]
    assert [small[found.member[job]] for job in range(len(full))] == full
    assert all(small[a] != small[b] for a in range(len(small)) for b in range(a))
    assert found.count.sum() == len(full)
    again = found.expand_columns(found.problem.columns.steps_per_s)
    assert np.array_equal(again, problem.columns.steps_per_s)
    assert np.array_equal(found.expand_jobs(found.problem.jobs.weight), problem.jobs.weight)


@pytest.mark.usefixtures("engine")
def test_a_column_over_two_pools_counts_with_all_its_uses():
    """Two jobs are the same, the third takes one accelerator more of the second pool."""
    found = distinct_jobs(mixed(), FIELDS)
    assert found.member.tolist() == [0, 0, 1]
    assert found.problem.columns.use_count.tolist() == [2.0, 1.0, 1.0, 2.0, 1.0, 2.0]
    assert found.problem.columns.use_column.tolist() == [0, 1, 1, 2, 3, 3]


def test_a_clash_of_hashes_puts_nothing_together(monkeypatch):
    """Grouping is exact: where different jobs hash alike, every job stands for itself."""
    monkeypatch.setattr(distinct, "_codes", lambda *given: np.zeros(3, dtype=np.uint64))
    assert distinct_jobs(mixed(), FIELDS).member.tolist() == [0, 1, 2]


def said_by(blocks: int) -> tuple:
    """Five jobs of one column, one for each pool; the third and fifth say what the first says."""
    first, pool = np.arange(6), np.array([0, 1, 0, 2, 0])
    none, bits = np.zeros(0, dtype=np.int64), np.zeros(5, dtype=np.int64)
    step = -(-5 // blocks)
    found = (np.zeros(5, dtype=np.uint64), np.zeros(5, dtype=np.int64), np.zeros(5, dtype=np.int64))
    return (first, none, bits, pool, bits, np.zeros((5, 1), dtype=np.int64)), step, found


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
def test_groups_are_the_same_however_many_blocks(blocks: int):
    """They are numbered by who is seen first."""
    said, step, found = said_by(blocks)
    known = distinct_kernels._group_blocks(said, step, np.full((blocks, 16), -1, dtype=np.int32), found)
    shown, clash = distinct_kernels._merge(said, step, known, found)
    assert not clash
    assert found[1].tolist() == [0, 1, 0, 2, 0]
    assert shown.tolist() == [0, 1, 3]


def test_compiled_groups_notice_a_clash(monkeypatch):
    """Within a block as between blocks: different jobs of one hash put nothing together."""
    monkeypatch.setattr(distinct, "_COMPILED_FROM", 0)
    same = distinct_kernels.numba.njit(lambda said, job: distinct_kernels.np.uint64(7))
    for blocks in (1, 5):
        said, step, found = said_by(blocks)
        table = np.full((blocks, 16), -1, dtype=np.int32)
        grouping = distinct_kernels._group_blocks.py_func
        monkeypatch.setattr(distinct_kernels, "_code", same)
        known = grouping(said, step, table, found)
        assert known.min() < 0 or distinct_kernels._merge.py_func(said, step, known, found)[1]


@pytest.mark.usefixtures("engine")
@given(st.lists(st.integers(0, 9), max_size=30).map(sorted))
def test_offsets_are_where_owners_begin(owner: list[int]):
    """Owners without entries begin where the next one does."""
    found = offsets(np.array(owner, dtype=np.int64), 10)
    assert found.tolist() == [sum(o < k for o in owner) for k in range(11)]


@pytest.mark.usefixtures("engine")
def test_nobody_is_distinct_from_nobody():
    """No jobs: nothing."""
    found = distinct_jobs(build(Setting(speeds=[], capacity=[1.0])), FIELDS)
    assert len(found.count) == 0
    assert len(found.expand_columns(np.zeros(0))) == 0


def test_the_number_of_threads_stays_the_callers():
    """A small problem is walked over on one thread; what comes next has as many as before."""
    numba = pytest.importorskip("numba")
    usual = numba.get_num_threads()
    assert distinct_kernels.offsets(np.array([0, 0, 2]), 3).tolist() == [0, 2, 2, 3]
    assert numba.get_num_threads() == usual
