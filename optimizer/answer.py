"""Answer a problem: validate it, decide what to rent, and ask the policy."""

from dataclasses import replace

import numpy as np

from optimizer.assignment.list_schedule import with_bound_report
from optimizer.assignment.mixed_gangs import answer_with_mixed_gangs
from optimizer.classes.aggregation import COMPILED_COLUMNS, distinct_jobs, distinct_jobs_if_sound
from optimizer.classes.segments import max_by
from optimizer.decision import Decision, Memory, Order, Shares
from optimizer.policy import AggregatesJobs, GivenOrderFacts, OrderPolicy, PlanPolicy, Policy, SharePolicy
from optimizer.problem import Problem
from optimizer.renting.machine_rental import Rental, rent_machines, with_rental
from optimizer.renting.market_plan import plan_in_market
from optimizer.validate import validate_problem


def answer_problem(
    policy: Policy, problem: Problem, memory: Memory, delay_usd_per_h: float
) -> tuple[Decision, Memory, Rental | None]:
    """Decide what to rent, where something is rentable and a job is worth it, then share out the resulting fleet.

    `Shares.rent` counts the machines of the rental, which take a while to come (or to go). Where shares may be of gangs
    over several pools, made as prices ask for them, the fleet is taken as it is: nothing is rented for them.

    Args:
        policy: from `optimizer.registry.make`.
        problem: the fleet and its jobs at one instant.
        memory: what the policy's last decision returned (warm start); None for the first decision.
        delay_usd_per_h: value of an hour of a job whose user stated none, USD; 0: nothing is rented for such a job.

    Raises:
        ProblemError: the problem is malformed. The certificate and the rental's status say how well a solve went.
    """
    if isinstance(policy, PlanPolicy):  # it says what happens now: machines on their way are not there
        validate_problem(problem)
        return plan_in_market(policy, problem, memory, delay_usd_per_h)
    key_fields = policy.job_key_fields if isinstance(policy, AggregatesJobs) else ()
    one_pass = key_fields and len(problem.columns) >= COMPILED_COLUMNS
    found = distinct_jobs_if_sound(problem, key_fields) if one_pass else None
    validate_problem(problem, walked=found is not None)
    if problem.jobs.mixes.any() and isinstance(policy, SharePolicy):
        return *answer_with_mixed_gangs(policy, problem, memory), None
    rental = rent_machines(problem, delay_usd_per_h) if problem.pools.rentable.any() else None
    if rental is not None:
        problem = with_rental(problem, rental)
    if isinstance(policy, OrderPolicy):
        return rank_jobs(policy, problem), memory, rental
    if not key_fields:
        return *policy.decide(problem, memory), rental
    # Equal jobs are decided about once, where the policy says what makes them equal.
    distinct = found if found is not None else distinct_jobs(problem, key_fields)
    decision, memory = policy.decide(replace(distinct.problem, pools=problem.pools), memory)  # with what is rented
    return (distinct.tell(decision) if isinstance(decision, Shares) else decision), memory, rental


def answer_as_asked(
    policy: Policy, problem: Problem, memory: Memory, delay_usd_per_h: float
) -> tuple[Decision, Memory, Rental | None]:
    """Answer as `answer_problem` does, but plan for the whole fleet of the problem, which is all that a checker has."""
    if not isinstance(policy, PlanPolicy):
        return answer_problem(policy, problem, memory, delay_usd_per_h)
    validate_problem(problem)
    return *policy.decide(problem, memory), rent_machines(problem, delay_usd_per_h)


def rank_jobs(policy: OrderPolicy, problem: Problem) -> Order:
    """Rank jobs by priority class, then by the policy's key, and columns by speed (aware) or by pool (agnostic)."""
    jobs, columns = problem.jobs, problem.columns
    keys = policy.key(_order_facts(problem))
    rows = np.lexsort((jobs.job_id, jobs.submitted_at, *keys[::-1], -jobs.priority_class))
    if policy.aware:
        order = Order(tuple(rows.tolist()), columns.steps_per_s)
        return with_bound_report(problem, order, strict=policy.strict)
    first_pool = np.full(len(columns), len(problem.pools), dtype=np.int64)
    np.minimum.at(first_pool, columns.use_column, columns.use_pool)
    order = Order(tuple(rows.tolist()), -first_pool.astype(np.float64))
    return with_bound_report(problem, order, strict=policy.strict)


def _order_facts(problem: Problem) -> GivenOrderFacts:
    """Derive the facts of an order policy from a problem, which states no waiting times: all are 0."""
    jobs, columns = problem.jobs, problem.columns
    fastest = max_by(columns.job, columns.steps_per_s, len(jobs))
    remaining_s = np.full(len(jobs), np.inf)
    np.divide(jobs.remaining_steps, fastest, out=remaining_s, where=fastest > 0)
    return GivenOrderFacts(
        submitted_at=jobs.submitted_at,
        priority_class=jobs.priority_class,
        gang=jobs.gang,
        attained_s=jobs.attained_s,
        served_s=jobs.attained_s,
        waited_s=np.zeros(len(jobs)),
        remaining_s=remaining_s,
        deadline_at=jobs.deadline_at,
    )
