"""The number of accelerators to reserve for jobs that may wait or run on demand, by simulation or in closed form.

Jobs take reserved accelerators in order of arrival; a job that would wait too long runs on demand. A reserved hour is
paid whether used or not. After "Is Sharing Caring?" (Mehboob and others, ICPE'23): the cost is divided equally by work
(one price for all) or by where a job ran (one price each), and users leave whose wait is too long for the length of
their jobs. A gang holds accelerators while it waits for the others; the length of a job is known when it arrives, as in
that study. Prices are per accelerator-hour of work, as multiples of the on-demand price.

Closed forms (Ambati and others, SC'20) are those of M/M queues: Poisson arrivals at rate `arrivals`, exponential
service at rate `services` per busy server, waiting probabilities by Erlang B and C.

The users' bills for a shared reservation follow from a pricing model. Under `ONE_PRICE` everybody pays the same price
per accelerator-hour of work, wherever it ran. Under `BY_PLACE` work on demand pays the on-demand price, and the work on
reserved accelerators divides their cost. Under both the bills add up to the cost of the reservation and the on-demand
work. A user who leaves reserves accelerators for their own jobs alone, under the same terms, for at least as long as
the shared reservation is paid for.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from math import exp, inf

#: Number of grid points that are tried first, and again around the best of them.
_GRID = 12


@dataclass(frozen=True, slots=True)
class CapacityJob:
    at_h: float
    length_h: float
    accelerators: int
    user: str = ""

    @property
    def work(self) -> float:
        """Returns accelerator-hours of work."""
        return self.length_h * self.accelerators


@dataclass(frozen=True, slots=True)
class ReservationTerms:
    """The price of reserved accelerators, and which jobs wait for them how long."""

    #: Price of a reserved hour, used or not, as a multiple of the on-demand price.
    reserved_price: float
    #: A job that would wait longer runs on demand.
    longest_wait_h: float = 0.0
    #: Jobs shorter than this do not wait at all.
    short_h: float = 0.0
    #: Accelerators are reserved in multiples of this number.
    lot: int = 1
    #: Least number of hours for which the reservation is paid, however soon the last job ends.
    least_span_h: float = 0.0


@dataclass(frozen=True, slots=True)
class CapacityReservation:
    """The result of reserving a number of accelerators."""

    accelerators: int
    #: Price of an accelerator-hour of work if everybody pays the same.
    price: float
    #: Price of work on reserved accelerators if each pays for where it ran (on demand: 1); None: no work ran there.
    reserved_work_price: float | None
    #: Part of the work that runs on demand.
    on_demand: float
    mean_wait_h: float
    longest_wait_h: float
    #: By user: mean wait over mean length of the user's jobs.
    slowdowns: dict[str, float]


def simulate_reservation(
    jobs: Sequence[CapacityJob], accelerators: int, terms: ReservationTerms
) -> CapacityReservation:
    """Simulates the jobs, given in order of arrival, on reserved accelerators. Raises ValueError without jobs."""
    if not jobs:
        raise ValueError("there are no jobs")
    taken = waits_for_reservation(jobs, accelerators, terms)
    work = sum(job.work for job in jobs)
    on_demand = sum(job.work for job, wait_h in zip(jobs, taken, strict=True) if wait_h is None)
    waits = [wait_h or 0.0 for wait_h in taken]
    paid = terms.reserved_price * accelerators * paid_span_h(jobs, taken, terms)
    reserved = work - on_demand
    return CapacityReservation(
        accelerators=accelerators,
        price=(paid + on_demand) / work,
        reserved_work_price=paid / reserved if reserved > 0 else None,
        on_demand=on_demand / work,
        mean_wait_h=sum(waits) / len(waits),
        longest_wait_h=max(waits),
        slowdowns=_slowdowns(jobs, waits),
    )


def waits_for_reservation(
    jobs: Sequence[CapacityJob], accelerators: int, terms: ReservationTerms
) -> list[float | None]:
    """Returns each job's wait for reserved accelerators in hours, in order of arrival; None: it runs on demand."""
    free = [0.0] * accelerators
    return [_take(free, job, 0.0 if job.length_h < terms.short_h else terms.longest_wait_h) for job in jobs]


def paid_span_h(jobs: Sequence[CapacityJob], waits: Sequence[float | None], terms: ReservationTerms) -> float:
    """Returns the hours for which the reservation is paid: from the first arrival to the last end, or the terms'
    minimum.
    """
    end_h = max(job.at_h + (wait_h or 0.0) + job.length_h for job, wait_h in zip(jobs, waits, strict=True))
    return max(terms.least_span_h, end_h - jobs[0].at_h)


def _take(free: list[float], job: CapacityJob, limit_h: float) -> float | None:
    """Takes the accelerators that are free first. Returns the wait in hours, or None where it exceeds `limit_h`.

    `free` holds the hour at which each accelerator becomes free, ascending; it is updated.
    """
    if job.accelerators > len(free):
        return None
    start_h = max(job.at_h, free[job.accelerators - 1])
    if start_h - job.at_h > limit_h:
        return None
    del free[: job.accelerators]
    end_h = start_h + job.length_h
    place = bisect_right(free, end_h)
    free[place:place] = [end_h] * job.accelerators
    return start_h - job.at_h


def _slowdowns(jobs: Sequence[CapacityJob], waits: Sequence[float]) -> dict[str, float]:
    sums: dict[str, tuple[float, float]] = {}
    for job, wait_h in zip(jobs, waits, strict=True):
        waited, ran = sums.get(job.user, (0.0, 0.0))
        sums[job.user] = waited + wait_h, ran + job.length_h
    return {user: waited / ran for user, (waited, ran) in sums.items()}


# ------------------------------------------------------------------------------------------ choosing a number


def cheapest_reservation(jobs: Sequence[CapacityJob], terms: ReservationTerms) -> CapacityReservation:
    """Returns the number of accelerators with the lowest price on a grid up to the peak, refined around the best point.

    The price is not convex in the number, so the result may miss the optimum; the bounds show by how much at most.
    """
    found: dict[int, CapacityReservation] = {}

    def tried(lots: int) -> CapacityReservation:
        if lots not in found:
            found[lots] = simulate_reservation(jobs, lots * terms.lot, terms)
        return found[lots]

    low, high = 0, -(-peak_accelerators(jobs) // terms.lot)
    while True:
        step = max(1, -(-(high - low) // _GRID))
        best = min(range(low, high + step, step), key=lambda lots: (tried(lots).price, lots))
        if step == 1:
            return tried(best)
        low, high = max(0, best - step), best + step


def fewest_without_on_demand(jobs: Sequence[CapacityJob], terms: ReservationTerms) -> CapacityReservation | None:
    """Returns the fewest accelerators that serve every job within the longest wait, with nothing on demand.

    Returns None if no number up to the peak does.
    """
    patient = replace(terms, longest_wait_h=inf, short_h=0.0)

    def serves(lots: int) -> bool:
        return simulate_reservation(jobs, lots * terms.lot, patient).longest_wait_h <= terms.longest_wait_h

    low, high = -(-max(job.accelerators for job in jobs) // terms.lot), -(-peak_accelerators(jobs) // terms.lot)
    if not serves(high):
        return None
    return simulate_reservation(jobs, _first(serves, low, high) * terms.lot, patient)


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Bisects for the first number at which a monotone condition holds; it must hold for `high`."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


@dataclass(frozen=True, slots=True)
class Defection:
    """The users left after those have gone whose waits are too long, and the price for those who stay."""

    rounds: int
    users: int
    stayed: int
    #: Part of the work that stayed.
    work: float
    #: None if everybody has left.
    after: CapacityReservation | None


def let_users_leave(jobs: Sequence[CapacityJob], terms: ReservationTerms, most: float) -> Defection:
    """Removes users whose mean wait exceeds `most` times their mean job length and reserves anew, until none leaves."""
    everybody = {job.user for job in jobs}
    work = sum(job.work for job in jobs)
    rounds, left = 0, list(jobs)
    while left:
        chosen = cheapest_reservation(left, terms)
        going = {user for user, slowdown in chosen.slowdowns.items() if slowdown > most}
        if not going:
            stayed = sum(job.work for job in left) / work
            return Defection(rounds, len(everybody), len(chosen.slowdowns), stayed, chosen)
        rounds, left = rounds + 1, [job for job in left if job.user not in going]
    return Defection(rounds, len(everybody), 0, 0.0, None)


# ---------------------------------------------------------------------------------------------------- lower bounds


def peak_accelerators(jobs: Sequence[CapacityJob]) -> int:
    """Returns the largest number of accelerators in use at once if no job waits."""
    return max(level for _, level in _levels(jobs))


def bound_without_waiting(jobs: Sequence[CapacityJob], reserved_price: float) -> float:
    """Returns a lower bound on the price of every reservation in which no job waits.

    It holds even if gangs could be split between reserved and on-demand accelerators: a further reserved accelerator
    pays if it is busy for more than `reserved_price` of the time.
    """
    levels = _levels(jobs)
    span_h = sum(hours for hours, _ in levels)
    lengths: dict[int, float] = {}
    for hours, level in levels:
        lengths[level] = lengths.get(level, 0.0) + hours
    reserved, busy_h = 0, span_h
    for level in sorted(lengths):
        if busy_h <= reserved_price * span_h:
            break
        # Every accelerator up to this level is busy for at least `busy_h`.
        reserved = level
        busy_h -= lengths[level]
    work = sum(hours * level for hours, level in levels)
    on_demand = sum(hours * max(0, level - reserved) for hours, level in levels)
    return (reserved_price * reserved * span_h + on_demand) / work


def _levels(jobs: Sequence[CapacityJob]) -> list[tuple[float, int]]:
    """Returns (hours, accelerators in use) from the first arrival to the last end if no job waits."""
    changes: dict[float, int] = {}
    for job in jobs:
        changes[job.at_h] = changes.get(job.at_h, 0) + job.accelerators
        changes[job.at_h + job.length_h] = changes.get(job.at_h + job.length_h, 0) - job.accelerators
    instants = sorted(changes)
    level, levels = 0, []
    for instant, following in pairwise(instants):
        level += changes[instant]
        levels.append((following - instant, level))
    return levels


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """Arrival rate, and service rate per server, per unit of time."""

    arrivals: float
    services: float

    @property
    def offered(self) -> float:
        """Returns the offered load in Erlang: the mean number of busy servers if one were always free."""
        return self.arrivals / self.services


def erlang_b(servers: int, offered: float) -> float:
    """Returns the probability that an arrival finds every server busy, if no job waits (Erlang B)."""
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = offered * blocked / (number + offered * blocked)
    return blocked


def erlang_c(servers: int, offered: float) -> float:
    """Returns the probability that an arrival waits, if all jobs wait (Erlang C); 1 if the load exceeds the servers."""
    if offered >= servers:
        return 1.0
    blocked = erlang_b(servers, offered)
    return blocked / (1.0 - offered / servers * (1.0 - blocked))


@dataclass(frozen=True, slots=True)
class ReservedServers:
    """The result of reserving a number of servers."""

    servers: int
    #: Price per unit of work, as a multiple of the on-demand price.
    price: float
    #: Part of the jobs that run on demand.
    on_demand: float
    #: Mean wait, in the rates' unit of time.
    wait: float


def reserve_without_waiting(load: QueueLoad, reserved_price: float) -> ReservedServers:
    """Returns the optimal number of servers if a job that finds none free runs on demand.

    The last server that pays is busy for more than `reserved_price` of the time. Raises ValueError for a price outside
    (0, 1].
    """
    if not 0 < reserved_price <= 1:
        raise ValueError("a reserved server costs more than nothing and at most what an on-demand one does")
    servers, blocked = 0, 1.0
    while True:
        fewer = load.offered * blocked / (servers + 1 + load.offered * blocked)
        if load.offered * (blocked - fewer) <= reserved_price:
            break
        servers, blocked = servers + 1, fewer
    price = blocked + servers * reserved_price / load.offered
    return ReservedServers(servers, price, blocked, 0.0)


def reserve_with_waiting(load: QueueLoad, reserved_price: float, servers: int) -> ReservedServers:
    """Returns the result of a number of servers if every job waits for one.

    Raises ValueError if the servers do not exceed the offered load.
    """
    if servers <= load.offered:
        raise ValueError(f"{servers} servers never catch up with an offered load of {load.offered:g}")
    wait = erlang_c(servers, load.offered) / (servers * load.services - load.arrivals)
    return ReservedServers(servers, reserved_price * servers / load.offered, 0.0, wait)


def reserve_for_long_jobs(load: QueueLoad, reserved_price: float, servers: int, shortest: float) -> ReservedServers:
    """Returns the result if jobs shorter than `shortest` run on demand at once and the others wait.

    Job lengths are exponential, so the part of a length beyond `shortest` is exponential too. The wait is a two-moment
    approximation, because the long jobs' lengths vary less than exponential ones. Raises ValueError if the servers do
    not exceed the offered load of the long jobs.
    """
    arrivals = load.arrivals * exp(-load.services * shortest)
    length = shortest + 1.0 / load.services
    offered = arrivals * length
    if servers <= offered:
        raise ValueError(f"{servers} servers never catch up with an offered load of {offered:g}")
    variation = (1.0 / load.services / length) ** 2
    wait = (variation + 1.0) / 2.0 * erlang_c(servers, offered) / (servers / length - arrivals)
    work_on_demand = 1.0 - offered / load.offered
    price = work_on_demand + reserved_price * servers / load.offered
    return ReservedServers(servers, price, 1.0 - exp(-load.services * shortest), wait)


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
    #: The user's least cost alone.
    alone: float

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


def bill_reservation(jobs: Sequence[CapacityJob], terms: ReservationTerms) -> ReservationBills:
    """Bills the users of these jobs, given in order of arrival, for the cheapest number of reserved accelerators.

    Raises ValueError without jobs.
    """
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
            )
        )
    return ReservationBills(accelerators, span_h, total, tuple(bills))
