"""Budgets in effect: warnings, held jobs and released machines.

People are warned at a fraction of the limit. No job starts once the money spent plus the cost of stopping exceeds the
limit; at the limit running jobs checkpoint and are held, and idle rented machines are returned. So spending exceeds the
limit by no more than what running jobs cost until they have stopped, and minimum billing that has not run out. Jobs
held because of a budget are released by themselves once there is room: with the next period, or a larger budget.
"""

from math import inf

from scheduler.core.commands import BudgetWarned
from scheduler.core.events import MoneyRestated
from scheduler.core.handlers import job_events, machine_events
from scheduler.core.placement.reservations import drop_reservation
from scheduler.core.state.fleet import MachineCondition
from scheduler.core.state.spending import NOTHING_USED, SpendingAccount
from scheduler.core.state.working_set import Cycle
from walras.states import JobState, Reason


def on_money_restated(cycle: Cycle, event: MoneyRestated) -> None:
    """Takes over what has been spent by the shell's accounts."""
    cycle.spending.restate(event.spent, event.users, event.budgets)
    cycle.spending.next_month_at = event.next_month_at


def settle_budgets(cycle: Cycle) -> None:
    """Runs before any start: sends warnings, holds and releases jobs, closes and opens accounts."""
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
    """Runs after starts: sets timers for the instants at which accounts reach their next limit."""
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
    """Releases jobs that were held because of an account that is open again."""
    spending = cycle.spending
    for job_id in sorted(spending.held):
        job = cycle.ledger.jobs[job_id]
        if job.state is JobState.HELD and job.hold_reason is Reason.HOLD_BUDGET and spending.closed_to(job) is None:
            spending.held.discard(job_id)
            job_events.release_job(cycle, job)
        elif job.state is JobState.HELD and job.hold_reason is not Reason.HOLD_BUDGET:
            spending.held.discard(job_id)


def _release_idle_machines(cycle: Cycle) -> None:
    """Releases every rented machine that holds no job, because no job may start."""
    for machine in cycle.ledger.fleet.machines:
        if machine is None or not machine.token or machine.condition is not MachineCondition.UP or machine.holders:
            continue
        machine_events.release_machine(cycle, machine, "given back: the budget of the cluster is spent")
