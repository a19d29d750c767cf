"""How long the server was away, by what its machine's clocks last showed, and not by wall time alone.

* If the machine has not been rebooted since (same boot id), its boot clock has counted the time, whatever was done to
  the wall clock.
* If it has, the wall clock says how long, but at least as long as the machine is up. What wall time claims beyond that
  is *unproved*. Waiting and lateness count it. A job's time limit and its charges count at most a lease of it, because
  without contact to the server an attempt lives no longer.
"""

from dataclasses import dataclass
from pathlib import Path

from scheduler.live.store.sql_dialect import SqlConnection
from walras.clocks import Clocks

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class LastAlive:
    """What the clocks of the server's machine showed when the server last noted them."""

    #: Seconds since the cluster's epoch.
    at: float
    unix_s: float
    boot_id: str
    boottime_s: float


@dataclass(frozen=True, slots=True)
class Absence:
    """How long a server was away, s."""

    elapsed_s: float
    #: The present instant, seconds since the cluster's epoch.
    now_at: float
    #: The part of it that only the wall clock shows.
    unproved_s: float = 0.0


def read_boot_id() -> str:
    """Returns the id of this machine's present boot; empty where the kernel does not state it."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def absence_since(last: LastAlive, clocks: Clocks, boot_id: str) -> Absence:
    """Returns how much time has passed since the server last noted its clocks."""
    uptime_s, wall_s = clocks.boottime(), clocks.wall() - last.unix_s
    if boot_id and boot_id == last.boot_id and uptime_s >= last.boottime_s:
        elapsed_s = uptime_s - last.boottime_s
        return Absence(elapsed_s, last.at + elapsed_s)
    # A container's boot clock may be its host's: it bounds the absence only where the machine was booted since.
    proved_s = uptime_s if boot_id and last.boot_id and boot_id != last.boot_id else 0.0
    elapsed_s = max(proved_s, wall_s)
    return Absence(elapsed_s, last.at + elapsed_s, elapsed_s - proved_s)


def store_last_alive(connection: SqlConnection, at: float, clocks: Clocks) -> None:
    """Write what the clocks show at this instant."""
    connection.execute(
        "INSERT OR REPLACE INTO last_alive (id, at, unix_s, boot_id, boottime_s) VALUES (0, ?, ?, ?, ?)",
        [at, clocks.wall(), read_boot_id(), clocks.boottime()],
    )


def load_last_alive(connection: SqlConnection) -> LastAlive | None:
    """Returns what was written last; None in a database of an older version."""
    row = connection.execute("SELECT at, unix_s, boot_id, boottime_s FROM last_alive").fetchone()
    return None if row is None else LastAlive(*row)
