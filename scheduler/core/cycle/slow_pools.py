"""Slow machines as pools of their own: plans and shares see their speed, and their accelerators have a price.

Which machines are slow, and how slow, is found from reports (`state/slow_machines.py`). The slow ones of a declared
pool are counted to a pool beside it, named after it with `~slow`: there a gang has the declared pool's speed times the
median pace of these machines. The policy weighs it as it does any slower type. The machines go back once reports say
that they are as fast as the others again. Everything outside the core knows only the declared pool.

A gang is then either on slow machines or on others, never on both. So the machines of a pool stay together while an
active job could not run on those that are left but could on all, and where all machines of the pool are slow. They also
stay together if the policy ranks jobs and has no prices (gangs then go to slow machines last, `placement/search.py`),
if the pool's machines are rented or to be drained, and if machines of it are booked.

A machine changes its pool with the jobs on it. It waits for that while a gang holds other machines as well, two jobs
share an accelerator there, or a place is reserved. A restarted core has the pools that the core before it had, unless
gangs have been placed on both kinds of machines since these were written down.
"""

from dataclasses import replace
from math import inf
from statistics import median

import numpy as np

from scheduler.core.events import RememberedPace
from scheduler.core.rules import OWED
from scheduler.core.state.fleet import FleetMachine, MachineCondition, PoolState
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.working_set import Cycle, refresh_pools
from walras.cluster import NodeId, Placement
from walras.job_request import project_of

#: Difference of the machines' median pace from the pool's at which the pool's is set anew.
_PACE_BAND = 0.05
#: Minimum of slow machines that form a pool of their own.
LEAST_MACHINES = 1


def sort_slow_machines(cycle: Cycle) -> bool:
    """Counts slow machines to pools of their own, and others back; returns whether any changed its pool.

    It does so between solves, once a round and where a machine has become slow or fast: an answer is carried out with
    the pools that it was asked about.
    """
    known = cycle.ledger.slow_machines
    if not (known.is_due or cycle.due.compares) or cycle.solves.in_flight:
        return False
    known.is_due = False
    fleet = cycle.ledger.fleet
    slow: dict[int, list[FleetMachine]] = {row: [] for row in known.pools}
    known.met = {project_of(job.request.kind) for job in cycle.ledger} if known.slow else set()
    for node_id in known.slow_for_all(known.met):
        machine = fleet.machine(node_id)
        if machine is not None:
            slow.setdefault(fleet.declared_row(machine.pool), []).append(machine)
    changed = False
    for row, machines in sorted(slow.items()):
        changed = _sort_pool(cycle, row, machines if _may_be_apart(cycle, row, machines) else []) or changed
    if changed:
        refresh_pools(cycle)
    return changed


def restore_slow_pools(cycle: Cycle, told: tuple[RememberedPace, ...]) -> None:
    """Takes over which machines are slow, and sets those apart that were; runs before the jobs are restored."""
    known, fleet = cycle.ledger.slow_machines, cycle.ledger.fleet
    known.recall(told, fleet)
    apart: dict[int, list[FleetMachine]] = {}
    for node_id in dict.fromkeys(each[0] for each in told if each[1] is not None and each[2]):
        machine = fleet.machine(node_id)
        if machine is not None:
            apart.setdefault(machine.pool, []).append(machine)
    for row, machines in sorted(apart.items()):
        if _may_be_apart(cycle, row, machines):
            _sort_pool(cycle, row, machines)
            refresh_pools(cycle)
    known.is_due = False  # not before all jobs are here, one of which may need the machines together


def row_of_gang(cycle: Cycle, placement: Placement) -> int | None:
    """Returns the row of the pool of a restored gang; None if it is not declared.

    If the gang is on slow machines and on others, all slow machines of the pool go back to the others.
    """
    fleet = cycle.ledger.fleet
    row = fleet.pool_row(placement.pool_id)
    beside = None if row is None else cycle.ledger.slow_machines.pools.get(row)
    machines = [machine for part in placement.parts if (machine := fleet.machine(part.node_id)) is not None]
    rows = {machine.pool for machine in machines}
    if row is None or beside is None or beside not in rows:
        return row
    if rows == {beside}:
        return beside
    for machine in list(fleet.pools[beside].members.values()):
        _reassign(cycle, machine, row)
    fleet.pools[beside].pool = replace(fleet.pools[row].pool, removed=True)
    refresh_pools(cycle)
    return row


def slow_machine_text(ledger: Ledger, node_id: NodeId) -> str:
    """Returns what people are told of a slow machine; empty if it is not known to be slow."""
    told, machine = ledger.slow_machines.told(node_id), ledger.fleet.machine(node_id)
    state = None if machine is None else ledger.fleet.pools[machine.pool]
    if not told or state is None or state.slow_of is None:
        return told
    return f"{told}; its accelerators have a price of their own, as {state.name}"


# ------------------------------------------------------------------------------------------------ whether


def _may_be_apart(cycle: Cycle, row: int, slow: list[FleetMachine]) -> bool:
    """Returns whether these slow machines of a declared pool may form a pool of their own."""
    ledger, policy = cycle.ledger, cycle.policy
    pool = ledger.fleet.pools[row].pool
    if len(slow) < LEAST_MACHINES or policy.pricing is None or policy.rules.mechanism != OWED:
        return False
    if ledger.fleet.pools[row].rented or pool.drained or pool.removed:
        return False
    rows = {row, ledger.slow_machines.pools.get(row, row)}
    machines = [each for each in ledger.fleet.machines if each is not None and each.pool in rows]
    booked = {node_id for booking in cycle.bookings.declared for node_id in booking.node_ids}
    if any(each.node_id in booked for each in machines):
        return False
    up = sum(each.size for each in machines if each.condition is MachineCondition.UP)
    left = up - sum(each.size for each in slow if each.condition is MachineCondition.UP)
    return left > 0 and not _needs_together(cycle, row, left, up)


def _needs_together(cycle: Cycle, row: int, left: int, up: int) -> bool:
    """Returns whether an active job's smallest gang fits the `up` accelerators of the pool, but not the `left` ones."""
    ledger = cycle.ledger
    classes, columns, size = ledger.classes, ledger.columns, ledger.fleet.pools[row].pool.shape.accelerators
    for class_row in np.unique(columns.class_row[columns.active]).tolist():
        needs = [inf]
        for each in classes.options(class_row):
            nodes, count = classes.classes[each].request.nodes, classes.count(each, row)
            needs += [max(count, size * nodes if nodes > 1 else 0)] if count else []
        if left < min(needs) <= up:
            return True
    return False


# ------------------------------------------------------------------------------------------------ how


def _sort_pool(cycle: Cycle, row: int, slow: list[FleetMachine]) -> bool:
    """Leaves exactly these machines of a declared pool in the pool beside it. Returns whether anything changed."""
    fleet, known = cycle.ledger.fleet, cycle.ledger.slow_machines
    beside = known.pools.get(row)
    rows = {machine.row for machine in slow}
    back = [] if beside is None else [each for each in fleet.pools[beside].members.values() if each.row not in rows]
    back = [machine for machine in back if _can_change(cycle, machine)]
    out = [machine for machine in slow if machine.pool == row and _can_change(cycle, machine)]
    if beside is None:
        if not out:
            return False
        beside = known.pools[row] = _add_pool(cycle, row).row
    for machine in back:
        _reassign(cycle, machine, row)
    for machine in out:
        _reassign(cycle, machine, beside)
    state, whole = fleet.pools[beside], fleet.pools[row].pool
    pool = whole if state.members else replace(whole, removed=True)
    pace = round(median(known.pace(each.node_id) for each in slow), 2) if slow else state.pace
    is_stale = pool != state.pool or abs(pace - state.pace) > _PACE_BAND
    if is_stale:
        state.pool, state.pace, state.lives = pool, pace, fleet.pools[row].lives
    return bool(back or out) or is_stale


def _add_pool(cycle: Cycle, row: int) -> PoolState:
    """Adds a pool without machines beside a declared one; their machines' lives are recorded together."""
    pools = cycle.ledger.fleet.pools
    whole = pools[row]
    buckets: list[list[int]] = [[] for _ in whole.buckets]
    pools.append(PoolState(whole.pool, len(pools), buckets=buckets, lives=whole.lives, slow_of=row))
    cycle.ledger.columns.set_pools(len(pools))
    return pools[-1]


def _can_change(cycle: Cycle, machine: FleetMachine) -> bool:
    """Returns whether the machine may change its pool now: each job on it is there alone, and no place is reserved."""
    if machine.shared or machine.closed or machine.row in cycle.reserved_on:
        return False
    jobs = [cycle.ledger.jobs[job_id] for job_id in machine.holders]
    return all(len(job.place) == 1 and job.job_id not in cycle.reservations for job in jobs)


def _reassign(cycle: Cycle, machine: FleetMachine, row: int) -> None:
    """Counts a machine to another pool, and what its jobs hold and are entitled to there."""
    fleet, before = cycle.ledger.fleet, machine.pool
    condition, detail = machine.condition, machine.detail
    fleet.set_condition(machine, MachineCondition.LEAVING)
    for state, change in ((fleet.pools[before], -1), (fleet.pools[row], 1)):
        state.machines += change
    if machine.counted_tools is not None:
        fleet.pools[before].tools.recount(machine.counted_tools, None)
        fleet.pools[row].tools.recount(None, machine.counted_tools)
    del fleet.pools[before].members[machine.row]
    for bucket in fleet.pools[before].buckets:
        bucket[:] = sorted(each for each in bucket if each != machine.row)  # a sorted list is a heap
    fleet.pools[row].members[machine.row] = machine
    machine.pool = row
    fleet.set_condition(machine, condition, detail)
    for job_id in machine.holders:
        _follow(cycle, cycle.ledger.jobs[job_id], before, row)


def _follow(cycle: Cycle, job: JobRecord, before: int, row: int) -> None:
    """Counts a job that runs on such a machine to its new pool, with its kind's own speed."""
    ledger, columns = cycle.ledger, cycle.ledger.columns
    columns.settle(job.slot, cycle.now)
    columns.pool[job.slot] = row
    for column in columns.by_pool:
        column[job.slot, row] += column[job.slot, before]
        column[job.slot, before] = 0.0
    if job.deadline_pool == before:
        job.deadline_pool = row
    if ledger.fleet.pools[row].slow_of is not None and ledger.kind_of(job) != job.request.kind:
        ledger.change_kind(job, job.request.kind)  # it was slow because of the machine
    job.ends_version = -1
