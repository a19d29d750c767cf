"""Detects lost and changed rows: a running digest over the journal, and a small file that remembers its newest value.

Every commit adds its journal rows to a chain of SHA-256 digests, counts itself, and stores both in the table `chain`,
in the same transaction. After the commit the same figures go to `tip`, a file of two slots beside the database, of
which an interrupted write leaves one whole. If a write-ahead log was truncated, or an older file put in the place of
the database, the database is older than the tip; if a journal row was changed, the digest differs. The tip is written
after each commit and forced to disk once a second: what a killed process acknowledged is always covered, what a power
failure took is covered up to that second. (A commit itself is on disk before it returns.)

A start checks from the newest mark before the tip, at most some ten thousand rows; `walras admin check` checks all.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path

from scheduler.live.store.sql_dialect import SqlConnection
from scheduler.live.store.store_interface import WriteBatch
from scheduler.live.store.table_rows import JobRow, JournalRow
from walras.errors import ConfigError

_SLOT_BYTES = 512
#: Least time between two syncs of the tip to disk, s.
_FORCED_EVERY_S = 1.0
#: Journal rows between two marks: the most that a start must check (and those of one commit more).
_ROWS_PER_MARK = 10_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChainHead:
    """Where the chain ends: how many commits there were, the newest journal row, and the digest up to it (hex)."""

    commits: int = 0
    seq: int = 0
    digest: str = ""
    #: The highest number that was given to a job.
    last_job_id: int = 0
    #: Rows since the last mark.
    unmarked: int = 0


_HEAD_FIELDS = fields(ChainHead)


def next_digest(digest: str, row: JournalRow) -> str:
    """Returns the digest of the chain after this row."""
    text = f"{digest}\0{float(row.at)!r}\0{row.kind}\0{row.type}\0{row.payload}"
    return hashlib.sha256(text.encode()).hexdigest()


class JournalChain:
    """The chain of one open database, used by the thread that writes."""

    def __init__(self, head: ChainHead) -> None:
        self.head = head

    def extend(self, connection: SqlConnection, batch: WriteBatch) -> ChainHead:
        """Store and return the head after one more commit, whose rows are inserted already; `self.head` stays."""
        head, rows = self.head, batch.rows(JournalRow)
        last_job_id = max((row.job_id for row in batch.rows(JobRow)), default=0)
        digest, count = head.digest, 0
        for row in rows:
            digest = next_digest(digest, row)
            count += 1
        seq, unmarked = head.seq, head.unmarked + count
        if count:
            seq = connection.execute("SELECT max(seq) FROM journal").fetchone()[0]
        if unmarked >= _ROWS_PER_MARK:
            connection.execute("INSERT INTO chain_marks (seq, digest) VALUES (?, ?)", [seq, digest])
            unmarked = 0
        head = ChainHead(head.commits + 1, seq, digest, max(head.last_job_id, last_job_id), unmarked)
        store_head(connection, head)
        return head


def store_head(connection: SqlConnection, head: ChainHead) -> None:
    """Store this as the end of the chain."""
    connection.execute(
        "UPDATE chain SET commits = ?, seq = ?, digest = ?, last_job_id = ?, unmarked = ?",
        [head.commits, head.seq, head.digest, head.last_job_id, head.unmarked],
    )


def load_head(connection: SqlConnection) -> ChainHead:
    """Returns the end of the chain that the database has."""
    row = connection.execute("SELECT commits, seq, digest, last_job_id, unmarked FROM chain").fetchone()
    return ChainHead(*row)


class TipFile:
    """`DIR/tip`: the end of the chain as the server last wrote it, outside the database."""

    def __init__(self, folder: Path, monotonic: Callable[[], float]) -> None:
        self.path = folder / "tip"
        self._monotonic = monotonic
        self._descriptor = -1
        self._slot = 0
        self._forced_at = -_FORCED_EVERY_S
        self._has_failed = False

    def read(self) -> ChainHead | None:
        """Returns the newest whole slot; None where there is no file. Raises ConfigError where no slot is whole."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        found = [head for head in (_parse_slot(data[:_SLOT_BYTES]), _parse_slot(data[_SLOT_BYTES:])) if head]
        if not found and data.strip(b"\0"):
            raise ConfigError(
                f"{self.path} is damaged",
                field="--data",
                fix="run `walras admin check --data DIR`, then delete the file",
            )
        return max(found, key=lambda head: head.commits, default=None)

    def write(self, head: ChainHead) -> None:
        """Write the head to the tip. A failing disk is only logged here, because the commit is durable already."""
        try:
            if self._descriptor < 0:
                self._open()
            os.pwrite(self._descriptor, _slot(head), self._slot * _SLOT_BYTES)
            self._slot = 1 - self._slot
            now = self._monotonic()
            if now - self._forced_at >= _FORCED_EVERY_S:
                os.fdatasync(self._descriptor)
                self._forced_at = now
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                log.warning("%s cannot be written (%s): lost rows would not be noticed", self.path, error)
            self._has_failed = True

    def _open(self) -> None:
        """Open the file with room for both slots, so that a full disk cannot stop later writes."""
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        data = os.pread(self._descriptor, 2 * _SLOT_BYTES, 0)
        if len(data) < 2 * _SLOT_BYTES:
            os.pwrite(self._descriptor, bytes(2 * _SLOT_BYTES - len(data)), len(data))
        heads = [_parse_slot(data[:_SLOT_BYTES]), _parse_slot(data[_SLOT_BYTES:])]
        # The first write replaces the older of the two slots.
        self._slot = min((0, 1), key=lambda slot: getattr(heads[slot], "commits", -1))

    def close(self) -> None:
        """Force the file to disk and close it."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.fdatasync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


def _slot(head: ChainHead) -> bytes:
    text = json.dumps({each.name: getattr(head, each.name) for each in _HEAD_FIELDS}).encode()
    return (text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n").ljust(_SLOT_BYTES, b"\0")


def _parse_slot(data: bytes) -> ChainHead | None:
    text, _, rest = data.partition(b"\n")
    if not text or hashlib.sha256(text).hexdigest().encode() != rest[:64]:
        return None
    return ChainHead(**json.loads(text))


# ------------------------------------------------------------------------------------------ checking


def find_chain_damage(connection: SqlConnection, tip: ChainHead | None, *, whole: bool = False) -> str:
    """Returns what is wrong with the journal, in words; empty where nothing is.

    Checks the rows since the newest mark before the tip; with `whole`, the whole journal.
    """
    head = load_head(connection)
    if tip is not None and tip.commits > head.commits:
        lost = tip.commits - head.commits
        return (
            f"{lost} acknowledged commits are missing: the database ends at commit {head.commits}, and the server had"
            f" written {tip.commits} (jobs up to number {tip.last_job_id})"
        )
    before = head.seq if tip is None else min(tip.seq, head.seq)
    mark = _newest_mark(connection, before)
    seq, digest = chain_beginning(connection) if whole or mark is None else mark
    marks = dict(connection.execute("SELECT seq, digest FROM chain_marks WHERE seq > ?", [seq]).fetchall())
    for row_seq, row in _rows_after(connection, seq):
        digest, seq = next_digest(digest, row), row_seq
        if marks.get(seq, digest) != digest or (tip is not None and seq == tip.seq and digest != tip.digest):
            return f"the journal differs from what was written, at or before row {seq}"
    if (seq, digest) != (head.seq, head.digest):
        return f"the journal ends at row {seq}, and row {head.seq} was written"
    return ""


def _newest_mark(connection: SqlConnection, seq: int) -> tuple[int, str] | None:
    """Returns row and digest of the newest mark up to a row; None without one."""
    sql = "SELECT seq, digest FROM chain_marks WHERE seq <= ? ORDER BY seq DESC LIMIT 1"
    mark: tuple[int, str] | None = connection.execute(sql, [seq]).fetchone()
    return mark


def _rows_after(connection: SqlConnection, seq: int, last: int = 2**62) -> Iterator[tuple[int, JournalRow]]:
    """Yields the rows of the journal behind one row up to another, in order, with their numbers."""
    sql = "SELECT seq, at, kind, type, payload FROM journal WHERE seq > ? AND seq <= ? ORDER BY seq"
    for row_seq, *values in connection.execute(sql, [seq, last]):
        yield row_seq, JournalRow(*values)


def journal_cut(connection: SqlConnection) -> int:
    """Returns the newest row that was deleted for its age; 0 if none was. Rows up to it may not all be deleted yet."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'journal_cut'").fetchone()
    return 0 if row is None else int(row[0])


def chain_beginning(connection: SqlConnection) -> tuple[int, str]:
    """Returns the row behind which the journal begins, and the digest up to it."""
    cut = journal_cut(connection)
    mark = connection.execute("SELECT seq, digest FROM chain_marks WHERE seq = ?", [cut]).fetchone()
    return (cut, "") if mark is None else mark


def cut_chain(connection: SqlConnection, seq: int) -> None:
    """Let the journal begin behind this row, whose digest is kept. Raises ConfigError where the row is missing."""
    found, digest = _newest_mark(connection, seq) or (0, "")
    for row_seq, row in _rows_after(connection, found, seq):
        digest, found = next_digest(digest, row), row_seq
    if found != seq:
        raise ConfigError(f"the journal has no row {seq}", field="data", fix="run `walras admin check --data DIR`")
    connection.execute("DELETE FROM chain_marks WHERE seq <= ?", [seq])
    connection.execute("INSERT INTO chain_marks (seq, digest) VALUES (?, ?)", [seq, digest])
    connection.execute("DELETE FROM meta WHERE name = 'journal_cut'")
    connection.execute("INSERT INTO meta (name, value) VALUES ('journal_cut', ?)", [seq])


def accept_chain(connection: SqlConnection, tip: ChainHead | None) -> ChainHead:
    """Accept the journal as it is, and count on from the tip, so that numbers of lost jobs are not given out again."""
    connection.execute("DELETE FROM journal WHERE seq <= ?", [journal_cut(connection)])
    connection.execute("DELETE FROM meta WHERE name = 'journal_cut'")
    connection.execute("DELETE FROM chain_marks")
    old, new = load_head(connection), chain_existing_rows(connection)
    known = [old, new] if tip is None else [old, new, tip]
    head = replace(
        new,
        commits=max(each.commits for each in known) + 1,
        last_job_id=max(each.last_job_id for each in known),
    )
    store_head(connection, head)
    return head


def chain_existing_rows(connection: SqlConnection) -> ChainHead:
    """Return a chain over the existing journal of a database, and store its marks."""
    head = ChainHead(last_job_id=connection.execute("SELECT coalesce(max(job_id), 0) FROM jobs").fetchone()[0])
    marks: list[tuple[int, str]] = []
    for seq, row in _rows_after(connection, 0):
        unmarked = head.unmarked + 1
        digest = next_digest(head.digest, row)
        if unmarked >= _ROWS_PER_MARK:
            marks.append((seq, digest))
            unmarked = 0
        head = replace(head, seq=seq, digest=digest, unmarked=unmarked)
    connection.executemany("INSERT INTO chain_marks (seq, digest) VALUES (?, ?)", marks)
    return head
