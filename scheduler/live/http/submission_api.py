"""Endpoints that submit jobs: one job, a batch, a dry run.

Each submission may carry an idempotency key: a request that is repeated gets its first answer again. The specs of a
batch are checked one by one, ordered by their dependencies, and admitted in one transaction.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from scheduler.core.events import JobSubmitted
from scheduler.live.http.audit_trail import note_write
from scheduler.live.http.requests import (
    LARGE_BODY_BYTES,
    RequestContext,
    check_text,
    parse_json_body,
    problem_detail_of,
)
from scheduler.live.loop.event_loop import CooperativeYield
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.dry_run import dry_run
from scheduler.live.services.job_submission import (
    BATCH_LIMIT,
    JobDraft,
    SweepPlace,
    body_digest,
    check_feasible,
    draft_job,
    recall_answer,
    remember_answer,
    sibling_positions,
    submission_order,
    submit_result,
    value_owner,
    with_standing,
)
from scheduler.live.store.store_interface import JobQuery
from scheduler.live.store.table_rows import AnswerRow
from walras.api import BatchResult, DryRun, SubmitResult
from walras.content import DamagedContent
from walras.errors import JobSpecError, NotFound, UserError
from walras.job_request import JobId, JobRequest
from walras.machine_tools import with_needs
from walras.spec.job_spec import MAX_SPEC_BYTES
from walras.spec.job_travel import needs_of
from walras.spec.spec_request import is_unproven, to_request
from walras.spec.sweeps import JOBS_MOST, array_indices, is_sweep, parse_array
from walras.spec.text_formats import parse_yaml
from walras.states import JobState

_KEY_LENGTH = 200


class JobBatch(BaseModel):
    """`POST /jobs:batch`."""

    model_config = ConfigDict(extra="forbid")
    jobs: list[Any] = Field(min_length=1, max_length=BATCH_LIMIT)


# ------------------------------------------------------------------------------------------ submit


async def submit_job(call: RequestContext) -> web.StreamResponse:
    body = await call.body()
    if len(body) > MAX_SPEC_BYTES * 2:
        raise JobSpecError(f"the spec is larger than {MAX_SPEC_BYTES:,} bytes", fix="keep data in files of their own")
    key, digest = _idempotency_key(call), _digest(call, b"jobs\n" + body)
    if (known := await _stored_answer(call, key, digest)) is not None:
        return _repeated_answer(known)
    draft = _draft_of(call, _parsed(call, body))
    needs, ended = await _dependencies(call, draft)
    if is_sweep(draft.spec):
        return await _SweepSubmission(call, draft, needs, ended).submit(key, digest)

    def step(transaction: Transaction) -> tuple[int, str]:
        if key and (again := recall_answer(_recent_answer(transaction, call, key), digest, transaction.at)) is not None:
            return 200, again
        job_id = call.server.admission.admit(transaction, draft, needs, ended, call.user.name)
        note_write(call, transaction, f"job {job_id}", after=_draft_facts(draft), project=draft.project)
        answer = submit_result(transaction.core, job_id, draft).model_dump_json()
        if key:
            remember_answer(transaction, call.user.name, key, digest, answer)
        return 201, answer

    status, answer = await call.server.loop.perform(step)
    return web.Response(status=status, body=answer.encode(), content_type="application/json")


async def submit_batch(call: RequestContext) -> web.StreamResponse:
    body = await call.body(LARGE_BODY_BYTES)
    key, digest = _idempotency_key(call), _digest(call, b"batch\n" + body)
    if (known := await _stored_answer(call, key, digest)) is not None:
        return _repeated_answer(known)
    parsed = parse_json_body(body)
    given = parsed.get("jobs") if isinstance(parsed, Mapping) else None
    if not isinstance(given, list) or not 1 <= len(given) <= BATCH_LIMIT:
        raise UserError(f"`jobs` must be a list of 1 to {BATCH_LIMIT} specs", field="jobs")
    batch = _BatchSubmission(call)
    await batch.read(given)
    await batch.resolve()

    def first(transaction: Transaction) -> None:
        """Look the key up inside the transaction, so that concurrent requests with one key admit their jobs once."""
        batch.again = recall_answer(_recent_answer(transaction, call, key), digest, transaction.at) if key else None

    def last(transaction: Transaction) -> None:
        if batch.again is None:
            batch.note(transaction)
        if key and batch.again is None:
            remember_answer(transaction, call.user.name, key, digest, batch.answer())

    await call.server.loop.perform_all([first, *(batch.step(position) for position in batch.order), last])
    if batch.again is not None:
        return _repeated_answer(batch.again)
    return web.Response(body=batch.answer().encode(), content_type="application/json")


#: The most bytes of all specs of a sweep together, as they are stored.
_SWEEP_BYTES_MOST = 64_000_000


class _SweepSubmission:
    """Admits the jobs of a sweep, all of them in one transaction or none."""

    def __init__(
        self, call: RequestContext, draft: JobDraft, needs: Sequence[JobId], ended: Mapping[JobId, JobState]
    ) -> None:
        self._call, self._draft, self._needs, self._ended = call, draft, needs, ended
        self._indices = array_indices(draft.spec)
        self._at_most = 0 if draft.spec.array is None else parse_array(draft.spec.array).at_most
        self._ids: list[JobId] = []
        self._answer = ""
        size = len(draft.spec.model_dump_json()) * len(self._indices)
        if size > _SWEEP_BYTES_MOST:
            raise JobSpecError(
                f"the specs of {len(self._indices)} jobs come to {size / 1e6:.0f} MB", fix="keep data in files"
            )

    async def submit(self, key: str, digest: str) -> web.StreamResponse:
        call, again = self._call, list[str]()

        def first(transaction: Transaction) -> None:
            """Admit the first job. What refuses one job refuses all: they differ in command and variables alone."""
            known = recall_answer(_recent_answer(transaction, call, key), digest, transaction.at) if key else None
            again.extend([] if known is None else [known])
            if not again:
                self._admit(transaction, self._indices[0])

        def next_one(index: int, transaction: Transaction) -> None:
            if not again:
                self._admit(transaction, index)

        def last(transaction: Transaction) -> None:
            if again:
                return
            told = _draft_facts(self._draft) | {"admitted": len(self._ids)}
            subject = f"jobs {self._ids[0]}-{self._ids[-1]}"
            note_write(call, transaction, subject, after=told, project=self._draft.project)
            result = submit_result(transaction.core, self._ids[0], self._draft)
            self._answer = result.model_copy(update={"jobs": len(self._ids)}).model_dump_json()
            if key:
                remember_answer(transaction, call.user.name, key, digest, self._answer)

        steps: list[Callable[[Transaction], None]] = [first]
        steps += [partial(next_one, index) for index in self._indices[1:]]
        await call.server.loop.perform_all([*steps, last])
        if again:
            return _repeated_answer(again[0])
        return web.Response(status=201, body=self._answer.encode(), content_type="application/json")

    def _admit(self, transaction: Transaction, index: int) -> None:
        draft, own = self._draft, {"array_index": index}
        written = None if draft.written is None else draft.written.model_copy(update=own)
        draft = replace(draft, spec=draft.spec.model_copy(update=own), written=written)
        place = SweepPlace(self._ids[0] if self._ids else None, self._at_most)
        admit, name = self._call.server.admission.admit, self._call.user.name
        self._ids.append(admit(transaction, draft, self._needs, self._ended, name, place))


class _BatchSubmission:
    """Admits the items of one batch: each becomes a job or an error."""

    def __init__(self, call: RequestContext) -> None:
        self._call = call
        self.again: str | None = None
        self.order: list[int] = []
        self._results: list[SubmitResult] = []
        self._drafts: list[JobDraft | None] = []
        self._siblings: list[tuple[int, ...]] = []
        self._earlier: dict[int, tuple[list[JobId], dict[JobId, JobState]]] = {}

    async def read(self, given: Sequence[Any]) -> None:
        """Validate the items one by one, and put them in the order of their dependencies."""
        cooperative = CooperativeYield()
        self._results = [SubmitResult() for _ in given]
        for position, item in enumerate(given):
            self._drafts.append(self._draft(position, item))
            await cooperative.yield_if_due()
        self._siblings = sibling_positions([None if each is None else each.spec for each in self._drafts])
        self.order, cyclic = submission_order(self._siblings)
        for position in cyclic:
            error = JobSpecError("its dependencies lead back to itself", field="depends_on", fix="break the cycle")
            self._refuse(position, error)

    async def resolve(self) -> None:
        """Look up the jobs outside the batch that the items depend on."""
        for position in self.order:
            each = self._drafts[position]
            if each is None:
                continue
            inside = {self._drafts[p].spec.name for p in self._siblings[position] if self._drafts[p] is not None}  # type: ignore[union-attr]
            try:
                self._earlier[position] = await _dependencies(self._call, each, inside)
            except UserError as error:
                self._refuse(position, error)

    def step(self, position: int) -> Any:
        def admit(transaction: Transaction) -> None:
            each = self._drafts[position]
            if self.again is not None or each is None:
                return
            try:
                needs = [*self._sibling_ids(position), *self._earlier[position][0]]
                ended = self._earlier[position][1]
                job_id = self._call.server.admission.admit(transaction, each, needs, ended, self._call.user.name)
                self._results[position] = submit_result(transaction.core, job_id, each)
            except UserError as error:
                self._refuse(position, error)

        return admit

    def note(self, transaction: Transaction) -> None:
        """Add an audit row for each project, with the jobs that were admitted."""
        by_project: dict[str, list[int]] = {}
        for draft, result in zip(self._drafts, self._results, strict=True):
            if draft is not None and result.id is not None:
                by_project.setdefault(draft.project, []).append(result.id)
        for project, ids in by_project.items():
            subject = f"jobs {min(ids)}-{max(ids)}"
            note_write(self._call, transaction, subject, after={"admitted": len(ids)}, project=project)

    def answer(self) -> str:
        return BatchResult(items=self._results).model_dump_json()

    def _sibling_ids(self, position: int) -> list[JobId]:
        ids = []
        for sibling in self._siblings[position]:
            job_id = self._results[sibling].id
            if job_id is None:
                raise JobSpecError(f"item {sibling}, which it depends on, was refused", field="depends_on")
            ids.append(JobId(job_id))
        return ids

    def _draft(self, position: int, item: Any) -> JobDraft | None:
        try:
            draft = _draft_of(self._call, item)
            if is_sweep(draft.spec):
                raise JobSpecError("a sweep is no item of a batch", field="array", fix="submit it by itself")
            return draft
        except UserError as error:
            self._results[position] = SubmitResult(error=problem_detail_of(error))
            return None

    def _refuse(self, position: int, error: UserError) -> None:
        each = self._drafts[position]
        name = "" if each is None else each.spec.name
        self._results[position] = SubmitResult(name=name, error=problem_detail_of(error))
        self._drafts[position] = None


def _draft_of(call: RequestContext, data: Any) -> JobDraft:
    """Returns a validated job with its project's defaults. Raises JobSpecError, Forbidden for a value beyond a cap."""
    return with_standing(draft_job(_spec_mapping(data), call.user), call.user, call.server.secrets.people)


async def _check_code(call: RequestContext, tree: str) -> None:
    try:
        await call.server.read(call.server.content.renew_tree, tree)
    except (NotFound, DamagedContent) as error:
        raise JobSpecError(
            f"the job's code is not here: {error}", field="code.tree", fix="submit with `walras submit`, which sends it"
        ) from None


def _draft_facts(draft: JobDraft) -> dict[str, Any]:
    """Returns what the audit row says of a new job; the whole spec is stored with the job."""
    spec = draft.spec
    told = {"name": spec.name, "priority": spec.priority, "secrets": sorted(spec.secrets)}
    return told | {"variables": sorted(spec.envs), "hold": spec.hold}


async def _dependencies(
    call: RequestContext, draft: JobDraft, siblings: set[str] | None = None
) -> tuple[list[JobId], dict[JobId, JobState]]:
    """Returns the numbers of the earlier jobs that a spec depends on, and the final states of those that have ended.

    Raises JobSpecError for a job, or a snapshot of code, that is not there.
    """
    if draft.spec.code is not None:
        await _check_code(call, draft.spec.code.tree)
    needs: list[JobId] = []
    ended: dict[JobId, JobState] = {}
    for named in draft.spec.depends_on:
        if isinstance(named, str) and siblings is not None and named in siblings:
            continue
        found = (
            await call.server.read(call.server.store.job_named, call.user.name, named)
            if isinstance(named, str)
            else JobId(named)
        )
        row = None if found is None else await call.server.read(call.server.store.job, found)
        if row is None or not call.user.sees(row.project):
            raise JobSpecError(f"no job {named!r} to depend on", field="depends_on", fix="check `walras queue`")
        rows = [row]
        if row.sweep is not None and (isinstance(named, str) or row.sweep == row.job_id):  # the job names a whole sweep
            rows = await call.server.read(call.server.store.jobs, JobQuery(sweep=row.sweep, limit=JOBS_MOST))
        needs += [each.job_id for each in rows]
        ended |= {each.job_id: each.state for each in rows if each.state.is_final}
    return needs, ended


def _parsed(call: RequestContext, body: bytes) -> Any:
    """Returns the data of a body in JSON, or in YAML (as job files are) where the request's content type says so."""
    if call.request.content_type == "application/yaml":
        return parse_yaml(body, source="job", max_bytes=MAX_SPEC_BYTES)
    return parse_json_body(body)


def _spec_mapping(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise JobSpecError("a job spec is a mapping of fields", fix='send such as {"run": "python train.py"}')
    return data


def _digest(call: RequestContext, body: bytes) -> str:
    return body_digest(body, call.server.secrets.job_tokens.secret)


def _idempotency_key(call: RequestContext) -> str:
    key = call.request.headers.get("Idempotency-Key", "")
    if len(key) > _KEY_LENGTH:
        raise UserError(f"longer than {_KEY_LENGTH} characters", field="Idempotency-Key", fix="use a UUID")
    check_text(key, "Idempotency-Key")
    return key


async def _stored_answer(call: RequestContext, key: str, digest: str) -> str | None:
    if not key:
        return None
    known = await call.server.read(call.server.store.answer, call.user.name, key)
    return recall_answer(known, digest, call.server.loop.clock.now())


def _recent_answer(transaction: Transaction, call: RequestContext, key: str) -> AnswerRow | None:
    """Returns the answer that this process gave to the key; the store may not have it yet. None where it gave none."""
    return transaction.state.answers.get((call.user.name, key))


def _repeated_answer(answer: str) -> web.Response:
    return web.Response(status=200, body=answer.encode(), content_type="application/json")


async def dry_run_endpoint(call: RequestContext) -> DryRun:
    server = call.server
    draft, request = tried_request(call, _parsed(call, await call.body()), JobId(server.state.next_job_id))
    found = dry_run(server.core, request).model_copy(update={"defaults": list(draft.defaults)})
    event = JobSubmitted(server.loop.clock.now(), request)
    forecast = await server.start_forecasts.foresee_job(event, request.job_id)
    return found.model_copy(update={"value_by": value_owner(found.value_by, draft.defaults), "forecast": forecast})


def tried_request(call: RequestContext, data: Any, job_id: JobId) -> tuple[JobDraft, JobRequest]:
    """Returns the job that this data would submit, under a number not in use. Raises JobSpecError, Forbidden."""
    draft = _draft_of(call, data)
    if is_sweep(draft.spec):  # the first job of the sweep stands for all
        first = array_indices(draft.spec)[0]
        draft = replace(draft, spec=draft.spec.model_copy(update={"array_index": first}))
    server, now = call.server, call.server.loop.clock.now()
    request = to_request(
        draft.spec,
        job_id,
        user=call.user.name,
        project=draft.project,
        at=now,
        now_wall=server.loop.clock.unix(now),
    )
    needs = needs_of(draft.spec)
    request = with_needs(replace(request, unproven=is_unproven(draft.spec)), needs)
    check_feasible(server.core, server.state, request, needs)
    return draft, request
