"""What is promised at every event of every situation, judged from events and commands alone.

The observer keeps its own books of machines, places and jobs; of the scheduler it asks only why a job waits, and
what is reserved.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from random import Random

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.budget_limits import BudgetOwner, BudgetUnit
from scheduler.core.core import SchedulerCore
from scheduler.core.events import FLEET, Booking, BookingsDeclared, JobReprioritised, ShareLimit, SharesDeclared
from scheduler.core.explain.pending_reasons import first_pending_reason
from scheduler.core.state.bookings import STOP_WITHIN_S
from scheduler.world.engine import RunOutcome
from simulator.ground_truth import SpeedKey
from simulator.simulation import SimulationResult
from tests.crossings.removals import may_use, told_wrongly
from tests.crossings.situations import BUSY_UNTIL_AT, HOUR_S, Situation
from walras.cluster import Market, NodeId, Placement, Pool, PoolId
from walras.job_request import JobId, JobRequest, place_roles, roles_of
from walras.states import JobState, Reason

#: A job is stopped for others of its class, or moved, at most so often; beyond it at most at this rate.
STOPS_MAX, STOPS_PER_H = 6, 1.5
#: Seconds within which a ready job has a place that is free, or somebody below its class gives way.
PATIENCE_S = 400.0
#: The part of the accelerator time delivered that may be lost with attempts that others had cut.
LOST_MAX = 0.05
#: What a job's time is worth on a machine to be rented, at least, over the machine's price.
_WORTH_MORE = 1.1
#: Accelerator-seconds by which sums of many spans differ.
_ROUNDING_S = 1e-6
#: Seconds that a stop may take beside the grace.
SLACK_S = 5.0
#: Seconds within which owned places are back: a round, the stop and start of those who borrow, twice as they overlap.
BACK_S = 2 * (60.0 + 30.0 + 10.0 + 5.0) + SLACK_S
#: Seconds between two questions why a job waits, on average.
ASKED_EVERY_S = 400.0
#: Seconds after which a job comes before those of lower classes that find a place.
_AHEAD_S = 120.0
#: How a stop names the job that it is for.
_TAKER = re.compile(r"^(?:makes room for the gang of )?job (\d+)")
_LENT = "has reserved this place"
_OWN = "while others have what its project owns"
_BY_OTHERS = (Reason.POLICY_PREEMPTED, Reason.POLICY_MOVED)


@dataclass(slots=True)
class _Machine:
    pool: Pool
    free: int
    tools: frozenset[str] | None = None
    #: Why it takes no new jobs; empty: it does.
    closed: set[str] = field(default_factory=set)
    is_private: bool = False


@dataclass(slots=True)
class _Job:
    request: JobRequest
    submitted_at: float
    state: JobState = JobState.PENDING
    priority: int = 50
    placement: Placement | None = None
    #: Since when all its ranks are up.
    ran_since: float = math.inf
    #: For how long its earlier attempts ran, seconds.
    ran_s: float = 0.0
    asked_to_stop: bool = False
    starts: int = 0
    #: Since when it waits with nothing but a place missing.
    ready_since: float = math.inf
    #: When it got its place, and when it was asked to leave it for others.
    placed_at: float = 0.0
    cut_at: float = math.inf
    stops: int = 0
    #: Since when it could have started, by the way how.
    since: dict[str, float] = field(default_factory=dict)

    @property
    def priority_class(self) -> int:
        return (self.priority > 33) + (self.priority > 66)

    @property
    def count(self) -> int:
        return self.request.demands[0].count


class Observer:
    """Records every event of a run, and what breaks a promise."""

    def __init__(self, situation: Situation, core: SchedulerCore) -> None:
        self._row, self._core = situation.row, core
        self._rules, self._shares = situation.scenario.rules, situation.scenario.shares
        self._truth = situation.scenario.truth
        self._pools: dict[PoolId, Pool] = {}
        #: Machines that were asked for and have not come, by the token of the request.
        self._asked: dict[str, tuple[PoolId, int]] = {}
        self._machines: dict[NodeId, _Machine] = {}
        self._jobs: dict[JobId, _Job] = {}
        #: Jobs that are asked now to return what a reservation lent them.
        self._lent: set[JobId] = set()
        #: Jobs that this event gives a place.
        self._starting: set[JobId] = set()
        self._ended: dict[JobId, JobState] = {}
        self._requests = {job.request.job_id: job.request for job in situation.jobs}
        self._bookings: tuple[Booking, ...] = ()
        #: Whether they were declared long enough before to clear their machines in time.
        self._booked_early = True
        self._joins: Counter[PoolId] = Counter()
        self._losses: Counter[PoolId] = Counter()
        self._rented_s: defaultdict[PoolId, float] = defaultdict(float)
        #: Accelerator-seconds held by project, and since when its budget is used up.
        self._used_s: defaultdict[str, float] = defaultdict(float)
        self._spent_at: dict[str, float] = {}
        self._now = 0.0
        #: Accelerator-seconds that jobs held, and of these what attempts lost that were cut for others.
        self.held_s = self.cut_s = 0.0
        #: When the reason of a waiting job is next looked into.
        self._random = Random(f"{situation.seed}/reasons")
        self._asks_at = self._random.expovariate(1 / ASKED_EVERY_S)
        self.broken: list[str] = []

    # ------------------------------------------------------------------------------------------- events

    def record(self, event: ev.Event, commands: list[cmd.Command]) -> None:
        """An event that the core has handled, and what it commanded."""
        self._pass_time(event.at)
        self._note_event(event)
        # For whom places may be cleared: those who wait, and those who move to another place.
        moving = {each.job_id for each in commands if isinstance(each, cmd.Revoke) and each.reason in _BY_OTHERS}
        takers = [job for job_id, job in self._jobs.items() if job.placement is None or job_id in moving]
        changes = [each for each in commands if isinstance(each, cmd.JobTransitioned)]
        self._lent = {each.job_id for each in changes if each.detail.endswith(_LENT)}
        placed = (each for each in commands if isinstance(each, cmd.AttemptTransitioned) and each.placement is not None)
        self._starting = {each.job_id for each in placed}
        self._check_takers(changes)
        for command in commands:
            match command:
                case cmd.JobTransitioned():
                    self._transitioned(command)
                case cmd.AttemptTransitioned(placement=placement) if placement is not None:
                    self._placed(command.job_id, placement)
                case cmd.AttemptTransitioned() if command.state.is_final:
                    self._released(command.job_id)
                case cmd.Revoke():
                    self._asked_to_stop(command, takers)
                case cmd.Rent():
                    self._asked[command.token] = command.pool_id, command.machines
                    self._check_quota(command.pool_id)
                case cmd.NodeCordoned() if command.node_id in self._machines:
                    goes = ("given back",) if "given back" in command.detail else ()
                    self._machines[command.node_id].closed.update(("cordoned", *goes))
                case cmd.NodeReadmitted() if command.node_id in self._machines:
                    self._machines[command.node_id].closed.discard("cordoned")
        self._look()
        self._check_bookings()
        self._check_reservations()
        if event.at >= self._asks_at:
            self._ask_why()

    def _ask_why(self) -> None:
        """What a job is said to wait for is the cause: without it the job starts, or waits for something else."""
        jobs = self._core.ledger.jobs.values()
        waiting = [job for job in jobs if not job.place and job.state is JobState.PENDING]
        if waiting:
            self._asks_at = self._now + self._random.expovariate(1 / ASKED_EVERY_S)
            told = told_wrongly(self._core, self._random.choice(waiting), self._now)
            if told:
                self._break(told)

    def _pass_time(self, at: float) -> None:
        for machine in self._machines.values():
            if machine.pool.market is not Market.OWNED:
                self._rented_s[machine.pool.pool_id] += at - self._now
        for job in self._jobs.values():
            if job.placement is not None:
                held = sum(len(part.devices) for part in job.placement.parts)
                self._used_s[job.request.project] += held * (at - self._now)
                self.held_s += held * (at - self._now)
        self._now = at
        for budget in self._rules.budgets:
            if self._used_s[budget.project] >= (budget.accelerator_h or inf) * HOUR_S - _ROUNDING_S:
                self._spent_at.setdefault(budget.project, at)
        is_exact = (self._row["faults"], self._row["sharing"]) == ("none", "none")  # a shared accelerator counts twice
        for project, spent_at in self._spent_at.items() if is_exact else ():
            held_by = [job for job in self._jobs.values() if job.placement and job.request.project == project]
            for job in held_by:
                if at - spent_at > job.request.grace_s + SLACK_S:
                    self._break(
                        f"job {job.request.job_id} runs on at {at:.1f}; its budget was used up at {spent_at:.1f}"
                    )

    def _note_event(self, event: ev.Event) -> None:
        machines = self._machines
        match event:
            case ev.PoolDeclared():
                self._pools[event.pool.pool_id] = event.pool
                for machine in machines.values():
                    if machine.pool.pool_id == event.pool.pool_id:
                        machine.pool = event.pool
            case ev.NodeJoined():
                pool = self._pools[event.pool_id]
                machines[event.node_id] = _Machine(pool, pool.shape.accelerators)
                self._came(event.token, 1)
                self._joins[event.pool_id] += 1
            case ev.NodeLost():
                lost = machines.pop(event.node_id, None)
                if lost is not None and event.reason is not Reason.POLICY_RELEASED:
                    self._losses[lost.pool.pool_id] += 1
            case ev.NodeUnreachable() if event.node_id in machines:
                machines[event.node_id].closed.add("silent")
            case ev.NodeBack() if event.node_id in machines:
                machines[event.node_id].closed.discard("silent")
            case ev.NodeLeaving() if event.node_id in machines:
                machines[event.node_id].closed.add("leaving")
            case ev.NodeUncordoned() if event.node_id in machines:
                machines[event.node_id].closed -= {"leaving", "cordoned"}
            case ev.NodePrivate() if event.node_id in machines:
                machines[event.node_id].is_private = event.private
            case ev.NodeTools() if event.node_id in machines:
                machines[event.node_id].tools = frozenset(event.tools)
            case ev.RentFailed():
                self._came(event.token, event.machines)
            case BookingsDeclared():
                self._bookings = event.bookings
                self._booked_early = all(each.from_at - event.at > STOP_WITHIN_S + 60.0 for each in event.bookings)
            case SharesDeclared():
                self._shares = event.shares
            case ev.JobSubmitted():
                self._jobs[event.job.job_id] = _Job(event.job, event.at, priority=event.job.priority)
            case JobReprioritised() if event.job_id in self._jobs:
                self._jobs[event.job_id].priority = event.priority
                job = self._jobs[event.job_id]  # it comes before others from now on
                job.ready_since, job.since = math.inf, {}

    def _came(self, token: str, machines: int | None) -> None:
        """So many machines of a request came, or will not come; None: all that are left."""
        pool_id, left = self._asked.pop(token, (PoolId(""), 0))
        if machines is not None and left > machines:
            self._asked[token] = pool_id, left - machines

    def _transitioned(self, command: cmd.JobTransitioned) -> None:
        job = self._jobs.get(command.job_id)
        if job is None:
            return
        job.state = command.state
        if command.state is JobState.RUNNING:
            job.ran_since = min(job.ran_since, self._now)
        if command.state is JobState.FAILED:
            self._break(f"job {command.job_id}, which fails less often than it may, has failed at {self._now:.1f}")
        if command.reason is Reason.POLICY_MAX_QUEUE_TIME and job.starts:
            self._break(f"job {command.job_id} is cancelled at {self._now:.1f} for waiting, after {job.starts} starts")
        if command.state.is_final:
            self._ended[command.job_id] = command.state
            self._released(command.job_id)
            del self._jobs[command.job_id]

    # ------------------------------------------------------------------------------------------- starts

    def _placed(self, job_id: JobId, placement: Placement) -> None:
        job = self._jobs[job_id]
        job.placement, job.ran_since, job.asked_to_stop = placement, math.inf, False
        job.placed_at, job.cut_at = self._now, math.inf
        job.starts += 1
        request, where = job.request, f"job {job_id} starts at {self._now:.1f}"
        for part in placement.parts:
            if part.node_id in self._machines:
                self._machines[part.node_id].free -= len(part.devices)
            obstacle = self._keeps_off(job, part.node_id)
            if obstacle:
                self._break(f"{where} on {part.node_id}, {obstacle}")
        for parent in request.depends_on:
            if parent not in self._ended:
                self._break(f"{where} before job {parent}, on which it depends")
        if self._now < request.not_before_at:
            self._break(f"{where}, before {request.not_before_at}")
        if request.project in self._spent_at and self._row["sharing"] == "none":
            self._break(f"{where}, though the budget of {request.project} is used up")
        self._check_sharing(job, placement, where)
        self._check_classes(job, placement, where)
        self._check_limits(job, where)
        self._check_lasting(job, where)
        self._check_roles(job, placement, where)

    def _check_bookings(self) -> None:
        """Once a booking has begun, nobody whom it excludes, and who may be stopped, is on its machines."""
        judged = (self._row["faults"], self._row["stops"]) == ("none", "may be stopped")
        active = [each for each in self._bookings if each.from_at + SLACK_S < self._now < each.until_at]
        for booking in active if judged and self._booked_early else ():
            for job_id, job in self._jobs.items():
                parts = job.placement.parts if job.placement is not None else ()
                there = [part.node_id for part in parts if part.node_id in booking.node_ids]
                if there and not booking.is_open_to(job.request.project) and not job.asked_to_stop:
                    self._break(f"job {job_id} runs on {there[0]} at {self._now:.1f}, inside {booking.words}")

    def _check_reservations(self) -> None:
        """Nothing is reserved for a waiting job on a machine that takes no jobs until people open it again."""
        for job_id, reservation in self._core.cycle.reservations.items():
            for row in reservation.wanted:
                machine = self._core.ledger.fleet.machines[row]
                if machine is None or {"leaving", "cordoned"} & self._machines[machine.node_id].closed:
                    self._break(f"job {job_id} has a reservation at {self._now:.1f} on machine {row}, which is drained")

    def _keeps_off(self, job: _Job, node_id: NodeId) -> str:
        """What keeps the job from a start on the machine now; empty if nothing does."""
        machine, request = self._machines.get(node_id), job.request
        if machine is None:
            return "which is not there"
        if machine.closed:
            return f"which is {', '.join(sorted(machine.closed))}"
        if not may_use(request, machine.pool):
            return f"a machine of {machine.pool.pool_id}, which it does not accept"
        if machine.tools is not None and any(machine.tools.isdisjoint(any_of) for any_of in request.tools):
            return f"which lacks one of {request.tools}"
        for booking in self._bookings:
            if node_id not in booking.node_ids or booking.is_open_to(request.project):
                continue
            left_s = booking.from_at - self._now
            if booking.is_active(self._now):
                return f"inside {booking.words}"
            may_end = request.max_runtime_s - job.ran_s <= left_s or self._row["lengths"] != "unknown"
            may_leave = request.preemptible and not machine.is_private and left_s > request.grace_s + STOP_WITHIN_S
            if left_s > 0 and not may_end and not may_leave:
                return f"where nothing ends it before {booking.words}"
        return ""

    def _check_takers(self, changes: list[cmd.JobTransitioned]) -> None:
        """Nobody is stopped for who may not have the place, nor, on what its project owns, for another's equal."""
        for change in changes:
            job, named = self._jobs.get(change.job_id), _TAKER.search(change.detail)
            taker = self._jobs.get(JobId(int(named[1]))) if named is not None else None
            stops = change.state is JobState.PREEMPTING and change.reason is Reason.POLICY_PREEMPTED
            if not stops or job is None or job.placement is None or taker is None:
                continue
            own = self._owned_by(job.request.project)
            mine = [each for each in self._jobs.values() if each.request.project == job.request.project]
            is_own = (
                own is not None and self._own_held([job], own) > 0 and self._own_held(mine, own) <= own.accelerators
            )
            if is_own and taker.request.project != job.request.project and taker.priority_class <= job.priority_class:
                self._break(
                    f"job {change.job_id} is stopped on what its project owns at {self._now:.1f}: {change.detail}"
                )
            if taker.priority_class < job.priority_class and not self._booked_soon(job):
                self._break(f"job {change.job_id} is stopped at {self._now:.1f} for a lower class: {change.detail}")
            found = [self._keeps_off(taker, part.node_id) for part in job.placement.parts]
            if all(found):
                self._break(f"job {change.job_id} is stopped at {self._now:.1f}: {change.detail}; there, {found[0]}")

    def _check_roles(self, job: _Job, placement: Placement, where: str) -> None:
        """A job with roles has just what one of its plans takes, each process whole, the leading one first."""
        types = [self._pools[part.pool_id or placement.pool_id].shape.accelerator for part in placement.parts]
        machines = list(zip(types, (len(part.devices) for part in placement.parts), strict=True))
        roles = roles_of(job.request, machines)
        if job.request.has_roles and (not roles or place_roles(roles, machines)[0][0] != (roles[0], 0)):
            self._break(f"{where} on {machines}, which is not {job.request.text}")

    def _check_sharing(self, job: _Job, placement: Placement, where: str) -> None:
        """On an accelerator that another job has, both agreed, their memory fits, and neither has a deadline."""
        part, pool_id = placement.parts[0], placement.parts[0].pool_id or placement.pool_id
        for other in self._jobs.values():
            there = other.placement.parts[0] if other.placement is not None and other is not job else None
            if there is None or there.node_id != part.node_id or not set(there.devices) & set(part.devices):
                continue
            shares, beside = job.request.shared, other.request.shared
            if shares is None or beside is None or min(job.request.deadline_at, other.request.deadline_at) < inf:
                self._break(f"{where} beside job {other.request.job_id}, with which it does not share")
            elif shares.memory_bytes + beside.memory_bytes > self._pools[pool_id].shape.accelerator_memory_bytes:
                self._break(f"{where} beside job {other.request.job_id}, and both need more memory than there is")

    def _check_classes(self, job: _Job, placement: Placement, where: str) -> None:
        """Nobody starts on an owned machine where one of a higher class would fit that has waited for a while."""
        row, part = self._row, placement.parts[0]
        is_judged = row["changes"] != "policy" and row["shares"] != "owned" and row["faults"] in ("none", "deaths")
        machine = self._machines.get(part.node_id)
        is_booked = any(part.node_id in each.node_ids and each.until_at > self._now for each in self._bookings)
        if (
            not is_judged
            or is_booked
            or machine is None
            or machine.pool.market is not Market.OWNED
            or row["failures"] == "crashes"
        ):
            return
        for each in self._jobs.values():
            waits = each.placement is None and each.request.job_id not in self._starting
            waits = waits and self._now - each.ready_since > _AHEAD_S
            fits = not each.request.sizes and not each.request.plans and each.count <= len(part.devices)
            if (
                not waits
                or not fits
                or each.priority_class <= job.priority_class
                or self._rules.value_of(each.request)[0]
            ):
                continue
            if not self._keeps_off(each, part.node_id) and self._room(each, machine.pool) >= each.count:
                number, since = each.request.job_id, each.ready_since
                self._break(f"{where} on {part.node_id}, where job {number} of a higher class waits since {since:.1f}")

    def _check_quota(self, pool_id: PoolId) -> None:
        """No more machines of a pool are there, or asked for, than it may have."""
        many = sum(each.pool.pool_id == pool_id for each in self._machines.values())
        many += sum(machines for asked, machines in self._asked.values() if asked == pool_id)
        if many > self._pools[pool_id].quota:
            self._break(f"{many} machines of {pool_id} are asked for or there at {self._now:.1f}, above its quota")

    def _check_limits(self, job: _Job, where: str) -> None:
        """Its project holds no more than its limits, of the fleet and of a type; a limit may be lowered below it."""
        for share in self._shares:
            for limit in share.limits if share.name == job.request.project else ():
                held = self._held(share.name, limit)
                if held > limit.accelerators and self._held_of(job, limit):
                    self._break(f"{where}: project {share.name} holds {held} of at most {limit.accelerators}")

    def _check_lasting(self, job: _Job, where: str) -> None:
        """A job that may not be stopped starts on no accelerators that another project owns."""
        lasting = [each for each in self._jobs.values() if each.placement is not None and not each.request.preemptible]
        mine, project = self._owned_by(job.request.project), job.request.project
        own_jobs = [each for each in self._jobs.values() if each.request.project == project]
        fits = mine is not None and self._own_held(own_jobs, mine) <= mine.accelerators
        for share in self._shares if job in lasting and not fits else ():
            own = self._owned_by(share.name)
            if own is None or share.name == job.request.project:
                continue
            here = [each for each in self._machines.values() if self._is_in(own, each) and not each.closed]
            there = sum(each.pool.shape.accelerators for each in here if each.pool.market is Market.OWNED)
            held = self._own_held((each for each in lasting if each.request.project != share.name), own)
            if self._own_held((job,), own) and held > max(0, there - own.accelerators):
                self._break(f"{where}: jobs that may not be stopped hold {held} beside {own} of {share.name}")

    def _released(self, job_id: JobId) -> None:
        job = self._jobs.get(job_id)
        if job is None or job.placement is None:
            return
        job.ran_s += max(self._now - job.ran_since, 0.0)
        most_s = job.request.max_runtime_s + job.request.grace_s + SLACK_S
        if job.ran_s > most_s and self._row["faults"] == "none":
            self._break(f"job {job_id} ran for {job.ran_s:.0f} s, of at most {most_s:.0f} s over all attempts")
        if job.cut_at < math.inf:
            began_at = self._now if self._row["stops"] == "do not save" else job.cut_at
            kept_s = max(began_at - job.ran_since, 0.0) * (self._row["stops"] != "do not save")
            held = sum(len(part.devices) for part in job.placement.parts)
            self.cut_s += held * (self._now - job.placed_at - kept_s)
        for part in job.placement.parts:
            if part.node_id in self._machines:
                self._machines[part.node_id].free += len(part.devices)
        job.placement = None

    # ------------------------------------------------------------------------------------------- stops

    def _asked_to_stop(self, command: cmd.Revoke, takers: list[_Job]) -> None:
        job = self._jobs[command.job_id]
        again, job.asked_to_stop = job.asked_to_stop, True
        drained = command.reason is Reason.INFRA_NODE_LOST and self._row["drains"] == "gentle"
        if drained and self._row["faults"] == "none" and not job.request.preemptible:
            self._break(f"job {command.job_id}, which may not be stopped, is stopped at {self._now:.1f} by a drain")
        if command.reason not in _BY_OTHERS or job.placement is None:
            return
        what = f"job {command.job_id} is stopped at {self._now:.1f} ({command.reason})"
        if again:
            self._break(f"{what}, a second time")
        job.stops += 1
        job.cut_at = self._now
        hours = max((self._now - job.submitted_at) / HOUR_S, 1e-9)
        is_above = self._booked_soon(job) or any(self._is_above(each, job) for each in takers)
        if job.stops > STOPS_MAX and job.stops > STOPS_PER_H * hours and not is_above:
            self._break(f"{what}, for the {job.stops}th time in {hours:.2f} h")
        if not job.request.preemptible:
            self._break(f"{what}, though it may not be stopped")
        if not self._booked_soon(job):
            self._check_protection(job, what)
        if command.reason is Reason.POLICY_PREEMPTED and not self._booked_soon(job):
            others = [each for each in takers if each is not job]
            goes = any("given back" in self._machines[each.node_id].closed for each in job.placement.parts)
            if others and not goes and all(each.priority_class < job.priority_class for each in others):
                self._break(f"{what}, though all others are of lower classes")

    def _check_protection(self, job: _Job, what: str) -> None:
        """A job leaves no private machine for others, nor, in its protected time, a place that it did not borrow."""
        row, places = self._row, job.placement.parts if job.placement is not None else ()
        runs_s, machines = self._now - job.ran_since, [self._machines.get(each.node_id) for each in places]
        if runs_s > 0 and any(each is not None and each.is_private for each in machines):
            self._break(f"{what}, though what it saves stays on its private machine")
        # Shares do not protect jobs that have none where they run, which nothing here says.
        is_judged = row["changes"] != "policy" and row["shares"] != "owned" and row["policy"] != "max_min_fairness"
        lends = job.request.deadline_at < inf or job.request.job_id in self._lent
        if is_judged and not lends and 0 < runs_s < self._rules.protected_s:
            self._break(f"{what}, {runs_s:.0f} s after its start")

    def _is_above(self, taker: _Job, job: _Job) -> bool:
        """Whether the one may have the place of the other at any time: by its class, or because its project owns it."""
        own = self._owned_by(taker.request.project)
        is_back = own is not None and taker.request.project != job.request.project and self._own_held([job], own) > 0
        return taker.priority_class > job.priority_class or is_back

    def _booked_soon(self, job: _Job) -> bool:
        nodes = {part.node_id for part in job.placement.parts} if job.placement is not None else set()
        return any(
            nodes & set(booking.node_ids)
            and booking.until_at > self._now
            and not booking.is_open_to(job.request.project)
            for booking in self._bookings
        )

    # ------------------------------------------------------------------------------------------- waiting

    def _look(self) -> None:
        """Nobody waits beside a place that it may have for longer than some rounds."""
        for job_id, job in self._jobs.items():
            waits = job.placement is None and job.state is JobState.PENDING
            pools = [machine.pool for machine in self._machines.values()]
            is_ready = waits and self._is_ready(job) and all(self._room(job, pool) >= job.count for pool in pools)
            job.ready_since = min(job.ready_since, self._now) if is_ready else math.inf
            found = {why: job.since.get(why, self._now) for why in (self._could_start(job) if waits else ())}
            for why, since in tuple(found.items()):
                if self._now - since > (BACK_S if why == _OWN else PATIENCE_S):
                    self._break(f"job {job_id} waits since {since:.1f} {why}")
                    del found[why]
            job.since = found

    def _could_start(self, job: _Job) -> Iterator[str]:
        """How a waiting job could start, by all that the observer was told; judged where nothing hidden decides."""
        row, request = self._row, job.request
        plans = row["policy"] in ("walras", "hadar") and row["changes"] != "policy"
        if plans and row["market"] != "refusing" and self._is_ready(job) and self._may_rent(job):
            yield "for machines that it pays for, and could have"
        is_judged = (
            (row["sharing"], row["faults"]) == ("none", "none")
            and row["machines"] != "private"
            and row["failures"] != "crashes"
            and row["changes"] != "policy"
        )
        if not is_judged or not self._is_ready(job) or request.has_roles:
            return
        if self._fits_owned(job) and self._has_room(job, lambda each: self._borrows(each, job), owned=True):
            yield _OWN
        waiting = [each for each in self._jobs.values() if each.placement is None and each.state is JobState.PENDING]
        if any(each.count > job.count or each.request.sizes or each.request.plans for each in waiting):
            return  # what is free, or becomes free, may be kept for a larger gang
        if row["policy"] not in ("walras", "hadar") and self._has_room(job, lambda other: False):
            yield "beside a free place"
        if row["stops"] != "may be stopped" or row["policy"] not in ("srtf", "max_min_fairness", "walras"):
            return
        if self._has_room(job, lambda other: other.priority_class < job.priority_class):
            yield "while lower classes run"
        if row["policy"] != "srtf" and self._is_below_guarantee(job):
            others = (request.project, job.priority_class)
            if self._has_room(job, lambda each: each.request.project != others[0] and each.priority_class <= others[1]):
                yield "below the guarantee of its project"

    def _is_ready(self, job: _Job) -> bool:
        """Whether nothing but a place keeps the job from its start."""
        request = job.request
        is_ready = all(parent in self._ended for parent in request.depends_on) and self._now >= request.not_before_at
        return is_ready and request.budget_usd == inf and request.project not in self._spent_at

    def _owned_by(self, project: str) -> ShareLimit | None:
        """What the project owns."""
        return next((own for share in self._shares if share.name == project for own in share.owned), None)

    def _fits_owned(self, job: _Job) -> bool:
        """Whether all that its project has waiting fits what it owns and does not use."""
        own, project = self._owned_by(job.request.project), job.request.project
        waiting = [each for each in self._jobs.values() if each.placement is None and each.request.project == project]
        if own is None or any(
            each.request.sizes or each.request.plans or each.request.deadline_at < inf for each in waiting
        ):
            return False
        mine = (each for each in self._jobs.values() if each.request.project == project)
        return sum(each.count for each in waiting) + self._own_held(mine, own) <= own.accelerators

    def _borrows(self, each: _Job, job: _Job) -> bool:
        """Whether a job makes room for one of an owner: of its class or below, and on nothing that its project owns."""
        others = each.request.project != job.request.project and self._owned_by(each.request.project) is None
        return others and each.priority_class <= job.priority_class

    def _is_below_guarantee(self, job: _Job) -> bool:
        """Whether the job fits what of the owned machines is guaranteed to its project."""
        held = [each for each in self._jobs.values() if each.placement is not None]
        of_project = sum(each.count for each in held if each.request.project == job.request.project)
        owned = [machine for machine in self._machines.values() if machine.pool.market is Market.OWNED]
        everything = sum(machine.pool.shape.accelerators for machine in owned if not machine.closed)
        part = sum(share.guaranteed for share in self._shares if share.name == job.request.project)
        return of_project + job.count <= int(part * everything)

    def _has_room(self, job: _Job, leaves: Callable[[_Job], bool], *, owned: bool = False) -> bool:
        """Whether an owned machine has room for the job once these have left, and nothing else keeps it from there."""
        freed: Counter[NodeId] = Counter()
        for other in self._jobs.values():
            may_leave = other.placement is not None and other.request.preemptible and other.request.deadline_at == inf
            if other.placement is not None and may_leave and leaves(other):
                freed.update({part.node_id: len(part.devices) for part in other.placement.parts})
        return any(
            machine.free + freed[node_id] >= job.count
            and machine.pool.market is Market.OWNED
            and not any(node_id in each.node_ids and each.until_at > self._now for each in self._bookings)
            and not self._keeps_off(job, node_id)
            and self._room(job, machine.pool) >= job.count
            and (not owned or self._is_in(self._owned_by(job.request.project), machine))
            for node_id, machine in self._machines.items()
        )

    def _may_rent(self, job: _Job) -> bool:
        """Whether a provider lets as many more machines as hold the job, for less than its time is worth there."""
        request, value = job.request, self._rules.value_of(job.request)[0]
        if value <= 0 or request.sizes or request.deadline_at < inf:
            return False
        speeds = {
            pool_id: self._truth.speeds[SpeedKey(request.kind, pool.shape.accelerator)]
            for pool_id, pool in self._pools.items()
            if request.accepts(pool)
        }
        for pool_id, speed in speeds.items():
            pool = self._pools[pool_id]
            more = math.ceil(job.count / pool.shape.accelerators)
            held = sum(each.pool.pool_id == pool_id for each in self._machines.values())
            held += sum(machines for asked, machines in self._asked.values() if asked == pool_id)
            pays = value * speed / max(speeds.values()) > _WORTH_MORE * more * pool.usd_per_h
            may_hold = self._room(job, pool) >= job.count
            if pool.market is not Market.OWNED and held + more <= pool.quota and pays and may_hold:
                return True
        return False

    def _room(self, job: _Job, pool: Pool) -> float:
        """How many accelerators of such a pool its project may hold more."""
        accelerator, project = pool.shape.accelerator, job.request.project
        limits = [limit for share in self._shares if share.name == project for limit in share.limits]
        return min(
            (
                limit.accelerators - self._held(project, limit)
                for limit in limits
                if limit.scope in (FLEET, accelerator)
            ),
            default=inf,
        )

    def _held(self, project: str, limit: ShareLimit) -> int:
        """How many accelerators of a limit's scope the project holds."""
        return sum(self._held_of(job, limit) for job in self._jobs.values() if job.request.project == project)

    def _held_of(self, job: _Job, limit: ShareLimit) -> int:
        """How many accelerators of a limit's scope the job holds."""
        parts = job.placement.parts if job.placement is not None else ()
        there = [part for part in parts if part.node_id in self._machines]
        return sum(len(part.devices) for part in there if self._is_in(limit, self._machines[part.node_id]))

    def _own_held(self, jobs: Iterable[_Job], own: ShareLimit) -> int:
        """How many of the owned machines' accelerators of a scope these jobs hold."""
        parts = [part for job in jobs if job.placement is not None for part in job.placement.parts]
        there = [(self._machines[part.node_id], part) for part in parts if part.node_id in self._machines]
        inside = [part for each, part in there if self._is_in(own, each) and each.pool.market is Market.OWNED]
        return sum(len(part.devices) for part in inside)

    def _is_in(self, limit: ShareLimit | None, machine: _Machine) -> bool:
        """Whether accelerators of the machine are of the limit's scope."""
        scopes = (FLEET, machine.pool.pool_id, machine.pool.shape.accelerator)
        return limit is not None and limit.scope in scopes

    # ------------------------------------------------------------------------------------------- the end

    def finish(self, result: SimulationResult) -> list[str]:
        """What is promised of the whole run; returns all that was broken."""
        self.broken += result.violations
        self._everything_ended(result)
        self._bills(result)
        self._rents()
        return self.broken

    def _everything_ended(self, result: SimulationResult) -> None:
        if result.outcome is RunOutcome.COMPLETE:
            return
        for metrics in result.unfinished:
            job = self._jobs.get(metrics.job_id)
            if job is None or job.state is JobState.HELD:
                continue
            told = first_pending_reason(self._core, metrics.job_id, {})
            spent = told is not None and told.reason in (Reason.WAIT_BUDGET, Reason.WAIT_DEPENDENCY)
            owned = told is not None and "can be stopped without loss" in told.detail and not job.request.preemptible
            unplanned = told is not None and job.request.has_roles and told.reason is Reason.CONFIG_EXCEEDS_FLEET
            if not spent and not owned and not (unplanned and self._row["changes"] == "policy"):
                why = "nothing" if told is None else f"{told.reason}: {told.detail}"
                self._break(f"job {metrics.job_id} never ends ({result.outcome}): {why}")

    def _bills(self, result: SimulationResult) -> None:
        """Nobody pays more than stated worth for the time held; the jobs together no more than the machines cost."""
        # Only plans tell jobs that pay for machines from those that ride along.
        plans = self._row["policy"] in ("walras", "hadar") and self._row["changes"] not in ("policy", "deadline")
        for metrics in (*result.jobs, *result.unfinished):
            job = self._requests[metrics.job_id]
            if metrics.usd > job.budget_usd * 1.01 + 0.01:
                self._break(f"job {metrics.job_id} pays {metrics.usd:.2f} USD, its budget is {job.budget_usd:.2f}")
            if job.deadline_at < inf or not plans:
                continue
            worth = self._rules.value_of(job)[0] * (metrics.running_s + metrics.overhead_s) / HOUR_S
            if metrics.usd > worth * 1.01 + 0.01:
                self._break(f"job {metrics.job_id} pays {metrics.usd:.2f} USD for what is worth {worth:.2f}")
        paid = sum(metrics.usd for metrics in (*result.jobs, *result.unfinished))
        cost = sum(meter.usd for meter in result.pools)
        if paid > cost + 0.01:
            self._break(f"the jobs pay {paid:.2f} USD, the machines cost {cost:.2f}")
        self._accounts(result)

    def _accounts(self, result: SimulationResult) -> None:
        """What a project is told that it has spent is what its jobs cost."""
        paid: defaultdict[str, float] = defaultdict(float)
        for metrics in (*result.jobs, *result.unfinished):
            paid[self._requests[metrics.job_id].project] += metrics.usd
        for owner, account in self._core.cycle.spending.owned_accounts():
            told, name = account.used_by(self._now), owner.project
            is_of_project = name and owner == BudgetOwner(name) and account.unit is BudgetUnit.USD
            if is_of_project and abs(told - paid[name]) > 0.01 + 0.01 * paid[name]:
                self._break(f"project {name} is told that it has spent {told:.2f} USD, its jobs cost {paid[name]:.2f}")

    def _rents(self) -> None:
        """A machine is rented again only after a loss, or after an hour of use."""
        for pool_id, joins in self._joins.items():
            pool = self._pools[pool_id]
            if pool.market is Market.OWNED:
                continue
            most = pool.quota * 2 + self._losses[pool_id] + self._rented_s[pool_id] / HOUR_S
            if joins > most and self._now < 4 * BUSY_UNTIL_AT:
                self._break(f"{pool_id}: rented {joins} times in {self._rented_s[pool_id] / HOUR_S:.2f} machine-hours")

    def _break(self, text: str) -> None:
        if len(self.broken) < 20:
            self.broken.append(text)
