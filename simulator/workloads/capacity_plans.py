"""`walras cloud capacity`: how many accelerators to reserve for a trace, or for jobs that arrive at a rate.

For a trace the plans are simulated; for rates they are closed forms for identical, memoryless jobs. Lower bounds on the
price are given with the plans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optimizer.planning.reserved_capacity import (
    CapacityJob,
    CapacityReservation,
    Defection,
    QueueLoad,
    ReservationTerms,
    ReservedServers,
    bound_without_waiting,
    cheapest_reservation,
    erlang_c,
    fewest_without_on_demand,
    let_users_leave,
    reserve_for_long_jobs,
    reserve_with_waiting,
    reserve_without_waiting,
    simulate_reservation,
)
from simulator.workloads.formats import read_trace
from simulator.workloads.trace_source import TraceJob
from walras.contract import SECONDS_PER_HOUR
from walras.errors import ConfigError, UserError

_MOST_JOBS = 200_000
_LARGEST_LOAD = 100_000.0


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """One way to reserve. Prices are per accelerator-hour of work, relative to the on-demand price; None: unknown."""

    name: str
    accelerators: int
    price: float
    reserved_work_price: float | None
    on_demand: float
    mean_wait_h: float
    longest_wait_h: float | None = None


@dataclass(frozen=True, slots=True)
class PriceBound:
    """A lower bound on the price of plans of one kind."""

    name: str
    price: float


@dataclass(frozen=True, slots=True)
class CapacityPlans:
    """Plans, the most expensive kind first, and the lower bounds with which they are compared."""

    plans: tuple[CapacityPlan, ...]
    bounds: tuple[PriceBound, ...]
    #: None if the defection of users is unknown.
    defection: Defection | None = None


def capacity_plans_for_trace(
    path: Path, terms: ReservationTerms, leave_above: float, accelerators: int | None
) -> CapacityPlans:
    """Returns plans for the jobs of a trace file, with `accelerators` reserved if given. Raises ConfigError."""
    return capacity_plans_for_jobs(trace_demands(path), terms, leave_above, accelerators)


def capacity_plans_for_jobs(
    jobs: Sequence[CapacityJob], terms: ReservationTerms, leave_above: float, accelerators: int | None
) -> CapacityPlans:
    """Returns plans for these jobs, given in order of arrival. Raises ValueError without jobs."""
    plans = [_simulated_plan("all on demand", simulate_reservation(jobs, 0, terms))]
    if accelerators is not None:
        plans.append(_simulated_plan("as given", simulate_reservation(jobs, accelerators, terms)))
        return CapacityPlans(tuple(plans), _price_bounds(jobs, terms))
    patient = replace(terms, short_h=0.0)
    impatient = replace(patient, longest_wait_h=0.0)
    plans.append(_simulated_plan("nobody waits", cheapest_reservation(jobs, impatient)))
    if terms.longest_wait_h > 0:
        plans.append(_simulated_plan("all may wait", cheapest_reservation(jobs, patient)))
        if terms.short_h > 0:
            plans.append(_simulated_plan("long jobs may wait", cheapest_reservation(jobs, terms)))
    if (alone := fewest_without_on_demand(jobs, patient)) is not None:
        plans.append(_simulated_plan("reserved alone", alone))
    left = let_users_leave(jobs, terms, leave_above) if terms.longest_wait_h > 0 else None
    return CapacityPlans(tuple(plans), _price_bounds(jobs, terms), left)


def capacity_plans_for_rates(arrivals_per_h: float, length_h: float, terms: ReservationTerms) -> CapacityPlans:
    """Returns plans for single-accelerator jobs with Poisson arrivals and exponential lengths.

    Raises UserError for a load above the supported one.
    """
    load = QueueLoad(arrivals_per_h, 1.0 / length_h)
    if load.offered > _LARGEST_LOAD:
        raise UserError(f"a mean of {load.offered:g} accelerators in use is too many", fix=f"at most {_LARGEST_LOAD:g}")
    price = terms.reserved_price
    best = reserve_without_waiting(load, price)
    plans = [
        CapacityPlan("all on demand", 0, 1.0, None, 1.0, 0.0),
        _closed_form_plan("nobody waits", load, best, price),
    ]
    if terms.longest_wait_h > 0:
        servers = _fewest_servers(load, terms.longest_wait_h)
        plans.append(_closed_form_plan("all wait", load, reserve_with_waiting(load, price, servers), price))
        if terms.short_h > 0:
            kept = next(
                found for found in _reservations_for_long_jobs(load, terms) if found.wait <= terms.longest_wait_h
            )
            plans.append(_closed_form_plan("long jobs wait", load, kept, price))
    bounds = (
        PriceBound("nobody waits: the optimum of this model", best.price),
        PriceBound("every reserved hour used", price),
    )
    return CapacityPlans(tuple(plans), bounds)


def trace_demands(path: Path) -> list[CapacityJob]:
    """Returns the accelerators and hours of a trace's jobs, on the fastest type if several are stated.

    The project stands for the user where no user is named. Raises ConfigError for a trace without lengths, or with too
    many jobs.
    """
    trace = read_trace(path)
    if len(trace.jobs) > _MOST_JOBS:
        raise ConfigError(f"{path}: {len(trace.jobs)} jobs are too many", fix=f"plan for at most {_MOST_JOBS}")
    found = [
        CapacityJob(job.at / SECONDS_PER_HOUR, _length_h(path, job), job.gang, job.user or job.project)
        for job in trace.jobs
    ]
    return [job for job in found if job.length_h > 0]


def _length_h(path: Path, job: TraceJob) -> float:
    if job.duration_s is not None:
        return job.duration_s / SECONDS_PER_HOUR
    if job.steps is not None and job.speeds:
        return job.steps / max(speed for _, speed in job.speeds) / SECONDS_PER_HOUR
    raise ConfigError(f"{path}: job {job.name} states no length", fix="add `duration_s`, or `steps` with speeds")


def _price_bounds(jobs: Sequence[CapacityJob], terms: ReservationTerms) -> tuple[PriceBound, ...]:
    split = PriceBound("nobody waits, gangs split", bound_without_waiting(jobs, terms.reserved_price))
    return split, PriceBound("every reserved hour used", terms.reserved_price)


def _simulated_plan(name: str, found: CapacityReservation) -> CapacityPlan:
    return CapacityPlan(
        name,
        found.accelerators,
        found.price,
        found.reserved_work_price,
        found.on_demand,
        found.mean_wait_h,
        found.longest_wait_h,
    )


def _closed_form_plan(name: str, load: QueueLoad, found: ReservedServers, reserved_price: float) -> CapacityPlan:
    """Returns the plan of a closed form; reserved work pays for all reserved hours."""
    busy = load.offered * (found.price - reserved_price * found.servers / load.offered)
    reserved = load.offered - busy
    own = reserved_price * found.servers / reserved if reserved > 0 else None
    return CapacityPlan(name, found.servers, found.price, own, busy / load.offered, found.wait)


def _fewest_servers(load: QueueLoad, longest_h: float) -> int:
    """Returns the fewest servers with a mean wait within the limit; the wait falls with their number."""
    servers = int(load.offered) + 1
    while erlang_c(servers, load.offered) / (servers * load.services - load.arrivals) > longest_h:
        servers += 1
    return servers


def _reservations_for_long_jobs(load: QueueLoad, terms: ReservationTerms) -> Iterator[ReservedServers]:
    """Generates reservations with increasing numbers of servers, from the fewest that exceed the load."""
    servers = 0
    while True:
        servers += 1
        try:
            found = reserve_for_long_jobs(load, terms.reserved_price, servers, terms.short_h)
        except ValueError:
            continue  # too few servers for the load
        yield found
