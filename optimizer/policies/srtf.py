"""SRTF: whoever is done soonest goes first."""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.lengths import left_s, level
from optimizer.policy import OrderFacts
from optimizer.problem import FloatArray


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Srtf:
    """Shortest remaining time first, on each job's best configuration.

    Lowest mean completion time on one machine with known lengths (Schrage, Operations Research 16, 1968). Long jobs
    wait as long as shorter ones keep coming. A job of unknown length is taken to need as long again as it has run.
    Preempts at round ends.
    """

    preemptive: Annotated[bool, Field(description="False: a started job runs to its end (shortest job first).")] = True
    margin: Annotated[
        float,
        Field(
            ge=0, description="A job displaces another only from a lower step; steps differ by this part (0.1: 10 %)."
        ),
    ] = 0.1
    unknown_s: Annotated[
        float, Field(gt=0, description="Seconds that a job of unknown length is taken to have left, at least.")
    ] = 3600.0
    aware: Annotated[
        bool, Field(description="True: fastest free configuration first. False: pools in their order, blind to speed.")
    ] = True
    strict: Annotated[bool, Field(description="True: the first job that does not fit holds up all behind it.")] = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Step of the time left, then the time left."""
        left = left_s(jobs, self.unknown_s)
        return level(left, self.margin), left
