"""One transaction of the live server: events, the core's commands, changed rows, messages and effects of one batch.

A transaction spans the steps of one batch. What it collects is committed at once; messages are posted and effects are
carried out only after the commit. `emit` (`apply_commands.py`) applies each command.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from logging import DEBUG, Logger

from scheduler.core.commands import Command, RankJobs, ReleaseNode, Rent, Solve
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event, StateRestored
from scheduler.live.loop.live_state import LiveAttempt, LiveJob, LiveNode, LiveState, dump_target
from scheduler.live.store.event_journal import GENERATION, dump_state, encode_command, encode_event
from scheduler.live.store.store_interface import WriteBatch
from scheduler.live.store.table_rows import (
    AttemptRow,
    CoreStateRow,
    JobRow,
    JournalRow,
    NodeRow,
    OutboxRow,
    PartRow,
    RentRow,
)
from walras.cluster import NodeId
from walras.job_request import JobId
from walras.wire import AgentCommand


@dataclass(slots=True)
class TransactionEffects:
    """What is to be done once the batch is durable."""

    solves: list[Solve | RankJobs] = field(default_factory=list)
    rents: list[Rent] = field(default_factory=list)
    releases: list[ReleaseNode] = field(default_factory=list)
    posts: list[tuple[NodeId, AgentCommand]] = field(default_factory=list)
    #: Machines whose agents must get an answer at once.
    woken: set[NodeId] = field(default_factory=set)
    #: Instants at which the core asked to be woken.
    wakes: list[float] = field(default_factory=list)
    #: Events with the core's commands, for metrics and the like; and the commit's seconds, None if nothing was written.
    answered: list[tuple[Event, list[Command]]] = field(default_factory=list)
    commit_s: float | None = None


class Transaction:
    """Collects the writes and effects of one batch. `at` is the instant of the step being taken."""

    def __init__(
        self, core: SchedulerCore, state: LiveState, lease_s: Mapping[str, float], progress_interval_s: float = 60.0
    ) -> None:
        self.core = core
        #: The least time, s, between two progress reports of a job to the core.
        self.progress_interval_s = progress_interval_s
        self.state = state
        #: Length of a lease, seconds, by market.
        self.lease_s = lease_s
        self.at = 0.0
        self.effects = TransactionEffects()
        #: Rows to write that nothing else refers to (specs, checkpoints, policies, answers, tokens).
        self.batch = WriteBatch()
        #: What only the core knows, to be stored beside the tables; None: it is not due.
        self.core_state: StateRestored | None = None
        self._records: list[tuple[Event, list[Command]] | JournalRow] = []
        self._jobs: dict[JobId, JobRow] = {}
        self._attempts: dict[tuple[JobId, int], AttemptRow] = {}
        self._parts: dict[tuple[JobId, int, NodeId], PartRow] = {}
        self._nodes: dict[NodeId, NodeRow] = {}
        self._rents: dict[str, RentRow] = {}

    # ---------------------------------------------------------------- events in, commands out

    def record(self, event: Event, commands: list[Command]) -> None:
        """Record the core's commands for an event."""
        self._records.append((event, commands))
        self.effects.answered.append((event, commands))

    def begin_generation(self, core: SchedulerCore) -> None:
        """Continue with a fresh core, which begins a generation of the journal."""
        self.core = core
        self._records.append(JournalRow(self.at, GENERATION, "Generation", "{}"))

    # ---------------------------------------------------------------- rows that changed

    def job_changed(self, job: LiveJob) -> None:
        self._jobs[job.row.job_id] = job.row

    def target_changed(self, job: LiveJob) -> None:
        """Copy the job's target into its row; nothing where it has none."""
        if job.target is not None:
            job.row.target = dump_target(job.target)
            self.job_changed(job)

    def attempt_changed(self, attempt: LiveAttempt) -> None:
        self._attempts[attempt.row.job_id, attempt.row.attempt] = attempt.row

    def part_changed(self, part: PartRow) -> None:
        self._parts[part.job_id, part.attempt, part.node_id] = part

    def node_changed(self, node: LiveNode) -> None:
        self._nodes[node.row.node_id] = node.row
        self.batch.keep(NodeRow, node.row.node_id)  # forgotten and joined again in one transaction

    def node_forgotten(self, node: LiveNode) -> None:
        """Take the machine out of the live state and the tables. Nothing may be alive there."""
        node_id = node.row.node_id
        del self.state.nodes[node_id]
        self.state.credentials.pop(node.row.credential, None)
        self._nodes.pop(node_id, None)
        self.batch.delete(OutboxRow, *node.outbox)
        self.batch.delete(NodeRow, node_id)

    def rent_changed(self, rent: RentRow) -> None:
        self._rents[rent.token] = rent

    # ---------------------------------------------------------------- messages to agents

    def post(self, node_id: NodeId, command: AgentCommand) -> None:
        """Queue a command for an agent; it is sent after the commit."""
        self.batch.last_command_id = command.command_id
        self.effects.posts.append((node_id, command))

    def next_command_id(self) -> int:
        command_id = self.state.next_command_id
        self.state.next_command_id += 1
        return command_id

    # ---------------------------------------------------------------- the end of the transaction

    def freeze(self) -> "FrozenTransaction":
        """Returns copies of everything that changed, for the writer thread."""
        batch = self.batch
        for changed in (self._jobs, self._attempts, self._parts, self._nodes, self._rents):
            batch.put(*map(replace, changed.values()))
        return FrozenTransaction(batch, self._records, tuple(self.effects.posts), self.core_state)


@dataclass(slots=True)
class FrozenTransaction:
    """A transaction whose journal and messages are not encoded yet: the writer thread does this slow part."""

    batch: WriteBatch
    records: list[tuple[Event, list[Command]] | JournalRow]
    posts: tuple[tuple[NodeId, AgentCommand], ...] = ()
    core_state: StateRestored | None = None
    is_encoded: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.records or self.posts or self.core_state) and self.batch.is_empty()

    def log_events(self, log: Logger) -> None:
        """Log one line per event and command, at level DEBUG."""
        if not log.isEnabledFor(DEBUG):
            return
        for record in self.records:
            if isinstance(record, JournalRow):
                log.debug("%s", record.type)
                continue
            event, commands = record
            log.debug("event %s", event)
            for command in commands:
                log.debug("  command %s", type(command).__name__ if isinstance(command, Solve | RankJobs) else command)

    def encoded(self) -> WriteBatch:
        """Returns what is to be written; the same again at each repeated try, after the disk has refused it."""
        if self.is_encoded:
            return self.batch
        self.is_encoded = True
        journal: list[JournalRow] = []
        for record in self.records:
            if isinstance(record, JournalRow):
                journal.append(record)
                continue
            event, commands = record
            journal.append(encode_event(event))
            journal.extend(encode_command(event.at, command) for command in commands)
        self.batch.put(*journal)
        for node_id, command in self.posts:
            self.batch.put(OutboxRow(command.command_id, node_id, command.model_dump_json()))
        if self.core_state is not None:
            self.batch.put(CoreStateRow(self.core_state.at, dump_state(self.core_state)))
        return self.batch
