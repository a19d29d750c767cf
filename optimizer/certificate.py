"""An independent opinion on an answer: recomputes everything from the problem, trusts no number and shares no code.

What policies do with matrices and classes is done here job by job, as the definitions read: by another road. Of an
answer in shares, only shares and prices matter; what the shares reach, and what the prices prove to be out of reach,
follow from the problem (`optimizer.checking`). Decides only whether an answer is what it claims to be; every
disagreement is a complaint.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optimizer.checking.facts import Facts
from optimizer.checking.isolation import isolated_shares
from optimizer.checking.measures import Measure, Question, level_by_weight, measure_of, terms_of
from optimizer.checking.plans import about_plan
from optimizer.checking.quotes import check_quote
from optimizer.checking.stages import OPTIMAL, SAME, check_stages, close, expects_none
from optimizer.checking.trees import Tree
from optimizer.decision import Decision, Memory, Order, Plan, Shares, Status
from optimizer.policy import PolicySpec
from optimizer.problem import FloatArray, Problem

#: What may differ between two honest computations of a constraint.
_FEASIBLE = 1e-9
#: Unit of prices where there are none.
_FREE = "nothing has a price"


@dataclass(frozen=True, slots=True)
class CheckedCertificate:
    """What an answer is really worth. No complaints: it is what it claims to be."""

    objective: float
    bound: float
    gap: float
    violation: float
    complaints: tuple[str, ...]
    #: What could not be recomputed from the answer, and was taken as stated.
    unchecked: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """True: nothing to complain about."""
        return not self.complaints


def check(problem: Problem, policy: PolicySpec, decision: Decision, memory: Memory = None) -> CheckedCertificate:
    """Check an answer against the problem.

    Args:
        problem: a valid one, as it was asked (before a rental: `Shares.rent` says what was counted on).
        policy: who answered.
        decision: the answer.
        memory: what the policy remembered when it was asked.

    Raises:
        UnknownPolicyError: the answer is in shares, and no measure is written for that policy.
    """
    if isinstance(decision, Plan):
        complaints = list(about_plan(problem, decision))
        return CheckedCertificate(0.0, 0.0, 0.0, 0.0, tuple(complaints), ("what a place is worth to a job",))
    if isinstance(decision, Order):
        trusted = ("the yardstick's objective and bound",) if decision.yardstick is not None else ()
        return CheckedCertificate(0.0, 0.0, 0.0, 0.0, tuple(_about_order(problem, decision)), trusted)
    facts = facts_of(problem, policy, decision.rent)
    complaints = list(_about_shares(facts, decision))
    violation = violation_of(facts, decision)
    if decision.certificate.status is Status.EMPTY:
        objective, bound = 0.0, 0.0
        if facts.usable.any():
            complaints.append("called empty, but something can run")
    elif policy.name in _FORMULAS:
        objective, bound = _FORMULAS[policy.name](facts, decision, complaints)
    else:
        measure = measure_of(policy.name, Question(facts, policy.parameters, memory, decision))
        objective, bound = _check_program(facts, measure, decision, complaints)
    gap = relative_gap(objective, bound)
    complaints += _about_certificate(decision, objective, bound, gap, violation)
    return CheckedCertificate(objective, bound, gap, violation, tuple(complaints), _UNCHECKED.get(policy.name, ()))


def facts_of(problem: Problem, policy: PolicySpec, rent: FloatArray) -> Facts:
    """The problem job by job as the policy sees it, with so much rented (p,)."""
    told = policy.parameters
    facts = Facts(problem, rent, aware=bool(told.get("aware", True)), packs=bool(told.get("packed", False)))
    if policy.name == "hierarchical":
        facts.limit(Tree(facts, terms_of(told)).limits(facts))
    return facts


def _check_program(facts: Facts, measure: Measure, shares: Shares, complaints: list[str]) -> tuple[float, float]:
    """(objective, bound) of a policy that solves something."""
    rows = len(facts.row_capacity)
    if any(len(stage.prices) != rows for stage in shares.stages):
        complaints.append(f"a stage has another number of prices than there are rows ({rows})")
        return 0.0, 0.0
    found = check_stages(facts, measure, shares)
    complaints += [*measure.complaints, *found.complaints]
    complaints += check_quote(facts, measure, shares, found.told)
    if tuple(shares.relaxed) != measure.relaxed:
        complaints.append("the jobs whose deadline was relaxed are not those listed")
    if shares.certificate.maximise is not measure.maximise:
        complaints.append(f"the policy {'maximises' if measure.maximise else 'minimises'}")
    if not found.told:
        if not expects_none(facts, measure):
            complaints.append("no stage proves anything")
        return 0.0, 0.0
    first = found.told[0]
    return measure.certified(shares, first.value, first.bound)


def _about_shares(facts: Facts, shares: Shares) -> Iterator[str]:
    """Is it possible at all?"""
    if not all(np.all(np.isfinite(values)) for values in (shares.x, shares.rent, shares.packed.share)):
        yield "a share is no number"
    violation = violation_of(facts, shares)
    if not violation <= _FEASIBLE:
        yield f"a constraint is violated by {violation:.3g}"
    if np.any(shares.x[~facts.usable] != 0):
        yield "a configuration that cannot run has a share"
    if len(shares.packed) and not facts.pair_rows:
        yield "jobs run together, and nobody gains by that, or the policy packs none"
    if len(list(facts.pairs_in(shares.packed))) < len(shares.packed):
        yield "jobs run together that are no pair there"
    pools = facts.problem.pools
    if np.any(shares.rent < 0) or np.any(shares.rent > np.maximum(pools.rentable, pools.held) * (1 + _FEASIBLE)):
        yield "more is rented than there is to rent"
    if not np.array_equal(shares.unplaceable, np.flatnonzero(~facts.placeable)):
        yield "the jobs without any configuration are not those listed"


def violation_of(facts: Facts, shares: Shares) -> float:
    """Largest violation of any constraint, relative to its right-hand side (1 where that is 0)."""
    x, together = shares.x, list(facts.pairs_in(shares.packed))
    worst = max(0.0, float(-x.min(initial=0.0)), float(-shares.packed.share.min(initial=0.0)))
    time = facts.summed(x)
    for pair in together:
        time[pair.first] += pair.share
        time[pair.second] += pair.share
    capacity = facts.row_capacity
    over = (facts.used(shares) - capacity) / np.where(capacity > 0, capacity, 1.0)
    return max(worst, float(time.max(initial=0.0)) - 1.0, float(over.max(initial=0.0)))


def _check_isolated(facts: Facts, shares: Shares, complaints: list[str]) -> tuple[float, float]:
    """An equal part of every pool for everybody. The bound is max-min's, whose prices are no part of the answer."""
    expected = isolated_shares(facts)
    for job, mine in enumerate(facts.columns_of):
        if any(abs(shares.x[c] - expected[c]) > SAME for c in mine):
            complaints.append(f"job {facts.problem.jobs.job_id[job]} does not have its equal part")
    level = level_by_weight(facts).reached(facts, shares)
    complaints += _about_formula(shares)
    if shares.certificate.bound < level * (1 - SAME):
        complaints.append("the bound is below what the shares reach")
    return level, shares.certificate.bound


def _check_allox(facts: Facts, shares: Shares, complaints: list[str]) -> tuple[float, float]:
    """Whole places. Who waits behind whom, and so the sum of completion times, is no part of the answer."""
    if np.any((shares.x != 0) & (shares.x != 1)):
        complaints.append("a job has a part of a place")
    complaints += _about_formula(shares)
    if shares.certificate.objective < shares.certificate.bound * (1 - SAME):
        complaints.append("the objective is below what is called its bound")
    return shares.certificate.objective, shares.certificate.bound


def _about_formula(shares: Shares) -> Iterator[str]:
    """Without a program nothing has a price."""
    quote = shares.quote
    if quote.prices.any() or shares.surplus.any() or quote.exchange != 1 or quote.unit != _FREE:
        yield "nothing has a price by this formula"
    if shares.certificate.status is Status.OPTIMAL or shares.stages:
        yield "a formula seeks no optimum"


_FORMULAS = {"isolated": _check_isolated, "allox": _check_allox}
_UNCHECKED = {"isolated": ("the bound",), "allox": ("the objective", "the bound")}


def relative_gap(objective: float, bound: float) -> float:
    """|bound - objective| / |bound|; 0 where they are equal, infinite where nothing is reached or proved."""
    if objective == bound:
        return 0.0
    if not (np.isfinite(objective) and np.isfinite(bound)):
        return float("inf")
    return abs(bound - objective) / max(1e-12, abs(bound))


def _about_certificate(shares: Shares, objective: float, bound: float, gap: float, violation: float) -> Iterator[str]:
    """What the certificate says against what was found."""
    stated = shares.certificate
    size = max(abs(objective) if np.isfinite(objective) else 0.0, abs(bound) if np.isfinite(bound) else 0.0, 1e-9)
    if not close(stated.objective, objective, size):
        yield f"objective: stated {stated.objective:.9g}, found {objective:.9g}"
    if not close(stated.bound, bound, size):
        yield f"bound: stated {stated.bound:.9g}, found {bound:.9g}"
    if not (stated.gap == gap or abs(stated.gap - gap) <= 2 * SAME * max(1.0, gap)):
        yield f"gap: stated {stated.gap:.3g}, found {gap:.3g}"
    if not violation <= stated.violation + _FEASIBLE:
        yield f"violation: stated {stated.violation:.3g}, found {violation:.3g}"
    if stated.status is Status.OPTIMAL and not gap <= OPTIMAL:
        yield f"called optimal with a gap of {gap:.3g}"


def _about_order(problem: Problem, order: Order) -> Iterator[str]:
    """An order names every job once, and has an opinion on every configuration."""
    if sorted(order.rows) != list(range(len(problem.jobs))):
        yield "the order does not name every job exactly once"
    if len(order.preference) != len(problem.columns) or not np.all(np.isfinite(order.preference)):
        yield "the preference does not rank every configuration"
    yardstick = order.yardstick
    if yardstick is not None:
        if yardstick.objective < yardstick.bound * (1 - SAME):
            yield f"{yardstick.name}: {yardstick.objective:.9g} is below its bound, {yardstick.bound:.9g}"
        gap = (yardstick.objective - yardstick.bound) / max(1e-12, yardstick.bound)
        if np.isfinite(gap) and abs(yardstick.gap - gap) > SAME * max(1.0, abs(gap)):
            yield f"{yardstick.name}: gap stated {yardstick.gap:.3g}, found {gap:.3g}"
