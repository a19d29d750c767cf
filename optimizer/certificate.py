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
from optimizer.checking.quotes import check_quote
from optimizer.checking.stages import OPTIMAL, SAME, check_stages, close, expects_none
from optimizer.checking.yardsticks import Question, Yardstick, level_by_weight, yardstick_of
from optimizer.decision import Decision, Memory, Order, Shares, Status
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
        UnknownPolicyError: the answer is in shares, and no yardstick is written for that policy.
    """
    if isinstance(decision, Order):
        return CheckedCertificate(0.0, 0.0, 0.0, 0.0, tuple(_about_order(problem, decision)))
    facts = Facts(problem, decision.rent, aware=bool(policy.parameters.get("aware", True)))
    complaints = list(_about_shares(facts, decision))
    violation = violation_of(facts, decision.x)
    if decision.certificate.status is Status.EMPTY:
        objective, bound = 0.0, 0.0
        if facts.usable.any():
            complaints.append("called empty, but something can run")
    elif policy.name == "isolated":
        objective, bound = _check_formula(facts, decision, complaints)
    else:
        yardstick = yardstick_of(policy.name, Question(facts, policy.parameters, memory, decision))
        objective, bound = _check_program(facts, yardstick, decision, complaints)
    gap = relative_gap(objective, bound)
    complaints += _about_certificate(decision, objective, bound, gap, violation)
    return CheckedCertificate(objective, bound, gap, violation, tuple(complaints))


def _check_program(facts: Facts, yardstick: Yardstick, shares: Shares, complaints: list[str]) -> tuple[float, float]:
    """(objective, bound) of a policy that solves something."""
    found = check_stages(facts, yardstick, shares)
    complaints += [*yardstick.complaints, *found.complaints]
    complaints += check_quote(facts, yardstick, shares, found.told)
    if tuple(shares.relaxed) != yardstick.relaxed:
        complaints.append("the jobs whose deadline was relaxed are not those listed")
    if shares.certificate.maximise is not yardstick.maximise:
        complaints.append(f"the policy {'maximises' if yardstick.maximise else 'minimises'}")
    if not found.told:
        if not expects_none(facts, yardstick):
            complaints.append("no stage proves anything")
        return 0.0, 0.0
    first = found.told[0]
    return yardstick.certified(shares.x, first.value, first.bound)


def _about_shares(facts: Facts, shares: Shares) -> Iterator[str]:
    """Is it possible at all?"""
    if not (np.all(np.isfinite(shares.x)) and np.all(np.isfinite(shares.rent))):
        yield "a share is no number"
    violation = violation_of(facts, shares.x)
    if not violation <= _FEASIBLE:
        yield f"a constraint is violated by {violation:.3g}"
    if np.any(shares.x[~facts.usable] != 0):
        yield "a configuration that cannot run has a share"
    pools = facts.problem.pools
    if np.any(shares.rent < 0) or np.any(shares.rent > np.maximum(pools.rentable, pools.held) * (1 + _FEASIBLE)):
        yield "more is rented than there is to rent"
    if not np.array_equal(shares.unplaceable, np.flatnonzero(~facts.placeable)):
        yield "the jobs without any configuration are not those listed"


def violation_of(facts: Facts, x: FloatArray) -> float:
    """Largest violation of any constraint, relative to its right-hand side (1 where that is 0)."""
    worst = max(0.0, float(-x.min(initial=0.0)))
    used = np.zeros(len(facts.capacity))
    for mine in facts.columns_of:
        worst = max(worst, float(sum(x[c] for c in mine)) - 1.0)
        for column in mine:
            for pool, count in facts.uses[column].items():
                used[pool] += count * x[column]
    for pool, size in enumerate(facts.capacity):
        worst = max(worst, float(used[pool] - size) / (float(size) if size > 0 else 1.0))
    return worst


def _check_formula(facts: Facts, shares: Shares, complaints: list[str]) -> tuple[float, float]:
    """Shares by formula: an equal part of every pool. Their bound is max-min's, taken as stated if it can be one."""
    expected = isolated_shares(facts)
    for job, mine in enumerate(facts.columns_of):
        if any(abs(shares.x[c] - expected[c]) > SAME for c in mine):
            complaints.append(f"job {facts.problem.jobs.job_id[job]} does not have its equal part")
    quote = shares.quote
    if quote.prices.any() or shares.surplus.any() or quote.exchange != 1 or quote.unit != _FREE:
        complaints.append("nothing has a price by this formula")
    level = level_by_weight(facts).reached(facts, shares.x)
    if shares.certificate.bound < level * (1 - SAME):
        complaints.append("the bound is below what the shares reach")
    return level, shares.certificate.bound


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
