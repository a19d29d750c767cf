"""What people change of a job that has not ended, as shells tell the core: priority, budget, deadline, machines,
project.

The journal names events by their classes, wherever these stand. An event about a job that is over changes nothing.
A change counts from its instant on: what was decided before stays until the next round, and places that a job holds
are not taken away by the change alone.
"""

from dataclasses import dataclass
from math import inf

from walras.job_request import GangRequest, JobId


@dataclass(slots=True)
class JobBudgetChanged:
    """A job may cost so much in all from now on. `spent_usd`: what it has cost, if it had no budget before."""

    at: float
    job_id: JobId
    budget_usd: float
    spent_usd: float = 0.0


@dataclass(slots=True)
class JobReprioritised:
    """A job has another priority (0-100): its class of priority, or its place inside that, may be another."""

    at: float
    job_id: JobId
    priority: int


@dataclass(slots=True)
class JobRedirected:
    """A held job is to run on other machines: its gang, worth and declared speeds are these from now on."""

    at: float
    job_id: JobId
    gang: GangRequest
    #: USD an hour at its best speed; None: the project's value.
    value_usd_per_h: float | None = None
    #: Accelerator type and steps per second, believed until measured.
    declared: tuple[tuple[str, float], ...] = ()


@dataclass(slots=True)
class JobDeadlineChanged:
    """A job is wanted finished by another instant from now on; inf: it has no deadline any more.

    A job that was moved for the former deadline keeps its place, and belongs to no pool for the new one before the last
    moment for that has come.
    """

    at: float
    job_id: JobId
    deadline_at: float = inf


@dataclass(slots=True)
class JobProjectChanged:
    """A job that waits is of another project from now on: its shares, limits, bookings and budgets are those of that.

    What it has used and cost stays where that was counted. Said of a job that holds a place it changes nothing.
    """

    at: float
    job_id: JobId
    project: str
    #: As its owner states them, or as the new project has them by default.
    priority: int
    weight: float = 1.0
    #: USD an hour at its best speed; None: the project's value.
    value_usd_per_h: float | None = None


#: The journal's names of these are the classes' own.
JobChangeEvent = JobBudgetChanged | JobReprioritised | JobRedirected | JobDeadlineChanged | JobProjectChanged
