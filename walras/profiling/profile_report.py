"""The report of a profile: the JSON that `walras profile run` writes, read back, and drawn as stacked bars.

A profile made on a machine of the cluster returns as this file. Any user may have submitted the script beside which it
was written, so it is validated like any file.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from walras.errors import UserError
from walras.model_facts import Precision
from walras.profiling.profile_documents import profile_as_json
from walras.profiling.profile_runs import JobProfile
from walras.spec.field_types import Number, ShownName, WholeNumber, shown_name
from walras.spec.file_model import FileModel

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
