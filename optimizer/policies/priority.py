"""Priority: classes, and the order of submission inside each.

    key: class, the highest first

Source: what batch systems do by default, as Slurm's preemption by priority and Kubernetes' priority classes.
"""

from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.parameters import FastestFirst, Strict
from optimizer.policy import OrderFacts
from optimizer.problem import FloatArray


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Priority:
    """The higher class first, then in the order of submission; a higher class takes the places of a lower one.

    Every order puts classes first; this one has nothing else to preempt for. Preempts at round ends, the highest
    class at once.
    """

    preemptive: Annotated[
        bool, Field(description="False: a started job runs to its end, unless the highest class wants its place.")
    ] = True
    aware: FastestFirst = True
    strict: Strict = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """The class, highest first."""
        return (-jobs.priority_class.astype(np.float64),)
