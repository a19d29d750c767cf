"""Machines of Slurm: a machine is an allocation, in which a pilot job runs an agent.

The provider keeps no state that matters: its machines are what Slurm lists under this server's job name, and each job's
comment says for which request it was submitted. The time in Slurm's queue is part of the time until a machine comes
(`waits`).

How an allocation ends. Slurm signals the pilot (workers/pilot.py) before a time limit, and the pilot gives its agent a
notice; so it does when somebody cancels or preempts the job. Once Slurm does not list the allocation any more, the
machine is gone. A job that Slurm requeues becomes another machine: the former is lost, and the new one answers no
request, because the server requests again what it still wants. So nothing is requeued for ever.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import shlex
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from math import ceil
from pathlib import PurePosixPath
from statistics import median
from typing import Any

from scheduler.live.auth.access_control import EnrolmentTokens
from scheduler.live.providers.live_provider import ProviderContext, ReportGone
from scheduler.live.providers.machine_boot import agent_command_line
from scheduler.live.providers.slurm_commands import Allocation, SlurmCommands, request_serial
from scheduler.providers.provider import MachineState, ProviderProblem, ProviderProblemKind, RentalOffer, RentedMachine
from walras.cluster import NodeId, Pool, PoolId
from walras.spec.provider_settings import SlurmSettings
from walras.states import Reason

log = logging.getLogger(__name__)

#: Seconds before an allocation's time limit at which its pilot is signalled, where the pool states no notice.
NOTICE_S = 60.0
_MIB = 1 << 20
#: A pilot that Slurm requeues more often than this before it ran is given up.
_REQUEUES_MAX = 3
#: The `walras` command of the environment that a Python belongs to.
_WALRAS = "import sys; from walras.cli.main import main; sys.exit(main())"
#: How many of the newest waits of a pool are remembered.
_WAITS_KEPT = 9
#: Slurm's reasons of jobs that waiting will not help.
_HOPELESS = (
    "badconstraints", "partitionnodelimit", "partitiontimelimit", "jobheld", "joblaunchfailure",
    "launch_failed_requeued_held", "launch failed requeued held", "invalidaccount", "invalidqos", "accountnotallowed",
    "qosnotallowed",
)  # fmt: skip

_PILOT = """#!/bin/bash
umask 077
again="${{SLURM_RESTART_COUNT:-0}}"
[ "$again" = 0 ] && again="" || again="-r$again"
name="slurm-{serial}-$SLURM_JOB_ID$again"
state={state}/"$name"
mkdir -p "$state" || exit 1
cat >"$state/enrolment.token" <<'WALRAS'
{enrolment_token}
WALRAS
cat >"$state/rent.token" <<'WALRAS'
{rent_token}
WALRAS
exec {python} -m workers.pilot "$state" {notice_s:g} -- {line} --node "$name"
"""


class SlurmProvider:
    """`CloudProvider` over Slurm's commands."""

    def __init__(
        self,
        settings: SlurmSettings,
        pools: Iterable[Pool],
        enrolments: EnrolmentTokens,
        commands: SlurmCommands,
    ) -> None:
        self._settings = settings
        self.pools = {pool.pool_id: pool for pool in pools}
        self._enrolments = enrolments
        self._commands = commands
        self._server_url = ""
        self._report_gone: ReportGone | None = None
        #: The allocations of the last look, by machine.
        self._seen: dict[NodeId, Allocation] = {}
        self._waited: dict[PoolId, deque[float]] = {}

    def take_up(self, pool: Pool) -> None:
        self.pools[pool.pool_id] = pool

    # ---------------------------------------------------------------- CloudProvider

    async def offers(self) -> tuple[RentalOffer, ...]:
        return tuple(RentalOffer(pool.pool_id, pool.usd_per_h, pool.quota) for pool in self.pools.values())

    async def request(self, token: str, pool: Pool, machines: int) -> tuple[RentedMachine, ...]:
        """Submit a pilot for each machine; pilots that this token has already are not submitted again."""
        listed = await self._commands.allocations()
        known = [each for each in listed if each.token == token]
        held = [each.machine for each in known if each.machine_state is not MachineState.GONE]
        if known and not held:
            raise ProviderProblem(ProviderProblemKind.GONE, f"the allocations of {pool.pool_id} that came are gone")
        others = sum(
            each.pool_id == pool.pool_id and each.token != token and each.machine_state is not MachineState.GONE
            for each in listed
        )
        if others + machines > pool.quota:
            problem = f"the quota of {pool.pool_id} is {pool.quota} machines, {others} are held"
            raise ProviderProblem(ProviderProblemKind.QUOTA, problem)
        options, script = self._options(token, pool), self._script(token, pool)
        for _ in range(machines - len(known)):
            try:
                job = await self._commands.submit(options, script)
            except ProviderProblem as problem:
                missing = machines - len(held) if held else None
                raise ProviderProblem(problem.kind, f"slurm: {_without_kind(problem)}", missing) from None
            held.append(Allocation(job, "PENDING", "", 0, 0.0, pool.pool_id, token).machine)
        return tuple(held)

    async def describe(self) -> tuple[RentedMachine, ...]:
        found = (each.machine for each in await self._commands.allocations())
        return tuple(machine for machine in found if machine.state is not MachineState.GONE)

    async def terminate(self, node_id: NodeId) -> None:
        """Cancel the allocation of this name, if it is listed."""
        await self._commands.cancel(
            each.job
            for each in await self._commands.allocations()
            if each.node_id == node_id and each.machine_state is not MachineState.GONE
        )

    # ---------------------------------------------------------------- the live server

    def attach(self, server_url: str, report_gone: ReportGone) -> None:
        self._server_url = self._settings.server_url or server_url
        self._report_gone = report_gone

    async def waits(self) -> Mapping[PoolId, float]:
        """Returns seconds until a machine comes, by pool: the last waits' median, or a pending job's wait if longer."""
        waiting: dict[PoolId, float] = {}
        for each in self._seen.values():
            if each.state == "PENDING":
                waiting[each.pool_id] = max(waiting.get(each.pool_id, 0.0), each.waited_s)
        known = {pool_id: median(waits) for pool_id, waits in self._waited.items()}
        return {pool_id: max(known.get(pool_id, 0.0), waiting.get(pool_id, 0.0)) for pool_id in {*known, *waiting}}

    async def watch(self) -> None:
        """Look after the allocations for ever; while Slurm does not answer, nothing is concluded."""
        while True:
            await asyncio.sleep(self._settings.poll)
            if not self.pools:
                continue
            try:
                await self.look()
            except ProviderProblem as problem:
                log.warning("allocations are not known: %s", problem)

    async def look(self) -> None:
        """Compare with the last look: report machines that are gone, and cancel pilots that can never start.

        Raises ProviderProblem.
        """
        found = await self._commands.allocations()
        listed = {each.node_id: each for each in found if each.machine_state is not MachineState.GONE}
        by_job = {each.job: each for each in found}
        before, self._seen = self._seen, listed
        for node_id, former in before.items():
            now = by_job.get(former.job)
            if node_id in listed:
                self._note_wait(former, listed[node_id])
            elif former.machine_state is MachineState.BOOTING and now is not None and _may_yet_come(now):
                continue  # requeued before it ran: it may still start
            else:
                await self._tell_gone(former, now)
        doomed = [each for each in listed.values() if each.state == "PENDING" and _is_hopeless(each)]
        for each in doomed:
            log.warning("job %d of Slurm is cancelled: it waits for %s", each.job, each.reason)
        await self._commands.cancel(each.job for each in doomed)

    async def close(self) -> None:
        """Nothing to close. Allocations stay: they are held until they are given back."""

    def _note_wait(self, before: Allocation, now: Allocation) -> None:
        if before.machine_state is MachineState.BOOTING and now.machine_state is MachineState.RUNNING:
            self._waited.setdefault(now.pool_id, deque(maxlen=_WAITS_KEPT)).append(now.waited_s)

    async def _tell_gone(self, former: Allocation, now: Allocation | None) -> None:
        is_failure = now is not None and now.state in ("NODE_FAIL", "BOOT_FAIL", "FAILED", "OUT_OF_MEMORY")
        reason = Reason.INFRA_NODE_LOST if is_failure else Reason.INFRA_SPOT_RECLAIM
        log.info("allocation %s has ended: %s", former.node_id, "unknown" if now is None else now.state)
        if self._report_gone is not None:
            await self._report_gone(former.node_id, reason, former.token)

    # ---------------------------------------------------------------- what is submitted

    def _options(self, token: str, pool: Pool) -> list[str]:
        settings, shape = self._settings, pool.shape
        notice_s = ceil(pool.notice_s or NOTICE_S)
        options = [
            f"--comment=walras {pool.pool_id} {token}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={ceil(shape.cpus)}",
            f"--mem={ceil(shape.memory_bytes / _MIB)}M",
            f"--signal=B:TERM@{notice_s}",
            "--requeue",
            f"--output={settings.output}",
            "--chdir=/",
        ]
        if shape.accelerator != "cpu":
            kind = settings.gres.get(shape.accelerator, shape.accelerator)
            options.append(f"--gres=gpu:{kind}:{shape.accelerators}")
        if settings.time is not None:
            options.append(f"--time={max(1, round(settings.time / 60))}")
        if pool.zone in settings.partitions:
            options.append(f"--partition={settings.partitions[pool.zone]}")
        return [*options, *settings.options]

    def _script(self, token: str, pool: Pool) -> str:
        """Returns the batch script, which holds tokens: Slurm shows a job's script to its owner only."""
        python = self._settings.python or sys.executable
        here = PurePosixPath("@state@")
        line = agent_command_line(
            [python, "-c", _WALRAS],
            self._server_url,
            pool,
            state=here,
            join_token_file=here / "enrolment.token",
            rent_token_file=here / "rent.token",
        )
        if pool.shape.emulated and self._settings.speeds:
            line += ["--speeds", self._settings.speeds]
        return _PILOT.format(
            serial=request_serial(token),
            state=shlex.quote(self._settings.state.rstrip("/")),
            enrolment_token=self._enrolments.issue(token),
            rent_token=token,
            python=shlex.quote(python),
            notice_s=pool.notice_s or NOTICE_S,
            line=shlex.join(line).replace("@state@", '"$state"'),
        )


def _may_yet_come(now: Allocation) -> bool:
    return now.machine_state is MachineState.BOOTING and now.restarts <= _REQUEUES_MAX


def _is_hopeless(allocation: Allocation) -> bool:
    reason = allocation.reason.lower()
    return allocation.restarts > _REQUEUES_MAX or any(words in reason for words in _HOPELESS)


def _without_kind(problem: ProviderProblem) -> str:
    return str(problem).removeprefix(f"{problem.kind}: ")


def build_slurm_provider(context: ProviderContext) -> SlurmProvider | None:
    """Returns None if the cluster file has no section about Slurm."""
    entries = context.entries_of("slurm")
    settings: Any = None if context.cluster is None else context.cluster.slurm
    if settings is None:
        return None
    # Another server that submits as the same user has jobs of another name.
    job_name = f"walras-{hmac.new(context.secret, b'slurm jobs', hashlib.sha256).hexdigest()[:12]}"
    commands = SlurmCommands(settings, job_name, os.environ)
    pools = [entry.pool() for entry in entries]
    return SlurmProvider(settings, pools, EnrolmentTokens(context.secret, context.folder.pin()), commands)
