"""What an agent must not forget: which attempts it was given, and which reports the server has not acknowledged.

SQLite in the agent's state folder, synchronous: when a call returns, it is durable. One agent uses a folder at a time.
Progress is kept in its newest form only, and not stored.
"""

import asyncio
import fcntl
import logging
import os
import sqlite3
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter

from walras.clocks import random_hex
from walras.wire import (
    AnyReport,
    AttemptReport,
    CommittedReport,
    EndedReport,
    ProgressReport,
    RefusedReport,
    StartedReport,
)
from workers.devices import AttemptKey

log = logging.getLogger(__name__)

#: Ids are reserved in blocks, so that progress reports need no write each, and no id is used twice.
ID_BLOCK = 1000
#: Reports that are told again after a restore.
_TOLD = (StartedReport, CommittedReport, EndedReport, RefusedReport)

_REPORT: TypeAdapter[AnyReport] = TypeAdapter(AnyReport)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS reserved (next_id INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS reports (report_id INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS granted (
    seq INTEGER PRIMARY KEY, incarnation TEXT NOT NULL, job_id INTEGER NOT NULL, attempt INTEGER NOT NULL,
    phase TEXT NOT NULL, journal_offset INTEGER NOT NULL DEFAULT 0, committed TEXT, ended TEXT,
    UNIQUE (incarnation, job_id, attempt)
);
CREATE INDEX IF NOT EXISTS granted_open ON granted (seq) WHERE phase != 'over';
CREATE INDEX IF NOT EXISTS granted_jobs ON granted (job_id);
CREATE TABLE IF NOT EXISTS agent (incarnation TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS notices (digest TEXT PRIMARY KEY);
"""


#: Agents of the first release kept attempts without the incarnation that granted them.
_FROM_FIRST_RELEASE = """
INSERT INTO granted (incarnation, job_id, attempt, phase, journal_offset)
    SELECT '', job_id, attempt, phase, journal_offset FROM attempts;
DROP TABLE attempts;
"""
#: Ended attempts whose last reports are kept, to be told again to a server that was restored.
TOLD_AGAIN = 1000


class AttemptPhase(StrEnum):
    """How far this machine's part of an attempt has come. Written before anything is done about it."""

    STARTING = "starting"
    RUNNING = "running"
    #: Its last report is queued; anything else that arrives for it is stale.
    OVER = "over"


@dataclass(frozen=True)
class KnownAttempt:
    job_id: int
    attempt: int
    phase: AttemptPhase
    #: Offset in the supervisor's journal up to which events have become reports.
    journal_offset: int
    #: Which life of the cluster granted it: a number that another one gives out again is another attempt.
    incarnation: str = ""


def _key_of(report: AttemptReport) -> AttemptKey:
    return report.job_id, report.attempt, report.incarnation


class AgentStore:
    """Opens (or makes) the agent's database. Raises BlockingIOError when another agent uses the folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._db = sqlite3.connect(folder / "agent.sqlite", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)
        if self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'attempts'").fetchone():
            self._db.executescript(f"BEGIN;{_FROM_FIRST_RELEASE}COMMIT;")
        #: Names this folder for ever: whoever lost it is another agent.
        self.agent = self._own_name()
        self.highest_job_id = int(self._db.execute("SELECT coalesce(max(job_id), 0) FROM granted").fetchone()[0])
        row = self._db.execute("SELECT next_id FROM reserved").fetchone()
        self._next_id = self._reserved = 1 if row is None else int(row[0])
        if row is None:
            self._db.execute("INSERT INTO reserved VALUES (1)")

    def _own_name(self) -> str:
        row = self._db.execute("SELECT incarnation FROM agent").fetchone()
        if row is None:
            row = (random_hex(None, 32),)
            self._db.execute("INSERT INTO agent VALUES (?)", row)
        return str(row[0])

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def next_report_id(self) -> int:
        """Larger than every id before it, restarts included."""
        if self._next_id >= self._reserved:
            self._reserved = self._next_id + ID_BLOCK
            self._db.execute("UPDATE reserved SET next_id = ?", (self._reserved,))
        self._next_id += 1
        return self._next_id - 1

    def reports(self, limit: int) -> list[AnyReport]:
        """The oldest reports that are not acknowledged."""
        rows = self._db.execute("SELECT body FROM reports ORDER BY report_id LIMIT ?", (limit,))
        return [_REPORT.validate_json(body) for (body,) in rows]

    def acknowledge(self, report_id: int) -> None:
        """The server has every report up to this one."""
        self._db.execute("DELETE FROM reports WHERE report_id <= ?", (report_id,))

    def add_reports(self, reports: list[AnyReport]) -> None:
        with self._transaction():
            self._insert(reports)

    def attempt(self, job_id: int, attempt: int, incarnation: str = "") -> KnownAttempt | None:
        row = self._db.execute(
            "SELECT phase, journal_offset FROM granted WHERE incarnation = ? AND job_id = ? AND attempt = ?",
            (incarnation, job_id, attempt),
        ).fetchone()
        return None if row is None else KnownAttempt(job_id, attempt, AttemptPhase(row[0]), int(row[1]), incarnation)

    def open_attempts(self) -> list[KnownAttempt]:
        """Those that are not over."""
        rows = self._db.execute(
            "SELECT job_id, attempt, phase, journal_offset, incarnation FROM granted WHERE phase != 'over'"
            " ORDER BY job_id, attempt"
        )
        return [
            KnownAttempt(job_id, attempt, AttemptPhase(phase), offset, incarnation)
            for job_id, attempt, phase, offset, incarnation in rows
        ]

    def move_attempt(
        self, job_id: int, attempt: int, phase: AttemptPhase, reports: list[AnyReport], incarnation: str = ""
    ) -> None:
        """Record the phase and the reports that go with it, both or neither."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO granted (incarnation, job_id, attempt, phase) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (incarnation, job_id, attempt) DO UPDATE SET phase = excluded.phase",
                (incarnation, job_id, attempt, phase),
            )
            self._insert(reports)
        self.highest_job_id = max(self.highest_job_id, job_id)

    def advance_journal(
        self, job_id: int, attempt: int, offset: int, reports: list[AnyReport], incarnation: str = ""
    ) -> None:
        """Record that the journal up to `offset` has become reports."""
        with self._transaction():
            self._db.execute(
                "UPDATE granted SET journal_offset = ? WHERE incarnation = ? AND job_id = ? AND attempt = ?",
                (offset, incarnation, job_id, attempt),
            )
            self._insert(reports)

    def tell_again(self) -> int:
        """Queue anew what a server with an older database may not know: of attempts that run that they started, of the
        newest ones their newest checkpoint and their end. Returns how many reports that are.
        """
        with self._transaction():
            rows = self._db.execute(
                "SELECT phase, job_id, attempt, incarnation, committed, ended FROM granted"
                " WHERE phase != 'over' OR ended IS NOT NULL OR committed IS NOT NULL ORDER BY seq DESC LIMIT ?",
                (TOLD_AGAIN,),
            ).fetchall()
            # What waits to be sent is told again with the rest: an end must not come before the checkpoint.
            keys = {(row[1], row[2], row[3]) for row in rows}
            waiting = [_REPORT.validate_json(body) for (body,) in self._db.execute("SELECT body FROM reports")]
            self._db.executemany(
                "DELETE FROM reports WHERE report_id = ?",
                [(report.report_id,) for report in waiting if isinstance(report, _TOLD) and _key_of(report) in keys],
            )
            told: list[AnyReport] = []
            for phase, job_id, attempt, incarnation, *bodies in reversed(rows):
                if phase == AttemptPhase.RUNNING:
                    started = StartedReport(report_id=1, job_id=job_id, attempt=attempt, incarnation=incarnation)
                    told.append(started)
                told += [_REPORT.validate_json(body) for body in bodies if body is not None]
            self._insert([report.model_copy(update={"report_id": self.next_report_id()}) for report in told])
        return len(told)

    def is_new_notice(self, digest: str) -> bool:
        """True the first time this notice is seen."""
        return self._db.execute("INSERT OR IGNORE INTO notices VALUES (?)", (digest,)).rowcount == 1

    def _insert(self, reports: list[AnyReport]) -> None:
        rows = [(report.report_id, report.model_dump_json()) for report in reports]
        self._db.executemany("INSERT INTO reports VALUES (?, ?)", rows)
        for report in reports:
            if isinstance(report, (CommittedReport, EndedReport, RefusedReport)):
                self._keep_last(report)

    def _keep_last(self, report: CommittedReport | EndedReport | RefusedReport) -> None:
        """Keep the newest checkpoint and the end of the newest attempts beside them."""
        column = "committed" if isinstance(report, CommittedReport) else "ended"
        self._db.execute(
            f"UPDATE granted SET {column} = ? WHERE incarnation = ? AND job_id = ? AND attempt = ?",
            (report.model_dump_json(), report.incarnation, report.job_id, report.attempt),
        )
        self._db.execute(
            "UPDATE granted SET committed = NULL, ended = NULL WHERE ended IS NOT NULL AND seq <="
            " (SELECT max(seq) FROM granted) - ?",
            (TOLD_AGAIN,),
        )

    def _transaction(self) -> "_Transaction":
        return _Transaction(self._db)


class _Transaction:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, error: object, *_: object) -> None:
        self._db.execute("COMMIT" if error is None else "ROLLBACK")


MAX_PER_CALL = 500


class ReportOutbox:
    """Collects reports. `urgent` is set when there is one that should not wait for the next heartbeat."""

    def __init__(self, store: AgentStore) -> None:
        self._store = store
        self._progress: dict[AttemptKey, ProgressReport] = {}
        self.urgent = asyncio.Event()
        #: Checkpoints that the server has not recorded yet: report id, attempt, digest.
        self._unrecorded: list[tuple[int, AttemptKey, str]] = []

    def next_id(self) -> int:
        return self._store.next_report_id()

    def put(self, *reports: AnyReport) -> None:
        self._store.add_reports(list(reports))
        self.urgent.set()

    def move(self, job_id: int, attempt: int, phase: AttemptPhase, *reports: AnyReport, incarnation: str = "") -> None:
        """Record an attempt's new phase together with its reports, atomically."""
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
        """A restored server may have forgotten what it acknowledged."""
        log.info("the server was restored: %d reports are told again", self._store.tell_again())
        self.urgent.set()

    def put_progress(self, report: ProgressReport) -> None:
        """Replace the attempt's progress; it is sent with the next heartbeat."""
        self._progress[report.job_id, report.attempt, report.incarnation] = report

    def batch(self) -> list[AnyReport]:
        """Returns the reports to send now, oldest first."""
        self.urgent.clear()
        durable = self._store.reports(MAX_PER_CALL)
        if len(durable) == MAX_PER_CALL:
            return durable  # progress has higher ids: sending it first would acknowledge what was never sent
        return sorted([*durable, *self._progress.values()], key=lambda report: report.report_id)

    def mark_sent(self, batch: list[AnyReport]) -> None:
        """The server has received these. Progress is not sent again; durable reports are, until acknowledged."""
        sent = {report.report_id for report in batch}
        self._progress = {key: report for key, report in self._progress.items() if report.report_id not in sent}

    def acknowledge(self, report_id: int) -> list[tuple[AttemptKey, str]]:
        """The server has everything up to this id. Returns attempt and digest of the checkpoints among it."""
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
