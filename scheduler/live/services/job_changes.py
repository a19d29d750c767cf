"""Changes a job that has not ended: in its spec, in what a restart restores, and in the core.

The spec keeps the instant of a deadline, not the words, because `+6h` counts from the change, which a reader of the
spec does not know.

Only a waiting job without an attempt goes to another project, so that no charge is open: what it has cost stays with
the project that paid. What the owner stated stays and must be within the caps of the new project; defaults are taken
anew there.
"""

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf

from scheduler.core.events import JobDeadlineChanged, JobProjectChanged
from scheduler.live.auth.access_control import UserCaller, UserRole
from scheduler.live.auth.people import People
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.event_loop import Clock
from scheduler.live.loop.live_state import LiveJob
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.job_submission import (
    JobAdmission,
    JobDraft,
    dump_defaults,
    paying_project,
    with_standing,
)
from scheduler.live.store.event_journal import dump_json, parse_request
from scheduler.live.store.table_rows import SpecRow
from walras.errors import Conflict, Forbidden, JobSpecError
from walras.job_request import JobRequest, Kind, kind_within
from walras.resources.jobs import Patch
from walras.resources.people import ALL_PROJECTS
from walras.spec.field_types import parse_instant
from walras.spec.job_spec import parse_spec, spec_mapping
from walras.states import JobState

#: The word that removes the deadline.
NO_DEADLINE = "none"


def changed_deadline(stored: SpecRow, written: str, clock: Clock) -> SpecRow:
    """Returns the row with the deadline that is written as in a job file, or without one for `none`.

    Raises JobSpecError where it is no instant, has passed, is before the job may start, or stands beside what excludes
    deadlines.
    """
    spec, request = json.loads(stored.spec), parse_request(stored.request)
    if written.strip().lower() == NO_DEADLINE:
        spec.pop("deadline", None)
        return replace(stored, spec=json.dumps(spec), request=dump_json(replace(request, deadline_at=inf)))
    now, epoch = clock.now(), clock.unix(0.0)
    try:
        instant = parse_instant(written, now=epoch + now)
    except ValueError as error:
        raise JobSpecError(f"deadline: {error}", field="deadline", fix="or `none`, to take it away") from None
    deadline_at = instant - epoch
    if deadline_at <= max(now, request.not_before_at):
        earlier = "has passed" if deadline_at <= now else "is before not_before"
        raise JobSpecError(f"the deadline {written!r} {earlier}", field="deadline", fix="choose a later one")
    try:
        spec["deadline"] = datetime.fromtimestamp(instant, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        raise JobSpecError(
            "deadline: it is beyond the calendar", field="deadline", fix="choose an earlier one"
        ) from None
    parse_spec(spec)
    return replace(stored, spec=json.dumps(spec), request=dump_json(replace(request, deadline_at=deadline_at)))


def changed_terms(stored: SpecRow, priority: int | None, budget_usd: float | None) -> SpecRow:
    """Returns the row with these in its spec, so that the job is submitted again as it is now; None: as it was."""
    spec = json.loads(stored.spec)
    if priority is not None:
        spec["priority"] = priority
    if budget_usd is not None:
        spec["limits"] = spec.get("limits", {}) | {"budget_usd": budget_usd}
    return replace(stored, spec=json.dumps(spec))


def change_deadline(transaction: Transaction, changed: SpecRow) -> None:
    """Write the row, and tell the core."""
    transaction.batch.put(changed)
    deadline_at = parse_request(changed.request).deadline_at
    emit(transaction, JobDeadlineChanged(transaction.at, changed.job_id, deadline_at))


def shown_deadline(transaction: Transaction, changed: SpecRow, clock: Clock) -> str | None:
    """Returns the deadline that the core has of the job now, for people; None where it has none."""
    job = transaction.core.ledger.jobs.get(changed.job_id)
    if job is None or job.request.deadline_at == inf:
        return None
    try:
        return clock.shown(job.request.deadline_at)
    except (OverflowError, ValueError):  # the last day of the calendar, in a time zone where it is later
        return "beyond the calendar"


# ------------------------------------------------------------------------------------------ project


@dataclass(frozen=True, slots=True)
class ProjectChange:
    """A job as it will be in its new project."""

    former: str
    draft: JobDraft
    request: JobRequest
    stored: SpecRow


def changed_project(stored: SpecRow, job: LiveJob, patch: Patch, caller: UserCaller, people: People) -> ProjectChange:
    """Returns the job as it will be in the project of the patch, with its priority; without one, with that of now.

    Raises JobSpecError for an invalid project name, Forbidden where caller or owner have no such project or a field is
    beyond its cap, Conflict for a job that holds machines or whose checkpoints lie in a folder of its project.
    """
    row, given = job.row, {**json.loads(stored.spec), "project": patch.project}
    if patch.priority is not None or "priority" not in json.loads(row.defaults):
        given["priority"] = row.priority if patch.priority is None else patch.priority
    spec = parse_spec(given)
    project = paying_project(spec.project, caller)
    _check_waits(job)
    _check_owner(row.user, project, people)
    if spec.checkpoint.dir is not None and (row.attempts or job.checkpoint is not None):
        raise Conflict(
            f"what job {row.job_id} has saved lies in a folder of project {row.project}",
            field="checkpoint.dir",
            fix="submit it again in the other project",
        )
    draft = with_standing(JobDraft(spec, project), caller, people)
    request = replace(
        parse_request(stored.request),
        project=project,
        kind=kind_within(project, Kind(row.kind)),
        priority=draft.spec.priority,
        weight=draft.spec.weight,
        value_usd_per_h=draft.spec.value_usd_per_h,
    )
    kept = SpecRow(row.job_id, json.dumps(spec_mapping(spec)), dump_json(request))
    return ProjectChange(row.project, draft, request, kept)


def reassign_job(
    transaction: Transaction, job: LiveJob, change: ProjectChange, admission: JobAdmission
) -> dict[str, dict[str, str]]:
    """Write the rows, and tell the core. Returns the audit row's before and after, for people of the new project.

    Raises Conflict where the job has changed since.
    """
    _check_waits(job)
    if job.row.project != change.former:
        raise Conflict(f"job {job.row.job_id} has gone to project {job.row.project}", fix="look at it again")
    row, request, spec = job.row, change.request, change.draft.spec
    row.project, row.priority = request.project, request.priority
    row.defaults = dump_defaults(change.draft.defaults)
    job.launch = admission.launch(row.job_id, request.project, spec, row.sweep)
    transaction.batch.put(change.stored)
    standing = request.project, request.priority, request.weight, request.value_usd_per_h
    emit(transaction, JobProjectChanged(transaction.at, row.job_id, *standing, request.kind))
    return {"before": {"project": change.former}, "after": {"project": request.project}}


def _check_waits(job: LiveJob) -> None:
    row = job.row
    if job.attempt is not None or row.state not in (JobState.PENDING, JobState.HELD):
        raise Conflict(
            f"job {row.job_id} is {row.state}: what it uses is counted in project {row.project} until it stops",
            field="project",
            fix=f"hold it first: walras hold {row.job_id}, and release it when it has gone",
        )


def _check_owner(owner: str, project: str, people: People) -> None:
    """Raise Forbidden where the owner would not see the job any more."""
    known = None if people.is_removed(owner) else people.users.get(owner)
    if known is None or UserRole[known.role.upper()] is UserRole.ADMIN:
        return
    if project not in known.projects and ALL_PROJECTS not in known.projects:
        raise Forbidden(
            f"{owner}, whose job it is, has no project {project!r}",
            field="project",
            fix=f"have it added first: walras admin set user {owner} projects={','.join((*known.projects, project))}",
        )
