"""Answering a `Solve` command. Pure; a server runs it in another process, a simulator inline."""

import numpy as np

from optimizer.added import with_added
from optimizer.answer import answer
from optimizer.decision import Memory, Plan, Shares, Status
from optimizer.gangs.whole import integral_bound
from optimizer.problem import FloatArray, IntArray, Problem
from optimizer.registry import make
from scheduler.core.commands import Solve
from scheduler.core.events import Proposal
from walras.ids import JobId, PoolId

#: Shares below this are solver noise.
SMALLEST_SHARE = 1e-6


def solve(command: Solve) -> Proposal:
    """Decide, and make the decision compact. Shares are rounded to 1e-6: noise must not look like a change."""
    decision, memory, rental = answer(make(command.policy), command.problem, command.memory, command.delay_usd_per_h)
    problem, decision = with_added(command.problem, decision)
    machines = np.zeros(len(problem.pools)) if rental is None else rental.machines
    if isinstance(decision, Plan):
        return _planned(problem, decision, memory, machines)
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
    )


def _planned(problem: Problem, plan: Plan, memory: Memory, machines: FloatArray | IntArray) -> Proposal:
    """A plan is shares of 1, in the order of importance; so are the jobs that were asked about."""
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
    )


def whole_gangs(command: Solve) -> float | None:
    """What whole gangs can reach at best, in the unit of the answer's objective; None where nothing bounds them.

    As much work as the solve and a search besides: for whoever asks, never for a decision.
    """
    decision, _, _ = answer(make(command.policy), command.problem, command.memory, command.delay_usd_per_h)
    problem, decision = with_added(command.problem, decision)
    return integral_bound(problem, command.policy, decision, command.memory)
