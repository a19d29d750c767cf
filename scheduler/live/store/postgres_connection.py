"""A connection to PostgreSQL that takes the stores' statements: it translates them, and classifies failures.

A failure that may pass (a full disk, a read-only or slow server, one that is starting) is `StoreUnavailable`: nothing
of the transaction was written. A connection that broke is `ConnectionLost`: this side does not know whether the
transaction under way was written. Messages never contain passwords.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from scheduler.live.store.sql_dialect import SqlCursor, postgres_sql, postgres_value, postgres_values
from scheduler.live.store.store_interface import StoreUnavailable
from walras.errors import ConfigError

try:
    import psycopg
    from psycopg import conninfo, errors
except ImportError:  # the extra is not installed
    raise ConfigError(
        "the PostgreSQL driver is not installed", field="--store", fix="pip install 'walras[postgresql]'"
    ) from None

#: The most time of a statement, and of its wait for a lock, ms.
_STATEMENT_MS, _LOCK_MS = 20_000, 10_000
#: A peer that is silent for this long counts as gone, s.
_CONNECT_S, _SILENCE_S = 5, 10
#: Errors that may pass, and after which nothing of the transaction is written.
_PASSING = (
    errors.DiskFull, errors.ReadOnlySqlTransaction, errors.LockNotAvailable, errors.QueryCanceled, errors.OutOfMemory,
    errors.DeadlockDetected, errors.SerializationFailure, errors.ConfigurationLimitExceeded,
)  # fmt: skip


class ConnectionLost(StoreUnavailable):
    """The connection broke, or the server ended it. A reader may open another one; the writer may not."""


class PostgresConnection:
    """One connection, used by one thread at a time. A statement outside of `transaction` is one by itself."""

    def __init__(self, url: str, what_for: str) -> None:
        """Connect. Raises StoreUnavailable where no server answers, ConfigError for an invalid address."""
        self._shown = shown_address(url)
        try:
            self._db = psycopg.connect(
                url,
                autocommit=True,
                connect_timeout=_CONNECT_S,
                application_name=f"walras {what_for}",
                keepalives=1,
                keepalives_idle=_SILENCE_S,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=_SILENCE_S * 1000,
                options=f"-c statement_timeout={_STATEMENT_MS} -c lock_timeout={_LOCK_MS} -c timezone=UTC",
            )
        except psycopg.ProgrammingError as error:
            raise _bad_address(error) from None
        except psycopg.OperationalError as error:
            raise StoreUnavailable(f"no database at {self._shown}: {_first_line(error)}") from None
        # A commit must be durable when it returns, whatever the server's own default is.
        if self.execute("SELECT current_setting('synchronous_commit')").fetchone()[0] in ("off", "local"):
            self.execute("SET synchronous_commit = on")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_usable(self) -> bool:
        """False once the connection was found broken."""
        return not self._db.closed

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> SqlCursor:
        with self._named_failures():
            return self._db.execute(postgres_sql(sql).encode(), postgres_values(sql, parameters))

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> SqlCursor:
        cursor = self._db.cursor()
        with self._named_failures():
            cursor.executemany(
                postgres_sql(sql).encode(), [[postgres_value(value) for value in values] for values in parameters]
            )
        return cursor

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is written or nothing, and is durable when the block is left. Raises StoreUnavailable."""
        with self._named_failures(), self._db.transaction():
            yield

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _named_failures(self) -> Iterator[None]:
        try:
            yield
        except _PASSING as error:
            raise StoreUnavailable(f"the database at {self._shown} refuses: {_first_line(error)}") from None
        except psycopg.OperationalError as error:
            if not self._db.closed:
                raise StoreUnavailable(f"the database at {self._shown} refuses: {_first_line(error)}") from None
            raise ConnectionLost(f"lost the database at {self._shown}: {_first_line(error)}") from None


def shown_address(url: str) -> str:
    """Returns host, port and name of a database, without password. Raises ConfigError for an invalid address."""
    try:
        parts = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise _bad_address(error) from None
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


def _bad_address(error: Exception) -> ConfigError:
    del error  # it repeats the address, and so the password
    return ConfigError(
        "the address of the database cannot be read",
        field="--store",
        fix="write postgresql://USER@HOST:PORT/DATABASE; the password belongs into ~/.pgpass or PGPASSWORD",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:300]
