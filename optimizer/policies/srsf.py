"""SRSF: whoever needs least service goes first, service being time times accelerators.

    key: gang * steps left / steps per second of the best configuration, in steps of a margin

Source: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, section 3.1.
"""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.orders.lengths import left_s, level
from optimizer.parameters import FastestFirst, Margin, Strict, UnknownLength
from optimizer.policy import OrderFacts
from optimizer.problem import FloatArray


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Srsf:
    """Shortest remaining service first: remaining time on the best configuration times the gang.

    As SRTF, but a gang of eight counts eight times. A job of unknown length is taken to need as long again as it has
    run. Preempts at round ends.
    """

    preemptive: Annotated[bool, Field(description="False: a started job runs to its end (least service first).")] = True
    margin: Margin = 0.1
    unknown_s: UnknownLength = 3600.0
    aware: FastestFirst = True
    strict: Strict = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Step of the service left, then the service left."""
        left = left_s(jobs, self.unknown_s) * jobs.gang
        return level(left, self.margin), left
