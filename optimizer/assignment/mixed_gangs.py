"""Gangs over several pools: made at the prices of an answer (column generation), and covered by its bound.

A gang of W accelerators over several pools runs at the pace of its slowest part, W x min over its pools of the speed of
one. There are more of them than anybody can list, but at given prices only one for every pace can be a job's best: the
cheapest W accelerators that are at least that fast. They are made for jobs that take them (`Jobs.mixes`).

A policy of shares answers with the configurations it knows; gangs that at its prices undercut every mixture of known
ones join, and it answers again. Where none is left, no gang over any pools could better the answer: what its prices
prove holds for all of them. Only speed and prices count: for policies that count money besides, the configurations
found are good ones, not provably enough.

A plan gives each job one configuration. It is made, the gangs whose worth exceeds their price by more than anything
their jobs have join the configurations, and it is made again: a few times, or until none would. Prices do not find
gangs of odd accelerators, which are left free because no gang of one pool fits them: jobs that still wait take gangs of
those, the most valuable first. At any prices what each job could gain at most by an unlisted gang is the best of those
few (`UnlistedGangs.gain`); it is added to the bound, which so holds for all gangs. Machines that are rented are left
out: who has them, and at what price, is decided for pools (`renting.market_plan`).

Shapes: n jobs, c columns, p pools, m gangs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from optimizer.assignment.limit_rows import limited_entities
from optimizer.assignment.plan_draft import PlanDraft, charged_costs
from optimizer.classes.aggregation import aggregate_problem
from optimizer.classes.segments import max_by
from optimizer.decision import Memory, MultiPoolGangs, Plan, Shares, append_columns
from optimizer.lp.interior_point.level_proofs import CostHulls, cost_hulls
from optimizer.policy import SharePolicy
from optimizer.problem import FloatArray, IntArray, Problem
from optimizer.utility.fair_share import column_costs, usable_columns

#: The most answers that are asked for; five or six usually suffice.
MAX_ANSWERS = 40
#: A gang is worth adding only if it is cheaper by this part than what is known.
_CHEAPER = 1e-7
_WHOLE = 1e-9


def answer_with_mixed_gangs(policy: SharePolicy, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
    """Asks a policy, adds the gangs that would improve its answer at its prices, and asks again, until none would.

    Returns the last answer, with the gangs that were added, and the policy's memory. After `MAX_ANSWERS` answers it
    stops, though further gangs might help.

    Raises:
        ProblemError: the problem is malformed.
    """
    made, current, place = no_gangs(len(problem.pools)), problem, np.arange(len(problem.columns))
    decision, left = policy.decide(current, memory)
    for _ in range(MAX_ANSWERS):
        assert isinstance(decision, Shares), "a share policy"
        helpful = improving_mixed_gangs(current, decision)
        if not len(helpful):
            break
        made = joined_gangs([made, helpful])
        current, place = append_columns(problem, made.columns)
        decision, left = policy.decide(current, memory)
    assert isinstance(decision, Shares), "a share policy"
    return replace(decision, x=decision.x[place], added=made.columns if len(made) else None), left


def improving_mixed_gangs(problem: Problem, shares: Shares) -> MultiPoolGangs:
    """Returns the gangs that, at the prices of some stage, are cheaper than all mixtures of configurations that their
    jobs know, or faster; each gang once.
    """
    pools = len(problem.pools)
    found = [no_gangs(pools)]
    if len(problem.jobs.mixes) and problem.jobs.mixes.any():
        quoted = [np.zeros(pools), *(stage.prices for stage in shares.stages)]
        found += [_undercutting(problem, prices) for prices in quoted if len(prices) == pools]
    return distinct_gangs(joined_gangs(found))


def _undercutting(problem: Problem, prices: FloatArray) -> MultiPoolGangs:
    """Returns the gangs that cost less at these prices than the cheapest known way for their jobs to be as fast, or
    are faster.
    """
    known, speed = _known_ways(problem, prices), whole_gang_speeds(problem)
    speed[~problem.jobs.mixes] = 0.0
    found = [no_gangs(len(prices))]
    for slowest in range(len(prices)):
        use, rate = cheapest_gangs(speed, problem.jobs.gang, slowest, prices, problem.pools.capacity)
        cheaper = (use @ prices < known.spent(rate) * (1 - _CHEAPER)) | (rate > known.worth[:, -1] * (1 + _WHOLE))
        job = np.flatnonzero((rate > 0) & cheaper)
        found.append(MultiPoolGangs(job, rate[job], use[job]))
    return joined_gangs(found)


def _known_ways(problem: Problem, prices: FloatArray) -> CostHulls:
    """Returns for each job the least price of each speed with the configurations that it has; a job without any gets
    nothing at any price.
    """
    usable = usable_columns(problem.columns, problem.pools.capacity)
    classes = aggregate_problem(problem, usable, [problem.columns.steps_per_s], [problem.jobs.gang])
    n, member = len(problem.jobs), classes.classes.member
    if not classes.problem.classes:
        return CostHulls(np.zeros((n, 2)), np.zeros((n, 2)), np.ones(n), 0.0)
    hulls = cost_hulls(classes.problem, classes.per_column(problem.columns.steps_per_s), prices)
    worth, cost = (np.where((member >= 0)[:, None], vertices[member], 0.0) for vertices in (hulls.worth, hulls.cost))
    return CostHulls(worth, cost, np.ones(n), hulls.income)


def whole_gang_speeds(problem: Problem) -> FloatArray:
    """Returns the steps per second of each job's whole gang in each pool alone (n, p); 0 where it has no such
    configuration.
    """
    columns = problem.columns
    uses = np.bincount(columns.use_column, minlength=len(columns))
    alone = (uses[columns.use_column] == 1) & (columns.use_count == problem.jobs.gang[columns.job[columns.use_column]])
    column, pool = columns.use_column[alone], columns.use_pool[alone]
    speed = np.zeros((len(problem.jobs), len(problem.pools)))
    np.maximum.at(speed, (columns.job[column], pool), columns.steps_per_s[column])
    return speed


def cheapest_gangs(
    speed: FloatArray, gang: FloatArray, slowest: int, prices: FloatArray, capacity: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns the cheapest gang of each job on pools that are at least as fast for it as this one (n, p), and its
    steps per second (n,): 0 where there is none, or where it stands in one pool.

    Args:
        speed: of each job's whole gang in each pool, 0 where it cannot run (n, p).
        gang: accelerators of each (n,).
        slowest: row of the pool that may be the slowest.
        prices: of an accelerator of each pool (p,); of equals the first in order.
        capacity: accelerators that each gang may take of each pool (n, p), or all alike (p,).
    """
    allowed = (speed >= speed[:, slowest : slowest + 1]) & (speed[:, slowest : slowest + 1] > 0)
    use, left, there = np.zeros(speed.shape), gang.copy(), np.floor(np.broadcast_to(capacity, speed.shape) + _WHOLE)
    for pool in np.argsort(prices, kind="stable"):
        use[:, pool] = np.where(allowed[:, pool], np.minimum(there[:, pool], left), 0.0)
        left -= use[:, pool]
    is_mixture = (left <= 0) & ((use > 0).sum(axis=1) > 1)
    rate = np.where(use > 0, speed, np.inf).min(axis=1)
    return use, np.where(is_mixture, rate, 0.0)


def no_gangs(pools: int) -> MultiPoolGangs:
    """Returns an empty set of gangs over this number of pools."""
    return MultiPoolGangs(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, pools)))


def joined_gangs(several: list[MultiPoolGangs]) -> MultiPoolGangs:
    """Returns the gangs of several answers in one set, one answer after the other."""
    return MultiPoolGangs(
        np.concatenate([one.job for one in several]),
        np.concatenate([one.steps_per_s for one in several]),
        np.concatenate([one.use for one in several]),
    )


def distinct_gangs(gangs: MultiPoolGangs) -> MultiPoolGangs:
    """Returns the gangs without repetitions of the same gang of the same job."""
    _, first = np.unique(np.column_stack([gangs.job, gangs.use]), axis=0, return_index=True)
    return MultiPoolGangs(gangs.job[first], gangs.steps_per_s[first], gangs.use[first])


#: A function from the columns of a problem to their values (c,).
Valuation = Callable[[Problem], FloatArray]
#: The most plans that are made, and the most waiting jobs that are offered odd accelerators.
PLANS_MAX = 4
WAITING_MAX = 256
#: A gang must gain more than anything listed by this part of the largest value.
_STRICT = 1e-9
#: Charges without limits and guarantees.
_NO_CHARGES = np.zeros((1, 1))


class UnlistedGangs:
    """The gangs over several pools that the jobs of a problem may have, and what jobs would gain by them at prices."""

    def __init__(self, problem: Problem, value_of: Valuation) -> None:
        """`problem` lists the known configurations; `value_of` says what configurations of its jobs are worth."""
        self._problem, self._value_of = problem, value_of
        self.speed = whole_gang_speeds(problem)
        self.rows: IntArray = np.flatnonzero(problem.jobs.mixes & ~problem.jobs.stays & (problem.jobs.gang > 1))
        self._open = problem.pools.held <= 0

    def open_part(self, capacity: FloatArray) -> FloatArray:
        """Returns how many of these accelerators of each pool gangs over several pools may take (p,)."""
        return np.where(self._open, capacity, 0.0)

    def at_prices(
        self, prices: FloatArray, charges: FloatArray, capacity: FloatArray, rows: IntArray
    ) -> MultiPoolGangs:
        """Returns, for each of these jobs and every pace, the cheapest gang over several pools.

        Args:
            prices: of the pools (p,).
            charges: what an accelerator of each pool costs each job besides (n, p), or one 0 for all (1, 1).
            capacity: accelerators that each of these jobs may take of each pool (rows, p), or all alike (p,).
            rows: of the jobs.
        """
        found, able = [no_gangs(len(prices))], np.broadcast_to(self.open_part(capacity), (len(rows), len(prices)))
        for cost, of_cost in _alike(prices, charges, rows):
            asked = rows[of_cost]
            for slowest in np.flatnonzero(self._open).tolist():
                speed, gang = self.speed[asked], self._problem.jobs.gang[asked]
                use, rate = cheapest_gangs(speed, gang, slowest, cost, able[of_cost])
                made = np.flatnonzero(rate > 0)
                found.append(MultiPoolGangs(asked[made], rate[made], use[made]))
        return joined_gangs(found)

    def fastest(self, capacity: FloatArray, rows: IntArray) -> MultiPoolGangs:
        """Returns the fastest gang over several pools of each of these jobs that has one, with as many accelerators on
        slow pools as keep its pace.
        """
        if self.open_part(capacity).sum() < self._problem.jobs.gang[rows].min(initial=np.inf):
            return no_gangs(len(capacity))
        every = self.at_prices(self.speed[rows].mean(axis=0), _NO_CHARGES, capacity, rows)
        return _first_of_each(every, -every.steps_per_s)

    def improving(self, draft: PlanDraft, value: FloatArray) -> MultiPoolGangs:
        """Returns the gangs that the next plan should list, at the prices of this one; `value`: of the listed columns
        (c,).

        These are each job's best gang, where the job gains more by it than by anything listed; and, while a job waits,
        each placed job's best gang made of its own and of free accelerators, if it loses less by it than the gap of
        the plan.
        """
        problem, prices = self._problem, draft.prices
        columns, n = problem.columns, len(problem.jobs)
        charges = draft.charges
        net = value - column_costs(columns, prices) - charged_costs(columns, charges)
        strict = _STRICT * float(value.max(initial=0.0))
        every = self.at_prices(prices, charges, problem.pools.capacity, self.rows)
        most = max_by(columns.job, net, n)
        found = [self._gaining(every, self._net(every, prices, charges) - most[every.job], strict)]
        placed = self.rows[draft.column[self.rows] >= 0]
        if len(placed) and np.any(draft.column < 0):
            column = draft.column[placed]
            place = np.full(len(columns), -1, dtype=np.int64)
            place[column] = np.arange(len(placed))
            held, uses = np.zeros((len(placed), len(prices))), np.flatnonzero(place[columns.use_column] >= 0)
            held[place[columns.use_column[uses]], columns.use_pool[uses]] = columns.use_count[uses]
            near = self.at_prices(prices, charges, draft.free + held, placed)
            now = np.zeros(n)
            now[placed] = value[column]
            is_near = now[near.job] - self.values(near) < draft.bound - draft.reached - strict
            found.append(self._gaining(near, np.where(is_near, self._net(near, prices, charges), 0.0), 0.0))
        return distinct_gangs(joined_gangs(found))

    @staticmethod
    def _gaining(gangs: MultiPoolGangs, gain: FloatArray, strict: float) -> MultiPoolGangs:
        """Returns each job's best of these gangs, where it gains more than `strict` by it."""
        better = np.flatnonzero(gain > strict)
        some = MultiPoolGangs(gangs.job[better], gangs.steps_per_s[better], gangs.use[better])
        return _first_of_each(some, -gain[better])

    def gain(self, prices: FloatArray, charges: FloatArray, free: FloatArray, known: FloatArray) -> float:
        """Returns the most that jobs could gain by unlisted gangs beyond what they gain by listed configurations.

        Args:
            prices: of the pools (p,).
            charges: what an accelerator of each pool costs each job besides, because of limits and guarantees (n, p).
            free: accelerators for which the jobs compete (p,).
            known: the most that each job gains by what is listed, at least 0; inf for one that does not compete (n,).
        """
        rows = self.rows[np.isfinite(known[self.rows])]
        every = self.at_prices(prices, charges, free, rows)
        if not len(every):
            return 0.0
        most = max_by(every.job, self._net(every, prices, charges), len(known))[rows]
        return float(np.maximum(most - known[rows], 0.0).sum())

    def values(self, gangs: MultiPoolGangs) -> FloatArray:
        """Returns the value of each of these gangs (m,)."""
        if not len(gangs):
            return np.zeros(0)
        whole, place = append_columns(self._problem, gangs.columns)
        return self._value_of(whole)[place[len(self._problem.columns) :]]

    def _net(self, gangs: MultiPoolGangs, prices: FloatArray, charges: FloatArray) -> FloatArray:
        value = self.values(gangs)
        cost = gangs.use @ prices + (np.broadcast_to(charges, self.speed.shape)[gangs.job] * gangs.use).sum(axis=1)
        return np.where(value > 0, value - cost, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class MixedDraft:
    """A plan over a problem and over the gangs that were generated for it."""

    #: The problem as it was asked, and with the gangs; and the row there of every column, the problem's own first.
    asked: Problem
    problem: Problem
    gangs: MultiPoolGangs
    place: IntArray
    #: The plan over the columns of `problem`, and their values (c,).
    draft: PlanDraft
    value: FloatArray

    def in_terms_asked(self, plan: Plan) -> Plan:
        """Returns the plan over the columns of the problem as it was asked, followed by those of the gangs in use."""
        own = len(self.asked.columns)
        column = _backwards(self.place)[plan.column]
        taken = np.flatnonzero(column >= own)
        made = column[taken] - own
        column[taken] = own + np.arange(len(taken))
        gangs = MultiPoolGangs(self.gangs.job[made], self.gangs.steps_per_s[made], self.gangs.use[made])
        return replace(plan, column=column, added=gangs.columns if len(made) else None)

    def standing(self) -> tuple[float, ...]:
        """Returns the values reached, of the highest priority class first."""
        classes, chosen = self.problem.jobs.priority_class, self.draft.column
        worth = np.where(chosen >= 0, self.value[chosen], 0.0)
        return tuple(float(worth[classes == each].sum()) for each in np.unique(classes)[::-1])


def draft_with_mixed_gangs(
    problem: Problem, value_of: Valuation, drafted: Callable[[Problem, UnlistedGangs], PlanDraft]
) -> MixedDraft:
    """Makes a plan, adds the gangs over several pools that pay at its prices, and plans again; returns the best of
    these plans.

    Args:
        problem: as it is asked; some of its jobs mix.
        value_of: gives the values of its columns, and of those of added gangs.
        drafted: makes a plan; its bound must cover the gangs that are not listed.
    """
    gangs, best = _of_jobs_without_a_pool(problem, value_of), None
    for _ in range(PLANS_MAX):
        whole, place = _with_gangs(problem, gangs)
        unlisted = UnlistedGangs(whole, value_of)
        draft = drafted(whole, unlisted)
        found = _with_odd_accelerators(
            MixedDraft(problem, whole, gangs, place, draft, value_of(whole)), unlisted, value_of
        )
        if best is None or found.standing() > best.standing():
            best = found
        better = unlisted.improving(draft, value_of(whole))
        if not len(better):
            break
        joined = distinct_gangs(joined_gangs([found.gangs, better]))
        if len(joined) == len(found.gangs) == len(gangs):
            break  # All gangs are listed already.
        gangs = joined
    assert best is not None
    return best


def _with_gangs(problem: Problem, gangs: MultiPoolGangs) -> tuple[Problem, IntArray]:
    """Returns the problem with these gangs as columns (`append_columns`) and the row of every column; without any
    gang, the problem itself.
    """
    return append_columns(problem, gangs.columns) if len(gangs) else (problem, np.arange(len(problem.columns)))


def _of_jobs_without_a_pool(problem: Problem, value_of: Valuation) -> MultiPoolGangs:
    """Returns the fastest gangs of jobs that fit no pool alone: their lengths are measured on these."""
    able = np.zeros(len(problem.jobs), dtype=np.bool_)
    able[problem.columns.job[usable_columns(problem.columns, problem.pools.capacity)]] = True
    unlisted = UnlistedGangs(problem, value_of)
    return unlisted.fastest(problem.pools.capacity, unlisted.rows[~able[unlisted.rows]])


def _with_odd_accelerators(found: MixedDraft, unlisted: UnlistedGangs, value_of: Valuation) -> MixedDraft:
    """Returns the plan in which waiting jobs have gangs of free accelerators, the most valuable jobs first."""
    draft, jobs = found.draft, found.problem.jobs
    waiting = unlisted.rows[draft.column[unlisted.rows] < 0]
    free = unlisted.open_part(draft.free)
    made = unlisted.fastest(free, waiting)
    if not len(made):
        return found
    value = np.zeros(len(jobs))
    value[made.job] = unlisted.values(made)
    order = np.lexsort((made.job, -value[made.job] / jobs.gang[made.job], -jobs.priority_class[made.job]))
    limits = limited_entities(found.problem)
    left = None if limits is None else limits.left(draft.column)
    taken = [no_gangs(len(free))]
    for row in made.job[order[:WAITING_MAX]].tolist():
        if value[row] <= 0:
            continue
        gang = unlisted.fastest(free, np.array([row]))
        if not len(gang) or unlisted.values(gang)[0] <= 0:
            continue
        if limits is not None and left is not None:
            counted = limits.inside[:, row] * (limits.pools @ gang.use[0])
            if np.any(counted > left + _WHOLE):
                continue
            left = left - counted
        taken.append(gang)
        free = free - gang.use[0]
    return _extended(found, joined_gangs(taken), value_of)


def _extended(found: MixedDraft, taken: MultiPoolGangs, value_of: Valuation) -> MixedDraft:
    """Returns the plan with these gangs in it, each given to its job."""
    if not len(taken):
        return found
    gangs = joined_gangs([found.gangs, taken])
    whole, place = append_columns(found.asked, gangs.columns)
    old = found.draft
    column = np.append(place, -1)[_backwards(found.place)[old.column]]
    column[taken.job] = place[len(place) - len(taken) :]
    value = value_of(whole)
    free = np.maximum(old.free - taken.use.sum(axis=0), 0.0)
    reached = old.reached + float(value[column[taken.job]].sum())
    return replace(
        found,
        problem=whole,
        gangs=gangs,
        place=place,
        value=value,
        draft=replace(old, column=column, free=free, reached=reached),
    )


def _alike(prices: FloatArray, charges: FloatArray, rows: IntArray) -> list[tuple[FloatArray, IntArray]]:
    """Returns each distinct price vector (p,) that jobs pay, charges included, with the places among `rows` of the
    jobs that pay it.
    """
    if not charges.any():
        return [(prices, np.arange(len(rows)))]
    cost, kind = np.unique(prices + charges[rows], axis=0, return_inverse=True)
    return [(each, np.flatnonzero(kind.reshape(-1) == row)) for row, each in enumerate(cost)]


def _backwards(place: IntArray) -> IntArray:
    """Returns the inverse of `place`: for each place its entry, -1 where there is none; the last entry, reached by
    place -1, is -1.
    """
    back = np.full(len(place) + 1, -1, dtype=np.int64)
    back[place] = np.arange(len(place))
    return back


def _first_of_each(gangs: MultiPoolGangs, key: FloatArray) -> MultiPoolGangs:
    """Returns for each job the gang with the smallest key; of equals, the first."""
    order = np.lexsort((np.arange(len(gangs)), key, gangs.job))
    first = order[np.unique(gangs.job[order], return_index=True)[1]]
    return MultiPoolGangs(gangs.job[first], gangs.steps_per_s[first], gangs.use[first])
