"""LAS: whoever has had least goes first, in steps of a quantum so that equals do not swap for ever.

    key: floor(accelerator-seconds received / quantum)

Source: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, section 3.2
(two-dimensional: accelerators times time), with linear levels.
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

    Needs no lengths. Short jobs end early, long ones take turns, a quantum at a time. Preempts at round ends.
    """

    quantum_s: Annotated[
        float,
        Field(gt=0, description="Accelerator-seconds in one level; jobs in the same level never displace each other."),
    ] = 3600.0
    aware: FastestFirst = True
    strict: Strict = False

    @property
    def preemptive(self) -> bool:
        """Whoever has had a quantum more makes room."""
        return True

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Level of attained service."""
        return (np.floor(jobs.attained_s / self.quantum_s),)
