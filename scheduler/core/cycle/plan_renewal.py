"""Whether the plan in force would be made again, so that a round's end need not request one.

Most rounds of a cluster that is not full end like this: nothing has happened, each job runs where it was planned, and
only time has passed. The policy states until when time alone does not change its plan (`Plan.holds_until_at`; for
`walras`, `optimizer.assignment.plan_duration` derives it). This module adds what only the scheduler knows, so that the
renewed plan is exactly the one that a solve would have given, with the same memory, and carrying that one out would
have done nothing:

    nothing else happened       no event and no timer told of anything since the plan was requested
    it is carried out           each job that may run holds its place and is not asked to leave; no place is reserved
    no one else reads a clock   what else depends on time in a problem, or acts on a new plan: the reliability of spot
                                machines as they live on, running jobs by which the lengths that users state are
                                corrected, deadlines, bookings, shared accelerators, speeds still to be measured

A renewal counts as a request (`SolveState.requested_at`), so that later ones are due when they would have been, and as
an answer (`ActivePolicy.solved_at`), so that nobody who watches takes the prices for old. The one
part of a plan that changes with time alone is the order of importance. It is read only when a job loses its place, and
is found then (`PlanOrdering.renew`).

A solve takes time and a renewal does not. Where solves take no time, as in most simulations, runs are the same to the
bit; elsewhere an arrival during the solve that was saved need not wait for its answer.
"""

from optimizer.problem import Problem
from scheduler.core.ordering.plan_ordering import PlanOrdering
from scheduler.core.state.working_set import Cycle
from walras.cluster import Market


def renew_plan(cycle: Cycle, ordering: PlanOrdering, asked: Problem | None) -> bool:
    """Renews the plan in force if it holds, so that no new one is needed; returns whether it does.

    `asked`: the problem that it answers; None if there was none.
    """
    if asked is None or not plan_still_holds(cycle):
        return False
    if not cycle.due.round_ended:  # the round's end has settled what each job is owed, as a solve would
        cycle.ledger.columns.settle_all(cycle.now, cycle.policy.rules.owed_limit_s)
    cycle.policy.solved_at = cycle.now
    ordering.renew(asked)
    return True


def plan_still_holds(cycle: Cycle) -> bool:
    """Returns whether the plan in force would be given again, and carrying it out would change nothing (see above)."""
    proposal = cycle.policy.proposal
    if proposal is None or proposal.holds_until_at is None or cycle.now >= proposal.holds_until_at:
        return False
    return _nothing_happened(cycle) and not _others_read_clock(cycle) and _is_carried_out(cycle)


def _nothing_happened(cycle: Cycle) -> bool:
    """Returns whether nothing was told since the plan in force was requested."""
    solves = cycle.solves
    return solves.told_at_event <= solves.asked_at_event and solves.void_up_to < solves.last_request


def _others_read_clock(cycle: Cycle) -> bool:
    """Returns whether parts of the scheduler other than the policy may decide differently as time passes."""
    ledger, deadlines = cycle.ledger, cycle.deadlines
    if deadlines.heap or deadlines.secured or cycle.bookings.declared or cycle.sharing.willing:
        return True
    if ledger.lengths.counts_running or not ledger.classes.all_measured:
        return True
    return any(state.pool.market is Market.SPOT for state in ledger.fleet.pools)


def _is_carried_out(cycle: Cycle) -> bool:
    """Returns whether each job that may run has its place, and none is asked to leave it."""
    if cycle.reservations:
        return False
    eligible = cycle.ledger.columns.eligible
    return all(job.holds and job.revoked is None for job in cycle.ledger if eligible[job.slot])
