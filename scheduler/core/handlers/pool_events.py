"""Pools that are declared, repriced, drained and removed.

A pool's row is its position in many arrays, so a removed pool keeps its row: nothing fits it, it has no machines and no
price, nothing is rented there, and listings leave it out (`Pool.removed`). If it is declared again it gets the same
row. A restarted core never hears of it.
"""

from math import inf

from scheduler.core.events import NodeLeaving, PoolDeclared, PoolRemoved
from scheduler.core.handlers.deadlines import leave_pool
from scheduler.core.handlers.machine_events import ask_for_least, on_node_leaving
from scheduler.core.restore_events import RentRestored
from scheduler.core.state.fleet import MachineCondition, PoolState
from scheduler.core.state.working_set import Cycle, refresh_pools
from walras.states import Reason

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
    cycle.ledger.columns.forget_pool(row, cycle.now)
    leave_pool(cycle, row)
    cycle.ledger.slow_machines.is_due = True
    refresh_pools(cycle)


def on_rent_restored(cycle: Cycle, event: RentRestored) -> None:
    """Restores a request for machines that was made before the core was restarted."""
    row = cycle.ledger.fleet.pool_row(event.pool_id)
    assert row is not None, f"machines of {event.pool_id} are awaited, which is not declared"
    cycle.ledger.fleet.pools[row].awaited[event.token] = event.machines


def _drain(cycle: Cycle, state: PoolState) -> None:
    """Drains each machine of the pool gently and returns it once it is empty; the pool gets no new jobs or machines."""
    leave_pool(cycle, state.row)
    for machine in list(state.members.values()):
        if machine.condition in _FOLLOWING:
            leaving = NodeLeaving(cycle.now, machine.node_id, inf, Reason.HOLD_ADMIN, gentle=True)
            on_node_leaving(cycle, machine, leaving)
        if machine.token:
            cycle.backlog.emptied[machine.row] = None
