"""`walras plan capacity`: what to reserve for a trace, or for jobs that arrive at a rate, beside what nobody can beat.

For a trace the plans are simulated (`scheduler.cloud.capacity`); for rates they are closed forms of jobs that are all
alike and memoryless (`scheduler.cloud.waiting_game`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scheduler.cloud.capacity import (
    Defection,
    Demand,
    Reservation,
    Terms,
    bound_without_waiting,
    cheapest_reservation,
    fewest_alone,
    let_users_leave,
    reserve,
)
from scheduler.cloud.waiting_game import (
    Load,
    Reserving,
    erlang_c,
    reserve_for_long_jobs,
    reserve_with_waiting,
    reserve_without_waiting,
)
from simulator.workloads.formats import read_workload
from simulator.workloads.job import TraceJob
from walras.errors import ConfigError, UserError

_MOST_JOBS = 200_000
_LARGEST_LOAD = 100_000.0
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to reserve. Prices are per accelerator-hour of work, an hour on demand being 1; None: not known."""

    name: str
    accelerators: int
    price: float
    reserved_work_price: float | None
    on_demand: float
    mean_wait_h: float
    longest_wait_h: float | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """A price that no plan of that kind can go below."""

    name: str
    price: float


@dataclass(frozen=True, slots=True)
class CapacityPlans:
    """Plans, dearest kind first, and what they are measured by."""

    plans: tuple[Plan, ...]
    bounds: tuple[Bound, ...]
    #: None: who would leave is not known.
    defection: Defection | None = None


def plans_for_trace(path: Path, terms: Terms, leave_above: float, accelerators: int | None) -> CapacityPlans:
    """Plans for the jobs of a trace file; `accelerators`: for just this number reserved. Raises ConfigError."""
    jobs = demands(path)
    plans = [_simulated("all on demand", reserve(jobs, 0, terms))]
    if accelerators is not None:
        plans.append(_simulated("as given", reserve(jobs, accelerators, terms)))
        return CapacityPlans(tuple(plans), _bounds(jobs, terms))
    patient = Terms(terms.reserved_price, terms.longest_wait_h, lot=terms.lot)
    plans.append(_simulated("nobody waits", cheapest_reservation(jobs, Terms(terms.reserved_price, lot=terms.lot))))
    if terms.longest_wait_h > 0:
        plans.append(_simulated("all may wait", cheapest_reservation(jobs, patient)))
        if terms.short_h > 0:
            plans.append(_simulated("long jobs may wait", cheapest_reservation(jobs, terms)))
    if (alone := fewest_alone(jobs, patient)) is not None:
        plans.append(_simulated("reserved alone", alone))
    left = let_users_leave(jobs, terms, leave_above) if terms.longest_wait_h > 0 else None
    return CapacityPlans(tuple(plans), _bounds(jobs, terms), left)


def plans_for_rates(arrivals_per_h: float, length_h: float, terms: Terms) -> CapacityPlans:
    """Plans for single-accelerator jobs that arrive at random at a rate, of random lengths with a mean.

    Raises UserError where the load is beyond reason.
    """
    load = Load(arrivals_per_h, 1.0 / length_h)
    if load.offered > _LARGEST_LOAD:
        raise UserError(f"a mean of {load.offered:g} accelerators in use is too many", fix=f"at most {_LARGEST_LOAD:g}")
    price = terms.reserved_price
    best = reserve_without_waiting(load, price)
    plans = [Plan("all on demand", 0, 1.0, None, 1.0, 0.0), _closed("nobody waits", load, best, price)]
    if terms.longest_wait_h > 0:
        servers = _fewest(load, terms.longest_wait_h)
        plans.append(_closed("all wait", load, reserve_with_waiting(load, price, servers), price))
        if terms.short_h > 0:
            kept = next(found for found in _for_long_jobs(load, terms) if found.wait <= terms.longest_wait_h)
            plans.append(_closed("long jobs wait", load, kept, price))
    bounds = (Bound("nobody waits: the optimum of this model", best.price), Bound("every reserved hour used", price))
    return CapacityPlans(tuple(plans), bounds)


def demands(path: Path) -> list[Demand]:
    """The jobs of a trace, as what they take and for how long: on the fastest type, where several are stated. Where no
    user is named, the project pays.

    Raises ConfigError for a trace without lengths, or with too many jobs.
    """
    trace = read_workload(path)
    if len(trace.jobs) > _MOST_JOBS:
        raise ConfigError(f"{path}: {len(trace.jobs)} jobs are too many", fix=f"plan for at most {_MOST_JOBS}")
    found = [Demand(job.at / _HOUR_S, _length_h(path, job), job.gang, job.user or job.project) for job in trace.jobs]
    return [job for job in found if job.length_h > 0]


def _length_h(path: Path, job: TraceJob) -> float:
    if job.duration_s is not None:
        return job.duration_s / _HOUR_S
    if job.steps is not None and job.speeds:
        return job.steps / max(speed for _, speed in job.speeds) / _HOUR_S
    raise ConfigError(f"{path}: job {job.name} states no length", fix="add `duration_s`, or `steps` with speeds")


def _bounds(jobs: list[Demand], terms: Terms) -> tuple[Bound, ...]:
    split = Bound("nobody waits, gangs split", bound_without_waiting(jobs, terms.reserved_price))
    return split, Bound("every reserved hour used", terms.reserved_price)


def _simulated(name: str, found: Reservation) -> Plan:
    return Plan(
        name,
        found.accelerators,
        found.price,
        found.reserved_work_price,
        found.on_demand,
        found.mean_wait_h,
        found.longest_wait_h,
    )


def _closed(name: str, load: Load, found: Reserving, reserved_price: float) -> Plan:
    """Reserved work pays for all reserved hours."""
    busy = load.offered * (found.price - reserved_price * found.servers / load.offered)
    reserved = load.offered - busy
    own = reserved_price * found.servers / reserved if reserved > 0 else None
    return Plan(name, found.servers, found.price, own, busy / load.offered, found.wait)


def _fewest(load: Load, longest_h: float) -> int:
    """The fewest servers with a mean wait within the limit: it falls with every one more."""
    servers = int(load.offered) + 1
    while erlang_c(servers, load.offered) / (servers * load.services - load.arrivals) > longest_h:
        servers += 1
    return servers


def _for_long_jobs(load: Load, terms: Terms) -> Iterator[Reserving]:
    """More and more servers, from the fewest that keep up."""
    servers = 0
    while True:
        servers += 1
        try:
            found = reserve_for_long_jobs(load, terms.reserved_price, servers, terms.short_h)
        except ValueError:
            continue  # too few ever to catch up
        yield found
