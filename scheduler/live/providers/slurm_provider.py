"""Machines of Slurm: a machine is an allocation, in which a pilot job runs an agent.

The provider keeps no state that matters: its machines are what Slurm lists under this server's job name, and each job's
comment says for which request it was submitted. The time in Slurm's queue is part of the time until a machine comes
(`waits`).

How an allocation ends. Slurm signals the pilot (workers/pilot.py) before a time limit, and the pilot gives its agent a
notice; so it does when somebody cancels or preempts the job. Once Slurm does not list the allocation any more, the
machine is gone. A job that Slurm requeues becomes another machine: the former is lost, and the new one answers no
request, because the server requests again what it still wants. So nothing is requeued for ever.

Slurm's commands are calls bounded in time and output, with every failure as a `ProviderProblem` of a kind. `sbatch`,
`squeue` and `scancel` are the stable interface of every release, so only these are used. The output of `squeue` is text
of fixed columns; a row that cannot be parsed is left out, and a listing of implausible length is refused.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import os
import shlex
import signal
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import PurePosixPath
from statistics import median
from typing import Any

from scheduler.live.auth.access_control import EnrolmentTokens
from scheduler.live.providers.live_provider import ProviderContext, ReportGone
from scheduler.live.providers.machine_boot import agent_command_line
from scheduler.providers.provider import MachineState, ProviderProblem, ProviderProblemKind, RentalOffer, RentedMachine
from walras.cluster import NodeId, Pool, PoolId
from walras.errors import ClusterError
from walras.spec.cluster_file import SlurmSettings
from walras.states import Reason

#: Seconds after which a command counts as unanswered.
CALL_S = 30.0
_MOST_BYTES = 32 << 20
#: Seconds to wait for a killed command's pipes to close; a process that it left behind may keep them open.
_LET_GO_S = 1.0
#: Characters of a problem that are kept, since it becomes part of a reason.
_LONGEST = 500
#: The variables of the server's environment that the commands, and later the pilots, need; never its tokens.
_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "SLURM_CONF", "SLURM_CLUSTERS")
#: Columns of `squeue -O` and their widths. The comment says for which request of which pool a job was submitted.
_COLUMNS = {"JobID": 24, "State": 20, "Reason": 80, "RestartCnt": 12, "PendingTime": 16, "Comment": 700}
#: Longer numbers cannot be counts here.
_MOST_DIGITS = 12

_PROBLEM_KINDS: tuple[tuple[str, ProviderProblemKind], ...] = (
    ("unable to contact slurm controller", ProviderProblemKind.UNAVAILABLE),
    ("socket timed out", ProviderProblemKind.UNAVAILABLE),
    ("connection refused", ProviderProblemKind.UNAVAILABLE),
    ("communication connection failure", ProviderProblemKind.UNAVAILABLE),
    ("zero bytes were transmitted", ProviderProblemKind.UNAVAILABLE),
    ("temporarily unable to accept job", ProviderProblemKind.THROTTLED),
    ("resource temporarily unavailable", ProviderProblemKind.THROTTLED),
    ("accounting/qos policy", ProviderProblemKind.QUOTA),
    ("submitlimit", ProviderProblemKind.QUOTA),
    ("limit", ProviderProblemKind.QUOTA),
)

_COMING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "RESIZING"})
_HERE = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
_LEAVING = frozenset({"COMPLETING"})


def classify_slurm_error(told: str) -> ProviderProblemKind:
    """Returns the kind of problem that a command's error text states."""
    text = told.lower()
    return next((kind for words, kind in _PROBLEM_KINDS if words in text), ProviderProblemKind.REFUSED)


@dataclass(frozen=True, slots=True)
class Allocation:
    """One pilot job, as Slurm reports it."""

    job: int
    #: In upper case; unknown states count as ended.
    state: str
    #: Why it waits, in Slurm's words.
    reason: str
    #: How often Slurm has requeued it.
    restarts: int
    #: How long it has waited, or waited before it started, seconds.
    waited_s: float
    pool_id: PoolId
    #: The token of its request.
    token: str

    @property
    def machine_state(self) -> MachineState:
        if self.state in _COMING:
            return MachineState.BOOTING
        if self.state in _HERE:
            return MachineState.RUNNING
        return MachineState.LEAVING if self.state in _LEAVING else MachineState.GONE

    @property
    def node_id(self) -> NodeId:
        """The machine's name, a new one after each requeue, because nothing of the earlier machine is left."""
        again = f"-r{self.restarts}" if self.restarts else ""
        return NodeId(f"slurm-{request_serial(self.token)}-{self.job}{again}")

    @property
    def machine(self) -> RentedMachine:
        return RentedMachine(self.node_id, self.pool_id, self.token, self.machine_state)


def request_serial(token: str) -> str:
    """Returns a short name for a request's token.

    It is part of machines' names, which must never repeat, while a reinstalled Slurm counts its jobs from 1 again.
    """
    return hashlib.sha256(token.encode()).hexdigest()[:8]


def parse_allocations(output: str) -> list[Allocation]:
    """Returns the pilots in a listing, without rows of other jobs, whose names may be the same."""
    found = []
    for line in output.splitlines():
        cells, start = {}, 0
        for column, width in _COLUMNS.items():
            cells[column] = line[start : start + width].strip()
            start += width
        words = cells["Comment"].split()
        numbers = [_count(cells[column]) for column in ("JobID", "RestartCnt", "PendingTime")]
        if len(words) != 3 or words[0] != "walras" or numbers[0] is None or numbers[1] is None:
            continue
        waited_s = float(numbers[2] or 0)
        state = cells["State"].upper()
        reason, pool_id, token = cells["Reason"], PoolId(words[1]), words[2]
        found.append(Allocation(numbers[0], state, reason, numbers[1], waited_s, pool_id, token))
    return found


def _count(cell: str) -> int | None:
    return int(cell) if cell.isascii() and cell.isdigit() and len(cell) <= _MOST_DIGITS else None


class SlurmCommands:
    """Slurm's commands, in the folder that the settings state, or else on the path."""

    def __init__(
        self, settings: SlurmSettings, job_name: str, environ: Mapping[str, str] | None = None, call_s: float = CALL_S
    ) -> None:
        self._settings = settings
        self._job_name = job_name
        given = os.environ if environ is None else environ
        self._environment = {name: given[name] for name in _INHERITED if name in given}
        self._call_s = call_s

    async def submit(self, options: Sequence[str], script: str) -> int:
        """Submit a batch script and return the number of its job. Raises ProviderProblem."""
        output = await self._run("sbatch", "--parsable", f"--job-name={self._job_name}", *options, stdin=script)
        job = _count(output.strip().partition(";")[0])
        if job is None:
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, f"sbatch: not understood: {output[:100]!r}")
        return job

    async def allocations(self) -> list[Allocation]:
        """Returns every pilot of this server that Slurm still knows, those that ended a short time ago included.

        Raises ProviderProblem.
        """
        columns = ",".join(f"{column}:{width}" for column, width in _COLUMNS.items())
        output = await self._run(
            "squeue", "--noheader", "--me", "--states=all", f"--name={self._job_name}", "-O", columns
        )
        return parse_allocations(output)

    async def cancel(self, jobs: Iterable[int]) -> None:
        """Cancels jobs; a job that has already ended is no error. Raises ProviderProblem."""
        numbers = [str(job) for job in jobs]
        if not numbers:
            return
        try:
            await self._run("scancel", *numbers)
        except ProviderProblem as problem:
            if "invalid job id" not in str(problem).lower() and "already" not in str(problem).lower():
                raise

    async def _run(self, command: str, *arguments: str, stdin: str = "") -> str:
        path = os.path.join(self._settings.commands, command) if self._settings.commands else command
        try:
            process = await asyncio.create_subprocess_exec(
                path, *arguments, env=self._environment, start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise ProviderProblem(ProviderProblemKind.REFUSED, f"{command}: {error.strerror or error}") from None
        try:
            output, told = await asyncio.wait_for(_talk(process, stdin.encode()), self._call_s)
        except TimeoutError:
            problem = f"{command}: no answer within {self._call_s:g} s"
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, problem) from None
        except _TooMuch:
            problem = f"{command}: more than {_MOST_BYTES >> 20} MiB of output"
            raise ProviderProblem(ProviderProblemKind.REFUSED, problem) from None
        finally:
            await _end(process)
        if process.returncode != 0:
            said = " ".join(told.split())[:_LONGEST] or f"exit code {process.returncode}"
            raise ProviderProblem(classify_slurm_error(said), f"{command}: {said}")
        return output


class _TooMuch(ClusterError):
    """The output is larger than a listing can be."""


async def _talk(process: asyncio.subprocess.Process, stdin: bytes) -> tuple[str, str]:
    """Returns what a process prints on its standard output and its standard error. Raises _TooMuch."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(OSError):  # it may end without reading
        process.stdin.write(stdin)
        await process.stdin.drain()
        process.stdin.close()
    readers = [asyncio.create_task(_read(stream)) for stream in (process.stdout, process.stderr)]
    try:
        done, _ = await asyncio.wait(readers, return_when=asyncio.FIRST_EXCEPTION)
        for reader in done:
            reader.result()  # raises the reader's error
        output, told = (reader.result() for reader in readers)
        await process.wait()
        return output, told
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of a command, close its pipes, and wait for its end, so that nothing of it stays behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        rest = _discard(process.stdout), _discard(process.stderr), process.wait()
        await asyncio.wait_for(asyncio.gather(*rest), _LET_GO_S)


async def _discard(stream: asyncio.StreamReader | None) -> None:
    while stream is not None and await stream.read(1 << 16):
        pass


async def _read(stream: asyncio.StreamReader) -> str:
    content = bytearray()
    while chunk := await stream.read(1 << 16):
        content += chunk
        if len(content) > _MOST_BYTES:
            raise _TooMuch("too much output")
    return content.decode(errors="replace")


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
        #: By job that is listed, its requeues until it last ran, or until this server first saw it.
        self._requeued: dict[int, int] = {}
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
        known = self._requeued
        self._requeued = {
            each.job: known[each.job] if each.state in _COMING and each.job in known else each.restarts
            for each in listed.values()
        }
        for node_id, former in before.items():
            now = by_job.get(former.job)
            if node_id in listed:
                self._note_wait(former, listed[node_id])
            elif former.machine_state is MachineState.BOOTING and now is not None and self._may_yet_come(now):
                continue  # requeued before it ran: it may still start
            else:
                await self._tell_gone(former, now)
        doomed = [each for each in listed.values() if each.state == "PENDING" and self._is_hopeless(each)]
        for each in doomed:
            log.warning("job %d of Slurm is cancelled: it waits for %s", each.job, each.reason)
        await self._commands.cancel(each.job for each in doomed)

    def _may_yet_come(self, now: Allocation) -> bool:
        return now.machine_state is MachineState.BOOTING and not self._comes_too_often(now)

    def _is_hopeless(self, allocation: Allocation) -> bool:
        reason = allocation.reason.lower()
        return self._comes_too_often(allocation) or any(words in reason for words in _HOPELESS)

    def _comes_too_often(self, allocation: Allocation) -> bool:
        return allocation.restarts - self._requeued[allocation.job] > _REQUEUES_MAX

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
        python, here = self._settings.python or sys.executable, PurePosixPath("@state@")
        command, enrolment = [python, "-c", _WALRAS], here / "enrolment.token"
        line = agent_command_line(command, self._server_url, pool, state=here, join_token_file=enrolment)
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
