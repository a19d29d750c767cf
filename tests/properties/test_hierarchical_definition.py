"""Level after level by the definition, a tree ends where filling ends: with users, orders, own parts and limits."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from problems import Setting, build

from benchmarks.policy_definitions import definition
from optimizer.decision import Status
from optimizer.policies.hierarchical import Hierarchical
from optimizer.problem import Entities, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import fair_share_utility

pytestmark = pytest.mark.slow
#: What a level gives is kept but for this part, so that a solver's rounding does not deny it to the next.
_SLACK = 1e-6
#: Who cannot rise by more than this has settled.
_STILL = 1e-3


def a_problem(rng: np.random.Generator) -> Problem:
    """Up to seven jobs of two projects, one of them with users, on up to three pools."""
    jobs, pools = int(rng.integers(2, 8)), int(rng.integers(1, 4))
    speeds = rng.integers(1, 9, (jobs, pools)) / 4
    problem = build(
        Setting(
            speeds.tolist(), rng.integers(2, 7, pools).tolist(), gangs=rng.choice([1, 1, 2], jobs).tolist(),
            weights=rng.choice([0.5, 1, 2], jobs).tolist(), submitted_at=rng.permutation(jobs).tolist(),
            entity=rng.integers(1, 4, jobs).tolist(),
        )
    )  # fmt: skip
    tree = Entities(
        ("vision", "text", "vision/ada", "vision/bob"), rng.choice([1.0, 2.0, 3.0], 4), parent=np.array([-1, -1, 0, 0]),
        guaranteed=np.zeros(4), limit=np.where(rng.random(4) < 0.2, 0.6, 1.0), borrows=rng.random(4) < 0.8,
        fifo=rng.random(4) < 0.25,
    )  # fmt: skip
    return replace(problem, entities=tree)


def by_levels(policy: Hierarchical, problem: Problem, unplaceable: IntArray) -> FloatArray:
    """Utilities in the end: the definition, keeping who can rise no further, until nobody rises (n,)."""
    kept = np.full(len(problem.jobs), np.nan)
    kept[unplaceable] = 0.0
    while np.isnan(kept).any():
        reached = level(policy, problem, kept) * (1 - _SLACK)
        rising = np.flatnonzero(np.isnan(kept))
        floor = np.where(np.isnan(kept), reached, kept)
        settled = [job for job in rising if most(policy, problem, floor, job) <= floor[job] + _STILL]
        assert settled, "somebody settles in every level"
        kept[settled] = floor[settled]
    return kept


def most(policy: Hierarchical, problem: Problem, floor: FloatArray, job: int) -> float:
    """What a job can have at most while the others keep what they have."""
    alone = floor.copy()
    alone[job] = np.nan
    return float(level(policy, problem, alone)[job])


def level(policy: Hierarchical, problem: Problem, kept: FloatArray) -> FloatArray:
    """What each job is to have at the highest level (n,)."""
    program = definition(policy, problem, kept)
    program.solve(solver=cp.HIGHS)
    assert program.status == cp.OPTIMAL
    (amount,) = (each for each in program.variables() if each.name() == "amount")
    return np.asarray(amount.value[-len(kept) :])


@pytest.mark.parametrize("seed", range(60))
def test_levels_of_the_definition_end_where_filling_ends(seed: int):
    """The same utilities, to what the brute-force levels lose."""
    problem, policy = a_problem(np.random.default_rng(seed)), Hierarchical()
    shares, _ = policy.decide(problem, None)
    assert shares.certificate.status is Status.OPTIMAL
    utility = np.bincount(problem.columns.job, fair_share_utility(problem, aware=True).worth * shares.x)
    assert utility == pytest.approx(by_levels(policy, problem, shares.unplaceable), abs=5e-3)
