"""What an agent must not forget: which attempts it was given, and which reports the server has not acknowledged.

SQLite in the agent's state folder, synchronous: when a call returns, it is durable. One agent uses a folder at a time.
Progress is kept in its newest form only, and not stored.
"""

import asyncio
import fcntl
import os
import sqlite3
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter

from walras.wire import AnyReport, ProgressReport

#: Ids are reserved in blocks, so that progress reports need no write each, and no id is used twice.
ID_BLOCK = 1000

_REPORT: TypeAdapter[AnyReport] = TypeAdapter(AnyReport)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS reserved (next_id INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS reports (report_id INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS attempts (
    job_id INTEGER NOT NULL, attempt INTEGER NOT NULL, phase TEXT NOT NULL, journal_offset INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, attempt)
);
CREATE TABLE IF NOT EXISTS notices (digest TEXT PRIMARY KEY);
"""


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
        row = self._db.execute("SELECT next_id FROM reserved").fetchone()
        self._next_id = self._reserved = 1 if row is None else int(row[0])
        if row is None:
            self._db.execute("INSERT INTO reserved VALUES (1)")

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

    def attempt(self, job_id: int, attempt: int) -> KnownAttempt | None:
        row = self._db.execute(
            "SELECT phase, journal_offset FROM attempts WHERE job_id = ? AND attempt = ?", (job_id, attempt)
        ).fetchone()
        return None if row is None else KnownAttempt(job_id, attempt, AttemptPhase(row[0]), int(row[1]))

    def open_attempts(self) -> list[KnownAttempt]:
        """Those that are not over."""
        rows = self._db.execute(
            "SELECT job_id, attempt, phase, journal_offset FROM attempts WHERE phase != ? ORDER BY job_id, attempt",
            (AttemptPhase.OVER,),
        )
        return [KnownAttempt(job_id, attempt, AttemptPhase(phase), offset) for job_id, attempt, phase, offset in rows]

    def move_attempt(self, job_id: int, attempt: int, phase: AttemptPhase, reports: list[AnyReport]) -> None:
        """Record the phase and the reports that go with it, both or neither."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO attempts (job_id, attempt, phase) VALUES (?, ?, ?)"
                " ON CONFLICT (job_id, attempt) DO UPDATE SET phase = excluded.phase",
                (job_id, attempt, phase),
            )
            self._insert(reports)

    def advance_journal(self, job_id: int, attempt: int, offset: int, reports: list[AnyReport]) -> None:
        """Record that the journal up to `offset` has become reports."""
        with self._transaction():
            self._db.execute(
                "UPDATE attempts SET journal_offset = ? WHERE job_id = ? AND attempt = ?", (offset, job_id, attempt)
            )
            self._insert(reports)

    def is_new_notice(self, digest: str) -> bool:
        """True the first time this notice is seen."""
        return self._db.execute("INSERT OR IGNORE INTO notices VALUES (?)", (digest,)).rowcount == 1

    def _insert(self, reports: list[AnyReport]) -> None:
        rows = [(report.report_id, report.model_dump_json()) for report in reports]
        self._db.executemany("INSERT INTO reports VALUES (?, ?)", rows)

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
        self._progress: dict[tuple[int, int], ProgressReport] = {}
        self.urgent = asyncio.Event()
        #: Checkpoints that the server has not recorded yet: (report id, job, attempt, digest).
        self._unrecorded: list[tuple[int, int, int, str]] = []

    def next_id(self) -> int:
        return self._store.next_report_id()

    def put(self, *reports: AnyReport) -> None:
        self._store.add_reports(list(reports))
        self.urgent.set()

    def move(self, job_id: int, attempt: int, phase: AttemptPhase, *reports: AnyReport) -> None:
        """Record an attempt's new phase together with its reports, atomically."""
        if phase is AttemptPhase.OVER:
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
        """Replace the attempt's progress; it is sent with the next heartbeat."""
        self._progress[report.job_id, report.attempt] = report

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

    def acknowledge(self, report_id: int) -> list[tuple[int, int, str]]:
        """The server has everything up to this id. Returns (job, attempt, digest) of the checkpoints among it."""
        self._store.acknowledge(report_id)
        recorded = [entry[1:] for entry in self._unrecorded if entry[0] <= report_id]
        self._unrecorded = [entry for entry in self._unrecorded if entry[0] > report_id]
        return recorded
