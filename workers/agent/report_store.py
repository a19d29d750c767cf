"""What an agent must not forget: which attempts it was given, and which reports the server has not acknowledged.

SQLite in the agent's state folder, synchronous: when a call returns, it is durable. One agent uses a folder at a time.
Progress is kept in its newest form only, and not stored.

On a disk that is full, writes wait in memory, in their order, and everything reads as if they had been made. That is
safe because each of them is found again from the supervisors' journals, or concerns nothing that runs; what must be
durable before it is done, a start, is not done while `AgentStore.problem` says why not.
"""

import asyncio
import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from walras.wire import AnyReport, ProgressReport

log = logging.getLogger(__name__)

#: Ids are reserved in blocks, so that progress reports need no write each, and no id is used twice. The next block is
#: reserved when half of one is used: the other half lasts through days of a full disk.
ID_BLOCK = 1_000_000
#: Attempts that are over and notices that were seen are remembered up to this many, the newest.
ROWS_KEPT = 1000
#: Attempts that end between two looks at whether there are too many rows.
PRUNE_EVERY = 100

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


@dataclass
class _Write:
    """One transaction: an attempt's new phase or offset, and the reports that go with it."""

    reports: list[AnyReport]
    key: tuple[int, int] | None = None
    phase: AttemptPhase | None = None
    journal_offset: int | None = None


@dataclass
class _Unwritten:
    """What the disk did not take yet."""

    writes: list[_Write] = field(default_factory=list)
    #: Reports up to this one are acknowledged.
    acknowledged: int = 0
    notices: set[str] = field(default_factory=set)


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
        #: Why the last write failed, in words; empty: everything is durable.
        self.problem = ""
        self._unwritten = _Unwritten()
        self._over_since_pruned = PRUNE_EVERY
        row = self._db.execute("SELECT next_id FROM reserved").fetchone()
        self._next_id = self._reserved = 1 if row is None else int(row[0])
        if row is None:
            self._db.execute("INSERT INTO reserved VALUES (1)")

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def next_report_id(self) -> int:
        """Larger than every id before it, restarts included. Raises OSError after days of a full disk."""
        if self._next_id + ID_BLOCK // 2 >= self._reserved:
            reserved = self._next_id + ID_BLOCK
            if self._try(lambda: self._db.execute("UPDATE reserved SET next_id = ?", (reserved,))):
                self._reserved = reserved
            elif self._next_id >= self._reserved:
                raise OSError(self.problem)
        self._next_id += 1
        return self._next_id - 1

    def reports(self, limit: int) -> list[AnyReport]:
        """The oldest reports that are not acknowledged. A row that cannot be read back is dropped, and logged."""
        rows = self._db.execute(
            "SELECT report_id, body FROM reports WHERE report_id > ? ORDER BY report_id LIMIT ?",
            (self._unwritten.acknowledged, limit),
        ).fetchall()
        found = [report for report_id, body in rows if (report := self._parse(report_id, body)) is not None]
        found += [report for write in self._unwritten.writes for report in write.reports]
        return sorted(found, key=lambda report: report.report_id)[:limit]

    def acknowledge(self, report_id: int) -> None:
        """The server has every report up to this one."""
        self._unwritten.acknowledged = max(self._unwritten.acknowledged, report_id)
        for write in self._unwritten.writes:
            write.reports = [report for report in write.reports if report.report_id > report_id]
        if not self._unwritten.writes:
            self.flush()

    def add_reports(self, reports: list[AnyReport]) -> None:
        self._write(_Write(reports))

    def attempt(self, job_id: int, attempt: int) -> KnownAttempt | None:
        row = self._db.execute(
            "SELECT phase, journal_offset FROM attempts WHERE job_id = ? AND attempt = ?", (job_id, attempt)
        ).fetchone()
        phase, offset = (None, 0) if row is None else (AttemptPhase(row[0]), int(row[1]))
        for write in self._unwritten.writes:
            if write.key == (job_id, attempt):
                phase = write.phase or phase
                offset = offset if write.journal_offset is None else write.journal_offset
        return None if phase is None else KnownAttempt(job_id, attempt, phase, offset)

    def open_attempts(self) -> list[KnownAttempt]:
        """Those that are not over."""
        rows = self._db.execute(
            "SELECT job_id, attempt, phase, journal_offset FROM attempts WHERE phase != ? ORDER BY job_id, attempt",
            (AttemptPhase.OVER,),
        )
        return [KnownAttempt(job_id, attempt, AttemptPhase(phase), offset) for job_id, attempt, phase, offset in rows]

    def move_attempt(self, job_id: int, attempt: int, phase: AttemptPhase, reports: list[AnyReport]) -> None:
        """Record the phase and the reports that go with it, both or neither."""
        self._write(_Write(reports, (job_id, attempt), phase))
        self._over_since_pruned += phase is AttemptPhase.OVER
        if self._over_since_pruned >= PRUNE_EVERY and self._try(self._prune):
            self._over_since_pruned = 0

    def advance_journal(self, job_id: int, attempt: int, offset: int, reports: list[AnyReport]) -> None:
        """Record that the journal up to `offset` has become reports."""
        self._write(_Write(reports, (job_id, attempt), journal_offset=offset))

    def is_new_notice(self, digest: str) -> bool:
        """True the first time this notice is seen."""
        if digest in self._unwritten.notices:
            return False
        try:
            return self._db.execute("INSERT OR IGNORE INTO notices VALUES (?)", (digest,)).rowcount == 1
        except (sqlite3.OperationalError, OSError) as error:
            self.problem = str(error)
            self._unwritten.notices.add(digest)
            return True

    def flush(self) -> bool:
        """Write what the disk did not take before. Returns True once everything is durable."""
        while self._unwritten.writes:
            write = self._unwritten.writes[0]
            if not self._try(lambda write=write: self._perform(write)):  # type: ignore[misc]
                return False
            self._unwritten.writes.pop(0)
        acknowledged = self._unwritten.acknowledged
        return self._try(lambda: self._db.execute("DELETE FROM reports WHERE report_id <= ?", (acknowledged,)))

    def _write(self, write: _Write) -> None:
        is_first = not self._unwritten.writes
        write.reports = [report for report in write.reports if _can_be_read_back(report)]
        self._unwritten.writes.append(write)
        if is_first:
            self.flush()

    def _try(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except (sqlite3.OperationalError, OSError) as error:
            if not self.problem:
                log.error("cannot write the agent's records, trying again: %s", error)
            self.problem = str(error)
            return False
        if self.problem and not self._unwritten.writes:
            log.info("the agent's records can be written again")
        self.problem = self.problem if self._unwritten.writes else ""
        return True

    def _perform(self, write: _Write) -> None:
        with _Transaction(self._db):
            if write.key is not None and write.phase is not None:
                self._db.execute(
                    "INSERT INTO attempts (job_id, attempt, phase) VALUES (?, ?, ?)"
                    " ON CONFLICT (job_id, attempt) DO UPDATE SET phase = excluded.phase",
                    (*write.key, write.phase),
                )
            if write.key is not None and write.journal_offset is not None:
                self._db.execute(
                    "UPDATE attempts SET journal_offset = ? WHERE job_id = ? AND attempt = ?",
                    (write.journal_offset, *write.key),
                )
            rows = [(report.report_id, report.model_dump_json()) for report in write.reports]
            self._db.executemany("INSERT INTO reports VALUES (?, ?)", rows)

    def _prune(self) -> None:
        for table, which in (("attempts", "phase = 'over'"), ("notices", "TRUE")):
            newest = f"SELECT rowid FROM {table} WHERE {which} ORDER BY rowid DESC LIMIT {ROWS_KEPT}"
            self._db.execute(f"DELETE FROM {table} WHERE {which} AND rowid NOT IN ({newest})")

    def _parse(self, report_id: int, body: str) -> AnyReport | None:
        try:
            return _REPORT.validate_json(body)
        except ValidationError as error:
            log.error("report %d dropped, it cannot be read back: %s", report_id, error.errors()[:1])
            self._try(lambda: self._db.execute("DELETE FROM reports WHERE report_id = ?", (report_id,)))
            return None


def _can_be_read_back(report: AnyReport) -> bool:
    try:
        _REPORT.validate_json(report.model_dump_json())
    except ValueError as error:
        log.error("%s report dropped, it is no strict JSON: %s", report.type, str(error)[:500])
        return False
    return True


class _Transaction:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, error: object, *_: object) -> None:
        try:
            if error is None:
                self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:  # SQLite has ended it already where the disk was full
                self._db.execute("ROLLBACK")


MAX_PER_CALL = 500
#: On a full disk: heartbeats from one attempt to write to the next, at most.
MAX_CALLS_BETWEEN_WRITES = 16


class ReportOutbox:
    """Collects reports. `urgent` is set when there is one that should not wait for the next heartbeat."""

    def __init__(self, store: AgentStore) -> None:
        self._store = store
        self._progress: dict[tuple[int, int], ProgressReport] = {}
        self.urgent = asyncio.Event()
        #: Checkpoints that the server has not recorded yet: (report id, job, attempt, digest).
        self._unrecorded: list[tuple[int, int, int, str]] = []
        #: Failed attempts to write in a row, and calls until the next.
        self._failures = self._calls_left = 0

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
        self._retry_writes()
        durable = self._store.reports(MAX_PER_CALL)
        if len(durable) == MAX_PER_CALL:
            return durable  # progress has higher ids: sending it first would acknowledge what was never sent
        return sorted([*durable, *self._progress.values()], key=lambda report: report.report_id)

    def _retry_writes(self) -> None:
        """Try again what the disk did not take: ever more rarely, counted in calls of the server."""
        self._calls_left -= 1
        if not self._store.problem:
            self._failures = self._calls_left = 0
        elif self._calls_left < 0 and not self._store.flush():
            self._failures += 1
            self._calls_left = min(2**self._failures, MAX_CALLS_BETWEEN_WRITES)

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
