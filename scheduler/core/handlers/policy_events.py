"""Events of the policy: a new policy, an answered or failed solve, and the timers of rounds and solves."""

from dataclasses import replace
from math import inf

from optimizer.policy import DeclaresLimits, FollowsWeights, OrderPolicy, Policy
from scheduler.core.cycle.round import MakeMechanism
from scheduler.core.cycle.solve_requests import apply_proposal
from scheduler.core.events import JobsRanked, PolicyChanged, SharesDeclared, Solved, SolveFailed, Woke
from scheduler.core.handlers.deadlines import entitle_secured_jobs
from scheduler.core.handlers.machine_events import rent_for_proposal
from scheduler.core.ordering.rank_ordering import RankOrdering
from scheduler.core.state.ledger import ActivePolicy
from scheduler.core.state.policy_faults import PolicyFault
from scheduler.core.state.working_set import Cycle, JobOrdering

#: Number of consecutive failed solves after which a policy counts as failed.
SOLVES_UNTIL_FAULT = 3


def on_policy_changed(cycle: Cycle, event: PolicyChanged, policy: Policy, make_mechanism: MakeMechanism) -> None:
    """Puts the policy in force. Owed time starts at 0 again, and the answer of a solve in progress is discarded."""
    ledger, solves = cycle.ledger, cycle.solves
    pricing = None if isinstance(policy, OrderPolicy) else policy
    ledger.policy = cycle.policy = ActivePolicy(event.policy, pricing, event.rules)
    ledger.costs.version += 1
    ledger.columns.counts_owed = pricing is not None
    ledger.weights.is_used = ledger.lengths.is_used = event.rules.use_records
    ledger.weights.half_life_s = ledger.lengths.half_life_s = event.rules.usage_half_life_s
    ledger.usage.count_by(event.rules.usage_half_life_s, event.rules.usage_spot_factor, event.at)
    ledger.usage.make_up_from(isinstance(policy, FollowsWeights), event.at)
    cycle.spending.set_budgets(event.rules.budgets, event.rules.groups)
    cycle.limits.declare(policy.entity_limits() if isinstance(policy, DeclaresLimits) else {})
    cycle.ordering = JobOrdering()
    cycle.mechanism = make_mechanism(cycle, policy, event.rules)
    for job in ledger:
        if job.request.sizes:  # until the new policy resizes it, it runs as its submitter asked
            ledger.reclass(job, ledger.classes.row(job.request))
    ledger.columns.forget_entitlements(event.at)
    ledger.slow_machines.is_due = True
    solves.void_up_to = solves.last_request
    solves.problem_changed = True
    solves.requested_at = -inf
    cycle.backlog.rebuild_queues = True


def on_shares_declared(cycle: Cycle, event: SharesDeclared) -> None:
    """Takes over weights and guarantees for the next solve, and limits at once for everything that starts."""
    cycle.ledger.usage.declare(event.shares)
    cycle.limits.declare_shares(event.shares)
    cycle.solves.problem_changed = True
    cycle.backlog.rebuild_queues = True


def on_solved(cycle: Cycle, event: Solved) -> None:
    """Applies the answer unless it is void: entitlements, prices and machines to rent; then compares jobs by it."""
    if apply_proposal(cycle, event):
        cycle.policy.failed_solves = 0
        entitle_secured_jobs(cycle)
        rent_for_proposal(cycle, event.proposal)
        cycle.backlog.rebuild_queues = True
        cycle.due = replace(cycle.due, solve_ended=True)


def on_jobs_ranked(cycle: Cycle, event: JobsRanked) -> None:
    """Orders jobs by the keys that a policy in another process answers, unless another policy is in force by now."""
    solves, ordering = cycle.solves, cycle.ordering
    if event.request_id != solves.in_flight:
        return
    solves.in_flight = 0
    if event.request_id > solves.void_up_to and isinstance(ordering, RankOrdering):
        cycle.due = replace(cycle.due, solve_ended=ordering.take_keys(event))
        cycle.backlog.rebuild_queues = True


def on_solve_failed(cycle: Cycle, event: SolveFailed) -> None:
    """Requests a solve again when its interval allows; jobs are compared by the last answer until then.

    An order that was not answered has failed at once, as one that raises in this process has.
    """
    if event.request_id == cycle.solves.in_flight:
        cycle.solves.in_flight = 0
        cycle.solves.problem_changed = True
        cycle.due = replace(cycle.due, solve_ended=True)
        policy, is_void = cycle.policy, event.request_id <= cycle.solves.void_up_to
        policy.failed_solves += not is_void
        if policy.pricing is None and not is_void:
            policy.failed(PolicyFault("key", event.where, event.reason))
        elif policy.failed_solves >= SOLVES_UNTIL_FAULT:
            policy.failed(PolicyFault("decide", "", f"{policy.failed_solves} times in a row, the last: {event.reason}"))


def on_woke(cycle: Cycle, event: Woke) -> None:
    """Requests the next wake-up, since the last one is used up. Timers have run already."""
    cycle.timers.asked_at = inf


def on_round_timer(cycle: Cycle, subject: int, number: int) -> None:
    """Ends a round: settles what each job is owed, and fills the queues by it."""
    cycle.timers.round_at = inf
    cycle.due = replace(cycle.due, round_ended=True)
    cycle.backlog.rebuild_queues = True
    cycle.ledger.columns.settle_all(cycle.now, cycle.policy.rules.owed_limit_s)


def on_solve_timer(cycle: Cycle, subject: int, number: int) -> None:
    """Allows the next solve request."""
    cycle.solves.timer_at = inf
