"""What the scheduler is told of a job's length: the truth, nothing, or a guess that is wrong.

A job still has the work that it has; only its request changes. What a workload itself states (an estimate in place of
steps) is guessed wrong likewise.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random

from simulator.job import SimulatedJob


@dataclass(frozen=True, slots=True)
class Lengths:
    """How well lengths are known."""

    #: False: the scheduler hears of no length at all.
    told: bool = True
    #: Standard deviation of the logarithm of what is told against what the workload states.
    spread: float = 0.0
    #: The median of what is told, in parts of what the workload states.
    factor: float = 1.0


def as_told(jobs: Iterable[SimulatedJob], lengths: Lengths, random: Random) -> Iterator[SimulatedJob]:
    """The jobs with requests that say of their length what `lengths` allows. One draw a job, in their order."""
    for job in jobs:
        request = job.request
        if not lengths.told:
            yield replace(job, request=replace(request, steps=None, duration_s=None))
        elif lengths.spread or lengths.factor != 1.0:
            wrong = lengths.factor * (random.lognormvariate(0.0, lengths.spread) if lengths.spread else 1.0)
            steps = None if request.steps is None else request.steps * wrong
            duration_s = None if request.duration_s is None else request.duration_s * wrong
            yield replace(job, request=replace(request, steps=steps, duration_s=duration_s))
        else:
            yield job
