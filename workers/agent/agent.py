"""The agent of a machine: one call to the server that carries everything, and one follower per attempt.

It decides nothing: the server says what to start and stop, supervisors do it and outlive the agent. What it must not
forget is written before it is done (`store`), so that it can be killed and started again at any moment.
"""

import asyncio
import contextlib
import logging
import random
import secrets
import shutil
import time
from pathlib import Path

from walras.contract import SIGKILL
from walras.errors import ConfigError, Forbidden, ServerUnreachable
from walras.wire import (
    AnyCommand,
    AttemptHere,
    EndedReport,
    Heartbeat,
    HeartbeatAnswer,
    HintReport,
    NoticeReport,
    PrepareCommand,
    PreparedReport,
    RefusedReport,
    StartCommand,
    StartedReport,
    StopCommand,
)
from workers import processes
from workers.agent.follower import Follower, supervisor_of
from workers.agent.launch import AgentMachine, disk_problem, launch_supervisor, make_attempt_plan, start_refusal
from workers.agent.machine_notices import SpotNoticeWatcher, next_notice
from workers.agent.report_store import AgentStore, AttemptPhase, KnownAttempt, ReportOutbox
from workers.agent.server_client import Enrolment, LogShipper, ServerClient
from workers.devices import AttemptKey, DeviceHold, DeviceHolds, bind_rendezvous_port
from workers.supervisor_protocol import SUPERVISOR_FILE, AttemptPlan, rank_log, read_plan

log = logging.getLogger(__name__)

MAX_BACKOFF_S = 5.0
MIN_PAUSE_S = 0.05
#: The longest that a call may be held open (`walras.wire.Heartbeat`).
MAX_WAIT_S = 60.0
#: A gang that was prepared and never started holds its devices for this long.
HOLD_S = 120.0
#: Characters of what the server is told is wrong here.
MAX_PROBLEM = 200
#: Folders of ended attempts that are kept for inspection.
FOLDERS_KEPT = 20


class Agent:
    """Run it once; `run` returns when it is cancelled, and leaves the supervisors running."""

    def __init__(
        self,
        machine: AgentMachine,
        store: AgentStore,
        client: ServerClient,
        enrolment: Enrolment,
        spot: SpotNoticeWatcher | None = None,
    ) -> None:
        self._machine = machine
        self._store = store
        self._client = client
        self._enrolment = enrolment
        self._spot = spot
        self._outbox = ReportOutbox(store)
        self._holds = DeviceHolds(machine.accelerators.count)
        self._followers: dict[AttemptKey, Follower] = {}
        self._acks: list[int] = []
        self._session = secrets.token_hex(8)
        self._is_resynced = False

    async def run(self) -> None:
        """Raises Forbidden or ConfigError when this machine cannot be registered at all."""
        await self._enrol()
        log.info("%s has joined", self._enrolment.node_id)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._recover_attempts()
            tasks.create_task(self._watch_notice())
            if self._spot is not None:
                tasks.create_task(self._spot.watch(self._machine.state, self._report_hint))
            await self._heartbeat_forever()

    async def _watch_notice(self) -> None:
        seen = ""
        while True:
            notice = await next_notice(self._machine.state, seen)
            seen = notice.digest
            if self._store.is_new_notice(notice.digest):
                self._outbox.put(NoticeReport(report_id=self._outbox.next_id(), gone_in_s=notice.gone_in_s))

    def _report_hint(self, detail: str) -> None:
        """Report that the machine may be revoked, and save all attempts now, so that a revocation costs less."""
        if self._store.is_new_notice(detail):
            self._outbox.put(HintReport(report_id=self._outbox.next_id(), detail=detail))
            for follower in self._followers.values():
                follower.save()

    # ------------------------------------------------------------------------------------------- the call

    async def _enrol(self) -> None:
        failures = 0
        while True:
            try:
                await self._enrolment.ensure(self._client)
                return
            except ServerUnreachable as error:
                failures += 1
                log.warning("not registered yet: %s", error)
                await asyncio.sleep(_backoff_s(failures))

    async def _enrol_again(self) -> None:
        """Try to register again and only log a failure: attempts may run, and the cause may be mended meanwhile."""
        try:
            await self._enrolment.ensure(self._client)
        except (ServerUnreachable, Forbidden, ConfigError) as error:
            log.error("cannot register: %s", error)

    async def _heartbeat_forever(self) -> None:
        """Report, renew leases and execute commands, forever. Without a server, supervisors run until leases end."""
        failures = 0
        while True:
            started_at = time.monotonic()
            try:
                made_progress = await self._heartbeat_once()
                failures = 0
            except ServerUnreachable as error:
                failures += 1
                log.warning("heartbeat: %s", error)
                await asyncio.sleep(_backoff_s(failures))
                continue
            except Forbidden as error:
                log.warning("heartbeat refused, registering anew: %s", error)
                self._enrolment.forget()
                failures += 1
                await asyncio.sleep(_backoff_s(failures))
                await self._enrol_again()
                continue
            self._expire_holds()
            # A server that does not hold the call open must not be called in a tight loop.
            pause_s = MIN_PAUSE_S if made_progress else self._enrolment.heartbeat_s - (time.monotonic() - started_at)
            await self._wait_for_urgent(max(MIN_PAUSE_S, pause_s))

    async def _heartbeat_once(self) -> bool:
        """One call. Returns True if it made progress, so that the next call should follow at once."""
        reports = self._outbox.batch()
        acks, here = list(self._acks), self._here()
        has_something = bool(reports or acks or not self._is_resynced)
        message = Heartbeat(
            node_id=self._enrolment.node_id,
            session=self._session,
            resync=not self._is_resynced,
            here=[AttemptHere(job_id=job_id, attempt=attempt) for job_id, attempt in here],
            reports=reports,
            acks=acks,
            wait_s=0.0 if has_something else min(self._enrolment.heartbeat_s, MAX_WAIT_S),
            problem=self._disk_problem()[:MAX_PROBLEM],
        )
        # Before the call goes out: the server counts from when it answers, so our leases end before it thinks so.
        sent_at = processes.boottime()
        answer = await self._call(message)
        if answer is None:
            return True
        self._is_resynced = True
        self._outbox.mark_sent(reports)
        self._acks = self._acks[len(acks) :]
        self._apply_leases(answer, here, sent_at)
        for job_id, attempt, digest in self._outbox.acknowledge(answer.reports_acked):
            if follower := self._followers.get((job_id, attempt)):
                follower.confirm_checkpoint(digest)
        for command in answer.commands:
            await self._execute(command, sent_at)
        is_acknowledged = bool(reports) and answer.reports_acked >= reports[0].report_id
        return is_acknowledged or bool(acks or answer.commands)

    def _disk_problem(self) -> str:
        """Returns why this machine takes no attempt now; empty if it does. Those that run go on."""
        if self._store.problem:
            return f"disk full: the agent cannot write its records ({self._store.problem})"
        return disk_problem(self._machine)

    async def _call(self, message: Heartbeat) -> HeartbeatAnswer | None:
        """Send a heartbeat. Returns None if an urgent report came up while the server held the call open."""
        if message.wait_s == 0:
            return await self._client.heartbeat(message)
        call = asyncio.create_task(self._client.heartbeat(message))
        urgent = asyncio.create_task(self._outbox.urgent.wait())
        try:
            await asyncio.wait({call, urgent}, return_when=asyncio.FIRST_COMPLETED)
            return await call if call.done() else None
        finally:
            for task in (call, urgent):
                task.cancel()
            await asyncio.gather(call, urgent, return_exceptions=True)

    async def _wait_for_urgent(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._outbox.urgent.wait()
        except TimeoutError:
            return

    def _here(self) -> list[AttemptKey]:
        return sorted({*self._followers, *self._holds.prepared})

    def _apply_leases(self, answer: HeartbeatAnswer, here: list[AttemptKey], sent_at: float) -> None:
        fenced = {(attempt.job_id, attempt.attempt) for attempt in answer.fenced}
        for key in here:
            follower = self._followers.get(key)
            if key in fenced:
                self._holds.release(key) if follower is None else follower.stop(0.0, "its fence is old")
            elif follower is not None:
                follower.renew(sent_at + answer.lease_s, answer.lease_s)

    # ------------------------------------------------------------------------------------------- commands

    async def _execute(self, command: AnyCommand, sent_at: float) -> None:
        key = (command.job_id, command.attempt)
        match command:
            case PrepareCommand():
                self._prepare(key, command)
            case StartCommand():
                await self._start(key, command, sent_at)
            case StopCommand():
                if not self._stop(key, command):
                    return  # not passed on yet: to be said again
        self._acks.append(command.command_id)

    def _prepare(self, key: AttemptKey, command: PrepareCommand) -> None:
        if self._store.attempt(*key) is not None:
            return  # already past this, or over
        if not self._holds.is_prepared(key):
            if conflict := self._holds.conflict(key, command.devices) or self._disk_problem():
                self._refuse(key, conflict)
                return
            port = bind_rendezvous_port() if command.node_rank == 0 else None
            self._holds.take(key, DeviceHold(command.devices, port, time.monotonic() + HOLD_S))
        port_number = self._holds.port_of(key)
        address = self._enrolment.address if port_number else ""
        self._outbox.put(
            PreparedReport(
                report_id=self._outbox.next_id(), job_id=key[0], attempt=key[1], address=address, port=port_number
            )
        )

    async def _start(self, key: AttemptKey, command: StartCommand, sent_at: float) -> None:
        if self._store.attempt(*key) is not None:
            return
        # As with renewals: from before the call, so that an answer that was long on its way grants no more for it.
        lease_until = sent_at + command.lease_s
        folder = self._machine.attempt_folder(*key)
        try:
            problem = (
                self._holds.conflict(key, command.devices)
                or self._disk_problem()
                or start_refusal(self._machine, command, lease_until)
                or self._take_devices(key, command)
            )
            if not problem:
                plan = make_attempt_plan(self._machine, command, lease_until)
                problem = await launch_supervisor(folder, plan)
        except (OSError, ValueError) as error:  # a disk that filled up, a folder in the way, no more processes
            problem = f"cannot start: {error}"
        if problem:
            self._refuse(key, problem)
            return
        started = StartedReport(report_id=self._outbox.next_id(), job_id=key[0], attempt=key[1])
        self._outbox.move(*key, AttemptPhase.RUNNING, started)
        self._follow(folder, plan, journal_offset=0)

    def _take_devices(self, key: AttemptKey, command: StartCommand) -> str:
        """Write the start down before it happens. Returns why that failed; empty if it is durable."""
        self._store.move_attempt(*key, AttemptPhase.STARTING, [])
        if self._store.problem:
            return self._disk_problem()
        self._holds.start(key, command.devices)
        return ""

    def _stop(self, key: AttemptKey, command: StopCommand) -> bool:
        """Returns True once the supervisor has the stop, or no process of the attempt is left."""
        follower = self._followers.get(key)
        if follower is not None:
            return follower.stop(command.grace_s, command.reason)
        self._holds.release(key)
        known = self._store.attempt(*key)
        if known is None or known.phase is not AttemptPhase.OVER:
            # Never started here, and never will be: a start that comes late finds that it is over.
            ended = EndedReport(report_id=self._outbox.next_id(), job_id=key[0], attempt=key[1], cause="exited")
            self._outbox.move(*key, AttemptPhase.OVER, ended)
        return True

    def _refuse(self, key: AttemptKey, detail: str) -> None:
        self._holds.release(key)
        refused = RefusedReport(report_id=self._outbox.next_id(), job_id=key[0], attempt=key[1], detail=detail[:2000])
        self._outbox.move(*key, AttemptPhase.OVER, refused)

    def _expire_holds(self) -> None:
        for key in self._holds.expired(time.monotonic()):
            self._refuse(key, f"prepared, and not started within {HOLD_S:.0f} s")

    # ------------------------------------------------------------------------------------------- attempts

    def _recover_attempts(self) -> None:
        """After a restart of the agent: follow the attempts that run, and report those that have ended."""
        for known in self._store.open_attempts():
            folder = self._machine.attempt_folder(known.job_id, known.attempt)
            if (folder / SUPERVISOR_FILE).exists():
                self._resume_attempt(known, folder)
            else:
                self._refuse_unstarted(known, folder)

    def _resume_attempt(self, known: KnownAttempt, folder: Path) -> None:
        key = (known.job_id, known.attempt)
        try:
            plan = read_plan(folder)
        except (OSError, ValueError, TypeError) as error:
            log.error("job %d attempt %d: its plan cannot be read, it is ended: %s", *key, error)
            self._tasks.create_task(self._end_without_plan(key, folder))
            return
        self._holds.start(key, plan.devices)
        if known.phase is AttemptPhase.STARTING:
            started = StartedReport(report_id=self._outbox.next_id(), job_id=key[0], attempt=key[1])
            self._outbox.move(*key, AttemptPhase.RUNNING, started)
        self._follow(folder, plan, known.journal_offset)

    def _refuse_unstarted(self, known: KnownAttempt, folder: Path) -> None:
        """The agent died between its decision to start and the start. Its launcher may still be at work."""
        aside = folder.with_name(f"{folder.name}.abandoned")
        if folder.exists():
            # A supervisor signs in its folder before it starts anything: once this is renamed, it no longer can.
            folder.rename(aside)
            if (aside / SUPERVISOR_FILE).exists():
                aside.rename(folder)
                self._resume_attempt(known, folder)
                return
        self._refuse((known.job_id, known.attempt), "the agent was restarted before it had started the attempt")

    async def _end_without_plan(self, key: AttemptKey, folder: Path) -> None:
        """Nobody knows its devices or its cookie any more; its guardian ends what is left of it."""
        supervisor = supervisor_of(folder)
        while supervisor is not None and supervisor.is_alive:
            processes.send_signal([supervisor.pid], SIGKILL)
            await asyncio.sleep(MIN_PAUSE_S)
        ended = EndedReport(report_id=self._outbox.next_id(), job_id=key[0], attempt=key[1], cause="supervisor_lost")
        self._outbox.move(*key, AttemptPhase.OVER, ended)

    def _follow(self, folder: Path, plan: AttemptPlan, journal_offset: int) -> None:
        key = (plan.job_id, plan.attempt)
        shipper = LogShipper(self._client, *key, {rank: rank_log(folder, rank) for rank in plan.ranks})
        follower = Follower(folder, plan, self._outbox, shipper, journal_offset)
        self._followers[key] = follower
        self._tasks.create_task(self._follow_to_end(follower))

    async def _follow_to_end(self, follower: Follower) -> None:
        try:
            await follower.follow()
        except Exception as error:
            log.exception("job %d attempt %d cannot be followed: it is ended", *follower.key)
            await self._give_up(follower, f"{type(error).__name__}: {error}"[:MAX_PROBLEM])
        del self._followers[follower.key]
        self._holds.release(follower.key)
        kept = 0 if self._disk_problem() else FOLDERS_KEPT
        await asyncio.to_thread(_remove_old_folders, self._machine.state / "attempts", self._here(), kept)

    async def _give_up(self, follower: Follower, why: str) -> None:
        """Whatever is wrong with one attempt ends that attempt: never the agent, and with it everybody else's."""
        failures = 0
        while True:
            try:
                return await follower.give_up(why)
            except Exception:
                log.exception("job %d attempt %d cannot be ended, trying again", *follower.key)
                failures += 1
                await asyncio.sleep(_backoff_s(failures))


def _backoff_s(failures: int) -> float:
    """Exponential backoff with a cap, and jitter so that agents do not call in step."""
    longest = min(MAX_BACKOFF_S, 0.1 * 2.0 ** min(failures, 10))
    return longest * random.uniform(0.5, 1.0)


def _remove_old_folders(attempts: Path, open_keys: list[AttemptKey], kept_folders: int) -> None:
    kept = {f"{job_id}-{attempt}" for job_id, attempt in open_keys}
    with contextlib.suppress(OSError):  # one of them is gone already
        over = (path for path in attempts.iterdir() if path.name not in kept)
        oldest_first = sorted(over, key=lambda path: path.lstat().st_mtime)
        for path in oldest_first[: max(0, len(oldest_first) - kept_folders)]:
            shutil.rmtree(path, ignore_errors=True)
