"""The independent checker of an answer: it recomputes everything from the problem and shares no code with the solvers.

Where policies work on matrices and classes, the checker follows the definitions job by job. Of an answer in shares it
uses only shares and prices: from the problem it computes what the shares reach, and the bound that the prices prove.
It decides whether an answer is what it claims to be, and reports every disagreement as a complaint.

Mixed gangs made for an answer are checked too. At given prices, the cheapest gang of a pace takes the cheapest
accelerators that are fast enough, so one gang per pace is compared. A job whose known configurations are as cheap at
every pace gains nothing by a gang over several pools.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optimizer.check.jobwise_problem import JobwiseProblem, cheapest_mixture
from optimizer.check.policy_checks import jobwise_problem, measure_of, policy_check_of
from optimizer.check.policy_measures import CheckRequest, PolicyMeasure
from optimizer.check.stage_proofs import (
    OPTIMAL,
    SOLVER_TOLERANCE,
    agrees,
    expects_no_stage,
    quote_complaints,
    recompute_stages,
)
from optimizer.decision import Decision, Memory, MultiPoolGangs, Order, Plan, Shares, Status
from optimizer.policy import PolicySpec
from optimizer.problem import FloatArray, Problem

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
    found = recompute_stages(facts, measure, shares)
    complaints += [*measure.complaints, *found.complaints]
    complaints += quote_complaints(facts, measure, shares, found.recomputed)
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
