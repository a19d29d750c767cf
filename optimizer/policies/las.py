"""LAS: whoever has had least goes first, in steps of a quantum so that equals do not swap for ever.

    key: floor(log(1 + growth * received / quantum) / log(1 + growth))          received: accelerator-seconds
         floor(received / quantum)                                              growth 0

Level 0 is a quantum wide, each further one wider by `growth`. With levels of one width long jobs would change places as
often as short ones, though an hour matters little to who has had a hundred: a restart each time for nobody's good.

Source: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, section 3.2
(two-dimensional: accelerators times time); its queues, too, are wider the more their jobs have had.
"""

from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.parameters import FastestFirst, Strict
from optimizer.policy import OrderFacts
from optimizer.problem import FloatArray


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Las:
    """Least attained service: the jobs that have received fewest accelerator-seconds go first.

    Needs no lengths. Short jobs end early, long ones take turns, the longer the more they have had. Preempts at round
    ends.
    """

    quantum_s: Annotated[
        float,
        Field(gt=0, description="Accelerator-seconds in one level; jobs in the same level never displace each other."),
    ] = 3600.0
    growth: Annotated[
        float,
        Field(ge=0, le=10, description="By what part each level is wider than the one before; 0: all are as wide."),
    ] = 0.1
    aware: FastestFirst = True
    strict: Strict = False

    @property
    def preemptive(self) -> bool:
        """Whoever has had a quantum more makes room."""
        return True

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Level of attained service."""
        had = jobs.attained_s / self.quantum_s
        return (np.floor(np.log1p(self.growth * had) / np.log1p(self.growth) if self.growth else had),)
