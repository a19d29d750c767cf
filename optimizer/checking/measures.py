"""What each policy says it maximises, from its formula: the table by which answers are judged.

A measure gives the form of each stage in turn, what the certificate says of the first of them, and in what unit and
for which worth prices are quoted. Symbols as in `facts`; R steps left, t time since submission, iso steps/s with 1/M of
every pool, A the time that the steps done so far would have taken at the isolated rates of then.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from optimizer.checking.deadlines import held_deadlines
from optimizer.checking.facts import Facts
from optimizer.checking.forms import FinishTimes, Form, LevelForm, LogForm, Proportional, SumForm
from optimizer.checking.isolation import isolated_times
from optimizer.checking.trees import WEIGHTLESS, Tree, TreeTargets
from optimizer.decision import Memory, Shares
from optimizer.problem import BoolArray, FloatArray
from walras.errors import UnknownPolicyError

FAIR_UNIT = "fair-share units per accelerator"
#: Seconds at equal-split speed that a job is believed to need where nobody's length is known.
_UNKNOWN_S = 3600.0


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """What earlier levels left (all (n,)): utilities that are kept, the most that a job can have, who has settled."""

    kept: FloatArray
    cap: FloatArray
    settled: BoolArray
    #: Stages so far, and families of targets that have risen as far as they can.
    stages: int = 0
    tier: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """How the answers of one policy are judged."""

    #: Utility in which the first form states its targets (c,).
    worth: FloatArray
    #: The next stage in its own objective; None: it has no more of them.
    following: Callable[[Left], Form | None]
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
class Question:
    """What was asked, of whom; and the answer, for what only it can tell (which deadlines were held)."""

    facts: Facts
    parameters: Mapping[str, Any]
    memory: Memory
    shares: Shares

    @property
    def then(self) -> str:
        """What becomes of what a level leaves."""
        return str(self.parameters.get("then", ""))


Maker = Callable[[Question], Measure]


def has_measure(name: str) -> bool:
    """True: a measure is written for that policy."""
    return name in _MAKERS


def measure_of(name: str, question: Question) -> Measure:
    """The measure of a policy.

    Raises:
        UnknownPolicyError: no measure is written for that policy.
    """
    if not has_measure(name):
        raise UnknownPolicyError(
            f"the checker has no measure for policy '{name}'; it has: {', '.join(sorted(_MAKERS))}",
            field="policy.name",
            fix="an answer of another policy can be certified only by whoever wrote it",
        )
    return _MAKERS[name](question)


def _as_it_is(shares: Shares, value: float, bound: float) -> tuple[float, float]:
    return value, bound


def _once(form: Form) -> Callable[[Left], Form | None]:
    return lambda left: form if left.stages == 0 else None


def _fair(facts: Facts, following: Callable[[Left], Form | None], **more: Any) -> Measure:
    """A policy that quotes in fair-share units, a newcomer's weight counting."""
    weight = facts.problem.jobs.weight
    gain = weight[facts.problem.columns.job] * facts.utility
    given: dict[str, Any] = {"certified": _as_it_is, "worth": facts.utility, "weight": weight, "gain": gain}
    return Measure(following=following, unit=FAIR_UNIT, **(given | more))


# ---------------------------------------------------------------------------------------------------- levels


def max_min_fairness(question: Question) -> Measure:
    """maximise min u / w, nobody above what it can use; then level after level, or the largest sum, or nothing."""
    facts = question.facts
    if question.then == "nothing":
        return _fair(facts, _once(published_level(facts)), leftover=not facts.weight.any())
    if question.then == "sum" or question.parameters.get("packed"):
        return _fair(facts, _once(level_by_weight(facts)))
    return _fair(facts, _level_after_level(facts), leftover=False)


def level_by_weight(facts: Facts) -> LevelForm:
    """The largest z with u >= min(w z, best)."""
    return LevelForm(facts.utility, Proportional(facts.weight, facts.best(facts.utility), np.zeros(facts.jobs)))


def published_level(facts: Facts) -> LevelForm:
    """The largest z with u >= w z: the first job that is full holds back all others."""
    best, entitled = facts.best(facts.utility), facts.weight > 0
    first_full = float((best[entitled] / facts.weight[entitled]).min(initial=np.inf))
    cap = np.minimum(best, facts.weight * first_full) if entitled.any() else best
    return LevelForm(facts.utility, Proportional(facts.weight, cap, np.zeros(facts.jobs)))


def _level_after_level(facts: Facts) -> Callable[[Left], Form | None]:
    """By weight as long as anybody rises, then those without weight, equally."""

    def following(left: Left) -> Form | None:
        if left.tier > 1:
            return None
        slope = facts.weight if left.tier == 0 else (facts.weight == 0).astype(np.float64)
        return LevelForm(facts.utility, Proportional(np.where(left.settled, 0.0, slope), left.cap, left.kept))

    return following


def water_filling(question: Question) -> Measure:
    """The lexicographic max-min of u / w."""
    return _fair(question.facts, _level_after_level(question.facts), leftover=False)


def hierarchical(question: Question) -> Measure:
    """The lexicographic max-min over a tree of entities (`trees`)."""
    facts = question.facts
    tree = Tree(facts, terms_of(question.parameters))

    def following(left: Left) -> Form | None:
        if left.tier > WEIGHTLESS:
            return None
        weight = facts.problem.jobs.weight
        return LevelForm(facts.utility, TreeTargets(tree, left.tier, weight, left.kept, left.cap, left.settled))

    return _fair(facts, following, leftover=False)


def terms_of(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a hierarchical policy says of projects and users, where it differs from what the problem says."""
    return parameters.get("projects") or {}


def finish_time_fairness(question: Question) -> Measure:
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

    return _in_time(question, LevelForm(facts.utility, FinishTimes(pace, times.past, cap)), largest_rho)


def makespan(question: Question) -> Measure:
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

    return _in_time(question, LevelForm(facts.utility, Proportional(slope, best, np.zeros(facts.jobs))), last_end)


def _in_time(
    question: Question, form: LevelForm, certified: Callable[[Shares, float, float], tuple[float, float]]
) -> Measure:
    """A level for the sake of time, for which weights do not matter."""
    facts = question.facts
    return _fair(
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


def proportional_fairness(question: Question) -> Measure:
    """maximise sum w log u; certified as the weighted geometric mean of the utilities."""
    facts = question.facts
    whole = float(facts.weight.sum())

    def mean(shares: Shares, value: float, bound: float) -> tuple[float, float]:
        return (float(np.exp(value / whole)), float(np.exp(bound / whole))) if whole > 0 else (value, bound)

    return _fair(facts, _once(LogForm(facts.utility, facts.weight)), certified=mean)


def throughput(question: Question) -> Measure:
    """maximise sum w u, or of plain steps per second."""
    weight = question.facts.problem.jobs.weight[question.facts.problem.columns.job]
    what = "fair-share units" if _normalised(question) else "steps/s"
    return _sum(question.facts, weight * _progress(question), f"weighted {what} per accelerator")


def throughput_per_dollar(question: Question) -> Measure:
    """maximise sum w u / price, accelerators without a price counted at the lowest one."""
    return _sum(question.facts, *_per_dollar(question))


def cost_with_slos(question: Question) -> Measure:
    """maximise throughput per dollar, or minimise USD/h, while each deadline that can be held is."""
    facts = question.facts
    held = held_deadlines(facts, question.shares)
    value, unit = _per_dollar(question)
    if question.parameters.get("goal") == "cost":
        value = np.where(facts.usable, -facts.cost(facts.problem.pools.usd_per_h), 0.0)
        unit = "USD/h per accelerator"
        found = _sum(facts, value, unit, held.floor)
        found = replace(found, certified=lambda shares, reached, bound: (-reached, -bound), maximise=False)
    else:
        found = _sum(facts, value, unit, held.floor)
    return replace(found, relaxed=held.relaxed, complaints=held.complaints)


def _sum(facts: Facts, value: FloatArray, unit: str, floor: FloatArray | None = None) -> Measure:
    floor = np.zeros(facts.jobs) if floor is None else floor
    anything = bool(np.any(value[facts.usable] > 0) or np.any(floor > 0))
    form = SumForm(value, facts.utility, floor)
    return Measure(
        worth=facts.utility,
        following=_once(form) if anything else lambda left: None,
        certified=_as_it_is,
        unit=unit,
        gain=np.where(facts.usable, value, 0.0),
        priced_as_is=True,
        leftover=False,
    )


def _normalised(question: Question) -> bool:
    return bool(question.parameters.get("normalised", True))


def _progress(question: Question) -> FloatArray:
    return question.facts.utility if _normalised(question) else question.facts.speed


def _per_dollar(question: Question) -> tuple[FloatArray, str]:
    """Weighted progress of each column over the price of what it uses (c,), and the unit of a price of that."""
    facts, pools = question.facts, question.facts.problem.pools
    listed = [float(price) for price in pools.usd_per_h if price > 0]
    free = question.parameters.get("free_usd_per_h")
    lowest = min(listed, default=1.0) if free is None else float(free)
    cost = facts.cost(np.array([price if price > 0 else lowest for price in pools.usd_per_h], dtype=np.float64))
    weight = facts.problem.jobs.weight[facts.problem.columns.job]
    unit = "fair-share units" if _normalised(question) else "steps/s"
    return weight * _progress(question) / cost, f"{unit} per USD/h, per accelerator"


_MAKERS: dict[str, Maker] = {
    "cost_with_slos": cost_with_slos,
    "finish_time_fairness": finish_time_fairness,
    "hierarchical": hierarchical,
    "makespan": makespan,
    "max_min_fairness": max_min_fairness,
    "proportional_fairness": proportional_fairness,
    "throughput": throughput,
    "throughput_per_dollar": throughput_per_dollar,
    "water_filling": water_filling,
}
