"""Space sharing stated once more, pair by pair, for tests to compare with; and problems in which jobs may be packed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from problems import Setting, build
from scipy.optimize import linprog
from strategies_problems import settings_of_problems

from optimizer.classes.aggregation import aggregate_problem
from optimizer.classes.class_problem import CappedTargets, MaxMin, MaxSum, TargetFunction
from optimizer.lp.pair_columns import colocation_keys
from optimizer.lp.solver import solve
from optimizer.lp.staged_solution import SolveInput, StagedSolution
from optimizer.problem import Pairs, Problem
from optimizer.utility.fair_share import Utility, fair_share_utility

Listed = tuple[int, int, int, float, float]


def with_pairs(problem: Problem, kinds: Sequence[int], listed: Sequence[Listed]) -> Problem:
    """The problem with kinds of jobs, and (first, second, pool, factor, factor) of those that may share."""
    columns = list(zip(*listed, strict=True)) if listed else [(), (), (), (), ()]
    first, second, pool = (np.array(column, dtype=np.int64) for column in columns[:3])
    pairs = Pairs(np.array(kinds, dtype=np.int64), first, second, pool, *(np.array(c, float) for c in columns[3:]))
    return replace(problem, pairs=pairs)


@st.composite
def packable_problems(draw: st.DrawFn, *, max_jobs: int = 7) -> Problem:
    """Problems of up to `max_jobs` jobs of up to three kinds, some of which never share, with any factors in 0..1."""
    setting: Setting = draw(settings_of_problems(projects=False, max_jobs=max_jobs))
    problem = build(setting)
    kinds = draw(st.lists(st.sampled_from([0, 1, 2, 2, -1]), min_size=len(problem.jobs), max_size=len(problem.jobs)))
    factor = st.sampled_from([0.0, 0.3, 0.5, 0.6, 0.75, 0.9, 1.0])
    listed: list[Listed] = []
    for first in range(3):
        for second in range(first, 3):
            for pool in range(len(problem.pools)):
                if draw(st.booleans()):
                    one, other = draw(factor), draw(factor)
                    turned = draw(st.booleans())
                    ends = (second, first) if turned else (first, second)
                    listed.append((*ends, pool, one, one if first == second else other))
    return with_pairs(problem, kinds, listed)


@dataclass(frozen=True)
class Column:
    """Something that can run: who gains what, and where it takes how much."""

    gains: tuple[tuple[int, float], ...]
    uses: tuple[tuple[int, float], ...]


def all_columns(problem: Problem, utility: Utility, worth: np.ndarray) -> list[Column]:
    """Every column alone and every pair of jobs, one by one."""
    columns, pairs = problem.columns, problem.pairs
    found = []
    alone: dict[tuple[int, int], int] = {}
    for c in np.flatnonzero(utility.usable):
        uses = np.flatnonzero(columns.use_column == c)
        used = tuple((int(columns.use_pool[u]), float(columns.use_count[u])) for u in uses)
        found.append(Column(((int(columns.job[c]), float(worth[c])),), used))
        if len(used) == 1:
            alone[int(columns.job[c]), used[0][0]] = int(c)
    assert pairs is not None
    for q in range(len(pairs)):
        for i in np.flatnonzero(pairs.kind == pairs.first[q]):
            for j in np.flatnonzero(pairs.kind == pairs.second[q]):
                pool = int(pairs.pool[q])
                one, other = alone.get((int(i), pool)), alone.get((int(j), pool))
                if i == j or one is None or other is None:
                    continue
                count = float(columns.use_count[np.flatnonzero(columns.use_column == one)[0]])
                if count != float(columns.use_count[np.flatnonzero(columns.use_column == other)[0]]):
                    continue
                kept = float(pairs.first_factor[q]), float(pairs.second_factor[q])
                gains = ((int(i), kept[0] * float(worth[one])), (int(j), kept[1] * float(worth[other])))
                found.append(Column(gains, ((pool, count),)))
    return found


def most(problem: Problem, worth: np.ndarray, floor: np.ndarray, rise: np.ndarray, value: float = 0.0) -> float:
    """max theta + value * sum of utilities, s.t. utility >= floor + rise theta, over every column; theta <= 1."""
    utility = fair_share_utility(problem, aware=True)
    columns = all_columns(problem, utility, worth)
    n, p, c = len(problem.jobs), len(problem.pools), len(columns)
    matrix, gain = np.zeros((2 * n + p, c + 1)), np.zeros(c + 1)
    for number, column in enumerate(columns):
        for job, amount in column.gains:
            matrix[job, number] += 1
            matrix[n + p + job, number] -= amount
            gain[number] += value * amount
        for pool, count in column.uses:
            matrix[n + pool, number] += count
    matrix[n + p :, -1] = rise
    gain[-1] = 1.0 if rise.any() else 0.0
    right = np.concatenate((np.ones(n), problem.pools.capacity, -floor))
    result = linprog(-gain, A_ub=matrix, b_ub=right, bounds=[(0, None)] * c + [(0, 1)], method="highs")
    assert result.status == 0, result.message
    return float(-result.fun)


def asked_of(problem: Problem, *keys: np.ndarray) -> SolveInput:
    """The classes of a problem whose jobs may be packed, by weight and other keys."""
    utility = fair_share_utility(problem, aware=True)
    job_keys = [utility.weight, *colocation_keys(problem), *keys]
    return SolveInput(
        problem, utility, aggregate_problem(problem, utility.usable, [utility.worth], job_keys), packed=True
    )


def max_min(problem: Problem, *, leftover: bool = False) -> tuple[StagedSolution, TargetFunction]:
    """Max-min fairness with space sharing, and its targets job by job."""
    asked = asked_of(problem)
    weight, best = asked.utility.weight, asked.utility.best
    per_class, worth = asked.classes.per_class, asked.classes.per_column(asked.utility.worth)
    targets = CappedTargets(per_class(weight), per_class(best), np.zeros(len(asked.classes.classes)))
    return solve(asked, MaxMin(worth, targets), leftover=leftover)[0], CappedTargets(weight, best, np.zeros(len(best)))


def throughput(problem: Problem) -> StagedSolution:
    """The largest sum of utilities with space sharing."""
    asked = asked_of(problem)
    worth = asked.classes.per_column(asked.utility.worth)
    return solve(asked, MaxSum(worth, worth, np.zeros(len(asked.classes.classes))))[0]
