"""The users' bills for a shared reservation under two pricing models, and which users would pay less alone.

After "Is Sharing Caring?" (Mehboob and others, ICPE'23). Under `ONE_PRICE` everybody pays the same price per
accelerator-hour of work, wherever it ran. Under `BY_PLACE` work on demand pays the on-demand price, and the work on
reserved accelerators divides their cost. Under both models the bills add up to the cost of the reservation and the
on-demand work. A user who leaves reserves accelerators for their own jobs alone, under the same terms, for at least as
long as the shared reservation is paid for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from optimizer.planning.reserved_capacity import (
    CapacityJob,
    ReservationTerms,
    cheapest_reservation,
    paid_span_h,
    waits_for_reservation,
)


class PricingModel(StrEnum):
    """How the cost of a shared reservation is divided among users."""

    ONE_PRICE = "one-price"
    BY_PLACE = "by-place"


@dataclass(frozen=True, slots=True)
class UserBill:
    """The bill of one user. Amounts are multiples of the on-demand price of an accelerator-hour."""

    user: str
    #: Accelerator-hours of work, and the part of them that ran on demand.
    work: float
    on_demand_work: float
    one_price: float
    by_place: float
    #: The user's least cost alone, and the number of accelerators reserved for it.
    alone: float
    alone_accelerators: int

    def billed(self, model: PricingModel) -> float:
        """Returns the bill under a pricing model."""
        return self.one_price if model is PricingModel.ONE_PRICE else self.by_place


@dataclass(frozen=True, slots=True)
class ReservationBills:
    """The bills for a shared reservation, the user with the most work first."""

    accelerators: int
    #: Hours for which the reservation is paid.
    span_h: float
    #: Cost of the reservation and the on-demand work, in on-demand prices of an accelerator-hour.
    total: float
    bills: tuple[UserBill, ...]


def bill_reservation(
    jobs: Sequence[CapacityJob], terms: ReservationTerms, accelerators: int | None = None
) -> ReservationBills:
    """Bills the users of these jobs, given in order of arrival, for a number of reserved accelerators.

    With `accelerators` None, the cheapest number is reserved. Raises ValueError without jobs.
    """
    if accelerators is None:
        accelerators = cheapest_reservation(jobs, terms).accelerators
    waits = waits_for_reservation(jobs, accelerators, terms)
    span_h = paid_span_h(jobs, waits, terms)
    paid = terms.reserved_price * accelerators * span_h
    work: dict[str, float] = {}
    on_demand: dict[str, float] = {}
    for job, wait_h in zip(jobs, waits, strict=True):
        work[job.user] = work.get(job.user, 0.0) + job.work
        on_demand[job.user] = on_demand.get(job.user, 0.0) + (job.work if wait_h is None else 0.0)
    all_work, all_on_demand = sum(work.values()), sum(on_demand.values())
    total = paid + all_on_demand
    reserved_work = all_work - all_on_demand
    alone_terms = replace(terms, least_span_h=span_h)
    bills = []
    for user in sorted(work, key=lambda name: (-work[name], name)):
        # Everybody pays for reserved hours that nobody used, in proportion to their work.
        part = (work[user] - on_demand[user]) / reserved_work if reserved_work > 0 else work[user] / all_work
        alone = cheapest_reservation([job for job in jobs if job.user == user], alone_terms)
        bills.append(
            UserBill(
                user,
                work[user],
                on_demand[user],
                one_price=total * work[user] / all_work,
                by_place=paid * part + on_demand[user],
                alone=alone.price * work[user],
                alone_accelerators=alone.accelerators,
            )
        )
    return ReservationBills(accelerators, span_h, total, tuple(bills))
