"""A solve from request to answer: the core asks, `run_solve` computes (in another process), the core applies.

At most one solve is in flight. Its answer is never dropped for its age: jobs that have ended are skipped, and if
capacity was lost the shares of that pool are scaled down. Only an answer to a question from before a policy change is
void.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from optimizer.answer import answer_problem
from optimizer.assignment.whole_gang_bound import integral_bound
from optimizer.decision import Memory, Plan, Quote, Shares, Status, with_added
from optimizer.problem import FloatArray, IntArray, Problem
from optimizer.registry import make
from optimizer.renting.machine_rental import hourly_values
from scheduler.core.commands import Solve
from scheduler.core.cycle.problem_snapshot import build_problem
from scheduler.core.events import Proposal, Solved
from scheduler.core.placement.reservations import drop_reservation
from scheduler.core.state.ledger import Ledger
from scheduler.core.state.working_set import Cycle
from walras.cluster import PoolId
from walras.job_request import JobId

#: Shares below this are treated as solver noise.
SMALLEST_SHARE = 1e-6


def run_solve(command: Solve, tighten: Callable[[Plan], Plan] | None = None) -> Proposal:
    """Solves the problem and returns a compact decision. Shares are rounded to 1e-6, so noise looks like no change.

    `tighten` looks for a smaller upper bound of a plan and otherwise leaves the plan as it is.
    """
    decision, memory, rental = answer_problem(
        make(command.policy), command.problem, command.memory, command.delay_usd_per_h
    )
    if tighten is not None and isinstance(decision, Plan):
        decision = tighten(decision)
    problem, decision = with_added(command.problem, decision)
    machines = np.zeros(len(problem.pools)) if rental is None else rental.machines
    if isinstance(decision, Plan):
        proposal = _plan_proposal(problem, decision, memory, machines)
        value = hourly_values(problem, command.delay_usd_per_h)
        if value.any():
            proposal = _in_usd(proposal, problem, decision, value, stated=tighten is not None)
        if rental is None or not rental.path:
            return proposal
        return replace(proposal, path=f"{proposal.path}; renting: {rental.path}")
    assert isinstance(decision, Shares), f"{command.policy.name} ranks jobs and needs no solve"
    kept = np.flatnonzero(decision.x[problem.columns.use_column] > SMALLEST_SHARE)
    column = problem.columns.use_column[kept]
    certificate = decision.certificate
    return Proposal(
        pools=tuple(PoolId(pool_id) for pool_id in problem.pools.pool_id),
        job_ids=tuple(problem.jobs.job_id[problem.columns.job[column]].tolist()),
        pool_rows=tuple(problem.columns.use_pool[kept].tolist()),
        counts=tuple(problem.columns.use_count[kept].astype(np.int64).tolist()),
        shares=tuple(np.round(decision.x[column], 6).tolist()),
        asked=tuple(problem.jobs.job_id.tolist()),
        prices=tuple(np.asarray(decision.quote.prices, float).tolist()),
        price_unit=decision.quote.unit,
        exchange=float(decision.quote.exchange),
        rent_machines=tuple(int(count) for count in machines),
        status=str(certificate.status),
        objective=float(certificate.objective),
        bound=float(certificate.bound),
        gap=float(certificate.gap),
        path=certificate.path,
        memory=memory,
        marginal=_marginal_jobs(problem, kept, decision.surplus),
    )


def _in_usd(proposal: Proposal, problem: Problem, plan: Plan, value: FloatArray, *, stated: bool) -> Proposal:
    """Returns the proposal with figures in money; unchanged where no values are stated, as in most simulations."""
    from optimizer.renting.usd_certificate import usd_certificate, worth_of_one_more

    worth = worth_of_one_more(problem, plan.column, value)
    reached, bound = usd_certificate(problem, plan.column, value, stated=stated)
    return replace(proposal, worth_usd=tuple(np.round(worth, 6).tolist()), usd_per_h=(reached, bound))


def _plan_proposal(problem: Problem, plan: Plan, memory: Memory, machines: FloatArray | IntArray) -> Proposal:
    """Returns a plan as shares of 1, in order of importance; the jobs that were asked about are in the same order."""
    columns, yardstick = problem.columns, plan.yardstick
    job_id = problem.jobs.job_id
    first = np.searchsorted(columns.use_column, plan.column)
    last = np.searchsorted(columns.use_column, plan.column, side="right")
    placed = [row for row in plan.rows.tolist() if plan.column[row] >= 0]
    uses = [(row, use) for row in placed for use in range(first[row], last[row])]
    return Proposal(
        pools=tuple(PoolId(pool_id) for pool_id in problem.pools.pool_id),
        job_ids=tuple(JobId(int(job_id[row])) for row, _ in uses),
        pool_rows=tuple(int(columns.use_pool[use]) for _, use in uses),
        counts=tuple(int(columns.use_count[use]) for _, use in uses),
        shares=(1.0,) * len(uses),
        asked=tuple(JobId(i) for i in job_id[plan.rows].tolist()),
        prices=tuple(plan.quote.prices.tolist()),
        price_unit=plan.quote.unit,
        exchange=float(plan.quote.exchange),
        rent_machines=tuple(int(count) for count in machines),
        status=str(Status.DEFINED if len(problem.jobs) else Status.EMPTY),
        objective=0.0 if yardstick is None else yardstick.objective,
        bound=0.0 if yardstick is None else yardstick.bound,
        gap=0.0 if yardstick is None else yardstick.gap,
        path=plan.no_yardstick if yardstick is None else yardstick.name,
        memory=memory,
        riders=tuple(JobId(i) for i in job_id[plan.riders].tolist()),
        marginal=_marginal_jobs(problem, _paying_uses(problem, plan), plan.surplus),
        entity_prices=tuple((each.name, each.limit, each.guarantee) for each in plan.quote.entities),
        holds_until_at=plan.holds_until_at,
    )


def _paying_uses(problem: Problem, plan: Plan) -> IntArray:
    """Returns rows of the plan's uses by jobs that pay prices; riders (jobs on prepaid machines) pay none."""
    chosen = np.zeros(len(problem.columns), dtype=np.bool_)
    priced = plan.column >= 0
    priced[plan.riders] = False
    chosen[plan.column[priced]] = True
    return np.flatnonzero(chosen[problem.columns.use_column])


def _marginal_jobs(problem: Problem, uses: IntArray, surplus: FloatArray) -> tuple[JobId, ...]:
    """Returns for each pool the job with the least surplus among these uses; the youngest of equals."""
    columns = problem.columns
    pool, job = columns.use_pool[uses], columns.job[columns.use_column[uses]]
    found = [JobId(0)] * len(problem.pools)
    for at in np.lexsort((-problem.jobs.job_id[job], surplus[job], pool))[::-1].tolist():
        found[pool[at]] = JobId(int(problem.jobs.job_id[job[at]]))
    return tuple(found)


def integral_gang_bound(command: Solve) -> float | None:
    """Returns an upper bound for whole gangs, in the unit of the answer's objective; None where there is none.

    It costs the solve and a search on top, so it is computed when a person asks and never for a decision.
    """
    decision, _, _ = answer_problem(make(command.policy), command.problem, command.memory, command.delay_usd_per_h)
    problem, decision = with_added(command.problem, decision)
    return integral_bound(problem, command.policy, decision, command.memory)


# ------------------------------------------------------------------------------------------------ asking


def request_solve_if_due(
    cycle: Cycle,
    build: Callable[[Ledger], Problem] = build_problem,
    renews_plan: Callable[[Cycle], bool] | None = None,
) -> None:
    """Sends `Solve` if something changed, none is in flight and the last request is long enough ago.

    `build` makes the problem from the ledger. If only time has passed, and `renews_plan` finds that the plan in force
    holds, that counts as its answer.
    """
    policy, solves = cycle.policy, cycle.solves
    if not (solves.problem_changed or solves.time_passed) or solves.in_flight or policy.pricing is None:
        return
    if not cycle.ledger.jobs and not any(state.rented and state.machines for state in cycle.ledger.fleet.pools):
        solves.problem_changed = solves.time_passed = False  # no job to place and no machine to release
        return
    gate_at = solves.requested_at + policy.rules.resolve_min_s
    if cycle.now < gate_at:
        if solves.timer_at > gate_at or solves.timer_at <= cycle.now:
            solves.timer_at = gate_at
            cycle.timers.set(gate_at, "gate")
        return
    if not solves.problem_changed and renews_plan is not None and renews_plan(cycle):
        solves.time_passed, solves.requested_at = False, cycle.now
        return
    request_solve(cycle, build(cycle.ledger))


def request_solve(cycle: Cycle, problem: Problem) -> None:
    """Sends `Solve` about the ledger as it is."""
    policy = cycle.policy
    assert not cycle.solves.in_flight, "one solve at a time"
    cycle.solves.problem_changed = cycle.solves.time_passed = False
    cycle.solves.requested_at = cycle.now
    cycle.solves.asked_at_event = cycle.ledger.event_number
    cycle.solves.last_request += 1
    cycle.solves.in_flight = cycle.solves.last_request
    cycle.commands.append(
        Solve(
            cycle.solves.last_request,
            problem,
            policy.spec,
            policy.memory,
            policy.rules.delay_usd_per_h,
        )
    )


# ------------------------------------------------------------------------------------------------ the answer


def apply_proposal(cycle: Cycle, event: Solved) -> bool:
    """Applies the answer: new entitlements and prices. Returns False if the answer is void."""
    if event.request_id != cycle.solves.in_flight:
        return False
    cycle.solves.in_flight = 0
    if event.request_id <= cycle.solves.void_up_to:
        cycle.solves.problem_changed = True
        return False
    proposal, policy = event.proposal, cycle.policy
    limit_s = policy.rules.owed_limit_s
    cycle.ledger.columns.settle_all(cycle.now, limit_s)
    _resize_elastic_jobs(cycle, proposal)
    _replace_entitlements(cycle.ledger, proposal)
    policy.memory = proposal.memory
    policy.proposal, policy.solved_at = proposal, cycle.now
    policy.riders = frozenset(proposal.riders)
    policy.quote = Quote(np.array(proposal.prices), proposal.price_unit, proposal.exchange)
    return True


def _resize_elastic_jobs(cycle: Cycle, proposal: Proposal) -> None:
    """Gives elastic jobs the gang sizes of the answer; of several sizes on one type, the one with the largest share.

    Owed time evens out the rest. A job whose place is being prepared keeps its size until it has started there.
    """
    ledger = cycle.ledger
    if not ledger.classes.elastic_shapes:
        return
    given: dict[JobId, dict[str, dict[int, float]]] = {}
    for job_id, pool, count, share in zip(
        proposal.job_ids, proposal.pool_rows, proposal.counts, proposal.shares, strict=True
    ):
        job, row = ledger.jobs.get(job_id), ledger.slow_machines.row_named(ledger.fleet, proposal.pools[pool])
        if job is not None and job.request.sizes and row is not None:
            sizes = given.setdefault(job_id, {}).setdefault(ledger.fleet.pools[row].pool.shape.accelerator, {})
            sizes[count] = sizes.get(count, 0.0) + count * share
    for job_id, by_type in given.items():
        reservation = cycle.reservations.get(job_id)
        if reservation is not None and reservation.preempting:
            continue
        job = ledger.jobs[job_id]
        if cycle.deadlines.sizes_gang_of(job):
            continue
        before = job.class_row
        ledger.resize(job, {name: max(sizes, key=lambda size: (sizes[size], -size)) for name, sizes in by_type.items()})
        if job.class_row != before:
            drop_reservation(cycle, job_id)  # the reservation is for the old size


def _replace_entitlements(ledger: Ledger, proposal: Proposal) -> None:
    """Replaces the entitlements of the jobs that were asked about, and moves what they are owed to their new pools."""
    columns = ledger.columns
    if not columns.counts_owed:
        return
    asked = columns.slots_of(np.array(proposal.asked, np.int64))
    asked = asked[asked >= 0]
    fresh = np.zeros_like(columns.entitled)
    row_of = [ledger.slow_machines.row_named(ledger.fleet, name) for name in proposal.pools]
    rows = np.array([-1 if row is None else row for row in row_of], np.int64)[np.array(proposal.pool_rows, np.int64)]
    slots = columns.slots_of(np.array(proposal.job_ids, np.int64))
    kept = (slots >= 0) & (rows >= 0)
    given = np.array(proposal.counts, np.float64) * np.array(proposal.shares, np.float64)
    np.add.at(fresh, (slots[kept], rows[kept]), given[kept])
    capacity = np.array([float(state.capacity) for state in ledger.fleet.pools])
    total = fresh.sum(axis=0)
    fresh *= np.minimum(1.0, capacity / np.maximum(total, 1e-12))
    if not len(asked):
        return
    owed, new = columns.owed[asked], fresh[asked]
    entitled = new > 0
    stranded = np.where(entitled, 0.0, owed).sum(axis=1)
    share = new / np.maximum(new.sum(axis=1), 1e-12)[:, None]
    columns.owed[asked] = np.where(entitled, owed + stranded[:, None] * share, 0.0)
    columns.entitled[asked] = new
