"""Following one attempt: its supervisor's journal becomes reports, the server's wishes become messages to it.

The journal is the truth; what comes over the socket only says that there is something new in it, and how far the steps
are. So a follower can begin at any time, also after everything is over.
"""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from walras.wire import AnyReport, CommittedReport, EndedReport, Manifest, ProgressReport
from workers import processes
from workers.agent.report_store import AttemptOutbox, AttemptPhase
from workers.agent.server_client import LogShipper
from workers.processes import ProcessName
from workers.supervisor_protocol import JOURNAL_FILE, SUPERVISOR_FILE, AttemptPlan, JournalEvent, read_attempt_journal

log = logging.getLogger(__name__)

RECONNECT_S = 0.1
KILL_TIMEOUT_S = 10.0
MAX_LINE_BYTES = 1024 * 1024


class Follower:
    """One attempt whose supervisor was started, by this agent or one before it."""

    def __init__(
        self, folder: Path, plan: AttemptPlan, outbox: AttemptOutbox, shipper: LogShipper, journal_offset: int
    ) -> None:
        self.key = (plan.job_id, plan.attempt)
        self.plan = plan
        self._folder = folder
        self._outbox = outbox
        self._shipper = shipper
        self._offset = journal_offset
        self._writer: asyncio.StreamWriter | None = None
        self._progress: dict[str, Any] | None = None
        self._stop: dict[str, Any] | None = None

    # ------------------------------------------------------------------------------------------- to the supervisor

    def renew(self, until: float, lease_s: float) -> None:
        self._send({"type": "renew", "until": until, "lease_s": lease_s})

    def stop(self, grace_s: float, reason: str) -> bool:
        """Request the end, again after each reconnection. Returns True if the message was sent to the supervisor."""
        self._stop = {"type": "stop", "grace_s": grace_s, "reason": reason}
        return self._send(self._stop)

    def save(self) -> None:
        """Ask for a checkpoint soon; the attempt goes on."""
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
        """Follow the attempt until it is over and its last report is queued."""
        shipping = asyncio.create_task(self._shipper.run())
        try:
            supervisor = _supervisor_of(self._folder)
            while supervisor is not None and supervisor.is_alive:
                await self._read_connection()
                self._read_journal()
                await asyncio.sleep(RECONNECT_S)
        finally:
            shipping.cancel()
        await asyncio.gather(shipping, return_exceptions=True)
        self._read_journal()
        ended = self._find_end()
        if ended is None:
            # Its guardian does this too; but nothing is reported as over before somebody has looked.
            await asyncio.to_thread(processes.kill_carriers, self.plan.cookie, KILL_TIMEOUT_S)
        await self._shipper.ship_rest()
        self._report_end(ended or {"cause": "supervisor_lost"})

    async def _read_connection(self) -> None:
        """One connection to the supervisor, as long as it lasts."""
        try:
            reader, writer = await asyncio.open_unix_connection(self.plan.control_socket, limit=MAX_LINE_BYTES)
        except OSError:
            return
        self._writer = writer
        self._send({"type": "status"})
        if self._stop is not None:
            self._send(self._stop)
        self._read_journal()
        try:
            while line := await reader.readline():
                self._handle_message(json.loads(line))
        except (OSError, ValueError) as error:
            log.warning("job %d attempt %d: supervisor's connection: %s", *self.key, error)
        finally:
            self._writer = None
            writer.close()

    def _handle_message(self, message: dict[str, Any]) -> None:
        if message["type"] == "event":
            self._read_journal()
        elif message["type"] == "progress":
            self._progress = message
            report = self._progress_report()
            if report is not None:
                self._outbox.put_progress(report)

    def _read_journal(self) -> None:
        events, offset = read_attempt_journal(self._folder / JOURNAL_FILE, self._offset)
        if not events:
            return
        reports: list[AnyReport] = []
        for event in events:
            if event["type"] == "committed" and self._reports_for_gang:
                reports.append(self._committed_report(event))
            elif event["type"] == "note":
                log.info("job %d attempt %d: %s", *self.key, event["text"])
        self._offset = offset
        self._outbox.advance_journal(*self.key, offset, reports)

    def _find_end(self) -> JournalEvent | None:
        """Searches the whole journal: an earlier agent may have read that far, and died before it reported the end."""
        events, _ = read_attempt_journal(self._folder / JOURNAL_FILE)
        ended = next((event for event in events if event["type"] == "ended"), None)
        if ended is not None:
            self._progress = ended["progress"] or self._progress
        return ended

    # ------------------------------------------------------------------------------------------- reports

    @property
    def _reports_for_gang(self) -> bool:
        return self.plan.node_rank == 0

    def _committed_report(self, event: JournalEvent) -> CommittedReport:
        job_id, attempt = self.key
        return CommittedReport(
            report_id=self._outbox.next_id(),
            job_id=job_id,
            attempt=attempt,
            manifest=Manifest(**event["manifest"]),
            took_s=event["took_s"],
        )

    def _progress_report(self) -> ProgressReport | None:
        """Returns None if another machine reports for the gang, or the script sent impossible figures."""
        if self._progress is None or not self._reports_for_gang:
            return None
        job_id, attempt = self.key
        fields = {name: value for name, value in self._progress.items() if name not in ("type", "report_id")}
        pace = fields.pop("pace", None)
        try:
            return ProgressReport.model_validate(
                fields
                | {"pace_steps_per_s": pace, "report_id": self._outbox.next_id(), "job_id": job_id, "attempt": attempt}
            )
        except ValidationError as error:
            log.warning("job %d attempt %d: progress ignored: %s", job_id, attempt, error.errors()[:1])
            return None

    def _report_end(self, ended: JournalEvent) -> None:
        job_id, attempt = self.key
        steps = None if self._progress is None else float(self._progress["steps"])
        last = self._progress_report()
        report = EndedReport(
            report_id=self._outbox.next_id(),
            job_id=job_id,
            attempt=attempt,
            cause=ended["cause"],
            exit_code=ended.get("exit_code"),
            signal=ended.get("signal"),
            failed_rank=ended.get("failed_rank"),
            steps=steps,
            cpu_s=ended.get("cpu_s", 0.0),
        )
        self._outbox.move(job_id, attempt, AttemptPhase.OVER, *([last] if last is not None else []), report)


def _supervisor_of(folder: Path) -> ProcessName | None:
    """Returns the supervisor of the attempt in this folder; None if none was started since this machine booted."""
    try:
        facts = json.loads((folder / SUPERVISOR_FILE).read_bytes())
    except FileNotFoundError:
        return None
    if facts["boot_id"] != processes.boot_id():
        return None
    return ProcessName(facts["pid"], facts["start_ticks"])
