"""Follows one attempt: turns its supervisor's journal into reports, and the server's requests into messages to it.

The journal is authoritative; messages over the socket only say that it has new entries, and how many steps are done. So
a follower can start at any time, even after the attempt has ended.
"""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from walras.contract import SIGKILL
from walras.wire import AnyReport, CommittedReport, EndedReport, ProgressReport, StartedReport
from workers import processes
from workers.agent.checkpoints import CheckpointUploads
from workers.agent.outputs import OutputCollector
from workers.agent.remote_sessions import AttemptPlace
from workers.agent.report_store import AttemptPhase, ReportOutbox
from workers.agent.server_client import LogShipper
from workers.control_groups import remove_group
from workers.devices import AttemptKey
from workers.supervisor_protocol import (
    JOURNAL_FILE,
    AttemptPlan,
    JournalEvent,
    find_attempt_end,
    find_descendants,
    find_supervisor,
    finite_number,
    forget_environment,
    parse_object,
    rank_log,
    read_attempt_journal,
)

log = logging.getLogger(__name__)

RECONNECT_S = 0.1
KILL_TIMEOUT_S = 10.0
MAX_LINE_BYTES = 1024 * 1024
#: Seconds after the grace period of a stop at which a frozen supervisor is killed.
FROZEN_MARGIN_S = 5.0
LOOK_EVERY_S = 1.0
#: Fields that the report of an end takes from the supervisor's record.
_TOLD_OF_AN_END = (
    "cause", "exit_code", "signal", "failed_rank", "cpu_s", "exceeded", "asked", "unfinished", "own_fault",
)  # fmt: skip


@contextlib.contextmanager
def end_of(process: processes.ProcessName | None) -> Iterator[asyncio.Event]:
    """Yields an event that is set once the process has ended, where the kernel can tell that."""
    ended, loop, file = asyncio.Event(), asyncio.get_running_loop(), -1

    def tell() -> None:
        loop.remove_reader(file)
        ended.set()

    if process is not None:
        # It has ended already, or the kernel or this Python has no such files.
        with contextlib.suppress(OSError, AttributeError):
            file = os.pidfd_open(process.pid)
            loop.add_reader(file, tell)
    try:
        yield ended
    finally:
        if file >= 0:
            loop.remove_reader(file)
            os.close(file)


async def patiently(work: Callable[[], Awaitable[None]]) -> None:
    """Does the work, and again after a pause as long as no file descriptor is left for it."""
    while True:
        try:
            return await work()
        except OSError as error:
            if not processes.is_out_of_descriptors(error):
                raise
            log.warning("%s: trying again", error)
        await asyncio.sleep(LOOK_EVERY_S)


class Follower:
    """One attempt whose supervisor was started, by this agent or an earlier one."""

    def __init__(
        self,
        folder: Path,
        plan: AttemptPlan,
        outbox: ReportOutbox,
        shipper: LogShipper,
        journal_offset: int,
        collector: OutputCollector,
        uploads: CheckpointUploads | None = None,
    ) -> None:
        """`uploads`: sends commits to a store; None: checkpoints are in a folder that all machines share."""
        self.key = AttemptKey.of(plan)
        self.plan = plan
        self._folder = folder
        self._outbox = outbox
        self._shipper = shipper
        self._collector = collector
        self._offset = journal_offset
        self._writer: asyncio.StreamWriter | None = None
        self._progress: dict[str, Any] | None = None
        self._stop: dict[str, Any] | None = None
        self._renewal: dict[str, Any] | None = None
        self._supervisor = find_supervisor(folder)
        #: Boot time after which a frozen supervisor that was told to stop is killed.
        self._frozen_until = inf
        #: Whether this agent saw the supervisor alive, and then no more.
        self._is_witness = self._has_ended = False
        #: Whether the journal may have entries that could not be read.
        self._is_behind = False
        self._uploads = uploads
        if uploads is not None:
            uploads.report, uploads.tell_job = self._report_commit, self._tell_job

    @property
    def place(self) -> AttemptPlace:
        """Returns where the attempt runs."""
        return AttemptPlace(self._folder, self.plan)

    # ------------------------------------------------------------------------------------------- to the supervisor

    def renew(self, until: float, lease_s: float) -> None:
        """Lengthens the lease, up to the boot time `until`; told again after each reconnection."""
        self._renewal = {"type": "renew", "until": until, "lease_s": lease_s}
        self._send(self._renewal)

    def stop(self, grace_s: float, reason: str) -> bool:
        """Requests the end, again after each reconnection. Returns True once the supervisor has it or has ended."""
        self._stop = {"type": "stop", "grace_s": grace_s, "reason": reason}
        self._frozen_until = min(self._frozen_until, processes.boottime() + grace_s + FROZEN_MARGIN_S)
        if self._uploads is not None:
            self._uploads.hurry()
        return self._send(self._stop) or self._has_ended

    def fence(self) -> None:
        """Ends the attempt at once and sends nothing more of it, because it no longer counts."""
        self.stop(0.0, "its fence is old")
        if self._uploads is not None:
            self._uploads.abandon()

    def checkpoint_every(self, every_s: float) -> bool:
        """Sets the seconds of work before each checkpoint. Returns True if the supervisor was told."""
        return self._send({"type": "checkpoint_every", "every_s": every_s})

    def save(self) -> None:
        """Requests a checkpoint soon; the attempt continues."""
        if self._uploads is not None:
            self._uploads.hurry_once()
        self._send({"type": "save"})

    def confirm_checkpoint(self, digest: str) -> None:
        self._send({"type": "recorded", "digest": digest})

    def _send(self, message: dict[str, Any]) -> bool:
        if self._writer is None or self._writer.is_closing():
            return False
        self._writer.write(json.dumps(message).encode() + b"\n")
        return True

    # ------------------------------------------------------------------------------------------- its life

    async def follow(self) -> None:
        """Follows the attempt until it is over and its last report is queued."""
        if self._uploads is None:
            return await self._follow()
        self._take_up_uploads()
        uploading = asyncio.create_task(self._uploads.run())
        try:
            await self._follow()
        finally:
            uploading.cancel()
            await asyncio.gather(uploading, return_exceptions=True)

    def _take_up_uploads(self) -> None:
        """Resumes uploads: an earlier agent may have read a commit, and died before the store had it."""
        events, _ = read_attempt_journal(self._folder / JOURNAL_FILE)
        commits = [event for event in events if self._is_commit_for_gang(event)]
        if commits:
            self._take_commit(commits[-1])

    async def _follow(self) -> None:
        works = (self._shipper.run, self._end_frozen, self._collector.run, self._tell_brought)
        tasks = [asyncio.create_task(patiently(work)) for work in works]
        try:
            with end_of(self._supervisor) as ended:
                while self._supervisor is not None and self._supervisor.is_alive:
                    self._is_witness = True
                    await self._read_connection()
                    self._read_journal()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(RECONNECT_S):
                            await ended.wait()
        finally:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._has_ended = True
        self._read_journal()
        end = self._find_end()
        if end is None:
            # Its guardian does this too, but an end is reported only after a check here.
            await asyncio.to_thread(self._kill_rest)
        if problem := await self._collector.finish(lambda: self._stop is not None):
            self._tell_job(problem)
        await self._shipper.ship_rest()
        if self._uploads is not None:
            await self._uploads.finish()  # before the end is told: the next attempt goes on from what counts then
        self._report_end(end or {"cause": "supervisor_lost"})

    async def _tell_brought(self) -> None:
        """Reports the start again when the ranks have brought what they need, and after each restart of the agent."""
        while self.place.needs.is_prepared_first:
            if not self.place.brings:
                self._advance([StartedReport.model_validate(self._stamp())])
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _end_frozen(self) -> None:
        """Kills a supervisor that its ranks stopped: it would hold its accelerators for ever, and keep no lease."""
        while self._supervisor is not None:
            is_late = processes.boottime() >= self._frozen_until
            if is_late and self._supervisor.is_alive and processes.is_stopped(self._supervisor.pid):
                processes.send_signal([self._supervisor.pid], SIGKILL)
            await asyncio.sleep(LOOK_EVERY_S)

    async def give_up(self, why: str) -> None:
        """Ends the attempt by force and reports it as lost, because following it failed."""
        self._tell_job(f"attempt stopped: the agent could not follow it ({why})")
        if self._supervisor is not None and self._supervisor.is_alive:
            processes.send_signal([self._supervisor.pid], SIGKILL)
        await asyncio.to_thread(self._kill_rest)
        with contextlib.suppress(Exception):  # whatever failed, the end must be reported
            await self._shipper.ship_rest()
        self._progress = None
        self._report_end({"cause": "supervisor_lost"})

    def _kill_rest(self) -> None:
        """Kills all remaining processes, by the supervisor's session and by the descendants that it saw last."""
        processes.kill_carriers(self.plan.cookie, KILL_TIMEOUT_S)
        processes.kill_known(*find_descendants(self._folder), KILL_TIMEOUT_S)
        remove_group(self.plan.group)

    def _tell_job(self, text: str) -> None:
        """Appends a line to the job's own log, as the supervisor would."""
        with contextlib.suppress(OSError):
            path = rank_log(self._folder, self.plan.first_rank)
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.write(file, f"[walras] {text}\n".encode(errors="replace"))
            finally:
                os.close(file)

    async def _read_connection(self) -> None:
        """Serves one connection to the supervisor, as long as it lasts."""
        try:
            reader, writer = await asyncio.open_unix_connection(self.plan.control_socket, limit=MAX_LINE_BYTES)
        except OSError:
            return
        self._writer = writer
        self._send({"type": "status"})
        for kept in (self._renewal, self._stop):
            if kept is not None:
                self._send(kept)
        self._catch_up()
        try:
            while line := await reader.readline():
                message = parse_object(line)
                if message is None:
                    raise ValueError("a line is no JSON object")
                self._handle_message(message)
        except (OSError, ValueError) as error:
            log.warning("job %d attempt %d: supervisor's connection: %s", *self.key[:2], error)
        finally:
            self._writer = None
            writer.close()

    def _handle_message(self, message: dict[str, Any]) -> None:
        if message.get("type") == "event" or self._is_behind:
            self._catch_up()
        if message.get("type") == "progress":
            self._progress = message
            report = self._progress_report()
            if report is not None:
                self._outbox.put_progress(report)

    def _catch_up(self) -> None:
        """Reads the journal, now or with the next message: what brings the lease is not given up for it."""
        try:
            self._read_journal()
            self._is_behind = False
        except OSError as error:
            self._is_behind = True
            log.warning("job %d attempt %d: its journal is not read yet: %s", *self.key[:2], error)

    def _read_journal(self) -> None:
        events, offset = read_attempt_journal(self._folder / JOURNAL_FILE, self._offset)
        if offset == self._offset:
            return
        reports: list[AnyReport] = []
        for event in events:
            if self._is_commit_for_gang(event):
                reports += self._take_commit(event)
            elif event.get("type") == "note":
                log.info("job %d attempt %d: %.2000s", *self.key[:2], event.get("text"))
            if event.get("type") == "committed":
                self._collector.request()
        self._offset = offset
        self._advance(reports)

    def _find_end(self) -> JournalEvent | None:
        """Reads the journal again, because an earlier agent may have died between reading the end and reporting it."""
        ended = find_attempt_end(self._folder / JOURNAL_FILE)
        progress = None if ended is None else ended.get("progress")
        if isinstance(progress, dict):
            self._progress = progress
        return ended

    # ------------------------------------------------------------------------------------------- reports

    def _stamp(self) -> dict[str, Any]:
        return self._outbox.stamp(self.key)

    def _advance(self, reports: list[AnyReport]) -> None:
        self._outbox.advance_journal(self.key, self._offset, reports)

    @property
    def _reports_for_gang(self) -> bool:
        return self.plan.node_rank == 0

    def _is_commit_for_gang(self, event: JournalEvent) -> bool:
        """Returns whether it is a commit that may count: the first machine's, or a survivor's who has all weights."""
        is_whole = self._reports_for_gang or event.get("layout") == "replicated"
        return event.get("type") == "committed" and is_whole

    def _take_commit(self, event: JournalEvent) -> list[CommittedReport]:
        """Returns the commit's report; empty if it follows once its store has the upload that begins here, or if the
        line is not what a supervisor writes.
        """
        fields = {"manifest": event.get("manifest"), "took_s": event.get("took_s"), "lag_s": event.get("lag_s", 0.0)}
        fields["layout"] = event.get("layout", "")
        try:
            commit = CommittedReport.model_validate(fields | self._stamp())
        except ValidationError as error:
            log.warning("job %d attempt %d: checkpoint ignored: %s", *self.key[:2], error.errors()[:1])
            return []
        if self._uploads is None:
            return [commit]
        made_at = finite_number(event.get("at"))
        self._uploads.put(commit, processes.boottime() if made_at is None else made_at)
        return []

    def _report_commit(self, commit: CommittedReport) -> None:
        self._advance([commit.model_copy(update={"report_id": self._outbox.next_id()})])

    def _progress_report(self) -> ProgressReport | None:
        """Returns the report; None if another machine reports for the gang, or the script sent impossible figures."""
        if self._progress is None or not self._reports_for_gang:
            return None
        fields = {name: value for name, value in self._progress.items() if name not in ("type", "report_id")}
        pace = fields.pop("pace", None)
        try:
            return ProgressReport.model_validate(fields | {"pace_steps_per_s": pace} | self._stamp())
        except ValidationError as error:
            log.warning("job %d attempt %d: progress ignored: %s", *self.key[:2], error.errors()[:1])
            return None

    def _report_end(self, ended: JournalEvent) -> None:
        forget_environment(self._folder)
        last = self._progress_report()
        fields = self._stamp()
        told = {name: ended[name] for name in _TOLD_OF_AN_END if name in ended}
        try:
            steps = None if self._progress is None else finite_number(self._progress.get("steps"))
            report = EndedReport.model_validate(fields | told | {"steps": steps, "witnessed": self._is_witness})
        except ValidationError as error:
            log.warning("job %d attempt %d: its end cannot be read: %s", *self.key[:2], error.errors()[:1])
            report = EndedReport.model_validate(fields | {"cause": "supervisor_lost", "witnessed": self._is_witness})
        reports = [each for each in (last, report) if each is not None]
        self._outbox.move(self.key, AttemptPhase.OVER, *reports)
