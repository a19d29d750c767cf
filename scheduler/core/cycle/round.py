"""One scheduling round: freed machines and arrivals, backfill, preemption, profiling leases, a solve request.

Two mechanisms turn a policy's decision into starts and stops. `OwedRounds` executes shares and orders: free places are
filled at once, and running jobs are compared with waiting ones once a round. `PlanRounds` executes plans: jobs that run
where they are planned continue; others start as places become free, or jobs that are not planned there are asked to
leave (a reservation keeps the place). A job that the plan leaves out runs on until another needs its place. The plan
has priced restarts already, so they are not weighed again. `RoundRules.mechanism` names the mechanism in force; a core
may be given others, such as those that reproduce another scheduler.

The arrival rule judges a newcomer at the current prices: it takes the configuration with the largest value minus price
if that is positive and free, else it enters the queues. Under a plan it waits instead for a place that has a price, if
the next plan is nearer than the restart that a hasty start may cost.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from math import inf

import numpy as np

from optimizer.decision import Quote
from optimizer.policy import AskedPlans, Newcomer, OrderPolicy, PlanPolicy, Policy, best_configuration_at
from optimizer.problem import FloatArray, Problem
from scheduler.core.cycle import solve_requests
from scheduler.core.cycle.backfill import fill_free_places, fill_rest
from scheduler.core.cycle.problem_snapshot import Configurations, configurations_of, plan_problem
from scheduler.core.cycle.profiling_leases import open_profiling_leases
from scheduler.core.cycle.slow_pools import sort_slow_machines
from scheduler.core.events import Proposal
from scheduler.core.ordering.plan_ordering import PlanOrdering
from scheduler.core.ordering.rank_ordering import RankOrdering
from scheduler.core.ordering.share_ordering import ShareOrdering
from scheduler.core.placement.attempt_lifecycle import start_attempt
from scheduler.core.placement.co_location import settle_sharing
from scheduler.core.placement.planned_gangs import defragment, place_multi_pool_jobs
from scheduler.core.placement.preemption import compare_with_running, preempt_now
from scheduler.core.placement.reservations import drop_reservation, offer_freed_machine, settle_reservation
from scheduler.core.placement.search import find_free_place, waits_for_closer
from scheduler.core.rules import OWED, RoundRules
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.remaining_work import guesses_by_record, unreported_steps
from scheduler.core.state.stopping import StopFor, may_be_stopped
from scheduler.core.state.working_set import Cycle, RoundMechanism, enqueue_job
from walras.cluster import Market
from walras.contract import HIGH_PRIORITY_CLASS
from walras.job_request import JobId

#: Unit of prices before the first solve.
_NO_UNIT = "none"

#: Function that makes a mechanism for a policy that has just come into force.
MakeMechanism = Callable[[Cycle, Policy, RoundRules], RoundMechanism]


class _Rounds(ABC):
    """One round: collect, order, place, and solve for the next; what differs is what is placed, and what is asked."""

    def settle(self, cycle: Cycle) -> None:
        """Does what is due now, and requests a solve."""
        is_new = self._collect(cycle)
        rebuild_queues(cycle)
        self._place(cycle, is_new=is_new)
        if cycle.sharing.willing:
            settle_sharing(cycle)
        set_slow_machines_apart(cycle)
        self._ask(cycle)
        set_round_timer(cycle)

    def _collect(self, cycle: Cycle) -> bool:
        """Takes in what was decided elsewhere; returns whether a plan is new."""
        return False

    @abstractmethod
    def _place(self, cycle: Cycle, *, is_new: bool) -> None:
        """Starts and stops jobs."""

    @abstractmethod
    def _ask(self, cycle: Cycle) -> None:
        """Requests what the next event should know."""


class OwedRounds(_Rounds):
    """Runs the jobs that are owed most: fills free places at once, compares running with waiting jobs once a round."""

    def __init__(self, cycle: Cycle, policy: Policy, rules: RoundRules) -> None:
        self._ranks: RankOrdering | None = None
        if isinstance(policy, OrderPolicy):
            cycle.ordering = self._ranks = RankOrdering(cycle.ledger, rules, policy)
        else:
            cycle.ordering = ShareOrdering(cycle.ledger, rules)
        #: Jobs of the high class that may be kept waiting by protected ones where no round compares them, in order of
        #: arrival, and the instant at which the next of those is protected no longer.
        self._held_up: dict[JobId, JobRecord] = {}
        self._protected_until = inf

    def _place(self, cycle: Cycle, *, is_new: bool) -> None:
        """Handles freed machines and arrivals, fills places, once a round preempts and profiles."""
        backlog, rules = cycle.backlog, cycle.policy.rules
        arrivals = process_freed_and_arrivals(cycle) if backlog.freed or backlog.arrived else ()
        if not rules.idle_to_round_end or cycle.due.compares:
            fill_free_places(cycle)
        for job in arrivals:
            preempt_if_high_class(cycle, job)
        if rules.protected_s > 0 and not cycle.ordering.compares:
            self._try_again_for_high_class(cycle, arrivals)
        if rules.round_s == 0 or (cycle.due.compares and not self._awaits_answer(cycle)):
            compare_with_running(cycle)
            if cycle.ordering.profiles:
                open_profiling_leases(cycle)
            process_freed_and_arrivals(cycle)
            fill_free_places(cycle)

    def _ask(self, cycle: Cycle) -> None:
        if self._ranks is not None:
            self._ranks.request_keys(cycle)
        elif cycle.solves.problem_changed:
            solve_requests.request_solve_if_due(cycle)

    def _try_again_for_high_class(self, cycle: Cycle, arrivals: Iterable[JobRecord]) -> None:
        """Lets jobs of the high class take places once those there are protected no longer, and sets the timer."""
        if cycle.now >= self._protected_until:
            for job in self._held_up.values():
                preempt_if_high_class(cycle, job)
        high = {job.job_id: job for job in arrivals if job.request.priority_class >= HIGH_PRIORITY_CLASS}
        jobs, nominated = cycle.ledger.jobs, cycle.queues.nominated
        self._held_up = {
            job_id: job
            for job_id, job in (self._held_up | high).items()
            if job.waits and job_id not in nominated and jobs.get(job_id) is job
        }
        until = inf
        if self._held_up:
            columns = cycle.ledger.columns
            lower = columns.active & (columns.pool >= 0) & (columns.priority_class < HIGH_PRIORITY_CLASS)
            ends_at = columns.protected_from(lower) + cycle.policy.rules.protected_s
            until = float(ends_at[ends_at > cycle.now].min(initial=inf))
        if until != self._protected_until:
            self._protected_until = until
            cycle.timers.set(until, "protection")  # only wakes the core

    def _awaits_answer(self, cycle: Cycle) -> bool:
        """Returns whether jobs are compared only once the solve requested at this round's end is answered or failed.

        Preemptions by shares that are about to be replaced would cost restarts in vain. If no answer is there when the
        next round ends, jobs are compared without it.
        """
        if not cycle.due.solve_ended:
            self._ask(cycle)
        return not cycle.due.solve_ended and cycle.solves.in_flight > 0 and cycle.solves.requested_at == cycle.now


class PlanRounds(_Rounds):
    """Carries out plans. Requests one at events, and at round ends as time has passed, unless the last plan holds."""

    def __init__(self, cycle: Cycle, policy: PlanPolicy, rules: RoundRules) -> None:
        self._ordering = cycle.ordering = PlanOrdering(cycle.ledger, policy.moves)
        #: The last plan that jobs were compared by.
        self.carried_out: Proposal | None = None
        #: The last problem that a plan was requested for.
        self._asked: Problem | None = None
        #: When the next profiling lease ends, as far as is known.
        self._lease_ends_at = inf

    def _collect(self, cycle: Cycle) -> bool:
        proposal = cycle.policy.proposal
        is_new = proposal is not None and proposal is not self.carried_out
        if is_new:
            self.carried_out = proposal
        elif cycle.due.compares:
            cycle.solves.time_passed = True
        if cycle.ledger.profiling:
            self._watch_leases(cycle)
        self._ordering.awaiting_lease.intersection_update(cycle.reservations)
        if is_new or cycle.backlog.freed:
            self._drop_stale_reservations(cycle)
        return is_new

    def _place(self, cycle: Cycle, *, is_new: bool) -> None:
        """Carries out a new plan, and gives free places to the jobs planned there."""
        process_freed_and_arrivals(cycle)
        if is_new:
            compare_with_running(cycle)
            process_freed_and_arrivals(cycle)
            defragment(cycle)
        place_multi_pool_jobs(cycle, self._ordering.multi_pool_plans(), may_displace=is_new)
        fill_free_places(cycle)
        self._pass_on(cycle)
        if is_new:
            if self._ordering.moves:
                fill_rest(cycle, self._ordering.unplanned)
            self._open_leases(cycle)

    def _ask(self, cycle: Cycle) -> None:
        solve_requests.request_solve_if_due(cycle, self._problem, self._renews)

    def _pass_on(self, cycle: Cycle) -> None:
        """Gives places that were left soon to the next jobs of the same class, as long plans come too late for them.

        A class has one price, and the order is the plan's.
        """
        left, cycle.backlog.left_soon = cycle.backlog.left_soon, []
        ledger = cycle.ledger
        for pool, class_row in left:
            state = ledger.fleet.pools[pool] if pool < len(ledger.fleet.pools) else None
            if state is None or not state.free or state.rented:
                continue
            job = self._ordering.next_unplanned(class_row)
            place = None if job is None else find_free_place(cycle, job, pool)
            if job is not None and place is not None:
                entitle_until_next_plan(cycle, job, pool, ledger.count_on(job, pool))
                start_attempt(cycle, job, pool, place)

    def _watch_leases(self, cycle: Cycle) -> None:
        """Requests another plan when a profiling lease ends, because a profiling job cannot be stopped before."""
        if cycle.now >= self._lease_ends_at:
            self._lease_ends_at, cycle.solves.problem_changed = inf, True
        learners = (self._ordering.lease_ends_at(cycle.ledger.jobs[job_id]) for job_id in cycle.ledger.profiling)
        ends_at = min((until for until in learners if until > cycle.now), default=inf)
        if ends_at < self._lease_ends_at:
            self._lease_ends_at = ends_at
            cycle.timers.set(ends_at, "lease")  # only wakes the core

    def _open_leases(self, cycle: Cycle) -> None:
        """Opens profiling leases. All jobs are in the plan already; the next plan takes the leases into account."""
        for job, pool in open_profiling_leases(cycle):
            self._ordering.grant_lease(job, pool)
            cycle.solves.problem_changed = True

    def _drop_stale_reservations(self, cycle: Cycle) -> None:
        """Drops reservations of jobs that are planned elsewhere now, and all of backfill, because the plan decides."""
        for reservation in tuple(cycle.reservations.values()):
            if not reservation.preempting or not self._ordering.is_planned(reservation):
                drop_reservation(cycle, reservation.job_id)

    def _problem(self, ledger: Ledger) -> Problem:
        self._asked = plan_problem(ledger, self._ordering)
        return self._asked

    def _renews(self, cycle: Cycle) -> bool:
        return renew_plan(cycle, self._ordering, self._asked)


def _native_mechanism(cycle: Cycle, policy: Policy, rules: RoundRules) -> RoundMechanism:
    """Returns `PlanRounds` for a policy that plans, `OwedRounds` for shares and orders."""
    return PlanRounds(cycle, policy, rules) if isinstance(policy, PlanPolicy) else OwedRounds(cycle, policy, rules)


#: Mechanisms that every core knows (`rules.KNOWN_MECHANISMS`).
MECHANISMS: dict[str, MakeMechanism] = {OWED: _native_mechanism}


# ------------------------------------------------------------------------------------------------ the same in both


def process_freed_and_arrivals(cycle: Cycle) -> list[JobRecord]:
    """Offers freed machines to reservations and judges arrivals until none is left. Returns the arrivals."""
    seen: list[JobRecord] = []
    backlog = cycle.backlog
    while backlog.freed or backlog.arrived:
        freed, backlog.freed = backlog.freed, {}
        for row in freed:
            machine = cycle.ledger.fleet.machines[row]
            if machine is not None:
                offer_freed_machine(cycle, machine)
        newcomers, backlog.arrived = backlog.arrived, []
        for job_id in newcomers:
            job = cycle.ledger.jobs.get(job_id)
            if job is not None:
                judge_arrival(cycle, job)
                seen.append(job)
    return seen


def rebuild_queues(cycle: Cycle) -> None:
    """Fills every queue anew, if a change concerns all of them."""
    if cycle.backlog.rebuild_queues:
        cycle.backlog.rebuild_queues = False
        cycle.queues.clear()
        cycle.ordering.fill_queues(cycle.queues)
        cycle.backlog.stale_pools.update(range(len(cycle.ledger.fleet.pools)))


def set_slow_machines_apart(cycle: Cycle) -> None:
    """Sorts slow machines into pools of their own, and out of them, where there are or were any."""
    known = cycle.ledger.slow_machines
    if (known.slow or known.pools) and sort_slow_machines(cycle):
        rebuild_queues(cycle)


def set_round_timer(cycle: Cycle) -> None:
    """Sets the timer of the round's end, if the ordering compares jobs then and there is a job."""
    if cycle.now < cycle.timers.round_at < inf:
        return
    rules = cycle.policy.rules
    if rules.round_s <= 0:
        return
    ordering = cycle.ordering
    if not (ordering.compares or rules.idle_to_round_end):
        return
    if not cycle.ledger.jobs:
        cycle.timers.round_at = inf
        return
    cycle.timers.round_at = (cycle.now // rules.round_s + 1) * rules.round_s
    cycle.timers.set(cycle.timers.round_at, "round")


# ------------------------------------------------------------------------------------------------ arrivals


def admit_arrival(cycle: Cycle, job: JobRecord) -> bool:
    """Applies the arrival rule: the job takes the configuration worth most above its price if that is free (design 2).

    Before the first solve no pool has a price. Returns whether the job was started.
    """
    pricing = cycle.policy.pricing
    if pricing is None or (job.request.sizes and cycle.deadlines.sizes_gang_of(job)):
        return False
    ledger, pools = cycle.ledger, cycle.ledger.fleet.pools
    capacity = np.array([float(state.capacity) for state in pools])
    ways = configurations_of(ledger.classes, np.array([job.class_row]), capacity)
    if not len(ways.job):
        return False
    quote = cycle.policy.quote
    if quote is None or len(quote.prices) != len(pools):
        quote = Quote(np.zeros(len(pools)), _NO_UNIT, 1.0)
    best, _ = best_configuration_at(cycle.policy, describe_newcomer(ledger, job, ways, capacity), quote)
    if best is None:
        return False
    pool = int(ways.pool[best])
    is_wanted = quote.unit == _NO_UNIT or bool(quote.prices[pool] > 0)
    # A job with several plans waits too, because the solve weighs all its plans and this place is only one of them.
    if _waits_for_plan(cycle, job, is_wanted=is_wanted or bool(job.request.plans)):
        return False
    if job.request.sizes:
        ledger.resize(job, {pools[pool].pool.shape.accelerator: int(ways.count[best])})
    place = find_free_place(cycle, job, pool)
    if place is None or waits_for_closer(cycle, job, pool, place):
        return False
    if pools[pool].rented and _would_hold_up_payers(cycle, job):
        return False
    entitle_until_next_plan(cycle, job, pool, float(ways.count[best]))
    start_attempt(cycle, job, pool, place)
    return True


def entitle_until_next_plan(cycle: Cycle, job: JobRecord, pool: int, count: float) -> None:
    """Entitles a job that starts before the next solve to the accelerators that it takes, and to no others."""
    columns = cycle.ledger.columns
    columns.settle(job.slot, cycle.now)
    columns.entitled[job.slot] = 0.0
    columns.entitled[job.slot, pool] = count


def _waits_for_plan(cycle: Cycle, job: JobRecord, *, is_wanted: bool) -> bool:
    """Returns whether the next plan comes sooner than a restart would take, so that the job should wait for it.

    A place without a price (`is_wanted` False) is taken at once unless a solve is in flight: no waiting job competes
    for it, and the job gains most there, so the plan would give the same.
    """
    policy = cycle.policy
    if not policy.plans:
        return False
    next_at = cycle.solves.requested_at + policy.rules.resolve_min_s
    is_near = next_at - cycle.now <= cycle.ledger.restart_s(job, policy.rules)
    return bool(cycle.solves.in_flight) or (is_wanted and is_near)


def _would_hold_up_payers(cycle: Cycle, job: JobRecord) -> bool:
    """Returns whether the job has no stated value and could not be asked to leave a machine that others pay for."""
    can_leave = may_be_stopped(cycle.ledger, job, StopFor.MARKET) is None
    return cycle.policy.plans and not can_leave and cycle.policy.rules.value_of(job.request)[0] <= 0


def describe_newcomer(ledger: Ledger, job: JobRecord, ways: Configurations, capacity: FloatArray) -> Newcomer:
    """Returns what a policy reads of a waiting job with these configurations."""
    columns, slot = ledger.columns, job.slot
    usd_per_h = np.array([state.pool.usd_per_h / state.pool.shape.accelerators for state in ledger.fleet.pools])
    return Newcomer(
        steps_per_s=ways.steps_per_s,
        pool=ways.pool,
        count=ways.count,
        weight=job.request.weight,
        usual_weight=ledger.weights.usual(job.request.owners[-1], job.request.weight),
        capacity=capacity,
        usd_per_h=usd_per_h,
        remaining_steps=unreported_steps(ledger, job),
        done_steps=job.steps,
        length_s=float(guesses_by_record(ledger, np.array([slot]))[0]),
        waited_s=ledger.now - float(columns.submitted_at[slot]),
        restart_s=ledger.restart_s(job, ledger.policy.rules),
        priority_class=job.request.priority_class,
    )


def judge_arrival(cycle: Cycle, job: JobRecord, *, may_start: bool = True) -> None:
    """Judges a job that may start from now on at current prices, and queues it if it is not started."""
    took_part = cycle.ledger.columns.eligible.item(job.slot)
    cycle.ledger.set_eligible(job)
    if not job.waits or job.ready_at > cycle.now:
        return
    # A job that returns to its reserved place took part all the time, so the problem has not changed.
    cycle.solves.problem_changed = cycle.solves.problem_changed or not took_part
    reservation = cycle.reservations.get(job.job_id)
    if reservation is not None:
        settle_reservation(cycle, reservation)
        return
    if not (may_start and admit_arrival(cycle, job)):
        enqueue_job(cycle, job)


def preempt_if_high_class(cycle: Cycle, job: JobRecord) -> None:
    """Lets a job of the high priority class that found no free place preempt one of a lower class now."""
    if job.request.priority_class >= HIGH_PRIORITY_CLASS and job.waits and job.ready_at <= cycle.now:
        preempt_now(cycle, job)


# ------------------------------------------------------------------------------------------ renewal of plans


def renew_plan(cycle: Cycle, ordering: PlanOrdering, asked: Problem | None) -> bool:
    """Renews the plan in force if it would be made again, so that a round's end need not request one; returns whether.

    Most rounds of a cluster that is not full end like this: nothing has happened, each job runs where it was planned,
    and only time has passed. The policy states until when time alone does not change its plan (`Plan.holds_until_at`;
    for `walras`, `optimizer.assignment.column_values` derives it). What only the scheduler knows is added here, so that
    the renewed plan is exactly the one that a solve would have given, with the same memory, and carrying that one out
    would have done nothing:

        nothing else happened       no event and no timer told of anything since the plan was requested
        it is carried out           each job that may run holds its place and is not asked to leave; no place is
                                    reserved
        no one else reads a clock   what else depends on time in a problem, or acts on a new plan: the reliability of
                                    spot machines as they live on, running jobs by which the lengths that users state
                                    are corrected, deadlines, bookings, shared accelerators, speeds still to be measured

    A renewal counts as a request (`SolveState.requested_at`), so that later ones are due when they would have been, and
    as an answer (`ActivePolicy.solved_at`), so that nobody who watches takes the prices for old. The one part of a plan
    that changes with time alone is the order of importance. It is read only when a job loses its place, and is found
    then (`PlanOrdering.renew`). A solve takes time and a renewal does not: where solves take none, as in most
    simulations, runs are the same to the bit; elsewhere an arrival during the solve that was saved need not wait for
    its answer.

    `asked`: the problem that it answers; None if there was none.
    """
    if asked is None or isinstance(cycle.policy.pricing, AskedPlans) or not plan_still_holds(cycle):
        return False
    if not cycle.due.round_ended:  # the round's end has settled what each job is owed, as a solve would
        cycle.ledger.columns.settle_all(cycle.now, cycle.policy.rules.owed_limit_s)
    cycle.policy.solved_at = cycle.now
    ordering.renew(asked)
    return True


def plan_still_holds(cycle: Cycle) -> bool:
    """Returns whether the plan in force would be given again, and change nothing (see `renew_plan`)."""
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
