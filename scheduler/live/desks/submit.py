"""From what people send to jobs of the core: specs checked, projects and dependencies resolved, answers remembered.

A batch may name its own jobs in `depends_on`; a cycle is an error of the jobs on it (and of those that need them), the
others are admitted. Nothing is half-created: a job whose spec is refused leaves no trace.
"""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import networkx as nx

from scheduler.core.answers.possible import limits, obstacle
from scheduler.core.core import SchedulerCore
from scheduler.core.events import JobSubmitted
from scheduler.live.access.auth import ALL_PROJECTS, UserCaller
from scheduler.live.desks.kinds import state_facts
from scheduler.live.records.journal import dump_request
from scheduler.live.records.rows import AnswerRow, JobRow, SpecRow
from scheduler.live.turns.board import Board, Launch, LiveJob
from scheduler.live.turns.carry_out import emit
from scheduler.live.turns.clock import Clock
from scheduler.live.turns.targets import JobTarget
from scheduler.live.turns.turn import Turn
from walras.api import SubmitResult
from walras.errors import Forbidden, JobSpecError, UserError
from walras.ids import JobId
from walras.job import JobSpec, argv_of, env_of, kind_of, parse_spec, spec_mapping, to_request
from walras.job_elastic import batch_of
from walras.request import JobRequest
from walras.states import JobState

BATCH_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Draft:
    """A checked spec with what it refers to outside its own batch."""

    spec: JobSpec
    project: str
    #: Numbers of earlier jobs it depends on (by number, or by name in the store).
    earlier: tuple[JobId, ...] = ()
    #: Positions in the same batch that it depends on.
    siblings: tuple[int, ...] = ()


def draft(given: Mapping[str, Any] | str, caller: UserCaller) -> Draft:
    """Check one spec. Raises JobSpecError, or Forbidden for a project that is not the caller's."""
    spec = parse_spec(given)
    env_of(spec)
    return Draft(spec, project_of(spec, caller))


def project_of(spec: JobSpec, caller: UserCaller) -> str:
    """The project that pays: the spec's, else the first of the token's."""
    if spec.project is not None:
        if not caller.sees(spec.project):
            raise Forbidden(
                f"your token has no project {spec.project!r}",
                field="project",
                fix=f"choose one of {', '.join(caller.projects)}",
            )
        return spec.project
    named = [project for project in caller.projects if project != ALL_PROJECTS]
    return named[0] if named else "default"


# ------------------------------------------------------------------------------------------ order inside a batch


def sibling_positions(specs: Sequence[JobSpec | None]) -> list[tuple[int, ...]]:
    """For each spec the positions of the batch's jobs it names; a name used twice means the last one before it."""
    places: dict[str, list[int]] = {}
    for position, spec in enumerate(specs):
        if spec is not None:
            places.setdefault(spec.name, []).append(position)
    found: list[tuple[int, ...]] = []
    for position, spec in enumerate(specs):
        names = [] if spec is None else [name for name in spec.depends_on if name in places]
        found.append(tuple(dict.fromkeys(_place_of(places[str(name)], position) for name in names)))
    return found


def _place_of(places: list[int], position: int) -> int:
    """The last place before the position, else the first of all."""
    return places[max(0, bisect_left(places, position) - 1)]


def submission_order(siblings: Sequence[tuple[int, ...]]) -> tuple[list[int], set[int]]:
    """Positions in an order in which dependencies come first, and the positions that are on a cycle."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(siblings)))
    graph.add_edges_from((needed, position) for position, needs in enumerate(siblings) for needed in needs)
    cyclic = {
        position
        for component in nx.strongly_connected_components(graph)
        for position in component
        if len(component) > 1 or graph.has_edge(position, position)
    }
    graph.remove_nodes_from(cyclic)
    return list(nx.lexicographical_topological_sort(graph)), cyclic


# ------------------------------------------------------------------------------------------ admission


class Admission:
    """Turns drafts into jobs inside a turn."""

    def __init__(self, clock: Clock, epoch_unix_s: float, checkpoints: Path) -> None:
        self._clock = clock
        self._epoch_unix_s = epoch_unix_s
        self._checkpoints = checkpoints

    def admit(
        self, turn: Turn, drafted: Draft, needs: Sequence[JobId], ended: Mapping[JobId, JobState], user: str
    ) -> JobId:
        """Make it a job.

        Raises JobSpecError where a dependency does not exist or can never be met, or the fleet could never run it.
        """
        board, spec = turn.board, drafted.spec
        waits_for = self._unmet(turn, spec, needs, ended)
        job_id = JobId(board.next_job_id)
        request = to_request(
            spec,
            job_id,
            user=user,
            project=drafted.project,
            at=turn.at,
            now_wall=self._epoch_unix_s + turn.at,
            depends_on=waits_for,
        )
        check_possible(turn.core, board, request)
        board.next_job_id += 1
        row = JobRow(
            job_id=job_id,
            name=spec.name,
            project=drafted.project,
            user=user,
            kind=request.kind,
            state=JobState.PENDING,
            priority=spec.priority,
            accelerators=min(demand.count for demand in request.demands),
            submitted_at=turn.at,
            steps_total=spec.steps,
            labels=json.dumps(spec.labels),
        )
        job = LiveJob(row, self.launch(job_id, drafted.project, spec))
        if spec.target is not None:
            job.target = JobTarget(spec.target.value, spec.target.at_most)
        board.jobs[job_id] = job
        turn.job_changed(job)
        turn.target_changed(job)
        turn.batch.specs.append(SpecRow(job_id, json.dumps(spec_mapping(spec)), dump_request(request)))
        if spec.facts is not None:
            state_facts(turn, request.kind, spec.facts.facts(batch_of(spec.batch)), user)
        emit(turn, JobSubmitted(turn.at, request))
        return job_id

    def launch(self, job_id: JobId, project: str, spec: JobSpec) -> Launch:
        """What its ranks are started with."""
        if spec.checkpoint.dir is None:
            folder = self._checkpoints / "jobs" / str(job_id)
        else:
            # The quoted name is one harmless path component, whatever the project is called.
            folder = self._checkpoints / "projects" / f"project-{quote(project, safe='')}" / spec.checkpoint.dir
        return Launch(
            name=spec.name,
            kind=kind_of(spec),
            argv=argv_of(spec),
            env=env_of(spec),
            workdir=spec.workdir or "",
            checkpoint_dir=str(folder),
            steps=spec.steps,
            grace_s=spec.grace_period,
        )

    @staticmethod
    def _unmet(turn: Turn, spec: JobSpec, needs: Sequence[JobId], ended: Mapping[JobId, JobState]) -> tuple[JobId, ...]:
        """Dependencies that are still to end."""
        waits_for = []
        for job_id in dict.fromkeys(needs):
            if job_id in turn.board.jobs:
                waits_for.append(job_id)
                continue
            state = turn.board.ended.get(job_id) or ended.get(job_id)
            if state is None:
                raise JobSpecError(f"no job {job_id} to depend on", field="depends_on", fix="check `walras queue`")
            if state is not JobState.SUCCEEDED and spec.condition == "succeeded":
                raise JobSpecError(
                    f"job {job_id} that this one depends on has ended {state}",
                    field="depends_on",
                    fix="depend on another job, or set `condition: finished`",
                )
        return tuple(waits_for)


def check_possible(core: SchedulerCore, board: Board, request: JobRequest) -> None:
    """Raise JobSpecError for a job that no waiting would start. A fleet without any pool yet refuses nothing."""
    found = obstacle(request, limits(core.ledger.fleet, board.expected_machines))
    if found is not None:
        raise JobSpecError(found.detail, field=found.field, fix=found.fix)


# ------------------------------------------------------------------------------------------ remembered answers

#: A key means its first answer for this long; a client that repeats a request does so within minutes.
KEY_KEPT_S = 24 * 3600.0
_PRUNE_EVERY_S = 3600.0


def body_digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def remembered(known: AnswerRow | None, digest: str, now: float) -> str | None:
    """The first answer to the same key and body within `KEY_KEPT_S`. Raises UserError (422) for another body."""
    if known is None or known.at < now - KEY_KEPT_S:
        return None
    if known.body_sha256 != digest:
        raise KeyReused(
            f"the idempotency key {known.key!r} was used with another body",
            field="Idempotency-Key",
            fix="use a new key for a new request",
        )
    return known.answer


class KeyReused(UserError):
    """The same idempotency key with another body."""


def remember(turn: Turn, user: str, key: str, digest: str, answer: str) -> None:
    row = AnswerRow(user, key, digest, answer, turn.at)
    turn.batch.answers.append(row)
    turn.board.remember(row)
    if turn.at >= turn.board.answers_pruned_at + _PRUNE_EVERY_S:
        turn.board.answers_pruned_at = turn.at
        turn.batch.answers_until = turn.at - KEY_KEPT_S


def result(job_id: JobId, spec: JobSpec) -> SubmitResult:
    return SubmitResult(id=job_id, name=spec.name)
