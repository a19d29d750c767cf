"""Sia's applications, cluster and jobs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from simulator.compat.profiles import local_range, read_learning, read_steps
from simulator.compat.sia.training import SiaApplication, SiaTraining
from simulator.goodput.application import Application, Profile
from simulator.job import SimulatedJob
from simulator.machines import PoolModel
from simulator.workloads.job import TraceJob
from walras.cluster import Pool, Shape
from walras.errors import ConfigError
from walras.ids import JobId, Kind, PoolId
from walras.request import Demand, JobRequest


@dataclass(frozen=True, slots=True)
class _Known:
    epochs: int
    slow_down: float
    restart_s: float


_APPLICATIONS = {
    "bert": _Known(2, 1.2, 120.0),
    "cifar10": _Known(100, 1.8, 50.0),
    "deepspeech2": _Known(80, 1.2, 25.0),
    "imagenet": _Known(90, 1.2, 250.0),
    "ncf": _Known(10, 1.5, 15.0),
    "yolov3": _Known(50, 1.2, 80.0),
}


def _pool(name: str, accelerators: int, machines: int) -> PoolModel:
    return PoolModel(Pool(PoolId(name), Shape(name, name, accelerators, 48.0, 192 << 30)), machines=machines)


#: The cluster of the measured runs, by Sia's names: machines of 4 T4, of 8 A100 and of 8 RTX 2080 Ti.
SIA_POOLS = (_pool("aws", 4, 6), _pool("dgx-ext", 8, 2), _pool("rtx", 8, 3))


def read_applications(
    learning: str | Path, steps: str | Path, types: Iterable[str] = ("aws", "dgx-ext", "rtx")
) -> dict[str, SiaApplication]:
    """The applications whose step times on these types are below `steps`, by name.

    How they learn is what Pollux's profiles below `learning` say. Raises ConfigError.
    """
    names = [name for name in _APPLICATIONS if (Path(steps) / name).is_dir()]
    if not names:
        raise ConfigError(
            f"{steps}: no application's profile; known are {', '.join(_APPLICATIONS)}", fix="see the path"
        )
    return {name: _read(name, Path(learning) / name, Path(steps) / name, tuple(types)) for name in names}


def _read(name: str, learning: Path, steps: Path, types: tuple[str, ...]) -> SiaApplication:
    known = _APPLICATIONS[name]
    learned = read_learning(name, learning, known.epochs)
    laws, profiles = {}, {}
    for type_ in types:
        placements = steps / f"placements-{type_}.csv.gz"
        laws[type_] = read_steps(f"{name} on {type_}", placements, steps / f"scalability-{type_}.csv.gz")
        profiles[type_] = Profile(laws[type_], *local_range(placements))
    application = Application(name, learned.batches[0], learned.batches[-1], learned, profiles)
    return SiaApplication(application, laws, known.slow_down, known.restart_s)


@dataclass(frozen=True, slots=True)
class SiaWorkload:
    """Jobs, numbered from 1 in the order of their rows, and what each kind of them trains on each type."""

    jobs: tuple[SimulatedJob, ...]
    trainings: Mapping[Kind, Mapping[str, SiaTraining]]
    #: What a start costs each kind, seconds.
    restart_s: Mapping[Kind, float]


def workload_of(
    rows: Iterable[TraceJob], applications: Mapping[str, SiaApplication], pools: tuple[PoolModel, ...] = SIA_POOLS
) -> SiaWorkload:
    """The rows as jobs that may run on every pool.

    Raises ConfigError for an application without a profile, a job without a batch size and one larger than every pool.
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
        jobs.append(SimulatedJob(row.at, JobRequest(JobId(number), kind, demands, steps=steps), steps, name=row.name))
    return SiaWorkload(tuple(jobs), trainings, restart_s)
