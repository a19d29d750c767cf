"""A starting server's core: fresh, and told what the tables know.

Every start begins a new generation of the journal. The fresh core hears the policy, the pools, what was measured, the
machines as they stand, the requests for machines, the attempts that may be alive and the jobs that wait: in this order,
so that nothing is given a place that is taken. It commands nothing about what goes on; what it starts besides is
ordinary. So a restart costs what is active (about 0.3 ms a job), not what has happened, and a new version can take over
from an old one. What jobs are owed, the policy's memory and the waits between tries (of failed jobs, refused starts,
machines that could not be rented) start anew, tries that are charged do not; a solve follows at once.

Commands that agents have not confirmed are in the outbox and go out again by their ids.
"""

from dataclasses import dataclass, replace
from math import inf

from scheduler.core.core import SchedulerCore
from scheduler.core.events import (
    JobRestored,
    NodeJoined,
    NodeLeaving,
    NodeQuarantined,
    NodeUnreachable,
    PolicyChanged,
    PoolDeclared,
    RentRestored,
    RestartMeasured,
    ThroughputMeasured,
)
from scheduler.core.speed_events import FactsTold, NetworkKnown
from scheduler.live.desks.policy_desk import PolicyInForce
from scheduler.live.records.journal import parse_facts
from scheduler.live.records.rows import Loaded
from scheduler.live.turns import money
from scheduler.live.turns.board import LiveAttempt, LiveJob, LiveNode
from scheduler.live.turns.carry_out import emit
from scheduler.live.turns.turn import Turn
from walras.cluster import Rendezvous
from walras.ids import JobId
from walras.reasons import Reason
from walras.request import JobRequest
from walras.states import AttemptState


@dataclass(frozen=True, slots=True)
class Used:
    """What a job has had."""

    accelerator_s: float = 0.0
    usd: float = 0.0


def take_over(
    turn: Turn,
    in_force: PolicyInForce,
    loaded: Loaded,
    requests: dict[JobId, JobRequest],
    used: dict[JobId, Used],
) -> None:
    """Begin a generation with a core that knows what its predecessor's tables say."""
    # Charged until now: what the fresh core is told of the books is all that came before it.
    spent = money.restate(turn)
    turn.begin_generation(SchedulerCore())
    turn.board.judged = 0
    emit(turn, PolicyChanged(turn.at, in_force.spec, in_force.rules))
    emit(turn, spent)
    for pool in list(turn.board.pools.values()):
        emit(turn, PoolDeclared(turn.at, pool))
    for network in loaded.networks:
        emit(turn, NetworkKnown(turn.at, network.pool_id, network.bytes_per_s))
    for known in loaded.facts:
        emit(turn, FactsTold(turn.at, known.kind, parse_facts(known.body), known.counted))
    for speed in loaded.speeds:
        emit(turn, ThroughputMeasured(turn.at, speed.kind, speed.accelerator, speed.count, speed.steps_per_s))
    for cost in loaded.restart_costs:
        emit(turn, RestartMeasured(turn.at, cost.kind, cost.restart_s))
    for node in list(turn.board.nodes.values()):
        if node.is_member:
            _machine(turn, node)
    for rent in list(turn.board.rents.values()):
        here = sum(node.row.rent_token == rent.token and node.is_member for node in turn.board.nodes.values())
        if rent.machines > here:
            emit(turn, RentRestored(turn.at, rent.token, rent.pool_id, rent.machines - here))
    # Those that hold places first: a waiting job may be started as soon as the core hears of it.
    for job in sorted(turn.board.jobs.values(), key=lambda job: (job.attempt is None, job.row.job_id)):
        emit(turn, _restored(turn.at, job, requests[job.row.job_id], used.get(job.row.job_id, Used())))


def _machine(turn: Turn, node: LiveNode) -> None:
    """A machine as it stands."""
    row = node.row
    state, cordon, detail = row.state, row.cordon, row.detail
    paid_since = money.paid_since(turn.board, node) if row.rent_token else None
    emit(turn, NodeJoined(turn.at, row.node_id, row.pool_id, row.rent_token, paid_since))
    if cordon == "leaving":
        emit(turn, NodeLeaving(turn.at, row.node_id, inf, Reason.HOLD_ADMIN))
    elif cordon == "quarantined":
        emit(turn, NodeQuarantined(turn.at, row.node_id, detail))
    if state == "unreachable":
        emit(turn, NodeUnreachable(turn.at, row.node_id))
    # A release that was under way is forgotten with the core that wanted it.
    row.detail = detail if cordon or state != "up" else ""


def _restored(at: float, job: LiveJob, request: JobRequest, used: Used) -> JobRestored:
    row, attempt = job.row, job.attempt
    held_by = row.reason if row.state == "HELD" else None
    revoked = None
    if attempt is not None and attempt.row.state is AttemptState.STOPPING:
        revoked = attempt.row.reason
    if revoked is not None and revoked.value.startswith("HOLD:"):
        held_by = revoked
    return JobRestored(
        at=at,
        job=replace(request, priority=row.priority, budget_usd=row.budget_usd or request.budget_usd),
        submitted_at=row.submitted_at,
        state=row.state,
        attempt=row.attempts,
        restarts=row.restarts,
        steps=row.steps,
        safe_steps=0.0 if job.checkpoint is None else job.checkpoint.step,
        attained_s=used.accelerator_s,
        spent_usd=used.usd,
        hold_reason=held_by,
        placement=None if attempt is None else attempt.placement,
        leased_at=0.0 if attempt is None else attempt.row.leased_at,
        running_at=inf if attempt is None or attempt.row.started_at is None else attempt.row.started_at,
        prepared=() if attempt is None else tuple(part.node_id for part in attempt.parts.values() if part.prepared),
        rendezvous=None if attempt is None else _meeting_place(attempt),
        revoked=revoked,
    )


def _meeting_place(attempt: LiveAttempt) -> Rendezvous | None:
    first = attempt.parts[attempt.placement.parts[0].node_id]
    return Rendezvous(first.address, first.port) if first.port else None
