"""What a real run measured, as the input of a simulation of the same workload: speeds, costs, and each job's truth."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from simulator.job import PlannedFailure, SimulatedJob
from simulator.truth import ANY_COUNT, Costs, SpeedKey, Truth
from walras.checking import FileModel
from walras.errors import ConfigError
from walras.ids import Kind
from walras.request import ANY_ACCELERATOR

_Length = Annotated[float, Field(ge=0, le=1e9)]
_Speed = Annotated[float, Field(gt=0, le=1e9)]


class MeasuredSpeed(FileModel):
    """Steps per second of a gang. `count` 0: of a gang of any size; accelerator `*`: on any type."""

    kind: str
    accelerator: str
    count: int = Field(default=ANY_COUNT, ge=0)
    steps_per_s: _Speed


class MeasuredKind(FileModel):
    """Costs of the lives of a kind's attempts, seconds (`simulator.truth.Costs` says what each is).

    `checkpoint_s` null: the kind cannot checkpoint.
    """

    kind: str
    start_s: _Length
    checkpoint_s: _Length | None = 0.0
    checkpoint_every_s: _Length = 0.0
    warm_up_s: _Length = 0.0
    exit_s: _Length = 0.0


class MeasuredJob(FileModel):
    """What one job of the workload turned out to be. `row` counts the workload's jobs from 0."""

    row: int = Field(ge=0)
    #: Steps it made until it ended; where its kind has no speed, the seconds that it ran.
    steps: Annotated[float, Field(gt=0)]
    #: Not 0: it fails with this code after those steps, every time.
    exit_code: int = 0


class MeasuredPool(FileModel):
    """A rented pool: request to machine ready."""

    pool_id: str
    boot_s: _Length


class MeasuredRevocation(FileModel):
    """When the market really took the machines of a pool back, counted from the first submission."""

    at: _Length
    pool_id: str


class MeasuredCosts(FileModel):
    """A file (JSON) or value that says how the jobs of a workload really behave."""

    speeds: tuple[MeasuredSpeed, ...] = ()
    kinds: tuple[MeasuredKind, ...] = ()
    jobs: tuple[MeasuredJob, ...] = ()
    pools: tuple[MeasuredPool, ...] = ()
    #: In place of the workload's incidents, if there are any.
    revocations: tuple[MeasuredRevocation, ...] = ()
    #: The workload's first instant on the cluster's clock: rounds are aligned to that clock.
    begins_at: _Length = 0.0
    #: A usual solve, and the standard deviation of the logarithm of an attempt's start against its kind's.
    solve_s: _Length = 0.0
    cost_noise: Annotated[float, Field(ge=0, le=3)] = 0.0
    #: For kinds that are not named.
    start_s: _Length = 0.0
    checkpoint_s: _Length = 0.0

    def truth(self) -> Truth:
        """Speeds and costs. A kind without any speed does one step a second everywhere: its steps are seconds."""
        speeds = {SpeedKey(Kind(s.kind), s.accelerator, s.count): s.steps_per_s for s in self.speeds}
        costs = {
            Kind(k.kind): Costs(k.start_s, k.checkpoint_s, k.checkpoint_every_s, k.warm_up_s, k.exit_s)
            for k in self.kinds
        }
        for kind in costs.keys() - {key.kind for key in speeds}:
            speeds[SpeedKey(kind, ANY_ACCELERATOR)] = 1.0
        return Truth(speeds, costs, Costs(self.start_s, self.checkpoint_s))

    def applied_to(self, jobs: list[SimulatedJob]) -> list[SimulatedJob]:
        """The jobs with the truth about each that was measured. Raises ConfigError for a row that is not there."""
        rows = list(jobs)
        for measured in self.jobs:
            if measured.row >= len(rows):
                raise ConfigError(f"a job is measured in row {measured.row}, the workload has {len(rows)} jobs")
            plan = rows[measured.row]
            failures, steps = plan.failures, measured.steps
            if measured.exit_code:
                # It never gets past the failure, so what lies beyond does not matter.
                failures, steps = (PlannedFailure(measured.steps, measured.exit_code),), 2.0 * measured.steps
            rows[measured.row] = SimulatedJob(plan.at, plan.request, steps, failures, plan.cancel_at, plan.name)
        return rows


def load_measured(path: str | Path) -> MeasuredCosts:
    """Read the file. Raises ConfigError that names it."""
    try:
        return MeasuredCosts.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", fix="check the path") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}", field=where) from None
