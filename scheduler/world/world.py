"""The simulated cluster's side of the protocol: it carries out the scheduler's commands and answers with events.

`attempts` simulates one attempt, `machines` the machines, and `Physics` states speeds and costs. The world never reads
the scheduler's ledger: it receives commands and sends events, as agents do.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Protocol

from scheduler.core.commands import (
    AttemptTransitioned,
    BudgetWarned,
    CheckpointEvery,
    Command,
    JobTransitioned,
    NodeCordoned,
    NodeReadmitted,
    Prepare,
    Revoke,
    Start,
)
from scheduler.core.events import (
    AttemptEnded,
    CheckpointRecorded,
    EndCause,
    Event,
    JobCancelled,
    JobSubmitted,
    Prepared,
    StartRefused,
)
from scheduler.world.attempts import (
    SIGTERM,
    AttemptCosts,
    AttemptSimulator,
    JobProgress,
    SimAttempt,
    SimAttemptPhase,
    SimulatedJob,
    SpeedCurve,
    WorldParameters,
)
from scheduler.world.engine import RandomStreams
from scheduler.world.machines import HeldDevices, NodeLink, SimNode, SimulatedMachines
from walras.cluster import Placement
from walras.job_request import JobId, JobRequest
from walras.states import FINAL_JOB_STATES, JobState

#: Creates the time model of a run: the simulator of its attempts.
MakeAttemptSimulator = Callable[[SimulatedMachines, WorldParameters, RandomStreams], AttemptSimulator]


class Physics(Protocol):
    """The speeds and costs of attempts: true ones, or those that a scheduler believes."""

    def speed_curve(self, job: JobProgress, placement: Placement) -> SpeedCurve:
        """Returns the speeds of a new attempt there, alone on its accelerators."""
        ...

    def shared_speed(self, attempt: SimAttempt) -> float:
        """Returns the speed of an attempt beside its partner, steps per second."""
        ...

    def costs(self, job: JobProgress, parts: list[HeldDevices], number: int) -> AttemptCosts: ...


class SimulatedWorld:
    """Carries out the scheduler's commands on simulated machines and jobs, and sends the events that follow."""

    def __init__(
        self,
        machines: SimulatedMachines,
        physics: Physics,
        model: WorldParameters,
        streams: RandomStreams,
        pace: MakeAttemptSimulator = AttemptSimulator,
    ) -> None:
        self.machines = machines
        self.attempts = pace(machines, model, streams)
        self.jobs: dict[JobId, JobProgress] = {}
        #: Called with every job that has ended, before it is removed.
        self.on_end: list[Callable[[float, JobProgress, JobState], None]] = []
        #: Called with every attempt that has just begun.
        self.on_begin: list[Callable[[float, SimAttempt], None]] = []
        #: Jobs that ended without success; jobs submitted later may depend on them.
        self._failed: set[JobId] = set()
        #: Gangs whose machines are held and that were neither started nor released yet.
        self._preparing: dict[JobId, Prepare] = {}
        self._engine = engine = machines.engine
        self._physics = physics
        self._model = model
        self._refusals = streams.stream("refusals")
        self._arrivals_open = True
        machines.on_gone.append(self._node_gone)
        engine.on_command.update(
            {
                Prepare: self._prepare,
                Start: self._start,
                Revoke: self._revoke,
                CheckpointEvery: self._checkpoint_every,
                NodeCordoned: _ignore_command,
                NodeReadmitted: _ignore_command,
                BudgetWarned: _ignore_command,
            }
        )
        engine.on_command.setdefault(AttemptTransitioned, _ignore_command)
        engine.on_command[JobTransitioned] = self.transitioned
        engine.on_event[CheckpointRecorded] = self.recorded

    # -- jobs come and go

    def feed(self, workload: Iterable[SimulatedJob], announce: Callable[[float, JobRequest], Iterable[Event]]) -> None:
        """Schedules the submission of these jobs, which are in order of arrival. Reads one job ahead, never all.

        Jobs of one instant are submitted together, before any other event. The events that `announce` returns for a job
        are sent before its submission.
        """
        rows = iter(workload)

        def submit(at: float, first: SimulatedJob) -> Iterable[Event]:
            plan: SimulatedJob | None = first
            while plan is not None and plan.at == at:
                request = plan.request
                assert request.job_id not in self.jobs, f"two jobs are numbered {request.job_id}"
                self.jobs[request.job_id] = JobProgress(plan)
                if plan.cancel_at < inf:
                    self._engine.schedule(max(at, plan.cancel_at), self._cancel, request.job_id)
                yield from announce(at, request)
                yield JobSubmitted(at, request)
                if self._depends_on_failed(request):
                    yield JobCancelled(at, request.job_id, "a dependency that has failed")
                plan = next(rows, None)
            schedule(plan)
            yield from self.attempts.arrived(at)

        def schedule(plan: SimulatedJob | None) -> None:
            if plan is None:
                self._arrivals_open = False
                self.attempts.no_more_arrivals()
                self._stop_if_done()
            else:
                self._engine.schedule(plan.at, submit, plan)

        schedule(next(rows, None))

    def _depends_on_failed(self, request: JobRequest) -> bool:
        """Returns whether the job depends on the success of a failed job. A server refuses such a job at submission."""
        return not request.depends_on_any_end and not self._failed.isdisjoint(request.depends_on)

    def _cancel(self, at: float, job_id: JobId) -> Iterable[Event]:
        return (JobCancelled(at, job_id),) if job_id in self.jobs else ()

    def transitioned(self, now: float, command: JobTransitioned) -> None:
        """Removes a job that has ended; stops the run after the last one."""
        if command.state not in FINAL_JOB_STATES:
            return
        job = self.jobs.pop(command.job_id)
        self._preparing.pop(command.job_id, None)
        if command.state is not JobState.SUCCEEDED:
            self._failed.add(command.job_id)
        assert job.attempt is None, f"job {command.job_id} ended while it runs"
        for listener in self.on_end:
            listener(now, job, command.state)
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if not self._arrivals_open and not self.jobs:
            self._engine.stop()

    # -- commands

    def _prepare(self, now: float, command: Prepare) -> None:
        self._preparing[command.job_id] = command
        for rank, part in enumerate(command.placement.parts):
            node = self.machines.nodes.get(part.node_id)
            if node is None or node.link is not NodeLink.UP:
                continue  # no answer: the scheduler's timeout handles it
            event: Event
            if self._draws_refusal():
                event = StartRefused(0.0, command.job_id, command.attempt, node.node_id, "simulated refusal")
            else:
                address, port = (str(node.node_id), 29500) if rank == 0 else ("", 0)
                event = Prepared(0.0, command.job_id, command.attempt, node.node_id, address, port)
            self._engine.schedule(now + self._model.prepare_s, self._answer, (node, event))

    def _answer(self, at: float, subject: tuple[SimNode, Event]) -> Iterable[Event]:
        node, event = subject
        if node.link is not NodeLink.UP:
            return ()
        event.at = at
        return (event,)

    def _start(self, now: float, command: Start) -> None:
        job = self.jobs[command.job_id]
        self._preparing.pop(command.job_id, None)
        parts = self.machines.parts(command.placement)
        if not parts or not self._reaches(parts, command):
            return
        first, is_gang = parts[0][0], len(command.placement.parts) > 1
        if not is_gang and first.link is NodeLink.DOWN:
            return
        if not is_gang and self._draws_refusal():
            refusal = StartRefused(now, command.job_id, command.attempt, first.node_id, "simulated refusal")
            self._engine.schedule(now, self._answer, (first, refusal))
            return
        assert job.attempt is None, f"job {command.job_id} is started twice"
        assert command.resume_steps == job.saved_steps, (
            f"job {command.job_id} is to resume from {command.resume_steps}, its checkpoint has {job.saved_steps}"
        )
        job.lost_steps += job.steps - job.saved_steps
        job.steps = job.saved_steps
        costs = self._physics.costs(job, parts, command.attempt)
        speed_curve = self._physics.speed_curve(job, command.placement)
        attempt = SimAttempt(job, command.attempt, parts, speed_curve, costs)
        if command.beside is not None:
            self.pair(now, attempt, self.jobs[command.beside].attempt)
        self.attempts.checkpoint_every(now, attempt, command.checkpoint_every_s)
        self.attempts.begin(now, attempt)
        for listener in self.on_begin:
            listener(now, attempt)
        if is_gang and (
            len(parts) < len(command.placement.parts) or any(node.link is NodeLink.DOWN for node, _ in parts)
        ):
            # Its ranks wait for a rank that never starts.
            self.attempts.kill(now, attempt)
            self._engine.schedule(now, self._end_broken_gang, attempt)

    def pair(self, now: float, attempt: SimAttempt, partner: SimAttempt | None) -> None:
        """Co-locates both attempts: they make steps at their shared speeds from now on.

        `partner`: None if it has ended, and its machine has yet to say so.
        """
        if partner is None:
            return
        attempt.partner, partner.partner = partner, attempt
        for one in (attempt, partner):
            self.attempts.set_rate(now, one, self._physics.shared_speed(one))

    def _revoke(self, now: float, command: Revoke) -> None:
        job = self.jobs.get(command.job_id)
        attempt = job.attempt if job is not None else None
        if attempt is not None and attempt.number == command.attempt and self._reaches(attempt.parts, command):
            self.attempts.stop(now, attempt, command.grace_s)
        elif (prepared := self._preparing.get(command.job_id)) is not None and prepared.attempt == command.attempt:
            self._release_prepared(now, prepared)

    def _checkpoint_every(self, now: float, command: CheckpointEvery) -> None:
        job = self.jobs.get(command.job_id)
        attempt = job.attempt if job is not None else None
        if attempt is not None and attempt.number == command.attempt and self._reaches(attempt.parts, command):
            self.attempts.checkpoint_every(now, attempt, command.every_s)

    def _release_prepared(self, now: float, command: Prepare) -> None:
        """Lets the machines of a gang that was not started report that nothing runs there, if all can be reached."""
        del self._preparing[command.job_id]
        nodes = [self.machines.nodes.get(part.node_id) for part in command.placement.parts]
        held = [node for node in nodes if node is not None and node.link is NodeLink.UP]
        if len(held) == len(nodes):
            ended = AttemptEnded(now, command.job_id, command.attempt, EndCause.EXITED, signal=SIGTERM)
            self._engine.schedule(now, self._answer, (held[0], ended))

    def _draws_refusal(self) -> bool:
        return self._model.refused > 0 and self._refusals.random() < self._model.refused

    def _reaches(self, parts: list[HeldDevices], command: Command) -> bool:
        """Returns whether all machines can be reached; otherwise one that is cut off receives the command later."""
        for node, _ in parts:
            if node.link is NodeLink.CUT_OFF:
                node.inbox.append(command)
                return False
        return True

    def recorded(self, event: CheckpointRecorded) -> None:
        """Notes the steps from which the job's next attempt starts."""
        job = self.jobs.get(event.job_id)
        if job is not None:
            job.saved_steps = event.steps

    # -- faults of machines (called by `simulator.faults`)

    def attempts_on(self, node: SimNode) -> list[SimAttempt]:
        """Returns attempts with a process on the machine."""
        attempts = (self.jobs[job_id].attempt for job_id in node.job_ids if job_id in self.jobs)
        return [attempt for attempt in attempts if attempt is not None]

    def die(self, at: float, node: SimNode) -> None:
        """Ends every process on the machine, and the gangs it was part of; the scheduler does not know yet."""
        node.link = NodeLink.DOWN
        for attempt in self.attempts_on(node):
            self.attempts.kill(at, attempt)

    def slow(self, at: float, node: SimNode, pace: float) -> None:
        """Sets the factor on the machine's speed; every gang that has a rank there slows down with it."""
        node.pace = pace
        for attempt in self.attempts_on(node):
            if attempt.phase is not SimAttemptPhase.DEAD:
                self.attempts.set_rate(at, attempt, attempt.full_rate)

    def slow_attempt(self, at: float, attempt: SimAttempt, pace: float) -> None:
        """Sets the factor on the attempt's own speed."""
        attempt.attempt_pace = pace
        if attempt.phase is not SimAttemptPhase.DEAD:
            self.attempts.set_rate(at, attempt, attempt.full_rate)

    def cut_off(self, node: SimNode) -> None:
        """Cuts the machine off; its processes continue."""
        node.link = NodeLink.CUT_OFF
        for attempt in self.attempts_on(node):
            attempt.unreachable += 1

    def reconnect(self, at: float, node: SimNode) -> Iterable[Event]:
        """Returns the events that the machine could not deliver while it was cut off."""
        node.link = NodeLink.UP
        events: list[Event] = []
        for attempt in self.attempts_on(node):
            attempt.unreachable -= 1
            if not attempt.unreachable:
                events.extend(attempt.undelivered)
                if any(isinstance(event, AttemptEnded) for event in attempt.undelivered):
                    self.attempts.release(attempt)
                attempt.undelivered = []
            events.extend(self._end_broken_gang(at, attempt))
        for event in events:
            event.at = at
        return events

    def catch_up(self, at: float, node: SimNode) -> Iterable[Event]:
        """Carries out the commands that waited for the machine. An attempt that was revoked meanwhile never starts."""
        missed, node.inbox = node.inbox, []
        revoked = {(command.job_id, command.attempt) for command in missed if isinstance(command, Revoke)}
        for command in missed:
            if not isinstance(command, Start | Revoke) or command.job_id not in self.jobs:
                continue
            if isinstance(command, Start) and (command.job_id, command.attempt) in revoked:
                yield AttemptEnded(at, command.job_id, command.attempt, EndCause.EXITED, signal=SIGTERM)
            else:
                self._engine.on_command[type(command)](at, command)

    def _node_gone(self, at: float, node: SimNode) -> None:
        for attempt in self.attempts_on(node):
            self.attempts.kill(at, attempt)
            if any(part.link is not NodeLink.GONE for part, _ in attempt.parts):
                # The other machines report the end of the gang after the scheduler knows of the loss.
                self._engine.schedule(at, self._end_broken_gang, attempt)
            else:
                self.attempts.release(attempt)

    def _end_broken_gang(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        """Ends a gang that lost a machine, once all its other machines can report."""
        if attempt.job.attempt is not attempt or attempt.phase is not SimAttemptPhase.DEAD:
            return ()
        if any(node.link in (NodeLink.DOWN, NodeLink.CUT_OFF) for node, _ in attempt.parts):
            return ()
        self.attempts.release(attempt)
        job_id, steps = attempt.job_id, attempt.job.steps
        return (AttemptEnded(at, job_id, attempt.number, EndCause.EXITED, signal=SIGTERM, steps=steps),)


def _ignore_command(_: float, command: Command) -> None:
    """Ignores a command that changes nothing in the world."""
