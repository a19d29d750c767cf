"""What the live server holds in memory: the rows of everything that is not over, with references between them.

The core's ledger says what is decided; the live state has what is needed to carry it out and to show it: specs to start
jobs from, what each machine has reported, commands that agents have not confirmed, and the values reported of targets.
Only a transaction changes it.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from pydantic import TypeAdapter

from optimizer.prediction.loss_curve import LEAST_POINTS, TargetForecast, ValueSeries
from scheduler.core.events import Proposal, StateRestored
from scheduler.live.holder_shares import HolderShares
from scheduler.live.loop.budget_sums import BudgetBooks
from scheduler.live.loop.claimed_speeds import StepEvidence
from scheduler.live.loop.notification_queue import NotificationQueue
from scheduler.live.loop.price_history import PriceHistory
from scheduler.live.store.event_journal import parse_pool
from scheduler.live.store.store_interface import LoadedState
from scheduler.live.store.table_rows import (
    PAST_RENTS_MOST,
    AnswerRow,
    AttemptRow,
    BookingRow,
    CheckpointRow,
    CreditRow,
    JobRow,
    NodeRow,
    OutboxRow,
    PartRow,
    PoolRow,
    RentRow,
    SecretRow,
)
from walras.cluster import NodeId, NodeShare, Placement, Pool, PoolId
from walras.job_needs import ScriptLaunch
from walras.job_request import JobId, JobRequest, Kind, kind_within
from walras.machines.machine_facts import DeviceSample
from walras.states import JobState, Reason
from walras.wire import AgentCommand, AnyCommand, ClusterIdentity, Heartbeat, ProgressReport, ShapeFacts

#: A new forecast is made once a job has done this many times the steps of the last one; sooner if that was wrong.
_GROWTH, _GROWTH_IF_WRONG = 1.1, 1.02


#: Waited beyond its leases before a silent machine is declared lost, seconds: clocks differ, and answers travel.
LEASE_MARGIN_S = 5.0
#: How many starts of an agent are remembered.
_STARTS_KEPT = 8
#: After so many new calls in a row of a seemingly earlier start, and none of the other, that start is the live one.
_CALLS_OF_THE_LIVING = 3


#: The most jobs that have not ended, of all users.
_JOBS_MOST = 200_000


@dataclass(slots=True)
class CallOrder:
    """The starts of one machine's agent that were heard lately, and their calls.

    Calls can arrive late, twice, and in another order than they were made, also those of an agent that has died since.
    To believe a late call about what is there would end what runs on the machine now.

    A start of an agent names itself at random and counts its calls. It calls once before it knows which life of the
    server it speaks to; its later calls name that life, which shows that it got the answer. So of two starts with calls
    that were taken, the one that was met later is the later one: it was alive after the other had been met.
    """

    #: By start, in the order in which they were met: the newest call number that was taken; 0: none was.
    _taken: dict[str, int] = field(default_factory=dict)
    #: How many new calls in a row came from a start that seems to be an earlier one.
    _overtaken: int = 0

    def meet(self, start: str) -> None:
        """Note that a start of the agent is heard, though nothing it says is taken yet."""
        self._taken.setdefault(start, 0)
        if len(self._taken) > _STARTS_KEPT:
            del self._taken[next(iter(self._taken))]

    def is_late(self, start: str, call: int) -> bool:
        """Note a call of the agent. Returns True if a newer one has overtaken it, so that its content is outdated.

        `call`: its number; 0 from an agent of an older release, which does not count its calls.
        """
        if not call:
            return False
        self.meet(start)
        if call <= self._taken[start]:
            return True
        order = list(self._taken)
        is_earlier = any(self._taken[later] for later in order[order.index(start) + 1 :])
        self._taken[start] = call
        self._overtaken = self._overtaken + 1 if is_earlier else 0
        if is_earlier and self._overtaken < _CALLS_OF_THE_LIVING:
            return True
        # A start that goes on calling is the live one; the call in between was a delayed one of an earlier start.
        self._taken[start] = self._taken.pop(start)
        self._overtaken = 0
        return False


@dataclass(frozen=True, slots=True)
class JobTarget:
    """The target of one job: the value to reach, the values reported, the last forecast."""

    #: Name of the reported value, which is to fall to `at_most`.
    value: str
    at_most: float
    series: ValueSeries = field(default_factory=ValueSeries)
    forecast: TargetForecast | None = None

    def with_report(self, step: float, values: Mapping[str, float]) -> "JobTarget":
        """Returns the target after a report of progress; the same object if the report does not have the value."""
        value = values.get(self.value)
        series = self.series if value is None else self.series.with_report(step, value, self.at_most)
        return self if series is self.series else replace(self, series=series)

    @property
    def is_worth_a_forecast(self) -> bool:
        """Whether the series is long enough, and much longer or shorter than that of the last forecast."""
        if len(self.series.points) < LEAST_POINTS or self.series.reached_step is not None:
            return False
        known = self.forecast
        growth = _GROWTH_IF_WRONG if self.is_overdue else _GROWTH
        return known is None or not known.at_step <= self.series.newest_step < growth * known.at_step

    @property
    def is_overdue(self) -> bool:
        """Whether the job has done the steps after which the target was expected, without reaching it."""
        steps = None if self.forecast is None else self.forecast.steps
        return steps is not None and self.series.reached_step is None and self.series.newest_step >= steps


_TARGET: TypeAdapter[JobTarget] = TypeAdapter(JobTarget)


def dump_target(target: JobTarget) -> str:
    return _TARGET.dump_json(target).decode()


def parse_target(body: str) -> JobTarget | None:
    """Returns the target in a job's row; None where the job has none."""
    return _TARGET.validate_json(body) if body else None


#: The most answers, and the most ends of jobs, that are kept in memory.
_REMEMBERED = 10_000
_command: TypeAdapter[AnyCommand] = TypeAdapter(AnyCommand)


@dataclass(frozen=True)
class LaunchSpec(ScriptLaunch):
    """What a job of the server is started with: its script, and where it saves and how long it may take to."""

    checkpoint_dir: str
    steps: float | None
    grace_s: float
    #: Where its checkpoints are sent; empty: all machines share `checkpoint_dir`.
    store: str = field(default="", kw_only=True)
    #: Kinds of notifications that its owner's channels get of it; None: the kinds that each channel states.
    notify: tuple[str, ...] | None = field(default=None, kw_only=True)


@dataclass(slots=True)
class LiveAttempt:
    """The current attempt of a job, in its parts."""

    row: AttemptRow
    placement: Placement
    parts: dict[NodeId, PartRow]
    #: The core was told the bandwidth between its machines.
    network_forwarded: bool = False
    #: The facts that it counted of its model were recorded.
    facts_recorded: bool = False
    #: What its kind was measured to reach here before this attempt reported a speed; None if it was never measured.
    usual_steps_per_s: float | None = None
    #: The core was told that its speed differs from that.
    is_unusual: bool = False
    #: What vouches for the speeds that it claims, since this process heard it.
    evidence: StepEvidence = field(default_factory=StepEvidence)
    #: Why a part was refused, as far as this process heard.
    refusal: str = ""
    #: The name of the job's code, if a machine was told that the server has none of that name.
    lost_code: str = ""
    #: A part's supervisor died while its agent was running.
    loss_witnessed: bool = False
    #: Ranks of a part were told to stop before their work was done (by the reports of this process's life).
    is_unfinished: bool = False
    #: The output of a rank that failed shows that the job is at fault.
    own_fault: bool = False
    #: Rank among the gang's machines of the one whose checkpoint was recorded last.
    committed_by: int = 0
    #: Attempts on its accelerators, itself included, since it was last charged; 0: not counted yet.
    sharers: int = 0
    #: Since when its accelerators have been idle, as far as this process saw; inf: they are not, or nobody knows. The
    #: detail says it in words once that has lasted as long as the cluster file's rule.
    idle_since: float = inf
    idle_detail: str = ""
    #: What it holds, in accelerators of the fleet's average speed for its job, since it was last charged.
    units: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether every part has ended."""
        return all(part.ended for part in self.parts.values())


@dataclass(slots=True)
class LiveJob:
    row: JobRow
    launch: LaunchSpec
    attempt: LiveAttempt | None = None
    checkpoint: CheckpointRow | None = None
    #: The checkpoint before that, in its place should it be lost.
    earlier_checkpoint: CheckpointRow | None = None
    #: The newest report of progress, and whether and when the core received it.
    progress: ProgressReport | None = None
    progress_forwarded: bool = True
    progress_forwarded_at: float = -inf
    speed_forwarded: bool = False
    #: The script said in its newest report that it can save its work.
    says_saves: bool = False
    #: The script states how often it saves, which overrides the planned interval.
    states_interval: bool = False
    #: The target, if it has one; the job's row has it as last written.
    target: JobTarget | None = None

    @property
    def kind(self) -> Kind:
        """Its kind, within its project."""
        return kind_within(self.row.project, Kind(self.row.kind))

    @property
    def held_by(self) -> Reason | None:
        """Why the job is held, or will be once its attempt has ended; None if it is not."""
        if self.attempt is not None:
            return self.attempt.row.held_by
        return self.row.reason if self.row.state is JobState.HELD else None


@dataclass(slots=True)
class LiveNode:
    row: NodeRow
    facts: ShapeFacts
    #: Commands that the agent has not confirmed, in order.
    outbox: dict[int, AgentCommand] = field(default_factory=dict)
    #: The newest command already sent to the agent, and when it was sent.
    sent_id: int = 0
    sent_at: float = -inf
    heard_at: float = -inf
    #: No lease that this server granted ends later.
    leased_until: float = -inf
    #: Attempts that may be alive there, with which the agent's reports are compared.
    expected: set[tuple[JobId, int]] = field(default_factory=set)
    #: Attempts that the agent named when it was heard last.
    alive: set[tuple[JobId, int]] = field(default_factory=set)
    #: Whether this process has heard the agent.
    was_heard: bool = False
    #: After a restore: the machine must still be compared with the tables; and whether its agent has reported yet.
    must_meet: bool = False
    has_told: bool = False
    #: Attempts whose start the agent has not confirmed, and since when that is waited for.
    unconfirmed: dict[tuple[JobId, int], float] = field(default_factory=dict)
    #: What keeps the agent from taking more work, by its last heartbeat.
    problem: str = ""
    #: Faults of its devices, as the core was told; empty: none.
    unfit: str = ""
    #: A machine that is heard after this instant has outlived the notice of its end; None: no notice is known of.
    outlives_at: float | None = None
    #: The protocol version that the agent speaks; None until it is heard.
    protocol: int | None = None
    #: Keys of inputs in its cache, as the agent last reported.
    data: tuple[str, ...] = ()
    fetched: tuple[tuple[str, int, float], ...] = ()
    #: Why checkpoints on it are private (`NodeRow.private`), as this process heard it.
    private_why: str = ""
    #: The agent's last samples of its devices, and when they were heard.
    devices: tuple[DeviceSample, ...] = ()
    devices_at: float = 0.0
    #: By device, the highest utilisation, percent, since it was last read; inf: the driver left one out.
    peaks: dict[int, float] = field(default_factory=dict)
    #: Tells late calls of its agent.
    calls: CallOrder = field(default_factory=CallOrder)

    def hear(self, message: Heartbeat, now: float) -> None:
        """Record what a heartbeat says of the machine and its agent."""
        self.heard_at, self.was_heard, self.problem, self.protocol = now, True, message.problem, message.protocol
        if message.devices is not None:
            self.devices, self.devices_at = tuple(message.devices), now
            for each in message.devices:
                used = inf if each.utilization is None else each.utilization
                self.peaks[each.device] = max(used, self.peaks.get(each.device, 0.0))
        self.alive = {(JobId(here.job_id), here.attempt) for here in message.here}

    @property
    def tools(self) -> frozenset[str] | None:
        """The tools for jobs that the machine has; None while its agent has not reported them."""
        return frozenset(json.loads(self.row.tools)) if self.row.tools else None

    @property
    def shown_state(self) -> str:
        """Its state as people read it: one that is drained, and will not be taken away, is so once no job is on it."""
        if self.row.state != "up" or not self.row.cordon:
            return self.row.state
        if self.row.cordon == "leaving" and self.row.drained_by and self.row.notice_s is None:
            return "draining" if self.expected else "drained"
        return self.row.cordon

    @property
    def takes_jobs(self) -> bool:
        """Whether jobs may start on it: its accelerators are then the fleet's capacity."""
        return self.row.state == "up" and not self.row.cordon

    @property
    def is_member(self) -> bool:
        """Whether the core counts it as a machine of the fleet."""
        return self.row.state in ("up", "unreachable")


@dataclass(slots=True)
class IgnoredCounters:
    """Counts what is ignored by design, so that it can be seen."""

    stale_reports: int = 0
    stale_commits: int = 0
    fenced: int = 0
    #: Reports of types that this release does not know, and these types.
    unknown_reports: int = 0
    unknown_types: set[str] = field(default_factory=set)


#: The identity of a live state without a store.
_UNNAMED = ClusterIdentity(cluster_id="0" * 32, incarnation="0" * 16)


@dataclass(slots=True)
class LiveState:
    """The live rows by name, and counters."""

    identity: ClusterIdentity = _UNNAMED
    #: Incarnations of this cluster before this one, oldest first.
    former: tuple[str, ...] = ()
    jobs: dict[JobId, LiveJob] = field(default_factory=dict)
    #: How many of them each user has.
    job_shares: HolderShares = field(
        default_factory=lambda: HolderShares("jobs", _JOBS_MOST, fix="wait until some end, or cancel some")
    )
    nodes: dict[NodeId, LiveNode] = field(default_factory=dict)
    #: The machine of each agent's credential, by the credential's SHA-256.
    credentials: dict[str, NodeId] = field(default_factory=dict)
    pools: dict[PoolId, Pool] = field(default_factory=dict)
    #: Pools as they last were, for machines that are given back after their pool was removed and must be charged.
    removed_pools: dict[PoolId, Pool] = field(default_factory=dict)
    rents: dict[str, RentRow] = field(default_factory=dict)
    #: Requests of this process that are over, for which a provider may still have machines. The oldest are dropped
    #: first.
    past_rents: dict[str, RentRow] = field(default_factory=dict)
    #: How many machines each pool may come to have, here or not: owned ones of the cluster file, and those before a
    #: restart. Admission reads it, so as not to refuse jobs that only have to wait for a machine.
    expected_machines: dict[PoolId, int] = field(default_factory=dict)
    #: Answers of this process by (user, key), which the store may not have yet. The oldest are dropped first.
    answers: dict[tuple[str, str], AnswerRow] = field(default_factory=dict)
    answers_pruned_at: float = -inf
    #: How jobs ended in this process, which the store may not have yet. The oldest are dropped first.
    ended: dict[JobId, JobState] = field(default_factory=dict)
    #: Sealed secrets of jobs that have some.
    secrets: dict[JobId, bytes] = field(default_factory=dict, repr=False)
    #: Channels of users, and notifications that wait to be sent.
    notifications: NotificationQueue = field(default_factory=NotificationQueue)
    #: Reservations by number, those that are over included.
    bookings: dict[int, BookingRow] = field(default_factory=dict)
    proposal: Proposal | None = None
    #: When it came, or was last found to hold still.
    solved_at: float = 0.0
    #: Means, in the hour under way, of what one more accelerator of each pool is worth.
    price_history: PriceHistory = field(default_factory=PriceHistory)
    counters: IgnoredCounters = field(default_factory=IgnoredCounters)
    #: Jobs whose target may need a new forecast, those that have waited longest first.
    to_forecast: dict[JobId, None] = field(default_factory=dict)
    #: By kind, accelerator type and count: the tenths of its steps that rank 0 waited for data.
    data_waits: dict[tuple[str, str, int], int] = field(default_factory=dict)
    #: Changes whenever one of them does.
    data_waits_version: int = 0
    #: How many (kind, type, count) of this generation have had their belief stored with what was measured.
    scores_stored: int = 0
    next_job_id: int = 1
    next_command_id: int = 1
    next_charge_id: int = 1
    #: Unix seconds of instant 0, by which months begin and end.
    epoch_unix_s: float = 0.0
    #: USD by project ("" is everything), in all and by month, from the ledger of money.
    spent_usd: dict[str, float] = field(default_factory=dict)
    spent_month_usd: dict[tuple[str, str], float] = field(default_factory=dict)
    #: USD by (project, user, month).
    spent_user_usd: dict[tuple[str, str, str], float] = field(default_factory=dict)
    #: (project, user) of each user budget of the policy in force; project "": over all projects.
    users_with_budgets: tuple[tuple[str, str], ...] = ()
    #: Use by day, credits and limits, for budgets that sums of USD do not serve.
    budgets: BudgetBooks = field(default_factory=BudgetBooks)
    #: The month up to which the core was told what was spent.
    month: str = ""
    #: Content of superseded checkpoints, since the content store was last swept for it.
    superseded: set[str] = field(default_factory=set)
    #: Places in object stores that have superseded checkpoints.
    superseded_places: set[str] = field(default_factory=set)
    #: What was last stored of the core's own knowledge, at instant 0 so that it can be compared.
    kept_core_state: StateRestored | None = None

    def pool_of(self, pool_id: PoolId) -> Pool:
        """Returns the pool of a machine or request, which may have been removed since."""
        return self.pools.get(pool_id) or self.removed_pools[pool_id]

    def here_of(self, token: str) -> int:
        """Returns how many machines of a request are members of the fleet."""
        return sum(node.row.rent_token == token and node.is_member for node in self.nodes.values())

    def end_rent(self, rent: RentRow) -> None:
        """Move a request to the past ones: it has failed, or all its machines are gone."""
        del self.rents[rent.token]
        self.past_rents[rent.token] = rent
        if len(self.past_rents) > PAST_RENTS_MOST:
            self._forget_machines(oldest := next(iter(self.past_rents)))
            del self.past_rents[oldest]

    def _forget_machines(self, token: str) -> None:
        """Drop the released machines of a request, unless a part of an attempt was on one that is not over."""
        over = [each.row for each in self.nodes.values() if each.row.rent_token == token and not each.is_member]
        needed = {node_id for job in self.jobs.values() if job.attempt is not None for node_id in job.attempt.parts}
        for row in over:
            if row.node_id not in needed:
                del self.nodes[row.node_id]
                self.credentials.pop(row.credential, None)

    def attempt(self, job_id: JobId, attempt: int) -> LiveAttempt | None:
        """Returns the attempt if it is the job's current one and not over (the fence), else None."""
        job = self.jobs.get(job_id)
        if job is None or job.attempt is None or job.attempt.row.attempt != attempt:
            return None
        return job.attempt

    def devices_held(self, node: LiveNode) -> dict[int, JobId]:
        """Returns which job holds each device of a machine that is not free; of two that share one, the older job."""
        held: dict[int, JobId] = {}
        for job_id, number in sorted(node.expected):
            attempt = self.attempt(job_id, number)
            for part in () if attempt is None else attempt.placement.parts:
                if part.node_id == node.row.node_id:
                    for device in part.devices:
                        held.setdefault(device, job_id)
        return held

    def tools_in_pools(self, request: JobRequest) -> list[frozenset[str] | None]:
        """Returns the tools of each machine that the job fits.

        None stands for a machine that has not reported, and for a pool without machines, of which nobody knows.
        """
        found: list[frozenset[str] | None] = []
        for pool in self.pools.values():
            if request.size_on(pool) and not pool.removed:
                here = [
                    node.tools for node in self.nodes.values() if node.row.pool_id == pool.pool_id and node.is_member
                ]
                found += here or [None]
        return found

    def expect(self, pool_id: PoolId, machines: int) -> None:
        """Note that the pool may come to have at least this many machines."""
        if machines > self.expected_machines.get(pool_id, 0):
            self.expected_machines[pool_id] = machines

    def remember(self, answer: AnswerRow) -> None:
        self.answers[answer.user, answer.key] = answer
        while len(self.answers) > _REMEMBERED:
            del self.answers[next(iter(self.answers))]

    def end(self, job_id: JobId, state: JobState) -> None:
        """Drop a job that has ended, and remember how it ended."""
        self.job_shares.give_back(self.jobs.pop(job_id).row.user)
        self.ended[job_id] = state
        while len(self.ended) > _REMEMBERED:
            del self.ended[next(iter(self.ended))]


def accelerators_text(pools: Mapping[PoolId, Pool], placement: Placement) -> str:
    """Returns what an attempt holds by type, in the order of its ranks, such as `a100:32,v100:96`."""
    held: dict[str, int] = {}
    for pool_id, count in placement.by_pool.items():
        name = pools[pool_id].shape.accelerator
        held[name] = held.get(name, 0) + count
    return ",".join(f"{name}:{count}" for name, count in held.items())


def placement_json(placement: Placement) -> str:
    """Returns JSON: [node, devices] of each machine, followed by its pool where that is not the placement's."""
    parts = [[part.node_id, list(part.devices), part.pool_id] for part in placement.parts]
    return json.dumps([part if part[2] is not None else part[:2] for part in parts])


def parse_placement(row: AttemptRow) -> Placement:
    parts = (
        NodeShare(NodeId(node_id), tuple(devices), PoolId(pool_id[0]) if pool_id else None)
        for node_id, devices, *pool_id in json.loads(row.placement)
    )
    return Placement(row.pool_id, tuple(parts))


def load_live_state(
    loaded: LoadedState, launches: dict[JobId, LaunchSpec], now: float, lease_s: dict[str, float]
) -> LiveState:
    """Returns the state of a starting server. Machines get a full lease from now: none granted earlier ends later."""
    state = LiveState(next_job_id=loaded.last_job_id + 1, next_command_id=loaded.last_command_id + 1)
    state.next_charge_id = loaded.last_charge_id + 1
    state.notifications = NotificationQueue.of(loaded)
    for job in loaded.rows(JobRow):
        state.jobs[job.job_id] = LiveJob(job, launches[job.job_id], target=parse_target(job.target))
        state.job_shares.put_back(job.user)
        if job.target:
            state.to_forecast[job.job_id] = None
    for node in loaded.rows(NodeRow):
        facts = ShapeFacts.model_validate_json(node.facts)
        until = now + lease_s[facts.market]
        state.nodes[node.node_id] = LiveNode(node, facts, heard_at=now, leased_until=until)
        state.credentials[node.credential] = node.node_id
    parts_of: dict[tuple[JobId, int], dict[NodeId, PartRow]] = {}
    for part in loaded.rows(PartRow):
        parts_of.setdefault((part.job_id, part.attempt), {})[part.node_id] = part
    for row in loaded.rows(AttemptRow):
        parts = parts_of.get((row.job_id, row.attempt), {})
        state.jobs[row.job_id].attempt = LiveAttempt(row, parse_placement(row), parts)
        for part in parts.values():
            if not part.ended:
                state.nodes[part.node_id].expected.add((row.job_id, row.attempt))
    for checkpoint in loaded.rows(CheckpointRow):  # oldest first, so the newest two stay
        of_job = state.jobs[checkpoint.job_id]
        of_job.earlier_checkpoint, of_job.checkpoint = of_job.checkpoint, checkpoint
    for command in loaded.rows(OutboxRow):
        if command.node_id in state.nodes:
            state.nodes[command.node_id].outbox[command.command_id] = _command.validate_json(command.body)
    for pool in (parse_pool(row.body) for row in loaded.rows(PoolRow)):
        (state.removed_pools if pool.removed else state.pools)[pool.pool_id] = pool
    for pool_id, machines in Counter(node.pool_id for node in loaded.rows(NodeRow) if not node.rent_token).items():
        state.expect(pool_id, machines)
    state.secrets = {row.job_id: row.sealed for row in loaded.rows(SecretRow)}
    state.rents = {rent.token: rent for rent in loaded.rows(RentRow) if rent.state == "asked"}
    state.past_rents = {rent.token: rent for rent in loaded.rows(RentRow) if rent.state != "asked"}
    state.bookings = {row.booking_id: row for row in loaded.rows(BookingRow)}
    state.budgets.credits = list(loaded.rows(CreditRow))
    return state
