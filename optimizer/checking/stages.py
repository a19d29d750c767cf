"""Stage after stage: does it maximise what the policy says, do its shares reach it, do its prices prove it?

A level leaves behind what it used up. In every optimum of a level, whoever reaches its target for nothing uses no
priced row (complementary slackness), and all later shares are optima of it too; so what is priced is gone for those who
still rise, and whoever could have no more than its target of the rest has settled.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from optimizer.checking.facts import Facts
from optimizer.checking.forms import FULL, ROUNDING, Form, LevelForm, LogForm, Proof, SumForm
from optimizer.checking.measures import Left, Measure
from optimizer.checking.packed import packed_duals
from optimizer.decision import Shares, Stage, StageKind, Status
from optimizer.problem import BoolArray, FloatArray

#: What may differ between two honest computations that went through a solver.
SAME = 1e-6
#: A larger gap is not called optimal.
OPTIMAL = 1e-4
#: What a unit of the level may cost, by its dual values, beside 1.
_UNIT = 1e-2
#: A pool whose price makes up less than this part of all that is paid is not scarce.
_SCARCE = 1e-9
#: A target above what is kept by no more than this part of it, and of all that is to be had, is no rise.
_RISE = 1e-12
#: A level below this part of the highest one is next to nothing.
_LOWEST = 1e-5
#: Families of targets that may follow each other.
MOST_TIERS = 8
_KINDS = {LevelForm: StageKind.LEVEL, SumForm: StageKind.SUM, LogForm: StageKind.LOG}


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """One stage as recomputed: what it maximises, what its shares reach and its prices prove, whom it raises (n,)."""

    form: Form
    proof: Proof
    value: float
    bound: float
    #: What a difference in value is compared with.
    size: float
    #: What its bound cannot tell (`LevelForm.blur`).
    blur: float
    raised: BoolArray
    #: Pools that its prices make scarce (p,).
    scarce: BoolArray


@dataclass(slots=True)
class Found:
    """The stages as recomputed, and what is wrong with those that are stated."""

    told: list[Told]
    complaints: list[str]


def scarce(facts: Facts, prices: FloatArray, size: float) -> BoolArray:
    """Pools whose price is more than rounding, against all that is paid and the size of what is maximised (p,)."""
    paid = prices * facts.row_capacity
    return np.asarray(paid > _SCARCE * max(float(paid.sum()), size))


def check_stages(facts: Facts, measure: Measure, shares: Shares) -> Found:
    """Go through all stages; the first decides what the certificate may say."""
    found = Found([], [])
    left = Left(np.zeros(facts.jobs), facts.best(measure.worth), np.zeros(facts.jobs, dtype=np.bool_))
    gone = np.zeros(len(facts.row_capacity), dtype=np.bool_)
    ended = False
    for number, stage in enumerate(shares.stages, start=1):
        form, left = _next_form(facts, measure, left)
        is_leftover = form is None
        if form is None:
            form = SumForm(facts.utility, measure.worth, left.kept)
        name = f"stage {number} ({stage.kind.value})"
        if ended or (is_leftover and not measure.leftover) or _KINDS[type(form)] is not stage.kind:
            found.complaints.append(f"{name}: the policy has no such stage here")
            return found
        proof = _proof(facts, form, stage)
        value = form.reached(facts, shares)
        size = _size(facts, form, shares, value)
        blur = form.blur(proof) if isinstance(form, LevelForm) else 0.0
        told = Told(
            form, proof, value, form.bound(proof), size, blur, _raised(form, left), scarce(facts, stage.prices, size)
        )
        found.told.append(told)
        found.complaints += [f"{name}: {text}" for text in _about(facts, told, stage, shares)]
        ended = is_leftover
        gone = gone | told.scarce
        left = _after(facts, measure, told, left, gone, shares)
    if not ended:
        found.complaints += _missing(facts, measure, found.told, shares, left, gone)
    return found


def _proof(facts: Facts, form: Form, stage: Stage) -> Proof:
    """What a stage's prices have to say: alone, or with those of utility and time where jobs may be packed."""
    prices = np.maximum(stage.prices, 0.0)
    if not facts.pair_rows or isinstance(form, LogForm):
        return Proof(facts, prices)
    value = form.value if isinstance(form, SumForm) else np.zeros(len(form.worth))
    return Proof(facts, prices, packed_duals(facts, stage, value, form.worth))


def expects_none(facts: Facts, measure: Measure) -> bool:
    """True: there is nothing to maximise, and the policy may answer without a stage."""
    left = Left(np.zeros(facts.jobs), facts.best(measure.worth), np.zeros(facts.jobs, dtype=np.bool_))
    return _next_form(facts, measure, left)[0] is None


def _next_form(facts: Facts, measure: Measure, left: Left) -> tuple[Form | None, Left]:
    """The form of the next stage; a family of targets by which nobody rises any more is passed over."""
    form = measure.following(left)
    while isinstance(form, LevelForm) and not _rises(form, left).any():
        if left.tier >= MOST_TIERS:
            return None, left
        left = replace(left, tier=left.tier + 1)
        form = measure.following(left)
    if isinstance(form, LogForm) and not form.weight.any():
        return None, left
    return form, left


def _rises(form: LevelForm, left: Left, least: float = _RISE) -> BoolArray:
    top = form.targets.at(form.highest)
    return np.asarray(~left.settled & form.targets.rising & (top > left.kept * (1 + least) + _RISE * left.cap))


def _raised(form: Form, left: Left) -> BoolArray:
    """Whom a stage does something for; a sum is for everybody (n,)."""
    if isinstance(form, LevelForm):
        return _rises(form, left)
    return np.asarray(form.weight > 0) if isinstance(form, LogForm) else np.ones(len(left.kept), dtype=np.bool_)


def _about(facts: Facts, told: Told, stage: Stage, shares: Shares) -> Iterator[str]:
    """What is wrong with one stage."""
    form, value, bound, size = told.form, told.value, told.bound, told.size
    if not isinstance(form, SumForm) and not np.array_equal(stage.active, told.raised):
        yield f"{_jobs(facts, np.flatnonzero(stage.active != told.raised))} another part in it than stated"
    if np.any(stage.prices < 0):
        yield "a price is negative"
    if not close(stage.objective, value, size):
        yield f"objective: stated {stage.objective:.9g}, found {value:.9g}"
    if not (close(stage.bound, bound, size) or abs(stage.bound - bound) <= told.blur):
        yield f"bound: stated {stage.bound:.9g}, its prices prove {bound:.9g}"
    if shares.certificate.status is Status.OPTIMAL and not abs(bound - value) <= OPTIMAL * size + told.blur:
        yield f"its prices prove {bound:.9g}, its shares reach {value:.9g}"
    if isinstance(form, LevelForm) and bound < form.highest and told.scarce.any() and bound > told.blur:
        least, most = form.per_level(told.proof, bound)
        if not least * (1 - _UNIT) <= 1 <= most * (1 + _UNIT):
            yield f"its prices are not in units of the level: a unit of it costs {least:.6g} to {most:.6g}"
    if isinstance(form, SumForm):
        short = np.flatnonzero(facts.gained(form.worth, shares) < form.floor * (1 - SAME))
        if len(short):
            yield f"{_jobs(facts, short)} less than the floor to be kept"


def _size(facts: Facts, form: Form, shares: Shares, value: float) -> float:
    """What a difference in the form's value is compared with."""
    if isinstance(form, LogForm):
        return max(float(form.weight.sum()), 1e-12)  # a difference of logarithms is a relative one
    if isinstance(form, SumForm):
        return max(float(facts.gained(np.abs(form.value), shares).sum()), 1e-12)
    return max(abs(value), _LOWEST * form.highest, 1e-12)


def _after(facts: Facts, measure: Measure, told: Told, left: Left, gone: BoolArray, shares: Shares) -> Left:
    """What a stage leaves to the next one."""
    form = told.form
    utility = facts.gained(measure.worth, shares)
    if not isinstance(form, LevelForm):
        kept = np.where(form.weight > 0, utility, 0.0) if isinstance(form, LogForm) else utility
        return replace(left, kept=kept, stages=left.stages + 1)
    promised = np.minimum(form.targets.at(told.value), np.maximum(utility * (1 + ROUNDING), left.kept))
    kept = np.where(left.settled, left.kept, promised)
    touched = facts.cost(gone.astype(np.float64)) > 0
    live = facts.best(np.where(touched, 0.0, measure.worth))
    most = np.minimum(live, left.cap)
    settling = told.raised & (kept >= most * (1 - FULL))
    settled = left.settled | settling
    cap = np.where(settled, kept, np.maximum(most, kept))
    return replace(left, kept=kept, cap=cap, settled=settled, stages=left.stages + 1)


def _missing(
    facts: Facts, measure: Measure, told: list[Told], shares: Shares, left: Left, gone: BoolArray
) -> Iterator[str]:
    """Is there something left that no stage tells about?"""
    if shares.certificate.status is not Status.OPTIMAL:
        return
    form, left = _next_form(facts, measure, left)
    if form is not None and (not isinstance(form, LevelForm) or _rises(form, left, SAME).any()):
        yield "a stage is missing: somebody may still rise"
    elif form is None and measure.leftover:
        free = facts.cost(gone.astype(np.float64)) == 0
        room = facts.best(np.where(free, facts.utility, 0.0)) > 0
        hungry = left.kept < facts.best(measure.worth) * (1 - FULL)
        if told and isinstance(told[-1].form, LogForm):
            hungry &= told[-1].form.weight == 0  # the others have taken what is free
        if np.any(room & hungry):
            yield f"{_jobs(facts, np.flatnonzero(room & hungry))} room to rise, and no stage tells what became of it"


def close(stated: float, found: float, size: float) -> bool:
    """Do two honest computations agree?"""
    if not (np.isfinite(stated) and np.isfinite(found)):
        return bool(stated == found)
    return bool(abs(stated - found) <= SAME * max(size, abs(found) if size == 0 else 0.0))


def _jobs(facts: Facts, rows: np.ndarray) -> str:
    """`job 7 has`, `jobs 7, 9 and 3 more have`."""
    ids = [int(job_id) for job_id in facts.problem.jobs.job_id[rows]]
    if len(ids) == 1:
        return f"job {ids[0]} has"
    shown = ", ".join(map(str, ids[:5]))
    return f"jobs {shown}{f' and {len(ids) - 5} more' if len(ids) > 5 else ''} have"
