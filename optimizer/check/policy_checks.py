"""The check of each policy's answers: the measure of its objective, or the formula that its shares follow.

A policy class names the check of its answers in the attribute `checked_by`: "module:NAME" of a `PolicyCheck`, which is
loaded only when an answer is checked. So the checker names no policy, and a policy of another package may bring its
own check. A check shares no code with the policy.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from optimizer.check import policy_measures as measures
from optimizer.check.entity_tree import CheckedTree
from optimizer.check.jobwise_problem import JobwiseProblem, isolated_shares
from optimizer.check.policy_measures import CheckRequest, PolicyMeasure
from optimizer.check.stage_proofs import SOLVER_TOLERANCE
from optimizer.decision import Shares, Status
from optimizer.policy import PolicySpec
from optimizer.problem import BoolArray, FloatArray, Problem
from optimizer.registry import names, policy_class
from walras.errors import ConfigError, UnknownPolicyError

#: Unit of prices where there are none.
_NO_PRICE_UNIT = "nothing has a price"


@dataclass(frozen=True, slots=True)
class PolicyCheck:
    """The checker's description of a policy: either `measure` or `formula` is given."""

    #: Makes the measure of a policy that solves programs and proves them by prices.
    measure: Callable[[CheckRequest], PolicyMeasure] | None = None
    #: Returns (objective, bound) of shares that follow a formula, and appends complaints.
    formula: Callable[[JobwiseProblem, Shares, list[str]], tuple[float, float]] | None = None
    #: Returns (jobs, accelerators that these jobs never exceed together) from the policy's parameters.
    limits: Callable[[JobwiseProblem, Mapping[str, Any]], list[tuple[BoolArray, float]]] | None = None
    #: True: the policy weighs money against speed, so it need not choose the cheapest mixed gang at its prices.
    counts_money: bool = False
    #: Claims that no answer of the policy proves; the checker takes them as stated.
    unchecked: tuple[str, ...] = ()


def policy_check_of(policy: PolicySpec) -> PolicyCheck | None:
    """The check that the policy names in `checked_by`; None if there is no such policy, or it names none.

    Raises:
        ConfigError: the named check cannot be loaded.
    """
    try:
        named: str = getattr(policy_class(policy.name), "checked_by", "")
    except UnknownPolicyError:
        return None
    if not named:
        return None
    module, _, name = named.partition(":")
    try:
        check = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the check of policy '{policy.name}' cannot be loaded from {named}: {error}") from error
    if not isinstance(check, PolicyCheck):
        raise ConfigError(f"the check of policy '{policy.name}', {named}, is no PolicyCheck")
    return check


def measure_of(policy: PolicySpec, check: PolicyCheck | None, request: CheckRequest) -> PolicyMeasure:
    """The measure of a policy for one answer.

    Raises:
        UnknownPolicyError: no measure is written for the policy.
    """
    if check is None or check.measure is None:
        checks = ((name, policy_check_of(PolicySpec(name))) for name in names())
        known = [name for name, other in checks if other is not None and other.measure is not None]
        raise UnknownPolicyError(
            f"the checker has no measure for policy '{policy.name}'; it has: {', '.join(known)}",
            field="policy.name",
            fix="check an answer of one of these, or give the policy class a `checked_by`",
        )
    return check.measure(request)


def jobwise_problem(
    problem: Problem, policy: PolicySpec, rent: FloatArray, check: PolicyCheck | None
) -> JobwiseProblem:
    """The problem job by job as the policy sees it, with `rent` accelerators of each pool rented (p,)."""
    parameters = policy.parameters
    aware, packs = bool(parameters.get("aware", True)), bool(parameters.get("packed", False))
    facts = JobwiseProblem(problem, rent, aware=aware, packs=packs)
    if check is not None and check.limits is not None:
        facts.limit(check.limits(facts, parameters))
    return facts


# ------------------------------------------------------------------------------------------- shares by a formula


def _check_isolated(facts: JobwiseProblem, shares: Shares, complaints: list[str]) -> tuple[float, float]:
    """Check equal shares of every pool. The bound is that of max-min fairness, whose prices are not in the answer."""
    expected = isolated_shares(facts)
    for job, mine in enumerate(facts.columns_of):
        if any(abs(shares.x[c] - expected[c]) > SOLVER_TOLERANCE for c in mine):
            complaints.append(f"job {facts.problem.jobs.job_id[job]} does not have its equal part")
    level = measures.weighted_level(facts).reached(facts, shares)
    complaints += _formula_complaints(shares)
    if shares.certificate.bound < level * (1 - SOLVER_TOLERANCE):
        complaints.append("the bound is below what the shares reach")
    return level, shares.certificate.bound


def _check_allox(facts: JobwiseProblem, shares: Shares, complaints: list[str]) -> tuple[float, float]:
    """Check whole placements. The answer holds no queue positions, and so no sum of completion times."""
    if np.any((shares.x != 0) & (shares.x != 1)):
        complaints.append("a job has a part of a place")
    complaints += _formula_complaints(shares)
    if shares.certificate.objective < shares.certificate.bound * (1 - SOLVER_TOLERANCE):
        complaints.append("the objective is below what is called its bound")
    return shares.certificate.objective, shares.certificate.bound


def _formula_complaints(shares: Shares) -> Iterator[str]:
    """Check that an answer without a program quotes no prices."""
    quote = shares.quote
    if quote.prices.any() or shares.surplus.any() or quote.exchange != 1 or quote.unit != _NO_PRICE_UNIT:
        yield "nothing has a price by this formula"
    if shares.certificate.status is Status.OPTIMAL or shares.stages:
        yield "a formula seeks no optimum"


def _entity_limits(facts: JobwiseProblem, parameters: Mapping[str, Any]) -> list[tuple[BoolArray, float]]:
    return CheckedTree(facts, measures.project_terms(parameters)).limits(facts)


# --------------------------------------------------------------------------------- what policies name: `checked_by`

MAX_MIN_FAIRNESS = PolicyCheck(measures.max_min_fairness)
WATER_FILLING = PolicyCheck(measures.water_filling)
HIERARCHICAL = PolicyCheck(measures.hierarchical, limits=_entity_limits)
FINISH_TIME_FAIRNESS = PolicyCheck(measures.finish_time_measure)
MAKESPAN = PolicyCheck(measures.makespan)
PROPORTIONAL_FAIRNESS = PolicyCheck(measures.proportional_fairness)
THROUGHPUT = PolicyCheck(measures.throughput)
THROUGHPUT_PER_DOLLAR = PolicyCheck(measures.throughput_per_dollar, counts_money=True)
COST_WITH_SLOS = PolicyCheck(measures.cost_with_slos, counts_money=True)
ISOLATED = PolicyCheck(formula=_check_isolated, unchecked=("the bound",))
ALLOX = PolicyCheck(formula=_check_allox, unchecked=("the objective", "the bound"))
