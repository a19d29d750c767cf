"""What a core is told of money: it meters what happens, the books of a shell know what happened before, and people say
what a job may cost.
"""

from dataclasses import dataclass

from walras.ids import JobId


@dataclass(slots=True)
class MoneyRestated:
    """What has been spent by the books: a month has begun, or this core has just begun.

    (project, USD in all, USD this month), project "" being everything; who is not named has spent nothing.
    """

    at: float
    spent: tuple[tuple[str, float, float], ...]


@dataclass(slots=True)
class JobBudgetChanged:
    """A job may cost so much in all from now on. `spent_usd`: what it has cost, if it had no budget before."""

    at: float
    job_id: JobId
    budget_usd: float
    spent_usd: float = 0.0


MoneyEvent = MoneyRestated | JobBudgetChanged
