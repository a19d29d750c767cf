"""The core behind one entrance: `SchedulerCore.handle(event) -> [commands]`.

This file only dispatches. Each event goes to its handler; then the round mechanism in force turns what changed into
starts, stops and solve requests (`cycle/round.py`), and a `WakeAt` tells the shells when to call the core again.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from optimizer.policy import OrderPolicy, Policy, PolicySpec
from optimizer.registry import make
from scheduler.core import events as ev
from scheduler.core.commands import Command, WakeAt
from scheduler.core.cycle import solve_requests
from scheduler.core.cycle.round import MECHANISMS, MakeMechanism
from scheduler.core.events import JobBudgetChanged, MoneyRestated
from scheduler.core.handlers import attempt_events, budgets, deadlines, job_events, machine_events, speed_reports
from scheduler.core.handlers.attempt_events import (
    mark_running,
    on_attempt_progressed,
    on_checkpoint_recorded,
    on_prepared,
    on_round_ended,
)
from scheduler.core.handlers.machine_events import on_node_quarantined, on_rent_restored
from scheduler.core.placement import attempt_lifecycle
from scheduler.core.placement.reservations import settle_reservation
from scheduler.core.speed_events import (
    FactsTold,
    NetworkKnown,
    NetworkMeasured,
    RestartMeasured,
    SpeedDiffers,
    SpeedsPredicted,
    ThroughputMeasured,
)
from scheduler.core.state.job_queues import JobQueues
from scheduler.core.state.ledger import ActivePolicy, JobRecord, Ledger
from scheduler.core.state.working_set import Cycle, RoundMechanism
from walras.job_request import JobId


class SchedulerCore:
    """Pure: the same events give the same commands, whoever sends them. The first event is `PolicyChanged`.

    `make_policy` and `mechanisms` are what a policy file's names stand for.
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

    @property
    def cycle(self) -> Cycle:
        """The working set, for invariants and explanations: read only."""
        return self._cycle

    def handle(self, event: ev.Event) -> list[Command]:
        """Take in one event; what is to be done about it, in order."""
        cycle, ledger, at = self._cycle, self.ledger, event.at
        assert at >= ledger.now, f"time went back: {event} at {ledger.now}"
        ledger.now = cycle.now = at
        ledger.turn += 1
        cycle.commands = []
        if cycle.timers.next_at <= at:
            self._run_timers()
        _HANDLERS[type(event)](self, event)
        if cycle.mechanism is not None:
            self._settle(cycle, cycle.mechanism)
        return cycle.commands

    # -------------------------------------------------------------------------------------------- after an event

    def _settle(self, cycle: Cycle, mechanism: RoundMechanism) -> None:
        if cycle.spending.has_news:
            budgets.settle_budgets(cycle)
        if cycle.deadlines or cycle.secured:
            deadlines.settle_deadlines(cycle)
        mechanism.settle(cycle)
        if cycle.spending.has_news:
            budgets.settle_budgets_after_starts(cycle)
        if cycle.emptied:
            machine_events.settle_idle_machines(cycle)
        timers = cycle.timers
        if timers.next_at < timers.asked_at or timers.asked_at <= cycle.now:
            timers.asked_at = timers.next_at
            if timers.next_at < inf:
                cycle.commands.append(WakeAt(timers.next_at))

    # -------------------------------------------------------------------------------------------- timers

    def _run_timers(self) -> None:
        cycle = self._cycle
        while (due := cycle.timers.due(self.ledger.now)) is not None:
            what, subject, number = due
            if what == "round":
                cycle.round_timer_at = inf
                cycle.round_ended = self._cycle.refill = True
                limit_s = cycle.policy.rules.owed_limit_s
                self.ledger.columns.settle_all(self.ledger.now, limit_s)
            elif what == "gate":
                cycle.gate_timer_at = inf
            elif what == "idle":
                machine_events.release_idle_machines(cycle, subject)
            elif what == "rent":
                machine_events.retry_rent(cycle, subject)
            elif (job := self.ledger.jobs.get(JobId(subject))) is not None:
                self._job_timer(what, job, number)

    def _job_timer(self, what: str, job: JobRecord, attempt: int) -> None:
        cycle = self._cycle
        if what == "ready":
            job_events.on_job_ready(cycle, job)
            if (reservation := cycle.reservations.get(job.job_id)) is not None:
                settle_reservation(cycle, reservation)
        elif what == "max_queue":
            job_events.on_max_queue_time(cycle, job)
        elif what == "max_runtime":
            job_events.on_max_runtime(cycle, job, attempt)
        elif what == "prepare" and job.attempt == attempt and job.holds and not attempt_lifecycle.is_prepared(job):
            job_events.on_prepare_timeout(cycle, job)

    # -------------------------------------------------------------------------------------------- policy, answers

    def _policy_changed(self, event: ev.PolicyChanged) -> None:
        cycle = self._cycle
        policy = self._make_policy(event.policy)
        pricing = None if isinstance(policy, OrderPolicy) else policy
        self.ledger.policy = cycle.policy = ActivePolicy(event.policy, pricing, event.rules)
        self.ledger.costs.version += 1
        cycle.ordering = None
        self.ledger.columns.counts_owed = pricing is not None
        cycle.spending.set_budgets(event.rules.budgets)
        cycle.mechanism = self._mechanisms[event.rules.mechanism](cycle, policy, event.rules)
        for job in self.ledger:
            if job.request.sizes:  # until the new policy says something else it is to run as it asked to
                self.ledger.reclass(job, self.ledger.classes.row(job.request))
        columns = self.ledger.columns
        columns.settle_all(event.at, inf)
        columns.entitled[:] = 0.0
        columns.owed[:] = 0.0
        columns.promised[:] = 0.0
        columns.delivered[:] = 0.0
        cycle.void_up_to = cycle.last_request
        cycle.dirty = True
        cycle.asked_at = -inf
        self._cycle.refill = True

    def _pool_declared(self, event: ev.PoolDeclared) -> None:
        machine_events.on_pool_declared(self._cycle, event)
        self._cycle.refill = True

    def _solved(self, event: ev.Solved) -> None:
        if solve_requests.apply_proposal(self._cycle, event):
            deadlines.entitle_secured_jobs(self._cycle)
            machine_events.rent_for_proposal(self._cycle, event.proposal)
            self._cycle.refill = self._cycle.round_ended = self._cycle.answered = True

    def _solve_failed(self, event: ev.SolveFailed) -> None:
        if event.request_id == self._cycle.in_flight:
            self._cycle.in_flight = 0
            self._cycle.dirty = self._cycle.round_ended = self._cycle.answered = True

    def _rent_failed(self, event: ev.RentFailed) -> None:
        machine_events.on_rent_failed(self._cycle, event)

    def _woke(self, event: ev.Woke) -> None:
        """Timers have run already. Whatever was asked for is spent: ask for the next instant again."""
        self._cycle.timers.asked_at = inf

    # -------------------------------------------------------------------------------------------- speeds

    def _throughput_measured(self, event: ThroughputMeasured) -> None:
        if self.ledger.table.tell(event.kind, event.accelerator, event.count, event.steps_per_s):
            self.ledger.classes.refresh_kind(event.kind)
            self._cycle.dirty = True

    def _speeds_predicted(self, event: SpeedsPredicted) -> None:
        changed = [told.kind for told in event.speeds if self.ledger.table.predict(told)]
        for kind in dict.fromkeys(changed):
            self.ledger.classes.refresh_kind(kind)
            self._cycle.dirty = True

    def _facts_told(self, event: FactsTold) -> None:
        self.ledger.facts.tell(event.kind, event.facts, counted=event.counted)

    def _network_measured(self, event: NetworkMeasured) -> None:
        if (job := self._current(event)) is not None:
            speed_reports.on_network_measured(self._cycle, job, event)

    def _network_known(self, event: NetworkKnown) -> None:
        self.ledger.networks.saw(event.pool_id, event.bytes_per_s)

    def _speed_differs(self, event: SpeedDiffers) -> None:
        if (job := self._current(event)) is not None:
            speed_reports.on_speed_differs(self._cycle, job, event)

    def _restart_measured(self, event: RestartMeasured) -> None:
        self.ledger.costs.saw_start(event.kind, event.restart_s)

    # -------------------------------------------------------------------------------------------- jobs and attempts

    def _job_submitted(self, event: ev.JobSubmitted) -> None:
        job_events.on_job_submitted(self._cycle, event)

    def _job_restored(self, event: ev.JobRestored) -> None:
        job_events.on_job_restored(self._cycle, event)

    def _rent_restored(self, event: ev.RentRestored) -> None:
        on_rent_restored(self._cycle, event)

    def _money_restated(self, event: MoneyRestated) -> None:
        self._cycle.spending.restate(event.spent)

    def _node_quarantined(self, event: ev.NodeQuarantined) -> None:
        on_node_quarantined(self._cycle, event)

    def _on_job(self, event: Any, handler: Callable[..., None]) -> None:
        job = self.ledger.jobs.get(event.job_id)
        if job is not None:
            handler(self._cycle, job, event)

    def _job_cancelled(self, event: ev.JobCancelled) -> None:
        self._on_job(event, job_events.on_job_cancelled)

    def _job_held(self, event: ev.JobHeld) -> None:
        self._on_job(event, job_events.on_job_held)

    def _job_released(self, event: ev.JobReleased) -> None:
        self._on_job(event, job_events.on_job_released)

    def _job_reprioritised(self, event: ev.JobReprioritised) -> None:
        self._on_job(event, job_events.on_job_reprioritised)

    def _job_budget_changed(self, event: JobBudgetChanged) -> None:
        self._on_job(event, job_events.on_job_budget_changed)

    def _work_restated(self, event: ev.WorkRestated) -> None:
        self._on_job(event, job_events.on_work_restated)

    def _current(self, event: Any) -> JobRecord | None:
        """The job, if the report is about its current attempt and that attempt still holds its place."""
        job = self.ledger.jobs.get(event.job_id)
        return job if job is not None and job.attempt == event.attempt and job.holds else None

    def _prepared(self, event: ev.Prepared) -> None:
        if (job := self._current(event)) is not None:
            on_prepared(self._cycle, job, event.node_id, event.address, event.port)

    def _start_refused(self, event: ev.StartRefused) -> None:
        if (job := self._current(event)) is not None:
            job_events.on_start_refused(self._cycle, job, event)

    def _attempt_started(self, event: ev.AttemptStarted) -> None:
        if (job := self._current(event)) is not None:
            mark_running(self._cycle, job)

    def _attempt_progressed(self, event: ev.AttemptProgressed) -> None:
        if (job := self._current(event)) is not None and on_attempt_progressed(self._cycle, job, event):
            self.ledger.classes.refresh_kind(self.ledger.kind_of(job))
            self._cycle.dirty = True

    def _checkpoint_recorded(self, event: ev.CheckpointRecorded) -> None:
        if (job := self._current(event)) is not None:
            on_checkpoint_recorded(self._cycle, job, event)

    def _attempt_ended(self, event: ev.AttemptEnded) -> None:
        if (job := self._current(event)) is not None:
            attempt_events.on_attempt_ended(self._cycle, job, event)

    def _round_ended(self, event: ev.RoundEnded) -> None:
        on_round_ended(self._cycle, event)

    # -------------------------------------------------------------------------------------------- machines

    def _node_joined(self, event: ev.NodeJoined) -> None:
        machine_events.on_node_joined(self._cycle, event)

    def _on_machine(self, event: Any, handler: Callable[..., None], *more: Any) -> None:
        machine = self.ledger.fleet.machine(event.node_id)
        if machine is not None:
            handler(self._cycle, machine, *more)

    def _node_unreachable(self, event: ev.NodeUnreachable) -> None:
        self._on_machine(event, machine_events.on_node_unreachable)

    def _node_back(self, event: ev.NodeBack) -> None:
        self._on_machine(event, machine_events.on_node_back)

    def _node_lost(self, event: ev.NodeLost) -> None:
        self._on_machine(event, machine_events.on_node_lost, event.reason)

    def _node_leaving(self, event: ev.NodeLeaving) -> None:
        self._on_machine(event, machine_events.on_node_leaving, event)

    def _node_uncordoned(self, event: ev.NodeUncordoned) -> None:
        self._on_machine(event, machine_events.on_node_uncordoned)


_HANDLERS: dict[type, Callable[[SchedulerCore, Any], None]] = {
    ev.PolicyChanged: SchedulerCore._policy_changed,
    ev.PoolDeclared: SchedulerCore._pool_declared,
    ev.NodeJoined: SchedulerCore._node_joined,
    ev.NodeUnreachable: SchedulerCore._node_unreachable,
    ev.NodeBack: SchedulerCore._node_back,
    ev.NodeLost: SchedulerCore._node_lost,
    ev.NodeLeaving: SchedulerCore._node_leaving,
    ev.NodeUncordoned: SchedulerCore._node_uncordoned,
    ev.RentFailed: SchedulerCore._rent_failed,
    ev.JobSubmitted: SchedulerCore._job_submitted,
    ev.JobRestored: SchedulerCore._job_restored,
    ev.RentRestored: SchedulerCore._rent_restored,
    MoneyRestated: SchedulerCore._money_restated,
    ev.NodeQuarantined: SchedulerCore._node_quarantined,
    ev.JobCancelled: SchedulerCore._job_cancelled,
    ev.JobHeld: SchedulerCore._job_held,
    ev.JobReleased: SchedulerCore._job_released,
    ev.JobReprioritised: SchedulerCore._job_reprioritised,
    JobBudgetChanged: SchedulerCore._job_budget_changed,
    ev.WorkRestated: SchedulerCore._work_restated,
    ev.Prepared: SchedulerCore._prepared,
    ev.StartRefused: SchedulerCore._start_refused,
    ev.AttemptStarted: SchedulerCore._attempt_started,
    ev.AttemptProgressed: SchedulerCore._attempt_progressed,
    ev.CheckpointRecorded: SchedulerCore._checkpoint_recorded,
    ev.AttemptEnded: SchedulerCore._attempt_ended,
    ev.RoundEnded: SchedulerCore._round_ended,
    ThroughputMeasured: SchedulerCore._throughput_measured,
    SpeedsPredicted: SchedulerCore._speeds_predicted,
    FactsTold: SchedulerCore._facts_told,
    NetworkMeasured: SchedulerCore._network_measured,
    NetworkKnown: SchedulerCore._network_known,
    SpeedDiffers: SchedulerCore._speed_differs,
    RestartMeasured: SchedulerCore._restart_measured,
    ev.Woke: SchedulerCore._woke,
    ev.Solved: SchedulerCore._solved,
    ev.SolveFailed: SchedulerCore._solve_failed,
}
