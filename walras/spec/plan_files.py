"""Input files of `walras plan`: a collection of jobs and machines, places with prices, workers of a training cluster.

`walras plan collection`, `walras plan moves` and `walras plan workers` each read one of them.
"""

from typing import Annotated

from pydantic import Field, model_validator

from walras.spec.field_types import Length, Number, PoolWord, PositiveLength, ShownName, WholeNumber
from walras.spec.file_model import FieldMistake, FileModel, nearest_word

_MOST_JOBS = 1000
_MOST_TYPES = 50
_Speed = Annotated[Number, Field(gt=0, le=1e9)]


class MachineTypeEntry(FileModel):
    """Machines of one type."""

    name: PoolWord
    usd_per_h: Annotated[Number, Field(ge=0, le=1e6)]
    #: Largest number that can be rented at once.
    count: WholeNumber = Field(ge=1, le=10_000)


class CollectionJobEntry(FileModel):
    """One job, which runs on one machine."""

    name: ShownName
    steps: Annotated[Number, Field(gt=0, le=1e15)]
    #: By machine type; the job cannot run on a type that is left out.
    steps_per_s: dict[PoolWord, _Speed] = Field(min_length=1)


class CollectionFile(FileModel):
    """A collection of jobs, and the machine types that may be rented for them."""

    machines: list[MachineTypeEntry] = Field(min_length=1, max_length=_MOST_TYPES)
    jobs: list[CollectionJobEntry] = Field(min_length=1, max_length=_MOST_JOBS)

    @model_validator(mode="after")
    def _named_once_and_known(self) -> "CollectionFile":
        known = [machine.name for machine in self.machines]
        for field, names in (("machines", known), ("jobs", [job.name for job in self.jobs])):
            for place, name in enumerate(names):
                if name in names[:place]:
                    raise FieldMistake(f"{field}[{place}].name", f"{name!r} again; give each a name of its own")
        for place, job in enumerate(self.jobs):
            for name in job.steps_per_s:
                if name not in known:
                    meant = nearest_word(name, known)
                    fix = f"write {meant!r}" if meant else f"one of {', '.join(known)}"
                    raise FieldMistake(f"jobs[{place}].steps_per_s.{name}", f"no such machine; {fix}")
        return self


class PlaceEntry(FileModel):
    """A machine of one shape in one region."""

    #: Its name in the price file.
    name: ShownName
    #: Speed of the job on the whole machine.
    steps_per_s: Annotated[Number, Field(gt=0, le=1e9)]


class MovingEntry(FileModel):
    """The cost of a move: data transfer, and paid time at the new place without progress."""

    usd: Annotated[Number, Field(ge=0, le=1e6)] = 0.0
    pause: Length = 600.0


class PlacesFile(FileModel):
    """A job and the places where it may run; the first place is the baseline."""

    steps: Annotated[Number, Field(gt=0, le=1e15)]
    moving: MovingEntry = MovingEntry()
    places: list[PlaceEntry] = Field(min_length=1, max_length=500)

    @model_validator(mode="after")
    def _named_once(self) -> "PlacesFile":
        names = [place.name for place in self.places]
        for position, name in enumerate(names):
            if name in names[:position]:
                raise FieldMistake(f"places[{position}].name", f"{name!r} again; give each a name of its own")
        return self


_Usd = Annotated[Number, Field(ge=0, le=1e6)]


class WorkerEntry(FileModel):
    """One kind of worker; each worker makes steps of its own."""

    name: PoolWord
    #: Speed of one worker alone.
    steps_per_s: _Speed
    #: Price on spot machines, which may be revoked.
    spot_usd_per_h: _Usd
    on_demand_usd_per_h: _Usd | None = None
    #: Lifetime of a spot machine: its mean (exponential law), or a CSV file of observed lifetimes beside this file.
    mean_life: PositiveLength | None = None
    lives: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    #: Time from a loss until the replacement works.
    replacement: Length = 120.0

    @model_validator(mode="after")
    def _one_law(self) -> "WorkerEntry":
        if (self.mean_life is None) == (self.lives is None):
            raise FieldMistake("mean_life", "how long machines live is said once; give one of `mean_life` and `lives`")
        return self


class SaturationPoint(FileModel):
    """Measured steps per second through the parameter servers, at a total speed of the workers alone."""

    alone: _Speed
    through: _Speed


class ServersEntry(FileModel):
    """The parameter servers, on machines that are not revoked."""

    usd_per_h: _Usd
    #: Measured saturation curve, linear between its points and flat beyond the last; empty: servers never limit.
    saturation: list[SaturationPoint] = Field(default_factory=list, max_length=100)

    @model_validator(mode="after")
    def _ascending(self) -> "ServersEntry":
        for place in range(1, len(self.saturation)):
            before, here = self.saturation[place - 1], self.saturation[place]
            if here.alone <= before.alone or here.through < before.through:
                raise FieldMistake(f"saturation[{place}]", "is not above the point before; sort them")
        return self


class WorkerFile(FileModel):
    """A training run, and the workers and servers that it may use."""

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
