"""Values and prices of places: why no machine is rented for a job, which of its plans it runs, a plan's figures.

The values that a plan compares are in the policy's own unit: they rank the places of one solve and mean little to
people. The reasons why a job waits therefore say in words who has its place and who goes first, and carry these figures
beside.
"""

from math import inf

import numpy as np

from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.problem_snapshot import configurations_of
from scheduler.core.cycle.round import describe_newcomer
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import PoolState
from scheduler.core.state.ledger import JobRecord
from walras.cluster import gang_usd_per_h
from walras.job_request import JobRequest


def values_and_costs(core: SchedulerCore, job: JobRecord) -> dict[int, tuple[float, float, str]]:
    """Returns by pool, under a plan: the place's worth to the job, its cost at the plan's prices, and their unit.

    Empty under other policies, and before the first plan.
    """
    ledger, policy = core.ledger, core.cycle.policy
    quote, pools = policy.quote, ledger.fleet.pools
    if policy.pricing is None or not policy.plans or quote is None or len(quote.prices) != len(pools):
        return {}
    capacity = np.array([float(state.capacity) for state in pools])
    ways = configurations_of(ledger.classes, np.array([job.class_row]), capacity)
    if not len(ways.job):
        return {}
    value = policy.value(describe_newcomer(ledger, job, ways, capacity), quote)
    cost = ways.count * quote.prices[ways.pool]
    # Of several gang sizes on a pool, the one with the largest surplus comes last and is kept.
    return {int(ways.pool[at]): (value[at], cost[at], quote.unit) for at in np.argsort(value - cost, kind="stable")}


def plan_taken(core: SchedulerCore, job: JobRecord) -> str:
    """Returns which of its stated plans the job runs; empty for a job without plans, or while it waits."""
    menu, ledger = job.request.plans, core.ledger
    held: dict[str, int] = {}
    for pool, count in ledger.parts_of(job) if menu else ():
        name = ledger.fleet.pools[pool].pool.shape.accelerator
        held[name] = held.get(name, 0) + count
    taken = job.request.plan_of(held)
    if taken is None:
        return ""
    row = menu.index(taken)
    return f"has {taken.text}: plans[{row}] of {len(menu)}, which states {taken.steps_per_s:.3g} steps/s"


def price_figure(core: SchedulerCore, pool: int) -> str:
    """Returns the price of an accelerator of the pool in the last solve; empty where the policy has no prices."""
    policy = core.ledger.policy
    if policy.quote is None or pool >= len(policy.quote.prices):
        return ""
    return f"price {policy.quote.prices[pool]:.3g} {policy.quote.unit}"


def why_not_rented(rules: RoundRules, request: JobRequest, state: PoolState, count: int) -> tuple[str, str]:
    """Returns why the job's value pays for no machine of the pool, and the remedy; empty texts if that is not why."""
    if not state.rented or state.pool.drained or request.deadline_at < inf:
        return "", ""
    value, by = rules.value_of(request)
    price = gang_usd_per_h(state.pool, count)
    if value >= price and value > 0:
        return "", ""
    says = "no value of an hour is stated for this job" if not by else f"its {by} says {value:g} USD/h"
    if by in ("job", "policy"):
        says = f"an hour of it is worth {value:g} USD by the {by}"
    detail = (
        f"the policy rents no more machines at this price: {says}, and {count} accelerators here cost {price:g} USD/h"
    )
    fix = (
        f"state a value above {price:g} USD/h: `value_usd_per_h` of the job, `rules.values` of the policy file for "
        f"project {request.project}, or `rules.delay_usd_per_h` for all"
    )
    return detail, fix
