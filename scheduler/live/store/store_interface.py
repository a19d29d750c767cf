"""What the server and its database say to each other: what a transaction writes, what is loaded, what is asked for.

`Store` (`sql_store.py`) takes and answers them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from scheduler.live.store.table_declaration import TABLES, Kept
from scheduler.live.store.table_rows import ChargeKind
from walras.errors import ClusterError
from walras.job_request import JobId

Row = TypeVar("Row")


class StoreUnavailable(ClusterError):
    """The database cannot be written at present (mostly because the disk is full); nothing of the batch was written."""


#: sysexits' EX_TEMPFAIL: another server leads, or the database is gone; when started again, this one stands by.
EXIT_NOT_LEADING = 75


class LeadershipLost(ClusterError):
    """Another server leads, or the database is gone: this process must end, and may stand by again."""


@dataclass(frozen=True, slots=True)
class MoneySum:
    """The sum of the ledger's charges of one kind for one project, user, job, pool or month."""

    key: str
    kind: ChargeKind
    #: Owned machines are charged by their use; rented ones as a whole, used or not.
    is_owned: bool
    usd: float
    on_demand_usd: float
    accelerator_s: float
    #: If more than 0: how many keys this sum covers, and `key` is empty.
    others: int = 0


@dataclass(slots=True, init=False)
class WriteBatch:
    """Everything that one transaction writes and deletes, by table. A row replaces the row with the same key."""

    written: dict[type[Any], list[Any]]
    #: Values of the key's first column: rows to delete after the others are written.
    deleted: dict[type[Any], list[int | str]]
    #: Rows whose own instant is before this one are deleted.
    expired: dict[type[Any], float]
    #: The newest command id given out (0: none in this batch).
    last_command_id: int

    def __init__(self, *rows: Any) -> None:
        self.written, self.deleted, self.expired, self.last_command_id = {}, {}, {}, 0
        self.put(*rows)

    def put(self, *rows: Any) -> None:
        """Write rows of any tables."""
        for row in rows:
            try:
                self.written[type(row)].append(row)
            except KeyError:
                self.written[type(row)] = [row]

    def delete(self, row_type: type[Any], *keys: int | str) -> Self:
        """Delete the rows of a table with these values in the key's first column, those of this batch included."""
        assert TABLES[row_type].kept is Kept.UNTIL_DELETED, row_type
        if keys:
            self.deleted.setdefault(row_type, []).extend(keys)
        return self

    def keep(self, row_type: type[Any], key: int | str) -> None:
        """Take a deletion back, where there is one."""
        if row_type in self.deleted:
            self.deleted[row_type] = [each for each in self.deleted[row_type] if each != key]

    def expire(self, row_type: type[Any], now: float) -> Self:
        """Delete the rows of a table that are older than it keeps them."""
        assert TABLES[row_type].kept is Kept.BY_AGE, row_type
        self.expired[row_type] = now - TABLES[row_type].kept_s
        return self

    def rows(self, row_type: type[Row]) -> list[Row]:
        """Returns the rows to write of one table."""
        return self.written.get(row_type, [])

    def is_empty(self) -> bool:
        return not (self.written or any(self.deleted.values()) or self.expired or self.last_command_id)


@dataclass(frozen=True, slots=True)
class LoadedState:
    """What a starting server needs in memory: everything that is not over, by table as the declarations say."""

    tables: Mapping[type[Any], tuple[Any, ...]]
    last_job_id: int
    last_command_id: int
    last_charge_id: int
    #: Of each table whose numbers are never given out again, the highest that ever was.
    last_numbers: Mapping[type[Any], int]
    #: True if the cluster had jobs before checkpoint stores existed: its machines share a disk unless configured
    #: otherwise.
    shares_checkpoints: bool = False

    def rows(self, row_type: type[Row]) -> tuple[Row, ...]:
        return self.tables[row_type]


@dataclass(frozen=True, slots=True)
class JobQuery:
    """A page of jobs. Empty fields do not filter; `projects` None: of all."""

    states: tuple[str, ...] = ()
    user: str = ""
    project: str = ""
    projects: tuple[str, ...] | None = None
    active: bool = False
    #: Only jobs of this sweep.
    sweep: int | None = None
    #: Of each sweep, return only the newest job that matches.
    fold_sweeps: bool = False
    #: A part of the job's name, in upper or lower case.
    name_part: str = ""
    #: The column to sort by, with `-` before it for descending order (`sql_store`).
    sort: str = "-id"
    #: Only jobs behind this one: its value in the sort column, and its number.
    after: tuple[Any, int] | None = None
    limit: int = 50


#: `MONEY_KEYS`: by what money can be summed, with the ledger's column. `TEAM`: by the groups of users in the policy's
#: rules.
TEAM = "team"
MONEY_KEYS = {"project": "project", "user": "user", "job": "job_id", "pool": "pool_id", "month": "month"}


@dataclass(frozen=True, slots=True)
class MoneyQuery:
    """What to sum. Empty fields do not filter; `projects` None: all charges, those of machines included."""

    by: str
    #: Only charges with a smaller number.
    before_id: int
    month: str = ""
    project: str = ""
    projects: tuple[str, ...] | None = None
    #: How many keys get sums of their own, the most expensive ones; the others are one sum.
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class PriceQuery:
    """Which hours: those that end after an instant, of one pool or (`pool_id` empty) of all."""

    since_at: float
    pool_id: str = ""
    #: The most rows, of which the newest are kept.
    limit: int = 10_000


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which audit rows, newest first. Empty fields do not filter; `projects` None: of all."""

    user: str = ""
    since_at: float = 0.0
    projects: tuple[str, ...] | None = None
    #: Also rows of no project (about machines, policies, tokens).
    of_no_project: bool = True
    limit: int = 100


@dataclass(frozen=True, slots=True)
class JobUsage:
    """What a job's ended and live attempts on one accelerator type have cost, settled until `usd_since_at`."""

    job_id: JobId
    accelerator: str
    accelerator_s: float
    usd: float
    #: Seconds for which ended attempts ran there.
    held_s: float
