"""The agent of a machine: one call to the server that carries everything, and one follower per attempt.

The agent makes no scheduling decisions: the server states what to start and stop; supervisors execute it and outlive
the agent. Facts that the agent needs after a restart are stored before they are acted upon (`report_store`), so that it
can be killed and started again at any moment.

Joining belongs to it: how it gets its credential, handles its refusal, proves access to the checkpoint store, and
reports cached inputs.
"""

import asyncio
import logging
import re
from functools import partial
from math import inf
from pathlib import Path
from random import Random

from walras import __version__
from walras.clocks import Clocks, random_hex
from walras.contract import PROTOCOL
from walras.errors import ClusterError, ConfigError, Forbidden, ServerUnreachable
from walras.machines.machine_facts import DATA_KEY_PATTERN, FetchedInput
from walras.storage.store_proof import PROBLEM_MOST, StoreChallenge, StoreProof, answer_challenge
from walras.wire import (
    AnyCommand,
    AttemptHere,
    CheckpointEveryCommand,
    CommandRefusedReport,
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
    UnknownCommand,
)
from workers import processes
from workers.agent import launch
from workers.agent.checkpoints import CheckpointUploads, access_to, localized, opened_store, remove_old_copies
from workers.agent.follower import Follower, patiently
from workers.agent.launch import (
    AgentMachine,
    descriptor_problem,
    disk_problem,
    kill_supervisor,
    remove_old_folders,
    start_refusal,
)
from workers.agent.machine_notices import SpotNoticeWatcher, next_notice
from workers.agent.outputs import OutputCollector
from workers.agent.remote_sessions import AttemptPlace, RemoteSessions
from workers.agent.report_store import AgentStore, AttemptPhase, KnownAttempt, ReportOutbox
from workers.agent.server_client import Enrolment, LogShipper, ServerClient, ServerRefusal, call_backoff_s
from workers.agent.starting import AttemptStarts, PendingStart, StartFailure
from workers.devices import AttemptKey, DeviceHold, DeviceHolds, watched_devices
from workers.preparation.environments import tools_here
from workers.preparation.folder_cache import PREPARED_FOLDER, FolderCache
from workers.preparation.inputs import INPUT_BOUNDS
from workers.supervisor_protocol import SUPERVISOR_FILE, AttemptPlan, rank_log, read_plan

log = logging.getLogger(__name__)

MIN_PAUSE_S = 0.05
#: Seconds for which a gang that was prepared and never started holds its devices.
HOLD_S = 120.0
MAX_PROBLEM = 200
#: Number of ended attempts whose folders are kept for inspection.
FOLDERS_KEPT = 20


class Agent:
    """The agent. Run it once; `run` returns when it is cancelled, and leaves the supervisors running."""

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
        self._joining = Joining(client, enrolment, machine.chance)
        self._proving = StoreProving(client, enrolment.node_id, machine.clocks)
        self._spot = spot
        self._outbox = ReportOutbox(store)
        self._holds = DeviceHolds(machine.accelerators.count)
        self._starts = AttemptStarts(machine, client)
        self._followers: dict[AttemptKey, Follower] = {}
        self._sessions = RemoteSessions(client)
        self._acks: list[int] = []
        #: Starts of the answer that is being read.
        self._granted: list[PendingStart] = []
        self._sampler = watched_devices(machine.accelerators.cuda_names)
        self._cached = CachedInputs(machine.state / PREPARED_FOLDER)
        self._boot_id = processes.boot_id()
        self._session = random_hex(machine.chance, 16)
        #: Of the server that answered last.
        self._life = ""
        self._calls, self._is_resynced = 0, False
        enrolment.on_other_incarnation = self._tell_again

    async def run(self) -> None:
        """Runs until cancelled. Raises Forbidden or ConfigError when this machine cannot be registered at all."""
        await self._joining.join()
        log.info("%s has joined", self._enrolment.node_id)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._recover_attempts()
                self._sampler.start()
                tasks.create_task(self._watch_notice())
                if self._spot is not None:
                    tasks.create_task(self._spot.watch(self._machine.notices, self._report_hint))
                await self._heartbeat_forever()
        except BaseExceptionGroup as group:
            refused = group.subgroup(ServerRefusal)
            if refused is None:
                raise
            raise refused.exceptions[0] from None
        finally:
            self._sampler.stop()
            await self._starts.starter.close()

    async def _watch_notice(self) -> None:
        seen = ""
        while True:
            notice = await next_notice(self._machine.notices, seen, self._machine.clocks)
            seen = notice.digest
            if self._store.is_new_notice(notice.digest):
                self._outbox.put(NoticeReport(report_id=self._outbox.next_id(), gone_in_s=notice.gone_in_s))

    def _report_hint(self, detail: str) -> None:
        """Reports that the machine may be revoked, and saves all attempts now, so that a revocation costs less."""
        if self._store.is_new_notice(detail):
            self._outbox.put(HintReport(report_id=self._outbox.next_id(), detail=detail))
            for follower in self._followers.values():
                follower.save()

    # ------------------------------------------------------------------------------------------- the call

    def _tell_again(self) -> bool:
        """Queues acknowledged reports again, because the server's database was restored and may lack them.

        Returns whether they are stored.
        """
        self._is_resynced = False
        return self._outbox.tell_again({key for key, each in self._followers.items() if each.place.brings})

    async def _heartbeat_forever(self) -> None:
        """Reports, renews leases and executes commands, forever. Without a server, supervisors run until leases end."""
        failures, monotonic = 0, self._machine.clocks.monotonic
        while True:
            started_at, pace_s = monotonic(), self._enrolment.draw_pace_s(self._machine.chance)
            try:
                made_progress = await self._heartbeat_once(pace_s)
                failures = 0
            except ServerUnreachable as error:
                failures += 1
                log.warning("heartbeat: %s", error)
                await asyncio.sleep(call_backoff_s(failures, self._machine.chance))
                continue
            except ServerRefusal as error:
                self._joining.take_refusal(error)
                failures += 1
                await asyncio.sleep(call_backoff_s(failures, self._machine.chance))
                await self._joining.join_again()
                continue
            for key in self._holds.expired(monotonic()):
                self._refuse(key, f"prepared, and not started within {HOLD_S:.0f} s")
            # Prevents a tight loop of calls to a server that does not hold calls open.
            left_s = 0.0 if made_progress else started_at + pace_s - monotonic()
            await self._outbox.wait_for_urgent(max(MIN_PAUSE_S, left_s))

    async def _heartbeat_once(self, pace_s: float) -> bool:
        """Makes one call, held open for `pace_s` without news. Returns True if the next should follow at once."""
        reports = self._outbox.batch()
        acks, here = list(self._acks), self._here()
        self._calls += 1
        message = Heartbeat(
            node_id=self._enrolment.node_id,
            session=self._session,
            call=self._calls,
            life=self._life,
            resync=not self._is_resynced,
            here=[AttemptHere(**key._asdict()) for key in here],
            reports=reports,
            acks=acks,
            wait_s=0.0 if reports or acks or not self._is_resynced else pace_s,
            problem=self._problem()[:MAX_PROBLEM],
            protocol=PROTOCOL,
            agent=self._store.agent,
            boot_id=self._boot_id,
            version=__version__,
            cluster=self._enrolment.cluster,
            highest_job_id=self._store.highest_job_id,
            proof=self._proving.proof,
            tools=None if self._is_resynced else tools_here(),
            data=(data := self._cached.news(everything=not self._is_resynced)),
            fetched=[] if data is None else self._cached.fetched,
            devices=self._sampler.take(),
        )
        # Taken before the call: the server counts from its answer, so our leases end before it believes so.
        sent_at = self._machine.clocks.boottime()
        answer = await self._call(message)
        if answer is None:
            return True
        if self._enrolment.take_identity(answer.cluster, answer.protocol):
            return True  # another server than the one for which this call was made: it must first learn what runs here
        self._client.cluster = self._enrolment.cluster
        if answer.life != self._life:
            # A server that has just started cannot tell this call from an old one, so reports are sent again.
            self._life, self._is_resynced = answer.life, False
            self._apply_leases(answer, here, sent_at)
            return True
        if self._outbox.is_overtaken(answer.reports_acked):
            self._apply_leases(answer, here, sent_at)
            return self._outbox.renumber(answer.reports_acked)
        self._is_resynced = True
        self._cached.confirm(message.data)
        self._outbox.mark_sent(reports)
        self._acks = self._acks[len(acks) :]
        self._apply_leases(answer, here, sent_at)
        for key, digest in self._outbox.acknowledge(answer.reports_acked):
            if follower := self._followers.get(key):
                follower.confirm_checkpoint(digest)
        for command in answer.commands:
            self._execute(command, sent_at)
        self._launch_granted()
        self._proving.take(answer.challenge)
        for request in answer.sessions:
            follower = self._followers.get(AttemptKey.of(request))
            self._sessions.begin(request, None if follower is None else follower.place)
        self._sessions.end_closed(answer.open_sessions)
        were_taken = bool(reports) and answer.reports_acked >= reports[0].report_id
        return bool(message.resync or acks or answer.commands or were_taken)

    def _problem(self) -> str:
        """Returns why this machine takes no attempt now; empty if it does. Running attempts continue."""
        return descriptor_problem() or self._disk_problem()

    def _disk_problem(self) -> str:
        if self._store.problem:
            return f"disk full: the agent cannot write its records ({self._store.problem})"
        return disk_problem(self._machine)

    async def _call(self, message: Heartbeat) -> HeartbeatAnswer | None:
        """Sends a heartbeat. Returns None if an urgent report came up while the server held the call open."""
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

    def _here(self) -> list[AttemptKey]:
        return sorted({*self._followers, *self._starts.keys, *self._holds.prepared})

    def _apply_leases(self, answer: HeartbeatAnswer, here: list[AttemptKey], sent_at: float) -> None:
        fenced = set(map(AttemptKey.of, answer.fenced))
        for key in here:
            follower, until = self._followers.get(key), sent_at + answer.lease_s
            if key in fenced and follower is not None:
                follower.fence()
            elif key in fenced:
                self._withdraw(key) if key in self._starts.keys else self._holds.release(key)
            elif follower is not None:
                follower.renew(until, answer.lease_s)
            else:
                self._starts.renew(key, until)

    # ------------------------------------------------------------------------------------------- commands

    def _execute(self, command: AnyCommand, sent_at: float) -> None:
        if isinstance(command, UnknownCommand):
            self._refuse_command(command)
            return
        key = AttemptKey.of(command)
        match command:
            case PrepareCommand():
                self._prepare(key, command)
            case StartCommand():
                self._start(key, command, sent_at)
            case StopCommand() | CheckpointEveryCommand():
                if not self._pass_on(key, command):  # to be said again
                    return
        self._acks.append(command.command_id)

    def _refuse_command(self, command: UnknownCommand) -> None:
        detail = f"{command.told!r} is unknown to release {__version__}, which speaks protocol {PROTOCOL}"
        log.error("command %d: %s", command.command_id, detail)
        refusal = CommandRefusedReport(
            report_id=self._outbox.next_id(), command_id=command.command_id, detail=detail[:500]
        )
        self._outbox.put(refusal)
        self._acks.append(command.command_id)

    def _prepare(self, key: AttemptKey, command: PrepareCommand) -> None:
        if self._store.attempt(key) is not None:
            return  # already past this, or over
        if not self._holds.is_prepared(key):
            if conflict := self._holds.conflict(key, command.devices) or self._problem():
                self._refuse(key, conflict)
                return
            held = processes.hold_port() if command.node_rank == 0 else None
            self._holds.take(key, DeviceHold(command.devices, held, self._machine.clocks.monotonic() + HOLD_S))
        told, port = self._outbox.stamp(key), self._holds.port_of(key)
        self._outbox.put(PreparedReport(**told, address=self._enrolment.address, port=port))

    def _start(self, key: AttemptKey, command: StartCommand, sent_at: float) -> None:
        if self._store.attempt(key) is not None:
            return
        # As with renewals: the time before the call, so that a delayed answer grants no longer lease.
        lease_until, machine = sent_at + command.lease_s, self._machine
        try:
            problem = (
                self._holds.conflict(key, command.devices, command.beside)
                or self._problem()
                or start_refusal(machine, localized(machine.state, command), lease_until)
            )
        except (OSError, ValueError) as error:  # a disk that filled up, a checkpoint folder that can be none
            problem = f"cannot start: {error}"
        if problem:
            self._refuse(key, problem)
            return
        self._store.move_attempt(key, AttemptPhase.STARTING)
        self._holds.wait_to_start(key, command.devices)
        self._granted.append(self._starts.begin(key, command, lease_until))

    def _launch_granted(self) -> None:
        """Stores the starts of an answer in one write, before any of them happens, and launches them."""
        granted, self._granted = self._granted, []
        is_durable = not granted or self._store.flush()
        for start in granted:
            key = AttemptKey.of(start.command)
            if start.withdrawn.is_set():  # by the same answer
                continue
            if is_durable:
                start.task = self._tasks.create_task(self._launch(key, start))
            elif self._starts.withdraw(key):
                self._refuse(key, self._problem())

    async def _launch(self, key: AttemptKey, start: PendingStart) -> None:
        plan = await self._starts.launch(key, lambda: self._holds.start(key, start.command.devices))
        if isinstance(plan, StartFailure):
            self._refuse(key, plan.detail, plan.lost)
            return
        await patiently(partial(self._take_up, key, plan))
        # A renewal that came after the plan was made, while the supervisor started.
        self._followers[key].renew(start.lease_until, start.command.lease_s)

    async def _take_up(self, key: AttemptKey, plan: AttemptPlan) -> None:
        folder = self._machine.attempt_folder(*key)
        self._started(key, AttemptPlace(folder, plan))
        self._follow(folder, plan, journal_offset=0)

    def _pass_on(self, key: AttemptKey, command: StopCommand | CheckpointEveryCommand) -> bool:
        """Passes a command on. Returns True once the supervisor has it, or no process of the attempt is left."""
        follower = self._followers.get(key)
        if isinstance(command, StopCommand):
            return self._withdraw(key) if follower is None else follower.stop(command.grace_s, command.reason)
        return follower.checkpoint_every(command.every_s) if follower else key not in self._starts.keys

    def _withdraw(self, key: AttemptKey) -> bool:
        """Withdraws a start. Returns False while its supervisor is starting, because that must then be told."""
        if not self._starts.withdraw(key):
            return False
        self._holds.release(key)
        known = self._store.attempt(key)
        if known is None or known.phase is not AttemptPhase.OVER:
            # It was never started here, so a late start command must find the attempt over.
            self._outbox.move(key, AttemptPhase.OVER, EndedReport(**self._outbox.stamp(key), cause="exited"))
        return True

    def _refuse(self, key: AttemptKey, detail: str, lost: str = "") -> None:
        self._holds.release(key)
        refused = RefusedReport(**self._outbox.stamp(key), detail=detail[:2000], lost=lost)
        self._outbox.move(key, AttemptPhase.OVER, refused)

    # ------------------------------------------------------------------------------------------- attempts

    def _recover_attempts(self) -> None:
        """After a restart of the agent, follows the attempts that run, and reports those that have ended."""
        for known in self._store.open_attempts():
            folder = self._machine.attempt_folder(*known.key)
            if (folder / SUPERVISOR_FILE).exists():
                self._resume_attempt(known, folder)
            else:
                self._refuse_unstarted(known, folder)
        launch.forget_ended(self._machine.state / "attempts", {each.place.folder for each in self._followers.values()})

    def _resume_attempt(self, known: KnownAttempt, folder: Path) -> None:
        key = known.key
        try:
            plan = read_plan(folder)
        except (OSError, ValueError, TypeError) as error:
            log.error("job %d attempt %d: its plan cannot be read, it is ended: %s", *key[:2], error)
            self._tasks.create_task(self._end_without_plan(key, folder))
            return
        self._holds.start(key, plan.devices)
        if known.phase is AttemptPhase.STARTING:
            self._started(key, AttemptPlace(folder, plan))
        self._follow(folder, plan, known.journal_offset)

    def _started(self, key: AttemptKey, place: AttemptPlace) -> None:
        started = StartedReport(**self._outbox.stamp(key), brings=place.brings)
        self._outbox.move(key, AttemptPhase.RUNNING, started)

    def _refuse_unstarted(self, known: KnownAttempt, folder: Path) -> None:
        """Refuses an attempt that was stored, but perhaps not started, before the agent died. A launcher may run."""
        aside = folder.with_name(f"{folder.name}.abandoned")
        if folder.exists():
            # A supervisor writes into its folder before it starts ranks; once this is renamed, it no longer can.
            folder.rename(aside)
            if (aside / SUPERVISOR_FILE).exists():
                aside.rename(folder)
                self._resume_attempt(known, folder)
                return
        self._refuse(known.key, "the agent was restarted before it had started the attempt")

    async def _end_without_plan(self, key: AttemptKey, folder: Path) -> None:
        """Ends an attempt whose devices and cookie are no longer known; its guardian ends the remaining processes."""
        await kill_supervisor(folder)
        self._outbox.move(key, AttemptPhase.OVER, EndedReport(**self._outbox.stamp(key), cause="supervisor_lost"))

    def _follow(self, folder: Path, plan: AttemptPlan, journal_offset: int) -> None:
        key = AttemptKey.of(plan)
        shipper = LogShipper(self._client, key, {rank: rank_log(folder, rank) for rank in plan.ranks})
        machine = self._machine
        opened = partial(opened_store, plan.store, self._client, key)
        uploads = CheckpointUploads(plan, opened, machine.clocks, machine.chance) if plan.store else None
        collector = OutputCollector(self._client, key, folder, plan)
        follower = Follower(folder, plan, self._outbox, shipper, journal_offset, collector, uploads)
        self._followers[key] = follower
        self._tasks.create_task(self._follow_to_end(key, follower))

    async def _follow_to_end(self, key: AttemptKey, follower: Follower) -> None:
        try:
            await patiently(follower.follow)
        except Exception as error:
            log.exception("job %d attempt %d cannot be followed: it is ended", *key[:2])
            await self._give_up(key, follower, f"{type(error).__name__}: {error}"[:MAX_PROBLEM])
        del self._followers[key]
        self._sessions.end(key)
        self._holds.release(key)
        kept = 0 if self._disk_problem() else FOLDERS_KEPT
        needed = [*self._here(), *self._store.unwritten_keys]
        await asyncio.to_thread(remove_old_folders, self._machine.state / "attempts", needed, kept)
        in_use = [each.plan.checkpoint_dir for each in self._followers.values()] + self._starts.checkpoint_folders
        await asyncio.to_thread(remove_old_copies, self._machine.state, in_use)

    async def _give_up(self, key: AttemptKey, follower: Follower, why: str) -> None:
        """Ends an attempt that cannot be followed, so that its error never ends the agent and all other attempts."""
        failures = 0
        while True:
            try:
                return await follower.give_up(why)
            except Exception:
                log.exception("job %d attempt %d cannot be ended, trying again", *key[:2])
                failures += 1
                await asyncio.sleep(call_backoff_s(failures, self._machine.chance))


# ------------------------------------------------------------------------------------------ joining


#: Seconds between a failed proof of the store and the next try.
PROVE_AGAIN_S = 60.0


class Joining:
    """The registration of the agent with its server."""

    def __init__(self, client: ServerClient, enrolment: Enrolment, chance: Random | None) -> None:
        self._client = client
        self._enrolment = enrolment
        self._chance = chance

    async def join(self) -> None:
        """Registers, with as many tries as it takes. Raises Forbidden or ConfigError where that cannot succeed."""
        failures = 0
        while True:
            try:
                await self._enrolment.ensure(self._client)
                return
            except ServerUnreachable as error:
                log.warning("not registered yet: %s", error)
            except ServerRefusal as error:
                if not error.is_to_wait_for:
                    raise
                log.warning("the name is not free yet: %s; %s", error, error.fix)
            failures += 1
            await asyncio.sleep(call_backoff_s(failures, self._chance))

    async def join_again(self) -> None:
        """Tries to register again and only logs a failure: attempts may run, and the cause may disappear."""
        try:
            await self._enrolment.ensure(self._client)
        except (ServerUnreachable, Forbidden, ConfigError) as error:
            if isinstance(error, ServerRefusal) and error.is_final:
                raise
            log.error("cannot register: %s", error)

    def take_refusal(self, error: ServerRefusal) -> None:
        """Handles a refused heartbeat. Raises the refusal where only a person can help."""
        if error.is_final:
            raise error
        if error.code == "other_incarnation" and error.cluster is not None:
            self._enrolment.take_identity(error.cluster, PROTOCOL)
            self._client.cluster = self._enrolment.cluster
        elif not error.is_to_wait_for:
            log.warning("heartbeat refused, registering anew: %s", error)
            self._enrolment.forget()
        else:
            log.warning("heartbeat refused: %s; %s", error, error.fix)


class StoreProving:
    """Answers the server's challenges about the checkpoint store, beside the heartbeats."""

    def __init__(self, client: ServerClient, node_id: str, clocks: Clocks) -> None:
        self._client = client
        self._node_id = node_id
        self._clocks = clocks
        self._task: asyncio.Task[None] | None = None
        self._tried_at = -inf
        #: The answer that the next heartbeat carries.
        self.proof: StoreProof | None = None

    def take(self, challenge: StoreChallenge | None) -> None:
        """Starts to answer a challenge. A failure is tried again, because the disk may be mounted meanwhile."""
        if challenge is None or (self._task is not None and not self._task.done()):
            return
        is_new = self.proof is None or self.proof.nonce != challenge.nonce
        if is_new or self._clocks.monotonic() - self._tried_at > PROVE_AGAIN_S:
            self._tried_at = self._clocks.monotonic()
            self._task = asyncio.create_task(self._prove(challenge))

    async def _prove(self, challenge: StoreChallenge) -> None:
        try:
            access = await access_to(self._client, challenge.place)
        except ServerUnreachable as error:
            log.warning("not yet shown that this machine reaches its store: %s", error)
            return
        except (ClusterError, Forbidden) as error:
            self.proof = StoreProof(nonce=challenge.nonce, problem=str(error)[:PROBLEM_MOST])
        else:
            self.proof = await asyncio.to_thread(answer_challenge, challenge, self._node_id, access)
        if self.proof.problem:
            log.warning("this machine is private: %s", self.proof.problem)


class CachedInputs:
    """The inputs cached on the machine, as reported to the server. Other processes fill the cache."""

    def __init__(self, prepared: Path) -> None:
        """`prepared`: the folder of fetched and prepared inputs."""
        self._folder = prepared / "inputs"
        self._looked_at = -1
        self._keys: list[str] = []
        #: Bytes, and seconds of the fetch, of the inputs that the last report named.
        self.fetched: list[FetchedInput] = []
        self._told: list[str] | None = None

    def news(self, *, everything: bool) -> list[str] | None:
        """Returns the cached keys; None if the server already has just these, unless `everything`."""
        try:
            # Every entry that is made or removed changes the folder. Looked at before it is read: what comes meanwhile
            # is found by the next call.
            changed_at = self._folder.stat().st_mtime_ns
            if changed_at != self._looked_at:
                named = FolderCache(self._folder, INPUT_BOUNDS).named()
                # Jobs can write into the cache, so names that are no keys are ignored.
                keys = [name for name in named if re.fullmatch(DATA_KEY_PATTERN, name)]
                self._keys, self._looked_at = sorted(keys[: INPUT_BOUNDS.entries]), changed_at
                told = ((key, *named[key]) for key in self._keys if named[key] != (0, 0.0))
                self.fetched = [FetchedInput(key=key, size_bytes=size, seconds=took) for key, size, took in told]
        except OSError:  # nothing was fetched here yet
            self._keys, self._looked_at, self.fetched = [], -1, []
        return self._keys if everything or self._keys != (self._told or []) else None

    def confirm(self, told: list[str] | None) -> None:
        """Records that the server has received this report."""
        self._told = self._told if told is None else told
