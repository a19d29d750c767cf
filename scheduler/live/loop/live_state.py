"""What the live server holds in memory: the rows of everything that is not over, joined to each other.

The core's ledger says what is decided; the live state says what is needed to carry it out and to show it: specs to
start jobs from, which machine has reported what, commands that agents have not confirmed, and what a job with a target
has reported of it. Only a transaction changes it.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from pydantic import TypeAdapter

from optimizer.prediction.loss_curve import LEAST_POINTS, TargetForecast, ValueSeries
from scheduler.core.events import Proposal, StateRestored
from scheduler.live.loop.budget_sums import BudgetBooks
from scheduler.live.loop.notification_queue import NotificationQueue
from scheduler.live.loop.price_history import PriceHistory
from scheduler.live.store.booking_rows import BookingRow
from scheduler.live.store.event_journal import parse_pool
from scheduler.live.store.store_interface import PAST_RENTS_MOST, LoadedState
from scheduler.live.store.table_rows import AnswerRow, AttemptRow, CheckpointRow, JobRow, NodeRow, PartRow, RentRow
from walras.cluster import NodeId, NodeShare, Placement, Pool, PoolId
from walras.device_samples import DeviceSample
from walras.job_needs import ScriptLaunch
from walras.job_request import JobId, JobRequest
from walras.states import JobState
from walras.wire import AgentCommand, AnyCommand, ClusterIdentity, Heartbeat, ProgressReport, ShapeFacts

#: A forecast is made anew once the job has done so many times the steps that it knew of; one that was wrong, sooner.
_GROWTH, _GROWTH_IF_WRONG = 1.1, 1.02


@dataclass(frozen=True, slots=True)
class JobTarget:
    """The target of one job: the value to reach, the values reported, the last forecast."""

    #: Name of the value.
    value: str
    at_most: float
    series: ValueSeries = field(default_factory=ValueSeries)
    forecast: TargetForecast | None = None

    def with_report(self, step: float, values: Mapping[str, float]) -> "JobTarget":
        """Returns the target after a report of progress; itself if the report does not have the value."""
        value = values.get(self.value)
        series = self.series if value is None else self.series.with_report(step, value, self.at_most)
        return self if series is self.series else replace(self, series=series)

    @property
    def is_worth_a_forecast(self) -> bool:
        """The series is long enough, and another one than the last forecast was made from: much longer, or cut."""
        if len(self.series.points) < LEAST_POINTS or self.series.reached_step is not None:
            return False
        known = self.forecast
        growth = _GROWTH_IF_WRONG if self.is_overdue else _GROWTH
        return known is None or not known.at_step <= self.series.newest_step < growth * known.at_step

    @property
    def is_overdue(self) -> bool:
        """The job has come to the step at which the target was expected, and is not there."""
        steps = None if self.forecast is None else self.forecast.steps
        return steps is not None and self.series.reached_step is None and self.series.newest_step >= steps


_TARGET: TypeAdapter[JobTarget] = TypeAdapter(JobTarget)


def dump_target(target: JobTarget) -> str:
    return _TARGET.dump_json(target).decode()


def parse_target(body: str) -> JobTarget | None:
    """None where the job has no target."""
    return _TARGET.validate_json(body) if body else None


#: Answers and ends that are kept in memory beside the store.
_REMEMBERED = 10_000
_command: TypeAdapter[AnyCommand] = TypeAdapter(AnyCommand)


@dataclass(frozen=True)
class LaunchSpec(ScriptLaunch):
    """What a job of the server is started with: its script, and where and how long it may save."""

    checkpoint_dir: str
    steps: float | None
    grace_s: float
    #: Where its checkpoints are sent; empty: all machines share `checkpoint_dir`.
    store: str = field(default="", kw_only=True)
    #: Kinds of notifications that its owner's channels get of it; None: those that each channel is for.
    notify: tuple[str, ...] | None = field(default=None, kw_only=True)


@dataclass(slots=True)
class LiveAttempt:
    """The current attempt of a job, in its parts."""

    row: AttemptRow
    placement: Placement
    parts: dict[NodeId, PartRow]
    #: The core has heard what its machines exchange.
    network_forwarded: bool = False
    #: What it counted of its model has been taken in.
    facts_recorded: bool = False
    #: What its kind was measured to reach here before this attempt reported a speed; None if it was never measured.
    usual_steps_per_s: float | None = None
    #: The core has heard that it differs from that.
    is_unusual: bool = False
    #: Some part lost its supervisor under the eyes of its agent.
    loss_witnessed: bool = False
    #: Attempts on its accelerators, itself included, since it was last charged; 0: not counted yet.
    sharers: int = 0
    #: Since when its accelerators stand idle, as far as this process saw; inf: they do not, or nobody knows. In words
    #: once that has lasted for as long as the cluster file says.
    idle_since: float = inf
    idle_detail: str = ""
    #: What it holds in accelerators of the fleet's average speed for its job, since it was last charged.
    units: float = 0.0

    @property
    def is_over(self) -> bool:
        """Nothing of it is left anywhere."""
        return all(part.ended for part in self.parts.values())


@dataclass(slots=True)
class LiveJob:
    row: JobRow
    launch: LaunchSpec
    attempt: LiveAttempt | None = None
    checkpoint: CheckpointRow | None = None
    #: What it falls back to should that one be lost.
    earlier_checkpoint: CheckpointRow | None = None
    #: The newest report of progress, and whether and when the core received it.
    progress: ProgressReport | None = None
    progress_forwarded: bool = True
    progress_forwarded_at: float = -inf
    speed_forwarded: bool = False
    #: Its script said in the newest report that it can save its work.
    says_saves: bool = False
    #: It saves as often as its script states, whatever is planned.
    states_interval: bool = False
    #: What it is to reach, if anything, and how far it is. The row has it as it was written last.
    target: JobTarget | None = None


#: Starts of an agent whose calls are told from newer ones.
_SESSIONS_KEPT = 8
#: So many new calls in a row of a start that seemed former, and none of the other: it lives, the other does not.
_CALLS_OF_THE_LIVING = 3


@dataclass(slots=True)
class LiveNode:
    row: NodeRow
    facts: ShapeFacts
    #: Commands not confirmed yet, in order.
    outbox: dict[int, AgentCommand] = field(default_factory=dict)
    #: Newest command already given to the agent, and when.
    sent_id: int = 0
    sent_at: float = -inf
    heard_at: float = -inf
    #: No lease that this server granted ends later.
    leased_until: float = -inf
    #: Attempts that may be alive there: what the agent reports is compared with it.
    expected: set[tuple[JobId, int]] = field(default_factory=set)
    #: Attempts that the agent named when it was heard last.
    alive: set[tuple[JobId, int]] = field(default_factory=set)
    #: Its agent has been heard by this process.
    was_heard: bool = False
    #: After a restore: its agent has not said yet what is there, or something is there that the tables do not know.
    must_meet: bool = False
    has_told: bool = False
    #: Attempts whose start it has not confirmed, and since when that is waited for.
    unconfirmed: dict[tuple[JobId, int], float] = field(default_factory=dict)
    #: What keeps its agent from taking more work, as it says with every heartbeat.
    problem: str = ""
    #: The protocol that its agent speaks; None until it is heard.
    protocol: int | None = None
    #: Keys of inputs in its cache, as its agent said last.
    data: tuple[str, ...] = ()
    fetched: tuple[tuple[str, int, float], ...] = ()
    #: Why it is private (`NodeRow.private`), as this process heard it.
    private_why: str = ""
    #: What its devices did when its agent looked last, and when that was heard.
    devices: tuple[DeviceSample, ...] = ()
    devices_at: float = 0.0
    #: The highest utilisation of each since somebody asked, percent; inf: its driver did not say it once.
    peaks: dict[int, float] = field(default_factory=dict)

    #: The newest call of each start of its agent that was heard lately, the present one last.
    calls: dict[str, int] = field(default_factory=dict)
    #: New calls in a row of a start that another one seems to have followed.
    overtaken_calls: int = 0

    def hear(self, message: Heartbeat, now: float) -> None:
        """Note what a heartbeat says of the machine and its agent."""
        self.heard_at, self.was_heard, self.problem, self.protocol = now, True, message.problem, message.protocol
        if message.devices is not None:
            self.devices, self.devices_at = tuple(message.devices), now
            for each in message.devices:
                used = inf if each.utilization is None else each.utilization
                self.peaks[each.device] = max(used, self.peaks.get(each.device, 0.0))
        self.alive = {(JobId(here.job_id), here.attempt) for here in message.here}

    def is_late(self, session: str, call: int) -> bool:
        """Note a call of the agent. Returns True for one that was overtaken: what it says is there is of the past."""
        if not call:
            return False  # an agent of an older release does not count its calls
        if session in self.calls and call <= self.calls[session]:
            return True
        overtaken = session in self.calls and session != next(reversed(self.calls))
        self.calls[session] = call
        self.overtaken_calls = self.overtaken_calls + 1 if overtaken else 0
        if overtaken and self.overtaken_calls < _CALLS_OF_THE_LIVING:
            return True
        # What calls on and on is no late call: it was a call of a former start that came between.
        self.calls[session] = self.calls.pop(session)
        self.overtaken_calls = 0
        if len(self.calls) > _SESSIONS_KEPT:
            del self.calls[next(iter(self.calls))]
        return False

    @property
    def tools(self) -> frozenset[str] | None:
        """What it has of what jobs may need; None: it has not said."""
        return frozenset(json.loads(self.row.tools)) if self.row.tools else None

    @property
    def shown_state(self) -> str:
        return self.row.cordon if self.row.state == "up" and self.row.cordon else self.row.state

    @property
    def is_member(self) -> bool:
        """The core counts it as a machine of the fleet."""
        return self.row.state in ("up", "unreachable")


@dataclass(slots=True)
class IgnoredCounters:
    """Things that are ignored by design, counted so that they can be seen."""

    stale_reports: int = 0
    stale_commits: int = 0
    fenced: int = 0
    #: Reports of types that this release does not know, and those types.
    unknown_reports: int = 0
    unknown_types: set[str] = field(default_factory=set)


#: Of a live state that no store stands behind.
_UNNAMED = ClusterIdentity(cluster_id="0" * 32, incarnation="0" * 16)


@dataclass(slots=True)
class LiveState:
    """The live rows by name."""

    identity: ClusterIdentity = _UNNAMED
    #: Incarnations of this cluster before this one.
    former: frozenset[str] = frozenset()
    jobs: dict[JobId, LiveJob] = field(default_factory=dict)
    nodes: dict[NodeId, LiveNode] = field(default_factory=dict)
    #: SHA-256 of an agent's credential -> its machine.
    credentials: dict[str, NodeId] = field(default_factory=dict)
    pools: dict[PoolId, Pool] = field(default_factory=dict)
    #: As this process knew them last: machines that were given back late are charged still.
    removed_pools: dict[PoolId, Pool] = field(default_factory=dict)
    rents: dict[str, RentRow] = field(default_factory=dict)
    #: Requests of this process that are over: a provider may have machines of them still. The oldest leave first.
    past_rents: dict[str, RentRow] = field(default_factory=dict)
    #: Machines that pools may come to have, whether or not they are here: owned ones of the cluster file, and those
    #: that were here before a restart. For admission, which must not refuse what only has to wait for a machine.
    expected_machines: dict[PoolId, int] = field(default_factory=dict)
    #: Answers of this process by (user, key): the store may not have the newest yet. The oldest leave first.
    answers: dict[tuple[str, str], AnswerRow] = field(default_factory=dict)
    answers_pruned_at: float = -inf
    #: How jobs of this process ended: the store may not know the newest yet. The oldest leave first.
    ended: dict[JobId, JobState] = field(default_factory=dict)
    #: Sealed secrets of jobs that have some.
    secrets: dict[JobId, bytes] = field(default_factory=dict, repr=False)
    #: What users are to be told, and where.
    notifications: NotificationQueue = field(default_factory=NotificationQueue)
    #: Reservations that people have made, by number; those that are over as well.
    bookings: dict[int, BookingRow] = field(default_factory=dict)
    proposal: Proposal | None = None
    solved_at: float = 0.0
    #: What one more accelerator of each pool was worth in the hour that is under way.
    price_history: PriceHistory = field(default_factory=PriceHistory)
    counters: IgnoredCounters = field(default_factory=IgnoredCounters)
    #: Jobs whose target may be forecast anew, those that have waited longest first.
    to_forecast: dict[JobId, None] = field(default_factory=dict)
    #: By kind, accelerator type and count: in which part of its steps rank 0 waited for its data, in tenths.
    data_waits: dict[tuple[str, str, int], int] = field(default_factory=dict)
    #: Another number whenever one of them changed.
    data_waits_version: int = 0
    #: Cells of this generation whose beliefs have been written down, with what was measured.
    scores_stored: int = 0
    next_job_id: int = 1
    next_command_id: int = 1
    next_charge_id: int = 1
    #: Unix seconds of instant 0: months begin and end by the calendar.
    epoch_unix_s: float = 0.0
    #: By the ledger of money, USD by project ("" is everything), in all and by month.
    spent_usd: dict[str, float] = field(default_factory=dict)
    spent_month_usd: dict[tuple[str, str], float] = field(default_factory=dict)
    #: By project, user and month.
    spent_user_usd: dict[tuple[str, str, str], float] = field(default_factory=dict)
    #: (project, user) of the budgets of users that the policy in force has; project "": in all of them.
    users_with_budgets: tuple[tuple[str, str], ...] = ()
    #: What counts against budgets otherwise, and what was credited.
    budgets: BudgetBooks = field(default_factory=BudgetBooks)
    #: The month that the core knows of.
    month: str = ""
    #: Content of checkpoints that newer ones have taken the place of since the store was looked through for it.
    superseded: set[str] = field(default_factory=set)
    #: Places in object stores where newer checkpoints have taken the place of others.
    superseded_places: set[str] = field(default_factory=set)
    #: What was written down last of what only the core knows, but for its instant.
    kept_core_state: StateRestored | None = None

    def pool_of(self, pool_id: PoolId) -> Pool:
        """The pool of a machine or request, which may have been removed since."""
        return self.pools.get(pool_id) or self.removed_pools[pool_id]

    def end_rent(self, rent: RentRow) -> None:
        """The request has failed, or its machines are all gone."""
        del self.rents[rent.token]
        self.past_rents[rent.token] = rent
        if len(self.past_rents) > PAST_RENTS_MOST:
            del self.past_rents[next(iter(self.past_rents))]

    def attempt(self, job_id: JobId, attempt: int) -> LiveAttempt | None:
        """The attempt if it is the job's current one and not over: the fence."""
        job = self.jobs.get(job_id)
        if job is None or job.attempt is None or job.attempt.row.attempt != attempt:
            return None
        return job.attempt

    def tools_in_pools(self, request: JobRequest) -> list[frozenset[str] | None]:
        """What the machines have that the job fits, one by one; None for one that has not said, and for a pool without
        machines: nobody knows what comes there.
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
        """The pool may come to have at least this many machines."""
        if machines > self.expected_machines.get(pool_id, 0):
            self.expected_machines[pool_id] = machines

    def remember(self, answer: AnswerRow) -> None:
        self.answers[answer.user, answer.key] = answer
        while len(self.answers) > _REMEMBERED:
            del self.answers[next(iter(self.answers))]

    def end(self, job_id: JobId, state: JobState) -> None:
        """The job is over."""
        del self.jobs[job_id]
        self.ended[job_id] = state
        while len(self.ended) > _REMEMBERED:
            del self.ended[next(iter(self.ended))]


def accelerators_text(pools: Mapping[PoolId, Pool], placement: Placement) -> str:
    """What an attempt holds by type, in the order of its ranks, such as `a100:32,v100:96`."""
    held: dict[str, int] = {}
    for pool_id, count in placement.by_pool.items():
        name = pools[pool_id].shape.accelerator
        held[name] = held.get(name, 0) + count
    return ",".join(f"{name}:{count}" for name, count in held.items())


def placement_json(placement: Placement) -> str:
    """[node, devices] for every machine, with the pool behind where that is not the placement's."""
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
    for job in loaded.jobs:
        state.jobs[job.job_id] = LiveJob(job, launches[job.job_id], target=parse_target(job.target))
        if job.target:
            state.to_forecast[job.job_id] = None
    for node in loaded.nodes:
        facts = ShapeFacts.model_validate_json(node.facts)
        until = now + lease_s[facts.market]
        state.nodes[node.node_id] = LiveNode(node, facts, heard_at=now, leased_until=until)
        state.credentials[node.credential] = node.node_id
    parts_of: dict[tuple[JobId, int], dict[NodeId, PartRow]] = {}
    for part in loaded.parts:
        parts_of.setdefault((part.job_id, part.attempt), {})[part.node_id] = part
    for row in loaded.attempts:
        parts = parts_of.get((row.job_id, row.attempt), {})
        state.jobs[row.job_id].attempt = LiveAttempt(row, parse_placement(row), parts)
        for part in parts.values():
            if not part.ended:
                state.nodes[part.node_id].expected.add((row.job_id, row.attempt))
    for checkpoint in loaded.checkpoints:  # in order: the newest two stay
        of_job = state.jobs[checkpoint.job_id]
        of_job.earlier_checkpoint, of_job.checkpoint = of_job.checkpoint, checkpoint
    for command in loaded.outbox:
        if command.node_id in state.nodes:
            state.nodes[command.node_id].outbox[command.command_id] = _command.validate_json(command.body)
    state.pools = {row.pool_id: parse_pool(row.body) for row in loaded.pools}
    for pool_id, machines in Counter(node.pool_id for node in loaded.nodes if not node.rent_token).items():
        state.expect(pool_id, machines)
    state.secrets = {row.job_id: row.sealed for row in loaded.secrets}
    state.rents = {rent.token: rent for rent in loaded.rents}
    state.past_rents = {rent.token: rent for rent in loaded.past_rents}
    state.bookings = {row.booking_id: row for row in loaded.bookings}
    state.budgets.credits = list(loaded.credits)
    return state
