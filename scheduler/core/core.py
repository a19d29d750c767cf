"""The core and its only entry point: `SchedulerCore.handle(event) -> [commands]`.

This file only dispatches. Each event goes to its handler (`_HANDLERS`); then the concerns are settled in a stated order
(`_CONCERNS`): collect, then order, solve and place, then emit. Reports about a job, an attempt or a machine that the
core does not know (any more) are dropped here.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from optimizer.policy import Policy, PolicySpec, stand_in
from optimizer.registry import make
from scheduler.core import events as ev
from scheduler.core import speed_events as speeds
from scheduler.core.commands import Command, WakeAt
from scheduler.core.cycle.backfill import settle_limits
from scheduler.core.cycle.round import MECHANISMS, MakeMechanism
from scheduler.core.events import JobRestored
from scheduler.core.handlers import (
    attempt_events,
    booking_windows,
    budgets,
    deadlines,
    job_events,
    machine_events,
    owned_returns,
    policy_events,
    quarantine,
    restored_state,
    speed_reports,
)
from scheduler.core.placement.retry_waits import let_waiting_jobs_go_on
from scheduler.core.state.fleet import FleetMachine
from scheduler.core.state.job_queues import JobQueues
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.working_set import NOTHING_DUE, Cycle
from walras.job_request import JobId

#: Function that applies one event to the cycle.
Handler = Callable[[Cycle, Any], None]


class SchedulerCore:
    """The scheduler's state machine: the same events give the same commands in server, simulator and replay.

    It is pure. The first event must be `PolicyChanged`. `make_policy` and `mechanisms` resolve the names in a policy
    file.
    """

    def __init__(
        self,
        make_policy: Callable[[PolicySpec], Policy] = make,
        mechanisms: Mapping[str, MakeMechanism] = MECHANISMS,
    ) -> None:
        self.ledger = Ledger()
        self._cycle = Cycle(self.ledger, JobQueues(self.ledger))
        self._make_policy = make_policy
        self._mechanisms = mechanisms
        self._handlers: dict[type, Handler] = {**_HANDLERS, ev.PolicyChanged: self._policy_changed}

    @property
    def cycle(self) -> Cycle:
        """Returns the working set, for invariants and explanations. Callers must not change it."""
        return self._cycle

    def handle(self, event: ev.Event) -> list[Command]:
        """Applies one event. Returns the commands that answer it, in order."""
        cycle, ledger, at = self._cycle, self.ledger, event.at
        assert at >= ledger.now, f"time went back: {event} at {ledger.now}"
        ledger.usage.owned.pass_time(ledger, at, ledger.usage.half_life_s)
        ledger.now = cycle.now = at
        ledger.event_number += 1
        cycle.commands, cycle.due = [], NOTHING_DUE
        if cycle.timers.next_at <= at:
            _run_timers(cycle)
        if type(event) not in _TELLS_NOTHING:
            cycle.solves.told_at_event = ledger.event_number
        self._handlers[type(event)](cycle, event)
        # No place is free for a move before all who hold places are told.
        waits = deadlines.settle_deadlines if isinstance(event, JobRestored) and event.placement is not None else None
        if cycle.mechanism is not None:
            for has_work, settle in _CONCERNS:
                if settle is not waits and has_work(cycle):
                    settle(cycle)
        return cycle.commands

    def _policy_changed(self, cycle: Cycle, event: ev.PolicyChanged) -> None:
        policy = self._make_policy(event.policy) if event.asked is None else stand_in(event.asked)
        policy_events.on_policy_changed(cycle, event, policy, self._mechanisms[event.rules.mechanism])


def _settle_spot(cycle: Cycle) -> None:
    """Lets jobs with a deadline hold spot machines by their slack."""
    from scheduler.core.handlers.spot_holding import settle_spot_holding  # only few runs need its planner

    settle_spot_holding(cycle)


def _settle_round(cycle: Cycle) -> None:
    """Orders the jobs, solves and places by the mechanism in force (`cycle/round.py`)."""
    assert cycle.mechanism is not None
    cycle.mechanism.settle(cycle)


def _ask_to_be_woken(cycle: Cycle) -> None:
    """Tells the shells when to call the core again."""
    timers = cycle.timers
    if timers.next_at < timers.asked_at or timers.asked_at <= cycle.now:
        timers.asked_at = timers.next_at
        if timers.next_at < inf:
            cycle.commands.append(WakeAt(timers.next_at))


#: What is settled after every event, in this order, each where there is something to settle.
_CONCERNS: tuple[tuple[Callable[[Cycle], object], Callable[[Cycle], None]], ...] = (
    # Collect: which jobs may run, and where.
    (lambda cycle: cycle.spending.has_news, budgets.settle_budgets),
    (
        lambda cycle: cycle.bookings.declared or cycle.bookings.rows or cycle.bookings.barred,
        booking_windows.settle_bookings,
    ),
    (lambda cycle: cycle.ledger.retries.waiting, let_waiting_jobs_go_on),
    (lambda cycle: cycle.deadlines.heap or cycle.deadlines.market.holds, _settle_spot),
    (lambda cycle: cycle.deadlines.heap or cycle.deadlines.secured, deadlines.settle_deadlines),
    (
        lambda cycle: cycle.limits.are_asked or cycle.limits.parked or cycle.limits.barred or cycle.reservations,
        settle_limits,
    ),
    (lambda cycle: cycle.ledger.usage.owned.claims, owned_returns.settle_owned_places),
    # Order, solve, place.
    (lambda cycle: True, _settle_round),
    # Emit: what follows from the starts.
    (lambda cycle: cycle.spending.has_news, budgets.settle_budgets_after_starts),
    (lambda cycle: cycle.backlog.emptied, machine_events.settle_idle_machines),
    (lambda cycle: True, _ask_to_be_woken),
)


def _run_timers(cycle: Cycle) -> None:
    """Runs every timer that is due. Timers without a handler only wake the core."""
    while (due := cycle.timers.due(cycle.now)) is not None:
        kind, subject, number = due
        if kind not in _OF_TIME_ALONE:
            cycle.solves.told_at_event = cycle.ledger.event_number
        handler = _TIMERS.get(kind)
        if handler is not None:
            handler(cycle, subject, number)


# ------------------------------------------------------------------------------------------------ preconditions


def _of_job(handler: Callable[[Cycle, JobRecord, Any], None]) -> Handler:
    """Returns the handler guarded so that it only sees events about active jobs."""

    def handle(cycle: Cycle, event: Any) -> None:
        job = cycle.ledger.jobs.get(event.job_id)
        if job is not None:
            handler(cycle, job, event)

    return handle


def _of_attempt(handler: Callable[[Cycle, JobRecord, Any], None]) -> Handler:
    """Guards a handler of attempt reports: it only sees those of a job's current attempt that holds its place."""

    def handle(cycle: Cycle, event: Any) -> None:
        job = cycle.ledger.jobs.get(event.job_id)
        if job is not None and job.attempt == event.attempt and job.place:
            handler(cycle, job, event)

    return handle


def _of_machine(handler: Callable[[Cycle, FleetMachine, Any], None]) -> Handler:
    """Returns the handler guarded so that it only sees events about machines that the fleet has."""

    def handle(cycle: Cycle, event: Any) -> None:
        machine = cycle.ledger.fleet.machine(event.node_id)
        if machine is not None:
            handler(cycle, machine, event)

    return handle


def _of_timed_job(handler: Callable[[Cycle, JobRecord, int], None]) -> Callable[[Cycle, int, int], None]:
    """Guards a handler of job timers: it only sees active jobs, and gets the attempt for which a timer was set."""

    def handle(cycle: Cycle, job_id: int, attempt: int) -> None:
        job = cycle.ledger.jobs.get(JobId(job_id))
        if job is not None:
            handler(cycle, job, attempt)

    return handle


_HANDLERS: dict[type, Handler] = {
    ev.PoolDeclared: machine_events.on_pool_declared,
    ev.PoolRemoved: machine_events.on_pool_removed,
    ev.NodeJoined: machine_events.on_node_joined,
    ev.NodeUnreachable: _of_machine(machine_events.on_node_unreachable),
    ev.NodeBack: _of_machine(machine_events.on_node_back),
    ev.NodeLost: _of_machine(machine_events.on_node_lost),
    ev.NodeLeaving: _of_machine(machine_events.on_node_leaving),
    ev.NodeUncordoned: _of_machine(machine_events.on_node_uncordoned),
    ev.NodeQuarantined: _of_machine(machine_events.on_node_quarantined),
    ev.NodeUnfit: _of_machine(quarantine.on_node_unfit),
    ev.NodeFit: _of_machine(quarantine.on_node_fit),
    ev.NodePrivate: _of_machine(machine_events.on_node_private),
    ev.NodeTools: _of_machine(machine_events.on_node_tools),
    ev.NodeData: _of_machine(machine_events.on_node_data),
    ev.RentFailed: machine_events.on_rent_failed,
    ev.StateRestored: restored_state.on_state_restored,
    ev.RentRestored: machine_events.on_rent_restored,
    ev.MoneyRestated: budgets.on_money_restated,
    ev.JobSubmitted: job_events.on_job_submitted,
    JobRestored: job_events.on_job_restored,
    ev.JobCancelled: _of_job(job_events.on_job_cancelled),
    ev.JobHeld: _of_job(lambda cycle, job, event: job_events.hold_job(cycle, job, event.reason)),
    ev.JobReleased: _of_job(lambda cycle, job, _: job_events.release_job(cycle, job)),
    ev.JobReprioritised: _of_job(job_events.on_job_reprioritised),
    ev.JobBudgetChanged: _of_job(job_events.on_job_budget_changed),
    ev.JobRedirected: _of_job(job_events.on_job_redirected),
    ev.JobProjectChanged: _of_job(job_events.on_job_project_changed),
    ev.JobDeadlineChanged: _of_job(deadlines.on_job_deadline_changed),
    speeds.WorkRestated: _of_job(job_events.on_work_restated),
    ev.Prepared: _of_attempt(attempt_events.on_prepared),
    ev.StartRefused: _of_attempt(job_events.on_start_refused),
    ev.AttemptStarted: _of_attempt(lambda cycle, job, _: attempt_events.mark_running(cycle, job)),
    ev.AttemptProgressed: _of_attempt(attempt_events.on_attempt_progressed),
    ev.CheckpointRecorded: _of_attempt(attempt_events.on_checkpoint_recorded),
    ev.AttemptEnded: _of_attempt(attempt_events.on_attempt_ended),
    ev.RoundEnded: attempt_events.on_round_ended,
    speeds.ThroughputMeasured: speed_reports.on_throughput_measured,
    speeds.SpeedsPredicted: speed_reports.on_speeds_predicted,
    speeds.FactsTold: speed_reports.on_model_facts,
    speeds.NetworkMeasured: _of_attempt(speed_reports.on_network_measured),
    speeds.NetworkKnown: speed_reports.on_network_known,
    speeds.SpeedDiffers: _of_attempt(speed_reports.on_speed_differs),
    speeds.RestartMeasured: speed_reports.on_restart_measured,
    ev.BookingsDeclared: booking_windows.on_bookings_declared,
    ev.SharesDeclared: policy_events.on_shares_declared,
    ev.Woke: policy_events.on_woke,
    ev.Solved: policy_events.on_solved,
    ev.JobsRanked: policy_events.on_jobs_ranked,
    ev.SolveFailed: policy_events.on_solve_failed,
}

#: Events and timers that tell of nothing but that time has passed, and the answer to what was asked before.
_TELLS_NOTHING = (ev.Woke, ev.Solved, ev.JobsRanked)
_OF_TIME_ALONE = ("round", "gate")

#: Handlers by kind of timer. Each gets the timer's subject and number (`Timers.set`).
_TIMERS: dict[str, Callable[[Cycle, int, int], None]] = {
    "round": policy_events.on_round_timer,
    "gate": policy_events.on_solve_timer,
    "idle": machine_events.on_idle_timer,
    "drain": machine_events.on_drain_timer,
    "trial": quarantine.on_trial_timer,
    "rent": machine_events.on_rent_timer,
    "ready": _of_timed_job(job_events.on_job_ready),
    "max_queue": _of_timed_job(job_events.on_max_queue_time),
    "max_runtime": _of_timed_job(job_events.on_max_runtime),
    "prepare": _of_timed_job(job_events.on_prepare_timeout),
}
