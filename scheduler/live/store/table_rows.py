"""The tables, one dataclass for each. Columns that hold JSON say so. Instants are `*_at`, seconds since the cluster's
epoch (tokens excepted: they outlive clocks, so theirs are Unix seconds).

The live objects in memory are these rows; the store receives copies that are taken at the end of a transaction.
"""

from dataclasses import dataclass
from enum import StrEnum

from walras.cluster import NodeId, PoolId
from walras.job_request import JobId, Kind
from walras.states import AttemptState, JobState, Reason


@dataclass(slots=True)
class JobRow:
    job_id: JobId
    name: str
    project: str
    user: str
    kind: str
    state: JobState
    priority: int
    accelerators: int
    submitted_at: float
    reason: Reason | None = None
    detail: str = ""
    attempts: int = 0
    restarts: int = 0
    steps: float = 0.0
    steps_total: float | None = None
    steps_per_s: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    #: JSON objects.
    first_values: str = "{}"
    last_values: str = "{}"
    labels: str = "{}"
    #: What it may cost, USD, where that was changed after it was submitted.
    budget_usd: float | None = None
    #: JSON of `scheduler.live.loop.live_state.JobTarget`; empty where the job has none.
    target: str = ""
    #: The incarnation of the database in which it was submitted; empty: before incarnations were kept.
    incarnation: str = ""
    #: The first job of its sweep, and its index there; None: it is of no sweep.
    sweep: JobId | None = None
    sweep_index: int | None = None
    #: JSON: the fields that the job did not state, each with its value and whose default that is.
    defaults: str = "{}"


@dataclass(frozen=True, slots=True)
class SpecRow:
    """What was asked for, and the core's view of it (both JSON).

    Written anew where a held job is sent elsewhere, and for another deadline.
    """

    job_id: JobId
    spec: str
    request: str


@dataclass(slots=True)
class AttemptRow:
    job_id: JobId
    attempt: int
    state: AttemptState
    pool_id: PoolId
    accelerator: str
    emulated: bool
    accelerators: int
    leased_at: float
    #: JSON: [[node_id, [device, ...]], ...] in node-rank order.
    placement: str
    reason: Reason | None = None
    profiling: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    failed_rank: int | None = None
    checkpoint_step: float | None = None
    #: Money until `usd_since_at`, and what an hour costs from then on, USD.
    usd: float = 0.0
    usd_per_h: float = 0.0
    usd_since_at: float = 0.0
    #: The incarnation that granted it; empty: before incarnations were kept.
    incarnation: str = ""


@dataclass(slots=True)
class PartRow:
    """One machine's part of an attempt."""

    job_id: JobId
    attempt: int
    node_id: NodeId
    node_rank: int
    prepared: bool = False
    started: bool = False
    #: Nothing of the attempt is left on the machine.
    ended: bool = False
    #: A prepare or start command was given, so something may be there to stop.
    ordered: bool = False
    #: A stop command was given because another part failed or the attempt is over.
    stopped: bool = False
    cause: str = ""
    exit_code: int | None = None
    signal: int | None = None
    failed_rank: int | None = None
    #: Where the ranks of the gang will meet, as this machine said.
    address: str = ""
    port: int = 0
    #: When it ended, to tell the first failure of a gang.
    ended_at: float | None = None
    steps: float | None = None
    #: The limit for which it was ended ("memory", "disk"); empty: none.
    exceeded: str = ""


@dataclass(slots=True)
class NodeRow:
    node_id: NodeId
    pool_id: PoolId
    #: JSON of `walras.wire.ShapeFacts`.
    facts: str
    #: SHA-256 of the agent's credential.
    credential: str
    #: up | unreachable | lost | released
    state: str
    joined_at: float
    #: Why it takes no new jobs: "" | leaving | quarantined.
    cordon: str = ""
    detail: str = ""
    rent_token: str = ""
    reports_acked: int = 0
    #: Rented machines: until when their use is in the ledger of money; None: it has not begun.
    billed_until_at: float | None = None
    #: The agent that speaks for the machine (its state folder), and the boot of the machine it speaks from. The first
    #: is never shown: whoever knows it may register as this agent.
    agent: str = ""
    boot_id: str = ""
    #: The agent's release, as it says.
    version: str = ""
    #: The newest incarnation in which the agent has said what is on the machine; empty: before incarnations were kept.
    incarnation: str = ""
    #: Drained gently: until when jobs that would lose their work may go on; None: it is not.
    drain_until_at: float | None = None
    #: It has shown that it does not reach the store of checkpoints.
    private: bool = False
    #: JSON: names of what it has of what jobs may need; empty: its agent has not said.
    tools: str = ""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A command for an agent, not confirmed yet; `body` is JSON of `walras.wire.AnyCommand` without the job's token."""

    command_id: int
    node_id: NodeId
    body: str


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    job_id: JobId
    attempt: int
    step: float
    path: str
    digest: str
    recorded_at: float
    #: Name of its tree in the store of checkpoints; empty: it lies at `path` alone.
    content: str = ""
    #: How long it was sent, and how long after the commit the store had it.
    upload_s: float = 0.0
    lag_s: float = 0.0
    #: It is torn, or its store does not have it: no attempt goes on from it.
    lost: bool = False
    #: The store that has its content; empty: the server.
    store: str = ""


@dataclass(slots=True)
class RentRow:
    """A request for machines, written before the provider is called."""

    token: str
    pool_id: PoolId
    machines: int
    asked_at: float
    #: asked | failed | ended
    state: str = "asked"
    #: Machines that the provider names and that have not joined, as JSON: {name: whether it is paid for already}.
    launched: str = "{}"


class ChargeKind(StrEnum):
    """What was paid for."""

    #: The accelerators that an attempt held.
    USE = "use"
    #: A rented machine, whoever used it or did not.
    MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class ChargeRow:
    """A stretch of use at one price, inside one month: written once, never changed."""

    charge_id: int
    kind: ChargeKind
    since_at: float
    until_at: float
    usd_per_h: float
    usd: float
    #: What the same would have cost on demand then.
    on_demand_usd: float
    #: Such as 2026-11, UTC.
    month: str
    pool_id: PoolId
    market: str
    accelerator: str
    accelerators: float
    #: Of a machine; empty for an attempt.
    node_id: NodeId
    #: Of an attempt; 0 and empty for a machine.
    job_id: JobId
    attempt: int
    project: str
    user: str
    #: What an attempt held, in accelerators of the fleet's average speed for its job; 0 of what was written before that
    #: was counted.
    units: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolRow:
    """`body`: JSON of `walras.cluster.Pool`, as last declared."""

    pool_id: PoolId
    body: str


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """The newest speed reported of a gang."""

    kind: Kind
    accelerator: str
    count: int
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class NetworkRow:
    """What gangs over several machines of the pool get: the median of the newest measurements."""

    pool_id: PoolId
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class FactsRow:
    """`body`: JSON of `walras.model_facts.ModelFacts`, the newest that jobs counted, or that people stated."""

    kind: Kind
    counted: bool
    body: str
    told_at: float
    #: Who stated it; empty for a job.
    told_by: str


@dataclass(frozen=True, slots=True)
class RestartCostRow:
    """What a restart of the kind costs, as far as the core knows."""

    kind: Kind
    restart_s: float


@dataclass(frozen=True, slots=True)
class CoreStateRow:
    """What the core knows that is in no other table, as of `at`: one row, replaced. `body` is JSON of the event."""

    at: float
    body: str
    one: int = 1


@dataclass(frozen=True, slots=True)
class ShadowRow:
    """The policy that is run in the shadow and the state it began in, as JSON: one row, replaced; empty: none is."""

    body: str
    one: int = 1


@dataclass(frozen=True, slots=True)
class PolicyRow:
    version: int
    #: JSON of the mapping that was given.
    body: str
    changed_at: float
    changed_by: str


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """The answer to a request with an idempotency key."""

    user: str
    key: str
    body_sha256: str
    answer: str
    at: float


@dataclass(frozen=True, slots=True)
class SecretRow:
    """The secrets of a job that is not over, sealed under the server's key."""

    job_id: JobId
    sealed: bytes


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One write that somebody made through the API: who, what, when, before and after. Never changed."""

    at: float
    user: str
    role: str
    address: str
    #: Method and path of the endpoint.
    action: str
    #: What was changed: "job 12", "node n1", "policy".
    subject: str
    #: Whose operators may see it; empty: administrators alone.
    project: str
    #: JSON, bounded; "null" where there was nothing.
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class PeopleRow:
    """A user, a project or a role, as it was set last: one row for each (kind, name)."""

    #: user, project or role.
    kind: str
    name: str
    #: JSON of its settings (`walras.people`).
    body: str
    #: Seconds since 1970.
    changed_at: float
    changed_by: str
    removed: bool = False


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """Where a user is told of events, and what came of that so far."""

    channel_id: int
    user: str
    #: The address as it may be shown: what opens it is left out.
    shown: str
    #: The address and the key that its notifications are signed with, under the server's key.
    sealed: bytes
    #: JSON list of the kinds of events.
    kinds: str
    added_at: float
    delivered: int = 0
    #: Notifications that were given up, after all tries or because the receiver would not have them.
    failed: int = 0
    #: Notifications that newer ones took the place of before they could be sent.
    dropped: int = 0
    delivered_at: float | None = None
    #: Why the last try failed, in words; empty: it did not.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NotificationRow:
    """Something that a channel is still to be told."""

    seq: int
    #: Which receivers drop doubles by.
    notification_id: str
    channel_id: int
    #: JSON as webhooks send it.
    body: str
    tries: int
    #: Not tried (again) before.
    due_at: float


@dataclass(frozen=True, slots=True)
class ToldRow:
    """The owner of a job that is not over was told this of it, and is not told again."""

    job_id: JobId
    kind: str


@dataclass(slots=True)
class TokenRow:
    """A user's token: only its hash is kept."""

    sha256: str
    prefix: str
    user: str
    role: str
    #: JSON list; ["*"] is every project.
    projects: str
    created_at: float
    created_by: str
    expires_at: float | None = None
    revoked_at: float | None = None


@dataclass(frozen=True, slots=True)
class JournalRow:
    """`kind`: "generation" (a fresh core begins), "event" or "command". `payload` is JSON."""

    at: float
    kind: str
    type: str
    payload: str


@dataclass(frozen=True, slots=True)
class OutputsRow:
    """The newest results that a job left on one machine of its gang."""

    job_id: JobId
    node_rank: int
    attempt: int
    #: Name of the tree in the content store; empty: none could be collected yet.
    tree: str
    files: int
    size_bytes: int
    collected_at: float
    #: What is missing or was left out, in words.
    problem: str
