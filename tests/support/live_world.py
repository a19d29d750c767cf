"""A whole server inside a test: real core, store, loop and gateway, with a clock that the test moves and agents that it
plays. No ports, no processes, no waiting."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from scheduler.core.commands import Solve
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.events import Solved, Woke
from scheduler.live.assembly import AssembledServer, ServerConfig, assemble_server, restore_and_configure
from scheduler.live.auth.access_control import UserCaller, UserRole
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.budget_sums import UseRow
from scheduler.live.loop.event_loop import Clock, LiveSettings, ServerLoop
from scheduler.live.loop.transaction import Transaction, TransactionEffects
from scheduler.live.services.job_submission import Dependencies, draft_job
from scheduler.live.store.data_folder import DataFolder
from scheduler.live.store.event_journal import as_journaled
from tests.support.stores import STORE, open_store
from walras.clocks import Clocks
from walras.contract import PROTOCOL
from walras.errors import ConfigError
from walras.job_request import JobId
from walras.resources.people import ALL_PROJECTS
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import check_model
from walras.spec.job_spec import parse_spec
from walras.wire import AttemptHere, Heartbeat, HeartbeatAnswer, Register, ShapeFacts, StartCommand

FIFO = {"policy": {"name": "fifo"}, "rules": {"round_s": 10.0, "backoff_s": 1.0, "prepare_timeout_s": 30.0}}
ADMIN = UserCaller("root", UserRole.ADMIN, (ALL_PROJECTS,))


#: In the middle of a month: no stretch of a test is cut by its end, whatever the day is on which it runs.
EPOCH_UNIX_S = 1_700_000_000.0


class HandClock(Clock):
    """Stands still until the test moves it; `set_by`: seconds by which the wall clock was set."""

    def __init__(self, at: float = 0.0) -> None:
        self.at, self.set_by = at, 0.0
        hand = Clocks(lambda: EPOCH_UNIX_S + self.at + self.set_by, lambda: self.at, lambda: self.at)
        super().__init__(EPOCH_UNIX_S, 0.0, hand)

    def now(self) -> float:
        return self.at


class InlineSolver:
    """Answers solves at once, in the loop."""

    def __init__(self, loop: ServerLoop) -> None:
        self._loop = loop

    def deliver(self, effects: TransactionEffects) -> None:
        for command in effects.solves:
            assert isinstance(command, Solve), "a policy of another package is asked in a process of its own"
            solved = as_journaled(Solved(0.0, command.request_id, run_solve(command)))
            self._loop.perform_soon(partial(self._tell, solved=solved))

    @staticmethod
    def _tell(transaction: Transaction, solved: Any) -> None:
        solved.at = transaction.at
        emit(transaction, solved)


class World:
    """The server, and what a test does to it."""

    def __init__(self, assembled: AssembledServer, clock: HandClock) -> None:
        self.assembled = assembled
        self.server = assembled.server
        self.clock = clock

    @property
    def loop(self) -> ServerLoop:
        return self.server.loop

    @property
    def live_state(self) -> Any:
        return self.server.state

    async def submit(self, spec: Mapping[str, Any], user: str = "ada") -> JobId:
        draft = draft_job(parse_spec({"run": "true", **spec}), UserCaller(user, UserRole.ADMIN, (ALL_PROJECTS,)))
        needs = Dependencies(draft.spec.depends_on)  # type: ignore[arg-type]
        return await self.loop.perform(lambda turn: self.server.admission.admit(turn, draft, needs, user))

    async def running(
        self, spec: Mapping[str, Any] | None = None, *, named: bool = False, **more: Any
    ) -> tuple["FakeAgent", JobId]:
        """The agent of machine n1, and a job that runs there; `named`: as an agent of this release names itself."""
        agent = FakeAgent(self, "n1", **more)
        await (agent.names_itself() if named else agent).register()
        job_id = await self.submit(spec or {})
        await agent.start_all()
        return agent, job_id

    async def emit(self, make: Any) -> None:
        """Feed an event made of the turn's instant."""
        await self.loop.perform(lambda transaction: emit(transaction, make(transaction.at)))

    async def advance(self, seconds: float) -> None:
        """Let time pass, with a waking at its end."""
        self.clock.at += seconds
        await self.emit(Woke)
        await self.quiet()

    async def quiet(self) -> None:
        """Until nothing is under way."""
        for _ in range(3):
            await asyncio.sleep(0)
            await self.loop.perform(lambda transaction: None)

    def state(self, job_id: JobId) -> str:
        row = self.server.store.job(job_id)
        assert row is not None
        return row.state.value


class FakeAgent:
    """Plays an agent by hand: keeps what a real one keeps."""

    def __init__(self, world: World, node_id: str, rent_token: str = "", **facts: Any) -> None:
        known = {"shape": "ax2", "accelerator": "a", "accelerators": 2, "cpus": 8.0, "memory_bytes": 1 << 34}
        self.facts = ShapeFacts.model_validate({**known, **facts})
        self.world, self.node_id, self.rent_token = world, node_id, rent_token
        self.here: dict[tuple[int, int], StartCommand] = {}
        #: Attempts reported as started.
        self.told: set[tuple[int, int]] = set()
        self.commands: list[Any] = []
        self.acks: list[int] = []
        self.next_report = 1
        self.credential = ""
        #: Of the server, as its last answer named it; only calls that are counted say it.
        self.life = ""
        #: As of the first release: names neither itself nor the cluster.
        self.identity: dict[str, Any] = {}

    def names_itself(self, agent: str = "a" * 32, boot_id: str = "boot-1", **more: Any) -> "FakeAgent":
        """From now on it speaks as agents of this release do."""
        known = {"protocol": PROTOCOL, "agent": agent, "boot_id": boot_id, "version": "2.0"}
        self.identity = {**known, "cluster": self.world.live_state.identity, **more}
        return self

    async def register(self) -> "FakeAgent":
        message = Register(node_id=self.node_id, facts=self.facts, rent_token=self.rent_token, **self.identity)
        self.credential = (await self.world.server.gateway.register(message)).credential
        return self

    async def beat(
        self, *reports: dict[str, Any], resync: bool = False, ack: bool = True, **more: Any
    ) -> HeartbeatAnswer:
        """One heartbeat with these reports (numbered here); takes up the commands of the answer."""
        numbered = []
        for report in reports:
            numbered.append({"report_id": self.next_report, **report})
            self.next_report += 1
        here = [
            AttemptHere(job_id=job_id, attempt=attempt, incarnation=start.incarnation if self.identity else "")
            for (job_id, attempt), start in self.here.items()
        ]
        message = Heartbeat.model_validate(
            {"node_id": self.node_id, "resync": resync, "reports": numbered, "acks": self.acks, "here": here}
            | self.identity
            | more
        )
        answer = await self.world.server.gateway.heartbeat(message)
        if ack:
            self.acks = []
            for command in answer.commands:
                self.acks.append(command.command_id)
                self.commands.append(command)
                if isinstance(command, StartCommand):
                    self.here[command.job_id, command.attempt] = command
        for fenced in answer.fenced:
            self.here.pop((fenced.job_id, fenced.attempt), None)
        return answer

    async def start_all(self) -> list[StartCommand]:
        """Take up commands and report every new attempt as started."""
        await self.beat()
        new = [command for key, command in self.here.items() if key not in self.told]
        self.told.update(self.here)
        if new:
            await self.beat(*({"type": "started", "job_id": s.job_id, "attempt": s.attempt} for s in new))
        return new

    async def end(self, job_id: int, attempt: int = 1, exit_code: int | None = 0, **more: Any) -> None:
        """Report that nothing of the attempt is left here."""
        self.here.pop((job_id, attempt), None)
        given = {"type": "ended", "job_id": job_id, "attempt": attempt, "cause": "exited", "exit_code": exit_code}
        await self.beat({**given, **more})

    def progress(self, job_id: int, attempt: int, steps: float, **more: Any) -> dict[str, Any]:
        return {"type": "progress", "job_id": job_id, "attempt": attempt, "steps": steps, **more}

    async def train(self, job_id: int, attempt: int, steps_per_s: float, **more: Any) -> None:
        """Report a speed until the job's own steps vouch for it."""
        for seconds in (0.0, 4.0, 8.0):
            self.world.clock.at += 4.0 if seconds else 0.0
            steps = 5.0 + seconds * steps_per_s
            await self.beat(self.progress(job_id, attempt, steps, steps_per_s=steps_per_s, **more))

    def committed(self, job_id: int, attempt: int, step: float, path: str | None = None) -> dict[str, Any]:
        folder = self.here[job_id, attempt].checkpoint_dir if path is None else ""
        manifest = {"step": step, "path": path or f"{folder}/attempt-{attempt}/step-{step:g}", "digest": "0" * 64}
        return {"type": "committed", "job_id": job_id, "attempt": attempt, "manifest": manifest}


@asynccontextmanager
async def world(
    folder: Path,
    *,
    policy: Mapping[str, Any] = FIFO,
    cluster: Mapping[str, Any] | None = None,
    at: float = 0.0,
    settings: LiveSettings | None = None,
    real_time: bool = False,
    kind: str = STORE,
) -> AsyncIterator[World]:
    """A running server on a folder; leaving it is like killing it (nothing is tidied up but the lock).

    `real_time`: with its own clock and solver process, for tests of how long things take. `kind`: of its store.
    """
    data = DataFolder(folder)
    data.create()
    store = open_store(kind, folder)
    config = ServerConfig(
        data,
        None if cluster is None else check_model(ClusterConfig, cluster, source="cluster"),
        json.loads(json.dumps(policy)),
        settings or LiveSettings(lease_s=dict.fromkeys(("owned", "on_demand", "spot"), 20.0)),
    )
    try:
        assembled = assemble_server(config, store)
    except ConfigError:
        store.close()
        raise
    clock = HandClock(max(at, store.last_at()))
    loop = assembled.server.loop
    if not real_time:
        _set_clock(assembled, clock)
        loop.state.epoch_unix_s = EPOCH_UNIX_S
        loop.state.budgets.days.clear()
        for row in store.use_by_day(EPOCH_UNIX_S):
            loop.state.budgets.add(UseRow(*row))
        loop.effect_handlers = [
            assembled.server.gateway, InlineSolver(loop), assembled.server.start_forecasts, assembled.server.metrics,
        ]  # fmt: skip
    loop_task = asyncio.create_task(loop.run())
    try:
        await restore_and_configure(assembled, config)
        if real_time:
            await assembled.server.solver.start()
        yield World(assembled, clock)
    finally:
        await assembled.server.predictions.close()
        await assembled.server.forecasts.close()
        await assembled.server.solver.close()
        loop_task.cancel()
        await asyncio.gather(loop_task, return_exceptions=True)
        loop.close()
        assembled.server.bodies.close()
        assembled.server.readers.shutdown()
        store.close()


def _set_clock(assembled: AssembledServer, clock: HandClock) -> None:
    server = assembled.server
    server.loop.clock = clock
    server.views._clock = clock
    server.admission._clock = clock
    for node in server.state.nodes.values():
        node.heard_at = clock.now()
        node.leased_until = clock.now() + server.loop.settings.lease_s[node.facts.market]
