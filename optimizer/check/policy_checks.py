"""The check of each policy's answers: the measure of its objective, or the formula that its shares follow.

A policy class names the check of its answers in the attribute `checked_by`: "module:NAME" of a `PolicyCheck`, which is
loaded only when an answer is checked. So the checker names no policy, and a policy of another package may bring its
own check. A check shares no code with the policy.

Whether a plan of `hadar` reaches what it says, and whether its prices prove its bound.

    utility   = seconds of the whole job alone on its fastest pool / seconds from its submission to its end
    rounds    = max(1, seconds until its end / length of a round)
    reached   = sum over placed jobs of utility / rounds
    surplus_j = max(0, max_c utility / rounds - prices x use_c)        whole gangs of one pool
    bound     = sum_j surplus_j + prices x capacity

Gangs over several pools and forks that a job might have are not listed in an answer. So where jobs may have them, a
surplus is checked from below.
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
from optimizer.check.stage_proofs import SAME, SOLVER_TOLERANCE, PlanProof, report_complaints
from optimizer.check.walras_proof import prove_walras_plan
from optimizer.decision import Memory, Plan, Shares, Status
from optimizer.policy import PolicySpec
from optimizer.problem import BoolArray, FloatArray, Problem
from optimizer.registry import make, names, policy_class
from walras.errors import ConfigError, UnknownPolicyError

_NAME = "utility per round of those placed, against weak duality at the quoted prices"
_UNIT = "utility per accelerator and round"


def prove_hadar_plan(problem: Problem, policy: PolicySpec, plan: Plan, memory: Memory) -> PlanProof:
    """Recompute what a plan of `hadar` states. The plan names only columns that its jobs have."""
    hadar: Any = make(policy)
    complaints: list[str] = []
    gangs = _Gangs(problem, float(hadar.round_s))
    jobs, prices = problem.jobs, plan.quote.prices
    for job in range(len(jobs)):
        least = max([0.0, *(gangs.worth(job, c) - float(prices @ gangs.uses[c]) for c in gangs.alone[job])])
        mixes = (len(jobs.mixes) and jobs.mixes[job]) or (len(jobs.fork_max) and jobs.fork_max[job] > 1)
        stated = float(plan.surplus[job])
        if stated < least - SAME * max(least, 1e-9) or (not mixes and stated > least + SAME * max(least, 1e-9)):
            complaints.append(f"job {int(jobs.job_id[job])}: surplus stated {stated:.9g}, {least:.9g} at the prices")
    placed = np.flatnonzero(plan.column >= 0)
    objective = float(sum(gangs.worth(job, int(plan.column[job])) for job in placed.tolist()))
    bound = float(plan.surplus.sum() + prices @ problem.pools.capacity)
    complaints += report_complaints(plan.yardstick, (_NAME, _UNIT), objective, bound)
    return PlanProof(objective, bound, tuple(complaints))


class _Gangs:
    """The gangs of one pool that each job may have, and what each column is worth per round."""

    def __init__(self, problem: Problem, round_s: float) -> None:
        columns, jobs, n = problem.columns, problem.jobs, len(problem.jobs)
        self._problem, self._round_s = problem, round_s
        self.uses = np.zeros((len(columns), len(problem.pools)))
        np.add.at(self.uses, (columns.use_column, columns.use_pool), columns.use_count)
        usable = (columns.steps_per_s > 0) & np.all(self.uses <= problem.pools.capacity + 1e-9, axis=1)
        smallest: list[dict[int, int]] = [{} for _ in range(n)]
        for c in np.flatnonzero(usable & ((self.uses > 0).sum(axis=1) == 1)).tolist():
            job, pool = int(columns.job[c]), int(np.argmax(self.uses[c]))
            before = smallest[job].get(pool)
            if before is None or self._rank(c) < self._rank(before):
                smallest[job][pool] = c
        self.alone = [list(found.values()) for found in smallest]
        self._held = np.zeros((n, len(problem.pools)))
        for c in np.flatnonzero(columns.running).tolist():
            self._held[columns.job[c]] = self.uses[c]
        self._fastest = [max((float(columns.steps_per_s[c]) for c in mine), default=0.0) for mine in self.alone]
        self._done = jobs.done_steps if len(jobs.done_steps) else np.zeros(n)

    def _rank(self, c: int) -> tuple[float, float, int]:
        return float(self.uses[c].sum()), -float(self._problem.columns.steps_per_s[c]), c

    def _left_steps(self, job: int) -> float:
        """Steps left: as known, else by the submitter's guess, else as many as the job has made; a round at least."""
        jobs, fastest, done = self._problem.jobs, self._fastest[job], float(self._done[job])
        if np.isfinite(jobs.remaining_steps[job]):
            return float(jobs.remaining_steps[job])
        guess_s = float(jobs.length_s[job]) if len(jobs.length_s) else np.inf
        return max(guess_s * fastest - done if np.isfinite(guess_s) else done, fastest * self._round_s)

    def worth(self, job: int, c: int) -> float:
        """Utility per round of a column."""
        jobs, fastest, left = self._problem.jobs, self._fastest[job], self._left_steps(job)
        restart_s = float(jobs.restart_s[job]) if len(jobs.restart_s) else 0.0
        moves = bool(np.any(self.uses[c] != self._held[job]))
        ends_s = left / float(self._problem.columns.steps_per_s[c]) + (restart_s if moves else 0.0)
        alone_s = (left + float(self._done[job])) / fastest if fastest > 0 else 0.0
        age_s = max(self._problem.at - float(jobs.submitted_at[job]), 0.0)
        return alone_s / max(age_s + ends_s, 1e-9) / max(1.0, ends_s / self._round_s)


#: Unit of prices where there are none.
_NO_PRICE_UNIT = "nothing has a price"


@dataclass(frozen=True, slots=True)
class PolicyCheck:
    """The checker's description of a policy: `measure` or `formula` for shares, `plan` for plans."""

    #: Makes the measure of a policy that solves programs and proves them by prices.
    measure: Callable[[CheckRequest], PolicyMeasure] | None = None
    #: Returns (objective, bound) of shares that follow a formula, and appends complaints.
    formula: Callable[[JobwiseProblem, Shares, list[str]], tuple[float, float]] | None = None
    #: Recomputes what a plan states, given the policy's memory before it.
    plan: Callable[[Problem, PolicySpec, Plan, Memory], PlanProof] | None = None
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
WALRAS = PolicyCheck(plan=prove_walras_plan)
HADAR = PolicyCheck(plan=prove_hadar_plan)
