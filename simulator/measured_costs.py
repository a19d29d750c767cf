"""Measures speeds and costs of a recorded run, as the input of a simulation of the same workload.

A record is a sequence of events with the commands that they caused: a server's journal, or that of a simulation. Every
figure is a median over attempts, so that one disturbed attempt does not count. Nothing is fitted. `MeasuredCosts` is
also a file format (JSON).
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
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
from simulator.ground_truth import ANY_COUNT, AttemptCosts, GroundTruth, SpeedKey
from simulator.simulated_jobs import PlannedFailure, SimulatedJob
from walras.cluster import NodeId, Placement, PoolId
from walras.contract import EXIT_CHECKPOINTED
from walras.errors import ConfigError
from walras.job_request import ANY_ACCELERATOR, JobId, JobRequest, Kind
from walras.model_facts import MOST_SAMPLES, ModelFacts
from walras.spec.file_model import FileModel
from walras.spec.job_groups import FactsSpec
from walras.states import AttemptState, Reason

_Length = Annotated[float, Field(ge=0, le=1e9)]
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


class MeasuredJob(FileModel):
    """The true work of one job of the workload. `row` counts the workload's jobs from 0."""

    row: int = Field(ge=0)
    #: Steps that it made until it ended; seconds that it ran, if its kind has no speed.
    steps: Annotated[float, Field(gt=0)]
    #: Not 0: it fails with this code after those steps, every time.
    exit_code: int = 0


class MeasuredPool(FileModel):
    """The boot time of a rented pool, from the request to the machine's joining."""

    pool_id: str
    boot_s: _Length


class MeasuredRevocation(FileModel):
    """A revocation by the market, seconds after the first submission."""

    at: _Length
    pool_id: str


class MeasuredFacts(FactsSpec):
    """Facts of a kind that the run's scheduler was told, seconds after the first submission."""

    at: _Length
    kind: str
    #: Samples of one step over the whole gang.
    batch: Annotated[float, Field(gt=0, le=MOST_SAMPLES)] | None = None
    counted: bool = False

    def told(self, begins_at: float) -> FactsTold:
        """Returns the event on the cluster's clock."""
        facts = ModelFacts(**{each.name: getattr(self, each.name) for each in fields(ModelFacts)})
        return FactsTold(self.at + begins_at, Kind(self.kind), facts, self.counted)


class MeasuredCosts(FileModel):
    """The true behaviour of a workload's jobs, as a file (JSON) or a value."""

    speeds: tuple[MeasuredSpeed, ...] = ()
    kinds: tuple[MeasuredKind, ...] = ()
    jobs: tuple[MeasuredJob, ...] = ()
    pools: tuple[MeasuredPool, ...] = ()
    #: In place of the workload's incidents, if there are any.
    revocations: tuple[MeasuredRevocation, ...] = ()
    #: When speeds that were not measured were predicted, seconds after the first submission, and from which facts.
    predicted_at: tuple[_Length, ...] = ()
    facts: tuple[MeasuredFacts, ...] = ()
    #: The workload's first instant on the cluster's clock: rounds are aligned to that clock.
    begins_at: _Length = 0.0
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

    def applied_to(self, jobs: list[SimulatedJob]) -> list[SimulatedJob]:
        """Returns the jobs with their measured work. Raises ConfigError for a row that does not exist."""
        rows = list(jobs)
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
    try:
        return MeasuredCosts.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", fix="check the path") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}", field=where) from None


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
    predicted_at: list[float] = field(default_factory=list)
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
                self.boot_s.setdefault(event.pool_id, []).append(event.at - self.rented_at[event.token][1])
        elif isinstance(event, NodeLeaving) and event.reason is Reason.INFRA_SPOT_RECLAIM:
            self.revocations.append((event.at, self.pool_of[event.node_id]))
        elif isinstance(event, SpeedsPredicted):
            self.predicted_at.append(event.at)
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
        attempt.first_step_s = event.start_s if event.start_s is not None else attempt.first_step_s
        if event.steps_per_s is not None:
            attempt.steps_per_s, attempt.samples = event.steps_per_s, event.samples
    elif isinstance(event, CheckpointRecorded):
        attempt.save_s = event.took_s
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
        jobs=tuple(_measured_jobs(record)),
        pools=tuple(
            MeasuredPool(pool_id=pool_id, boot_s=median(seen)) for pool_id, seen in sorted(record.boot_s.items())
        ),
        revocations=tuple(
            MeasuredRevocation(at=at - begins_at, pool_id=pool_id)
            for at, pool_id in record.revocations
            if at >= begins_at
        ),
        predicted_at=tuple(at - begins_at for at in record.predicted_at if at >= begins_at),
        facts=tuple(_measured_facts(told, begins_at) for told in record.facts),
        begins_at=begins_at,
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
    kinds = []
    for kind in sorted({request.kind for request in record.requests.values()}):
        seen = _phases(record, kind)
        counts_steps = bool(seen.warm_up_s)
        kinds.append(
            MeasuredKind(
                kind=kind,
                start_s=_median_or_usual(seen.start_s, usual.start_s),
                warm_up_s=_median_or_usual(seen.warm_up_s, usual.warm_up_s) if counts_steps else 0.0,
                checkpoint_s=_median_or_usual(seen.checkpoint_s, usual.checkpoint_s),
                exit_s=_median_or_usual(seen.exit_s, usual.exit_s) if counts_steps else 0.0,
            )
        )
    return tuple(kinds)


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
