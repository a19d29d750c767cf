"""Policies about ends: the largest relative finish time (`FinishTimeFairness`), and the last end (`Makespan`)."""

from typing import ClassVar

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from optimizer.classes.aggregation import aggregate_problem
from optimizer.classes.class_problem import CappedTargets, MaxMin, ThemisTargets
from optimizer.classes.segments import max_by
from optimizer.decision import Certificate, Memory, Shares
from optimizer.lp.pair_columns import colocation_keys
from optimizer.lp.solver import solve
from optimizer.lp.staged_solution import SolveInput, StagedSolution
from optimizer.policies.share_answers import ValuedByWeight, empty_answer, fair_share_answer, staged_certificate
from optimizer.policy import HeterogeneityAware, LeftoverRule, SpaceSharing
from optimizer.problem import FloatArray, Problem
from optimizer.utility.fair_share import (
    FinishTimeFacts,
    Utility,
    fair_share_utility,
    finish_time_facts,
    remember_isolated_time,
)
from optimizer.validate import validate_problem


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class FinishTimeFairness(ValuedByWeight):
    """Minimises the largest finish time relative to that on an own 1/M of the fleet (finish-time fairness, Themis).

        minimise  max_m rho[m]        rho[m] = (t[m] + R[m] / thr[m](x)) / (A[m] + R[m] / iso[m])

    t: seconds since submission; R: steps left; iso: steps/s with 1/M of every pool (`optimizer.utility.fair_share`); A:
    seconds that the steps done so far would have taken on that 1/M, summed over past solves at their isolated rates.
    The policy ignores weights and projects.

    The solver maximises the level z = 1 / rho: with D = A + R / iso the constraint is thr >= (R / D) z / (1 - (t / D)
    z). As in max-min fairness, a saturated job (one that already has its best speed) does not hold back the others, and
    the capacity left at that level maximises the sum of fair-share utilities. The certificate states the largest rho.

    A job of unknown length counts as infinitely long: rho = iso / thr, the limit for large R. The first solve assumes
    A = t, as if each job had run on its 1/M so far. With `aware: false`, a job has its average speed on every
    accelerator.

    Source: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020, as Narayanan et al., OSDI
    2020, section 4.2, state it.
    """

    checked_by: ClassVar[str] = "optimizer.check.certificate:FINISH_TIME_FAIRNESS"
    weighs: ClassVar[bool] = False

    aware: HeterogeneityAware = True
    then: LeftoverRule = "sum"
    packed: SpaceSharing = False

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Returns shares of time with prices and a certificate, and the memory, each job's isolated time so far.

        Raises:
            ProblemError: the problem is malformed. The certificate's status says everything else.
        """
        validate_problem(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        times = finish_time_facts(problem, utility, memory)
        if not utility.usable.any():
            return empty_answer(problem, maximise=False), remember_isolated_time(problem, times)
        equal = np.where(utility.equal > 0, utility.equal, 1.0)
        pace = problem.jobs.gang * times.pace / equal  # as a fair-share utility
        cap = np.where(times.rising, utility.best, 0.0)
        classes = aggregate_problem(
            problem,
            utility.usable,
            [utility.worth],
            [pace, times.past, *(colocation_keys(problem) if self.packed else ())],
        )
        worth = classes.per_column(utility.worth)
        targets = ThemisTargets(classes.per_class(pace), classes.per_class(times.past), classes.per_class(cap))
        request = SolveInput(problem, utility, classes, self.packed)
        solved, _ = solve(request, MaxMin(worth, targets), leftover=self.then == "sum")
        return fair_share_answer(solved, _ratio_certificate(solved, times), weighted=False), remember_isolated_time(
            problem, times
        )


def _ratio_certificate(solved: StagedSolution, times: FinishTimeFacts) -> Certificate:
    """Returns the certificate about the largest rho: its lower bound is what the prices prove, or the rho of a job
    that runs at its best.
    """
    rising, job, speed = times.rising, solved.request.problem.columns.job, solved.request.utility.rate
    if not rising.any():
        return staged_certificate(solved, 0.0, 0.0, maximise=False)
    past, pace = times.past[rising], times.pace[rising]
    rate = solved.worth_of(speed)[rising]
    fastest = max_by(job, speed, len(rising))[rising]
    with np.errstate(divide="ignore"):
        rho, least = float((past + pace / rate).max()), float((past + pace / fastest).max())
    return staged_certificate(solved, rho, max(1 / solved.first()[1], least), maximise=False)


#: Seconds at equal-split speed that a job is assumed to need when the length of no job is known.
_UNKNOWN_S = 3600.0


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Makespan(ValuedByWeight):
    """Minimises the makespan: the time at which the last job ends.

        minimise  T        s.t.  thr[m](x) >= R[m] / T

    R: steps left. This is a linear program in z = 1 / T, with thr >= R z (Narayanan et al. bisect on T). The policy
    ignores weights and projects, and treats saturated jobs and the capacity left as finish-time fairness does, so that
    shorter jobs do not wait needlessly.

    A job of unknown length is assumed to need the mean remaining time, at equal-split speeds, of the unfinished jobs
    of known length (an hour if there is none). With `aware: false`, a job has its average speed on every accelerator.
    The certificate states T, in seconds.

    Source: Narayanan et al., OSDI 2020, section 4.2.
    """

    checked_by: ClassVar[str] = "optimizer.check.certificate:MAKESPAN"
    weighs: ClassVar[bool] = False

    aware: HeterogeneityAware = True
    then: LeftoverRule = "sum"
    packed: SpaceSharing = False

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        validate_problem(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return empty_answer(problem, maximise=False), None
        slope = problem.jobs.gang * equal_split_seconds_left(problem, utility)  # utility that ends the job in a second
        classes = aggregate_problem(
            problem, utility.usable, [utility.worth], [slope, *(colocation_keys(problem) if self.packed else ())]
        )
        worth, best = classes.per_column(utility.worth), classes.per_class(utility.best)
        targets = CappedTargets(classes.per_class(slope), best, np.zeros(len(best)))
        request = SolveInput(problem, utility, classes, self.packed)
        solved, _ = solve(request, MaxMin(worth, targets), leftover=self.then == "sum")
        return fair_share_answer(solved, _last_end_certificate(solved, slope), weighted=False), None


def equal_split_seconds_left(problem: Problem, utility: Utility) -> FloatArray:
    """Returns the seconds that each job needs at its equal-split speed (n,); 0 where no work is left or no
    configuration is usable.
    """
    able, known = utility.best > 0, np.isfinite(problem.jobs.remaining_steps)
    needed = np.zeros(len(problem.jobs))
    np.divide(problem.jobs.remaining_steps, utility.equal, out=needed, where=able & known)
    typical = float(needed[needed > 0].mean()) if needed.any() else _UNKNOWN_S
    return np.where(able & ~known, typical, needed)


def _last_end_certificate(solved: StagedSolution, slope: FloatArray) -> Certificate:
    """Returns the certificate about T: its lower bound is what the prices prove, or the end of a job that runs at its
    best.
    """
    utility, left = solved.request.utility, np.flatnonzero(slope)
    if not len(left):
        return staged_certificate(solved, 0.0, 0.0, maximise=False)
    reached = solved.worth_of(utility.worth)[left]
    with np.errstate(divide="ignore"):
        last_s, least_s = float((slope[left] / reached).max()), float((slope[left] / utility.best[left]).max())
    return staged_certificate(solved, last_s, max(1 / solved.first()[1], least_s), maximise=False)
