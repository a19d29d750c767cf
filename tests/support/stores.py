"""The stores that tests run over: SQLite on a folder, or a database of a PostgreSQL that the process starts once."""

import atexit
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from scheduler.live.store.sql_store import Store
from scheduler.live.store.sqlite_store import SqliteStore, open_database
from tests.support.postgres_server import PostgresServer, running_postgres
from walras.clocks import SYSTEM_CLOCKS, Clocks

#: Which store live tests run over that do not say it themselves.
STORE = os.environ.get("WALRAS_TEST_STORE", "sqlite")


@cache
def shared_postgres() -> PostgresServer:
    """One for all tests of this process."""
    stack = ExitStack()
    server = stack.enter_context(running_postgres())
    atexit.register(stack.close)
    return server


@cache
def database_of(folder: Path) -> str:
    """The address of the database that goes with a data folder."""
    return shared_postgres().new_database()


@cache
def new_database(clocks: Clocks = SYSTEM_CLOCKS) -> bytes:
    """A database as a first start makes it: made once in this process, and copied for each new folder."""
    with tempfile.TemporaryDirectory(prefix="walras-new-") as folder:
        path = Path(folder) / "walras.db"
        open_database(path, clocks, Random("new database")).close()
        return path.read_bytes()


def open_store(kind: str, folder: Path, **more: Any) -> Store:
    """A store on a folder; opening it again finds what was written. Nothing waits for the disk."""
    if kind == "sqlite":
        path = folder / "walras.db"
        if not path.exists():
            path.write_bytes(new_database())
        store = SqliteStore(folder, **more)
        store._db.conn.execute("PRAGMA synchronous=OFF")
        return store
    shared_postgres()
    from scheduler.live.store.postgres_store import PostgresStore, wait_for_leadership

    url = database_of(folder)
    return PostgresStore(url, wait_for_leadership(url), **more)


@contextmanager
def open_test_store(kind: str, folder: Path) -> Iterator[Store]:
    """A store that is closed at the end."""
    store = open_store(kind, folder)
    try:
        yield store
    finally:
        store.close()
