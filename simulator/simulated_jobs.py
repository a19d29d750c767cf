"""Jobs in the simulator: the request that the scheduler sees, and the true work behind it.

Two functions change a stream of jobs before a run: `inject_random_failures` adds random cancellations (stream
`cancellations`) and crashes (stream `crashes`) to those that the workload states, and `with_estimate_error` hides or
distorts the length that a request states. A job keeps its true work in both cases.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf
from random import Random

from simulator.engine import RandomStreams
from walras.job_request import JobRequest


@dataclass(frozen=True, slots=True)
class PlannedFailure:
    """A failure of a rank after this many steps of the job."""

    at_steps: float
    exit_code: int = 1
    #: Number of failures there; None: every attempt fails.
    times: int | None = None


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """One row of a workload."""

    #: Instant of its submission, seconds.
    at: float
    request: JobRequest
    #: The true work in steps (`request.steps` is what the scheduler knows).
    steps: float
    failures: tuple[PlannedFailure, ...] = ()
    #: Instant at which its user cancels it.
    cancel_at: float = inf
    name: str = ""


@dataclass(frozen=True, slots=True)
class RandomFailures:
    """Rates of random cancellations and crashes."""

    #: Part of the jobs whose user cancels them, and the mean time from submission to that (exponential); jobs that have
    #: ended by then are not cancelled.
    cancelled: float = 0.0
    cancelled_after_s: float = 3600.0
    #: Part of the jobs that crash, anywhere in their work, the exit code, and how often; None: every time.
    crashing: float = 0.0
    exit_code: int = 1
    crashes: int | None = 1


def inject_random_failures(
    jobs: Iterable[SimulatedJob], failures: RandomFailures, streams: RandomStreams
) -> Iterator[SimulatedJob]:
    """Yields the jobs with random cancellations and crashes. The draws of a job do not depend on other jobs."""
    cancellations, crashes = streams.stream("cancellations"), streams.stream("crashes")
    for job in jobs:
        if failures.cancelled:
            is_cancelled, after = cancellations.random() < failures.cancelled, cancellations.expovariate(1.0)
            if is_cancelled:
                job = replace(job, cancel_at=min(job.cancel_at, job.at + after * failures.cancelled_after_s))
        if failures.crashing:
            does_crash, part = crashes.random() < failures.crashing, crashes.random()
            if does_crash:
                crash = PlannedFailure(part * job.steps, failures.exit_code, failures.crashes)
                job = replace(job, failures=(*job.failures, crash))
        yield job


@dataclass(frozen=True, slots=True)
class LengthEstimates:
    """The scheduler's knowledge of the lengths of jobs."""

    #: False: requests state no length.
    known: bool = True
    #: Standard deviation of log(stated length / the workload's length).
    spread: float = 0.0
    #: Median of stated length / the workload's length.
    factor: float = 1.0


def with_estimate_error(
    jobs: Iterable[SimulatedJob], lengths: LengthEstimates, random: Random
) -> Iterator[SimulatedJob]:
    """Yields the jobs with the lengths that the scheduler may know. One draw for each job, in their order."""
    for job in jobs:
        request = job.request
        if not lengths.known:
            yield replace(job, request=replace(request, steps=None, duration_s=None))
        elif lengths.spread or lengths.factor != 1.0:
            wrong = lengths.factor * (random.lognormvariate(0.0, lengths.spread) if lengths.spread else 1.0)
            steps = None if request.steps is None else request.steps * wrong
            duration_s = None if request.duration_s is None else request.duration_s * wrong
            yield replace(job, request=replace(request, steps=steps, duration_s=duration_s))
        else:
            yield job
