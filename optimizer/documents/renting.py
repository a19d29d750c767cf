"""What is rented, as a document: counts by pool, beside what single machines cost and are worth."""

from optimizer.documents.answer import RentedDocument
from optimizer.problem import Problem
from optimizer.renting.machines import Rental, machine_sizes, margins_of


def renting_of(problem: Problem, delay_usd_per_h: float, rental: Rental | None) -> dict[str, RentedDocument]:
    """By pool, where machines may be rented; empty where renting is no question."""
    if rental is None:
        return {}
    margins, pools = margins_of(problem, delay_usd_per_h, rental), problem.pools
    usd_per_h = pools.usd_per_h * machine_sizes(problem)
    return {
        pools.pool_id[row]: RentedDocument(
            machines=int(rental.machines[row]),
            usd_per_h=float(usd_per_h[row]),
            last_usd_per_h=float(margins.last_usd_per_h[row]),
            next_usd_per_h=float(margins.next_usd_per_h[row]),
        )
        for row in range(len(pools))
        if pools.rentable[row] > 0
    }
