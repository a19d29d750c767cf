"""The agent's durable memory: its attempts, and the reports that the server has not acknowledged.

It is an SQLite database in the agent's state folder with synchronous writes. One agent uses a folder at a time. Only
the newest progress of each attempt is kept, in memory.

Writes wait in memory, in their order, until `flush` makes all of them durable in one transaction; reads see them as if
they had been made. That is safe because each of them can be recovered from the supervisors' journals, or concerns
nothing that runs. A report is durable before it is sent, unless the disk is full. A start must be durable before it
happens, so none happens while `AgentStore.problem` is not empty. Writes that a full disk refuses are tried again with
later calls, ever more rarely.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

from pydantic import TypeAdapter, ValidationError

from walras.clocks import random_hex
from walras.wire import AnyReport, CommittedReport, EndedReport, ProgressReport, RefusedReport, StartedReport
from workers import processes
from workers.devices import AttemptKey

log = logging.getLogger(__name__)

#: Ids are reserved in blocks, so that progress reports need no write each, and no id is used twice. The next block is
#: reserved when half of one is used: the other half lasts through days of a full disk.
ID_BLOCK = 1_000_000
#: More ids than any agent uses.
IDS_PER_S = 1000
#: Number of ended attempts, and of notices, that are remembered, the newest ones.
ROWS_KEPT = 1000
#: Number of attempts that end between two checks of the number of rows.
PRUNE_EVERY = 100
#: Number of ended attempts whose last reports are sent again to a restored server.
TOLD_AGAIN = 1000
#: Reports that are sent again.
_TOLD = (StartedReport, CommittedReport, EndedReport, RefusedReport)

_REPORT: TypeAdapter[AnyReport] = TypeAdapter(AnyReport)

#: Columns of the key of an attempt, and the condition that they are a given key's.
_KEY, _IS_KEY = "job_id, attempt, incarnation", "job_id = ? AND attempt = ? AND incarnation = ?"

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


#: Agents of the first release stored attempts without the incarnation that granted them.
_FROM_FIRST_RELEASE = """
INSERT INTO granted (incarnation, job_id, attempt, phase, journal_offset)
    SELECT '', job_id, attempt, phase, journal_offset FROM attempts;
DROP TABLE attempts;
"""


class AttemptPhase(StrEnum):
    """The progress of this machine's part of an attempt. It is stored before it is acted upon."""

    STARTING = "starting"
    RUNNING = "running"
    #: Its last report is queued; anything else that arrives for it is stale.
    OVER = "over"


@dataclass(frozen=True)
class KnownAttempt:
    key: AttemptKey
    phase: AttemptPhase
    #: Offset in the supervisor's journal up to which events have become reports.
    journal_offset: int


@dataclass
class _Write:
    """One transaction: an attempt's new phase or offset, its reports, and the ids of reports that they replace."""

    reports: list[AnyReport]
    replaced: list[int] = field(default_factory=list)
    key: AttemptKey | None = None
    phase: AttemptPhase | None = None
    journal_offset: int | None = None
    #: Whether its reports are copies of what is stored, for a restored server.
    is_copy: bool = False


@dataclass
class _Unwritten:
    """Writes that wait for `flush`."""

    writes: list[_Write] = field(default_factory=list)
    #: Reports up to this one are acknowledged.
    acknowledged: int = 0
    notices: set[str] = field(default_factory=set)


class AgentStore:
    """Opens (or creates) the agent's database. Raises BlockingIOError when another agent uses the folder."""

    def __init__(self, folder: Path, chance: Random | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._db = sqlite3.connect(folder / "agent.sqlite", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)
        #: Reports up to this one were deleted from the table.
        self._deleted_until = 0
        #: Why the last write failed; empty: everything is durable.
        self.problem = ""
        self._unwritten = _Unwritten()
        self._over_since_pruned = PRUNE_EVERY
        if self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'attempts'").fetchone():
            self._db.executescript(f"BEGIN;{_FROM_FIRST_RELEASE}COMMIT;")
        #: Identifies this folder for ever: an agent that lost it is another agent.
        self.agent = self._own_name(chance)
        self.highest_job_id = int(self._db.execute("SELECT coalesce(max(job_id), 0) FROM granted").fetchone()[0])
        self._ids_are_durable = True
        first_id, row = 1, self._db.execute("SELECT next_id FROM reserved").fetchone()
        if row is None:
            self._db.execute("INSERT INTO reserved VALUES (1)")
        else:  # beyond ids that an earlier agent may have used and not stored while its disk was full
            first_id = int(row[0]) + int(processes.boottime() * IDS_PER_S)
        # Stored ids beyond that were used and not reserved, before a reboot.
        self._next_id = self._reserved = max(first_id, self._highest_stored() + 1)

    def _highest_stored(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(report_id), 0) FROM reports").fetchone()[0])

    def _own_name(self, chance: Random | None) -> str:
        row = self._db.execute("SELECT incarnation FROM agent").fetchone()
        if row is None:
            row = (random_hex(chance, 32),)
            self._db.execute("INSERT INTO agent VALUES (?)", row)
        return str(row[0])

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def next_report_id(self) -> int:
        """Returns an id larger than every id before it, restarts included."""
        if self._next_id + ID_BLOCK // 2 >= self._reserved and not self._reserve() and self._next_id >= self._reserved:
            # Started on a full disk. The next agent begins further on, by the time that has passed.
            self._reserved = self._next_id + ID_BLOCK
            self._ids_are_durable = False
        self._next_id += 1
        return self._next_id - 1

    def _reserve(self) -> bool:
        reserved = self._next_id + ID_BLOCK
        if not self._try(lambda: self._db.execute("UPDATE reserved SET next_id = ?", (reserved,))):
            return False
        self._reserved, self._ids_are_durable = reserved, True
        return True

    @property
    def highest_report_id(self) -> int:
        """Returns the highest id that was given out."""
        return self._next_id - 1

    def renumber(self, beyond: int) -> int:
        """Gives the waiting reports ids beyond this one, which must be beyond all that were given out.

        Returns what was added to each id; 0 if the disk is full, and nothing has changed.
        """
        if not self.flush():
            return 0
        shift = beyond + 1
        next_id = max(self._next_id, self._highest_stored() + 1) + shift
        # Attempts keep copies under the earlier ids: those get new ones when they are told again.
        moved = [_numbered(report, report.report_id + shift) for report in self._waiting()]

        def write() -> None:
            with _transaction(self._db):
                self._db.execute("DELETE FROM reports")
                self._insert(moved)
                self._db.execute("UPDATE reserved SET next_id = ?", (next_id + ID_BLOCK,))

        if not self._try(write):
            return 0
        self._next_id, self._reserved = next_id, next_id + ID_BLOCK
        return shift

    def reports(self, limit: int) -> list[AnyReport]:
        """Returns the oldest unacknowledged reports. A row that cannot be read is deleted, and logged."""
        replaced = {report_id for write in self._unwritten.writes for report_id in write.replaced}
        stored = self._waiting(self._unwritten.acknowledged, limit + len(replaced))
        found = [report for report in stored if report.report_id not in replaced]
        unwritten = (report for write in self._unwritten.writes for report in write.reports)
        found += [report for report in unwritten if report.report_id > self._unwritten.acknowledged]
        return sorted(found, key=lambda report: report.report_id)[:limit]

    def _waiting(self, beyond: int = 0, limit: int = -1) -> list[AnyReport]:
        """Returns the stored reports with ids beyond this one, the first `limit` of them (-1: all)."""
        rows = self._db.execute(
            "SELECT report_id, body FROM reports WHERE report_id > ? ORDER BY report_id LIMIT ?", (beyond, limit)
        ).fetchall()
        return [report for report_id, body in rows if (report := self._parse(report_id, body)) is not None]

    def acknowledge(self, report_id: int) -> None:
        """Records that the server has every report up to this one; what a restored one may lack is written still."""
        self._unwritten.acknowledged = max(self._unwritten.acknowledged, report_id)
        for write in self._unwritten.writes:
            write.reports = [each for each in write.reports if each.report_id > report_id or isinstance(each, _TOLD)]

    def add_reports(self, reports: list[AnyReport]) -> None:
        """Makes reports durable that nothing else could recover."""
        self._write(_Write(reports))
        if not self.problem:
            self.flush()

    def attempt(self, key: AttemptKey) -> KnownAttempt | None:
        row = self._db.execute(f"SELECT phase, journal_offset FROM granted WHERE {_IS_KEY}", key).fetchone()
        phase, offset = (None, 0) if row is None else (AttemptPhase(row[0]), int(row[1]))
        for write in self._unwritten.writes:
            if write.key == key:
                phase = write.phase or phase
                offset = offset if write.journal_offset is None else write.journal_offset
        return None if phase is None else KnownAttempt(key, phase, offset)

    def open_attempts(self) -> list[KnownAttempt]:
        """Returns the attempts that are not over."""
        rows = self._db.execute(
            f"SELECT {_KEY}, phase, journal_offset FROM granted WHERE phase != 'over' ORDER BY job_id, attempt"
        )
        return [KnownAttempt(AttemptKey(*key), AttemptPhase(phase), offset) for *key, phase, offset in rows]

    def move_attempt(self, key: AttemptKey, phase: AttemptPhase, reports: Sequence[AnyReport] = ()) -> None:
        """Stores the phase and its reports atomically, with the next `flush`."""
        self._write(_Write(list(reports), key=key, phase=phase))
        self.highest_job_id = max(self.highest_job_id, key.job_id)
        self._over_since_pruned += phase is AttemptPhase.OVER
        if self._over_since_pruned >= PRUNE_EVERY and self._try(self._prune):
            self._over_since_pruned = 0

    def advance_journal(self, key: AttemptKey, offset: int, reports: Sequence[AnyReport]) -> None:
        """Stores that the journal up to `offset` has become reports, with the next `flush`."""
        self._write(_Write(list(reports), key=key, journal_offset=offset))

    def tell_again(self, bringing: Collection[AttemptKey]) -> int:
        """Queues again what a server with an older database may lack, and returns the number of these reports.

        For running attempts that is their start; for the newest attempts also their newest checkpoint and their end;
        on a full disk also all of these that could not be written, which are newer, and stay so once they are written.
        `bringing`: attempts whose ranks still bring what they need.
        """
        self.flush()
        rows = self._db.execute(
            f"SELECT {_KEY}, phase, committed, ended FROM granted"
            " WHERE phase != 'over' OR ended IS NOT NULL OR committed IS NOT NULL ORDER BY seq DESC LIMIT ?",
            (TOLD_AGAIN,),
        ).fetchall()
        # Waiting reports are sent again with the rest, because an end must not come before its checkpoint.
        keys = {AttemptKey(*row[:3]) for row in rows}
        waiting = (report for report in self._waiting() if isinstance(report, _TOLD))
        replaced = [report.report_id for report in waiting if AttemptKey.of(report) in keys]
        told: list[AnyReport] = []
        for job_id, attempt, incarnation, phase, *kept in reversed(rows):
            if phase == AttemptPhase.RUNNING:
                key = AttemptKey(job_id, attempt, incarnation)
                told.append(StartedReport(report_id=1, **key._asdict(), brings=key in bringing))
            told += [_REPORT.validate_json(body) for body in kept if body is not None]
        told = [_numbered(report, self.next_report_id()) for report in told]
        newer = [write for write in self._unwritten.writes if not write.is_copy]
        self._unwritten.writes, count = [], len(told)
        self._write(_Write(told, replaced, is_copy=True))
        for write in newer:
            write.reports = [
                _numbered(each, self.next_report_id()) if isinstance(each, _TOLD) else each for each in write.reports
            ]
            count += sum(isinstance(each, _TOLD) for each in write.reports)
        self._unwritten.writes += newer
        return count

    def is_new_notice(self, digest: str) -> bool:
        """Returns True the first time this notice is seen."""
        if digest in self._unwritten.notices:
            return False
        try:
            return self._db.execute("INSERT OR IGNORE INTO notices VALUES (?)", (digest,)).rowcount == 1
        except (sqlite3.OperationalError, OSError) as error:
            self.problem = str(error)
            self._unwritten.notices.add(digest)
            return True

    @property
    def unwritten_keys(self) -> list[AttemptKey]:
        """Returns the attempts whose last reports are only in the supervisor's journal."""
        return [write.key for write in self._unwritten.writes if write.key is not None]

    def flush(self) -> bool:
        """Writes what waits, in one transaction. Returns True once everything is durable."""
        if not self._ids_are_durable and not self._reserve():
            return False
        is_idle = not self._unwritten.writes and self._unwritten.acknowledged == self._deleted_until
        return (is_idle and not self.problem) or self._try(self._write_all)

    def _write(self, write: _Write) -> None:
        write.reports = [report for report in write.reports if _can_be_read_back(report)]
        self._unwritten.writes.append(write)

    def _write_all(self) -> None:
        acknowledged = self._unwritten.acknowledged
        with _transaction(self._db):
            for write in self._unwritten.writes:
                self._perform(write)
            self._db.execute("DELETE FROM reports WHERE report_id <= ?", (acknowledged,))
        self._unwritten.writes, self._deleted_until = [], acknowledged

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
        if write.replaced:
            self._db.executemany("DELETE FROM reports WHERE report_id = ?", [(each,) for each in write.replaced])
        if write.key is not None and write.phase is not None:
            self._db.execute(
                f"INSERT INTO granted ({_KEY}, phase) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (incarnation, job_id, attempt) DO UPDATE SET phase = excluded.phase",
                (*write.key, write.phase),
            )
        if write.key is not None and write.journal_offset is not None:
            self._set(write.key, "journal_offset", write.journal_offset)
        self._insert(write.reports)
        for report in write.reports:  # the newest checkpoint and the end of an attempt are kept beside it
            if isinstance(report, CommittedReport | EndedReport | RefusedReport):
                column = "committed" if isinstance(report, CommittedReport) else "ended"
                self._set(AttemptKey.of(report), column, report.model_dump_json())

    def _set(self, key: AttemptKey, column: str, value: int | str) -> None:
        self._db.execute(f"UPDATE granted SET {column} = ? WHERE {_IS_KEY}", (value, *key))

    def _insert(self, reports: list[AnyReport]) -> None:
        rows = [(report.report_id, report.model_dump_json()) for report in reports]
        self._db.executemany("INSERT INTO reports VALUES (?, ?)", rows)

    def _prune(self) -> None:
        for table, which in (("granted", "phase = 'over'"), ("notices", "TRUE")):
            newest = f"SELECT rowid FROM {table} WHERE {which} ORDER BY rowid DESC LIMIT {ROWS_KEPT}"
            self._db.execute(f"DELETE FROM {table} WHERE {which} AND rowid NOT IN ({newest})")

    def _parse(self, report_id: int, body: str) -> AnyReport | None:
        try:
            return _REPORT.validate_json(body)
        except ValidationError as error:
            log.error("report %d dropped, it cannot be read back: %s", report_id, error.errors()[:1])
            self._try(lambda: self._db.execute("DELETE FROM reports WHERE report_id = ?", (report_id,)))
            return None


def _numbered(report: AnyReport, report_id: int) -> AnyReport:
    return report.model_copy(update={"report_id": report_id})


def _can_be_read_back(report: AnyReport) -> bool:
    try:
        _REPORT.validate_json(report.model_dump_json())
    except ValueError as error:
        log.error("%s report dropped, it is no strict JSON: %s", report.type, str(error)[:500])
        return False
    return True


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:  # SQLite has ended it already if the disk was full
            db.execute("ROLLBACK")


MAX_PER_CALL, _ALL = 500, 1 << 31
#: Seconds after which a start is told by itself.
TELL_STARTS_S = 0.05
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
        self._soon: asyncio.TimerHandle | None = None

    def next_id(self) -> int:
        return self._store.next_report_id()

    def put(self, *reports: AnyReport) -> None:
        self._store.add_reports(list(reports))
        self.urgent.set()

    def stamp(self, key: AttemptKey) -> dict[str, Any]:
        """Returns the fields of a new report about the attempt."""
        return {"report_id": self.next_id(), **key._asdict()}

    def move(self, key: AttemptKey, phase: AttemptPhase, *reports: AnyReport) -> None:
        """Stores an attempt's new phase together with its reports, atomically.

        A start is told a little later: the end of a short attempt, or the starts of others, often go with it.
        """
        if phase is AttemptPhase.OVER:
            self._progress.pop(key, None)
        self._store.move_attempt(key, phase, reports)
        if phase is AttemptPhase.OVER:
            self.urgent.set()
        elif self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(TELL_STARTS_S, self.urgent.set)

    def advance_journal(self, key: AttemptKey, offset: int, reports: Sequence[AnyReport]) -> None:
        self._store.advance_journal(key, offset, reports)
        self._note_commits(reports)
        if reports:
            self.urgent.set()

    def _note_commits(self, reports: Iterable[AnyReport]) -> None:
        for report in reports:
            if report.type == "committed":
                self._unrecorded.append((report.report_id, AttemptKey.of(report), report.manifest.digest))

    def tell_again(self, bringing: Collection[AttemptKey]) -> bool:
        """Queues acknowledged reports again, because a restored server may have lost them.

        `bringing`: as `AgentStore.tell_again`. Returns whether they are stored, so that a later agent would tell them.
        """
        count = self._store.tell_again(bringing)
        log.info("the server was restored: %d reports are told again", count)
        self._unrecorded = []
        self._note_commits(self._store.reports(_ALL))
        self.urgent.set()
        return self._store.flush()

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
        self._progress[AttemptKey.of(report)] = report

    def batch(self) -> list[AnyReport]:
        """Returns the reports to send now, oldest first; they are durable unless the disk is full."""
        self.urgent.clear()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        self._write()
        durable = self._store.reports(MAX_PER_CALL)
        if len(durable) == MAX_PER_CALL:
            return durable  # progress has higher ids: sending it first would acknowledge what was never sent
        return sorted([*durable, *self._progress.values()], key=lambda report: report.report_id)

    def _write(self) -> None:
        """Writes what waits; what the disk refused is tried again ever more rarely, counted in calls of the server."""
        self._calls_left -= 1
        if self._store.problem and self._calls_left >= 0:
            return
        if self._store.flush():
            self._failures = self._calls_left = 0
        else:
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
