"""How many servers to reserve when jobs may wait or go on demand: closed forms (Ambati and others, SC'20).

Jobs arrive at `arrivals` per unit of time and are served at `services` per busy server (Poisson, exponential); an hour
on demand costs 1, a reserved one `reserved_price` whether used or not. Prices are per unit of work done.
"""

from dataclasses import dataclass
from math import exp


@dataclass(frozen=True, slots=True)
class Load:
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
class Reserving:
    """What a number of reserved servers comes to."""

    servers: int
    #: Per unit of work, on demand being 1.
    price: float
    #: Part of the jobs that goes on demand.
    on_demand: float
    #: Mean wait, in the unit of time of the rates.
    wait: float


def reserve_without_waiting(load: Load, reserved_price: float) -> Reserving:
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
    return Reserving(servers, price, blocked, 0.0)


def reserve_with_waiting(load: Load, reserved_price: float, servers: int) -> Reserving:
    """What a number of servers costs where every job waits for one; they must be more than the offered load."""
    if servers <= load.offered:
        raise ValueError(f"{servers} servers never catch up with an offered load of {load.offered:g}")
    wait = erlang_c(servers, load.offered) / (servers * load.services - load.arrivals)
    return Reserving(servers, reserved_price * servers / load.offered, 0.0, wait)


def reserve_for_long_jobs(load: Load, reserved_price: float, servers: int, shortest: float) -> Reserving:
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
    return Reserving(servers, price, 1.0 - exp(-load.services * shortest), wait)
