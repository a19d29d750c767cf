"""What each policy says it maximises, from its formula: the table by which answers are judged.

A measure gives the objective of each stage in turn, what the certificate says of the first of them, and in what unit
and for which worth prices are quoted. Symbols as in `jobwise_problem`; R steps left, t time since submission, iso
steps/s with 1/M of every pool, A the time that the steps done so far would have taken at the isolated rates of then.

A deadline asks for R / (deadline - now) steps per second. It is hopeless if it has passed, if the job's length is
unknown, or if the job's best configuration all the time would not do. Of the others as much is to be held as can be
together: the largest sum of kept parts.
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
from optimizer.check.entity_tree import WEIGHTLESS, CheckedTree, CheckedTreeTargets
from optimizer.check.jobwise_problem import JobwiseProblem, isolated_times
from optimizer.decision import Memory, Shares
from optimizer.problem import BoolArray, FloatArray

#: A deadline that needs more than all the time by less than this part can be met.
_ROUNDING = 1e-9
#: A floor missed by less than this part is held.
_HELD = 1e-6
#: Sums of kept parts that differ by less than this part of a job are equal.
_AS_MUCH = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class HeldDeadlines:
    """Utility that each job keeps for its deadline (n,), the rows whose deadline was relaxed, and complaints."""

    floor: FloatArray
    relaxed: tuple[int, ...]
    complaints: tuple[str, ...]


def held_deadlines(facts: JobwiseProblem, shares: Shares) -> HeldDeadlines:
    """What the answer holds of what is asked."""
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
    """Fair-share utility that ends each job in time, 0 where nothing can be asked; and who is hopeless (n,)."""
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
    """Could more have been held?"""
    asking = np.flatnonzero(needed > 0)
    kept = float((floor[asking] / needed[asking]).sum())
    most = _most_kept_together(facts, needed, asking)
    if kept < most - _AS_MUCH * len(asking):
        ids = ", ".join(str(int(facts.problem.jobs.job_id[row])) for row in np.flatnonzero(lowered)[:5])
        yield f"deadlines (of job {ids}) are relaxed that could be held: {kept:.6g} of {most:.6g}"


def _most_kept_together(facts: JobwiseProblem, needed: FloatArray, asking: np.ndarray) -> float:
    """The largest sum of parts of the asked utilities that the fleet can give, as a linear program by scipy."""
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
#: Seconds at equal-split speed that a job is believed to need where nobody's length is known.
_UNKNOWN_S = 3600.0


@dataclass(frozen=True, slots=True, eq=False)
class LevelState:
    """What earlier levels left (all (n,)): utilities that are kept, the most that a job can have, who has settled."""

    kept: FloatArray
    cap: FloatArray
    settled: BoolArray
    #: Stages so far, and families of targets that have risen as far as they can.
    stages: int = 0
    tier: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PolicyMeasure:
    """How the answers of one policy are judged."""

    #: Utility in which the first form states its targets (c,).
    worth: FloatArray
    #: The next stage in its own objective; None: it has no more of them.
    following: Callable[[LevelState], CheckedObjective | None]
    #: Objective and bound of the certificate, from the shares and the first stage's value and bound.
    certified: Callable[[Shares, float, float], tuple[float, float]]
    #: Unit of the quoted prices, and what each column is worth to its job in it, per unit of `exchange` (c,).
    unit: str
    gain: FloatArray
    #: The first stage's prices are quoted as they are, and `exchange` is 1; else both follow from what is paid.
    priced_as_is: bool = False
    #: Weights whose mean a newcomer is judged against (n,); where prices are quoted as they are, of no meaning.
    weight: FloatArray | None = None
    #: What the stages leave goes by the largest sum of fair-share utilities.
    leftover: bool = True
    maximise: bool = True
    #: Jobs whose deadline was not held, and what is wrong with how deadlines were treated.
    relaxed: tuple[int, ...] = ()
    complaints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class CheckRequest:
    """What was asked, of whom; and the answer, for what only it can tell (which deadlines were held)."""

    facts: JobwiseProblem
    parameters: Mapping[str, Any]
    memory: Memory
    shares: Shares

    @property
    def then(self) -> str:
        """What becomes of what a level leaves."""
        return str(self.parameters.get("then", ""))


MeasureMaker = Callable[[CheckRequest], PolicyMeasure]


def _unchanged(shares: Shares, value: float, bound: float) -> tuple[float, float]:
    return value, bound


def _once(form: CheckedObjective) -> Callable[[LevelState], CheckedObjective | None]:
    return lambda left: form if left.stages == 0 else None


def _fair_share_measure(
    facts: JobwiseProblem, following: Callable[[LevelState], CheckedObjective | None], **more: Any
) -> PolicyMeasure:
    """A policy that quotes in fair-share units, a newcomer's weight counting."""
    weight = facts.problem.jobs.weight
    gain = weight[facts.problem.columns.job] * facts.utility
    given: dict[str, Any] = {"certified": _unchanged, "worth": facts.utility, "weight": weight, "gain": gain}
    return PolicyMeasure(following=following, unit=FAIR_SHARE_UNIT, **(given | more))


# ---------------------------------------------------------------------------------------------------- levels


def max_min_fairness(question: CheckRequest) -> PolicyMeasure:
    """maximise min u / w, nobody above what it can use; then level after level, or the largest sum, or nothing."""
    facts = question.facts
    if question.then == "nothing":
        return _fair_share_measure(facts, _once(published_level(facts)), leftover=not facts.weight.any())
    if question.then == "sum" or question.parameters.get("packed"):
        return _fair_share_measure(facts, _once(weighted_level(facts)))
    return _fair_share_measure(facts, _level_after_level(facts), leftover=False)


def weighted_level(facts: JobwiseProblem) -> CheckedLevel:
    """The largest z with u >= min(w z, best)."""
    return CheckedLevel(
        facts.utility, CheckedProportional(facts.weight, facts.best(facts.utility), np.zeros(facts.jobs))
    )


def published_level(facts: JobwiseProblem) -> CheckedLevel:
    """The largest z with u >= w z: the first job that is full holds back all others."""
    best, entitled = facts.best(facts.utility), facts.weight > 0
    first_full = float((best[entitled] / facts.weight[entitled]).min(initial=np.inf))
    cap = np.minimum(best, facts.weight * first_full) if entitled.any() else best
    return CheckedLevel(facts.utility, CheckedProportional(facts.weight, cap, np.zeros(facts.jobs)))


def _level_after_level(facts: JobwiseProblem) -> Callable[[LevelState], CheckedObjective | None]:
    """By weight as long as anybody rises, then those without weight, equally."""

    def following(left: LevelState) -> CheckedObjective | None:
        if left.tier > 1:
            return None
        slope = facts.weight if left.tier == 0 else (facts.weight == 0).astype(np.float64)
        return CheckedLevel(facts.utility, CheckedProportional(np.where(left.settled, 0.0, slope), left.cap, left.kept))

    return following


def water_filling(question: CheckRequest) -> PolicyMeasure:
    """The lexicographic max-min of u / w."""
    return _fair_share_measure(question.facts, _level_after_level(question.facts), leftover=False)


def hierarchical(question: CheckRequest) -> PolicyMeasure:
    """The lexicographic max-min over a tree of entities (`trees`)."""
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
    """What a hierarchical policy says of projects and users, where it differs from what the problem says."""
    return parameters.get("projects") or {}


def finish_time_measure(question: CheckRequest) -> PolicyMeasure:
    """minimise max rho, rho = (t + R / rate) / (A + R / iso); z = 1 / rho, u = rate (A + R / iso) / R."""
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
    """minimise T with rate >= R / T; z = 1 / T, u = s rate / equal must be s (R / equal) z."""
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
    """A level for the sake of time, for which weights do not matter."""
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
    """maximise sum w log u; certified as the weighted geometric mean of the utilities."""
    facts = question.facts
    whole = float(facts.weight.sum())

    def mean(shares: Shares, value: float, bound: float) -> tuple[float, float]:
        return (float(np.exp(value / whole)), float(np.exp(bound / whole))) if whole > 0 else (value, bound)

    return _fair_share_measure(facts, _once(CheckedLog(facts.utility, facts.weight)), certified=mean)


def throughput(question: CheckRequest) -> PolicyMeasure:
    """maximise sum w u, or of plain steps per second."""
    weight = question.facts.problem.jobs.weight[question.facts.problem.columns.job]
    what = "fair-share units" if _normalised(question) else "steps/s"
    return _sum_measure(question.facts, weight * _progress(question), f"weighted {what} per accelerator")


def throughput_per_dollar(question: CheckRequest) -> PolicyMeasure:
    """maximise sum w u / price, accelerators without a price counted at the lowest one."""
    return _sum_measure(question.facts, *_per_dollar(question))


def cost_with_slos(question: CheckRequest) -> PolicyMeasure:
    """maximise throughput per dollar, or minimise USD/h, while each deadline that can be held is."""
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
    """Weighted progress of each column over the price of what it uses (c,), and the unit of a price of that."""
    facts, pools = question.facts, question.facts.problem.pools
    listed = [float(price) for price in pools.usd_per_h if price > 0]
    free = question.parameters.get("free_usd_per_h")
    lowest = min(listed, default=1.0) if free is None else float(free)
    cost = facts.cost(np.array([price if price > 0 else lowest for price in pools.usd_per_h], dtype=np.float64))
    weight = facts.problem.jobs.weight[facts.problem.columns.job]
    unit = "fair-share units" if _normalised(question) else "steps/s"
    return weight * _progress(question) / cost, f"{unit} per USD/h, per accelerator"
