"""Opens a server's database: its own SQLite file, or a PostgreSQL database that several servers share.

With PostgreSQL this waits until the server may lead: one leads, the others stand by with everything imported, and the
next one continues from the last commit. What is not in rows (logs, code, results, keys) is in the data folder, which
these servers share.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from scheduler.live.store.data_folder import DataFolder
from scheduler.live.store.retention import PruneReport, prune
from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import Store
from walras.errors import ConfigError

#: How addresses of PostgreSQL begin.
POSTGRES_SCHEMES = ("postgresql://", "postgres://")


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store that this process may write, with its retention and its leadership."""

    store: Store
    #: `retention.prune` for this store.
    prune: Callable[..., PruneReport]
    #: Waits for ever; raises LeadershipLost once this process may not write any more.
    wait_until_lost: Callable[[], Awaitable[None]]
    #: To be called after every turn of the loop, because the right to write is lost without; None: it is not.
    note_turn: Callable[[], None] | None = None


def open_store(folder: DataFolder, address: str = "", *, new_cluster: bool = False) -> OpenedStore:
    """Open the store at `address` (empty: the SQLite file of the folder); with PostgreSQL, stand by until it may lead.

    Raises ConfigError for an invalid address or an unsuitable database, StoreUnavailable where no database answers,
    Conflict where another server holds the folder's file.
    """
    if not address:
        return alone_with(SqliteStore(folder.path, new_cluster=new_cluster))
    if not address.startswith(POSTGRES_SCHEMES):
        raise ConfigError(
            "the store is no address of PostgreSQL",
            field="--store",
            fix="write postgresql://USER@HOST:PORT/DATABASE, or leave it out: SQLite in --data",
        )
    if new_cluster:
        fix = "make one with createdb, and name it"
        raise ConfigError("a new cluster begins in an empty database", field="--new-cluster", fix=fix)
    return _open_postgres(folder, address)


def alone_with(store: SqliteStore) -> OpenedStore:
    """Returns a SQLite store, which no other server can take over."""
    return OpenedStore(store, prune, _never)


async def _never() -> None:
    await asyncio.Event().wait()


def _open_postgres(folder: DataFolder, address: str) -> OpenedStore:
    from scheduler.live.store.leadership import check_folder, wait_for_leadership
    from scheduler.live.store.postgres_store import PostgresStore, has_cluster

    check_folder(address, folder.key_digest())
    leadership = wait_for_leadership(address)
    try:
        check_folder(address, folder.key_digest())  # another server may have led since
        if (folder.path / "walras.db").exists() and not has_cluster(leadership.connection):
            raise ConfigError(
                f"{folder.path} has a cluster in SQLite, and this database is empty",
                field="--store",
                fix="copy it with `walras admin to-postgresql --data DIR --store URL`, or choose another --data",
            )
        store = PostgresStore(address, leadership)
        folder.server_secret()
        leadership.claim_folder(folder.key_digest())
    except BaseException:
        leadership.release()
        raise
    return OpenedStore(store, store.prune, leadership.wait_until_lost, leadership.note_turn)
