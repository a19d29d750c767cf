from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Setting, build

from optimizer.classes import aggregation as module
from optimizer.classes.aggregation import group_into_classes
from optimizer.classes.class_problem import constraint_violation
from optimizer.classes.segments import quantised_bits
from optimizer.problem import Columns


def test_jobs_alike_make_one_class():
    """Jobs with the same columns and keys share a class; a different weight or speed makes another."""
    problem = build(Setting([[3, 1], [3, 1], [3, 2], [3, 1]], [4, 4], weights=[1, 1, 1, 2]))
    columns = problem.columns
    classes = group_into_classes(columns, np.ones(8, dtype=bool), [columns.steps_per_s], [problem.jobs.weight])
    assert len(classes) == 3
    assert sorted(classes.size.tolist()) == [1, 1, 2]
    assert classes.member[0] == classes.member[1]
    assert classes.size[classes.member[0]] == 2


def test_a_row_of_several_jobs_takes_the_capacity_of_all_of_them():
    """Three jobs in one row that have an accelerator each need three, and two are there: half of it too much."""
    problem = build(Setting([[1.0]], [2.0]))
    grouped = replace(problem, jobs=replace(problem.jobs, count=np.array([3.0])))
    assert constraint_violation(problem, np.ones(1)) == 0.0
    assert constraint_violation(grouped, np.ones(1)) == 0.5


def test_the_order_of_a_jobs_columns_does_not_matter():
    """Two jobs that list the same configurations in another order are the same, and each gets its own shares back."""
    columns = Columns(
        job=np.array([0, 0, 1, 1]),
        steps_per_s=np.array([3.0, 1.0, 1.0, 3.0]),
        use_column=np.arange(4),
        use_pool=np.array([0, 1, 1, 0]),
        use_count=np.ones(4),
        running=np.zeros(4, dtype=bool),
    )
    classes = group_into_classes(columns, np.ones(4, dtype=bool), [columns.steps_per_s], [np.ones(2)])
    assert len(classes) == 1
    by_pool = np.where(columns.use_pool[classes.column] == 0, 0.7, 0.2)
    assert np.append(by_pool, 0)[classes.class_column].tolist() == [0.7, 0.2, 0.2, 0.7]


def test_mixed_gangs_are_told_apart_by_all_their_uses():
    """Columns of several uses are equal only if every pool and count is, in whatever order the uses stand."""
    columns = Columns(
        job=np.array([0, 1, 2]),
        steps_per_s=np.ones(3),
        use_column=np.array([0, 0, 1, 1, 2, 2]),
        use_pool=np.array([0, 1, 1, 0, 0, 1]),
        use_count=np.array([1.0, 2.0, 2.0, 1.0, 2.0, 1.0]),
        running=np.zeros(3, dtype=bool),
    )
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
