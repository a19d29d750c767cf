"""How many accelerators to reserve for jobs that may wait or go on demand: simulated, or by closed forms.

Jobs take reserved accelerators in order of arrival; who would wait too long there goes on demand. A reserved hour is
paid whether used or not. After "Is Sharing Caring?" (Mehboob and others, ICPE'23): the money is shared out by work
alike (one price for all), or by where a job ran (each its own price), and users leave who wait too long for what they
run. A gang keeps the accelerators that it waits for; how long a job runs is known when it arrives, as in that study.
Prices are per accelerator-hour of work, an hour on demand being 1.

Closed forms (Ambati and others, SC'20): jobs arrive at `arrivals` per unit of time and are served at `services` per
busy server (Poisson, exponential: Erlang B and C).
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, inf

#: Numbers that are tried at first, and again around the best of them.
_GRID = 12


@dataclass(frozen=True, slots=True)
class CapacityJob:
    """One job."""

    at_h: float
    length_h: float
    accelerators: int
    user: str = ""

    @property
    def work(self) -> float:
        """Accelerator-hours."""
        return self.length_h * self.accelerators


@dataclass(frozen=True, slots=True)
class ReservationTerms:
    """What may be reserved at which price, and who waits how long for it."""

    #: Of an hour, used or not; an hour on demand is 1.
    reserved_price: float
    #: A job that would wait longer goes on demand.
    longest_wait_h: float = 0.0
    #: Jobs shorter than this do not wait at all.
    short_h: float = 0.0
    #: Accelerators are reserved in lots of so many.
    lot: int = 1
    #: The reservation is paid for so many hours at least, however soon the last job ends.
    least_span_h: float = 0.0


@dataclass(frozen=True, slots=True)
class CapacityReservation:
    """What a number of reserved accelerators comes to."""

    accelerators: int
    #: What everybody pays where all pay alike.
    price: float
    #: What work on reserved accelerators pays where each pays for where it ran (on demand: 1); None: nothing ran there.
    reserved_work_price: float | None
    #: Part of the work that goes on demand.
    on_demand: float
    mean_wait_h: float
    longest_wait_h: float
    #: By user: mean wait over mean length.
    slowdowns: dict[str, float]


def simulate_reservation(
    jobs: Sequence[CapacityJob], accelerators: int, terms: ReservationTerms
) -> CapacityReservation:
    """Let the jobs, in order of arrival, have so many. Raises ValueError without jobs."""
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
    """How long each job, in order of arrival, waits for its reserved accelerators, hours; None: it goes on demand."""
    free = [0.0] * accelerators
    return [_take(free, job, 0.0 if job.length_h < terms.short_h else terms.longest_wait_h) for job in jobs]


def paid_span_h(jobs: Sequence[CapacityJob], waits: Sequence[float | None], terms: ReservationTerms) -> float:
    """Hours for which the reservation is paid: from the first arrival to the last end, and what the terms demand."""
    end_h = max(job.at_h + (wait_h or 0.0) + job.length_h for job, wait_h in zip(jobs, waits, strict=True))
    return max(terms.least_span_h, end_h - jobs[0].at_h)


def _take(free: list[float], job: CapacityJob, limit_h: float) -> float | None:
    """Book the accelerators that are free first; the wait, or None where that is too long.

    `free`: when each is free, ascending.
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
    """The number with the lowest price of those tried: a grid up to the peak, drawn closer around its best.

    Prices rise and fall a little with the number: how far this is from the best of all, the bounds say.
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
    """The fewest that serve every job within the longest wait, with nothing on demand; None if there is no such number
    up to the peak.
    """
    patient = replace(terms, longest_wait_h=inf, short_h=0.0)

    def serves(lots: int) -> bool:
        return simulate_reservation(jobs, lots * terms.lot, patient).longest_wait_h <= terms.longest_wait_h

    low, high = -(-max(job.accelerators for job in jobs) // terms.lot), -(-peak_accelerators(jobs) // terms.lot)
    if not serves(high):
        return None
    return simulate_reservation(jobs, _first(serves, low, high) * terms.lot, patient)


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first number for which it holds, if it holds from there on; it holds for `high`."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


@dataclass(frozen=True, slots=True)
class Defection:
    """Who is left after users have gone who wait too long for what they run, and what those who stay pay."""

    rounds: int
    users: int
    stayed: int
    #: Part of the work that stayed.
    work: float
    #: None: everybody has left.
    after: CapacityReservation | None


def let_users_leave(jobs: Sequence[CapacityJob], terms: ReservationTerms, most: float) -> Defection:
    """Users leave whose mean wait exceeds `most` times their mean length; then it is chosen anew, until none leaves."""
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


# ------------------------------------------------------------------------------------------ what nobody can beat


def peak_accelerators(jobs: Sequence[CapacityJob]) -> int:
    """Accelerators in use at most where no job waits."""
    return max(level for _, level in _levels(jobs))


def bound_without_waiting(jobs: Sequence[CapacityJob], reserved_price: float) -> float:
    """No reservation has a lower price where no job waits, even if gangs could be split between reserved and on demand:
    another accelerator pays as long as more than `reserved_price` of the time would use it.
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
        # Every accelerator up to this level is in use for `busy_h` at least.
        reserved = level
        busy_h -= lengths[level]
    work = sum(hours * level for hours, level in levels)
    on_demand = sum(hours * max(0, level - reserved) for hours, level in levels)
    return (reserved_price * reserved * span_h + on_demand) / work


def _levels(jobs: Sequence[CapacityJob]) -> list[tuple[float, int]]:
    """(hours, accelerators in use) from the first arrival to the last end, where no job waits."""
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
    """Arrivals and services per unit of time."""

    arrivals: float
    services: float

    @property
    def offered(self) -> float:
        """Servers that would be busy in the mean were there always one free."""
        return self.arrivals / self.services


def erlang_b(servers: int, offered: float) -> float:
    """Chance that an arrival finds every server busy, where none waits."""
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = offered * blocked / (number + offered * blocked)
    return blocked


def erlang_c(servers: int, offered: float) -> float:
    """Chance that an arrival has to wait, where all do; 1 where the servers are too few."""
    if offered >= servers:
        return 1.0
    blocked = erlang_b(servers, offered)
    return blocked / (1.0 - offered / servers * (1.0 - blocked))


@dataclass(frozen=True, slots=True)
class ReservedServers:
    """What a number of reserved servers comes to."""

    servers: int
    #: Per unit of work, on demand being 1.
    price: float
    #: Part of the jobs that goes on demand.
    on_demand: float
    #: Mean wait, in the unit of time of the rates.
    wait: float


def reserve_without_waiting(load: QueueLoad, reserved_price: float) -> ReservedServers:
    """The best number of servers where a job that finds none free goes on demand.

    The last server that pays is busy for more than `reserved_price` of the time.
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
    """What a number of servers costs where every job waits for one; they must be more than the offered load."""
    if servers <= load.offered:
        raise ValueError(f"{servers} servers never catch up with an offered load of {load.offered:g}")
    wait = erlang_c(servers, load.offered) / (servers * load.services - load.arrivals)
    return ReservedServers(servers, reserved_price * servers / load.offered, 0.0, wait)


def reserve_for_long_jobs(load: QueueLoad, reserved_price: float, servers: int, shortest: float) -> ReservedServers:
    """Jobs shorter than `shortest` go on demand at once; the others wait. Lengths beyond it keep no memory.

    A wait by the two-moment approximation: the long jobs' lengths vary less than exponential ones.
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
