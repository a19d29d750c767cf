"""Checks what an answer states: its stages in order and its quoted prices, and of a plan its report.

Of each stage the objective is the policy's, the shares reach it, and the prices prove it. In every optimum of a level,
a job that reaches its target at no cost uses no priced row (complementary slackness), and all later shares are optima
of the level too. So rising jobs use no priced row from then on, and a job that can have no more than its target on the
other rows has settled.

Quoted prices follow from those of the stages. Fair policies quote the cost of a unit of fair-share utility, averaged
over the jobs that pay: a stage's price times the utility of the columns with a cost at its prices, over that cost.
Policies that maximise a sum quote the prices of that program, which are in the unit of the sum.

A plan reports its objective, a bound, and the gap between them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from optimizer.check.dual_bounds import (
    FULL_TOLERANCE,
    SUM_TOLERANCE,
    CheckedLevel,
    CheckedLog,
    CheckedObjective,
    CheckedSum,
    DualProof,
    co_location_duals,
)
from optimizer.check.jobwise_problem import JobwiseProblem
from optimizer.check.policy_measures import LevelState, PolicyMeasure
from optimizer.decision import BoundReport, Shares, SolveStage, StageKind, Status
from optimizer.problem import BoolArray, FloatArray

#: Relative tolerance between two computations that went through a solver.
SOLVER_TOLERANCE = 1e-6
#: A larger gap is not called optimal.
OPTIMAL = 1e-4
#: Tolerance of the cost of a unit of the level by its dual values, which is 1.
_UNIT = 1e-2
#: A pool whose price makes up less than this part of all that is paid is not scarce.
_SCARCE = 1e-9
#: A target that exceeds the kept utility by no more than this part of it, and of the cap, does not rise.
_RISE = 1e-12
#: A level below this part of the highest one is next to nothing.
_LOWEST = 1e-5
#: Families of targets that may follow each other.
MAX_TIERS = 8
_KINDS = {CheckedLevel: StageKind.LEVEL, CheckedSum: StageKind.SUM, CheckedLog: StageKind.LOG}


@dataclass(frozen=True, slots=True, eq=False)
class RecomputedStage:
    """One recomputed stage: objective, value of the shares, bound of the prices, and the jobs that it raises (n,)."""

    form: CheckedObjective
    proof: DualProof
    value: float
    bound: float
    #: Scale against which a difference in value is judged.
    size: float
    #: Uncertainty of its bound (`CheckedLevel.blur`).
    blur: float
    raised: BoolArray
    #: Pools that its prices make scarce (p,).
    scarce: BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class CheckedShares:
    """Stated shares, with the problem that they answer and what their policy measures."""

    facts: JobwiseProblem
    measure: PolicyMeasure
    shares: Shares


@dataclass(slots=True)
class RecomputedStages:
    """The recomputed stages, and complaints about the stated ones."""

    recomputed: list[RecomputedStage]
    complaints: list[str]


def is_scarce(facts: JobwiseProblem, prices: FloatArray, size: float) -> BoolArray:
    """Pools whose price is more than rounding, against all that is paid and the size of what is maximised (p,)."""
    paid = prices * facts.row_capacity
    return np.asarray(paid > _SCARCE * max(float(paid.sum()), size))


def recompute_stages(stated: CheckedShares) -> RecomputedStages:
    """Check all stages; the certificate is compared with the first."""
    facts, measure, shares = stated.facts, stated.measure, stated.shares
    found = RecomputedStages([], [])
    left = LevelState(np.zeros(facts.jobs), facts.best(measure.worth), np.zeros(facts.jobs, dtype=np.bool_))
    gone = np.zeros(len(facts.row_capacity), dtype=np.bool_)
    ended = False
    for number, stage in enumerate(shares.stages, start=1):
        form, left = _next_form(measure, left)
        is_leftover = form is None
        if form is None:
            form = CheckedSum(facts.utility, measure.worth, left.kept)
        name = f"stage {number} ({stage.kind.value})"
        if ended or (is_leftover and not measure.leftover) or _KINDS[type(form)] is not stage.kind:
            found.complaints.append(f"{name}: the policy has no such stage here")
            return found
        proof = _proof(facts, form, stage)
        value = form.reached(facts, shares)
        size = _scale(facts, form, shares, value)
        blur = form.blur(proof) if isinstance(form, CheckedLevel) else 0.0
        recomputed = RecomputedStage(
            form, proof, value, form.bound(proof), size, blur, _raised(form, left), is_scarce(facts, stage.prices, size)
        )
        found.recomputed.append(recomputed)
        found.complaints += [f"{name}: {text}" for text in _stage_complaints(facts, recomputed, stage, shares)]
        ended = is_leftover
        gone = gone | recomputed.scarce
        left = _after(stated, recomputed, left, gone)
    if not ended:
        found.complaints += _missing_stage(stated, found.recomputed, left, gone)
    return found


def _proof(facts: JobwiseProblem, form: CheckedObjective, stage: SolveStage) -> DualProof:
    """The dual values of a stage: prices of rows, and of utility and time where jobs may be co-located."""
    prices = np.maximum(stage.prices, 0.0)
    if not facts.pair_rows or isinstance(form, CheckedLog):
        return DualProof(facts, prices)
    value = form.value if isinstance(form, CheckedSum) else np.zeros(len(form.worth))
    return DualProof(facts, prices, co_location_duals(facts, stage, value, form.worth))


def expects_no_stage(facts: JobwiseProblem, measure: PolicyMeasure) -> bool:
    """Whether there is nothing to maximise, so that the policy may answer without a stage."""
    left = LevelState(np.zeros(facts.jobs), facts.best(measure.worth), np.zeros(facts.jobs, dtype=np.bool_))
    return _next_form(measure, left)[0] is None


def _next_form(measure: PolicyMeasure, left: LevelState) -> tuple[CheckedObjective | None, LevelState]:
    """The objective of the next stage; families of targets by which no job rises any more are skipped."""
    form = measure.following(left)
    while isinstance(form, CheckedLevel) and not _rises(form, left).any():
        if left.tier >= MAX_TIERS:
            return None, left
        left = replace(left, tier=left.tier + 1)
        form = measure.following(left)
    if isinstance(form, CheckedLog) and not form.weight.any():
        return None, left
    return form, left


def _rises(form: CheckedLevel, left: LevelState, least: float = _RISE) -> BoolArray:
    top = form.targets.at(form.highest)
    return np.asarray(~left.settled & form.targets.rising & (top > left.kept * (1 + least) + _RISE * left.cap))


def _raised(form: CheckedObjective, left: LevelState) -> BoolArray:
    """Jobs that a stage raises; a sum raises all (n,)."""
    if isinstance(form, CheckedLevel):
        return _rises(form, left)
    return np.asarray(form.weight > 0) if isinstance(form, CheckedLog) else np.ones(len(left.kept), dtype=np.bool_)


def _stage_complaints(
    facts: JobwiseProblem, recomputed: RecomputedStage, stage: SolveStage, shares: Shares
) -> Iterator[str]:
    form, value, bound, size = recomputed.form, recomputed.value, recomputed.bound, recomputed.size
    if not isinstance(form, CheckedSum) and not np.array_equal(stage.active, recomputed.raised):
        yield f"{_named_jobs(facts, np.flatnonzero(stage.active != recomputed.raised))} another part in it than stated"
    if np.any(stage.prices < 0):
        yield "a price is negative"
    if not agrees(stage.objective, value, size):
        yield f"objective: stated {stage.objective:.9g}, found {value:.9g}"
    if not (agrees(stage.bound, bound, size) or abs(stage.bound - bound) <= recomputed.blur):
        yield f"bound: stated {stage.bound:.9g}, its prices prove {bound:.9g}"
    if shares.certificate.status is Status.OPTIMAL and not abs(bound - value) <= OPTIMAL * size + recomputed.blur:
        yield f"its prices prove {bound:.9g}, its shares reach {value:.9g}"
    if isinstance(form, CheckedLevel) and bound < form.highest and recomputed.scarce.any() and bound > recomputed.blur:
        least, most = form.per_level(recomputed.proof, bound)
        if not least * (1 - _UNIT) <= 1 <= most * (1 + _UNIT):
            yield f"its prices are not in units of the level: a unit of it costs {least:.6g} to {most:.6g}"
    if isinstance(form, CheckedSum):
        short = np.flatnonzero(facts.gained(form.worth, shares) < form.floor * (1 - SOLVER_TOLERANCE))
        if len(short):
            yield f"{_named_jobs(facts, short)} less than the floor to be kept"


def _scale(facts: JobwiseProblem, form: CheckedObjective, shares: Shares, value: float) -> float:
    """Scale against which a difference in the objective's value is judged."""
    if isinstance(form, CheckedLog):
        return max(float(form.weight.sum()), 1e-12)  # a difference of logarithms is a relative one
    if isinstance(form, CheckedSum):
        return max(float(facts.gained(np.abs(form.value), shares).sum()), 1e-12)
    return max(abs(value), _LOWEST * form.highest, 1e-12)


def _after(stated: CheckedShares, recomputed: RecomputedStage, left: LevelState, gone: BoolArray) -> LevelState:
    """The state after a stage: kept utilities, caps, settled jobs and scarce rows."""
    facts, measure, form = stated.facts, stated.measure, recomputed.form
    utility = facts.gained(measure.worth, stated.shares)
    if not isinstance(form, CheckedLevel):
        kept = np.where(form.weight > 0, utility, 0.0) if isinstance(form, CheckedLog) else utility
        return replace(left, kept=kept, stages=left.stages + 1)
    promised = np.minimum(form.targets.at(recomputed.value), np.maximum(utility * (1 + SUM_TOLERANCE), left.kept))
    kept = np.where(left.settled, left.kept, promised)
    touched = facts.cost(gone.astype(np.float64)) > 0
    live = facts.best(np.where(touched, 0.0, measure.worth))
    most = np.minimum(live, left.cap)
    settling = recomputed.raised & (kept >= most * (1 - FULL_TOLERANCE))
    settled = left.settled | settling
    cap = np.where(settled, kept, np.maximum(most, kept))
    return replace(left, kept=kept, cap=cap, settled=settled, stages=left.stages + 1)


def _missing_stage(
    stated: CheckedShares, recomputed: list[RecomputedStage], left: LevelState, gone: BoolArray
) -> Iterator[str]:
    """A complaint where a further stage could raise some job and none is stated."""
    facts, measure = stated.facts, stated.measure
    if stated.shares.certificate.status is not Status.OPTIMAL:
        return
    form, left = _next_form(measure, left)
    if form is not None and (not isinstance(form, CheckedLevel) or _rises(form, left, SOLVER_TOLERANCE).any()):
        yield "a stage is missing: some job can still rise"
    elif form is None and measure.leftover:
        free = facts.cost(gone.astype(np.float64)) == 0
        could_rise = facts.best(np.where(free, facts.utility, 0.0)) > 0
        hungry = left.kept < facts.best(measure.worth) * (1 - FULL_TOLERANCE)
        if recomputed and isinstance(recomputed[-1].form, CheckedLog):
            hungry &= recomputed[-1].form.weight == 0  # the others have taken what is free
        if np.any(could_rise & hungry):
            jobs = _named_jobs(facts, np.flatnonzero(could_rise & hungry))
            yield f"{jobs} room to rise, and no stage tells what became of it"


def agrees(stated: float, found: float, size: float) -> bool:
    """Whether two computations agree within tolerance."""
    if not (np.isfinite(stated) and np.isfinite(found)):
        return bool(stated == found)
    return bool(abs(stated - found) <= SOLVER_TOLERANCE * max(size, abs(found) if size == 0 else 0.0))


def _named_jobs(facts: JobwiseProblem, rows: np.ndarray) -> str:
    """`job 7 has`, `jobs 7, 9 and 3 more have`."""
    ids = [int(job_id) for job_id in facts.problem.jobs.job_id[rows]]
    if len(ids) == 1:
        return f"job {ids[0]} has"
    shown = ", ".join(map(str, ids[:5]))
    return f"jobs {shown}{f' and {len(ids) - 5} more' if len(ids) > 5 else ''} have"


def quote_complaints(stated: CheckedShares, recomputed: list[RecomputedStage]) -> Iterator[str]:
    """Complaints about quoted prices, exchange rate and surpluses."""
    facts, measure, shares = stated.facts, stated.measure, stated.shares
    if shares.quote.unit != measure.unit:
        yield f"prices are stated in {shares.quote.unit!r}; the policy quotes {measure.unit!r}"
    prices = _quoted_prices(stated, recomputed)
    for name, quoted, price in zip(facts.problem.pools.pool_id, shares.quote.prices, prices, strict=True):
        if not agrees(float(quoted), float(price), max(abs(price), 1e-9)):
            yield f"price of {name}: stated {quoted:.9g}, found {price:.9g}"
    exchange = _exchange(facts, measure)
    if not agrees(shares.quote.exchange, exchange, exchange):
        yield f"exchange: stated {shares.quote.exchange:.9g}, found {exchange:.9g}"
    yield from _surplus_complaints(stated, exchange, prices)


def _quoted_prices(stated: CheckedShares, recomputed: list[RecomputedStage]) -> FloatArray:
    facts, measure, shares = stated.facts, stated.measure, stated.shares
    prices = np.zeros(len(facts.capacity))
    if measure.priced_as_is:
        return np.array(shares.stages[0].prices) if shares.stages else prices
    for stage, found in zip(shares.stages, recomputed, strict=False):
        new = found.scarce[: len(prices)] & (prices == 0)
        per_price = (
            1.0 if isinstance(found.form, CheckedSum) else _utility_per_price(facts, shares, stage.prices, found)
        )
        prices[new] = stage.prices[: len(prices)][new] * per_price
    return prices


def _utility_per_price(
    facts: JobwiseProblem, shares: Shares, stage_prices: FloatArray, found: RecomputedStage
) -> float:
    pools, (gives, holds) = len(facts.capacity), facts.over_columns(shares)
    cost = facts.cost(np.where(found.scarce, stage_prices, 0.0)[:pools]) * holds
    utility = facts.utility * gives
    paying = [c for c in np.flatnonzero(cost > 0) if found.raised[facts.problem.columns.job[c]]]
    paid = sum(float(cost[c]) for c in paying)
    return sum(float(utility[c]) for c in paying) / paid if paid > 0 else 1.0


def _exchange(facts: JobwiseProblem, measure: PolicyMeasure) -> float:
    if measure.priced_as_is or measure.weight is None:
        return 1.0
    weights = [float(w) for w, able in zip(measure.weight, facts.placeable, strict=True) if able and w > 0]
    return len(weights) / sum(weights) if weights else 1.0


def _surplus_complaints(stated: CheckedShares, exchange: float, prices: FloatArray) -> Iterator[str]:
    facts, measure, shares = stated.facts, stated.measure, stated.shares
    gain, cost = exchange * measure.gain, facts.cost(prices)
    for job, mine in enumerate(facts.columns_of):
        net = max((float(gain[c] - cost[c]) for c in mine if facts.usable[c] and gain[c] > 0), default=0.0)
        size = max(abs(net), max((float(gain[c]) for c in mine), default=0.0), 1e-9)
        if not abs(max(net, 0.0) - shares.surplus[job]) <= SOLVER_TOLERANCE * size:
            job_id = facts.problem.jobs.job_id[job]
            yield f"surplus of job {job_id}: stated {shares.surplus[job]:.9g}, found {max(net, 0.0):.9g}"


#: What may differ between two honest computations of an amount, as a part of it.
SAME = 1e-6


@dataclass(frozen=True, slots=True)
class PlanProof:
    """What a plan reaches, the bound that its prices prove, complaints, and what was taken as stated."""

    objective: float
    bound: float
    complaints: tuple[str, ...]
    unchecked: tuple[str, ...] = ()


def report_complaints(
    stated: BoundReport | None, measure: tuple[str, str], objective: float, bound: float | None, least: float = 0.0
) -> Iterator[str]:
    """Compare a plan's report with what was found.

    Args:
        stated: the report.
        measure: its name, which a tighter bound may follow, and the unit.
        objective: what the plan reaches.
        bound: what its prices prove; None: they do not tell.
        least: no prices prove less than this.
    """
    name, unit = measure
    if stated is None:
        yield f"the plan does not state its {name}"
        return
    slack = SAME * max(abs(objective), 1e-9)
    if not stated.name.startswith(name) or stated.unit != unit or not stated.maximise:
        yield f"the objective is '{name}' in '{unit}', and is maximised"
    if not agrees(stated.objective, objective, max(abs(objective), 1e-9)):
        yield f"objective: stated {stated.objective:.9g}, found {objective:.9g}"
    if stated.bound < max(least, objective) - slack:
        yield f"bound: stated {stated.bound:.9g}, no prices prove less than {least:.9g}"
    if bound is not None:
        found = max(bound, objective)
        # A tighter bound comes from a program whose prices are not quoted.
        if stated.bound > found + slack or (stated.name == name and stated.bound < found - slack):
            yield f"bound: stated {stated.bound:.9g}, the prices prove {found:.9g}"
    gap = abs(stated.bound - objective) / max(1e-12, abs(stated.bound))
    if not abs(stated.gap - gap) <= 2 * SAME * max(1.0, gap):
        yield f"gap: stated {stated.gap:.3g}, found {gap:.3g}"
