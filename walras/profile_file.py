"""A profile in a file: what is known of one kind of job, and how fast it was where it ran.

`walras profile run` writes such files, people may write them too, `walras recommend` reads them.
"""

from typing import Annotated, Literal

from pydantic import Field

from walras.checking import FieldMistake, FileModel
from walras.job_parts import MAX_ACCELERATORS, Number, WholeNumber
from walras.model_facts import Precision
from walras.names import AcceleratorName, ShownName

_Fact = Annotated[Number, Field(gt=0, le=1e24)]
_Some = Annotated[Number, Field(ge=0, le=1e24)]


class KnownAccelerator(FileModel):
    """An accelerator that no catalog knows; of the arithmetic that the job uses, one direction of every link."""

    name: AcceleratorName
    flops_per_s: _Fact
    memory_bytes_per_s: _Fact
    memory_bytes: _Fact | None = None
    link_bytes_per_s: _Fact | None = None
    host_bytes_per_s: _Fact | None = None
    network_bytes_per_s: _Fact | None = None


class Measured(FileModel):
    """A speed that somebody measured."""

    accelerator: AcceleratorName
    #: Samples of one update over the whole gang.
    batch: WholeNumber = Field(ge=1, le=2**31)
    accelerators: WholeNumber = Field(default=1, ge=1, le=MAX_ACCELERATORS)
    machines: WholeNumber = Field(default=1, ge=1, le=MAX_ACCELERATORS)
    #: Passes whose gradients were only summed up locally, before the one that synchronised.
    accumulated: WholeNumber = Field(default=0, ge=0, le=4096)
    #: Updates of the whole gang: the median.
    steps_per_s: Annotated[Number, Field(gt=0, le=1e9)]
    #: Relative standard deviation of one measurement.
    spread: Annotated[Number, Field(ge=0, le=10)] = 0.0
    samples: WholeNumber = Field(default=1, ge=1, le=10**9)


class ProfileFile(FileModel):
    """One kind of job. A fact that is left out is not known."""

    schema_version: Literal[1] = 1
    #: As in a job's `profile`.
    kind: ShownName
    #: Of forward and backward pass, for one sample.
    flops_per_sample: _Fact | None = None
    memory_bytes_per_sample: _Some | None = None
    gradient_bytes: _Some | None = None
    layers: Annotated[WholeNumber, Field(ge=1)] | None = None
    #: On an accelerator whatever the batch, and more for each sample of it.
    resident_bytes: _Some | None = None
    activation_bytes: _Some | None = None
    input_bytes: _Some | None = None
    #: Of most operations.
    precision: Precision | None = None
    #: Noise scale of the gradient, in samples (McCandlish et al. 2018).
    noise_scale: _Some | None = None
    accelerators: Annotated[tuple[KnownAccelerator, ...], Field(max_length=64)] = ()
    measured: Annotated[tuple[Measured, ...], Field(max_length=10_000)] = ()

    def model_post_init(self, context: object) -> None:
        for position, row in enumerate(self.measured):
            if row.machines > row.accelerators:
                raise FieldMistake(
                    f"measured[{position}].machines",
                    f"{row.machines} machines for {row.accelerators} accelerators; each has at least one",
                )
