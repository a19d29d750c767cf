"""The laws that the jobs of a workload obey: which of them is meant, and with which batches."""

from collections.abc import Mapping
from pathlib import Path

from simulator.goodput.application import Application
from simulator.goodput.law import GoodputLaw
from simulator.goodput.stated import stated_application
from simulator.truth import Law
from walras.checking import check
from walras.config import Workload, load_mapping
from walras.errors import ConfigError
from walras.goodput_given import LawGiven, LawsFile
from walras.ids import Kind

#: In the name of a kind: as other traces write it.
_BATCHES = " (batch size "


class Laws:
    """Applications by name, and the law of every kind of job that was asked for."""

    def __init__(self, applications: Mapping[str, Application], steps: Mapping[str, float]) -> None:
        """`steps`: the whole training of some of them."""
        self._applications = dict(applications)
        self._steps = dict(steps)
        #: By kind; grows as jobs are asked for.
        self.of: dict[Kind, Law] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._applications

    def steps(self, name: str) -> float | None:
        """Of the whole training; None: each job has to say it."""
        return self._steps.get(name)

    def batch_most(self, name: str) -> int:
        """The largest batch that the law allows."""
        return self._applications[name].batch_most

    def kind_of(self, name: str, batch: int | None, most: int | None, where: str) -> Kind:
        """The kind of a job that trains this application, known to `of` from now on.

        `batch` alone: one that never changes; with `most`: the job chooses between the two; neither: as the law allows.
        Raises ConfigError, which begins with `where`, for batches beyond the law.
        """
        application = self._applications[name]
        largest = max(batch or 1, most or 1)
        if largest > application.batch_most:
            raise ConfigError(
                f"{where}: a batch of {largest} is above {application.batch_most}, the most in the law of {name!r}",
                field="batch",
                fix="choose a smaller batch, or raise the law's `batch.max`",
            )
        law: Law
        if batch is None and most is None:
            kind, law = Kind(name), GoodputLaw(application)
        elif most is None:
            kind, law = Kind(f"{name}{_BATCHES}{batch})"), GoodputLaw(application, batch)
        else:
            least = batch if batch is not None else application.batch_initial
            kind, law = Kind(f"{name}{_BATCHES}{least} to {most})"), GoodputLaw(application, least, most)
        self.of.setdefault(kind, law)
        return kind


def laws_of(given: Mapping[str, LawGiven]) -> Laws:
    """The laws of a file."""
    steps = {name: law.steps for name, law in given.items() if law.steps is not None}
    return Laws({name: stated_application(name, law) for name, law in given.items()}, steps)


def law_named(kind: Kind) -> str:
    """The law that a kind follows: its name without the batches."""
    return kind.partition(_BATCHES)[0]


def is_law_file(path: str | Path) -> bool:
    """By its ending: throughput tables are JSON."""
    return Path(path).suffix in (".yaml", ".yml")


def read_laws(path: str | Path) -> Laws:
    """The laws in a file of laws, or in a workload file. Raises ConfigError that names it."""
    data = load_mapping(path)
    if "jobs" in data:
        return laws_of(check(Workload, data, source=str(path)).laws)
    return laws_of(check(LawsFile, data, source=str(path)).laws)
