"""Which database a server uses: its own SQLite file, or a PostgreSQL that several servers share.

With PostgreSQL this waits until the server may lead: one leads, the others stand by with everything loaded, and the
next one goes on where the last commit was. What is no row (logs, code, results, keys) lies in the data folder, which
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

#: What addresses of PostgreSQL begin with.
POSTGRES_SCHEMES = ("postgresql://", "postgres://")


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store that this process may write, and what goes with it."""

    store: Store
    #: `retention.prune` for this store.
    prune: Callable[..., PruneReport]
    #: Raises LeadershipLost once this process may write no more.
    wait_until_lost: Callable[[], Awaitable[None]]


def open_store(folder: DataFolder, address: str = "", *, new_cluster: bool = False) -> OpenedStore:
    """Open the store at `address` (empty: the SQLite file of the folder); with PostgreSQL stand by until it is free.

    Raises ConfigError for an address or a database that will not do, StoreUnavailable where no database answers,
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
    """A SQLite store, which no other server can take over."""
    return OpenedStore(store, prune, _never)


async def _never() -> None:
    await asyncio.Event().wait()


def _open_postgres(folder: DataFolder, address: str) -> OpenedStore:
    from scheduler.live.store.leadership import wait_for_leadership
    from scheduler.live.store.postgres_store import PostgresStore, has_cluster

    leadership = wait_for_leadership(address)
    try:
        if (folder.path / "walras.db").exists() and not has_cluster(leadership.connection):
            raise ConfigError(
                f"{folder.path} has a cluster in SQLite, and this database is empty",
                field="--store",
                fix="copy it with `walras admin to-postgresql --data DIR --store URL`, or choose another --data",
            )
        store = PostgresStore(address, leadership)
    except BaseException:
        leadership.release()
        raise
    return OpenedStore(store, store.prune, leadership.wait_until_lost)
