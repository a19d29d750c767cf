"""Jobs as the simulator knows them: the request that the scheduler sees, and the true work behind it.

Two functions change a stream of jobs on its way into a run: `inject_random_failures` adds random cancellations (stream
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
    """A rank exits when the job has done this many steps."""

    at_steps: float
    exit_code: int = 1
    #: How often; afterwards the job passes the place. None: every time.
    times: int | None = None


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """One row of a workload."""

    #: When it is submitted.
    at: float
    request: JobRequest
    #: The work it truly has (what it told the scheduler is `request.steps`).
    steps: float
    failures: tuple[PlannedFailure, ...] = ()
    #: When its user cancels it.
    cancel_at: float = inf
    name: str = ""


@dataclass(frozen=True, slots=True)
class RandomFailures:
    """How many jobs are cancelled and how many crash."""

    #: Part of the jobs whose user cancels them, and the mean time from submission to that (exponential); those that
    #: have ended by then are not.
    cancelled: float = 0.0
    cancelled_after_s: float = 3600.0
    #: Part of the jobs that crash, anywhere in their work, the exit code, and how often; None: every time.
    crashing: float = 0.0
    exit_code: int = 1
    crashes: int | None = 1


def inject_random_failures(
    jobs: Iterable[SimulatedJob], failures: RandomFailures, streams: RandomStreams
) -> Iterator[SimulatedJob]:
    """The jobs with what will befall them. The draws of a job do not depend on what befalls others."""
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
    """How well lengths are known."""

    #: False: the scheduler hears of no length at all.
    known: bool = True
    #: Standard deviation of the logarithm of what is told against what the workload states.
    spread: float = 0.0
    #: The median of what is told, in parts of what the workload states.
    factor: float = 1.0


def with_estimate_error(
    jobs: Iterable[SimulatedJob], lengths: LengthEstimates, random: Random
) -> Iterator[SimulatedJob]:
    """The jobs with requests that say of their length what `lengths` allows. One draw a job, in their order."""
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
