"""Fair shares: max-min by one level or level by level, the product of utilities, and equal parts for all jobs."""

from collections.abc import Callable
from math import exp
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.classes.aggregation import aggregate_problem
from optimizer.classes.class_problem import (
    CappedTargets,
    Lexicographic,
    MaxMin,
    NashWelfare,
    WeightTierRule,
    constraint_violation,
    relative_gap,
)
from optimizer.classes.segments import sum_by
from optimizer.decision import Certificate, Memory, Quote, Shares, StageKind, Status
from optimizer.lp.pair_columns import colocation_keys
from optimizer.lp.solver import solve
from optimizer.lp.staged_solution import SolveInput, StagedSolution
from optimizer.policies.share_answers import (
    ValuedByWeight,
    empty_answer,
    fair_share_answer,
    staged_certificate,
    unpriced_shares,
)
from optimizer.policy import HeterogeneityAware, Newcomer, SpaceSharing
from optimizer.problem import FloatArray, Problem
from optimizer.utility.fair_share import Utility, equal_shares, fair_share_utility, max_min_level
from optimizer.validate import validate_problem


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class MaxMinFairness(ValuedByWeight):
    """Maximises the smallest utility per weight (max-min fairness).

        maximise  min_m u[m] / w[m]        u[m] = s[m] thr[m](x) / thr[m](equal split)

    The objective is the published one, with three additions: a saturated job (one that already has its best speed)
    does not hold back the others; `then` says how to use the capacity left at the first level; and projects divide
    their weight among their jobs (`optimizer.utility.fair_share`). With `aware: false`, all speeds count as equal.

    The certificate states the first level: the utility per unit of weight of the jobs that are not saturated.

    Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020,
    section 4.1.
    """

    checked_by: ClassVar[str] = "optimizer.check.certificate:MAX_MIN_FAIRNESS"

    aware: HeterogeneityAware = True
    then: Annotated[
        Literal["levels", "sum", "nothing"],
        Field(
            description="Use of the capacity left after the first max-min level. levels: raise the jobs that "
            "can still gain, level by level (water filling); sum: maximise the sum of utilities; "
            "nothing: solve the published program alone, in which saturated jobs hold back the "
            "others. With space sharing, levels equals sum."
        ),
    ] = "levels"
    packed: SpaceSharing = False

    @property
    def job_key_fields(self) -> tuple[str, ...]:
        return () if self.packed else ("weight", "gang", "entity")

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        validate_problem(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return empty_answer(problem), memory
        keys = [utility.weight, *(colocation_keys(problem) if self.packed else ())]
        classes = aggregate_problem(problem, utility.usable, [utility.worth], keys)
        request = SolveInput(problem, utility, classes, self.packed)
        weight, best = classes.per_class(utility.weight), classes.per_class(utility.best)
        worth, no_floor = classes.per_column(utility.worth), np.zeros(len(best))
        one_level = MaxMin(worth, CappedTargets(weight, best, no_floor))
        if self.then == "nothing" and weight.any():
            first_full = (best[weight > 0] / weight[weight > 0]).min()
            published = MaxMin(worth, CappedTargets(weight, weight * first_full, no_floor))
            solved, memory = solve(request, published, memory, leftover=False, central=not self.packed)
        elif self.then == "levels" and not self.packed:
            solved, memory = solve(request, Lexicographic(WeightTierRule(weight)), memory)
            if not solved.stages:  # no method found the first level of many
                solved, memory = solve(request, one_level, memory)
        else:
            solved, memory = solve(request, one_level, memory)
        return fair_share_answer(solved, staged_certificate(solved, *solved.first())), memory


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class WaterFilling(ValuedByWeight):
    """Max-min fairness by water filling: capacity that a job cannot use goes to the others, level by level.

    The shares are the lexicographic max-min of fair-share utilities per weight: they maximise the smallest u/w, then
    the next smallest, and so on. No job can gain without a loss to a job that has no more. The paper solves an integer
    program per level; this policy derives each level from prices, with at most one level per pool plus one
    (`optimizer.lp.interior_point`).

    Source: Narayanan et al., OSDI 2020, section 4.3.
    """

    checked_by: ClassVar[str] = "optimizer.check.certificate:WATER_FILLING"
    job_key_fields: ClassVar[tuple[str, ...]] = ("weight", "gang", "entity")

    aware: HeterogeneityAware = True

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        validate_problem(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return empty_answer(problem), memory
        classes = aggregate_problem(problem, utility.usable, [utility.worth], [utility.weight])
        request = SolveInput(problem, utility, classes)
        rule = WeightTierRule(classes.per_class(utility.weight))
        solved, memory = solve(request, Lexicographic(rule), memory)
        return fair_share_answer(solved, staged_certificate(solved, *solved.first())), memory


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Isolated:
    """Gives every job an equal share of every pool, whatever its weight, project or speeds.

    Each of M jobs has 1/M of every pool, however well it uses that part: the baseline for policies that share. The
    shares follow a formula, without optimisation and without prices. The certificate compares the level that they
    reach with the upper bound that max-min fairness proves.

    Source: Narayanan et al., OSDI 2020, section 4.2: the part of a fleet that finish-time fairness compares with.
    """

    checked_by: ClassVar[str] = "optimizer.check.certificate:ISOLATED"
    job_key_fields: ClassVar[tuple[str, ...]] = ("weight", "gang", "entity")

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Returns the shares by the formula. The status is `defined`, or that of the max-min bound where there is
        nothing to decide.

        Raises:
            ProblemError: the problem is malformed.
        """
        return unpriced_answer(problem, "formula", lambda utility: equal_shares(problem, utility.usable)), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns the relative speeds (c,): an arriving job takes the fastest free configuration."""
        return newcomer.relative_speeds


def unpriced_answer(problem: Problem, method: str, shares_of: Callable[[Utility], FloatArray]) -> Shares:
    """Returns shares (c,) from a rule without a program, certified by the bound that max-min fairness proves.

    Args:
        problem: the jobs and pools.
        method: the rule's name, as the certificate states it.
        shares_of: the rule; it is not called where no job can run.
    """
    best, _ = MaxMinFairness(then="sum").decide(problem, None)
    if best.certificate.status is Status.EMPTY:
        return best
    utility = fair_share_utility(problem, aware=True)
    x = shares_of(utility)
    gained = sum_by(problem.columns.job, utility.worth * x, len(problem.jobs))
    level, bound = max_min_level(gained, utility.weight, utility.best), best.certificate.bound
    gap, violation = relative_gap(level, bound), constraint_violation(problem, x)
    proof = Certificate(Status.DEFINED, level, bound, gap, violation, f"{method}; bound: max_min_fairness")
    return unpriced_shares(problem, x, proof, best.unplaceable)


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class ProportionalFairness(ValuedByWeight):
    """Maximises the weighted product of utilities (proportional fairness, Nash welfare).

        maximise  sum_m w[m] log u[m]        u[m] = s[m] thr[m](x) / thr[m](equal split)

    Any other division loses more in relative terms for some jobs than it gains for others. The result does not depend
    on the units of the utilities. Projects divide their weight among their jobs; a job of weight 0 gets capacity that
    no other job can use. With `aware: false`, all speeds count as equal.

    The certificate states the weighted geometric mean of the utilities, exp(sum w log u / sum w), so that its gap is
    relative to the utility of the mean job.

    Source: Kelly, "Charging and rate control for elastic traffic", 1997; as the Nash bargaining solution, Nash 1950.
    """

    checked_by: ClassVar[str] = "optimizer.check.certificate:PROPORTIONAL_FAIRNESS"
    job_key_fields: ClassVar[tuple[str, ...]] = ("weight", "gang", "entity")

    aware: HeterogeneityAware = True

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        validate_problem(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return empty_answer(problem), None
        classes = aggregate_problem(problem, utility.usable, [utility.worth], [utility.weight])
        objective = NashWelfare(classes.per_column(utility.worth), classes.per_class(utility.weight))
        solved, _ = solve(SolveInput(problem, utility, classes), objective)
        return fair_share_answer(solved, _mean_certificate(solved)), None


def _mean_certificate(solved: StagedSolution) -> Certificate:
    objective, bound = solved.first()
    if solved.stages[0].kind is not StageKind.LOG:  # no job has a positive weight: the sum of utilities counts
        return staged_certificate(solved, objective, bound)
    total = float(solved.request.utility.weight @ solved.request.problem.jobs.counts)
    return staged_certificate(solved, exp(objective / total), exp(bound / total))
