"""The workload file: jobs with their arrival times, incidents of the fleet, and laws of goodput.

The live demo and the simulator run the same file. A law of goodput states how fast a job is whose batch and gang may
change: goodput = throughput x statistical efficiency; `simulator.goodput` evaluates it.
"""

from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from walras.spec.cluster_file import LARGEST_POOL
from walras.spec.field_types import (
    MAX_ACCELERATORS,
    AcceleratorName,
    Length,
    Number,
    PositiveLength,
    ShownName,
    WholeNumber,
)
from walras.spec.file_model import FieldMistake, FileModel
from walras.spec.job_spec import JobSpec

_Samples = Annotated[WholeNumber, Field(ge=1, le=2**31)]
_Count = Annotated[WholeNumber, Field(ge=1, le=MAX_ACCELERATORS)]
_Scale = Annotated[Number, Field(gt=0, le=1e15)]
_Steps = Annotated[Number, Field(ge=0, le=1e15)]


class BatchRangeEntry(FileModel):
    """Samples of one step over the whole gang: those that training is designed for, and the most that may be used."""

    initial: _Samples
    max: _Samples

    @model_validator(mode="after")
    def _ascending(self) -> "BatchRangeEntry":
        if self.max < self.initial:
            raise FieldMistake("max", f"{self.max} is below initial {self.initial}; write the smaller one as initial")
        return self


class StepTimesEntry(FileModel):
    """Speeds on one type of accelerator."""

    #: Seconds of one pass: accelerators of the gang -> samples on each of them -> seconds.
    step_s: dict[_Count, dict[_Samples, Annotated[PositiveLength, Field(le=1e6)]]]
    #: Relative speed of a gang that is spread over several machines.
    spread: Annotated[Number, Field(gt=0, le=1)] = 1.0

    other_words: ClassVar[dict[str, str]] = {"step_time": "step_s", "steps_s": "step_s"}

    @model_validator(mode="after")
    def _some_points(self) -> "StepTimesEntry":
        if not self.step_s or not all(self.step_s.values()):
            raise FieldMistake("step_s", "has no point; write such as `step_s: {1: {64: 0.1, 128: 0.18}}`")
        return self


class GoodputLawEntry(FileModel):
    """The law of one kind of job: goodput = throughput x statistical efficiency."""

    batch: BatchRangeEntry
    #: Samples beyond which a larger batch hardly helps (McCandlish et al. 2018); of a scale that changes, by the steps
    #: at the initial batch that lie behind the job, from 0 on.
    noise_scale: _Scale | dict[_Steps, _Scale]
    on: Annotated[dict[AcceleratorName, StepTimesEntry], Field(min_length=1, max_length=64)]
    #: Length of the training in steps at the initial batch, for jobs that do not state `steps`.
    steps: Annotated[Number, Field(gt=0, le=1e15)] | None = None

    @model_validator(mode="after")
    def _from_the_beginning(self) -> "GoodputLawEntry":
        if isinstance(self.noise_scale, dict):
            behind = list(self.noise_scale)
            if not behind or behind[0] != 0 or any(later <= earlier for earlier, later in pairwise(behind)):
                raise FieldMistake("noise_scale", "does not ascend from 0; write such as `{0: 300, 20000: 2000}`")
        return self


class GoodputLawsFile(FileModel):
    """A file with laws of goodput alone, for traces."""

    laws: Annotated[dict[ShownName, GoodputLawEntry], Field(min_length=1, max_length=1000)]


# --------------------------------------------------------------------------------------------------- a workload


class PlannedFailureEntry(FileModel):
    """In a simulation a rank exits when this part of the job's work is done."""

    part: Annotated[Number, Field(ge=0, lt=1)]
    exit_code: Annotated[WholeNumber, Field(ge=1, le=255)] = 1
    #: How often the rank exits so; None: every time.
    times: Annotated[WholeNumber, Field(ge=1, le=1_000_000)] | None = None


class SimulatedFacts(FileModel):
    """Facts of a job that only a simulation is given; its submitter may believe otherwise. A live run ignores them."""

    #: The true work in steps; the job's own `steps` are then its submitter's estimate.
    steps: Annotated[Number, Field(gt=0, le=1e15)] | None = None
    #: When its user cancels the job, on the workload's clock.
    cancel: Length | None = None
    failures: Annotated[tuple[PlannedFailureEntry, ...], Field(max_length=100)] = ()

    other_words: ClassVar[dict[str, str]] = {"cancel_at": "cancel", "fails": "failures"}


class ArrivalEntry(FileModel):
    """One job of a workload: when it is submitted, by whom, and its spec."""

    at: Length
    user: ShownName = "user"
    project: ShownName | None = None
    job: JobSpec
    simulated: SimulatedFacts = SimulatedFacts()

    @model_validator(mode="after")
    def _in_order(self) -> "ArrivalEntry":
        if self.simulated.cancel is not None and self.simulated.cancel < self.at:
            raise FieldMistake("simulated.cancel", "is before the job arrives; write an instant, not a length")
        return self


class IncidentEntry(FileModel):
    """An incident of the fleet: the provider revokes machines of a rented pool, with notice."""

    at: Length
    #: Pool id, such as `v100x1/spot/default`.
    revoke: ShownName
    #: How many machines, those that were ready first; None: all of the pool. (A live server revokes whole pools only.)
    machines: Annotated[WholeNumber, Field(ge=1, le=LARGEST_POOL)] | None = None


class WorkloadFile(FileModel):
    """A workload file: runs in the live demo and in the simulator alike."""

    jobs: Annotated[tuple[ArrivalEntry, ...], Field(min_length=1, max_length=200_000)]
    incidents: Annotated[tuple[IncidentEntry, ...], Field(max_length=10_000)] = ()
    #: Simulation only: laws of goodput by profile, which give speeds for every gang and batch.
    laws: Annotated[dict[ShownName, GoodputLawEntry], Field(max_length=1000)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _calendar_free(self) -> "WorkloadFile":
        for position, arrival in enumerate(self.jobs):
            for field in ("deadline", "not_before"):
                text = getattr(arrival.job, field)
                if text is not None and not text.strip().startswith("+"):
                    raise FieldMistake(
                        f"jobs[{position}].job.{field}", "is a date, and a workload has no calendar; write '+12h'"
                    )
        return self
