"""The independent checker of an answer: it recomputes everything from the problem and shares no code with the solvers.

Where policies work on matrices and classes, the checker follows the definitions job by job. Of an answer in shares it
uses only shares and prices: from the problem it computes what the shares reach, and the bound that the prices prove.
It decides whether an answer is what it claims to be, and reports every disagreement as a complaint.

Mixed gangs made for an answer are checked too. At given prices, the cheapest gang of a pace takes the cheapest
accelerators that are fast enough, so one gang per pace is compared. A job whose known configurations are as cheap at
every pace gains nothing by a gang over several pools.

A policy class names the check of its answers in the attribute `checked_by`: "module:NAME" of a `PolicyCheck`, which is
loaded only when an answer is checked. So the checker names no policy, and a policy of another package may bring its
own check. A check shares no code with the policy.

Of a plan of `hadar`, what it reaches and the bound that its prices prove:

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
from optimizer.check.jobwise_problem import CheckedTree, JobwiseProblem, cheapest_mixture, isolated_shares
from optimizer.check.policy_measures import CheckRequest, PolicyMeasure
from optimizer.check.stage_proofs import (
    OPTIMAL,
    SAME,
    SOLVER_TOLERANCE,
    CheckedShares,
    PlanProof,
    agrees,
    expects_no_stage,
    quote_complaints,
    recompute_stages,
    report_complaints,
)
from optimizer.check.walras_proof import prove_walras_plan
from optimizer.decision import Decision, Memory, MultiPoolGangs, Order, Plan, Shares, Status
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


#: What may differ between two honest computations of a constraint.
_FEASIBLE = 1e-9
#: A pool may be exceeded by this part of what it has.
_PLAN_FEASIBLE = 1e-6


@dataclass(frozen=True, slots=True)
class CheckedCertificate:
    """The recomputed value of an answer. Without complaints, the answer is what it claims to be."""

    objective: float
    bound: float
    gap: float
    violation: float
    complaints: tuple[str, ...]
    #: Claims that cannot be recomputed from the answer, and were taken as stated.
    unchecked: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether there are no complaints."""
        return not self.complaints


def check_decision(
    problem: Problem, policy: PolicySpec, decision: Decision, memory: Memory = None
) -> CheckedCertificate:
    """Check an answer against the problem.

    Args:
        problem: a valid problem, as the policy was given it (before a rental: `Shares.rent` states the rented ones).
        policy: the policy that answered.
        decision: its answer.
        memory: the memory that the policy was given.

    Raises:
        UnknownPolicyError: the answer is in shares, and no measure is written for that policy.
    """
    if isinstance(decision, Plan):
        return _check_plan(problem, policy, decision, memory)
    if isinstance(decision, Order):
        trusted = ("the yardstick's objective and bound",) if decision.yardstick is not None else ()
        return CheckedCertificate(0.0, 0.0, 0.0, 0.0, tuple(_order_complaints(problem, decision)), trusted)
    check = policy_check_of(policy)
    facts = jobwise_problem(problem, policy, decision.rent, check)
    complaints = list(_share_complaints(facts, decision))
    violation = largest_violation(facts, decision)
    if decision.certificate.status is Status.EMPTY:
        objective, bound = 0.0, 0.0
        if facts.usable.any():
            complaints.append("called empty, but something can run")
    elif check is not None and check.formula is not None:
        objective, bound = check.formula(facts, decision, complaints)
    else:
        measure = measure_of(policy, check, CheckRequest(facts, policy.parameters, memory, decision))
        objective, bound = _check_program(facts, measure, decision, complaints)
    gap = recomputed_gap(objective, bound)
    complaints += _certificate_complaints(decision, objective, bound, gap, violation)
    unchecked = () if check is None else check.unchecked
    return CheckedCertificate(objective, bound, gap, violation, tuple(complaints), unchecked)


def _check_plan(problem: Problem, policy: PolicySpec, plan: Plan, memory: Memory) -> CheckedCertificate:
    complaints, check = tuple(plan_complaints(problem, plan)), policy_check_of(policy)
    if complaints or check is None or check.plan is None:
        return CheckedCertificate(0.0, 0.0, 0.0, 0.0, complaints, ("what a place is worth to a job",))
    proof = check.plan(problem, policy, plan, memory)
    gap = recomputed_gap(proof.objective, proof.bound)
    return CheckedCertificate(proof.objective, proof.bound, gap, 0.0, proof.complaints, proof.unchecked)


def _check_program(
    facts: JobwiseProblem, measure: PolicyMeasure, shares: Shares, complaints: list[str]
) -> tuple[float, float]:
    """Objective and bound of the shares of a policy that solves a program."""
    rows = len(facts.row_capacity)
    if any(len(stage.prices) != rows for stage in shares.stages):
        complaints.append(f"a stage has another number of prices than there are rows ({rows})")
        return 0.0, 0.0
    stated = CheckedShares(facts, measure, shares)
    found = recompute_stages(stated)
    complaints += [*measure.complaints, *found.complaints]
    complaints += quote_complaints(stated, found.recomputed)
    if tuple(shares.relaxed) != measure.relaxed:
        complaints.append("the jobs whose deadline was relaxed are not those listed")
    if shares.certificate.maximise is not measure.maximise:
        complaints.append(f"the policy {'maximises' if measure.maximise else 'minimises'}")
    if not found.recomputed:
        if not expects_no_stage(facts, measure):
            complaints.append("no stage proves anything")
        return 0.0, 0.0
    first = found.recomputed[0]
    return measure.certified(shares, first.value, first.bound)


def _share_complaints(facts: JobwiseProblem, shares: Shares) -> Iterator[str]:
    if not all(np.all(np.isfinite(values)) for values in (shares.x, shares.rent, shares.packed.share)):
        yield "a share is no number"
    violation = largest_violation(facts, shares)
    if not violation <= _FEASIBLE:
        yield f"a constraint is violated by {violation:.3g}"
    if np.any(shares.x[~facts.usable] != 0):
        yield "a configuration that cannot run has a share"
    if len(shares.packed) and not facts.pair_rows:
        yield "jobs are co-located although no job gains by it, or the policy co-locates none"
    if len(list(facts.pairs_in(shares.packed))) < len(shares.packed):
        yield "jobs are co-located that form no listed pair in their pool"
    pools = facts.problem.pools
    if np.any(shares.rent < 0) or np.any(shares.rent > np.maximum(pools.rentable, pools.held) * (1 + _FEASIBLE)):
        yield "more is rented than there is to rent"
    if not np.array_equal(shares.unplaceable, np.flatnonzero(~facts.placeable)):
        yield "the jobs without any configuration are not those listed"


def largest_violation(facts: JobwiseProblem, shares: Shares) -> float:
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


def recomputed_gap(objective: float, bound: float) -> float:
    """|bound - objective| / |bound|; 0 where they are equal, infinite where nothing is reached or proved."""
    if objective == bound:
        return 0.0
    if not (np.isfinite(objective) and np.isfinite(bound)):
        return float("inf")
    return abs(bound - objective) / max(1e-12, abs(bound))


def _certificate_complaints(
    shares: Shares, objective: float, bound: float, gap: float, violation: float
) -> Iterator[str]:
    """Compare the certificate's figures with the recomputed ones."""
    stated = shares.certificate
    size = max(abs(objective) if np.isfinite(objective) else 0.0, abs(bound) if np.isfinite(bound) else 0.0, 1e-9)
    if not agrees(stated.objective, objective, size):
        yield f"objective: stated {stated.objective:.9g}, found {objective:.9g}"
    if not agrees(stated.bound, bound, size):
        yield f"bound: stated {stated.bound:.9g}, found {bound:.9g}"
    if not (stated.gap == gap or abs(stated.gap - gap) <= 2 * SOLVER_TOLERANCE * max(1.0, gap)):
        yield f"gap: stated {stated.gap:.3g}, found {gap:.3g}"
    if not violation <= stated.violation + _FEASIBLE:
        yield f"violation: stated {stated.violation:.3g}, found {violation:.3g}"
    if stated.status is Status.OPTIMAL and not gap <= OPTIMAL:
        yield f"called optimal with a gap of {gap:.3g}"


def _order_complaints(problem: Problem, order: Order) -> Iterator[str]:
    """Check that an order names every job once and scores every configuration."""
    if sorted(order.rows) != list(range(len(problem.jobs))):
        yield "the order does not name every job exactly once"
    if len(order.preference) != len(problem.columns) or not np.all(np.isfinite(order.preference)):
        yield "the preference does not rank every configuration"
    yardstick = order.yardstick
    if yardstick is not None:
        if yardstick.objective < yardstick.bound * (1 - SOLVER_TOLERANCE):
            yield f"{yardstick.name}: {yardstick.objective:.9g} is below its bound, {yardstick.bound:.9g}"
        gap = (yardstick.objective - yardstick.bound) / max(1e-12, yardstick.bound)
        if np.isfinite(gap) and abs(yardstick.gap - gap) > SOLVER_TOLERANCE * max(1.0, abs(gap)):
            yield f"{yardstick.name}: gap stated {yardstick.gap:.3g}, found {gap:.3g}"


def plan_complaints(problem: Problem, plan: Plan) -> Iterator[str]:
    """Check a plan; returns complaints."""
    n, columns, pools = len(problem.jobs), problem.columns, problem.pools
    if sorted(plan.rows.tolist()) != list(range(n)) or len(plan.column) != n:
        yield "the plan does not name every job exactly once"
        return
    placed = np.flatnonzero(plan.column >= 0)
    chosen = plan.column[placed]
    if np.any(chosen >= len(columns)) or np.any(columns.job[chosen] != placed):
        yield "a job is planned in a configuration that it has not"
        return
    if np.any(columns.steps_per_s[chosen] <= 0):
        yield "a job is planned in a configuration that cannot run"
    held = np.isin(columns.use_column, chosen)
    used = np.bincount(columns.use_pool[held], columns.use_count[held], len(pools))
    for row in np.flatnonzero(used > pools.capacity * (1 + _PLAN_FEASIBLE) + _PLAN_FEASIBLE):
        yield f"{pools.pool_id[row]}: {used[row]:g} accelerators are planned, {pools.capacity[row]:g} are there"
    if not np.all(plan.quote.prices >= 0) or not np.all(plan.surplus >= 0):
        yield "a price or a surplus is negative"
    yardstick = plan.yardstick
    if yardstick is not None and yardstick.objective > yardstick.bound * (1 + _PLAN_FEASIBLE) + _PLAN_FEASIBLE:
        yield f"{yardstick.name}: {yardstick.objective:.9g} is above its bound, {yardstick.bound:.9g}"


#: Two honest computations agree to this part.
_SAME_SPEED = 1e-6


def invalid_mixed_gangs(problem: Problem, mixtures: MultiPoolGangs) -> Iterator[tuple[int, str]]:
    """Gangs that the problem does not allow: their number and the fault."""
    mixes, speeds = problem.jobs.mixes, _speed_by_pool(problem)
    for number, (job, rate, use) in enumerate(zip(mixtures.job, mixtures.steps_per_s, mixtures.use, strict=True)):
        gang, used = float(problem.jobs.gang[job]), np.flatnonzero(use > 0)
        job_id = int(problem.jobs.job_id[job])
        slowest = min((speeds[job].get(int(pool), 0.0) for pool in used), default=0.0)
        if len(problem.jobs.fork_max) and problem.jobs.fork_max[job] > 1 and _is_fork(problem, job, use, speeds[job]):
            most = sum(use[pool] / gang * speeds[job][int(pool)] for pool in used)
            if not 0 < rate <= most * (1 + _SAME_SPEED):
                yield number, f"its parts add up to {most:g} steps/s at most"
        elif not len(mixes) or not mixes[job]:
            yield number, f"job {job_id} does not mix"
        elif use.sum() != gang or np.any(use != np.floor(use)) or len(used) < 2:
            yield number, f"it is no gang of {gang:g} accelerators in several pools"
        elif slowest <= 0 or abs(rate - slowest) > _SAME_SPEED * slowest:
            yield number, f"it runs at {slowest:g} steps/s, the speed of its slowest pool"


def _is_fork(problem: Problem, job: int, use: FloatArray, speed: dict[int, float]) -> bool:
    """Whether the parts are whole gangs in pools where the job runs, and no more than it may have."""
    parts = use / problem.jobs.gang[job]
    runs = all(speed.get(int(pool), 0.0) > 0 for pool in np.flatnonzero(use > 0))
    return runs and not np.any(parts != np.floor(parts)) and 2 <= parts.sum() <= problem.jobs.fork_max[job]


def mixed_gang_complaints(problem: Problem, policy: PolicySpec, decision: Decision) -> Iterator[str]:
    """Mixed gangs that would have been cheaper at the prices of a stage than the columns considered."""
    if not len(problem.jobs.mixes) or not isinstance(decision, Shares):
        return
    check = policy_check_of(policy)
    if decision.certificate.status is not Status.OPTIMAL or (check is not None and check.counts_money):
        return
    facts, speeds = jobwise_problem(problem, policy, decision.rent, check), _speed_by_pool(problem)
    for number, stage in enumerate(decision.stages, start=1):
        prices = stage.prices
        if len(prices) != len(problem.pools):
            return
        for job in np.flatnonzero(problem.jobs.mixes).tolist():
            if any(_undercuts(facts, job, pace, speeds[job], prices) for pace in set(speeds[job].values())):
                yield f"stage {number}: job {int(problem.jobs.job_id[job])} has a better gang over several pools"


def _undercuts(facts: JobwiseProblem, job: int, pace: float, speed: dict[int, float], prices: FloatArray) -> bool:
    """Whether the cheapest gang of at least this pace over several pools undercuts all known ways to its speed."""
    left, cost, slowest, parts = float(facts.problem.jobs.gang[job]), 0.0, np.inf, 0
    for pool in sorted((pool for pool in speed if speed[pool] >= pace), key=lambda pool: (prices[pool], pool)):
        taken = min(left, float(np.floor(facts.capacity[pool] + 1e-9)))
        if taken > 0:
            left, cost, slowest, parts = left - taken, cost + taken * prices[pool], min(slowest, speed[pool]), parts + 1
    if left > 0 or parts < 2:
        return False
    menu = facts.menu(facts.problem.columns.steps_per_s, facts.cost(prices))
    known = float(cheapest_mixture(menu, np.full(facts.jobs, slowest))[job])
    return cost < known * (1 - _SAME_SPEED) - 1e-12


def _speed_by_pool(problem: Problem) -> list[dict[int, float]]:
    """Speed of each job's whole gang by pool, for the pools in which the gang may run alone."""
    columns, speeds = problem.columns, [dict[int, float]() for _ in range(len(problem.jobs))]
    uses = np.bincount(columns.use_column, minlength=len(columns))
    for column, pool, count in zip(columns.use_column, columns.use_pool, columns.use_count, strict=True):
        job, rate = int(columns.job[column]), float(columns.steps_per_s[column])
        if uses[column] == 1 and count == problem.jobs.gang[job] and rate > 0:
            speeds[job][int(pool)] = max(speeds[job].get(int(pool), 0.0), rate)
    return speeds
