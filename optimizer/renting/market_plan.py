"""Plans for a partly rented fleet: entitlement decides about owned machines, money about rented ones.

A *payer* is a job whose hour has a value in USD; a job without one is a *rider*. A plan policy is called up to six
times for the same jobs:

    1. all jobs on owned places, payers on all machines that may be rented: this gives riders, and payers below every
       price, the owned places of their rank. A payer's value of a rented place is reduced by the part that its price
       takes (`column_values`), so it rents where a rider of higher rank has the owned place, and nothing is rented for
       a rider.
    2. (renting, `machine_rental`: the other payers alone, on the owned places that 1 leaves them)
    3. the same question with the machines that 2 decided on. These prices are the plan's: on paid pools only payers
       determine them. Payers that it leaves out, as others have the places that 2 counted on, may rent more, and it is
       asked again. While some machines are on their way, jobs that are to have them stay where they are, or wait.
    4. what is still free on machines that are here: payers below the price, then riders.

1 and 3 ask the same, so a plan that was carried out is the next plan. A job placed in step 4 yields to those of step 3,
and is no reason to keep a machine (`Plan.riders`); jobs that cannot be stopped get no place in step 4, and nobody gets
one on a machine that is about to be given back.
"""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.assignment.limit_rows import limits_beside, limits_of_rest, without_forbidden
from optimizer.assignment.plan_draft import accelerators_held
from optimizer.classes.class_problem import relative_gap
from optimizer.classes.segments import max_by, sum_by
from optimizer.decision import BoundReport, Memory, Plan, Status, with_added
from optimizer.policy import PlanPolicy
from optimizer.problem import BoolArray, Columns, FloatArray, IntArray, Problem
from optimizer.renting.machine_rental import (
    Rental,
    accelerators_per_machine,
    at_accelerators,
    hourly_values,
    rent_machines,
)

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
    market = _Market.of(problem, value, leaves)
    of_payers = market.without_riders(policy, memory)
    rental = rent_machines(of_payers, 0.0)
    is_decided = rental is not None and rental.status is Status.OPTIMAL
    rented = problem.pools.held
    if rental is not None and is_decided:
        rented = np.maximum(rental.accelerators, np.where(market.paid, market.staying, 0.0))
    question = market.question(rented)
    plan, told = policy.decide(question, memory)
    more = market.more_for_waiting(plan, rented) if is_decided else None
    if rental is not None and more is not None and more.status is Status.OPTIMAL and more.machines.any():
        rented = rented + more.accelerators
        rental = at_accelerators(of_payers, rental, rented)
        question = market.question(rented)
        plan, told = policy.decide(question, memory)
    if np.any(question.pools.capacity > problem.pools.capacity + _SAME_USD):  # some are on their way
        # Who waits for its own machine is not kept waiting by others: the memory is that of the plan with it.
        plan = market.meanwhile(policy, memory, question, plan)
    plan = _over_all(problem, market.kept, plan)
    leaving = _given_back_soon(problem, rented)
    for group in ((value > 0) & leaves, (value <= 0) & leaves):
        plan = _let_ride(policy, problem, told, plan, group, leaving)
    return plan, told, _less_what_ends(problem, of_payers, rental)


def _less_what_ends(problem: Problem, of_payers: Problem, rental: Rental | None) -> Rental | None:
    """Returns the rental without machines to be fetched in whose place a job ends before they could be there."""
    pools, columns = problem.pools, problem.columns
    if rental is None or rental.status is not Status.OPTIMAL or not len(pools.boot_s):
        return rental
    use = np.flatnonzero(columns.running[columns.use_column])
    column, pool = columns.use_column[use], columns.use_pool[use]
    jobs, job, rate, boot_s = problem.jobs, columns.job[column], columns.steps_per_s[column], pools.boot_s[pool]
    # A job that saves its end has nothing left; one that has had longer than that may go on for any time.
    done, restart_s = (each if len(each) else np.zeros(len(jobs)) for each in (jobs.done_steps, jobs.restart_s))
    had_s = jobs.attained_s[job] / np.maximum(jobs.gang[job], 1.0) - restart_s[job] - boot_s
    ends = (jobs.remaining_steps[job] <= rate * boot_s) & (rate * had_s <= done[job]) & (pools.held[pool] > 0)
    ending = sum_by(pool[ends], columns.use_count[use][ends], len(pools))
    size = accelerators_per_machine(problem)
    fetched = np.maximum(rental.accelerators - np.maximum(pools.paid, pools.held), 0.0)
    fewer = np.minimum(np.floor(ending / size + _SAME_USD) * size, fetched)
    return at_accelerators(of_payers, rental, rental.accelerators - fewer) if fewer.any() else rental


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
    #: Whether each job can pay for none of these machines (n,).
    rides: BoolArray
    #: Whether machines of each pool are, or could be, rented (p,).
    paid: BoolArray
    #: The columns of the problem in which jobs may be as they are entitled or pay (c,).
    kept: BoolArray
    #: Those, and the ones in which jobs could ride (c,).
    had: BoolArray

    @classmethod
    def of(cls, problem: Problem, value: FloatArray, leaves: BoolArray) -> "_Market":
        pools, columns = problem.pools, problem.columns
        paid = (pools.held > 0) | (pools.rentable > 0)
        usd_per_h = np.where(paid, pools.usd_per_h, 0.0)[columns.use_pool] * columns.use_count
        cost = sum_by(columns.use_column, usd_per_h, len(columns))
        best = max_by(columns.job, columns.steps_per_s, len(problem.jobs))[columns.job]
        worth = np.divide(value[columns.job] * columns.steps_per_s, best, out=np.zeros(len(columns)), where=best > 0)
        pays = (value[columns.job] > 0) & (worth >= cost * (1 - _SAME_USD))
        uses = _uses(problem, paid)
        rides = sum_by(columns.job, (pays & uses).astype(np.float64), len(problem.jobs)) <= 0
        kept = ~uses | pays | _stays(problem)
        return cls(problem, rides, paid, kept, kept | leaves[columns.job])

    @property
    def staying(self) -> FloatArray:
        """Returns the accelerators of each pool on which jobs run that cannot be moved (p,)."""
        return accelerators_held(self.problem, np.flatnonzero(_stays(self.problem)))

    def question(self, rented: FloatArray) -> Problem:
        """Returns the problem with so many accelerators rented (p,), paid machines for payers alone."""
        problem, pools = self.problem, self.problem.pools
        capacity = np.maximum(pools.capacity - pools.held + rented, self.staying)
        asked = limits_of_rest(problem, np.full(len(problem.jobs), -1), capacity)
        asked = replace(asked, pools=replace(asked.pools, rented=np.where(self.paid, capacity, 0.0)))
        return _with_columns(asked, self.kept)

    def counted_on(self, asked: Problem) -> Problem:
        """Returns the problem with those columns alone on which money may count, each worth what it was."""
        if self.had.all():
            return asked
        left, jobs = _with_columns(asked, self.had), asked.jobs
        fastest, fastest_left = (
            max_by(each.columns.job, each.columns.steps_per_s, len(jobs)) for each in (asked, left)
        )
        part = np.divide(fastest_left, fastest, out=np.ones(len(jobs)), where=fastest > 0)
        return replace(left, jobs=replace(jobs, value_usd_per_h=jobs.value_usd_per_h * part))

    def without_riders(self, policy: PlanPolicy, memory: Memory) -> Problem:
        """Returns the problem as payers see it: without the owned places that riders have while payers may rent
        whatever they can have and is worth its price.
        """
        problem, pools = self.problem, self.problem.pools
        owned = np.where(self.paid, 0.0, pools.capacity)
        if not (self.rides.any() and owned.any()):
            return self.counted_on(problem)
        asked = self.question(np.maximum(pools.rentable, pools.held))
        plan, _ = policy.decide(asked, memory)
        told, column = _whole(problem, _over_all(problem, self.kept, plan))
        theirs = column[(column >= 0) & self.rides]
        taken = np.where(self.paid, 0.0, accelerators_held(told, theirs))
        left = replace(pools, capacity=np.maximum(pools.capacity - taken, 0.0))
        on_owned = (column >= 0) & self.rides
        on_owned[on_owned] = ~_uses(told, self.paid)[column[on_owned]]
        jobs = replace(problem.jobs, value_usd_per_h=np.where(on_owned, np.nan, problem.jobs.value_usd_per_h))
        return self.counted_on(replace(problem, jobs=jobs, pools=left, limits=limits_beside(told, theirs)))

    def more_for_waiting(self, plan: Plan, rented: FloatArray) -> Rental | None:
        """Returns what pays for itself beside so many rented accelerators (p,), by those alone who wait in the plan: by
        rank others may have the places that money had counted on for them. None where nobody waits for that.
        """
        problem, pools, columns = self.problem, self.problem.pools, self.problem.columns
        pays = (plan.column < 0)[columns.job] & self.kept & _uses(problem, self.paid)
        if not np.any(pays & ~_short_of(problem, pools.rentable - rented)):
            return None
        told, column = _whole(problem, _over_all(problem, self.kept, plan))
        placed = column[column >= 0]
        left = np.maximum(pools.capacity - pools.held + rented - accelerators_held(told, placed), 0.0)
        held = np.maximum(pools.held - rented, 0.0)
        coming = np.maximum(pools.paid - np.maximum(pools.held, rented), 0.0)
        prepaid = np.maximum(pools.prepaid - rented, 0.0) if len(pools.prepaid) else pools.prepaid
        pools = replace(
            pools, capacity=left + held, rented=held, coming=coming, prepaid=prepaid,
            rentable=np.maximum(pools.rentable - rented, 0.0),
        )  # fmt: skip
        value = np.where(plan.column < 0, problem.jobs.value_usd_per_h, np.nan)
        jobs = replace(problem.jobs, value_usd_per_h=value)
        asked = replace(problem, jobs=jobs, pools=pools, limits=limits_beside(told, placed))
        return rent_machines(self.counted_on(asked), 0.0)

    def meanwhile(self, policy: PlanPolicy, memory: Memory, question: Problem, plan: Plan) -> Plan:
        """Returns the plan for the present machines: nobody leaves a place that the plan keeps for it to a job whose
        machine is on its way, and such a job waits where it is, as long as nobody of a higher class waits for that.
        """
        here, pools, columns = self.problem.pools.capacity, question.pools, question.columns
        _, column = _whole(question, plan)
        n, c = len(question.jobs), len(columns)
        coming, planned = pools.capacity > here + _SAME_USD, np.isin(np.arange(c), column)
        running = np.flatnonzero(columns.running)
        free = here - accelerators_held(question, running)
        stays, awaits, late, runs = (np.zeros(n, dtype=np.bool_) for _ in range(4))
        runs[columns.job[running]] = True
        stays[columns.job[columns.running & planned]] = True
        awaits[columns.job[planned & _uses(question, coming)]] = True
        late[columns.job[planned & _uses(question, coming) & _short_of(question, free)]] = True
        classes = question.jobs.priority_class
        late &= classes >= classes.max(where=~runs, initial=np.iinfo(np.int64).min)
        kept = ~awaits[columns.job] | planned | columns.running
        jobs, capacity = (
            replace(question.jobs, pinned=question.jobs.stays | stays | late),
            np.minimum(pools.capacity, here),
        )
        pools = replace(pools, capacity=capacity, rented=np.minimum(pools.rented, capacity))
        found, _ = policy.decide(_with_columns(replace(question, jobs=jobs, pools=pools), kept), memory)
        return _over_all(question, kept, found)


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
    columns = problem.columns
    stays: BoolArray = columns.running & problem.jobs.stays[columns.job]
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
