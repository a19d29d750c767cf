"""The core of a starting server: the current generation of the journal, through a fresh core.

A *generation* is a stretch of the journal that begins with a fresh core. A restarted server feeds its events through a
core again and gets exactly the core it had; the commands are compared with the recorded ones and thrown away
(unconfirmed ones are in the outbox and go out again by their ids). If they differ, the journal was written by another
version of the scheduler: the server refuses to guess, because a core that believes other placements than the machines
hold would start things twice.

When nothing is active and the generation has grown long, a new one begins: a fresh core is told the policy, the pools,
the machines and what was measured. Restart time is thus bounded by the events since the fleet was last idle (about
20,000 events a second), not by history.
"""

from dataclasses import dataclass, field

from scheduler.core.commands import AttemptTransitioned, Command, JobTransitioned, Solve, WakeAt
from scheduler.core.core import SchedulerCore
from scheduler.core.events import (
    AttemptProgressed,
    Event,
    JobSubmitted,
    NodeJoined,
    PolicyChanged,
    PoolDeclared,
    Proposal,
    RestartMeasured,
    Solved,
    SolveFailed,
    ThroughputMeasured,
)
from scheduler.live.board import Board
from scheduler.live.carry_out import emit
from scheduler.live.policy_desk import PolicyInForce
from scheduler.live.replay import Core, replay
from scheduler.live.store import Store
from scheduler.live.turn import Turn
from walras.cluster import Pool
from walras.errors import Conflict
from walras.ids import JobId, Kind, PoolId


@dataclass(slots=True)
class Restored:
    """What a replay brings back besides the core."""

    core: SchedulerCore = field(default_factory=SchedulerCore)
    events: int = 0
    #: Instants the core still wants to be woken at.
    wakes: list[float] = field(default_factory=list)
    #: A solve that was asked for and not answered.
    unanswered: int | None = None
    pools: dict[PoolId, Pool] = field(default_factory=dict)
    speeds: dict[tuple[Kind, str, int], float] = field(default_factory=dict)
    proposal: Proposal | None = None
    solved_at: float = 0.0
    _kinds: dict[JobId, Kind] = field(default_factory=dict)
    #: Accelerator type and count of each job's newest attempt.
    _places: dict[JobId, tuple[str, int]] = field(default_factory=dict)

    def made(self, core: Core) -> None:
        assert isinstance(core, SchedulerCore)
        self.core = core

    def seen(self, event: Event, commands: list[Command]) -> None:
        """Note what the shell, not the core, has to remember."""
        self.wakes = [at for at in self.wakes if at > event.at]
        match event:
            case PoolDeclared():
                self.pools[event.pool.pool_id] = event.pool
            case Solved():
                self.proposal, self.solved_at, self.unanswered = event.proposal, event.at, None
            case SolveFailed():
                self.unanswered = None
            case ThroughputMeasured():
                self.speeds[event.kind, event.accelerator, event.count] = event.steps_per_s
            case JobSubmitted():
                self._kinds[event.job.job_id] = event.job.kind
            case AttemptProgressed() if event.steps_per_s is not None and event.job_id in self._places:
                self.speeds[(self._kinds[event.job_id], *self._places[event.job_id])] = event.steps_per_s
            case _:
                pass
        for command in commands:
            self._heed(command)
        self.events += 1

    def _heed(self, command: Command) -> None:
        match command:
            case WakeAt():
                self.wakes.append(command.at)
            case Solve():
                self.unanswered = command.request_id
            case AttemptTransitioned() if command.placement is not None:
                accelerator = self.pools[command.placement.pool_id].shape.accelerator
                self._places[command.job_id] = (accelerator, command.placement.accelerators)
            case JobTransitioned() if command.state.is_final:
                self._places.pop(command.job_id, None)
                self._kinds.pop(command.job_id, None)
            case _:
                pass


def restore(store: Store) -> Restored:
    """Rebuild the core. Raises Conflict where the journal does not replay."""
    restored = Restored()
    report = replay(store.journal(), seen=restored.seen, made=restored.made)
    if not report.identical:
        first = report.differences[0]
        raise Conflict(
            f"the journal does not replay with this version: {first.event.type} at {first.event.at:.3f} s",
            fix="start the version that wrote it, let the jobs end or cancel them, and upgrade while nothing is active",
        )
    return restored


def fill_board(board: Board, restored: Restored) -> None:
    """What the replay knows and the tables do not."""
    board.pools.update(restored.pools)
    board.speeds.update(restored.speeds)
    board.proposal, board.solved_at = restored.proposal, restored.solved_at


class Generations:
    """Begins a new generation when the fleet is idle and the current one has grown long."""

    def __init__(self, events: int, limit: int) -> None:
        self._events = events
        self._limit = limit

    def after_turn(self, turn: Turn, in_force: PolicyInForce) -> None:
        self._events += turn.events
        if self._events >= self._limit and is_idle(turn):
            begin(turn, in_force)
            self._events = 0


def is_idle(turn: Turn) -> bool:
    """Nothing that a fresh core could not be told: no job, no rented machine, every machine plainly up."""
    board = turn.board
    plain = all(
        node.row.state == "up" and not node.row.cordon and not node.row.rent_token
        for node in board.nodes.values()
        if node.is_member
    )
    return not board.jobs and not board.rents and plain


def begin(turn: Turn, in_force: PolicyInForce) -> None:
    """A fresh core takes over; it is told what is."""
    old, board = turn.core, turn.board
    turn.begin_generation(SchedulerCore())
    emit(turn, PolicyChanged(turn.at, in_force.spec, in_force.rules))
    for pool in board.pools.values():
        emit(turn, PoolDeclared(turn.at, pool))
    for node_id, node in board.nodes.items():
        if node.is_member:
            emit(turn, NodeJoined(turn.at, node_id, node.row.pool_id))
    for (kind, accelerator, count), steps_per_s in board.speeds.items():
        emit(turn, ThroughputMeasured(turn.at, kind, accelerator, count, steps_per_s))
    assert isinstance(old, SchedulerCore)
    for kind in dict.fromkeys(kind for kind, _, _ in board.speeds):
        restart_s = old.ledger.costs.restart_s(kind, 0.0)
        if restart_s > 0:
            emit(turn, RestartMeasured(turn.at, kind, restart_s))
