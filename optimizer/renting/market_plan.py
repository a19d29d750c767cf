"""Plans for a partly rented fleet: entitlement decides about owned machines, money about rented ones.

A *payer* is a job whose hour has a value in USD; a job without one is a *rider*. A plan policy is called up to five
times for the same jobs:

    1. all jobs on owned places, payers on all machines that may be rented: this gives riders the owned places of their
       rank. A payer's value of a rented place is reduced by the part that its price takes (`column_values`), so it
       rents where a rider of higher rank has the owned place, and nothing is rented for a rider.
    2. (renting, `machine_rental`: payers alone, on the owned places that 1 leaves them)
    3. the same question with the machines that 2 decided on. These prices are the plan's: on paid pools only payers
       determine them. While some machines are on their way, nobody leaves for a job that waits for its own one.
    4. what is still free on machines that are here: payers below the price, then riders.

1 and 3 ask the same, so a plan that was carried out is the next plan. A job placed in step 4 yields to those of step 3,
and is no reason to keep a machine (`Plan.riders`); jobs that cannot be stopped get no place in step 4, and nobody gets
one on a machine that is about to be given back.
"""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.assignment.limit_rows import limits_of_rest
from optimizer.assignment.plan_draft import accelerators_held
from optimizer.classes.class_problem import relative_gap
from optimizer.classes.segments import max_by, sum_by
from optimizer.decision import BoundReport, Memory, Plan, Status, with_added
from optimizer.policy import PlanPolicy
from optimizer.problem import BoolArray, Columns, FloatArray, IntArray, Problem
from optimizer.renting.machine_rental import Rental, hourly_values, rent_machines
from optimizer.renting.rental_limits import limits_beside, without_forbidden

#: Amounts of money that agree to this part count as equal.
_SAME_USD = 1e-9


def plan_in_market(
    policy: PlanPolicy, problem: Problem, memory: Memory, delay_usd_per_h: float
) -> tuple[Plan, Memory, Rental | None]:
    """Returns the plan for the present machines, the policy's memory, and the machines to hold rented from now on
    (None where nothing can be rented).

    Args:
        policy: values the configurations.
        problem: a valid one.
        memory: the policy's memory from its last call.
        delay_usd_per_h: the value in USD of an hour of a job that states none.
    """
    if not problem.pools.rentable.any():
        return *policy.decide(problem, memory), None
    problem = without_forbidden(problem)
    value = hourly_values(problem, delay_usd_per_h)
    leaves = ~problem.jobs.unstoppable if len(problem.jobs.unstoppable) else np.ones(len(value), dtype=np.bool_)
    if not np.any(value > 0):
        return *_without_payers(policy, problem, memory, leaves), rent_machines(problem, delay_usd_per_h)
    problem = _guaranteed_of_owned(problem)
    problem = replace(problem, jobs=replace(problem.jobs, value_usd_per_h=np.where(value > 0, value, np.nan)))
    market = _Market.of(problem, value)
    rental = rent_machines(market.without_riders(policy, memory), 0.0)
    rented = problem.pools.held
    if rental is not None and rental.status is Status.OPTIMAL:
        rented = rental.accelerators
    question = market.question(rented)
    plan, told = policy.decide(question, memory)
    if np.any(question.pools.capacity > problem.pools.capacity + _SAME_USD):  # some are on their way
        # Who waits for its own machine is not kept waiting by others: the memory is that of the plan with it.
        plan, _ = policy.decide(market.meanwhile(question, plan), memory)
    plan = _over_all(problem, market.kept, plan)
    leaving = _given_back_soon(problem, rented)
    for group in ((value > 0) & leaves, (value <= 0) & leaves):
        plan = _let_ride(policy, problem, told, plan, group, leaving)
    return plan, told, rental


def _without_payers(policy: PlanPolicy, problem: Problem, memory: Memory, leaves: BoolArray) -> tuple[Plan, Memory]:
    """Returns the plan without payers: all jobs that can be stopped share the present machines, and no machine is kept
    for them.
    """
    paid = problem.pools.held > 0
    kept = ~_uses(problem, paid) | _stays(problem) | leaves[problem.columns.job]
    plan, memory = policy.decide(problem if kept.all() else _with_columns(problem, kept), memory)
    plan = plan if kept.all() else _over_all(problem, kept, plan)
    told, column = _whole(problem, plan)
    placed = np.flatnonzero(column >= 0)
    return replace(plan, riders=placed[_uses(told, paid)[column[placed]]]), memory


# ------------------------------------------------------------------------------------------------ who may have what


@dataclass(frozen=True, slots=True, eq=False)
class _Market:
    """The problem in which paid machines are only for payers."""

    problem: Problem
    #: Whether each job is a rider (n,).
    rides: BoolArray
    #: Whether machines of each pool are, or could be, rented (p,).
    paid: BoolArray
    #: The columns of the problem in which jobs may be as they are entitled or pay (c,).
    kept: BoolArray

    @classmethod
    def of(cls, problem: Problem, value: FloatArray) -> "_Market":
        pools, columns = problem.pools, problem.columns
        paid = (pools.held > 0) | (pools.rentable > 0)
        usd_per_h = np.where(paid, pools.usd_per_h, 0.0)[columns.use_pool] * columns.use_count
        cost = sum_by(columns.use_column, usd_per_h, len(columns))
        best = max_by(columns.job, columns.steps_per_s, len(problem.jobs))[columns.job]
        worth = np.divide(value[columns.job] * columns.steps_per_s, best, out=np.zeros(len(columns)), where=best > 0)
        pays = (value[columns.job] > 0) & (worth >= cost * (1 - _SAME_USD))
        return cls(problem, value <= 0, paid, ~_uses(problem, paid) | pays | _stays(problem))

    def question(self, rented: FloatArray) -> Problem:
        """Returns the problem with so many accelerators rented (p,), paid machines for payers alone."""
        problem, pools = self.problem, self.problem.pools
        staying = accelerators_held(problem, np.flatnonzero(_stays(problem)))
        capacity = np.maximum(pools.capacity - pools.held + rented, staying)
        asked = limits_of_rest(problem, np.full(len(problem.jobs), -1), capacity)
        asked = replace(asked, pools=replace(asked.pools, rented=np.where(self.paid, capacity, 0.0)))
        return _with_columns(asked, self.kept)

    def without_riders(self, policy: PlanPolicy, memory: Memory) -> Problem:
        """Returns the problem as payers see it: without the owned places that riders have while payers may rent
        whatever they can have and is worth its price.
        """
        problem, pools = self.problem, self.problem.pools
        owned = np.where(self.paid, 0.0, pools.capacity)
        if not (self.rides.any() and owned.any()):
            return problem
        asked = self.question(np.maximum(pools.rentable, pools.held))
        plan, _ = policy.decide(asked, memory)
        told, column = _whole(problem, _over_all(problem, self.kept, plan))
        theirs = column[(column >= 0) & self.rides]
        taken = np.where(self.paid, 0.0, accelerators_held(told, theirs))
        left = replace(pools, capacity=np.maximum(pools.capacity - taken, 0.0))
        return replace(problem, pools=left, limits=limits_beside(told, theirs))

    def meanwhile(self, question: Problem, plan: Plan) -> Problem:
        """Returns the question about the present machines: nobody leaves a place that the plan keeps for it to a job
        whose machine is on its way.
        """
        pools, columns = question.pools, question.columns
        capacity = np.minimum(pools.capacity, self.problem.pools.capacity)
        _, column = _whole(question, plan)
        stays = np.zeros(len(question.jobs), dtype=np.bool_)
        stays[columns.job[columns.running & np.isin(np.arange(len(columns)), column)]] = True
        pinned = question.jobs.pinned if len(question.jobs.pinned) else np.zeros(len(stays), dtype=np.bool_)
        jobs = replace(question.jobs, pinned=pinned | stays)
        return replace(
            question, jobs=jobs, pools=replace(pools, capacity=capacity, rented=np.minimum(pools.rented, capacity))
        )


def _guaranteed_of_owned(problem: Problem) -> Problem:
    """Returns the problem with guarantees reduced to parts of the owned machines: on paid ones money decides."""
    pools, entities = problem.pools, problem.entities
    if not (entities.guaranteed.any() and pools.held.any()):
        return problem
    owned = float((pools.capacity - pools.held).sum()) / max(float(pools.capacity.sum()), 1.0)
    return replace(problem, entities=replace(entities, guaranteed=entities.guaranteed * owned))


def _given_back_soon(problem: Problem, rented: FloatArray) -> FloatArray:
    """Returns the accelerators of each pool, beyond those that are kept or paid for, on which nobody runs (p,)."""
    pools = problem.pools
    prepaid = pools.prepaid if len(pools.prepaid) else np.zeros(len(pools))
    idle = pools.capacity - accelerators_held(problem, np.flatnonzero(problem.columns.running))
    return np.clip(pools.held - np.maximum(rented, prepaid), 0.0, np.maximum(idle, 0.0))


def _let_ride(
    policy: PlanPolicy, problem: Problem, memory: Memory, plan: Plan, group: BoolArray, leaving: FloatArray
) -> Plan:
    """Returns the plan with those of these jobs that wait placed on what it leaves free. They do not affect prices.

    Nobody is put on a machine that is about to be given back (`leaving`, accelerators of each pool (p,)).
    """
    told, column = _whole(problem, plan)
    free = problem.pools.capacity - accelerators_held(told, column[column >= 0]) - leaving
    waits = group & (plan.column < 0)
    kept = waits[problem.columns.job] & ~_short_of(problem, free)
    if not kept.any():
        return plan
    free = np.maximum(free, 0.0)
    rest = limits_of_rest(told, column, free)
    # Gangs over several pools are made only for jobs entitled to them.
    nothing_stated = np.full(len(problem.jobs), np.nan)  # the price is nothing that they pay
    whole = replace(
        problem.jobs, mixes=np.zeros(0, dtype=np.bool_), fork_max=np.zeros(0), value_usd_per_h=nothing_stated
    )
    left = replace(problem, jobs=whole, pools=rest.pools, entities=rest.entities, limits=rest.limits)
    more, _ = policy.decide(_with_columns(left, kept), memory)
    if more.added is not None:
        return plan  # The policy makes them unasked.
    column = np.where(more.column >= 0, np.flatnonzero(kept)[more.column], -1)
    rides = np.flatnonzero((more.column >= 0) & waits)
    merged = plan.column.copy()
    merged[rides] = column[rides]
    behind = np.isin(plan.rows, rides)
    return replace(
        plan,
        column=merged,
        rows=np.concatenate((plan.rows[~behind], more.rows[np.isin(more.rows, rides)])),
        riders=np.sort(np.concatenate((plan.riders, rides))),
        yardstick=_added_up(plan.yardstick, more.yardstick),
    )


def _added_up(first: BoundReport | None, second: BoundReport | None) -> BoundReport | None:
    """Returns the sum of both reports: what both plans reach, against the sum of their bounds."""
    if first is None or second is None or first.name != second.name:
        return first
    objective, bound = first.objective + second.objective, first.bound + second.bound
    return replace(first, objective=objective, bound=bound, gap=relative_gap(objective, bound))


# ------------------------------------------------------------------------------------------------ columns


def _uses(problem: Problem, pools: BoolArray) -> BoolArray:
    """Returns whether each column uses any of these pools (c,)."""
    columns = problem.columns
    return sum_by(columns.use_column, pools[columns.use_pool].astype(np.float64), len(columns)) > 0


def _stays(problem: Problem) -> BoolArray:
    """Returns whether each column is one in which a job runs that cannot be moved (c,)."""
    pinned, columns = problem.jobs.pinned, problem.columns
    stays: BoolArray = columns.running & pinned[columns.job] if len(pinned) else np.zeros(len(columns), dtype=np.bool_)
    return stays


def _short_of(problem: Problem, free: FloatArray) -> BoolArray:
    """Returns whether each column needs more than is free (c,)."""
    columns = problem.columns
    short = columns.use_count > free[columns.use_pool] + _SAME_USD
    return sum_by(columns.use_column, short.astype(np.float64), len(columns)) > 0


def _with_columns(problem: Problem, kept: BoolArray) -> Problem:
    columns = problem.columns
    place = np.cumsum(kept) - 1
    uses = kept[columns.use_column]
    return replace(
        problem,
        columns=Columns(
            job=columns.job[kept],
            steps_per_s=columns.steps_per_s[kept],
            use_column=place[columns.use_column[uses]],
            use_pool=columns.use_pool[uses],
            use_count=columns.use_count[uses],
            running=columns.running[kept],
        ),
    )


def _whole(problem: Problem, plan: Plan) -> tuple[Problem, IntArray]:
    """Returns the problem with the configurations that the plan added, and the column of each job in it (n,), -1:
    none.
    """
    told, whole = with_added(problem, plan)
    assert isinstance(whole, Plan)
    return told, whole.column


def _over_all(problem: Problem, kept: BoolArray, plan: Plan) -> Plan:
    """Returns a plan over some columns as one over all columns of the problem; added ones come last."""
    back = np.flatnonzero(kept)
    known, c = plan.column < len(back), len(problem.columns)
    place: IntArray = np.concatenate((back, [-1]))[np.where(known, plan.column, 0)]
    column = np.where(plan.column < 0, -1, np.where(known, place, plan.column - len(back) + c))
    return replace(plan, column=column)
