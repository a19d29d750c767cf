"""EDF: whoever is due first goes first."""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.policy import OrderFacts
from optimizer.problem import FloatArray


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Edf:
    """Earliest deadline first; jobs without a deadline come last, in the order of submission.

    Meets every deadline on one machine if that is possible at all (Liu and Layland, JACM 20, 1973); on several, or with
    gangs, it is a rule of thumb. A job that is late already keeps its rank. Preempts at round ends.
    """

    preemptive: Annotated[bool, Field(description="False: a started job runs to its end.")] = True
    aware: Annotated[
        bool, Field(description="True: fastest free configuration first. False: pools in their order, blind to speed.")
    ] = True
    strict: Annotated[bool, Field(description="True: the first job that does not fit holds up all behind it.")] = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Deadline; inf without one."""
        return (jobs.deadline_at,)
