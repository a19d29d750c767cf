"""The stores that tests run over: SQLite on a folder, or a database of a PostgreSQL that the process starts once."""

import atexit
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import Store
from tests.support.postgres_server import PostgresServer, running_postgres

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


def open_store(kind: str, folder: Path, **more: Any) -> Store:
    """A store on a folder; opening it again finds what was written."""
    if kind == "sqlite":
        return SqliteStore(folder, **more)
    shared_postgres()
    from scheduler.live.store.leadership import wait_for_leadership
    from scheduler.live.store.postgres_store import PostgresStore

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
