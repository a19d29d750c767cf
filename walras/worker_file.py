"""Kinds of workers that a training cluster could be rented of, in a file: what `walras plan workers` reads."""

from typing import Annotated

from pydantic import Field, model_validator

from walras.checking import FieldMistake, FileModel
from walras.config import PoolWord
from walras.job_parts import Length, Number, PositiveLength

_Usd = Annotated[Number, Field(ge=0, le=1e6)]
_Speed = Annotated[Number, Field(gt=0, le=1e9)]


class WorkerEntry(FileModel):
    """One kind of worker, which does steps of its own."""

    name: PoolWord
    #: Of one worker alone.
    steps_per_s: _Speed
    #: On machines that may be taken back.
    spot_usd_per_h: _Usd
    on_demand_usd_per_h: _Usd | None = None
    #: Of such a machine: its mean life (age tells nothing), or a CSV file of lives beside this one.
    mean_life: PositiveLength | None = None
    lives: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    #: From a loss until the replacement works.
    replacement: Length = 120.0

    @model_validator(mode="after")
    def _one_law(self) -> "WorkerEntry":
        if (self.mean_life is None) == (self.lives is None):
            raise FieldMistake("mean_life", "how long machines live is said once; give one of `mean_life` and `lives`")
        return self


class Measured(FileModel):
    """What came through the parameter servers, for what the workers could do alone; steps per second."""

    alone: _Speed
    through: _Speed


class ServersEntry(FileModel):
    """The parameter servers, on machines that nobody takes."""

    usd_per_h: _Usd
    #: None: they never hold the workers up. Linear between the points; beyond the last one nothing is gained.
    saturation: list[Measured] = Field(default_factory=list, max_length=100)

    @model_validator(mode="after")
    def _ascending(self) -> "ServersEntry":
        for place in range(1, len(self.saturation)):
            before, here = self.saturation[place - 1], self.saturation[place]
            if here.alone <= before.alone or here.through < before.through:
                raise FieldMistake(f"saturation[{place}]", "is not above the point before; sort them")
        return self


class WorkerFile(FileModel):
    """A training run and what it may be done on."""

    steps: Annotated[Number, Field(gt=0, le=1e15)]
    workers: list[WorkerEntry] = Field(min_length=1, max_length=6)
    servers: ServersEntry | None = None

    @model_validator(mode="after")
    def _named_once(self) -> "WorkerFile":
        names = [worker.name for worker in self.workers]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise FieldMistake(f"workers[{place}].name", f"{name!r} again; give each a name of its own")
        return self
