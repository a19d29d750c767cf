"""The parts of a running server, joined: what the HTTP face may reach. It starts nothing and decides nothing."""

import asyncio
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from scheduler.core.core import SchedulerCore
from scheduler.live.access.auth import AgentCaller, Caller, JobCaller, JoinCaller, caller_of, same, token_hash
from scheduler.live.access.enrolment_tokens import EnrolmentTokens
from scheduler.live.access.job_tokens import JobTokens
from scheduler.live.desks.agents import AgentGateway
from scheduler.live.desks.policy_desk import PolicyDesk
from scheduler.live.desks.submit import Admission
from scheduler.live.desks.views import Views
from scheduler.live.providers.rented import ProviderDesk
from scheduler.live.records.logs import LogStore
from scheduler.live.records.rows import TokenRow
from scheduler.live.records.store import Store
from scheduler.live.turns.board import Board
from scheduler.live.turns.daemon import Daemon
from scheduler.live.turns.forecasts import Forecasts
from scheduler.live.turns.predictions import Predictions
from scheduler.live.turns.solver_pool import SolverPool
from scheduler.live.turns.whole_gangs import WholeGangs

P = ParamSpec("P")
R = TypeVar("R")
_READERS = 4


@dataclass(slots=True)
class Secrets:
    """What opens the server. User tokens by the hash of their secret."""

    join_token: str
    job_tokens: JobTokens
    enrolment_tokens: EnrolmentTokens
    users: dict[str, TokenRow]


@dataclass(slots=True)
class Server:
    """Everything a handler needs."""

    daemon: Daemon
    store: Store
    secrets: Secrets
    gateway: AgentGateway
    solver: SolverPool
    predictions: Predictions
    forecasts: Forecasts
    whole_gangs: WholeGangs
    policies: PolicyDesk
    providers: ProviderDesk
    admission: Admission
    views: Views
    logs: LogStore
    version: str
    is_ready: bool = False
    readers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_READERS, "store-reader"))

    @property
    def board(self) -> Board:
        return self.daemon.board

    @property
    def core(self) -> SchedulerCore:
        return self.daemon.core

    async def read(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call something that blocks (the store, log files) in a reader thread."""
        work = functools.partial(call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.readers, work)

    def identify(self, token: str) -> Caller | None:
        """Whose token this is; None where it is nobody's, or no longer valid."""
        if token.startswith("wlr_u_"):
            row = self.secrets.users.get(token_hash(token))
            return None if row is None else caller_of(row)
        if token.startswith("wlr_a_"):
            node_id = self.gateway.node_of(token)
            return None if node_id is None else AgentCaller(node_id)
        if token.startswith("wlr_j_"):
            named = self.secrets.job_tokens.check(token)
            alive = named is not None and self.board.attempt(*named) is not None
            return JobCaller(named[0]) if named is not None and alive else None
        if token.startswith("wlr_e_"):
            rent_token = self.secrets.enrolment_tokens.check(token)
            return None if rent_token is None else JoinCaller(rent_token)
        if token and same(token, self.secrets.join_token):
            return JoinCaller()
        return None

    async def check_health(self) -> dict[str, str]:
        """The loop turns and the database takes writes; "ok", or what is wrong."""
        began = time.monotonic()
        await asyncio.sleep(0)
        lag_s = time.monotonic() - began
        checks = {"event_loop": "ok" if lag_s < 1.0 else f"{lag_s:.1f} s behind"}
        try:
            await asyncio.wait_for(self.daemon.touch_store(), 5.0)
            checks["database"] = "ok"
        except TimeoutError:
            checks["database"] = "no write within 5 s"
        checks["solver"] = self.solver.state
        return checks
