"""A job and the places where it could run while their prices change, in a file: what `walras plan moves` reads."""

from typing import Annotated

from pydantic import Field, model_validator

from walras.checking import FieldMistake, FileModel
from walras.job_parts import Length, Number
from walras.names import ShownName


class PlaceEntry(FileModel):
    """A machine of one shape in one region."""

    #: As in the file of prices.
    name: ShownName
    #: Of the job on the whole machine.
    steps_per_s: Annotated[Number, Field(gt=0, le=1e9)]


class MovingEntry(FileModel):
    """What going to another place costs: data sent, and paid time there without progress."""

    usd: Annotated[Number, Field(ge=0, le=1e6)] = 0.0
    pause: Length = 600.0


class PlacesFile(FileModel):
    """The first place is the one that the others are compared with."""

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
