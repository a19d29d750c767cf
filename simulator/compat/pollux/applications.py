"""The applications of the Pollux artifact, and the jobs of a workload that train them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from simulator.compat.pollux.training import Training
from simulator.compat.profiles import local_range, read_learning, read_steps
from simulator.goodput.application import Application, Profile
from simulator.goodput.placement import packed
from simulator.job import SimulatedJob
from simulator.workloads.job import TraceJob
from walras.checking import nearest
from walras.cluster import Pool
from walras.errors import ConfigError
from walras.ids import JobId, Kind
from walras.request import Demand, JobRequest

#: Epochs of each: a job is done when it has trained them all, whatever its validation says.
_EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
#: Largest batch per accelerator, where it is not the largest that was measured.
_LOCAL_MOST = {"yolov3": 8}


def read_applications(folder: str | Path, accelerator: str = "t4") -> dict[str, Application]:
    """The applications whose profiles are below the folder, by name. Raises ConfigError."""
    root = Path(folder)
    names = [name for name in _EPOCHS if (root / name).is_dir()]
    if not names:
        raise ConfigError(f"{root}: no application's profile; known are {', '.join(_EPOCHS)}", fix="check the path")
    return {name: _read(name, root / name, accelerator) for name in names}


def _read(name: str, folder: Path, accelerator: str) -> Application:
    placements = folder / "placements.csv"
    learning = read_learning(name, folder, _EPOCHS[name])
    least, most = local_range(placements)
    profile = Profile(
        read_steps(name, placements, folder / "scalability.csv"), least, min(most, _LOCAL_MOST.get(name, most))
    )
    return Application(name, learning.batches[0], learning.batches[-1], learning, {accelerator: profile})


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs, numbered from 1 in the order of their rows, and what each kind of them trains."""

    jobs: tuple[SimulatedJob, ...]
    trainings: Mapping[Kind, Training]


def workload_of(
    rows: Iterable[TraceJob], applications: Mapping[str, Application], pool: Pool, machines: int
) -> Workload:
    """The rows as jobs of one pool of so many machines.

    Raises ConfigError for an application without a profile and a job larger than the pool, OutsideTable (one too) for
    a batch that the profile says nothing about.
    """
    shape, most = pool.shape, machines * pool.shape.accelerators
    trainings: dict[Kind, Training] = {}
    jobs: list[SimulatedJob] = []
    for number, row in enumerate(rows, start=1):
        kind = _train(row, applications, shape.accelerator, trainings)
        if row.gang > most:
            raise ConfigError(
                f"line {row.line}: {row.name!r} wants {row.gang} accelerators, {most} are there",
                field="num_replicas",
                fix="choose a larger cluster",
            )
        training = trainings[kind]
        training.mean_steps_per_s(packed(row.gang, shape.accelerators))  # now, not after hours of the run
        steps = training.application.work
        request = JobRequest(JobId(number), kind, (Demand(shape.accelerator, row.gang),), steps=steps)
        jobs.append(SimulatedJob(row.at, request, steps, name=row.name))
    return Workload(tuple(jobs), trainings)


def _train(
    row: TraceJob, applications: Mapping[str, Application], accelerator: str, trainings: dict[Kind, Training]
) -> Kind:
    """The row's kind, known to `trainings` from now on."""
    if row.batch is None:
        raise ConfigError(f"line {row.line}: {row.name!r} has no batch size", field="batch_size", fix="give one")
    ending = f" (batch size {row.batch})"
    name = row.kind.removesuffix(ending)
    kind = Kind(name + ending)
    if kind not in trainings:
        application = applications.get(name)
        if application is None:
            meant = nearest(name, applications)
            raise ConfigError(
                f"line {row.line}: no profile of application {name!r}",
                field="application",
                fix=f"did you mean {meant!r}?" if meant else f"known: {', '.join(applications)}",
            )
        trainings[kind] = Training(application, accelerator, row.batch)
    return kind
