"""The jobs of Sia's simulator and their time model: Pollux's training by type, slowed down and with other limits.

The largest batch per accelerator depends on the placement. If some placement of as many accelerators was measured, no
placement of that many trains with more than was measured there. A job that continues in the same shape on the same type
pays no restart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from simulator.attempts import SimAttempt, WorldParameters
from simulator.engine import Engine, RandomStreams
from simulator.goodput.application import (
    AcceleratorProfile,
    Application,
    BatchSplit,
    GangLayout,
    goodput,
    packed_layout,
    split_batch,
    update_time_s,
)
from simulator.goodput.measured_profiles import MeasuredStepTimes
from simulator.machines import PoolModel, SimulatedMachines
from simulator.simulated_jobs import SimulatedJob
from simulator.workloads.application_profiles import local_batch_range, read_learning_curve, read_step_times
from simulator.workloads.trace import TraceJob
from simulator.worlds.pollux.pollux_training import PolluxTraining
from simulator.worlds.pollux.stepped_attempts import SteppedAttempts
from walras.cluster import Pool, PoolId, Shape
from walras.errors import ConfigError
from walras.job_request import Demand, JobId, JobRequest, Kind

#: Updates per second that the policy assumes for a job that wants more accelerators than the type has.
_TOO_LARGE = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class SiaApplication:
    """An application with its step times by type, and the parameters that Sia's simulator adds."""

    application: Application
    steps: dict[str, MeasuredStepTimes]
    #: Divisor of every speed; seconds that a start or a change costs.
    slow_down: float
    restart_s: float


class SiaTraining(PolluxTraining):
    """A `SiaApplication` trained with one batch size on one type."""

    def __init__(self, sia: SiaApplication, accelerator: str, batch: int) -> None:
        super().__init__(sia.application, accelerator, batch)
        self.sia = sia
        self._steps = sia.steps[accelerator]
        self._type = accelerator
        self._slow_down = sia.slow_down
        self._limits: dict[int, int | None] = {}
        self._applications: dict[GangLayout, Application] = {}

    def _steps_per_s(self, placement: GangLayout, epoch: int) -> float:
        found = self._goodput.get((placement, epoch))
        if found is None:
            application, count = self._within(placement), placement.accelerators
            least = 1 if count == 1 and self.batch > application.batch_initial else 0
            split = split_batch(application, self._type, count, self.batch, accumulated_least=least)
            split = self._limited(split, count)
            found = goodput(application, self._type, placement, split, epoch) / self._slow_down
            self._goodput[placement, epoch] = found
        return found

    def _limited(self, split: BatchSplit, count: int) -> BatchSplit:
        """Limits the samples per accelerator to those measured on any placement of `count` accelerators."""
        if count not in self._limits:
            curves = self._steps.curves.items()
            self._limits[count] = min(
                (curve.local[-1] for known, curve in curves if known.accelerators == count), default=None
            )
        most = self._limits[count]
        return split if most is None or split.local <= most else replace(split, local=most)

    def updates_per_s(self, count: int, accelerators: int, machine_size: int) -> float:
        """Returns the speed that Sia's Gavel assumes for a gang of `count` on a type with `accelerators` in all."""
        if count > accelerators:
            return _TOO_LARGE
        placement = packed_layout(count, machine_size)
        application = self._within(placement)
        least = 1 if count == 1 else 0
        split = split_batch(application, self._type, count, self.batch, accumulated_least=least)
        return 1.0 / update_time_s(application, self._type, placement, split) / self._slow_down

    def _within(self, placement: GangLayout) -> Application:
        """Returns the application with the largest batch per accelerator that this placement allows."""
        found = self._applications.get(placement)
        if found is None:
            profile = self.application.on[self._type]
            most = largest_local_batch(self._steps, placement)
            found = replace(
                self.application, on={self._type: AcceleratorProfile(profile.law, profile.local_least, most)}
            )
            self._applications[placement] = found
        return found


def largest_local_batch(steps: MeasuredStepTimes, placement: GangLayout) -> int:
    """Returns the largest batch per accelerator that was measured on this placement.

    If it was not measured, placements with at least as many machines and accelerators count. Raises ConfigError where
    none was measured.
    """
    curve = steps.curves.get(placement.in_ring())
    if curve is not None:
        return curve.local[-1]
    found = [
        local
        for (machines, accelerators, local), _ in steps.scaling
        if machines >= placement.machines and accelerators >= placement.accelerators
    ]
    if not found:
        raise ConfigError(
            f"no placement of {placement.accelerators} accelerators on {placement.machines} machines was measured",
            field="num_replicas",
            fix="choose a smaller gang",
        )
    return max(found)


@dataclass(frozen=True, slots=True)
class _KnownApplication:
    epochs: int
    slow_down: float
    restart_s: float


_APPLICATIONS = {
    "bert": _KnownApplication(2, 1.2, 120.0),
    "cifar10": _KnownApplication(100, 1.8, 50.0),
    "deepspeech2": _KnownApplication(80, 1.2, 25.0),
    "imagenet": _KnownApplication(90, 1.2, 250.0),
    "ncf": _KnownApplication(10, 1.5, 15.0),
    "yolov3": _KnownApplication(50, 1.2, 80.0),
}


def _sia_pool(name: str, accelerators: int, machines: int) -> PoolModel:
    return PoolModel(Pool(PoolId(name), Shape(name, name, accelerators, 48.0, 192 << 30)), machines=machines)


#: The cluster of the measured runs, by Sia's names: machines of 4 T4, of 8 A100 and of 8 RTX 2080 Ti.
SIA_POOLS = (_sia_pool("aws", 4, 6), _sia_pool("dgx-ext", 8, 2), _sia_pool("rtx", 8, 3))


def read_sia_applications(
    learning: str | Path, steps: str | Path, types: Iterable[str] = ("aws", "dgx-ext", "rtx")
) -> dict[str, SiaApplication]:
    """Reads the applications whose step times on these types are below the folder `steps`, by name.

    Pollux's profiles below `learning` say how they learn. Raises ConfigError.
    """
    names = [name for name in _APPLICATIONS if (Path(steps) / name).is_dir()]
    if not names:
        raise ConfigError(
            f"{steps}: no application's profile; known are {', '.join(_APPLICATIONS)}", fix="check the path"
        )
    return {name: _read_application(name, Path(learning) / name, Path(steps) / name, tuple(types)) for name in names}


def _read_application(name: str, learning: Path, steps: Path, types: tuple[str, ...]) -> SiaApplication:
    known = _APPLICATIONS[name]
    learned = read_learning_curve(name, learning, known.epochs)
    laws, profiles = {}, {}
    for type_ in types:
        placements = steps / f"placements-{type_}.csv.gz"
        laws[type_] = read_step_times(f"{name} on {type_}", placements, steps / f"scalability-{type_}.csv.gz")
        profiles[type_] = AcceleratorProfile(laws[type_], *local_batch_range(placements))
    application = Application(name, learned.batches[0], learned.batches[-1], learned, profiles)
    return SiaApplication(application, laws, known.slow_down, known.restart_s)


@dataclass(frozen=True, slots=True)
class SiaWorkload:
    """Jobs, numbered from 1 in the order of their rows, and the training of each kind on each type."""

    jobs: tuple[SimulatedJob, ...]
    trainings: Mapping[Kind, Mapping[str, SiaTraining]]
    #: Seconds that a start of each kind costs.
    restart_s: Mapping[Kind, float]


def sia_workload(
    rows: Iterable[TraceJob], applications: Mapping[str, SiaApplication], pools: tuple[PoolModel, ...] = SIA_POOLS
) -> SiaWorkload:
    """Converts the rows to jobs that may run on every pool.

    Raises ConfigError for an application without a profile, a job without a batch size, and one larger than every pool.
    """
    most = max(pool.machines * pool.pool.shape.accelerators for pool in pools)
    trainings: dict[Kind, dict[str, SiaTraining]] = {}
    restart_s: dict[Kind, float] = {}
    jobs: list[SimulatedJob] = []
    for number, row in enumerate(rows, start=1):
        sia = applications.get(row.kind)
        if sia is None:
            known = ", ".join(applications)
            raise ConfigError(
                f"line {row.line}: no profile of {row.kind!r}", field="application", fix=f"known: {known}"
            )
        if row.batch is None:
            raise ConfigError(f"line {row.line}: {row.name!r} has no batch size", field="batch_size", fix="give one")
        if row.gang > most:
            raise ConfigError(
                f"line {row.line}: {row.name!r} wants {row.gang} accelerators, no type has more than {most}",
                field="num_replicas",
                fix="choose a larger cluster",
            )
        kind = Kind(f"{row.kind} (batch size {row.batch})")
        if kind not in trainings:
            trainings[kind] = {name: SiaTraining(sia, name, row.batch) for name in sia.steps}
            restart_s[kind] = sia.restart_s
        demands = tuple(Demand(pool.pool.shape.accelerator, row.gang) for pool in pools)
        steps = sia.application.work
        jobs.append(
            SimulatedJob(row.at, JobRequest(JobId(number), kind, demands=demands, steps=steps), steps, name=row.name)
        )
    return SiaWorkload(tuple(jobs), trainings, restart_s)


@dataclass(frozen=True, slots=True)
class _StoppedAttempt:
    """The place and shape of a stopped job, and the instant at which its restart there ended or would have ended."""

    at: float
    pool_id: PoolId
    shape: tuple[int, ...]
    up_at: float


class SiaAttempts(SteppedAttempts):
    """Simulates attempts in steps; a job that continues in the same shape on the same type pays no restart."""

    def __init__(
        self,
        engine: Engine,
        machines: SimulatedMachines,
        model: WorldParameters,
        streams: RandomStreams,
        *,
        trainings: Mapping[Kind, Mapping[str, SiaTraining]],
        step_s: float,
    ) -> None:
        super().__init__(engine, machines, model, streams, trainings={}, step_s=step_s)
        self._by_type = trainings
        self._left: dict[JobId, _StoppedAttempt] = {}

    def begin(self, now: float, attempt: SimAttempt) -> None:
        left = self._left.pop(attempt.job_id, None)
        if left is not None and (left.at, left.pool_id, left.shape) == (
            now,
            attempt.parts[0][0].pool_id,
            _shape_of(attempt),
        ):
            attempt.costs = replace(attempt.costs, start_s=max(0.0, left.up_at - now))
        super().begin(now, attempt)

    def stop(self, now: float, attempt: SimAttempt, grace_s: float) -> None:
        self._left[attempt.job_id] = _StoppedAttempt(
            now, attempt.parts[0][0].pool_id, _shape_of(attempt), attempt.up_at
        )
        super().stop(now, attempt, grace_s)

    def _training(self, attempt: SimAttempt) -> PolluxTraining:
        accelerator = self._machines.pools[attempt.parts[0][0].pool_id].pool.shape.accelerator
        return self._by_type[attempt.job.plan.request.kind][accelerator]


def _shape_of(attempt: SimAttempt) -> tuple[int, ...]:
    return tuple(len(devices) for _, devices in attempt.parts)
