"""First in, first out: jobs start in the order of submission and run to their end."""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.policy import OrderFacts
from optimizer.problem import FloatArray


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Fifo:
    """First in, first out: jobs start in the order of submission and run to their end. Never preempts."""

    aware: Annotated[
        bool, Field(description="True: fastest free configuration first. False: pools in their order, blind to speed.")
    ] = True
    strict: Annotated[bool, Field(description="True: the first job that does not fit holds up all behind it.")] = True

    @property
    def preemptive(self) -> bool:
        """A started job keeps its place."""
        return False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Instant of submission."""
        return (jobs.submitted_at,)
