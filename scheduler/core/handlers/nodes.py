"""Machines coming, falling silent, leaving and going; and those rented because they are worth their price."""

from math import inf

from scheduler.core.commands import NodeCordoned, Rent
from scheduler.core.cycle import Cycle
from scheduler.core.events import NodeJoined, NodeLeaving, PoolDeclared, Proposal, RentFailed
from scheduler.core.handlers import idle
from scheduler.core.handlers.endings import node_lost, stop_unstarted
from scheduler.core.ledger.fleet import Condition, Machine, PoolState
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.placement.attempts import is_prepared, revoke
from scheduler.core.placement.claims import forget_machine
from walras.reasons import Reason
from walras.states import JobState

# ------------------------------------------------------------------------------------------------ pools and machines


def pool_declared(cycle: Cycle, event: PoolDeclared) -> bool:
    """True if the pool is new: every line and class must be seen afresh."""
    ledger = cycle.ledger
    row = ledger.fleet.pool_row(event.pool.pool_id)
    before = None if row is None else ledger.fleet.pools[row].pool.usd_per_h
    is_new = ledger.fleet.declare(event.pool)
    if row is not None and before != event.pool.usd_per_h:
        cycle.spending.repriced(row)
    if is_new:
        ledger.columns.set_pools(len(ledger.fleet.pools))
    ledger.classes.pools_changed([state.pool for state in ledger.fleet.pools])
    cycle.dirty = True
    return is_new


def joined(cycle: Cycle, event: NodeJoined) -> None:
    fleet = cycle.ledger.fleet
    pool = fleet.pool_row(event.pool_id)
    assert pool is not None, f"{event.node_id} joins pool {event.pool_id}, which was never declared"
    assert fleet.machine(event.node_id) is None, f"{event.node_id} joined twice"
    machine = fleet.join(event.node_id, pool, event.at, event.token, event.paid_since)
    cycle.spending.machine_joined(machine, event.paid_usd)
    if event.token:
        cycle.emptied[machine.row] = None
        state = fleet.pools[pool]
        state.rent_failures, state.rent_problem, state.rent_not_before = 0, "", -inf
    cycle.freed[machine.row] = None
    cycle.dirty = True


def unreachable(cycle: Cycle, machine: Machine) -> None:
    """No word from it. Its ranks may be alive, so nothing is started anew; no job is sent there."""
    if machine.condition is Condition.UNREACHABLE:
        return
    machine.before = machine.condition
    cycle.ledger.fleet.set_condition(machine, Condition.UNREACHABLE, "no heartbeat")
    cycle.dirty = True
    for job in _jobs_on(cycle, machine):
        if job.state is not JobState.UNREACHABLE:
            cycle.set_job_state(job, JobState.UNREACHABLE, None, f"no heartbeat from {machine.node_id}")


def back(cycle: Cycle, machine: Machine) -> None:
    """Contact again before the lease ran out: nothing restarts."""
    if machine.condition is not Condition.UNREACHABLE:
        return
    cycle.ledger.fleet.set_condition(machine, machine.before)
    cycle.freed[machine.row] = None
    cycle.dirty = True
    for job in _jobs_on(cycle, machine):
        others = [cycle.ledger.fleet.machines[row] for row, _ in job.place]
        if job.state is JobState.UNREACHABLE and all(
            other is not None and other.condition is not Condition.UNREACHABLE for other in others
        ):
            if job.revoked is Reason.USER_CANCELLED:
                state = JobState.CANCELLING
            elif job.revoked is not None:
                state = JobState.PREEMPTING
            else:
                state = JobState.RUNNING if job.running_at <= cycle.now else JobState.STARTING
            cycle.set_job_state(job, state)


def lost(cycle: Cycle, machine: Machine, reason: Reason) -> None:
    """Whatever ran there is over. Gangs with ranks elsewhere are told to stop; they end when those have."""
    forget_machine(cycle, machine)
    cycle.dirty = True
    _stop_unstarted_on(cycle, machine, "was lost")
    for job in node_lost(cycle, machine, reason):
        if job.revoked is None:
            revoke(cycle, job, reason, detail=f"{machine.node_id} is lost")
    taken = reason is Reason.INFRA_SPOT_RECLAIM
    cycle.ledger.fleet.pools[machine.pool].lives.ended(cycle.now, machine.joined_at, taken=taken)
    cycle.spending.machine_gone(machine)
    cycle.ledger.fleet.remove(machine)


def leaving(cycle: Cycle, machine: Machine, event: NodeLeaving) -> None:
    """It will be gone: no new jobs, and those there checkpoint while there is time."""
    forget_machine(cycle, machine)
    cycle.ledger.fleet.set_condition(machine, Condition.LEAVING, f"leaves: {event.reason}")
    cycle.commands.append(NodeCordoned(machine.node_id, machine.detail))
    cycle.dirty = True
    _stop_unstarted_on(cycle, machine, "leaves")
    grace_s = max(0.0, event.gone_at - cycle.now)
    for job in _jobs_on(cycle, machine):
        if job.revoked is None:
            revoke(cycle, job, event.reason, detail=f"{machine.node_id} leaves", grace_s=grace_s)


def _stop_unstarted_on(cycle: Cycle, machine: Machine, what: str) -> None:
    """Gangs that wait for their other machines cannot start any more."""
    for job in _jobs_on(cycle, machine):
        if not is_prepared(job):
            detail = f"{machine.node_id} {what} before the gang started"
            stop_unstarted(cycle, job, Reason.INFRA_NODE_LOST, None, detail)


def uncordoned(cycle: Cycle, machine: Machine) -> None:
    machine.failures.clear()
    if machine.condition in (Condition.LEAVING, Condition.QUARANTINED):
        cycle.ledger.fleet.set_condition(machine, Condition.UP)
        cycle.freed[machine.row] = None
        cycle.dirty = True


def _jobs_on(cycle: Cycle, machine: Machine) -> list[JobRecord]:
    """Jobs whose attempt has a part on the machine (not those that merely claim it)."""
    jobs = (cycle.ledger.jobs[job_id] for job_id in tuple(machine.holders))
    return [job for job in jobs if any(row == machine.row for row, _ in job.place)]


# ------------------------------------------------------------------------------------------------ renting


def rent_to(cycle: Cycle, proposal: Proposal) -> None:
    """Ask for the machines that are worth their price; those that are not any more leave once idle (`idle.py`)."""
    for pool_id, target in zip(proposal.pools, proposal.rent_machines, strict=True):
        row = cycle.ledger.fleet.pool_row(pool_id)
        if row is not None and cycle.ledger.fleet.pools[row].rented:
            _hold_rented(cycle, cycle.ledger.fleet.pools[row], target)


def rent_again(cycle: Cycle, row: int) -> None:
    """The wait after a request that failed is over: ask for what the last solve still wants."""
    proposal, state = cycle.standing.proposal, cycle.ledger.fleet.pools[row]
    if proposal is not None and state.pool.pool_id in proposal.pools:
        _hold_rented(cycle, state, proposal.rent_machines[proposal.pools.index(state.pool.pool_id)])


def _hold_rented(cycle: Cycle, state: PoolState, target: int) -> None:
    """Bring a pool towards `target` machines."""
    missing = min(target, state.pool.quota) - state.machines - sum(state.awaited.values())
    if missing > 0 and cycle.spending.everything.closed:
        return  # asked again once there is money
    if missing > 0 and cycle.now >= state.rent_not_before:
        # Unique: one request per pool and instant. A successor of this core must never use it again.
        token = f"{state.pool.pool_id}@{cycle.now:.6f}"
        state.awaited[token] = missing
        cycle.commands.append(Rent(token, state.pool.pool_id, missing))
    elif missing < 0:
        idle.look(cycle, state)


def rent_failed(cycle: Cycle, event: RentFailed) -> None:
    """These machines will not come. Asked again later, ever less often: a provider without machines, or without credit,
    stays so for a while.
    """
    rules = cycle.standing.rules
    for state in cycle.ledger.fleet.pools:
        awaited = state.awaited.pop(event.token, None)
        if awaited is None:
            continue
        left = 0 if event.machines is None else awaited - event.machines
        if left > 0:
            state.awaited[event.token] = left
        wait_s = min(rules.rent_backoff_s * 2.0 ** min(state.rent_failures, 32), rules.rent_backoff_max_s)
        state.rent_failures += 1
        state.rent_problem, state.rent_not_before = event.reason, cycle.now + wait_s
        cycle.timers.set(state.rent_not_before, "rent", state.row)
