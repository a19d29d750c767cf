"""The parts of a job spec by which a job may run in more ways than one: `elastic`, `batch`, `fork`.

Decides which gang sizes such a job may be given, and who may be spread over pools. What it is given, and when, is the
scheduler's to choose.
"""

from typing import Annotated

from pydantic import Field, model_validator

from walras.checking import FieldMistake, FileModel
from walras.job_parts import MAX_ACCELERATORS, WholeNumber
from walras.request import Demand

#: Of more possible sizes than this, only doublings of the smallest, what was asked and the largest are considered.
_SIZES_MAX = 16
_Size = Annotated[WholeNumber, Field(ge=1, le=MAX_ACCELERATORS)]


class Elastic(FileModel):
    """How few and how many accelerators the whole gang may have."""

    min: _Size
    max: _Size


class Fork(FileModel):
    """The job may be trained in several places at once, each with steps of its own, averaged now and then."""

    #: Parts at most, each as large as `resources` says.
    max: Annotated[WholeNumber, Field(ge=2, le=1024)]


class Batch(FileModel):
    """How much one step is. Its field `global` has a name that Python keeps for itself: see `batch_of`."""

    #: Samples of one step over the whole gang.
    __annotations__ = {"global": Annotated[WholeNumber, Field(ge=1, le=2**31)]}
    #: In a simulation: the job chooses its batch itself, from `global` up to `max`, or up to what its law allows.
    adaptive: bool = False
    max: Annotated[WholeNumber, Field(ge=1, le=2**31)] | None = None

    @model_validator(mode="after")
    def _ascending(self) -> "Batch":
        if self.max is not None and self.max < getattr(self, "global"):
            raise FieldMistake("max", f"{self.max} is below global; write the largest batch that the job may choose")
        return self

    @property
    def is_chosen(self) -> bool:
        """Whether the job chooses its batch itself."""
        return self.adaptive or self.max is not None


def batch_of(batch: Batch | None) -> int | None:
    """Samples of one step over the whole gang; None: nobody said."""
    return None if batch is None else int(getattr(batch, "global"))


def gang_sizes(
    elastic: Elastic, demands: tuple[Demand, ...], nodes: int, only: int | None, batch: int | None
) -> tuple[int, ...]:
    """The sizes that the gang may have, ascending: even over its machines, and dividing the batch evenly.

    `only`: the one size that the number of ranks allows, if that is given. Raises FieldMistake where what is asked for
    is none of them.
    """
    if elastic.min > elastic.max:
        raise FieldMistake("elastic", f"min {elastic.min} is above max {elastic.max}; write the smaller one as min")

    def is_possible(size: int) -> bool:
        return size % nodes == 0 and only in (None, size) and (batch is None or batch % size == 0)

    sizes = {size for size in range(elastic.min, elastic.max + 1) if is_possible(size)}
    asked = {demand.count for demand in demands}
    if not asked <= sizes:
        wrong = min(asked - sizes)
        if not is_possible(wrong):
            raise FieldMistake(
                "elastic",
                f"{wrong} accelerators cannot share the global batch of {batch} evenly; ask for a size that can",
            )
        raise FieldMistake(
            "elastic",
            f"{wrong} accelerators are asked for, and not within min {elastic.min} and max {elastic.max}; "
            "ask for a size in that range: it is what the job has where no policy chooses",
        )
    if len(sizes) > _SIZES_MAX:
        least = min(sizes)
        doublings = {least * 2**power for power in range(MAX_ACCELERATORS.bit_length())}
        sizes = {size for size in sizes if size in doublings or size in asked or size == max(sizes)}
    return tuple(sorted(sizes))


def check_spread(*, fork: bool, mixed: bool, elastic: bool, nodes: int, demands: tuple[Demand, ...]) -> None:
    """Raises FieldMistake for a job that cannot be forked, or mixed, as it says."""
    field = "fork" if fork else "mixed"
    for other, stands in (("mixed", fork and mixed), ("elastic", elastic)):
        if (fork or mixed) and stands:
            raise FieldMistake(field, f"stands beside {other}; give one of them: each is a way of its own to grow")
    if (fork or mixed) and nodes > 1:
        raise FieldMistake(field, f"stands beside num_nodes {nodes}; leave that out, its parts find their machines")
    if mixed and len({demand.count for demand in demands}) > 1:
        raise FieldMistake(
            "mixed", "the gang is of another size on another type; give all types the same number of accelerators"
        )
