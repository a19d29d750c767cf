"""A recorded run in the form in which the simulator can repeat it: its fleet, its jobs with their true work, its costs.

It is made from events and the commands that they caused, such as a server's journal. It is kept as JSON lines (a
header, then a line for each job), so that a run can be studied on another machine without the server's folder.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from scheduler.core.events import (
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeJoined,
    PolicyChanged,
    PoolDeclared,
)
from scheduler.core.job_change_events import JobBudgetChanged, JobDeadlineChanged, JobProjectChanged, JobReprioritised
from simulator.cost_measurement import RecordedEvent, measure_costs, recorded_completion_times
from simulator.measured_costs import MeasuredCosts
from simulator.simulated_jobs import PlannedFailure, SimulatedJob
from walras.cluster import Market, NodeId, Pool, PoolId
from walras.errors import ConfigError
from walras.job_request import JobId, JobRequest

RECORDING_VERSION = 1
_BYTES_MAX = 512 * 1024 * 1024
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecordedPool:
    """A pool as last declared, and the number of its owned machines."""

    pool: Pool
    machines: int


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """A job as it was submitted, and its true work."""

    at: float
    request: JobRequest
    #: Steps that it made until it ended (seconds of running where steps were not counted), and its exit code.
    steps: float
    exit_code: int = 0
    cancel_at: float = inf
    #: Seconds from submission to end; inf if it had not ended when the record did.
    jct_s: float = inf

    def simulated(self) -> SimulatedJob:
        """Returns the job for the simulator. A failed job never gets past its failure."""
        if not self.exit_code:
            return SimulatedJob(self.at, self.request, self.steps, cancel_at=self.cancel_at)
        failure = PlannedFailure(self.steps, self.exit_code)
        return SimulatedJob(self.at, self.request, 2.0 * self.steps, (failure,), self.cancel_at)


@dataclass(frozen=True, slots=True)
class UserActions:
    """User actions on jobs, apart from submissions and cancellations."""

    held: tuple[JobHeld, ...] = ()
    released: tuple[JobReleased, ...] = ()
    reprioritised: tuple[JobReprioritised, ...] = ()
    rebudgeted: tuple[JobBudgetChanged, ...] = ()
    redated: tuple[JobDeadlineChanged, ...] = ()
    moved: tuple[JobProjectChanged, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordingHeader:
    """A recording without its jobs."""

    recording: int
    pools: tuple[RecordedPool, ...]
    #: Every policy that became active, with its instant.
    policies: tuple[PolicyChanged, ...]
    costs: MeasuredCosts
    acts: UserActions = UserActions()
    #: Jobs of unknown length, and jobs that depend on them.
    left_out: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run. Jobs are in order of arrival."""

    header: RecordingHeader
    jobs: tuple[RecordedJob, ...]

    def under(self, policies: tuple[PolicyChanged, ...]) -> "Recording":
        """Returns the same run under these policies."""
        return replace(self, header=replace(self.header, policies=policies))


def make_recording(recorded: Sequence[RecordedEvent]) -> Recording:
    """Makes a recording of a run. Raises ConfigError for a record without policy, pools or any job of known length."""
    costs = measure_costs(recorded)
    pools: dict[PoolId, Pool] = {}
    nodes: dict[PoolId, set[NodeId]] = {}
    submitted: dict[JobId, JobSubmitted] = {}
    cancelled: dict[JobId, float] = {}
    for event, _ in recorded:
        if isinstance(event, PoolDeclared):
            pools[event.pool.pool_id] = event.pool
        elif isinstance(event, NodeJoined):
            nodes.setdefault(event.pool_id, set()).add(event.node_id)
        elif isinstance(event, JobSubmitted):
            submitted.setdefault(event.job.job_id, event)
        elif isinstance(event, JobCancelled):
            cancelled.setdefault(event.job_id, event.at)
    jobs, left_out = _recorded_jobs(
        submitted, cancelled, costs, recorded_completion_times(_about_submitted_jobs(recorded, submitted))
    )
    policies = tuple(event for event, _ in recorded if isinstance(event, PolicyChanged))
    if not (jobs and pools and policies):
        raise ConfigError("the record holds no job that ended, no pool or no policy", fix="let a job end first")
    owned = {pool_id: len(nodes.get(pool_id, ())) * (pool.market is Market.OWNED) for pool_id, pool in pools.items()}
    acts = UserActions(
        tuple(event for event, _ in recorded if isinstance(event, JobHeld)),
        tuple(event for event, _ in recorded if isinstance(event, JobReleased)),
        tuple(event for event, _ in recorded if isinstance(event, JobReprioritised)),
        tuple(event for event, _ in recorded if isinstance(event, JobBudgetChanged)),
        tuple(event for event, _ in recorded if isinstance(event, JobDeadlineChanged)),
        tuple(event for event, _ in recorded if isinstance(event, JobProjectChanged)),
    )
    fleet = tuple(RecordedPool(pool, owned[pool_id]) for pool_id, pool in pools.items())
    # Each job carries its own measurements; a reader would count separate rows twice.
    return Recording(
        RecordingHeader(
            RECORDING_VERSION, fleet, policies, costs.model_copy(update={"jobs": ()}), acts, tuple(left_out)
        ),
        tuple(jobs),
    )


def _about_submitted_jobs(
    recorded: Sequence[RecordedEvent], submitted: dict[JobId, JobSubmitted]
) -> list[RecordedEvent]:
    """Removes commands about jobs whose submission is not in the record."""
    return [
        (event, [command for command in commands if getattr(command, "job_id", None) in submitted])
        for event, commands in recorded
    ]


def _recorded_jobs(
    submitted: dict[JobId, JobSubmitted],
    cancelled: dict[JobId, float],
    costs: MeasuredCosts,
    jct_s: dict[JobId, float],
) -> tuple[list[RecordedJob], list[JobId]]:
    seen = {measured.row: measured for measured in costs.jobs}
    timed = {speed.kind for speed in costs.speeds}
    jobs: dict[JobId, RecordedJob] = {}
    left_out: dict[JobId, None] = {}
    for row, (job_id, event) in enumerate(submitted.items()):
        measured = seen.get(row)
        # A job that did not run to its end gets its declared steps, if the speed of its kind is known.
        steps = measured.steps if measured is not None else event.job.steps if event.job.kind in timed else None
        if steps is None or not set(event.job.depends_on) <= jobs.keys():
            left_out[job_id] = None
            continue
        exit_code = measured.exit_code if measured is not None else 0
        ended = jct_s.get(job_id, inf)
        jobs[job_id] = RecordedJob(event.at, event.job, steps, exit_code, cancelled.get(job_id, inf), ended)
    return list(jobs.values()), list(left_out)


# --------------------------------------------------------------------------------------------------------- the file

_HEADER, _JOB = TypeAdapter(RecordingHeader), TypeAdapter(RecordedJob)


def write_recording(recording: Recording, path: Path) -> None:
    """Writes the recording as JSON lines. Infinite instants are written as `Infinity`, which Python reads back."""
    half = path.with_name(f".{path.name}.half")
    try:
        with half.open("w", encoding="utf-8") as file:
            file.write(json.dumps(_HEADER.dump_python(recording.header, mode="json")) + "\n")
            for job in recording.jobs:
                file.write(json.dumps(_JOB.dump_python(job, mode="json")) + "\n")
        half.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", field="export", fix="choose another path") from None
    finally:
        half.unlink(missing_ok=True)


def read_recording(path: Path) -> Recording:
    """Reads a recording. Raises ConfigError naming the file and the line."""
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise ConfigError(f"{path}: more than {_BYTES_MAX:,} bytes", fix="give a file made by --export")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", fix="give a server's folder, or a file made by --export") from None
    if not lines:
        raise ConfigError(f"{path}: is empty", fix="give a file made by --export")
    header = _parsed(_HEADER, lines[0], path, 1)
    if header.recording != RECORDING_VERSION:
        raise ConfigError(f"{path}: of version {header.recording}, not {RECORDING_VERSION}", fix="export it again")
    jobs = tuple(_parsed(_JOB, line, path, number) for number, line in enumerate(lines[1:], 2))
    numbers = [job.request.job_id for job in jobs]
    if len(set(numbers)) < len(numbers) or any(a.at > b.at for a, b in pairwise(jobs)):
        raise ConfigError(f"{path}: jobs are numbered twice, or not in order of arrival", fix="export it again")
    return Recording(header, jobs)


def _parsed(adapter: TypeAdapter[T], line: str, path: Path, number: int) -> T:
    try:
        data: Any = json.loads(line)
        return adapter.validate_python(data)
    except (ValueError, RecursionError) as error:
        message = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ConfigError(f"{path}:{number}: {message}", fix="give a file made by --export") from None
