"""Measures speeds and costs of a recorded run, as the input of a simulation of the same workload.

A record is a sequence of events with the commands that they caused: a server's journal, or that of a simulation. What
holds for a kind is a median over its attempts, so that one disturbed attempt does not count; the times of each attempt
are kept beside it. Nothing is fitted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import log
from statistics import median, pstdev

from scheduler.core.commands import AttemptTransitioned, Command, JobTransitioned, Rent, Revoke, Start
from scheduler.core.events import (
    AttemptEnded,
    AttemptProgressed,
    AttemptStarted,
    CheckpointRecorded,
    Event,
    JobSubmitted,
    NodeJoined,
    NodeLeaving,
    PoolDeclared,
    Solved,
)
from scheduler.core.speed_events import FactsTold, SpeedsPredicted
from simulator.measured_costs import (
    MeasuredAttempt,
    MeasuredCosts,
    MeasuredFacts,
    MeasuredJob,
    MeasuredKind,
    MeasuredPool,
    MeasuredPrediction,
    MeasuredRevocation,
    MeasuredSpeed,
)
from walras.cluster import NodeId, Placement, PoolId
from walras.contract import EXIT_CHECKPOINTED
from walras.job_request import JobId, JobRequest, Kind
from walras.states import AttemptState, Reason

#: Heartbeats from one report to the next, at most; the least seconds between two; and the part of that by which a
#: report may be off a beat.
_BEATS_MOST, _BEAT_LEAST_S, _BEAT_OFF = 6, 0.5, 0.15

#: One event, and the core's commands.
RecordedEvent = tuple[Event, Sequence[Command]]


@dataclass(slots=True)
class _Attempt:
    """The recorded facts of one attempt; None where the record does not show them."""

    job_id: JobId
    placement: Placement
    started_at: float | None = None
    resume_steps: float = 0.0
    up_at: float | None = None
    #: As its processes measured them: seconds from launch to first step, and speed.
    first_step_s: float | None = None
    steps_per_s: float | None = None
    #: Number of windows of steps behind that speed.
    samples: int = 0
    revoked_at: float | None = None
    save_s: float | None = None
    ended: AttemptEnded | None = None
    #: Whether it was seen to save its work.
    saves: bool = False
    #: When its progress was last reported; seconds from its start to the first report, and between two reports.
    reported_at: float | None = None
    first_report_s: float | None = None
    report_gaps_s: list[float] = field(default_factory=list)

    @property
    def stepping_at(self) -> float | None:
        """Returns the instant at which its first step began; None if unknown."""
        if self.up_at is None or self.first_step_s is None or not self.steps_per_s:
            return None
        return self.up_at + max(0.0, self.first_step_s - 1.0 / self.steps_per_s)

    @property
    def exit_s(self) -> float | None:
        """Time from the last step or checkpoint to the last process's exit; None if the record does not show it."""
        if self.ended is None or self.ended.exit_code is None:
            return None
        if self.revoked_at is not None:
            saved = self.ended.exit_code == EXIT_CHECKPOINTED and self.save_s is not None
            return self.ended.at - self.revoked_at - (self.save_s or 0.0) if saved else None
        if self.stepping_at is None or self.ended.steps is None or not self.steps_per_s:
            return None
        return self.ended.at - self.stepping_at - (self.ended.steps - self.resume_steps) / self.steps_per_s


@dataclass(slots=True)
class _Record:
    """The parts of a record from which costs are measured."""

    requests: dict[JobId, JobRequest] = field(default_factory=dict)
    submitted_at: dict[JobId, float] = field(default_factory=dict)
    attempts: dict[tuple[JobId, int], _Attempt] = field(default_factory=dict)
    accelerators: dict[PoolId, str] = field(default_factory=dict)
    solve_s: list[float] = field(default_factory=list)
    rented_at: dict[str, tuple[PoolId, float]] = field(default_factory=dict)
    boot_s: dict[PoolId, list[float]] = field(default_factory=dict)
    pool_of: dict[NodeId, PoolId] = field(default_factory=dict)
    revocations: list[tuple[float, PoolId]] = field(default_factory=list)
    predictions: list[SpeedsPredicted] = field(default_factory=list)
    facts: list[FactsTold] = field(default_factory=list)

    def event(self, event: Event) -> None:
        if isinstance(event, JobSubmitted):
            self.requests[event.job.job_id] = event.job
            self.submitted_at[event.job.job_id] = event.at
        elif isinstance(event, PoolDeclared):
            self.accelerators[event.pool.pool_id] = event.pool.shape.accelerator
        elif isinstance(event, Solved):
            self.solve_s.append(event.took_s)
        elif isinstance(event, NodeJoined):
            self.pool_of[event.node_id] = event.pool_id
            if event.token in self.rented_at:
                asked_at = self.rented_at.pop(event.token)[1]  # all machines of a request are one boot
                self.boot_s.setdefault(event.pool_id, []).append(event.at - asked_at)
        elif isinstance(event, NodeLeaving) and event.reason is Reason.INFRA_SPOT_RECLAIM:
            self.revocations.append((event.at, self.pool_of[event.node_id]))
        elif isinstance(event, SpeedsPredicted):
            self.predictions.append(event)
        elif isinstance(event, FactsTold):
            self.facts.append(event)
        elif isinstance(event, AttemptStarted | AttemptProgressed | CheckpointRecorded | AttemptEnded):
            attempt = self.attempts.get((event.job_id, event.attempt))
            if attempt is not None:
                _note_event(attempt, event)

    def command(self, at: float, command: Command) -> None:
        if isinstance(command, Rent):
            self.rented_at[command.token] = (command.pool_id, at)
        elif isinstance(command, AttemptTransitioned) and command.state is AttemptState.LEASED:
            assert command.placement is not None
            key = command.job_id, command.attempt
            self.attempts[key] = _Attempt(command.job_id, command.placement)
        elif isinstance(command, Start | Revoke):
            attempt = self.attempts.get((command.job_id, command.attempt))
            if attempt is not None and isinstance(command, Start):
                attempt.started_at, attempt.resume_steps = at, command.resume_steps
            elif attempt is not None and attempt.revoked_at is None:
                attempt.revoked_at = at


def _note_event(
    attempt: _Attempt, event: AttemptStarted | AttemptProgressed | CheckpointRecorded | AttemptEnded
) -> None:
    if isinstance(event, AttemptStarted):
        attempt.up_at = event.at
    elif isinstance(event, AttemptProgressed):
        if attempt.reported_at is not None:
            attempt.report_gaps_s.append(event.at - attempt.reported_at)
        elif attempt.up_at is not None:
            attempt.first_report_s = event.at - attempt.up_at
        attempt.reported_at, attempt.saves = event.at, attempt.saves or event.saves
        attempt.first_step_s = event.start_s if event.start_s is not None else attempt.first_step_s
        if event.steps_per_s is not None:
            attempt.steps_per_s, attempt.samples = event.steps_per_s, event.samples
    elif isinstance(event, CheckpointRecorded):
        attempt.save_s, attempt.saves = event.took_s, True
    else:
        attempt.ended = event


def measure_costs(recorded: Iterable[RecordedEvent]) -> MeasuredCosts:
    """Returns the costs that a run shows, as the input of a simulation of the same workload.

    Jobs are numbered by arrival, as the rows of a workload file sorted by `at` are: row n is the n-th job submitted.
    """
    record = _Record()
    for event, commands in recorded:
        record.event(event)
        for command in commands:
            record.command(event.at, command)
    begins_at = min(record.submitted_at.values(), default=0.0)
    return MeasuredCosts(
        speeds=_measured_speeds(record),
        kinds=_measured_kinds(record),
        attempts=tuple(_measured_attempts(record)),
        jobs=tuple(_measured_jobs(record)),
        pools=tuple(
            MeasuredPool(pool_id=pool_id, boot_s=median(seen), boots_s=tuple(seen))
            for pool_id, seen in sorted(record.boot_s.items())
        ),
        revocations=tuple(
            MeasuredRevocation(at=at - begins_at, pool_id=pool_id)
            for at, pool_id in record.revocations
            if at >= begins_at
        ),
        predictions=tuple(
            MeasuredPrediction(at=max(0.0, told.at - told.took_s - begins_at), took_s=told.took_s)
            for told in record.predictions
            if told.at >= begins_at
        ),
        facts=tuple(_measured_facts(told, begins_at) for told in record.facts),
        begins_at=begins_at,
        report_gap_s=_report_gap_s(record),
        beat_s=_beat_s(record),
        solve_s=median(record.solve_s) if record.solve_s else 0.0,
        cost_noise=_warm_up_noise(record),
    )


def _measured_facts(told: FactsTold, begins_at: float) -> MeasuredFacts:
    """Returns the facts as a row of the file; what was told before the first job is told with it."""
    return MeasuredFacts(at=max(0.0, told.at - begins_at), kind=told.kind, counted=told.counted, **asdict(told.facts))


def _measured_speeds(record: _Record) -> tuple[MeasuredSpeed, ...]:
    """Returns the longest-measured speed of each kind, type and count; medians of few windows are noisy."""
    seen: dict[tuple[Kind, str, int], tuple[int, float]] = {}
    for attempt in record.attempts.values():
        if attempt.steps_per_s and len(attempt.placement.by_pool) == 1:
            kind, pool_id = record.requests[attempt.job_id].kind, attempt.placement.pool_id
            key = kind, record.accelerators[pool_id], attempt.placement.accelerators
            seen[key] = max(seen.get(key, (0, 0.0)), (attempt.samples, attempt.steps_per_s))
    return tuple(
        MeasuredSpeed(kind=kind, accelerator=accelerator, count=count, steps_per_s=speed)
        for (kind, accelerator, count), (_, speed) in sorted(seen.items())
    )


@dataclass(slots=True)
class _Phases:
    """Durations over the attempts of one kind, or of all kinds."""

    start_s: list[float] = field(default_factory=list)
    warm_up_s: list[float] = field(default_factory=list)
    checkpoint_s: list[float] = field(default_factory=list)
    exit_s: list[float] = field(default_factory=list)


def _phases(record: _Record, kind: Kind | None) -> _Phases:
    phases = _Phases()
    for attempt in record.attempts.values():
        if kind is not None and record.requests[attempt.job_id].kind != kind:
            continue
        if attempt.up_at is not None and attempt.started_at is not None:
            phases.start_s.append(attempt.up_at - attempt.started_at)
            if attempt.stepping_at is not None:
                phases.warm_up_s.append(attempt.stepping_at - attempt.up_at)
        if attempt.save_s is not None:
            phases.checkpoint_s.append(attempt.save_s)
        if attempt.exit_s is not None:
            phases.exit_s.append(max(0.0, attempt.exit_s))
    return phases


def _measured_kinds(record: _Record) -> tuple[MeasuredKind, ...]:
    """Returns the costs by kind. A kind without measured steps has no warm-up and exit times: its steps are seconds."""
    usual = _phases(record, None)
    kinds, saving = [], {record.requests[each.job_id].kind for each in record.attempts.values() if each.saves}
    for kind in sorted({request.kind for request in record.requests.values()}):
        seen = _phases(record, kind)
        counts_steps = bool(seen.warm_up_s)
        kinds.append(
            MeasuredKind(
                kind=kind,
                start_s=_median_or_usual(seen.start_s, usual.start_s),
                warm_up_s=_median_or_usual(seen.warm_up_s, usual.warm_up_s) if counts_steps else 0.0,
                checkpoint_s=_median_or_usual(seen.checkpoint_s, usual.checkpoint_s) if kind in saving else None,
                exit_s=_median_or_usual(seen.exit_s, usual.exit_s) if counts_steps else 0.0,
            )
        )
    return tuple(kinds)


def _measured_attempts(record: _Record) -> Iterable[MeasuredAttempt]:
    for (job_id, number), attempt in record.attempts.items():
        up_at, stepping_at, exit_s = attempt.up_at, attempt.stepping_at, attempt.exit_s
        if up_at is None or attempt.started_at is None:
            continue
        yield MeasuredAttempt(
            job_id=job_id,
            attempt=number,
            start_s=max(0.0, up_at - attempt.started_at),
            warm_up_s=None if stepping_at is None else stepping_at - up_at,
            exit_s=None if exit_s is None else max(0.0, exit_s),
        )


def _report_gap_s(record: _Record) -> float:
    gaps_s = [gap_s for attempt in record.attempts.values() for gap_s in attempt.report_gaps_s]
    return median(gaps_s) if gaps_s else 0.0


def _beat_s(record: _Record) -> float:
    """Returns the seconds between two heartbeats; 0 if reports do not show them.

    A report comes with a beat, not with each. So the distance between two reports is a multiple of that between beats,
    and so is the time from a start to the first report: the longest that fits both is taken.
    """
    gap_s = _report_gap_s(record)
    firsts_s = [each.first_report_s for each in record.attempts.values() if each.first_report_s is not None]
    for beats in range(1, _BEATS_MOST + 1) if gap_s and firsts_s else ():
        beat_s = gap_s / beats
        off = median(abs(first_s / beat_s - max(1, round(first_s / beat_s))) for first_s in firsts_s)
        if beat_s >= _BEAT_LEAST_S and off <= _BEAT_OFF:
            return beat_s
    return 0.0


def _median_or_usual(seen: list[float], usual: list[float]) -> float:
    return median(seen or usual or [0.0])


def _warm_up_noise(record: _Record) -> float:
    """Returns the standard deviation of log(warm-up / median warm-up of its kind)."""
    spread: list[float] = []
    for kind in {request.kind for request in record.requests.values()}:
        seen = [length_s for length_s in _phases(record, kind).warm_up_s if length_s > 0]
        spread += [log(length_s / median(seen)) for length_s in seen] if len(seen) > 1 else []
    return pstdev(spread) if len(spread) > 1 else 0.0


def _measured_jobs(record: _Record) -> Iterable[MeasuredJob]:
    for row, job_id in enumerate(record.requests):
        attempts = [attempt for (owner, _), attempt in record.attempts.items() if owner == job_id]
        ended = [attempt for attempt in attempts if attempt.ended is not None]
        if not ended or ended[-1].ended is None or ended[-1].ended.exit_code is None:
            continue
        last = ended[-1].ended
        if last.steps is None:
            # No steps were counted, so one step is one second, over all its attempts.
            steps = sum(a.ended.at - a.up_at for a in ended if a.ended is not None and a.up_at is not None)
        else:
            steps = last.steps
        if steps > 0 and last.exit_code is not None:
            code = 0 if last.exit_code == EXIT_CHECKPOINTED else last.exit_code
            yield MeasuredJob(row=row, steps=steps, exit_code=code)


def recorded_completion_times(recorded: Sequence[RecordedEvent]) -> dict[JobId, float]:
    """Returns the completion time of every job that ended, seconds."""
    submitted_at: dict[JobId, float] = {}
    took_s: dict[JobId, float] = {}
    for event, commands in recorded:
        if isinstance(event, JobSubmitted):
            submitted_at[event.job.job_id] = event.at
        for command in commands:
            if isinstance(command, JobTransitioned) and command.state.is_final:
                took_s[command.job_id] = event.at - submitted_at[command.job_id]
    return took_s
