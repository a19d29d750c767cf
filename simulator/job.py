"""A job as the simulator knows it: what the scheduler is told of it, and the truth."""

from dataclasses import dataclass
from math import inf

from walras.request import JobRequest


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
