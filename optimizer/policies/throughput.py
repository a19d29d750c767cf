"""Policies that maximise a sum: total throughput, throughput per dollar, and cost with deadlines (SLOs)."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.classes.segments import max_by
from optimizer.decision import Memory, Quote, Shares
from optimizer.policies.share_answers import SumObjective, empty_answer, maximise_sum
from optimizer.policy import HeterogeneityAware, Newcomer, Normalised, SpaceSharing, UnpricedAccelerator
from optimizer.problem import BoolArray, FloatArray, Problem
from optimizer.utility.fair_share import Utility, column_costs, fair_share_utility, newcomer_rate, newcomer_worth
from optimizer.validate import validate_problem


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Throughput:
    """Maximises the weighted sum of throughputs.

        maximise  sum_m w[m] u[m]        u[m] = s[m] thr[m](x) / thr[m](equal split)

    The utility is that of max-min fairness, so the unit in which a job counts its steps does not matter. With
    `normalised: false` the objective is the sum of plain steps per second, as the paper states and solves it: jobs
    with short steps then get all accelerators. The policy ignores projects, guarantees no job a share, and gives a job
    of weight 0 nothing. With `aware: false` all accelerators count as equal: it maximises the accelerators in use.

    Source: Narayanan et al., OSDI 2020, section 4.2.
    """

    checked_by: ClassVar[str] = "optimizer.check.certificate:THROUGHPUT"

    aware: HeterogeneityAware = True
    normalised: Normalised = True
    packed: SpaceSharing = False

    @property
    def unit(self) -> str:
        return "weighted fair-share units per accelerator" if self.normalised else "weighted steps/s per accelerator"

    @property
    def job_key_fields(self) -> tuple[str, ...]:
        return () if self.packed else ("weight", "gang")

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        validate_problem(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return empty_answer(problem, self.unit), None
        value = problem.jobs.weight[problem.columns.job] * (utility.worth if self.normalised else utility.rate)
        return maximise_sum(
            problem, utility, SumObjective(value, np.zeros(len(problem.jobs)), self.unit, packed=self.packed)
        ), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns what each configuration of a newcomer adds to the sum (c,)."""
        of = newcomer_worth if self.normalised else newcomer_rate
        return newcomer.weight * of(newcomer, aware=self.aware)


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class ThroughputPerDollar:
    """Maximises the weighted sum of throughputs per dollar.

        maximise  sum_m w[m] sum_c (u[c] / usd_per_h[c]) x[c]        u[c] = s[m] T[c] / thr[m](equal split)

    usd_per_h[c]: the market price of the accelerators of configuration c, USD per hour. With `normalised: false`, u is
    plain steps per second, as the paper states it. An accelerator without a price (an owned one) counts at
    `free_usd_per_h`, by default the lowest price in the fleet (1 USD/h if no pool has a price): it is as good as the
    cheapest one on the market, not infinitely good. The policy ignores projects, guarantees no job a share, and gives
    a job of weight 0 nothing. With `aware: false`, a job has its average speed on every accelerator.

    Source: Narayanan et al., OSDI 2020, section 4.2.
    """

    checked_by: ClassVar[str] = "optimizer.check.certificate:THROUGHPUT_PER_DOLLAR"
    job_key_fields: ClassVar[tuple[str, ...]] = ("weight", "gang")

    aware: HeterogeneityAware = True
    normalised: Normalised = True
    free_usd_per_h: UnpricedAccelerator = None

    @property
    def unit(self) -> str:
        return f"{'fair-share units' if self.normalised else 'steps/s'} per USD/h, per accelerator"

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        validate_problem(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return empty_answer(problem, self.unit), None
        value = self.worth_per_usd(problem, utility)
        return maximise_sum(problem, utility, SumObjective(value, np.zeros(len(problem.jobs)), self.unit)), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns what each configuration of a newcomer adds to the sum (c,)."""
        of = newcomer_worth if self.normalised else newcomer_rate
        usd_per_h = prices_or_default(newcomer.usd_per_h, self.free_usd_per_h)[newcomer.pool]
        return newcomer.weight * of(newcomer, aware=self.aware) / (newcomer.count * usd_per_h)

    def worth_per_usd(self, problem: Problem, utility: Utility) -> FloatArray:
        """Returns the weighted progress of each column per USD of its price (c,)."""
        usd_per_h = column_costs(problem.columns, prices_or_default(problem.pools.usd_per_h, self.free_usd_per_h))
        progress = utility.worth if self.normalised else utility.rate
        return problem.jobs.weight[problem.columns.job] * progress / usd_per_h


def prices_or_default(usd_per_h: FloatArray, free_usd_per_h: float | None) -> FloatArray:
    """Returns the prices (p,), those of 0 replaced by `free_usd_per_h`, else by the lowest positive
    price, else by 1.
    """
    priced = usd_per_h > 0
    lowest = float(usd_per_h[priced].min()) if priced.any() else 1.0
    return np.where(priced, usd_per_h, lowest if free_usd_per_h is None else free_usd_per_h)


#: A deadline counts as reachable if it needs less than this part more than all the time.
_ROUNDING = 1e-9


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class CostWithSlos:
    """Maximises throughput per dollar while deadlines are met.

        maximise  sum_m w[m] sum_c (u[c] / usd_per_h[c]) x[c]    goal "throughput_per_dollar", the policy of that name
        minimise  sum_c usd_per_h[c] x[c]                        goal "cost": jobs run only as their deadlines need
        s.t.      thr[m](x) >= R[m] / (deadline[m] - now)        jobs with a deadline

    The paper drops all deadlines if they cannot all be met. This policy relaxes single deadlines and lists their jobs
    (`Shares.relaxed`): deadlines that have passed, deadlines that the job could not meet with its best configuration
    all the time, and those of jobs of unknown length. If the other deadlines are infeasible together, the policy keeps
    the largest total fraction of the rates that they need, and lists the jobs that get less than they need.

    With `aware: false`, a job has its average speed on every accelerator. Weights count as in throughput per dollar;
    the policy ignores projects.

    Source: Narayanan et al., OSDI 2020, section 4.2.
    """

    checked_by: ClassVar[str] = "optimizer.check.certificate:COST_WITH_SLOS"
    job_key_fields: ClassVar[tuple[str, ...]] = ("weight", "gang", "remaining_steps", "deadline_at")

    aware: HeterogeneityAware = True
    goal: Annotated[
        Literal["throughput_per_dollar", "cost"],
        Field(
            description="Objective besides the deadlines. throughput_per_dollar: maximise throughput per "
            "dollar; cost: minimise cost, so only jobs with a deadline run."
        ),
    ] = "throughput_per_dollar"
    normalised: Normalised = True
    free_usd_per_h: UnpricedAccelerator = None

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        validate_problem(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return empty_answer(problem, self._per_dollar.unit, maximise=self.goal != "cost"), None
        needed, hopeless = deadline_rates(problem, utility)
        shares = maximise_sum(problem, utility, self.sum_objective(problem, utility, needed))
        return replace(shares, relaxed=np.union1d(shares.relaxed, np.flatnonzero(hopeless))), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns what each configuration of a newcomer adds to the sum, its deadline aside; 0 where cost is sought
        (c,).
        """
        if self.goal == "cost":
            return np.zeros(len(newcomer.count))
        return self._per_dollar.value(newcomer, quote)

    @property
    def _per_dollar(self) -> ThroughputPerDollar:
        return ThroughputPerDollar(self.aware, self.normalised, self.free_usd_per_h)

    def sum_objective(self, problem: Problem, utility: Utility, needed: FloatArray) -> SumObjective:
        """Returns what is maximised: `needed` steps per second hold for each job (n,)."""
        equal = np.where(utility.equal > 0, utility.equal, 1.0)
        floor = problem.jobs.gang * needed / equal  # as a fair-share utility
        if self.goal == "cost":
            cost = column_costs(problem.columns, problem.pools.usd_per_h)
            return SumObjective(np.where(utility.usable, -cost, 0.0), floor, "USD/h per accelerator", maximise=False)
        return SumObjective(self._per_dollar.worth_per_usd(problem, utility), floor, self._per_dollar.unit)


def deadline_rates(problem: Problem, utility: Utility) -> tuple[FloatArray, BoolArray]:
    """Returns the steps per second that each job needs to end in time (n,), 0 where none are needed, and whether each
    deadline is out of reach (n,).
    """
    jobs, fastest = problem.jobs, max_by(problem.columns.job, utility.rate, len(problem.jobs))
    bound = np.isfinite(jobs.deadline_at) & (jobs.remaining_steps > 0) & (utility.best > 0)
    left_s = jobs.deadline_at - problem.at
    possible = bound & np.isfinite(jobs.remaining_steps) & (left_s > 0)
    needed = np.divide(jobs.remaining_steps, left_s, out=np.zeros(len(jobs)), where=possible)
    possible &= needed <= fastest * (1 + _ROUNDING)
    return np.where(possible, np.minimum(needed, fastest), 0.0), bound & ~possible
