"""Hadar: places jobs one by one in every round, at prices that rise with the allocated part of each pool.

Symbols: L is the length of a round; eta4 is the lowest price as a fraction of the smallest job value.
`optimizer.assignment.hadar_round` decides a round. docs/hadar.md derives it, and states which guarantees of the theory
it does not keep.
"""

from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.assignment.hadar_offers import HadarJobs, hadar_jobs_of, hadar_value, run_time_s
from optimizer.assignment.hadar_round import HadarParameters, HadarRound, plan_hadar_round
from optimizer.classes.class_problem import relative_gap
from optimizer.decision import BoundReport, Memory, MultiPoolGangs, Plan, Quote
from optimizer.policy import Newcomer
from optimizer.problem import Columns, FloatArray, IntArray, Problem

UNIT = "utility per accelerator and round"
NAME = "utility per round of those placed, against weak duality at the quoted prices"


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Hadar:
    """Primal-dual scheduling in rounds; a job's utility is its time alone over its time in the system.

    Prices rise exponentially with the allocated part of a pool. The job with the largest surplus per accelerator and
    round is placed next, in its best gang at those prices; afterwards jobs move to faster pools with free
    accelerators. Source: our reading of Sultana et al., IPDPS 2024, made work-conserving. The policy uses job lengths,
    and estimates unknown ones from the work done. It does not bound waiting times (jobs can starve), so it is not a
    default.
    """

    round_s: Annotated[
        float,
        Field(gt=0, allow_inf_nan=False, description="Length of a round in seconds: the unit of time of the prices."),
    ] = 360.0
    mixed: Annotated[
        bool,
        Field(
            description="True: a gang may span several accelerator types, paced by its slowest rank, where "
            "jobs and scheduler allow it. False: one pool per gang."
        ),
    ] = True
    comm: Annotated[
        float, Field(ge=0, lt=1, description="Fraction of its speed that a mixed gang loses to communication.")
    ] = 0.0
    sync: Annotated[
        float,
        Field(
            ge=0, lt=1, description="Fraction of the summed speed of its parts that a forked job loses to averaging."
        ),
    ] = 0.05
    eta4: Annotated[
        float, Field(gt=0, le=1, description="Price of an empty pool, as a fraction of the smallest job value on it.")
    ] = 0.25
    strict: Annotated[
        bool,
        Field(
            description="True: run only jobs with positive surplus at the prices, as the published admission "
            "algorithm does, even if accelerators stay idle. False: run jobs while capacity "
            "lasts."
        ),
    ] = False

    @property
    def moves(self) -> bool:
        """Returns True: every round is decided from scratch."""
        return True

    def decide(self, problem: Problem, memory: Memory) -> tuple[Plan, Memory]:
        """Returns the plan of one round. The memory is empty: prices start again each round."""
        facts = hadar_jobs_of(problem, self.round_s, self.mixed)
        found = plan_hadar_round(facts, HadarParameters(self.eta4, self.comm, self.sync, self.strict))
        column, added = _columns_of(problem, facts, found)
        surplus = found.market.surplus(found.prices)
        plan = Plan(
            column=column,
            rows=found.order,
            quote=Quote(found.prices, UNIT, 1.0),
            surplus=surplus,
            yardstick=_yardstick(facts, found, surplus),
            added=added,
        )
        return plan, None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns the utility per round of the time that each configuration would take, its start included (c,)."""
        speed = newcomer.steps_per_s
        fastest = float(speed.max(initial=0.0))
        if fastest <= 0:
            return np.zeros(len(speed))
        left = newcomer.remaining_steps
        if not np.isfinite(left):
            guessed = newcomer.length_s * fastest - newcomer.done_steps
            left = max(guessed if np.isfinite(guessed) else newcomer.done_steps, fastest * self.round_s)
        best_s = np.full(len(speed), (left + newcomer.done_steps) / fastest)
        lengths_s = run_time_s(np.full(len(speed), left), speed) + newcomer.restart_s
        found = hadar_value(best_s, np.full(len(speed), newcomer.waited_s), lengths_s, self.round_s)
        return found.utility / found.rounds


def _columns_of(problem: Problem, facts: HadarJobs, found: HadarRound) -> tuple[IntArray, Columns | None]:
    """Returns the column of each job, -1 for a waiting job, and the columns of mixed gangs and forks that were made,
    None without any.
    """
    placed = (found.use > 0).any(axis=1)
    column = np.full(len(facts), -1, dtype=np.int64)
    gangs = (found.use > 0) & (found.use == facts.use)
    alone = (gangs.sum(axis=1) == 1) & ((found.use > 0).sum(axis=1) == 1)
    column[alone] = facts.column[alone, np.nonzero(found.use[alone])[1]]
    stays = placed & (found.use == facts.held).all(axis=1) & (facts.running >= 0)
    column[stays] = facts.running[stays]
    mixed = np.flatnonzero(placed & ~alone & ~stays)
    if not len(mixed):
        return column, None
    column[mixed] = len(problem.columns) + np.arange(len(mixed))
    return column, MultiPoolGangs(mixed, found.rate[mixed], found.use[mixed]).columns


def _yardstick(facts: HadarJobs, found: HadarRound, surplus: FloatArray) -> BoundReport:
    """Returns a bound report: the utility per round of placed jobs, against a bound on any packing of the round
    (surpluses plus the value of pools).
    """
    lengths_s = run_time_s(facts.left_steps, found.rate)
    lengths_s = lengths_s + np.where((found.use == facts.held).all(axis=1), 0.0, facts.restart_s)
    reached = hadar_value(facts.best_s, facts.age_s, lengths_s, facts.round_s)
    objective = float((reached.utility / reached.rounds).sum())
    bound = float(surplus.sum() + found.prices @ facts.capacity)
    return BoundReport(NAME, UNIT, objective, bound, relative_gap(objective, bound), maximise=True)
