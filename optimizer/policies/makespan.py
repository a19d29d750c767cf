"""Makespan: minimises the time at which the last job ends.

    minimise  T        s.t.  thr[m](x) >= R[m] / T

R: steps left. This is a linear program in z = 1 / T, with thr >= R z (Narayanan et al. bisect on T). The policy ignores
weights and projects. As in max-min fairness, a saturated job (one that already has its best speed) does not hold back
the others, and the capacity left at that level maximises the sum of fair-share utilities, so that shorter jobs do not
wait needlessly.

Source: Narayanan et al., OSDI 2020, section 4.2.

A job of unknown length is assumed to need the mean remaining time, at equal-split speeds, of the unfinished jobs of
known length (an hour if there is none). With `aware: false`, a job has its average speed on every accelerator.

The certificate states T, in seconds.
"""

from typing import ClassVar

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from optimizer.classes.aggregation import aggregate_problem
from optimizer.classes.class_problem import CappedTargets, MaxMin
from optimizer.decision import Certificate, Memory, Quote, Shares
from optimizer.lp.pair_columns import colocation_keys
from optimizer.lp.solver import solve
from optimizer.lp.staged_solution import SolveInput, StagedSolution
from optimizer.policies.share_answers import empty_answer, fair_share_answer, staged_certificate
from optimizer.policy import HeterogeneityAware, LeftoverRule, Newcomer, SpaceSharing
from optimizer.problem import FloatArray, Problem
from optimizer.utility.fair_share import Utility, fair_share_utility, newcomer_worth
from optimizer.validate import validate_problem

#: Seconds at equal-split speed that a job is assumed to need when the length of no job is known.
_UNKNOWN_S = 3600.0


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Makespan:
    """Minimises the makespan: the time at which the last job ends."""

    checked_by: ClassVar[str] = "optimizer.check.policy_checks:MAKESPAN"

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
        return fair_share_answer(solved, _certificate(solved, slope), weighted=False), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        worth: FloatArray = quote.exchange * newcomer_worth(newcomer, aware=self.aware)
        return worth


def equal_split_seconds_left(problem: Problem, utility: Utility) -> FloatArray:
    """Returns the seconds that each job needs at its equal-split speed (n,); 0 where no work is left or no
    configuration is usable.
    """
    able, known = utility.best > 0, np.isfinite(problem.jobs.remaining_steps)
    needed = np.zeros(len(problem.jobs))
    np.divide(problem.jobs.remaining_steps, utility.equal, out=needed, where=able & known)
    typical = float(needed[needed > 0].mean()) if needed.any() else _UNKNOWN_S
    return np.where(able & ~known, typical, needed)


def _certificate(solved: StagedSolution, slope: FloatArray) -> Certificate:
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
