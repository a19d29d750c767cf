"""Online admission: each job on arrival books its best schedule at the current prices, or is turned away for good.

    s* = argmax_s U(s) - k(gamma) . y(s);   payoff > 0: admit, mu = payoff, gamma += y(s*), prices follow; else mu = 0

What is promised, and proved in docs/hadar.md:

- any prices bound the optimum, whoever made them: D(k) = sum_j max(0, max_s [U_j(s) - k.y(s)]) + c.k >= OPT;
- the dual grows by at most alpha times the value: D - D_0 <= alpha P;
- where the dual is feasible (always, on the provable curve), OPT <= 2 alpha P.

The promise is about utilities of bookings that are kept to their end. It says nothing about completion times, nor about
schedulers that decide anew every round.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.admission.curve import Curve, Saturation, curve_of
from optimizer.admission.instance import Applicant, Instance, Schedule
from optimizer.admission.schedules import best_schedule
from optimizer.problem import FloatArray, IntArray

#: Payoffs, and violations of the dual, below this part of a utility are rounding.
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """One job that was let in, and its booking."""

    applicant: Applicant
    schedule: Schedule
    #: What it gained beyond the price on admission, > 0.
    payoff: float


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """What an admission is worth, and what no other can be worth more than."""

    #: P: the sum of utilities of those admitted.
    value: float
    #: D(k) at the final prices: no set of schedules within capacity is worth more.
    bound: float
    #: D_0 and D: the dual at the start, and what the algorithm's own multipliers and prices make of it at the end.
    initial_dual: float
    final_dual: float
    alpha: float
    alpha_of_dust: float
    #: Whether the algorithm's own multipliers and final prices are feasible for the dual.
    dual_feasible: bool
    #: 2 alpha where the dual is feasible: the optimum is proved to be at most that times the value. None: no promise.
    ratio: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """A whole run."""

    admitted: tuple[Admitted, ...]
    #: Accelerators booked, and their price in the end (R, p).
    booked: IntArray
    prices: FloatArray
    proof: Proof


def admit(instance: Instance, saturation: Saturation = Saturation.FULL) -> Admission:
    """Judge all applicants in their order of arrival.

    Raises:
        ValueError: the provable curve is asked for and a gang may fill a whole pool.
    """
    curve = curve_of(instance, saturation)
    booked = np.zeros((instance.rounds, len(instance.capacity)), dtype=np.int64)
    if curve is None:
        return Admission((), booked, np.zeros(booked.shape), Proof(0.0, 0.0, 0.0, 0.0, 1.0, 1.0, True, 2.0))
    capacity = np.array(instance.capacity)
    admitted = []
    for job in instance.in_order():
        free = capacity - booked if saturation is Saturation.FULL else None
        choice = best_schedule(instance, job, curve.prices(booked), free)
        if choice.schedule is None or choice.payoff <= _NOTHING * choice.schedule.utility:
            continue
        booked = booked + choice.schedule.use
        assert (booked <= capacity).all(), f"job {job.job_id} overbooks: prices were to prevent that"
        admitted.append(Admitted(job, choice.schedule, choice.payoff))
    return Admission(tuple(admitted), booked, curve.prices(booked), _proved(instance, curve, admitted, booked))


def _proved(instance: Instance, curve: Curve, admitted: list[Admitted], booked: IntArray) -> Proof:
    prices = curve.prices(booked)
    value = sum(entry.schedule.utility for entry in admitted)
    slots = float((prices * curve.capacity).sum())
    payoff = {entry.applicant.job_id: entry.payoff for entry in admitted}
    # What each job could still gain, whether or not its schedule would fit.
    gain = {job.job_id: max(0.0, best_schedule(instance, job, prices).payoff) for job in instance.applicants}
    bound = slots + sum(gain.values())
    feasible = all(most <= payoff.get(job_id, 0.0) + _NOTHING for job_id, most in gain.items())
    final, alpha = slots + sum(payoff.values()), curve.alpha
    assert value <= bound * (1 + _NOTHING), f"weak duality: {value} is above the bound {bound}"
    assert final - curve.initial_dual <= alpha * value * (1 + _NOTHING) + _NOTHING, "the dual outgrew alpha x value"
    return Proof(
        value=value,
        bound=bound,
        initial_dual=curve.initial_dual,
        final_dual=final,
        alpha=alpha,
        alpha_of_dust=curve.alpha_of_dust,
        dual_feasible=feasible,
        ratio=2 * alpha if feasible else None,
    )
