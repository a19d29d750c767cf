"""Gavel's linear programs, as its policies state them: one stage, nothing done about what the optimum leaves open."""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.decision import Memory
from optimizer.problem import FloatArray
from simulator.compat.gavel.cones import ConeSolver, clarabel
from simulator.compat.gavel.policy import Allocation, GavelPolicy
from simulator.compat.gavel.polytope import Polytope, Units, singles, with_pairs
from simulator.compat.gavel.problem import GavelProblem
from simulator.compat.gavel.rounds import PairSpeeds
from simulator.compat.gavel.simple import equal_split

#: The type that blind policies take every speed from.
_REFERENCE = "v100"
#: The search for the shortest time begins between these, seconds, and ends this close (a ratio).
_SHORTEST_S, _LONGEST_S, _CLOSE = 100.0, 1e6, 1.05
#: Times looked at, at most.
_SEARCH_MAX = 200


def reference_speed(problem: GavelProblem) -> FloatArray:
    """Every type as fast as the reference type (n, p)."""
    names = [problem.pools.accelerator[row] for row in problem.pool_row.tolist()]
    return np.repeat(problem.speed[:, [names.index(_REFERENCE)]], len(names), axis=1)


def proportional_rate(problem: GavelProblem, speed: FloatArray) -> FloatArray:
    """Rate of each job if its time were split over the types by their accelerators."""
    split = problem.total / len(problem.jobs)
    rate: FloatArray = (speed * (split / split.sum())).sum(axis=1)
    return rate


def nothing(problem: GavelProblem) -> Allocation:
    """No shares: the solver found none."""
    return Allocation(np.zeros_like(problem.speed))


def _units(problem: GavelProblem, speed: FloatArray, pairs: PairSpeeds | None) -> Units:
    return singles(problem, speed) if pairs is None else with_pairs(problem, speed, pairs)


@dataclass(frozen=True, slots=True)
class MaxMinFairness(GavelPolicy):
    """max min s/w rate / (rate at an equal split of time over the accelerators)."""

    aware: bool = True
    pairs: PairSpeeds | None = None
    solver: ConeSolver = clarabel

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[Allocation, Memory]:
        speed = problem.speed if self.aware else np.ones_like(problem.speed)
        proportional = proportional_rate(problem, speed)
        polytope = Polytope(_units(problem, speed, self.pairs), lead=1)
        job, weight, count = polytope.job, problem.jobs.weight, problem.count
        # Multiplied in Gavel's order: another moves the last digit, and with it who fills what is left over.
        if self.pairs is None:
            scale = (1.0 / weight) * (1.0 / proportional)
            worth = polytope.speed * scale[job][:, None] * count[job][:, None]
        else:
            worth = polytope.speed * (count / weight)[job][:, None] / proportional[job][:, None]
        polytope.add_rates(worth, 1.0, np.zeros(len(problem.jobs)))
        polytope.add_base()
        c = np.zeros(polytope.columns)
        c[0] = -1.0
        return polytope.solve(self.solver, c) or nothing(problem), None


@dataclass(frozen=True, slots=True)
class MinTotalDuration(GavelPolicy):
    """Some shares under which all jobs end within nearly the shortest time, found by bisection."""

    aware: bool = True
    pairs: PairSpeeds | None = None
    solver: ConeSolver = clarabel

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[Allocation, Memory]:
        units = _units(problem, problem.speed if self.aware else reference_speed(problem), self.pairs)
        low_s, high_s = _SHORTEST_S, _LONGEST_S
        found: Allocation | None = None
        for _ in range(_SEARCH_MAX):
            if _CLOSE * low_s >= high_s:
                if found is not None:
                    break
                low_s, high_s = _LONGEST_S, 10.0 * high_s
            middle_s = (low_s + high_s) / 2.0
            feasible = self._within(problem, units, middle_s)
            if feasible is None:
                low_s = middle_s
            else:
                found, high_s = feasible, middle_s
        return found or nothing(problem), None

    def _within(self, problem: GavelProblem, units: Units, time_s: float) -> Allocation | None:
        polytope = Polytope(units)
        polytope.add_base()
        polytope.add_rates(polytope.speed, None, -problem.jobs.remaining_steps / time_s)
        return polytope.solve(self.solver, np.zeros(polytope.columns), only_optimal=True)


@dataclass(frozen=True, slots=True)
class MaxSumThroughput(GavelPolicy):
    """max sum of steps per second (per dollar, if prices are given), each job within its deadline if that can be."""

    #: USD per hour by type; None: speed alone counts.
    prices: dict[str, float] | None = None
    keeps_deadlines: bool = False
    solver: ConeSolver = clarabel

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[Allocation, Memory]:
        names = [problem.pools.accelerator[row] for row in problem.pool_row.tolist()]
        price = np.array([1.0 if self.prices is None else self.prices[name] for name in names])
        found = None
        if self.keeps_deadlines and np.isfinite(problem.deadline_at).any():
            found = self._solve(problem, price, within_deadlines=True)
        return found or self._solve(problem, price, within_deadlines=False) or nothing(problem), None

    def _solve(self, problem: GavelProblem, price: FloatArray, *, within_deadlines: bool) -> Allocation | None:
        polytope = Polytope(singles(problem, problem.speed))
        polytope.add_base()
        if within_deadlines:
            left_s = problem.deadline_at - problem.at
            least = np.divide(problem.jobs.remaining_steps, left_s, out=np.full_like(left_s, np.inf), where=left_s != 0)
            polytope.add_rates(polytope.speed, None, -least)
        return polytope.solve(self.solver, polytope.rate_cost(price))


@dataclass(frozen=True, slots=True)
class FinishTimeFairness(GavelPolicy):
    """min max of expected finish time over that of a job that has 1/M of the cluster to itself.

        rho = (waited + left / rate) / (isolated time so far + left / isolated rate)

    1/rate <= u through the cone |(2, u - rate)| <= u + rate.
    """

    aware: bool = True
    solver: ConeSolver = clarabel

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[Allocation, Memory]:
        speed = problem.speed if self.aware else reference_speed(problem)
        isolated_x = equal_split(problem, problem.count.astype(float))
        isolated = (speed * isolated_x).sum(axis=1)
        left = problem.jobs.remaining_steps
        so_far = self._isolated_so_far(problem, memory)
        per_alone_s = 1.0 / (so_far + left / isolated)
        waited_s = problem.at - problem.jobs.submitted_at
        # Columns: the largest rho (of several), the shares, the inverse rates.
        jobs = np.arange(len(problem.jobs))
        lead = int(len(jobs) > 1)
        polytope = Polytope(singles(problem, speed), lead, trail=len(jobs))
        inverse = polytope.columns - len(jobs) + jobs
        c = np.zeros(polytope.columns)
        c[0 if lead else inverse] = 1.0 if lead else left * per_alone_s
        if lead:
            column = np.concatenate([np.zeros_like(jobs), inverse])
            value = np.concatenate([-np.ones(len(jobs)), left * per_alone_s])
            polytope.add(len(jobs), np.tile(jobs, 2), column, value, -(waited_s * per_alone_s))
        polytope.add_base()
        polytope.add_inverses(inverse)
        found = polytope.solve(self.solver, c, cones=len(jobs)) or Allocation(isolated_x)
        ids = problem.jobs.job_id.tolist()
        return found, {
            "so_far_s": dict(zip(ids, so_far.tolist(), strict=True)),
            "left": dict(zip(ids, left.tolist(), strict=True)),
            "isolated": dict(zip(ids, isolated.tolist(), strict=True)),
        }

    def _isolated_so_far(self, problem: GavelProblem, memory: Memory) -> FloatArray:
        """What each job's steps until now would have taken it in isolation, at the isolated rates of past solves."""
        so_far = np.zeros(len(problem.jobs))
        if memory is not None:
            for row, job_id in enumerate(problem.jobs.job_id.tolist()):
                if job_id in memory["so_far_s"]:
                    made = memory["left"][job_id] - problem.jobs.remaining_steps[row]
                    so_far[row] = memory["so_far_s"][job_id] + made / memory["isolated"][job_id]
        return so_far


def with_solver(policy: GavelPolicy, solver: ConeSolver) -> GavelPolicy:
    """The same policy, its programs solved by another solver (those without a program: unchanged)."""
    return replace(policy, solver=solver) if hasattr(policy, "solver") else policy  # type: ignore[type-var]
