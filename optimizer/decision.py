"""What a policy answers: shares of time with prices and a certificate, an order, or a plan."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from optimizer.problem import FloatArray

#: A policy's memory between decisions: a small JSON value, owned and journaled by the scheduler. None starts afresh.
Memory = Any


class Status(StrEnum):
    """How a solve ended. Running out of work is an outcome, not an error."""

    OPTIMAL = "optimal"
    WORK_LIMIT = "work_limit"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True, eq=False)
class Certificate:
    """Proof of quality: how good the shares are, and how good any shares could be."""

    status: Status
    objective: float
    #: A valid bound on the best possible objective (from below for a minimum, from above for a maximum).
    bound: float
    #: |bound - objective| / max(1e-12, |bound|).
    gap: float
    #: Largest violation of any constraint, in that constraint's own unit divided by its right-hand side (or 1).
    violation: float
    #: Which path produced it: "cvxpy/highs", "classes+cvxpy/clarabel", "price/numba", ...
    path: str
    maximise: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Quote:
    """Prices at which a newcomer is judged until the next solve."""

    #: Price of one accelerator of each pool (p,), >= 0, in `unit` per accelerator held all the time.
    prices: FloatArray
    unit: str
    #: Worth, in `unit`, of one unit of a newcomer's utility gradient: the mean dual of the jobs that compete.
    exchange: float


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Fractions of time per column (c,), accelerators rented per pool (p,), and why they are good."""

    x: FloatArray
    rent: FloatArray
    quote: Quote
    #: Value minus price of each job at its shares (n,), in the quote's unit.
    surplus: FloatArray
    certificate: Certificate


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Jobs in the order in which they are to be placed: rows of `Jobs`, most urgent first.

    `preference` ranks the columns of a job against each other (c,): higher first.
    """

    rows: tuple[int, ...]
    preference: FloatArray


Decision = Shares | Order
