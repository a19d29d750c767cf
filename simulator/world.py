"""The simulated cluster's side of the protocol: it carries out the scheduler's commands and answers with events.

`simulator.attempts` simulates one attempt, `simulator.ground_truth` holds speeds and costs, `simulator.machines` the
machines, and `simulator.faults` causes faults. The world never reads the scheduler's ledger: it receives commands and
sends events, as agents do.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf

from scheduler.core.commands import (
    AttemptTransitioned,
    BudgetWarned,
    CheckpointEvery,
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
    EndCause,
    Event,
    JobCancelled,
    JobSubmitted,
    Prepared,
    StartRefused,
)
from scheduler.core.state.fleet import split_gang
from simulator.attempts import (
    SIGTERM,
    AttemptSimulator,
    JobProgress,
    SimAttempt,
    SimAttemptPhase,
    SpeedCurve,
    WorldParameters,
)
from simulator.engine import Engine, RandomStreams
from simulator.ground_truth import AttemptCosts, GroundTruth, PoolPart, SpeedSegment, processor_share
from simulator.machines import HeldDevices, NodeLink, SimNode, SimulatedMachines
from simulator.simulated_jobs import SimulatedJob
from walras.cluster import Placement
from walras.job_request import JobId, JobRequest, Kind
from walras.states import FINAL_JOB_STATES, JobState

#: Creates the time model of a run: the simulator of its attempts.
MakeAttemptSimulator = Callable[[Engine, SimulatedMachines, WorldParameters, RandomStreams], AttemptSimulator]


class SimulatedWorld:
    """Carries out the scheduler's commands on simulated machines and jobs, and sends the events that follow."""

    def __init__(
        self,
        engine: Engine,
        machines: SimulatedMachines,
        truth: GroundTruth,
        model: WorldParameters,
        streams: RandomStreams,
        pace: MakeAttemptSimulator = AttemptSimulator,
    ) -> None:
        self.machines = machines
        self.attempts = pace(engine, machines, model, streams)
        self.jobs: dict[JobId, JobProgress] = {}
        #: Called with every job that has ended, before it is removed.
        self.on_end: list[Callable[[float, JobProgress, JobState], None]] = []
        #: Called with every attempt that has just begun.
        self.on_begin: list[Callable[[float, SimAttempt], None]] = []
        #: Jobs that ended without success; jobs submitted later may depend on them.
        self._failed: set[JobId] = set()
        #: Gangs whose machines are held and that were neither started nor released yet.
        self._preparing: dict[JobId, Prepare] = {}
        self._engine = engine
        self._truth = truth
        self._model = model
        self._speeds = streams.stream("speeds")
        self._delays = streams.stream("delays")
        self._refusals = streams.stream("refusals")
        self._arrivals_open = True
        #: Constant speeds by kind, accelerator type and accelerators on each machine.
        self._tabled: dict[tuple[Kind, str, tuple[int, ...]], SpeedCurve] = {}
        machines.on_gone.append(self._node_gone)
        engine.on_command.update(
            {
                Prepare: self._prepare,
                Start: self._start,
                Revoke: self._revoke,
                CheckpointEvery: self._checkpoint_every,
                NodeCordoned: _ignore_command,
                BudgetWarned: _ignore_command,
            }
        )
        engine.on_command.setdefault(AttemptTransitioned, _ignore_command)
        engine.on_command[JobTransitioned] = self.transitioned
        engine.on_event[CheckpointRecorded] = self._recorded

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
        costs = self._costs(job, parts, command.attempt)
        attempt = SimAttempt(job, command.attempt, parts, self._speed_curve_of(job, command), costs)
        if command.beside is not None:
            self._pair(now, attempt, self.jobs[command.beside].attempt)
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

    def _pair(self, now: float, attempt: SimAttempt, partner: SimAttempt | None) -> None:
        """Co-locates both attempts: they make steps at their shared speeds from now on."""
        assert partner is not None, "a job is co-located with one that does not run"
        attempt.partner, partner.partner = partner, attempt
        node, devices = attempt.parts[0]
        accelerator = self.machines.pools[node.pool_id].pool.shape.accelerator
        for one, other in ((attempt, partner), (partner, attempt)):
            kind, beside = one.job.plan.request.kind, other.job.plan.request.kind
            speed = self._truth.colocated_speed(kind, beside, accelerator, len(devices))
            if not speed:
                part = processor_share(one.job.plan.request.shared, other.job.plan.request.shared)
                speed = one.alone_rate * part
            self.attempts.set_rate(now, one, speed)

    def _speed_curve_of(self, job: JobProgress, command: Start) -> SpeedCurve:
        placement, kind = command.placement, job.plan.request.kind
        accelerator = self.machines.pools[placement.pool_id].pool.shape.accelerator
        parts = tuple([len(part.devices) for part in placement.parts])
        noise = self._speeds.lognormvariate(0.0, self._model.speed_noise) if self._model.speed_noise else 1.0

        if job.plan.request.plans:
            planned = _scaled_segment(SpeedSegment(self._planned_speed(job.plan.request, placement)), noise)
            return lambda _: planned
        over = self._spread_parts(job.plan.request, placement) if job.plan.request.spreads else ()
        if over:
            return lambda steps: _scaled_segment(self._truth.speed_segment_over(kind, over, steps), noise)
        if kind in self._truth.laws:

            def law(steps: float) -> SpeedSegment:
                return _scaled_segment(self._truth.speed_segment(kind, accelerator, parts, steps), noise)

            return law
        known = self._tabled.get((kind, accelerator, parts))
        if known is None:
            steady = self._truth.speed_segment(kind, accelerator, parts)
            known = self._tabled[kind, accelerator, parts] = lambda _: steady
        if noise == 1.0:
            return known
        uneven = _scaled_segment(known(0.0), noise)
        return lambda _: uneven

    def _planned_speed(self, request: JobRequest, placement: Placement) -> float:
        """Returns the speed that the attempt's plan states."""
        held: dict[str, int] = {}
        for pool_id, count in placement.by_pool.items():
            name = self.machines.pools[pool_id].pool.shape.accelerator
            held[name] = held.get(name, 0) + count
        plan = request.plan_of(held)
        assert plan is not None, f"job {request.job_id} runs on {held}, which is none of its plans"
        return plan.steps_per_s

    def _spread_parts(self, request: JobRequest, placement: Placement) -> list[PoolPart]:
        """Returns what a job over several pools or gangs holds by pool; empty for one gang in one pool."""
        found, whole = [], 0
        for pool_id, count in placement.by_pool.items():
            pool = self.machines.pools[pool_id].pool
            gang = request.size_on(pool)
            gangs = count // gang if count % gang == 0 else 0
            machines = tuple(split_gang(gang, request.nodes, pool.shape.accelerators))
            found.append(PoolPart(pool.shape.accelerator, machines, gangs))
            whole += gangs
        return found if len(found) > 1 or whole > 1 else []

    def _costs(self, job: JobProgress, parts: list[HeldDevices], number: int) -> AttemptCosts:
        costs = self._drawn_costs(job, parts)
        known = self._model.attempt_times.get((job.plan.request.job_id, number))
        if known is None:
            return costs
        return replace(
            costs,
            start_s=costs.start_s if known.start_s is None else known.start_s,
            warm_up_s=costs.warm_up_s if known.warm_up_s is None else known.warm_up_s,
            exit_s=costs.exit_s if known.exit_s is None else known.exit_s,
        )

    def _drawn_costs(self, job: JobProgress, parts: list[HeldDevices]) -> AttemptCosts:
        costs, noise = self._truth.costs_of(job.plan.request.kind), self._model.cost_noise
        if costs.migrate_s:
            machines = frozenset([node.node_id for node, _ in parts])
            if job.last_nodes and machines != job.last_nodes:
                costs = replace(costs, start_s=costs.start_s + costs.migrate_s)
            job.last_nodes = machines
        if not noise:
            return costs
        starting, exiting = self._delays.lognormvariate(0.0, noise), self._delays.lognormvariate(0.0, noise)
        return replace(
            costs,
            start_s=costs.start_s * starting,
            warm_up_s=costs.warm_up_s * starting,
            exit_s=costs.exit_s * exiting,
        )

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

    def _recorded(self, event: CheckpointRecorded) -> None:
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


def _scaled_segment(speed_segment: SpeedSegment, noise: float) -> SpeedSegment:
    return speed_segment if noise == 1.0 else SpeedSegment(speed_segment.steps_per_s * noise, speed_segment.until_steps)


def _ignore_command(_: float, command: Command) -> None:
    """Ignores a command that changes nothing in the world."""
