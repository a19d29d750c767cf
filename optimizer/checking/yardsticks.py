"""What each policy says it maximises, from its formula: the table by which answers are judged.

A yardstick gives the form of each stage in turn, what the certificate says of the first of them, and in what unit and
for which worth prices are quoted. Symbols as in `facts`; R steps left, t time since submission, iso steps/s with 1/M of
every pool, A the time that the steps done so far would have taken at the isolated rates of then.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimizer.checking.facts import Facts
from optimizer.checking.forms import FinishTimes, Form, LevelForm, LogForm, Proportional, SumForm
from optimizer.checking.isolation import isolated_times
from optimizer.decision import Memory
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
    #: Families of targets that have risen as far as they can.
    tier: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Yardstick:
    """How the answers of one policy are judged."""

    #: Utility in which the first form states its targets (c,).
    worth: FloatArray
    #: The next stage in its own objective; None: it has no more of them.
    following: Callable[[Left], Form | None]
    #: Objective and bound of the certificate, from the shares and the first stage's value and bound.
    certified: Callable[[FloatArray, float, float], tuple[float, float]]
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


Parameters = Mapping[str, Any]
Maker = Callable[[Facts, Parameters, Memory], Yardstick]


def yardstick_of(name: str, facts: Facts, parameters: Parameters, memory: Memory) -> Yardstick:
    """The yardstick of a policy.

    Raises:
        UnknownPolicyError: no yardstick is written for that policy.
    """
    if name not in _MAKERS:
        raise UnknownPolicyError(
            f"the checker has no yardstick for policy '{name}'; it has: {', '.join(sorted(_MAKERS))}",
            field="policy.name",
            fix="an answer of another policy can be certified only by whoever wrote it",
        )
    return _MAKERS[name](facts, parameters, memory)


def _as_it_is(x: FloatArray, value: float, bound: float) -> tuple[float, float]:
    return value, bound


def _once(form: Form) -> Callable[[Left], Form | None]:
    return lambda left: form if left.tier == 0 else None


def _then_sum(parameters: Parameters) -> bool:
    return bool(parameters.get("then", "sum") == "sum")


def _fair(facts: Facts, following: Callable[[Left], Form | None], **more: Any) -> Yardstick:
    """A policy that quotes in fair-share units, a newcomer's weight counting."""
    weight = facts.problem.jobs.weight
    gain = weight[facts.problem.columns.job] * facts.utility
    given: dict[str, Any] = {"certified": _as_it_is, "worth": facts.utility, "weight": weight, "gain": gain}
    return Yardstick(following=following, unit=FAIR_UNIT, **(given | more))


def max_min_fairness(facts: Facts, parameters: Parameters, memory: Memory) -> Yardstick:
    """maximise min u / w, nobody above what it can use."""
    return _fair(facts, _once(level_by_weight(facts)), leftover=_then_sum(parameters))


def level_by_weight(facts: Facts) -> LevelForm:
    """The largest z with u >= min(w z, best)."""
    return LevelForm(facts.utility, Proportional(facts.weight, facts.best(facts.utility), np.zeros(facts.jobs)))


def proportional_fairness(facts: Facts, parameters: Parameters, memory: Memory) -> Yardstick:
    """maximise sum w log u; certified as the weighted geometric mean of the utilities."""
    whole = float(facts.weight.sum())

    def mean(x: FloatArray, value: float, bound: float) -> tuple[float, float]:
        return (float(np.exp(value / whole)), float(np.exp(bound / whole))) if whole > 0 else (value, bound)

    form = LogForm(facts.utility, facts.weight)
    return _fair(facts, _once(form), certified=mean)


def finish_time_fairness(facts: Facts, parameters: Parameters, memory: Memory) -> Yardstick:
    """minimise max rho, rho = (t + R / rate) / (A + R / iso); z = 1 / rho, u = rate (A + R / iso) / R."""
    times = isolated_times(facts, memory)
    worth = facts.speed * times.per_rate[facts.problem.columns.job]
    cap = np.where(times.rising, facts.best(worth), 0.0)
    rising = times.rising

    def largest_rho(x: FloatArray, value: float, bound: float) -> tuple[float, float]:
        if not rising.any():
            return 0.0, 0.0
        with np.errstate(divide="ignore"):
            rho = times.past + 1 / facts.summed(worth * x)
            least = times.past + 1 / cap
            return float(rho[rising].max()), float(max(np.divide(1.0, bound), least[rising].max()))

    form = LevelForm(worth, FinishTimes(times.past, cap))
    return _unweighted(facts, form, parameters, worth, largest_rho)


def makespan(facts: Facts, parameters: Parameters, memory: Memory) -> Yardstick:
    """minimise T with rate >= R / T; z = 1 / T, u = s rate / equal must be s (R / equal) z."""
    jobs = facts.problem.jobs
    known = np.isfinite(jobs.remaining_steps)
    needed_s = np.divide(jobs.remaining_steps, facts.equal, out=np.zeros(facts.jobs), where=facts.placeable & known)
    some = facts.placeable & known
    typical_s = float(needed_s[some].mean()) if some.any() else _UNKNOWN_S
    slope = jobs.gang * np.where(facts.placeable & ~known, typical_s, needed_s)
    best, due = facts.best(facts.utility), slope > 0

    def last_end(x: FloatArray, value: float, bound: float) -> tuple[float, float]:
        if not due.any():
            return 0.0, 0.0
        with np.errstate(divide="ignore"):
            ends, least = slope[due] / facts.summed(facts.utility * x)[due], slope[due] / best[due]
            return float(ends.max()), float(max(np.divide(1.0, bound), least.max()))

    form = LevelForm(facts.utility, Proportional(slope, best, np.zeros(facts.jobs)))
    return _unweighted(facts, form, parameters, facts.utility, last_end)


def _unweighted(
    facts: Facts,
    form: LevelForm,
    parameters: Parameters,
    worth: FloatArray,
    certified: Callable[[FloatArray, float, float], tuple[float, float]],
) -> Yardstick:
    """A level for the sake of time, for which weights do not matter."""
    return _fair(
        facts,
        _once(form),
        worth=worth,
        certified=certified,
        weight=np.ones(facts.jobs),
        gain=facts.utility,
        leftover=_then_sum(parameters),
        maximise=False,
    )


def throughput(facts: Facts, parameters: Parameters, memory: Memory) -> Yardstick:
    """maximise sum w u, or of plain steps per second."""
    normalised = bool(parameters.get("normalised", True))
    weight = facts.problem.jobs.weight[facts.problem.columns.job]
    value = weight * (facts.utility if normalised else facts.speed)
    what = "fair-share units" if normalised else "steps/s"
    return _summed(facts, value, f"weighted {what} per accelerator")


def _summed(facts: Facts, value: FloatArray, unit: str) -> Yardstick:
    form = SumForm(value, value, np.zeros(facts.jobs))
    return Yardstick(
        worth=value,
        following=_once(form),
        certified=_as_it_is,
        unit=unit,
        gain=value,
        priced_as_is=True,
        leftover=False,
    )


_MAKERS: dict[str, Maker] = {
    "finish_time_fairness": finish_time_fairness,
    "makespan": makespan,
    "max_min_fairness": max_min_fairness,
    "proportional_fairness": proportional_fairness,
    "throughput": throughput,
}
