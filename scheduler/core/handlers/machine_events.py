"""Pools; machines that join, become unreachable, leave and are lost, or are rented and returned (autoscaling).

The last solve and deadlines decide how many machines a pool should have. A machine is kept while it is paid for: an
idle one is returned just before its next billing step begins, or when its minimum billing has run out. Without billing
steps, or with short ones, it is returned when it has been idle for `rent_keep_s`. A quarantined machine is returned as
soon as it is empty. The minimum of machines that a pool holds (`Pool.least`) is requested without a solve.

Tools that machines report limit where jobs start. Jobs that run on a machine stay there, and its pool keeps counting as
able, whatever it reports later: the speed and the gang size of a running job in its pool must never become 0.

A pool's row is its position in many arrays, so a removed pool keeps its row: nothing fits it, it has no machines and no
price, nothing is rented there, and listings leave it out (`Pool.removed`). If it is declared again it gets the same
row. A restarted core never hears of it.
"""

from collections.abc import Iterable
from math import ceil, inf

from scheduler.core.commands import NodeCordoned, ReleaseNode, Rent
from scheduler.core.events import (
    NodeBack,
    NodeData,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodePrivate,
    NodeQuarantined,
    NodeTools,
    NodeUncordoned,
    NodeUnreachable,
    PoolDeclared,
    PoolRemoved,
    Proposal,
    RentFailed,
    RentRestored,
)
from scheduler.core.handlers import deadlines, quarantine
from scheduler.core.handlers.attempt_events import abort_start, end_attempts_on_lost_machine
from scheduler.core.handlers.deadlines import leave_pool
from scheduler.core.placement.attempt_lifecycle import ask_to_leave, is_prepared
from scheduler.core.placement.checkpoint_intervals import replan_intervals_of
from scheduler.core.placement.reservations import drop_reservations_on
from scheduler.core.state.fleet import FleetMachine, MachineCondition, PoolState
from scheduler.core.state.stopping import StopFor, mark_private, may_be_stopped
from scheduler.core.state.working_set import Cycle, count_tools, refresh_pools, settle_tools
from walras.cluster import billed_until
from walras.states import JobState, Reason

#: Maximum of seconds that returning a machine takes; the return begins this long before a billing step.
GIVING_BACK_S = 30.0
#: Minimum of seconds between two idle checks; otherwise wakes would never end where `rent_keep_s` is 0.
_IDLE_CHECK_S = 5.0
#: A check that is at most this many seconds late still returns a machine before its billing step.
_LATE_S = 10.0
#: Seconds until a pool is checked that may hold fewer machines than its minimum.
_LEAST_AFTER_S = 1.0
_NO_HEARTBEAT = "no heartbeat"
#: Conditions of machines that can run jobs, now or once their heartbeats return.
_STAYING = (MachineCondition.UP, MachineCondition.UNREACHABLE)


def release_due_at(machine: FleetMachine, state: PoolState, keep_s: float, now: float, stop_s: float = 0.0) -> float:
    """Returns when a machine that no paying job uses until then should be returned.

    It is kept for `keep_s` seconds if that costs anything, and through billing steps that are paid for. A step longer
    than `keep_s` is never begun for it. Jobs on it take `stop_s` seconds to leave.
    """
    since = min(machine.unpaid_since, now if machine.holders else machine.idle_since)
    wanted_at = max(since + max(0.0, keep_s - state.pool.billing_step_s), now - _LATE_S)
    lead_s = GIVING_BACK_S + stop_s
    return billed_until(state.pool, machine.paid_since, wanted_at + lead_s) - lead_s


def settle_idle_machines(cycle: Cycle) -> None:
    """Decides, after starts, on the rented machines that no job has taken again since they became empty.

    A quarantined one is given back at once; of the others the pool's timer checks later whether they are worth their
    price.
    """
    emptied, cycle.backlog.emptied = cycle.backlog.emptied, {}
    for row in emptied:
        machine = cycle.ledger.fleet.machines[row]
        if machine is None:
            continue
        if machine.condition is MachineCondition.QUARANTINED and not cycle.ledger.jobs_on(machine):
            release_machine(cycle, machine, f"given back: {machine.detail}")
        elif _is_idle(machine):
            state = cycle.ledger.fleet.pools[machine.pool]
            _set_idle_timer(cycle, state, _release_at(cycle, machine, state))
        elif cycle.ledger.fleet.pools[machine.pool].pool.drained:
            # Not at once, because a restarted core hears of a machine before it hears of the job there.
            _set_idle_timer(cycle, cycle.ledger.fleet.pools[machine.pool], cycle.now + _IDLE_CHECK_S)


def schedule_idle_check(cycle: Cycle, state: PoolState) -> None:
    """Sets the pool's next idle check, for the first machine that may be returned; the pool has only one timer."""
    _set_idle_timer(
        cycle, state, min((_due_at(cycle, machine, state) for machine in state.members.values()), default=inf)
    )


def on_idle_timer(cycle: Cycle, row: int, number: int) -> None:
    """Returns idle machines whose time has come, beyond the number that the last solve and deadlines want."""
    state, policy = cycle.ledger.fleet.pools[row], cycle.policy
    if cycle.now < state.idle_look_at:
        return  # an earlier timer that a later request replaced
    state.idle_look_at = inf
    if not state.rented:
        return
    for machine in list(state.members.values()):
        if machine.condition is MachineCondition.QUARANTINED and machine.token and not cycle.ledger.jobs_on(machine):
            release_machine(cycle, machine, f"given back: {machine.detail}")
    if state.pool.drained:
        _give_back_drained(cycle, state)
        return
    if policy.proposal is None and policy.pricing is not None:
        _set_idle_timer(cycle, state, _again_at(cycle))  # no solve has stated yet how many machines are wanted
        return
    target = _wanted(cycle, state)
    excess = sum(machine.condition in _STAYING for machine in state.members.values()) - target
    unpaid = [each for each in state.members.values() if _is_idle(each) or _has_riders_only(cycle, each)]
    for machine in sorted(unpaid, key=lambda each: bool(each.holders)):
        if excess <= 0:
            return
        if _release_at(cycle, machine, state) <= cycle.now:
            _give_back(cycle, machine, state, target)
            excess -= 1
    if excess > 0:
        schedule_idle_check(cycle, state)


def _give_back_drained(cycle: Cycle, state: PoolState) -> None:
    """Returns the empty machines of a drained pool to their provider."""
    for machine in list(state.members.values()):
        is_leaving = machine.condition is MachineCondition.LEAVING
        if is_leaving and machine.token and not cycle.ledger.jobs_on(machine):
            release_machine(cycle, machine, "given back: its pool is drained")


def _give_back(cycle: Cycle, machine: FleetMachine, state: PoolState, target: int) -> None:
    """Releases the machine: at once if it is idle, else when its riders have left."""
    worth = f"at {state.pool.usd_per_h:g} USD/h {target} of {state.machines} machines are worth their price"
    if _is_idle(machine):
        release_machine(cycle, machine, f"given back: idle for {cycle.now - machine.idle_since:.0f} s, and {worth}")
        return
    drop_reservations_on(cycle, machine)
    cycle.ledger.fleet.set_condition(machine, MachineCondition.QUARANTINED, f"is given back: {worth}")
    cycle.commands.append(NodeCordoned(machine.node_id, machine.detail))
    cycle.backlog.emptied[machine.row] = None
    cycle.solves.problem_changed = True
    for job in cycle.ledger.jobs_on(machine):
        detail = f"{machine.node_id} is given back: nobody who pays wants it at its price"
        ask_to_leave(cycle, job, StopFor.PLACE, Reason.POLICY_PREEMPTED, detail=detail)


def release_machine(cycle: Cycle, machine: FleetMachine, detail: str) -> None:
    """Releases an empty rented machine now."""
    assert machine.token, f"{machine.node_id} is not rented"
    assert not cycle.ledger.jobs_on(machine), f"{machine.node_id} is used by {sorted(machine.holders)}"
    drop_reservations_on(cycle, machine)
    cycle.ledger.fleet.set_condition(machine, MachineCondition.RELEASED, detail)
    machine.given_back = True
    cycle.commands.append(ReleaseNode(machine.node_id, detail))


def _wanted(cycle: Cycle, state: PoolState) -> int:
    """Returns the number of machines that the last solve wants, plus those to which jobs with deadlines move."""
    proposal = cycle.policy.proposal
    by_pool = {} if proposal is None else dict(zip(proposal.pools, proposal.rent_machines, strict=True))
    coming = deadlines.accelerators_awaited(cycle, state.row, held=True)
    wanted = by_pool.get(state.pool.pool_id, 0) + ceil(coming / max(state.pool.shape.accelerators, 1))
    return max(wanted, state.pool.least)


def _is_idle(machine: FleetMachine) -> bool:
    return machine.condition is MachineCondition.UP and not machine.holders


def _has_riders_only(cycle: Cycle, machine: FleetMachine) -> bool:
    """Returns whether only riders, which are no reason to keep a rented machine, hold it, and all can be stopped."""
    if machine.condition is not MachineCondition.UP or not machine.token or not machine.holders:
        return False
    jobs, riders = (cycle.ledger.jobs[job_id] for job_id in machine.holders), cycle.policy.riders
    return all(
        job.revoked is not None
        or (
            job.job_id in riders
            and may_be_stopped(cycle.ledger, job, StopFor.PLACE) is None
            and cycle.ordering.protects(job) is None
        )
        for job in jobs
    )


def _release_at(cycle: Cycle, machine: FleetMachine, state: PoolState) -> float:
    """Returns `release_due_at` of a machine that is idle or that only riders hold."""
    stop_s = max((cycle.ledger.jobs[job_id].request.grace_s for job_id in machine.holders), default=0.0)
    return release_due_at(machine, state, cycle.policy.rules.rent_keep_s, cycle.now, stop_s)


def _due_at(cycle: Cycle, machine: FleetMachine, state: PoolState) -> float:
    """Returns when to check whether to return the machine: while in use, before its next billing step."""
    if _is_idle(machine) or _has_riders_only(cycle, machine):
        return max(_release_at(cycle, machine, state), cycle.now)
    if state.pool.billing_step_s <= 0:
        return _again_at(cycle)
    step_at = billed_until(state.pool, machine.paid_since, cycle.now + GIVING_BACK_S + _IDLE_CHECK_S) - GIVING_BACK_S
    return min(step_at, _again_at(cycle))


def _again_at(cycle: Cycle) -> float:
    return cycle.now + max(cycle.policy.rules.rent_keep_s, _IDLE_CHECK_S)


def _set_idle_timer(cycle: Cycle, state: PoolState, at: float) -> None:
    if at < state.idle_look_at:
        state.idle_look_at = at
        cycle.timers.set(at, "idle", state.row)


# ------------------------------------------------------------------------------------------------ machines


def on_node_joined(cycle: Cycle, event: NodeJoined) -> None:
    fleet = cycle.ledger.fleet
    pool = fleet.pool_row(event.pool_id)
    assert pool is not None, f"{event.node_id} joins pool {event.pool_id}, which was never declared"
    assert fleet.machine(event.node_id) is None, f"{event.node_id} joined twice"
    machine = fleet.join(event.node_id, pool, event.at, event.token, event.paid_since)
    if event.machine:  # failures on any part count against the whole machine
        machine.whole = event.machine
        for other in fleet.whole(machine):
            machine.failures = other.failures
    if event.tools is not None or fleet.knows_tools:
        _take_tools(cycle, machine, event.tools)
    cycle.spending.machine_joined(machine, event.paid_usd)
    if event.token:
        cycle.backlog.emptied[machine.row] = None
        state = fleet.pools[pool]
        state.rent_failures, state.rent_problem, state.rent_not_before = 0, "", -inf
    if fleet.pools[pool].pool.drained:
        fleet.set_condition(machine, MachineCondition.LEAVING, "its pool is drained")
    elif event.drained:
        fleet.set_condition(machine, MachineCondition.LEAVING, f"leaves: {Reason.HOLD_ADMIN}")
    cycle.backlog.freed[machine.row] = None
    cycle.solves.problem_changed = True


def on_node_unreachable(cycle: Cycle, machine: FleetMachine, event: NodeUnreachable) -> None:
    """Stops starting jobs on a machine without heartbeats. Its ranks may be alive, so its jobs are not restarted."""
    machine.is_silent = True
    if machine.condition is MachineCondition.UNREACHABLE:
        return
    machine.before = machine.condition
    cycle.ledger.fleet.set_condition(machine, MachineCondition.UNREACHABLE, _NO_HEARTBEAT)
    cycle.solves.problem_changed = True
    for job in cycle.ledger.jobs_on(machine):
        if job.state is not JobState.UNREACHABLE:
            cycle.set_job_state(job, JobState.UNREACHABLE, None, f"no heartbeat from {machine.node_id}")


def on_node_back(cycle: Cycle, machine: FleetMachine, event: NodeBack) -> None:
    """Readmits a machine whose heartbeats returned before its leases ran out: nothing restarts."""
    machine.is_silent = False
    if machine.condition is MachineCondition.UNREACHABLE:
        cycle.ledger.fleet.set_condition(machine, machine.before)
        cycle.backlog.freed[machine.row] = None
        cycle.solves.problem_changed = True
    # Else it was drained meanwhile, and takes no jobs.
    for job in cycle.ledger.jobs_on(machine):
        others = [cycle.ledger.fleet.machines[row] for row, _ in job.place]
        if job.state is JobState.UNREACHABLE and all(other is not None and not other.is_silent for other in others):
            if job.revoked is Reason.USER_CANCELLED:
                state = JobState.CANCELLING
            elif job.revoked is not None:
                state = JobState.PREEMPTING
            else:
                state = JobState.RUNNING if job.running_at <= cycle.now else JobState.STARTING
            cycle.set_job_state(job, state)


def on_node_lost(cycle: Cycle, machine: FleetMachine, event: NodeLost) -> None:
    """Ends attempts that ran there. Gangs with ranks elsewhere are revoked and end when those ranks have ended."""
    drop_reservations_on(cycle, machine)
    cycle.solves.problem_changed = True
    _abort_starts_on(cycle, machine, "was lost")
    # Who removes a machine holds no job.
    reason = Reason.INFRA_NODE_LOST if event.reason is Reason.HOLD_ADMIN else event.reason
    for job in end_attempts_on_lost_machine(cycle, machine, reason):
        ask_to_leave(cycle, job, StopFor.LOSS, reason, detail=f"{machine.node_id} is lost")
    # A machine that the scheduler returned was not reclaimed, though a provider may report one as the other.
    taken = event.reason is Reason.INFRA_SPOT_RECLAIM and not machine.given_back
    state = cycle.ledger.fleet.pools[machine.pool]
    state.lives.ended(cycle.now, machine.joined_at, taken=taken)
    has_ended = taken or not (machine.given_back or machine.is_sent_away)
    began_h, age_h = machine.age_h(machine.joined_at), machine.age_h(cycle.now)
    state.lives.saw_end(began_h, age_h, has_ended=has_ended, warning_s=machine.warning_s)
    cycle.spending.machine_gone(machine)
    cycle.ledger.fleet.remove(machine)
    cycle.ledger.slow_machines.forget_machine(machine.node_id)
    if cycle.ledger.fleet.knows_tools:
        settle_tools(cycle)
    ask_for_least(cycle, state)
    if has_ended:
        replan_intervals_of(cycle, state)


def on_node_leaving(cycle: Cycle, machine: FleetMachine, event: NodeLeaving) -> None:
    """Stops starting jobs on a machine that will be gone, and lets its jobs checkpoint while there is time."""
    drop_reservations_on(cycle, machine)
    cycle.ledger.fleet.set_condition(machine, MachineCondition.LEAVING, f"leaves: {event.reason}")
    cycle.commands.append(NodeCordoned(machine.node_id, machine.detail))
    cycle.solves.problem_changed = True
    _abort_starts_on(cycle, machine, "leaves")
    grace_s = max(0.0, event.gone_at - cycle.now)
    if event.reason is Reason.INFRA_SPOT_RECLAIM:
        machine.warning_s = grace_s
    else:
        machine.is_sent_away = True
    machine.gentle_until = event.gone_at if event.gentle else -inf
    if event.gentle:
        cycle.timers.set(event.gone_at, "drain", machine.row)
    reason = Reason.POLICY_DRAINED if event.reason is Reason.HOLD_ADMIN else event.reason
    for job in cycle.ledger.jobs_on(machine):
        why = StopFor.MACHINE if event.gentle else StopFor.LOSS
        job.is_aside = job.revoked is None and may_be_stopped(cycle.ledger, job, why) is not None
        cycle.ledger.set_eligible(job)
        ask_to_leave(cycle, job, why, reason, detail=f"{machine.node_id} leaves", grace_s=grace_s)


def on_drain_timer(cycle: Cycle, row: int, number: int) -> None:
    """Stops all jobs that still run on the machine when a gentle drain has reached its end."""
    machine = cycle.ledger.fleet.machines[row] if row < len(cycle.ledger.fleet.machines) else None
    if machine is None or not -inf < machine.gentle_until <= cycle.now:
        return
    machine.gentle_until = -inf
    for job in cycle.ledger.jobs_on(machine):
        detail = f"{machine.node_id} leaves: its time is over"
        ask_to_leave(cycle, job, StopFor.LOSS, Reason.POLICY_DRAINED, detail=detail)


def _abort_starts_on(cycle: Cycle, machine: FleetMachine, what: str) -> None:
    """Ends starts of gangs that wait for their other machines, because this one is lost to them."""
    for job in cycle.ledger.jobs_on(machine):
        if not is_prepared(job):
            detail = f"{machine.node_id} {what} before the gang started"
            abort_start(cycle, job, Reason.INFRA_NODE_LOST, None, detail)


def on_node_uncordoned(cycle: Cycle, machine: FleetMachine, event: NodeUncordoned) -> None:
    """Lets the machine take jobs again, as an administrator wishes; not while its whole pool is drained."""
    if cycle.ledger.fleet.pools[machine.pool].pool.drained:
        return
    machine.failures.clear()
    machine.standing.clear()
    machine.gentle_until = -inf
    machine.warning_s, machine.is_sent_away = None, False
    for job in cycle.ledger.jobs_on(machine):
        job.is_aside = False
        cycle.ledger.set_eligible(job)
    aside = (MachineCondition.LEAVING, MachineCondition.QUARANTINED)
    if machine.condition is MachineCondition.UNREACHABLE and machine.before in aside:
        machine.before = MachineCondition.UP  # once it is back
    elif machine.condition in aside and machine.is_silent:
        machine.before = MachineCondition.UP
        cycle.ledger.fleet.set_condition(machine, MachineCondition.UNREACHABLE, _NO_HEARTBEAT)
    elif machine.condition in aside:
        cycle.ledger.fleet.set_condition(machine, MachineCondition.UP)
        cycle.backlog.freed[machine.row] = None
        cycle.solves.problem_changed = True


# ------------------------------------------------------------------------------------------------ what they report


def on_node_tools(cycle: Cycle, machine: FleetMachine, event: NodeTools) -> None:
    _take_tools(cycle, machine, event.tools)
    cycle.backlog.freed[machine.row] = None


def _take_tools(cycle: Cycle, machine: FleetMachine, tools: Iterable[str] | None) -> None:
    """Sets the machine's tools; None: it has not reported any."""
    fleet = cycle.ledger.fleet
    fleet.knows_tools = fleet.knows_tools or tools is not None
    machine.tools = None if tools is None else frozenset(tools)
    count_tools(cycle, machine)


def on_node_data(cycle: Cycle, machine: FleetMachine, event: NodeData) -> None:
    """Records the machine's cached data for later starts. Waiting jobs are not judged again for that."""
    told = {key: (size_bytes, seconds) for key, size_bytes, seconds in event.fetched}
    now = {key: told.get(key, (0, 0.0)) for key in event.data}
    machine.data = cycle.ledger.fleet.caches.tell(machine.row, machine.data, now, machine.pool)
    machine.fetched = event.fetched


def on_node_private(cycle: Cycle, machine: FleetMachine, event: NodePrivate) -> None:
    mark_private(cycle.ledger, machine, cycle.policy.rules, is_private=event.private)
    cycle.solves.problem_changed = True


# ------------------------------------------------------------------------------------------------ renting


def rent_for_proposal(cycle: Cycle, proposal: Proposal) -> None:
    """Requests the machines that are worth their price; surplus ones are returned once idle."""
    for pool_id, target in zip(proposal.pools, proposal.rent_machines, strict=True):
        row = cycle.ledger.fleet.pool_row(pool_id)
        if row is not None and cycle.ledger.fleet.pools[row].rented:
            _note_who_pays(cycle, cycle.ledger.fleet.pools[row])
            _scale_pool(cycle, cycle.ledger.fleet.pools[row], target)


def _note_who_pays(cycle: Cycle, state: PoolState) -> None:
    """Notes for each machine since when no paying job holds it."""
    riders = cycle.policy.riders
    for machine in state.members.values():
        if not machine.holders.keys() <= riders:
            machine.unpaid_since = inf
        elif machine.unpaid_since == inf:
            machine.unpaid_since = cycle.now if machine.holders else machine.idle_since


def on_rent_timer(cycle: Cycle, row: int, number: int) -> None:
    """Requests what the last solve still wants, because the wait after a failed request is over."""
    proposal, state = cycle.policy.proposal, cycle.ledger.fleet.pools[row]
    cycle.solves.problem_changed = True
    if proposal is not None and state.pool.pool_id in proposal.pools:
        _scale_pool(cycle, state, proposal.rent_machines[proposal.pools.index(state.pool.pool_id)])
    elif state.pool.least:
        _scale_pool(cycle, state, 0)


def ask_for_least(cycle: Cycle, state: PoolState) -> None:
    """Sets a timer after which the pool's minimum of machines is requested.

    Not at once, because a restarted core hears of a pool before it hears of the machines and requests there.
    """
    if state.pool.least and state.rented:
        cycle.timers.set(cycle.now + _LEAST_AFTER_S, "rent", state.row)


def _scale_pool(cycle: Cycle, state: PoolState, target: int) -> None:
    """Brings the pool towards `target` machines, but not below its minimum."""
    target = max(target, state.pool.least)
    missing = min(target, state.quota) - state.machines - sum(state.awaited.values())
    if missing > 0 and cycle.spending.everything.closed:
        return  # requested again once there is budget
    if missing > 0 and cycle.now >= state.rent_not_before:
        # Unique: one request per pool and instant. A restarted core must never use the token again.
        token = f"{state.pool.pool_id}@{cycle.now:.6f}"
        state.awaited[token] = missing
        cycle.commands.append(Rent(token, state.pool.pool_id, missing))
    elif missing < 0:
        schedule_idle_check(cycle, state)


def on_rent_failed(cycle: Cycle, event: RentFailed) -> None:
    """Notes that these machines will not come.

    The request is repeated with growing delay, because a provider without capacity or credit stays so for a while.
    """
    rules = cycle.policy.rules
    for state in cycle.ledger.fleet.pools:
        awaited = state.awaited.pop(event.token, None)
        if awaited is None:
            continue
        left = 0 if event.machines is None else awaited - event.machines
        if left > 0:
            state.awaited[event.token] = left
        wait_s = min(rules.rent_backoff_s * 2.0 ** min(state.rent_failures, 32), rules.rent_backoff_max_s)
        state.rent_failures += 1
        state.rent_refused = left <= 0
        state.rent_problem, state.rent_not_before = event.reason, cycle.now + wait_s
        cycle.timers.set(state.rent_not_before, "rent", state.row)
        cycle.solves.problem_changed = True  # until then other pools may be worth their price


def on_node_quarantined(cycle: Cycle, machine: FleetMachine, event: NodeQuarantined) -> None:
    """Marks a machine as quarantined that was so before the core was restarted."""
    if machine.condition is MachineCondition.UP:
        cycle.ledger.fleet.set_condition(machine, MachineCondition.QUARANTINED, event.detail)
        quarantine.set_trial(cycle, machine)
    if machine.token and machine.condition is MachineCondition.QUARANTINED:
        # Not at once, because a restarted core hears of a machine before it hears of the job there.
        _set_idle_timer(cycle, cycle.ledger.fleet.pools[machine.pool], cycle.now + _IDLE_CHECK_S)


# ------------------------------------------------------------------------------------------ pools


#: Conditions of machines that are drained with their pool; others leave, or take no jobs, already.
_FOLLOWING = (MachineCondition.UP, MachineCondition.UNREACHABLE, MachineCondition.BOOKED)


def on_pool_declared(cycle: Cycle, event: PoolDeclared) -> None:
    """Adds a pool, or changes its price, quota or drain; rebuilds classes of jobs and queues."""
    ledger = cycle.ledger
    row = ledger.fleet.pool_row(event.pool.pool_id)
    before = None if row is None else ledger.fleet.pools[row].pool
    ledger.fleet.declare(event.pool)
    if row is not None and before is not None and before.usd_per_h != event.pool.usd_per_h:
        cycle.spending.repriced(row)
    ledger.slow_machines.is_due = True  # a pool beside it follows it
    if row is not None and before is not None and event.pool.drained and not before.drained:
        for each in (row, ledger.slow_machines.pools.get(row)):
            if each is not None:
                _drain(cycle, ledger.fleet.pools[each])
    declared = ledger.fleet.pool_row(event.pool.pool_id)
    assert declared is not None
    ask_for_least(cycle, ledger.fleet.pools[declared])
    refresh_pools(cycle)


def on_pool_removed(cycle: Cycle, event: PoolRemoved) -> None:
    """Removes a pool that has neither machines nor requests. Entitlements and owed time there are dropped."""
    row = cycle.ledger.fleet.drop(event.pool_id)
    cycle.ledger.columns.forget_entitlements(cycle.now, row)
    leave_pool(cycle, row)
    cycle.ledger.slow_machines.is_due = True
    refresh_pools(cycle)


def on_rent_restored(cycle: Cycle, event: RentRestored) -> None:
    """Restores a request for machines that was made before the core was restarted."""
    row = cycle.ledger.fleet.pool_row(event.pool_id)
    assert row is not None, f"machines of {event.pool_id} are awaited, which is not declared"
    cycle.ledger.fleet.pools[row].awaited[event.token] = event.machines


def _drain(cycle: Cycle, state: PoolState) -> None:
    """Closes the pool to jobs and machines; jobs on its machines save and leave, then what was rented is returned."""
    leave_pool(cycle, state.row)
    for machine in list(state.members.values()):
        if machine.condition in _FOLLOWING:
            leaving = NodeLeaving(cycle.now, machine.node_id, inf, Reason.HOLD_ADMIN, gentle=True)
            on_node_leaving(cycle, machine, leaving)
        if machine.token:
            cycle.backlog.emptied[machine.row] = None
