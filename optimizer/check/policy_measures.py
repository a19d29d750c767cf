"""The objective of each policy by its formula: the table against which answers are checked.

A measure gives the objective of each stage in turn, the certificate's objective and bound, and the unit in which prices
are quoted. Symbols as in `jobwise_problem`; R steps left, t time since submission, iso steps/s with 1/M of every pool,
A the time that the steps done so far would have taken at the isolated rates of their time.

A deadline asks for R / (deadline - now) steps per second. It is hopeless if it has passed, if the job's length is
unknown, or if even the job's best configuration all the time would miss it. Of the other deadlines an answer must hold
as much as can be held together: the largest sum of kept parts.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from optimizer.check.dual_bounds import (
    CheckedFinishTimes,
    CheckedLevel,
    CheckedLog,
    CheckedObjective,
    CheckedProportional,
    CheckedSum,
)
from optimizer.check.jobwise_problem import WEIGHTLESS, CheckedTree, CheckedTreeTargets, JobwiseProblem, isolated_times
from optimizer.decision import Memory, Shares
from optimizer.problem import BoolArray, FloatArray

#: A deadline whose required time exceeds all the time by less than this part can be met.
_ROUNDING = 1e-9
#: A floor missed by less than this part counts as held.
_HELD = 1e-6
#: Sums of kept parts that differ by less than this part of a job are equal.
_AS_MUCH = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class HeldDeadlines:
    """The utility that each job keeps for its deadline (n,), the rows whose deadline was relaxed, and complaints."""

    floor: FloatArray
    relaxed: tuple[int, ...]
    complaints: tuple[str, ...]


def held_deadlines(facts: JobwiseProblem, shares: Shares) -> HeldDeadlines:
    """Returns the part of the required utilities that the answer keeps."""
    needed, hopeless = _needed_utility(facts)
    stated = shares.stages[0].floor if shares.stages else np.zeros(facts.jobs)
    floor = np.minimum(needed, np.maximum(stated, 0.0))
    lowered = floor < needed * (1 - _HELD)
    reached = facts.gained(facts.utility, shares)
    relaxed = hopeless | (reached < needed * (1 - _HELD))
    floor = np.where(lowered, floor, needed)
    return HeldDeadlines(
        floor,
        tuple(int(row) for row in np.flatnonzero(relaxed)),
        tuple(_deadline_complaints(facts, needed, floor, lowered)) if lowered.any() else (),
    )


def _needed_utility(facts: JobwiseProblem) -> tuple[FloatArray, BoolArray]:
    """Returns the fair-share utility that finishes each job in time (0 without a feasible deadline); hopeless jobs
    (n,).
    """
    problem, jobs = facts.problem, facts.problem.jobs
    needed, hopeless = np.zeros(facts.jobs), np.zeros(facts.jobs, dtype=np.bool_)
    best = facts.best(facts.utility)
    for job in np.flatnonzero(np.isfinite(jobs.deadline_at) & (jobs.remaining_steps > 0) & facts.placeable):
        left_s = float(jobs.deadline_at[job]) - problem.at
        required = (
            float(jobs.gang[job] * jobs.remaining_steps[job] / left_s / facts.equal[job]) if left_s > 0 else np.inf
        )
        hopeless[job] = not required <= best[job] * (1 + _ROUNDING)
        needed[job] = 0.0 if hopeless[job] else min(required, best[job])
    return needed, hopeless


def _deadline_complaints(
    facts: JobwiseProblem, needed: FloatArray, floor: FloatArray, lowered: BoolArray
) -> Iterator[str]:
    """Generates a complaint if more of the deadlines could have been held."""
    asking = np.flatnonzero(needed > 0)
    kept = float((floor[asking] / needed[asking]).sum())
    most = _most_kept_together(facts, needed, asking)
    if kept < most - _AS_MUCH * len(asking):
        ids = ", ".join(str(int(facts.problem.jobs.job_id[row])) for row in np.flatnonzero(lowered)[:5])
        yield f"deadlines (of job {ids}) are relaxed that could be held: {kept:.6g} of {most:.6g}"


def _most_kept_together(facts: JobwiseProblem, needed: FloatArray, asking: np.ndarray) -> float:
    """Returns the largest feasible sum of kept parts of the required utilities, from a linear program in scipy."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    columns = [c for job in asking for c in facts.columns_of[job] if facts.usable[c]]
    job_of = facts.problem.columns.job
    row_of = {int(job): row for row, job in enumerate(asking)}
    entries: list[tuple[int, int, float]] = []
    for number, column in enumerate(columns):
        row = row_of[int(job_of[column])]
        entries.append((row, number, 1.0))
        entries.append((len(asking) + row, number, -float(facts.utility[column] / needed[job_of[column]])))
        for pool, count in facts.uses[column].items():
            entries.append((2 * len(asking) + pool, number, count))
    entries += [(len(asking) + row, len(columns) + row, 1.0) for row in range(len(asking))]
    rows, places, values = (list(part) for part in zip(*entries, strict=True))
    shape = (2 * len(asking) + len(facts.capacity), len(columns) + len(asking))
    limits = np.concatenate([np.ones(len(asking)), np.zeros(len(asking)), facts.capacity])
    gain = np.concatenate([np.zeros(len(columns)), -np.ones(len(asking))])
    found = linprog(gain, A_ub=coo_array((values, (rows, places)), shape=shape), b_ub=limits, bounds=(0, 1))
    return -float(found.fun) if found.status == 0 else 0.0


FAIR_SHARE_UNIT = "fair-share units per accelerator"
#: Seconds at equal-split speed that are assumed for a job where no job's length is known.
_UNKNOWN_S = 3600.0


@dataclass(frozen=True, slots=True, eq=False)
class LevelState:
    """State after earlier levels (all (n,)): kept utilities, the largest possible ones, and settled jobs."""

    kept: FloatArray
    cap: FloatArray
    settled: BoolArray
    #: Number of stages so far, and number of families of targets that cannot rise any further.
    stages: int = 0
    tier: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PolicyMeasure:
    """The rules by which the answers of one policy are checked."""

    #: Utility in which the first objective states its targets (c,).
    worth: FloatArray
    #: The next stage's objective; None after the last.
    following: Callable[[LevelState], CheckedObjective | None]
    #: Objective and bound of the certificate, from the shares and the first stage's value and bound.
    certified: Callable[[Shares, float, float], tuple[float, float]]
    #: Unit of the quoted prices, and worth of each column to its job in that unit, per unit of `exchange` (c,).
    unit: str
    gain: FloatArray
    #: True: the first stage's prices are quoted unchanged and `exchange` is 1; else both follow from what jobs pay.
    priced_as_is: bool = False
    #: Weights whose mean applies to a newcomer (n,); unused where prices are quoted unchanged.
    weight: FloatArray | None = None
    #: True: what the stages leave is divided by the largest sum of fair-share utilities.
    leftover: bool = True
    maximise: bool = True
    #: Rows whose deadline was relaxed, and complaints about the treatment of deadlines.
    relaxed: tuple[int, ...] = ()
    complaints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class CheckRequest:
    """The problem, the policy's parameters and memory, and the answer, which alone says which deadlines were held."""

    facts: JobwiseProblem
    parameters: Mapping[str, Any]
    memory: Memory
    shares: Shares

    @property
    def then(self) -> str:
        """The parameter that says how the capacity left by a level is divided."""
        return str(self.parameters.get("then", ""))


def _unchanged(shares: Shares, value: float, bound: float) -> tuple[float, float]:
    return value, bound


def _once(form: CheckedObjective) -> Callable[[LevelState], CheckedObjective | None]:
    return lambda left: form if left.stages == 0 else None


def _fair_share_measure(
    facts: JobwiseProblem, following: Callable[[LevelState], CheckedObjective | None], **more: Any
) -> PolicyMeasure:
    """Returns the measure of a policy that quotes prices in fair-share units; a newcomer's weight counts."""
    weight = facts.problem.jobs.weight
    gain = weight[facts.problem.columns.job] * facts.utility
    given: dict[str, Any] = {"certified": _unchanged, "worth": facts.utility, "weight": weight, "gain": gain}
    return PolicyMeasure(following=following, unit=FAIR_SHARE_UNIT, **(given | more))


# ---------------------------------------------------------------------------------------------------- levels


def max_min_fairness(question: CheckRequest) -> PolicyMeasure:
    """Maximises min u / w, with no job above what it can use; then further levels, the largest sum, or nothing."""
    facts = question.facts
    if question.then == "nothing":
        return _fair_share_measure(facts, _once(published_level(facts)), leftover=not facts.weight.any())
    if question.then == "sum" or question.parameters.get("packed"):
        return _fair_share_measure(facts, _once(weighted_level(facts)))
    return _fair_share_measure(facts, _level_after_level(facts), leftover=False)


def weighted_level(facts: JobwiseProblem) -> CheckedLevel:
    """Returns the level objective: the largest z with u >= min(w z, best)."""
    return CheckedLevel(
        facts.utility, CheckedProportional(facts.weight, facts.best(facts.utility), np.zeros(facts.jobs))
    )


def published_level(facts: JobwiseProblem) -> CheckedLevel:
    """Returns the level objective as published: the largest z with u >= w z; the first full job stops the others."""
    best, entitled = facts.best(facts.utility), facts.weight > 0
    first_full = float((best[entitled] / facts.weight[entitled]).min(initial=np.inf))
    cap = np.minimum(best, facts.weight * first_full) if entitled.any() else best
    return CheckedLevel(facts.utility, CheckedProportional(facts.weight, cap, np.zeros(facts.jobs)))


def _level_after_level(facts: JobwiseProblem) -> Callable[[LevelState], CheckedObjective | None]:
    """Levels by weight while any job rises; then levels for jobs without weight, equally."""

    def following(left: LevelState) -> CheckedObjective | None:
        if left.tier > 1:
            return None
        slope = facts.weight if left.tier == 0 else (facts.weight == 0).astype(np.float64)
        return CheckedLevel(facts.utility, CheckedProportional(np.where(left.settled, 0.0, slope), left.cap, left.kept))

    return following


def water_filling(question: CheckRequest) -> PolicyMeasure:
    """Maximises u / w lexicographically (max-min)."""
    return _fair_share_measure(question.facts, _level_after_level(question.facts), leftover=False)


def hierarchical(question: CheckRequest) -> PolicyMeasure:
    """Maximises lexicographically over a tree of entities (`CheckedTree`)."""
    facts = question.facts
    tree = CheckedTree(facts, project_terms(question.parameters))

    def following(left: LevelState) -> CheckedObjective | None:
        if left.tier > WEIGHTLESS:
            return None
        weight = facts.problem.jobs.weight
        return CheckedLevel(
            facts.utility, CheckedTreeTargets(tree, left.tier, weight, left.kept, left.cap, left.settled)
        )

    return _fair_share_measure(facts, following, leftover=False)


def project_terms(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the policy's terms of projects and users, which override those of the problem."""
    return parameters.get("projects") or {}


def finish_time_measure(question: CheckRequest) -> PolicyMeasure:
    """Minimises max rho, rho = (t + R / rate) / (A + R / iso); z = 1 / rho, u = rate (A + R / iso) / R."""
    facts = question.facts
    times = isolated_times(facts, question.memory)
    rising = times.rising
    cap = np.where(rising, facts.best(facts.utility), 0.0)
    pace = np.ones(facts.jobs)  # fair-share utility of R / D steps per second
    np.divide(facts.problem.jobs.gang, facts.equal * times.per_rate, out=pace, where=rising)

    def largest_rho(shares: Shares, value: float, bound: float) -> tuple[float, float]:
        if not rising.any():
            return 0.0, 0.0
        with np.errstate(divide="ignore"):
            rho = times.past + pace / facts.gained(facts.utility, shares)
            least = times.past + pace / cap
            return float(rho[rising].max()), float(max(np.divide(1.0, bound), least[rising].max()))

    return _completion_measure(
        question, CheckedLevel(facts.utility, CheckedFinishTimes(pace, times.past, cap)), largest_rho
    )


def makespan(question: CheckRequest) -> PolicyMeasure:
    """Minimises T with rate >= R / T; z = 1 / T, u = s rate / equal must be s (R / equal) z."""
    facts, jobs = question.facts, question.facts.problem.jobs
    known = np.isfinite(jobs.remaining_steps)
    some = facts.placeable & known & (jobs.remaining_steps > 0)
    needed_s = np.divide(jobs.remaining_steps, facts.equal, out=np.zeros(facts.jobs), where=some)
    typical_s = float(needed_s[some].mean()) if some.any() else _UNKNOWN_S
    slope = jobs.gang * np.where(facts.placeable & ~known, typical_s, needed_s)
    best, due = facts.best(facts.utility), slope > 0

    def last_end(shares: Shares, value: float, bound: float) -> tuple[float, float]:
        if not due.any():
            return 0.0, 0.0
        with np.errstate(divide="ignore"):
            ends, least = slope[due] / facts.gained(facts.utility, shares)[due], slope[due] / best[due]
            return float(ends.max()), float(max(np.divide(1.0, bound), least.max()))

    return _completion_measure(
        question, CheckedLevel(facts.utility, CheckedProportional(slope, best, np.zeros(facts.jobs))), last_end
    )


def _completion_measure(
    question: CheckRequest, form: CheckedLevel, certified: Callable[[Shares, float, float], tuple[float, float]]
) -> PolicyMeasure:
    """Returns the measure of a level objective in time, in which weights do not count."""
    facts = question.facts
    return _fair_share_measure(
        facts,
        _once(form),
        worth=form.worth,
        certified=certified,
        weight=np.ones(facts.jobs),
        gain=facts.utility,
        leftover=question.then != "nothing",
        maximise=False,
    )


# --------------------------------------------------------------------------------------------- products and sums


def proportional_fairness(question: CheckRequest) -> PolicyMeasure:
    """Maximises sum w log u; the certificate states the weighted geometric mean of the utilities."""
    facts = question.facts
    whole = float(facts.weight.sum())

    def mean(shares: Shares, value: float, bound: float) -> tuple[float, float]:
        return (float(np.exp(value / whole)), float(np.exp(bound / whole))) if whole > 0 else (value, bound)

    return _fair_share_measure(facts, _once(CheckedLog(facts.utility, facts.weight)), certified=mean)


def throughput(question: CheckRequest) -> PolicyMeasure:
    """Maximises sum w u, or the sum of steps per second."""
    weight = question.facts.problem.jobs.weight[question.facts.problem.columns.job]
    what = "fair-share units" if _normalised(question) else "steps/s"
    return _sum_measure(question.facts, weight * _progress(question), f"weighted {what} per accelerator")


def throughput_per_dollar(question: CheckRequest) -> PolicyMeasure:
    """Maximises sum w u / price; accelerators without a price count at the lowest one."""
    return _sum_measure(question.facts, *_per_dollar(question))


def cost_with_slos(question: CheckRequest) -> PolicyMeasure:
    """Maximises throughput per dollar, or minimises USD/h, subject to every deadline that can be held."""
    facts = question.facts
    held = held_deadlines(facts, question.shares)
    value, unit = _per_dollar(question)
    if question.parameters.get("goal") == "cost":
        value = np.where(facts.usable, -facts.cost(facts.problem.pools.usd_per_h), 0.0)
        unit = "USD/h per accelerator"
        found = _sum_measure(facts, value, unit, held.floor)
        found = replace(found, certified=lambda shares, reached, bound: (-reached, -bound), maximise=False)
    else:
        found = _sum_measure(facts, value, unit, held.floor)
    return replace(found, relaxed=held.relaxed, complaints=held.complaints)


def _sum_measure(facts: JobwiseProblem, value: FloatArray, unit: str, floor: FloatArray | None = None) -> PolicyMeasure:
    floor = np.zeros(facts.jobs) if floor is None else floor
    anything = bool(np.any(value[facts.usable] > 0) or np.any(floor > 0))
    form = CheckedSum(value, facts.utility, floor)
    return PolicyMeasure(
        worth=facts.utility,
        following=_once(form) if anything else lambda left: None,
        certified=_unchanged,
        unit=unit,
        gain=np.where(facts.usable, value, 0.0),
        priced_as_is=True,
        leftover=False,
    )


def _normalised(question: CheckRequest) -> bool:
    return bool(question.parameters.get("normalised", True))


def _progress(question: CheckRequest) -> FloatArray:
    return question.facts.utility if _normalised(question) else question.facts.speed


def _per_dollar(question: CheckRequest) -> tuple[FloatArray, str]:
    """Returns the weighted progress of each column over the price of its accelerators (c,), and the price's unit."""
    facts, pools = question.facts, question.facts.problem.pools
    listed = [float(price) for price in pools.usd_per_h if price > 0]
    free = question.parameters.get("free_usd_per_h")
    lowest = min(listed, default=1.0) if free is None else float(free)
    cost = facts.cost(np.array([price if price > 0 else lowest for price in pools.usd_per_h], dtype=np.float64))
    weight = facts.problem.jobs.weight[facts.problem.columns.job]
    unit = "fair-share units" if _normalised(question) else "steps/s"
    return weight * _progress(question) / cost, f"{unit} per USD/h, per accelerator"
