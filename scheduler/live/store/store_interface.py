"""The interface between the server and its database: what a transaction writes, what is loaded, what is queried.

One thread calls the writing half, any thread the reading half. A commit is atomic and durable when it returns: only
then does the server answer or act. Another database is another class with these methods and the same contract tests.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from scheduler.core.state.throughput import ScoredBelief
from scheduler.live.store.last_alive import Absence
from scheduler.live.store.price_hours import PriceQuery, PriceRow
from scheduler.live.store.report_rows import PastQuery, PastRows
from scheduler.live.store.table_rows import (
    AnswerRow,
    AttemptRow,
    AuditRow,
    BookingRow,
    ChannelRow,
    ChargeKind,
    ChargeRow,
    CheckpointRow,
    CoreStateRow,
    FactsRow,
    JobRow,
    JournalRow,
    NetworkRow,
    NodeRow,
    NotificationRow,
    OutboxRow,
    OutputsRow,
    PartRow,
    PeopleRow,
    PolicyRow,
    PoolRow,
    RentRow,
    RestartCostRow,
    SecretRow,
    SpecRow,
    SpeedRow,
    TokenRow,
    ToldRow,
)
from scheduler.live.store.usage_sums import AttemptUse, CreditRow, HeldQuery, HeldRow, NodeAttemptRow, UsageQuery
from walras.cluster import NodeId, PoolId
from walras.errors import ClusterError
from walras.job_request import JobId
from walras.wire import ClusterIdentity


class StoreUnavailable(ClusterError):
    """The database cannot be written at present (mostly because the disk is full); nothing of the batch was written."""


#: sysexits' EX_TEMPFAIL: another server leads, or the database is gone; when started again, this one stands by.
EXIT_NOT_LEADING = 75


class LeadershipLost(ClusterError):
    """Another server leads, or the database is gone: this process must end, and may stand by again."""


#: How many requests for machines that are over are loaded and remembered.
PAST_RENTS_MOST = 1000


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


@dataclass(slots=True)
class WriteBatch:
    """Everything that one transaction writes. A row replaces the row with the same key."""

    journal: list[JournalRow] = field(default_factory=list)
    specs: list[SpecRow] = field(default_factory=list)
    jobs: list[JobRow] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)
    parts: list[PartRow] = field(default_factory=list)
    nodes: list[NodeRow] = field(default_factory=list)
    outbox: list[OutboxRow] = field(default_factory=list)
    #: Confirmed commands, and the newest command id given out (0: none in this batch).
    outbox_done: list[int] = field(default_factory=list)
    last_command_id: int = 0
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    rents: list[RentRow] = field(default_factory=list)
    pools: list[PoolRow] = field(default_factory=list)
    #: Pools to delete.
    pools_done: list[PoolId] = field(default_factory=list)
    speeds: list[SpeedRow] = field(default_factory=list)
    scores: list[ScoredBelief] = field(default_factory=list)
    facts: list[FactsRow] = field(default_factory=list)
    networks: list[NetworkRow] = field(default_factory=list)
    restart_costs: list[RestartCostRow] = field(default_factory=list)
    charges: list[ChargeRow] = field(default_factory=list)
    policies: list[PolicyRow] = field(default_factory=list)
    answers: list[AnswerRow] = field(default_factory=list)
    #: Answers before this instant are deleted (0: none are).
    answers_until: float = 0.0
    price_hours: list[PriceRow] = field(default_factory=list)
    #: Hours of prices before this instant are deleted (0: none are).
    price_hours_until: float = 0.0
    tokens: list[TokenRow] = field(default_factory=list)
    people: list[PeopleRow] = field(default_factory=list)
    bookings: list[BookingRow] = field(default_factory=list)
    credits: list[CreditRow] = field(default_factory=list)
    audit: list[AuditRow] = field(default_factory=list)
    #: Sealed secrets of new jobs, and jobs whose secrets are deleted.
    secrets: list[SecretRow] = field(default_factory=list)
    secrets_done: list[JobId] = field(default_factory=list)
    core_state: list[CoreStateRow] = field(default_factory=list)
    outputs: list[OutputsRow] = field(default_factory=list)
    channels: list[ChannelRow] = field(default_factory=list)
    channels_done: list[int] = field(default_factory=list)
    notifications: list[NotificationRow] = field(default_factory=list)
    #: Notifications to delete: delivered, given up or dropped.
    notifications_done: list[int] = field(default_factory=list)
    told: list[ToldRow] = field(default_factory=list)
    #: Jobs that have ended, whose rows of `told` are deleted.
    told_done: list[JobId] = field(default_factory=list)
    #: Machines to delete.
    nodes_done: list[NodeId] = field(default_factory=list)

    def is_empty(self) -> bool:
        return not any(getattr(self, name) for name in self.__slots__)

    def deletions(self) -> Iterator[tuple[str, str, Sequence[int | str]]]:
        """Yields (table, its key column, keys of the rows to delete)."""
        yield "secrets", "job_id", self.secrets_done
        yield "outbox", "command_id", self.outbox_done
        yield "nodes", "node_id", self.nodes_done
        yield "pools", "pool_id", self.pools_done
        yield "channels", "channel_id", self.channels_done
        yield "notifications", "seq", self.notifications_done
        yield "told", "job_id", self.told_done


@dataclass(frozen=True, slots=True)
class LoadedState:
    """What a starting server needs in memory: everything that is not over."""

    jobs: tuple[JobRow, ...]
    attempts: tuple[AttemptRow, ...]
    parts: tuple[PartRow, ...]
    nodes: tuple[NodeRow, ...]
    outbox: tuple[OutboxRow, ...]
    #: Of each active job, the checkpoints that are not lost, oldest first.
    checkpoints: tuple[CheckpointRow, ...]
    rents: tuple[RentRow, ...]
    #: Requests that failed or ended, the newest last: their machines may still come, and are then paid for.
    past_rents: tuple[RentRow, ...]
    pools: tuple[PoolRow, ...]
    speeds: tuple[SpeedRow, ...]
    #: What was believed of speeds before they were measured.
    scores: tuple[ScoredBelief, ...]
    #: Facts of the kinds of jobs whose facts were counted or stated last.
    facts: tuple[FactsRow, ...]
    networks: tuple[NetworkRow, ...]
    restart_costs: tuple[RestartCostRow, ...]
    secrets: tuple[SecretRow, ...]
    people: tuple[PeopleRow, ...]
    #: Reservations, those that are over included.
    bookings: tuple[BookingRow, ...]
    credits: tuple[CreditRow, ...]
    channels: tuple[ChannelRow, ...]
    #: Oldest first.
    notifications: tuple[NotificationRow, ...]
    told: tuple[ToldRow, ...]
    #: What the last core knew beyond all this; None: nothing was kept.
    core_state: CoreStateRow | None
    last_job_id: int
    last_command_id: int
    last_charge_id: int
    #: The highest numbers that were ever given out.
    last_channel_id: int
    last_notification_seq: int
    #: True if the cluster had jobs before checkpoint stores existed: its machines share a disk unless configured
    #: otherwise.
    shares_checkpoints: bool = False


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
    #: The column to sort by, with `-` before it for descending order (`job_listing`).
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


class Store(Protocol):
    """The durable state of the server."""

    # ---------------------------------------------------------------- writing (one thread)

    def commit(self, batch: WriteBatch) -> None:
        """Write everything or nothing; durable on return. Raises StoreUnavailable where a later try may succeed."""
        ...

    def touch(self) -> None:
        """Write a value, to test that writing works. Raises StoreUnavailable."""
        ...

    def note_alive(self, at: float) -> None:
        """Record that the server was at this instant now, by all clocks of its machine."""
        ...

    def close(self) -> None:
        """Close the database and release its lock."""
        ...

    # ---------------------------------------------------------------- reading (any thread)

    def identity(self) -> ClusterIdentity:
        """Returns the cluster's id, and the incarnation of this database."""
        ...

    def former_incarnations(self) -> tuple[str, ...]:
        """Returns the incarnations of this cluster before this one, oldest first; there are some after a restore."""
        ...

    def epoch_unix_s(self) -> float:
        """Returns the Unix time of instant 0, seconds."""
        ...

    def last_at(self) -> float:
        """Returns the latest instant in the journal."""
        ...

    def absence(self) -> Absence | None:
        """Returns how long no server has noted its clocks here; None: none ever did."""
        ...

    def load(self) -> LoadedState:
        """Returns everything that is not over."""
        ...

    def journal(self, *, whole: bool = False) -> Iterator[JournalRow]:
        """Returns the journal in order: of the current generation (since the last start), or the whole of it."""
        ...

    def job(self, job_id: JobId) -> JobRow | None: ...

    def jobs(self, query: JobQuery) -> list[JobRow]: ...

    def sweep_states(self, sweeps: Iterable[JobId]) -> dict[JobId, dict[str, int]]:
        """Returns how many jobs of each sweep are in each state."""
        ...

    def job_named(self, user: str, name: str) -> JobId | None:
        """Returns the user's newest job of that name; None if there is none."""
        ...

    def spec(self, job_id: JobId) -> SpecRow | None: ...

    def attempts(self, job_id: JobId) -> list[AttemptRow]: ...

    def usage(self, job_ids: Iterable[JobId], at: float) -> list[JobUsage]:
        """Returns accelerator-seconds and USD by job and accelerator type until `at`."""
        ...

    def charges(self, job_id: JobId | None = None) -> list[ChargeRow]:
        """Returns the charges of one job, or of all, in order."""
        ...

    def spent(self) -> dict[tuple[str, str], float]:
        """Returns USD by (project, month), as budgets count it; project "" is everything."""
        ...

    def spent_by_user(self) -> dict[tuple[str, str, str], float]:
        """Returns USD by (project, user, month), as budgets of users count it."""
        ...

    def use_by_day(self, epoch_unix_s: float) -> Iterator[tuple[Any, ...]]:
        """Returns use as budgets count it, days summed: the rows of `usage_sums.read_use_by_day`."""
        ...

    def money(self, query: MoneyQuery, open_keys: Iterable[str] = ()) -> list[MoneySum]:
        """Returns sums of written charges, apart for each of the most expensive keys and of `open_keys`."""
        ...

    def price_hours(self, query: PriceQuery) -> list[PriceRow]:
        """Returns what one more accelerator of each pool was worth, hour by hour, in order of time."""
        ...

    def attempt_uses(self, query: UsageQuery) -> list[AttemptUse]:
        """Returns what attempts held of each accelerator type, as far as it is in the ledger."""
        ...

    def held(self, query: HeldQuery) -> list[HeldRow]:
        """Returns what projects held of accelerators when, as far as it is in the ledger."""
        ...

    def node_attempts(self, node_id: NodeId, projects: tuple[str, ...] | None, limit: int) -> list[NodeAttemptRow]:
        """Returns the newest attempts that were on a machine, newest first, of some projects or (None) of all."""
        ...

    def past(self, query: PastQuery) -> PastRows:
        """Returns the jobs, attempts, machines and costs of a period."""
        ...

    def attempt_was_on(self, job_id: JobId, attempt: int, node_id: NodeId) -> bool: ...

    def checkpoint(self, job_id: JobId) -> CheckpointRow | None:
        """Returns the newest checkpoint that was recorded of a job; None if there is none."""
        ...

    def checkpoint_content(self, ended_since_at: float) -> list[str]:
        """Returns the names of checkpoint content that may be needed.

        That is of the newest two checkpoints of a job that is not over, and of the newest one of a job that ended at
        this instant or later.
        """
        ...

    def expired_checkpoint_places(self, ended_since_at: float, ended_before_at: float) -> list[str]:
        """Returns the places in object stores of jobs that ended between two instants."""
        ...

    def outputs(self, job_id: JobId) -> list[OutputsRow]:
        """Returns the newest results of each machine of the gang, by node rank."""
        ...

    def output_trees(self) -> list[str]:
        """Returns the trees of all results that are kept."""
        ...

    def policies(self, limit: int = 100) -> list[PolicyRow]:
        """Returns the newest versions of the policy, newest first."""
        ...

    def answer(self, user: str, key: str) -> AnswerRow | None: ...

    def token(self, sha256: str) -> TokenRow | None: ...

    def tokens(self) -> list[TokenRow]: ...

    def audit(self, query: AuditQuery) -> list[AuditRow]:
        """Returns the audit rows that match, newest first."""
        ...
