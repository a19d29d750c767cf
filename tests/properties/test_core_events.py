"""Whatever happens, in whatever order, twice or late: every invariant of the core holds after every event.

Starts and stops are judged from outside by `RulesOracle`. `FakeFleet.tell` checks all invariants, that no attempt is
granted while another of the job is alive, that none is started twice, and that one solve at most is in flight.
"""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from fake_fleet import Attempt, FakeFleet, job, pool
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from rules_oracle import RulesOracle

from optimizer.policy import PolicySpec
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.core import SchedulerCore
from scheduler.core.events import JobDeadlineChanged, JobProjectChanged, JobRedirected, JobReprioritised
from scheduler.core.rules import Backfill, RoundRules
from scheduler.core.speed_events import WorkRestated
from scheduler.core.state.fleet import MachineCondition
from walras.cluster import Market, NodeId, PoolId
from walras.job_request import Demand, GangRequest, JobId, Kind, RetryRule, ToolNeeds

#: Shares, and every order; parameters small enough for ranks to change within a test.
POLICIES = (
    PolicySpec("walras"),
    PolicySpec("fifo"),
    PolicySpec("max_min_fairness"),
    PolicySpec("las", {"quantum_s": 10.0}),
    PolicySpec("srtf", {"margin": 0.0, "unknown_s": 30.0}),
    PolicySpec("srsf", {"strict": True}),
    PolicySpec("edf"),
    PolicySpec("priority"),
    PolicySpec("tiresias", {"thresholds_s": (10.0, 60.0), "promote": 0.5}),
    PolicySpec("tiresias", {"thresholds_s": (20.0,), "index": "gittins", "service_s": (5.0, 30.0, 300.0)}),
)
POOLS = (pool("a", 4), pool("b", 2, speed=0.5), pool("s", 1, market=Market.SPOT, quota=3))


def plain(commands: list[cmd.Command]) -> list[object]:
    """Commands in a form that compares: a problem by its arrays."""
    return [
        (c.request_id, c.problem.jobs.job_id.tolist(), c.problem.columns.steps_per_s.tolist(), c.problem.at)
        if isinstance(c, cmd.Solve)
        else c
        for c in commands
    ]


def some_shares(solve: cmd.Solve, fractions: list[float], rent: int) -> ev.Proposal:
    """A feasible answer of no particular quality: columns in order take what the fractions say and the rest allows."""
    problem = solve.problem
    columns, capacity = problem.columns, problem.pools.capacity.copy()
    left = np.ones(len(problem.jobs))
    x = np.zeros(len(columns))
    for i, (row, p, count) in enumerate(zip(columns.job, columns.use_pool, columns.use_count, strict=True)):
        x[i] = min(left[row], capacity[p] / count, fractions[i % len(fractions)])
        left[row] -= x[i]
        capacity[p] -= x[i] * count
    kept = np.flatnonzero(x > 1e-6)
    return ev.Proposal(
        pools=tuple(PoolId(p) for p in problem.pools.pool_id),
        job_ids=tuple(JobId(int(i)) for i in problem.jobs.job_id[columns.job[kept]]),
        pool_rows=tuple(columns.use_pool[kept].tolist()), counts=tuple(int(count) for count in columns.use_count[kept]),
        shares=tuple(x[kept].tolist()), asked=tuple(JobId(int(i)) for i in problem.jobs.job_id),
        prices=tuple(0.1 for _ in problem.pools.pool_id), price_unit="share", exchange=1.0,
        rent_machines=tuple(rent for _ in problem.pools.pool_id), status="optimal", objective=1.0, bound=1.0, gap=0.0,
        path="test",
    )  # fmt: skip


class AnyOrder(RuleBasedStateMachine):
    """A cluster to which anything may happen."""

    @initialize(
        policy=st.sampled_from(POLICIES), round_s=st.sampled_from([0.0, 12.0, 60.0]),
        resolve_min_s=st.sampled_from([0.0, 5.0, 30.0]), restart_s=st.sampled_from([0.5, 5.0]),
        backfill=st.sampled_from(list(Backfill)), idle=st.booleans(), protected_s=st.sampled_from([0.0, 30.0]),
    )  # fmt: skip
    def begin(
        self,
        policy: PolicySpec,
        round_s: float,
        resolve_min_s: float,
        restart_s: float,
        backfill: Backfill,
        idle: bool,
        protected_s: float,
    ) -> None:
        self.fleet, self.oracle = FakeFleet(), RulesOracle()
        rules = RoundRules(
            round_s=round_s, resolve_min_s=resolve_min_s, restart_default_s=restart_s, backfill=backfill,
            idle_to_round_end=idle, min_runtime_s=5.0, protected_s=protected_s, rent_keep_s=20.0,
        )  # fmt: skip
        self.tell(ev.PolicyChanged(0.0, policy, rules))
        for declared in POOLS:
            self.tell(ev.PoolDeclared(0.0, declared))
        self.nodes: list[NodeId] = []
        self.node_count = 0
        self.job_count = 0
        self.told: list[ev.Event] = []
        for name in ("a", "a", "b"):
            self.join(name)

    def tell(self, event: ev.Event) -> None:
        self.fleet.tell(event)

    @invariant()
    def starts_and_stops_are_allowed(self) -> None:
        self.oracle.read(self.fleet.log)

    def join(self, name: str, token: str = "") -> None:
        if self.fleet.core.ledger.fleet.pool_row(PoolId(name)) is None:
            return
        self.node_count += 1
        self.nodes.append(NodeId(f"n{self.node_count}"))
        self.tell(ev.NodeJoined(self.fleet.at, self.nodes[-1], PoolId(name), token))

    def attempt(self, index: int) -> Attempt | None:
        alive = list(self.fleet.attempts.values())
        return alive[index % len(alive)] if alive else None

    @rule(seconds=st.sampled_from([0.5, 3.0, 15.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        until = self.fleet.at + seconds
        while self.fleet.wake_at <= until:
            self.fleet.wake()
        self.fleet.at = until

    @rule(
        accelerator=st.sampled_from(["*", "a", "b", "none"]), count=st.sampled_from([1, 1, 2, 4, 8]),
        kind=st.sampled_from(["k", "l"]), priority=st.sampled_from([10, 50, 50, 90]), preemptible=st.booleans(),
        steps=st.sampled_from([None, 100.0]), retries=st.sampled_from([0, 1]), cpus=st.sampled_from([1.0, 4.0]),
        limits=st.sampled_from([(inf, inf), (30.0, inf), (inf, 40.0)]), depends=st.sampled_from([0, 0, 1]),
        held=st.sampled_from([False, False, True]), not_before_s=st.sampled_from([-inf, -inf, 10.0]),
        due_s=st.sampled_from([inf, 20.0, 200.0]),
        tools=st.sampled_from([(), (), (("uv",),), (("git",), ("docker", "podman"))]),
    )  # fmt: skip
    def submit(
        self,
        accelerator: str,
        count: int,
        kind: str,
        priority: int,
        preemptible: bool,
        steps: float | None,
        retries: int,
        cpus: float,
        limits: tuple[float, float],
        depends: int,
        held: bool,
        not_before_s: float,
        due_s: float,
        tools: ToolNeeds,
    ) -> None:
        dependencies = (JobId(self.job_count),) if depends and self.job_count else ()
        self.job_count += 1
        request = job(
            self.job_count, accelerator, count, kind=Kind(kind), priority=priority, preemptible=preemptible,
            steps=steps, retry=RetryRule(retries), cpus_per_accelerator=cpus, max_runtime_s=limits[0],
            max_queue_s=limits[1], depends_on=dependencies, held=held, not_before_at=self.fleet.at + not_before_s,
            deadline_at=self.fleet.at + due_s, tools=tools, data=("d1", "d2")[: len(tools)],
        )  # fmt: skip
        self.tell(ev.JobSubmitted(self.fleet.at, request))

    @rule(index=st.integers(0, 50), refuse=st.sampled_from([False, False, True]))
    def machines_answer(self, index: int, refuse: bool) -> None:
        attempt = self.attempt(index)
        if attempt is None or attempt.started:
            return
        if refuse:
            node_id = attempt.placement.parts[0].node_id
            self.tell(ev.StartRefused(self.fleet.at, attempt.job_id, attempt.number, node_id, "busy"))
        else:
            self.fleet.prepare_all(attempt.job_id)

    @rule(index=st.integers(0, 50), steps=st.integers(0, 60), rate=st.sampled_from([None, 2.0, 5.0]))
    def ranks_work(self, index: int, steps: int, rate: float | None) -> None:
        attempt = self.attempt(index)
        if attempt is None or not attempt.started:
            return
        at, job_id, number = self.fleet.at, attempt.job_id, attempt.number
        self.tell(ev.AttemptStarted(at, job_id, number))
        self.tell(ev.AttemptProgressed(at, job_id, number, steps, rate, 3, 2.0))
        self.tell(ev.CheckpointRecorded(at, job_id, number, self.fleet.core.ledger.jobs[job_id].steps, 0.5))

    @rule(index=st.integers(0, 50), exit_code=st.sampled_from([0, 0, 1, 85, 143]), twice=st.booleans())
    def ranks_end(self, index: int, exit_code: int, twice: bool) -> None:
        attempt = self.attempt(index)
        if attempt is not None and attempt.started:
            self.fleet.end(attempt.job_id, exit_code)
            if twice:  # the report is repeated, and is about an attempt that is not current any more
                self.tell(self.fleet.log[-1][0])

    @rule(index=st.integers(0, 50))
    def stale_report(self, index: int) -> None:
        attempt = self.attempt(index)
        if attempt is not None:
            at, job_id, number = self.fleet.at, attempt.job_id, attempt.number - 1
            self.tell(ev.AttemptEnded(at, job_id, number, ev.EndCause.EXITED, 0))
            self.tell(ev.CheckpointRecorded(at, job_id, number, 1e9, 0.5))

    @rule(index=st.integers(0, 50), what=st.sampled_from(["lost", "silent", "back", "leaving", "uncordoned"]))
    @precondition(lambda self: bool(self.nodes))
    def machine(self, index: int, what: str) -> None:
        node_id, at = self.nodes[index % len(self.nodes)], self.fleet.at
        if what == "lost":
            self.nodes.remove(node_id)
            self.fleet.lose(node_id)
        elif what == "silent":
            self.tell(ev.NodeUnreachable(at, node_id))
        elif what == "back":
            self.tell(ev.NodeBack(at, node_id))
        elif what == "leaving":
            self.tell(ev.NodeLeaving(at, node_id, at + 10))
        else:
            self.tell(ev.NodeUncordoned(at, node_id))

    @rule(index=st.integers(0, 50), tools=st.sampled_from([(), ("uv",), ("git", "podman"), ("uv", "git", "docker")]))
    @precondition(lambda self: bool(self.nodes))
    def machine_says_what_it_has(self, index: int, tools: tuple[str, ...]) -> None:
        """Jobs that run there go on, whatever it says; none that needs more starts there from then on."""
        node_id = self.nodes[index % len(self.nodes)]
        self.tell(ev.NodeTools(self.fleet.at, node_id, tools))
        self.tell(ev.NodeData(self.fleet.at, node_id, ("d1", "d2", "d3")[index % 3 :]))

    @rule(row=st.integers(0, 2), drained=st.booleans())
    def pool_is_drained(self, row: int, drained: bool) -> None:
        """Or not any more: then its machines take jobs again."""
        fleet, at = self.fleet.core.ledger.fleet, self.fleet.at
        there = fleet.pool_row(POOLS[row].pool_id)
        if there is None:
            return
        self.tell(ev.PoolDeclared(at, replace(POOLS[row], drained=drained)))
        for machine in list(fleet.pools[there].members.values()):
            if not drained:
                self.tell(ev.NodeUncordoned(at, machine.node_id))
            else:
                assert machine.condition is not MachineCondition.UP

    @rule(row=st.integers(0, 2))
    def pool_goes_or_comes(self, row: int) -> None:
        fleet, pool_id = self.fleet.core.ledger.fleet, POOLS[row].pool_id
        there = fleet.pool_row(pool_id)
        if there is None:
            self.tell(ev.PoolDeclared(self.fleet.at, POOLS[row]))
        elif not fleet.pools[there].members and not fleet.pools[there].awaited:
            self.tell(ev.PoolRemoved(self.fleet.at, pool_id))

    @rule(name=st.sampled_from(["a", "b"]))
    def new_machine(self, name: str) -> None:
        self.join(name)

    @rule(fractions=st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=6), rent=st.integers(0, 2))
    def solver_answers(self, fractions: list[float], rent: int) -> None:
        if self.fleet.solves:
            solve = self.fleet.solves.pop()
            self.tell(ev.Solved(self.fleet.at, solve.request_id, some_shares(solve, fractions, rent), 0.1))

    @rule()
    def solver_fails(self) -> None:
        if self.fleet.solves:
            self.tell(ev.SolveFailed(self.fleet.at, self.fleet.solves.pop().request_id, "no answer"))

    @rule(fails=st.sampled_from([False, False, True]))
    def provider_answers(self, fails: bool) -> None:
        while self.fleet.rents:
            rent = self.fleet.rents.pop()
            if fails:
                self.tell(ev.RentFailed(self.fleet.at, rent.token, "no capacity"))
            else:
                for _ in range(rent.machines):
                    self.join(rent.pool_id, rent.token)
        while self.fleet.released:
            node_id = self.fleet.released.pop()
            if node_id in self.nodes:
                self.nodes.remove(node_id)
                self.fleet.lose(node_id)

    @rule(
        index=st.integers(1, 50),
        what=st.sampled_from(["cancel", "hold", "release", "priority", "project", "due", "never due"]),
    )
    @precondition(lambda self: self.job_count > 0)
    def people(self, index: int, what: str) -> None:
        job_id, at = JobId(1 + index % self.job_count), self.fleet.at
        if what == "cancel":
            self.tell(ev.JobCancelled(at, job_id))
        elif what == "hold":
            self.tell(ev.JobHeld(at, job_id))
        elif what == "release":
            self.tell(ev.JobReleased(at, job_id))
        elif what == "priority":
            self.tell(JobReprioritised(at, job_id, 90))
        elif what == "project":
            self.tell(JobProjectChanged(at, job_id, f"p{index % 3}", index, 1.0 + index % 2))
        else:
            self.tell(JobDeadlineChanged(at, job_id, inf if what == "never due" else at + 30.0))

    @rule(index=st.integers(1, 50), kind=st.sampled_from(["k", "slow", "new"]), steps=st.integers(0, 40))
    @precondition(lambda self: self.job_count > 0)
    def work_is_restated(self, index: int, kind: str, steps: int) -> None:
        job_id = JobId(1 + index % self.job_count)
        self.tell(WorkRestated(self.fleet.at, job_id, Kind(kind), steps + 10.0, float(steps)))

    @rule(index=st.integers(1, 50), where=st.sampled_from(["a", "b", "s"]), count=st.integers(1, 2), only=st.booleans())
    @precondition(lambda self: self.job_count > 0)
    def job_is_redirected(self, index: int, where: str, count: int, only: bool) -> None:
        """Of jobs that are held; said of others it changes nothing."""
        job_id, pools = JobId(1 + index % self.job_count), tuple(str(each.pool_id) for each in POOLS)
        gang = GangRequest(demands=(Demand(where, count),), pools=pools[:2] if only and where != "s" else ())
        self.tell(JobRedirected(self.fleet.at, job_id, gang, 2.0 if only else None))

    @rule(policy=st.sampled_from(POLICIES))
    def policy_changes(self, policy: PolicySpec) -> None:
        standing = self.fleet.core.ledger.policy
        self.tell(ev.PolicyChanged(self.fleet.at, policy, standing.rules))

    @rule()
    def server_restarts(self) -> None:
        self.fleet.restart()

    def teardown(self) -> None:
        """The same events give the same commands: a recorded run replays through a fresh core."""
        if hasattr(self, "fleet"):
            fresh = SchedulerCore()
            for event, commands in self.fleet.log:
                assert plain(fresh.handle(event)) == plain(commands)


_ORDERS = settings(stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(_ORDERS, max_examples=100)


@pytest.mark.slow
class TestManyOrders(AnyOrder.TestCase):
    settings = settings(_ORDERS, max_examples=300)
