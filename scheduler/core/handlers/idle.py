"""When a rented machine that nobody uses is given back.

What is paid for already is kept: a machine goes just before its next billing step begins, or when its minimum billing
has run out. Where billing has no steps, or short ones, it goes when it has been idle for `rent_keep_s`. A machine that
takes no jobs any more, because jobs failed there, goes as soon as it is empty. How many machines a pool is to have is
decided elsewhere: by the last solve, and by deadlines.
"""

from math import ceil, inf

from scheduler.core.commands import ReleaseNode
from scheduler.core.cycle import Cycle
from scheduler.core.handlers import deadlines
from scheduler.core.ledger.fleet import Condition, Machine, PoolState
from scheduler.core.placement.claims import forget_machine
from walras.cluster import billed_until

#: Giving a machine back takes this long at most; so long before a billing step it is begun.
GIVING_BACK_S = 30.0
#: Machines are looked at again after this time at the soonest, or wakes would never end where nothing is kept idle.
_LOOK_S = 5.0
#: Conditions of machines that are there for jobs, now or once they are heard of again.
_STAYING = (Condition.UP, Condition.UNREACHABLE)


def give_back_at(machine: Machine, state: PoolState, keep_s: float) -> float:
    """When a machine that is idle now is to be given back, were it idle until then.

    It is kept for `keep_s` if that costs anything, and through the steps that are paid for. A step longer than `keep_s`
    is never begun for an idle machine.
    """
    wanted_at = machine.idle_since + max(0.0, keep_s - state.pool.billing_step_s)
    return billed_until(state.pool, machine.paid_since, wanted_at + GIVING_BACK_S) - GIVING_BACK_S


def settle(cycle: Cycle) -> None:
    """After things were started: machines that have become empty, and stayed so."""
    emptied, cycle.emptied = cycle.emptied, {}
    for row in emptied:
        machine = cycle.ledger.fleet.machines[row]
        if machine is None:
            continue
        if machine.condition is Condition.QUARANTINED and not _runs_something(cycle, machine):
            give_back(cycle, machine, f"given back: {machine.detail}")
        elif _is_idle(machine):
            state = cycle.ledger.fleet.pools[machine.pool]
            _look_at(cycle, state, give_back_at(machine, state, cycle.standing.rules.rent_keep_s))


def look(cycle: Cycle, state: PoolState) -> None:
    """Once it may be time to give a machine back; one timer for each pool, however often this is asked."""
    _look_at(cycle, state, min((_due_at(cycle, machine, state) for machine in state.members.values()), default=inf))


def release(cycle: Cycle, row: int) -> None:
    """Give back the idle machines whose time has come, beyond what the last solve and deadlines want."""
    state, standing = cycle.ledger.fleet.pools[row], cycle.standing
    if cycle.now < state.idle_look_at:
        return  # another look was asked for since
    state.idle_look_at = inf
    if not state.rented:
        return
    if standing.proposal is None and standing.sharing is not None:
        _look_at(cycle, state, _again_at(cycle))  # nobody has said yet what is wanted
        return
    target = _wanted(cycle, state)
    excess = sum(machine.condition in _STAYING for machine in state.members.values()) - target
    for machine in tuple(state.members.values()):
        if excess <= 0:
            return
        if _is_idle(machine) and give_back_at(machine, state, standing.rules.rent_keep_s) <= cycle.now:
            idle_s = cycle.now - machine.idle_since
            detail = (
                f"given back: idle for {idle_s:.0f} s, and at {state.pool.usd_per_h:g} USD/h "
                f"{target} of {state.machines} machines are worth their price"
            )
            give_back(cycle, machine, detail)
            excess -= 1
    if excess > 0:
        look(cycle, state)


def give_back(cycle: Cycle, machine: Machine, detail: str) -> None:
    """An empty rented machine goes now."""
    assert machine.token, f"{machine.node_id} is not rented"
    assert not _runs_something(cycle, machine), f"{machine.node_id} is used by {sorted(machine.holders)}"
    forget_machine(cycle, machine)
    cycle.ledger.fleet.set_condition(machine, Condition.RELEASED, detail)
    cycle.commands.append(ReleaseNode(machine.node_id, detail))


def _wanted(cycle: Cycle, state: PoolState) -> int:
    """Machines that the last solve wants, and those that jobs with deadlines are about to move to."""
    proposal = cycle.standing.proposal
    by_pool = {} if proposal is None else dict(zip(proposal.pools, proposal.rent_machines, strict=True))
    coming = deadlines.awaits(cycle, state.row)
    return by_pool.get(state.pool.pool_id, 0) + ceil(coming / max(state.pool.shape.accelerators, 1))


def _is_idle(machine: Machine) -> bool:
    return machine.condition is Condition.UP and not machine.holders


def _due_at(cycle: Cycle, machine: Machine, state: PoolState) -> float:
    """When to look whether the machine is to go: of one that works, before its next step."""
    if _is_idle(machine):
        return max(give_back_at(machine, state, cycle.standing.rules.rent_keep_s), cycle.now)
    if state.pool.billing_step_s <= 0:
        return _again_at(cycle)
    step_at = billed_until(state.pool, machine.paid_since, cycle.now + GIVING_BACK_S + _LOOK_S) - GIVING_BACK_S
    return min(step_at, _again_at(cycle))


def _again_at(cycle: Cycle) -> float:
    return cycle.now + max(cycle.standing.rules.rent_keep_s, _LOOK_S)


def _runs_something(cycle: Cycle, machine: Machine) -> bool:
    """An attempt has a part on it; jobs that merely claim it do not count."""
    jobs = (cycle.ledger.jobs[job_id] for job_id in machine.holders)
    return any(row == machine.row for job in jobs for row, _ in job.place)


def _look_at(cycle: Cycle, state: PoolState, at: float) -> None:
    if at < state.idle_look_at:
        state.idle_look_at = at
        cycle.timers.set(at, "idle", state.row)
