"""Speeds and costs that a run showed, as a file format (JSON) and as the input of a simulation of the same workload.

A record is a sequence of events with the commands that they caused: a server's journal, or that of a simulation. What
holds for a kind is a median over its attempts, so that one disturbed attempt does not count; the times of each attempt
are kept beside it. Nothing is fitted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import log
from pathlib import Path
from statistics import median, pstdev
from typing import Annotated

from pydantic import Field, ValidationError

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
from scheduler.core.state.throughput import SHARED
from scheduler.world.attempts import AttemptCosts, AttemptTimes, PlannedFailure, SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.ground_truth import ANY_COUNT, GroundTruth, SpeedKey
from walras.cluster import NodeId, Placement, PoolId
from walras.contract import EXIT_CHECKPOINTED
from walras.errors import ConfigError, system_refusals
from walras.job_request import ANY_ACCELERATOR, JobId, JobRequest, Kind, kind_within
from walras.model_facts import MOST_BYTES, MOST_FLOPS, MOST_LAYERS, MOST_SAMPLES, Family, ModelFacts, Precision
from walras.spec.file_model import FileModel
from walras.states import AttemptState, Reason

_Length = Annotated[float, Field(ge=0, le=1e9)]
_Bytes = Annotated[float, Field(ge=0, le=MOST_BYTES)]
_Speed = Annotated[float, Field(gt=0, le=1e9)]


class MeasuredSpeed(FileModel):
    """Steps per second of a gang. `count` 0: a gang of any size; accelerator `*`: on any type."""

    kind: str
    accelerator: str
    count: int = Field(default=ANY_COUNT, ge=0)
    steps_per_s: _Speed


class MeasuredKind(FileModel):
    """Costs in the lives of a kind's attempts, seconds (`simulator.ground_truth.AttemptCosts` explains each).

    `checkpoint_s` null: the kind cannot checkpoint.
    """

    kind: str
    start_s: _Length
    checkpoint_s: _Length | None = 0.0
    checkpoint_every_s: _Length = 0.0
    warm_up_s: _Length = 0.0
    exit_s: _Length = 0.0


class MeasuredAttempt(FileModel):
    """Times of one attempt, seconds, where they are known; else those of its kind hold."""

    job_id: int = Field(ge=0)
    attempt: int = Field(ge=1)
    start_s: _Length | None = None
    warm_up_s: _Length | None = None
    exit_s: _Length | None = None
    first_report_s: _Length | None = None


class MeasuredJob(FileModel):
    """The true work of one job of the workload. `row` counts the workload's jobs from 0."""

    row: int = Field(ge=0)
    #: Steps that it made until it ended; seconds that it ran, if its kind has no speed.
    steps: Annotated[float, Field(gt=0)]
    #: Not 0: it fails with this code after those steps, every time.
    exit_code: int = 0


class MeasuredPool(FileModel):
    """Boot time of a rented pool, from the request to the machine's joining, and those of its first requests."""

    pool_id: str
    boot_s: _Length
    boots_s: tuple[_Length, ...] = ()


class MeasuredRevocation(FileModel):
    """A revocation by the market, seconds after the first submission."""

    at: _Length
    pool_id: str


class MeasuredPrediction(FileModel):
    """A prediction of speeds that were not measured, asked for so many seconds after the first submission."""

    at: _Length
    took_s: _Length = 0.0


class MeasuredFacts(FileModel):
    """Facts of a kind (`walras.model_facts`) that the scheduler was told, seconds after the first submission."""

    at: _Length
    kind: str
    counted: bool = False
    flops_per_sample: Annotated[float, Field(gt=0, le=MOST_FLOPS)] | None = None
    memory_bytes_per_sample: _Bytes | None = None
    gradient_bytes: _Bytes | None = None
    layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)] | None = None
    resident_bytes: _Bytes | None = None
    activation_bytes: _Bytes | None = None
    input_bytes: _Bytes | None = None
    precision: Precision | None = None
    family: Family | None = None
    batch: Annotated[float, Field(gt=0, le=MOST_SAMPLES)] | None = None
    batch_per_accelerator: Annotated[float, Field(gt=0, le=MOST_SAMPLES)] | None = None

    def told(self, begins_at: float) -> FactsTold:
        """Returns the event on the cluster's clock."""
        facts = ModelFacts(**{each.name: getattr(self, each.name) for each in fields(ModelFacts)})
        return FactsTold(self.at + begins_at, Kind(self.kind), facts, self.counted)


class MeasuredCosts(FileModel):
    """The true behaviour of a workload's jobs, as a file (JSON) or a value."""

    speeds: tuple[MeasuredSpeed, ...] = ()
    kinds: tuple[MeasuredKind, ...] = ()
    #: Single attempts, by the number of their job (the first submission is job 1).
    attempts: tuple[MeasuredAttempt, ...] = ()
    jobs: tuple[MeasuredJob, ...] = ()
    pools: tuple[MeasuredPool, ...] = ()
    #: In place of the workload's incidents, if there are any.
    revocations: tuple[MeasuredRevocation, ...] = ()
    #: When speeds that were not measured were predicted, and from which facts.
    predictions: tuple[MeasuredPrediction, ...] = ()
    facts: tuple[MeasuredFacts, ...] = ()
    #: By row of the workload, digests of what the jobs ran, by which projects share speeds.
    programs: tuple[str, ...] = ()
    #: The workload's first instant on the cluster's clock: rounds are aligned to that clock.
    begins_at: _Length = 0.0
    #: Median seconds between two progress reports of an attempt; and between two heartbeats, as far as these and the
    #: first reports show them. 0: unknown.
    report_gap_s: _Length = 0.0
    beat_s: _Length = 0.0
    #: Median duration of a solve; standard deviation of the logarithm of an attempt's start time over its kind's.
    solve_s: _Length = 0.0
    cost_noise: Annotated[float, Field(ge=0, le=3)] = 0.0
    #: Costs of kinds without an entry.
    start_s: _Length = 0.0
    checkpoint_s: _Length = 0.0

    def truth(self) -> GroundTruth:
        """Returns speeds and costs. A kind without any speed makes one step a second: its steps are seconds."""
        speeds = {SpeedKey(Kind(s.kind), s.accelerator, s.count): s.steps_per_s for s in self.speeds}
        costs = {
            Kind(k.kind): AttemptCosts(k.start_s, k.checkpoint_s, k.checkpoint_every_s, k.warm_up_s, k.exit_s)
            for k in self.kinds
        }
        for kind in costs.keys() - {key.kind for key in speeds}:
            speeds[SpeedKey(kind, ANY_ACCELERATOR)] = 1.0
        return GroundTruth(speeds, costs, AttemptCosts(self.start_s, self.checkpoint_s))

    def without_single_times(self) -> "MeasuredCosts":
        """Returns the costs by kind and pool alone, from which those of single attempts and requests can be drawn."""
        pools = tuple(pool.model_copy(update={"boots_s": ()}) for pool in self.pools)
        return self.model_copy(update={"attempts": (), "pools": pools})

    def with_boots(self, model: PoolModel) -> PoolModel:
        """Returns the pool with its measured boot times, if there are any."""
        for measured in self.pools:
            if measured.pool_id == model.pool.pool_id:
                terms = replace(model.terms, boot_s=measured.boot_s)
                return replace(model, terms=terms, boots_s=measured.boots_s)
        return model

    def attempt_times(self) -> dict[tuple[JobId, int], AttemptTimes]:
        return {
            (JobId(each.job_id), each.attempt): AttemptTimes(
                each.start_s, each.warm_up_s, each.exit_s, each.first_report_s
            )
            for each in self.attempts
        }

    def applied_to(self, jobs: list[SimulatedJob]) -> list[SimulatedJob]:
        """Returns the jobs with their measured work, each of the kind of its project if the measured run told those
        apart. Raises ConfigError for a row that does not exist.
        """
        kinds, rows = {each.kind for each in self.kinds}, list(jobs)
        for row, job in enumerate(rows):
            if (own := kind_within(job.request.project, job.request.kind)) in kinds:
                program = self.programs[row] if row < len(self.programs) else ""
                rows[row] = replace(job, request=replace(job.request, kind=own, program=program))
        for measured in self.jobs:
            if measured.row >= len(rows):
                raise ConfigError(f"a job is measured in row {measured.row}, the workload has {len(rows)} jobs")
            plan = rows[measured.row]
            failures, steps = plan.failures, measured.steps
            if measured.exit_code:
                # The job never gets past the failure, so further work does not matter.
                failures, steps = (PlannedFailure(measured.steps, measured.exit_code),), 2.0 * measured.steps
            rows[measured.row] = SimulatedJob(plan.at, plan.request, steps, failures, plan.cancel_at, plan.name)
        return rows


def load_measured_costs(path: str | Path) -> MeasuredCosts:
    """Reads the file. Raises ConfigError that names it."""
    with system_refusals(path, fix="check the path"):
        content = Path(path).read_bytes()
    try:
        return MeasuredCosts.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}", field=where) from None


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
    #: Seconds from its start to the first report with a speed, or to the first of all.
    first_speed_s: float | None = None
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
            if any(each.fused.source != SHARED for each in event.speeds):
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
        if attempt.up_at is not None and (attempt.first_speed_s is None or attempt.steps_per_s is None):
            attempt.first_speed_s = event.at - attempt.up_at
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
        programs=tuple(request.program for request in record.requests.values()),
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
            first_report_s=attempt.first_speed_s,
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
