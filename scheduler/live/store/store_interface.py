"""The interface between the server and its database: what a transaction writes, what is loaded, what is queried.

One thread calls the writing half, any thread the reading half. A commit is atomic and durable when it returns: only
then does the server answer or act. Another database is another class with these methods and the same contract tests.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from scheduler.core.state.throughput import ScoredBelief
from scheduler.live.store.booking_rows import BookingRow
from scheduler.live.store.history_rows import HeldQuery, HeldRow, NodeAttemptRow
from scheduler.live.store.last_alive import Absence
from scheduler.live.store.price_hours import PriceQuery, PriceRow
from scheduler.live.store.report_rows import PastQuery, PastRows
from scheduler.live.store.table_rows import (
    AnswerRow,
    AttemptRow,
    AuditRow,
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
    ShadowRow,
    SpecRow,
    SpeedRow,
    TokenRow,
    ToldRow,
)
from scheduler.live.store.usage_sums import AttemptUse, CreditRow, UsageQuery
from walras.cluster import NodeId, PoolId
from walras.errors import ClusterError
from walras.job_request import JobId
from walras.wire import ClusterIdentity


class StoreUnavailable(ClusterError):
    """The database cannot be written at present (a full disk, mostly); nothing of the batch was."""


class LeadershipLost(ClusterError):
    """Another server leads, or the database is gone: this one must end, and may stand by again."""


#: So many requests that are over are remembered.
PAST_RENTS_MOST = 1000


@dataclass(frozen=True, slots=True)
class MoneySum:
    """What the ledger holds of one project, user, job, pool or month."""

    key: str
    kind: ChargeKind
    #: Owned machines are paid for by their use; rented ones by the machine, used or not.
    is_owned: bool
    usd: float
    on_demand_usd: float
    accelerator_s: float
    #: More than 0: it is the sum of so many that are not told apart, and `key` is empty.
    others: int = 0


@dataclass(slots=True)
class WriteBatch:
    """Everything one transaction writes. Rows replace the row of the same key."""

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
    #: Pools that were removed.
    pools_done: list[PoolId] = field(default_factory=list)
    speeds: list[SpeedRow] = field(default_factory=list)
    scores: list[ScoredBelief] = field(default_factory=list)
    facts: list[FactsRow] = field(default_factory=list)
    networks: list[NetworkRow] = field(default_factory=list)
    restart_costs: list[RestartCostRow] = field(default_factory=list)
    charges: list[ChargeRow] = field(default_factory=list)
    policies: list[PolicyRow] = field(default_factory=list)
    answers: list[AnswerRow] = field(default_factory=list)
    #: Older answers are deleted (0: none are).
    answers_until: float = 0.0
    price_hours: list[PriceRow] = field(default_factory=list)
    policy_shadow: list[ShadowRow] = field(default_factory=list)
    #: Older prices are deleted (0: none are).
    price_hours_until: float = 0.0
    tokens: list[TokenRow] = field(default_factory=list)
    people: list[PeopleRow] = field(default_factory=list)
    bookings: list[BookingRow] = field(default_factory=list)
    credits: list[CreditRow] = field(default_factory=list)
    audit: list[AuditRow] = field(default_factory=list)
    #: Sealed secrets of jobs that came, and jobs that are over.
    secrets: list[SecretRow] = field(default_factory=list)
    secrets_done: list[JobId] = field(default_factory=list)
    core_state: list[CoreStateRow] = field(default_factory=list)
    outputs: list[OutputsRow] = field(default_factory=list)
    channels: list[ChannelRow] = field(default_factory=list)
    channels_done: list[int] = field(default_factory=list)
    notifications: list[NotificationRow] = field(default_factory=list)
    #: Notifications that were delivered, given up or dropped.
    notifications_done: list[int] = field(default_factory=list)
    told: list[ToldRow] = field(default_factory=list)
    #: Jobs that are over.
    told_done: list[JobId] = field(default_factory=list)
    #: Machines that leave the table.
    nodes_done: list[NodeId] = field(default_factory=list)

    def is_empty(self) -> bool:
        return not any(getattr(self, name) for name in self.__slots__)

    def deletions(self) -> Iterator[tuple[str, str, Sequence[int | str]]]:
        """Table, its key, and the keys of rows that are over."""
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
    #: Of each active job, those that are not lost, oldest first.
    checkpoints: tuple[CheckpointRow, ...]
    rents: tuple[RentRow, ...]
    #: Requests that have failed or ended, the newest last: a machine of theirs may still come, and is paid for.
    past_rents: tuple[RentRow, ...]
    pools: tuple[PoolRow, ...]
    speeds: tuple[SpeedRow, ...]
    #: What was believed of speeds before they were measured.
    scores: tuple[ScoredBelief, ...]
    #: Of the kinds of which something was told last.
    facts: tuple[FactsRow, ...]
    networks: tuple[NetworkRow, ...]
    restart_costs: tuple[RestartCostRow, ...]
    secrets: tuple[SecretRow, ...]
    people: tuple[PeopleRow, ...]
    #: Those that are over as well.
    bookings: tuple[BookingRow, ...]
    credits: tuple[CreditRow, ...]
    channels: tuple[ChannelRow, ...]
    #: Oldest first.
    notifications: tuple[NotificationRow, ...]
    told: tuple[ToldRow, ...]
    #: What the last core knew beyond all this; None: nothing was kept.
    core_state: CoreStateRow | None
    shadow: ShadowRow | None
    last_job_id: int
    last_command_id: int
    last_charge_id: int
    #: The highest numbers that were ever given out.
    last_channel_id: int
    last_notification_seq: int
    #: The cluster is older than stores of checkpoints: its machines share a disk unless somebody says otherwise.
    shares_checkpoints: bool = False


@dataclass(frozen=True, slots=True)
class JobQuery:
    """A page of jobs. Empty fields do not filter; `projects` None sees all."""

    states: tuple[str, ...] = ()
    user: str = ""
    project: str = ""
    projects: tuple[str, ...] | None = None
    active: bool = False
    #: Only jobs of this sweep.
    sweep: int | None = None
    #: Of a sweep only the newest job of those that are asked for.
    fold_sweeps: bool = False
    #: Part of the job's name, in any case.
    name_part: str = ""
    #: A column, `-` before it for descending order (`job_listing`).
    sort: str = "-id"
    #: Only jobs behind this one: its value in that column, and its number.
    after: tuple[Any, int] | None = None
    limit: int = 50


#: By what money can be summed, and the column of each.
#: Sums of users who are in one group of the policy's rules.
TEAM = "team"
MONEY_KEYS = {"project": "project", "user": "user", "job": "job_id", "pool": "pool_id", "month": "month"}


@dataclass(frozen=True, slots=True)
class MoneyQuery:
    """What to sum. Empty fields do not filter; `projects` None sees all, machines that nobody used included."""

    by: str
    #: Charges with a smaller number.
    before_id: int
    month: str = ""
    project: str = ""
    projects: tuple[str, ...] | None = None
    #: So many are told apart, the dearest; the others are one sum.
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which writes, newest first. Empty fields do not filter; `projects` None sees all."""

    user: str = ""
    since_at: float = 0.0
    projects: tuple[str, ...] | None = None
    #: Those that belong to no project (machines, policies, tokens) too.
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
    """What the server keeps."""

    # ---------------------------------------------------------------- writing (one thread)

    def commit(self, batch: WriteBatch) -> None:
        """Write everything or nothing; durable on return. Raises StoreUnavailable where trying again may help."""
        ...

    def touch(self) -> None:
        """Write something, to show that writing works."""
        ...

    def note_alive(self, at: float) -> None:
        """Remember that the server was at this instant now, by all clocks of its machine."""
        ...

    def close(self) -> None:
        """Let go of the database and of its lock."""
        ...

    # ---------------------------------------------------------------- reading (any thread)

    def identity(self) -> ClusterIdentity:
        """The cluster, and the incarnation of this database."""
        ...

    def former_incarnations(self) -> tuple[str, ...]:
        """The incarnations of this cluster before this one, oldest first: there are some once it was restored."""
        ...

    def epoch_unix_s(self) -> float:
        """Unix seconds of instant 0."""
        ...

    def last_at(self) -> float:
        """The latest instant in the journal."""
        ...

    def absence(self) -> Absence | None:
        """How long no server has noted its clocks here; None: none ever did."""
        ...

    def load(self) -> LoadedState:
        """Everything that is not over."""
        ...

    def journal(self, *, whole: bool = False) -> Iterator[JournalRow]:
        """The journal in order: of the current generation (since the last start), or the whole of it."""
        ...

    def journal_after(self, at: float, types: Sequence[str], limit: int) -> Iterator[JournalRow]:
        """Rows of these types behind the last one of that instant, in order, over all generations; so many at most.

        Raises LookupError where the journal was deleted from that instant on.
        """
        ...

    def job(self, job_id: JobId) -> JobRow | None: ...

    def jobs(self, query: JobQuery) -> list[JobRow]: ...

    def sweep_states(self, sweeps: Iterable[JobId]) -> dict[JobId, dict[str, int]]:
        """How many jobs of each sweep are in each state."""
        ...

    def job_named(self, user: str, name: str) -> JobId | None:
        """The user's newest job of that name."""
        ...

    def spec(self, job_id: JobId) -> SpecRow | None: ...

    def attempts(self, job_id: JobId) -> list[AttemptRow]: ...

    def usage(self, job_ids: Iterable[JobId], at: float) -> list[JobUsage]:
        """Accelerator-seconds and money by job and accelerator type until `at`."""
        ...

    def charges(self, job_id: JobId | None = None) -> list[ChargeRow]:
        """The ledger of money in order, of one job or the whole of it."""
        ...

    def spent(self) -> dict[tuple[str, str], float]:
        """USD by (project, month), as budgets count it: project "" is everything."""
        ...

    def spent_by_user(self) -> dict[tuple[str, str, str], float]:
        """USD by (project, user, month), as budgets of users count it."""
        ...

    def use_by_day(self, epoch_unix_s: float) -> Iterator[tuple[Any, ...]]:
        """Use as budgets count it, days summed; the rows of `usage_sums.read_use_by_day`."""
        ...

    def money(self, query: MoneyQuery, open_keys: Iterable[str] = ()) -> list[MoneySum]:
        """Sums over the ledger of money; those of the dearest keys and of `open_keys` are told apart."""
        ...

    def price_hours(self, query: PriceQuery) -> list[PriceRow]:
        """What one more accelerator of each pool was worth, hour by hour, in order of time."""
        ...

    def attempt_uses(self, query: UsageQuery) -> list[AttemptUse]:
        """What attempts held of each accelerator type, as far as it is in the ledger."""
        ...

    def held(self, query: HeldQuery) -> list[HeldRow]:
        """What projects held of accelerators when, as far as it is in the ledger."""
        ...

    def node_attempts(self, node_id: NodeId, projects: tuple[str, ...] | None, limit: int) -> list[NodeAttemptRow]:
        """The newest attempts that were on a machine, of some projects or (None) of all, newest first."""
        ...

    def past(self, query: PastQuery) -> PastRows:
        """What there is of a stretch of time: jobs, attempts, machines, and what they cost."""
        ...

    def attempt_was_on(self, job_id: JobId, attempt: int, node_id: NodeId) -> bool: ...

    def checkpoint(self, job_id: JobId) -> CheckpointRow | None:
        """The newest one that was recorded."""
        ...

    def checkpoint_content(self, ended_since_at: float) -> list[str]:
        """Names of the content of checkpoints that somebody may want: the newest two of a job that is not over, and
        the newest of one that ended at this instant or later."""
        ...

    def expired_checkpoint_places(self, ended_since_at: float, ended_before_at: float) -> list[str]:
        """Places in object stores of jobs that ended between two instants."""
        ...

    def outputs(self, job_id: JobId) -> list[OutputsRow]:
        """The newest results of each machine of the gang, by node rank."""
        ...

    def output_trees(self) -> list[str]:
        """The trees of all results that are kept."""
        ...

    def policies(self, limit: int = 100) -> list[PolicyRow]:
        """Newest first."""
        ...

    def answer(self, user: str, key: str) -> AnswerRow | None: ...

    def token(self, sha256: str) -> TokenRow | None: ...

    def tokens(self) -> list[TokenRow]: ...

    def audit(self, query: AuditQuery) -> list[AuditRow]:
        """Writes through the API."""
        ...
