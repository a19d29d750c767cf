"""The event by which the books of a shell reach the core: it meters what happens, they know what happened before."""

from dataclasses import dataclass


@dataclass(slots=True)
class MoneyRestated:
    """What has been spent by the books: a month has begun, or this core has just begun.

    (project, USD in all, USD this month), project "" being everything; who is not named has spent nothing.
    """

    at: float
    spent: tuple[tuple[str, float, float], ...]
