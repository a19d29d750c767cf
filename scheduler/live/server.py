"""The parts of a running server together: everything that an HTTP handler may use. It starts nothing."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import ParamSpec, TypeVar

from scheduler.core.core import SchedulerCore
from scheduler.live.auth.access_control import (
    AgentCaller,
    Caller,
    EnrolmentTokens,
    JobCaller,
    JobTokens,
    JoinCaller,
    UserCaller,
    equal_in_constant_time,
    token_hash,
)
from scheduler.live.auth.people import People
from scheduler.live.auth.single_sign_on import SingleSignOn
from scheduler.live.holder_shares import HolderShares
from scheduler.live.http.request_bodies import BodyReaders
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.live_state import LiveState
from scheduler.live.loop.prediction_tasks import SpeedPredictions, TargetForecasts
from scheduler.live.loop.solver_pool import SolverPool, WholeGangBound
from scheduler.live.providers.provisioning import Provisioner
from scheduler.live.services.agent_gateway import AgentGateway
from scheduler.live.services.cluster_metrics import ClusterMetrics
from scheduler.live.services.job_submission import JobAdmission
from scheduler.live.services.notifications import Notifications
from scheduler.live.services.policy_service import PolicyService
from scheduler.live.services.start_forecasts import StartForecasts
from scheduler.live.services.store_access import StoreAccessDesk
from scheduler.live.services.views import ApiViews
from scheduler.live.store.content_store import ContentStore
from scheduler.live.store.data_folder import LogStore
from scheduler.live.store.sql_store import Store
from scheduler.live.store.store_interface import StoreUnavailable
from scheduler.live.store.table_rows import TokenRow
from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.contract import SECONDS_PER_HOUR

P = ParamSpec("P")
R = TypeVar("R")
_READERS = 4


@dataclass(slots=True)
class Secrets:
    """Tokens and keys that open the server; user tokens by the hash of their secret."""

    join_token: str
    job_tokens: JobTokens
    enrolment_tokens: EnrolmentTokens
    users: dict[str, TokenRow]
    people: People
    #: The certificate's fingerprint, which tokens carry to their users; empty: none is pinned.
    pin: str = ""


@dataclass(slots=True)
class Server:
    """All parts that an HTTP handler needs."""

    loop: ServerLoop
    store: Store
    secrets: Secrets
    gateway: AgentGateway
    solver: SolverPool
    predictions: SpeedPredictions
    forecasts: TargetForecasts
    start_forecasts: StartForecasts
    whole_gangs: WholeGangBound
    policies: PolicyService
    providers: Provisioner
    admission: JobAdmission
    views: ApiViews
    metrics: ClusterMetrics
    notifications: Notifications
    logs: LogStore
    content: ContentStore
    store_access: StoreAccessDesk
    version: str
    #: None: users have tokens alone.
    sign_on: SingleSignOn | None = None
    clocks: Clocks = SYSTEM_CLOCKS
    #: The source of random tokens; None: the system's, which cannot be guessed.
    chance: Random | None = None
    is_ready: bool = False
    bodies: BodyReaders = field(default_factory=BodyReaders)
    #: Held while the spec of a job is read, changed and written: the next change begins with what this one wrote.
    changing_specs: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Of connections and requests, once there is an application that answers them.
    shares_of_requests: tuple[HolderShares, ...] = ()
    readers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_READERS, "store-reader"))

    @property
    def state(self) -> LiveState:
        return self.loop.state

    @property
    def core(self) -> SchedulerCore:
        return self.loop.core

    async def read(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Returns what a blocking call (of the store, or of log files) returns, made in a reader thread."""
        work = functools.partial(call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.readers, work)

    def identify(self, token: str) -> Caller | None:
        """Returns whose token this is; None if no caller has it, or it is no longer valid."""
        if token.startswith("wlr_u_"):
            return self.user_behind(token_hash(token))
        if token.startswith("wlr_a_"):
            node_id = self.gateway.node_of(token)
            return None if node_id is None else AgentCaller(node_id)
        if token.startswith("wlr_j_"):
            named = self.secrets.job_tokens.check(token)
            alive = named is not None and self.state.attempt(*named) is not None
            return JobCaller(named[0]) if named is not None and alive else None
        if token.startswith("wlr_e_"):
            rent_token = self.secrets.enrolment_tokens.check(token)
            return None if rent_token is None else JoinCaller(rent_token)
        if token and equal_in_constant_time(token, self.secrets.join_token):
            return JoinCaller()
        return None

    def user_behind(self, digest: str) -> UserCaller | None:
        """Returns the user whose token has this hash; None if there is none, or token or user is no longer valid."""
        row = self.secrets.users.get(digest)
        return None if row is None else self.secrets.people.caller(row, self.clocks.wall())

    async def check_health(self) -> dict[str, str]:
        """Check that the loop runs and the database takes writes. Returns "ok", or what is wrong, by part."""
        began = self.clocks.monotonic()
        await asyncio.sleep(0)
        lag_s = self.clocks.monotonic() - began
        checks = {"event_loop": "ok" if lag_s < 1.0 else f"{lag_s:.1f} s behind"}
        try:
            await asyncio.wait_for(self.loop.touch_store(), 5.0)
            checks["database"] = "ok"
        except TimeoutError:
            checks["database"] = "no write within 5 s"
        except StoreUnavailable as error:
            checks["database"] = str(error)
        checks["solver"] = self.solver.state
        checks["clock"], stepped = "ok", self.loop.clock_stepped
        if stepped is not None and self.loop.clock.now() - stepped[0] < SECONDS_PER_HOUR:
            checks["clock"] = f"set by {stepped[1]:+.0f} s at {self.loop.clock.shown(stepped[0])}"
        for part, standing in (("content", self.content.holders.shares.standing), ("logs", self.logs.standing)):
            checks[part] = await asyncio.get_running_loop().run_in_executor(None, standing)
        put_back = self.policies.in_force.put_back if self.policies.has_policy else ""
        checks["policy"] = f"put back: {put_back}" if put_back else "ok"
        return checks
