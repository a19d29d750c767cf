"""A profile as a document: the file that `walras recommend` reads, and JSON.

`walras profile run` writes the file, and people may write it too.

The report, which `walras profile run` writes as JSON, is read back and drawn as stacked bars. From a machine of the
cluster it returns as a file beside which any user may have submitted the script, so it is validated like any file.
"""

from pathlib import Path
from statistics import fmean, pstdev
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from walras.errors import UserError
from walras.model_facts import Precision, precision_of
from walras.profiling.profile_runs import JobProfile, RunMeasurement, block_means
from walras.spec.field_types import MAX_ACCELERATORS, AcceleratorName, Number, ShownName, WholeNumber, shown_name
from walras.spec.file_model import FieldMistake, FileModel

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
