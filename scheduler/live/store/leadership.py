"""One server leads, others stand by: the leader holds an advisory lock of the database and renews a row.

The lock belongs to the connection that writes: when the leader dies, its connection ends and the lock is free at once.
A leader that is stopped or cut off keeps its connection, so it also renews a row every two seconds. A standby that sees
it unrenewed for `LEASE_S` terminates that connection. From then on the old leader can write nothing: it never opens
another one, notices this within two seconds of running again, and ends. In addition each commit checks that the journal
is where the leader's own last commit left it.

A leader whose event loop or writer hangs would renew for ever, because renewing takes a thread of its own. So the loop
tells of its turns (`note_turn`), and without one for `_HUNG_S` the process writes the stacks of its threads and ends.
"""

import asyncio
import faulthandler
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable

from scheduler.live.store.postgres_connection import PostgresConnection
from scheduler.live.store.store_interface import EXIT_NOT_LEADING, LeadershipLost, StoreUnavailable
from walras.errors import ConfigError

log = logging.getLogger(__name__)

#: A leader that has not renewed for `LEASE_S` seconds is replaced; it renews every `_RENEW_S`.
LEASE_S, _RENEW_S = 8.0, 2.0
#: A leader whose loop takes no turn within this many seconds of running ends.
_HUNG_S = 10.0
#: Pause between two tries of a standby, s.
_LOOK_S = 0.5
_LOCK_KEY = 0x57414C52  # "WALR"
_TABLE = """
CREATE TABLE IF NOT EXISTS leadership (
    one BIGINT PRIMARY KEY CHECK (one = 1), epoch BIGINT NOT NULL, holder TEXT NOT NULL,
    renewed_at TIMESTAMPTZ NOT NULL)
"""


class Leadership:
    """The right to write, which `connection` alone has."""

    def __init__(self, url: str, connection: PostgresConnection, epoch: int) -> None:
        self.connection = connection
        self.epoch = epoch
        self._url = url
        self._ended = threading.Event()
        self._released = threading.Event()
        #: Renewals since the loop's last turn, which count only while the process runs; None before its first turn.
        self._since_turn: int | None = None
        self._lost: Callable[[], object] | None = None
        self._thread = threading.Thread(target=self._renew_for_ever, name="leadership", daemon=True)
        self._thread.start()

    async def wait_until_lost(self) -> None:
        """Never returns. Raises LeadershipLost once another server leads, or no database has answered for a lease."""
        loop, lost = asyncio.get_running_loop(), asyncio.Event()
        self._lost = lambda: loop.call_soon_threadsafe(lost.set)
        if self._ended.is_set():
            lost.set()
        await lost.wait()
        raise LeadershipLost("another server leads, or the database is gone")

    def note_turn(self) -> None:
        """Note that the server serves: a step went through its loop, and what was to be written before it is."""
        self._since_turn = 0

    def claim_folder(self, key_digest: str) -> None:
        """Record the data folder's key; only servers with this key may lead from then on."""
        self.connection.execute("UPDATE leadership SET key_digest = ?", [key_digest])

    def release(self) -> None:
        """Let the next server lead at once."""
        self._lost = None
        self._ended.set()
        self._released.set()
        self._thread.join()
        self.connection.close()

    def _renew_for_ever(self) -> None:
        """Renew in a thread and over a connection of its own, so that neither long work nor long commits delay it."""
        renewing: PostgresConnection | None = None
        misses = 0
        while not self._ended.wait(_RENEW_S):
            try:
                if renewing is None or not renewing.is_usable:
                    renewing = PostgresConnection(self._url, "leadership")
                sql = "UPDATE leadership SET renewed_at = clock_timestamp() WHERE epoch = ?"
                is_ours, misses = renewing.execute(sql, [self.epoch]).rowcount == 1, 0
            except StoreUnavailable as error:
                # Without the database nobody can lead, but after a lease without it another server may have.
                misses += 1
                is_ours = misses * _RENEW_S < LEASE_S
                log.warning("%s", error)
            if not is_ours:
                self._ended.set()
                if self._lost is not None:
                    self._lost()
                if self._since_turn is not None and not self._released.wait(_HUNG_S):
                    _end_hung_process()
            elif self._since_turn is not None:
                self._since_turn += 1
                if self._since_turn * _RENEW_S > _HUNG_S:
                    _end_hung_process()
        if renewing is not None:
            renewing.close()


def _end_hung_process() -> None:
    """End this process, and with it its connections; the stacks of its threads say what it was doing."""
    log.critical("no turn of the loop for %.0f s: the server ends, and another may lead", _HUNG_S)
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(EXIT_NOT_LEADING)


def wait_for_leadership(url: str, stopped: threading.Event | None = None) -> Leadership:
    """Stand by until this server may lead, at once if no other does; returns the leadership.

    Raises StoreUnavailable where the database cannot be reached at first; later it is waited for. Soon after `stopped`
    is set, LeadershipLost is raised.
    """
    connection, told = PostgresConnection(url, "writer"), ""
    _ensure_table(connection)
    stopped = stopped or threading.Event()
    while True:
        try:
            if not connection.is_usable:
                connection = PostgresConnection(url, "writer")
            if connection.execute("SELECT pg_try_advisory_lock(?)", [_LOCK_KEY]).fetchone()[0]:
                return Leadership(url, connection, _begin_epoch(connection))
            _end_silent_leader(connection)
            holder = _holder(connection)
        except StoreUnavailable as error:
            holder = str(error)
        if holder != told:
            log.info("standing by: %s", holder)
            told = holder
        if stopped.wait(_LOOK_S):
            connection.close()
            raise LeadershipLost("stopped while it stood by")


def check_folder(url: str, key_digest: str) -> None:
    """Raise ConfigError where the servers of this database have another data folder. `key_digest`: of its key; empty:
    it has none yet.

    The folder has the key that seals secrets and signs tokens, and logs, code and checkpoints.
    """
    with PostgresConnection(url, "folder") as connection:
        _ensure_table(connection)
        row = connection.execute("SELECT key_digest FROM leadership").fetchone()
    if row is not None and row[0] not in ("", key_digest):
        raise ConfigError(
            "the servers of this database have another data folder: its secret.key is not this one's",
            field="--data",
            fix="name the folder that they share; if its key is lost for good, `UPDATE leadership SET key_digest = ''`",
        )


def _ensure_table(connection: PostgresConnection) -> None:
    # Two servers that start at once would both find no table.
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(?)", [_LOCK_KEY + 1])
        connection.execute(_TABLE)
        connection.execute("ALTER TABLE leadership ADD COLUMN IF NOT EXISTS key_digest TEXT NOT NULL DEFAULT ''")


def _begin_epoch(connection: PostgresConnection) -> int:
    row = connection.execute(
        "INSERT INTO leadership (one, epoch, holder, renewed_at) VALUES (1, 1, ?, clock_timestamp()) ON CONFLICT (one)"
        " DO UPDATE SET epoch = leadership.epoch + 1, holder = excluded.holder, renewed_at = clock_timestamp()"
        " RETURNING epoch",
        [f"{socket.gethostname()} (pid {os.getpid()})"],
    ).fetchone()
    return int(row[0])


def _holder(connection: PostgresConnection) -> str:
    row = connection.execute("SELECT holder FROM leadership").fetchone()
    return f"{row[0]} leads" if row else "another server begins to lead"


def _end_silent_leader(connection: PostgresConnection) -> None:
    """Terminate the connection of a leader that has not renewed for a lease."""
    row = connection.execute(
        "SELECT holder, extract(epoch FROM clock_timestamp() - renewed_at)::float8 FROM leadership"
    ).fetchone()
    if row is None or row[1] < LEASE_S:
        return
    log.warning("%s has been silent for %.1f s: its connection is ended", *row)
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        " AND classid = 0 AND objid = ?"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        [_LOCK_KEY],
    )
