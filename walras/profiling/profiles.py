"""A profile of a job's script: the runs that separate its stalls, the measurements of each run, and the result.

alone       synthetic data, one rank                     compute
together    synthetic data, all ranks                    + exchange inside the machine
apart       the same over the loopback, labelled so      + exchange between machines
reading     real data: lists the files that are read, and loads them into the page cache
warm        real data in the page cache                  + preparing it
cold        real data evicted from the page cache        + fetching it

A `ScriptRunner` starts the processes (`workers.trials`). All errors are about the script: exit code 2.

As a document a profile is the file that `walras cloud recommend` reads; `walras cloud profile run` writes it, and
people may write it too. The report, which `walras cloud profile run` writes as JSON, is read back and drawn as stacked
bars. From a machine of the cluster it returns as a file beside which any user may have submitted the script, so it is
validated like any file.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, Field, TypeAdapter

from walras.errors import UserError
from walras.model_facts import Family, Precision, family_of_counts, precision_of
from walras.spec.field_types import MAX_ACCELERATORS, AcceleratorName, Number, ShownName, WholeNumber, shown_name
from walras.spec.file_model import FieldMistake, FileModel


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
    convolution_flops: int = 0
    attention_flops: int = 0


@dataclass(frozen=True, slots=True)
class RankMeasurement:
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
    def parse(cls, written: bytes) -> "RankMeasurement":
        """Returns what a rank wrote as JSON. Raises ValueError if it is malformed."""
        return _RANK_MEASUREMENT.validate_json(written)


_RANK_MEASUREMENT = TypeAdapter(RankMeasurement)


@dataclass(frozen=True, slots=True)
class RunMeasurement:
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


_Fact = Annotated[Number, Field(gt=0, le=1e24)]
_Some = Annotated[Number, Field(ge=0, le=1e24)]


class KnownAccelerator(FileModel):
    """An accelerator that no catalog lists: peaks at the job's precision, and the bandwidth of each link in one
    direction.
    """

    name: AcceleratorName
    flops_per_s: _Fact
    memory_bytes_per_s: _Fact
    memory_bytes: _Fact | None = None
    link_bytes_per_s: _Fact | None = None
    host_bytes_per_s: _Fact | None = None
    network_bytes_per_s: _Fact | None = None


class MeasuredStepRate(FileModel):
    """A measured speed of a gang."""

    accelerator: AcceleratorName
    #: Samples of one update over the whole gang.
    batch: WholeNumber = Field(ge=1, le=2**31)
    accelerators: WholeNumber = Field(default=1, ge=1, le=MAX_ACCELERATORS)
    machines: WholeNumber = Field(default=1, ge=1, le=MAX_ACCELERATORS)
    #: Gradient accumulation: passes before the one that synchronises.
    accumulated: WholeNumber = Field(default=0, ge=0, le=4096)
    #: Updates per second of the whole gang, median.
    steps_per_s: Annotated[Number, Field(gt=0, le=1e9)]
    #: Relative standard deviation of one measurement.
    spread: Annotated[Number, Field(ge=0, le=10)] = 0.0
    samples: WholeNumber = Field(default=1, ge=1, le=10**9)


class ProfileFile(FileModel):
    """A file about one kind of job. A fact that is left out is unknown."""

    schema_version: Literal[1] = 1
    #: The name in a job's `profile`.
    kind: ShownName
    #: FLOPs of forward and backward pass, for one sample.
    flops_per_sample: _Fact | None = None
    memory_bytes_per_sample: _Some | None = None
    gradient_bytes: _Some | None = None
    layers: Annotated[WholeNumber, Field(ge=1)] | None = None
    #: Bytes on an accelerator independent of the batch, and further bytes for each sample.
    resident_bytes: _Some | None = None
    activation_bytes: _Some | None = None
    input_bytes: _Some | None = None
    #: The precision of most operations.
    precision: Precision | None = None
    family: Family | None = None
    #: Noise scale of the gradient, in samples (McCandlish et al. 2018).
    noise_scale: _Some | None = None
    accelerators: Annotated[tuple[KnownAccelerator, ...], Field(max_length=64)] = ()
    measured: Annotated[tuple[MeasuredStepRate, ...], Field(max_length=10_000)] = ()

    def model_post_init(self, context: object) -> None:
        for position, row in enumerate(self.measured):
            if row.machines > row.accelerators:
                raise FieldMistake(
                    f"measured[{position}].machines",
                    f"{row.machines} machines for {row.accelerators} accelerators; each has at least one",
                )


PROFILE_FORMAT = 1


def profile_as_json(profile: JobProfile) -> dict[str, Any]:
    """Returns the profile as JSON: seconds, bytes and counts; None for what these runs do not measure."""
    facts, rank = profile.facts, profile.run("alone").ranks[0]
    return {
        "format": PROFILE_FORMAT,
        "job": profile.job,
        "kind": profile.kind,
        "ranks": profile.ranks,
        "device": rank.device,
        "step_s": profile.step_s,
        "steps_per_s": 1.0 / profile.step_s,
        "samples_per_step": profile.samples_per_step,
        "stalls_s": {stall.name: stall.seconds for stall in profile.stalls},
        "model": {
            "parameters": facts.parameters,
            "parameter_bytes": facts.parameter_bytes,
            "gradient_bytes": facts.gradient_bytes,
            "optimizer_bytes": facts.state_bytes,
            "layers": facts.layers,
            "flops_per_step_and_rank": facts.flops,
            "activation_bytes": facts.activation_bytes,
            "precision": precision_of(facts.bits, facts.exponent_bits),
            "peak_memory_bytes": rank.peak_memory_bytes,
        },
        "runs": {measured.run.name: _run_as_json(measured) for measured in profile.runs},
        "notes": list(profile.notes),
    }


def profile_file_fields(profile: JobProfile) -> dict[str, Any]:
    """Returns the fields of a `ProfileFile`: the facts of the job from which machines are chosen."""
    facts, rank = profile.facts, profile.run("alone").ranks[0]
    warm = profile.run("warm")
    data: dict[str, Any] = {
        "kind": profile.kind,
        "gradient_bytes": facts.gradient_bytes,
        "layers": facts.layers or None,
        "precision": precision_of(facts.bits, facts.exponent_bits),
        "family": family_of_counts(asdict(facts)),
        "resident_bytes": facts.parameter_bytes + facts.gradient_bytes + facts.state_bytes,
    }
    samples, passes = rank.samples_per_batch, max(1, round(rank.batches_per_update))
    if samples:
        means = block_means(warm.ranks[0].update_s)
        data["flops_per_sample"] = facts.flops / (samples * passes) or None
        data["activation_bytes"] = facts.activation_bytes / samples
        row = {
            "accelerator": profile.accelerator,
            "batch": samples * passes * profile.ranks,
            "accelerators": profile.ranks,
            "accumulated": passes - 1,
            "steps_per_s": 1.0 / profile.step_s,
            "spread": min(10.0, pstdev(means) / fmean(means)),
            "samples": len(means),
        }
        data["measured"] = [row]
    return {name: value for name, value in data.items() if value is not None}


def _run_as_json(measured: RunMeasurement) -> dict[str, Any]:
    first = measured.ranks[0]
    return {
        "ranks": measured.run.ranks,
        "threads": first.threads,
        "data": "real" if measured.run.real_data else "made_up",
        "step_s": measured.step_s,
        "loader_wait_s": measured.wait_s,
        "updates": len(first.update_s),
        "batches_per_update": first.batches_per_update,
        "files": len(measured.files) or len(measured.run.evict),
    }


_Seconds = Annotated[Number, Field(ge=0, le=1e9)]
#: Seconds by which a stall may be negative, because it is a difference of two measured times.
_Difference = Annotated[Number, Field(ge=-1e9, le=1e9)]
_Count = Annotated[WholeNumber, Field(ge=0, le=10**24)]
_Note = Annotated[str, Field(max_length=1000), AfterValidator(shown_name)]


class StallTimes(FileModel):
    """Seconds of one step by cause; None for what the runs did not measure."""

    compute: _Difference
    prepare: _Difference | None
    fetch: _Difference | None
    inside: _Difference | None
    network: _Difference | None


class ProfiledModel(FileModel):
    """Facts of the model, counted in the run of a single rank."""

    parameters: _Count
    parameter_bytes: _Count
    gradient_bytes: _Count
    optimizer_bytes: _Count
    layers: _Count
    flops_per_step_and_rank: _Count
    activation_bytes: _Count
    precision: Precision | None
    peak_memory_bytes: _Count


class RunTimes(FileModel):
    """One run: seconds of its set-up and of its updates."""

    ranks: WholeNumber = Field(ge=1, le=4096)
    threads: _Count
    data: Literal["real", "made_up"]
    step_s: _Seconds
    loader_wait_s: _Seconds
    updates: _Count
    batches_per_update: Annotated[Number, Field(ge=0, le=1e9)]
    files: _Count


class ProfileReport(FileModel):
    """A profile: the speed of a job's script on one machine, the causes of its step time, and its model."""

    format: Literal[1]
    job: ShownName
    kind: ShownName
    ranks: WholeNumber = Field(ge=1, le=4096)
    #: Device of each rank, as its machine names it; `cpu` without an accelerator.
    device: ShownName
    step_s: Annotated[Number, Field(gt=0, le=1e9)]
    steps_per_s: Annotated[Number, Field(gt=0, le=1e9)]
    #: Samples of a step over all ranks; None if the script uses no loader of tensors.
    samples_per_step: Annotated[Number, Field(gt=0, le=1e12)] | None
    stalls_s: StallTimes
    model: ProfiledModel
    runs: Annotated[dict[ShownName, RunTimes], Field(max_length=16)]
    notes: Annotated[tuple[_Note, ...], Field(max_length=16)]

    @property
    def stalls(self) -> tuple[tuple[str, float | None], ...]:
        """Returns name and seconds of each stall, in the order of presentation."""
        return tuple((name, getattr(self.stalls_s, name)) for name in StallTimes.model_fields)


def profile_report(profile: JobProfile) -> ProfileReport:
    """Returns the report of a profile that was made in this process."""
    return ProfileReport.model_validate(profile_as_json(profile))


_COLORS = {
    "compute": "#3b6fb6",
    "prepare": "#d1762d",
    "fetch": "#b5483f",
    "inside": "#4c9a5a",
    "network": "#7d62a8",
}


def draw_profile(report: ProfileReport, path: Path) -> None:
    """Draws one bar, stacked by the causes of a step's time; the file name's ending chooses the format.

    Raises UserError where matplotlib is missing or does not support the ending.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError("a picture needs matplotlib", field="--picture", fix="pip install 'walras[server]'") from None
    with matplotlib.rc_context({"text.parse_math": False, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(8.6, 1.9), layout="constrained")
        axes = figure.subplots()
        left = 0.0
        for name, seconds in report.stalls:
            if seconds:
                width = 1000.0 * seconds
                axes.barh([0], [width], left=left, color=_COLORS[name], label=f"{name} {width:.3g} ms")
                left += width
        axes.set(yticks=[], xlabel="milliseconds of one step", title=f"{report.job}, {report.ranks} ranks")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.45), ncols=5, frameon=False)
        try:
            figure.savefig(path)
        except (ValueError, OSError) as error:
            raise UserError(
                f"{path}: {error}", field="--picture", fix="give a file that ends in .svg, .png or .pdf"
            ) from None
