"""SRTF: whoever is done soonest goes first.

    key: steps left / steps per second of the best configuration, in steps of a margin

Source: Schrage, "A proof of the optimality of the shortest remaining processing time discipline", Operations Research
16, 1968.
"""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.orders.lengths import left_s, level
from optimizer.parameters import FastestFirst, Margin, Strict, UnknownLength
from optimizer.policy import OrderFacts
from optimizer.problem import FloatArray


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Srtf:
    """Shortest remaining time first, on each job's best configuration.

    Lowest mean completion time on one machine with known lengths. Long jobs wait as long as shorter ones keep coming. A
    job of unknown length is taken to need as long again as it has run. Preempts at round ends.
    """

    preemptive: Annotated[bool, Field(description="False: a started job runs to its end (shortest job first).")] = True
    margin: Margin = 0.1
    unknown_s: UnknownLength = 3600.0
    aware: FastestFirst = True
    strict: Strict = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Step of the time left, then the time left."""
        left = left_s(jobs, self.unknown_s)
        return level(left, self.margin), left
