"""Which runs tell a job's stalls apart, and what follows from them.

alone       made-up data, one rank                       compute
together    made-up data, all ranks                      + exchange inside the machine
apart       the same over the loopback, labelled so      + exchange between machines
reading     real data: finds the files that are read, and has the host remember them
warm        real data that the host remembers            + preparing it
cold        real data that the host was made to forget   + fetching it
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from walras.profiling.runs import Extent, Run, Runner, RunTold, UpdateFacts

#: More of the files than this staying in memory makes no run cold.
STAYED_MAX = 0.1


class Parts(Protocol):
    """Seconds of one step by what they go to, as `optimizer.performance.stalls` attributes them."""

    @property
    def compute_s(self) -> float: ...
    @property
    def inside_s(self) -> float: ...
    @property
    def prepare_s(self) -> float: ...
    @property
    def fetch_s(self) -> float: ...
    @property
    def network_s(self) -> float: ...


#: From seconds of a step alone, together, warm, cold and (None: never run so) apart.
Attribute = Callable[[float, float, float, float, float | None], Parts]


@dataclass(frozen=True, slots=True)
class Stall:
    """Seconds of one step. None: these runs do not tell."""

    name: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Profile:
    """What a job's script does with its time, on this machine."""

    job: str
    kind: str
    ranks: int
    #: Canonical name of what each rank has; `cpu` without.
    accelerator: str
    runs: tuple[RunTold, ...]
    stalls: tuple[Stall, ...]
    notes: tuple[str, ...]

    @property
    def step_s(self) -> float:
        """Of the job as it is on one machine, with data that the host remembers."""
        return self.run("warm").step_s

    def run(self, name: str) -> RunTold:
        """The run of that name."""
        return next(told for told in self.runs if told.run.name == name)

    @property
    def facts(self) -> UpdateFacts:
        """Counted in the run of a single rank."""
        facts = self.run("alone").ranks[0].facts
        assert facts is not None, "the run alone counts them"
        return facts

    @property
    def samples_per_step(self) -> float | None:
        """Over all ranks; None where the script uses no loader of tensors."""
        rank = self.run("warm").ranks[0]
        each = rank.samples_per_batch
        return None if each is None else each * rank.batches_per_update * self.ranks


@dataclass(frozen=True, slots=True)
class Question:
    """The job, and how long to look."""

    job: str
    kind: str
    ranks: int
    extent: Extent
    accelerator: str = "cpu"


def study(question: Question, runner: Runner, attribute: Attribute, folder: Path) -> Profile:
    """Make all runs, one after the other, below the folder.

    Raises:
        ProfileError: the script cannot be profiled.
    """
    ranks, told = question.ranks, list[RunTold]()

    def made(run: Run) -> RunTold:
        found = runner.run(run, question.extent, folder / run.name)
        found.check()
        told.append(found)
        return found

    alone = made(Run("alone", facts=True))
    together = made(Run("together", ranks)) if ranks > 1 else alone
    apart = made(Run("apart", ranks, apart=True)) if ranks > 1 else None
    files = made(Run("reading", ranks, real_data=True, files=True)).files
    warm = made(Run("warm", ranks, real_data=True))
    cold = made(Run("cold", ranks, real_data=True, evict=files)) if files else warm
    parts = attribute(alone.step_s, together.step_s, warm.step_s, cold.step_s, None if apart is None else apart.step_s)
    loads = warm.ranks[0].batches_per_update > 0
    is_cold = bool(files) and cold.stayed <= STAYED_MAX * cold.looked_at
    stalls = (
        Stall("compute", parts.compute_s),
        Stall("prepare", parts.prepare_s if loads else None),
        Stall("fetch", parts.fetch_s if loads and is_cold else None),
        Stall("inside", parts.inside_s if ranks > 1 else None),
        Stall("network", parts.network_s if ranks > 1 else None),
    )
    notes = tuple(_notes(ranks, loads, len(files), cold))
    return Profile(question.job, question.kind, ranks, question.accelerator, tuple(told), stalls, notes)


def _notes(ranks: int, loads: bool, files: int, cold: RunTold) -> list[str]:
    """What a reader has to know to read the figures rightly."""
    notes = []
    if ranks == 1:
        notes.append("one rank: nothing is exchanged (--ranks N profiles a gang)")
    else:
        notes.append("network: several machines are stood in for by this machine's loopback")
    if not loads:
        notes.append("the script uses no torch DataLoader: its data are part of compute")
    elif not files:
        notes.append("no data file was seen being opened: fetching cannot be told from preparing")
    elif cold.stayed:
        notes.append(f"{cold.stayed} of {cold.looked_at} files looked at stayed in the host's memory")
    return notes
