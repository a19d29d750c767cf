"""Priority: classes, and the order of submission inside each."""

from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.policy import OrderFacts
from optimizer.problem import FloatArray


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Priority:
    """The higher class first, then in the order of submission; a higher class takes the places of a lower one.

    What batch systems do by default (Slurm's preemption by priority, Kubernetes' priority classes). Every order puts
    classes first; this one has nothing else to preempt for. Preempts at round ends, the highest class at once.
    """

    preemptive: Annotated[
        bool, Field(description="False: a started job runs to its end, unless the highest class wants its place.")
    ] = True
    aware: Annotated[
        bool, Field(description="True: fastest free configuration first. False: pools in their order, blind to speed.")
    ] = True
    strict: Annotated[bool, Field(description="True: the first job that does not fit holds up all behind it.")] = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """The class, highest first."""
        return (-jobs.priority_class.astype(np.float64),)
