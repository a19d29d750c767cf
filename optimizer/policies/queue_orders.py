"""Order policies: a key ranks the jobs, the smallest first. They solve no program.

Each class states its key. Ties are broken by the instant of submission, then by the number of the job. A job may
preempt a running one only if the first column of its key is smaller.
"""

from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from optimizer.assignment.remaining_time import expected_remaining_s, gittins_rank, rounded_to_margin
from optimizer.policy import FastestFirst, LengthGuess, OrderFacts, RankMargin, StrictOrder
from optimizer.problem import BoolArray, FloatArray


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Fifo:
    """First in, first out: jobs start in the order of submission and run to their end. Never preempts.

        key: instant of submission

    Source: the baseline of Narayanan et al., OSDI 2020, each job on its fastest free type if aware.
    """

    #: A started job keeps its place.
    preemptive: ClassVar[bool] = False
    aware: FastestFirst = True
    strict: StrictOrder = True

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Returns the instant of submission."""
        return (jobs.submitted_at,)


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Priority:
    """Higher priority class first, then in the order of submission; a higher class preempts a lower one.

        key: class, the highest first

    All order policies rank by class first; this one preempts for no other reason. It preempts at the end of a round,
    for the highest class at once.

    Source: what batch systems do by default, as Slurm's preemption by priority and Kubernetes' priority classes.
    """

    preemptive: Annotated[bool, Field(description="False: a started job is preempted only by the highest class.")] = (
        True
    )
    aware: FastestFirst = True
    strict: StrictOrder = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Returns the priority class, the highest first."""
        return (-jobs.priority_class.astype(np.float64),)


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Edf:
    """Earliest deadline first; jobs without a deadline come last, in the order of submission.

        key: deadline

    On one machine it meets all deadlines whenever some schedule does; on several machines, or with gangs, it is a
    heuristic. A job that has missed its deadline keeps its rank. It preempts at the end of a round.

    Source: Liu and Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment", JACM 20,
    1973, section 7.
    """

    preemptive: Annotated[bool, Field(description="False: a started job is never preempted.")] = True
    aware: FastestFirst = True
    strict: StrictOrder = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Returns the deadline of each job; inf without one."""
        return (jobs.deadline_at,)


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Las:
    """Least attained service: the jobs that have received fewest accelerator-seconds go first.

        key: floor(log(1 + growth * received / quantum) / log(1 + growth))          received: accelerator-seconds
             floor(received / quantum)                                              growth 0

    Level 0 is a quantum wide, and each further level is wider by the fraction `growth`. With levels of equal width,
    long jobs would preempt each other as often as short ones do, and each time pay a restart, although an hour matters
    little to a job that has received a hundred. The policy needs no job lengths. Short jobs end early; long jobs share
    the accelerators in turns that grow with the service received. It preempts at the end of a round.

    Source: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, section 3.2
    (two-dimensional: accelerators times time), whose queues also widen with the service received.
    """

    #: A job that has received a quantum more is preempted first.
    preemptive: ClassVar[bool] = True
    quantum_s: Annotated[
        float,
        Field(
            gt=0,
            description="Width of a level in accelerator-seconds; jobs in the same level never preempt each other.",
        ),
    ] = 3600.0
    growth: Annotated[
        float,
        Field(
            ge=0,
            le=10,
            description="Relative growth of the width from each level to the next; 0: all levels are equally wide.",
        ),
    ] = 0.1
    aware: FastestFirst = True
    strict: StrictOrder = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Returns the level of attained service."""
        had = jobs.attained_s / self.quantum_s
        return (np.floor(np.log1p(self.growth * had) / np.log1p(self.growth) if self.growth else had),)


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Srtf:
    """Shortest remaining time first, on each job's best configuration.

        key: steps left / steps per second of the best configuration, in steps of a margin

    It minimises the mean completion time on one machine if lengths are known. Long jobs wait while shorter ones keep
    arriving. The remaining time of a job of unknown length is estimated as the time that it has run. It preempts at
    the end of a round.

    Source: Schrage, "A proof of the optimality of the shortest remaining processing time discipline", Operations
    Research 16, 1968.
    """

    preemptive: Annotated[bool, Field(description="False: a started job is never preempted (shortest job first).")] = (
        True
    )
    margin: RankMargin = 0.1
    unknown_s: LengthGuess = 3600.0
    aware: FastestFirst = True
    strict: StrictOrder = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Returns what is left in steps of the margin, then what is left itself."""
        left = self._left(jobs)
        return rounded_to_margin(left, self.margin), left

    def _left(self, jobs: OrderFacts) -> FloatArray:
        """Returns the time left of each job (n,)."""
        return expected_remaining_s(jobs, self.unknown_s)


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Srsf(Srtf):
    """Shortest remaining service first: remaining time on the best configuration times the gang.

        key: gang * steps left / steps per second of the best configuration, in steps of a margin

    Like SRTF, but the remaining time of a gang counts times its accelerators. The remaining time of a job of unknown
    length is estimated as the time that it has run. It preempts at the end of a round.

    Source: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, section 3.1.
    """

    preemptive: Annotated[bool, Field(description="False: a started job is never preempted (least service first).")] = (
        True
    )

    def _left(self, jobs: OrderFacts) -> FloatArray:
        """Returns the service left of each job (n,)."""
        return super()._left(jobs) * jobs.gang


Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Tiresias:
    """Discretised two-dimensional LAS or Gittins index: queues by accelerator-seconds received, FIFO in each.

        key: queue, the number of thresholds passed by the accelerator-seconds received; or its Gittins rank

    A job begins in the first queue and is demoted as it receives service; jobs of one queue never preempt each other.
    With `index: gittins`, the queues are ranked by the expected further service per completion, computed from the
    service that past jobs needed. It preempts at the end of a round.

    Source: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, sections 3.2 and 3.3.
    """

    #: A job in a lower queue is preempted for one in a higher queue.
    preemptive: ClassVar[bool] = True
    thresholds_s: Annotated[
        tuple[Amount, ...],
        Field(
            strict=False,
            min_length=1,
            description="Accelerator-seconds at which a job is demoted to the next queue, ascending.",
        ),
    ] = (57_600.0,)
    index: Annotated[
        Literal["las", "gittins"],
        Field(
            description="las: queues with less service first. gittins: queues by the Gittins index at their lower edge."
        ),
    ] = "las"
    service_s: Annotated[
        tuple[Amount, ...],
        Field(strict=False, description="For gittins: accelerator-seconds that past jobs needed, one entry per job."),
    ] = ()
    promote: Annotated[
        float | None,
        Field(
            gt=0,
            description="Promote a job to the first queue, and reset its service, once it has waited this "
            "many times as long as it has run (PROMOTEKNOB). None: never, as in the paper's runs.",
        ),
    ] = None
    aware: FastestFirst = True
    strict: StrictOrder = False

    @model_validator(mode="after")
    def _holds_together(self) -> "Tiresias":
        if list(self.thresholds_s) != sorted(set(self.thresholds_s)):
            raise ValueError("thresholds_s must ascend, none twice")
        if self.index == "gittins" and not self.service_s:
            raise ValueError("index 'gittins' needs service_s, what past jobs needed")
        return self

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Returns the rank of the job's queue."""
        queue = self._queue(jobs)
        if self.index == "las":
            return (queue.astype(np.float64),)
        return (_queue_ranks(self.thresholds_s, self.service_s)[queue],)

    def renews(self, jobs: OrderFacts) -> BoolArray:
        """Returns the jobs below the first queue that have waited `promote` times as long as they ran (n,)."""
        if self.promote is None:
            return np.zeros(len(jobs.served_s), dtype=np.bool_)
        ran_s = jobs.served_s / np.maximum(jobs.gang, 1.0)
        return (self._queue(jobs) > 0) & (jobs.waited_s >= self.promote * ran_s)

    def _queue(self, jobs: OrderFacts) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.searchsorted(np.array(self.thresholds_s), jobs.served_s, side="right")


@lru_cache(maxsize=8)
def _queue_ranks(thresholds_s: tuple[float, ...], service_s: tuple[float, ...]) -> FloatArray:
    """Returns the Gittins rank of a job that has just entered each queue."""
    return gittins_rank(np.array(service_s), np.array([0.0, *thresholds_s]))
