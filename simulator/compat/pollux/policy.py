"""What a policy of the Pollux artifact decides: how many accelerators each job has next, and who is placed first.

Where they are is the mechanism's matter. Both policies are asked at every step and keep no promise to anybody.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from optimizer.policy import OrderFacts
from optimizer.problem import FloatArray
from simulator.compat.pollux.training import Training
from walras.ids import JobId

#: Tiresias: a job that has received this much goes to the second queue (16 accelerator-hours).
_LONG_S = 57_600.0
#: Optimus: applications that use one accelerator only.
_SINGLE = frozenset({"ncf"})


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """A job that has been submitted and has not ended."""

    job_id: JobId
    training: Training
    #: Accelerators it asked for.
    gang: int
    #: Steps behind it, and accelerator-seconds received.
    steps: float
    attained_s: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """All accelerators there are, free or not."""

    accelerators: int
    machine_size: int


class PolluxPolicy(ABC):
    """The core takes them for order policies: no solve is ever asked for. What counts is `allocate`."""

    preemptive = True
    strict = False
    aware = False

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """In order of submission."""
        return (jobs.submitted_at,)

    @abstractmethod
    def allocate(self, jobs: Sequence[ActiveJob], fleet: Fleet) -> list[tuple[ActiveJob, int]]:
        """Jobs (of those given, which are in order of their rows) with accelerators, in order of placing."""


class Tiresias(PolluxPolicy):
    """Two queues by service received, each first come first served; who does not fit is passed over."""

    def __init__(self) -> None:
        #: Jobs in either queue, in order.
        self._new: dict[JobId, None] = {}
        self._old: dict[JobId, None] = {}

    def allocate(self, jobs: Sequence[ActiveJob], fleet: Fleet) -> list[tuple[ActiveJob, int]]:
        by_id = {job.job_id: job for job in jobs}
        self._new = {job_id: None for job_id in self._new if job_id in by_id}
        self._old = {job_id: None for job_id in self._old if job_id in by_id}
        self._new.update({job_id: None for job_id in by_id if job_id not in self._old})
        for job in jobs:
            if job.attained_s >= _LONG_S and job.job_id in self._new:
                del self._new[job.job_id]
                self._old[job.job_id] = None
        left, chosen = fleet.accelerators, []
        for job_id in (*self._new, *self._old):
            job = by_id[job_id]
            if job.gang <= left:
                left -= job.gang
                chosen.append((job, job.gang))
        return chosen


class Optimus(PolluxPolicy):
    """One accelerator each, then one more to whoever gains most by it; speeds are known, not learned.

    The gain is a difference of update times, not of rates, and one that is not positive ends a job's growth.
    """

    def allocate(self, jobs: Sequence[ActiveJob], fleet: Fleet) -> list[tuple[ActiveJob, int]]:
        count = dict.fromkeys(range(min(len(jobs), fleet.accelerators)), 1)
        left = fleet.accelerators - len(count)
        updates = [job.training.updates_left(job.training.epoch(job.steps)) for job in jobs]

        def entry(row: int) -> tuple[float, int]:
            """Largest gain first, then the earliest row."""
            return -_gain(jobs[row].training, count[row], updates[row], fleet.machine_size), row

        heap = [entry(row) for row in count] if left else []
        heapify(heap)
        while left and heap:
            gain, row = heap[0]
            if gain >= 0.0:
                break
            count[row] += 1
            left -= 1
            heapreplace(heap, entry(row))
        return [(jobs[row], count[row]) for row in sorted(count, key=lambda row: count[row])]


def _gain(training: Training, count: int, updates: float, machine_size: int) -> float:
    most = 1 if training.application.name in _SINGLE else training.batch // training.local_least
    if count + 1 > most:
        return 0.0
    return (training.predicted_s(count, machine_size) - training.predicted_s(count + 1, machine_size)) * updates
