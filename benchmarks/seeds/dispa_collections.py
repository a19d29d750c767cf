"""The cheapest plan for several jobs within a time, or the fastest within a budget (DISPA, 2020).

    minimise  sum usd_per_h[k] h[m, k]     or     S
    s.t.      sum_k rate[m, k] h[m, k] >= work[m]        each job is done
              sum_k h[m, k] <= S                          a job is on one machine at a time
              sum_m h[m, k] <= machines[k] S              a type has so many machines
              sum usd_per_h[k] h[m, k] <= budget          where one is given

h[m, k] are the hours of job m on machine type k, and S is the makespan in hours. With hours as variables
both problems are linear programs; with shares of time, as published, S needs a search. The program is exact where a job
may move at no cost, because hours that satisfy these rows always fit into S (Gonzalez and Sahni, 1976). Its value is
therefore a lower bound for every plan while prices do not change. In a `StationaryPlan` each job keeps one machine, and
`over_bound` says by what factor such a plan may be above the best plan without moves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

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
