"""The agent's reports to its server: durable ones in their order, and the newest progress of each attempt.

Writes that a full disk refuses are tried again with later calls, ever more rarely.
"""

import asyncio
import contextlib
import logging

from walras.wire import AnyReport, AttemptReport, ProgressReport
from workers.agent.report_store import AgentStore, AttemptPhase
from workers.devices import AttemptKey

log = logging.getLogger(__name__)

MAX_PER_CALL = 500
#: Largest number of heartbeats between two attempts to write on a full disk.
MAX_CALLS_BETWEEN_WRITES = 16


class ReportOutbox:
    """Collects reports. `urgent` is set when there is one that should not wait for the next heartbeat."""

    def __init__(self, store: AgentStore) -> None:
        self._store = store
        self._progress: dict[AttemptKey, ProgressReport] = {}
        self.urgent = asyncio.Event()
        #: Checkpoints that the server has not recorded yet: report id, attempt, digest.
        self._unrecorded: list[tuple[int, AttemptKey, str]] = []
        #: Failed attempts to write in a row, and calls until the next one.
        self._failures = self._calls_left = 0

    def next_id(self) -> int:
        return self._store.next_report_id()

    def put(self, *reports: AnyReport) -> None:
        self._store.add_reports(list(reports))
        self.urgent.set()

    def move(self, job_id: int, attempt: int, phase: AttemptPhase, *reports: AnyReport, incarnation: str = "") -> None:
        """Stores an attempt's new phase together with its reports, atomically."""
        if phase is AttemptPhase.OVER:
            self._progress.pop((job_id, attempt, incarnation), None)
        self._store.move_attempt(job_id, attempt, phase, list(reports), incarnation)
        self.urgent.set()

    def advance_journal(
        self, job_id: int, attempt: int, offset: int, reports: list[AnyReport], incarnation: str = ""
    ) -> None:
        self._store.advance_journal(job_id, attempt, offset, reports, incarnation)
        for report in reports:
            if report.type == "committed":
                key = (job_id, attempt, incarnation)
                self._unrecorded.append((report.report_id, key, report.manifest.digest))
        if reports:
            self.urgent.set()

    def tell_again(self) -> None:
        """Queues acknowledged reports again, because a restored server may have lost them."""
        log.info("the server was restored: %d reports are told again", self._store.tell_again())
        self.urgent.set()

    def is_overtaken(self, acknowledged: int) -> bool:
        """Returns whether the server has seen ids that this agent has not given out.

        An earlier agent used them on a full disk, where it could not write them down, and the machine has booted since.
        The server ignores all reports with lower ids.
        """
        return acknowledged > self._store.highest_report_id

    def renumber(self, acknowledged: int) -> bool:
        """Gives the waiting reports ids that the server has not seen. Returns False while the disk is full."""
        shift = self._store.renumber(acknowledged)
        if not shift:
            return False
        log.warning(
            "the server has seen report %d of an earlier agent: later ones are numbered from there", acknowledged
        )
        self._progress.clear()  # newer progress follows
        self._unrecorded = [(report_id + shift, key, digest) for report_id, key, digest in self._unrecorded]
        self.urgent.set()
        return True

    def put_progress(self, report: ProgressReport) -> None:
        """Replaces the attempt's progress, which is sent with the next heartbeat."""
        self._progress[report.job_id, report.attempt, report.incarnation] = report

    def batch(self) -> list[AnyReport]:
        """Returns the reports to send now, oldest first."""
        self.urgent.clear()
        self._retry_writes()
        durable = self._store.reports(MAX_PER_CALL)
        if len(durable) == MAX_PER_CALL:
            return durable  # progress has higher ids: sending it first would acknowledge what was never sent
        return sorted([*durable, *self._progress.values()], key=lambda report: report.report_id)

    def _retry_writes(self) -> None:
        """Tries again to write what the disk refused: ever more rarely, counted in calls of the server."""
        self._calls_left -= 1
        if not self._store.problem:
            self._failures = self._calls_left = 0
        elif self._calls_left < 0 and not self._store.flush():
            self._failures += 1
            self._calls_left = min(2**self._failures, MAX_CALLS_BETWEEN_WRITES)

    async def wait_for_urgent(self, seconds: float) -> None:
        """Waits for a report that should be sent at once, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.urgent.wait()

    def mark_sent(self, batch: list[AnyReport]) -> None:
        """Records that the server received these. Unlike progress, durable reports are sent until acknowledged."""
        sent = {report.report_id for report in batch}
        self._progress = {key: report for key, report in self._progress.items() if report.report_id not in sent}

    def acknowledge(self, report_id: int) -> list[tuple[AttemptKey, str]]:
        """Records that the server has everything up to this id. Returns attempt and digest of its checkpoints."""
        self._store.acknowledge(report_id)
        recorded = [(key, digest) for known_id, key, digest in self._unrecorded if known_id <= report_id]
        self._unrecorded = [entry for entry in self._unrecorded if entry[0] > report_id]
        return recorded


class AttemptOutbox:
    """The outbox of one attempt: every report through it names the incarnation that granted the attempt."""

    def __init__(self, outbox: ReportOutbox, incarnation: str) -> None:
        self._outbox = outbox
        self._incarnation = incarnation

    def next_id(self) -> int:
        return self._outbox.next_id()

    def move(self, job_id: int, attempt: int, phase: AttemptPhase, *reports: AnyReport) -> None:
        """As `ReportOutbox.move`."""
        stamped = map(self._stamp, reports)
        self._outbox.move(job_id, attempt, phase, *stamped, incarnation=self._incarnation)

    def advance_journal(self, job_id: int, attempt: int, offset: int, reports: list[AnyReport]) -> None:
        """As `ReportOutbox.advance_journal`."""
        stamped = [self._stamp(report) for report in reports]
        self._outbox.advance_journal(job_id, attempt, offset, stamped, self._incarnation)

    def put_progress(self, report: ProgressReport) -> None:
        """As `ReportOutbox.put_progress`."""
        self._outbox.put_progress(report.model_copy(update={"incarnation": self._incarnation}))

    def _stamp(self, report: AnyReport) -> AnyReport:
        named = isinstance(report, AttemptReport)
        return report.model_copy(update={"incarnation": self._incarnation}) if named else report
