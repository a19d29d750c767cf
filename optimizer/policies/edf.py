"""EDF: whoever is due first goes first.

    key: deadline

Source: Liu and Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment", JACM 20, 1973,
section 7.
"""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.parameters import FastestFirst, Strict
from optimizer.policy import OrderFacts
from optimizer.problem import FloatArray


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Edf:
    """Earliest deadline first; jobs without a deadline come last, in the order of submission.

    Meets every deadline on one machine if that is possible at all; on several, or with gangs, it is a rule of thumb. A
    job that is late already keeps its rank. Preempts at round ends.
    """

    preemptive: Annotated[bool, Field(description="False: a started job runs to its end.")] = True
    aware: FastestFirst = True
    strict: Strict = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Deadline; inf without one."""
        return (jobs.deadline_at,)
