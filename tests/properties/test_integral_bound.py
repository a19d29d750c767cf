"""No schedule of whole gangs beats the integral bound: every packing of a small fleet is listed and mixed."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from policies import SPECS, name_of, timed_problems
from scipy.optimize import linprog

from optimizer.assignment.whole_gang_bound import integral_bound
from optimizer.check.certificate import jobwise_problem, measure_of, policy_check_of
from optimizer.check.dual_bounds import CheckedLevel, CheckedLog, CheckedSum
from optimizer.check.jobwise_problem import JobwiseProblem
from optimizer.check.policy_measures import CheckRequest
from optimizer.check.stage_proofs import CheckedShares, recompute_stages
from optimizer.policy import PolicySpec
from optimizer.problem import FloatArray, Problem
from optimizer.registry import make

BOUNDED = [*SPECS, PolicySpec("water_filling")]


@dataclass(frozen=True)
class Mixtures:
    """All packings of a small problem: which columns each of them runs (q, c)."""

    facts: JobwiseProblem
    packings: FloatArray

    @classmethod
    def of(cls, facts: JobwiseProblem) -> "Mixtures":
        chosen = []
        for picks in product(*([None, *(c for c in mine if facts.usable[c])] for mine in facts.columns_of)):
            runs = np.zeros(len(facts.usable))
            runs[[c for c in picks if c is not None]] = 1.0
            used = np.zeros(len(facts.capacity))
            for column in np.flatnonzero(runs):
                for pool, count in facts.uses[column].items():
                    used[pool] += count
            if np.all(used <= facts.capacity + 1e-9):
                chosen.append(runs)
        return cls(facts, np.array(chosen))

    def gains(self, worth: FloatArray) -> FloatArray:
        """What each packing is worth to each job (q, n)."""
        return np.array([self.facts.summed(worth * runs) for runs in self.packings])

    def best(self, form: CheckedLevel | CheckedSum | CheckedLog) -> float | None:
        """The form's largest value over all mixtures; None: its floors cannot be held."""
        gains = self.gains(form.worth)
        if isinstance(form, CheckedLog):
            return _largest_product(gains, form.weight)
        if isinstance(form, CheckedSum):
            return _most(self.gains(form.value).sum(axis=1), gains, form.floor)
        return _highest(lambda z: _most(np.zeros(len(gains)), gains, form.targets.at(z)) is not None, form.highest)


def _most(value: FloatArray, gains: FloatArray, floor: FloatArray) -> float | None:
    """The largest mean value of a mixture that gives everybody the floor."""
    rows = -gains.T / np.maximum(floor, 1e-9)[:, None]
    found = linprog(-value, A_ub=rows, b_ub=-(floor > 0).astype(float), A_eq=np.ones((1, len(value))), b_eq=[1.0])
    return -found.fun if found.status == 0 else None


def _highest(possible: Callable[[float], bool], top: float) -> float:
    low, high = 0.0, top
    if possible(top):
        return top
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if possible(middle) else (low, middle)
    return low


def _largest_product(gains: FloatArray, weight: FloatArray) -> float:
    share = cp.Variable(len(gains), nonneg=True)
    rising = np.flatnonzero(weight)
    scale = gains.max(axis=0)[rising]
    log = cp.log((gains[:, rising] / scale).T @ share)
    program = cp.Problem(cp.Maximize(weight[rising] @ log), [cp.sum(share) == 1])
    program.solve(solver=cp.CLARABEL)
    return float(program.value) + float(weight[rising] @ np.log(scale))


@pytest.mark.slow
@pytest.mark.parametrize("spec", BOUNDED, ids=name_of)
@settings(max_examples=25, deadline=None)
@given(problem=timed_problems(whole=True))
def test_no_mixture_of_packings_beats_the_bound(spec: PolicySpec, problem: Problem):
    """The best mixture of all packings stays within the integral bound, and that within the fluid one."""
    policy = make(spec)
    shares, _ = policy.decide(problem, None)
    bound = integral_bound(problem, spec, shares)
    assume(bound is not None)
    check = policy_check_of(spec)
    facts = jobwise_problem(problem, spec, shares.rent, check)
    assume(np.prod([1 + len(mine) for mine in facts.columns_of]) <= 600)
    measure = measure_of(spec, check, CheckRequest(facts, spec.parameters, None, shares))
    first = recompute_stages(CheckedShares(facts, measure, shares)).recomputed[0]
    best = Mixtures.of(facts).best(first.form)
    assume(best is not None)
    sign = 1 if measure.maximise else -1
    _, reached = measure.certified(shares, first.value, best)
    size = max(abs(bound), abs(reached), 1e-6)
    assert sign * (bound - reached) >= -1e-5 * size
    assert sign * (shares.certificate.bound - bound) >= -1e-6 * size
