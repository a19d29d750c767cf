"""Parameters that several policies have, with what they mean."""

from typing import Annotated, Literal

from pydantic import Field

Aware = Annotated[
    bool,
    Field(
        description="True: the speeds of each job on each pool count. "
        "False: all speeds are taken for equal: a job has its average speed on every accelerator."
    ),
]
Normalised = Annotated[
    bool,
    Field(description="True: throughput over that of an equal split, times the gang. False: plain steps per second."),
]
FreePrice = Annotated[
    Annotated[float, Field(gt=0)] | None,
    Field(description="What an accelerator without a price is counted at, USD/h. None: the lowest price in the fleet."),
]
Then = Annotated[
    Literal["sum", "nothing"],
    Field(
        description="What the level leaves. sum: so that the sum of fair-share utilities is largest; nothing: as is."
    ),
]

#: Of orders.
FastestFirst = Annotated[
    bool, Field(description="True: fastest free configuration first. False: pools in their order, blind to speed.")
]
Strict = Annotated[bool, Field(description="True: the first job that does not fit holds up all behind it.")]
Margin = Annotated[
    float,
    Field(ge=0, description="A job displaces another only from a lower step; steps differ by this part (0.1: 10 %)."),
]
UnknownLength = Annotated[
    float, Field(gt=0, description="Seconds that a job of unknown length is taken to have left, at least.")
]

Packing = Annotated[
    bool,
    Field(
        description="True: two jobs whose kinds are listed for it may share accelerators, each at part of its speed."
    ),
]
