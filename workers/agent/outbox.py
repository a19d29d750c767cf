"""Reports on their way to the server: durable ones until they are acknowledged, progress only in its newest form."""

import asyncio

from walras.wire import AnyReport, ProgressReport
from workers.agent.store import AgentStore, Phase

MAX_PER_CALL = 500


class Outbox:
    """Collects reports. `urgent` is set when there is one that should not wait for the next heartbeat."""

    def __init__(self, store: AgentStore) -> None:
        self._store = store
        self._progress: dict[tuple[int, int], ProgressReport] = {}
        self.urgent = asyncio.Event()
        #: Checkpoints that the server has not recorded yet: (report id, job, attempt, digest).
        self._unrecorded: list[tuple[int, int, int, str]] = []

    def next_id(self) -> int:
        return self._store.next_report_id()

    def put(self, *reports: AnyReport) -> None:
        self._store.add_reports(list(reports))
        self.urgent.set()

    def move(self, job_id: int, attempt: int, phase: Phase, *reports: AnyReport) -> None:
        """Record an attempt's new phase together with the reports that tell of it."""
        if phase is Phase.OVER:
            self._progress.pop((job_id, attempt), None)
        self._store.move_attempt(job_id, attempt, phase, list(reports))
        self.urgent.set()

    def advance_journal(self, job_id: int, attempt: int, offset: int, reports: list[AnyReport]) -> None:
        self._store.advance_journal(job_id, attempt, offset, reports)
        for report in reports:
            if report.type == "committed":
                self._unrecorded.append((report.report_id, job_id, attempt, report.manifest.digest))
        if reports:
            self.urgent.set()

    def put_progress(self, report: ProgressReport) -> None:
        """Replaces what was there of this attempt. Goes with the next heartbeat, whenever that is."""
        self._progress[report.job_id, report.attempt] = report

    def batch(self) -> list[AnyReport]:
        """What to send now, oldest first."""
        self.urgent.clear()
        durable = self._store.reports(MAX_PER_CALL)
        if len(durable) == MAX_PER_CALL:
            return durable  # progress has higher ids: sending it first would acknowledge what was never sent
        return sorted([*durable, *self._progress.values()], key=lambda report: report.report_id)

    def arrived(self, batch: list[AnyReport]) -> None:
        """The server has answered to these: progress is said once, the rest until it is acknowledged."""
        said = {report.report_id for report in batch}
        self._progress = {key: report for key, report in self._progress.items() if report.report_id not in said}

    def acknowledge(self, report_id: int) -> list[tuple[int, int, str]]:
        """The server has everything up to this id. Returns (job, attempt, digest) of the checkpoints among it."""
        self._store.acknowledge(report_id)
        recorded = [entry[1:] for entry in self._unrecorded if entry[0] <= report_id]
        self._unrecorded = [entry for entry in self._unrecorded if entry[0] > report_id]
        return recorded
