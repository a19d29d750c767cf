"""Speeds and costs that a run showed, as a file format (JSON) and as the input of a simulation of the same workload.

`simulator.cost_measurement` measures them. Nothing is fitted.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from scheduler.core.speed_events import FactsTold
from simulator.ground_truth import ANY_COUNT, AttemptCosts, AttemptTimes, GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.simulated_jobs import PlannedFailure, SimulatedJob
from walras.errors import ConfigError
from walras.job_request import ANY_ACCELERATOR, JobId, Kind
from walras.model_facts import MOST_BYTES, MOST_FLOPS, MOST_LAYERS, MOST_SAMPLES, ModelFacts, Precision
from walras.spec.file_model import FileModel

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
        """Returns the times of single attempts."""
        return {
            (JobId(each.job_id), each.attempt): AttemptTimes(each.start_s, each.warm_up_s, each.exit_s)
            for each in self.attempts
        }

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
