"""What befalls jobs by chance, whatever machines do: users who cancel them, and runs that crash.

A workload may state both of single jobs; what is drawn here comes on top. Streams `cancellations` and `crashes`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from simulator.job import PlannedFailure, SimulatedJob
from simulator.streams import Streams


@dataclass(frozen=True, slots=True)
class Mishaps:
    """How many jobs are cancelled and how many crash."""

    #: Part of the jobs whose user cancels them, and the mean time from submission to that (exponential); those that
    #: have ended by then are not.
    cancelled: float = 0.0
    cancelled_after_s: float = 3600.0
    #: Part of the jobs that crash, anywhere in their work, the exit code, and how often; None: every time.
    crashing: float = 0.0
    exit_code: int = 1
    crashes: int | None = 1


def befallen(jobs: Iterable[SimulatedJob], mishaps: Mishaps, streams: Streams) -> Iterator[SimulatedJob]:
    """The jobs with what will befall them. The draws of a job do not depend on what befalls others."""
    cancellations, crashes = streams.stream("cancellations"), streams.stream("crashes")
    for job in jobs:
        if mishaps.cancelled:
            is_cancelled, after = cancellations.random() < mishaps.cancelled, cancellations.expovariate(1.0)
            if is_cancelled:
                job = replace(job, cancel_at=min(job.cancel_at, job.at + after * mishaps.cancelled_after_s))
        if mishaps.crashing:
            does_crash, part = crashes.random() < mishaps.crashing, crashes.random()
            if does_crash:
                crash = PlannedFailure(part * job.steps, mishaps.exit_code, mishaps.crashes)
                job = replace(job, failures=(*job.failures, crash))
        yield job
