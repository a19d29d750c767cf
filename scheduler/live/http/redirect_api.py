"""Endpoint that sends a held job to other machines: `POST /jobs/{id}/redirect`.

A held job has no placement and no request for machines, so its resources may change as safely as a new job's. When it
is released, it resumes from its checkpoint. Its spec and the core's view of it are replaced in one transaction, so that
a server that restarts knows the job as it is now.
"""

import json
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from scheduler.core.job_change_events import JobRedirected
from scheduler.live.auth.access_control import UserRole
from scheduler.live.http.job_api import change_live_job, visible_job_row
from scheduler.live.http.requests import RequestContext, Route, parse_json_body
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.live_state import LiveJob
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.job_submission import check_feasible
from scheduler.live.store.event_journal import dump_request, parse_request
from scheduler.live.store.table_rows import SpecRow
from walras.api import JobDetail
from walras.errors import Conflict
from walras.job_request import GangRequest, JobRequest, group_fields
from walras.spec.field_types import MAX_NODES, DeclaredThroughput, Number, WholeNumber
from walras.spec.file_model import FileModel, check_model
from walras.spec.job_groups import PlanSpec, ResourcesSpec
from walras.spec.job_spec import JobSpec, gang_sizes_of, parse_spec, spec_mapping
from walras.spec.job_travel import needs_of
from walras.states import JobState


class Redirection(FileModel):
    """The fields of a job's spec that are to be others, as in a job file; each that is left out becomes its default."""

    resources: ResourcesSpec
    num_nodes: WholeNumber = Field(default=1, ge=1, le=MAX_NODES)
    throughput: Annotated[DeclaredThroughput, Field(max_length=64)] = Field(default_factory=dict)
    value_usd_per_h: Annotated[Number, Field(ge=0, le=1e9)] | None = None
    plan: PlanSpec | None = None


async def redirect_job(call: RequestContext) -> JobDetail:
    """Changes the machines of a held job; returns the job as it is then.

    Raises NotFound, Forbidden, Conflict for a job that is not held, JobSpecError where nothing could run it so.
    """
    asked = check_model(Redirection, parse_json_body(await call.body()), source="redirect")
    row = await visible_job_row(call)
    stored = await call.server.read(call.server.store.spec, row.job_id)
    if stored is None:
        raise Conflict(f"job {row.job_id} is not kept any more")
    if call.user.may_change(row.user, row.project):
        worth = {} if asked.value_usd_per_h is None else {"value_usd_per_h": asked.value_usd_per_h}
        call.server.secrets.people.check(call.user, row.project, worth)
    request = parse_request(stored.request)
    spec = redirected_spec(json.loads(stored.spec), asked, request)
    request = redirected_request(request, spec)

    def step(transaction: Transaction, job: LiveJob) -> None:
        if job.row.state is not JobState.HELD or job.attempt is not None:
            raise Conflict(
                f"job {job.row.job_id} is {job.row.state}: only a held job can be sent elsewhere",
                field="state",
                fix=f"walras hold {job.row.job_id}",
            )
        check_feasible(transaction.core, transaction.state, request, needs_of(spec))
        job.row.accelerators = min(demand.count for demand in request.demands)
        job.launch = call.server.admission.launch(job.row.job_id, job.row.project, spec, job.row.sweep)
        kept = SpecRow(job.row.job_id, json.dumps(spec_mapping(spec)), dump_request(request))
        transaction.batch.specs.append(kept)
        gang = request.gang_request
        emit(
            transaction,
            JobRedirected(transaction.at, job.row.job_id, gang, request.value_usd_per_h, request.declared),
        )
        transaction.job_changed(job)

    def machines(transaction: Transaction) -> dict[str, Any]:
        known = transaction.core.ledger.jobs.get(row.job_id)
        return {} if known is None else {"machines": known.request.text}

    return await change_live_job(call, step, machines)


def redirected_spec(stored: dict[str, Any], asked: Redirection, request: JobRequest) -> JobSpec:
    """Returns the stored spec with the fields that are asked for; the job's kind stays.

    Raises Conflict for a job that is elastic, forked or mixed, or that has several plans: it chooses its machines
    itself.
    """
    for field in ("elastic", "fork", "mixed", "plans"):
        if field in stored:
            raise Conflict(
                f"a job with `{field}` chooses its machines itself", field=field, fix=f"submit it without {field}"
            )
    changes = asked.model_dump(mode="json", exclude_defaults=True)
    kept = {name: value for name, value in stored.items() if name not in Redirection.model_fields}
    return parse_spec({**kept, **changes, "profile": request.kind}, source="redirect")


def redirected_request(request: JobRequest, spec: JobSpec) -> JobRequest:
    """Returns the scheduler's view of the job with the gang of this spec.

    What this spec cannot change stays, such as the tools that its machines must have.
    """
    gang = replace(spec.resources.gang_request(spec.num_nodes, gang_sizes_of(spec)), tools=request.tools)
    return replace(
        request,
        value_usd_per_h=spec.value_usd_per_h,
        declared=tuple(sorted(spec.throughput.items())),
        **group_fields(gang, GangRequest),
    )


def redirect_routes(job_path: str) -> list[Route]:
    """Returns the route, for users who may change the job."""
    return [
        Route("POST", f"{job_path}/redirect", redirect_job, "Send a held job to other machines", role=UserRole.USER,
              request=Redirection, response=JobDetail),
    ]  # fmt: skip
