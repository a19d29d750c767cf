"""Changes that people make to jobs that have not ended: priority, budget, deadline, machines, project.

The journal names events by their classes, in whichever module these are. An event about a job that has ended changes
nothing. A change takes effect at its instant: earlier decisions stand until the next round, and the change alone does
not take away places that a job holds.
"""

from dataclasses import dataclass
from math import inf

from walras.job_request import GangRequest, JobId


@dataclass(slots=True)
class JobBudgetChanged:
    """Sets a job's total budget. `spent_usd` is what it has cost so far, if it had no budget before."""

    at: float
    job_id: JobId
    budget_usd: float
    spent_usd: float = 0.0


@dataclass(slots=True)
class JobReprioritised:
    """Sets a job's priority (0-100), which may change its priority class or its order inside that class."""

    at: float
    job_id: JobId
    priority: int


@dataclass(slots=True)
class JobRedirected:
    """Sets the gang, value and declared speeds with which a held job is to run on other machines."""

    at: float
    job_id: JobId
    gang: GangRequest
    #: USD per hour at its best speed; None: the project's value.
    value_usd_per_h: float | None = None
    #: Accelerator type and steps per second, used until a speed is measured.
    declared: tuple[tuple[str, float], ...] = ()


@dataclass(slots=True)
class JobDeadlineChanged:
    """Sets a job's deadline; inf: it no longer has one.

    A job that was moved for the former deadline keeps its place; it is assigned to no pool for the new one before the
    last moment for that has come.
    """

    at: float
    job_id: JobId
    deadline_at: float = inf


@dataclass(slots=True)
class JobProjectChanged:
    """Moves a waiting job to another project, whose shares, limits, bookings and budgets apply from now on.

    Past use and cost stay where they were counted. For a job that holds a place the event changes nothing.
    """

    at: float
    job_id: JobId
    project: str
    #: Priority as its owner states it, or the new project's default.
    priority: int
    weight: float = 1.0
    #: USD per hour at its best speed; None: the project's value.
    value_usd_per_h: float | None = None


#: The journal names these events by their class names.
JobChangeEvent = JobBudgetChanged | JobReprioritised | JobRedirected | JobDeadlineChanged | JobProjectChanged
