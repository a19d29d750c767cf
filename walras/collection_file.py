"""A collection of jobs and the machines that could be rented for them, in a file.

`walras plan collection` reads it.
"""

from typing import Annotated

from pydantic import Field, model_validator

from walras.checking import FieldMistake, FileModel, nearest
from walras.config import PoolWord
from walras.job_parts import Number, WholeNumber
from walras.names import ShownName

_MOST_JOBS = 1000
_MOST_TYPES = 50
_Speed = Annotated[Number, Field(gt=0, le=1e9)]


class MachineType(FileModel):
    """Machines of one type."""

    name: PoolWord
    usd_per_h: Annotated[Number, Field(ge=0, le=1e6)]
    #: That can be had at once.
    count: WholeNumber = Field(ge=1, le=10_000)


class CollectedJob(FileModel):
    """One job, which runs on one machine."""

    name: ShownName
    steps: Annotated[Number, Field(gt=0, le=1e15)]
    #: By the name of a type; it cannot run on one that is left out.
    steps_per_s: dict[PoolWord, _Speed] = Field(min_length=1)


class CollectionFile(FileModel):
    """Jobs that are to be done together."""

    machines: list[MachineType] = Field(min_length=1, max_length=_MOST_TYPES)
    jobs: list[CollectedJob] = Field(min_length=1, max_length=_MOST_JOBS)

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
                    meant = nearest(name, known)
                    fix = f"write {meant!r}" if meant else f"one of {', '.join(known)}"
                    raise FieldMistake(f"jobs[{place}].steps_per_s.{name}", f"no such machine; {fix}")
        return self
