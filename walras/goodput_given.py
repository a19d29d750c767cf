"""Laws of goodput as a workload file states them: how fast a job is whose batch and gang may change.

Decides what may be written. What follows from it is `simulator.goodput`.
"""

from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from walras.checking import FieldMistake, FileModel
from walras.job_parts import MAX_ACCELERATORS, Number, PositiveLength, WholeNumber
from walras.names import AcceleratorName, ShownName

_Samples = Annotated[WholeNumber, Field(ge=1, le=2**31)]
_Count = Annotated[WholeNumber, Field(ge=1, le=MAX_ACCELERATORS)]
_Scale = Annotated[Number, Field(gt=0, le=1e15)]
_Steps = Annotated[Number, Field(ge=0, le=1e15)]


class BatchGiven(FileModel):
    """Samples of one step over the whole gang: those that training is designed for, and the most that may be used."""

    initial: _Samples
    max: _Samples

    @model_validator(mode="after")
    def _ascending(self) -> "BatchGiven":
        if self.max < self.initial:
            raise FieldMistake("max", f"{self.max} is below initial {self.initial}; write the smaller one as initial")
        return self


class SpeedGiven(FileModel):
    """Speeds on one type of accelerator."""

    #: Seconds of one pass by accelerators of the gang and samples on each of them.
    step_s: dict[_Count, dict[_Samples, Annotated[PositiveLength, Field(le=1e6)]]]
    #: Part of that speed that a gang has which stands on several machines.
    spread: Annotated[Number, Field(gt=0, le=1)] = 1.0

    other_words: ClassVar[dict[str, str]] = {"step_time": "step_s", "steps_s": "step_s"}

    @model_validator(mode="after")
    def _some_points(self) -> "SpeedGiven":
        if not self.step_s or not all(self.step_s.values()):
            raise FieldMistake("step_s", "has no point; write such as `step_s: {1: {64: 0.1, 128: 0.18}}`")
        return self


class LawGiven(FileModel):
    """How one kind of job gets on: goodput = throughput x statistical efficiency."""

    batch: BatchGiven
    #: Samples beyond which a larger batch hardly helps (McCandlish et al. 2018); of a scale that changes, by the steps
    #: at the initial batch that lie behind the job, from 0 on.
    noise_scale: _Scale | dict[_Steps, _Scale]
    on: Annotated[dict[AcceleratorName, SpeedGiven], Field(min_length=1, max_length=64)]
    #: The whole training, in steps at the initial batch: of jobs that do not say it themselves.
    steps: Annotated[Number, Field(gt=0, le=1e15)] | None = None

    @model_validator(mode="after")
    def _from_the_beginning(self) -> "LawGiven":
        if isinstance(self.noise_scale, dict):
            behind = list(self.noise_scale)
            if not behind or behind[0] != 0 or any(later <= earlier for earlier, later in pairwise(behind)):
                raise FieldMistake("noise_scale", "does not ascend from 0; write such as `{0: 300, 20000: 2000}`")
        return self


class LawsFile(FileModel):
    """A file of laws alone, for traces."""

    laws: Annotated[dict[ShownName, LawGiven], Field(min_length=1, max_length=1000)]
