"""A level is found near a vertex by an interior point method with small costs of the columns' own, and a projection."""

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog

from optimizer.lp.column_generation.interior_solver import BoundedProgram, solve_by_interior_point, solve_near_vertex


def level_program(seed: int, jobs: int = 60, pools: int = 3) -> BoundedProgram:
    """Largest common level of jobs with one speed on each pool; the first two jobs spend the same time on pool 0."""
    rng = np.random.default_rng(seed)
    worth = rng.uniform(0.2, 1.0, (jobs, pools))
    columns, job, pool = np.arange(jobs * pools), np.repeat(np.arange(jobs), pools), np.tile(np.arange(pools), jobs)
    matrix = np.zeros((2 * jobs + pools + 1, jobs * pools + 1))
    matrix[job, columns] = 1.0
    matrix[jobs + pool, columns] = pools / jobs * 1.5
    matrix[jobs + pools + job, columns] = -worth.ravel()
    matrix[jobs + pools : 2 * jobs + pools, -1] = 1.0
    matrix[-1, [0, pools]] = 1.0, -1.0
    right = np.concatenate((np.ones(jobs + pools), np.zeros(jobs + 1)))
    cost = np.zeros(jobs * pools + 1)
    cost[-1] = -float(jobs)
    return BoundedProgram(sparse.csc_array(matrix), cost, right, np.arange(len(right)) == len(right) - 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_level_near_a_vertex_is_optimal_feasible_and_uses_few_columns(seed: int):
    """The level is the simplex method's within 1e-4, rows hold to 1e-9, and no more columns are used than rows."""
    program = level_program(seed)
    found = solve_near_vertex(program, 60)
    assert found is not None
    less, same = program.matrix[:-1], program.matrix[[-1]]
    exact = linprog(program.cost, less, program.right[:-1], same, program.right[-1:], method="highs")
    assert program.cost @ found.x == pytest.approx(exact.fun, rel=1e-4)
    left = program.right - program.matrix @ found.x
    assert found.x.min() >= 0
    assert left.min() >= -1e-9
    assert abs(left[-1]) <= 1e-9
    middle = solve_by_interior_point(program, 1e-9)
    assert middle is not None
    used = int((found.x > 1e-9).sum())
    assert used <= len(program.right)
    assert used <= int((middle.x > 1e-9).sum())


@pytest.mark.parametrize("seed", range(5))
def test_values_and_savings_in_the_middle_are_those_of_the_optimum(seed: int):
    """Both are feasible, and both have the simplex method's objective, within the tolerance."""
    program = level_program(seed)
    middle = solve_by_interior_point(program, 1e-7)
    assert middle is not None
    less, same = program.matrix[:-1], program.matrix[[-1]]
    exact = linprog(program.cost, less, program.right[:-1], same, program.right[-1:], method="highs")
    assert program.cost @ middle.x == pytest.approx(exact.fun, rel=1e-5)
    assert -program.right @ middle.saves == pytest.approx(exact.fun, rel=1e-5)
    left = program.right - program.matrix @ middle.x
    assert min(left.min(), middle.x.min(), middle.saves[~program.equal].min()) >= -1e-5
    assert abs(left[program.equal]).max() <= 1e-5
    assert (program.cost + program.matrix.T @ middle.saves).min() >= -1e-4


def test_a_program_without_an_answer_gives_none():
    """Rows that exclude each other leave nothing to be found."""
    matrix = sparse.csc_array(np.array([[1.0, 0.0], [-1.0, 0.0]]))
    program = BoundedProgram(matrix, np.array([1.0, 0.0]), np.array([1.0, -2.0]), np.zeros(2, dtype=bool))
    assert solve_near_vertex(program, 1) is None
    assert solve_by_interior_point(program, 1e-6) is None
