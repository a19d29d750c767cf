"""Budgets: people are warned at a part of the limit; no job starts once money spent plus the cost of stopping
exceeds the limit; at the limit running jobs checkpoint and are held, and idle rented machines are given back.

So no more is spent than the limit, what running jobs cost until they have stopped, and minimum billing that has not
run out. Jobs held because of a budget go on by themselves once there is room: with the next month, or a larger
budget.
"""

from math import inf

from scheduler.core.commands import BudgetWarned
from scheduler.core.events import MoneyRestated
from scheduler.core.handlers import job_events, machine_events
from scheduler.core.placement.reservations import drop_reservation
from scheduler.core.state.fleet import MachineCondition
from scheduler.core.state.spending_accounts import NOTHING_USED, SpendingAccount
from scheduler.core.state.working_set import Cycle
from walras.states import JobState, Reason


def on_money_restated(cycle: Cycle, event: MoneyRestated) -> None:
    """What has been spent by the books of the shell."""
    cycle.spending.restate(event.spent, event.users, event.budgets)
    cycle.spending.next_month_at = event.next_month_at


def settle_budgets(cycle: Cycle) -> None:
    """Before anything is started: warn, hold, close, open."""
    spending = cycle.spending
    changed = spending.take_changed()
    opened = False
    for account in changed:
        if not account.is_limited and not account.closed:
            continue
        was_closed = account.closed
        if spending.check(account):
            cycle.solves.problem_changed = cycle.backlog.rebuild_queues = True
            opened = opened or was_closed
        _warn(cycle, account)
        if account.is_exhausted:
            _hold(cycle, account)
        _set_budget_timer(cycle, account)
    if opened or (changed and spending.held):
        _release_held(cycle)
    if opened:
        cycle.backlog.arrived += [job.job_id for job in cycle.ledger.jobs.values() if job.waits]
    if spending.everything.closed:
        spending.everything.settle(cycle.now)
        if spending.everything.is_exhausted:
            _release_idle_machines(cycle)


def settle_budgets_after_starts(cycle: Cycle) -> None:
    """After jobs were started: set timers for the instants at which accounts reach their next limit."""
    for account in cycle.spending.take_changed():
        if account.is_limited:
            cycle.spending.check(account)
            _set_budget_timer(cycle, account)


def _set_budget_timer(cycle: Cycle, account: SpendingAccount) -> None:
    before = account.due_at
    due_at = cycle.spending.set_due(account)
    if due_at < inf and due_at != before:
        cycle.timers.set(due_at, "budget")


def _warn(cycle: Cycle, account: SpendingAccount) -> None:
    for spent, limit, of in account.limits():
        if not account.warned and spent >= account.warn_at * limit - NOTHING_USED:
            account.warned = True
            told = f"{spent / max(limit, 1e-12):.0%}{of}"
            cycle.commands.append(BudgetWarned(account.name, spent, limit, told, account.unit))


def _hold(cycle: Cycle, account: SpendingAccount) -> None:
    for job in cycle.spending.members(account):
        if job.job_id in cycle.reservations and not job.holds:
            drop_reservation(cycle, job.job_id)
        if job.holds and job.revoked is None:
            cycle.spending.held.add(job.job_id)
            job_events.hold_job(cycle, job, Reason.HOLD_BUDGET)


def _release_held(cycle: Cycle) -> None:
    """Release jobs that were held because of an account that is open again."""
    spending = cycle.spending
    for job_id in sorted(spending.held):
        job = cycle.ledger.jobs[job_id]
        if job.state is JobState.HELD and job.hold_reason is Reason.HOLD_BUDGET and spending.closed_to(job) is None:
            spending.held.discard(job_id)
            job_events.release_job(cycle, job)
        elif job.state is JobState.HELD and job.hold_reason is not Reason.HOLD_BUDGET:
            spending.held.discard(job_id)


def _release_idle_machines(cycle: Cycle) -> None:
    """No job may start, so every rented machine that holds none is released now."""
    for machine in cycle.ledger.fleet.machines:
        if machine is None or not machine.token or machine.condition is not MachineCondition.UP or machine.holders:
            continue
        machine_events.release_machine(cycle, machine, "given back: the budget of the cluster is spent")
