"""Equal jobs are found and stand for each other, exactly."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Setting, build
from strategies_problems import settings_of_problems

from optimizer.classes import aggregation, check_kernels, deduplication_kernels
from optimizer.classes import aggregation as module
from optimizer.classes.aggregation import distinct_jobs, distinct_jobs_if_sound, group_into_classes
from optimizer.classes.class_problem import constraint_violation
from optimizer.classes.segments import quantised_bits
from optimizer.problem import Columns, Problem

FIELDS = ("weight", "gang", "entity")
#: Three columns, the second over two pools.
MIXED = Columns(
    job=np.array([0, 0, 1, 1, 2, 2]), steps_per_s=np.array([1.0, 3.0, 1.0, 3.0, 1.0, 3.0]),
    use_column=np.array([0, 1, 1, 2, 3, 3, 4, 5, 5]), use_pool=np.array([0, 0, 1, 0, 0, 1, 0, 0, 1]),
    use_count=np.array([2.0, 1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 1.0, 2.0]), running=np.zeros(6, dtype=bool),
)  # fmt: skip


def mixed() -> Problem:
    return replace(build(Setting(speeds=[[1.0, 3.0]] * 3, capacity=[4.0, 4.0])), columns=MIXED)


@pytest.fixture(params=["plain", "compiled"])
def engine(request, monkeypatch):
    """Both ways of doing it."""
    monkeypatch.setattr(aggregation, "COMPILED_COLUMNS", 0 if request.param == "compiled" else 10**12)


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
    monkeypatch.setattr(aggregation, "mix_bits", np.zeros_like)
    assert distinct_jobs(mixed(), FIELDS).member.tolist() == [0, 1, 2]


def said_by(blocks: int) -> tuple:
    """Five jobs of one column, one for each pool; the third and fifth say what the first says."""
    first, pool = np.arange(6), np.array([0, 1, 0, 2, 0])
    none, bits = np.zeros(0, dtype=np.int64), np.zeros(5, dtype=np.int64)
    step = -(-5 // blocks)
    found = (np.zeros(5, dtype=np.uint64), np.zeros(5, dtype=np.int64), np.zeros(5, dtype=np.int64))
    return (first, none, bits, pool, bits, np.zeros((1, 5), dtype=np.int64)), step, found


def test_compiled_groups_notice_a_clash(monkeypatch):
    """Within a block as between blocks: different jobs of one hash put nothing together."""
    monkeypatch.setattr(aggregation, "COMPILED_COLUMNS", 0)
    same = deduplication_kernels.numba.njit(lambda said, job: deduplication_kernels.np.uint64(7))
    for blocks in (1, 5):
        said, step, found = said_by(blocks)
        table = np.full((blocks, 16), -1, dtype=np.int32)
        grouping = deduplication_kernels._group_blocks.py_func
        monkeypatch.setattr(deduplication_kernels, "_code", same)
        known = grouping(said, step, table, found)
        assert known.min() < 0 or deduplication_kernels._merge.py_func(said, step, known, found)[1]


def test_the_number_of_threads_stays_the_callers():
    """A small problem is walked over on one thread; what comes next has as many as before."""
    numba = pytest.importorskip("numba")
    usual = numba.get_num_threads()
    assert deduplication_kernels.compiled_offsets(np.array([0, 0, 2]), 3).tolist() == [0, 2, 2, 3]
    assert numba.get_num_threads() == usual


def many(seed: int, kinds: int) -> Problem:
    """Fifty jobs of one to four columns in so many kinds; kinds may differ in what few words do not tell."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, kinds, 50)
    width = (rng.integers(1, 5, kinds))[kind]
    speed, pool = rng.choice([1.0, 2.0], (kinds, 4))[kind], rng.integers(0, 3, (kinds, 4))[kind]
    used = np.arange(4) < width[:, None]
    total = int(width.sum())
    problem = build(Setting(speeds=[[1.0, 2.0, 3.0]] * 50, capacity=[4.0] * 3))
    columns = Columns(
        job=np.repeat(np.arange(50), width), steps_per_s=speed[used], use_column=np.arange(total), use_pool=pool[used],
        use_count=np.ones(total), running=np.zeros(total, dtype=bool),
    )  # fmt: skip
    return replace(problem, columns=columns)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), kinds=st.integers(1, 50), block=st.sampled_from([1, 7, 40, 10**6]))
def test_one_walk_finds_what_checking_and_then_grouping_finds(seed: int, kinds: int, block: int):
    """The same groups, numbers and first columns to the last bit, however the columns are cut into blocks."""
    problem = many(seed, kinds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "COMPILED_COLUMNS", 10**12)
        expected = distinct_jobs(problem, FIELDS)
        patch.setattr(aggregation, "COMPILED_COLUMNS", 0)
        patch.setattr(check_kernels, "_BLOCK_COLUMNS", block)
        found = distinct_jobs_if_sound(problem, FIELDS)
    if found is None:  # too many look alike at first
        assert kinds > 2
        return
    for name in ("member", "representative", "first", "distinct_first", "count"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


WRONG = {
    "a job that does not ascend": ("job", 20, 0), "a job that is skipped": ("job", slice(20, None), None),
    "a job that is none": ("job", -1, 50), "a speed below 0": ("steps_per_s", 20, -1.0),
    "a speed that is none": ("steps_per_s", 20, np.nan), "an infinite speed": ("steps_per_s", 20, np.inf),
    "a column that is used twice": ("use_column", 20, 19), "a pool that is none": ("use_pool", 20, 3),
    "a pool below 0": ("use_pool", 20, -1), "no accelerators": ("use_count", 20, 0.0),
    "infinitely many accelerators": ("use_count", 20, np.inf),
    "accelerators that are no number": ("use_count", 20, np.nan),
}  # fmt: skip


@pytest.mark.parametrize("wrong", list(WRONG))
def test_whatever_may_be_wrong_is_left_to_the_full_check(wrong: str, monkeypatch):
    """The walk vouches for sound columns only."""
    monkeypatch.setattr(aggregation, "COMPILED_COLUMNS", 0)
    problem = many(3, 6)
    assert distinct_jobs_if_sound(problem, FIELDS) is not None
    name, where, value = WRONG[wrong]
    array = getattr(problem.columns, name).copy()
    array[where] = array[where] + 1 if value is None else value
    assert distinct_jobs_if_sound(replace(problem, columns=replace(problem.columns, **{name: array})), FIELDS) is None


def test_arrays_of_other_lengths_are_not_walked_over(monkeypatch):
    """A column with two uses, an array too short, a field too short: the general way is taken."""
    monkeypatch.setattr(aggregation, "COMPILED_COLUMNS", 0)
    assert distinct_jobs_if_sound(mixed(), FIELDS) is None
    problem = many(3, 6)
    short = replace(problem, columns=replace(problem.columns, use_pool=problem.columns.use_pool[:-1]))
    assert distinct_jobs_if_sound(short, FIELDS) is None
    fewer = replace(problem, jobs=replace(problem.jobs, weight=problem.jobs.weight[:-1]))
    assert distinct_jobs_if_sound(fewer, FIELDS) is None


def test_jobs_that_few_words_do_not_tell_apart_are_grouped_the_general_way(monkeypatch):
    """Many jobs that differ only where the walk does not look at first are not compared each with each."""
    monkeypatch.setattr(aggregation, "COMPILED_COLUMNS", 0)
    jobs = 400
    problem = build(Setting(speeds=[[1.0, 2.0, 3.0, 4.0]] * jobs, capacity=[4.0] * 4))
    speed = problem.columns.steps_per_s.copy()
    speed[1::4] = np.arange(1.0, jobs + 1)
    problem = replace(problem, columns=replace(problem.columns, steps_per_s=speed))
    assert distinct_jobs_if_sound(problem, FIELDS) is None
    assert len(distinct_jobs(problem, FIELDS).count) == jobs


def test_minus_zero_is_a_speed():
    """A speed of -0 is sound, as for the full check."""
    problem = many(3, 6)
    speed = problem.columns.steps_per_s.copy()
    speed[20] = -0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "COMPILED_COLUMNS", 0)
        patched = replace(problem, columns=replace(problem.columns, steps_per_s=speed))
        assert distinct_jobs_if_sound(patched, FIELDS) is not None


def test_a_row_of_several_jobs_takes_the_capacity_of_all_of_them():
    """Three jobs in one row that have an accelerator each need three, and two are there: half of it too much."""
    problem = build(Setting([[1.0]], [2.0]))
    grouped = replace(problem, jobs=replace(problem.jobs, count=np.array([3.0])))
    assert constraint_violation(problem, np.ones(1)) == 0.0
    assert constraint_violation(grouped, np.ones(1)) == 0.5


def test_the_order_of_a_jobs_columns_does_not_matter():
    """Two jobs that list the same configurations in another order are the same, and each gets its own shares back."""
    columns = Columns(
        job=np.array([0, 0, 1, 1]), steps_per_s=np.array([3.0, 1.0, 1.0, 3.0]), use_column=np.arange(4),
        use_pool=np.array([0, 1, 1, 0]), use_count=np.ones(4), running=np.zeros(4, dtype=bool),
    )  # fmt: skip
    classes = group_into_classes(columns, np.ones(4, dtype=bool), [columns.steps_per_s], [np.ones(2)])
    assert len(classes) == 1
    by_pool = np.where(columns.use_pool[classes.column] == 0, 0.7, 0.2)
    assert np.append(by_pool, 0)[classes.class_column].tolist() == [0.7, 0.2, 0.2, 0.7]


def test_mixed_gangs_are_told_apart_by_all_their_uses():
    """Columns of several uses are equal only if every pool and count is, in whatever order the uses stand."""
    columns = Columns(
        job=np.array([0, 1, 2]), steps_per_s=np.ones(3), use_column=np.array([0, 0, 1, 1, 2, 2]),
        use_pool=np.array([0, 1, 1, 0, 0, 1]), use_count=np.array([1.0, 2.0, 2.0, 1.0, 2.0, 1.0]),
        running=np.zeros(3, dtype=bool),
    )  # fmt: skip
    classes = group_into_classes(columns, np.ones(3, dtype=bool), [columns.steps_per_s], [np.ones(3)])
    assert classes.member[0] == classes.member[1] != classes.member[2]


def test_columns_not_kept_and_jobs_without_any_stay_out():
    """A job without kept columns is in no class, and what is not kept gets 0."""
    problem = build(Setting([[3, 0], [None, 0], [0, 2]], [1, 1]))
    columns = problem.columns
    classes = group_into_classes(columns, columns.steps_per_s > 0, [columns.steps_per_s], [problem.jobs.weight])
    assert len(classes) == 2
    assert classes.member[1] == -1
    assert (np.append(np.ones(2), 0)[classes.class_column] == (columns.steps_per_s > 0)).all()
    assert np.append(np.ones(2), 0)[classes.member].tolist() == [1, 0, 1]


def test_numbers_computed_in_another_order_are_equal():
    """Differences of rounding (1e-12) do not split a class; a difference of 1e-6 does."""
    assert quantised_bits(np.array([0.1 + 0.2]))[0] == quantised_bits(np.array([0.3]))[0]
    assert quantised_bits(np.array([1.0]))[0] != quantised_bits(np.array([1.000001]))[0]
    assert quantised_bits(np.array([-0.0])).tobytes() == quantised_bits(np.array([0.0])).tobytes()


#: A job's columns: pool, count, speed; and its weight.
_JOBS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 1), st.integers(1, 2), st.integers(1, 2)), max_size=3), st.integers(1, 2)
    ),
    min_size=1,
    max_size=12,
)


def _columns(jobs: list) -> Columns:
    told = [(job, *column) for job, (own, _) in enumerate(jobs) for column in own]
    job, pool, count, speed = (np.array([row[i] for row in told], dtype=np.int64) for i in range(4))
    floats = [array.astype(np.float64) for array in (speed, count)]
    return Columns(job, floats[0], np.arange(len(told)), pool, floats[1], np.zeros(len(told), dtype=bool))


@settings(max_examples=60, deadline=None)
@given(jobs=_JOBS, seed=st.integers(0, 9))
def test_classes_are_what_jobs_say_and_their_numbers_too(jobs: list, seed: int):
    """Two jobs share a class exactly if they say the same, and a class has the same number whoever is asked first."""
    shuffled = np.random.default_rng(seed).permutation(len(jobs))
    classes, again = (
        group_into_classes(columns, np.ones(len(columns), dtype=bool), [columns.steps_per_s], [weight])
        for some in (jobs, [jobs[row] for row in shuffled])
        for columns, weight in [(_columns(some), np.array([float(weight) for _, weight in some]))]
    )
    said = [(tuple(sorted(own)), weight) if own else None for own, weight in jobs]
    for one in range(len(jobs)):
        assert (classes.member[one] == -1) == (said[one] is None)
        for other in range(one):
            assert (classes.member[one] == classes.member[other]) == (said[one] == said[other])
    assert np.array_equal(classes.member[shuffled], again.member)


def test_where_codes_clash_every_job_stands_for_itself(monkeypatch):
    """Grouping is exact: jobs that differ are never put together, even if what they say has one code."""
    monkeypatch.setattr(module, "mix_bits", lambda state: np.zeros_like(state))
    problem = build(Setting([[3, 1], [3, 2], [3, 1]], [4, 4]))
    columns = problem.columns
    classes = group_into_classes(columns, np.ones(6, dtype=bool), [columns.steps_per_s], [problem.jobs.weight])
    assert classes.size.tolist() == [1, 1, 1]
    assert np.array_equal(np.append(columns.steps_per_s[classes.column], 0)[classes.class_column], columns.steps_per_s)
