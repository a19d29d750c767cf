"""`walras plan collection`: the cheapest plan for several jobs within a time, or the fastest within a budget.

    minimise  sum usd_per_h[k] h[m, k]     or     S
    s.t.      sum_k rate[m, k] h[m, k] >= work[m]        each job is done
              sum_k h[m, k] <= S                          a job is on one machine at a time
              sum_m h[m, k] <= machines[k] S              a type has so many machines
              sum usd_per_h[k] h[m, k] <= budget          where one is given

h[m, k] are the hours of job m on machine type k, and S is the makespan in hours (DISPA, 2020). With hours as variables
both problems are linear programs; with shares of time, as published, S needs a search. The program is exact where a job
may move at no cost, because hours that satisfy these rows always fit into S (Gonzalez and Sahni, 1976). Its value is
therefore a lower bound for every plan while prices do not change. In a `StationaryPlan` each job keeps one machine, and
`over_bound` says by what factor such a plan may be above the best plan without moves.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from walras.contract import SECONDS_PER_HOUR
from walras.errors import UserError
from walras.units import format_length, format_money

FloatArray = NDArray[np.float64]

#: A plan fits if it exceeds the time or the budget by less than this part; a search on time stops at this precision.
_ROUNDING = 1e-9
_NEAR = 1e-4


@dataclass(frozen=True, slots=True)
class MachineTypeOffer:
    """Machines of one type: how many there are, and the price of each."""

    name: str
    usd_per_h: float
    machines: int


@dataclass(frozen=True, slots=True, eq=False)
class JobCollection:
    """Jobs, and the speed of each on each machine type."""

    offers: tuple[MachineTypeOffer, ...]
    #: Steps left of each job (m,); and steps per hour, 0 where the job cannot run on the type (m, k).
    work: FloatArray
    rate: FloatArray

    def __post_init__(self) -> None:
        if self.rate.shape != (len(self.work), len(self.offers)):
            raise ValueError("a collection needs a rate for every job and offer")
        if not (np.isfinite(self.rate).all() and (self.rate >= 0).all() and (self.work > 0).all()):
            raise ValueError("work must be above 0, rates finite and not negative")

    @property
    def usd_per_h(self) -> FloatArray:
        """USD per machine-hour of each type (k,)."""
        return np.array([offer.usd_per_h for offer in self.offers])

    @property
    def machines(self) -> FloatArray:
        """Number of machines of each type (k,)."""
        return np.array([float(offer.machines) for offer in self.offers])


@dataclass(frozen=True, slots=True, eq=False)
class FractionalPlan:
    """The optimal plan if moves are free: no other plan is cheaper (or faster, if time was minimised)."""

    usd: float
    #: The makespan: the hours fit into it.
    time_h: float
    #: Hours of each job on each type (m, k).
    hours: FloatArray


@dataclass(frozen=True, slots=True)
class StationaryPlan:
    """A plan in which each job keeps the machine on which it starts."""

    usd: float
    #: Hours until the last job ends.
    time_h: float
    #: The type of each job, and the index of its machine within the type.
    offer: tuple[int, ...]
    machine: tuple[int, ...]
    #: Cost (or time, if time was minimised) over the lower bound of all plans without moves; 1 is optimal.
    over: float


def least_cost(given: JobCollection, within_h: float) -> FractionalPlan | None:
    """Returns the cheapest plan that finishes all jobs within a time (hours); None if no plan does."""
    return _solve(given, within_h=within_h, budget_usd=np.inf)


def least_time(given: JobCollection, budget_usd: float) -> FractionalPlan | None:
    """Returns the fastest plan within a budget (USD); None if no amount of time makes the budget sufficient."""
    return _solve(given, within_h=None, budget_usd=budget_usd)


def _solve(given: JobCollection, within_h: float | None, budget_usd: float) -> FractionalPlan | None:
    """Solves the linear program of the module: the variables are the hours of each job, then the makespan.

    Without `within_h` the makespan is minimised, otherwise the cost. Returns None if no plan is feasible.
    """
    jobs, kinds = given.rate.shape
    usd = np.tile(given.usd_per_h, jobs)
    done = sparse.block_diag([-row[None, :] for row in given.rate / given.work[:, None]])
    alone = sparse.kron(sparse.identity(jobs), np.ones((1, kinds)))
    shared = sparse.kron(np.ones((1, jobs)), sparse.identity(kinds))
    rows = [
        [done, np.zeros((jobs, 1))],
        [alone, -np.ones((jobs, 1))],
        [shared, -given.machines[:, None]],
    ]
    upper = [-np.ones(jobs), np.zeros(jobs + kinds)]
    if np.isfinite(budget_usd):
        rows.append([usd[None, :], np.zeros((1, 1))])
        upper.append(np.array([budget_usd]))
    cost = np.append(usd, 0.0) if within_h is not None else np.append(np.zeros(jobs * kinds), 1.0)
    most = [(0.0, None if rate else 0.0) for rate in given.rate.ravel()]
    time = (0.0, None) if within_h is None else (within_h, within_h)
    found = linprog(cost, sparse.bmat(rows, format="csr"), np.concatenate(upper), bounds=[*most, time], method="highs")
    if found.status != 0:
        return None
    hours = found.x[:-1].reshape(jobs, kinds)
    return FractionalPlan(float(usd @ found.x[:-1]), float(found.x[-1]), hours)


def cheapest_stationary_plan(given: JobCollection, within_h: float) -> StationaryPlan | None:
    """Places the longest jobs first, each on the cheapest type that still has room for it; None if a job finds no room.

    The lower bound excludes types on which a job alone would exceed the time, so no plan without moves is below it.
    None does not prove that no plan exists, except where the linear program of the bound is infeasible as well.
    """
    whole = _whole(given, within_h)
    bound, found = least_cost(whole, within_h), _packed(whole, within_h)
    return (
        None
        if bound is None or found is None
        else _stationary_plan(given, found, lambda usd, _: usd / bound.usd if bound.usd else 1.0)
    )


def soonest_stationary_plan(given: JobCollection, budget_usd: float) -> StationaryPlan | None:
    """Bisects on the makespan for the shortest at which such a plan fits the budget; None if the budget is too small.

    The bound is the makespan below which even the linear relaxation of the plans without moves exceeds the budget.
    """
    free = least_time(given, budget_usd)
    if free is None:
        return None
    # At `longest_h` each job runs on its cheapest type: if that exceeds the budget, every plan without moves does.
    longest = longest_h(given)
    most_usd = budget_usd * (1 + _ROUNDING)

    def relaxed(within_h: float) -> bool:
        found = least_cost(_whole(given, within_h), within_h)
        return found is not None and found.usd <= most_usd

    def packed(within_h: float) -> bool:
        found = _packed(_whole(given, within_h), within_h)
        return found is not None and _cost(given, found) <= most_usd

    if not packed(longest):
        return None
    bound = _between(relaxed, free.time_h, longest)[0]
    within_h = _between(packed, bound, longest)[1]
    found = _packed(_whole(given, within_h), within_h)
    assert found is not None, "the search ended where one fits"
    return _stationary_plan(given, found, over=lambda usd, time_h: time_h / bound)


def longest_h(given: JobCollection) -> float:
    """Returns hours within which every job can run on its cheapest type, even one after another on one machine."""
    return float(np.sum(given.work / _rate_of_cheapest(given)))


def _between(fits: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Bisects to two nearby times: the first does not fit (or is `low`), the second fits (as `high` must)."""
    while high - low > _NEAR * high:
        middle = (low + high) / 2
        if fits(middle):
            high = middle
        else:
            low = middle
    return low, high


def _rate_of_cheapest(given: JobCollection) -> FloatArray:
    rate: FloatArray = given.rate[np.arange(len(given.work)), _usd(given).argmin(axis=1)]
    return rate


def _usd(given: JobCollection) -> FloatArray:
    """USD of each job alone on each type, inf where it cannot run (m, k)."""
    hours = _hours(given)
    runs = np.isfinite(hours)
    usd: FloatArray = np.where(runs, given.usd_per_h * np.where(runs, hours, 0.0), np.inf)
    return usd


def _hours(given: JobCollection) -> FloatArray:
    work = np.broadcast_to(given.work[:, None], given.rate.shape)
    runs = (given.rate > 0) & (given.machines > 0)
    hours: FloatArray = np.divide(work, given.rate, out=np.full(given.rate.shape, np.inf), where=runs)
    return hours


_Places = Sequence[tuple[int, int]]


def _whole(given: JobCollection, within_h: float) -> JobCollection:
    """Removes the types on which a job takes longer than `within_h`: a job that never moves cannot use them."""
    fits = _hours(given) <= within_h * (1 + _ROUNDING)
    return replace(given, rate=np.where(fits, given.rate, 0.0))


def _cost(given: JobCollection, places: _Places) -> float:
    usd = _usd(given)
    return float(sum(usd[job, kind] for job, (kind, _) in enumerate(places)))


def _packed(given: JobCollection, within_h: float) -> _Places | None:
    """First fit, jobs that are long on their cheapest type first. Returns the type and machine of each job, or None."""
    hours, usd = _hours(given), _usd(given)
    shortest = hours[np.arange(len(usd)), usd.argmin(axis=1)]
    free = [np.full(offer.machines, within_h) for offer in given.offers]
    places: list[tuple[int, int]] = [(-1, -1)] * len(usd)
    for job in np.argsort(-shortest, kind="stable"):
        for kind in np.argsort(usd[job], kind="stable"):
            fitting = np.flatnonzero(free[kind] + _ROUNDING * within_h >= hours[job, kind])
            if len(fitting):
                free[kind][fitting[0]] -= hours[job, kind]
                places[job] = int(kind), int(fitting[0])
                break
        else:
            return None
    return places


def _stationary_plan(given: JobCollection, places: _Places, over: Callable[[float, float], float]) -> StationaryPlan:
    hours = _hours(given)
    busy: dict[tuple[int, int], float] = {}
    for job, place in enumerate(places):
        busy[place] = busy.get(place, 0.0) + float(hours[job, place[0]])
    usd, time_h = _cost(given, places), max(busy.values(), default=0.0)
    kinds, machines = zip(*places, strict=True) if places else ((), ())
    return StationaryPlan(usd, time_h, kinds, machines, over(usd, time_h))


@dataclass(frozen=True, slots=True)
class CollectionJob:
    """One job: its steps, and its steps per second by the name of a machine type."""

    name: str
    steps: float
    steps_per_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CollectionPlacement:
    """The machine on which a job runs from start to end, and when."""

    job: str
    machine_type: str
    #: Index of the machine within its type, from 0.
    machine: int
    starts_h: float
    hours: float
    usd: float


@dataclass(frozen=True, slots=True)
class PlanTotals:
    """Cost (USD) and time of a plan or of a bound; None where the bound says nothing of one of them."""

    name: str
    usd: float | None
    time_h: float | None


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """The requested plan, its alternatives, and lower bounds of the quantity that was minimised."""

    plan: PlanTotals
    others: tuple[PlanTotals, ...]
    bounds: tuple[PlanTotals, ...]
    #: The minimised quantity over the lower bound of all plans without moves, less 1.
    above_bound: float
    jobs: tuple[CollectionPlacement, ...]


def make_collection_plan(
    offers: Sequence[MachineTypeOffer],
    jobs: Sequence[CollectionJob],
    *,
    within_h: float | None,
    budget_usd: float | None,
) -> CollectionPlan:
    """Minimises cost within a time, or time within a budget: the caller gives exactly one of the two.

    Raises:
        UserError: no plan is known; the message names the least time or budget with which one is.
    """
    rates = [[job.steps_per_s.get(offer.name, 0.0) * SECONDS_PER_HOUR for offer in offers] for job in jobs]
    given = JobCollection(tuple(offers), np.array([job.steps for job in jobs]), np.array(rates))
    fastest, leisurely = soonest_stationary_plan(given, inf), cheapest_stationary_plan(given, longest_h(given))
    assert fastest is not None, "every job can run somewhere, and money is no matter"
    assert leisurely is not None, "one after another all jobs fit"
    cheapest = soonest_stationary_plan(given, leisurely.usd) or leisurely
    if within_h is not None:
        found, free = cheapest_stationary_plan(given, within_h), least_cost(given, within_h)
        if found is None or free is None:
            raise _too_short(within_h, fastest, free)
        bounds = _bounds("usd", found.usd / found.over, free)
        found = _as_cheap_but_sooner(given, found)
    else:
        assert budget_usd is not None, "a deadline or a budget"
        found, free = soonest_stationary_plan(given, budget_usd), least_time(given, budget_usd)
        if found is None or free is None:
            raise UserError(
                f"{format_money(budget_usd)} are too little: on its cheapest machine each, all jobs cost "
                f"{format_money(cheapest.usd)}",
                field="--budget",
                fix=f"at least {ceil(100 * cheapest.usd) / 100:.2f}",
            )
        bounds = _bounds("time_h", found.time_h / found.over, free)
    others = (
        PlanTotals("fastest at any price", fastest.usd, fastest.time_h),
        PlanTotals("cheapest at any time", cheapest.usd, cheapest.time_h),
    )
    placed = tuple(_placements(given, [job.name for job in jobs], found))
    return CollectionPlan(PlanTotals("plan", found.usd, found.time_h), others, bounds, found.over - 1, placed)


def _as_cheap_but_sooner(given: JobCollection, found: StationaryPlan) -> StationaryPlan:
    """Shortens a plan made for a deadline, which fills machine after machine: the same money may need less time."""
    sooner = soonest_stationary_plan(given, found.usd)
    if sooner is None or sooner.time_h >= found.time_h:
        return found
    return replace(sooner, over=found.over * sooner.usd / found.usd if found.usd else found.over)


def _too_short(within_h: float, fastest: StationaryPlan, free: FractionalPlan | None) -> UserError:
    limit = format_length(within_h * SECONDS_PER_HOUR)
    outcome = "cannot all be done" if free is None else "fit no plan that was found"
    return UserError(
        f"the jobs {outcome} within {limit}; the fastest plan takes {format_length(fastest.time_h * SECONDS_PER_HOUR)}",
        field="--deadline",
        fix="give a longer deadline, or more machines",
    )


def _bounds(minimised: str, without_moves: float, free: FractionalPlan) -> tuple[PlanTotals, ...]:
    """Returns two lower bounds: one for plans without moves, and one for all plans (moves are free)."""
    if minimised == "usd":
        return PlanTotals("no job moves", without_moves, None), PlanTotals("moves are free", free.usd, None)
    return PlanTotals("no job moves", None, without_moves), PlanTotals("moves are free", None, free.time_h)


def _placements(given: JobCollection, names: Sequence[str], found: StationaryPlan) -> list[CollectionPlacement]:
    """Returns placements in the order of the file; jobs on one machine follow each other in that order."""
    ends_h: dict[tuple[int, int], float] = {}
    placed = []
    for job, place in enumerate(zip(found.offer, found.machine, strict=True)):
        kind, machine = place
        hours = float(given.work[job] / given.rate[job, kind])
        starts_h = ends_h.get(place, 0.0)
        ends_h[place] = starts_h + hours
        offer = given.offers[kind]
        placed.append(CollectionPlacement(names[job], offer.name, machine, starts_h, hours, hours * offer.usd_per_h))
    return placed
