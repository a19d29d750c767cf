"""What the live server holds in memory: the rows of everything that is not over, and what joins them.

The core's ledger says what is decided; the board says what is needed to carry it out and to show it: specs to start
from, which machine has reported what, commands that agents have not confirmed. Only a turn changes it.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from math import inf

from pydantic import TypeAdapter

from scheduler.core.events import Proposal
from scheduler.live.records.journal import parse_pool
from scheduler.live.records.rows import AnswerRow, AttemptRow, CheckpointRow, JobRow, Loaded, NodeRow, PartRow, RentRow
from scheduler.live.turns.targets import JobTarget, parse_target
from walras.cluster import NodeShare, Placement, Pool
from walras.ids import JobId, Kind, NodeId, PoolId
from walras.states import JobState
from walras.wire import AgentCommand, AnyCommand, ProgressReport, ShapeFacts

#: Answers and ends that are kept in memory beside the store.
_REMEMBERED = 10_000
_command: TypeAdapter[AnyCommand] = TypeAdapter(AnyCommand)


@dataclass(frozen=True, slots=True)
class Launch:
    """What the ranks of a job are started with."""

    name: str
    kind: Kind
    argv: tuple[str, ...]
    env: dict[str, str]
    #: Empty: a fresh folder for each attempt.
    workdir: str
    checkpoint_dir: str
    steps: float | None
    grace_s: float


@dataclass(slots=True)
class LiveAttempt:
    """The current attempt of a job, in its parts."""

    row: AttemptRow
    placement: Placement
    parts: dict[NodeId, PartRow]
    #: The core has heard what its machines exchange.
    network_told: bool = False
    #: What it counted of its model has been taken in.
    facts_told: bool = False
    #: What its kind was measured to reach here before this attempt reported a speed; None: nobody had measured it.
    usual_steps_per_s: float | None = None
    #: The core has heard that it differs from that.
    is_odd: bool = False

    @property
    def is_over(self) -> bool:
        """Nothing of it is left anywhere."""
        return all(part.ended for part in self.parts.values())


@dataclass(slots=True)
class LiveJob:
    row: JobRow
    launch: Launch
    attempt: LiveAttempt | None = None
    checkpoint: CheckpointRow | None = None
    #: The newest report of progress, and whether and when the core was told.
    progress: ProgressReport | None = None
    progress_told: bool = True
    progress_told_at: float = -inf
    speed_told: bool = False
    #: What it is to reach, if anything, and how far it is. The row has it as it was written last.
    target: JobTarget | None = None


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

    @property
    def shown_state(self) -> str:
        return self.row.cordon if self.row.state == "up" and self.row.cordon else self.row.state

    @property
    def is_member(self) -> bool:
        """The core counts it as a machine of the fleet."""
        return self.row.state in ("up", "unreachable")


@dataclass(slots=True)
class Counters:
    """Things that are ignored by design, counted so that nobody has to guess."""

    stale_reports: int = 0
    stale_commits: int = 0
    fenced: int = 0


#: So many requests that are over are remembered.
_PAST_RENTS = 1000


@dataclass(slots=True)
class Board:
    """The live rows by name."""

    jobs: dict[JobId, LiveJob] = field(default_factory=dict)
    nodes: dict[NodeId, LiveNode] = field(default_factory=dict)
    #: SHA-256 of an agent's credential -> its machine.
    credentials: dict[str, NodeId] = field(default_factory=dict)
    pools: dict[PoolId, Pool] = field(default_factory=dict)
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
    proposal: Proposal | None = None
    solved_at: float = 0.0
    counters: Counters = field(default_factory=Counters)
    #: Jobs of whose target something new may be foreseen, those that have waited longest first.
    to_foresee: dict[JobId, None] = field(default_factory=dict)
    #: Cells of this generation whose beliefs have been written down, with what was measured.
    judged: int = 0
    next_job_id: int = 1
    next_command_id: int = 1
    next_charge_id: int = 1
    #: Unix seconds of instant 0: months begin and end by the calendar.
    epoch_unix_s: float = 0.0
    #: By the ledger of money, USD by project ("" is everything), in all and by month.
    spent_usd: dict[str, float] = field(default_factory=dict)
    spent_month_usd: dict[tuple[str, str], float] = field(default_factory=dict)
    #: The month that the core has been told of.
    month: str = ""

    def end_rent(self, rent: RentRow) -> None:
        """The request has failed, or its machines are all gone."""
        del self.rents[rent.token]
        self.past_rents[rent.token] = rent
        if len(self.past_rents) > _PAST_RENTS:
            del self.past_rents[next(iter(self.past_rents))]

    def attempt(self, job_id: JobId, attempt: int) -> LiveAttempt | None:
        """The attempt if it is the job's current one and not over: the fence."""
        job = self.jobs.get(job_id)
        if job is None or job.attempt is None or job.attempt.row.attempt != attempt:
            return None
        return job.attempt

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


def load_board(loaded: Loaded, launches: dict[JobId, Launch], now: float, lease_s: dict[str, float]) -> Board:
    """The board of a starting server. Machines get a full lease from now: none granted earlier can end later."""
    board = Board(next_job_id=loaded.last_job_id + 1, next_command_id=loaded.last_command_id + 1)
    board.next_charge_id = loaded.last_charge_id + 1
    for job in loaded.jobs:
        board.jobs[job.job_id] = LiveJob(job, launches[job.job_id], target=parse_target(job.target))
        if job.target:
            board.to_foresee[job.job_id] = None
    for node in loaded.nodes:
        facts = ShapeFacts.model_validate_json(node.facts)
        until = now + lease_s[facts.market]
        board.nodes[node.node_id] = LiveNode(node, facts, heard_at=now, leased_until=until)
        board.credentials[node.credential] = node.node_id
    parts_of: dict[tuple[JobId, int], dict[NodeId, PartRow]] = {}
    for part in loaded.parts:
        parts_of.setdefault((part.job_id, part.attempt), {})[part.node_id] = part
    for row in loaded.attempts:
        parts = parts_of.get((row.job_id, row.attempt), {})
        board.jobs[row.job_id].attempt = LiveAttempt(row, parse_placement(row), parts)
        for part in parts.values():
            if not part.ended:
                board.nodes[part.node_id].expected.add((row.job_id, row.attempt))
    for checkpoint in loaded.checkpoints:  # in order: the newest stays
        board.jobs[checkpoint.job_id].checkpoint = checkpoint
    for command in loaded.outbox:
        if command.node_id in board.nodes:
            board.nodes[command.node_id].outbox[command.command_id] = _command.validate_json(command.body)
    board.pools = {row.pool_id: parse_pool(row.body) for row in loaded.pools}
    for pool_id, machines in Counter(node.pool_id for node in loaded.nodes if not node.rent_token).items():
        board.expect(pool_id, machines)
    board.rents = {rent.token: rent for rent in loaded.rents}
    return board
