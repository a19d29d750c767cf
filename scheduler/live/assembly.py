"""Putting a server together from a folder and its configuration, and taking it apart.

What is built here is started in order: core and board as they were, the loop, the policy and pools of the files, HTTP,
then machines and solver.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

import walras
from scheduler.core.core import SchedulerCore
from scheduler.core.events import PoolDeclared
from scheduler.live.access.auth import ALL_PROJECTS, Role, caller_of, new_user_token
from scheduler.live.access.enrolment_tokens import EnrolmentTokens
from scheduler.live.access.job_tokens import JobTokens
from scheduler.live.desks.agents import AgentGateway
from scheduler.live.desks.policy_desk import DEFAULT_POLICY, PolicyDesk, parse_row
from scheduler.live.desks.submit import Admission
from scheduler.live.desks.views import Views
from scheduler.live.providers.aws_calls import Ec2Calls, make_client
from scheduler.live.providers.aws_provider import AwsProvider
from scheduler.live.providers.local_provider import AgentLauncher, LocalPool, LocalProvider
from scheduler.live.providers.rented import ProviderDesk
from scheduler.live.records.data_folder import DataFolder, write_private
from scheduler.live.records.journal import parse_request
from scheduler.live.records.logs import LogStore
from scheduler.live.records.rows import Loaded, SpecRow
from scheduler.live.records.store import Store
from scheduler.live.restart import Used, take_over
from scheduler.live.server import Secrets, Server
from scheduler.live.settings import LiveSettings
from scheduler.live.turns.board import load_board
from scheduler.live.turns.carry_out import emit
from scheduler.live.turns.clock import Clock
from scheduler.live.turns.daemon import Daemon
from scheduler.live.turns.forecasts import Forecasts
from scheduler.live.turns.predictions import Predictions
from scheduler.live.turns.solver_pool import SolverPool
from scheduler.live.turns.turn import Turn
from scheduler.live.turns.whole_gangs import WholeGangs
from walras.config import ClusterConfig
from walras.ids import JobId
from walras.job import parse_spec
from walras.request import JobRequest

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What a server is started with."""

    folder: DataFolder
    cluster: ClusterConfig | None
    #: Content of a policy file; None: the policy in force, or the default at the first start.
    policy: Mapping[str, Any] | None
    settings: LiveSettings


def settings_for(cluster: ClusterConfig | None) -> LiveSettings:
    """The paces that follow from the length of a lease: several heartbeats, and a warning, before one runs out."""
    settings = LiveSettings()
    if cluster is None or cluster.lease is None:
        return settings
    lease_s = cluster.lease
    return replace(
        settings,
        lease_s=dict.fromkeys(settings.lease_s, lease_s),
        heartbeat_s=min(settings.heartbeat_s, lease_s / 10),
        unreachable_s=min(settings.unreachable_s, lease_s / 2),
    )


@dataclass(slots=True)
class Assembled:
    """A server and what only its owner needs."""

    server: Server
    local: LocalProvider
    aws: AwsProvider | None
    loaded: Loaded
    requests: dict[JobId, JobRequest]
    used: dict[JobId, Used]


def assemble(config: ServerConfig, store: Store) -> Assembled:
    """Build the server on what the tables hold. Blocks."""
    folder, settings = config.folder, config.settings
    epoch_unix_s = store.epoch_unix_s()
    clock = Clock(epoch_unix_s, store.last_at())
    admission = Admission(clock, epoch_unix_s, folder.checkpoints)
    loaded = store.load()
    specs = {job.job_id: _spec(store, job.job_id) for job in loaded.jobs}
    launches = {
        job.job_id: admission.launch(job.job_id, job.project, parse_spec(json.loads(specs[job.job_id].spec)))
        for job in loaded.jobs
    }
    board = load_board(loaded, launches, clock.now(), settings.lease_s)
    board.epoch_unix_s = epoch_unix_s
    board.spent_month_usd = store.spent()
    for (project, _), usd in board.spent_month_usd.items():
        board.spent_usd[project] = board.spent_usd.get(project, 0.0) + usd
    daemon = Daemon(SchedulerCore(), board, store, clock, settings)
    known = store.policies(limit=1)
    policies = PolicyDesk(daemon, parse_row(known[0]) if known else None)
    secret = folder.server_secret()
    secrets = Secrets(
        join_token=folder.join_token(),
        job_tokens=JobTokens(secret),
        enrolment_tokens=EnrolmentTokens(secret),
        users={row.sha256: row for row in store.tokens()},
    )
    gateway = AgentGateway(daemon, secrets.job_tokens)
    local = _local_provider(config)
    aws = _aws_provider(config.cluster, secret)
    desk = ProviderDesk(
        daemon, {**dict.fromkeys(local.pools, local), **({} if aws is None else dict.fromkeys(aws.pools, aws))}
    )
    local.on_gone = desk.gone
    solver = SolverPool(daemon, settings.solve_timeout_s)
    predictions = Predictions(daemon, loaded.scores)
    forecasts = Forecasts(daemon)
    daemon.outlets += [gateway, solver, desk, predictions, forecasts]
    server = Server(
        daemon=daemon,
        store=store,
        secrets=secrets,
        gateway=gateway,
        solver=solver,
        predictions=predictions,
        forecasts=forecasts,
        whole_gangs=WholeGangs(solver),
        policies=policies,
        providers=desk,
        admission=admission,
        views=Views(clock, daemon),
        logs=LogStore(folder.logs, settings.log_limit_bytes),
        version=walras.__version__,
    )
    used: dict[JobId, Used] = {}
    for each in store.usage(specs, clock.now()):
        before = used.get(each.job_id, Used())
        used[each.job_id] = Used(before.accelerator_s + each.accelerator_s, before.usd + each.usd)
    requests = {job_id: parse_request(row.request) for job_id, row in specs.items()}
    return Assembled(server, local, aws, loaded, requests, used)


def _spec(store: Store, job_id: JobId) -> SpecRow:
    row = store.spec(job_id)
    assert row is not None, f"job {job_id} has no spec"
    return row


def _local_provider(config: ServerConfig) -> LocalProvider:
    cluster, folder = config.cluster, config.folder
    pools = {
        entry.pool_id: LocalPool(entry.pool(), entry.boot)
        for entry in (() if cluster is None else cluster.pools)
        if entry.provider == "local"
    }
    speeds_file: Path | None = None
    if cluster is not None and cluster.speeds:
        speeds_file = folder.path / "speeds.yaml"
        write_private(speeds_file, yaml.safe_dump(cluster.speeds))
    launcher = AgentLauncher((_walras_command(),), folder.join_token_file.absolute(), speeds_file)
    return LocalProvider(folder.machines.absolute(), pools, launcher)


def _aws_provider(cluster: ClusterConfig | None, secret: bytes) -> AwsProvider | None:
    """None where no pool is rented there. A cluster is known at AWS by a name that only its folder gives."""
    pools = [entry.pool() for entry in (() if cluster is None else cluster.pools) if entry.provider == "aws"]
    if cluster is None or cluster.aws is None or not pools:
        return None
    settings = cluster.aws
    cluster_id = hmac.new(secret, b"aws cluster", hashlib.sha256).hexdigest()[:16]
    calls = Ec2Calls(lambda: make_client(settings.region))
    return AwsProvider(cluster_id, settings, pools, EnrolmentTokens(secret), calls)


def _walras_command() -> str:
    """The console script beside the running interpreter, else the one on the path."""
    beside = Path(sys.executable).parent / "walras"
    return str(beside) if beside.is_file() else (shutil.which("walras") or str(beside))


# ------------------------------------------------------------------------------------------ first steps


async def bring_up_to_date(assembled: Assembled, config: ServerConfig) -> None:
    """Let a fresh core take over, then change what the files say differently. The loop must be running."""
    server, policies = assembled.server, assembled.server.policies
    if policies.has_policy:

        def begin(turn: Turn) -> None:
            take_over(turn, policies.in_force, assembled.loaded, assembled.requests, assembled.used)

        await server.daemon.perform(begin)
    if config.policy is not None and not policies.is_in_force(config.policy):
        await policies.change(config.policy, "policy file")
    elif not policies.has_policy:
        await policies.change(DEFAULT_POLICY, "default")
    pools = [] if config.cluster is None else config.cluster.pool_list()
    for entry in () if config.cluster is None else config.cluster.pools:
        server.board.expect(entry.pool_id, entry.machines)

    def step(turn: Turn) -> None:
        for pool in pools:
            if turn.board.pools.get(pool.pool_id) != pool:
                emit(turn, PoolDeclared(turn.at, pool))

    await server.daemon.perform(step)
    await _ensure_admin(server, config.folder)


async def _ensure_admin(server: Server, folder: DataFolder) -> None:
    """Somebody must be able to come in."""
    callers = (caller_of(row) for row in server.secrets.users.values())
    if any(caller is not None and caller.role is Role.ADMIN for caller in callers):
        return
    token, row = new_user_token("admin", Role.ADMIN, (ALL_PROJECTS,), "first start")

    def step(turn: Turn) -> None:
        turn.batch.tokens.append(row)

    await server.daemon.perform(step)
    server.secrets.users[row.sha256] = row
    await asyncio.get_running_loop().run_in_executor(None, write_private, folder.admin_token_file, token + "\n")
