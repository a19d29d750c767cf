"""The tables, one declaration and dataclass for each: jobs, machines, reservations, the core, and people.

Columns that hold JSON say so. Instants are `*_at`, seconds since the cluster's epoch; those of people and tokens, which
outlive clocks, are Unix seconds. The live objects in memory are these rows; the store receives copies that are taken at
the end of a transaction. The core replaces lost machines of a reservation; its row keeps the machines as of the last
change by people.
"""

import json
from dataclasses import dataclass
from enum import StrEnum

from scheduler.core.events import Booking
from scheduler.core.state.throughput import KINDS_MOST, ScoredBelief
from scheduler.live.store.table_declaration import Kept, table
from walras.cluster import NodeId, PoolId
from walras.job_request import JobId, Kind
from walras.states import AttemptState, JobState, Reason

#: How long answers (clients repeat a request within minutes) and hours of prices are kept, s.
ANSWER_KEPT_S, PRICES_KEPT_S = 86_400.0, 120 * 86_400.0
#: How many requests for machines that are over are loaded and remembered, and of how many the released machines are.
PAST_RENTS_MOST, _RECENT_RENTS = 1000, 100
_ACTIVE_JOBS = "SELECT job_id FROM jobs WHERE ended_at IS NULL"
_OF_LIVE_ATTEMPTS = "(job_id, attempt) IN (SELECT job_id, attempt FROM attempts WHERE ended_at IS NULL)"
#: A machine that was released lately may still be listed by its provider, and is no unknown one then.
_THERE_OR_RELEASED_LATELY = (
    f"state NOT IN ('released') OR rent_token IN (SELECT token FROM rents ORDER BY asked_at DESC LIMIT {_RECENT_RENTS})"
)
#: Newest checkpoint of a job first. Numbers of attempts do not say it: after a restore lower ones are given out again.
LATEST_FIRST = "recorded_at DESC, attempt DESC, step DESC"
#: Of each active job, the checkpoints that are not lost, oldest first.
_RESUMABLE = f"lost = 0 AND job_id IN ({_ACTIVE_JOBS}) ORDER BY job_id, {LATEST_FIRST.replace(' DESC', '')}"
#: The newest last. Machines of a request that failed or ended may still come, and are then paid for.
_ASKED_OR_NEWEST = (
    "state = 'asked' OR token IN"
    f" (SELECT token FROM rents WHERE state != 'asked' ORDER BY asked_at DESC LIMIT {PAST_RENTS_MOST})"
    " ORDER BY asked_at"
)


@table("jobs", "job_id", kept=Kept.WITH_JOB, loaded="ended_at IS NULL")
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
    #: Its budget, USD, if that was changed after it was submitted.
    budget_usd: float | None = None
    #: JSON of `scheduler.live.loop.live_state.JobTarget`; empty where the job has none.
    target: str = ""
    #: The incarnation of the database in which it was submitted; empty: before incarnations were kept.
    incarnation: str = ""
    #: The first job of its sweep, and its index there; None: it belongs to no sweep.
    sweep: JobId | None = None
    sweep_index: int | None = None
    #: JSON: the fields that the job did not state, each with its value and where that default comes from.
    defaults: str = "{}"


@table("specs", "job_id", kept=Kept.WITH_JOB)
@dataclass(frozen=True, slots=True)
class SpecRow:
    """The job's spec, and the core's view of it (both JSON).

    Replaced when a held job is redirected, and when the deadline or the project changes.
    """

    job_id: JobId
    spec: str
    request: str


@table("attempts", "job_id", "attempt", kept=Kept.WITH_JOB, loaded="ended_at IS NULL")
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
    #: The cost until `usd_since_at`, USD, and USD per hour from then on.
    usd: float = 0.0
    usd_per_h: float = 0.0
    usd_since_at: float = 0.0
    #: The incarnation that granted it; empty: before incarnations were kept.
    incarnation: str = ""
    #: Why the job is held once this attempt has ended; None: it is not.
    held_by: Reason | None = None


@table("parts", "job_id", "attempt", "node_id", kept=Kept.WITH_JOB, loaded=_OF_LIVE_ATTEMPTS)
@dataclass(slots=True)
class PartRow:
    """One machine's part of an attempt."""

    job_id: JobId
    attempt: int
    node_id: NodeId
    node_rank: int
    prepared: bool = False
    started: bool = False
    #: Its ranks were started and still bring what they need.
    brings: bool = False
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
    #: Where the ranks of the gang will meet, as this machine reported.
    address: str = ""
    port: int = 0
    #: When it ended, by which the first failure of a gang is found.
    ended_at: float | None = None
    steps: float | None = None
    #: The limit that it exceeded and for which it was ended ("memory", "disk"); empty: none.
    exceeded: str = ""


class DrainedBy(StrEnum):
    """Whose drain keeps a machine from taking new jobs until it is lifted."""

    NOBODY = ""
    ADMIN = "admin"
    POOL = "pool"


@table("nodes", "node_id", kept=Kept.UNTIL_DELETED, loaded=_THERE_OR_RELEASED_LATELY)
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
    #: Rented machines: until when their rental is in the ledger of money; None: it has not begun.
    billed_until_at: float | None = None
    #: The agent that speaks for the machine (the secret of its state folder), and that machine's boot. The first is
    #: never shown: whoever knows it may register as this agent.
    agent: str = ""
    boot_id: str = ""
    #: The release that the agent reports.
    version: str = ""
    #: The newest incarnation in which the agent has reported what runs there; empty: before incarnations were kept.
    incarnation: str = ""
    #: Drained gently: until when jobs that would lose their work may go on; None: it is not.
    drain_until_at: float | None = None
    #: The machine has reported that it does not reach the store of checkpoints.
    private: bool = False
    #: JSON: names of the tools for jobs that it has; empty: its agent has not reported them.
    tools: str = ""
    #: A notice says that it will be taken away: how long before, s; None: no notice, or it has outlived that.
    notice_s: float | None = None
    drained_by: DrainedBy = DrainedBy.NOBODY


@table("outbox", "command_id", kept=Kept.UNTIL_DELETED, loaded="TRUE ORDER BY command_id")
@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A command for an agent, not confirmed yet; `body` is JSON of `walras.wire.AnyCommand` without the job's token."""

    command_id: int
    node_id: NodeId
    body: str


@table("checkpoints", "job_id", "attempt", "step", kept=Kept.WITH_JOB, loaded=_RESUMABLE)
@dataclass(frozen=True, slots=True)
class CheckpointRow:
    job_id: JobId
    attempt: int
    step: float
    path: str
    digest: str
    recorded_at: float
    #: Name of its tree in the store of checkpoints; empty: it exists at `path` only.
    content: str = ""
    #: Seconds that sending it took, and seconds after the commit until the store had it.
    upload_s: float = 0.0
    lag_s: float = 0.0
    #: It is torn, or its store does not have it: no attempt resumes from it.
    lost: bool = False
    #: The store that has its content; empty: the server.
    store: str = ""


@table("rents", "token", kept=Kept.FOR_EVER, loaded=_ASKED_OR_NEWEST)
@dataclass(slots=True)
class RentRow:
    """A request for machines, written before the provider is called."""

    token: str
    pool_id: PoolId
    machines: int
    asked_at: float
    #: asked | failed | ended
    state: str = "asked"
    #: Machines that the provider names and that have not joined, as JSON: {name: whether it was charged already}.
    launched: str = "{}"


class ChargeKind(StrEnum):
    """What was paid for."""

    #: The accelerators that an attempt held.
    USE = "use"
    #: A rented machine, whether it was used or not.
    MACHINE = "machine"


@table("charges", kept=Kept.FOR_EVER)
@dataclass(frozen=True, slots=True)
class ChargeRow:
    """A stretch of use at one price, inside one month: written once, never changed."""

    charge_id: int
    kind: ChargeKind
    since_at: float
    until_at: float
    usd_per_h: float
    usd: float
    #: What the same would have cost on demand at that time, USD.
    on_demand_usd: float
    #: Such as 2026-11, UTC.
    month: str
    pool_id: PoolId
    market: str
    accelerator: str
    accelerators: float
    #: The machine; empty for an attempt.
    node_id: NodeId
    #: The attempt and whose it is; 0 and empty for a machine.
    job_id: JobId
    attempt: int
    project: str
    user: str
    #: What an attempt held, in accelerators of the fleet's average speed for its job; 0 in rows from before that was
    #: counted.
    units: float = 0.0


@table("credits", "credit_id", kept=Kept.FOR_EVER, loaded="TRUE ORDER BY credit_id")
@dataclass(frozen=True, slots=True)
class CreditRow:
    """An amount that was added to a budget: written once, never changed."""

    credit_id: int
    at: float
    #: Whose budget, as the rules name it; `team` is a group of users.
    project: str
    user: str
    team: str
    unit: str
    amount: float
    created_by: str
    reason: str


@table("price_hours", "since_at", "pool_id", kept=Kept.BY_AGE, aged_by="since_at", kept_s=PRICES_KEPT_S)
@dataclass(frozen=True, slots=True)
class PriceRow:
    """The mean of one pool over an hour of the clock or a part of it: a start or a new unit begins another row."""

    pool_id: PoolId
    since_at: float
    until_at: float
    #: Seconds of the hour for which a price was known.
    seconds: float
    #: Mean shadow price of one accelerator, in the policy's `unit`.
    price: float
    unit: str
    #: Mean gain of the jobs from one more accelerator, USD per hour, by their stated values; None: none stated one.
    usd_per_h: float | None
    #: Mean market price, USD per accelerator-hour.
    rent_usd_per_h: float


@table("pools", "pool_id", kept=Kept.UNTIL_DELETED, loaded="TRUE", is_ordered=True)
@dataclass(frozen=True, slots=True)
class PoolRow:
    """`body`: JSON of `walras.cluster.Pool`, as last declared."""

    pool_id: PoolId
    body: str


@table("speeds", "kind", "accelerator", "count", kept=Kept.FOR_EVER, loaded="TRUE")
@dataclass(frozen=True, slots=True)
class SpeedRow:
    """The newest speed reported of a gang."""

    kind: Kind
    #: As in `ThroughputMeasured`.
    accelerator: str
    count: int
    steps_per_s: float


#: What was believed of speeds before they were measured.
table("scores", "kind", "accelerator", "count", "source", kept=Kept.FOR_EVER, loaded="TRUE")(ScoredBelief)


@table("networks", "pool_id", kept=Kept.FOR_EVER, loaded="TRUE ORDER BY pool_id")
@dataclass(frozen=True, slots=True)
class NetworkRow:
    """The bandwidth of a project's gangs over several machines of the pool: the median of the newest measurements.

    `pool_id` names the project as a kind's name does (`walras.job_request.kind_within`).
    """

    pool_id: PoolId
    bytes_per_s: float


@table("facts", "kind", "counted", kept=Kept.FOR_EVER, loaded="TRUE ORDER BY told_at DESC", loaded_most=2 * KINDS_MOST)
@dataclass(frozen=True, slots=True)
class FactsRow:
    """`body`: JSON of `walras.model_facts.ModelFacts`, the newest that jobs counted, or that people stated."""

    kind: Kind
    counted: bool
    body: str
    told_at: float
    #: Who stated it; empty for facts that jobs counted.
    told_by: str


@table("restart_costs", "kind", kept=Kept.FOR_EVER, loaded="TRUE")
@dataclass(frozen=True, slots=True)
class RestartCostRow:
    """Seconds that a restart of the kind costs, as far as the core knows."""

    kind: Kind
    restart_s: float


@table("core_state", "one", kept=Kept.FOR_EVER, loaded="TRUE")
@dataclass(frozen=True, slots=True)
class CoreStateRow:
    """What the core knows that is in no other table, as of `at`: one row, replaced. `body` is JSON of the event."""

    at: float
    body: str
    one: int = 1


@table("policies", "version", kept=Kept.FOR_EVER)
@dataclass(frozen=True, slots=True)
class PolicyRow:
    version: int
    #: JSON of the mapping that was given.
    body: str
    changed_at: float
    changed_by: str


@table("answers", "user", "key", kept=Kept.BY_AGE, aged_by="at", kept_s=ANSWER_KEPT_S)
@dataclass(frozen=True, slots=True)
class AnswerRow:
    """The answer to a request with an idempotency key."""

    user: str
    key: str
    body_sha256: str
    answer: str
    at: float


@table("secrets", "job_id", kept=Kept.UNTIL_DELETED, loaded=f"job_id IN ({_ACTIVE_JOBS})")
@dataclass(frozen=True, slots=True)
class SecretRow:
    """The secrets of a job that is not over, sealed under the server's key."""

    job_id: JobId
    sealed: bytes


@table("journal", kept=Kept.WITH_JOURNAL)
@dataclass(frozen=True, slots=True)
class JournalRow:
    """`kind`: "generation" (a fresh core begins), "event" or "command". `payload` is JSON."""

    at: float
    kind: str
    type: str
    payload: str


@table("outputs", "job_id", "node_rank", kept=Kept.WITH_JOB)
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


# ------------------------------------------------------------------------------------------ people


@table("audit", kept=Kept.FOR_EVER)
@dataclass(frozen=True, slots=True)
class AuditRow:
    """One change that somebody made through the API: who, what, when, before and after. Never changed."""

    at: float
    user: str
    role: str
    address: str
    #: Method and path of the endpoint.
    action: str
    #: What was changed: "job 12", "node n1", "policy".
    subject: str
    #: The project whose operators may see it; empty: administrators alone.
    project: str
    #: JSON of bounded length; "null" where there was nothing.
    before: str
    after: str


@table("people", "kind", "name", kept=Kept.FOR_EVER, loaded="TRUE ORDER BY kind, name")
@dataclass(frozen=True, slots=True)
class PeopleRow:
    """A user, a project or a role, as last set: one row for each (kind, name)."""

    #: user, project or role.
    kind: str
    name: str
    #: JSON of its settings (`walras.resources.people`).
    body: str
    #: Unix seconds.
    changed_at: float
    changed_by: str
    removed: bool = False


@table("channels", "channel_id", kept=Kept.UNTIL_DELETED, loaded="TRUE ORDER BY channel_id", is_numbered=True)
@dataclass(frozen=True, slots=True)
class ChannelRow:
    """Where a user is notified of events, and the outcome so far."""

    channel_id: int
    user: str
    #: The address without its secret parts, as it may be shown.
    shown: str
    #: The address and the key that signs its notifications, sealed under the server's key.
    sealed: bytes
    #: JSON list of the kinds of events.
    kinds: str
    added_at: float
    delivered: int = 0
    #: Notifications that were given up, after all tries or because the receiver refused them.
    failed: int = 0
    #: Notifications that were dropped for newer ones before they could be sent.
    dropped: int = 0
    delivered_at: float | None = None
    #: Why the last try failed, in words; empty: it did not.
    problem: str = ""


@table("notifications", "seq", kept=Kept.UNTIL_DELETED, loaded="TRUE ORDER BY seq", is_numbered=True)
@dataclass(frozen=True, slots=True)
class NotificationRow:
    """A notification that a channel has not received yet."""

    seq: int
    #: The id by which receivers recognise a repeated notification.
    notification_id: str
    channel_id: int
    #: JSON, as webhooks send it.
    body: str
    tries: int
    #: The instant of the next try.
    due_at: float


@table("told", "job_id", "kind", kept=Kept.UNTIL_DELETED, loaded="TRUE")
@dataclass(frozen=True, slots=True)
class ToldRow:
    """The owner of an active job was notified of this, and is not notified of it again."""

    job_id: JobId
    kind: str


@table("tokens", "sha256", kept=Kept.FOR_EVER)
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


# ------------------------------------------------------------------------------------------ reservations


@table("bookings", "booking_id", kept=Kept.FOR_EVER, loaded="TRUE ORDER BY booking_id")
@dataclass(frozen=True, slots=True)
class BookingRow:
    """A reservation as it was made."""

    booking_id: int
    #: Empty for maintenance.
    project: str
    #: JSON of what was reserved: machines, accelerator type and count, reason.
    body: str
    from_at: float
    until_at: float
    created_at: float
    created_by: str
    cancelled: bool = False

    @property
    def booking(self) -> Booking:
        body = json.loads(self.body)
        return Booking(
            booking_id=self.booking_id,
            project=self.project,
            node_ids=tuple(NodeId(each) for each in body["nodes"]),
            from_at=self.from_at,
            until_at=self.until_at,
            accelerator=body["accelerator"],
            accelerators=body["accelerators"],
            reason=body["reason"],
        )


def booking_row(booking: Booking, created_at: float, created_by: str) -> BookingRow:
    body = {
        "nodes": list(booking.node_ids),
        "accelerator": booking.accelerator,
        "accelerators": booking.accelerators,
        "reason": booking.reason,
    }
    return BookingRow(
        booking.booking_id,
        booking.project,
        json.dumps(body),
        booking.from_at,
        booking.until_at,
        created_at,
        created_by,
    )
