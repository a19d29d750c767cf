"""A profile of a job's script: the runs that separate its stalls, the measurements of each run, and the result.

alone       synthetic data, one rank                     compute
together    synthetic data, all ranks                    + exchange inside the machine
apart       the same over the loopback, labelled so      + exchange between machines
reading     real data: lists the files that are read, and loads them into the page cache
warm        real data in the page cache                  + preparing it
cold        real data evicted from the page cache        + fetching it

A `ScriptRunner` starts the processes (`workers.trials`). All errors are about the script: exit code 2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any, Protocol

from walras.errors import UserError


class ProfileError(UserError):
    """The script cannot be profiled as it is."""


class NeverStepped(ProfileError):
    """The script ended or timed out before a torch optimizer stepped."""


class ScriptFailed(ProfileError):
    """A rank failed."""


class LossNotFinite(ProfileError):
    """The parameters have become NaN or infinite."""


class TooFewUpdates(ProfileError):
    """The script ended or timed out before it had made the updates to be timed."""


class NoSpeed(ProfileError):
    """Updates took no measurable time, so no speed follows."""


#: A step's time is the median of the means of this many blocks: one disturbed block does not change it, and a loader
#: that prefetches (several fast steps, then a slow one) is measured correctly.
BLOCKS = 5


@dataclass(frozen=True, slots=True)
class ProfilingRun:
    """The settings of one run: which costs it includes."""

    name: str
    ranks: int = 1
    #: Whether every rank counts as a machine of its own, connected over the loopback.
    apart: bool = False
    #: Whether the data are real; if not, they are synthetic and held in memory.
    real_data: bool = False
    #: Whether the run counts the model's facts, and whether it lists the files that are read.
    facts: bool = False
    files: bool = False
    #: Files that are evicted from the host's page cache first.
    evict: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProfilingExtent:
    """The length of each run: updates, and a time limit in seconds."""

    warm_up: int = 5
    updates: int = 40
    timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class UpdateFacts:
    """Facts of one update of one rank. `flops`: of forward and backward pass, as far as torch counts them."""

    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    #: Bytes of the optimizer's state.
    state_bytes: int
    layers: int
    flops: int
    #: Bytes kept from the forward for the backward pass, without parameters.
    activation_bytes: int
    #: Number format of most layers; 0 if the model has no layers.
    bits: int
    exponent_bits: int


@dataclass(frozen=True, slots=True)
class RankMeasurement:
    """The measurements of one rank."""

    rank: int
    update_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    batches_per_update: float
    samples_per_batch: int | None
    finite: bool
    device: str
    threads: int
    peak_memory_bytes: int
    facts: UpdateFacts | None

    @classmethod
    def parse(cls, data: dict[str, Any]) -> "RankMeasurement":
        """Returns what a rank wrote as JSON. Raises KeyError, TypeError or ValueError if it is malformed."""
        facts = data["facts"]
        samples = data["samples_per_batch"]
        return cls(
            rank=int(data["rank"]),
            update_s=tuple(float(seconds) for seconds in data["update_s"]),
            wait_s=tuple(float(seconds) for seconds in data["wait_s"]),
            batches_per_update=float(data["batches_per_update"]),
            samples_per_batch=None if samples is None else int(samples),
            finite=bool(data["finite"]),
            device=str(data["device"]),
            threads=int(data["threads"]),
            peak_memory_bytes=int(data["peak_memory_bytes"]),
            facts=None if facts is None else UpdateFacts(**{name: int(value) for name, value in facts.items()}),
        )


@dataclass(frozen=True, slots=True)
class RunMeasurement:
    """The measurements of a run."""

    run: ProfilingRun
    ranks: tuple[RankMeasurement, ...]
    #: Files that were read, if the run lists them.
    files: tuple[str, ...] = ()
    #: Evicted files that were checked, and how many of these stayed in the page cache.
    sampled_files: int = 0
    cached_files: int = 0

    @property
    def step_s(self) -> float:
        """Seconds of one update of the slowest rank."""
        return max(typical_step_s(rank.update_s) for rank in self.ranks)

    @property
    def wait_s(self) -> float:
        """Seconds of one update that a rank waited for its data loader, mean over ranks."""
        return fmean(fmean(rank.wait_s) for rank in self.ranks)

    def check(self) -> None:
        """Raises LossNotFinite or NoSpeed."""
        if not all(rank.finite for rank in self.ranks):
            raise LossNotFinite(
                f"run {self.run.name!r}: the parameters are NaN or infinite after {len(self.ranks[0].update_s)} "
                "updates: the loss became NaN or infinite",
                fix="lower the learning rate, or check the data",
            )
        if not (isfinite(self.step_s) and self.step_s > 0):
            raise NoSpeed(
                f"run {self.run.name!r}: an update took {self.step_s} s", fix="time more updates with --steps"
            )


def typical_step_s(seconds: Sequence[float]) -> float:
    """Returns the median of the means of blocks of consecutive updates."""
    return median(block_means(seconds))


def block_means(seconds: Sequence[float]) -> list[float]:
    """Returns the mean of each block."""
    size = max(1, len(seconds) // BLOCKS)
    return [fmean(seconds[at : at + size]) for at in range(0, len(seconds) - size + 1, size)]


class ScriptRunner(Protocol):
    """Starts the ranks of a run as processes and waits for them."""

    def run(self, run: ProfilingRun, extent: ProfilingExtent, folder: Path) -> RunMeasurement:
        """Executes a run and leaves no process behind. Raises ProfileError if the script cannot be profiled so."""
        ...


#: A run is not cold if more than this part of the files stays in the page cache.
MAX_CACHED_PART = 0.1


class StallSeconds(Protocol):
    """Seconds of one step by cause, as `optimizer.prediction.step_time` attributes them."""

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


#: A function from the seconds of a step alone, together, warm, cold and apart (None: no such run) to the seconds of
#: each stall.
AttributeStalls = Callable[[float, float, float, float, float | None], StallSeconds]


@dataclass(frozen=True, slots=True)
class Stall:
    """Seconds of one step due to one cause; None if these runs do not measure it."""

    name: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class JobProfile:
    """The causes of the step time of a job's script, on this machine."""

    job: str
    kind: str
    ranks: int
    #: Canonical name of each rank's accelerator; `cpu` without one.
    accelerator: str
    runs: tuple[RunMeasurement, ...]
    stalls: tuple[Stall, ...]
    notes: tuple[str, ...]

    @property
    def step_s(self) -> float:
        """Seconds of one step on one machine, with data in the host's page cache."""
        return self.run("warm").step_s

    def run(self, name: str) -> RunMeasurement:
        """Returns the run of that name."""
        return next(measurements for measurements in self.runs if measurements.run.name == name)

    @property
    def facts(self) -> UpdateFacts:
        """Facts of the model, counted in the run of a single rank."""
        facts = self.run("alone").ranks[0].facts
        assert facts is not None, "the run alone counts them"
        return facts

    @property
    def samples_per_step(self) -> float | None:
        """Samples of a step over all ranks; None if the script uses no loader of tensors."""
        rank = self.run("warm").ranks[0]
        each = rank.samples_per_batch
        return None if each is None else each * rank.batches_per_update * self.ranks


@dataclass(frozen=True, slots=True)
class ProfilingRequest:
    """The job, and the length of its runs."""

    job: str
    kind: str
    ranks: int
    extent: ProfilingExtent
    accelerator: str = "cpu"


def profile_script(
    request: ProfilingRequest, runner: ScriptRunner, attribute: AttributeStalls, folder: Path
) -> JobProfile:
    """Executes all runs, one after the other, in the folder.

    Raises:
        ProfileError: the script cannot be profiled.
    """
    ranks, measurements = request.ranks, list[RunMeasurement]()

    def run_once(run: ProfilingRun) -> RunMeasurement:
        found = runner.run(run, request.extent, folder / run.name)
        found.check()
        measurements.append(found)
        return found

    alone = run_once(ProfilingRun("alone", facts=True))
    together = run_once(ProfilingRun("together", ranks)) if ranks > 1 else alone
    apart = run_once(ProfilingRun("apart", ranks, apart=True)) if ranks > 1 else None
    files = run_once(ProfilingRun("reading", ranks, real_data=True, files=True)).files
    warm = run_once(ProfilingRun("warm", ranks, real_data=True))
    cold = run_once(ProfilingRun("cold", ranks, real_data=True, evict=files)) if files else warm
    parts = attribute(alone.step_s, together.step_s, warm.step_s, cold.step_s, None if apart is None else apart.step_s)
    loads = warm.ranks[0].batches_per_update > 0
    is_cold = bool(files) and cold.cached_files <= MAX_CACHED_PART * cold.sampled_files
    stalls = (
        Stall("compute", parts.compute_s),
        Stall("prepare", parts.prepare_s if loads else None),
        Stall("fetch", parts.fetch_s if loads and is_cold else None),
        Stall("inside", parts.inside_s if ranks > 1 else None),
        Stall("network", parts.network_s if ranks > 1 else None),
    )
    notes = tuple(_reading_notes(ranks, loads, len(files), cold))
    return JobProfile(request.job, request.kind, ranks, request.accelerator, tuple(measurements), stalls, notes)


def _reading_notes(ranks: int, loads: bool, files: int, cold: RunMeasurement) -> list[str]:
    """Returns notes that a reader needs to interpret the figures."""
    notes = []
    if ranks == 1:
        notes.append("one rank: nothing is exchanged (--ranks N profiles a gang)")
    else:
        notes.append("network: several machines are stood in for by this machine's loopback")
    if not loads:
        notes.append("the script uses no torch DataLoader: its data are part of compute")
    elif not files:
        notes.append("no data file was seen being opened: fetching cannot be told from preparing")
    elif cold.cached_files:
        notes.append(f"{cold.cached_files} of {cold.sampled_files} files looked at stayed in the host's memory")
    return notes
