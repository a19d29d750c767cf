"""Online admission: each job on arrival books its best schedule at the current prices, or is turned away for good.

    s* = argmax_s U(s) - k(gamma) . y(s);   payoff > 0: admit, mu = payoff, gamma += y(s*), prices follow; else mu = 0
    k(gamma) = L * (U / L) ^ (gamma / (sigma * c))        price of one accelerator of a slot, gamma of c booked

L (the floor) lets the first jobs in, U (the ceiling) keeps the last ones out: at gamma = sigma * c the price has
reached the most that the slot can be worth to any job. sigma = 1 - delta, with delta the largest part of a slot that
one job takes, is what the proof needs: a job that would overbook finds gamma > (1 - delta) c, and can only lose. sigma
= 1 is what serves better: more is sold before prices forbid it, and capacity is checked instead of proved.

What is promised, and proved in docs/hadar.md:

- any prices bound the optimum, whoever made them: D(k) = sum_j max(0, max_s [U_j(s) - k.y(s)]) + c.k >= OPT; - the
dual grows by at most alpha times the value: D - D_0 <= alpha P; - where the dual is feasible (always, on the provable
curve), OPT <= 2 alpha P.

The promise is about utilities of bookings that are kept to their end. It says nothing about completion times, nor
about schedulers that decide anew every round.

It is compared with the offline optimum, which knows all arrivals: a packing of schedules, for instances of a few
rounds. All schedules are listed, so the size is exponential in the rounds.

No command reaches this module yet: tests and benchmarks hold it to its proof until the scheduler admits jobs by it.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import expm1

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from optimizer.assignment.admission_schedules import (
    AdmissionInstance,
    Applicant,
    BookedSchedule,
    best_schedule,
    every_schedule,
    options_of,
    slot_values_of,
)
from optimizer.problem import FloatArray, IntArray


class PriceSaturation(StrEnum):
    """The booked part of a slot at which its price reaches the ceiling."""

    #: When the slot is full: the plain curve, with an explicit check of capacity.
    FULL = "full"
    #: When the largest job might not fit any more: the curve of the theorem.
    PROVABLE = "provable"


@dataclass(frozen=True, slots=True, eq=False)
class PriceCurve:
    """The prices of all slots as functions of what is booked (R rounds, p pools)."""

    capacity: FloatArray
    #: L, one for all slots: half the best single utility is spread over all slots, so D_0 <= OPT / 2.
    floor: float
    #: U, at least the floor (R, p).
    ceiling: FloatArray
    #: sigma: the booked part of a slot at which its price is the ceiling.
    sigma: float
    #: delta: the largest part of a slot that one job can take.
    delta: float
    #: ln(U / L) (R, p), computed once.
    steepness: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steepness", np.log(self.ceiling / self.floor))

    def prices(self, booked: IntArray) -> FloatArray:
        """Returns the price of one accelerator of each slot (R, p) when so many are booked (R, p)."""
        prices: FloatArray = self.floor * np.exp(self.steepness * booked / (self.sigma * self.capacity))
        return prices

    @property
    def initial_dual(self) -> float:
        """D_0, the dual value when all slots have the floor as their price."""
        return float(self.floor * self.capacity.sum() * len(self.ceiling))

    @property
    def alpha(self) -> float:
        """The most that one unit of value adds to the dual: alpha = (e^(b delta) - 1) / delta, b = max ln(U/L) /
        sigma.
        """
        steepest = float(self.steepness.max()) / self.sigma
        return max(1.0, expm1(steepest * self.delta) / self.delta)

    @property
    def alpha_of_dust(self) -> float:
        """What alpha would be if jobs were infinitely small against every slot: ln(U/L)."""
        return max(1.0, float(self.steepness.max()))


def price_curve_of(instance: AdmissionInstance, saturation: PriceSaturation) -> PriceCurve | None:
    """Returns the curve for the jobs that may come; None where none of them has a schedule.

    The bounds L and U are taken from all applicants: an online algorithm has to know (or guess) such bounds
    beforehand.

    Raises:
        ValueError: a gang may fill a whole pool, so the provable curve does not exist.
    """
    free = np.zeros((instance.rounds, len(instance.capacity)))
    alone = max((best_schedule(instance, job, free).payoff for job in instance.applicants), default=-np.inf)
    if alone <= 0:
        return None
    capacity = np.array(instance.capacity, dtype=np.float64)
    uses = [options_of(instance, job).use for job in instance.applicants]
    delta = float(max((use / capacity).max() for use in uses if len(use)))
    if saturation is PriceSaturation.PROVABLE and delta >= 1:
        raise ValueError("a gang may fill a whole pool: the provable curve needs gangs smaller than every pool")
    floor = alone / (2 * capacity.sum() * instance.rounds)
    worth = np.max([slot_values_of(instance, job) for job in instance.applicants], axis=0)
    sigma = 1.0 if saturation is PriceSaturation.FULL else 1.0 - delta
    return PriceCurve(capacity, floor, np.maximum(worth, floor), sigma, delta)


#: Net utilities, and violations of the dual, below this part of a utility count as rounding.
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class AdmittedJob:
    """A job that was admitted, with its booking."""

    applicant: Applicant
    schedule: BookedSchedule
    #: Utility minus price at its admission, > 0.
    payoff: float


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionProof:
    """What an admission is worth, and an upper bound on any other."""

    #: P: the sum of the utilities of admitted jobs.
    value: float
    #: D(k) at the final prices: no set of schedules within capacity is worth more.
    bound: float
    #: D_0 and D: the dual value at the start, and that of the algorithm's own multipliers and prices at the end.
    initial_dual: float
    final_dual: float
    alpha: float
    alpha_of_dust: float
    #: Whether the algorithm's own multipliers and final prices are feasible for the dual.
    dual_feasible: bool
    #: 2 alpha where the dual is feasible: the optimum is proved to be at most that times the value. None where nothing
    #: is proved.
    ratio: float | None


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionRun:
    """The result of a whole run."""

    admitted: tuple[AdmittedJob, ...]
    #: Accelerators booked in each slot, and their price at the end (R, p).
    booked: IntArray
    prices: FloatArray
    proof: AdmissionProof


def admit_online(instance: AdmissionInstance, saturation: PriceSaturation = PriceSaturation.FULL) -> AdmissionRun:
    """Admits or refuses all applicants in their order of arrival, and returns the bookings with their proof.

    Raises:
        ValueError: the provable curve is asked for and a gang may fill a whole pool.
    """
    curve = price_curve_of(instance, saturation)
    booked = np.zeros((instance.rounds, len(instance.capacity)), dtype=np.int64)
    if curve is None:
        return AdmissionRun((), booked, np.zeros(booked.shape), AdmissionProof(0.0, 0.0, 0.0, 0.0, 1.0, 1.0, True, 2.0))
    capacity = np.array(instance.capacity)
    admitted = []
    for job in instance.in_order():
        free = capacity - booked if saturation is PriceSaturation.FULL else None
        choice = best_schedule(instance, job, curve.prices(booked), free)
        if choice.schedule is None or choice.payoff <= _NOTHING * choice.schedule.utility:
            continue
        booked = booked + choice.schedule.use
        assert (booked <= capacity).all(), f"job {job.job_id} overbooks: prices were to prevent that"
        admitted.append(AdmittedJob(job, choice.schedule, choice.payoff))
    return AdmissionRun(tuple(admitted), booked, curve.prices(booked), _proved(instance, curve, admitted, booked))


def _proved(
    instance: AdmissionInstance, curve: PriceCurve, admitted: list[AdmittedJob], booked: IntArray
) -> AdmissionProof:
    prices = curve.prices(booked)
    value = sum(entry.schedule.utility for entry in admitted)
    slots = float((prices * curve.capacity).sum())
    payoff = {entry.applicant.job_id: entry.payoff for entry in admitted}
    # The most that each job could still gain at the final prices, whether or not its schedule would fit.
    gain = {job.job_id: max(0.0, best_schedule(instance, job, prices).payoff) for job in instance.applicants}
    bound = slots + sum(gain.values())
    feasible = all(most <= payoff.get(job_id, 0.0) + _NOTHING for job_id, most in gain.items())
    final, alpha = slots + sum(payoff.values()), curve.alpha
    assert value <= bound * (1 + _NOTHING), f"weak duality: {value} is above the bound {bound}"
    assert final - curve.initial_dual <= alpha * value * (1 + _NOTHING) + _NOTHING, "the dual outgrew alpha x value"
    return AdmissionProof(
        value=value,
        bound=bound,
        initial_dual=curve.initial_dual,
        final_dual=final,
        alpha=alpha,
        alpha_of_dust=curve.alpha_of_dust,
        dual_feasible=feasible,
        ratio=2 * alpha if feasible else None,
    )


@dataclass(frozen=True, slots=True)
class OfflineOptimum:
    """The largest sum of utilities."""

    #: The best sum of schedules that fit, and an upper bound on any such sum: equal to within the gap asked for.
    value: float
    bound: float
    #: The optimum over fractions of schedules.
    relaxed: float


def offline_optimum(instance: AdmissionInstance, gap: float = 1e-4) -> OfflineOptimum:
    """Returns the optimum of max sum U z, at most one schedule per job within every slot's capacity, to a relative
    `gap`.
    """
    worth, owner, use = [], [], []
    for row, job in enumerate(instance.applicants):
        for schedule in _undominated(list(every_schedule(instance, job))):
            worth.append(schedule.utility)
            owner.append(row)
            use.append(schedule.use.ravel())
    if not worth:
        return OfflineOptimum(0.0, 0.0, 0.0)
    once = sparse.csr_array((np.ones(len(owner)), (owner, np.arange(len(owner)))))
    slots = sparse.csr_array(np.array(use, dtype=np.float64).T)
    limits = np.concatenate([np.ones(once.shape[0]), np.tile(instance.capacity, instance.rounds)])
    rows = LinearConstraint(sparse.vstack([once, slots]).tocsc(), ub=limits)
    value, bound = _most(np.array(worth), rows, gap)
    return OfflineOptimum(value, bound, _most(np.array(worth), rows, None)[1])


def _undominated(schedules: list[BookedSchedule]) -> list[BookedSchedule]:
    """Returns the schedules without those that another dominates: worth no less, and holding no more in any slot."""
    schedules.sort(key=lambda schedule: (schedule.use.sum(), -schedule.utility))
    kept: list[BookedSchedule] = []
    uses = np.zeros((len(schedules), schedules[0].use.size if schedules else 0), dtype=np.int64)
    worth = np.zeros(len(schedules))
    for schedule in schedules:
        use, count = schedule.use.ravel(), len(kept)
        if not ((uses[:count] <= use).all(axis=1) & (worth[:count] >= schedule.utility)).any():
            uses[count], worth[count] = use, schedule.utility
            kept.append(schedule)
    return kept


def _most(worth: FloatArray, rows: LinearConstraint, gap: float | None) -> tuple[float, float]:
    """Returns the best sum found and a bound on it: over whole schedules to within the gap, over fractions where `gap`
    is None.
    """
    options = {} if gap is None else {"mip_rel_gap": gap}
    whole = np.full(len(worth), gap is not None)
    found = milp(-worth, constraints=rows, integrality=whole, bounds=Bounds(0, 1), options=options)
    assert found.success, found.message
    return float(-found.fun), float(-(found.fun if gap is None else found.mip_dual_bound))
