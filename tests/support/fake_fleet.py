"""Machines and jobs that do what the core tells them, in any order and as late as a test likes."""

from dataclasses import dataclass, field, replace
from math import inf
from random import Random

from optimizer.policy import PolicySpec
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.core import SchedulerCore
from scheduler.core.events import BookingsDeclared, JobRestored, RentRestored, StateRestored
from scheduler.core.handlers.restored_state import gather_state
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import MachineCondition
from scheduler.core.state.ledger import JobRecord, Ledger
from tests.support.core_invariants import check_invariants
from walras.cluster import Market, NodeId, Placement, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.states import Reason


def pool(
    name: str, accelerators: int = 1, *, market: Market = Market.OWNED, speed: float = 1.0, quota: int = 0
) -> Pool:
    """A pool of machines with that many accelerators each, named after their type."""
    shape = Shape(f"{name}x{accelerators}", name, accelerators, 4.0 * accelerators, accelerators << 33, speed)
    return Pool(PoolId(name), shape, market, quota=quota, usd_per_h=1.0 if quota else 0.0)


def job(job_id: int, accelerator: str = "*", count: int = 1, **more: object) -> JobRequest:
    """A job of kind "k" unless said otherwise."""
    more.setdefault("kind", Kind("k"))
    return JobRequest(JobId(job_id), demands=(Demand(accelerator, count),), **more)  # type: ignore[arg-type]


@dataclass
class Attempt:
    """An attempt as the machines see it."""

    job_id: JobId
    number: int
    placement: Placement
    started: bool = False
    stopping: bool = False
    prepared: set[NodeId] = field(default_factory=set)


class FakeFleet:
    """Drives a core: remembers what was commanded, so that a test can let it happen, or fail, in its own order."""

    def __init__(self) -> None:
        self.core = SchedulerCore()
        self.at = 0.0
        self.attempts: dict[JobId, Attempt] = {}
        self.states: dict[JobId, list[str]] = {}
        self.solves: list[cmd.Solve] = []
        self.wake_at = float("inf")
        self.log: list[tuple[ev.Event, list[cmd.Command]]] = []
        self.rents: list[cmd.Rent] = []
        self.released: list[NodeId] = []
        self.lost: set[NodeId] = set()

    def tell(self, event: ev.Event) -> list[cmd.Command]:
        """Hand an event to the core, check every invariant, and note the commands."""
        if self.wake_at <= event.at:
            self.wake_at = float("inf")
        commands = self.core.handle(event)
        self.at = event.at
        self.log.append((event, commands))
        for command in commands:
            self._note(command)
        check_invariants(self.core)
        return commands

    def _note(self, command: cmd.Command) -> None:
        match command:
            case cmd.WakeAt(at):
                self.wake_at = at
            case cmd.Solve():
                assert not self.solves, "two solves in flight"
                self.solves.append(command)
            case cmd.Prepare(job_id, number, placement):
                self._grant(job_id, number, placement)
            case cmd.Start(job_id, number, placement):
                if job_id not in self.attempts:
                    self._grant(job_id, number, placement)
                assert self.attempts[job_id].number == number
                assert not self.attempts[job_id].started, f"attempt {number} of job {job_id} started twice"
                self.attempts[job_id].started = True
            case cmd.Revoke(job_id, number):
                attempt = self.attempts.get(job_id)
                if attempt is None:
                    return  # it ended before the command came
                assert attempt.number == number
                attempt.stopping = True
                if not attempt.started:
                    del self.attempts[job_id]
            case cmd.JobTransitioned(job_id, state):
                self.states.setdefault(job_id, []).append(str(state))
            case cmd.Rent():
                self.rents.append(command)
            case cmd.ReleaseNode(node_id):
                self.released.append(node_id)

    def _grant(self, job_id: JobId, number: int, placement: Placement) -> None:
        assert job_id not in self.attempts, f"attempt {number} of job {job_id} granted while another is alive"
        self.attempts[job_id] = Attempt(job_id, number, placement)

    # ------------------------------------------------------------------------------------ things that happen

    def restart(self, told: StateRestored | None = None) -> None:
        """A fresh core takes over, told what tables would know; the machines notice nothing."""
        old, booked, self.core = self.core.ledger, self.core.cycle.bookings.declared, SchedulerCore()
        self.log = []
        self.solves.clear()
        self.wake_at = inf
        self.tell(ev.PolicyChanged(self.at, old.policy.spec, old.policy.rules))
        for state in old.fleet.pools:
            if not state.pool.removed:
                self.tell(ev.PoolDeclared(self.at, state.pool))
        for machine in filter(None, old.fleet.machines):
            pool_id = old.fleet.pools[machine.pool].pool.pool_id
            tools = None if machine.tools is None else tuple(sorted(machine.tools))
            self.tell(ev.NodeJoined(self.at, machine.node_id, pool_id, machine.token, tools=tools))
            if machine.condition is MachineCondition.UNREACHABLE:
                self.tell(ev.NodeUnreachable(self.at, machine.node_id))
            elif machine.condition is MachineCondition.QUARANTINED:
                self.tell(ev.NodeQuarantined(self.at, machine.node_id, machine.detail))
            elif machine.condition not in (MachineCondition.UP, MachineCondition.BOOKED):
                self.tell(ev.NodeLeaving(self.at, machine.node_id, inf))
        if booked:
            self.tell(BookingsDeclared(self.at, booked))
        if told is not None:
            self.tell(replace(told, at=self.at))
        for state in old.fleet.pools:
            for token, machines in state.awaited.items():
                self.tell(RentRestored(self.at, token, state.pool.pool_id, machines))
        alive = dict(self.attempts)
        # Those with an attempt first: their accelerators are taken.
        for job in sorted(old, key=lambda job: (not job.holds, job.job_id)):
            self.tell(restored_from(old, job, self.at))
        for job_id, attempt in alive.items():
            assert self.attempts[job_id] is attempt, f"job {job_id} was disturbed by the restart"

    def wake(self) -> list[cmd.Command]:
        """Jump to the instant the core asked for."""
        assert self.wake_at < float("inf"), "the core asked for no wake-up"
        return self.tell(ev.Woke(max(self.at, self.wake_at)))

    def submit(self, *requests: JobRequest, at: float | None = None) -> list[cmd.Command]:
        """These jobs are submitted at once."""
        at = self.at if at is None else at
        return [each for request in requests for each in self.tell(ev.JobSubmitted(at, request))]

    def begin(self, request: JobRequest, at: float | None = None) -> list[cmd.Command]:
        """The job is submitted, starts, and all its ranks are up."""
        return [*self.submit(request, at=at), *self.run(request.job_id)]

    def until(self, at: float) -> list[cmd.Command]:
        """Let the core wake as it asks until this instant."""
        commands: list[cmd.Command] = []
        while self.wake_at <= at:
            commands += self.wake()
        return commands

    def where(self, job_id: int) -> set[NodeId]:
        """The machines on which the job is; none: it waits."""
        attempt = self.attempts.get(JobId(job_id))
        return set() if attempt is None else {part.node_id for part in attempt.placement.parts}

    def prepare_all(self, job_id: JobId) -> None:
        attempt = self.attempts[job_id]
        for part in attempt.placement.parts:
            self.tell(ev.Prepared(self.at, job_id, attempt.number, part.node_id, "127.0.0.1", 29500))

    def run(self, job_id: int) -> list[cmd.Command]:
        """Its machines have prepared it, and all ranks are up."""
        attempt = self.attempts[JobId(job_id)]
        if not attempt.started:
            self.prepare_all(attempt.job_id)
        return self.tell(ev.AttemptStarted(self.at, attempt.job_id, attempt.number))

    def end(
        self,
        job_id: JobId,
        exit_code: int | None = 0,
        steps: float | None = None,
        exceeded: str = "",
        own_fault: bool = False,
        *,
        unfinished: bool = False,
    ) -> list[cmd.Command]:
        """The attempt's processes are gone; `unfinished`: they were told to stop before."""
        attempt = self.attempts.pop(job_id)
        node_id = attempt.placement.parts[0].node_id
        cause, signal = ev.EndCause.EXITED, 9 if exceeded else None
        return self.tell(
            ev.AttemptEnded(
                self.at, job_id, attempt.number, cause, exit_code, signal, node_id, steps, exceeded=exceeded,
                unfinished=unfinished, own_fault=own_fault,
            )
        )  # fmt: skip

    def lose(self, node_id: NodeId) -> list[cmd.Command]:
        """The machine is gone, and every attempt that ran only there with it."""
        self.lost.add(node_id)
        for job_id, attempt in tuple(self.attempts.items()):
            if attempt.started and all(part.node_id in self.lost for part in attempt.placement.parts):
                del self.attempts[job_id]
        return self.tell(ev.NodeLost(self.at, node_id))

    def some_attempt(self, random: Random) -> Attempt | None:
        return random.choice(list(self.attempts.values())) if self.attempts else None

    def answer(self, shares: dict[int, dict[str, float]], rent: dict[str, int] | None = None) -> list[cmd.Command]:
        """Answer the outstanding solve: job -> pool -> share of time."""
        solve = self.solves.pop()
        problem = solve.problem
        pools = list(problem.pools.pool_id)
        rows = [
            (JobId(job_id), pools.index(pool_id), share)
            for job_id, by_pool in shares.items()
            for pool_id, share in by_pool.items()
        ]
        counts = []
        for job_id, row, _ in rows:
            record = self.core.ledger.jobs[job_id]
            counts.append(self.core.ledger.classes.shapes[self.core.ledger.class_of(record).shape].counts[row])
        proposal = ev.Proposal(
            pools=tuple(PoolId(p) for p in pools), job_ids=tuple(job_id for job_id, _, _ in rows),
            pool_rows=tuple(row for _, row, _ in rows), counts=tuple(counts),
            shares=tuple(share for _, _, share in rows), asked=tuple(JobId(int(i)) for i in problem.jobs.job_id),
            prices=tuple(0.5 for _ in pools), price_unit="share", exchange=1.0,
            rent_machines=tuple((rent or {}).get(p, 0) for p in pools), status="optimal", objective=1.0, bound=1.0,
            gap=0.0, path="test",
        )  # fmt: skip
        return self.tell(ev.Solved(self.at, solve.request_id, proposal, 0.1))


def restored_from(ledger: Ledger, job: JobRecord, at: float) -> JobRestored:
    """What the tables of a server would say of this job."""
    slot, holds = job.slot, job.holds
    return JobRestored(
        at, job.request, float(ledger.columns.submitted_at[slot]), job.state, job.attempt, job.restarts, job.steps,
        job.safe_steps, float(ledger.columns.attained_s[slot]), job.hold_reason, job.placement if holds else None,
        job.leased_at, job.running_at if holds else inf, tuple(sorted(job.prepared)) if holds else (),
        job.rendezvous if holds else None, job.revoked if holds else None, saves=job.saves, held_s=job.held_s,
    )  # fmt: skip


def revoked(commands: list[cmd.Command]) -> dict[int, Reason]:
    """Which jobs are asked to stop, and why."""
    return {each.job_id: each.reason for each in commands if isinstance(each, cmd.Revoke)}


def starts(commands: list[cmd.Command]) -> dict[int, str]:
    """Which jobs start, and in which pool."""
    return {each.job_id: each.placement.pool_id for each in commands if isinstance(each, cmd.Start)}


def fleet_of(*pools: Pool, policy: str = "fifo", **rules: object) -> FakeFleet:
    """A fleet of these pools, in which there is no machine yet."""
    fleet = FakeFleet()
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec(policy), RoundRules(**rules)))  # type: ignore[arg-type]
    for declared in pools:
        fleet.tell(ev.PoolDeclared(0.0, declared))
    return fleet


def cluster(
    policy: str = "fifo", *, rules: RoundRules | None = None, machines: str = "a", **parameters: object
) -> FakeFleet:
    """A fleet under a policy: pools a (4 accelerators a machine), b (2) and c (1); `machines` names one per letter."""
    fleet = FakeFleet()
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec(policy, parameters), rules or RoundRules()))
    for declared in (pool("a", 4), pool("b", 2, speed=0.5), pool("c", 1)):
        fleet.tell(ev.PoolDeclared(0.0, declared))
    for number, letter in enumerate(machines, 1):
        fleet.tell(ev.NodeJoined(0.0, NodeId(f"{letter}{number}"), PoolId(letter)))
    return fleet


def remembered_state(ledger: Ledger) -> StateRestored:
    """What a core would leave to its successor, gathered in one go."""
    pieces = gather_state(ledger)
    while True:
        try:
            next(pieces)
        except StopIteration as found:
            return found.value  # type: ignore[no-any-return]
