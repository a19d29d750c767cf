"""First in, first out: jobs start in the order of submission and run to their end.

    key: instant of submission

Source: the baseline of Narayanan et al., OSDI 2020, each job on its fastest free type if aware.
"""

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from optimizer.parameters import FastestFirst, Strict
from optimizer.policy import OrderFacts
from optimizer.problem import FloatArray


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Fifo:
    """First in, first out: jobs start in the order of submission and run to their end. Never preempts."""

    aware: FastestFirst = True
    strict: Strict = True

    @property
    def preemptive(self) -> bool:
        """A started job keeps its place."""
        return False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Instant of submission."""
        return (jobs.submitted_at,)
