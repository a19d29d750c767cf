"""What jobs do when they are told to: start, make steps, save, end.

How an attempt lives is `simulator.attempts`; the truth about speeds and costs comes from `simulator.truth`, machines
from `simulator.machines`, faults from `simulator.faults`. The world never looks at the scheduler's ledger: it hears
commands and tells events, as agents do.
"""

from collections.abc import Callable, Iterable
from math import inf

from scheduler.core.commands import (
    AttemptTransitioned,
    Command,
    JobTransitioned,
    NodeCordoned,
    Prepare,
    Revoke,
    Start,
)
from scheduler.core.events import (
    AttemptEnded,
    CheckpointRecorded,
    Event,
    JobCancelled,
    JobSubmitted,
    Prepared,
    StartRefused,
)
from simulator.attempts import Attempts, Job, Phase, Run, WorldModel
from simulator.engine import Engine
from simulator.job import SimulatedJob
from simulator.machines import Link, Machines, SimNode
from simulator.streams import Streams
from simulator.truth import Truth
from walras.cluster import Placement
from walras.ids import JobId


class World:
    """Carries out the scheduler's commands on simulated machines and jobs."""

    def __init__(self, engine: Engine, machines: Machines, truth: Truth, model: WorldModel, streams: Streams) -> None:
        self.machines = machines
        self.attempts = Attempts(engine, machines, model, streams)
        self.jobs: dict[JobId, Job] = {}
        #: Called with every job that has ended, before it is forgotten.
        self.on_end: list[Callable[[float, Job], None]] = []
        self._engine = engine
        self._truth = truth
        self._model = model
        self._speeds = streams.stream("speeds")
        self._refusals = streams.stream("refusals")
        self._arrivals_open = True
        machines.on_gone.append(self._node_gone)
        engine.on_command.update(
            {Prepare: self._prepare, Start: self._start, Revoke: self._revoke, NodeCordoned: _nothing}
        )
        engine.on_command.setdefault(AttemptTransitioned, _nothing)
        engine.on_command[JobTransitioned] = self._transitioned
        engine.on_event[CheckpointRecorded] = self._recorded

    # -- jobs come and go

    def feed(self, workload: Iterable[SimulatedJob]) -> None:
        """Let these jobs, in order of arrival, be submitted when their time comes. Read one ahead, never all."""
        rows = iter(workload)

        def submit(at: float, plan: SimulatedJob) -> Iterable[Event]:
            self.jobs[plan.request.job_id] = Job(plan)
            if plan.cancel_at < inf:
                self._engine.schedule(max(at, plan.cancel_at), self._cancel, plan.request.job_id)
            schedule_next()
            return (JobSubmitted(at, plan.request),)

        def schedule_next() -> None:
            plan = next(rows, None)
            if plan is None:
                self._arrivals_open = False
                self._stop_if_done()
            else:
                self._engine.schedule(plan.at, submit, plan)

        schedule_next()

    def _cancel(self, at: float, job_id: JobId) -> Iterable[Event]:
        return (JobCancelled(at, job_id),) if job_id in self.jobs else ()

    def _transitioned(self, now: float, command: JobTransitioned) -> None:
        if not command.state.is_final:
            return
        job = self.jobs.pop(command.job_id)
        assert job.run is None or job.run.phase is Phase.DEAD, f"job {command.job_id} ended while it runs"
        for listener in self.on_end:
            listener(now, job)
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if not self._arrivals_open and not self.jobs:
            self._engine.stop()

    # -- commands

    def _prepare(self, now: float, command: Prepare) -> None:
        for rank, part in enumerate(command.placement.parts):
            node = self.machines.nodes.get(part.node_id)
            if node is None or node.link is not Link.UP:
                continue  # no answer: the scheduler has a timeout
            event: Event
            if self._refuses():
                event = StartRefused(0.0, command.job_id, command.attempt, node.node_id, "simulated refusal")
            else:
                address, port = (str(node.node_id), 29500) if rank == 0 else ("", 0)
                event = Prepared(0.0, command.job_id, command.attempt, node.node_id, address, port)
            self._engine.schedule(now + self._model.prepare_s, self._answer, (node, event))

    def _answer(self, at: float, subject: tuple[SimNode, Event]) -> Iterable[Event]:
        node, event = subject
        if node.link is not Link.UP:
            return ()
        event.at = at
        return (event,)

    def _start(self, now: float, command: Start) -> None:
        if not self._reaches(command.placement, command):
            return
        job = self.jobs[command.job_id]
        if self._refuses():
            node = self.machines.nodes[command.placement.parts[0].node_id]
            refusal = StartRefused(now, command.job_id, command.attempt, node.node_id, "simulated refusal")
            self._engine.schedule(now, self._answer, (node, refusal))
            return
        assert job.run is None, f"job {command.job_id} is started twice"
        assert command.resume_steps == job.saved_steps, (
            f"job {command.job_id} is to resume from {command.resume_steps}, its checkpoint has {job.saved_steps}"
        )
        job.lost_steps += job.steps - job.saved_steps
        job.steps = job.saved_steps
        kind = job.plan.request.kind
        accelerator = self.machines.pools[command.placement.pool_id].pool.shape.accelerator
        rate = self._truth.steps_per_s(kind, accelerator, command.placement.accelerators)
        if self._model.speed_noise:
            rate *= self._speeds.lognormvariate(0.0, self._model.speed_noise)
        self.attempts.begin(now, Run(job, command.attempt, command.placement, rate, self._truth.costs_of(kind)))

    def _revoke(self, now: float, command: Revoke) -> None:
        job = self.jobs.get(command.job_id)
        run = job.run if job is not None else None
        if run is not None and run.attempt == command.attempt and self._reaches(run.placement, command):
            self.attempts.stop(now, run, command.grace_s)

    def _refuses(self) -> bool:
        return self._model.refused > 0 and self._refusals.random() < self._model.refused

    def _reaches(self, placement: Placement, command: Command) -> bool:
        """Whether all machines hear the command. One that is cut off hears it later, one that is down never."""
        reached = True
        for part in placement.parts:
            node = self.machines.nodes.get(part.node_id)
            if node is None or node.link is Link.DOWN:
                return False
            if reached and node.link is Link.CUT_OFF:
                node.inbox.append(command)
                reached = False
        return reached

    def _recorded(self, event: CheckpointRecorded) -> None:
        job = self.jobs.get(event.job_id)
        if job is not None:
            job.saved_steps = event.steps

    # -- what happens to machines (called by `simulator.faults`)

    def runs_on(self, node: SimNode) -> list[Run]:
        """Attempts with a process on the machine."""
        runs = (self.jobs[job_id].run for job_id in node.runs if job_id in self.jobs)
        return [run for run in runs if run is not None]

    def die(self, at: float, node: SimNode) -> None:
        """Every process on the machine is gone, and with it the gangs it was part of; nobody knows yet."""
        node.link = Link.DOWN
        for run in self.runs_on(node):
            self.attempts.kill(at, run)

    def cut_off(self, node: SimNode) -> None:
        """The machine runs on, out of reach."""
        node.link = Link.CUT_OFF
        for run in self.runs_on(node):
            run.cut += 1

    def reconnect(self, at: float, node: SimNode) -> Iterable[Event]:
        """What the machine has to tell now that it is reached again; then it hears what it missed."""
        node.link = Link.UP
        told: list[Event] = []
        for run in self.runs_on(node):
            run.cut -= 1
            if not run.cut:
                told.extend(run.held)
                if any(isinstance(event, AttemptEnded) for event in run.held):
                    self.attempts.over(run)
                run.held = []
        for event in told:
            event.at = at
        return told

    def catch_up(self, at: float, node: SimNode) -> None:
        """Carry out the commands that waited for the machine."""
        missed, node.inbox = node.inbox, []
        for command in missed:
            self._engine.on_command[type(command)](at, command)

    def _node_gone(self, at: float, node: SimNode) -> None:
        for run in self.runs_on(node):
            self.attempts.kill(at, run)
            self.attempts.over(run)


def _nothing(_: float, command: Command) -> None:
    """Nothing in the world changes."""
