"""Proportional fairness on heterogeneous accelerators: maximises the weighted product of utilities (Nash welfare).

    maximise  sum_m w[m] log u[m]        u[m] = s[m] thr[m](x) / thr[m](equal split)

Any other division loses more in relative terms for some jobs than it gains for others. The result does not depend on
the units of the utilities. Projects divide their weight among their jobs; a job of weight 0 gets capacity that no other
job can use. With `aware: false`, all speeds count as equal.

The certificate states the weighted geometric mean of the utilities, exp(sum w log u / sum w), so that its gap is
relative to the utility of the mean job.

Source: Kelly, "Charging and rate control for elastic traffic", 1997; as the Nash bargaining solution, Nash 1950.
"""

from math import exp
from typing import ClassVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from optimizer.classes.aggregation import aggregate_problem
from optimizer.classes.class_problem import NashWelfare
from optimizer.decision import Certificate, Memory, Quote, Shares, StageKind
from optimizer.lp.solver import solve
from optimizer.lp.staged_solution import SolveInput, StagedSolution
from optimizer.policies.share_answers import empty_answer, fair_share_answer, staged_certificate
from optimizer.policy import HeterogeneityAware, Newcomer
from optimizer.problem import FloatArray, Problem
from optimizer.utility.fair_share import fair_share_utility, newcomer_worth
from optimizer.validate import validate_problem


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class ProportionalFairness:
    """Maximises the weighted product of utilities (proportional fairness)."""

    checked_by: ClassVar[str] = "optimizer.check.policy_checks:PROPORTIONAL_FAIRNESS"

    aware: HeterogeneityAware = True

    @property
    def job_key_fields(self) -> tuple[str, ...]:
        return ("weight", "gang", "entity")

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        validate_problem(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return empty_answer(problem), None
        classes = aggregate_problem(problem, utility.usable, [utility.worth], [utility.weight])
        objective = NashWelfare(classes.per_column(utility.worth), classes.per_class(utility.weight))
        solved, _ = solve(SolveInput(problem, utility, classes), objective)
        return fair_share_answer(solved, _certificate(solved)), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns the worth of each configuration in fair-share units, times the arriving job's weight over the mean
        weight (c,).
        """
        worth: FloatArray = quote.exchange * newcomer.weight * newcomer_worth(newcomer, aware=self.aware)
        return worth


def _certificate(solved: StagedSolution) -> Certificate:
    objective, bound = solved.first()
    if solved.stages[0].kind is not StageKind.LOG:  # no job has a positive weight: the sum of utilities counts
        return staged_certificate(solved, objective, bound)
    total = float(solved.request.utility.weight @ solved.request.problem.jobs.counts)
    return staged_certificate(solved, exp(objective / total), exp(bound / total))
